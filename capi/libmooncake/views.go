package main

// #include <stdlib.h>
// #include "guard.h"
import "C"

import (
	"unsafe"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store"
)

// borrowed is an open view: of an object, or of a tensor.
type borrowed interface {
	Close() error
	Segments() [][]byte
}

var views = handles[borrowed]{kind: kindView}

// setView fills in a view of C's. Its bytes are not on the Go heap: store.View promises that.
func setView(out *C.mooncake_view_t, v borrowed, size int64) {
	segments := v.Segments()
	out.size, out.segment_count = C.uint64_t(size), C.size_t(len(segments))
	if len(segments) == 1 {
		out.data = unsafe.Pointer(unsafe.SliceData(segments[0]))
	}
	out.handle = views.add(v)
}

//export mc_view
func mc_view(e *C.mc_error, h C.uintptr_t, key *C.char, keySize C.size_t, flags C.uint, out *C.mooncake_view_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	s, err := seatOf(h)
	if err != nil {
		return fail(e, err)
	}
	v, err := s.View(always, keyAt(key, keySize), readOptions(flags))
	if err != nil {
		return fail(e, err)
	}
	setView(out, v, v.Size())
	return 0
}

//export mc_batch_view
func mc_batch_view(e *C.mc_error, h C.uintptr_t, keys *C.char, keysSize C.size_t, keySizes *C.uint32_t, count C.size_t,
	flags C.uint, out *C.mooncake_view_t, stride C.size_t, codes *C.int) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	opts := readOptions(flags)
	return eachKey(e, h, packed{keys, keysSize, keySizes, count}, codes, func(s *seat, i int, key string) error {
		var full C.mooncake_view_t
		v, err := s.View(always, key, opts)
		if err == nil {
			setView(&full, v, v.Size())
		}
		full.struct_size = stride
		to := bytesAt(unsafe.Add(unsafe.Pointer(out), i*int(stride)), stride)
		clear(to)
		copy(to, bytesAt(unsafe.Pointer(&full), C.size_t(unsafe.Sizeof(full))))
		return err
	})
}

//export mc_view_segments
func mc_view_segments(e *C.mc_error, handle C.uint64_t, out *C.mooncake_segment_t, capacity C.size_t) (r C.int64_t) {
	defer barrier64(e, &r)
	failpoint()
	v, err := views.get(handle)
	if err != nil {
		return C.int64_t(fail(e, err))
	}
	segments := v.Segments()
	for i := range min(len(segments), int(capacity)) {
		unsafe.Slice(out, int(capacity))[i] = C.mooncake_segment_t{data: unsafe.Pointer(unsafe.SliceData(segments[i])),
			size: C.size_t(len(segments[i]))}
	}
	return C.int64_t(len(segments))
}

//export mc_view_close
func mc_view_close(e *C.mc_error, handle C.uint64_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	v, err := views.take(handle)
	if err == nil {
		err = v.Close()
	}
	if err != nil {
		return fail(e, err)
	}
	return 0
}

// handedOut is a file and its path in C's memory.
type handedOut struct {
	*store.File
	path *C.char
}

var files = handles[handedOut]{kind: kindFile}

//export mc_file
func mc_file(e *C.mc_error, h C.uintptr_t, key *C.char, keySize C.size_t, flags C.uint, out *C.mooncake_file_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	s, err := seatOf(h)
	if err != nil {
		return fail(e, err)
	}
	f, err := s.File(always, keyAt(key, keySize), readOptions(flags))
	if err != nil {
		return fail(e, err)
	}
	path := C.CString(f.Path())
	out.path, out.size, out.tier, out.temporary = path, C.uint64_t(f.Size()), C.int(f.Tier()), truth(f.Temporary())
	out.handle = files.add(handedOut{f, path})
	return 0
}

//export mc_file_close
func mc_file_close(e *C.mc_error, handle C.uint64_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	f, err := files.take(handle)
	if err == nil {
		C.free(unsafe.Pointer(f.path))
		err = f.Close()
	}
	if err != nil {
		return fail(e, err)
	}
	return 0
}

var writers = handles[*store.Writer]{kind: kindWriter}

//export mc_create_object
func mc_create_object(e *C.mc_error, h C.uintptr_t, key *C.char, keySize C.size_t, size C.uint64_t,
	o *C.mooncake_put_options_t, out *C.uintptr_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	*out = 0
	s, err := seatOf(h)
	if err != nil {
		return fail(e, err)
	}
	n, err := size64("size", size)
	if err != nil {
		return fail(e, err)
	}
	w, err := s.Create(always, keyAt(key, keySize), n, putOptions(o))
	if err != nil {
		return fail(e, err)
	}
	*out = C.uintptr_t(writers.add(w))
	return 0
}

//export mc_writer_write
func mc_writer_write(e *C.mc_error, h C.uintptr_t, at C.int, offset C.uint64_t, data unsafe.Pointer, size C.size_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	w, err := writers.get(C.uint64_t(h))
	if err != nil {
		return fail(e, err)
	}
	p := bytesAt(data, size)
	if at == 0 {
		_, err = w.Write(p)
	} else if off, bad := size64("offset", offset); bad != nil {
		err = bad
	} else {
		_, err = w.WriteAt(p, off)
	}
	if err != nil {
		return fail(e, errors.WithMessage(err, "write"))
	}
	return 0
}

//export mc_writer_end
func mc_writer_end(e *C.mc_error, h C.uintptr_t, commit C.int) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	w, err := writers.take(C.uint64_t(h))
	switch {
	case err != nil:
	case commit != 0:
		err = w.Commit(always)
	default:
		w.Abort()
	}
	if err != nil {
		return fail(e, err)
	}
	return 0
}
