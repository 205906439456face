//go:build cgo && !norocksdb

package store

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store/internal/catalog"
)

// crashDir is a directory on the real file system with a store's files in it.
func crashDir(t *testing.T, keys int) Options {
	opts := crashOptions()
	opts.Dir, opts.ShmDir = t.TempDir(), crashShmDir(t)
	s, err := Open(context.Background(), opts)
	require.NoError(t, err)
	for i := range keys {
		require.NoError(t, s.Put(context.Background(), fmt.Sprint(i), random(3000+i), durably()))
	}
	require.NoError(t, s.Close())
	return opts
}

func checkCrashDir(t *testing.T, opts Options, keys int) {
	t.Helper()
	s, err := Open(context.Background(), opts)
	require.NoError(t, err)
	for i := range keys {
		wantWhole(t, s, fmt.Sprint(i), random(3000+i))
	}
	require.NoError(t, s.Close())
}

// snapshot is the content of all files below dirs, the log of RocksDB's messages and its lock excepted.
func snapshot(t *testing.T, dirs ...string) map[string]string {
	files := map[string]string{}
	for _, dir := range dirs {
		require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || strings.HasPrefix(d.Name(), "LOG") || d.Name() == "LOCK" {
				return err
			}
			f, err := os.Open(path)
			require.NoError(t, err)
			h := xxhash.New()
			n, err := io.CopyN(h, f, 8<<20) // a segment is mostly hole, and has its metadata at the start
			if err == io.EOF {
				err = nil
			}
			files[path] = fmt.Sprintf("%d %x", n, h.Sum64())
			_ = f.Close()
			return err
		}))
	}
	return files
}

// patch changes a file and returns what undoes it.
func patch(t *testing.T, path string, change func([]byte)) (undo func()) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	was := make([]byte, 4096)
	_, err = f.ReadAt(was, 0)
	require.NoError(t, err)
	now := slices.Clone(was)
	change(now)
	_, err = f.WriteAt(now, 0)
	require.NoError(t, err)
	return func() {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		require.NoError(t, err)
		_, err = f.WriteAt(was, 0)
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
}

// sealBlock makes the checksum at the end of a block right.
func sealBlock(p []byte) {
	binary.LittleEndian.PutUint64(p[4088:], xxhash.Sum64(p[:4088]))
}

// TestNewerFormat has files of a version to come: each is refused by name and nothing of its kind is changed.
func TestNewerFormat(t *testing.T) {
	const keys = 5
	opts := crashDir(t, keys)
	tier := filepath.Join(opts.Dir, tierDir)
	glob := func(pattern string) string {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
		return found[0]
	}
	version := func(p []byte) { binary.LittleEndian.PutUint16(p[4:], 9); sealBlock(p) }
	for _, c := range []struct {
		name, path string
		change     func([]byte)
	}{
		{"tier", filepath.Join(tier, "TIER"), version},
		{"container", glob(filepath.Join(tier, "*.log")), version},
		{"segment", glob(filepath.Join(opts.ShmDir, "*", "segment")), func(p []byte) {
			binary.LittleEndian.PutUint32(p[8:], 9)
			sealBlock(p)
		}},
	} {
		undo := patch(t, c.path, c.change)
		dirs := []string{tier}
		if c.name == "segment" {
			dirs = append(dirs, opts.ShmDir)
		}
		before := snapshot(t, dirs...)
		for range 2 {
			_, err := Open(context.Background(), opts)
			require.ErrorIs(t, err, ErrNewerFormat, c.name)
			require.Equal(t, before, snapshot(t, dirs...), c.name)
		}
		undo()
		checkCrashDir(t, opts, keys)
	}
	catalogue, good := filepath.Join(opts.Dir, catalogueDir), filepath.Join(t.TempDir(), "good")
	require.NoError(t, os.CopyFS(good, os.DirFS(catalogue)))
	rocksPut(t, opts, []byte("mformat"), []byte{9, 0, 0, 0})
	before := snapshot(t, opts.Dir, opts.ShmDir)
	for range 2 {
		_, err := Open(context.Background(), opts)
		require.ErrorIs(t, err, ErrNewerFormat, "catalogue")
		require.Equal(t, before, snapshot(t, opts.Dir, opts.ShmDir), "catalogue")
	}
	require.NoError(t, os.RemoveAll(catalogue))
	require.NoError(t, os.CopyFS(catalogue, os.DirFS(good)))
	checkCrashDir(t, opts, keys)

	// One record of a version to come: the tier's space for it must not be taken for free.
	rocksPut(t, opts, append([]byte("o\x00newer"), 0, 0, 0, 0, 0, 0, 0, 9), append([]byte{9}, make([]byte, 40)...))
	before = snapshot(t, tier)
	_, err := Open(context.Background(), opts)
	require.ErrorIs(t, err, ErrNewerFormat, "record")
	require.Equal(t, before, snapshot(t, tier))
}

// rocksPut writes a value with its checksum into the catalogue behind its back.
func rocksPut(t *testing.T, opts Options, key, value []byte) {
	c, err := catalog.Open(filepath.Join(opts.Dir, catalogueDir))
	require.NoError(t, err)
	var b catalog.Batch
	b.PutStored(key, value)
	require.NoError(t, c.Apply(&b, true))
	require.NoError(t, c.Close())
}

