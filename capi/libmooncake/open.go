package main

// #include "guard.h"
import "C"

import (
	"context"
	"time"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store"
)

//export mc_open
func mc_open(e *C.mc_error, o *C.mooncake_store_options_t, out *C.uintptr_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	*out = 0
	q, err := poolRequestOf(o)
	if err != nil {
		return fail(e, err)
	}
	return newClient(e, q, tenantName(C.GoString(o.tenant)), out)
}

// newClient makes a client and seats it.
func newClient(e *C.mc_error, q poolRequest, tenant string, out *C.uintptr_t) C.int {
	c := new(client)
	if err := c.connect(q, tenant, ""); err != nil {
		return fail(e, renamed{err})
	}
	h := clients.add(c)
	if h == 0 {
		_ = c.close()
		return fail(e, errors.WithMessagef(store.ErrBusy, "there are %d clients already", maxClients))
	}
	*out = C.uintptr_t(h)
	return 0
}

// tenantName is the one name of a tenant.
func tenantName(name string) string {
	if name == "" {
		return "default"
	}
	return name
}

func poolRequestOf(o *C.mooncake_store_options_t) (q poolRequest, err error) {
	if master := C.GoString(o.master); master != "" {
		return q, errors.WithMessagef(store.ErrNotSupported, "open: can't join the cluster of master %.256q: this version opens "+
			"stores in this process only", master)
	}
	q = poolRequest{name: C.GoString(o.pool), slots: int(o.dir_slots), join: o.join != 0}
	if q.name == "" {
		if q.name, err = poolOfDir(C.GoString(o.dir)); err != nil {
			return q, err
		}
	}
	q.opts = store.Options{Dir: C.GoString(o.dir), ShmDir: C.GoString(o.shm_dir), VolatileMemory: o.volatile_memory != 0,
		Offload: store.Offload(o.offload), LeaseTTL: milliseconds(o.lease_ttl_ms), PutTimeout: milliseconds(o.put_timeout_ms),
		HighWatermark: float64(o.high_watermark), EvictionRatio: float64(o.eviction_ratio), PromoteAfter: int(o.promote_after)}
	for _, size := range []struct {
		name string
		to   *int64
		from C.uint64_t
	}{
		{"memory_bytes", &q.opts.MemoryBytes, o.memory_bytes},
		{"ssd_bytes", &q.opts.SSDBytes, o.ssd_bytes},
		{"file_bytes", &q.opts.FileBytes, o.file_bytes},
	} {
		if *size.to, err = size64(size.name, size.from); err != nil {
			return q, errors.WithMessage(err, "open")
		}
	}
	return q, nil
}

// milliseconds is a duration that the C half has bounded.
func milliseconds(n C.uint64_t) time.Duration { return time.Duration(n) * time.Millisecond }

//export mc_close
func mc_close(e *C.mc_error, h C.uintptr_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	c := clients.get(uintptr(h))
	if c == nil {
		return fail(e, errHandle)
	}
	if err := c.close(); err != nil {
		return fail(e, err)
	}
	return 0
}

//export mc_tenant
func mc_tenant(e *C.mc_error, h C.uintptr_t, tenant *C.char, out *C.uintptr_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	*out = 0
	s, err := seatOf(h)
	if err != nil {
		return fail(e, err)
	}
	return newClient(e, s.samePool(), tenantName(C.GoString(tenant)), out)
}

// within is the context of a call that waits up to timeoutMS, for ever if that is negative.
func within(timeoutMS C.int64_t) (context.Context, context.CancelFunc) {
	const forever = int64(1<<63-1) / int64(time.Millisecond)
	if timeoutMS < 0 || int64(timeoutMS) > forever {
		return always, func() {}
	}
	return context.WithTimeout(always, time.Duration(timeoutMS)*time.Millisecond)
}

//export mc_wait_ready
func mc_wait_ready(e *C.mc_error, h C.uintptr_t, timeoutMS C.int64_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	s, err := seatOf(h)
	if err != nil {
		return fail(e, err)
	}
	ctx, cancel := within(timeoutMS)
	defer cancel()
	switch err := s.WaitReady(ctx); {
	case err == nil:
		return 1
	case errors.Is(err, context.DeadlineExceeded):
		return 0
	default:
		return fail(e, err)
	}
}

//export mc_sync
func mc_sync(e *C.mc_error, h C.uintptr_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	s, err := seatOf(h)
	if err == nil {
		err = s.Sync(always)
	}
	if err != nil {
		return fail(e, err)
	}
	return 0
}
