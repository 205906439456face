package main

// #include <stdlib.h>
// #include "guard.h"
import "C"

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"

	"github.com/kvcache-ai/mooncake-go/store"
)

//export mc_usage
func mc_usage(e *C.mc_error, h C.uintptr_t, out *C.mooncake_usage_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	s, err := seatOf(h)
	if err != nil {
		return fail(e, err)
	}
	u, err := s.Usage()
	if err != nil {
		return fail(e, err)
	}
	for i := range store.Types {
		out.objects[i] = C.int64_t(u.Objects[i])
		out.memory_count[i], out.memory_bytes[i] = tierUsage(u.Tiers[store.TierMemory][i])
		out.ssd_count[i], out.ssd_bytes[i] = tierUsage(u.Tiers[store.TierSSD][i])
	}
	out.hard_pinned, out.groups = C.int64_t(u.HardPinned), C.int64_t(u.Groups)
	out.reserved_bytes, out.in_use_bytes = C.int64_t(u.Reserved), C.int64_t(u.InUse)
	out.memory_budget, out.memory_taken = C.int64_t(u.MemoryBudget), C.int64_t(u.MemoryTaken)
	out.data_capacity, out.data_free = C.int64_t(u.DataCapacity), C.int64_t(u.DataFree)
	out.largest_free, out.own_files_bytes = C.int64_t(u.LargestFree), C.int64_t(u.OwnFiles)
	out.metadata_bytes, out.index_bytes = C.int64_t(u.MetadataTaken), C.int64_t(u.IndexBytes)
	out.ssd_limit, out.ssd_live, out.ssd_on_disk = C.int64_t(u.SSDLimit), C.int64_t(u.SSDLive), C.int64_t(u.SSDOnDisk)
	out.growing = truth(u.Growing)
	return 0
}

func tierUsage(u store.TierUsage) (count, bytes C.int64_t) {
	return C.int64_t(u.Count), C.int64_t(u.Bytes)
}

//export mc_counters
func mc_counters(e *C.mc_error, h C.uintptr_t, out *C.mooncake_counters_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	s, err := seatOf(h)
	if err != nil {
		return fail(e, err)
	}
	c := s.Counters()
	const memory, ssd = store.TierMemory, store.TierSSD
	for _, f := range []struct {
		to   *C.int64_t
		from int64
	}{
		{&out.puts, c.Puts}, {&out.put_bytes, c.PutBytes},
		{&out.memory_hits, c.Hits[memory]}, {&out.memory_hit_bytes, c.HitBytes[memory]},
		{&out.ssd_hits, c.Hits[ssd]}, {&out.ssd_hit_bytes, c.HitBytes[ssd]}, {&out.misses, c.Misses},
		{&out.removed, c.Removed}, {&out.quarantined, c.Quarantined},
		{&out.evictions, c.Evictions}, {&out.evictions_freed, c.EvictionsFreed}, {&out.evictions_leased, c.EvictionsLeased},
		{&out.memory_evicted, c.EvictedKeys[memory]}, {&out.memory_evicted_bytes, c.EvictedBytes[memory]},
		{&out.ssd_evicted, c.EvictedKeys[ssd]}, {&out.ssd_evicted_bytes, c.EvictedBytes[ssd]},
		{&out.offloaded, c.OffloadedKeys}, {&out.offloaded_bytes, c.OffloadedBytes}, {&out.offload_failures, c.OffloadFailures},
		{&out.promotions, c.Promotions}, {&out.promoted_bytes, c.PromotedBytes},
		{&out.promotion_failures, c.PromotionFailures}, {&out.promotions_dropped, c.PromotionsDropped},
		{&out.allocation_failures, c.AllocationFailures}, {&out.restored_from_memory, c.RestoredFromMemory},
		{&out.restored_from_ssd, c.RestoredFromSSD}, {&out.corrupt_records, c.CorruptRecords},
		{&out.events_dropped, c.EventsDropped},
	} {
		*f.to = C.int64_t(f.from)
	}
	return 0
}

//export mc_room_of
func mc_room_of(e *C.mc_error, h C.uintptr_t, tier C.int, freeOut, evictableOut *C.int64_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	s, err := seatOf(h)
	if err != nil {
		return fail(e, err)
	}
	free, evictable, err := s.Room(store.Tier(tier))
	if err != nil {
		return fail(e, err)
	}
	*freeOut, *evictableOut = C.int64_t(free), C.int64_t(evictable)
	return 0
}

// decision is a store.Decision as mooncake.h describes its JSON.
type decision struct {
	Time   time.Time  `json:"time"`
	What   store.What `json:"what"`
	Tier   string     `json:"tier"`
	Reason string     `json:"reason"`
}

