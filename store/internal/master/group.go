package master

import (
	"slices"
	"sync/atomic"

	"github.com/kvcache-ai/mooncake-go/store/internal/lane"
	"github.com/kvcache-ai/mooncake-go/store/internal/status"
)

// A group is a record of its own in the index, in state groupState: its key is the group's name, next is its first
// member, chain the number of members, ssdFile counts membership changes, ssdOff the members that are reservations,
// lease is the lease that all members share. It exists as long as it has members. All of it, and the next and prev of
// the members, is guarded by the lock of the group's shard; word and lease change by atomic operations too. Commands
// that concern all members go through them by a walk.

// lockForReserve locks the shards of a key and, if it is to join one, of its group, which is made if need be.
func (m *Master) lockForReserve(h uint64, q *ReserveRequest) (l locks, g Ref, err error) {
	l = m.index.only(h)
	if q.Group == "" {
		l.lock()
		return l, 0, nil
	}
	gh := groupHash(m.index.hash(q.Tenant, q.Group))
	l = l.with(gh)
	l.lock()
	g, err = m.groupLocked(gh, q.Tenant, q.Group)
	if err != nil {
		l.unlock()
	}
	return l, g, err
}

// groupLocked finds or makes the record of a group.
func (m *Master) groupLocked(gh uint64, tenant, name string) (Ref, error) {
	s := m.index.shardOf(gh)
	if g, _ := m.index.groupOf(s, gh, tenant, name); g != 0 {
		return g, nil
	}
	g := m.pool.alloc(recordSize(len(tenant), len(name), 0), lane.Get())
	if g == 0 {
		return 0, wrapf(status.MetaShortage, "group %.64q", name)
	}
	rec := m.mem.at(g)
	rec.hash, rec.gen = gh, m.gen.Add(1)
	rec.keyLen, rec.tenLen = uint16(len(name)), uint8(len(tenant))
	copy(m.mem.tenant(g, rec), tenant)
	copy(m.mem.name(g, rec), name)
	m.mem.seal(g, rec)
	atomic.StoreUint64(&rec.word, uint64(groupState))
	s.insert(gh, g)
	s.usage.groups++
	return g, nil
}

// join adds a record to a group's list.
func (m *Master) join(g, r Ref, rec *record) {
	grp := m.mem.at(g)
	rec.group, rec.prev, rec.next = g, 0, grp.next
	if grp.next != 0 {
		m.mem.at(grp.next).prev = r
	}
	grp.next = r
	grp.chain++
	grp.ssdFile++
	if stateOf(loadWord(rec)) == Reserved {
		grp.ssdOff++
	}
	m.eachWalk(g, func(w *walk) { w.changed = true })
}

// leave takes a record out of its group, if it has one, and the group away with its last member.
func (m *Master) leave(r Ref, rec *record) {
	g := rec.group
	if g == 0 {
		return
	}
	grp := m.mem.at(g)
	if rec.prev != 0 {
		m.mem.at(rec.prev).next = rec.next
	} else {
		grp.next = rec.next
	}
	if rec.next != 0 {
		m.mem.at(rec.next).prev = rec.prev
	}
	// Readers that got here before the removal go on under the lease that the group had.
	raiseLease(rec, atomic.LoadInt64(&grp.lease))
	m.eachWalk(g, func(w *walk) {
		if w.at == r {
			w.at = rec.next
		}
	})
	rec.group, rec.next, rec.prev = 0, 0, 0
	if stateOf(loadWord(rec)) == Reserved {
		grp.ssdOff--
	}
	grp.chain--
	grp.ssdFile++
	m.dropIfEmpty(g)
}

// committedMember counts a reservation off that was committed.
func (m *Master) committedMember(rec *record) {
	if rec.group != 0 {
		m.mem.at(rec.group).ssdOff--
	}
}

func (m *Master) dropIfEmpty(g Ref) {
	if g == 0 {
		return
	}
	grp := m.mem.at(g)
	if grp.chain != 0 {
		return
	}
	s := m.index.shardOf(grp.hash)
	s.remove(grp.hash, g)
	s.usage.groups--
	m.eachWalk(g, func(w *walk) { w.g = 0 })
	atomic.StoreUint64(&grp.word, uint64(Free))
	m.pool.release(g)
}

// Group lists the committed members of a group, by name.
func (m *Master) Group(k Key) ([]string, error) {
	w := m.walkGroup(k)
	var names []string
	m.eachMember(w, func(r Ref, rec *record) bool {
		if stateOf(loadWord(rec)) == Committed {
			names = append(names, string(m.mem.name(r, rec)))
		}
		return true
	})
	if !m.endWalk(w) {
		return nil, status.NotGroup
	}
	slices.Reverse(names) // oldest first
	return names, nil
}

// PinRequest changes pins. Nil fields stay as they are.
type PinRequest struct {
	HardPin   *bool
	SoftUntil *int64 // unix ns, 0 ends it
}

// Pin changes the pins of an object; changed reports whether anything did.
func (m *Master) Pin(k Key, p PinRequest) (changed bool, err error) {
	h := m.index.hash(k.Tenant, k.Name)
	l, _, rec := m.open(h, k)
	defer l.unlock()
	if rec == nil {
		return false, m.missLocked(m.index.shardOf(h), h, k)
	}
	return m.pinRecord(m.index.shardOf(h), rec, p), nil
}

func (m *Master) pinRecord(s *shard, rec *record, p PinRequest) (changed bool) {
	if rec.group != 0 {
		m.eachWalk(rec.group, func(w *walk) { w.changed = true })
	}
	if p.SoftUntil != nil && rec.softUntil != *p.SoftUntil {
		rec.softUntil = *p.SoftUntil
		changed = true
	}
	if p.HardPin == nil || *p.HardPin == (loadWord(rec)&FlagHardPin != 0) {
		return changed
	}
	if *p.HardPin {
		setFlags(rec, FlagHardPin)
		s.usage.hardPins++
	} else {
		clearFlags(rec, FlagHardPin)
		s.usage.hardPins--
	}
	return true
}

// PinGroup changes the pins of all committed members with one command and returns the names of those that changed. An
// eviction, which needs them all without a pin, sees either what was before the command or what is after it.
func (m *Master) PinGroup(k Key, p PinRequest) ([]string, error) {
	w := m.walkGroup(k)
	var names []string
	m.eachMember(w, func(r Ref, rec *record) bool {
		if stateOf(loadWord(rec)) == Committed && m.pinRecord(m.index.shardOf(rec.hash), rec, p) {
			names = append(names, string(m.mem.name(r, rec)))
		}
		return true
	})
	if !m.endWalk(w) {
		return nil, status.NotGroup
	}
	return names, nil
}
