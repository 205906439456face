package arena

import (
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/kvcache-ai/mooncake-go/store/internal/lane"
)

// Small extents that are freed wait in a magazine of the core that freed them, and are handed out again from there, so
// that cores don't take turns at the one lock of free space. Whoever wants free space as it is, whole, locks all
// magazines and empties them first; so does an allocation that would fail.
const (
	magazines        = 8
	magazineSizes    = 64 // of 1 to so many granules, 4 KiB
	magazineExtents  = 16 // of one size
	magazineExchange = 8  // taken from, or given to, free space in one go
)

// magazine holds extents, by size, as offsets in granules. For the lock of free space they are in use. Its lock is
// taken before that one; several magazines are locked in ascending order.
type magazine struct {
	sync.Mutex
	filled  uint64 // bit n-1: there are extents of n granules
	count   [magazineSizes]uint8
	extents [magazineSizes][magazineExtents]int64
	_       [64]byte
}

type magazineRack struct {
	m [magazines]magazine
	// stocked is false while all are empty. It becomes true under the lock of the magazine that is filled, and false
	// under the locks of all.
	stocked atomic.Bool
	// slabs is how many there are, for a free that does not look at them.
	slabs atomic.Int64
}

func (r *magazineRack) mine() *magazine { return &r.m[lane.Get()%magazines] }

// allocSmall takes n granules from the caller's magazine, which is filled first if it has none; ok is false when free
// space has none either.
func (a *Allocator) allocSmall(n uint32) (off int64, ok bool) {
	m := a.rack.mine()
	m.Lock()
	defer m.Unlock()
	if m.count[n-1] == 0 && !a.refill(m, n) {
		return 0, false
	}
	return m.pop(n) << granuleShift, true
}

// refill takes extents of n granules from free space. The caller holds the magazine's lock.
func (a *Allocator) refill(m *magazine, n uint32) bool {
	var got [magazineExchange]int64
	i := 0
	a.mu.Lock()
	for ; i < len(got); i++ {
		b := a.fitLocked(int64(n))
		if b == 0 {
			break
		}
		got[i] = a.takeLocked(b, n) >> granuleShift
		a.mu.extents++
	}
	a.mu.Unlock()
	for j := i - 1; j >= 0; j-- { // what comes first in free space leaves first
		a.push(m, got[j], n)
	}
	return i > 0
}

// freeSmall puts n granules from g into the caller's magazine. Of one that is full the older half goes to free space.
func (a *Allocator) freeSmall(g int64, n uint32) {
	if g>>a.slabShift >= a.rack.slabs.Load() {
		a.badFree(g, n)
	}
	m := a.rack.mine()
	m.Lock()
	defer m.Unlock()
	list := &m.extents[n-1]
	for _, other := range list[:m.count[n-1]] {
		if other == g {
			a.badFree(g, n)
		}
	}
	if m.count[n-1] == magazineExtents {
		old := *list
		m.count[n-1] = uint8(copy(list[:], old[magazineExchange:]))
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, g := range old[:magazineExchange] {
			a.freeLocked(g, n)
		}
	}
	a.push(m, g, n)
}

// push adds an extent to a magazine that has room. The caller holds the magazine's lock.
func (a *Allocator) push(m *magazine, g int64, n uint32) {
	m.extents[n-1][m.count[n-1]] = g
	m.count[n-1]++
	m.filled |= 1 << (n - 1)
	if !a.rack.stocked.Load() {
		a.rack.stocked.Store(true)
	}
}

// pop takes the extent that was added last. The caller holds the magazine's lock.
func (m *magazine) pop(n uint32) int64 {
	m.count[n-1]--
	if m.count[n-1] == 0 {
		m.filled &^= 1 << (n - 1)
	}
	return m.extents[n-1][m.count[n-1]]
}

// lockAll locks the Allocator with all free space where it belongs: no magazine holds any of it before unlockAll.
func (a *Allocator) lockAll() {
	for i := range a.rack.m {
		a.rack.m[i].Lock()
	}
	a.mu.Lock()
}

func (a *Allocator) unlockAll() {
	a.mu.Unlock()
	for i := range a.rack.m {
		a.rack.m[i].Unlock()
	}
}

// emptyLocked gives to free space what the magazines hold. It needs lockAll. It is apart from it for its panic: the
// caller has to have its unlockAll deferred by then.
func (a *Allocator) emptyLocked() {
	if !a.rack.stocked.Load() {
		return
	}
	for i := range a.rack.m {
		m := &a.rack.m[i]
		for m.filled != 0 {
			n := uint32(bits.TrailingZeros64(m.filled)) + 1
			a.freeLocked(m.pop(n), n)
		}
	}
	a.rack.stocked.Store(false)
}

// freeLocked gives n granules from g, which are in use, to free space.
func (a *Allocator) freeLocked(g int64, n uint32) {
	k := g >> a.slabShift
	if k >= int64(len(a.mu.slabs)) || a.mu.slabs[k].free+n > a.mu.slabs[k].capacity {
		a.badFree(g, n)
	}
	a.releaseLocked(uint32(k), uint32(g)&(a.slabGranules-1), n)
	a.mu.extents--
}

func (a *Allocator) badFree(g int64, n uint32) {
	panic(fmt.Sprintf("arena: BUG: free of extent [%d, +%d), which is not allocated", g<<granuleShift, n<<granuleShift))
}
