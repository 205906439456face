package store

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"

	"github.com/kvcache-ai/mooncake-go/store/internal/arena"
)

// LeftoverState says what becomes of memory that stores have left on a tmpfs.
type LeftoverState string

// The states. Open frees what is Abandoned, and so does FreeLeftovers; Unknown it frees only if it is named.
const (
	LeftoverInUse     LeftoverState = "in use"    // a process has it
	LeftoverKept      LeftoverState = "kept"      // the directory will have it back at its next Open
	LeftoverAbandoned LeftoverState = "abandoned" // its process is dead, and its directory is gone or does not claim it
	LeftoverUnknown   LeftoverState = "unknown"   // its process is dead, and its directory can't be seen from here
)

// Leftover is the shared memory of one store, open or not.
type Leftover struct {
	Path  string // the directory on the tmpfs
	State LeftoverState
	Bytes int64  // that it takes of the machine
	PID   int    // of the process that has it or had it last, in that process' pid namespace; 0 = not known
	Dir   string // Options.Dir of the store; "" = not known
	Boot  string // id of the boot that it is from
}

// Leftovers lists the memory of stores on a tmpfs, Options.ShmDir ("" is its default), that this user may look at.
//
// A lock tells whether a process has it, on the segment itself and in any namespace. If none has, the directory decides.
// Memory of another boot is abandoned. In another mount namespace than the process that left it nothing is decided. In the
// same one the recorded path is looked up: if it stands for the same directory, its file MEMORY says whether it claims the
// memory. If it stands for nothing, or for another directory, the directory is gone when the nearest parent that exists is on
// the file system that it was on (else the file system may not be mounted now), and holds it under no other name.
// A directory that was moved elsewhere and not opened since counts as gone: then its next Open is cold.
func Leftovers(shmDir string) ([]Leftover, error) {
	boot, err := arena.BootID()
	if err != nil {
		return nil, err
	}
	var list []Leftover
	err = eachHome(shmDir, func(path string, f *arena.Found) error {
		list = append(list, leftover(path, f, boot))
		return nil
	})
	return list, err
}

// FreeLeftovers gives abandoned memory back to the machine and returns it. With paths, of Leftover.Path, it frees only those, and
// also what is unknown. What is in use or kept is never freed.
func FreeLeftovers(shmDir string, paths ...string) (freed []Leftover, err error) {
	boot, err := arena.BootID()
	if err != nil {
		return nil, err
	}
	err = eachHome(shmDir, func(path string, f *arena.Found) error {
		l := leftover(path, f, boot)
		named := false
		for _, p := range paths {
			named = named || filepath.Clean(p) == path
		}
		if l.State == LeftoverAbandoned && (named || len(paths) == 0) || l.State == LeftoverUnknown && named {
			if err := f.Remove(); err != nil {
				return err
			}
			freed = append(freed, l)
		}
		return nil
	})
	return freed, err
}

// eachHome calls fn for each home. One that can't be looked at is left out.
func eachHome(shmDir string, fn func(path string, f *arena.Found) error) error {
	if shmDir == "" {
		shmDir = defaultShmDir
	}
	entries, err := os.ReadDir(shmDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return errors.WithMessage(err, "list shared memory")
	}
	var first error
	for _, e := range entries {
		id, err := hex.DecodeString(strings.TrimPrefix(e.Name(), homePrefix))
		if err != nil || len(id) != 16 || !strings.HasPrefix(e.Name(), homePrefix) {
			continue
		}
		f, err := arena.InspectHome(shmDir, e.Name())
		if err != nil {
			continue
		}
		err = fn(filepath.Join(shmDir, e.Name()), f)
		if e := f.Close(); err == nil {
			err = e
		}
		if first == nil {
			first = err
		}
	}
	return first
}

func leftover(path string, f *arena.Found, boot string) Leftover {
	return Leftover{path, leftoverState(filepath.Base(path), f, boot), f.Bytes, f.Owner.PID, f.Owner.Path, f.BootID}
}

