package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// pythonEnv names a Python that has the packages safetensors (0.8.0) and numpy.
const pythonEnv = "MOONCAKE_SAFETENSORS_PYTHON"

// compareSeed makes the files of the comparison.
const compareSeed = 8

// verdict is what the reference implementation says about a file.
type verdict struct {
	File     string
	Error    string
	Metadata map[string]string
	Tensors  map[string]pyTensor
}

// pyTensor is [dtype, shape, data as hex] in the driver's output.
type pyTensor struct {
	DType string
	Shape []uint64
	Data  string
}

func (p *pyTensor) UnmarshalJSON(b []byte) error {
	return json.Unmarshal(b, &[]any{&p.DType, &p.Shape, &p.Data})
}

// compare runs the driver.
func compare(t *testing.T, args ...string) []byte {
	t.Helper()
	python := os.Getenv(pythonEnv)
	if python == "" {
		t.Skipf("%s does not name a Python with the packages safetensors and numpy", pythonEnv)
	}
	cmd := exec.CommandContext(t.Context(), python, append([]string{"testdata/compare.py"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s", cmd)
	return out
}

// TestCompareWithPython makes random files, good and broken, and asks both implementations.
func TestCompareWithPython(t *testing.T) {
	if os.Getenv(pythonEnv) == "" {
		compare(t)
	}
	rng := rand.New(rand.NewPCG(compareSeed, 0))
	dir, files := t.TempDir(), map[string][]byte{}
	for i := range 3000 {
		b := randomFile(t, rng)
		switch i % 3 {
		case 1:
			b = breakText(rng, b)
		case 2:
			b = breakBytes(rng, b)
		}
		name := fmt.Sprintf("%05d.st", i)
		files[name] = b
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), b, 0o644))
	}
	both, neither, stricter := 0, 0, 0
	for line := range bytes.Lines(compare(t, "read", dir)) {
		var v verdict
		require.NoError(t, json.Unmarshal(line, &v))
		b := files[v.File]
		delete(files, v.File)
		h, err := read(b)
		switch {
		case err != nil && v.Error != "":
			neither++
		case err != nil:
			require.True(t, deliberate(err), "only Python reads %q: %v", b, err)
			stricter++
		default:
			require.Empty(t, v.Error, "only Go reads %q", b)
			sameAsPython(t, b, h, v)
			both++
		}
	}
	require.Empty(t, files, "Python said nothing about these")
	t.Logf("seed %d: both read %d, neither %d, Python alone %d, for the reasons that the package names", compareSeed, both, neither, stricter)
	require.Greater(t, both, 1000)
	require.Greater(t, neither, 300)
}

// deliberate says whether an error is one of the differences that the package's documentation lists.
func deliberate(err error) bool {
	text := err.Error()
	for _, reason := range []string{
		"duplicate key", "unknown field", `__metadata__: byte`, `byte 0: want '{'`, "overflows",
		`want '{'`, `want '"'`, // a tensor as an array, a dtype as an object
	} {
		if strings.Contains(text, reason) {
			return true
		}
	}
	return false
}

func sameAsPython(t *testing.T, b []byte, h *Header, v verdict) {
	t.Helper()
	require.Equal(t, v.Metadata, h.Metadata, "%q", b)
	require.Len(t, h.Tensors, len(v.Tensors), "%q", b)
	for name, want := range v.Tensors {
		got, ok := h.Tensor(name)
		require.True(t, ok, "%q in %q", name, b)
		require.Equal(t, want.DType, got.DType.String())
		require.Len(t, got.Shape, len(want.Shape))
		for i := range want.Shape {
			require.Equal(t, want.Shape[i], uint64(got.Shape[i]))
		}
		require.Equal(t, want.Data, hex.EncodeToString(tensorBytes(t, b, h, name)), "%q in %q", name, b)
	}
}

func randomFile(t *testing.T, rng *rand.Rand) []byte {
	tensors, data := randomTensors(rng, rng.IntN(6))
	opts := &WriteOptions{NoFormat: rng.IntN(2) == 0}
	if rng.IntN(2) == 0 {
		opts.Metadata = map[string]string{"é\"": "\\\n", "k": ""}
	}
	var b bytes.Buffer
	_, err := Write(&b, tensors, opts, Bytes(data))
	require.NoError(t, err)
	return b.Bytes()
}

