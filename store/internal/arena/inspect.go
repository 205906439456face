package arena

import (
	"io/fs"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"

	"github.com/kvcache-ai/mooncake-go/store/internal/filelock"
)

// Found is what InspectHome found out about a home. While it is open no process can take over a segment that is not in use.
type Found struct {
	InUse  bool  // a process has the segment, or makes one
	Bytes  int64 // that the home takes of the machine
	Known  bool  // the fields below were read
	Owned  bool  // it records an owner
	Owner  Owner
	BootID string
	Store  [16]byte

	home *Home
	lock *filelock.Lock
}

// InspectHome looks at a home from outside. It changes nothing. Close must be called.
func InspectHome(root, name string) (*Found, error) {
	h, err := OpenHome(root, name)
	if err != nil {
		return nil, err
	}
	f := &Found{home: h}
	if err := f.inspect(); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func (f *Found) inspect() error {
	var err error
	if f.Bytes, err = treeBytes(f.home.fd); err != nil {
		return err
	}
	if err := filelock.Flock(f.home.fd, unix.LOCK_EX); err != nil {
		f.InUse = true
		return nil
	}
	for _, name := range []string{segmentName, segmentName + ".new"} {
		err := f.inspectFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		return err
	}
	return nil // made by a process that died before it made a segment
}

func (f *Found) inspectFile(name string) error {
	fd, _, err := openRegular(f.home.fd, name, unix.O_RDWR)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	p := make([]byte, headerBytes)
	n, err := unix.Pread(fd, p, 0)
	if err != nil {
		return errors.Wrap(err, "read header")
	}
	h, err := parseHeader(p[:n])
	switch {
	case err == nil:
		f.Known, f.Owned, f.Owner, f.BootID, f.Store = true, h.format >= ownedFormat, h.owner, h.bootID, h.storeID
	case errors.Is(err, ErrNewerFormat):
		f.InUse = true // how that version shows it is not known here
		return nil
	}
	if f.Known && !f.Owned && openElsewhere(fd) { // which took no lock
		f.InUse = true
		return nil
	}
	f.lock, err = filelock.Take(func() (int, error) {
		fd, _, err := openRegular(f.home.fd, name, unix.O_RDONLY)
		return fd, err
	})
	if errors.Is(err, filelock.ErrHeld) {
		f.InUse = true
		return nil
	}
	return err
}

// openElsewhere reports whether somebody else has the file open or mapped: then the kernel gives no write lease.
func openElsewhere(fd int) bool {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		return true
	}
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK)
	return false
}

// treeBytes is what the files in a home take.
func treeBytes(fd int) (sum int64, err error) {
	names, err := readNames(fd)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		var st unix.Stat_t
		if unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			continue
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			sum += st.Blocks * 512
			continue
		}
		if sub, err := openPrivate(fd, name); err == nil {
			n, _ := treeBytes(sub)
			_ = unix.Close(sub)
			sum += n
		}
	}
	return sum, nil
}

// Remove deletes the home, which must not be in use.
func (f *Found) Remove() error {
	if f.InUse {
		return errors.Wrap(ErrInUse, f.home.path)
	}
	return f.home.Remove()
}

// Close lets go of the home.
func (f *Found) Close() error {
	if f.lock != nil {
		_ = f.lock.Release()
	}
	return f.home.Close()
}
