package weight

import (
	"context"
	"path"
	"strings"
	"sync/atomic"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/artifact/safetensors"
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

	// AliasOf is the name under which the file stores the tensor, when Name is another one that only the file's metadata
	// gives to it (tied weights). Empty otherwise.
	AliasOf string `json:"alias_of,omitempty"`
}

// index is the tensors of a revision by name, and in the order of their files and offsets.
type index struct {
	list   []Tensor
	keys   []string // of the files that the tensors of list are in
	byName map[string]int
	both   map[string]int // a second tensor with a name of byName that does not count before it
	gen    uint64         // of the manifest
}

// maxIndexes bounds the revisions whose tensors are remembered.
const maxIndexes = 16

// Tensors lists the tensors of a READY revision's safetensors files, by file and offset; an alias follows its file's tensors.
// Which files are in that format, their content says. Only headers are read.
func (m *Manager) Tensors(ctx context.Context, ref Ref) ([]Tensor, error) {
	x, err := m.index(ctx, ref)
	if err != nil {
		return nil, errors.WithMessage(err, "tensors")
	}
	return append([]Tensor(nil), x.list...), nil
}

// Tensor finds a tensor by name. Of equal names that in the folder nearest to the top counts, and in one folder that of a file
// that an index names, or that is no variant (model.safetensors before model.fp16.safetensors). A name that does not decide
// is ErrInvalid; FILE:NAME always does.
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
	i, err := x.find(name)
	if err != nil {
		return nil, "", errors.WithMessagef(err, "%v", ref)
	}
	return &x.list[i], x.keys[i], nil
}

// find is the place of a tensor, by NAME or FILE:NAME.
func (x *index) find(name string) (int, error) {
	i, ok := x.byName[name]
	if other, both := x.both[name]; both {
		return 0, errors.WithMessagef(ErrInvalid, "tensor %.128q is in %q and in %q: ask for FILE:NAME", name, x.list[i].File, x.list[other].File)
	}
	if ok {
		return i, nil
	}
	for i, t := range x.list {
		if len(name) == len(t.File)+1+len(t.Name) && strings.HasPrefix(name, t.File+":") && strings.HasSuffix(name, t.Name) {
			return i, nil
		}
	}
	return 0, errors.WithMessagef(ErrNoTensor, "no tensor %.128q", name)
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
	if x, err = m.readIndex(ctx, man); err != nil {
		return nil, err
	}
	x.gen = info.Generation
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.mu.tensors) >= maxIndexes {
		clear(m.mu.tensors)
	}
	m.mu.tensors[ref] = x
	return x, nil
}

// readIndex reads the headers of a revision's safetensors files.
func (m *Manager) readIndex(ctx context.Context, man *Manifest) (*index, error) {
	x := &index{byName: make(map[string]int), both: make(map[string]int)}
	named, err := m.namedShards(ctx, man)
	if err != nil {
		return nil, err
	}
	for _, f := range man.Files {
		in, err := m.formatOf(ctx, f)
		if err != nil {
			return nil, errors.WithMessagef(err, "file %q", f.Name)
		}
		if in != safetensorsFormat || f.Size == 0 {
			continue
		}
		tensors, err := m.tensorsOf(ctx, f)
		if err != nil {
			return nil, errors.WithMessagef(err, "file %q", f.Name)
		}
		for _, t := range tensors {
			x.list, x.keys = append(x.list, t), append(x.keys, f.Key)
		}
	}
	for i := range x.list {
		x.add(i, named)
	}
	return x, nil
}

// add makes a tensor known by its name, unless another one counts before it.
func (x *index) add(i int, named map[string]bool) {
	name := x.list[i].Name
	other, ok := x.byName[name]
	if !ok {
		x.byName[name] = i
		return
	}
	switch precedence(x.list[i], x.list[other], named) {
	case 1:
		x.byName[name] = i
		delete(x.both, name)
	case 0:
		x.both[name] = i
	}
}

// precedence is 1 if a counts before b, -1 if b does before a, 0 if nothing decides.
func precedence(a, b Tensor, named map[string]bool) int {
	if depth := strings.Count(b.File, "/") - strings.Count(a.File, "/"); depth != 0 {
		return max(-1, min(1, depth))
	}
	if named[a.File] != named[b.File] {
		if named[a.File] {
			return 1
		}
		return -1
	}
	if (a.AliasOf == "") != (b.AliasOf == "") {
		if a.AliasOf == "" {
			return 1
		}
		return -1
	}
	first, _ := stem(a.File)
	second, _ := stem(b.File)
	switch {
	case strings.HasPrefix(second, first+"."):
		return 1
	case strings.HasPrefix(first, second+"."):
		return -1
	}
	return 0
}

// namedShards are the files that an index of the revision names.
func (m *Manager) namedShards(ctx context.Context, man *Manifest) (map[string]bool, error) {
	named := make(map[string]bool)
	for _, f := range man.Files {
		if indexFormat(path.Base(f.Name)) != safetensorsFormat || f.Size > safetensors.MaxIndexBytes {
			continue
		}
		p, err := m.readWhole(ctx, f)
		if err != nil {
			return nil, errors.WithMessagef(err, "file %q", f.Name)
		}
		x, err := safetensors.ParseIndex(p)
		if err != nil {
			continue // the headers alone have to do
		}
		for _, shard := range x.Shards() {
			named[path.Join(path.Dir(f.Name), shard)] = true
		}
	}
	return named, nil
}
