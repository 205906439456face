package arena

import "math/bits"

// bitset is a set of small integers with its successor and predecessor in one step per level: bit i of level l+1 says
// whether word i of level l has any bit.
type bitset struct {
	level [5][]uint64
	depth int
}

// newBitset returns a set for the integers 0..n-1, n <= 2^30.
func newBitset(n int) bitset {
	var b bitset
	for words := max(n, 1); ; {
		words = (words + 63) >> 6
		b.level[b.depth] = make([]uint64, words)
		b.depth++
		if words == 1 {
			return b
		}
	}
}

// size returns a bound on the members: all are below it.
func (b *bitset) size() int { return len(b.level[0]) << 6 }

func (b *bitset) has(i int) bool { return b.level[0][i>>6]>>(i&63)&1 != 0 }

func (b *bitset) set(i int) {
	for l := range b.depth {
		w := &b.level[l][i>>6]
		old := *w
		*w = old | 1<<(i&63)
		if old != 0 {
			return
		}
		i >>= 6
	}
}

func (b *bitset) clear(i int) {
	for l := range b.depth {
		w := &b.level[l][i>>6]
		*w &^= 1 << (i & 63)
		if *w != 0 {
			return
		}
		i >>= 6
	}
}

// next returns the smallest member >= i, or -1.
func (b *bitset) next(i int) int {
	for l := range b.depth {
		w := i >> 6
		if w >= len(b.level[l]) {
			return -1
		}
		if m := b.level[l][w] >> (i & 63); m != 0 {
			i += bits.TrailingZeros64(m)
			for l--; l >= 0; l-- {
				i = i<<6 + bits.TrailingZeros64(b.level[l][i])
			}
			return i
		}
		i = w + 1
	}
	return -1
}

// prev returns the largest member <= i, or -1. i must be below size.
func (b *bitset) prev(i int) int {
	for l := 0; l < b.depth && i >= 0; l++ {
		w := i >> 6
		if m := b.level[l][w] << (63 - i&63); m != 0 {
			i -= bits.LeadingZeros64(m)
			for l--; l >= 0; l-- {
				i = i<<6 + 63 - bits.LeadingZeros64(b.level[l][i])
			}
			return i
		}
		i = w - 1
	}
	return -1
}
