package arena

import (
	"io/fs"
	"os"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"
)

// createFile makes the file at path, which must not exist, or a memfd of that name if path is "".
func createFile(path, name string) (int, error) {
	if path == "" {
		fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		return fd, errors.Wrap(err, "memfd")
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	return fd, errors.Wrapf(err, "open %s", path)
}

// openRegular opens a file that this user or root made, and returns its state. A link or a file planted by someone else in a
// shared directory is refused.
func openRegular(path string, mode int) (fd int, st unix.Stat_t, err error) {
	if fd, err = unix.Open(path, mode|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err != nil {
		return -1, st, errors.Wrapf(err, "open %s", path)
	}
	if err = unix.Fstat(fd, &st); err != nil {
		err = errors.Wrap(err, "stat")
	} else if st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errors.Wrapf(ErrCorrupt, "%s is not a regular file", path)
	} else if st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		err = errors.Wrapf(fs.ErrPermission, "%s belongs to user %d", path, st.Uid)
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

// remove deletes the file at path if it is the one meant; gone already is no error.
func (i identity) remove(path string) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil || st.Dev != i.dev || st.Ino != i.ino {
		return nil
	}
	return errors.Wrap(os.Remove(path), "remove")
}
