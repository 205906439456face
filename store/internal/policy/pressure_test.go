package policy

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEvictable(t *testing.T) {
	free := State{Committed: true}
	require.True(t, Evictable(free))
	for name, change := range map[string]func(*State){
		"not committed": func(s *State) { s.Committed = false },
		"hard pin":      func(s *State) { s.HardPin = true },
		"live lease":    func(s *State) { s.LeaseLive = true },
		"a reader":      func(s *State) { s.Readers = 1 },
		"a link":        func(s *State) { s.Links = 1 },
	} {
		s := free
		change(&s)
		require.False(t, Evictable(s), name)
	}
}

func TestPressure(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		name           string
		used, capacity int64
		failed         bool
		want           float64 // share of capacity
	}{
		{"below", 89 * gib, 100 * gib, false, 0},
		{"at the watermark", 90 * gib, 100 * gib, false, 0},
		{"just above", 91 * gib, 100 * gib, false, 0.06},
		{"full", 100 * gib, 100 * gib, false, 0.15},
		{"failed below", 50 * gib, 100 * gib, true, 0.05},
		{"failed above", 95 * gib, 100 * gib, true, 0.10},
		{"failed, hardly used", 1 * gib, 100 * gib, true, 0.01},
		{"empty", 0, 100 * gib, true, 0},
		{"no capacity", 1, 0, true, 0},
	} {
		got := Pressure(c.used, c.capacity, 0.90, 0.05, c.failed)
		require.InDelta(t, c.want*float64(c.capacity), float64(got), 16, c.name)
	}
}

func TestSoftTarget(t *testing.T) {
	require.EqualValues(t, 0, SoftTarget(0, 95, 100, 0.9))
	require.EqualValues(t, 5, SoftTarget(10, 95, 100, 0.9))
	require.EqualValues(t, 8, SoftTarget(13, 98, 100, 0.9))
	require.EqualValues(t, 1, SoftTarget(1, 10, 100, 0.9))
}

func TestAdmit(t *testing.T) {
	require.False(t, Admit(1, 2, 10, 100, 0.9))
	require.True(t, Admit(2, 2, 10, 100, 0.9))
	require.True(t, Admit(2, 2, 90, 100, 0.9))
	require.False(t, Admit(2, 2, 91, 100, 0.9))
	require.True(t, Admit(MaxCount, 255, 10, 100, 0.9), "a threshold the sketch cannot count to")
	require.False(t, Admit(0, 0, 10, 100, 0.9))
}

// TestPinsUnderPressure has one test for each cell of the table in the package's comment.
func TestPinsUnderPressure(t *testing.T) {
	type object struct {
		Candidate
		State
	}
	const high, ratio, capacity = 0.90, 0.05, 1000
	pins := map[string]object{
		"no pin":     {State: State{Committed: true}},
		"soft pin":   {Candidate: Candidate{Soft: true}, State: State{Committed: true}},
		"live lease": {State: State{Committed: true, LeaseLive: true}},
		"hard pin":   {State: State{Committed: true, HardPin: true}},
	}
	pressures := map[string]struct {
		used   int64
		failed bool
		others int // unpinned objects of 10 bytes, newer than the one under test
		leaves map[string]bool
	}{
		"below the watermark": {used: 900, others: 50},
		"above the watermark": {used: 950, others: 50, leaves: map[string]bool{"no pin": true}},
		"failed allocation":   {used: 500, failed: true, others: 50, leaves: map[string]bool{"no pin": true}},
		"need not covered":    {used: 950, others: 1, leaves: map[string]bool{"no pin": true, "soft pin": true}},
		"soft bytes covered":  {used: 950, others: 5, leaves: map[string]bool{"no pin": true}},
		"nothing else":        {used: 950, leaves: map[string]bool{"no pin": true, "soft pin": true}},
	}
	for pin, o := range pins {
		for name, p := range pressures {
			t.Run(pin+"/"+name, func(t *testing.T) {
				o.Ref, o.Size, o.LastUse = 1, 10, 1
				target := Pressure(p.used, capacity, high, ratio, p.failed)
				s := NewSelector(Need{Bytes: target, SoftBytes: SoftTarget(target, p.used, capacity, high)}, Config{})
				objects := []object{o}
				for i := range p.others {
					objects = append(objects, object{
						Candidate: Candidate{Ref: uint32(2 + i), Size: 10, LastUse: uint32(2 + i)},
						State:     State{Committed: true},
					})
				}
				for _, o := range objects {
					if Evictable(o.State) {
						s.Offer(o.Candidate)
					}
				}
				left := false
				for _, v := range s.Victims() {
					left = left || v.Ref == 1
				}
				require.Equal(t, p.leaves[pin], left, "target %d", target)
			})
		}
	}
}
