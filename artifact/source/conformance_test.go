package source_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/artifact/source"
	"github.com/kvcache-ai/mooncake-go/artifact/source/sourcetest"
)

func TestLocalConformance(t *testing.T) {
	for name, replace := range map[string]func(t *testing.T, path string, data []byte){
		"Rename": func(t *testing.T, path string, data []byte) {
			require.NoError(t, os.WriteFile(path+".new", data, 0o644))
			require.NoError(t, os.Rename(path+".new", path))
		},
		"InPlace": func(t *testing.T, path string, data []byte) {
			old, _ := os.Stat(path)
			require.NoError(t, os.WriteFile(path, data, 0o644))
			if old != nil { // step over the granularity of the file system's clock
				now := old.ModTime().Add(10_000_001)
				require.NoError(t, os.Chtimes(path, now, now))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			sourcetest.Run(t, func(t *testing.T, files map[string][]byte) sourcetest.Instance {
				dir := t.TempDir()
				put := func(t *testing.T, name string, data []byte) {
					p := filepath.Join(dir, name)
					require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o755))
					replace(t, p, data)
				}
				for name, data := range files {
					put(t, name, data)
				}
				s, err := source.NewMux().Open(t.Context(), dir)
				require.NoError(t, err)
				return sourcetest.Instance{Source: s, Put: put, Remove: func(t *testing.T, name string) {
					require.NoError(t, os.Remove(filepath.Join(dir, name)))
				}}
			})
		})
	}
}

func TestMemConformance(t *testing.T) {
	for name, options := range map[string]*sourcetest.Mem{"Plain": {}, "ShortReads": {ShortReads: true}, "HideSizes": {HideSizes: true}} {
		t.Run(name, func(t *testing.T) {
			sourcetest.Run(t, func(t *testing.T, files map[string][]byte) sourcetest.Instance {
				m := &sourcetest.Mem{ShortReads: options.ShortReads, HideSizes: options.HideSizes}
				for name, data := range files {
					m.Put(name, data)
				}
				return sourcetest.Instance{
					Source: m.Source(),
					Put:    func(_ *testing.T, name string, data []byte) { m.Put(name, data) },
					Remove: func(_ *testing.T, name string) { m.Remove(name) },
				}
			})
		})
	}
}

// TestMemFaults tests the fake's own faults, on which other tests stand.
func TestMemFaults(t *testing.T) {
	broken := errors.New("broken")
	data := sourcetest.Bytes(1, 10_000)
	m := &sourcetest.Mem{ShortReads: true}
	m.Put("f", data)
	m.Put("g\x00", nil)
	m.FailAt("f", 5000, broken)
	mux := source.NewMux()
	mux.Handle("mem", m)
	s, err := mux.Open(t.Context(), "mem://x")
	require.NoError(t, err)
	l, err := s.List(t.Context())
	require.NoError(t, err)
	require.Len(t, l.Files, 1)
	require.Len(t, l.Refused, 1)

	read := func(ctx context.Context) ([]byte, error) {
		f, err := s.Open(t.Context(), l.Files[0])
		require.NoError(t, err)
		r, err := f.NewReader(ctx, 0, -1)
		require.NoError(t, err)
		return io.ReadAll(r)
	}
	got, err := read(t.Context())
	require.ErrorIs(t, err, broken)
	require.Equal(t, data[:5000], got, "the bytes before the fault arrive")
	require.EqualValues(t, 5000, m.BytesRead("f"))
	got, err = read(t.Context())
	require.NoError(t, err, "a fault happens once")
	require.True(t, bytes.Equal(data, got))
	require.EqualValues(t, 15000, m.BytesRead("f"))

	ctx, cancel := context.WithCancel(t.Context())
	m.At("f", 100, func() error { cancel(); return nil })
	_, err = read(ctx)
	require.ErrorIs(t, err, context.Canceled)

	m.At("f", 9999, func() error { m.Put("f", data); return nil })
	_, err = read(t.Context())
	require.ErrorIs(t, err, source.ErrChanged)
}

func BenchmarkLocalRead(b *testing.B) {
	const size = 256 << 20
	path := filepath.Join(b.TempDir(), "f")
	require.NoError(b, os.WriteFile(path, make([]byte, size), 0o644))
	s, err := source.NewMux().Open(b.Context(), path)
	require.NoError(b, err)
	defer s.Close()
	info, err := s.Stat(b.Context(), "f")
	require.NoError(b, err)
	buf := make([]byte, 1<<20)
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		f, err := s.Open(b.Context(), info)
		require.NoError(b, err)
		r, err := f.NewReader(b.Context(), 0, -1)
		require.NoError(b, err)
		for err == nil {
			_, err = r.Read(buf)
		}
		require.ErrorIs(b, err, io.EOF)
		f.Close()
	}
}

func BenchmarkPlainRead(b *testing.B) {
	const size = 256 << 20
	path := filepath.Join(b.TempDir(), "f")
	require.NoError(b, os.WriteFile(path, make([]byte, size), 0o644))
	buf := make([]byte, 1<<20)
	b.SetBytes(size)
	for b.Loop() {
		f, err := os.Open(path)
		require.NoError(b, err)
		for err == nil {
			_, err = f.Read(buf)
		}
		f.Close()
	}
}
