package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store/internal/arena"
)

// A durable object whose copy on SSD is bad but whose memory is right becomes durable again with the next Sync, before
// memory could be the only place it is in.
func TestBadSSDReplicaIsWrittenAnew(t *testing.T) {
	ctx := context.Background()
	for _, own := range []bool{false, true} {
		t.Run(fmt.Sprint("own file ", own), func(t *testing.T) {
			opts := testOptions(t, Options{Dir: t.TempDir(), MemoryBytes: 32 << 20, FileBytes: 4096, PromoteAfter: -1})
			s, err := Open(ctx, opts)
			require.NoError(t, err)
			const n = 80_000
			hard := true
			require.NoError(t, s.Put(ctx, "k", random(n), &PutOptions{Durable: true, OwnFile: own, Group: "g"}))
			require.NoError(t, s.SetPins("k", PinChange{HardPin: &hard}))
			require.NoError(t, s.Link(ctx, "link", "k", &PutOptions{Durable: true}))
			v, err := s.View(ctx, "k", nil) // brings it to memory
			require.NoError(t, err)
			require.NoError(t, v.Close())
			r, err := s.acquire("k", nil)
			require.NoError(t, err)
			o := r.o
			require.True(t, s.quarantine(&r, TierSSD, ErrChecksum))
			r.release()
			path := filepath.Join(opts.Dir, tierDir, fmt.Sprintf("%08x.log", o.SSD.File))
			if own {
				path = s.tier.OwnPath(o.SSD.Own)
			}
			require.NoError(t, os.Chmod(path, 0o600))
			flipInFile(t, path, random(n)[70_000:70_010], 1)
			require.NoError(t, s.Sync(ctx))
			info, err := s.Stat("k")
			require.NoError(t, err)
			require.True(t, info.OnSSD, "after Sync it is on SSD")
			require.True(t, info.Durable)
			require.NoError(t, s.Close())
			loseMemory(t, opts)
			s, err = Open(ctx, opts)
			require.NoError(t, err)
			for _, key := range []string{"k", "link"} {
				requireBytes(t, s, key, random(n))
				info, err = s.Stat(key)
				require.NoError(t, err)
				require.True(t, info.Durable, key)
			}
			info, err = s.Stat("k")
			require.NoError(t, err)
			require.True(t, info.HardPin)
			require.Equal(t, "g", info.Group)
			requireEmptied(t, s)
			require.NoError(t, s.Close())
		})
	}
}

// Small durable objects that come and go leave gaps. The quota must not be used up by them.
func TestSSDQuotaSurvivesSmallDurableObjects(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, Options{Dir: t.TempDir(), MemoryBytes: 32 << 20, SSDBytes: 4 << 20})
	for round := range 20 {
		var items []PutItem
		for j := range 800 {
			items = append(items, PutItem{Key: fmt.Sprint(round, "-", j), Parts: [][]byte{random(500)}, Opts: &PutOptions{Durable: true, Type: Weight}})
		}
		for i, err := range s.PutBatch(ctx, items) {
			require.NoError(t, err, "round %d item %d", round, i)
		}
		var gone []string
		for j := range 800 {
			if j%16 != 0 {
				gone = append(gone, items[j].Key)
			}
		}
		for _, err := range s.RemoveBatch(gone, true) {
			require.NoError(t, err)
		}
	}
	u, err := s.Usage()
	require.NoError(t, err)
	require.LessOrEqual(t, u.SSDOnDisk, int64(4<<20))
	for round := range 20 {
		for j := 0; j < 800; j += 16 {
			requireBytes(t, s, fmt.Sprint(round, "-", j), random(500))
		}
	}
	requireEmptied(t, s)
}

// Close inside a loop over Objects ends the loop with an error.
func TestCloseInsideObjects(t *testing.T) {
	ctx := context.Background()
	s, err := Open(ctx, testOptions(t, Options{}))
	require.NoError(t, err)
	for i := range 20_000 {
		require.NoError(t, s.Put(ctx, fmt.Sprint("key-", i), random(10), nil))
	}
	done := make(chan error)
	go func() {
		var last error
		for _, err := range s.Objects(ctx, "") {
			if last = err; err == nil {
				_ = s.Close()
			}
		}
		done <- last
	}()
	select {
	case err := <-done:
		require.ErrorIs(t, err, ErrClosed)
	case <-time.After(time.Minute):
		t.Fatal("Close waits for the loop that it is called in")
	}
}

