package safetensors

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/pkg/errors"
)

// formatKey says which framework made the file; some loaders refuse one without it.
const formatKey, formatValue = "format", "pt"

// WriteOptions are the options of Layout and Write; nil means the defaults.
type WriteOptions struct {
	// Metadata is written as "__metadata__", sorted by key. Default: none.
	Metadata map[string]string

	// NoFormat leaves out "format": "pt". Default: it is added unless Metadata has a format.
	NoFormat bool
}

// Layout places the tensors, whose Start and End are ignored, and returns the header and the bytes that stand before the
// data in the file. Larger dtypes come first, then names in order, so that equal input gives equal bytes and every
// tensor is aligned to its dtype; len(prefix) is a multiple of 8. Shapes are kept, not copied.
//
// Errors: ErrName (not UTF-8, reserved, twice; also for metadata), ErrDType, ErrShape, ErrHeaderTooLarge.
func Layout(tensors []Tensor, opts *WriteOptions) (h *Header, prefix []byte, err error) {
	if opts == nil {
		opts = &WriteOptions{}
	}
	h = &Header{Tensors: slices.Clone(tensors), Metadata: maps.Clone(opts.Metadata), byName: make(map[string]int, len(tensors))}
	if _, ok := h.Metadata[formatKey]; !ok && !opts.NoFormat {
		if h.Metadata == nil {
			h.Metadata = make(map[string]string)
		}
		h.Metadata[formatKey] = formatValue
	}
	slices.SortFunc(h.Tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(b.DType, a.DType), cmp.Compare(a.Name, b.Name))
	})
	if err := h.place(); err != nil {
		return nil, nil, err
	}
	if prefix, err = h.encode(); err != nil {
		return nil, nil, err
	}
	h.DataOffset = int64(len(prefix))
	if h.DataSize() > math.MaxInt64-h.DataOffset {
		return nil, nil, errors.Wrap(ErrShape, "no file is so large")
	}
	return h, prefix, h.order()
}

// place checks the tensors and gives each its bytes, in their order.
func (h *Header) place() error {
	end, nameBytes := int64(0), 0
	for i := range h.Tensors {
		t := &h.Tensors[i]
		if nameBytes += len(t.Name); nameBytes > MaxHeaderBytes {
			return errors.Wrapf(ErrHeaderTooLarge, "names of more than %d bytes", MaxHeaderBytes)
		}
		if err := checkString(t.Name); err != nil {
			return errors.Wrapf(err, "tensor %s", quote(t.Name))
		}
		if _, dup := h.byName[t.Name]; dup || t.Name == metadataKey {
			return errors.Wrapf(ErrName, "tensor %s: reserved or given twice", quote(t.Name))
		}
		if !t.DType.Valid() {
			return errors.Wrapf(ErrDType, "tensor %s: %v", quote(t.Name), t.DType)
		}
		size, err := sizeOf(t.DType, t.Shape)
		if err != nil {
			return errors.Wrapf(err, "tensor %s", quote(t.Name))
		}
		if size > math.MaxInt64-end {
			return errors.Wrapf(ErrShape, "tensor %s: no file is so large", quote(t.Name))
		}
		t.Start, t.End = end, end+size
		end = t.End
		h.byName[t.Name] = i
	}
	return nil
}

func checkString(s string) error {
	if !utf8.ValidString(s) {
		return errors.Wrap(ErrName, "not valid UTF-8")
	}
	return nil
}

