package store

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pkg/errors"
	"github.com/stretchr/testify/require"
)

// The names of these tests are those of the reports, in practice, of what went wrong.

// Two writers of one key: a reader sees one of their values whole, or none.
func TestTwoWritersNeverMix(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, Options{MemoryBytes: 128 << 20})
	const n = 8 << 20
	values := [][]byte{bytes.Repeat([]byte{0xaa}, n), bytes.Repeat([]byte{0xbb}, n)}
	var stop atomic.Bool
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() {
			for round := range 30 {
				put := s.Put
				if round%2 == 0 {
					put = s.Upsert
				}
				if err := put(ctx, "k", values[i], nil); err != nil && !errors.Is(err, ErrExists) {
					t.Errorf("put: %v", err)
				}
				if round%5 == 0 {
					_ = s.Remove("k", true)
				}
			}
			stop.Store(true)
		})
	}
	for range 2 {
		wg.Go(func() {
			buf := make([]byte, n)
			for !stop.Load() {
				got, err := s.GetInto(ctx, "k", buf, nil)
				if errors.Is(err, ErrNotFound) || errors.Is(err, ErrNotReady) {
					continue
				}
				if err != nil || got != n || !bytes.Equal(buf, values[0]) && !bytes.Equal(buf, values[1]) {
					t.Errorf("get: %d bytes, %v, or mixed", got, err)
				}
			}
		})
	}
	wg.Wait()
}

// What a reader has open stays, whatever happens to the key, its lease and the space.
func TestReadersKeepTheirBytes(t *testing.T) {
	ctx := context.Background()
	clock := newClock()
	s := openTest(t, Options{MemoryBytes: 16 << 20, LeaseTTL: 50 * time.Millisecond, Clock: clock.now, FileBytes: 4096})
	want := random(100_000)
	require.NoError(t, s.Put(ctx, "small", want, nil))
	require.NoError(t, s.Put(ctx, "own", want, &PutOptions{OwnFile: true}))
	small, err := s.View(ctx, "small", nil)
	require.NoError(t, err)
	own, err := s.View(ctx, "own", nil)
	require.NoError(t, err)
	file, err := s.File(ctx, "own", nil)
	require.NoError(t, err)
	clock.advance(time.Hour)
	require.ErrorIs(t, s.Remove("small", false), ErrHasLease, "a view is open")
	require.NoError(t, s.Remove("small", true))
	require.NoError(t, s.Upsert(ctx, "own", random(5000), nil))
	for i := range 1000 { // fill the memory several times over
		require.NoError(t, s.Put(ctx, fmt.Sprint(i), random(60_000), nil))
		clock.advance(time.Minute)
	}
	require.True(t, bytes.Equal(want, small.Bytes()))
	require.True(t, bytes.Equal(want, own.Bytes()))
	got, err := os.ReadFile(file.Path())
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
	require.NoError(t, small.Close())
	require.NoError(t, own.Close())
	require.NoError(t, file.Close())
	requireEmptied(t, s)
}

// Probes must not keep a full store full: a put returns at once, and a counter says what was in the way.
func TestLeasesBlockEviction(t *testing.T) {
	ctx := context.Background()
	clock := newClock()
	s := openTest(t, Options{MemoryBytes: 16 << 20, Clock: clock.now})
	keys := fill16(t, s, nil)
	found := make([]bool, len(keys))
	require.NoError(t, s.ExistsBatch(keys, found))
	err := s.Put(ctx, "new", random(4<<20), nil)
	require.ErrorIs(t, err, ErrNoSpace)
	require.ErrorContains(t, err, "leased")
	require.ErrorContains(t, err, `"new"`)
	require.Positive(t, s.Counters().EvictionsLeased)
	ok, err := s.Exists(keys[0])
	require.NoError(t, err)
	require.True(t, ok)
	clock.advance(11 * time.Second)
	for _, key := range keys { // a probe grants nothing
		ok, err := s.Probe(key)
		require.NoError(t, err)
		require.True(t, ok)
	}
	require.NoError(t, s.Put(ctx, "new", random(4<<20), nil))
}

