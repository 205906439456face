package master

import (
	"sync"
	"sync/atomic"

	"github.com/kvcache-ai/mooncake-go/store/internal/arena"
	"github.com/kvcache-ai/mooncake-go/store/internal/status"
)

// Master holds the metadata of one store. All methods are safe for concurrent use.
type Master struct {
	opts  Options
	mem   memory
	index *index
	pool  *pool
	_     [64]byte
	gen   atomic.Uint64 // every reservation writes it: what all read is not beside it
	_     [64]byte

	segments [256]atomic.Pointer[arena.Allocator]
	full     atomic.Uint64 // allocation failures, so that the owner can start an eviction

	effects struct {
		sync.Mutex
		list []Effect
	}
	// waiting are retired records that no reader will free: a time must pass first. Only Tick frees them.
	waiting struct {
		sync.Mutex
		list []waiter
	}
	// orphans are the reservations, by ref, that were taken over while their writer, in this process, still has them
	// pinned. The values are generations: a writer that comes late is told from one that comes twice.
	orphans struct {
		sync.Mutex
		gens map[Ref]uint64
	}
	departures departures

	reading atomic.Int64  // retired records that were not freed at once
	swept   atomic.Uint32 // the page that the last sweep ended with
}

type waiter struct {
	ref   Ref
	until int64
}

// New makes a master over opts.Records; see Restore for records that are already there.
func New(opts Options) *Master {
	m := &Master{opts: opts, mem: opts.Records}
	m.orphans.gens = make(map[Ref]uint64)
	m.departures.counts = make([]atomic.Int32, departureCounts)
	m.index = newIndex(m.mem, opts.Shards)
	m.pool = newPool(m.mem)
	return m
}

// Mount adds a segment to place replicas in. id is at most 255.
func (m *Master) Mount(id SegmentID, a *arena.Allocator) { m.segments[id].Store(a) }

// Generation is the newest generation given out.
func (m *Master) Generation() uint64 { return m.gen.Load() }

// AllocFailures counts reservations that found no room.
func (m *Master) AllocFailures() uint64 { return m.full.Load() }

// CheckKey reports what is wrong with a key, nil if nothing is.
func CheckKey(k Key) error {
	switch {
	case k.Name == "":
		return wrapf(status.InvalidKey, "key is empty")
	case len(k.Name) > MaxKeyBytes:
		return wrapf(status.InvalidKey, "key %.32q... is %d bytes, limit %d", k.Name, len(k.Name), MaxKeyBytes)
	case len(k.Tenant) > MaxTenantBytes:
		return wrapf(status.InvalidKey, "tenant %.32q... is %d bytes, limit %d", k.Tenant, len(k.Tenant), MaxTenantBytes)
	}
	return nil
}

// object copies what a record says, and the replicas of its owner when it is a link.
func (m *Master) object(r Ref, rec *record, w uint64) Object {
	o := Object{Ref: r, Gen: rec.gen, Size: rec.size, Digest: rec.digest, Flags: w, SoftUntil: rec.softUntil,
		Kind: rec.kind, holder: r}
	if w&FlagLink != 0 {
		const own = FlagMemory | FlagSSD | FlagOwnMemory | FlagMemoryBad | FlagSSDBad | FlagUnverified | FlagTable
		o.holder = rec.target
		rec = m.mem.at(rec.target)
		o.Flags = w&^own | loadWord(rec)&own
	}
	o.Lease = m.leaseEnd(rec)
	o.LastUse = atomic.LoadUint32(&rec.lastUse)
	o.Readers = readersOf(loadWord(rec))
	o.SSD, o.SSDKeyLen = rec.loc(), int(rec.tenLen)+1+int(rec.keyLen)
	o.n = rec.nExt
	if int(rec.nExt) <= len(o.few) {
		for i := range int(rec.nExt) {
			o.few[i] = unpack(*m.mem.extent(o.holder, rec, i))
		}
		return o
	}
	o.many = make([]Extent, rec.nExt)
	for i := range o.many {
		o.many[i] = unpack(*m.mem.extent(o.holder, rec, i))
	}
	return o
}

