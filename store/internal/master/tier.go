package master

import (
	"github.com/kvcache-ai/mooncake-go/store/internal/arena"
	"github.com/kvcache-ai/mooncake-go/store/internal/status"
	"github.com/kvcache-ai/mooncake-go/store/internal/sum"
)

// Evicted says what an eviction did to one object.
type Evicted struct {
	Key
	Size    int64
	Removed bool     // the object is gone; otherwise only this tier's replica is
	Gone    Replaced // with Removed, as from Remove
	SSD     Loc      // without Removed, from the SSD tier: forget Gen in the catalogue, then free this
	Gen     uint64
}

// Evict lets an object, or a group, leave a tier, if it still may. An object that has a replica in another tier
// loses only this one. Members of a group leave whole: if one of them would have no replica left, all are removed.
func (m *Master) Evict(now int64, v Victim, tier Tier) ([]Evicted, error) {
	if v.Group {
		return m.evictGroup(now, v, tier)
	}
	h, ok := m.peek(v.Ref, v.Gen)
	if !ok {
		return nil, status.NotFound
	}
	s := m.index.shardOf(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	rec := m.mem.at(v.Ref)
	if !m.isObject(s, h, v.Ref, v.Gen) || rec.group != 0 || loadWord(rec)&FlagLink != 0 {
		return nil, status.NotFound
	}
	if ok, _ := m.evictableLocked(now, tier, rec); !ok {
		return nil, status.Busy
	}
	return []Evicted{m.evictLocked(now, s, h, v.Ref, rec, tier)}, nil
}

// isObject checks, under its shard lock, a ref that was found without one.
func (m *Master) isObject(s *shard, h uint64, r Ref, gen uint64) bool {
	if !s.holds(h, r) {
		return false
	}
	rec := m.mem.at(r)
	st := stateOf(loadWord(rec))
	return rec.gen == gen && (st == Committed || st == Held)
}

// evictableLocked is evictable, and asks the links too.
func (m *Master) evictableLocked(now int64, tier Tier, rec *record) (ok, leased bool) {
	ok, leased = m.evictable(now, tier, rec)
	if ok && rec.chain != 0 {
		hard, _ := m.pinnedByLink(now, rec)
		ok = !hard
	}
	return ok, leased
}

// hasOther reports whether a replica that can be read would be left without tier's.
func hasOther(w uint64, tier Tier) bool {
	return readable(w &^ (FlagMemory << tier))
}

func (m *Master) evictLocked(now int64, s *shard, h uint64, r Ref, rec *record, tier Tier) Evicted {
	out := Evicted{Key: m.keyOf(r, rec), Size: rec.size, Gen: rec.gen}
	if w := loadWord(rec); !hasOther(w, tier) {
		out.Removed, out.Gone = true, m.removeLocked(now, s, h, r, rec)
		return out
	}
	m.dropReplica(s, r, rec, tier, &out)
	return out
}

// dropReplica takes one tier's replica off a record that has no readers.
func (m *Master) dropReplica(s *shard, r Ref, rec *record, tier Tier, out *Evicted) {
	s.usage.addTier(rec, tier, -1)
	if tier == TierSSD {
		out.SSD = rec.loc()
		clearFlags(rec, FlagSSD|FlagSSDBad)
		rec.setLoc(Loc{})
		return
	}
	var few [4]Extent
	freed := few[:0]
	for i := range int(rec.nExt) {
		freed = append(freed, unpack(*m.mem.extent(r, rec, i)))
	}
	clearFlags(rec, FlagMemory|FlagMemoryBad|FlagOwnMemory|FlagTable|FlagUnverified)
	rec.nExt = 0
	m.mem.seal(r, rec) // before the space can be anybody else's
	for _, e := range freed {
		m.freeExtent(e)
	}
}

func (m *Master) keyOf(r Ref, rec *record) Key {
	return Key{string(m.mem.tenant(r, rec)), string(m.mem.name(r, rec))}
}

func (m *Master) evictGroup(now int64, v Victim, tier Tier) ([]Evicted, error) {
	w := m.walkRef(v.Ref, v.Gen)
	defer m.endWalk(w)
	if !w.begun {
		return nil, status.NotFound
	}
	w.strict = true
	m.watch(w)
	sum := groupSum{whole: true, ok: true}
	m.eachMember(w, func(_ Ref, rec *record) bool {
		m.addMember(now, tier, rec, &sum)
		return sum.ok
	})
	switch ok, _ := sum.result(); {
	case !ok || !sum.whole && v.Spare:
		return nil, status.Busy
	case sum.whole:
		return m.dropReplicas(now, w, tier), nil
	}
	m.departures.members.Add(1)
	defer m.departures.members.Add(-1)
	if _, err := m.condemn(now, w); err != nil {
		return nil, status.Busy
	}
	var out []Evicted
	m.reclaim(now, w, func(k Key, gen uint64, gone Replaced) {
		out = append(out, Evicted{Key: k, Size: gone.Size, Gen: gen, Removed: true, Gone: gone})
	})
	return out, nil
}

// dropReplicas takes one tier's replicas off the members of a group that have others. What a member has become meanwhile
// may keep it: it is still where it was.
func (m *Master) dropReplicas(now int64, w *walk, tier Tier) (out []Evicted) {
	m.rewind(w)
	m.eachMember(w, func(r Ref, rec *record) bool {
		word := loadWord(rec)
		if stateOf(word) != Committed || word&FlagLink != 0 || word&(FlagMemory<<tier) == 0 || !hasOther(word, tier) {
			return true
		}
		if may, _ := m.evictableLocked(now, tier, rec); may {
			e := Evicted{Key: m.keyOf(r, rec), Size: rec.size, Gen: rec.gen}
			m.dropReplica(m.index.shardOf(rec.hash), r, rec, tier, &e)
			out = append(out, e)
		}
		return true
	})
	return out
}

// GroupMembers lists the refs and generations of a group that was chosen as a victim, for its offload.
func (m *Master) GroupMembers(v Victim) (out []Victim) {
	w := m.walkRef(v.Ref, v.Gen)
	m.eachMember(w, func(r Ref, rec *record) bool {
		one := Victim{Gen: rec.gen}
		one.Ref = r
		out = append(out, one)
		return true
	})
	m.endWalk(w)
	return out
}

// Copying is an object that is on its way to another tier. It is pinned until Attach, Promoted or Uncopied.
type Copying struct {
	Found
	Group string
}

// StartCopy pins an object for a copy to tier, unless it is there already or somebody else copies it. A bad replica on
// the SSD tier counts as none: Attach puts the new one in its place.
func (m *Master) StartCopy(r Ref, gen uint64, tier Tier) (Copying, error) {
	return m.startCopy(r, gen, func(w uint64) bool {
		there := w&(FlagMemory<<tier) != 0 && (tier == TierMemory || w&FlagSSDBad == 0)
		return !there && readable(w)
	})
}

// StartMove is StartCopy for an object that is on the SSD tier and is to have another place there.
func (m *Master) StartMove(r Ref, gen uint64) (Copying, error) {
	return m.startCopy(r, gen, func(w uint64) bool { return w&(FlagSSD|FlagSSDBad) == FlagSSD })
}

func (m *Master) startCopy(r Ref, gen uint64, may func(w uint64) bool) (Copying, error) {
	h, ok := m.peek(r, gen)
	if !ok {
		return Copying{}, status.NotFound
	}
	s := m.index.shardOf(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	rec := m.mem.at(r)
	w := loadWord(rec)
	if !m.isObject(s, h, r, gen) || w&FlagLink != 0 {
		return Copying{}, status.NotFound
	}
	if w&FlagOffloading != 0 || !may(w) || readersOf(w) >= maxReaders {
		return Copying{}, status.Busy
	}
	setFlags(rec, FlagOffloading)
	pin(rec)
	if rec.group != 0 && !m.stays(rec.group, r) {
		clearFlags(rec, FlagOffloading)
		unpin(rec) // it is committed, so this frees nothing
		return Copying{}, status.NotFound
	}
	c := Copying{Found: Found{m.keyOf(r, rec), m.object(r, rec, w)}}
	if rec.group != 0 {
		c.Group = string(m.mem.name(rec.group, m.mem.at(rec.group)))
	}
	return c, nil
}

// Uncopied ends a copy that did not happen.
func (m *Master) Uncopied(r Ref) {
	clearFlags(m.mem.at(r), FlagOffloading)
	m.Release(r)
}

// Attach ends a copy to the SSD tier: loc is where the object now is too, instead of where it was there before. It
// fails when the object was removed meanwhile; then the caller forgets and frees loc. It is status.Busy when somebody
// may be reading what loc is to replace; then the caller records what the object has, and frees loc.
func (m *Master) Attach(r Ref, loc Loc, durable bool) error {
	defer m.Uncopied(r)
	return m.withPinned(r, func(s *shard, rec *record) error {
		set := FlagSSD
		if durable {
			set |= FlagDurable
		}
		switch w := loadWord(rec); {
		case w&FlagSSD == 0:
			s.usage.addTier(rec, TierSSD, 1)
		case readersOf(w) > 1:
			return status.Busy
		default:
			m.emitFreeSSD(rec)
			clearFlags(rec, FlagSSDBad)
		}
		rec.setLoc(loc)
		setFlags(rec, set)
		return nil
	})
}

// withPinned runs fn under the shard lock of a record that the caller has pinned, if it still is an object.
func (m *Master) withPinned(r Ref, fn func(*shard, *record) error) error {
	rec := m.mem.at(r)
	s := m.index.shardOf(rec.hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := stateOf(loadWord(rec)); st != Committed && st != Held {
		return status.NotFound
	}
	return fn(s, rec)
}

// PlaceCopy takes space in memory for a promotion: the data extents, then the chunk table if there is one.
func (m *Master) PlaceCopy(c *Copying) ([]Extent, error) {
	var buf [4]arena.Extent
	q := ReserveRequest{Key: c.Key, Size: c.Size}
	extents, err := m.place(&q, buf[:0])
	if err != nil {
		return nil, err
	}
	if len(extents) > int(m.mem.at(c.Ref).extCap) {
		m.unplace(extents)
		return nil, wrapf(status.NoSpace, "promote %.64q: memory is in %d pieces", c.Name, len(extents))
	}
	out := make([]Extent, len(extents))
	for i, e := range extents {
		out[i] = Extent{0, e.Off, e.Len}
	}
	return out, nil
}

// Promoted ends a copy to memory; on failure the extents are free again.
func (m *Master) Promoted(r Ref, extents []Extent) error {
	defer m.Uncopied(r)
	err := m.withPinned(r, func(s *shard, rec *record) error {
		if loadWord(rec)&FlagMemory != 0 {
			return status.Exists
		}
		for i, e := range extents {
			*m.mem.extent(r, rec, i) = pack(e)
		}
		rec.nExt = uint16(len(extents))
		m.mem.seal(r, rec)
		set := FlagMemory
		if sum.Chunks(rec.size) > 1 {
			set |= FlagTable
		}
		if extents[0].Segment == OwnFile {
			set |= FlagOwnMemory
		}
		setFlags(rec, set)
		s.usage.addTier(rec, TierMemory, 1)
		return nil
	})
	if err != nil {
		m.FreeExtents(extents)
	}
	return err
}

// FreeExtents gives back what PlaceCopy took.
func (m *Master) FreeExtents(extents []Extent) {
	for _, e := range extents {
		if e.Segment != OwnFile {
			m.freeExtent(e)
		}
	}
}

// Quarantine takes a replica out of service: its bytes are not what was put. The caller has the object pinned. It
// reports whether another replica is left.
func (m *Master) Quarantine(o *Object, tier Tier) bool {
	rec := m.mem.at(o.holder)
	setFlags(rec, FlagMemoryBad<<tier)
	return readable(loadWord(rec))
}

// Verified notes that the memory replica of an object that came back from a restart was read and is right.
func (m *Master) Verified(o *Object) { clearFlags(m.mem.at(o.holder), FlagUnverified) }

// GenOf is the generation of a record that was just looked at; StartCopy checks it again.
func (m *Master) GenOf(r Ref) uint64 { rec := m.mem.glance(r); return rec.gen }

// SetDurable notes that an object's SSD replica is on stable storage and promised. The object must have been
// described by this master; if it was replaced meanwhile nothing happens.
func (m *Master) SetDurable(o *Object) {
	h, ok := m.peek(o.Ref, o.Gen)
	if !ok {
		return
	}
	s := m.index.shardOf(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.isObject(s, h, o.Ref, o.Gen) {
		setFlags(m.mem.at(o.Ref), FlagDurable)
		setFlags(m.mem.at(o.holder), FlagDurable) // a link keeps its owner
		if g := m.mem.at(o.Ref).group; g != 0 {
			m.stays(g, o.Ref)
		}
	}
}
