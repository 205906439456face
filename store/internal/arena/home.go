package arena

import (
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"

	"github.com/kvcache-ai/mooncake-go/store/internal/filelock"
)

// Home is the directory that the shared memory of one store lies in: its segment, and its files in a directory below. It is
// opened once; everything in it is reached through its descriptor, so that nobody can put another directory in its place.
type Home struct {
	path string
	fd   int
}

const segmentName, filesName = "segment", "files"

// MakeHome makes a home that does not exist. It is locked against InspectHome until Ready. The error wraps fs.ErrExist if there
// is something of that name.
func MakeHome(root, name string) (*Home, error) {
	dir, err := openRoot(root)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	if err := unix.Mkdirat(dir, name, 0o700); err != nil {
		return nil, errors.Wrapf(err, "make %s", filepath.Join(root, name))
	}
	h := &Home{path: filepath.Join(root, name)}
	if h.fd, err = openPrivate(dir, name); err != nil {
		return nil, errors.Wrapf(err, "make %s", h.path)
	}
	if err := filelock.Flock(h.fd, unix.LOCK_EX); errors.Is(err, filelock.ErrHeld) || err == nil && !h.Exists() {
		_ = h.Close() // InspectHome was faster
		return nil, errors.Wrapf(fs.ErrExist, "make %s", h.path)
	}
	return h, nil
}

// Wait keeps InspectHome out until Ready, so that it is not taken for a process that has the segment. One that looks now is
// waited for; if it does not end (it may be stopped), Wait goes on without.
func (h *Home) Wait() {
	for range 2000 {
		if !errors.Is(filelock.Flock(h.fd, unix.LOCK_EX), filelock.ErrHeld) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// Ready ends Wait, and the making of a home.
func (h *Home) Ready() { _ = unix.Flock(h.fd, unix.LOCK_UN) }

// OpenHome opens a home. The error wraps fs.ErrNotExist or ErrForeign where that is the reason.
func OpenHome(root, name string) (*Home, error) {
	dir, err := openRoot(root)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	h := &Home{path: filepath.Join(root, name)}
	if h.fd, err = openPrivate(dir, name); err != nil {
		return nil, errors.Wrapf(err, "open %s", h.path)
	}
	return h, nil
}

// openRoot opens the directory that homes lie in. Where others can write, only the sticky bit keeps them from renaming ours.
func openRoot(root string) (int, error) {
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, errors.Wrapf(err, "open %s", root)
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0 {
		err = errors.Wrapf(ErrForeign, "mode %o without the sticky bit", st.Mode&0o7777)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, errors.Wrapf(err, "open %s", root)
	}
	return fd, nil
}

// openPrivate opens a directory that this user made and no other can write.
func openPrivate(dir int, name string) (int, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EACCES) {
		return -1, errors.Wrap(ErrForeign, err.Error())
	}
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && (int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0) {
		err = errors.Wrapf(ErrForeign, "user %d, mode %o", st.Uid, st.Mode&0o7777)
	}
	if err == nil && st.Mode&0o077 != 0 {
		if err = closeModes(fd); err == nil { // an earlier version let others in
			err = unix.Fchmod(fd, 0o700)
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// closeModes takes the group's and the others' rights to the files of a directory that only this user writes.
func closeModes(dir int) error {
	names, err := readNames(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		var st unix.Stat_t
		err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&0o077 != 0 {
			err = unix.Fchmodat(dir, name, st.Mode&0o700, 0)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// makePrivate opens a directory as openPrivate does and makes it if it is missing.
func makePrivate(dir int, name string) (int, error) {
	if err := unix.Mkdirat(dir, name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return -1, err
	}
	return openPrivate(dir, name)
}

// Path returns the name of the directory.
func (h *Home) Path() string { return h.path }

// Exists reports whether the directory still has its name.
func (h *Home) Exists() bool {
	id, err := identify(h.fd)
	return err == nil && id.names(unix.AT_FDCWD, h.path)
}

// Files opens the set of files in the home.
func (h *Home) Files(limits MemLimits) (*FileSet, error) {
	return newFileSet(filepath.Join(h.path, filesName), limits, func() (int, error) {
		if fd, err := makePrivate(h.fd, filesName); !errors.Is(err, fs.ErrNotExist) {
			return fd, err
		}
		// The home was deleted. Make one of its name; the segment that was in it has none any more.
		root, err := openRoot(filepath.Dir(h.path))
		if err != nil {
			return -1, err
		}
		defer unix.Close(root)
		home, err := makePrivate(root, filepath.Base(h.path))
		if err != nil {
			return -1, err
		}
		defer unix.Close(home)
		return makePrivate(home, filesName)
	})
}

// Remove deletes the home with all that is in it. Memory that is mapped stays until it is unmapped.
func (h *Home) Remove() error {
	if files, err := openPrivate(h.fd, filesName); err == nil {
		err := emptyDir(files)
		_ = unix.Close(files)
		if err != nil {
			return errors.Wrapf(err, "remove %s", h.path)
		}
	}
	if err := emptyDir(h.fd); err != nil {
		return errors.Wrapf(err, "remove %s", h.path)
	}
	if !h.Exists() {
		return nil
	}
	return errors.Wrapf(os.Remove(h.path), "remove %s", h.path)
}

// emptyDir deletes what is in a directory of ours, which has no directories but empty ones.
func emptyDir(fd int) error {
	names, err := readNames(fd)
	if err != nil {
		return err
	}
	for _, name := range names {
		err := unix.Unlinkat(fd, name, 0)
		if errors.Is(err, unix.EISDIR) {
			err = unix.Unlinkat(fd, name, unix.AT_REMOVEDIR)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return errors.Wrapf(err, "remove %s", name)
		}
	}
	return nil
}

// readNames lists a directory by its descriptor.
func readNames(fd int) ([]string, error) {
	again, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) // with an offset of its own
	if err != nil {
		return nil, err
	}
	d := os.NewFile(uintptr(again), "directory")
	defer d.Close()
	return d.Readdirnames(-1)
}

// Close lets go of the directory, which stays.
func (h *Home) Close() error {
	if h.fd < 0 {
		return os.ErrClosed
	}
	h.Ready() // also for a forked child, which has the descriptor
	err := unix.Close(h.fd)
	h.fd = -1
	return err
}