//export mc_explain
func mc_explain(e *C.mc_error, h C.uintptr_t, key *C.char, size C.size_t, out **C.char) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	*out = nil
	s, err := seatOf(h)
	if err != nil {
		return fail(e, err)
	}
	decisions := []decision{}
	for _, d := range s.Explain(keyAt(key, size)) {
		decisions = append(decisions, decision{d.Time, d.What, strings.ToLower(d.Tier.String()), d.Reason})
	}
	return jsonTo(e, out, decisions)
}

// jsonTo hands a document out as text in C's memory.
func jsonTo(e *C.mc_error, out **C.char, v any) C.int {
	text, err := json.Marshal(v)
	if err != nil {
		return fail(e, err)
	}
	p := C.mc_malloc(C.size_t(len(text) + 1))
	if p == nil {
		return fail(e, errors.WithMessagef(store.ErrNoSpace, "no memory for %d bytes of JSON", len(text)))
	}
	to := bytesAt(p, C.size_t(len(text)+1))
	to[copy(to, text)] = 0
	*out = (*C.char)(p)
	return 0
}

// list is a walk over objects. A goroutine of its own reads ahead: an iterator that is pulled would be bound to one thread.
type list struct {
	stop context.CancelFunc
	in   chan []store.Info
	err  error // set before in is closed

	mu struct {
		sync.Mutex
		infos  []store.Info
		key    unsafe.Pointer // C's memory for the key that was given out last
		closed bool
	}
}

const listAhead = 256 // objects

var lists = handles[*list]{kind: kindList}

//export mc_list
func mc_list(e *C.mc_error, h C.uintptr_t, prefix *C.char, size C.size_t, out *C.uintptr_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	*out = 0
	s, err := seatOf(h)
	if err != nil {
		return fail(e, err)
	}
	l := &list{in: make(chan []store.Info)}
	l.mu.key = C.mc_malloc(store.MaxKeyBytes)
	if l.mu.key == nil {
		return fail(e, errors.WithMessage(store.ErrNoSpace, "list: no memory"))
	}
	var ctx context.Context
	ctx, l.stop = context.WithCancel(always)
	go l.walk(ctx, s.Store, strings.Clone(keyAt(prefix, size)))
	*out = C.uintptr_t(lists.add(l))
	return 0
}

func (l *list) walk(ctx context.Context, s *store.Store, prefix string) {
	defer close(l.in)
	defer func() {
		if p := recover(); p != nil {
			l.err = errors.New(recovered(p))
		}
	}()
	var infos []store.Info
	for info, err := range s.Objects(ctx, prefix) {
		if err != nil {
			l.err = err
			break
		}
		if infos = append(infos, info); len(infos) < listAhead {
			continue
		}
		if !l.send(ctx, infos) {
			return
		}
		infos = nil
	}
	if len(infos) > 0 {
		l.send(ctx, infos)
	}
}

func (l *list) send(ctx context.Context, infos []store.Info) bool {
	select {
	case l.in <- infos:
		return true
	case <-ctx.Done():
		return false
	}
}

//export mc_list_next
func mc_list_next(e *C.mc_error, h C.uintptr_t, out *C.mooncake_object_info_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	l, err := lists.get(C.uint64_t(h))
	if err != nil {
		return fail(e, err)
	}
	found, err := l.next(out)
	if err != nil {
		return fail(e, errors.WithMessage(err, "list"))
	}
	return truth(found)
}

func (l *list) next(out *C.mooncake_object_info_t) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		return false, errHandle
	}
	if len(l.mu.infos) == 0 {
		infos, ok := <-l.in
		switch {
		case !ok && errors.Is(l.err, context.Canceled): // by close, in another thread
			return false, errHandle
		case !ok:
			return false, l.err
		}
		l.mu.infos = infos
	}
	info := &l.mu.infos[0]
	setInfo(out, info)
	copy(bytesAt(l.mu.key, store.MaxKeyBytes), info.Key)
	out.key, out.key_size = (*C.char)(l.mu.key), C.size_t(len(info.Key))
	l.mu.infos = l.mu.infos[1:]
	return true, nil
}

//export mc_list_close
func mc_list_close(e *C.mc_error, h C.uintptr_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	l, err := lists.take(C.uint64_t(h))
	if err != nil {
		return fail(e, err)
	}
	l.stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.closed = true
	C.free(l.mu.key)
	l.mu.key = nil
	return 0
}

