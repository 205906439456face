// Package dirlock lets one process, and one holder in it, have a directory.
//
// The lock is an fcntl record lock on the file LOCK in the directory. The kernel drops it when the process ends, however
// it ends, and a forked child does not inherit it. It works on local file systems; on a network file system it is as good
// as that system's record locks.
package dirlock

import (
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"
)

const fileName = "LOCK"

// directory identifies a directory by whatever path it was named.
type directory struct{ dev, ino uint64 }

// held is the one table of the process. An fcntl lock belongs to the process, so that a second Acquire would succeed, and
// closing its file would drop the lock of the first; hence state that is shared by all stores of the process. It keeps a Lock
// that was lost without Release from being collected, its file with it.
var held struct {
	sync.Mutex
	dirs map[directory]*Lock
}

// Lock is a directory that is held. Release it once.
type Lock struct {
	dir  directory
	path string

	mu   sync.Mutex
	file *os.File // nil after Release
}

// Acquire takes the directory, which must exist and be writable, without waiting. If it is taken already, the error wraps
// ErrHeld and says by whom: the pid of another process, or this process.
func Acquire(dir string) (*Lock, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return nil, errors.Wrapf(err, "lock directory %s", dir)
	}
	l := &Lock{dir: directory{st.Dev, st.Ino}, path: filepath.Join(dir, fileName)}
	// The lock of the table covers the system calls below: they do not wait for anyone.
	held.Lock()
	defer held.Unlock()
	if held.dirs[l.dir] != nil {
		return nil, errors.Wrapf(ErrHeld, "lock directory %s: held by this process (pid %d)", dir, os.Getpid())
	}
	if err := l.acquire(); err != nil {
		return nil, errors.Wrapf(err, "lock directory %s", dir)
	}
	if held.dirs == nil {
		held.dirs = map[directory]*Lock{}
	}
	held.dirs[l.dir] = l
	return l, nil
}

func (l *Lock) acquire() error {
	f, err := os.OpenFile(l.path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	switch {
	case errors.Is(err, unix.EROFS):
		return errors.Wrap(err, "the file system is read-only")
	case errors.Is(err, unix.EACCES):
		return errors.Wrap(err, "the directory is read-only for this user")
	case err != nil:
		return err
	}
	if err := lockFile(f); err != nil {
		_ = f.Close()
		return err
	}
	l.file = f
	return nil
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
		if lock.Pid <= 0 { // it is in another pid namespace
			return errors.Wrap(ErrHeld, "held by a process outside of this container")
		}
		return errors.Wrapf(ErrHeld, "held by process %d", lock.Pid)
	}
	return errors.Wrap(ErrHeld, "held by a process that changes")
}

// Release gives the directory up. The file LOCK stays: removing it would let two processes lock two files of one name.
func (l *Lock) Release() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return os.ErrClosed
	}
	held.Lock()
	defer held.Unlock()
	delete(held.dirs, l.dir)
	err := l.file.Close() // which drops the record lock
	l.file = nil
	return errors.Wrapf(err, "release %s", l.path)
}
