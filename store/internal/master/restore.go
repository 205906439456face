package master

import (
	"sync/atomic"

	"github.com/kvcache-ai/mooncake-go/store/internal/arena"
	"github.com/kvcache-ai/mooncake-go/store/internal/status"
	"github.com/kvcache-ai/mooncake-go/store/internal/sum"
)

// Restored counts what a restart found.
type Restored struct {
	Kept    int64 // objects that are back
	Dropped int64 // objects that were there and can't be had back from memory
	Bytes   int64 // of Kept
}

// Restore reads the records back that a store left in the metadata memory. The segments are mounted and hold all of
// their populated space as free; attach opens a memory file of its own. It runs alone, before any command.
//
// Nothing in the memory is trusted: it may be torn, or another's. Of two records that claim the same space one is
// kept, of two generations of a key the newer.
func (m *Master) Restore(attach func(ownFile uint64, size int64) error) Restored {
	var out Restored
	m.checkPages()
	m.eachRecord(func(r Ref, rec *record) {
		was := stateOf(loadWord(rec))
		if !m.keepRecord(r, rec, attach) {
			atomic.StoreUint64(&rec.word, uint64(Free))
			if was == Committed {
				out.Dropped++
			}
		}
	})
	// Groups first, then owners, then links: each of them needs the one before.
	for _, links := range []bool{false, true} {
		m.eachRecord(func(r Ref, rec *record) {
			w := loadWord(rec)
			if st := stateOf(w); (st == Committed || st == Held) && (w&FlagLink != 0) == links && !m.hasReferences(rec) {
				m.dropAtRestore(r, rec)
				if st == Committed {
					out.Dropped++
				}
			}
		})
	}
	m.eachRecord(func(r Ref, rec *record) {
		if stateOf(loadWord(rec)) == Committed {
			m.restoreObject(r, rec)
		}
	})
	m.eachRecord(m.settle)
	m.rebuildPages(&out)
	return out
}

// maxGen is the highest generation that is believed. Ours start at 1.
const maxGen = 1 << 62

// sawGen makes the generations still to come higher than gen.
func (m *Master) sawGen(gen uint64) {
	for {
		g := m.gen.Load()
		if g >= gen || m.gen.CompareAndSwap(g, gen) {
			return
		}
	}
}

// checkPages makes the page headers fit to be walked.
func (m *Master) checkPages() {
	for n := range m.pool.present() {
		pg := m.pool.page(n)
		if pg.bump = pg.records(); pg.bump == 0 {
			*pg = page{}
		}
	}
}