// A relative directory means the one at Open, whatever the process does later.
func TestRelativeDir(t *testing.T) {
	ctx := context.Background()
	t.Chdir(t.TempDir())
	opts := testOptions(t, Options{Dir: "store", MemoryBytes: 32 << 20})
	s, err := Open(ctx, opts)
	require.NoError(t, err)
	require.NoError(t, s.Put(ctx, "a", random(2<<20), &PutOptions{Durable: true, Type: Weight}))
	t.Chdir(t.TempDir())
	require.NoError(t, s.Put(ctx, "b", random(2<<20), &PutOptions{Durable: true, Type: Weight}))
	requireBytes(t, s, "a", random(2<<20))
	f, err := s.File(ctx, "a", nil)
	require.NoError(t, err)
	require.True(t, filepath.IsAbs(f.Path()))
	_, err = os.Stat(f.Path())
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, s.Close())
}

// Under the build tag invariants memory is poisoned when it becomes free, so that a read of it shows.
func TestFreedMemoryIsPoisoned(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, Options{})
	for what, free := range map[string]func(key string){
		"removed":  func(key string) { require.NoError(t, s.Remove(key, true)) },
		"replaced": func(key string) { require.NoError(t, s.Upsert(ctx, key, random(10), nil)) },
	} {
		require.NoError(t, s.Put(ctx, what, random(200_000), nil))
		v, err := s.View(ctx, what, nil)
		require.NoError(t, err)
		stale := v.Bytes()
		free(what)
		require.Equal(t, random(200_000), stale, "while the view is open")
		require.NoError(t, v.Close())
		if arena.Invariants {
			require.Equal(t, bytes.Repeat([]byte{0xDB}, 200_000), stale, what)
		}
	}
	w, err := s.Create(ctx, "aborted", 5000, nil)
	require.NoError(t, err)
	_, err = w.Write(random(5000))
	require.NoError(t, err)
	stale := w.pieces[0]
	w.Abort()
	require.Equal(t, arena.Invariants, bytes.Equal(stale, bytes.Repeat([]byte{0xDB}, 5000)), "aborted")
}

// errContext calls a function each time it is asked for its error.
type errContext struct {
	context.Context
	call func()
}

func (c errContext) Err() error { c.call(); return nil }

// Who cuts a memory file short that File has handed out costs its object, or one replica of it, not the process.
func TestMemoryFileCutShort(t *testing.T) {
	ctx := context.Background()
	const n = 12 << 20
	cut := func(path string) {
		require.NoError(t, os.Chmod(path, 0o600))
		require.NoError(t, os.Truncate(path, 0))
	}
	for _, onSSD := range []bool{false, true} {
		for name, read := range readers {
			t.Run(fmt.Sprint(name, ", on ssd ", onSSD), func(t *testing.T) {
				s := openTest(t, Options{Dir: t.TempDir(), PromoteAfter: -1, VolatileMemory: false})
				require.NoError(t, s.Put(ctx, "k", random(n), &PutOptions{OwnFile: true}))
				if onSSD {
					require.NoError(t, s.Sync(ctx))
				}
				f, err := s.File(ctx, "k", nil)
				require.NoError(t, err)
				cut(f.Path())
				got, err := read(s, "k", n)
				if onSSD {
					require.NoError(t, err)
					require.True(t, bytes.Equal(random(n), got))
				} else {
					require.True(t, errors.Is(err, ErrTampered) || errors.Is(err, ErrNoReplica), "%v", err)
					require.NoError(t, s.Sync(ctx))
				}
				require.ErrorIs(t, f.Close(), ErrTampered)
				requireEmptied(t, s)
			})
		}
	}
	for _, how := range []Verify{VerifyAuto, VerifyAlways} {
		s := openTest(t, Options{Dir: t.TempDir()})
		require.NoError(t, s.Put(ctx, "k", random(n), &PutOptions{OwnFile: true}))
		f, err := s.File(ctx, "k", nil)
		require.NoError(t, err)
		calls := 0
		in := errContext{ctx, func() {
			if calls++; calls == 3 {
				cut(f.Path())
			}
		}}
		_, err = s.Get(in, "k", &ReadOptions{Verify: how})
		require.True(t, errors.Is(err, ErrTampered) || errors.Is(err, ErrNoReplica), "cut while it is read: %v", err)
		require.Greater(t, calls, 2)
		require.ErrorIs(t, f.Close(), ErrTampered)
	}
}
