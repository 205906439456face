package source

import (
	"cmp"
	"context"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/pkg/errors"
)

// listBatch is the number of directory entries read at once.
const listBatch = 1024

// List walks the directory.
func (s *localSource) List(ctx context.Context) (*Listing, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if s.single != "" {
		info, err := s.Stat(ctx, s.single)
		if err != nil {
			return nil, err
		}
		return &Listing{Files: []Info{info}}, nil
	}
	w := walk{ctx: ctx, s: s, out: &Listing{}}
	if err := w.dir(".", 0); err != nil {
		return nil, errors.Wrapf(err, "list %q", s.location)
	}
	slices.SortFunc(w.out.Files, func(a, b Info) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(w.out.Refused, func(a, b Refusal) int { return cmp.Compare(a.Name, b.Name) })
	return w.out, nil
}

// walk is one List in progress.
type walk struct {
	ctx context.Context
	s   *localSource
	out *Listing
}

// dir adds what is below the directory name, which is depth elements deep.
func (w *walk) dir(name string, depth int) error {
	d, err := w.openDir(name)
	if err != nil {
		return named(err)
	}
	var subdirs []string
	for {
		if err := w.ctx.Err(); err != nil {
			d.Close()
			return err
		}
		entries, err := d.ReadDir(listBatch)
		for _, e := range entries {
			sub, err := w.entry(name, e, depth+1)
			if err != nil {
				d.Close()
				return err
			}
			if sub != "" {
				subdirs = append(subdirs, sub)
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			d.Close()
			return errors.Wrapf(err, "directory %q", name)
		}
	}
	// One descriptor at a time, whatever the depth.
	if err := d.Close(); err != nil {
		return errors.Wrapf(err, "directory %q", name)
	}
	return w.subdirs(subdirs, depth)
}

func (w *walk) subdirs(names []string, depth int) error {
	for _, sub := range names {
		if err := w.dir(sub, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// entry adds a file or a refusal, or returns the name of a directory to go into.
func (w *walk) entry(dir string, e fs.DirEntry, depth int) (subdir string, err error) {
	name := e.Name()
	if dir != "." {
		name = dir + "/" + name
	}
	if err := CheckName(name); errors.Is(err, ErrLimit) {
		return "", err
	} else if err != nil {
		return "", w.refuse(name, err)
	}
	linked, err := w.linkedDir(name, e)
	if err != nil {
		return "", w.refuse(name, err)
	}
	if e.IsDir() || linked {
		if depth >= MaxDepth {
			return "", errors.Wrapf(ErrLimit, "directory %.60q: files in it are more than %d elements deep", name, MaxDepth)
		}
		return name, nil
	}
	at, err := w.s.locate(name)
	if err != nil {
		return "", err
	}
	info, err := at.stat()
	switch {
	case errors.Is(err, ErrNotFound) && e.Type()&fs.ModeSymlink == 0:
		return "", nil // removed since the directory was read
	case errors.Is(err, ErrNotFound), errors.Is(err, ErrRefused):
		if e.Type()&fs.ModeSymlink != 0 {
			err = w.s.linkError(name, err)
		}
		return "", w.refuse(name, err)
	case err != nil:
		return "", err
	}
	w.out.Files = append(w.out.Files, info)
	return "", w.full()
}

func (w *walk) refuse(name string, err error) error {
	if !utf8.ValidString(name) || strings.IndexByte(name, 0) >= 0 {
		name = strconv.Quote(name)
	}
	w.out.Refused = append(w.out.Refused, Refusal{Name: name, Err: err})
	return w.full()
}

func (w *walk) full() error {
	if len(w.out.Files)+len(w.out.Refused) > MaxFiles {
		return errors.Wrapf(ErrLimit, "more than %d files", MaxFiles)
	}
	return nil
}
