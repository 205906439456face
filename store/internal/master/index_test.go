package master

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// A shard holds what a map holds, with hashes that all collide and with ones that never do, while it grows, shrinks
// and wraps around its end.
func TestShardAgainstMap(t *testing.T) {
	r := seeded(t)
	for _, hashes := range []uint64{1, 3, 50, 1 << 32} {
		x := newIndex(nil, 1)
		s := &x.shards[0]
		want := map[Ref]uint64{}
		next := Ref(1)
		for step := range 10_000 {
			grow := step/2000%2 == 0 // phases in which it grows, and ones in which it shrinks
			if len(want) == 0 || r.IntN(10) < 4 || grow && r.IntN(2) == 0 {
				h := r.Uint64N(hashes) - hashes/2 // both ends of a table
				s.insert(h, next)
				want[next] = h
				next++
			} else {
				gone := slices.Collect(maps.Keys(want))[0]
				s.remove(want[gone], gone)
				require.False(t, s.holds(want[gone], gone))
				delete(want, gone)
			}
			if step%501 == 0 {
				checkShard(t, s, want)
			}
			if len(want) > 400 {
				for gone, h := range want {
					s.remove(h, gone)
					delete(want, gone)
				}
			}
		}
		checkShard(t, s, want)
		require.Panics(t, func() { s.remove(12345, next) })
	}
}

func checkShard(t *testing.T, s *shard, want map[Ref]uint64) {
	t.Helper()
	require.Equal(t, len(want), s.used)
	slots := s.slots()
	filled := 0
	for _, slot := range slots {
		if slot != 0 {
			filled++
			h, ok := want[Ref(slot)]
			require.True(t, ok)
			require.Equal(t, uint32(h), uint32(slot>>32))
		}
	}
	require.Equal(t, len(want), filled)
	for r, h := range want {
		require.True(t, s.holds(h, r), "every slot is reached from its home")
	}
	if len(slots) > minSlots {
		require.LessOrEqual(t, s.used*4, len(slots)*3)
		require.GreaterOrEqual(t, s.used*8, len(slots)/2)
	}
}

// Keys whose hashes are the same are told apart by the key, tenants included.
func TestKeysThatCollide(t *testing.T) {
	f := newFixture(t)
	s := &f.index.shards[0]
	const h = 42
	var refs []Ref
	for i := range 20 {
		q := ReserveRequest{Key: Key{[]string{"", "t"}[i%2], fmt.Sprint("k", i/2)}, Size: 1, Placement: OnSSD}
		r, err := f.newRecord(0, h, &q, nil)
		require.NoError(t, err)
		setState(f.Master.mem.at(r), Committed)
		s.insert(h, r)
		refs = append(refs, r)
	}
	for i, want := range refs {
		got, _ := f.index.committed(s, h, []string{"", "t"}[i%2], fmt.Sprint("k", i/2))
		require.Equal(t, want, got)
		none, _ := f.index.sibling(s, h, want)
		require.Zero(t, none)
	}
	none, _ := f.index.committed(s, h, "", "k")
	require.Zero(t, none)
}

func TestLocksAreASortedSet(t *testing.T) {
	r := seeded(t)
	x := newIndex(nil, 64)
	for range 200 {
		l := locks{x: x}
		want := map[uint32]bool{}
		for range r.IntN(40) {
			before, n := l, slices.Clone(l.ids())
			h := r.Uint64()
			l = l.with(h)
			want[x.shardIndex(h)] = true
			require.Equal(t, n, slices.Clone(before.ids()), "the set it was called on changed")
		}
		require.Equal(t, len(want), l.n)
		require.ElementsMatch(t, slices.Collect(maps.Keys(want)), l.ids())
		require.True(t, slices.IsSorted(l.ids()))
		l.lock()
		l.unlock()
	}
}

func TestLocksDoNotAllocate(t *testing.T) {
	x := newIndex(nil, 64)
	n := testing.AllocsPerRun(100, func() {
		l := locks{x: x}.with(1 << 60).with(2 << 60).with(3 << 60).with(4 << 60)
		l.lock()
		l.unlock()
	})
	require.Zero(t, n)
}

