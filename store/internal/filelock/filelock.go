// Package filelock locks a file for the life of a process.
//
// The lock is a flock, which belongs to an open file. It is held by a mapping of that open file and by no descriptor:
// the kernel drops it when the mapping ends. So it does not fall when other code of the process opens and closes the
// file, a forked child does not inherit it (the mapping is left out of forks), and exec and death end it. A child that
// C code forks within Take is the exception: it holds the lock until it ends or calls exec.
package filelock

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

var (
	// ErrHeld means that another open file has the lock.
	ErrHeld = errors.New("file is locked")

	// ErrUnsupported means that the file system has no locks.
	ErrUnsupported = errors.New("the file system has no file locks")
)

// Lock is a file that is locked. Release it once.
type Lock struct {
	mu  sync.Mutex
	mem unsafe.Pointer // nil after Release
}

// Take locks the regular file that open opens for reading, without waiting, and closes the descriptor. open must make a
// new open file: a duplicate shares its lock.
func Take(open func() (fd int, err error)) (*Lock, error) {
	syscall.ForkLock.RLock() // no child of os/exec gets the descriptor
	defer syscall.ForkLock.RUnlock()
	fd, err := open()
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := Flock(fd, unix.LOCK_EX); err != nil {
		return nil, err
	}
	// The page is never touched, so that the file may be empty.
	mem, err := unix.MmapPtr(fd, 0, nil, uintptr(os.Getpagesize()), unix.PROT_NONE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map locked file: %w", err)
	}
	l := &Lock{mem: mem}
	page := unsafe.Slice((*byte)(mem), os.Getpagesize()) // the mapping just made
	if err := unix.Madvise(page, unix.MADV_DONTFORK); err != nil {
		_ = l.Release()
		return nil, fmt.Errorf("madvise locked file: %w", err)
	}
	return l, nil
}

// Flock is flock(2) without waiting. The error wraps ErrHeld or ErrUnsupported where that is the reason.
func Flock(fd, how int) error {
	for {
		err := unix.Flock(fd, how|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EWOULDBLOCK):
			return ErrHeld
		case errors.Is(err, unix.ENOLCK), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP),
			errors.Is(err, unix.EINVAL), errors.Is(err, unix.EBADF):
			return fmt.Errorf("%w: %w", ErrUnsupported, err)
		}
		return fmt.Errorf("flock: %w", err)
	}
}

// Release drops the lock.
func (l *Lock) Release() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mem == nil {
		return os.ErrClosed
	}
	err := unix.MunmapPtr(l.mem, uintptr(os.Getpagesize()))
	l.mem = nil
	return err
}
