package arena

import "fmt"

// This file is the Allocator's free space: blocks, their lists by size, their boundaries. Every function ending in
// Locked needs the Allocator's lock.

func (a *Allocator) block(b uint32) *block {
	return &a.mu.pages[b/blockPage][b%blockPage]
}

func (a *Allocator) newBlockLocked() uint32 {
	if a.mu.spare == 0 {
		a.newPageLocked()
	}
	b := a.mu.spare
	a.mu.spare = a.block(b).next
	return b
}

func (a *Allocator) dropBlockLocked(b uint32) {
	a.block(b).next = a.mu.spare
	a.mu.spare = b
}

// newPageLocked adds a page to the pool. Pages never move, so that a growing pool copies nothing under the lock.
func (a *Allocator) newPageLocked() {
	first := uint32(len(a.mu.pages)) * blockPage
	a.mu.pages = append(a.mu.pages, new([blockPage]block))
	for i := uint32(blockPage); i > 0; i-- {
		if b := first + i - 1; b != 0 { // 0 is no block
			a.dropBlockLocked(b)
		}
	}
}

func (a *Allocator) growSlabsLocked(n int) {
	if n <= len(a.mu.slabs) {
		return
	}
	a.mu.slabs = append(a.mu.slabs, make([]slab, n-len(a.mu.slabs))...)
	a.rack.slabs.Store(int64(n))
	if n <= a.mu.idle.size() {
		return
	}
	idle := newBitset(2 * n)
	for k := a.mu.idle.next(0); k >= 0; k = a.mu.idle.next(k + 1) {
		idle.set(k)
	}
	a.mu.idle = idle
}

// headSlotLocked returns where the list of blocks of one size begins.
func (a *Allocator) headSlotLocked(size uint32) *uint32 {
	page := a.mu.heads[size/headPage]
	if page == nil {
		page = make([]uint32, headPage)
		a.mu.heads[size/headPage] = page
	}
	return &page[size%headPage]
}

// headLocked returns a block of a size that some block has. Of idle slabs it is the lowest, so that the high ones stay
// idle and can leave.
func (a *Allocator) headLocked(size uint32) uint32 {
	if size == a.slabGranules {
		return a.mu.slabs[a.mu.idle.next(0)].bounds.get(0).block()
	}
	return *a.headSlotLocked(size)
}

// fitLocked returns the smallest block of at least need granules, or 0.
func (a *Allocator) fitLocked(need int64) uint32 {
	if need > int64(a.slabGranules) {
		return 0
	}
	size := a.mu.sizes.next(int(need))
	if size < 0 {
		return 0
	}
	return a.headLocked(uint32(size))
}

// linkLocked puts a block with its slab, start and size set into the list of its size.
func (a *Allocator) linkLocked(b uint32) {
	bl := a.block(b)
	head := a.headSlotLocked(bl.size)
	bl.prev, bl.next = 0, *head
	if bl.next != 0 {
		a.block(bl.next).prev = b
	} else {
		a.mu.sizes.set(int(bl.size))
	}
	if bl.size == a.slabGranules {
		a.mu.idle.set(int(bl.slab))
	}
	*head = b
	a.mu.blocks++
}

func (a *Allocator) unlinkLocked(b uint32) {
	bl := a.block(b)
	if bl.next != 0 {
		a.block(bl.next).prev = bl.prev
	}
	if bl.prev != 0 {
		a.block(bl.prev).next = bl.next
	} else if *a.headSlotLocked(bl.size) = bl.next; bl.next == 0 {
		a.mu.sizes.clear(int(bl.size))
	}
	if bl.size == a.slabGranules {
		a.mu.idle.clear(int(bl.slab))
	}
	a.mu.blocks--
}

// takeLocked takes the first n granules of block b for Alloc and returns their offset in bytes.
func (a *Allocator) takeLocked(b, n uint32) int64 {
	bl := a.block(b)
	k, start := bl.slab, bl.start
	if s := &a.mu.slabs[k]; s.starts != nil && !invariants {
		s.starts = nil // the claims are over
	}
	a.carveLocked(b, start, n)
	return (int64(k)<<a.slabShift + int64(start)) << granuleShift
}

