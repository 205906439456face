package master

import (
	"sync/atomic"

	"github.com/kvcache-ai/mooncake-go/store/internal/arena"
	"github.com/kvcache-ai/mooncake-go/store/internal/lane"
	"github.com/kvcache-ai/mooncake-go/store/internal/status"
	"github.com/kvcache-ai/mooncake-go/store/internal/sum"
)

// Reserve takes space for an object and makes its record. A key that is committed, or that somebody else is writing,
// is refused with status.Exists unless the request replaces. The reservation ends with Commit or Abort; without
// WriterPin it may be taken over after Options.DiscardTimeout without a Renew.
func (m *Master) Reserve(now int64, q ReserveRequest) (Object, error) {
	if err := m.check(&q); err != nil {
		return Object{}, err
	}
	h := m.index.hash(q.Tenant, q.Name)
	if err := m.precheck(now, h, &q); err != nil {
		return Object{}, err
	}
	var buf [4]arena.Extent
	extents, err := m.place(&q, buf[:0])
	if err != nil {
		return Object{}, err
	}
	r, err := m.newRecord(now, h, &q, extents)
	if err != nil {
		m.unplace(extents)
		return Object{}, err
	}
	l, g, err := m.lockForReserve(h, &q)
	if err != nil {
		m.discard(r)
		return Object{}, err
	}
	defer l.unlock()
	s := m.index.shardOf(h)
	rec := m.mem.at(r)
	if stale, _, err := m.conflict(now, s, h, &q); err != nil || stale != 0 {
		m.dropIfEmpty(g)
		m.discard(r)
		if err == nil {
			err = wrapf(status.Exists, "put %.64q: somebody else is writing it", q.Name)
		}
		return Object{}, err
	}
	if g != 0 {
		m.join(g, r, rec)
	}
	s.insert(h, r)
	s.usage.reserved += q.Size
	return m.object(r, rec, loadWord(rec)), nil
}

func (m *Master) check(q *ReserveRequest) error {
	if err := CheckKey(q.Key); err != nil {
		return err
	}
	switch {
	case q.Size <= 0:
		return wrapf(status.InvalidParams, "put %.64q: size %d, must be at least 1", q.Name, q.Size)
	case q.Size > MaxObjectBytes:
		return wrapf(status.TooLarge, "put %.64q: size %d, limit %d", q.Name, q.Size, int64(MaxObjectBytes))
	case q.Kind >= Kinds:
		return wrapf(status.InvalidParams, "put %.64q: unknown type %d, the highest is %d", q.Name, q.Kind, Kinds-1)
	case len(q.Group) > MaxGroupBytes:
		return wrapf(status.InvalidParams, "put %.64q: group is %d bytes, limit %d", q.Name, len(q.Group), MaxGroupBytes)
	}
	return nil
}

// precheck finds the common refusal before any space is taken, ends a put whose writer is gone, and finds the group
// that a replacing put inherits.
func (m *Master) precheck(now int64, h uint64, q *ReserveRequest) error {
	s := m.index.shardOf(h)
	for {
		s.mu.Lock()
		stale, gen, err := m.conflict(now, s, h, q)
		if err == nil && q.Replace {
			err = m.inheritGroup(s, h, q)
		}
		s.mu.Unlock()
		if stale == 0 || err != nil {
			return err
		}
		m.takeOver(now, stale, gen)
	}
}

// conflict refuses a put of a key that is there or being written. A reservation without a sign of life is returned:
// it must go first.
func (m *Master) conflict(now int64, s *shard, h uint64, q *ReserveRequest) (stale Ref, gen uint64, err error) {
	if q.Replace {
		return 0, 0, nil
	}
	m.index.find(s, h, q.Tenant, q.Name, func(r Ref, rec *record, w uint64) bool {
		switch {
		case stateOf(w) == Committed && (w&FlagLink != 0 || readable(w)):
			err = status.Exists
		case stateOf(w) == Reserved && (w&FlagLink != 0 || now-atomic.LoadInt64(&rec.lease) < int64(m.opts.DiscardTimeout)):
			err = wrapf(status.Exists, "put %.64q: somebody else is writing it", q.Name)
		case stateOf(w) == Reserved:
			stale, gen = r, rec.gen
		}
		return err != nil
	})
	return stale, gen, err
}