// events is a subscription. A pump moves one event at a time from the store's feed to next, and keeps the eventfd's count
// at what lies there, so that who polls it sees whether an event waits. At the end of the feed it stays readable.
type events struct {
	cancel func()
	next   chan store.Event // of one; closed when the store is
	fd     int
	ended  chan struct{} // closed by close
	gone   chan struct{} // closed by the pump

	mu struct { // held by who takes an event
		sync.Mutex
		key, tenant unsafe.Pointer // C's memory for what was given out last; nil when closed
	}
}

var subscriptions = handles[*events]{kind: kindEvents}

//export mc_events
func mc_events(e *C.mc_error, h C.uintptr_t, buffer C.size_t, out *C.uintptr_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	*out = 0
	s, err := seatOf(h)
	if err != nil {
		return fail(e, err)
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_SEMAPHORE)
	if err != nil {
		return fail(e, errors.Wrap(err, "events: eventfd"))
	}
	ev := &events{next: make(chan store.Event, 1), fd: fd, ended: make(chan struct{}), gone: make(chan struct{})}
	ev.mu.key, ev.mu.tenant = C.mc_malloc(store.MaxKeyBytes), C.mc_malloc(store.MaxTenantBytes+1)
	if ev.mu.key == nil || ev.mu.tenant == nil {
		C.free(ev.mu.key)
		C.free(ev.mu.tenant)
		_ = unix.Close(fd)
		return fail(e, errors.WithMessage(store.ErrNoSpace, "events: no memory"))
	}
	var feed <-chan store.Event
	feed, ev.cancel = s.Events(int(buffer))
	go ev.pump(feed)
	*out = C.uintptr_t(subscriptions.add(ev))
	return 0
}

func (ev *events) pump(feed <-chan store.Event) {
	defer close(ev.gone)
	for event := range feed {
		select {
		case ev.next <- event:
			signal(ev.fd)
		case <-ev.ended:
			return
		}
	}
	close(ev.next)
	signal(ev.fd)
}

//export mc_events_next
func mc_events_next(e *C.mc_error, h C.uintptr_t, timeoutMS C.int64_t, out *C.mooncake_event_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	ev, err := subscriptions.get(C.uint64_t(h))
	if err != nil {
		return fail(e, err)
	}
	found, err := ev.take(timeoutMS, out)
	if err != nil {
		return fail(e, errors.WithMessage(err, "events"))
	}
	return truth(found)
}

func (ev *events) take(timeoutMS C.int64_t, out *C.mooncake_event_t) (found bool, err error) {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	if ev.mu.key == nil {
		return false, errHandle
	}
	ctx, cancel := within(timeoutMS)
	defer cancel()
	var event store.Event
	select {
	case event, found = <-ev.next:
	default:
		select {
		case event, found = <-ev.next:
		case <-ctx.Done():
			return false, nil
		case <-ev.ended:
			return false, errHandle
		}
	}
	if !found {
		return false, store.ErrClosed
	}
	var count [8]byte
	_, _ = unix.Read(ev.fd, count[:]) // what the pump signals right after it has sent
	ev.give(out, &event)
	return true, nil
}

func (ev *events) give(out *C.mooncake_event_t, event *store.Event) {
	out.kind, out.tier, out._type = C.int(event.Kind), C.int(event.Tier), C.uint32_t(event.Type)
	out.size = C.uint64_t(event.Size)
	copy(bytesAt(ev.mu.key, store.MaxKeyBytes), event.Key)
	out.key, out.key_size = (*C.char)(ev.mu.key), C.size_t(len(event.Key))
	tenant := bytesAt(ev.mu.tenant, store.MaxTenantBytes+1)
	tenant[copy(tenant[:store.MaxTenantBytes], tenantName(event.Tenant))] = 0
	out.tenant = (*C.char)(ev.mu.tenant)
}

//export mc_events_eventfd
func mc_events_eventfd(e *C.mc_error, h C.uintptr_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	ev, err := subscriptions.get(C.uint64_t(h))
	if err != nil {
		return fail(e, err)
	}
	return C.int(ev.fd)
}

//export mc_events_close
func mc_events_close(e *C.mc_error, h C.uintptr_t) (r C.int) {
	defer barrier(e, &r)
	failpoint()
	ev, err := subscriptions.take(C.uint64_t(h))
	if err != nil {
		return fail(e, err)
	}
	close(ev.ended)
	ev.cancel()
	<-ev.gone
	ev.mu.Lock()
	defer ev.mu.Unlock()
	_ = unix.Close(ev.fd)
	C.free(ev.mu.key)
	C.free(ev.mu.tenant)
	ev.mu.key, ev.mu.tenant = nil, nil
	return 0
}
