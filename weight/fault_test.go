package weight

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/artifact/safetensors"
	"github.com/kvcache-ai/mooncake-go/artifact/source"
	"github.com/kvcache-ai/mooncake-go/artifact/source/sourcetest"
	"github.com/kvcache-ai/mooncake-go/store"
)

const mib = 1 << 20

// TestBadSources imports what is not a model. Each is refused with an error that says what is wrong, before anything
// was stored.
func TestBadSources(t *testing.T) {
	good := shard(map[string]int{"t1": 2 * mib}, 2)
	lie := func(n uint64) []byte { return append(binary.LittleEndian.AppendUint64(nil, n), good[8:]...) }
	pointer := []byte("version https://git-lfs.github.com/spec/v1\noid sha256:" + strings.Repeat("ab", 32) + "\nsize 123456789\n")
	for name, c := range map[string]struct {
		break_ func(m *sourcetest.Mem)
		is     error
		says   string
	}{
		"truncated shard":        {func(m *sourcetest.Mem) { m.Put(shard2, good[:len(good)-1]) }, safetensors.ErrTruncated, shard2},
		"trailing byte":          {func(m *sourcetest.Mem) { m.Put(shard2, append(good[:len(good):len(good)], 0)) }, safetensors.ErrTrailing, shard2},
		"header of 2^63":         {func(m *sourcetest.Mem) { m.Put(shard2, lie(1<<63)) }, safetensors.ErrInvalid, shard2},
		"header longer than all": {func(m *sourcetest.Mem) { m.Put(shard2, lie(uint64(len(good)))) }, safetensors.ErrInvalid, shard2},
		"empty shard":            {func(m *sourcetest.Mem) { m.Put(shard2, nil) }, safetensors.ErrTruncated, shard2},
		"LFS pointer as shard":   {func(m *sourcetest.Mem) { m.Put(shard2, pointer) }, safetensors.ErrLFSPointer, "123456789"},
		"LFS pointer as tokenizer": {func(m *sourcetest.Mem) { m.Put("tokenizer.json", pointer) }, safetensors.ErrLFSPointer,
			"tokenizer.json"},
		"LFS pointer as index":      {func(m *sourcetest.Mem) { m.Put(mainIndex, pointer) }, safetensors.ErrLFSPointer, mainIndex},
		"index names missing shard": {func(m *sourcetest.Mem) { m.Remove(shard2) }, safetensors.ErrMissingShard, shard2},
		"index names missing tensor": {func(m *sourcetest.Mem) {
			m.Put(shard2, shard(map[string]int{"other": 2 * mib}, 2))
		}, safetensors.ErrMissingTensor, "t1"},
		"tensor in two shards": {func(m *sourcetest.Mem) {
			m.Put(shard2, shard(map[string]int{"t0": 10, "t1": 2 * mib}, 2))
		}, safetensors.ErrDuplicateTensor, "t0"},
		"index leads out": {func(m *sourcetest.Mem) {
			m.Put(mainIndex, []byte(`{"weight_map":{"t0":"../x.safetensors"}}`))
		}, safetensors.ErrShardPath, "../x"},
		"index is no JSON": {func(m *sourcetest.Mem) { m.Put(mainIndex, []byte(`{`)) }, safetensors.ErrIndex, mainIndex},
		"empty model": {func(m *sourcetest.Mem) {
			for _, f := range []string{shard1, shard2, mainIndex, "config.json"} {
				m.Remove(f)
			}
		}, ErrSource, "no weights"},
		"no weights": {func(m *sourcetest.Mem) {
			for _, f := range []string{shard1, shard2, mainIndex} {
				m.Remove(f)
			}
		}, ErrSource, "no weights"},
		"no tensors": {func(m *sourcetest.Mem) {
			m.Remove(mainIndex)
			m.Remove(shard2)
			m.Put(shard1, shard(nil, 1))
		}, ErrSource, "no tensor"},
		"control character": {func(m *sourcetest.Mem) { m.Put("a\nb.json", []byte("{}")) }, ErrSource, "control"},
		"name of 300 bytes": {func(m *sourcetest.Mem) { m.Put(strings.Repeat("n", 300)+".json", []byte("{}")) }, ErrSource, "255"},
		"file and directory": {func(m *sourcetest.Mem) {
			m.Put("x.safetensors", shard(map[string]int{"a": 1}, 1))
			m.Put("x.safetensors/y.safetensors", shard(map[string]int{"b": 1}, 1))
			m.Put(mainIndex, []byte(`{"weight_map":{"a":"x.safetensors","b":"x.safetensors/y.safetensors"}}`))
		}, ErrSource, "directory"},
		"torch index names missing shard": {func(m *sourcetest.Mem) {
			for _, f := range []string{shard1, shard2, mainIndex} {
				m.Remove(f)
			}
			m.Put("pytorch_model-00001-of-00002.bin", []byte("weights"))
			m.Put("pytorch_model.bin.index.json",
				[]byte(`{"weight_map":{"a":"pytorch_model-00001-of-00002.bin","b":"pytorch_model-00002-of-00002.bin"}}`))
		}, ErrSource, "pytorch_model-00002-of-00002.bin"},
		"unknown sizes": {func(m *sourcetest.Mem) { m.HideSizes = true }, ErrSource, "size"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, store.Options{MemoryBytes: 32 * mib})
			e.put(2*mib, 1)
			c.break_(e.mem)
			_, err := e.m.Import(context.Background(), e.request(ref))
			require.Error(t, err)
			require.ErrorIs(t, err, c.is, "%v", err)
			require.ErrorContains(t, err, c.says)
			require.ErrorContains(t, err, ref.String())
			_, err = e.m.Manifest(context.Background(), ref)
			require.ErrorIs(t, err, ErrNotFound)
			e.nothing()
		})
	}
}

