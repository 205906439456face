package arena

import (
	"flag"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// model is a naive allocator's view: one byte per granule.
type model struct {
	slab  int64 // granules
	state []byte
}

const (
	absent = iota
	free
	taken
)

func (m *model) is(e Extent, state byte) bool {
	for g := e.Off / Granule; g < (e.Off+e.Len+Granule-1)/Granule; g++ {
		if g >= int64(len(m.state)) || m.state[g] != state {
			return false
		}
	}
	return true
}

func (m *model) mark(e Extent, state byte) {
	for g := e.Off / Granule; g < (e.Off+e.Len+Granule-1)/Granule; g++ {
		m.state[g] = state
	}
}

// holes returns the sizes of the free runs inside slabs, largest first, and the idle slabs.
func (m *model) holes() (sizes []int64, idle []int64) {
	run := int64(0)
	for g := range int64(len(m.state)) + 1 {
		if run > 0 && (g == int64(len(m.state)) || g%m.slab == 0 || m.state[g] != free) {
			if run == m.slab {
				idle = append(idle, g/m.slab-1)
			}
			sizes = append(sizes, run)
			run = 0
		}
		if g < int64(len(m.state)) && m.state[g] == free {
			run++
		}
	}
	slices.Sort(sizes)
	slices.Reverse(sizes)
	return sizes, idle
}

// fits says whether the MaxExtents largest holes hold need granules.
func (m *model) fits(need int64) bool {
	sizes, _ := m.holes()
	for i, n := range sizes {
		if i == MaxExtents {
			break
		}
		need -= n
	}
	return need <= 0
}

var seedFlag = flag.Uint64("seed", 0, "seed of the random tests, to repeat a run; 0 is a new one")

func testSeed(t testing.TB) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("repeat with -seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// TestAllocatorAgainstModel applies random operations to an allocator and to a model of it and compares all they show.
func TestAllocatorAgainstModel(t *testing.T) {
	rng := testSeed(t)
	for range 8 {
		allocatorAgainstModel(t, rng)
	}
}

func allocatorAgainstModel(t *testing.T, rng *rand.Rand) {
	const slabBytes, slabs = 16 << 10, 12
	a := NewAllocator(slabBytes)
	m := &model{slab: slabBytes / Granule, state: make([]byte, slabs*slabBytes/Granule)}
	var live []Extent
	maxSize := []int64{300, 5000, slabBytes, 4 * slabBytes}[rng.IntN(4)]
	for step := range 1500 {
		switch op := rng.IntN(20); {
		case op < 3:
			off := rng.Int64N(slabs * slabBytes / 2048)
			e := Extent{off * 2048, 2048 * (1 + rng.Int64N(8))}
			if m.is(e, absent) {
				a.AddRange(e.Off, e.Len)
				m.mark(e, free)
			}
		case op < 11:
			size := rng.Int64N(maxSize) + 1
			got, ok := a.Alloc(size, nil)
			require.Equal(t, m.fits((size+Granule-1)/Granule), ok, "step %d: alloc %d", step, size)
			checkAlloc(t, m, size, got, ok)
			for _, e := range got {
				m.mark(e, taken)
			}
			live = append(live, got...)
		case op < 18 && len(live) > 0:
			i := rng.IntN(len(live))
			a.Free(live[i])
			m.mark(live[i], free)
			live = slices.Delete(live, i, i+1)
		case op == 18:
			e := Extent{rng.Int64N(slabs*slabBytes/Granule) * Granule, rng.Int64N(4000) + 1}
			inside := e.Off/slabBytes == (e.Off+e.Len-1)/slabBytes
			ok := inside && m.is(e, free)
			require.Equal(t, ok, a.Claim(e) == nil, "step %d: claim %v", step, e)
			if ok {
				m.mark(e, taken)
				live = append(live, e)
			}
		case op == 19:
			_, idle := m.holes()
			off, ok := a.TakeIdleSlab()
			require.Equal(t, len(idle) > 0, ok, "step %d: take idle slab", step)
			if ok {
				require.Equal(t, idle[len(idle)-1]*slabBytes, off)
				m.mark(Extent{off, slabBytes}, absent)
			}
		}
		if rng.IntN(4) == 0 { // seldom enough for the magazines to be used
			checkStats(t, m, a.Stats(), len(live))
		}
	}
	for _, e := range live {
		a.Free(e)
	}
	st := a.Stats()
	require.Equal(t, st.Capacity, st.Free)
	require.LessOrEqual(t, st.FreeBlocks, 8*st.Slabs)
}

// checkAlloc checks the extents of one allocation before the model takes them.
func checkAlloc(t *testing.T, m *model, size int64, got []Extent, ok bool) {
	t.Helper()
	if !ok {
		require.Empty(t, got)
		return
	}
	sizes, _ := m.holes()
	if sizes[0]*Granule >= size {
		require.Len(t, got, 1, "alloc %d with a hole of %d", size, sizes[0]*Granule)
	}
	total, seen := int64(0), map[int64]bool{}
	for i, e := range got {
		require.Zero(t, e.Off%Granule)
		require.Equal(t, e.Off/(m.slab*Granule), (e.Off+e.Len-1)/(m.slab*Granule), "crosses a slab")
		require.True(t, m.is(e, free), "extent %v is not free", e)
		require.False(t, seen[e.Off])
		seen[e.Off] = true
		if i < len(got)-1 {
			require.Equal(t, sizes[i]*Granule, e.Len, "not the largest hole")
		}
		total += e.Len
	}
	require.Equal(t, size, total)
}

func checkStats(t *testing.T, m *model, st Stats, extents int) {
	t.Helper()
	sizes, idle := m.holes()
	want := Stats{FreeBlocks: len(sizes), IdleSlabs: len(idle), Extents: extents}
	if len(sizes) > 0 {
		want.LargestFree = sizes[0] * Granule
	}
	for _, n := range sizes {
		want.Free += n * Granule
	}
	for k := 0; k < len(m.state); k += int(m.slab) {
		if n := m.slab - int64(countByte(m.state[k:k+int(m.slab)], absent)); n > 0 {
			want.Slabs++
			want.Capacity += n * Granule
		}
	}
	require.Equal(t, want, st)
}

func countByte(p []byte, c byte) (n int) {
	for _, b := range p {
		if b == c {
			n++
		}
	}
	return n
}

func TestBitset(t *testing.T) {
	rng := testSeed(t)
	for _, n := range []int{1, 63, 64, 65, 4096, 4097, 300000} {
		b, in := newBitset(n), make([]bool, n)
		for range 2000 {
			if i := rng.IntN(n); rng.IntN(3) > 0 {
				b.set(i)
				in[i] = true
			} else {
				b.clear(i)
				in[i] = false
			}
			i := rng.IntN(n)
			next, prev := i, i
			for next < n && !in[next] {
				next++
			}
			if next == n {
				next = -1
			}
			for prev >= 0 && !in[prev] {
				prev--
			}
			require.Equal(t, next, b.next(i), "n %d: next %d", n, i)
			require.Equal(t, prev, b.prev(i), "n %d: prev %d", n, i)
			require.Equal(t, in[i], b.has(i))
		}
	}
}

// TestFragmentation keeps an arena at 95 % with random sizes and replacements in random order.
func TestFragmentation(t *testing.T) {
	rng := testSeed(t)
	const capacity = 8 << 30
	a := NewAllocator(SlabBytes(capacity))
	a.AddRange(0, capacity)
	size := func() int64 { return 4<<10 + rng.Int64N(4<<20-4<<10) }
	var live [][]Extent
	used, split, allocs := int64(0), 0, 0
	for range 100_000 {
		n := size()
		for used+n > capacity/100*95 {
			i := rng.IntN(len(live))
			for _, e := range live[i] {
				used -= e.Len
				a.Free(e)
			}
			live[i] = live[len(live)-1]
			live = live[:len(live)-1]
		}
		got, ok := a.Alloc(n, nil)
		require.True(t, ok, "alloc %d with %+v", n, a.Stats())
		allocs++
		if len(got) > 1 {
			split++
		}
		used += n
		live = append(live, got)
	}
	t.Logf("%d allocations at 95 %%: %.2f %% split; %+v", allocs, 100*float64(split)/float64(allocs), a.Stats())
	require.Less(t, split*20, allocs, "more than 5 %% of the allocations were split")
}

func TestSlabBytes(t *testing.T) {
	for budget, want := range map[int64]int64{
		0: 2 << 20, 1 << 20: 2 << 20, 128 << 20: 2 << 20, 255 << 20: 2 << 20, 256 << 20: 4 << 20, 1 << 30: 16 << 20,
		3 << 30: 32 << 20, 4 << 30: 64 << 20, 1 << 40: 64 << 20,
	} {
		require.Equal(t, want, SlabBytes(budget), "budget %d", budget)
	}
}

func TestFreePanics(t *testing.T) {
	fresh := func() (*Allocator, []Extent) {
		a := NewAllocator(2 << 20)
		a.AddRange(0, 2<<20)
		var es []Extent
		for i := range int64(8) {
			es = append(es, Extent{i * 4096, 4096})
			require.NoError(t, a.Claim(es[i]))
		}
		return a, es
	}
	for name, e := range map[string]Extent{
		"twice": {4096, 4096}, "inside its left part": {4096, 64}, "inside its right part": {8128, 64},
		"unaligned": {5, 64}, "outside": {4 << 20, 64}, "never added": {2 << 20, 64}, "across slabs": {2<<20 - 64, 128},
		"empty": {0, 0}, "negative": {-64, 64}, "free tail": {8 * 4096, 64},
	} {
		t.Run(name, func(t *testing.T) {
			a, es := fresh()
			a.Free(es[1])
			a.Stats()
			require.Panics(t, func() { a.Free(e); a.Stats() })
			require.NotPanics(t, func() { a.Free(es[3]); a.Stats() }, "the locks are free after a panic")
		})
	}
	a, _ := fresh()
	require.Panics(t, func() { a.AddRange(0, 64) })
	require.Panics(t, func() { a.AddRange(1<<62, 1<<62) })
	require.Panics(t, func() { a.AddRange(10, 64) })
	require.Panics(t, func() { NewAllocator(3 << 20) })
}

// TestTooManyExtents checks the bound, that failing changes nothing, and that parts are large holes.
func TestTooManyExtents(t *testing.T) {
	a := NewAllocator(2 << 20)
	a.AddRange(0, 2<<20)
	for off := int64(0); off < 2<<20; off += 4 * Granule { // 8192 holes of 3 granules
		require.NoError(t, a.Claim(Extent{off, 1}))
	}
	before := a.Stats()
	_, ok := a.Alloc(MaxExtents*3*Granule+1, nil)
	require.False(t, ok)
	require.Equal(t, before, a.Stats())
	es, ok := a.Alloc(MaxExtents*3*Granule, nil)
	require.True(t, ok)
	require.Len(t, es, MaxExtents)
}

// TestSteadyStateAllocatesNothing checks that Alloc and Free leave the Go heap alone.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	a, live := filled(1<<30, func(i int) int64 { return 4<<10 + int64(i*7919%(256<<10)) })
	buf := make([]Extent, 0, MaxExtents)
	i := 0
	require.Zero(t, testing.AllocsPerRun(10_000, func() {
		i = (i + 7919) % len(live)
		a.Free(live[i])
		got, ok := a.Alloc(live[i].Len, buf[:0])
		if !ok || len(got) != 1 {
			panic("no space for what was just freed")
		}
		live[i] = got[0]
	}))
}

func TestAllocatorConcurrent(t *testing.T) {
	const workers = 4
	a := NewAllocator(2 << 20)
	a.AddRange(0, 64<<20)
	owner := make([]int32, 64<<20/Granule)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 2))
			var mine []Extent
			for range 5000 {
				if len(mine) < 50 {
					n := len(mine)
					mine, _ = a.Alloc(1+rng.Int64N([]int64{4 << 10, 200 << 10}[rng.IntN(2)]), mine)
					for _, e := range mine[n:] {
						owner[e.Off/Granule] = int32(w) // the race detector sees an extent given twice
					}
				} else {
					i := rng.IntN(len(mine))
					if owner[mine[i].Off/Granule] != int32(w) {
						panic("extent is someone else's")
					}
					a.Free(mine[i])
					mine = slices.Delete(mine, i, i+1)
				}
				if rng.IntN(100) == 0 { // seldom enough for the magazines to be used
					if off, ok := a.TakeIdleSlab(); ok {
						a.AddRange(off, 2<<20)
					}
				}
			}
			for _, e := range mine {
				a.Free(e)
			}
		})
	}
	wg.Wait()
	const total = 64 << 20
	want := Stats{Capacity: total, Free: total, LargestFree: 2 << 20, FreeBlocks: 32, Slabs: 32, IdleSlabs: 32}
	require.Equal(t, want, a.Stats())
}

