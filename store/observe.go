package store

import (
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvcache-ai/mooncake-go/store/internal/arena"
)

// clock is now as a time.
func (c *core) clock() time.Time { return unixTime(c.now()) }

func unixTime(ns int64) time.Time { return time.Unix(0, ns) }

// address is where a slice starts, for the comparison of two of them.
func address(p []byte) uintptr { return reflect.ValueOf(p).Pointer() }

// striped counts events and their bytes, in stripes on cache lines of their own, for the paths where cores would meet.
type striped struct {
	stripes [gateStripes]struct {
		count, bytes atomic.Int64
		_            [48]byte
	}
}

func (c *striped) add(stripe uint32, bytes int64) { c.addCount(stripe, 1, bytes) }

func (c *striped) addCount(stripe uint32, count, bytes int64) {
	s := &c.stripes[stripe]
	s.count.Add(count)
	s.bytes.Add(bytes)
}

func (c *striped) load() (count, bytes int64) {
	for i := range c.stripes {
		s := &c.stripes[i]
		count += s.count.Load()
		bytes += s.bytes.Load()
	}
	return count, bytes
}

// counter is a counter off the hot paths.
type counter struct{ n atomic.Int64 }

func (c *counter) add(n int64) { c.n.Add(n) }
func (c *counter) load() int64 { return c.n.Load() }
func (c *counter) set(n int64) { c.n.Store(n) }

// counters is what happened since Open.
type counters struct {
	puts        striped
	hits        [2]striped // by tier
	misses      striped
	removed     counter
	quarantined counter

	evictions struct {
		attempted, successful, blockedByLease counter
		keys, bytes                           [2]counter // by tier
	}
	offload    struct{ keys, bytes, failed counter }
	promotions struct{ completed, bytes, failed, dropped counter }

	restoredMemory, restoredSSD, corruptRecords counter
}

func (c *counters) put(size int64) { c.puts.add(lane(), size) }

// Counters is what happened since Open.
type Counters struct {
	Puts, PutBytes     int64
	Hits, HitBytes     [2]int64 // by Tier
	Misses             int64
	Removed            int64 // by a caller
	Quarantined        int64 // replicas whose bytes were not what was put
	Evictions          int64 // passes that were asked for
	EvictionsFreed     int64 // of those, passes that freed something
	EvictionsLeased    int64 // of those, passes that freed nothing because of leases
	EvictedKeys        [2]int64
	EvictedBytes       [2]int64
	OffloadedKeys      int64
	OffloadedBytes     int64
	OffloadFailures    int64
	Promotions         int64
	PromotedBytes      int64
	PromotionFailures  int64
	PromotionsDropped  int64
	AllocationFailures int64
	RestoredFromMemory int64 // objects found in shared memory at Open
	RestoredFromSSD    int64
	CorruptRecords     int64 // catalogue records that did not verify at Open
	EventsDropped      int64
}

// Counters reads the counters.
func (s *Store) Counters() Counters {
	c := &s.counters
	out := Counters{Removed: c.removed.load(), Quarantined: c.quarantined.load(),
		Evictions: c.evictions.attempted.load(), EvictionsFreed: c.evictions.successful.load(),
		EvictionsLeased: c.evictions.blockedByLease.load(), OffloadedKeys: c.offload.keys.load(),
		OffloadedBytes: c.offload.bytes.load(), OffloadFailures: c.offload.failed.load(), Promotions: c.promotions.completed.load(),
		PromotedBytes: c.promotions.bytes.load(), PromotionFailures: c.promotions.failed.load(),
		PromotionsDropped: c.promotions.dropped.load(), AllocationFailures: int64(s.m.AllocFailures()),
		RestoredFromMemory: c.restoredMemory.load(), RestoredFromSSD: c.restoredSSD.load(),
		CorruptRecords: c.corruptRecords.load(), EventsDropped: s.feed.droppedCount()}
	out.Puts, out.PutBytes = c.puts.load()
	out.Misses, _ = c.misses.load()
	for t := range 2 {
		out.Hits[t], out.HitBytes[t] = c.hits[t].load()
		out.EvictedKeys[t], out.EvictedBytes[t] = c.evictions.keys[t].load(), c.evictions.bytes[t].load()
	}
	return out
}

// TierUsage is what objects take in one tier. Links count nothing here: their bytes are their target's.
type TierUsage struct {
	Count int64
	Bytes int64
}

// Usage is what the store holds now, of all tenants.
type Usage struct {
	Objects    [Types]int64 // by type, links included
	Tiers      [2][Types]TierUsage
	HardPinned int64
	Groups     int64
	Reserved   int64 // bytes of unfinished puts
	InUse      int64 // objects removed or replaced that somebody still reads

	MemoryBudget  int64 // Options.MemoryBytes
	MemoryTaken   int64 // of the budget, from the machine
	LargestObject int64 // the largest that would fit if there were no other: the budget less metadata and headroom
	DataCapacity  int64 // of the segment, for objects
	DataFree      int64
	LargestFree   int64
	OwnFiles      int64 // bytes of memory files of their own
	MetadataTaken int64
	ViewCopies    int64 // bytes of views' own copies, which the budget does not count
	RecordBytes   int64 // of MetadataTaken, pages with records
	IndexBytes    int64 // on the Go heap
	SSDLimit      int64
	SSDLive       int64
	SSDOnDisk     int64
	SharedMemory  string // path of the segment; "" without a directory
	Growing       bool   // the machine still gives memory
}

