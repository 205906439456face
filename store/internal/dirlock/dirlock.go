// Package dirlock lets one process, and one holder in it, have a directory.
//
// Three locks make one. A flock on the directory itself: no deletion, renaming or closing of files in it touches that, but a
// forked child inherits it. A flock on the file LOCK that a mapping holds (package filelock): no child inherits that one. And
// a record lock on LOCK, which earlier versions of this package take: it keeps them out and is kept out by them.
//
// A forked child that runs no exec keeps the directory's flock after its parent died. The next Acquire finds LOCK free then,
// and in it the mark of a holder: the holder is dead, and no child of it can use the store, so Acquire goes on with LOCK alone.
// If LOCK was deleted as well nothing proves that, and the directory stays taken until the child ends.
//
// A file system that can't flock directories (some network file systems) has LOCK alone; one without any flock is refused.
package dirlock

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"

	"github.com/kvcache-ai/mooncake-go/store/internal/filelock"
)

const fileName = "LOCK"

// directory identifies a directory by whatever path it was named.
type directory struct{ dev, ino uint64 }

// held is the table of the process. It answers a second Acquire of the process before that opens LOCK: closing it again would
// drop the record lock of the first. It keeps a Lock that was lost without Release from being collected.
var held struct {
	sync.Mutex
	dirs map[directory]*Lock
}

// Lock is a directory that is held. Release it once.
type Lock struct {
	dir  directory
	path string

	mu     sync.Mutex
	handle *os.File       // the directory, with its flock; nil after Release
	file   *os.File       // LOCK, with the record lock
	mapped *filelock.Lock // LOCK, with the flock
}

// Acquire takes the directory, which must exist and be writable, without waiting. If it is taken already, the error wraps
// ErrHeld and says by whom: the pid of another process, or this process.
func Acquire(dir string) (*Lock, error) {
	handle, err := os.OpenFile(dir, unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, errors.Wrapf(err, "lock directory %s", dir)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(handle.Fd()), &st); err != nil {
		_ = handle.Close()
		return nil, errors.Wrapf(err, "lock directory %s", dir)
	}
	l := &Lock{dir: directory{st.Dev, st.Ino}, path: filepath.Join(dir, fileName), handle: handle}
	// The lock of the table covers the system calls below: they do not wait for anyone.
	held.Lock()
	defer held.Unlock()
	if held.dirs[l.dir] != nil {
		_ = handle.Close()
		return nil, errors.Wrapf(ErrHeld, "lock directory %s: held by this process (pid %d)", dir, os.Getpid())
	}
	if err := l.acquire(); err != nil {
		_ = l.drop()
		return nil, errors.Wrapf(err, "lock directory %s", dir)
	}
	if held.dirs == nil {
		held.dirs = map[directory]*Lock{}
	}
	held.dirs[l.dir] = l
	return l, nil
}

func (l *Lock) acquire() error {
	err := filelock.Flock(l.fd(), unix.LOCK_EX)
	taken := errors.Is(err, filelock.ErrHeld)
	if err != nil && !taken && !errors.Is(err, filelock.ErrUnsupported) {
		return err
	}
	if err := l.openFile(!taken); err != nil {
		if taken {
			return l.heldBy()
		}
		return err
	}
	if taken && !l.marked() {
		return l.heldBy()
	}
	// The record lock first: a holder of an earlier version has no other.
	if err := lockFile(l.file); err != nil {
		return err
	}
	l.mapped, err = filelock.Take(func() (int, error) { return l.open(unix.O_RDONLY) })
	if errors.Is(err, filelock.ErrHeld) {
		return l.heldBy()
	}
	if err != nil {
		return err
	}
	l.mark()
	// Take closed a descriptor of LOCK, which dropped the record lock.
	return lockFile(l.file)
}

func (l *Lock) fd() int { return int(l.handle.Fd()) }