// leaseEnd is when the last lease that protects a record ends: its own, or its group's.
func (m *Master) leaseEnd(rec *record) int64 {
	end := atomic.LoadInt64(&rec.lease)
	if rec.group != 0 {
		end = max(end, atomic.LoadInt64(&m.mem.at(rec.group).lease))
	}
	return end
}

// seconds is the coarse clock of lastUse.
func seconds(now int64) uint32 { return uint32(now / 1e9) }

func (m *Master) emit(e Effect) {
	m.effects.Lock()
	m.effects.list = append(m.effects.list, e)
	m.effects.Unlock()
	if m.opts.Notify != nil {
		m.opts.Notify()
	}
}

// TakeEffects hands over the effects that wait.
func (m *Master) TakeEffects() []Effect {
	m.effects.Lock()
	defer m.effects.Unlock()
	list := m.effects.list
	m.effects.list = nil
	return list
}

// retire ends a record that was taken out of the index. It is freed here, or by the last reader, or by Tick once until
// has passed. The caller holds the record's shard lock, so that nobody else ends it.
func (m *Master) retire(r Ref, rec *record, until int64) {
	if until == 0 {
		if end(rec) {
			m.free(r, rec)
		} else {
			m.reading.Add(1) // the reader may be done already and have taken it off
		}
		return
	}
	m.reading.Add(1)
	setFlags(rec, FlagGuarded) // before Retired: no reader may free it from there on
	setState(rec, Retired)
	m.waiting.Lock()
	m.waiting.list = append(m.waiting.list, waiter{r, until})
	m.waiting.Unlock()
}

// reap frees a record that was in use when it was retired and that end or unpin gave to the caller.
func (m *Master) reap(r Ref, rec *record) {
	m.reading.Add(-1)
	m.free(r, rec)
}

func (m *Master) free(r Ref, rec *record) {
	m.freeReplicas(r, rec)
	atomic.StoreUint64(&rec.word, uint64(Free))
	m.pool.release(r)
}

func (m *Master) freeReplicas(r Ref, rec *record) {
	w := loadWord(rec)
	if w&FlagLink != 0 {
		panic("master: BUG: a link has no replicas of its own")
	}
	m.freeMemory(r, rec)
	if w&FlagSSD != 0 {
		m.emitFreeSSD(rec)
	}
}

func (m *Master) emitFreeSSD(rec *record) {
	keyLen := int(rec.tenLen) + 1 + int(rec.keyLen)
	m.emit(Effect{Kind: FreeSSD, SSD: rec.loc(), KeyLen: keyLen, Size: rec.size, Gen: rec.gen})
}

// freeMemory returns the extents of the memory replica.
func (m *Master) freeMemory(r Ref, rec *record) {
	for i := range int(rec.nExt) {
		m.freeExtent(unpack(*m.mem.extent(r, rec, i)))
	}
}

func (m *Master) freeExtent(e Extent) {
	if e.Segment == OwnFile {
		m.emit(Effect{Kind: FreeOwnFile, OwnFile: uint64(e.Off), Size: e.Len})
		return
	}
	if m.opts.Freed != nil {
		m.opts.Freed(e)
	}
	m.segments[e.Segment].Load().Free(arena.Extent{Off: e.Off, Len: e.Len})
}

// Release lets go of a pin that Acquire, Reserve or a Replaced gave.
func (m *Master) Release(r Ref) {
	rec := m.mem.at(r)
	if unpin(rec) {
		m.reap(r, rec)
	}
}

// Tick ends reservations whose writer, in another process, gave no sign of life for the release timeout, and frees
// what only waited for time to pass. The owner calls it about once a second; it looks at a part of the records.
func (m *Master) Tick(now int64) {
	m.sweep(now)
	m.waiting.Lock()
	var due []waiter
	rest := m.waiting.list[:0]
	for _, w := range m.waiting.list {
		if w.until <= now {
			due = append(due, w)
		} else {
			rest = append(rest, w)
		}
	}
	m.waiting.list = rest
	m.waiting.Unlock()
	for _, w := range due {
		if rec := m.mem.at(w.ref); end(rec) {
			m.reap(w.ref, rec)
		}
	}
}
