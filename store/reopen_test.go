package store

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func reopen(t *testing.T, s *Store, opts Options) *Store {
	t.Helper()
	require.NoError(t, s.Close())
	s, err := Open(context.Background(), opts)
	require.NoError(t, err)
	return s
}

func requireBytes(t *testing.T, s *Store, key string, want []byte) {
	t.Helper()
	got, err := s.Get(context.Background(), key, nil)
	require.NoError(t, err, key)
	require.True(t, bytes.Equal(want, got), key)
}

// What was in memory comes back with everything that belongs to it, and the first read of it is verified.
func TestWarmReopen(t *testing.T) {
	ctx := context.Background()
	clock := newClock()
	opts := testOptions(t, Options{Dir: t.TempDir(), MemoryBytes: 32 << 20, Clock: clock.now})
	s, err := Open(ctx, opts)
	require.NoError(t, err)
	require.NoError(t, s.Put(ctx, "kv", random(3000), &PutOptions{Type: KVCache, SoftPin: time.Hour}))
	require.NoError(t, s.Put(ctx, "big", random(300_000), &PutOptions{Type: Tensor, Group: "g"}))
	require.NoError(t, s.Put(ctx, "big2", random(70_000), &PutOptions{Type: General, Group: "g", HardPin: true}))
	require.NoError(t, s.Put(ctx, "weight", random(2<<20), &PutOptions{Type: Weight, HardPin: true}))
	require.NoError(t, s.Link(ctx, "link", "weight", &PutOptions{Group: "g"}))
	require.NoError(t, s.Put(ctx, "orphan's owner", random(100_000), nil))
	require.NoError(t, s.Link(ctx, "orphan", "orphan's owner", nil))
	require.NoError(t, s.Remove("orphan's owner", true))
	require.NoError(t, s.Upsert(ctx, "kv", random(4000), nil))
	require.NoError(t, s.Put(ctx, "removed", random(4000), nil))
	require.NoError(t, s.Remove("removed", true))
	w, err := s.Create(ctx, "unfinished", 1000, nil)
	require.NoError(t, err)
	_, err = w.Write(random(1000))
	require.NoError(t, err)
	keys := []string{"kv", "big", "big2", "weight", "link", "orphan"}
	before, errs := s.StatBatch(keys)
	require.Equal(t, make([]error, len(keys)), errs)
	u1, err := s.Usage()
	require.NoError(t, err)

	clock.advance(240 * time.Hour) // leases that ran out meanwhile are no reason to forget
	s = reopen(t, s, opts)
	require.EqualValues(t, len(keys), s.Counters().RestoredFromMemory)
	after, errs := s.StatBatch(keys)
	require.Equal(t, make([]error, len(keys)), errs)
	require.Equal(t, before, after)
	group, err := s.Group("g")
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"big", "big2", "link"}, group)
	for key, n := range map[string]int{"kv": 4000, "big": 300_000, "big2": 70_000, "weight": 2 << 20, "link": 2 << 20, "orphan": 100_000} {
		requireBytes(t, s, key, random(n))
	}
	for _, key := range []string{"removed", "unfinished", "orphan's owner"} {
		_, err := s.Stat(key)
		require.ErrorIs(t, err, ErrNotFound, key)
	}
	u2, err := s.Usage()
	require.NoError(t, err)
	require.Equal(t, u1.Objects, u2.Objects)
	require.Equal(t, u1.Tiers, u2.Tiers)
	require.Equal(t, u1.HardPinned, u2.HardPinned)
	require.Equal(t, u1.Groups, u2.Groups)
	require.Equal(t, u1.OwnFiles, u2.OwnFiles)
	// The space of what came back is not handed out again.
	for i := range 300 {
		require.NoError(t, s.Put(ctx, fmt.Sprint(i), random(100_000), nil))
	}
	for key, n := range map[string]int{"big2": 70_000, "weight": 2 << 20, "link": 2 << 20} {
		requireBytes(t, s, key, random(n))
	}
	requireEmptied(t, s)
	require.NoError(t, s.Close())
}

