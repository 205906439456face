// Package lane tells cores apart, for what is kept once per core because writing it from all of them would be slow.
package lane

import (
	"sync"
	"sync/atomic"
)

// Get is a number that stays the same on a core for long and is rarely the same on two; its low bits number the lanes
// that the caller has. What is striped by it stays in the cache of the core that writes it; a stripe at random would
// come from another core every other time.
func Get() uint32 {
	l := lanes.Get().(*uint32)
	n := *l
	lanes.Put(l)
	return n
}

// lanes gives back to a core what it has put last.
var lanes = sync.Pool{New: func() any { n := last.Add(1); return &n }}

var last atomic.Uint32