// breakText changes one place of the header's JSON and corrects the length.
func breakText(rng *rand.Rand, b []byte) []byte {
	n := binary.LittleEndian.Uint64(b)
	text, data := string(b[8:8+n]), b[8+n:]
	changes := [][2]string{
		{"}", ",}"}, {"}", "} "}, {"{", " {"}, {":", "::"}, {`"dtype"`, `"dtypes"`}, {`"shape":[`, `"shape":[1,`}, {`"shape":[`, `"shape":[0,`},
		{`"shape":[`, `"shape":[2,`}, {`"shape":[`, `"shape":[-1,`}, {`"shape":[`, `"shape":[1.0,`}, {`"shape":[`, `"shape":[1e0,`}, {`"shape":[`, `"shape":[01,`},
		{`"shape":[`, `"shape":[18446744073709551615,`}, {`"shape":[`, `"shape":[4611686018427387904,`}, {`"shape":[`, `"shape":[ 1 , `},
		{`"dtype":`, `"x":{},"dtype":`}, {`"dtype":`, `"dtype":"U8","dtype":`}, {`"dtype":"`, `"dtype":"F`}, {`"data_offsets":[`, `"data_offsets":[1,`},
		{`"data_offsets":[0,`, `"data_offsets":[1,`}, {`"data_offsets":[0,`, `"data_offsets":[-0,`}, {`]}`, `0]}`}, {`]}`, `]},"dup":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`},
		{`{"`, `{"e":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"`}, {`{"`, `{"__metadata__":null,"`}, {`{"`, `{"__metadata__":{"a":"1","a":"2"},"`},
		{`{"`, `{"__metadata__":{"a":1},"`}, {`{"`, `{"\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"`}, {`{"`, `{"t":["U8",[0],[0,0]],"`},
		{`{"`, `{"t":{"dtype":{"U8":null},"shape":[0],"data_offsets":[0,0]},"`}, {`{"`, `{"\u0041\ud83d\ude00":{"shape":[0],"data_offsets":[0,0],"dtype":"U8"},"`},
		{"F32", "I32"}, {"F64", "F4"}, {"U8", "F6_E2M3"}, {"I8", "BOOL"}, {" ", "\n"}, {" ", "\x00"}, {"{", "["},
	}
	c := changes[rng.IntN(len(changes))]
	text = strings.Replace(text, c[0], c[1], 1+rng.IntN(2))
	return file(text, data...)
}

// breakBytes flips, removes or adds bytes anywhere, the length and the data included.
func breakBytes(rng *rand.Rand, b []byte) []byte {
	i := rng.IntN(len(b))
	switch rng.IntN(5) {
	case 0:
		return b[:i]
	case 1:
		return append(b, byte(rng.Uint32()))
	case 2:
		return append(b[:i], b[i+1:]...)
	case 3:
		b[i] ^= 1 << rng.IntN(8)
		return b
	}
	b[i] = "\x00\xff\"{}[],:0129 \\"[rng.IntN(15)]
	return b
}

// TestReadWhatPythonWrites also writes the same tensors and compares the bytes of the files.
func TestReadWhatPythonWrites(t *testing.T) {
	dir := t.TempDir()
	const count = 300
	compare(t, "write", dir, fmt.Sprint(count), fmt.Sprint(compareSeed))
	for i := range count {
		b, err := os.ReadFile(filepath.Join(dir, fmt.Sprint(i, ".st")))
		require.NoError(t, err)
		about, err := os.ReadFile(filepath.Join(dir, fmt.Sprint(i, ".json")))
		require.NoError(t, err)
		var v verdict
		require.NoError(t, json.Unmarshal(about, &v))
		h, err := read(b)
		require.NoError(t, err, "%q", b)
		sameAsPython(t, b, h, v)

		data := map[string][]byte{}
		for _, x := range h.Tensors {
			data[x.Name] = tensorBytes(t, b, h, x.Name)
		}
		var out bytes.Buffer
		_, err = Write(&out, h.Tensors, &WriteOptions{Metadata: h.Metadata, NoFormat: true}, Bytes(data))
		require.NoError(t, err)
		require.Equal(t, b, out.Bytes(), "file %d: Python and Go write the same bytes", i)
	}
	b, err := os.ReadFile(filepath.Join(dir, "values.safetensors"))
	require.NoError(t, err)
	h, err := read(b)
	require.NoError(t, err)
	require.Equal(t, []byte{0, 0, 0x80, 0x3f}, tensorBytes(t, b, h, "f32"), "pitfall B13")
	require.Equal(t, []byte{1, 0, 0, 0, 0, 0, 0, 0}, tensorBytes(t, b, h, "i64"))
	require.Equal(t, []byte{0, 0, 3, 0, 1, 0, 4, 0, 2, 0, 5, 0}, tensorBytes(t, b, h, "t"))
}
