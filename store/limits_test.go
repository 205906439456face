package store

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pkg/errors"
	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store/internal/ssd"
)

// More memory than the machine has is refused at once, with both numbers.
func TestMoreMemoryThanTheMachine(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		opts := testOptions(t, Options{Dir: dir, MemoryBytes: 1 << 44})
		_, err := Open(context.Background(), opts)
		require.ErrorIs(t, err, ErrMemoryLimit)
		require.Equal(t, -200, Code(err))
		require.Regexp(t, `need 17592186044416 bytes.* leaves \d+`, err.Error())
		if dir != "" { // the refusal left nothing in the way
			opts.MemoryBytes = 16 << 20
			s, err := Open(context.Background(), opts)
			require.NoError(t, err)
			require.NoError(t, s.Close())
		}
	}
}

// A directory that can't be written is refused by name. Root may write anywhere, so another user tries.
func TestReadOnlyDirectory(t *testing.T) {
	if dir := os.Getenv("MOONCAKE_TEST_READONLY"); dir != "" {
		_, err := Open(context.Background(), Options{Dir: dir, MemoryBytes: MinMemoryBytes, ShmDir: os.Getenv("MOONCAKE_TEST_SHM")})
		fmt.Print(err)
		os.Exit(0)
	}
	if os.Getuid() != 0 {
		t.Skip("needs root to become somebody else")
	}
	base, err := os.MkdirTemp("/tmp", "mooncake-readonly-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	require.NoError(t, os.Chmod(base, 0o755))
	test := filepath.Join(base, "test")
	binary, err := os.ReadFile(os.Args[0])
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(test, binary, 0o755))
	opts := testOptions(t, Options{Dir: filepath.Join(base, "store"), MemoryBytes: MinMemoryBytes})
	s, err := Open(context.Background(), opts)
	require.NoError(t, err)
	require.NoError(t, s.Put(context.Background(), "k", random(100), &PutOptions{Durable: true}))
	require.NoError(t, s.Close())
	for _, dir := range []string{opts.Dir, filepath.Join(base, "new")} {
		cmd := exec.Command(test, "-test.run=^TestReadOnlyDirectory$")
		cmd.Env = append(os.Environ(), "MOONCAKE_TEST_READONLY="+dir, "MOONCAKE_TEST_SHM="+opts.ShmDir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		require.Contains(t, string(out), dir)
		require.Contains(t, string(out), "permission denied")
	}
	s, err = Open(context.Background(), opts)
	require.NoError(t, err)
	requireBytes(t, s, "k", random(100))
	require.NoError(t, s.Close())
}

// A full disk fails durable puts, names the cause, and loses nothing; with room again they succeed.
func TestFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount a small file system")
	}
	ctx := context.Background()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=48m"); err != nil {
		t.Skip("can't mount: ", err)
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, 0)) })
	opts := testOptions(t, Options{Dir: filepath.Join(dir, "store"), MemoryBytes: 32 << 20, SSDBytes: 1 << 30})
	s, err := Open(ctx, opts)
	require.NoError(t, err)
	require.NoError(t, s.Put(ctx, "memory", random(5000), nil))
	var kept []string
	var full error
	for i := 0; full == nil && i < 200; i++ {
		key := fmt.Sprint("k", i)
		opts := &PutOptions{Durable: true, OwnFile: i%3 == 0}
		if full = s.PutFrom(ctx, key, bytes.NewBuffer(random(1<<20+i)), int64(1<<20+i), opts); full == nil {
			kept = append(kept, key)
		}
	}
	require.ErrorIs(t, full, ErrNoSpace)
	require.ErrorContains(t, full, `"k`)
	t.Logf("%d objects, then: %v", len(kept), full)
	require.Greater(t, len(kept), 10)
	check := func() {
		for i, key := range kept {
			requireBytes(t, s, key, random(1<<20+i))
		}
		requireBytes(t, s, "memory", random(5000))
	}
	check()
	require.Error(t, s.Put(ctx, "again", random(4<<20), &PutOptions{Durable: true}))
	require.False(t, probe(t, s, "again"))
	for _, key := range kept[len(kept)-8:] {
		require.NoError(t, s.Remove(key, true))
	}
	kept = kept[:len(kept)-8]
	eventually(t, "room on the disk", func() bool {
		return s.Put(ctx, "again", random(4<<20), &PutOptions{Durable: true}) == nil
	})
	s = reopen(t, s, opts)
	check()
	requireBytes(t, s, "again", random(4<<20))
	require.NoError(t, s.Close())
}