func (m *Master) inheritGroup(s *shard, h uint64, q *ReserveRequest) error {
	_, old := m.index.committed(s, h, q.Tenant, q.Name)
	if old == nil || old.group == 0 {
		return nil
	}
	group := string(m.mem.name(old.group, m.mem.at(old.group)))
	if q.Group != "" && q.Group != group {
		return wrapf(status.InvalidParams, "upsert %.64q: group %.64q, but the object is in group %.64q", q.Name, q.Group, group)
	}
	q.Group = group
	return nil
}

// takeOver ends somebody's reservation. A writer in another process may go on writing into its space for a while, so
// that is kept until the release timeout; one in this process keeps it by its pin.
func (m *Master) takeOver(now int64, r Ref, gen uint64) {
	l, h, rec, err := m.reservation(r, gen)
	if err != nil {
		return // it ended by itself
	}
	defer l.unlock()
	start := atomic.LoadInt64(&rec.lease)
	if loadWord(rec)&FlagLink != 0 || now-start < int64(m.opts.DiscardTimeout) {
		return
	}
	s := m.index.shardOf(h)
	s.remove(h, r)
	s.usage.reserved -= rec.size
	m.leave(r, rec)
	if loadWord(rec)&FlagWriterPin == 0 {
		m.retire(r, rec, start+int64(m.opts.ReleaseTimeout))
		return
	}
	m.orphans.Lock()
	m.orphans.gens[r] = gen
	m.orphans.Unlock()
	m.retire(r, rec, 0)
}

// place takes the extents of the object and of its chunk table.
func (m *Master) place(q *ReserveRequest, dst []arena.Extent) ([]arena.Extent, error) {
	if q.Placement == OnSSD {
		return dst, nil
	}
	a := m.segments[0].Load()
	ok := true
	if q.Placement == InArena {
		dst, ok = a.Alloc(q.Size, dst)
	}
	if chunks := sum.Chunks(q.Size); ok && chunks > 1 {
		var table []arena.Extent
		var one [1]arena.Extent
		table, ok = a.Alloc(int64(chunks)*8, one[:0])
		if ok && len(table) != 1 {
			m.unplace(table)
			ok = false
		}
		if ok {
			dst = append(dst, table...)
		}
	}
	if ok && len(dst) <= MaxExtents-1 {
		return dst, nil
	}
	m.unplace(dst)
	m.full.Add(1)
	st := a.Stats()
	return nil, wrapf(status.NoSpace, "put %.64q: need %d bytes, %d free of %d, largest hole %d",
		q.Name, q.Size, st.Free, st.Capacity, st.LargestFree)
}

func (m *Master) unplace(extents []arena.Extent) {
	for _, e := range extents {
		m.freeExtent(Extent{0, e.Off, e.Len})
	}
}

// newRecord makes the record of a reservation, not yet in the index.
func (m *Master) newRecord(now int64, h uint64, q *ReserveRequest, extents []arena.Extent) (Ref, error) {
	n := len(extents)
	if q.Placement == InOwnFile {
		n++
	}
	extCap := max(n, m.extentsToPromote(q.Size))
	r := m.pool.alloc(recordSize(len(q.Tenant), len(q.Name), extCap), lane.Get())
	if r == 0 {
		return 0, wrapf(status.MetaShortage, "put %.64q", q.Name)
	}
	rec := m.mem.at(r)
	rec.lease, rec.softUntil, rec.lastUse = now, q.SoftUntil, seconds(now)
	rec.hash, rec.gen, rec.size, rec.kind = h, m.gen.Add(1), q.Size, q.Kind
	rec.keyLen, rec.tenLen = uint16(len(q.Name)), uint8(len(q.Tenant))
	rec.nExt, rec.extCap = uint16(n), uint16(extCap)
	copy(m.mem.tenant(r, rec), q.Tenant)
	copy(m.mem.name(r, rec), q.Name)
	i := 0
	if q.Placement == InOwnFile {
		*m.mem.extent(r, rec, 0) = pack(Extent{OwnFile, int64(q.OwnFile), q.Size})
		i = 1
	}
	for _, e := range extents {
		*m.mem.extent(r, rec, i) = pack(Extent{0, e.Off, e.Len})
		i++
	}
	atomic.StoreUint64(&rec.word, q.word())
	return r, nil
}