// fill16 fills a store of 16 MiB with objects of 100 kB, until the first that would not fit or drives another out.
func fill16(t *testing.T, s *Store, opts *PutOptions) (keys []string) {
	t.Helper()
	require.NoError(t, s.WaitReady(context.Background()))
	for i := 0; ; i++ {
		u, err := s.Usage()
		require.NoError(t, err)
		if u.DataFree < u.DataCapacity/8 {
			return keys
		}
		keys = append(keys, fmt.Sprintf("fill-%d", i))
		require.NoError(t, s.Put(context.Background(), keys[i], random(100_000), opts))
	}
}

// A batch under pressure: what did not fit is told per key, is not there, and fits when put again.
func TestBatchUnderPressure(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, Options{MemoryBytes: 16 << 20})
	require.NoError(t, s.WaitReady(ctx))
	var items []PutItem
	for i := range 100 {
		items = append(items, PutItem{fmt.Sprint(i), [][]byte{random(150_000 + i)}, &PutOptions{HardPin: true}})
	}
	var stored []string
	var again []PutItem
	for i, err := range s.PutBatch(ctx, items) {
		ok, e := s.Exists(items[i].Key)
		require.NoError(t, e)
		require.Equal(t, err == nil, ok, items[i].Key)
		if err != nil {
			require.ErrorIs(t, err, ErrNoSpace)
			again = append(again, items[i])
		} else {
			stored = append(stored, items[i].Key)
		}
	}
	require.Greater(t, len(again), 20)
	require.Less(t, len(again), 80)
	for i := range min(len(stored), len(again)+1) {
		require.NoError(t, s.Remove(stored[i], true))
	}
	for _, err := range s.PutBatch(ctx, again) {
		require.NoError(t, err)
	}
}

// A writer that stopped holds its key until the time-out, then another may put it; its late commit is refused.
func TestAbandonedPut(t *testing.T) {
	ctx := context.Background()
	clock := newClock()
	s := openTest(t, Options{Clock: clock.now, PutTimeout: time.Second})
	w, err := s.Create(ctx, "k", 1<<20, nil)
	require.NoError(t, err)
	_, err = w.Write(random(1 << 19))
	require.NoError(t, err)
	require.ErrorIs(t, s.Put(ctx, "k", random(5), nil), ErrExists)
	_, err = s.Get(ctx, "k", nil)
	require.ErrorIs(t, err, ErrNotReady)
	require.ErrorIs(t, s.Remove("k", true), ErrNotReady)
	clock.advance(700 * time.Millisecond)
	_, err = w.Write(random(1 << 10)) // a sign of life
	require.NoError(t, err)
	clock.advance(700 * time.Millisecond)
	require.ErrorIs(t, s.Put(ctx, "k", random(5), nil), ErrExists)
	clock.advance(700 * time.Millisecond)
	require.NoError(t, s.Put(ctx, "k", random(5), nil))
	_, err = w.Write(random(1 << 10))
	require.ErrorIs(t, err, ErrNotWriter)
	require.Error(t, w.Commit(ctx))
	got, err := s.Get(ctx, "k", nil)
	require.NoError(t, err)
	require.Equal(t, random(5), got)
	requireEmptied(t, s)
}