// TestSourceChanges changes the source in the middle of the import: of a large file, a small one, while headers are
// read. The import fails and says which file; the revision is not there; when the source stands still it goes on.
func TestSourceChanges(t *testing.T) {
	for name, c := range map[string]struct {
		file string
		at   int64
		do   func(m *sourcetest.Mem) error
		is   error
	}{
		"large file changes":  {shard2, 1 << 20, func(m *sourcetest.Mem) error { m.Put(shard2, shard(map[string]int{"t1": 2 * mib}, 9)); return nil }, source.ErrChanged},
		"large file shrinks":  {shard2, 1 << 20, func(m *sourcetest.Mem) error { m.Put(shard2, []byte("x")); return nil }, source.ErrChanged},
		"large file vanishes": {shard2, 1 << 20, func(m *sourcetest.Mem) error { m.Remove(shard2); return nil }, source.ErrChanged},
		"another vanishes":    {shard1, 4, func(m *sourcetest.Mem) error { m.Remove("config.json"); return nil }, source.ErrNotFound},
		"small file changes":  {"config.json", 1, func(m *sourcetest.Mem) error { m.Put("config.json", []byte("{ }")); return nil }, source.ErrChanged},
		"read fails":          {shard2, 1 << 20, func(*sourcetest.Mem) error { return io.ErrNoProgress }, io.ErrNoProgress},
		"header read fails":   {shard2, 4, func(*sourcetest.Mem) error { return io.ErrNoProgress }, io.ErrNoProgress},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, store.Options{MemoryBytes: 32 * mib})
			e.put(2*mib, 1)
			e.mem.ShortReads = true
			e.mem.At(c.file, c.at, func() error { return c.do(e.mem) })
			_, err := e.m.Import(context.Background(), e.request(ref))
			require.ErrorIs(t, err, c.is, "%v", err)
			if name != "another vanishes" {
				require.ErrorContains(t, err, c.file)
			}
			_, err = e.m.Load(context.Background(), ref, nil)
			require.True(t, errors.Is(err, ErrNotFound) || errors.Is(err, ErrNotReady), "%v", err)
			e.put(2*mib, 1)
			e.doImport(ref)
			e.deepOK(ref)
			require.NoError(t, e.m.Delete(context.Background(), ref))
			e.nothing()
		})
	}
}

