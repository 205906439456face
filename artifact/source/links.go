package source

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/pkg/errors"
)

// LinkFollower is a Source that can follow symbolic links to wherever they lead.
type LinkFollower interface {
	// FollowLinks makes the source follow links that leave it, and list the directories that links lead to. It is called
	// before every other method.
	FollowLinks()
}

// LinkError is a symbolic link that is not followed. It matches ErrNotFound when the link leads nowhere, else ErrRefused.
type LinkError struct {
	Name    string // of the link, as in Source
	Target  string // as the link has it
	Outside bool   // it leads to a file or directory outside the source, which a LinkFollower would follow
	Dir     bool   // it leads to a directory
	cause   error
}

func (e *LinkError) Error() string {
	switch {
	case e.Outside:
		return fmt.Sprintf("link %q leads to %q, outside the source: %v", e.Name, e.Target, ErrRefused)
	case e.Dir:
		return fmt.Sprintf("link %q leads to %q, which is a directory: %v", e.Name, e.Target, ErrRefused)
	}
	return fmt.Sprintf("link %q leads to %q: %v", e.Name, e.Target, e.cause)
}

func (e *LinkError) Unwrap() error {
	if e.Outside {
		return ErrRefused
	}
	return e.cause
}

// FollowLinks implements LinkFollower.
func (s *localSource) FollowLinks() { s.follow = true }

// linkError says what is wrong with a link whose file could not be described because of err.
func (s *localSource) linkError(name string, err error) error {
	target, e := s.root.Readlink(name)
	if e != nil {
		return err // no link any more
	}
	l := &LinkError{Name: name, Target: target, cause: err}
	real, e := filepath.EvalSymlinks(filepath.Join(s.dir, name))
	switch {
	case e == nil:
		l.Outside = !inside(s.dir, real)
		if fi, e := os.Stat(real); e == nil {
			l.Dir = fi.IsDir()
		}
	case s.follow && errors.Is(e, fs.ErrNotExist):
		l.cause = errors.Wrap(ErrNotFound, e.Error())
	}
	return l
}

// inside reports whether a path lies in a directory or is it. Both are absolute and free of links.
func inside(dir, p string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+string(filepath.Separator))
}

// outside is the place of a link that leaves the source, for a source that follows such links.
func (s *localSource) outside(name string) (place, bool, error) {
	real, err := filepath.EvalSymlinks(filepath.Join(s.dir, filepath.FromSlash(name)))
	if err != nil || inside(s.dir, real) {
		return place{}, false, nil // Stat tells
	}
	if err := s.openEverywhere(); err != nil {
		return place{}, false, err
	}
	return place{root: s.everywhere, name: name, real: strings.TrimPrefix(real, "/"), digest: blobDigest(real)}, true, nil
}

// openEverywhere opens the root of the file system, once.
func (s *localSource) openEverywhere() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return errors.Wrap(ErrClosed, "follow links")
	}
	if s.everywhere == nil {
		s.everywhere, err = os.OpenRoot("/")
	}
	return errors.Wrap(err, "follow links")
}

// linkedDir reports whether a followed link leads to a directory that is to be walked. One that contains the link would
// have no end.
func (w *walk) linkedDir(name string, e fs.DirEntry) (ok bool, err error) {
	if !w.s.follow || e.Type()&fs.ModeSymlink == 0 {
		return false, nil
	}
	real, err := filepath.EvalSymlinks(filepath.Join(w.s.dir, name))
	if err != nil {
		return false, nil
	}
	if fi, err := os.Stat(real); err != nil || !fi.IsDir() {
		return false, nil
	}
	parent, err := filepath.EvalSymlinks(filepath.Join(w.s.dir, filepath.Dir(name)))
	if err != nil {
		return false, nil
	}
	if inside(real, parent) {
		target, _ := os.Readlink(filepath.Join(w.s.dir, name))
		return false, &LinkError{Name: name, Target: target, Dir: true, cause: errors.Wrap(ErrRefused, syscall.ELOOP.Error())}
	}
	return true, nil
}

// openDir opens a directory of the walk.
func (w *walk) openDir(name string) (*os.File, error) {
	// The directory may have become something else since it was read: never block on it.
	const flags = os.O_RDONLY | syscall.O_DIRECTORY | syscall.O_NONBLOCK
	if w.s.follow {
		at, out, err := w.s.outside(name)
		if err != nil {
			return nil, err
		}
		if out {
			return at.root.OpenFile(at.real, flags, 0)
		}
	}
	return w.s.root.OpenFile(name, flags, 0)
}