// The quota of the SSD tier holds, is reached without trouble by small objects that come and go, and what is durable
// never makes way.
func TestSSDQuota(t *testing.T) {
	ctx := context.Background()
	clock := newClock()
	s := openTest(t, Options{Dir: t.TempDir(), MemoryBytes: 16 << 20, SSDBytes: 8 << 20, Clock: clock.now})
	require.NoError(t, s.Put(ctx, "durable", random(10_000), &PutOptions{Durable: true}))
	for i := range 15 {
		clock.advance(time.Minute)
		var items []PutItem
		for j := range 300 {
			items = append(items, PutItem{Key: fmt.Sprint(i, "-", j), Parts: [][]byte{random(2000 + i)}})
		}
		for _, err := range s.PutBatch(ctx, items) {
			require.NoError(t, err)
		}
		require.NoError(t, s.Sync(ctx), "round %d", i)
		u, err := s.Usage()
		require.NoError(t, err)
		require.LessOrEqual(t, u.SSDOnDisk, int64(8<<20))
	}
	require.Positive(t, s.Counters().EvictedKeys[TierSSD])
	requireBytes(t, s, "durable", random(10_000))
	info, err := s.Stat("durable")
	require.NoError(t, err)
	require.True(t, info.OnSSD)
	err = s.Put(ctx, "too large", random(9<<20), &PutOptions{Durable: true})
	require.ErrorIs(t, err, ErrTooLarge)
	require.ErrorContains(t, err, "8388608")
}

// In a durable batch that does not fit as a whole, what fits is stored.
func TestDurableBatchThatDoesNotFit(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, Options{Dir: t.TempDir(), MemoryBytes: 64 << 20, SSDBytes: 8 << 20})
	var items []PutItem
	for i := range 20 {
		items = append(items, PutItem{fmt.Sprint(i), [][]byte{random(1 << 20)}, &PutOptions{Durable: true}})
	}
	items = append(items, PutItem{"plain", [][]byte{random(100)}, nil})
	stored := 0
	for i, err := range s.PutBatch(ctx, items) {
		require.Equal(t, err == nil, probe(t, s, items[i].Key))
		if err == nil {
			stored++
			continue
		}
		require.ErrorIs(t, err, ErrNoSpace, "item %d", i)
		require.ErrorContains(t, err, items[i].Key)
	}
	require.True(t, probe(t, s, "plain"))
	require.GreaterOrEqual(t, stored, 1+6)
	require.LessOrEqual(t, stored, 1+8)
}

// Any number of durable puts and open writers at once: the store says so, or waits; nothing leaks.
func TestManyDurableWriters(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, Options{Dir: t.TempDir(), MemoryBytes: 32 << 20, FileBytes: 4096})
	var done atomic.Int32
	errs := make(chan error, 40)
	for i := range 40 {
		go func() {
			defer done.Add(1)
			errs <- s.Put(ctx, fmt.Sprint(i), random(100_000), &PutOptions{Durable: true, Type: Weight})
		}()
	}
	for range 40 {
		require.NoError(t, <-errs)
	}
	f, err := s.File(ctx, "7", nil)
	require.NoError(t, err)
	require.False(t, f.Temporary(), "weights have files of their own, durable ones too")
	require.NoError(t, f.Close())
	var open []*Writer
	for i := 0; ; i++ {
		soon, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		w, err := s.Create(soon, fmt.Sprint("w", i), 100_000, &PutOptions{Durable: true, Type: Weight})
		cancel()
		if err != nil {
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorContains(t, err, "too many open writers")
			require.False(t, probe(t, s, fmt.Sprint("w", i)))
			break
		}
		require.Less(t, i, 1000)
		open = append(open, w)
	}
	for _, w := range open {
		w.Abort()
	}
	requireEmptied(t, s)
}

// slowReader gives a little at a time and cancels a context in between.
type slowReader struct {
	left   int
	cancel func()
	reads  int
}