func (m *Master) eachRecord(fn func(Ref, *record)) {
	for n := range m.pool.present() {
		m.pool.each(n, fn)
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
		rec.keyLen == 0 || rec.keyLen > MaxKeyBytes || rec.kind >= Kinds || rec.gen == 0 || rec.gen > maxGen || rec.check != m.mem.checksum(r, rec) {
		return false
	}
	m.sawGen(rec.gen)
	rec.next, rec.prev, rec.chain, rec.lastUse, rec.lease = 0, 0, 0, 0, 0
	rec.setLoc(Loc{})
	if st == groupState {
		atomic.StoreUint64(&rec.word, uint64(groupState))
		rec.hash = m.index.rehash(r, rec)
		return rec.size == 0 && rec.group == 0 && rec.target == 0
	}
	const keep = FlagHardPin | FlagMemory | FlagOwnMemory | FlagMemoryBad | FlagLink | FlagTable
	w = w&(keep|stateMask) | FlagUnverified
	atomic.StoreUint64(&rec.word, w)
	rec.hash = m.index.rehash(r, rec)
	if w&FlagLink != 0 {
		return st == Committed && rec.target != 0 && w&FlagMemory == 0 && rec.nExt == 0
	}
	return w&FlagMemory != 0 && rec.target == 0 && m.plausible(r, rec) && m.claimExtents(r, rec, attach)
}

// plausible checks the extents of a memory replica against its size and flags.
func (m *Master) plausible(r Ref, rec *record) bool {
	n, w := int(rec.nExt), loadWord(rec)
	chunks := sum.Chunks(rec.size)
	if rec.size <= 0 || rec.size > MaxObjectBytes || (w&FlagTable != 0) != (chunks > 1) {
		return false
	}
	if chunks > 1 {
		if n--; n < 1 {
			return false
		}
		if t := unpack(*m.mem.extent(r, rec, n)); t.Segment == OwnFile || t.Len != int64(chunks)*8 {
			return false
		}
	}
	left := rec.size
	for i := range n {
		e := unpack(*m.mem.extent(r, rec, i))
		if e.Len <= 0 || e.Len > left || (e.Segment == OwnFile) != (w&FlagOwnMemory != 0 && i == 0) {
			return false
		}
		left -= e.Len
	}
	return left == 0
}

func (m *Master) claimExtents(r Ref, rec *record, attach func(uint64, int64) error) bool {
	for i := range int(rec.nExt) {
		e := unpack(*m.mem.extent(r, rec, i))
		var err error
		switch {
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
	}
	return true
}

func (m *Master) freeFirst(r Ref, rec *record, n int) {
	for i := range n {
		m.freeExtent(unpack(*m.mem.extent(r, rec, i)))
	}
}

// hasReferences reports whether the group and the owner that a record names came back.
func (m *Master) hasReferences(rec *record) bool {
	if rec.group != 0 && !m.isState(rec.group, groupState) {
		return false
	}
	if rec.target == 0 {
		return true
	}
	if !m.isState(rec.target, Committed) && !m.isState(rec.target, Held) {
		return false
	}
	owner := m.mem.at(rec.target)
	return owner.target == 0 && owner.size == rec.size
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
	s := m.index.shardOf(rec.hash)
	if len(s.slots()) > 0 {
		if other, old := m.index.sibling(s, rec.hash, r); old != nil {
			if old.gen > rec.gen {
				m.supersedeAtRestore(r, rec)
				return
			}
			s.remove(rec.hash, other)
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
	s.insert(rec.hash, r)
}

// supersedeAtRestore ends an older generation. Links that are still to come may share its bytes: settle frees it if
// none did.
func (m *Master) supersedeAtRestore(r Ref, rec *record) {
	rec.group = 0
	if loadWord(rec)&FlagLink != 0 {
		m.dropAtRestore(r, rec)
		return
	}
	clearFlags(rec, FlagHardPin)
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

// settle is the last look at a record: what has no user is dropped, the rest is counted, and found from now on.
func (m *Master) settle(r Ref, rec *record) {
	w := loadWord(rec)
	s := m.index.shardOf(rec.hash)
	switch stateOf(w) {
	case groupState:
		if rec.chain == 0 {
			atomic.StoreUint64(&rec.word, uint64(Free))
			return
		}
		s.insert(rec.hash, r)
		s.usage.groups++
	case Held:
		if rec.chain == 0 {
			m.dropAtRestore(r, rec)
			return
		}
		s.insert(rec.hash, r)
		s.usage.addReplicas(rec, w, 1)
	case Committed:
		s.usage.add(rec, w, 1)
	}
}

// rebuildPages makes the volatile part of the pages anew.
func (m *Master) rebuildPages(out *Restored) {
	p := m.pool
	for n := range p.present() {
		pg := p.page(n)
		if pg.records() == 0 {
			continue
		}
		p.takePageLocked(int(n/stepPages), 1<<(n%stepPages))
		p.pages.limit.Store(n + 1)
		*pg = page{magic: pageMagic, class: pg.class, bump: pg.bump, strip: uint16(n % poolStripes)}
		p.each(n, func(r Ref, rec *record) {
			switch stateOf(loadWord(rec)) {
			case Free:
				arena.At[freeRecord](p.mem, int64(r)*refUnit).next = pg.free
				pg.free = r
				return
			case Committed:
				out.Kept++
				out.Bytes += rec.size
			}
			pg.used++
		})
		switch {
		case pg.used == 0:
			*pg = page{}
			p.freePageLocked(n)
		case pg.free != 0 || int64(pg.bump) < recordsIn(int(pg.class)):
			p.pushPage(&p.classes[pg.class][pg.strip], n, pg)
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
// generation of the key is there. older are the generations that were there before and are no longer, even if there is
// an error: those with Pinned set the catalogue has too, and must forget. It may run on several goroutines, after
// Restore.
func (m *Master) RestoreSSD(f FromCatalogue) (kept bool, older []Replaced, err error) {
	q := ReserveRequest{Key: f.Key, Size: f.Size, Kind: f.Kind, Group: f.Group, SoftUntil: f.SoftUntil,
		HardPin: f.HardPin, Durable: f.Durable, Replace: true, Placement: OnSSD}
	if err := m.check(&q); err != nil {
		return false, older, err
	}
	if f.Gen == 0 || f.Gen > maxGen {
		return false, older, nil
	}
	m.sawGen(f.Gen)
	h := m.index.hash(f.Tenant, f.Name)
	for {
		done, kept, gone := m.mergeSSD(h, &f)
		if gone.Gen != 0 {
			older = append(older, gone)
		}
		if done {
			return kept, older, nil
		}
		if done, err = m.insertSSD(h, &q, &f); done || err != nil {
			return done, older, err
		}
	}
}

// insertSSD makes the record of an object that only the catalogue knows. It is not done if somebody else was faster.
func (m *Master) insertSSD(h uint64, q *ReserveRequest, f *FromCatalogue) (done bool, err error) {
	r, err := m.newRecord(0, h, q, nil)
	if err != nil {
		return false, err
	}
	rec := m.mem.at(r)
	rec.gen = f.Gen
	l, g, err := m.lockForReserve(h, q)
	if err != nil {
		m.discard(r)
		return false, err
	}
	defer l.unlock()
	s := m.index.shardOf(h)
	if _, other := m.index.committed(s, h, f.Tenant, f.Name); other != nil {
		m.dropIfEmpty(g)
		m.discard(r)
		return false, nil
	}
	if g != 0 {
		m.join(g, r, rec)
	}
	s.insert(h, r)
	s.usage.reserved += f.Size
	rec.digest = f.Digest
	rec.setLoc(f.SSD)
	setFlags(rec, FlagSSD)
	m.publish(0, s, r, rec)
	return true, nil
}

// mergeSSD handles a key that is already there.
func (m *Master) mergeSSD(h uint64, f *FromCatalogue) (done, kept bool, older Replaced) {
	l, r, rec := m.open(h, f.Key)
	defer l.unlock()
	if rec == nil {
		return false, false, older
	}
	s := m.index.shardOf(h)
	switch {
	case rec.gen > f.Gen:
		return true, false, older
	case rec.gen < f.Gen || rec.size != f.Size || rec.digest != f.Digest || rec.target != 0:
		return false, false, m.removeLocked(0, s, h, r, rec)
	case loadWord(rec)&FlagSSD != 0:
		return true, true, older // told twice
	}
	rec.setLoc(f.SSD)
	set := FlagSSD
	if f.Durable {
		set |= FlagDurable
	}
	// The catalogue has the pins that were acknowledged; memory may have some that were not.
	m.pinRecord(s, rec, PinRequest{HardPin: &f.HardPin, SoftUntil: &f.SoftUntil})
	setFlags(rec, set)
	s.usage.addTier(rec, TierSSD, 1)
	return true, true, older
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
	s.insert(h, r)
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
	if durable {
		setFlags(rec, FlagDurable)
		setFlags(owner, FlagDurable)
	}
	if loadWord(owner)&FlagSSD != 0 {
		return false
	}
	owner.setLoc(loc)
	setFlags(owner, FlagSSD)
	m.index.shardOf(owner.hash).usage.addTier(owner, TierSSD, 1)
	return true
}
