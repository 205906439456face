package safetensors

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The tests of this file are instances of faults that readers and writers of the format have had in public.

func TestB2TwoNamesOnOneRange(t *testing.T) {
	_, err := read(file(`{"a":{"dtype":"U8","shape":[16],"data_offsets":[0,16]},"b":{"dtype":"U8","shape":[16],"data_offsets":[0,16]}}`, make([]byte, 16)...))
	require.ErrorIs(t, err, ErrOffsets)
	require.ErrorContains(t, err, `"b"`)
	require.ErrorContains(t, err, `"a"`)

	h, err := read(file(`{"second":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},"first":{"dtype":"U16","shape":[],"data_offsets":[0,2]}}`, 1, 2, 3))
	require.NoError(t, err, "the order of the JSON need not be that of the offsets")
	require.Equal(t, "first", h.Tensors[0].Name)
	require.Equal(t, "second", h.Tensors[1].Name)
}

func TestB3HolesAndTrailingBytes(t *testing.T) {
	for name, c := range map[string]struct {
		header string
		data   int
		want   error
	}{
		"hole":      {`{"a":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},"b":{"dtype":"I64","shape":[1],"data_offsets":[16,24]}}`, 24, ErrOffsets},
		"overlap":   {`{"a":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},"b":{"dtype":"I64","shape":[1],"data_offsets":[7,15]}}`, 15, ErrOffsets},
		"not at 0":  {`{"b":{"dtype":"I64","shape":[1],"data_offsets":[8,16]}}`, 16, ErrOffsets},
		"trailing":  {`{"b":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}`, 9, ErrTrailing},
		"no tensor": {`{}`, 1, ErrTrailing},
	} {
		_, err := read(file(c.header, make([]byte, c.data)...))
		require.ErrorIs(t, err, c.want, name)
		require.ErrorIs(t, err, ErrInvalid, name)
		if strings.Contains(c.header, `"b"`) && name != "trailing" {
			require.ErrorContains(t, err, `"b"`, name)
		}
	}
}

func TestB4ShapeLargerThanRange(t *testing.T) {
	b := file(`{"big":{"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4]}}`, 0, 0, 0, 0)
	_, err := read(b)
	require.ErrorIs(t, err, ErrOffsets)
	require.ErrorContains(t, err, `"big"`)
	require.ErrorContains(t, err, "4000000 bytes")
}

func TestB5LengthIsNotTrusted(t *testing.T) {
	for _, c := range []struct {
		length uint64
		want   error
	}{
		{1 << 63, ErrHeaderTooLarge}, {math.MaxUint64, ErrHeaderTooLarge}, {MaxHeaderBytes + 1, ErrHeaderTooLarge}, {MaxHeaderBytes, ErrTruncated},
		{1000, ErrTruncated}, {993, ErrTruncated}, {0, ErrHeader}, {1, ErrHeader},
	} {
		b := binary.LittleEndian.AppendUint64(nil, c.length)
		b = append(b, bytes.Repeat([]byte("{"), 992)...) // 1000 bytes in all
		for _, size := range []int64{int64(len(b)), -1} {
			_, err := ReadHeader(bytes.NewReader(b), size)
			require.ErrorIs(t, err, c.want, "length %d, size %d", c.length, size)
			require.Less(t, allocated(func() { ReadHeader(bytes.NewReader(b), size) }), uint64(1<<20), "length %d", c.length)
		}
	}
	for _, shape := range []string{"[4294967296,4294967296]", "[9223372036854775807,2]", "[4294967296,4294967296,0]", "[2305843009213693952]"} {
		_, err := read(file(`{"huge":{"dtype":"F64","shape":` + shape + `,"data_offsets":[0,0]}}`))
		require.ErrorIs(t, err, ErrShape, shape)
		require.ErrorContains(t, err, `"huge"`)
	}
	_, err := read(file(`{"z":{"dtype":"U8","shape":[9223372036854775807],"data_offsets":[0,9223372036854775807]}}`))
	require.ErrorIs(t, err, ErrShape, "bits overflow")
	_, err = read(file(`{"z":{"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,0]}}`))
	require.ErrorIs(t, err, ErrHeader)
	_, err = read(file(`{"z":{"dtype":"U8","shape":[0],"data_offsets":[18446744073709551615,18446744073709551615]}}`))
	require.ErrorIs(t, err, ErrHeader)
}

