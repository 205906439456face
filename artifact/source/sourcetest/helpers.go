package sourcetest

import (
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/artifact/source"
)

// Bytes returns n bytes that depend on the seed alone.
func Bytes(seed uint64, n int) []byte {
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	b := make([]byte, n)
	rand.NewChaCha8(key).Read(b)
	return b
}

// BadNames returns names that no source takes.
func BadNames() []string {
	return []string{
		"", "/", "/a", "a/", ".", "..", "../a", "../../etc/passwd", "a/..", "a/../../x", "sub/../a", "./a", "a//b", "a\x00b", "\xff",
		"sub/\xc3", strings.Repeat("x", source.MaxNameBytes+1), strings.Repeat("d/", source.MaxDepth) + "f",
	}
}

func openFile(t *testing.T, s source.Source, name string) source.File {
	t.Helper()
	info, err := s.Stat(t.Context(), name)
	require.NoError(t, err)
	f, err := s.Open(t.Context(), info)
	require.NoError(t, err)
	return f
}

func readAll(t *testing.T, s source.Source, info source.Info) []byte {
	t.Helper()
	f, err := s.Open(t.Context(), info)
	require.NoError(t, err)
	r, err := f.NewReader(t.Context(), 0, -1)
	require.NoError(t, err)
	got, err := drain(r, 1<<16)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	require.NoError(t, f.Close())
	return got
}

// drain reads to the end with a buffer of size bytes.
func drain(r io.Reader, size int) ([]byte, error) {
	out, buf := []byte{}, make([]byte, size)
	for {
		n, err := r.Read(buf)
		out = append(out, buf[:n]...)
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return out, err
		}
	}
}

func isAny(err error, targets ...error) bool {
	for _, t := range targets {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}
