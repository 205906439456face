package ssd

import (
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"
)

// OSFS is the operating system's file layer. Files are opened with O_DIRECT, or buffered where the file system refuses
// that.
type OSFS struct{}

// OpenFile implements FS.
func (OSFS) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	fd, err := openRetry(name, flag|unix.O_DIRECT|unix.O_CLOEXEC, perm)
	if errors.Is(err, syscall.EINVAL) {
		// Some file systems create the file before they refuse O_DIRECT, so O_EXCL would now find our own.
		fd, err = openRetry(name, flag&^os.O_EXCL|unix.O_CLOEXEC, perm)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return osFile(fd), nil
}

func openRetry(name string, flag int, perm fs.FileMode) (fd int, err error) {
	err = retry(func() error {
		fd, err = unix.Open(name, flag, uint32(perm.Perm()))
		return err
	})
	return fd, err
}

// retry repeats a system call that a signal interrupted.
func retry(call func() error) error {
	for {
		if err := call(); err != syscall.EINTR {
			return err
		}
	}
}

// ReadDir implements FS.
func (OSFS) ReadDir(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }()
	return d.Readdirnames(-1)
}

// Stat implements FS.
func (OSFS) Stat(name string) (Info, error) {
	var st unix.Stat_t
	if err := retry(func() error { return unix.Stat(name, &st) }); err != nil {
		return Info{}, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	return Info{
		Size: st.Size, Blocks: st.Blocks, MtimeNs: st.Mtim.Nano(), Ino: st.Ino,
		Mode: fs.FileMode(st.Mode) & fs.ModePerm,
	}, nil
}

// Remove implements FS.
func (OSFS) Remove(name string) error { return os.Remove(name) }

// Rename implements FS.
func (OSFS) Rename(from, to string) error { return os.Rename(from, to) }

// MkdirAll implements FS.
func (OSFS) MkdirAll(dir string, perm fs.FileMode) error { return os.MkdirAll(dir, perm) }

// SyncDir implements FS.
func (OSFS) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}

// FreeBytes implements FS.
func (OSFS) FreeBytes(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := retry(func() error { return unix.Statfs(dir, &st) }); err != nil {
		return 0, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return freeBytes(&st), nil
}

// freeBytes is -1 for a file system without a size: FUSE and some network ones report zeros all over.
func freeBytes(st *unix.Statfs_t) int64 {
	if st.Blocks == 0 {
		return -1
	}
	return int64(st.Bavail) * st.Bsize
}

// osFile is a descriptor. os.File would do, but continues a short direct read at an unaligned offset, which fails.
type osFile int

func (f osFile) ReadAt(p []byte, off int64) (int, error) {
	return transfer(p, off, io.EOF, func(p []byte, off int64) (int, error) { return unix.Pread(int(f), p, off) })
}

// below returns EFBIG, with the limit's name, for a file that would grow beyond RLIMIT_FSIZE: the kernel would also send
// SIGXFSZ, which ends a C process.
func below(size int64) error {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &r); err == nil && uint64(size) > r.Cur {
		return errors.Wrapf(syscall.EFBIG, "file of %d bytes, the limit is RLIMIT_FSIZE (ulimit -f) = %d", size, r.Cur)
	}
	return nil
}

func (f osFile) WriteAt(p []byte, off int64) (int, error) {
	if err := below(off + int64(len(p))); err != nil {
		return 0, err
	}
	return transfer(p, off, io.ErrShortWrite, func(p []byte, off int64) (int, error) { return unix.Pwrite(int(f), p, off) })
}

// transfer repeats call until p is done. A count that is zero or breaks the alignment ends it with short.
func transfer(p []byte, off int64, short error, call func([]byte, int64) (int, error)) (int, error) {
	for done := 0; ; {
		n, err := call(p[done:], off+int64(done))
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return done, err
		}
		done += n
		if done == len(p) {
			return done, nil
		}
		if n == 0 || done%BlockBytes != 0 {
			return done, short
		}
	}
}

func (f osFile) Sync() error { return retry(func() error { return unix.Fdatasync(int(f)) }) }

func (f osFile) Truncate(size int64) error {
	if err := below(size); err != nil {
		return err
	}
	return retry(func() error { return unix.Ftruncate(int(f), size) })
}

func (f osFile) Allocate(off, n int64) error {
	if err := below(off + n); err != nil {
		return err
	}
	return retry(func() error { return unix.Fallocate(int(f), 0, off, n) })
}

func (f osFile) PunchHole(off, n int64) error {
	return retry(func() error {
		return unix.Fallocate(int(f), unix.FALLOC_FL_KEEP_SIZE|unix.FALLOC_FL_PUNCH_HOLE, off, n)
	})
}

func (f osFile) Chmod(perm fs.FileMode) error {
	return retry(func() error { return unix.Fchmod(int(f), uint32(perm.Perm())) })
}

func (f osFile) Readahead(off, n int64) error {
	return unix.Fadvise(int(f), off, n, unix.FADV_WILLNEED)
}

func (f osFile) Close() error { return unix.Close(int(f)) }