func TestPoolClasses(t *testing.T) {
	for size := int64(1); size <= maxRecord; size += 1 + size/1000 {
		c := classOf(size)
		require.GreaterOrEqual(t, classSizes[c], size)
		require.True(t, c == 0 || classSizes[c-1] < size, "the smallest class for %d", size)
		if size > recordBytes {
			require.LessOrEqual(t, classSizes[c]-size, max(15, size/8), "waste for %d", size)
		}
	}
	require.Equal(t, -1, classOf(maxRecord+1))
	largest := recordSize(MaxTenantBytes, MaxKeyBytes, MaxExtents)
	require.LessOrEqual(t, largest, int64(maxRecord), "the largest record fits a page")
}

// Records don't overlap, come back zeroed, and a page that is empty serves another class.
func TestPoolAgainstMap(t *testing.T) {
	r := seeded(t)
	p := newPool(make(memory, 4<<20))
	p.add(0, 4<<20)
	live := map[Ref]int64{}
	taken := map[Ref]Ref{} // unit to record
	for step := range 30_000 {
		full := step/5000%2 == 0
		if len(live) == 0 || r.IntN(3) == 0 || full && r.IntN(2) == 0 {
			size := recordSize(r.IntN(3), 1+r.IntN(1<<(1+r.IntN(12))), r.IntN(4))
			ref := p.alloc(size, r.Uint32())
			if ref == 0 {
				free, _ := p.room()
				require.Zero(t, free, "pages are left")
				for gone, size := range live {
					dropRecord(p, gone, size, live, taken)
				}
				continue
			}
			require.Equal(t, record{}, *p.mem.at(ref))
			require.True(t, p.isRecord(ref))
			live[ref] = size
			for u := range Ref((size + refUnit - 1) / refUnit) {
				require.Zero(t, taken[ref+u], "overlap")
				taken[ref+u] = ref
			}
			continue
		}
		for gone, size := range live {
			dropRecord(p, gone, size, live, taken)
			break
		}
	}
	for gone, size := range live {
		dropRecord(p, gone, size, live, taken)
	}
	free, usable := p.room()
	require.GreaterOrEqual(t, int(free), int(usable)-1-len(classSizes)*poolStripes, "pages are not given back")
	require.Equal(t, int64(usable-free)*pageBytes, p.used())
	p.trim()
	require.Zero(t, p.used(), "trim gives every page back")
	off, ok := p.takeStep(0, true)
	require.False(t, ok, "the last step ends in pages that are never used: %d", off)
	off, ok = p.takeStep(0, false)
	require.False(t, ok, "the first step holds page 0: %d", off)
}

func dropRecord(p *pool, r Ref, size int64, live map[Ref]int64, taken map[Ref]Ref) {
	delete(live, r)
	for u := range Ref((size + refUnit - 1) / refUnit) {
		delete(taken, r+u)
	}
	p.mem.at(r).word = uint64(Free)
	p.release(r)
}

func TestPoolGrows(t *testing.T) {
	p := newPool(make(memory, 1<<20))
	require.Zero(t, p.alloc(100, 0), "nothing is usable yet")
	p.add(0, 2*pageBytes) // one page
	require.NotZero(t, p.alloc(100, 0))
	require.Zero(t, p.alloc(1000, 0))
	p.add(0, 1<<20)
	p.add(0, 1) // never shrinks
	require.NotZero(t, p.alloc(1000, 0))
	p.add(0, 1<<40) // more than there is
	_, usable := p.room()
	require.EqualValues(t, 1<<20/pageBytes-slackPages-1, usable)
}

func TestPoolConcurrently(t *testing.T) {
	p := newPool(make(memory, 4<<20))
	p.add(0, 4<<20)
	var wg sync.WaitGroup
	for g := range uint32(4) {
		wg.Go(func() {
			for i := range 3000 {
				var mine []Ref
				for range i % 30 {
					if r := p.alloc(int64(100+i%500), g+uint32(i)); r != 0 {
						p.mem.at(r).gen = uint64(g)
						mine = append(mine, r)
					}
				}
				for _, r := range mine {
					if p.mem.at(r).gen != uint64(g) {
						panic("somebody else has the record")
					}
					p.release(r)
				}
			}
		})
	}
	wg.Wait()
	for n := uint32(1); n < p.limit(); n++ {
		require.Zero(t, p.page(n).used)
	}
}
