package main

// #include "guard.h"
import "C"

import (
	"unsafe"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store"
)

//export mc_create
func mc_create(e *C.mc_error) (handle C.uintptr_t) {
	var r C.int
	defer barrier(e, &r)
	failpoint()
	handle = C.uintptr_t(clients.add(new(client)))
	if handle == 0 {
		fail(e, errors.WithMessagef(store.ErrBusy, "there are %d clients already", maxClients))
	}
	return handle
}

//export mc_destroy
func mc_destroy(e *C.mc_error, h C.uintptr_t) {
	var r C.int
	defer barrier(e, &r)
	failpoint()
	if c := clients.remove(uintptr(h)); c != nil {
		if err := c.destroy(); err != nil {
			fail(e, err)
		}
	}
}

//export mc_setup
func mc_setup(e *C.mc_error, h C.uintptr_t, hostname *C.char, segment C.uint64_t, address *C.char, forced C.int) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	c := clients.get(uintptr(h))
	if c == nil {
		return fail(e, errHandle)
	}
	name, err := poolOfAddress(C.GoString(address), forced != 0)
	if err != nil {
		return fail(e, err)
	}
	q := poolRequest{name: name, join: true}
	if q.opts.MemoryBytes, err = size64("global_segment_size", segment); err != nil {
		return fail(e, err)
	}
	q.opts.MemoryBytes = max(q.opts.MemoryBytes, store.MinMemoryBytes) // a client that contributes little or nothing
	if err := c.connect(q, tenantName(""), C.GoString(hostname)); err != nil {
		return fail(e, err)
	}
	return 0
}

// size64 is a size of C's as the store's, or an error if it is none.
func size64(what string, n C.uint64_t) (int64, error) {
	if int64(n) < 0 {
		return 0, errors.WithMessagef(store.ErrInvalidParams, "%s is %d", what, uint64(n))
	}
	return int64(n), nil
}

//export mc_health_check
func mc_health_check(e *C.mc_error, h C.uintptr_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	s, err := seatOf(h)
	if err != nil {
		return 1
	}
	if _, err := s.Probe("health"); err != nil {
		fail(e, err)
		return 2
	}
	return 0
}

//export mc_get_hostname
func mc_get_hostname(e *C.mc_error, h C.uintptr_t, buf *C.char, size C.size_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	s, err := seatOf(h)
	if err != nil {
		return fail(e, err)
	}
	if len(s.hostname) >= int(size) {
		note(e, -1, "get hostname: the buffer is too small for "+s.hostname)
		return -1
	}
	to := bytesAt(unsafe.Pointer(buf), size)
	to[copy(to, s.hostname)] = 0
	return 0
}

//export mc_batch_put_strings
func mc_batch_put_strings(e *C.mc_error, h C.uintptr_t, keys **C.char, keySizes *C.uint32_t, count C.size_t,
	addresses *unsafe.Pointer, sizes *C.size_t, o *C.mooncake_put_options_t, out *C.int) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	s, err := seatOf(h)
	if err != nil {
		return nobody(e, err, out, count)
	}
	b := newBatch()
	defer b.done()
	b.strings(keys, keySizes, count)
	return putAll(always, e, s, b, buffers{addresses, sizes, nil, C.int64_t(count)}, o, true, out)
}

//export mc_batch_get_strings
func mc_batch_get_strings(e *C.mc_error, h C.uintptr_t, keys **C.char, keySizes *C.uint32_t, count C.size_t,
	addresses *unsafe.Pointer, sizes *C.size_t, out *C.int64_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	s, err := seatOf(h)
	if err != nil {
		return nobody(e, err, out, count)
	}
	b := newBatch()
	defer b.done()
	b.strings(keys, keySizes, count)
	return getAll(always, e, s, b, buffers{addresses, sizes, nil, C.int64_t(count)}, 0, out)
}

//export mc_batch_exist_strings
func mc_batch_exist_strings(e *C.mc_error, h C.uintptr_t, keys **C.char, keySizes *C.uint32_t, count C.size_t,
	out *C.int) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	s, err := seatOf(h)
	if err != nil {
		return nobody(e, err, out, count)
	}
	b := newBatch()
	defer b.done()
	b.strings(keys, keySizes, count)
	return existAll(e, s, b, 0, out)
}

// nobody is the result of a batch whose client is not set up: each item says so.
func nobody[T C.int | C.int64_t](e *C.mc_error, err error, out *T, count C.size_t) C.int {
	code := fail(e, err)
	if err == errHandle {
		return code
	}
	for i := range unsafe.Slice(out, int(count)) {
		unsafe.Slice(out, int(count))[i] = T(code)
	}
	return 0
}

//export mc_remove_by_regex
func mc_remove_by_regex(e *C.mc_error, h C.uintptr_t, pattern *C.char, force C.int) (r C.int64_t) {
	defer barrier64(e, &r)
	failpoint()
	s, err := seatOf(h)
	if err != nil {
		return C.int64_t(fail(e, err))
	}
	n, err := s.RemoveRegex(always, C.GoString(pattern), force != 0)
	if err != nil {
		return C.int64_t(fail(e, err))
	}
	return C.int64_t(n)
}

//export mc_remove_all
func mc_remove_all(e *C.mc_error, h C.uintptr_t, force C.int) (r C.int64_t) {
	defer barrier64(e, &r)
	failpoint()
	s, err := seatOf(h)
	if err != nil {
		return C.int64_t(fail(e, err))
	}
	n, err := s.RemoveAll(always, force != 0)
	if err != nil {
		return C.int64_t(fail(e, err))
	}
	return C.int64_t(n)
}

//export mc_register_buffer
func mc_register_buffer(e *C.mc_error, h C.uintptr_t, base C.uintptr_t, size C.size_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	s, err := seatOf(h)
	if err == nil {
		err = s.buffers.add(uintptr(base), uintptr(size))
	}
	if err != nil {
		return fail(e, err)
	}
	return 0
}

//export mc_unregister_buffer
func mc_unregister_buffer(e *C.mc_error, h C.uintptr_t, base C.uintptr_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	s, err := seatOf(h)
	if err == nil {
		err = s.buffers.remove(uintptr(base))
	}
	if err != nil {
		return fail(e, err)
	}
	return 0
}
