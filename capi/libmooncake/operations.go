package main

// #include "guard.h"
import "C"

import (
	"context"
	"strings"
	"sync"
	"unsafe"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"

	"github.com/kvcache-ai/mooncake-go/store"
	"github.com/kvcache-ai/mooncake-go/weight"
)

// operation is a call that runs on its own. Its states are running and done; done is for good.
type operation struct {
	done    chan struct{}
	cancel  context.CancelFunc
	result  C.mc_error           // set before done is closed
	outcome *weight.ImportResult // of an import that went well; set before done is closed

	mu struct {
		sync.Mutex
		fd    int            // an eventfd, -1 while nobody wants it
		freed bool           // there will be none any more
		imp   *weight.Import // of an import that has begun
	}
}

var operations = handles[*operation]{kind: kindOperation}

// maxOperations bounds those that run at a time.
const maxOperations = 4096

var running = make(chan struct{}, maxOperations)

// start runs work as an operation and gives its handle out. work returns a code and notes the error.
func start(e *C.mc_error, out *C.uintptr_t, work func(ctx context.Context, op *operation, e *C.mc_error) C.int) C.int {
	select {
	case running <- struct{}{}:
	default:
		return fail(e, errors.WithMessagef(store.ErrBusy, "there are %d operations running", maxOperations))
	}
	op := &operation{done: make(chan struct{})}
	op.mu.fd = -1
	var ctx context.Context
	ctx, op.cancel = context.WithCancel(always)
	go func() {
		defer op.finish()
		defer barrier(&op.result, &op.result.code)
		if work(ctx, op, &op.result) == 0 {
			op.result.code = 0 // what is noted is of single items
		}
	}()
	*out = C.uintptr_t(operations.add(op))
	return 0
}

// finish tells everybody who waits.
func (o *operation) finish() {
	o.cancel()
	<-running
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.done)
	if o.mu.fd >= 0 {
		signal(o.mu.fd)
	}
}

// signal makes an eventfd readable. It can't fail: the counter is far from its end.
func signal(fd int) {
	one := [8]byte{1} // in the machine's order, which is little-endian everywhere we run
	_, _ = unix.Write(fd, one[:])
}

// eventfd makes the descriptor when it is asked for first.
func (o *operation) eventfd() (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.mu.freed: // by another thread, since the handle was looked up
		return -1, errHandle
	case o.mu.fd >= 0:
		return o.mu.fd, nil
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1, errors.Wrap(err, "eventfd")
	}
	select {
	case <-o.done:
		signal(fd)
	default:
	}
	o.mu.fd = fd
	return fd, nil
}

// free cancels what still runs, waits for it and gives the descriptor back.
func (o *operation) free() {
	o.cancel()
	<-o.done
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.freed = true
	if o.mu.fd >= 0 {
		_ = unix.Close(o.mu.fd)
		o.mu.fd = -1
	}
}

//export mc_operation_wait
func mc_operation_wait(e *C.mc_error, h C.uintptr_t, timeoutMS C.int64_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	op, err := operations.get(C.uint64_t(h))
	if err != nil {
		return fail(e, err)
	}
	select {
	case <-op.done:
		return 1
	default:
	}
	if timeoutMS == 0 {
		return 0
	}
	ctx, cancel := within(timeoutMS)
	defer cancel()
	select {
	case <-op.done:
		return 1
	case <-ctx.Done():
		return 0
	}
}

//export mc_operation_result
func mc_operation_result(e *C.mc_error, h C.uintptr_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	op, err := operations.get(C.uint64_t(h))
	if err != nil {
		return fail(e, err)
	}
	return op.resultTo(e)
}

// resultTo is the result of an operation that is done, with the error as the caller's last.
func (o *operation) resultTo(e *C.mc_error) C.int {
	select {
	case <-o.done:
	default:
		return fail(e, errors.WithMessage(store.ErrNotReady, "the operation is running"))
	}
	if o.result.code != 0 {
		*e = o.result
	}
	return o.result.code
}

//export mc_operation_eventfd
func mc_operation_eventfd(e *C.mc_error, h C.uintptr_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	op, err := operations.get(C.uint64_t(h))
	if err != nil {
		return fail(e, err)
	}
	fd, err := op.eventfd()
	if err != nil {
		return fail(e, err)
	}
	return C.int(fd)
}

//export mc_operation_cancel
func mc_operation_cancel(e *C.mc_error, h C.uintptr_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	op, err := operations.get(C.uint64_t(h))
	if err != nil {
		return fail(e, err)
	}
	op.cancel()
	return 0
}

//export mc_operation_free
func mc_operation_free(e *C.mc_error, h C.uintptr_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	op, err := operations.take(C.uint64_t(h))
	if err != nil {
		return fail(e, err)
	}
	op.free()
	return 0
}

// asyncBatch is a batch of an operation's own, with copies of all but the memory that is read or written.
func asyncBatch(p packed, m buffers) (*batch, buffers, error) {
	b := new(batch)
	if err := b.unpack(p); err != nil {
		return nil, m, err
	}
	for i, key := range b.keys {
		b.keys[i] = strings.Clone(key)
	}
	own := buffers{total: m.total}
	own.addresses = copied(m.addresses, int(m.total))
	own.sizes = copied(m.sizes, int(m.total))
	if m.counts != nil {
		own.counts = copied(m.counts, int(p.count))
	}
	return b, own, nil
}

func copied[T any](p *T, n int) *T {
	return unsafe.SliceData(append(make([]T, 0, n+1), unsafe.Slice(p, n)...))
}

// ownGroups copies the groups of planned puts out of the caller's memory.
func (b *batch) ownGroups() {
	var last *store.PutOptions
	for i := range b.puts {
		if o := b.puts[i].Opts; o != last {
			o.Group = strings.Clone(o.Group)
			last = o
		}
	}
}

//export mc_batch_put_async
func mc_batch_put_async(e *C.mc_error, h C.uintptr_t, keys *C.char, keysSize C.size_t, keySizes *C.uint32_t, count C.size_t,
	addresses *unsafe.Pointer, sizes *C.size_t, counts *C.uint32_t, total C.int64_t, o *C.mooncake_put_options_t, out *C.int,
	opOut *C.uintptr_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	*opOut = 0
	s, err := seatOf(h)
	if err != nil {
		return fail(e, err)
	}
	b, m, err := asyncBatch(packed{keys, keysSize, keySizes, count}, buffers{addresses, sizes, counts, total})
	if err != nil {
		return fail(e, err)
	}
	if err := b.plan(m, o); err != nil {
		return fail(e, err)
	}
	b.ownGroups()
	keep := o.keep != 0
	return start(e, opOut, func(ctx context.Context, _ *operation, e *C.mc_error) C.int {
		return putPlanned(ctx, e, s, b, keep, false, out)
	})
}

//export mc_batch_get_async
func mc_batch_get_async(e *C.mc_error, h C.uintptr_t, keys *C.char, keysSize C.size_t, keySizes *C.uint32_t, count C.size_t,
	addresses *unsafe.Pointer, sizes *C.size_t, counts *C.uint32_t, total C.int64_t, flags C.uint, out *C.int64_t,
	opOut *C.uintptr_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	*opOut = 0
	s, err := seatOf(h)
	if err != nil {
		return fail(e, err)
	}
	b, m, err := asyncBatch(packed{keys, keysSize, keySizes, count}, buffers{addresses, sizes, counts, total})
	if err != nil {
		return fail(e, err)
	}
	return start(e, opOut, func(ctx context.Context, _ *operation, e *C.mc_error) C.int {
		return getAll(ctx, e, s, b, m, flags, out)
	})
}
