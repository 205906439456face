package arena

// boundary is one end of a free block: granule<<33 | isEnd<<32 | block. The zero value is none, since block 0 does
// not exist. Free blocks of a slab never touch, so a granule is the start of one block, the end of one, or neither.
type boundary uint64

func startOf(g, block uint32) boundary { return boundary(uint64(g)<<33 | uint64(block)) }
func endOf(g, block uint32) boundary   { return boundary(uint64(g)<<33 | 1<<32 | uint64(block)) }

func (b boundary) granule() uint32 { return uint32(b >> 33) }
func (b boundary) block() uint32   { return uint32(b) }
func (b boundary) isEnd() bool     { return b>>32&1 != 0 }

// boundaries finds the free block that starts or ends at a granule of one slab: open addressing, linear probing,
// deletion by shifting back, so that it never needs cleaning. It grows with the number of free blocks and keeps its
// size until the slab is taken away.
type boundaries struct {
	slots []boundary
	used  int
	shift uint8 // 32 - log2(len(slots))
}

const minBoundarySlots = 8

func (t *boundaries) home(g uint32) uint32 { return g * 0x9E3779B1 >> t.shift }

// get returns the boundary at granule g, or zero.
func (t *boundaries) get(g uint32) boundary {
	if len(t.slots) == 0 {
		return 0
	}
	mask := uint32(len(t.slots) - 1)
	for i := t.home(g); ; i++ {
		if b := t.slots[i&mask]; b == 0 || b.granule() == g {
			return b
		}
	}
}

// put adds b, or replaces what is at its granule.
func (t *boundaries) put(b boundary) {
	if t.used*8 >= len(t.slots)*5 {
		t.grow()
	}
	mask := uint32(len(t.slots) - 1)
	for i := t.home(b.granule()); ; i++ {
		s := &t.slots[i&mask]
		if *s == 0 {
			t.used++
		} else if s.granule() != b.granule() {
			continue
		}
		*s = b
		return
	}
}

// remove deletes the boundary at granule g, which must exist.
func (t *boundaries) remove(g uint32) {
	mask := uint32(len(t.slots) - 1)
	i := t.home(g) & mask
	for t.slots[i].granule() != g || t.slots[i] == 0 {
		i = (i + 1) & mask
	}
	for j := (i + 1) & mask; t.slots[j] != 0; j = (j + 1) & mask {
		// An entry may move back to i unless its home lies behind i.
		if (j-t.home(t.slots[j].granule()))&mask >= (j-i)&mask {
			t.slots[i] = t.slots[j]
			i = j
		}
	}
	t.slots[i] = 0
	t.used--
}

func (t *boundaries) grow() {
	old := t.slots
	n := max(minBoundarySlots, 2*len(old))
	t.slots, t.used, t.shift = make([]boundary, n), 0, 32
	for ; n > 1; n >>= 1 {
		t.shift--
	}
	for _, b := range old {
		if b != 0 {
			t.put(b)
		}
	}
}