// Hard pins survive pressure and give way to a removal.
func TestHardPinsSurvivePressure(t *testing.T) {
	ctx := context.Background()
	clock := newClock()
	s := openTest(t, Options{MemoryBytes: 16 << 20, Clock: clock.now})
	hard := &PutOptions{HardPin: true}
	puts := map[string]func(key string) error{
		"put":   func(k string) error { return s.Put(ctx, k, random(1000), hard) },
		"parts": func(k string) error { return s.PutParts(ctx, k, [][]byte{random(1000)}, hard) },
		"from":  func(k string) error { return s.PutFrom(ctx, k, strings.NewReader(string(random(1000))), 1000, hard) },
		"batch": func(k string) error { return s.PutBatch(ctx, []PutItem{{k, [][]byte{random(1000)}, hard}})[0] },
		"upsert": func(k string) error {
			return errors.WithMessage(s.Upsert(ctx, k, random(1000), hard), "upsert")
		},
		"kept by upsert": func(k string) error {
			require.NoError(t, s.Put(ctx, k, random(5), hard))
			return s.Upsert(ctx, k, random(1000), nil)
		},
		"later": func(k string) error {
			require.NoError(t, s.Put(ctx, k, random(1000), nil))
			return s.SetPins(k, PinChange{HardPin: new(true)})
		},
		"group": func(k string) error {
			require.NoError(t, s.Put(ctx, k, random(1000), &PutOptions{Group: "g"}))
			return s.SetGroupPins("g", PinChange{HardPin: new(true)})
		},
		"target of a pinned link": func(k string) error {
			require.NoError(t, s.Put(ctx, k, random(1000), nil))
			return s.Link(ctx, k+"'s link", k, hard)
		},
	}
	for key, put := range puts {
		require.NoError(t, put(key), key)
	}
	for i := range 500 {
		clock.advance(time.Minute)
		require.NoError(t, s.Put(ctx, fmt.Sprint(i), random(100_000), nil))
	}
	for key := range puts {
		got, err := s.Get(ctx, key, nil)
		require.NoError(t, err, key)
		require.True(t, bytes.Equal(random(1000), got), key)
		require.NoError(t, s.Remove(key, true), key)
	}
}

// Soft pins leave last, but they leave.
func TestSoftPinsLeaveLast(t *testing.T) {
	ctx := context.Background()
	clock := newClock()
	s := openTest(t, Options{MemoryBytes: 16 << 20, Clock: clock.now})
	require.NoError(t, s.Put(ctx, "soft", random(100_000), &PutOptions{SoftPin: 2 * time.Hour}))
	require.NoError(t, s.Put(ctx, "plain", random(100_000), nil))
	put := func(n int, opts *PutOptions) {
		for range n {
			clock.advance(time.Second)
			require.NoError(t, s.Put(ctx, fmt.Sprint(clock.ns.Load()), random(100_000), opts))
		}
	}
	put(300, nil)
	require.False(t, probe(t, s, "plain"))
	require.True(t, probe(t, s, "soft"))
	put(300, &PutOptions{SoftPin: MaxSoftPin})
	require.False(t, probe(t, s, "soft"), "soft pins alone fill the memory")
	require.NoError(t, s.Put(ctx, "expired", random(100_000), &PutOptions{SoftPin: time.Second}))
	put(300, &PutOptions{SoftPin: MaxSoftPin})
	require.False(t, probe(t, s, "expired"))
}

func probe(t *testing.T, s *Store, key string) bool {
	t.Helper()
	ok, err := s.Probe(key)
	require.NoError(t, err)
	return ok
}

// A lease refuses a removal, force does not care; two reads inside the lease both succeed.
func TestLeaseAndForcedRemoval(t *testing.T) {
	ctx := context.Background()
	clock := newClock()
	s := openTest(t, Options{Clock: clock.now})
	require.NoError(t, s.Put(ctx, "k", random(100), nil))
	require.NoError(t, s.Remove("k", false), "a put grants no lease")
	for range 2 {
		require.NoError(t, s.Upsert(ctx, "k", random(100), nil))
		_, err := s.Get(ctx, "k", nil)
		require.NoError(t, err)
		clock.advance(9 * time.Second)
		require.ErrorIs(t, s.Remove("k", false), ErrHasLease)
		_, err = s.Get(ctx, "k", nil)
		require.NoError(t, err)
		clock.advance(9 * time.Second)
		require.ErrorIs(t, s.Remove("k", false), ErrHasLease)
		n, err := s.RemoveRegex(ctx, "k", false)
		require.NoError(t, err)
		require.Zero(t, n)
	}
	require.NoError(t, s.Remove("k", true))
	ok, err := s.Exists("k")
	require.NoError(t, err)
	require.False(t, ok)
	require.NoError(t, s.Put(ctx, "k", random(100), nil))
	_, err = s.Get(ctx, "k", nil)
	require.NoError(t, err)
	clock.advance(11 * time.Second)
	require.NoError(t, s.Remove("k", false))
}

