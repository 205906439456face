package weight

import (
	"context"
	"os"
	"slices"
	"sync"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"
)

// LoadOptions changes how a revision is loaded. Nil means the zero value.
type LoadOptions struct {
	// Verify reads every byte and compares it with the manifest first. Bytes were verified when they were imported, and
	// a load always checks presence, size, quarantine and that no file was changed since. Default: false
	Verify bool

	// User is another user who may read the directory too: a name, or a number, with ":group" behind it for one that is
	// known here by number only. It needs POSIX access control lists, and files that are the store's own, on the file system of
	// Options.LoadDir. If a directory above the store's is closed to the user, Load fails with ErrInvalid and names it. Default: none
	User string
}

// Loaded is a revision as a directory that an engine can open. While it is open the revision can't be deleted, nor its
// files freed. Close exactly once: copies of a Loaded are the same load.
type Loaded struct{ *loading }

// loading is what all copies of a Loaded share.
type loading struct {
	m      *Manager
	d      *directory
	opened []string
	mu     sync.Mutex
	closed bool
}

// Load makes the files of a READY revision appear in a directory, under their own names, at a path that is the same for
// every load of the revision. Files that lie in the store as files are hard-linked: no byte is copied, and a loader
// that maps them shares their memory with everybody else who does. Others, the small ones, are written from verified
// reads. Everything in it is read-only and the store's own, and no other user can read it, except LoadOptions.User: from
// then on until the directory goes. Several loads of one revision share the directory. It goes away when the last has
// closed, and no process is left that inherited LockFile, was Detached, or has a file of it open or mapped; if this
// process is gone by then, with the next look at the revision's users or the next Open. opts may be nil.
func (m *Manager) Load(ctx context.Context, ref Ref, opts *LoadOptions) (*Loaded, error) {
	depth := Quick
	if opts == nil {
		opts = new(LoadOptions)
	}
	if opts.Verify {
		depth = Deep
	}
	var to someone
	if opts.User != "" {
		var err error
		if to, err = findUser(opts.User); err != nil {
			return nil, errors.WithMessagef(err, "load %v", ref)
		}
	}
	if err := m.whole(ctx, ref, depth); err != nil {
		return nil, errors.WithMessage(err, "load")
	}
	d, err := m.takeDirectory(ctx, ref)
	if err != nil {
		return nil, errors.WithMessagef(err, "load %v", ref)
	}
	l := &Loaded{&loading{m: m, d: d}}
	if opts.User != "" {
		if l.opened, err = m.handOut(d, to); err != nil {
			_ = l.Close()
			return nil, errors.WithMessagef(err, "load %v", ref)
		}
	}
	return l, nil
}

// HandOut does later what LoadOptions.User does. It may be called for several users.
func (l *Loaded) HandOut(user string) error {
	to, err := findUser(user)
	if err != nil {
		return errors.WithMessagef(err, "hand out %v", l.d.ref)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return errors.WithMessage(ErrClosed, "hand out: closed already")
	}
	opened, err := l.m.handOut(l.d, to)
	for _, dir := range opened {
		if !slices.Contains(l.opened, dir) {
			l.opened = append(l.opened, dir)
		}
	}
	return errors.WithMessagef(err, "hand out %v", l.d.ref)
}

// whole refuses a revision with a bad file. One that lost its files because it is just being deleted is not damaged: its
// manifest went before them, so a second look tells.
func (m *Manager) whole(ctx context.Context, ref Ref, depth Depth) (err error) {
	for range 2 {
		r, failed := m.Check(ctx, ref, depth)
		if failed != nil {
			return failed
		}
		if err = r.Err(); err == nil {
			return nil
		}
	}
	return err
}

// Dir is the directory's path.
func (l *Loaded) Dir() string { return l.d.path }

// HandedOut are the directories that another user can enter because of this load. Of Dir, he can read the files too.
func (l *Loaded) HandedOut() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.opened)
}

// Manifest is the manifest of the loaded revision.
func (l *Loaded) Manifest() *Manifest { return l.d.man }

// LockFile is what keeps the directory: a process that inherits its descriptor, by exec.Cmd.ExtraFiles for example,
// keeps the directory until it ends, also when this process is gone.
func (l *Loaded) LockFile() *os.File { return l.d.lock }

// Detach is Close, but that the directory stays for whoever has the returned file open or inherits its descriptor: a
// program that this process turns into by exec, since the descriptor is not closed on exec. The store may be closed
// then. That program keeps the directory also when it closes the descriptor, until it ends. One that goes on in a
// child (a daemon) keeps it by the descriptor, or as long as the child has a file of it open or mapped.
//
// A revision whose bytes are only in this process's memory, in a store without a directory or imported Volatile, can't
// be detached: ErrInvalid, and it stays loaded.
func (l *Loaded) Detach() (*os.File, error) {
	if l.d.inProc != "" {
		return nil, errors.WithMessagef(ErrInvalid, "detach %v: the bytes of %q are in the memory of this process", l.d.ref, l.d.inProc)
	}
	fd, err := unix.Dup(int(l.d.lock.Fd()))
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), l.d.lock.Name())
	if err := l.m.noteHolder(l.d); err != nil {
		_ = f.Close()
		return nil, errors.WithMessagef(err, "detach %v", l.d.ref)
	}
	if err := l.Close(); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// Close gives the directory up. It reports store.ErrTampered if somebody changed a file of it; a second Close is
// ErrClosed and does nothing.
func (l *Loaded) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return errors.WithMessage(ErrClosed, "close load: closed already")
	}
	l.closed = true
	return l.m.releaseDirectory(l.d)
}

// Holder is somebody who has a revision loaded.
type Holder struct {
	PID     int    `json:"pid"`
	Command string `json:"command,omitempty"`
}
