package master

import (
	"sync/atomic"

	"github.com/kvcache-ai/mooncake-go/store/internal/arena"
	"github.com/kvcache-ai/mooncake-go/store/internal/status"
)

// Restored counts what a restart found.
type Restored struct {
	Kept, Dropped int64
	Bytes         int64
}

// Restore reads the records back that a store left in the metadata memory. The segments are mounted and hold all of
// their populated space as free; attach opens a memory file of its own. It runs alone, before any command.
func (m *Master) Restore(attach func(ownFile uint64, size int64) error) Restored {
	var out Restored
	m.eachRecord(func(r Ref, rec *record) {
		if !m.keepRecord(r, rec, attach) {
			atomic.StoreUint64(&rec.word, uint64(Free))
		}
	})
	m.eachRecord(func(r Ref, rec *record) {
		if st := stateOf(loadWord(rec)); st == Committed || st == Held {
			m.checkReferences(r, rec)
		}
	})
	m.eachRecord(func(r Ref, rec *record) { // owners and groups before those that name them
		switch stateOf(loadWord(rec)) {
		case groupState:
			m.index.shardOf(m.index.hashRecord(r, rec)).insert(m.index.hashRecord(r, rec), r)
			m.index.shardOf(m.index.hashRecord(r, rec)).usage.groups++
		case Committed:
			m.restoreObject(r, rec)
		}
	})
	m.eachRecord(func(r Ref, rec *record) { // what lost its last user meanwhile
		w := loadWord(rec)
		switch stateOf(w) {
		case groupState:
			m.dropIfEmptyAtRestore(r, rec)
		case Held:
			if rec.chain == 0 {
				m.dropAtRestore(r, rec)
			} else {
				m.index.shardOf(m.index.hashRecord(r, rec)).usage.addReplicas(rec, w, 1)
			}
		case Committed:
			m.index.shardOf(m.index.hashRecord(r, rec)).usage.add(rec, w, 1)
		}
	})
	m.rebuildPages(&out)
	return out
}

func (m *Master) eachRecord(fn func(Ref, *record)) {
	for n := uint32(1); n < m.pool.pages.usable.Load(); n++ {
		m.pool.records(n, fn)
	}
}

// keepRecord decides whether a record is what commit left, and claims its extents.
func (m *Master) keepRecord(r Ref, rec *record, attach func(uint64, int64) error) bool {
	w := loadWord(rec)
	st := stateOf(w)
	class := classSizes[m.pool.page(pageOf(r)).class]
	if st != Committed && st != Held && st != groupState {
		return false
	}
	if recordSize(int(rec.tenLen), int(rec.keyLen), int(rec.extCap)) > class || rec.nExt > rec.extCap ||
		rec.keyLen == 0 || rec.keyLen > MaxKeyBytes || rec.kind >= Kinds || rec.check != m.mem.checksum(r, rec) {
		return false
	}
	rec.next, rec.prev, rec.chain, rec.lastUse, rec.lease = 0, 0, 0, 0, 0
	rec.setLoc(Loc{})
	if st == groupState {
		atomic.StoreUint64(&rec.word, uint64(groupState))
		return true
	}
	const keep = FlagHardPin | FlagMemory | FlagOwnMemory | FlagMemoryBad | FlagLink | FlagTable
	w = w&(keep|stateMask) | FlagUnverified
	atomic.StoreUint64(&rec.word, w)
	if w&FlagLink != 0 {
		return rec.target != 0
	}
	return w&FlagMemory != 0 && rec.target == 0 && m.claimExtents(r, rec, attach)
}

func (m *Master) claimExtents(r Ref, rec *record, attach func(uint64, int64) error) bool {
	var total int64
	for i := range int(rec.nExt) {
		e := unpack(*m.mem.extent(r, rec, i))
		var err error
		switch {
		case e.Len <= 0:
			err = status.Corrupt
		case e.Segment == OwnFile:
			err = attach(uint64(e.Off), e.Len)
		case int(e.Segment) >= len(m.segments) || m.segments[e.Segment].Load() == nil:
			err = status.Corrupt
		default:
			err = m.segments[e.Segment].Load().Claim(arena.Extent{Off: e.Off, Len: e.Len})
		}
		if err != nil {
			m.freeFirst(r, rec, i)
			return false
		}
		if i < int(rec.nExt)-1 || loadWord(rec)&FlagTable == 0 {
			total += e.Len
		}
	}
	if total != rec.size {
		m.freeFirst(r, rec, int(rec.nExt))
		return false
	}
	return true
}

func (m *Master) freeFirst(r Ref, rec *record, n int) {
	for i := range n {
		m.freeExtent(unpack(*m.mem.extent(r, rec, i)))
	}
}