func TestDigestOfSource(t *testing.T) {
	f := source.Info{Name: "x", Size: 1, Digest: source.Digest{Algorithm: "sha256", Hex: strings.Repeat("0", 64)}}
	require.ErrorIs(t, checkDigest(f, sha([]byte{1})), ErrSource)
	f.Digest.Hex = sha([]byte{1})
	require.NoError(t, checkDigest(f, sha([]byte{1})))
}

// TestRemarkableModels imports what is odd but right.
func TestRemarkableModels(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, store.Options{Dir: t.TempDir()})
	e.put(2*mib, 1)
	e.mem.Put("Config.json", []byte(`{"upper":1}`))
	e.mem.Put("caf\u00e9.json", []byte("1")) // NFC
	e.mem.Put("cafe\u0301.json", []byte("2"))
	e.mem.Put("a:b.json", []byte("3"))
	e.mem.Put("a%3Ab.json", []byte("4"))
	e.mem.Put("manifest", []byte("5"))
	e.mem.Put("record", []byte("6"))
	e.mem.Put("empty.json", nil)
	e.mem.Put("empty.txt", nil)
	e.mem.Put("sub/dir/deep.json", []byte("7"))
	for _, model := range []string{"org/m", "a:b", "a%3Ab", "模型/größe", "my model", "m:file:x", strings.Repeat("m", MaxModelBytes)} {
		r := Ref{model, "r%:1"}
		q := e.request(r)
		q.Include, q.Exclude = []string{"manifest", "record", "sub/dir/*"}, []string{"empty.txt"}
		res, err := e.m.Import(ctx, q)
		require.NoError(t, err, model)
		require.Len(t, res.Manifest.Files, 13, names(res.Manifest.Files))
		e.deepOK(r)
		l, err := e.m.Load(ctx, r, nil)
		require.NoError(t, err)
		require.Len(t, files(t, l.Dir()), 15)
		for name, want := range map[string]string{"Config.json": `{"upper":1}`, "config.json": "{}", "caf\u00e9.json": "1", "cafe\u0301.json": "2",
			"a:b.json": "3", "a%3Ab.json": "4", "manifest": "5", "record": "6", "empty.json": "", "sub/dir/deep.json": "7"} {
			require.Equal(t, want, string(read(t, filepath.Join(l.Dir(), name))), name)
		}
		require.NoError(t, l.Close())
	}
	all, err := e.m.List(ctx, "")
	require.NoError(t, err)
	require.Len(t, all, 7)
	for _, s := range all {
		require.NoError(t, e.m.Delete(ctx, s.Ref))
	}
	e.reopen()
	e.nothing()
}

// TestManyFiles imports a model of 10 000 files, more of them than memory has room for.
func TestManyFiles(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	e := newEnv(t, store.Options{Dir: t.TempDir(), MemoryBytes: 32 * mib})
	const n = 10_000
	for i := range n {
		e.mem.Put(fmt.Sprintf("model-%05d.safetensors", i), shard(map[string]int{fmt.Sprintf("t%d", i): 4000 + i%1000}, uint64(i)))
	}
	e.mem.Put("big.safetensors", shard(map[string]int{"big": 2 * mib}, 1))
	res := e.doImport(ref)
	require.Len(t, res.Manifest.Files, n+1)
	require.Len(t, keysOf(t, e.s, ref.group()), n+2)
	e.deepOK(ref)
	tensors, err := e.m.Tensors(ctx, ref)
	require.NoError(t, err)
	require.Len(t, tensors, n+1)
	e.reopen()
	l, err := e.m.Load(ctx, ref, nil)
	require.NoError(t, err)
	entries, err := os.ReadDir(l.Dir())
	require.NoError(t, err)
	require.Len(t, entries, n+1)
	require.NoError(t, l.Close())
	require.NoError(t, e.m.Delete(ctx, ref))
	require.Empty(t, keysOf(t, e.s, ""))
	require.Empty(t, files(t, e.m.loadRoot))
}

