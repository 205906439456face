package safetensors

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

// TestKnownFile holds the bytes that the format's own tests expect.
func TestKnownFile(t *testing.T) {
	want := file(`{"attn.0":{"dtype":"F32","shape":[1,2,3],"data_offsets":[0,24]}}`, make([]byte, 24)...)
	var b bytes.Buffer
	opts := &WriteOptions{NoFormat: true}
	_, err := Write(&b, []Tensor{{Name: "attn.0", DType: F32, Shape: []int64{1, 2, 3}}}, opts, Bytes(map[string][]byte{"attn.0": make([]byte, 24)}))
	require.NoError(t, err)
	require.Equal(t, want, b.Bytes())

	b.Reset()
	_, err = Write(&b, nil, opts, Bytes(nil))
	require.NoError(t, err)
	require.Equal(t, file("{}      "), b.Bytes())

	b.Reset()
	_, err = Write(&b, nil, &WriteOptions{NoFormat: true, Metadata: map[string]string{"framework": "pt"}}, Bytes(nil))
	require.NoError(t, err)
	require.Equal(t, file(`{"__metadata__":{"framework":"pt"}}     `), b.Bytes())
}

func TestRoundTrip(t *testing.T) {
	const seed = 1
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		tensors, data := randomTensors(rng, rng.IntN(20))
		meta := map[string]string{"k\"\n": "v\\é"}
		var b, again bytes.Buffer
		_, err := Write(&b, tensors, &WriteOptions{Metadata: meta}, Bytes(data))
		require.NoError(t, err)
		rng.Shuffle(len(tensors), func(i, j int) { tensors[i], tensors[j] = tensors[j], tensors[i] })
		_, err = Write(&again, tensors, &WriteOptions{Metadata: meta}, Bytes(data))
		require.NoError(t, err)
		require.Equal(t, b.Bytes(), again.Bytes(), "the order of the input does not matter")
		require.Len(t, meta, 1, "the caller's map is not changed")

		h, err := read(b.Bytes())
		require.NoError(t, err)
		require.Equal(t, map[string]string{"k\"\n": "v\\é", "format": "pt"}, h.Metadata)
		require.Len(t, h.Tensors, len(tensors))
		require.EqualValues(t, b.Len(), h.FileSize())
		for _, want := range tensors {
			got, ok := h.Tensor(want.Name)
			require.True(t, ok)
			require.Equal(t, want.DType, got.DType)
			require.True(t, slices.Equal(want.Shape, got.Shape))
			require.Equal(t, data[want.Name], tensorBytes(t, b.Bytes(), h, want.Name))
			require.Equal(t, got.Size()*8, got.Elements()*got.DType.Bits())
		}
		_, ok := h.Tensor("no such tensor")
		require.False(t, ok)
	}
}

func TestDTypes(t *testing.T) {
	names := strings.Fields("BOOL F4 F6_E2M3 F6_E3M2 U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ I16 U16 F16 BF16 I32 U32 F32 C64 F64 I64 U64")
	require.Len(t, DTypes(), len(names))
	for i, d := range DTypes() {
		require.Equal(t, names[i], d.String())
		got, ok := ParseDType(names[i])
		require.True(t, ok)
		require.Equal(t, d, got)
		n := int(d.Bits())
		b := file(fmt.Sprintf(`{"t":{"dtype":%q,"shape":[8,1],"data_offsets":[0,%d]}}`, d, n), make([]byte, n)...)
		h, err := read(b)
		require.NoError(t, err, names[i])
		require.Equal(t, d, h.Tensors[0].DType)
	}
	for _, bad := range []string{"", "f32", "F8", "F32 ", "BF17", "DType(0)"} {
		_, ok := ParseDType(bad)
		require.False(t, ok)
		_, err := read(file(`{"t":{"dtype":"`+bad+`","shape":[],"data_offsets":[0,4]}}`, 0, 0, 0, 0))
		require.ErrorIs(t, err, ErrDType, "%q", bad)
	}
	for _, d := range []DType{0, 200} {
		require.False(t, d.Valid())
		require.Zero(t, d.Bits())
		require.NotEmpty(t, d.String())
	}
	for _, c := range []string{`"F4","shape":[3]`, `"F4","shape":[]`, `"F6_E2M3","shape":[2]`, `"F6_E3M2","shape":[3,3]`} {
		_, err := read(file(`{"t":{"dtype":`+c+`,"data_offsets":[0,2]}}`, 0, 0))
		require.ErrorIs(t, err, ErrShape, c)
		require.ErrorContains(t, err, "whole bytes")
	}
}

