package policy

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSketchCounts(t *testing.T) {
	s := NewSketch(1024, 1)
	require.Zero(t, s.Count(42))
	for i := 1; i <= MaxCount+5; i++ {
		require.Equal(t, min(i, MaxCount), s.Touch(42))
	}
	require.Equal(t, MaxCount, s.Count(42))
}

// TestSketchNeverUndercounts compares with exact counts between ageings, and bounds how many are too high.
func TestSketchNeverUndercounts(t *testing.T) {
	r := seeded(t)
	const keys = 1 << 12
	s := NewSketch(keys, r.Uint64())
	exact := map[uint64]int{}
	over := 0
	for range 2 * keys { // ten per key would age
		k := r.Uint64N(keys)
		exact[k]++
		got := s.Touch(k)
		require.GreaterOrEqual(t, got, min(exact[k], MaxCount))
		if got > exact[k] {
			over++
		}
	}
	require.Less(t, over, keys/4, "too many of %d estimates are too high", 2*keys)
}

func TestSketchAges(t *testing.T) {
	s := NewSketch(8, 7)
	for range 8 {
		s.Touch(1)
	}
	require.Equal(t, 8, s.Count(1))
	for i := uint64(2); s.touches < s.limit-1; i++ {
		s.Touch(i)
	}
	before := s.Count(1) // others may share its counters
	s.age()
	require.Equal(t, before/2, s.Count(1))
	require.Equal(t, (s.limit-1)/2, s.touches)
}

func TestSketchAgesByItself(t *testing.T) {
	s := NewSketch(8, 7)
	for i := range uint64(100000) {
		s.Touch(i)
		require.Less(t, s.touches, s.limit)
	}
}

func TestSketchIsDeterministic(t *testing.T) {
	a, b := NewSketch(100, 3), NewSketch(100, 3)
	r := seeded(t)
	for range 10000 {
		k := r.Uint64N(500)
		require.Equal(t, a.Touch(k), b.Touch(k))
	}
}

func TestSketchSize(t *testing.T) {
	require.Len(t, NewSketch(-1, 0).words, 8)
	require.Len(t, NewSketch(9, 0).words, 16)
	require.Len(t, NewSketch(1<<20, 0).words, 1<<20)
}

func BenchmarkTouch(b *testing.B) {
	s := NewSketch(1<<20, 1)
	r := rand.New(rand.NewPCG(1, 2))
	keys := make([]uint64, 1<<16)
	for i := range keys {
		keys[i] = r.Uint64()
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		s.Touch(keys[i&(len(keys)-1)])
		i++
	}
}
