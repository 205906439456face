package arena

import (
	"fmt"
	"math/bits"
	"sync"

	"github.com/pkg/errors"
)

const (
	// Granule is the unit of space: an extent starts at a multiple of it and occupies a whole number of them.
	Granule = 64

	// MinSlabBytes and MaxSlabBytes bound the slab size of an Allocator.
	MinSlabBytes = 4 << 10
	MaxSlabBytes = 1 << 30

	// MaxExtents bounds the extents of one allocation.
	MaxExtents = 4096

	// MaxSlabs bounds the slabs of one Allocator: 8 TiB of 2 MiB slabs, 256 TiB of 64 MiB slabs.
	MaxSlabs = 1 << 22

	granuleShift = 6
)

// Extent is a piece of the address range. Len is as asked for; the space behind it is Len rounded up to Granule.
type Extent struct{ Off, Len int64 }

// Allocator hands out extents of one address range, which is divided into slabs: slab k is [k*slab, (k+1)*slab). An
// extent never crosses a slab boundary, so that a wholly free slab can be given back.
//
// It finds the best fit exactly: a set of the sizes that free blocks have, and for each size a list of its blocks.
// Neighbours are found by their boundary granules, slab by slab. Both cost memory per free block (about 60 bytes) and
// nothing per extent, and never touch the memory that is managed. Alloc and Free take constant time; they allocate Go
// memory only while the number of free blocks grows past what it has ever been. Before all that, extents of up to 4 KiB
// go through magazines.
//
// All methods may be called from several goroutines.
type Allocator struct {
	slabGranules uint32
	slabShift    uint8

	rack magazineRack

	mu struct {
		sync.Mutex
		slabs    []slab
		idle     bitset // slabs that are wholly there and wholly free
		sizes    bitset // sizes, in granules, that some free block has
		heads    [][]uint32
		pages    []*[blockPage]block
		spare    uint32 // list of unused blocks, through next
		capacity int64  // granules
		free     int64  // granules
		blocks   int    // free blocks
		extents  int    // handed out
		present  int    // slabs with capacity
	}
}

// slab is the state of one slab. All counts are granules.
type slab struct {
	bounds   boundaries
	starts   *bitset // start of each free block; only while Claim needs it
	capacity uint32
	free     uint32
}

// block is a free block: [start, start+size) of its slab, in the list of its size.
type block struct {
	slab, start, size uint32
	next, prev        uint32
}

const (
	blockPage = 4096 // blocks in one page of the pool
	headPage  = 4096 // sizes in one page of list heads
)

// Stats describes an Allocator at one moment. Capacity, Free and LargestFree are bytes.
type Stats struct {
	Capacity    int64 // all space added and not taken away
	Free        int64
	LargestFree int64 // the largest request that gets one extent
	FreeBlocks  int
	Extents     int // extents handed out and not freed
	Slabs       int // slabs with any capacity
	IdleSlabs   int // slabs that TakeIdleSlab would give
}

// SlabBytes returns the slab size for a budget of memory: a 64th of it rounded down to a power of two, between 2 and
// 64 MiB.
func SlabBytes(budget int64) int64 {
	slab := min(max(budget/64, 2<<20), 64<<20)
	return 1 << (bits.Len64(uint64(slab)) - 1)
}

// NewAllocator returns an allocator without space. slabBytes is a power of two between MinSlabBytes and MaxSlabBytes.
func NewAllocator(slabBytes int64) *Allocator {
	if slabBytes < MinSlabBytes || slabBytes > MaxSlabBytes || slabBytes&(slabBytes-1) != 0 {
		panic(fmt.Sprintf("arena: BUG: slab size %d", slabBytes))
	}
	a := &Allocator{
		slabGranules: uint32(slabBytes >> granuleShift),
		slabShift:    uint8(bits.TrailingZeros64(uint64(slabBytes)) - granuleShift),
	}
	a.mu.sizes = newBitset(int(a.slabGranules) + 1)
	a.mu.heads = make([][]uint32, a.slabGranules/headPage+1)
	a.mu.idle = newBitset(1)
	a.newPageLocked()
	return a
}

