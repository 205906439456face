package policy

import "math/bits"

// MaxCount is the highest count a Sketch tells apart.
const MaxCount = 15

const (
	sketchRows     = 4
	lineWords      = 8                  // a cache line
	minSketchWords = lineWords          // one line
	maxSketchWords = 1 << 27            // 1 GiB
	lowBits        = 0x7777777777777777 // of each counter after a shift by one
)

// Sketch estimates how often keys were asked for lately: a count-min sketch of 4-bit counters as in TinyLFU
// (https://arxiv.org/abs/1512.00727). All four counters of a key lie in one cache line. It never estimates too low between two ageings,
// and too high where keys share all four counters. When it has counted ten touches per key it was made for it ages: all counts halve.
// It is not safe for concurrent use.
type Sketch struct {
	words   []uint64 // 16 counters each; row r of a line is its words 2r and 2r+1
	seed    uint64
	touches int // counted since the last ageing, half of those before it
	limit   int
}

// NewSketch returns a Sketch for about keys keys that are asked for, in 8 bytes each, rounded up to a power of two and to 64 bytes,
// down to 1 GiB. The same seed and touches give the same counts.
func NewSketch(keys int, seed uint64) *Sketch {
	keys = min(max(keys, minSketchWords), maxSketchWords)
	words := 1 << bits.Len(uint(keys-1))
	return &Sketch{words: make([]uint64, words), seed: seed, limit: 10 * words}
}

// Touch counts a request for the key with this hash and returns the estimated count with it, at most MaxCount.
func (s *Sketch) Touch(hash uint64) int {
	at := s.slots(hash)
	count := s.count(at)
	if count == MaxCount {
		return count
	}
	for _, slot := range at {
		// Only the lowest counters go up: the others count other keys too.
		if int(s.words[slot.word]>>slot.shift&MaxCount) == count {
			s.words[slot.word] += 1 << slot.shift
		}
	}
	s.touches++
	if s.touches >= s.limit {
		s.age()
	}
	return count + 1
}

// Count returns the estimated count of the key with this hash.
func (s *Sketch) Count(hash uint64) int { return s.count(s.slots(hash)) }

type slot struct{ word, shift int }

// slots returns the counters of hash, one in each row of its line.
func (s *Sketch) slots(hash uint64) (at [sketchRows]slot) {
	h := mix(hash ^ s.seed)
	line := int(h&uint64(len(s.words)/lineWords-1)) * lineWords
	h = mix(h)
	for r := range at {
		at[r] = slot{word: line + 2*r + int(h&1), shift: int((h >> 1 & 15) * 4)}
		h >>= 5
	}
	return at
}

func (s *Sketch) count(at [sketchRows]slot) int {
	least := uint64(MaxCount)
	for _, slot := range at {
		least = min(least, s.words[slot.word]>>slot.shift&MaxCount)
	}
	return int(least)
}

func (s *Sketch) age() {
	for i := range s.words {
		s.words[i] = s.words[i] >> 1 & lowBits
	}
	s.touches /= 2
}

// mix is the finalizer of SplitMix64.
func mix(h uint64) uint64 {
	h += 0x9E3779B97F4A7C15
	h = (h ^ h>>30) * 0xBF58476D1CE4E5B9
	h = (h ^ h>>27) * 0x94D049BB133111EB
	return h ^ h>>31
}