// encode makes the length and the JSON.
func (h *Header) encode() ([]byte, error) {
	b := make([]byte, lengthBytes, lengthBytes+64+128*len(h.Tensors))
	b = append(b, '{')
	if h.Metadata != nil {
		b = append(append(b, '"'), metadataKey...)
		b = append(b, `":{`...)
		for i, key := range slices.Sorted(maps.Keys(h.Metadata)) {
			if err := cmp.Or(checkString(key), checkString(h.Metadata[key])); err != nil {
				return nil, errors.Wrapf(err, "metadata %s", quote(key))
			}
			b = appendString(append(appendString(comma(b, i), key), ':'), h.Metadata[key])
		}
		b = append(b, '}')
	}
	for i, t := range h.Tensors {
		if i == 0 && h.Metadata != nil {
			b = append(b, ',')
		}
		b = appendTensor(comma(b, i), t)
		if len(b) > lengthBytes+MaxHeaderBytes {
			break
		}
	}
	b = append(b, '}')
	for len(b)%8 != 0 {
		b = append(b, ' ')
	}
	n := len(b) - lengthBytes
	if n > MaxHeaderBytes {
		return nil, errors.Wrapf(ErrHeaderTooLarge, "more than %d bytes", MaxHeaderBytes)
	}
	binary.LittleEndian.PutUint64(b, uint64(n))
	return b, nil
}

// comma separates the entries of an object.
func comma(b []byte, i int) []byte {
	if i > 0 {
		b = append(b, ',')
	}
	return b
}

func appendTensor(b []byte, t Tensor) []byte {
	b = append(appendString(b, t.Name), `:{"dtype":"`...)
	b = append(b, t.DType.String()...)
	b = append(b, `","shape":[`...)
	for i, d := range t.Shape {
		b = strconv.AppendInt(comma(b, i), d, 10)
	}
	b = append(b, `],"data_offsets":[`...)
	b = append(strconv.AppendInt(b, t.Start, 10), ',')
	return append(strconv.AppendInt(b, t.End, 10), "]}"...)
}

// appendString writes a JSON string with the escapes that JSON demands and no others, as the format's own
// implementation does.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		c := s[i]
		e := strings.IndexByte(escapeChars, c)
		switch {
		case e >= 0 && c != '/':
			b = append(b, '\\', escapes[e])
		case c < 0x20:
			b = fmt.Appendf(b, `\u%04x`, c)
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

// Write writes a file. data writes the bytes of one tensor, row-major and little endian; it is called once for each, in
// the order of the file, also for those without bytes. A tensor with strides is the caller's to make compact: any
// other number of bytes than the tensor has is ErrDataSize. It returns the bytes written. After an error the output is
// not a safetensors file.
//
// Errors: those of Layout, w and data; ErrDataSize.
func Write(w io.Writer, tensors []Tensor, opts *WriteOptions, data func(w io.Writer, t Tensor) error) (int64, error) {
	h, prefix, err := Layout(tensors, opts)
	if err != nil {
		return 0, err
	}
	n, err := w.Write(prefix)
	written := int64(n)
	if err != nil {
		return written, errors.Wrap(err, "write header")
	}
	for _, t := range h.Tensors {
		tw := &tensorWriter{w: w, left: t.Size()}
		err := data(tw, t)
		written += t.Size() - tw.left
		switch {
		case tw.err != nil: // also when data has swallowed it
			return written, errors.Wrapf(tw.err, "write tensor %s of %d bytes", quote(t.Name), t.Size())
		case err != nil:
			return written, errors.Wrapf(err, "data of tensor %s", quote(t.Name))
		case tw.left != 0:
			return written, errors.Wrapf(ErrDataSize, "tensor %s: %d of %d bytes", quote(t.Name), t.Size()-tw.left, t.Size())
		}
	}
	return written, nil
}

// Bytes is the data of tensors that are in memory, by name, for Write.
func Bytes(data map[string][]byte) func(w io.Writer, t Tensor) error {
	return func(w io.Writer, t Tensor) error {
		_, err := w.Write(data[t.Name])
		return err
	}
}

// tensorWriter takes exactly the bytes of one tensor.
type tensorWriter struct {
	w    io.Writer
	left int64
	err  error // sticky
}

func (t *tensorWriter) Write(p []byte) (int, error) {
	if t.err != nil {
		return 0, t.err
	}
	if int64(len(p)) > t.left {
		t.err = errors.Wrapf(ErrDataSize, "%d bytes too many", int64(len(p))-t.left)
		return 0, t.err
	}
	n, err := t.w.Write(p)
	t.left -= int64(n)
	t.err = err
	return n, err
}