func (q *ReserveRequest) word() uint64 {
	w := uint64(Reserved)
	set := func(on bool, f uint64) {
		if on {
			w |= f
		}
	}
	set(q.HardPin, FlagHardPin)
	set(q.Durable, FlagDurable)
	set(q.Replace, FlagReplace)
	set(q.WriterPin, FlagWriterPin|oneReader)
	set(q.Placement != OnSSD, FlagMemory)
	set(q.Placement == InOwnFile, FlagOwnMemory)
	set(q.Placement != OnSSD && sum.Chunks(q.Size) > 1, FlagTable)
	return w
}

// extentsToPromote is how many extents a later promotion into fresh slabs would need.
func (m *Master) extentsToPromote(size int64) int {
	slab := m.segments[0].Load().SlabBytes()
	n := int(min((size+slab-1)/slab, MaxExtents-2))
	if sum.Chunks(size) > 1 {
		n++
	}
	return n
}

// discard throws a record away that never got into the index.
func (m *Master) discard(r Ref) {
	rec := m.mem.at(r)
	for i := range int(rec.nExt) {
		if e := unpack(*m.mem.extent(r, rec, i)); e.Segment != OwnFile {
			m.freeExtent(e)
		}
	}
	atomic.StoreUint64(&rec.word, uint64(Free))
	m.pool.release(r)
}

// reservation locks the shards of a reservation, its group's too, and checks that it still is the writer's.
func (m *Master) reservation(r Ref, gen uint64) (l locks, h uint64, rec *record, err error) {
	h, ok := m.peek(r, gen)
	if !ok {
		return l, 0, nil, status.IllegalWriter
	}
	rec = m.mem.at(r)
	l = m.index.only(h)
	for {
		l.lock()
		if !m.isReservation(h, r, gen) {
			l.unlock()
			return l, 0, nil, status.IllegalWriter
		}
		if rec.group|rec.target == 0 {
			return l, h, rec, nil
		}
		wider := m.covering(l, rec)
		if wider.n == l.n {
			return l, h, rec, nil
		}
		l.unlock()
		l = wider
	}
}

// covering is the set with the shards of a record's group and owner. The caller holds the record's shard.
func (m *Master) covering(l locks, rec *record) locks {
	if rec.group != 0 {
		l = l.with(m.mem.at(rec.group).hash)
	}
	if rec.target != 0 {
		l = l.with(m.mem.at(rec.target).hash)
	}
	return l
}

// isReservation checks, under its shard lock, a ref that was found without one.
func (m *Master) isReservation(h uint64, r Ref, gen uint64) bool {
	rec := m.mem.at(r)
	return m.index.shardOf(h).holds(h, r) && rec.gen == gen && stateOf(loadWord(rec)) == Reserved
}

// peek is the hash of a record that may be gone by now. What it returns must be checked again under the lock.
func (m *Master) peek(r Ref, gen uint64) (h uint64, ok bool) {
	if int64(r)*refUnit+recordBytes > int64(len(m.mem)) {
		return 0, false
	}
	rec := m.mem.glance(r)
	return rec.hash, gen != 0 && rec.gen == gen
}

// Renew is a sign of life of a writer.
func (m *Master) Renew(now int64, r Ref, gen uint64) error {
	l, _, rec, err := m.reservation(r, gen)
	if err != nil {
		return err
	}
	atomic.StoreInt64(&rec.lease, now)
	l.unlock()
	return nil
}

// Commit makes a reservation visible. loc is where the SSD tier has it, if it does. The old object of a replacing
// put is in Replaced. A replacing commit that comes after a newer generation succeeds and is itself what was
// replaced.
func (m *Master) Commit(now int64, r Ref, gen, digest uint64, loc Loc) (Replaced, error) {
	return m.commit(now, r, gen, digest, loc, nil)
}

// CommitAs is Commit for an object that is recorded already as it will be. If the old object has changed since, so that
// the record would be wrong, it is status.Busy, and the reservation stays.
func (m *Master) CommitAs(now int64, r Ref, gen, digest uint64, loc Loc, as Inherited) (Replaced, error) {
	return m.commit(now, r, gen, digest, loc, &as)
}

