package weight

import (
	"context"
	"strings"
	"sync/atomic"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store"
)

// Tensor says where a tensor is: Len bytes at Off of a file of the revision, as the file stores them.
type Tensor struct {
	Name  string  `json:"name"`
	DType string  `json:"dtype"` // as safetensors spells it: F32, BF16, ...
	Shape []int64 `json:"shape"`
	File  string  `json:"file"`
	Off   int64   `json:"offset"`
	Len   int64   `json:"bytes"`
}

// index is the tensors of a revision by name, and in the order of their files and offsets.
type index struct {
	list   []Tensor
	keys   []string // of the files that the tensors of list are in
	byName map[string]int
	gen    uint64 // of the manifest
}

// maxIndexes bounds the revisions whose tensors are remembered.
const maxIndexes = 16

// Tensors lists the tensors of a READY revision's safetensors files, by file and offset. Only headers are read.
func (m *Manager) Tensors(ctx context.Context, ref Ref) ([]Tensor, error) {
	x, err := m.index(ctx, ref)
	if err != nil {
		return nil, errors.WithMessage(err, "tensors")
	}
	return append([]Tensor(nil), x.list...), nil
}

// Tensor finds a tensor by name.
func (m *Manager) Tensor(ctx context.Context, ref Ref, name string) (Tensor, error) {
	t, _, err := m.tensor(ctx, ref, name)
	if err != nil {
		return Tensor{}, err
	}
	return *t, nil
}

// tensor finds a tensor and the key of the file that it is in.
func (m *Manager) tensor(ctx context.Context, ref Ref, name string) (t *Tensor, key string, err error) {
	x, err := m.index(ctx, ref)
	if err != nil {
		return nil, "", errors.WithMessagef(err, "tensor %.128q", name)
	}
	i, ok := x.byName[name]
	if !ok {
		return nil, "", errors.WithMessagef(ErrNoTensor, "%v has no tensor %.128q", ref, name)
	}
	return &x.list[i], x.keys[i], nil
}

// ReadTensor copies the bytes of a tensor into dst, which may be larger, and returns their number.
func (m *Manager) ReadTensor(ctx context.Context, ref Ref, name string, dst []byte) (int, error) {
	t, key, err := m.tensor(ctx, ref, name)
	if err != nil {
		return 0, err
	}
	if int64(len(dst)) < t.Len {
		return 0, errors.WithMessagef(ErrInvalid, "tensor %.128q: buffer of %d bytes, tensor of %d", name, len(dst), t.Len)
	}
	if t.Len == 0 {
		return 0, nil
	}
	return int(t.Len), m.readRange(ctx, key, dst[:t.Len], t.Off, store.VerifyAuto)
}

// TensorView is a tensor's bytes in the store's memory, or a copy when they are not there. They are never on the Go
// heap, so that they can be handed to C. Close exactly once: copies of a TensorView are the same view.
type TensorView struct {
	Tensor
	view   *store.View  // nil for a tensor without bytes
	closed *atomic.Bool // of a tensor without bytes
}

// ViewTensor borrows a tensor's bytes. Those of a file that is only on SSD are copied to memory of the view's own.
func (m *Manager) ViewTensor(ctx context.Context, ref Ref, name string) (*TensorView, error) {
	t, key, err := m.tensor(ctx, ref, name)
	if err != nil {
		return nil, err
	}
	v := &TensorView{Tensor: *t}
	if t.Len == 0 {
		v.closed = new(atomic.Bool)
		return v, nil
	}
	if v.view, err = m.s.ViewRange(ctx, key, t.Off, t.Len, nil); err != nil {
		return nil, errors.WithMessagef(err, "tensor %.128q", name)
	}
	return v, nil
}

// Bytes are read-only. Valid until Close; nil for a tensor without bytes.
func (v *TensorView) Bytes() []byte {
	if v.view == nil {
		return nil
	}
	return v.view.Bytes()
}

// Close gives the bytes back. A second Close is store.ErrClosed and does nothing.
func (v *TensorView) Close() error {
	if v.view == nil {
		if v.closed.Swap(true) {
			return errors.WithMessage(store.ErrClosed, "close tensor: closed already")
		}
		return nil
	}
	return v.view.Close()
}

// index reads the headers of a revision's safetensors files, once.
func (m *Manager) index(ctx context.Context, ref Ref) (*index, error) {
	m.mu.Lock()
	x := m.mu.tensors[ref]
	m.mu.Unlock()
	info, err := m.s.Stat(ref.ManifestKey())
	if err == nil && x != nil && x.gen == info.Generation {
		return x, nil
	}
	man, err := m.Manifest(ctx, ref)
	if err != nil {
		return nil, err
	}
	x = &index{gen: info.Generation, byName: make(map[string]int)}
	for _, f := range man.Files {
		if !strings.HasSuffix(f.Name, safetensorsSuffix) {
			continue
		}
		tensors, err := m.tensorsOf(ctx, f)
		if err != nil {
			return nil, errors.WithMessagef(err, "file %q", f.Name)
		}
		for _, t := range tensors {
			if other, ok := x.byName[t.Name]; ok {
				return nil, errors.WithMessagef(ErrSource, "tensor %.128q is in %q and in %q", t.Name, x.list[other].File, f.Name)
			}
			x.byName[t.Name] = len(x.list)
			x.list, x.keys = append(x.list, t), append(x.keys, f.Key)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.mu.tensors) >= maxIndexes {
		clear(m.mu.tensors)
	}
	m.mu.tensors[ref] = x
	return x, nil
}
