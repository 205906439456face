package weight

import (
	"context"
	"io"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store"
)

// Reader reads one file of a READY revision out of the store. Safe for concurrent use.
type Reader struct {
	m    *Manager
	file File
}

// Open opens a file of a READY revision by its name.
func (m *Manager) Open(ctx context.Context, ref Ref, name string) (*Reader, error) {
	man, err := m.Manifest(ctx, ref)
	if err != nil {
		return nil, errors.WithMessagef(err, "open %.128q", name)
	}
	f, ok := man.File(name)
	if !ok {
		return nil, errors.WithMessagef(ErrNotFound, "%v has no file %.128q", ref, name)
	}
	if p := m.problem(f); p != "" {
		return nil, errors.WithMessagef(ErrDamaged, "%v: file %q: %s", ref, name, p)
	}
	return &Reader{m, f}, nil
}

// File describes the file that is read.
func (r *Reader) File() File { return r.file }

// Size is the file's size in bytes.
func (r *Reader) Size() int64 { return r.file.Size }

// ReadAt implements io.ReaderAt.
func (r *Reader) ReadAt(p []byte, off int64) (int, error) {
	return r.ReadAtContext(context.Background(), p, off)
}

// ReadAtContext is ReadAt with a context.
func (r *Reader) ReadAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, errors.WithMessagef(ErrInvalid, "read %q at %d", r.file.Name, off)
	}
	n := min(int64(len(p)), max(0, r.file.Size-off))
	if n > 0 {
		if err := r.m.readRange(ctx, r.file.Key, p[:n], off, store.VerifyAuto); err != nil {
			return 0, err
		}
	}
	if n < int64(len(p)) {
		return int(n), io.EOF
	}
	return int(n), nil
}

func (m *Manager) readRange(ctx context.Context, key string, dst []byte, off int64, verify store.Verify) error {
	one := [1]store.Fragment{{Off: off, Dst: dst}}
	read := [1]store.RangeRead{{Key: key, Fragments: one[:]}}
	if err := m.s.GetRanges(ctx, read[:], &store.ReadOptions{Verify: verify}); err != nil {
		return err
	}
	return read[0].Err
}
