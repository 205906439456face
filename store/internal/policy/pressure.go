package policy

import "math"

// State is what decides whether an object may leave memory.
type State struct {
	Committed bool // complete and visible; a put in flight and a retired object are not
	HardPin   bool
	LeaseLive bool // a lease of a reader, or of any member of its group, has not ended
	Readers   int  // views, transfers and tasks that use its bytes now
	Links     int  // other keys that share its bytes: evicting this one would free none
}

// Evictable says whether an object in state s may be offered to a Selector. A soft pin is no obstacle: it only orders.
func Evictable(s State) bool {
	return s.Committed && !s.HardPin && !s.LeaseLive && s.Readers == 0 && s.Links == 0
}

// Pressure returns how many bytes of capacity to free, 0 if there is no pressure. There is if used is above the share high of
// capacity, or if an allocation has failed. Then it is the share ratio of capacity, and what used has above high besides. It never
// exceeds used.
func Pressure(used, capacity int64, high, ratio float64, failed bool) (target int64) {
	if used <= 0 || capacity <= 0 {
		return 0
	}
	above := float64(used)/float64(capacity) - high
	if above <= 0 && !failed {
		return 0
	}
	share := max(ratio, above+ratio, 0)
	return min(used, int64(math.Ceil(share*float64(capacity))))
}

// SoftTarget returns how much of target may be taken from soft-pinned objects, for Need.SoftBytes: half of it, or what used has
// above the share high of capacity if that is more. It is 1 at least where target is positive, so that it is never taken for the
// default of SoftBytes.
func SoftTarget(target, used, capacity int64, high float64) int64 {
	if target <= 0 {
		return 0
	}
	above := used - int64(high*float64(capacity))
	return min(target, max(1, target/2, above))
}

// Admit says whether an object that lies on the SSD and has been asked for seen times, by a Sketch's count, is to be copied to memory:
// if it was asked for threshold times, and memory is not above the share high of capacity already. A threshold above MaxCount is
// MaxCount, one below 1 is 1.
func Admit(seen, threshold int, used, capacity int64, high float64) bool {
	return seen >= min(max(threshold, 1), MaxCount) && float64(used) <= high*float64(capacity)
}