func TestEmptyAndScalar(t *testing.T) {
	b := file(`{"s":{"dtype":"F16","shape":[],"data_offsets":[0,2]},"e1":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},`+
		`"e2":{"dtype":"F32","shape":[3,0,5],"data_offsets":[2,2]},"":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}`, 1, 2, 3)
	h, err := read(b)
	require.NoError(t, err)
	require.Len(t, h.Tensors, 4)
	s, _ := h.Tensor("s")
	require.EqualValues(t, 1, s.Elements())
	require.Empty(t, s.Shape)
	e, _ := h.Tensor("e2")
	require.Zero(t, e.Elements())
	require.Equal(t, []byte{3}, tensorBytes(t, b, h, ""))

	_, err = read(file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"e":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}}`, 1, 2))
	require.ErrorIs(t, err, ErrOffsets, "an empty tensor inside another")
}

// good is a header that each case of TestStrictHeader breaks in one place.
const good = `{"__metadata__":{"k":"v"},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`

func TestStrictHeader(t *testing.T) {
	_, err := read(file(good, 1, 2))
	require.NoError(t, err)
	for _, c := range [][2]string{
		{`{"__`, ` {"__`}, {`{"__`, `[{"__`}, {good, ""}, {good, "null"}, {good, "{"}, {good, `{"`}, {good, `{"a`}, {good, `{"a\`}, {good, `{"a":`},
		{`}}`, `}`}, {`}}`, `}}}`}, {`}}`, `}},`}, {`}}`, `}} {}`}, {`}}`, "}}\x00"}, {`}}`, `},}`}, {`}}`, `}}x`}, {`}}`, `}"b":1}`},
		{`"v"`, `1`}, {`"v"`, `null`}, {`"v"`, `["v"]`}, {`{"k":"v"}`, `null`}, {`{"k":"v"}`, `[]`}, {`"k":"v"`, `"k":"v","k":"w"`}, {`"k":"v"`, `"k":"v",`},
		{`},"a"`, `},"__metadata__":{},"a"`}, {`"a":`, `"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":`},
		{`"a":`, `"\u0061":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":`}, {`"a"`, `a`}, {`"a"`, `'a'`}, {`"a":`, `"a" `}, {`"a"`, `1`},
		{`"a"`, "\"a\xff\""}, {`"a"`, "\"a\xc0\x80\""}, {`"a"`, "\"\xed\xa0\x80\""}, {`"a"`, "\"a\n\""}, {`"a"`, "\"\\t\x01\""}, {`"a"`, `"\x"`}, {`"a"`, `"\u12"`},
		{`"a"`, `"\u12g4"`}, {`"a"`, `"\ud800"`}, {`"a"`, `"\ud800\n"`}, {`"a"`, `"\ud800\u0041"`}, {`"a"`, `"\udc00"`}, {`"a"`, `"\ud800\u"`},
		{`"U8"`, `8`}, {`"U8"`, `null`}, {`"U8"`, `{"U8":null}`}, {`"dtype":"U8",`, ``}, {`"dtype"`, `"Dtype"`}, {`"dtype":"U8"`, `"dtype":"U8","dtype":"U8"`},
		{`"shape":[2],`, ``}, {`"shape":[2]`, `"shape":[2],"shape":[2]`}, {`"shape":[2]`, `"shape":[2],"x":1`}, {`[2]`, `2`}, {`[2]`, `null`}, {`[2]`, `"2"`},
		{`[2]`, `[2,]`}, {`[2]`, `[,2]`}, {`[2]`, `[2 1]`}, {`[2]`, `[2`}, {`[2]`, `[[2]]`}, {`[2]`, `["2"]`}, {`[2]`, `[-2]`}, {`[2]`, `[-0]`}, {`[2]`, `[+2]`},
		{`[2]`, `[2.0]`}, {`[2]`, `[2.5]`}, {`[2]`, `[2e0]`}, {`[2]`, `[2E0]`}, {`[2]`, `[02]`}, {`[2]`, `[0x2]`}, {`[2]`, `[9223372036854775808]`},
		{`[2]`, `[18446744073709551618]`}, {`[2]`, `[99999999999999999999999999]`}, {`[2]`, `[NaN]`}, {`[2]`, `[true]`}, {`[2]`, `[1,2]x`},
		{`[0,2]`, `[0]`}, {`[0,2]`, `[]`}, {`[0,2]`, `[0,1,2]`}, {`[0,2]`, `{"0":2}`}, {`,"data_offsets":[0,2]`, ``},
		{`{"dtype":"U8","shape":[2],"data_offsets":[0,2]}`, `["U8",[2],[0,2]]`}, {`{"dtype":"U8","shape":[2],"data_offsets":[0,2]}`, `null`},
		{`{"dtype":"U8","shape":[2],"data_offsets":[0,2]}`, `{}`},
	} {
		require.Contains(t, good, c[0])
		text := strings.Replace(good, c[0], c[1], 1)
		if text == "" {
			continue
		}
		_, err := ParseHeader([]byte(text), -1)
		require.ErrorIs(t, err, ErrHeader, "%s", text)
		require.ErrorContains(t, err, "byte ", "%s", text)
	}
	for _, offsets := range []string{`[2,0]`, `[0,1]`, `[0,3]`, `[1,2]`} {
		_, err := ParseHeader([]byte(strings.Replace(good, `[0,2]`, offsets, 1)), -1)
		require.ErrorIs(t, err, ErrOffsets, offsets)
		require.ErrorContains(t, err, `"a"`)
	}
	for _, same := range []string{
		good + " \t\n\r", strings.ReplaceAll(good, ":", " :\n"), strings.ReplaceAll(good, "[2]", "[ 2 ]"), strings.Replace(good, `"a"`, `"\u0061"`, 1),
		strings.Replace(good, `"dtype"`, `"dt\u0079pe"`, 1), strings.Replace(good, "__metadata__", `\u005f_metadata__`, 1),
	} {
		h, err := ParseHeader([]byte(same), -1)
		require.NoError(t, err, "%s", same)
		require.Equal(t, map[string]string{"k": "v"}, h.Metadata)
		_, ok := h.Tensor("a")
		require.True(t, ok)
	}
	h, err := ParseHeader([]byte(strings.Replace(good, `"a"`, `"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00é"`, 1)), -1)
	require.NoError(t, err)
	require.Equal(t, "\"\\/\b\f\n\r\té😀é", h.Tensors[0].Name)
}

func TestHeaderLimit(t *testing.T) {
	_, err := ParseHeader(make([]byte, MaxHeaderBytes+1), -1)
	require.ErrorIs(t, err, ErrHeaderTooLarge)
	_, err = ParseIndex(make([]byte, MaxIndexBytes+1))
	require.ErrorIs(t, err, ErrIndex)
	_, _, err = Layout([]Tensor{{Name: strings.Repeat("x", MaxHeaderBytes), DType: U8}}, nil)
	require.ErrorIs(t, err, ErrHeaderTooLarge)
	require.Less(t, len(err.Error()), 1000, "a long name is cut in messages")
	_, err = ParseHeader([]byte(`{"`+strings.Repeat("n", 10_000)+`":{"dtype":"X"`), -1)
	require.ErrorIs(t, err, ErrDType)
	require.Less(t, len(err.Error()), 1000)
}

func TestReadHeaderCalls(t *testing.T) {
	for _, c := range []struct{ tensors, calls int }{{3, 1}, {5000, 2}} {
		var tensors []Tensor
		data := map[string][]byte{}
		for i := range c.tensors {
			name := fmt.Sprintf("model.layers.%d.weight", i)
			tensors = append(tensors, Tensor{Name: name, DType: U8, Shape: []int64{100}})
			data[name] = make([]byte, 100)
		}
		var b bytes.Buffer
		_, err := Write(&b, tensors, nil, Bytes(data))
		require.NoError(t, err)
		for _, size := range []int64{int64(b.Len()), -1} {
			r := &countingReader{r: bytes.NewReader(b.Bytes())}
			h, err := ReadHeader(r, size)
			require.NoError(t, err)
			require.Len(t, h.Tensors, c.tensors)
			require.LessOrEqual(t, r.bytes, max(firstReadBytes, int(h.DataOffset)), "the tensors are not read")
			if size >= 0 {
				require.LessOrEqual(t, r.calls, c.calls+int(h.DataOffset)/(32<<10))
			}
		}
	}
}

func TestReadErrors(t *testing.T) {
	broken := errors.New("broken")
	_, err := ReadHeader(failingAt{at: 0, err: broken}, 100)
	require.ErrorIs(t, err, broken)
	require.NotErrorIs(t, err, ErrInvalid)

	long := file(`{"` + strings.Repeat("n", 100_000) + `":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`)
	_, err = read(long)
	require.NoError(t, err)
	_, err = ReadHeader(failingAt{data: long, at: firstReadBytes + 10, err: broken}, int64(len(long)))
	require.ErrorIs(t, err, broken)
	_, err = ReadHeader(bytes.NewReader(long[:90_000]), int64(len(long)))
	require.ErrorIs(t, err, ErrTruncated)
	_, err = ReadHeader(bytes.NewReader(long[:90_000]), -1)
	require.ErrorIs(t, err, ErrTruncated)
	h, err := ReadHeader(bytes.NewReader(append(slices.Clone(long), 1)), -1)
	require.NoError(t, err, "an unknown size is compared by the caller")
	require.EqualValues(t, len(long), h.FileSize())
}

// failingAt fails every read that reaches byte at.
type failingAt struct {
	data []byte
	at   int64
	err  error
}

func (f failingAt) ReadAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > f.at {
		return 0, f.err
	}
	return copy(p, f.data[off:]), nil
}

func TestWriteErrors(t *testing.T) {
	for name, c := range map[string]struct {
		tensors []Tensor
		meta    map[string]string
		want    error
	}{
		"reserved":     {[]Tensor{{Name: "__metadata__", DType: U8}}, nil, ErrName},
		"twice":        {[]Tensor{{Name: "x", DType: U8}, {Name: "x", DType: U16}}, nil, ErrName},
		"not UTF-8":    {[]Tensor{{Name: "\xff", DType: U8}}, nil, ErrName},
		"metadata key": {nil, map[string]string{"\xff": ""}, ErrName},
		"metadata":     {nil, map[string]string{"k": "\xff"}, ErrName},
		"dtype":        {[]Tensor{{Name: "x"}}, nil, ErrDType},
		"negative":     {[]Tensor{{Name: "x", DType: U8, Shape: []int64{-1}}}, nil, ErrShape},
		"bits":         {[]Tensor{{Name: "x", DType: F4, Shape: []int64{3}}}, nil, ErrShape},
		"overflow":     {[]Tensor{{Name: "x", DType: U8, Shape: []int64{1 << 40, 1 << 40}}}, nil, ErrShape},
		"file too large": {[]Tensor{{Name: "x", DType: U8, Shape: []int64{1<<60 + 1<<59}}, {Name: "y", DType: U8, Shape: []int64{1<<60 + 1<<59}},
			{Name: "0", DType: U8, Shape: []int64{1<<60 + 1<<59}}, {Name: "1", DType: U8, Shape: []int64{1<<60 + 1<<59}},
			{Name: "2", DType: U8, Shape: []int64{1<<60 + 1<<59}}, {Name: "3", DType: U8, Shape: []int64{1<<60 + 1<<59}}}, nil, ErrShape},
	} {
		_, err := Write(io.Discard, c.tensors, &WriteOptions{Metadata: c.meta}, Bytes(nil))
		require.ErrorIs(t, err, c.want, name)
	}
	broken := errors.New("broken")
	one := []Tensor{{Name: "x", DType: U8, Shape: []int64{1 << 20}}}
	_, err := Write(io.Discard, one, nil, func(io.Writer, Tensor) error { return broken })
	require.ErrorIs(t, err, broken)
	for _, limit := range []int64{0, 1000} {
		var b bytes.Buffer
		n, err := Write(&failingWriter{&b, limit, broken}, one, nil, func(w io.Writer, _ Tensor) error {
			_, err := io.CopyN(w, iotest.OneByteReader(bytes.NewReader(make([]byte, 1<<20))), 1<<20)
			return err
		})
		require.ErrorIs(t, err, broken)
		require.EqualValues(t, b.Len(), n, "the bytes that were written are counted")
	}
}

// failingWriter takes limit bytes.
type failingWriter struct {
	w     io.Writer
	limit int64
	err   error
}

func (f *failingWriter) Write(p []byte) (int, error) {
	n := min(int64(len(p)), f.limit)
	f.limit -= n
	f.w.Write(p[:n])
	if n < int64(len(p)) {
		return int(n), f.err
	}
	return int(n), nil
}

func TestIndex(t *testing.T) {
	x, err := ParseIndex([]byte(`{"metadata":{"total_size":12.5e1,"more":[1,{"a":null}],"s":"x"},"weight_map":{"a":"x","b":"x","c":"d/y"},"extra":[true,false,-1.5e-3]} `))
	require.NoError(t, err)
	require.EqualValues(t, 125, x.TotalSize)
	require.Equal(t, map[string]string{"total_size": "12.5e1", "more": `[1,{"a":null}]`, "s": `"x"`}, x.Metadata)
	require.Equal(t, []string{"d/y", "x"}, x.Shards())
	for text, want := range map[string]int64{
		`"metadata":{"total_size":7}`: 7, `"metadata":{"total_size":1e300}`: -1, `"metadata":{"total_size":-1}`: -1, `"metadata":{"total_size":"7"}`: -1,
		`"metadata":{"total_size":1.5}`: -1, `"metadata":null`: -1, `"metadata":{}`: -1, `"other":0`: -1, `"metadata":{"total_size":9007199254740993}`: 9007199254740993,
	} {
		x, err := ParseIndex([]byte(`{` + text + `,"weight_map":{}}`))
		require.NoError(t, err, text)
		require.Equal(t, want, x.TotalSize, text)
		require.Empty(t, x.Shards())
		require.NoError(t, x.Validate(nil))
	}
	deep := strings.Repeat("[", maxDepth+2) + strings.Repeat("]", maxDepth+2)
	for _, bad := range []string{
		``, `[]`, `null`, `{}`, `{"metadata":{}}`, `{"weight_map":null}`, `{"weight_map":[]}`, `{"weight_map":{"a":1}}`, `{"weight_map":{"a":null}}`,
		`{"weight_map":{"a":"x","a":"y"}}`, `{"weight_map":{"a":"x"},"weight_map":{"b":"x"}}`, `{"metadata":{"k":1,"k":2},"weight_map":{}}`,
		`{"weight_map":{}} x`, `{"weight_map":{}`, `{"weight_map":{},}`, `{"x":` + deep + `,"weight_map":{}}`, `{"x":01,"weight_map":{}}`,
		`{"x":1.,"weight_map":{}}`, `{"x":1e,"weight_map":{}}`, `{"x":-,"weight_map":{}}`, `{"x":tru,"weight_map":{}}`, `{"x":,"weight_map":{}}`, "{\"weight_map\":{\"\xff\":\"x\"}}",
	} {
		_, err := ParseIndex([]byte(bad))
		require.ErrorIs(t, err, ErrIndex, "%.80s", bad)
	}
	many, err := ParseIndex([]byte(`{"weight_map":{` + strings.TrimSuffix(func() (s string) {
		for i := range 50 {
			s += fmt.Sprintf(`"t%d":"s%d",`, i, i)
		}
		return
	}(), ",") + `}}`))
	require.NoError(t, err)
	err = many.Validate(nil)
	require.ErrorIs(t, err, ErrMissingShard)
	require.ErrorContains(t, err, "40 more")
}

func BenchmarkParseHeader10k(b *testing.B) {
	var tensors []Tensor
	for i := range 10_000 {
		tensors = append(tensors, Tensor{Name: fmt.Sprintf("model.layers.%d.mlp.experts.%d.up_proj.weight", i/128, i%128), DType: BF16, Shape: []int64{2048, 1408}})
	}
	_, prefix, err := Layout(tensors, nil)
	require.NoError(b, err)
	b.SetBytes(int64(len(prefix)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseHeader(prefix[8:], -1); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLayout10k(b *testing.B) {
	var tensors []Tensor
	for i := range 10_000 {
		tensors = append(tensors, Tensor{Name: fmt.Sprintf("model.layers.%d.mlp.experts.%d.up_proj.weight", i/128, i%128), DType: BF16, Shape: []int64{2048, 1408}})
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := Layout(tensors, nil); err != nil {
			b.Fatal(err)
		}
	}
}