func TestMemoryIsProportional(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"__metadata__":{`)
	for i := range 20_000 {
		fmt.Fprintf(&b, `"%x":"",`, i)
	}
	b.WriteString(`"":""}`)
	for i := range 20_000 {
		fmt.Fprintf(&b, `,"%x":{"dtype":"U8","shape":[0,1,1,1,1,1],"data_offsets":[0,0]}`, i)
	}
	b.WriteString("}")
	text := b.String()
	require.Less(t, allocated(func() {
		_, err := ParseHeader([]byte(text), -1)
		require.NoError(t, err)
	}), uint64(16*len(text)), "of a header of %d bytes", len(text))
}

// allocated is the number of bytes that do allocates.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestB8Alignment(t *testing.T) {
	for n := range 20 {
		tensors := []Tensor{
			{Name: "a" + strings.Repeat("x", n), DType: U8, Shape: []int64{3}}, {Name: "b", DType: F4, Shape: []int64{2}},
			{Name: "c", DType: F64, Shape: []int64{1}}, {Name: "d", DType: BF16, Shape: []int64{1}}, {Name: "e", DType: F32, Shape: []int64{}},
		}
		h, prefix, err := Layout(tensors, nil)
		require.NoError(t, err)
		require.Zero(t, len(prefix)%8)
		require.Equal(t, uint64(len(prefix)-8), binary.LittleEndian.Uint64(prefix))
		require.Equal(t, "}", strings.TrimRight(string(prefix), " ")[len(strings.TrimRight(string(prefix), " "))-1:], "padded with spaces")
		last := DType(math.MaxUint8)
		for _, x := range h.Tensors {
			off, _ := h.FileRange(x)
			require.Zero(t, off%max(1, x.DType.Bits()/8), "%s is aligned", x.Name)
			require.LessOrEqual(t, x.DType, last, "larger dtypes first")
			last = x.DType
		}
	}
	// A header of odd length, not aligned, is read all the same.
	b := file(`{"x":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}}   `, 1, 2, 3, 4)
	for len(b)%2 == 0 {
		b = file(string(b[8:len(b)-4])+" ", 1, 2, 3, 4)
	}
	h, err := read(b)
	require.NoError(t, err)
	require.Equal(t, int64(1), h.DataOffset%2)
	require.Equal(t, []byte{1, 2, 3, 4}, tensorBytes(t, b, h, "x"))
}

func TestB11FormatMetadata(t *testing.T) {
	one := []Tensor{{Name: "x", DType: U8, Shape: []int64{1}}}
	for _, c := range []struct {
		opts *WriteOptions
		want map[string]string
	}{
		{nil, map[string]string{"format": "pt"}},
		{&WriteOptions{Metadata: map[string]string{"k": "v"}}, map[string]string{"format": "pt", "k": "v"}},
		{&WriteOptions{Metadata: map[string]string{"format": "mlx"}}, map[string]string{"format": "mlx"}},
		{&WriteOptions{NoFormat: true}, nil},
		{&WriteOptions{NoFormat: true, Metadata: map[string]string{"format": "np"}}, map[string]string{"format": "np"}},
	} {
		var b bytes.Buffer
		_, err := Write(&b, one, c.opts, Bytes(map[string][]byte{"x": {7}}))
		require.NoError(t, err)
		h, err := read(b.Bytes())
		require.NoError(t, err)
		require.Equal(t, c.want, h.Metadata)

		var again bytes.Buffer // read and written again, nothing is lost
		_, err = Write(&again, h.Tensors, &WriteOptions{Metadata: h.Metadata, NoFormat: true}, Bytes(map[string][]byte{"x": {7}}))
		require.NoError(t, err)
		require.Equal(t, b.Bytes(), again.Bytes())
	}
}

func TestB13ByteOrder(t *testing.T) {
	data := map[string][]byte{
		"f32":  binary.LittleEndian.AppendUint32(nil, math.Float32bits(1)),
		"bf16": binary.LittleEndian.AppendUint16(nil, uint16(math.Float32bits(1)>>16)),
		"i64":  binary.LittleEndian.AppendUint64(nil, 1),
	}
	var b bytes.Buffer
	n, err := Write(&b, []Tensor{{Name: "f32", DType: F32}, {Name: "bf16", DType: BF16}, {Name: "i64", DType: I64}}, nil, Bytes(data))
	require.NoError(t, err)
	require.EqualValues(t, b.Len(), n)
	h, err := read(b.Bytes())
	require.NoError(t, err)
	require.Equal(t, []byte{0, 0, 0x80, 0x3f}, tensorBytes(t, b.Bytes(), h, "f32"))
	require.Equal(t, []byte{0x80, 0x3f}, tensorBytes(t, b.Bytes(), h, "bf16"))
	require.Equal(t, []byte{1, 0, 0, 0, 0, 0, 0, 0}, tensorBytes(t, b.Bytes(), h, "i64"))
}

func TestB14ShortFile(t *testing.T) {
	whole := file(`{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"last":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}`, 1, 2, 3, 4, 5, 6, 7, 8)
	_, err := read(whole)
	require.NoError(t, err)
	for cut := 1; cut <= len(whole); cut++ {
		_, err := read(whole[:len(whole)-cut])
		require.ErrorIs(t, err, ErrTruncated, "%d bytes short", cut)
		require.ErrorIs(t, err, ErrInvalid)
	}
	_, err = read(whole[:len(whole)-1])
	require.ErrorContains(t, err, `"last"`)
	_, err = ReadHeader(bytes.NewReader(whole[:50]), int64(len(whole)))
	require.ErrorIs(t, err, ErrTruncated, "a reader that has less than the size says")
}

const index3 = `{"metadata":{"total_size":3},"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors","c":"m-3.safetensors"}}`

// shard is the header of a file with these tensors.
func shard(t *testing.T, names ...string) *Header {
	t.Helper()
	var tensors []Tensor
	for _, n := range names {
		tensors = append(tensors, Tensor{Name: n, DType: U8, Shape: []int64{1}})
	}
	h, _, err := Layout(tensors, nil)
	require.NoError(t, err)
	return h
}

func TestB15MissingShard(t *testing.T) {
	x, err := ParseIndex([]byte(index3))
	require.NoError(t, err)
	headers := map[string]*Header{"m-1.safetensors": shard(t, "a"), "m-2.safetensors": shard(t, "b")}
	err = x.Validate(headers)
	require.ErrorIs(t, err, ErrMissingShard)
	require.ErrorContains(t, err, "m-3.safetensors")
	headers["m-3.safetensors"] = shard(t, "c")
	require.NoError(t, x.Validate(headers))
}

func TestB16StrayFiles(t *testing.T) {
	x, err := ParseIndex([]byte(index3))
	require.NoError(t, err)
	require.Equal(t, []string{"m-1.safetensors", "m-2.safetensors", "m-3.safetensors"}, x.Shards())
	require.NoError(t, x.Validate(map[string]*Header{
		"m-1.safetensors": shard(t, "a"), "m-2.safetensors": shard(t, "b"), "m-3.safetensors": shard(t, "c"),
		"model.safetensors": shard(t, "a", "b", "c"), "consolidated.safetensors": shard(t, "a", "z"),
	}))
}

func TestB17PathsThatLeadOut(t *testing.T) {
	for _, path := range []string{
		"../x", "/etc/passwd", "a/../../x", "sub/../x", "..", ".", "", "./x", "a//b", "a/", "a\\u0000b", strings.Repeat("x", 5000),
	} {
		_, err := ParseIndex([]byte(`{"weight_map":{"t":"` + path + `"}}`))
		require.ErrorIs(t, err, ErrShardPath, "%q", path)
		require.ErrorContains(t, err, `"t"`)
	}
	for _, path := range []string{"x", "sub/x", "sub/模型/x y%2F", "...", "..x"} {
		x, err := ParseIndex([]byte(`{"weight_map":{"t":"` + path + `"}}`))
		require.NoError(t, err, "%q", path)
		require.Equal(t, []string{path}, x.Shards())
	}
}

func TestB18IndexAndShardDisagree(t *testing.T) {
	x, err := ParseIndex([]byte(index3))
	require.NoError(t, err)
	err = x.Validate(map[string]*Header{"m-1.safetensors": shard(t, "a"), "m-2.safetensors": shard(t, "other"), "m-3.safetensors": shard(t, "c")})
	require.ErrorIs(t, err, ErrMissingTensor)
	require.ErrorContains(t, err, `"b" in shard "m-2.safetensors"`)

	err = x.Validate(map[string]*Header{"m-1.safetensors": shard(t, "a"), "m-2.safetensors": shard(t, "b", "a"), "m-3.safetensors": shard(t, "c")})
	require.ErrorIs(t, err, ErrDuplicateTensor)
	require.ErrorContains(t, err, `"a" in "m-1.safetensors" and "m-2.safetensors"`)

	err = x.Validate(map[string]*Header{"m-1.safetensors": shard(t), "m-3.safetensors": shard(t)})
	for _, kind := range []error{ErrMissingShard, ErrMissingTensor, ErrInvalid} {
		require.ErrorIs(t, err, kind, "all problems at once")
	}
}

func TestTiedWeights(t *testing.T) {
	// lm_head shares the bytes of embed: neither the index nor a shard names it.
	x, err := ParseIndex([]byte(`{"metadata":{"total_size":2},"weight_map":{"embed":"m"}}`))
	require.NoError(t, err)
	require.NoError(t, x.Validate(map[string]*Header{"m": shard(t, "embed")}))
	require.NoError(t, x.Validate(map[string]*Header{"m": shard(t, "embed", "rotary")}), "a tensor that is not listed")
}

func TestB20WrongDataSize(t *testing.T) {
	x := []Tensor{{Name: "strided", DType: F32, Shape: []int64{2, 2}}}
	for _, n := range []int{0, 12, 15, 17, 32} {
		_, err := Write(io.Discard, x, nil, Bytes(map[string][]byte{"strided": make([]byte, n)}))
		require.ErrorIs(t, err, ErrDataSize, "%d bytes", n)
		require.ErrorContains(t, err, `"strided"`)
	}
	_, err := Write(io.Discard, x, nil, func(w io.Writer, _ Tensor) error {
		w.Write(make([]byte, 16))
		w.Write(make([]byte, 1)) // its error is ignored
		return nil
	})
	require.ErrorIs(t, err, ErrDataSize)
}

func TestD12LFSPointer(t *testing.T) {
	sum := strings.Repeat("5d", 32)
	text := "version https://git-lfs.github.com/spec/v1\noid sha256:" + sum + "\nsize 4976698672\n"
	_, err := read([]byte(text))
	require.ErrorIs(t, err, ErrLFSPointer)
	var pointer *LFSPointerError
	require.ErrorAs(t, err, &pointer)
	require.Equal(t, LFSPointerError{SHA256: sum, Size: 4976698672}, *pointer)
	require.ErrorContains(t, err, "4976698672")
	require.ErrorContains(t, err, "LFS pointer")
	_, err = ReadHeader(strings.NewReader(text), -1)
	require.ErrorIs(t, err, ErrLFSPointer)
	_, err = ParseIndex([]byte(text))
	require.ErrorIs(t, err, ErrLFSPointer)
	_, err = read([]byte("version https://git-lfs.github.com/spec/v1\nsize -3\n"))
	require.ErrorAs(t, err, &pointer)
	require.Equal(t, LFSPointerError{Size: -1}, *pointer)
}

// TestAliases reads tied weights as save_model of safetensors.torch writes them: one tensor, the other name in the metadata.
func TestAliases(t *testing.T) {
	const head = `{"__metadata__":{"format":"pt","lm_head.weight":"embed.weight","also":"embed.weight","note":"no tensor","embed.weight":"norm"},`
	h, err := read(file(head+`"embed.weight":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"norm":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}`, 1, 2, 3))
	require.NoError(t, err)
	require.Equal(t, []string{"also", "lm_head.weight"}, h.Aliases())
	for name, want := range map[string]string{"lm_head.weight": "embed.weight", "also": "embed.weight", "embed.weight": "embed.weight", "norm": "norm"} {
		got, ok := h.Resolve(name)
		require.True(t, ok, name)
		require.Equal(t, want, got.Name)
	}
	for _, name := range []string{"note", "format", "none", ""} {
		_, ok := h.Resolve(name)
		require.False(t, ok, name)
	}
	h, err = read(file(`{"__metadata__":{"format":"pt"},"pt":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1))
	require.NoError(t, err)
	require.Empty(t, h.Aliases(), "format names a framework, also when a tensor is called like one")

	x, err := ParseIndex([]byte(`{"weight_map":{"embed.weight":"m","lm_head.weight":"m"}}`))
	require.NoError(t, err)
	h, err = read(file(`{"__metadata__":{"lm_head.weight":"embed.weight"},"embed.weight":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1))
	require.NoError(t, err)
	require.NoError(t, x.Validate(map[string]*Header{"m": h}), "an index may list an alias")
}

// TestOtherFormatIsNamed reads files of other formats under a name that ends in .safetensors.
func TestOtherFormatIsNamed(t *testing.T) {
	tar := make([]byte, 1024)
	copy(tar[257:], "ustar")
	for want, b := range map[Kind][]byte{
		KindZip: []byte("PK\x03\x04\x00\x00\x08\x08\x00\x00\x00\x00archive/data.pkl"), KindPickle: []byte("\x80\x02}q\x00(X\x01\x00\x00\x00aq"),
		KindGGUF: []byte("GGUF\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00"), KindHDF5: []byte("\x89HDF\r\n\x1a\n\x00\x00\x00"),
		KindGzip: []byte("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x00"), KindHTML: []byte("<!DOCTYPE html><html></html>"), KindTar: tar,
		KindNumPy: []byte("\x93NUMPY\x01\x00v\x00{'descr'"),
	} {
		require.Equal(t, want, Sniff(b))
		_, err := ReadHeader(bytes.NewReader(b), int64(len(b)))
		require.ErrorIs(t, err, ErrOtherFormat)
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, string(want))
	}
	good := file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1)
	require.Equal(t, KindSafetensors, Sniff(good))
	for n := range good {
		require.Contains(t, []Kind{KindUnknown, KindSafetensors}, Sniff(good[:n]))
	}
	// A header whose length has the bytes of another format's beginning is still a header.
	long := append([]byte("\x1f\x8b\x00\x00\x00\x00\x00\x00"), '{')
	require.Equal(t, KindSafetensors, Sniff(long))
}