// Members of a group leave together.
func TestGroupsLeaveWhole(t *testing.T) {
	for name, opts := range map[string]Options{"memory": {}, "directory": {Dir: t.TempDir(), SSDBytes: 24 << 20}} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			clock := newClock()
			opts.MemoryBytes, opts.Clock = 16<<20, clock.now
			s := openTest(t, opts)
			for i := range 600 {
				clock.advance(20 * time.Second)
				for _, half := range []string{"k", "v"} {
					require.NoError(t, s.Put(ctx, fmt.Sprint(half, i), random(50_000), &PutOptions{Group: fmt.Sprint("g", i)}))
				}
			}
			left := 0
			func() {
				s.evicting.memory.Lock() // the background goes on, and could take a group between two looks at it
				defer s.evicting.memory.Unlock()
				for i := range 600 {
					k, v := probe(t, s, fmt.Sprint("k", i)), probe(t, s, fmt.Sprint("v", i))
					require.Equal(t, k, v, "group %d", i)
					names, err := s.Group(fmt.Sprint("g", i))
					require.Equal(t, !k, errors.Is(err, ErrGroupNotFound), "group %d: %v", i, err)
					if k {
						left++
						require.Equal(t, []string{fmt.Sprint("k", i), fmt.Sprint("v", i)}, names)
					}
				}
			}()
			require.Positive(t, left)
			require.Less(t, left, 600)
			gone := s.Explain("k0")
			require.NotEmpty(t, gone)
			require.Equal(t, Evicted, gone[len(gone)-1].What)
			requireEmptied(t, s)
		})
	}
}

// Keys are opaque: none is a path, none meets another.
func TestKeysNeverCollide(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	opts := testOptions(t, Options{Dir: filepath.Join(dir, "store")})
	s, err := Open(ctx, opts)
	require.NoError(t, err)
	keys := []string{"a/b", "a:b", "a*b", "a_b", "../x", "/etc/x", "a\x00b", "a", "ab", "\xff\xfe", strings.Repeat("k", 300),
		strings.Repeat("k", MaxKeyBytes), ".", "..", "a\nb"}
	check := func() {
		for i, key := range keys {
			got, err := s.Get(ctx, key, nil)
			require.NoError(t, err, "%.50q", key)
			require.True(t, bytes.Equal(random(100+i), got), "%.50q", key)
		}
	}
	for i, key := range keys {
		require.NoError(t, s.Put(ctx, key, random(100+i), &PutOptions{Durable: true}))
	}
	check()
	require.NoError(t, s.Close())
	loseMemory(t, opts)
	s, err = Open(ctx, opts)
	require.NoError(t, err)
	check()
	require.NoError(t, s.Close())
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing lies outside of the store's directory")
}

// loseMemory does to a closed store what a reboot does.
func loseMemory(t *testing.T, opts Options) {
	t.Helper()
	require.NoError(t, os.RemoveAll(opts.ShmDir))
	require.NoError(t, os.Mkdir(opts.ShmDir, 0o755))
}

// After eviction to SSD every key that is listed reads at its original size.
func TestEvictedToSSDReadsWhole(t *testing.T) {
	ctx := context.Background()
	clock := newClock()
	s := openTest(t, Options{Dir: t.TempDir(), MemoryBytes: 16 << 20, Clock: clock.now})
	for i := range 400 {
		clock.advance(time.Minute)
		require.NoError(t, s.Put(ctx, fmt.Sprint(i), random(100_000+i), nil))
	}
	require.Positive(t, s.Counters().EvictedKeys[TierMemory])
	listed := 0
	for info, err := range s.Objects(ctx, "") {
		require.NoError(t, err)
		got, err := s.Get(ctx, info.Key, nil)
		require.NoError(t, err, info.Key)
		var i int
		_, err = fmt.Sscan(info.Key, &i)
		require.NoError(t, err)
		require.True(t, bytes.Equal(random(100_000+i), got), info.Key)
		listed++
	}
	require.Equal(t, 400, listed, "nothing had to go")
	require.Zero(t, s.Counters().OffloadFailures)
}

