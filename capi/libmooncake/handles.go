package main

// #include "guard.h"
import "C"

import (
	"sync"
	"sync/atomic"
)

// Handles are numbers that C holds. Those of clients are looked up on every call: an array without a lock. Those of
// everything else, which are opened and closed, are kept in shards of a map.

// clientTable has the clients by a slot in their handle, above the kind. The high bits count how often the slot was used,
// so that a handle that was closed does not become another client's.
type clientTable struct {
	slots [maxClients + 1]atomic.Pointer[client]
	mu    struct {
		sync.Mutex
		free  []uint16
		used  int // slots that were taken once, from 1
		turns [maxClients + 1]uint32
	}
}

const (
	slotBits   = 16
	maxClients = 1<<slotBits - 1
)

var clients clientTable

// add gives a client its handle. It is 0 when there are maxClients of them.
func (t *clientTable) add(c *client) uintptr {
	t.mu.Lock()
	defer t.mu.Unlock()
	var slot uint16
	switch n := len(t.mu.free); {
	case n > 0:
		slot, t.mu.free = t.mu.free[n-1], t.mu.free[:n-1]
	case t.mu.used < maxClients:
		t.mu.used++
		slot = uint16(t.mu.used)
	default:
		return 0
	}
	t.mu.turns[slot]++
	c.handle = uintptr(t.mu.turns[slot])<<(slotBits+kindBits) | uintptr(slot)<<kindBits | uintptr(kindClient)
	t.slots[slot].Store(c)
	return c.handle
}

// remove ends a handle, for one caller only: the others get nil.
func (t *clientTable) remove(handle uintptr) *client {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.get(handle)
	if c == nil {
		return nil
	}
	slot := uint16(handle >> kindBits)
	t.slots[slot].Store(nil)
	t.mu.free = append(t.mu.free, slot)
	return c
}

func (t *clientTable) get(handle uintptr) *client {
	c := t.slots[uint16(handle>>kindBits)].Load()
	if c == nil || c.handle != handle {
		return nil
	}
	return c
}

// kind is what a handle stands for, in its low bits: a handle of another kind is not found.
type kind uint64

const (
	kindView kind = iota + 1
	kindFile
	kindWriter
	kindOperation
	kindList
	kindEvents
	kindWeights
	kindLoaded
	kindWeightFile
	kindClient
	kindBits = 4
)

const handleShards = 64

// handles has what is open of one kind.
type handles[T any] struct {
	kind   kind
	last   atomic.Uint64
	shards [handleShards]struct {
		sync.Mutex
		open map[uint64]T
	}
}

func (h *handles[T]) add(v T) C.uint64_t {
	n := h.last.Add(1)
	handle := n<<kindBits | uint64(h.kind)
	s := &h.shards[n%handleShards]
	s.Lock()
	defer s.Unlock()
	if s.open == nil {
		s.open = make(map[uint64]T)
	}
	s.open[handle] = v
	return C.uint64_t(handle)
}

func (h *handles[T]) get(handle C.uint64_t) (v T, err error) {
	s := &h.shards[uint64(handle)>>kindBits%handleShards]
	s.Lock()
	defer s.Unlock()
	v, ok := s.open[uint64(handle)]
	if !ok {
		return v, errHandle
	}
	return v, nil
}

// take ends a handle, for one caller only.
func (h *handles[T]) take(handle C.uint64_t) (v T, err error) {
	s := &h.shards[uint64(handle)>>kindBits%handleShards]
	s.Lock()
	defer s.Unlock()
	v, ok := s.open[uint64(handle)]
	if !ok {
		return v, errHandle
	}
	delete(s.open, uint64(handle))
	return v, nil
}
