package safetensors

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"github.com/pkg/errors"
)

// MaxHeaderBytes is the longest JSON header, the format's own limit.
const MaxHeaderBytes = 100_000_000

// lengthBytes is the size of the number before the header.
const lengthBytes = 8

// metadataKey is the one name that a tensor can't have.
const metadataKey = "__metadata__"

// Tensor says where a tensor lies and what it is. Start and End count from the end of the header, as data_offsets do:
// its bytes are [Start, End).
type Tensor struct {
	Name       string // any string of valid UTF-8 but "__metadata__", the empty one included
	DType      DType
	Shape      []int64 // row-major; empty for a scalar; with a 0 in it the tensor has no bytes
	Start, End int64
}

// Size is the number of bytes.
func (t Tensor) Size() int64 { return t.End - t.Start }

// Elements is the number of elements: 1 for a scalar.
func (t Tensor) Elements() int64 {
	n := int64(1)
	for _, d := range t.Shape {
		n *= d // a Tensor of a Header was checked
	}
	return n
}

// Header is the content of a file's header. It is not changed after it was made.
type Header struct {
	Tensors    []Tensor          // sorted by Start, then End, then name; they cover the data without holes
	Metadata   map[string]string // "__metadata__"; nil when absent
	DataOffset int64             // where the data begins in the file: 8 + N

	byName map[string]int
}

// Tensor finds a tensor by name.
func (h *Header) Tensor(name string) (Tensor, bool) {
	i, ok := h.byName[name]
	if !ok {
		return Tensor{}, false
	}
	return h.Tensors[i], true
}

// Resolve finds a tensor by its name or by an alias: the writers of tied weights store one of several equal tensors, and
// keep the names of the others in __metadata__, as {"lm_head.weight": "embed.weight"} (save_model of safetensors.torch).
// A tensor's own name counts before an alias; "format" names the framework and is never one.
func (h *Header) Resolve(name string) (Tensor, bool) {
	if t, ok := h.Tensor(name); ok {
		return t, true
	}
	kept, ok := h.Metadata[name]
	if !ok || name == formatKey {
		return Tensor{}, false
	}
	return h.Tensor(kept)
}

// Aliases returns the names that only __metadata__ gives to tensors, sorted. Resolve finds each.
func (h *Header) Aliases() []string {
	var names []string
	for name := range h.Metadata {
		if _, ok := h.byName[name]; ok {
			continue
		}
		if _, ok := h.Resolve(name); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// DataSize is the number of bytes of all tensors.
func (h *Header) DataSize() int64 {
	if len(h.Tensors) == 0 {
		return 0
	}
	return h.Tensors[len(h.Tensors)-1].End
}

// FileSize is the size that the file must have.
func (h *Header) FileSize() int64 { return h.DataOffset + h.DataSize() }

// FileRange is where t's bytes lie in the file.
func (h *Header) FileRange(t Tensor) (off, n int64) { return h.DataOffset + t.Start, t.Size() }

// ParseHeader reads the JSON header, without the length before it. fileSize is the size of the whole file; negative
// means unknown, and the caller compares FileSize later. Memory is bounded by a small multiple of the header's
// length. Errors: ErrHeader, ErrHeaderTooLarge, ErrDType, ErrShape, ErrOffsets, ErrTruncated, ErrTrailing.
func ParseHeader(json []byte, fileSize int64) (*Header, error) {
	if len(json) > MaxHeaderBytes {
		return nil, errors.Wrapf(ErrHeaderTooLarge, "%d bytes, at most %d", len(json), MaxHeaderBytes)
	}
	return parseHeader(string(json), fileSize)
}

func parseHeader(text string, fileSize int64) (*Header, error) {
	s, err := newScanner(text, ErrHeader)
	if err != nil {
		return nil, err
	}
	if text == "" || text[0] != '{' {
		return nil, s.errorf("want %q", '{')
	}
	p := headerParser{scanner: s, h: &Header{DataOffset: lengthBytes + int64(len(text)), byName: make(map[string]int)}}
	if err := s.object(p.entry); err != nil {
		return nil, err
	}
	if err := s.end(); err != nil {
		return nil, err
	}
	if err := p.h.order(); err != nil {
		return nil, err
	}
	return p.h, p.h.checkSize(fileSize)
}

// checkSize compares the file's size with what the header says.
func (h *Header) checkSize(fileSize int64) error {
	want := h.FileSize()
	switch {
	case fileSize < 0 || fileSize == want:
		return nil
	case fileSize > want:
		return errors.Wrapf(ErrTrailing, "tensors end at byte %d, the file has %d bytes", want, fileSize)
	}
	for _, t := range h.Tensors {
		if off, n := h.FileRange(t); off+n > fileSize {
			return errors.Wrapf(ErrTruncated, "tensor %s lies at bytes [%d, %d), the file has %d of %d bytes", quote(t.Name),
				off, off+n, fileSize, want)
		}
	}
	return errors.Wrapf(ErrTruncated, "the file has %d of %d bytes", fileSize, want)
}

// order sorts the tensors and makes sure that each begins where the one before ends.
func (h *Header) order() error {
	slices.SortFunc(h.Tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.End, b.End), cmp.Compare(a.Name, b.Name))
	})
	end := int64(0)
	for i, t := range h.Tensors {
		h.byName[t.Name] = i
		switch {
		case t.Start > end:
			return errors.Wrapf(ErrOffsets, "tensor %s begins at %d, the one before it ends at %d: a hole", quote(t.Name), t.Start, end)
		case t.Start < end:
			return errors.Wrapf(ErrOffsets, "tensor %s begins at %d, tensor %s ends at %d: an overlap", quote(t.Name), t.Start,
				quote(h.Tensors[i-1].Name), end)
		}
		end = t.End
	}
	if end > math.MaxInt64-h.DataOffset {
		return errors.Wrapf(ErrOffsets, "tensor %s ends at %d: no file is so large", quote(h.Tensors[len(h.Tensors)-1].Name), end)
	}
	return nil
}