// Calls that fail leave nothing behind.
func TestFailuresLeaveNothing(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, Options{Dir: t.TempDir(), MemoryBytes: 16 << 20, SSDBytes: 16 << 20, FileBytes: 4096})
	require.NoError(t, s.WaitReady(ctx))
	require.NoError(t, s.Put(ctx, "there", random(100), nil))
	before, err := s.Usage()
	require.NoError(t, err)
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	buf := make([]byte, 50)
	for i := range 2000 {
		size := 1 + i%40_000
		require.Error(t, second(s.GetInto(ctx, "there", buf, nil)))
		require.Error(t, second(s.Get(ctx, "absent", nil)))
		require.Error(t, second(s.Get(cancelled, "there", nil)))
		require.Error(t, second(s.File(ctx, "there", nil)))
		require.Error(t, s.Put(ctx, "there", random(size), nil))
		require.Error(t, s.Put(cancelled, "k", random(size), nil))
		require.Error(t, s.Put(cancelled, "k", random(size), &PutOptions{OwnFile: true}))
		require.Error(t, s.Put(cancelled, "k", random(size), &PutOptions{Durable: true, OwnFile: i%2 == 0, Group: "g"}))
		require.Error(t, s.PutFrom(ctx, "k", strings.NewReader("x"), int64(size+1), &PutOptions{OwnFile: true}))
		require.Error(t, s.PutFrom(ctx, "k", strings.NewReader("x"), int64(size+1), &PutOptions{OwnFile: true, Durable: i%10 == 0}))
		require.Error(t, s.Put(ctx, "k", nil, nil))
	}
	eventually(t, "usage as before", func() bool {
		after, err := s.Usage()
		require.NoError(t, err)
		after.SSDOnDisk = before.SSDOnDisk
		after.RecordBytes, after.IndexBytes = before.RecordBytes, before.IndexBytes
		return after == before
	})
}

// A put of an existing key is an error in Go and keeps the old bytes; an object is readable as soon as it exists.
func TestPutOfAnExistingKey(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, Options{})
	require.NoError(t, s.Put(ctx, "k", random(100), nil))
	err := s.Put(ctx, "k", random(200), nil)
	require.ErrorIs(t, err, ErrExists)
	require.Equal(t, -705, Code(err))
	ok, err := s.Exists("k")
	require.NoError(t, err)
	require.True(t, ok)
	got, err := s.Get(ctx, "k", nil)
	require.NoError(t, err)
	require.Equal(t, random(100), got)
}

// A large put right after Open waits for its memory, not for luck.
func TestLargePutRightAfterOpen(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, Options{MemoryBytes: 256 << 20})
	p := random(200 << 20)
	require.NoError(t, s.Put(ctx, "k", p, nil))
	v, err := s.View(ctx, "k", nil)
	require.NoError(t, err)
	require.True(t, bytes.Equal(p, bytes.Join(v.Segments(), nil)))
	require.NoError(t, v.Close())
}

// Weights need a file of their own in a memory that small cache objects have filled: the cache gives way.
func TestWeightAmongCache(t *testing.T) {
	ctx := context.Background()
	clock := newClock()
	s := openTest(t, Options{MemoryBytes: 32 << 20, Clock: clock.now})
	require.NoError(t, s.WaitReady(ctx))
	for i := range 40_000 {
		clock.advance(time.Second)
		require.NoError(t, s.Put(ctx, fmt.Sprint(i*7919%40_000), random(1000+i%500), &PutOptions{Type: KVCache}))
	}
	for i := range 5 {
		clock.advance(time.Minute)
		require.NoError(t, s.Put(ctx, fmt.Sprint("weight", i), random(4<<20), &PutOptions{Type: Weight, HardPin: true}), "weight %d", i)
	}
	requireEmptied(t, s)
}