// checkReferences drops a record whose group or owner did not come back.
func (m *Master) checkReferences(r Ref, rec *record) {
	ok := true
	if rec.group != 0 {
		ok = m.isState(rec.group, groupState)
	}
	if rec.target != 0 {
		ok = ok && (m.isState(rec.target, Committed) || m.isState(rec.target, Held)) &&
			m.mem.at(rec.target).target == 0 && m.mem.at(rec.target).size == rec.size
	}
	if !ok {
		m.dropAtRestore(r, rec)
	}
}

// isState reports whether ref really is a record, in that state.
func (m *Master) isState(r Ref, st State) bool {
	return m.pool.isRecord(r) && stateOf(loadWord(m.mem.at(r))) == st
}

func (m *Master) dropAtRestore(r Ref, rec *record) {
	if loadWord(rec)&FlagLink == 0 {
		m.freeFirst(r, rec, int(rec.nExt))
	}
	atomic.StoreUint64(&rec.word, uint64(Free))
}

// restoreObject puts a record into the index, its group and its owner's chain. Of two generations the newer stays.
func (m *Master) restoreObject(r Ref, rec *record) {
	m.gen.Store(max(m.gen.Load(), rec.gen))
	h := m.index.hashRecord(r, rec)
	s := m.index.shardOf(h)
	if len(s.slots()) > 0 {
		if other, old := m.index.sibling(s, h, r); old != nil {
			if old.gen > rec.gen {
				m.supersedeAtRestore(r, rec)
				return
			}
			s.remove(h, other)
			m.leaveAtRestore(other, old)
			m.supersedeAtRestore(other, old)
		}
	}
	if g := rec.group; g != 0 {
		m.join(g, r, rec)
	}
	if rec.target != 0 {
		owner := m.mem.at(rec.target)
		rec.chain, owner.chain = owner.chain, r
	}
	s.insert(h, r)
}

// supersedeAtRestore ends an older generation. Links that are still to come may share its bytes: the last walk frees
// it if none did.
func (m *Master) supersedeAtRestore(r Ref, rec *record) {
	rec.group = 0
	if loadWord(rec)&FlagLink != 0 {
		m.dropAtRestore(r, rec)
		return
	}
	m.mem.seal(r, rec)
	setState(rec, Held)
}

// leaveAtRestore takes a superseded record out of its group and chain. An empty group goes at the end.
func (m *Master) leaveAtRestore(r Ref, rec *record) {
	if g := rec.group; g != 0 {
		m.mem.at(g).chain++ // keeps leave from freeing the group under the walk
		m.leave(r, rec)
		m.mem.at(g).chain--
	}
	if rec.target != 0 {
		m.unlink(r, rec)
	}
}

func (m *Master) dropIfEmptyAtRestore(g Ref, grp *record) {
	m.gen.Store(max(m.gen.Load(), grp.gen))
	if grp.chain != 0 {
		return
	}
	h := m.index.hashRecord(g, grp)
	s := m.index.shardOf(h)
	s.remove(h, g)
	s.usage.groups--
	atomic.StoreUint64(&grp.word, uint64(Free))
}

// rebuildPages makes the volatile part of the pages anew.
func (m *Master) rebuildPages(out *Restored) {
	p := m.pool
	for n := uint32(1); n < p.pages.usable.Load(); n++ {
		pg := p.page(n)
		if pg.magic != pageMagic || int(pg.class) >= len(classSizes) {
			pg.magic = 0
			continue
		}
		p.pages.bump.Store(n + 1)
		bump := min(int64(pg.bump), recordsIn(int(pg.class)))
		*pg = page{magic: pageMagic, class: pg.class, bump: uint32(bump), strip: uint16(n % poolStripes)}
		p.records(n, func(r Ref, rec *record) {
			switch stateOf(loadWord(rec)) {
			case Free:
				arena.At[freeRecord](p.mem, int64(r)*refUnit).next = pg.free
				pg.free = r
				out.Dropped++
				return
			case Committed:
				out.Kept++
				out.Bytes += rec.size
			}
			pg.used++
		})
		switch {
		case pg.used == 0:
			pg.magic = 0
		case pg.free != 0 || bump < recordsIn(int(pg.class)):
			p.pushPage(&p.classes[pg.class][pg.strip], n, pg)
		}
	}
	for n := uint32(1); n < p.pages.bump.Load(); n++ {
		if p.page(n).magic == 0 {
			p.pages.free = append(p.pages.free, n)
		}
	}
}

// FromCatalogue is an object as the durable catalogue describes it.
type FromCatalogue struct {
	Key
	Gen       uint64
	Size      int64
	Digest    uint64
	Kind      uint8
	Group     string
	SoftUntil int64
	HardPin   bool
	Durable   bool
	SSD       Loc
}