func (l *Lock) open(mode int) (int, error) {
	return unix.Openat(l.fd(), fileName, mode|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
}

// openFile opens LOCK. A directory that is taken is not given a new one.
func (l *Lock) openFile(create bool) error {
	mode := unix.O_RDWR
	if create {
		mode |= unix.O_CREAT
	}
	fd, err := l.open(mode)
	switch {
	case errors.Is(err, unix.EROFS):
		return errors.Wrap(err, "the file system is read-only")
	case errors.Is(err, unix.EACCES):
		return errors.Wrap(err, "the directory is read-only for this user")
	case err != nil:
		return errors.Wrapf(err, "open %s", l.path)
	}
	l.file = os.NewFile(uintptr(fd), l.path)
	return nil
}

// mark writes into LOCK that it is the file which a holder of this directory has locked. A copy of the file, or a new one
// under its name, is not marked. On a full disk it stays unmarked, and a forked child keeps the directory.
func (l *Lock) mark() {
	if !l.marked() {
		_, _ = l.file.WriteAt([]byte(l.markText()), 0)
	}
}

func (l *Lock) marked() bool {
	want := l.markText()
	got := make([]byte, len(want))
	_, err := l.file.ReadAt(got, 0)
	return err == nil && want != "" && string(got) == want
}

func (l *Lock) markText() string {
	var st unix.Stat_t
	if err := unix.Fstat(int(l.file.Fd()), &st); err != nil {
		return ""
	}
	return fmt.Sprintf("lock %d of directory %d on %d\n", st.Ino, l.dir.ino, st.Dev)
}

// lockFile takes the record lock of f. A holder that lets go while we ask for its pid leads to another try.
func lockFile(f *os.File) error {
	for range 3 {
		lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
		err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &lock)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) {
			return errors.Wrap(err, "record lock")
		}
		if err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &lock); err != nil {
			return errors.Wrap(err, "find the holder of the lock")
		}
		if lock.Type == unix.F_UNLCK {
			continue
		}
		return heldByPid(int(lock.Pid))
	}
	return errors.Wrap(ErrHeld, "held by a process that changes")
}

func heldByPid(pid int) error {
	if pid <= 0 { // it is in another pid namespace
		return errors.Wrap(ErrHeld, "held by a process outside of this container")
	}
	return errors.Wrapf(ErrHeld, "held by process %d", pid)
}

// heldBy names the holder of a flock, which the kernel lists.
func (l *Lock) heldBy() error {
	inodes := []uint64{l.dir.ino}
	var st unix.Stat_t
	if l.file != nil && unix.Fstat(int(l.file.Fd()), &st) == nil {
		inodes = append(inodes, st.Ino)
	}
	list, err := os.Open("/proc/locks")
	if err != nil {
		return errors.Wrap(ErrHeld, "held by another process")
	}
	defer list.Close()
	for lines := bufio.NewScanner(list); lines.Scan(); {
		f := strings.Fields(lines.Text()) // 1: FLOCK ADVISORY WRITE pid device:inode start end
		if len(f) < 8 || f[1] != "FLOCK" {
			continue
		}
		pid, err := strconv.Atoi(f[4])
		for _, ino := range inodes {
			if err == nil && pid != os.Getpid() && strings.HasSuffix(f[5], fmt.Sprintf(":%d", ino)) {
				return heldByPid(pid)
			}
		}
	}
	return errors.Wrap(ErrHeld, "held by a process outside of this container")
}

// Dir returns the directory that is held, open until Release. It stays the same directory when that is renamed.
func (l *Lock) Dir() *os.File { return l.handle }

// Release gives the directory up. The file LOCK stays: it is what tells a dead holder's child from a holder.
func (l *Lock) Release() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.handle == nil {
		return os.ErrClosed
	}
	held.Lock()
	defer held.Unlock()
	delete(held.dirs, l.dir)
	return errors.Wrapf(l.drop(), "release %s", l.path)
}

// drop gives up what was taken, the directory's flock for forked children as well.
func (l *Lock) drop() (first error) {
	keep := func(err error) {
		if first == nil {
			first = err
		}
	}
	if l.mapped != nil {
		keep(l.mapped.Release())
	}
	if l.file != nil {
		keep(l.file.Close())
	}
	_ = unix.Flock(l.fd(), unix.LOCK_UN) // does nothing to the lock of another open file
	keep(l.handle.Close())
	l.handle = nil
	return first
}
