package main

// #include "guard.h"
import "C"

import (
	"strings"
	"sync"
	"unsafe"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store"
)

// Memory of C's as Go sees it: only inside a call, and the store keeps nothing of it.

// bytesAt is size bytes of the caller's memory. The C half has checked that they can exist.
func bytesAt(p unsafe.Pointer, size C.size_t) []byte { return unsafe.Slice((*byte)(p), int(size)) }

// keyAt is a key in the caller's memory: valid, as the bytes are, until the call returns.
func keyAt(p *C.char, size C.size_t) string {
	return unsafe.String((*byte)(unsafe.Pointer(p)), int(size))
}

// packed is keys that lie in the caller's memory one after the other.
type packed struct {
	data  *C.char
	size  C.size_t
	sizes *C.uint32_t
	count C.size_t
}

// batch is the space that a batch call works in.
type batch struct {
	keys   []string
	found  []bool
	parts  [][]byte
	puts   []store.PutItem
	opts   []store.PutOptions
	gets   []store.GetItem
	ranges []store.RangeRead
	frags  []store.Fragment
}

var batches = sync.Pool{New: func() any { return new(batch) }}

// maxKept is the longest batch whose space is kept.
const maxKept = 1 << 14

// done gives the space back, without what this call has put there of the caller's memory. The rest is empty already.
func (b *batch) done() {
	if cap(b.keys) > maxKept || cap(b.parts) > maxKept {
		return
	}
	b.keys, b.parts = emptied(b.keys), emptied(b.parts)
	b.puts, b.opts, b.gets = emptied(b.puts), emptied(b.opts), emptied(b.gets)
	b.ranges, b.frags = emptied(b.ranges), emptied(b.frags)
	batches.Put(b)
}

func emptied[T any](s []T) []T {
	clear(s)
	return s[:0]
}

func newBatch() *batch { return batches.Get().(*batch) }

// resized is s with n items, which the caller sets.
func resized[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// unpack cuts packed keys apart into b.keys.
func (b *batch) unpack(p packed) (err error) {
	b.keys, err = cut(b.keys, p)
	return err
}

// unpacked finds the client of a batch call and cuts its keys apart. done must follow.
func unpacked(h C.uintptr_t, p packed) (*seat, *batch, error) {
	s, err := seatOf(h)
	if err != nil {
		return nil, nil, err
	}
	b := newBatch()
	if err := b.unpack(p); err != nil {
		b.done()
		return nil, nil, err
	}
	return s, b, nil
}

// cut is unpack into any slice.
func cut(keys []string, p packed) ([]string, error) {
	n := int(p.count)
	keys = resized(keys, n)
	all := keyAt(p.data, p.size)
	if p.sizes != nil {
		for i, size := range unsafe.Slice((*uint32)(unsafe.Pointer(p.sizes)), n) {
			keys[i], all = all[:size], all[size:] // the C half has added them up
		}
		return keys, nil
	}
	for i := range keys {
		end := strings.IndexByte(all, 0)
		if end < 0 && i == n-1 && all != "" {
			end = len(all)
		}
		if end < 0 {
			return keys, countError(i, n)
		}
		keys[i], all = all[:end], all[min(end+1, len(all)):]
	}
	if all != "" {
		return keys, errors.WithMessagef(store.ErrInvalidParams, "keys hold more than %d keys", n)
	}
	return keys, nil
}

func countError(have, want int) error {
	return errors.WithMessagef(store.ErrInvalidParams, "keys hold %d keys, count is %d", have, want)
}

// strings takes the keys of an array, whose sizes the C half has counted.
func (b *batch) strings(keys **C.char, sizes *C.uint32_t, count C.size_t) {
	b.keys = resized(b.keys, int(count))
	n := unsafe.Slice(sizes, int(count))
	for i, key := range unsafe.Slice(keys, int(count)) {
		b.keys[i] = keyAt(key, C.size_t(n[i]))
	}
}

// buffers is memory of the caller's: for each of count items as many pieces as counts says, or one.
type buffers struct {
	addresses *unsafe.Pointer
	sizes     *C.size_t
	counts    *C.uint32_t
	total     C.int64_t
}

// pieces sets b.parts to all pieces of memory, in order.
func (b *batch) pieces(m buffers) {
	b.parts = resized(b.parts, int(m.total))
	sizes := unsafe.Slice(m.sizes, int(m.total))
	for i, p := range unsafe.Slice(m.addresses, int(m.total)) {
		b.parts[i] = bytesAt(p, sizes[i])
	}
}

// pieceCount is how many pieces item i has.
func (m *buffers) pieceCount(i int) int {
	if m.counts == nil {
		return 1
	}
	return int(unsafe.Slice((*uint32)(unsafe.Pointer(m.counts)), i+1)[i])
}