// carveLocked takes [start, start+n) out of block b, which holds it; what is left on each side stays free. The left
// part stays block b; the right part is a new block unless b is not needed for the left one.
func (a *Allocator) carveLocked(b, start, n uint32) {
	a.unlinkLocked(b)
	bl := a.block(b)
	s := &a.mu.slabs[bl.slab]
	first, end := bl.start, bl.start+bl.size
	left, right := start-first, end-(start+n)
	s.free -= n
	a.mu.free -= int64(n)
	if left == 0 {
		s.bounds.remove(first)
		s.dropStart(first)
	} else {
		bl.size = left
		s.bounds.put(endOf(start, b))
		a.linkLocked(b)
	}
	switch {
	case right == 0 && left == 0:
		s.bounds.remove(end)
		a.dropBlockLocked(b)
	case right == 0:
		s.bounds.remove(end)
	default:
		r := b
		if left > 0 {
			r = a.newBlockLocked()
			s.bounds.put(endOf(end, r))
		}
		rb := a.block(r)
		rb.slab, rb.start, rb.size = bl.slab, start+n, right
		s.bounds.put(startOf(start+n, r))
		s.addStart(start + n)
		a.linkLocked(r)
	}
}

// releaseLocked makes [start, start+n) of slab k free and joins it with its free neighbours.
func (a *Allocator) releaseLocked(k, start, n uint32) {
	s := &a.mu.slabs[k]
	end := start + n
	left, right := s.bounds.get(start), s.bounds.get(end)
	if left != 0 && !left.isEnd() || right != 0 && right.isEnd() || invariants && a.overlapsLocked(int64(k), start, end) {
		panic(fmt.Sprintf("arena: BUG: granules [%d, %d) of slab %d are free already", start, end, k))
	}
	s.free += n
	a.mu.free += int64(n)
	b := left.block()
	switch {
	case left != 0 && right != 0:
		r := right.block()
		a.unlinkLocked(b)
		a.unlinkLocked(r)
		n += a.block(r).size
		s.bounds.remove(start)
		s.bounds.remove(end)
		s.dropStart(end)
		s.bounds.put(endOf(start+n, b))
		a.block(b).size += n
		a.dropBlockLocked(r)
	case left != 0:
		a.unlinkLocked(b)
		s.bounds.remove(start)
		s.bounds.put(endOf(end, b))
		a.block(b).size += n
	case right != 0:
		b = right.block()
		a.unlinkLocked(b)
		s.bounds.remove(end)
		s.bounds.put(startOf(start, b))
		s.dropStart(end)
		s.addStart(start)
		a.block(b).start = start
		a.block(b).size += n
	default:
		b = a.newBlockLocked()
		bl := a.block(b)
		bl.slab, bl.start, bl.size = k, start, n
		s.bounds.put(startOf(start, b))
		s.bounds.put(endOf(end, b))
		s.addStart(start)
	}
	a.linkLocked(b)
}

// addStart and dropStart keep the index of block starts up to date, if there is one.
func (s *slab) addStart(g uint32) {
	if s.starts != nil {
		s.starts.set(int(g))
	}
}

func (s *slab) dropStart(g uint32) {
	if s.starts != nil {
		s.starts.clear(int(g))
	}
}

// containingLocked returns the free block of slab k that holds granule g, or 0. It builds the slab's index of starts.
func (a *Allocator) containingLocked(k int64, g uint32) uint32 {
	if k >= int64(len(a.mu.slabs)) || a.mu.slabs[k].capacity == 0 {
		return 0
	}
	s := &a.mu.slabs[k]
	if s.starts == nil {
		starts := newBitset(int(a.slabGranules))
		for _, b := range s.bounds.slots {
			if b != 0 && !b.isEnd() {
				starts.set(int(b.granule()))
			}
		}
		s.starts = &starts
	}
	start := s.starts.prev(int(g))
	if start < 0 {
		return 0
	}
	b := s.bounds.get(uint32(start)).block()
	if bl := a.block(b); g < bl.start+bl.size {
		return b
	}
	return 0
}

// overlapsLocked reports whether any granule of [start, end) of slab k is free.
func (a *Allocator) overlapsLocked(k int64, start, end uint32) bool {
	if a.containingLocked(k, start) != 0 {
		return true
	}
	s := a.mu.slabs[k].starts
	next := s.next(int(start))
	return next >= 0 && next < int(end)
}
