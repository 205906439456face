package weight

import (
	"context"
	"io"
	"slices"
	"strings"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/artifact/safetensors"
	"github.com/kvcache-ai/mooncake-go/artifact/source"
)

// mainIndex is the index that is taken when a model has several.
const mainIndex = "model.safetensors.index.json"

// readIndex finds the safetensors index of a model directory, if it has one, and the shards that it names.
func readIndex(ctx context.Context, src source.Source, l *source.Listing) (name string, shards map[string]bool, err error) {
	var info source.Info
	for _, f := range l.Files {
		if !strings.HasSuffix(f.Name, indexSuffix) || strings.Contains(f.Name, "/") {
			continue
		}
		if name == "" || f.Name == mainIndex {
			name, info = f.Name, f
		}
	}
	if name == "" {
		return "", nil, nil
	}
	x, err := parseIndex(ctx, src, info)
	if err != nil {
		return "", nil, errors.WithMessagef(err, "file %q", name)
	}
	shards = make(map[string]bool)
	for _, s := range x.Shards() {
		shards[s] = true
	}
	return name, shards, nil
}

func parseIndex(ctx context.Context, src source.Source, info source.Info) (*safetensors.Index, error) {
	if info.Size < 0 {
		return nil, errors.WithMessage(ErrSource, "the source does not know its size")
	}
	if info.Size > safetensors.MaxIndexBytes {
		return nil, errors.WithMessagef(ErrSource, "%d bytes, limit %d", info.Size, int64(safetensors.MaxIndexBytes))
	}
	p, err := readSmall(ctx, src, info)
	if err != nil {
		return nil, err
	}
	x, err := safetensors.ParseIndex(p)
	return x, notAModel(err)
}

// readSmall reads a file whose size is bounded already.
func readSmall(ctx context.Context, src source.Source, info source.Info) ([]byte, error) {
	f, err := src.Open(ctx, info)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	p := make([]byte, info.Size)
	if n, err := f.ReadAt(ctx, p, 0); n < len(p) {
		return nil, err
	}
	return p, nil
}

// torchIndex is the index of a model in PyTorch's format.
const torchIndex = "pytorch_model.bin.index.json"

// checkTorchIndex makes sure that the shards which a PyTorch index names are there.
func checkTorchIndex(ctx context.Context, src source.Source, c *choice, exclude []string) error {
	i := slices.IndexFunc(c.files, func(f source.Info) bool { return f.Name == torchIndex })
	if i < 0 {
		return nil
	}
	x, err := parseIndex(ctx, src, c.files[i])
	if err != nil {
		return errors.WithMessagef(err, "file %q", torchIndex)
	}
	have := make(map[string]bool, len(c.files))
	for _, f := range c.files {
		have[f.Name] = true
	}
	for _, shard := range x.Shards() {
		if !have[shard] && !matches(exclude, shard) {
			return errors.WithMessagef(sourceError{safetensors.ErrMissingShard}, "file %q: %.128q", torchIndex, shard)
		}
	}
	return nil
}

// maxPointerBytes is more than a git LFS pointer has.
const maxPointerBytes = 1024

// checkPointers looks for files that git LFS has not fetched, of whatever kind.
func checkPointers(ctx context.Context, src source.Source, c *choice) error {
	for _, f := range c.files {
		if f.Size == 0 || f.Size > maxPointerBytes {
			continue
		}
		p, err := readSmall(ctx, src, f)
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

// checkShards reads the header of every shard and compares the index with them: what an engine would stumble over is
// found before anything is stored.
func checkShards(ctx context.Context, src source.Source, c *choice, exclude []string) error {
	headers := make(map[string]*safetensors.Header)
	tensors := 0
	var index source.Info
	for _, f := range c.files {
		if f.Name == c.index {
			index = f
		}
		if !c.shards[f.Name] {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := readHeader(ctx, src, f)
		if err != nil {
			return errors.WithMessagef(err, "file %q", f.Name)
		}
		headers[f.Name] = h
		tensors += len(h.Tensors)
	}
	if len(headers) > 0 && tensors == 0 {
		return errors.WithMessagef(ErrSource, "no tensor in %d safetensors files", len(headers))
	}
	if index.Name == "" {
		return nil
	}
	x, err := parseIndex(ctx, src, index)
	if err != nil {
		return errors.WithMessagef(err, "file %q", index.Name)
	}
	for name, shard := range x.WeightMap { // shards that were left out on purpose are not missing
		if matches(exclude, shard) {
			delete(x.WeightMap, name)
		}
	}
	return errors.WithMessagef(notAModel(x.Validate(headers)), "file %q", index.Name)
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
	out := make([]Tensor, len(h.Tensors))
	for i, t := range h.Tensors {
		off, n := h.FileRange(t)
		out[i] = Tensor{Name: t.Name, DType: t.DType.String(), Shape: t.Shape, File: f.Name, Off: off, Len: n}
	}
	return out, nil
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
