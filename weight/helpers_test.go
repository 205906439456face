package weight

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/artifact/source"
	"github.com/kvcache-ai/mooncake-go/artifact/source/sourcetest"
	"github.com/kvcache-ai/mooncake-go/store"
)

// memory opens mem:// locations on one Mem, any number of times.
type memory struct{ *sourcetest.Mem }

func (o memory) Open(ctx context.Context, location string) (source.Source, error) {
	s, err := o.Mem.Open(ctx, location)
	return keepOpen{s}, err
}

type keepOpen struct{ source.Source }

func (keepOpen) Close() error { return nil }

// env is a store and its revisions, over a source in memory, that can be reopened.
type env struct {
	t    testing.TB
	mem  *sourcetest.Mem
	opts store.Options
	wo   Options
	m    *Manager
	s    *store.Store
}

func newEnv(t testing.TB, opts store.Options) *env {
	t.Helper()
	if opts.MemoryBytes == 0 {
		opts.MemoryBytes = 64 << 20
	}
	if opts.LeaseTTL == 0 {
		opts.LeaseTTL = 50 * time.Millisecond
	}
	opts.VolatileMemory = opts.Dir != ""
	mux := source.NewMux()
	e := &env{t: t, mem: new(sourcetest.Mem), opts: opts, wo: Options{Sources: mux}}
	mux.Handle("mem", memory{e.mem})
	if opts.Dir != "" {
		needsDirectory(t)
	}
	e.open()
	t.Cleanup(e.close)
	return e
}

// needsDirectory skips a test in a build without RocksDB, which has no directories.
func needsDirectory(t testing.TB) {
	t.Helper()
	s, err := store.Open(context.Background(), store.Options{Dir: t.TempDir(), MemoryBytes: store.MinMemoryBytes, VolatileMemory: true})
	if errors.Is(err, store.ErrUnavailable) {
		t.Skip("this build has no directories")
	}
	require.NoError(t, err)
	require.NoError(t, s.Close())
}

func (e *env) open() {
	e.t.Helper()
	var err error
	e.s, err = store.Open(context.Background(), e.opts)
	require.NoError(e.t, err)
	e.m, err = Open(context.Background(), e.s, e.wo)
	require.NoError(e.t, err)
}

func (e *env) close() {
	e.t.Helper()
	require.NoError(e.t, e.m.Close())
	require.NoError(e.t, e.s.Close())
}

func (e *env) reopen() { e.t.Helper(); e.close(); e.open() }

// put fills the source with a model of two shards of size bytes, its index and its configuration.
func (e *env) put(size int, seed uint64) {
	names := []string{shard1, shard2}
	weightMap := map[string]string{}
	for i, name := range names {
		tensor := fmt.Sprintf("t%d", i)
		weightMap[tensor] = name
		e.mem.Put(name, shard(map[string]int{tensor: size}, seed+uint64(i)))
	}
	index, _ := json.Marshal(map[string]any{"metadata": map[string]int{"total_size": 2 * size}, "weight_map": weightMap})
	e.mem.Put(mainIndex, index)
	e.mem.Put("config.json", []byte(`{}`))
}

const mainIndex = "model.safetensors.index.json"

const shard1, shard2 = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"

func (e *env) request(r Ref) ImportRequest { return ImportRequest{Ref: r, Source: "mem://m"} }

func (e *env) doImport(r Ref) *ImportResult {
	e.t.Helper()
	res, err := e.m.Import(context.Background(), e.request(r))
	require.NoError(e.t, err)
	return res
}

func (e *env) deepOK(r Ref) {
	e.t.Helper()
	rep, err := e.m.Check(context.Background(), r, Deep)
	require.NoError(e.t, err)
	require.NoError(e.t, rep.Err())
	require.True(e.t, rep.OK)
}

// nothing makes sure that no object and no file of the store is left of what a test did.
func (e *env) nothing() {
	e.t.Helper()
	for info, err := range e.s.Objects(context.Background(), "") {
		require.NoError(e.t, err)
		e.t.Errorf("left behind: %q", info.Key)
	}
	u, err := e.s.Usage()
	require.NoError(e.t, err)
	require.Zero(e.t, u.Reserved, "bytes of unfinished puts")
	if e.opts.Dir == "" {
		return
	}
	require.Empty(e.t, files(e.t, filepath.Join(e.opts.Dir, "loads")))
	require.Eventually(e.t, func() bool { return len(ownFiles(e.t, e.opts.Dir)) == 0 }, 5*time.Second, 10*time.Millisecond,
		"files of the SSD tier")
}

// files lists everything below a directory.
func files(t testing.TB, dir string) (out []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if p != dir && err == nil {
			rel, _ := filepath.Rel(dir, p)
			out = append(out, rel)
		}
		return err
	}))
	return out
}

// ownFiles lists the files of the SSD tier that hold one object each.
func ownFiles(t testing.TB, dir string) (out []string) {
	t.Helper()
	for _, f := range files(t, filepath.Join(dir, "ssd")) {
		if strings.HasSuffix(f, ".obj") {
			out = append(out, f)
		}
	}
	return out
}

func sha(p []byte) string {
	sum := sha256.Sum256(p)
	return hex.EncodeToString(sum[:])
}

func names(files []File) (out []string) {
	for _, f := range files {
		out = append(out, f.Name)
	}
	return out
}

func keysOf(t testing.TB, s *store.Store, prefix string) (out []string) {
	t.Helper()
	for info, err := range s.Objects(context.Background(), prefix) {
		require.NoError(t, err)
		out = append(out, info.Key)
	}
	slices.Sort(out)
	return out
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	p, err := os.ReadFile(path)
	require.NoError(t, err)
	return p
}
