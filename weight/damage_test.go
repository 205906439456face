package weight

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store"
)

// flip changes one byte in the middle of a file; the modification time tells, unless it is put back.
func flip(t *testing.T, path string, hide bool) {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	var b [1]byte
	_, err = f.ReadAt(b[:], info.Size()/2)
	require.NoError(t, err)
	b[0] ^= 0x10
	_, err = f.WriteAt(b[:], info.Size()/2)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	when := time.Now().Add(time.Second)
	if hide {
		when = info.ModTime()
	}
	require.NoError(t, os.Chtimes(path, when, when))
}

// bytesServed is what the store's tiers delivered.
func (e *env) bytesServed() int64 {
	c := e.s.Counters()
	return c.HitBytes[0] + c.HitBytes[1]
}

func (e *env) oneOwnFile() string {
	e.t.Helper()
	own := ownFiles(e.t, e.opts.Dir)
	require.Len(e.t, own, 1)
	return filepath.Join(e.opts.Dir, "ssd", own[0])
}

// TestFlippedByte changes a byte of a file on disk. A deep check and a load with Verify find it, named; a plain load
// does when the modification time changed.
func TestFlippedByte(t *testing.T) {
	ctx := context.Background()
	for _, hide := range []bool{false, true} {
		for _, reopen := range []bool{false, true} {
			e := newEnv(t, store.Options{Dir: t.TempDir()})
			e.shards(1)
			e.doImport(ref)
			flip(t, e.oneOwnFile(), hide)
			if reopen {
				e.reopen()
			}
			rep, err := e.m.Check(ctx, ref, Quick)
			require.NoError(t, err)
			require.NoError(t, rep.Err())
			if !hide {
				served := e.bytesServed()
				_, err = e.m.Load(ctx, ref, nil)
				require.ErrorIs(t, err, ErrDamaged)
				require.ErrorIs(t, err, store.ErrTampered)
				require.ErrorContains(t, err, shardName(0))
				require.Less(t, e.bytesServed()-served, int64(4096), "no byte of a file is read")
			} else {
				_, err = e.m.Load(ctx, ref, &LoadOptions{Verify: true})
				require.ErrorIs(t, err, ErrDamaged)
				require.ErrorContains(t, err, shardName(0))
			}
			require.Empty(t, files(t, e.m.loadRoot))
			rep, err = e.m.Check(ctx, ref, Deep)
			require.NoError(t, err)
			require.False(t, rep.OK)
			require.ErrorIs(t, rep.Err(), ErrDamaged)
			require.ErrorContains(t, rep.Err(), shardName(0))
			require.Empty(t, rep.Files[0].Problem, "config.json")

			// Now the store knows: the file is quarantined.
			rep, err = e.m.Check(ctx, ref, Quick)
			require.NoError(t, err)
			require.ErrorContains(t, rep.Err(), "quarantined")
			served := e.bytesServed()
			_, err = e.m.Load(ctx, ref, nil)
			require.ErrorIs(t, err, ErrDamaged)
			require.ErrorContains(t, err, shardName(0))
			require.Less(t, e.bytesServed()-served, int64(4096))
			_, err = e.m.Open(ctx, ref, shardName(0))
			require.ErrorIs(t, err, ErrDamaged)
			_, err = e.m.Import(ctx, e.request(ref))
			require.ErrorIs(t, err, ErrDamaged, "an import does not call a damaged revision good")
			require.ErrorContains(t, err, shardName(0))

			require.NoError(t, e.m.Delete(ctx, ref), "and it can be deleted and imported again")
			e.doImport(ref)
			e.deepOK(ref)
		}
	}
}

// TestMissingFile takes an object, or its file on disk, away.
func TestMissingFile(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, store.Options{Dir: t.TempDir()})
	e.put(2*mib, 1)
	e.doImport(ref)
	require.NoError(t, e.s.Remove(ref.FileKey(shard2), true))
	rep, err := e.m.Check(ctx, ref, Quick)
	require.NoError(t, err)
	require.ErrorContains(t, rep.Err(), shard2)
	require.ErrorContains(t, rep.Err(), "missing")
	_, err = e.m.Load(ctx, ref, nil)
	require.ErrorIs(t, err, ErrDamaged)
	require.ErrorContains(t, err, shard2)
	require.NoError(t, e.m.Delete(ctx, ref))
	e.nothing()

	e.shards(1)
	e.mem.Remove(mainIndex)
	e.mem.Remove(shard1)
	e.mem.Remove(shard2)
	e.doImport(ref)
	require.NoError(t, os.Remove(e.oneOwnFile()))
	_, err = e.m.Load(ctx, ref, nil)
	require.ErrorIs(t, err, ErrDamaged)
	require.ErrorContains(t, err, shardName(0))
	require.Empty(t, files(t, e.m.loadRoot))
	require.NoError(t, e.m.Delete(ctx, ref))
	e.nothing()
}