func TestWarmReopenVerifiesTheFirstRead(t *testing.T) {
	ctx := context.Background()
	opts := testOptions(t, Options{Dir: t.TempDir(), MemoryBytes: 16 << 20})
	s, err := Open(ctx, opts)
	require.NoError(t, err)
	for key, n := range map[string]int{"one": 1000, "many": 300_000, "own": 1 << 20} {
		require.NoError(t, s.Put(ctx, key, random(n), &PutOptions{Type: Weight}))
	}
	segment, err := s.Usage()
	require.NoError(t, err)
	require.NoError(t, s.Close())
	// Somebody scribbles over the shared memory while nobody is there.
	shm := filepath.Dir(segment.SharedMemory)
	flipInFile(t, segment.SharedMemory, random(1000)[100:200], 50)
	flipInFile(t, segment.SharedMemory, random(300_000)[200_000:200_100], 50)
	files, err := filepath.Glob(filepath.Join(shm, "files", "*"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	flipInFile(t, files[0], random(1 << 20)[600_000:600_100], 50)
	s, err = Open(ctx, opts)
	require.NoError(t, err)
	for _, key := range []string{"one", "many", "own"} {
		_, err := s.Stat(key)
		require.NoError(t, err, key)
		_, err = s.Get(ctx, key, nil)
		require.ErrorIs(t, err, ErrChecksum, key)
		_, err = s.Get(ctx, key, nil)
		require.ErrorIs(t, err, ErrNoReplica, key)
		log := s.Explain(key)
		require.Len(t, log, 1)
		require.Equal(t, Quarantined, log[0].What)
		require.Equal(t, TierMemory, log[0].Tier)
		ok, err := s.Exists(key)
		require.NoError(t, err)
		require.False(t, ok)
		require.NoError(t, s.Put(ctx, key, random(500), nil), "the key is free again")
		requireBytes(t, s, key, random(500))
	}
	require.NoError(t, s.Close())
}

// flipInFile flips a bit in the place of a file that has the bytes of mark, of which it must have one. It looks only
// where a sparse file has bytes.
func flipInFile(t *testing.T, path string, mark []byte, at int) {
	t.Helper()
	stamp, err := os.Stat(path)
	require.NoError(t, err)
	require.NoError(t, os.Chmod(path, 0o600))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	for end := int64(0); ; {
		start, err := unix.Seek(int(f.Fd()), end, unix.SEEK_DATA)
		require.NoError(t, err, "the bytes are not in %s", path)
		end, err = unix.Seek(int(f.Fd()), start, unix.SEEK_HOLE)
		require.NoError(t, err)
		p := make([]byte, end-start)
		_, err = f.ReadAt(p, start)
		require.NoError(t, err)
		if i := bytes.Index(p, mark); i >= 0 {
			_, err = f.WriteAt([]byte{p[i+at] ^ 4}, start+int64(i+at))
			require.NoError(t, err)
			require.NoError(t, os.Chmod(path, stamp.Mode()))
			return
		}
	}
}

// What is durable, or was synced, survives a reboot with everything that belongs to it.
func TestColdReopen(t *testing.T) {
	for _, how := range []string{"durable", "sync", "sync after removal", "durable upsert"} {
		t.Run(how, func(t *testing.T) {
			ctx := context.Background()
			opts := testOptions(t, Options{Dir: t.TempDir(), MemoryBytes: 32 << 20})
			s, err := Open(ctx, opts)
			require.NoError(t, err)
			durable := how == "durable" || how == "durable upsert"
			put := func(key string, n int, o PutOptions) {
				o.Durable = durable
				if how == "durable upsert" {
					require.NoError(t, s.Put(ctx, key, random(n/2), &o))
					require.NoError(t, s.Upsert(ctx, key, random(n), &PutOptions{Type: o.Type, Durable: true}))
					return
				}
				require.NoError(t, s.Put(ctx, key, random(n), &o))
			}
			put("kv", 3000, PutOptions{Type: KVCache, SoftPin: time.Hour})
			put("big", 300_000, PutOptions{Type: Tensor, Group: "g"})
			put("pinned", 70_000, PutOptions{Type: General, HardPin: true, Group: "g"})
			put("weight", 2<<20, PutOptions{Type: Weight, HardPin: true})
			put("owner", 100_000, PutOptions{})
			require.NoError(t, s.Link(ctx, "link", "weight", &PutOptions{Durable: durable, HardPin: true, Group: "g"}))
			require.NoError(t, s.Link(ctx, "orphan", "owner", &PutOptions{Durable: durable}))
			require.NoError(t, s.Link(ctx, "link of orphan", "orphan", &PutOptions{Durable: durable}))
			if how == "sync after removal" {
				require.NoError(t, s.Remove("owner", true))
			}
			if !durable {
				require.NoError(t, s.Sync(ctx))
			}
			if how != "sync after removal" {
				require.NoError(t, s.Remove("owner", true))
			}
			keys := []string{"kv", "big", "pinned", "weight", "link", "orphan", "link of orphan"}
			before, errs := s.StatBatch(keys)
			require.Equal(t, make([]error, len(keys)), errs)
			require.NoError(t, s.Close())
			loseMemory(t, opts)
			for range 2 { // the second time from what the first recovered
				s, err = Open(ctx, opts)
				require.NoError(t, err)
				after, errs := s.StatBatch(keys)
				require.Equal(t, make([]error, len(keys)), errs)
				for i := range before {
					before[i].InMemory, after[i].InMemory = false, false
					after[i].Generation = before[i].Generation
					before[i].SoftPin, after[i].SoftPin = before[i].SoftPin.Truncate(time.Millisecond), after[i].SoftPin.Truncate(time.Millisecond)
				}
				require.Equal(t, before, after)
				_, err := s.Stat("owner")
				require.ErrorIs(t, err, ErrNotFound, "it was removed")
				group, err := s.Group("g")
				require.NoError(t, err)
				require.ElementsMatch(t, []string{"big", "pinned", "link"}, group)
				for key, n := range map[string]int{"kv": 3000, "big": 300_000, "pinned": 70_000, "weight": 2 << 20, "link": 2 << 20,
					"orphan": 100_000, "link of orphan": 100_000} {
					requireBytes(t, s, key, random(n))
				}
				require.NoError(t, s.Close())
				loseMemory(t, opts)
			}
			// What comes after a restart is newer than what was before.
			s, err = Open(ctx, opts)
			require.NoError(t, err)
			for _, key := range keys {
				require.NoError(t, s.Upsert(ctx, key, random(555), nil), key)
				requireBytes(t, s, key, random(555))
			}
			require.NoError(t, s.Close())
			s, err = Open(ctx, opts)
			require.NoError(t, err)
			for _, key := range keys {
				requireBytes(t, s, key, random(555))
			}
			requireEmptied(t, s)
			require.NoError(t, s.Close())
			loseMemory(t, opts)
			s, err = Open(ctx, opts)
			require.NoError(t, err)
			for info := range s.Objects(ctx, "") {
				t.Errorf("%s came back after its removal", info.Key)
			}
			require.NoError(t, s.Close())
		})
	}
}

// Links keep their bytes on SSD when the SSD tier needs room.
func TestLinksSurviveSSDPressure(t *testing.T) {
	ctx := context.Background()
	clock := newClock()
	opts := testOptions(t, Options{Dir: t.TempDir(), MemoryBytes: 32 << 20, SSDBytes: 8 << 20, Clock: clock.now})
	s, err := Open(ctx, opts)
	require.NoError(t, err)
	require.NoError(t, s.Put(ctx, "owner", random(100_000), nil))
	require.NoError(t, s.Link(ctx, "link", "owner", nil))
	require.NoError(t, s.Sync(ctx))
	require.NoError(t, s.Put(ctx, "target", random(100_000), &PutOptions{Durable: true}))
	require.NoError(t, s.Link(ctx, "durable link", "target", &PutOptions{Durable: true}))
	require.NoError(t, s.Remove("target", true))
	for i := range 30 {
		clock.advance(time.Minute)
		require.NoError(t, s.Put(ctx, fmt.Sprint(i), random(500_000), nil))
		require.NoError(t, s.Sync(ctx))
	}
	require.Positive(t, s.Counters().EvictedKeys[TierSSD])
	require.NoError(t, s.Close())
	loseMemory(t, opts)
	s, err = Open(ctx, opts)
	require.NoError(t, err)
	for info, err := range s.Objects(ctx, "") {
		require.NoError(t, err)
		_, err := s.Get(ctx, info.Key, nil)
		require.NoError(t, err, info.Key)
	}
	requireBytes(t, s, "durable link", random(100_000))
	requireEmptied(t, s)
	require.NoError(t, s.Close())
}

// Memory survives an Open with another budget, as far as that has room.
func TestChangedMemoryBudget(t *testing.T) {
	ctx := context.Background()
	opts := testOptions(t, Options{Dir: t.TempDir(), MemoryBytes: 32 << 20})
	s, err := Open(ctx, opts)
	require.NoError(t, err)
	for i := range 100 {
		require.NoError(t, s.Put(ctx, fmt.Sprint("fill", i), random(200_000+i), nil))
	}
	require.NoError(t, s.Put(ctx, "durable", random(3000), &PutOptions{Durable: true}))
	require.NoError(t, s.Put(ctx, "memory", random(3000), &PutOptions{HardPin: true}))
	require.NoError(t, s.Put(ctx, "own", random(1<<20), &PutOptions{OwnFile: true, HardPin: true}))
	require.NoError(t, s.WaitReady(ctx))
	for _, budget := range []int64{16 << 20, 64 << 20, 32 << 20} {
		opts.MemoryBytes = budget
		s = reopen(t, s, opts)
		requireBytes(t, s, "durable", random(3000))
		requireBytes(t, s, "memory", random(3000))
		requireBytes(t, s, "own", random(1<<20))
		require.NoError(t, s.WaitReady(ctx))
		u, err := s.Usage()
		require.NoError(t, err)
		require.LessOrEqual(t, u.MemoryTaken, budget)
		for i := range 100 {
			got, err := s.Get(ctx, fmt.Sprint("fill", i), nil)
			require.NoError(t, err, "what had to leave memory is on SSD")
			require.True(t, bytes.Equal(random(200_000+i), got))
		}
	}
	requireEmptied(t, s)
	require.NoError(t, s.Close())
}

// A directory has one store: in this process, and among processes.
func TestDirectoryIsTaken(t *testing.T) {
	ctx := context.Background()
	if dir := os.Getenv("MOONCAKE_TEST_OPEN"); dir != "" { // the other process
		_, err := Open(ctx, Options{Dir: dir, MemoryBytes: MinMemoryBytes, ShmDir: os.Getenv("MOONCAKE_TEST_SHM")})
		fmt.Printf("code %d: %v", Code(err), err)
		os.Exit(0)
	}
	opts := testOptions(t, Options{Dir: t.TempDir(), MemoryBytes: 16 << 20})
	s := openTest(t, opts)
	require.NoError(t, s.Put(ctx, "k", random(3000), nil))
	_, err := Open(ctx, opts)
	require.ErrorIs(t, err, ErrLocked)
	require.ErrorContains(t, err, strconv.Itoa(os.Getpid()))
	require.ErrorContains(t, err, opts.Dir)
	other := exec.Command(os.Args[0], "-test.run=^TestDirectoryIsTaken$")
	other.Env = append(os.Environ(), "MOONCAKE_TEST_OPEN="+opts.Dir, "MOONCAKE_TEST_SHM="+opts.ShmDir)
	out, err := other.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), fmt.Sprintf("code %d", Code(ErrLocked)))
	require.Contains(t, string(out), strconv.Itoa(os.Getpid()))
	requireBytes(t, s, "k", random(3000))
}

