package weight

import (
	"context"
	"sync"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/artifact/source"
)

// compare is an import of a revision that is READY: nothing is written, the bytes must be the same.
func (i *Import) compare(ctx context.Context, src source.Source, c *choice, man *Manifest, r *ImportResult) (*ImportResult, error) {
	i.setPhase("comparing")
	r.Manifest, r.Existed = man, true
	for _, f := range man.Files {
		if p := i.m.problem(f); p != "" {
			return nil, errors.WithMessagef(ErrDamaged, "the revision exists, but its file %q: %s", f.Name, p)
		}
	}
	same, differs := compareNames(c.files, man)
	err := i.compareBytes(ctx, src, c.files[:same], man)
	if err == nil {
		err = differs
	}
	r.Read = i.read.Load()
	return r, err
}

// compareNames compares names and sizes. It returns how many of the source's files are the same in the manifest up to
// the first difference, and what that is.
func compareNames(files []source.Info, man *Manifest) (same int, differs error) {
	for k, f := range files {
		switch {
		case k == len(man.Files) || f.Name < man.Files[k].Name:
			return k, errors.WithMessagef(ErrDifferent, "it has no file %q", f.Name)
		case f.Name > man.Files[k].Name:
			return k, errors.WithMessagef(ErrDifferent, "the source has no file %q", man.Files[k].Name)
		case f.Size != man.Files[k].Size:
			return k, errors.WithMessagef(ErrDifferent, "file %q has %d bytes, the source %d", f.Name, man.Files[k].Size, f.Size)
		}
	}
	if n := len(files); n < len(man.Files) {
		return n, errors.WithMessagef(ErrDifferent, "the source has no file %q", man.Files[n].Name)
	}
	return len(files), nil
}

// compareBytes hashes the source's files, several at a time, and names the first by name that differs.
func (i *Import) compareBytes(ctx context.Context, src source.Source, files []source.Info, man *Manifest) error {
	errs := make([]error, len(files))
	next := make(chan int)
	var workers sync.WaitGroup
	for range i.parallel() {
		workers.Go(func() {
			for k := range next {
				errs[k] = i.compareFile(ctx, src, files[k], man)
			}
		})
	}
	for k := range files {
		next <- k
	}
	close(next)
	workers.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// compareFile runs beside the import, so a panic is an error.
func (i *Import) compareFile(ctx context.Context, src source.Source, f source.Info, man *Manifest) (err error) {
	defer recovered(&err)
	got, err := i.hashFile(ctx, src, f)
	if err != nil {
		return errors.WithMessagef(err, "file %q", f.Name)
	}
	have, _ := man.File(f.Name)
	if got != have.SHA256 {
		return errors.WithMessagef(ErrDifferent, "file %q: SHA-256 %s, the source has %s", f.Name, have.SHA256, got)
	}
	i.filesDone.Add(1)
	i.bytesDone.Add(f.Size)
	return nil
}