// TestTamperedWhileLoaded changes a loaded file: Close says so.
func TestTamperedWhileLoaded(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, store.Options{Dir: t.TempDir()})
	e.shards(1)
	e.doImport(ref)
	l, err := e.m.Load(ctx, ref, nil)
	require.NoError(t, err)
	flip(t, filepath.Join(l.Dir(), shardName(0)), false)
	require.ErrorIs(t, l.Close(), store.ErrTampered)
	require.Empty(t, files(t, e.m.loadRoot))
	_, err = e.m.Load(ctx, ref, nil)
	require.ErrorIs(t, err, ErrDamaged)
}

// TestUnreadableMetadata makes sure that one revision whose metadata is nonsense, or of the future, stops no other.
func TestUnreadableMetadata(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, store.Options{Dir: t.TempDir()})
	e.shards(1)
	e.doImport(ref)
	man, err := e.m.Manifest(ctx, ref)
	require.NoError(t, err)
	future := map[string]any{"format_version": FormatVersion + 1, "model_id": "x", "new_field": 1}
	p, _ := json.Marshal(future)
	put := func(key string, p []byte) {
		require.NoError(t, e.s.Put(ctx, key, p, e.m.metadata()))
	}
	junk, newer, wrong, record := Ref{"junk", "1"}, Ref{"newer", "1"}, Ref{"wrong", "1"}, Ref{"record", "1"}
	put(junk.ManifestKey(), []byte("{"))
	put(newer.ManifestKey(), p)
	q, err := man.Encode()
	require.NoError(t, err)
	put(wrong.ManifestKey(), q)
	put(record.recordKey(), []byte("[]"))
	put(Ref{"receipt", "1"}.receiptKey("x"), []byte("nonsense"))
	put("weight:no:such", []byte("x"))
	put("weight:a%zz:b:manifest", []byte("x"))

	e.reopen()
	e.deepOK(ref)
	_, err = e.m.Manifest(ctx, junk)
	require.ErrorIs(t, err, ErrUnreadable)
	_, err = e.m.Load(ctx, junk, nil)
	require.ErrorIs(t, err, ErrUnreadable)
	_, err = e.m.Manifest(ctx, newer)
	require.ErrorIs(t, err, ErrNewer)
	_, err = e.m.Manifest(ctx, wrong)
	require.ErrorIs(t, err, ErrUnreadable)
	list, err := e.m.List(ctx, "")
	require.NoError(t, err)
	problems := map[string]string{}
	for _, s := range list {
		problems[s.Ref.ModelID] = s.Problem
	}
	require.Empty(t, problems[ref.ModelID])
	for _, id := range []string{"junk", "newer", "wrong", "record"} {
		require.NotEmpty(t, problems[id], id)
	}
	_, _, err = e.m.Usage(ctx)
	require.NoError(t, err)
	e.doImport(Ref{"another", "1"})
	require.NoError(t, e.m.Delete(ctx, junk), "what can't be read can be deleted")
	require.NoError(t, e.m.Delete(ctx, wrong))
	require.ErrorIs(t, e.m.Delete(ctx, newer), ErrNewer)
	require.NoError(t, e.m.Abort(ctx, record))
	_, err = e.m.Import(ctx, e.request(newer))
	require.ErrorIs(t, err, ErrNewer)
}

// TestReceiptThatDoesNotParse reads the file again.
func TestReceiptThatDoesNotParse(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, store.Options{})
	e.shards(2)
	require.NoError(t, e.s.Put(ctx, ref.receiptKey(shardName(1)), []byte(`{"format_version":9,"x":1}`), e.m.metadata()))
	require.Zero(t, e.doImport(ref).Resumed)
	e.deepOK(ref)
}

func TestTensorsAfterReimport(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t, store.Options{})
	e.mem.Put("m.safetensors", shard(map[string]int{"a": 10, "b": 20}, 1))
	e.doImport(ref)
	buf := make([]byte, 100)
	n, err := e.m.ReadTensor(ctx, ref, "b", buf)
	require.NoError(t, err)
	require.Equal(t, 20, n)
	x, err := e.m.index(ctx, ref)
	require.NoError(t, err)
	require.NoError(t, e.m.Delete(ctx, ref))
	_, err = e.m.ReadTensor(ctx, ref, "b", buf)
	require.ErrorIs(t, err, ErrNotFound)
	e.mem.Put("m.safetensors", shard(map[string]int{"a": 30, "b": 40}, 1))
	e.doImport(ref)
	e.m.mu.Lock()
	e.m.mu.tensors[ref] = x // as a reader that was slower than both would
	e.m.mu.Unlock()
	n, err = e.m.ReadTensor(ctx, ref, "b", buf)
	require.NoError(t, err)
	require.Equal(t, 40, n)
	_, err = e.m.ReadTensor(ctx, ref, "none", buf)
	require.ErrorIs(t, err, ErrNoTensor)
	_, err = e.m.ReadTensor(ctx, ref, "b", buf[:39])
	require.ErrorIs(t, err, ErrInvalid)
	v, err := e.m.ViewTensor(ctx, ref, "a")
	require.NoError(t, err)
	require.Len(t, v.Bytes(), 30)
	require.NoError(t, v.Close())
}