// TestDamagedTable flips a bit in the catalogue's table, so that a part of it can't be read: nothing may be taken for
// gone that was not seen.
func TestDamagedTable(t *testing.T) {
	const keys = 2000
	opts := crashDir(t, keys)
	checkCrashDir(t, opts, 1) // opening it writes the log into a table
	tables, err := filepath.Glob(filepath.Join(opts.Dir, catalogueDir, "*.sst"))
	require.NoError(t, err)
	require.NotEmpty(t, tables)
	p, err := os.ReadFile(tables[0])
	require.NoError(t, err)
	refused := 0
	before := snapshot(t, filepath.Join(opts.Dir, tierDir))
	for _, at := range []int{len(p) / 4, len(p) / 2, len(p) * 3 / 4} {
		bad := slices.Clone(p)
		bad[at] ^= 4
		require.NoError(t, os.WriteFile(tables[0], bad, 0o644))
		s, err := Open(context.Background(), opts)
		if err == nil {
			require.NoError(t, s.Close())
			continue
		}
		require.ErrorIs(t, err, ErrCorrupt)
		refused++
		require.Equal(t, before, snapshot(t, filepath.Join(opts.Dir, tierDir)))
	}
	require.Positive(t, refused)
	require.NoError(t, os.WriteFile(tables[0], p, 0o644))
	checkCrashDir(t, opts, keys)
}

// TestTornCatalogue damages RocksDB's newest log after a crash. Damage behind what was synced is what a machine leaves that
// lost its power: the store opens with all that was promised. Damage of what was synced is refused by name, never a shorter
// history.
func TestTornCatalogue(t *testing.T) {
	seed := *crashSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 3))
	opts := crashDir(t, 0)
	killed := filepath.Join(t.TempDir(), "killed")
	synced := tornHistory(t, opts, killed)
	log := func(dir string) string {
		logs, err := filepath.Glob(filepath.Join(dir, catalogueDir, "*.log"))
		require.NoError(t, err)
		return slices.Max(logs)
	}
	opened, refused, rounds := 0, 0, 24
	if testing.Short() {
		rounds = 8
	}
	for round := range rounds {
		copied := opts
		copied.Dir, copied.ShmDir = filepath.Join(t.TempDir(), "copy"), crashShmDir(t)
		require.NoError(t, os.CopyFS(copied.Dir, os.DirFS(killed)))
		path := log(copied.Dir)
		p, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Greater(t, len(p), synced)
		at := rng.IntN(synced)
		if round%2 == 0 {
			at = synced + rng.IntN(len(p)-synced)
		}
		switch round / 2 % 4 {
		case 0:
			p = p[:at]
		case 1:
			clear(p[at:])
		case 2:
			for i := range p[at:] {
				p[at+i] = byte(rng.Uint32())
			}
		case 3:
			p[at] ^= 1 << rng.IntN(8)
		}
		require.NoError(t, os.WriteFile(path, p, 0o644))
		before := snapshot(t, copied.Dir)
		s, err := Open(context.Background(), copied)
		if at < synced {
			require.ErrorIs(t, err, ErrCorrupt, "seed %d round %d at %d", seed, round, at)
			require.ErrorContains(t, err, filepath.Base(path))
			require.Equal(t, before, snapshot(t, copied.Dir), "a refused directory was changed")
			refused++
			continue
		}
		require.NoError(t, err, "seed %d round %d at %d", seed, round, at)
		tornCheck(t, s)
		require.NoError(t, s.Close())
		opened++
	}
	require.Equal(t, opened, refused)
}

const tornKeys = 40

// tornHistory makes durable objects, some of which were replaced and removed, then changes that are not synced, and copies the
// directory to killed as a crash would leave it then. It returns how much of the log is promised.
func tornHistory(t *testing.T, opts Options, killed string) (synced int) {
	ctx := context.Background()
	s, err := Open(ctx, opts)
	require.NoError(t, err)
	for i := range tornKeys {
		require.NoError(t, s.Put(ctx, fmt.Sprint("d", i), random(4000+i), durably()))
		require.NoError(t, s.Put(ctx, fmt.Sprint("r", i), random(4000+i), durably()))
		require.NoError(t, s.Upsert(ctx, fmt.Sprint("d", i), random(5000+i), durably()))
		require.NoError(t, s.Remove(fmt.Sprint("r", i), true))
	}
	require.NoError(t, s.Sync(ctx)) // from here on nothing is left that a later sync would be for
	for i := range tornKeys {
		require.NoError(t, s.Put(ctx, fmt.Sprint("c", i), random(6000+i), nil))
	}
	s.evict(ctx, 1<<20, 0) // writes the others, without sync
	require.NoError(t, os.CopyFS(killed, os.DirFS(opts.Dir)))
	require.NoError(t, s.Close())
	return syncedBytes(t, filepath.Join(killed, catalogueDir))
}

// syncedBytes is how much of the newest log the catalogue's file SYNCED promises.
func syncedBytes(t *testing.T, dir string) int {
	t.Helper()
	p, err := os.ReadFile(filepath.Join(dir, "SYNCED"))
	require.NoError(t, err)
	le := binary.LittleEndian
	slot := p[:2048]
	if le.Uint64(p[2048+8:]) > le.Uint64(slot[8:]) {
		slot = p[2048:]
	}
	var newest, synced uint64
	for e := slot[32:][:16*le.Uint64(slot[24:])]; len(e) > 0; e = e[16:] {
		if tag := le.Uint64(e); tag>>63 == 0 && tag > newest { // a log
			newest, synced = tag, le.Uint64(e[8:])
		}
	}
	require.Positive(t, synced)
	return int(synced)
}

func tornCheck(t *testing.T, s *Store) {
	ctx := context.Background()
	for i := range tornKeys {
		wantWhole(t, s, fmt.Sprint("d", i), random(5000+i))
		wantAbsent(t, s, fmt.Sprint("r", i))
		wantAbsentOrWhole(t, s, fmt.Sprint("c", i), random(6000+i))
	}
	require.NoError(t, s.Upsert(ctx, "d0", random(99), durably()))
	wantWhole(t, s, "d0", random(99))
	_, err := s.RemoveAll(ctx, true)
	require.NoError(t, err)
}