func (r *slowReader) Read(p []byte) (int, error) {
	r.reads++
	if r.reads == 3 {
		r.cancel()
	}
	n := min(len(p), r.left, 64<<10)
	r.left -= n
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// A context that ends in the middle ends the call within a chunk, and a put leaves nothing.
func TestCancelledInTheMiddle(t *testing.T) {
	fs := &hookFS{}
	s, err := openWith(context.Background(), testOptions(t, Options{Dir: t.TempDir(), PromoteAfter: -1}), seams{fs: fs})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	const n = 32 << 20
	for _, opts := range []PutOptions{{}, {OwnFile: true}, {Durable: true, OwnFile: true}} {
		ctx, cancel := context.WithCancel(context.Background())
		r := &slowReader{left: n, cancel: cancel}
		err := s.PutFrom(ctx, "k", r, n, &opts)
		require.ErrorIs(t, err, context.Canceled)
		require.Less(t, r.reads, 20, "it went on reading after the end of its context")
		require.False(t, probe(t, s, "k"))
	}
	require.NoError(t, s.PutFrom(context.Background(), "k", bytes.NewBuffer(random(n)), n, &PutOptions{Durable: true, OwnFile: true}))
	ctx, cancel := context.WithCancel(context.Background())
	var reads atomic.Int32
	fs.read = func() {
		if reads.Add(1) == 4 {
			cancel()
		}
	}
	_, err = s.GetInto(ctx, "k", make([]byte, n), nil)
	require.ErrorIs(t, err, context.Canceled)
	require.Less(t, reads.Load(), int32(20))
	info, err := s.Stat("k")
	require.NoError(t, err)
	require.Zero(t, info.Readers)
	require.True(t, info.OnSSD, "no reason for quarantine")
	fs.read = func() {}
	requireBytes(t, s, "k", random(n))
	requireEmptied(t, s)
}

// hookFS is the real file layer that calls before each read.
type hookFS struct {
	ssd.OSFS
	read func()
}

type hookFile struct {
	ssd.File
	fs *hookFS
}

func (f *hookFS) OpenFile(name string, flag int, perm os.FileMode) (ssd.File, error) {
	file, err := f.OSFS.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return hookFile{file, f}, nil
}

func (f hookFile) ReadAt(p []byte, off int64) (int, error) {
	if f.fs.read != nil {
		f.fs.read()
	}
	return f.File.ReadAt(p, off)
}

// A read from SSD that is stalled while its lease ends, its key goes and its space is wanted returns the old bytes.
func TestStalledReadKeepsItsBytes(t *testing.T) {
	ctx := context.Background()
	clock := newClock()
	fs := &hookFS{}
	opts := testOptions(t, Options{Dir: t.TempDir(), MemoryBytes: 16 << 20, SSDBytes: 16 << 20, LeaseTTL: 50 * time.Millisecond,
		Clock: clock.now, FileBytes: 4096, PromoteAfter: -1})
	s, err := openWith(ctx, opts, seams{fs: fs})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	const n = 200_000
	for name, read := range readers {
		for _, own := range []bool{false, true} {
			fs.read = nil
			require.NoError(t, s.PutFrom(ctx, "k", bytes.NewBuffer(random(n)), n, &PutOptions{Durable: true, OwnFile: own}))
			for i := range 100 { // so that it leaves memory
				clock.advance(time.Minute)
				require.NoError(t, s.Put(ctx, fmt.Sprint(name, own, i), random(150_000), nil))
			}
			stalled := false
			fs.read = func() {
				if stalled {
					return
				}
				stalled = true
				clock.advance(time.Hour)
				require.ErrorIs(t, s.Remove("k", false), ErrHasLease)
				require.NoError(t, s.Upsert(ctx, "k", random(700), nil))
				for i := range 30 {
					require.NoError(t, s.Put(ctx, fmt.Sprint(name, own, "new", i), random(150_000), nil))
				}
			}
			got, err := read(s, "k", n)
			require.NoError(t, err, name)
			require.True(t, bytes.Equal(random(n), got), name)
			require.True(t, stalled, "%s read nothing from SSD", name)
			fs.read = nil
			requireBytes(t, s, "k", random(700))
			require.NoError(t, s.Remove("k", true))
		}
	}
	requireEmptied(t, s)
}

// A subscriber that does not keep up loses events, is told how many, and holds nobody up.
func TestSlowSubscriber(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, Options{MemoryBytes: 16 << 20})
	slow, cancelSlow := s.Events(4)
	fast, cancelFast := s.Events(1000)
	for i := range 100 {
		require.NoError(t, s.Put(ctx, fmt.Sprint(i), random(10), nil))
	}
	for range 4 {
		require.Equal(t, EventPut, (<-slow).Kind)
	}
	e := <-slow // also if nothing follows
	require.Equal(t, EventDropped, e.Kind)
	require.EqualValues(t, 96, e.Size)
	require.NoError(t, s.Remove("5", true))
	e = <-slow
	require.Equal(t, Event{Kind: EventRemoved, Key: "5", Size: 10}, e)
	require.Len(t, fast, 101)
	require.EqualValues(t, 96, s.Counters().EventsDropped)
	cancelSlow()
	cancelSlow()
	_, open := <-slow
	require.False(t, open)
	cancelFast()
	require.NoError(t, s.Put(ctx, "last", random(10), nil))
}

// A hit counts once, however it is read.
func TestHitsAreCountedOnce(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, Options{Dir: t.TempDir(), MemoryBytes: 16 << 20, FileBytes: 4096, PromoteAfter: -1})
	require.NoError(t, s.Put(ctx, "memory", random(80_000), nil))
	require.NoError(t, s.PutFrom(ctx, "ssd", bytes.NewBuffer(random(80_000)), 80_000, &PutOptions{Durable: true, OwnFile: true}))
	for name, read := range readers {
		if name == "File" {
			continue
		}
		before := s.Counters()
		for _, key := range []string{"ssd", "memory"} {
			if name == "View" && key == "ssd" {
				continue // brings it to memory
			}
			_, err := read(s, key, 80_000)
			require.NoError(t, err)
			_, err = read(s, "absent", 80_000)
			require.ErrorIs(t, err, ErrNotFound)
		}
		after := s.Counters()
		require.EqualValues(t, 1, after.Hits[TierMemory]-before.Hits[TierMemory], name)
		require.EqualValues(t, 80_000, after.HitBytes[TierMemory]-before.HitBytes[TierMemory], name)
		if name != "View" {
			require.EqualValues(t, 1, after.Hits[TierSSD]-before.Hits[TierSSD], name)
		}
	}
	require.True(t, errors.Is(s.Remove("absent", true), ErrNotFound))
}