// AddRange adds the space [off, off+n), which must not be there yet. Both are multiples of Granule.
func (a *Allocator) AddRange(off, n int64) {
	if off < 0 || n < 0 || off+n < off || (off|n)&(Granule-1) != 0 || (off+n)>>granuleShift>>a.slabShift > MaxSlabs {
		panic(fmt.Sprintf("arena: BUG: add range [%d, +%d)", off, n))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for g, end := off>>granuleShift, (off+n)>>granuleShift; g < end; {
		k := g >> a.slabShift
		size := min(end, (k+1)<<a.slabShift) - g
		a.growSlabsLocked(int(k) + 1)
		s := &a.mu.slabs[k]
		if int64(s.capacity)+size > int64(a.slabGranules) {
			panic(fmt.Sprintf("arena: BUG: range [%d, +%d) added twice", off, n))
		}
		if s.capacity == 0 {
			a.mu.present++
		}
		s.capacity += uint32(size)
		a.mu.capacity += size
		a.releaseLocked(uint32(k), uint32(g)&(a.slabGranules-1), uint32(size))
		g += size
	}
}

// Alloc takes size bytes and appends their extents to dst, in the order of the bytes. It is one extent if size is at
// most a slab and a free block is large enough, else several, the largest free blocks first, at most MaxExtents. It
// takes all or nothing; size 0 is no extent.
func (a *Allocator) Alloc(size int64, dst []Extent) ([]Extent, bool) {
	if size < 0 {
		panic(fmt.Sprintf("arena: BUG: alloc %d bytes", size))
	}
	if size == 0 {
		return dst, true
	}
	need := (size-1)>>granuleShift + 1
	if need <= magazineSizes && !invariants {
		if off, ok := a.allocSmall(uint32(need)); ok {
			return append(dst, Extent{off, size}), true
		}
	} else {
		a.mu.Lock()
		off, ok := a.allocOneLocked(need)
		a.mu.Unlock()
		if ok {
			return append(dst, Extent{off, size}), true
		}
	}
	a.lockAll()
	defer a.unlockAll()
	a.emptyLocked()
	if off, ok := a.allocOneLocked(need); ok {
		return append(dst, Extent{off, size}), true
	}
	return a.allocPartsLocked(size, dst)
}

// allocOneLocked takes need granules in one extent, if a free block is large enough.
func (a *Allocator) allocOneLocked(need int64) (off int64, ok bool) {
	b := a.fitLocked(need)
	if b == 0 {
		return 0, false
	}
	a.mu.extents++
	return a.takeLocked(b, uint32(need)), true
}

// allocPartsLocked serves a request that no single free block can.
func (a *Allocator) allocPartsLocked(size int64, dst []Extent) ([]Extent, bool) {
	if !a.coversLocked((size-1)>>granuleShift + 1) {
		return dst, false
	}
	for size > 0 {
		need := (size-1)>>granuleShift + 1
		b := a.fitLocked(need)
		if b == 0 {
			b = a.headLocked(uint32(a.mu.sizes.prev(int(a.slabGranules))))
			need = int64(a.block(b).size)
		}
		n := min(size, need<<granuleShift)
		dst = append(dst, Extent{a.takeLocked(b, uint32(need)), n})
		a.mu.extents++
		size -= n
	}
	return dst, true
}

// coversLocked reports whether the MaxExtents largest free blocks hold need granules. It looks before anything is
// taken, so that a request that must fail changes nothing.
func (a *Allocator) coversLocked(need int64) bool {
	if need > a.mu.free {
		return false
	}
	left := MaxExtents
	for size := a.mu.sizes.prev(int(a.slabGranules)); size > 0; size = a.mu.sizes.prev(size - 1) {
		for b := *a.headSlotLocked(uint32(size)); b != 0; b = a.block(b).next {
			need -= int64(size)
			left--
			if need <= 0 || left == 0 {
				return need <= 0
			}
		}
	}
	return false
}

// Free gives back an extent that Alloc returned or Claim took. It panics if the space is free already, as far as that
// shows: when a free block has one of its ends there, or when more would be free than was ever added. A small extent
// may wait in a magazine; then that shows when it leaves it for free space. Built with the tag invariants, which does
// without magazines, Free sees every overlap.
func (a *Allocator) Free(e Extent) {
	g, n, ok := a.granules(e)
	if !ok {
		panic(fmt.Sprintf("arena: BUG: free of extent [%d, +%d)", e.Off, e.Len))
	}
	if n <= magazineSizes && !invariants {
		a.freeSmall(g, n)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.freeLocked(g, n)
}

// Claim takes exactly this extent out of free space, for a recovered object. The error says that it is not valid or
// not wholly free; then nothing changed. Any order of claims is fast; until the next Alloc in the same slab they cost
// an index of 1/500 of the slab's size.
func (a *Allocator) Claim(e Extent) error {
	g, n, ok := a.granules(e)
	if !ok {
		return errors.Errorf("claim extent [%d, +%d): no extent of a slab", e.Off, e.Len)
	}
	k, start := g>>a.slabShift, uint32(g)&(a.slabGranules-1)
	a.lockAll()
	defer a.unlockAll()
	a.emptyLocked()
	b := a.containingLocked(k, start)
	if b == 0 || start+n > a.block(b).start+a.block(b).size {
		return errors.Errorf("claim extent [%d, +%d): not free", e.Off, e.Len)
	}
	a.carveLocked(b, start, n)
	a.mu.extents++
	return nil
}

// TakeIdleSlab removes the highest slab that is wholly free, for its memory to be given back.
func (a *Allocator) TakeIdleSlab() (off int64, ok bool) {
	a.lockAll()
	defer a.unlockAll()
	a.emptyLocked()
	k := a.mu.idle.prev(a.mu.idle.size() - 1)
	if k < 0 {
		return 0, false
	}
	s := &a.mu.slabs[k]
	a.carveLocked(s.bounds.get(0).block(), 0, a.slabGranules)
	a.mu.capacity -= int64(a.slabGranules)
	a.mu.present--
	*s = slab{}
	return int64(k) << a.slabShift << granuleShift, true
}

// Stats returns the current figures. It is cheap enough for every decision about pressure, though not for every put: it
// empties the magazines.
func (a *Allocator) Stats() Stats {
	a.lockAll()
	defer a.unlockAll()
	a.emptyLocked()
	st := Stats{
		Capacity: a.mu.capacity << granuleShift, Free: a.mu.free << granuleShift, FreeBlocks: a.mu.blocks,
		Extents: a.mu.extents, Slabs: a.mu.present,
		LargestFree: max(int64(a.mu.sizes.prev(int(a.slabGranules))), 0) << granuleShift,
	}
	for _, w := range a.mu.idle.level[0] {
		st.IdleSlabs += bits.OnesCount64(w)
	}
	return st
}

// granules returns the first granule of e and their number; ok is false if no allocator of this slab size could have
// handed e out.
func (a *Allocator) granules(e Extent) (g int64, n uint32, ok bool) {
	if e.Off < 0 || e.Off&(Granule-1) != 0 || e.Len <= 0 || e.Len > int64(a.slabGranules)<<granuleShift {
		return 0, 0, false
	}
	g, n = e.Off>>granuleShift, uint32((e.Len-1)>>granuleShift)+1
	return g, n, g&int64(a.slabGranules-1)+int64(n) <= int64(a.slabGranules)
}

// SlabBytes is the largest extent that Alloc gives.
func (a *Allocator) SlabBytes() int64 { return int64(a.slabGranules) * Granule }
