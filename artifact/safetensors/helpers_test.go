package safetensors

import (
	"bytes"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// file puts a file together without any check.
func file(header string, data ...byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), data...)
}

func read(b []byte) (*Header, error) { return ReadHeader(bytes.NewReader(b), int64(len(b))) }

// tensorBytes is one tensor's data out of a file.
func tensorBytes(t *testing.T, b []byte, h *Header, name string) []byte {
	t.Helper()
	x, ok := h.Tensor(name)
	require.True(t, ok, "tensor %q", name)
	off, n := h.FileRange(x)
	return b[off : off+n]
}

// randomTensors makes tensors of every dtype, names and shapes that are hard, and their data.
func randomTensors(rng *rand.Rand, count int) ([]Tensor, map[string][]byte) {
	parts := []string{"a", "layer.", "0", "é", "模型", "\"", "\\", "/", "\n", "\x01", "\x7f", " ", "{", "😀", ".weight", "\u2028", "\x00"}
	var out []Tensor
	data := map[string][]byte{}
	for len(out) < count {
		name := ""
		for range rng.IntN(5) {
			name += parts[rng.IntN(len(parts))]
		}
		if _, dup := data[name]; dup {
			continue
		}
		t := Tensor{Name: name, DType: DTypes()[rng.IntN(len(DTypes()))], Shape: []int64{}}
		for range rng.IntN(4) {
			t.Shape = append(t.Shape, rng.Int64N(5))
		}
		size, err := sizeOf(t.DType, t.Shape)
		if err != nil { // a sub-byte dtype whose bits are no whole bytes
			t.Shape = append(t.Shape, 4)
			size, _ = sizeOf(t.DType, t.Shape)
		}
		b := make([]byte, size)
		for i := range b {
			b[i] = byte(rng.Uint32())
			if t.DType == Bool {
				b[i] &= 1
			}
		}
		data[name] = b
		out = append(out, t)
	}
	return out, data
}

// countingReader counts the calls and bytes of an io.ReaderAt.
type countingReader struct {
	r     io.ReaderAt
	calls int
	bytes int
}

func (c *countingReader) ReadAt(p []byte, off int64) (int, error) {
	n, err := c.r.ReadAt(p, off)
	c.calls++
	c.bytes += n
	return n, err
}
