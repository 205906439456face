package master

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store/internal/arena"
	"github.com/kvcache-ai/mooncake-go/store/internal/policy"
)

const (
	testDiscard = 30 * time.Second
	testRelease = 600 * time.Second
	testSlab    = 256 << 10
	second      = int64(time.Second)
)

// fixture is a master with one segment and a clock that stands still until it is told otherwise.
type fixture struct {
	*Master
	t     testing.TB
	alloc *arena.Allocator
	mem   []byte // of the records
	now   int64
	empty arena.Stats
}

type sizes struct {
	shards        int
	records, data int64
}

func newFixture(t testing.TB) *fixture { return newFixtureOf(t, sizes{8, 4 << 20, 4 << 20}) }

func newFixtureOf(t testing.TB, n sizes) *fixture {
	f := &fixture{t: t, mem: newRecords(t, n.records), now: 1000 * second}
	f.alloc = newAllocator(n.data)
	f.Master = New(Options{Records: f.mem, Shards: n.shards, DiscardTimeout: testDiscard, ReleaseTimeout: testRelease})
	f.Mount(0, f.alloc)
	f.GrowRecords(n.records)
	f.empty = f.alloc.Stats()
	return f
}

// newRecords is memory for records. Benchmarks with many get it from huge pages, as a store does.
func newRecords(t testing.TB, n int64) []byte {
	if n < 64<<20 {
		return make([]byte, n)
	}
	mem, err := syscall.Mmap(-1, 0, int(n), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	_ = syscall.Madvise(mem, 14) // MADV_HUGEPAGE
	t.Cleanup(func() { _ = syscall.Munmap(mem) })
	return mem
}

func newAllocator(data int64) *arena.Allocator {
	a := arena.NewAllocator(testSlab)
	for off := int64(0); off < data; off += testSlab {
		a.AddRange(off, min(testSlab, data-off))
	}
	return a
}

// restart is a new master over a copy of f's records, as after a crash.
func (f *fixture) restart() (*fixture, Restored) {
	g := newFixtureOf(f.t, sizes{len(f.index.shards), int64(len(f.mem)), f.empty.Capacity})
	copy(g.mem, f.mem)
	g.now = f.now
	files := map[uint64]bool{}
	return g, g.Restore(attachOnce(files))
}

func attachOnce(files map[uint64]bool) func(uint64, int64) error {
	return func(id uint64, _ int64) error {
		if files[id] {
			return fmt.Errorf("file %d is taken", id)
		}
		files[id] = true
		return nil
	}
}

func key(name string) Key { return Key{"", name} }

func request(name string, size int64) ReserveRequest {
	return ReserveRequest{Key: key(name), Size: size, WriterPin: true}
}

func (f *fixture) reserve(q ReserveRequest) Object {
	f.t.Helper()
	o, err := f.Reserve(f.now, q)
	require.NoError(f.t, err)
	return o
}

// put commits an object, with a replica on the SSD tier too when loc is not zero.
func (f *fixture) put(q ReserveRequest, loc Loc) Object {
	f.t.Helper()
	o := f.reserve(q)
	_, err := f.Commit(f.now, o.Ref, o.Gen, 7, loc)
	require.NoError(f.t, err)
	return o
}

func (f *fixture) link(name, target, group string) {
	f.t.Helper()
	_, err := f.Link(f.now, LinkRequest{Key: key(name), Target: target, Group: group})
	require.NoError(f.t, err)
}

// victims is everything that may leave a tier now.
func (f *fixture) victims(tier Tier) []Victim {
	out, _ := f.Victims(f.now, tier, policy.Need{Bytes: 1 << 40}, policy.Config{})
	return out
}

func (f *fixture) victim(o Object) Victim {
	return Victim{Candidate: policy.Candidate{Ref: o.Ref, Size: o.Size}, Gen: o.Gen}
}

func (f *fixture) remove(names ...string) {
	f.t.Helper()
	for _, name := range names {
		gone, err := f.Remove(f.now, key(name), true)
		require.NoError(f.t, err, name)
		if gone.Pinned != 0 {
			f.Release(gone.Pinned)
		}
	}
}

// requireEmpty checks that nothing is left behind once all keys are gone.
func (f *fixture) requireEmpty() {
	f.t.Helper()
	f.Tick(1 << 62)
	st := f.alloc.Stats()
	require.Equal(f.t, f.empty.Free, st.Free, "space leaked")
	require.Equal(f.t, f.empty.Extents, st.Extents, "extents leaked")
	u := f.Usage()
	u.RecordMem, u.IndexMem = 0, 0
	require.Equal(f.t, Usage{}, u)
	require.Zero(f.t, f.liveRecords(), "records leaked")
	require.Empty(f.t, f.waiting.list)
	require.Empty(f.t, f.orphans.gens)
	for i := range f.index.shards {
		require.Zero(f.t, f.index.shards[i].used, "slots of shard %d leaked", i)
	}
}

// liveRecords counts the records that the pages say are in use, and checks that the pages' own counts agree.
func (f *fixture) liveRecords() (n int) {
	f.t.Helper()
	for page := uint32(1); page < f.pool.limit(); page++ {
		used := 0
		f.pool.each(page, func(_ Ref, rec *record) {
			if stateOf(loadWord(rec)) != Free {
				used++
			}
		})
		if pg := f.pool.page(page); pg.magic == pageMagic {
			require.Equal(f.t, int(pg.used), used, "records in use on page %d", page)
			n += used
		}
	}
	return n
}

// seeded is a source of random numbers that a failed test can be repeated with.
func seeded(t testing.TB) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("MASTER_TEST_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("MASTER_TEST_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}