// RestoreSSD brings back an object of the SSD tier at start-up. kept is false when the record is stale: a newer
// generation of the key is there. old is the older generation that it took the place of: if it was on the SSD tier
// it has a record that must be forgotten. It may run on several goroutines, after Restore.
func (m *Master) RestoreSSD(f FromCatalogue) (old Replaced, kept bool, err error) {
	q := ReserveRequest{Key: f.Key, Size: f.Size, Kind: f.Kind, Group: f.Group, SoftUntil: f.SoftUntil,
		HardPin: f.HardPin, Durable: f.Durable, Replace: true, Placement: OnSSD}
	if err := m.check(&q); err != nil {
		return old, false, err
	}
	h := m.index.hash(f.Tenant, f.Name)
	old, done, kept := m.mergeSSD(h, &f)
	if done {
		return old, kept, nil
	}
	r, err := m.newRecord(0, h, &q, nil)
	if err != nil {
		return old, false, err
	}
	rec := m.mem.at(r)
	rec.gen = f.Gen
	l, g, err := m.lockForReserve(h, &q)
	if err != nil {
		m.discard(r)
		return old, false, err
	}
	defer l.unlock()
	if g != 0 {
		m.join(g, r, rec)
	}
	s := m.index.shardOf(h)
	s.insert(h, r)
	s.usage.reserved += f.Size
	rec.digest = f.Digest
	rec.setLoc(f.SSD)
	setFlags(rec, FlagSSD)
	m.publish(0, s, r, rec)
	return old, true, nil
}

// mergeSSD handles a key that is already there.
func (m *Master) mergeSSD(h uint64, f *FromCatalogue) (old Replaced, done, kept bool) {
	m.raiseGen(f.Gen)
	l, r, rec := m.open(h, f.Key)
	defer l.unlock()
	if rec == nil {
		return Replaced{}, false, false
	}
	s := m.index.shardOf(h)
	switch {
	case rec.gen > f.Gen:
		return Replaced{}, true, false
	case rec.gen < f.Gen || rec.size != f.Size || rec.digest != f.Digest || rec.target != 0:
		return m.removeLocked(s, h, r, rec), false, false
	}
	rec.setLoc(f.SSD)
	set := FlagSSD
	if f.Durable {
		set |= FlagDurable
	}
	if f.HardPin && loadWord(rec)&FlagHardPin == 0 {
		set |= FlagHardPin
		s.usage.hardPins++
	}
	setFlags(rec, set)
	s.usage.addTier(rec, TierSSD, 1)
	return Replaced{}, true, true
}

// raiseGen makes the generations to come newer than gen, which a record from before has.
func (m *Master) raiseGen(gen uint64) {
	for {
		g := m.gen.Load()
		if g >= gen || m.gen.CompareAndSwap(g, gen) {
			return
		}
	}
}

// RestoreHeld brings back an owner that only links name any more, for LinkRequest.Owner.
func (m *Master) RestoreHeld(f FromCatalogue) (Ref, error) {
	q := ReserveRequest{Key: f.Key, Size: f.Size, Kind: f.Kind, Durable: f.Durable, Replace: true, Placement: OnSSD}
	if err := m.check(&q); err != nil {
		return 0, err
	}
	h := m.index.hash(f.Tenant, f.Name)
	r, err := m.newRecord(0, h, &q, nil)
	if err != nil {
		return 0, err
	}
	rec := m.mem.at(r)
	rec.digest, rec.lease = f.Digest, 0
	rec.setLoc(f.SSD)
	m.mem.seal(r, rec)
	atomic.StoreUint64(&rec.word, with(loadWord(rec)&^FlagReplace|FlagSSD, Held))
	s := m.index.shardOf(h)
	s.mu.Lock()
	s.usage.addReplicas(rec, loadWord(rec), 1)
	s.mu.Unlock()
	return r, nil
}

// AttachHolder tells the owner of a link, which survived in memory, where the SSD tier has the bytes. It reports
// whether that is news.
func (m *Master) AttachHolder(k Key, loc Loc, durable bool) bool {
	l, _, rec := m.open(m.index.hash(k.Tenant, k.Name), k)
	defer l.unlock()
	if rec == nil || rec.target == 0 {
		return false
	}
	owner := m.mem.at(rec.target)
	if loadWord(owner)&FlagSSD != 0 {
		return false
	}
	owner.setLoc(loc)
	set := FlagSSD
	if durable {
		set |= FlagDurable
	}
	setFlags(owner, set)
	m.index.shardOf(m.index.hashRecord(rec.target, owner)).usage.addTier(owner, TierSSD, 1)
	return true
}
