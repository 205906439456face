package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io/fs"
	"math/rand/v2"
	"testing"
)

// FuzzHeader feeds whole files. What is accepted keeps its promises and survives being written again.
func FuzzHeader(f *testing.F) {
	f.Add(file(good, 1, 2))
	f.Add(file("{}"))
	f.Add([]byte("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"))
	rng := rand.New(rand.NewPCG(3, 3))
	for i := range 5 {
		tensors, data := randomTensors(rng, i*2)
		var b bytes.Buffer
		if _, err := Write(&b, tensors, nil, Bytes(data)); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := read(b)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("error outside ErrInvalid: %v", err)
			}
			return
		}
		n := binary.LittleEndian.Uint64(b)
		if !json.Valid(b[8 : 8+n]) {
			t.Fatalf("accepted what is not JSON: %q", b[8:8+n])
		}
		checkHeader(t, h, int64(len(b)))
		data := map[string][]byte{}
		for _, x := range h.Tensors {
			off, n := h.FileRange(x)
			data[x.Name] = b[off : off+n]
		}
		var out bytes.Buffer
		if _, err := Write(&out, h.Tensors, &WriteOptions{Metadata: h.Metadata, NoFormat: true}, Bytes(data)); err != nil {
			t.Fatalf("Write of what was read: %v", err)
		}
		again, err := read(out.Bytes())
		if err != nil {
			t.Fatalf("read of what was written: %v\n%q", err, out.Bytes())
		}
		sameHeader(t, h, again)
		for name, want := range data {
			x, _ := again.Tensor(name)
			off, n := again.FileRange(x)
			if !bytes.Equal(want, out.Bytes()[off:off+n]) {
				t.Fatalf("tensor %q has other bytes", name)
			}
		}
	})
}

func checkHeader(t *testing.T, h *Header, size int64) {
	end := int64(0)
	for _, x := range h.Tensors {
		if x.Start != end || x.Size() < 0 || x.Elements()*x.DType.Bits() != x.Size()*8 {
			t.Fatalf("accepted %+v after %d", x, end)
		}
		end = x.End
		if got, ok := h.Tensor(x.Name); !ok || got.Start != x.Start || got.DType != x.DType {
			t.Fatalf("Tensor(%q) = %+v, %v", x.Name, got, ok)
		}
	}
	if h.FileSize() != size {
		t.Fatalf("FileSize %d of a file of %d", h.FileSize(), size)
	}
}

func sameHeader(t *testing.T, a, b *Header) {
	if len(a.Tensors) != len(b.Tensors) || len(a.Metadata) != len(b.Metadata) {
		t.Fatalf("%d tensors became %d, %d metadata %d", len(a.Tensors), len(b.Tensors), len(a.Metadata), len(b.Metadata))
	}
	for k, v := range a.Metadata {
		if b.Metadata[k] != v {
			t.Fatalf("metadata %q: %q became %q", k, v, b.Metadata[k])
		}
	}
	for _, x := range a.Tensors {
		if y, ok := b.Tensor(x.Name); !ok || y.DType != x.DType || len(y.Shape) != len(x.Shape) || y.Size() != x.Size() {
			t.Fatalf("%+v became %+v", x, y)
		}
	}
}

// FuzzIndex checks that what is accepted is JSON, means what encoding/json reads, and names only confined paths.
func FuzzIndex(f *testing.F) {
	f.Add([]byte(index3))
	f.Add([]byte(`{"metadata":{"total_size":1.5e3,"x":[{}]},"weight_map":{"\u00e9\ud83d\ude00":"sub/x"},"y":null}`))
	f.Add([]byte(`{"weight_map":{"a":"../x"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := ParseIndex(b)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("error outside ErrInvalid: %v", err)
			}
			return
		}
		var raw map[string]json.RawMessage
		var want map[string]string
		if err := json.Unmarshal(b, &raw); err != nil {
			t.Fatalf("accepted %q: %v", b, err)
		}
		if err := json.Unmarshal(raw["weight_map"], &want); err != nil || len(want) != len(x.WeightMap) {
			t.Fatalf("accepted %q: %v, %d entries, encoding/json has %d", b, err, len(x.WeightMap), len(want))
		}
		for name, shard := range x.WeightMap {
			if want[name] != shard || !fs.ValidPath(shard) {
				t.Fatalf("tensor %q: shard %q, encoding/json has %q", name, shard, want[name])
			}
		}
		if err := x.Validate(nil); (err == nil) != (len(want) == 0) {
			t.Fatalf("Validate without shards: %v", err)
		}
	})
}