// Usage adds up what the store holds.
func (s *Store) Usage() (Usage, error) {
	stripe, err := s.gate.enter()
	if err != nil {
		return Usage{}, err
	}
	defer s.gate.leave(stripe)
	m, st := s.m.Usage(), s.alloc.Stats()
	u := Usage{Objects: m.Objects, HardPinned: m.HardPins, Groups: m.Groups, Reserved: m.Reserved, InUse: m.Reading,
		MemoryBudget: s.opts.MemoryBytes, MemoryTaken: s.budget.Total(), LargestObject: s.largest(), DataCapacity: st.Capacity, DataFree: st.Free,
		LargestFree: st.LargestFree, OwnFiles: s.budget.Used(arena.OwnFile), MetadataTaken: s.budget.Used(arena.Metadata),
		ViewCopies: s.mapping.copies.Load(), RecordBytes: m.RecordMem, IndexBytes: m.IndexMem, SSDLimit: s.opts.SSDBytes, SharedMemory: s.seg.Path(),
		Growing: !s.memory.done.Load()}
	for k := range Types {
		for t := range 2 {
			u.Tiers[t][k] = TierUsage{m.Count[k][t], m.Bytes[k][t]}
		}
	}
	if s.tier != nil {
		t := s.tier.Usage()
		u.SSDLive, u.SSDOnDisk = t.LiveBytes, t.DiskBytes
	}
	return u, nil
}

// What a Decision was.
type What string

const (
	Evicted     What = "evicted"     // the object is gone
	Demoted     What = "demoted"     // it left a tier and is still in another
	Quarantined What = "quarantined" // a replica's bytes were wrong; it is not read any more
)

// Decision is something that the store did to an object by itself.
type Decision struct {
	Time   time.Time
	Tenant string
	Key    string
	What   What
	Tier   Tier
	Reason string
}

// decisionRing is how many decisions are kept.
const decisionRing = 4096

// decisions is a ring of the latest ones.
type decisions struct {
	sync.Mutex
	ring []Decision
	next int
}

// add copies the key: it may be in memory of the caller of a public method.
func (d *decisions) add(x Decision) {
	x.Key = strings.Clone(x.Key)
	d.Lock()
	defer d.Unlock()
	if len(d.ring) < decisionRing {
		d.ring = append(d.ring, x)
		return
	}
	d.ring[d.next] = x
	d.next = (d.next + 1) % decisionRing
}

// Explain tells what the store did to a key by itself, oldest first, as far as its last 4096 decisions reach back.
func (s *Store) Explain(key string) []Decision {
	s.log.Lock()
	defer s.log.Unlock()
	var out []Decision
	for i := range s.log.ring {
		d := &s.log.ring[(s.log.next+i)%len(s.log.ring)]
		if d.Key == key && d.Tenant == s.tenant {
			out = append(out, *d)
		}
	}
	return out
}

// EventKind says what happened to an object.
type EventKind uint8

const (
	EventPut EventKind = iota + 1
	EventRemoved
	EventEvicted
	EventDemoted
	EventQuarantined
	EventDropped // this subscriber was too slow: Size events are missing here
)

// Event is a change that a subscriber is told of.
type Event struct {
	Kind   EventKind
	Tenant string
	Key    string
	Size   int64
	Type   ObjectType // of EventPut and EventQuarantined; the others leave it Unknown
	Tier   Tier       // of EventEvicted, EventDemoted and EventQuarantined: the one that it left or that is bad
}

// MaxEventBuffer bounds a subscriber's buffer.
const MaxEventBuffer = 1 << 20

// feed hands events to subscribers without ever waiting for one.
type feed struct {
	n       atomic.Int32
	dropped atomic.Int64
	mu      sync.Mutex
	subs    map[*subscriber]struct{}
	closed  bool
}

type subscriber struct {
	ch     chan Event
	missed int64
}

// tellMissed says how many events are missing, once there is room to say so.
func (s *subscriber) tellMissed() {
	if s.missed == 0 {
		return
	}
	select {
	case s.ch <- Event{Kind: EventDropped, Size: s.missed}:
		s.missed = 0
	default:
	}
}

// tellMissed does so for those that dropped the last events of a burst, which nothing follows.
func (f *feed) tellMissed() {
	if !f.active() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for sub := range f.subs {
		sub.tellMissed()
	}
}

func (f *feed) active() bool { return f.n.Load() > 0 }

func (f *feed) droppedCount() int64 { return f.dropped.Load() }

// send copies the key: it may be in memory of the caller of a public method.
func (f *feed) send(e Event) {
	if !f.active() {
		return
	}
	e.Key = strings.Clone(e.Key)
	f.mu.Lock()
	defer f.mu.Unlock()
	for sub := range f.subs {
		sub.tellMissed()
		select {
		case sub.ch <- e:
		default:
			sub.missed++
			f.dropped.Add(1)
		}
	}
}

// Events subscribes to what happens to the objects of all tenants. The channel holds buffer events, 1 to
// MaxEventBuffer; when it is full events are dropped and counted, and an EventDropped says so. It is closed by cancel
// and by Close.
func (s *Store) Events(buffer int) (events <-chan Event, cancel func()) {
	f := &s.feed
	sub := &subscriber{ch: make(chan Event, min(max(buffer, 1), MaxEventBuffer))}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		close(sub.ch)
		return sub.ch, func() {}
	}
	if f.subs == nil {
		f.subs = make(map[*subscriber]struct{})
	}
	f.subs[sub] = struct{}{}
	f.n.Add(1)
	return sub.ch, func() { f.drop(sub) }
}

func (f *feed) drop(sub *subscriber) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.subs[sub]; ok {
		delete(f.subs, sub)
		f.n.Add(-1)
		close(sub.ch)
	}
}

func (f *feed) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for sub := range f.subs {
		delete(f.subs, sub)
		f.n.Add(-1)
		close(sub.ch)
	}
}