// Tenants never meet.
func TestTenantsApart(t *testing.T) {
	ctx := context.Background()
	opts := testOptions(t, Options{Dir: t.TempDir()})
	s, err := Open(ctx, opts)
	require.NoError(t, err)
	tenants := []string{"", "a", "b"}
	check := func() {
		for i, name := range tenants {
			x, err := s.Tenant(name)
			require.NoError(t, err)
			got, err := x.Get(ctx, "k", nil)
			require.NoError(t, err)
			require.Equal(t, random(100+i), got)
			names, err := x.Group("g")
			require.NoError(t, err)
			require.Equal(t, []string{"k"}, names)
			n := 0
			for range x.Objects(ctx, "") {
				n++
			}
			require.Equal(t, 1, n)
		}
	}
	for i, name := range tenants {
		x, err := s.Tenant(name)
		require.NoError(t, err)
		require.NoError(t, x.Put(ctx, "k", random(100+i), &PutOptions{Group: "g", Durable: i == 1}))
	}
	check()
	require.NoError(t, s.Close())
	s, err = Open(ctx, opts)
	require.NoError(t, err)
	check()
	d, err := s.Tenant("default")
	require.NoError(t, err)
	n, err := d.RemoveAll(ctx, true)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	a, err := s.Tenant("a")
	require.NoError(t, err)
	require.True(t, probe(t, a, "k"))
	require.ErrorIs(t, s.Link(ctx, "x", "k", nil), ErrNotFound, "the target is another tenant's")
	require.NoError(t, s.Close())
}

// Reading batches look at the clock once, and many pieces of one object are one read for the promotion filter.
func TestBatchesCostOneCall(t *testing.T) {
	ctx := context.Background()
	clock := newClock()
	var reads atomic.Int32
	counting := func() time.Time { reads.Add(1); return clock.now() }
	s := openTest(t, Options{Dir: t.TempDir(), Clock: counting, PromoteAfter: 3})
	const n = 100
	items, ranges, keys := make([]GetItem, n), make([]RangeRead, n), make([]string, n)
	for i := range n {
		keys[i] = fmt.Sprint(i)
		require.NoError(t, s.Put(ctx, keys[i], random(50), nil))
		items[i] = GetItem{Key: keys[i], Dst: [][]byte{make([]byte, 50)}}
		ranges[i] = RangeRead{Key: keys[i], Fragments: []Fragment{{0, make([]byte, 7)}, {7, make([]byte, 7)}}}
	}
	for name, call := range map[string]func(){
		"GetBatch":    func() { s.GetBatch(ctx, items, nil) },
		"GetRanges":   func() { require.NoError(t, s.GetRanges(ctx, ranges, nil)) },
		"StatBatch":   func() { s.StatBatch(keys) },
		"ExistsBatch": func() { require.NoError(t, s.ExistsBatch(keys, make([]bool, n))) },
	} {
		before := reads.Load()
		call()
		require.LessOrEqual(t, reads.Load()-before, int32(5), "%s, with what the background does", name)
	}
	for i := range n {
		require.NoError(t, items[i].Err)
		require.NoError(t, ranges[i].Err)
	}
	require.NoError(t, s.Put(ctx, "ssd", random(2<<20), &PutOptions{Durable: true, Type: Weight}))
	one := []RangeRead{{Key: "ssd"}}
	for i := range 10 {
		one[0].Fragments = append(one[0].Fragments, Fragment{int64(i) * 1000, make([]byte, 1000)})
	}
	for range 2 {
		require.NoError(t, s.GetRanges(ctx, one, nil))
		require.NoError(t, one[0].Err)
	}
	require.Empty(t, s.promo.queue, "two reads")
	require.Zero(t, s.Counters().Promotions)
	require.NoError(t, s.GetRanges(ctx, one, nil))
	eventually(t, "promotion after the third", func() bool { return s.Counters().Promotions == 1 })
}