// A view outlives Close. As long as one is open nobody else gets the directory, whose memory it shows.
func TestViewOutlivesClose(t *testing.T) {
	for name, opts := range map[string]Options{"memory": {}, "directory": {Dir: t.TempDir()}} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			opts = testOptions(t, opts)
			s, err := Open(ctx, opts)
			require.NoError(t, err)
			require.NoError(t, s.Put(ctx, "k", random(300_000), nil))
			require.NoError(t, s.Put(ctx, "weight", random(1<<20), &PutOptions{Type: Weight}))
			require.NoError(t, s.Put(ctx, "plain", random(1<<20), nil))
			v, err := s.View(ctx, "k", nil)
			require.NoError(t, err)
			own, err := s.View(ctx, "weight", nil)
			require.NoError(t, err)
			f, err := s.File(ctx, "weight", nil)
			require.NoError(t, err)
			copied, err := s.File(ctx, "plain", nil)
			require.NoError(t, err)
			require.NoError(t, s.Close())
			if opts.Dir != "" {
				_, err = Open(ctx, opts)
				require.ErrorIs(t, err, ErrLocked)
			}
			require.True(t, bytes.Equal(random(300_000), v.Bytes()))
			require.True(t, bytes.Equal(random(1<<20), own.Bytes()))
			for _, f := range []*File{f, copied} {
				got, err := os.ReadFile(f.Path())
				require.NoError(t, err)
				require.True(t, bytes.Equal(random(1<<20), got))
				require.NoError(t, f.Close())
			}
			require.NoError(t, v.Close())
			require.NoError(t, own.Close())
			if opts.Dir == "" {
				return
			}
			s, err = Open(ctx, opts)
			require.NoError(t, err)
			requireBytes(t, s, "k", random(300_000))
			requireBytes(t, s, "weight", random(1<<20))
			info, err := s.Stat("k")
			require.NoError(t, err)
			require.Zero(t, info.Readers)
			requireEmptied(t, s)
			require.NoError(t, s.Close())
		})
	}
}

// A writer that its owner dropped is reclaimed, also after Close.
func TestDroppedWriter(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, Options{Dir: t.TempDir(), MemoryBytes: 16 << 20})
	drop := func(key string, opts *PutOptions) {
		w, err := s.Create(ctx, key, 1<<20, opts)
		require.NoError(t, err)
		_, err = w.Write(random(1000))
		require.NoError(t, err)
	}
	for i := range 40 { // more than the SSD tier can have open
		key := fmt.Sprint("k", i%4)
		opts := &PutOptions{OwnFile: true, Durable: i%2 == 0}
		drop(key, opts)
		eventually(t, "writer reclaimed", func() bool {
			runtime.GC()
			_, err := s.Stat(key)
			return err != nil && strings.Contains(err.Error(), ErrNotFound.Error())
		})
	}
	requireEmptied(t, s)
	m, err := Open(ctx, Options{MemoryBytes: 16 << 20})
	require.NoError(t, err)
	func() {
		w, err := m.Create(ctx, "k", 1000, nil)
		require.NoError(t, err)
		_, err = w.Write(random(1000))
		require.NoError(t, err)
	}()
	require.NoError(t, m.Close())
	for range 3 {
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
}
