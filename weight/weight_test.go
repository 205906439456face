package weight

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store"
)

// shard is a safetensors file with tensors of random bytes.
func shard(tensors map[string]int, seed uint64) []byte {
	header := map[string]any{"__metadata__": map[string]string{"format": "pt"}}
	off := 0
	for _, name := range sortedKeys(tensors) {
		n := tensors[name]
		header[name] = map[string]any{"dtype": "U8", "shape": []int{n}, "data_offsets": []int{off, off + n}}
		off += n
	}
	h, _ := json.Marshal(header)
	h = append(h, bytes.Repeat([]byte{' '}, (8-len(h)%8)%8)...)
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(h)))
	out = append(out, h...)
	data := make([]byte, off)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(data)
	return append(out, data...)
}

func sortedKeys(m map[string]int) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	for i := range keys {
		for j := i + 1; j < len(keys); j++ {
			if keys[j] < keys[i] {
				keys[i], keys[j] = keys[j], keys[i]
			}
		}
	}
	return keys
}

// model writes a small sharded model: two shards of size bytes each, index, config, tokenizer, code, an empty
// file, and one that an import leaves out.
func model(t testing.TB, size int, seed uint64) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name string, p []byte) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), p, 0o644))
	}
	names := []string{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}
	weightMap := map[string]string{}
	for i, name := range names {
		tensors := map[string]int{fmt.Sprintf("layer.%d.a", i): size / 2, fmt.Sprintf("layer.%d.b", i): size - size/2}
		for tensor := range tensors {
			weightMap[tensor] = name
		}
		write(name, shard(tensors, seed+uint64(i)))
	}
	index, _ := json.Marshal(map[string]any{"metadata": map[string]int{"total_size": 2 * size}, "weight_map": weightMap})
	write("model.safetensors.index.json", index)
	write("config.json", []byte(`{"architectures":["Test"]}`))
	write("tokenizer.json", []byte(`{"vocab":"`+strings.Repeat("t", 3000)+`"}`))
	write("merges.txt", nil)
	write("pytorch_model.bin", []byte("other format"))
	write("stray.safetensors", shard(map[string]int{"x": 4}, 9))
	write("README.md", []byte("read me"))
	write("modeling.py", []byte("print()"))
	return dir
}

func openTest(t testing.TB, opts store.Options) (*Manager, *store.Store) {
	t.Helper()
	if opts.Dir != "" {
		needsDirectory(t)
	}
	if opts.MemoryBytes == 0 {
		opts.MemoryBytes = 64 << 20
	}
	s, err := store.Open(context.Background(), opts)
	require.NoError(t, err)
	m, err := Open(context.Background(), s, Options{})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, m.Close())
		require.NoError(t, s.Close())
	})
	return m, s
}

var ref = Ref{"org/model", "1"}

func TestImportLoad(t *testing.T) {
	ctx := context.Background()
	for name, opts := range map[string]store.Options{
		"memory": {}, "directory": {Dir: t.TempDir(), VolatileMemory: true},
	} {
		t.Run(name, func(t *testing.T) {
			m, s := openTest(t, opts)
			src := model(t, 3<<20, 1)
			r, err := m.Import(ctx, ImportRequest{Ref: ref, Source: src})
			require.NoError(t, err)
			require.Equal(t, 9, len(r.Manifest.Files), r.Manifest.Files)
			var left []string
			for _, s := range r.Skipped {
				left = append(left, s.Name)
			}
			require.Equal(t, "pytorch_model.bin", strings.Join(left, " "))

			rep, err := m.Check(ctx, ref, Deep)
			require.NoError(t, err)
			require.NoError(t, rep.Err())

			l, err := m.Load(ctx, ref, nil)
			require.NoError(t, err)
			entries, err := os.ReadDir(l.Dir())
			require.NoError(t, err)
			require.Len(t, entries, 9)
			for _, e := range entries {
				want, err := os.ReadFile(filepath.Join(src, e.Name()))
				require.NoError(t, err)
				got, err := os.ReadFile(filepath.Join(l.Dir(), e.Name()))
				require.NoError(t, err)
				require.True(t, bytes.Equal(want, got), e.Name())
			}
			err = m.Delete(ctx, ref)
			require.ErrorIs(t, err, ErrInUse)
			require.ErrorContains(t, err, fmt.Sprintf("pid %d", os.Getpid()))
			dir := l.Dir()
			require.NoError(t, l.Close())
			require.NoDirExists(t, dir)

			again, err := m.Import(ctx, ImportRequest{Ref: ref, Source: src})
			require.NoError(t, err)
			require.True(t, again.Existed)

			buf := make([]byte, 3<<20)
			n, err := m.ReadTensor(ctx, ref, "layer.1.b", buf)
			require.NoError(t, err)
			require.Equal(t, 3<<20-3<<20/2, n)

			two, err := m.Import(ctx, ImportRequest{Ref: Ref{"org/model", "2"}, Source: src})
			require.NoError(t, err)
			require.Equal(t, 2, two.Linked)
			require.NoError(t, m.Delete(ctx, ref))
			rep, err = m.Check(ctx, Ref{"org/model", "2"}, Deep)
			require.NoError(t, err)
			require.NoError(t, rep.Err())
			require.NoError(t, m.Delete(ctx, Ref{"org/model", "2"}))
			u, err := s.Usage()
			require.NoError(t, err)
			require.Equal(t, [store.Types]int64{}, u.Objects)
		})
	}
}
