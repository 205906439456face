package arena

import (
	"io/fs"
	"os"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"
)

// createFile makes the file of that name in a directory, which must not exist.
func createFile(dir int, name string) (int, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	return fd, errors.Wrapf(err, "create %s", name)
}

func createMemfd(name string) (int, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	return fd, errors.Wrap(err, "memfd")
}

// openRegular opens a file that this user or root made, and returns its state. A link or a file planted by someone else
// is refused.
func openRegular(dir int, name string, mode int) (fd int, st unix.Stat_t, err error) {
	if fd, err = unix.Openat(dir, name, mode|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err != nil {
		return -1, st, errors.Wrapf(err, "open %s", name)
	}
	if err = unix.Fstat(fd, &st); err != nil {
		err = errors.Wrap(err, "stat")
	} else if st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errors.Wrapf(ErrCorrupt, "%s is not a regular file", name)
	} else if st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		err = errors.Wrapf(fs.ErrPermission, "%s belongs to user %d", name, st.Uid)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}

// identity tells files apart that have had the same name.
type identity struct{ dev, ino uint64 }

func identify(fd int) (identity, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return identity{st.Dev, st.Ino}, errors.Wrap(err, "stat")
}

// names reports whether a name in a directory stands for this file.
func (i identity) names(dir int, name string) bool {
	var st unix.Stat_t
	err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && st.Dev == i.dev && st.Ino == i.ino
}

// remove deletes the file of that name if it is the one meant; gone already is no error.
func (i identity) remove(dir int, name string) error {
	if !i.names(dir, name) {
		return nil
	}
	if err := unix.Unlinkat(dir, name, 0); !errors.Is(err, fs.ErrNotExist) {
		return errors.Wrapf(err, "remove %s", name)
	}
	return nil
}