// headerParser fills a Header from its JSON.
type headerParser struct {
	*scanner
	h    *Header
	dims []int64 // the shapes of many tensors share an array
	one  []int64 // the list being read
}

// entry reads one key of the header and its value.
func (p *headerParser) entry(key string) error {
	if key == metadataKey {
		return p.metadata()
	}
	if _, dup := p.h.byName[key]; dup {
		return errors.Wrapf(p.errorf("duplicate key"), "tensor %s", quote(key))
	}
	t := Tensor{Name: key}
	if err := p.tensor(&t); err != nil {
		return errors.Wrapf(err, "tensor %s", quote(key))
	}
	p.h.byName[key] = len(p.h.Tensors)
	p.h.Tensors = append(p.h.Tensors, t)
	return nil
}

func (p *headerParser) metadata() error {
	if p.h.Metadata != nil {
		return p.errorf("duplicate key %s", metadataKey)
	}
	p.h.Metadata = make(map[string]string)
	err := p.object(func(key string) error {
		if _, dup := p.h.Metadata[key]; dup {
			return p.errorf("duplicate key %s", quote(key))
		}
		value, err := p.str()
		p.h.Metadata[key] = value
		return err
	})
	return errors.Wrap(err, metadataKey)
}

// The fields of a tensor, as bits.
const (
	hasDType = 1 << iota
	hasShape
	hasOffsets
)

func fieldBit(key string) int {
	switch key {
	case "dtype":
		return hasDType
	case "shape":
		return hasShape
	case "data_offsets":
		return hasOffsets
	}
	return 0
}

func (p *headerParser) tensor(t *Tensor) error {
	seen := 0
	err := p.object(func(key string) error {
		bit := fieldBit(key)
		switch {
		case bit == 0:
			return p.errorf("unknown field %s", quote(key))
		case seen&bit != 0:
			return p.errorf("duplicate field %s", quote(key))
		}
		seen |= bit
		return p.field(t, bit)
	})
	switch {
	case err != nil:
		return err
	case seen != hasDType|hasShape|hasOffsets:
		return p.errorf("want the fields dtype, shape and data_offsets")
	}
	size, err := sizeOf(t.DType, t.Shape)
	if err != nil {
		return err
	}
	if t.End < t.Start || t.End-t.Start != size {
		return errors.Wrapf(ErrOffsets, "data offsets [%d, %d), but %s %v has %d bytes", t.Start, t.End, t.DType, t.Shape, size)
	}
	return nil
}

func (p *headerParser) field(t *Tensor, bit int) error {
	switch bit {
	case hasDType:
		name, err := p.str()
		if err != nil {
			return err
		}
		var ok bool
		if t.DType, ok = ParseDType(name); !ok {
			return errors.Wrapf(ErrDType, "byte %d: %s", p.pos, quote(name))
		}
		return nil
	case hasShape:
		if err := p.numbers(); err != nil {
			return err
		}
		t.Shape = p.keep()
		return nil
	}
	if err := p.numbers(); err != nil {
		return err
	}
	if len(p.one) != 2 {
		return p.errorf("data_offsets has %d numbers, want 2", len(p.one))
	}
	t.Start, t.End = p.one[0], p.one[1]
	return nil
}

// numbers reads a list of numbers into p.one.
func (p *headerParser) numbers() error {
	p.one = p.one[:0]
	return p.array(func() error {
		n, err := p.uint()
		p.one = append(p.one, n)
		return err
	})
}

// keep copies p.one into the shared array.
func (p *headerParser) keep() []int64 {
	n := len(p.one)
	if cap(p.dims)-len(p.dims) < n {
		p.dims = make([]int64, 0, max(1024, n))
	}
	p.dims = append(p.dims, p.one...)
	return p.dims[len(p.dims)-n : len(p.dims) : len(p.dims)]
}

// sizeOf is the number of bytes of a tensor. Like the format's own implementation it multiplies from the first
// dimension on and refuses an overflow even if a later dimension is 0.
func sizeOf(d DType, shape []int64) (int64, error) {
	n, overflow := uint64(1), uint64(0)
	for _, dim := range shape {
		if dim < 0 {
			return 0, errors.Wrapf(ErrShape, "%s %v: dimension %d", d, head(shape), dim)
		}
		var hi uint64
		hi, n = bits.Mul64(n, uint64(dim))
		overflow |= hi
	}
	hi, n := bits.Mul64(n, uint64(d.Bits()))
	switch {
	case overflow|hi != 0:
		return 0, errors.Wrapf(ErrShape, "%s %v: the size overflows", d, head(shape))
	case n%8 != 0:
		return 0, errors.Wrapf(ErrShape, "%s %v: %d bits are not whole bytes", d, head(shape), n)
	}
	return int64(n / 8), nil
}

// head shortens a shape for a message.
func head(shape []int64) []int64 { return shape[:min(len(shape), 16)] }