// filled returns an allocator of capacity bytes filled to 95 % with extents of the given sizes.
func filled(capacity int64, size func(i int) int64) (*Allocator, []Extent) {
	a := NewAllocator(SlabBytes(capacity))
	a.AddRange(0, capacity)
	var live []Extent
	for i, used := 0, int64(0); used < capacity/100*95; i++ {
		n := len(live)
		live, _ = a.Alloc(size(i), live)
		for _, e := range live[n:] {
			used += e.Len
		}
	}
	return a, live
}

// BenchmarkAllocFree frees random extents of a full arena and allocates others; one operation is both. Its access to the
// list of extents, at random, is in the figure.
func BenchmarkAllocFree(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, c := range []struct {
		name     string
		capacity int64
		holes    int // per cent of the extents freed before
		size     func(int) int64
	}{
		{"64B", 64 << 20, 25, func(int) int64 { return 64 }},
		{"4K", 4 << 30, 25, func(int) int64 { return 4 << 10 }},
		{"4K..4M", 64 << 30, 0, func(int) int64 { return 4<<10 + rng.Int64N(4<<20-4<<10) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			a, live := filled(c.capacity, c.size)
			rng.Shuffle(len(live), func(i, j int) { live[i], live[j] = live[j], live[i] })
			for range len(live) * c.holes / 100 {
				a.Free(live[len(live)-1])
				live = live[:len(live)-1]
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				k := rng.IntN(len(live))
				a.Free(live[k])
				live[k] = live[len(live)-1]
				var ok bool
				if live, ok = a.Alloc(c.size(i), live[:len(live)-1]); !ok {
					a.Free(live[len(live)-1]) // sizes differ: make room for the next
					live = live[:len(live)-1]
				}
			}
			b.ReportMetric(float64(a.Stats().FreeBlocks), "holes")
		})
	}
}

// BenchmarkClaim claims extents of 4 KiB in random order, as recovery does.
func BenchmarkClaim(b *testing.B) {
	const capacity = 1 << 30
	order := rand.New(rand.NewPCG(1, 1)).Perm(capacity / 4096)
	var a *Allocator
	for i := 0; b.Loop(); i++ {
		if i%len(order) == 0 {
			a = NewAllocator(SlabBytes(capacity))
			a.AddRange(0, capacity)
		}
		if err := a.Claim(Extent{int64(order[i%len(order)]) * 4096, 4096}); err != nil {
			b.Fatal(err)
		}
	}
}