// TestSmallFilesBeyondMemory imports more bytes of small files than memory can hold.
func TestSmallFilesBeyondMemory(t *testing.T) {
	e := newEnv(t, store.Options{Dir: t.TempDir(), MemoryBytes: 16 * mib})
	for i := range 60 {
		e.mem.Put(fmt.Sprintf("model-%05d.safetensors", i), shard(map[string]int{fmt.Sprintf("t%d", i): mib - 1000}, uint64(i)))
	}
	e.doImport(ref)
	e.deepOK(ref)
	e.reopen()
	e.deepOK(ref)
}

// TestNoRoom refuses before anything is written and names the number that is missing.
func TestNoRoom(t *testing.T) {
	for name, opts := range map[string]store.Options{
		"memory": {MemoryBytes: 16 * mib}, "directory": {Dir: t.TempDir(), MemoryBytes: 16 * mib, SSDBytes: 20 * mib},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, opts)
			e.put(15*mib, 1)
			room := func() int64 {
				free, evictable, err := e.s.Room(map[bool]store.Tier{true: store.TierSSD, false: store.TierMemory}[opts.Dir != ""])
				require.NoError(t, err)
				return free + evictable
			}
			var need int64
			l, err := memory{e.mem}.Open(context.Background(), "")
			require.NoError(t, err)
			list, err := l.List(context.Background())
			require.NoError(t, err)
			for _, f := range list.Files {
				need += f.Size
			}
			before := room()
			_, err = e.m.Import(context.Background(), e.request(ref))
			require.ErrorIs(t, err, ErrNoRoom)
			require.ErrorIs(t, err, store.ErrNoSpace)
			require.ErrorContains(t, err, fmt.Sprintf("%d are missing", need-before))
			e.nothing()
			require.Less(t, e.mem.BytesRead(shard1), int64(mib), "bytes read of a model that can't fit")
			e.put(4*mib, 1)
			e.doImport(ref)
			e.deepOK(ref)
		})
	}
}

// TestOtherBytes refuses to change a revision and names the first file that differs.
func TestOtherBytes(t *testing.T) {
	e := newEnv(t, store.Options{MemoryBytes: 32 * mib})
	e.put(2*mib, 1)
	e.mem.Put("a.json", []byte("1"))
	first := e.doImport(ref)
	again := e.doImport(ref)
	require.True(t, again.Existed)
	require.Equal(t, first.Manifest, again.Manifest)
	refused := func(file string) {
		t.Helper()
		_, err := e.m.Import(context.Background(), e.request(ref))
		require.ErrorIs(t, err, ErrDifferent)
		require.ErrorContains(t, err, fmt.Sprintf("%q", file))
		man, err := e.m.Manifest(context.Background(), ref)
		require.NoError(t, err)
		require.Equal(t, first.Manifest, man)
		e.deepOK(ref)
	}
	e.mem.Put(shard2, shard(map[string]int{"t1": 2 * mib}, 77))
	refused(shard2)
	e.mem.Put("config.json", []byte("{ }")) // by its size, and before the shard by name
	refused("config.json")
	e.mem.Put("a.json", []byte("2")) // by its bytes, and before the one that differs by size
	refused("a.json")
	e.put(2*mib, 1)
	e.mem.Put("a.json", []byte("1"))
	e.mem.Put("more.json", []byte("1"))
	refused("more.json")
	e.mem.Remove("more.json")
	e.mem.Remove("a.json")
	refused("a.json")
}
