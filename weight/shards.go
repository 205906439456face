package weight

import (
	"context"
	"io"
	"path"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/artifact/safetensors"
	"github.com/kvcache-ai/mooncake-go/artifact/source"
)

// readSmall reads the first n bytes of a file, which n bounds.
func readSmall(ctx context.Context, src source.Source, info source.Info, n int64) ([]byte, error) {
	f, err := src.Open(ctx, info)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	p := make([]byte, n)
	if n, err := f.ReadAt(ctx, p, 0); n < len(p) {
		return nil, err
	}
	return p, nil
}

// maxPointerBytes is more than a git LFS pointer has.
const maxPointerBytes = 1024

// checkPointers looks for files that git LFS has not fetched, of whatever kind.
func checkPointers(ctx context.Context, src source.Source, c *choice) error {
	for _, f := range c.files {
		if f.Size == 0 || f.Size > maxPointerBytes {
			continue
		}
		p, err := readSmall(ctx, src, f, f.Size)
		if err == nil {
			_, err = safetensors.ParseIndex(p) // which knows them; what it says of other files means nothing
			if !errors.Is(err, safetensors.ErrLFSPointer) {
				continue
			}
		}
		return errors.WithMessagef(notAModel(err), "file %q", f.Name)
	}
	return nil
}

// checkHeaders reads the header of every file in safetensors format.
func checkHeaders(ctx context.Context, src source.Source, c *choice) error {
	tensors := 0
	for _, f := range c.files {
		if c.formats[f.Name] != safetensorsFormat {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := readHeader(ctx, src, f)
		if err != nil {
			return errors.WithMessagef(err, "file %q", f.Name)
		}
		c.headers[f.Name] = h
		tensors += len(h.Tensors)
	}
	if len(c.headers) > 0 && tensors == 0 {
		return errors.WithMessagef(ErrSource, "no tensor in %d safetensors files", len(c.headers))
	}
	return nil
}

// checkJSON parses the files that engines parse.
func checkJSON(ctx context.Context, src source.Source, c *choice) error {
	for _, f := range c.files {
		if !engineJSON(f.Name) {
			continue
		}
		if err := checkJSONFile(ctx, src, f); err != nil {
			return errors.WithMessagef(err, "file %q", f.Name)
		}
	}
	return nil
}

func checkJSONFile(ctx context.Context, src source.Source, info source.Info) error {
	f, err := src.Open(ctx, info)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	r, err := f.NewReader(ctx, 0, -1)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	s := new(jsonScanner)
	if _, err := io.CopyBuffer(s, struct{ io.Reader }{r}, make([]byte, min(info.Size+1, 64<<10))); err != nil {
		return err
	}
	if err := s.Close(); err != nil {
		return errors.WithMessage(ErrSource, err.Error())
	}
	return nil
}

// checkContents finds what an engine would stumble over before anything is stored: pointers instead of files, damaged
// headers and JSON, shards and parts that other files name and that are not there.
func checkContents(ctx context.Context, src source.Source, l *source.Listing, c *choice) error {
	if err := checkPointers(ctx, src, c); err != nil {
		return err
	}
	if err := checkHeaders(ctx, src, c); err != nil {
		return err
	}
	p := c.parts(ctx, src, l)
	if err := p.checkIndexes(c.headers); err != nil {
		return err
	}
	if err := checkJSON(ctx, src, c); err != nil {
		return err
	}
	return p.check()
}

// parts are the files that an import takes.
func (c *choice) parts(ctx context.Context, src source.Source, l *source.Listing) *parts {
	infos, names := make(map[string]source.Info, len(c.files)), make([]string, 0, len(c.files))
	for _, f := range c.files {
		infos[f.Name] = f
		names = append(names, f.Name)
	}
	p := newParts(names)
	p.formats = c.formats
	p.read = func(name string, limit int64) ([]byte, error) {
		f := infos[name]
		if f.Size > limit {
			return nil, errors.WithMessagef(ErrSource, "%d bytes, limit %d", f.Size, limit)
		}
		return readSmall(ctx, src, f, f.Size)
	}
	p.why = func(name string) string {
		if why := c.out[name]; why != "" {
			return " is left out: " + why
		}
		return ""
	}
	return p
}

func readHeader(ctx context.Context, src source.Source, info source.Info) (*safetensors.Header, error) {
	f, err := src.Open(ctx, info)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	h, err := safetensors.ReadHeader(source.ReaderAt(ctx, f), info.Size)
	return h, notAModel(err)
}

// notAModel makes a refusal of the format also an ErrSource.
func notAModel(err error) error {
	if err == nil || !errors.Is(err, safetensors.ErrInvalid) {
		return err
	}
	return sourceError{err}
}

type sourceError struct{ cause error }

func (e sourceError) Error() string   { return ErrSource.Error() + ": " + e.cause.Error() }
func (e sourceError) Unwrap() []error { return []error{ErrSource, e.cause} }

// tensorsOf lists the tensors of a file in the store. Only its header is read.
func (m *Manager) tensorsOf(ctx context.Context, f File) ([]Tensor, error) {
	h, err := safetensors.ReadHeader(storeReader{ctx, m, f}, f.Size)
	if err != nil {
		return nil, err
	}
	aliases := h.Aliases()
	out := make([]Tensor, 0, len(h.Tensors)+len(aliases))
	for _, t := range h.Tensors {
		off, n := h.FileRange(t)
		out = append(out, Tensor{Name: t.Name, DType: t.DType.String(), Shape: t.Shape, File: f.Name, Off: off, Len: n})
	}
	for _, name := range aliases {
		t, _ := h.Resolve(name)
		off, n := h.FileRange(t)
		out = append(out, Tensor{Name: name, DType: t.DType.String(), Shape: t.Shape, File: f.Name, Off: off, Len: n, AliasOf: t.Name})
	}
	return out, nil
}

// formatOf is sniff for a file in the store.
func (m *Manager) formatOf(ctx context.Context, f File) (format, error) {
	base := path.Base(f.Name)
	if !sniffed(f.Name, f.Size) || f.Size == 0 {
		return formatOfName(base), nil
	}
	p := make([]byte, min(f.Size, safetensors.SniffBytes))
	if _, err := (storeReader{ctx, m, f}).ReadAt(p, 0); err != nil {
		return noWeights, err
	}
	return formatOf(base, p), nil
}

// readWhole reads a file in the store whose size is bounded already.
func (m *Manager) readWhole(ctx context.Context, f File) ([]byte, error) {
	p := make([]byte, f.Size)
	if len(p) == 0 {
		return p, nil
	}
	_, err := (storeReader{ctx, m, f}).ReadAt(p, 0)
	return p, err
}

// storeReader reads a file of a revision for code that takes no context.
type storeReader struct {
	ctx context.Context
	m   *Manager
	f   File
}

func (r storeReader) ReadAt(p []byte, off int64) (int, error) {
	return (&Reader{r.m, r.f}).ReadAtContext(r.ctx, p, off)
}

var _ io.ReaderAt = storeReader{}