func leftoverState(name string, f *arena.Found, boot string) LeftoverState {
	if f.InUse {
		return LeftoverInUse
	}
	if !f.Known { // its process died before it made a segment, or the header was destroyed: no store can have it back
		return LeftoverAbandoned
	}
	if f.BootID != boot {
		return LeftoverAbandoned
	}
	if !f.Owned {
		return LeftoverUnknown
	}
	o := &f.Owner
	if space := mountSpace(); space == 0 || space != o.MountSpace || o.Path == "" {
		return LeftoverUnknown
	}
	fd, err := unix.Open(o.Path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(fd)
		now, err := ownerOf(fd, o.Path)
		if err != nil {
			return LeftoverUnknown
		}
		if now.SameDir(o) {
			return claimState(fd, name, o)
		}
	} else if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
		return LeftoverUnknown
	}
	if dirGone(o) {
		return LeftoverAbandoned
	}
	return LeftoverUnknown
}

// claimState says whether the directory that has left memory claims it.
func claimState(dir int, name string, o *arena.Owner) LeftoverState {
	c, ok, err := readClaim(dir)
	switch {
	case err != nil:
		return LeftoverUnknown
	case ok && c.home() == name && (bytes.Equal(c.has[:], o.Epoch[:]) || bytes.Equal(c.next[:], o.Epoch[:])):
		return LeftoverKept
	}
	return LeftoverAbandoned
}

// dirGone reports whether a directory that is not at its path any more does not exist. See Leftovers for the rule.
func dirGone(o *arena.Owner) bool {
	for parent := filepath.Dir(o.Path); ; parent = filepath.Dir(parent) {
		fd, err := unix.Open(parent, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if errors.Is(err, fs.ErrNotExist) && parent != "/" {
			continue
		}
		if err != nil {
			return false
		}
		gone := goneFrom(fd, o)
		_ = unix.Close(fd)
		return gone
	}
}

// goneFrom reports whether a directory that exists is on o's file system and does not hold o under another name.
func goneFrom(dir int, o *arena.Owner) bool {
	var st unix.Stat_t
	if unix.Fstat(dir, &st) != nil || st.Dev != o.Dev {
		return false
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := unix.Getdents(dir, buf)
		if err != nil {
			return false
		}
		if n == 0 {
			return true
		}
		for at := 0; at < n; {
			entry := buf[at:n]
			size := int(binary.NativeEndian.Uint16(entry[16:]))
			// Only an entry with the inode is looked at: a mount point on the way may hang.
			if binary.NativeEndian.Uint64(entry) == o.Ino {
				if name, _, _ := bytes.Cut(entry[19:size], []byte{0}); isDir(dir, string(name), o) {
					return false
				}
			}
			at += size
		}
	}
}

// isDir reports whether the name stands for o: the inode alone may be that of a new directory.
func isDir(dir int, name string, o *arena.Owner) bool {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	now, err := ownerOf(fd, name)
	return err == nil && now.SameDir(o)
}

// freeLeft frees what dead stores have left, before this store takes memory. An error leaves memory where it is, as would no
// try. Memory that the directory which is being opened has left is of no use: it claims none now.
func freeLeft(shmDir, boot string, opening arena.Owner) {
	if boot == "" {
		var err error
		if boot, err = arena.BootID(); err != nil {
			return
		}
	}
	_ = eachHome(shmDir, func(path string, f *arena.Found) error {
		own := opening.Ino != 0 && f.Owned && f.Owner.SameDir(&opening) && f.Owner.MountSpace == opening.MountSpace
		if !f.InUse && (own || leftoverState(filepath.Base(path), f, boot) == LeftoverAbandoned) {
			return f.Remove()
		}
		return nil
	})
}

// freeLegacy frees memory that a version which recorded no owner has left under the store's id. It may be a copy's: nothing
// tells, so nobody adopts it.
func freeLegacy(shmDir string, id [16]byte) {
	_ = eachHome(shmDir, func(path string, f *arena.Found) error {
		if !f.InUse && f.Known && !f.Owned && f.Store == id {
			return f.Remove()
		}
		return nil
	})
}