func (m *Master) commit(now int64, r Ref, gen, digest uint64, loc Loc, as *Inherited) (Replaced, error) {
	l, h, rec, err := m.reservation(r, gen)
	if err != nil {
		m.dropWriterPin(r, gen)
		return Replaced{}, err
	}
	if loc == (Loc{}) && loadWord(rec)&FlagMemory == 0 {
		l.unlock()
		return Replaced{}, wrapf(status.InvalidWrite, "commit of generation %d: it has no bytes anywhere", gen)
	}
	s := m.index.shardOf(h)
	oldRef, old := m.index.sibling(s, h, r)
	for old != nil && old.group|old.target != 0 {
		wider := m.covering(l, old)
		if wider.n == l.n {
			break
		}
		l.unlock() // the old object has a group or an owner in a shard that is not held
		l = wider
		l.lock()
		if !m.isReservation(h, r, gen) {
			l.unlock()
			m.dropWriterPin(r, gen)
			return Replaced{}, status.IllegalWriter
		}
		oldRef, old = m.index.sibling(s, h, r)
	}
	defer l.unlock()
	if as != nil && (old == nil || old.gen < rec.gen) && !as.samePins(m.inherited(rec, old)) {
		return Replaced{}, status.Busy
	}
	return m.commitLocked(now, s, h, r, oldRef, digest, loc)
}

func (m *Master) commitLocked(now int64, s *shard, h uint64, r, oldRef Ref, digest uint64, loc Loc) (Replaced, error) {
	rec := m.mem.at(r)
	var old *record
	if oldRef != 0 {
		old = m.mem.at(oldRef)
		w := loadWord(old)
		if loadWord(rec)&FlagReplace == 0 && (w&FlagLink != 0 || readable(w)) {
			name := string(m.mem.name(r, rec))
			m.endReservation(s, h, r, rec)
			return Replaced{}, wrapf(status.Exists, "commit %.64q: another put was faster", name)
		}
	}
	rec.digest = digest
	if loc != (Loc{}) {
		rec.setLoc(loc)
		setFlags(rec, FlagSSD)
	}
	if old != nil && old.gen > rec.gen {
		return m.supersededLocked(s, h, r, rec), nil
	}
	in := m.inherited(rec, old)
	if rec.softUntil = in.SoftUntil; in.HardPin {
		setFlags(rec, FlagHardPin)
	}
	m.publish(now, s, r, rec)
	if old == nil {
		return Replaced{}, nil
	}
	return m.removeLocked(now, s, h, oldRef, old), nil
}

// publish flips a reservation to committed: the one store that makes it visible, here and after a crash.
func (m *Master) publish(now int64, s *shard, r Ref, rec *record) {
	s.usage.reserved -= rec.size
	atomic.StoreInt64(&rec.lease, 0)
	atomic.StoreUint32(&rec.lastUse, seconds(now))
	m.mem.seal(r, rec)
	for {
		w := loadWord(rec)
		next := with(w, Committed) &^ (FlagWriterPin | FlagReplace)
		if w&FlagWriterPin != 0 {
			next -= oneReader
		}
		if atomic.CompareAndSwapUint64(&rec.word, w, next) {
			break
		}
	}
	m.committedMember(rec)
	s.usage.add(rec, loadWord(rec), 1)
}

// supersededLocked ends a commit that a newer generation overtook.
func (m *Master) supersededLocked(s *shard, h uint64, r Ref, rec *record) Replaced {
	out := Replaced{Gen: rec.gen, Size: rec.size, Durable: loadWord(rec)&FlagDurable != 0}
	if loadWord(rec)&FlagSSD != 0 {
		pin(rec)
		m.departures.of(h).Add(1)
		out.Pinned = r
	}
	m.endReservation(s, h, r, rec)
	return out
}

// Abort ends a reservation and frees its space.
func (m *Master) Abort(r Ref, gen uint64) error {
	l, h, rec, err := m.reservation(r, gen)
	if err != nil {
		m.dropWriterPin(r, gen)
		return err
	}
	m.endReservation(m.index.shardOf(h), h, r, rec)
	l.unlock()
	return nil
}

// endReservation takes a reservation out of index and group; its space goes with the writer's pin.
func (m *Master) endReservation(s *shard, h uint64, r Ref, rec *record) {
	s.remove(h, r)
	s.usage.reserved -= rec.size
	m.leave(r, rec)
	pinned := loadWord(rec)&FlagWriterPin != 0
	clearFlags(rec, FlagWriterPin)
	m.retire(r, rec, 0)
	if pinned {
		m.Release(r)
	}
}

// dropWriterPin lets go of a reservation that was taken over while its writer, in this process, was still at it.
func (m *Master) dropWriterPin(r Ref, gen uint64) {
	m.orphans.Lock()
	found := gen != 0 && m.orphans.gens[r] == gen
	if found {
		delete(m.orphans.gens, r)
	}
	m.orphans.Unlock()
	if found {
		m.Release(r)
	}
}
