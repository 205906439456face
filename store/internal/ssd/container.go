package ssd

import "math/bits"

// container is one container file. Its fields are guarded by Tier.mu; h and id do not change while it is written.
type container struct {
	id     uint32
	h      *handle // held while it is written to or dirty
	sealed bool    // no more appends
	pos    int64   // end of what was acknowledged, at a block's boundary
	live   int64   // bytes of records not freed
	disk   int64   // bytes of blocks written and not punched

	// partly maps a block to the granules in it that are free, while some but not all are.
	partly map[uint32]uint64

	// What is durable. Records from synced on are not: those before mark are being synced now.
	synced, mark int64
	flight       int64 // live bytes of records in [synced, mark)
	fresh        int64 // live bytes of records from mark on
	failed       error // of a sync; nothing from synced on may be trusted
}

func newContainer(id uint32, h *handle) *container {
	return &container{id: id, h: h, partly: make(map[uint32]uint64)}
}

// release marks [from, to), in granules' multiples, as free and returns the run of blocks in it that thereby are wholly
// free; start == end if none is.
func (c *container) release(from, to int64) (start, end int64) {
	first, last := from/BlockBytes, (to-1)/BlockBytes
	start, end = first, last+1
	if first == last {
		if !c.releaseIn(first, from%BlockBytes, to-first*BlockBytes) {
			end = start
		}
	} else {
		if !c.releaseIn(first, from%BlockBytes, BlockBytes) {
			start++
		}
		if !c.releaseIn(last, 0, to-last*BlockBytes) {
			end--
		}
	}
	return start * BlockBytes, end * BlockBytes
}

// releaseIn marks [from, to) of one block as free and says whether all of it now is.
func (c *container) releaseIn(page, from, to int64) bool {
	g0, g1 := from/granule, to/granule
	mask := (^uint64(0) >> (64 - (g1 - g0))) << g0
	was := c.partly[uint32(page)]
	if was&mask != 0 {
		panic("ssd: BUG: freed twice")
	}
	if was |= mask; bits.OnesCount64(was) < 64 {
		c.partly[uint32(page)] = was
		return false
	}
	delete(c.partly, uint32(page))
	return true
}

// commit acknowledges an append that ended at end, with live bytes of records and the granules from pad on unused.
func (c *container) commit(end, live, pad int64) {
	c.disk += end - c.pos
	c.pos = end
	c.live += live
	c.fresh += live
	if pad < end {
		c.release(pad, end)
	}
}

// forget takes a freed record out of the counts.
func (c *container) forget(s span) {
	n := s.len()
	if c.live < n {
		panic("ssd: BUG: freed more than was stored")
	}
	c.live -= n
	switch {
	case s.off >= c.mark:
		c.fresh -= n
	case s.off >= c.synced:
		c.flight -= n
	}
}

// doubtful is the live bytes that a failed sync leaves in doubt.
func (c *container) doubtful() int64 {
	if c.failed == nil {
		return 0
	}
	return c.flight + c.fresh
}
