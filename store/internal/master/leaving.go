package master

import "sync/atomic"

// departures counts objects that were removed while the catalogue may know them, until it has forgotten them. An operation on
// the same key that comes later must not be acknowledged before: a crash would bring the older object back in its place.
// Keys share counters by their hash; a key whose counter is not its own waits a moment too long.
type departures struct {
	counts  []atomic.Int32
	members atomic.Int32 // groups that were removed, with members that are not counted yet
}

const departureCounts = 1 << 16

func (d *departures) of(h uint64) *atomic.Int32 { return &d.counts[h%departureCounts] }

// Leaving says whether a removal of this key, or of a group that it was in, has not got through to the catalogue.
func (m *Master) Leaving(k Key) bool {
	h := m.index.hash(k.Tenant, k.Name)
	if m.departures.of(h).Load() != 0 {
		return true
	}
	return m.departures.members.Load() != 0 && m.index.leavesWithGroup(h, k.Tenant, k.Name)
}

// Forgotten ends what a Replaced with Pinned set began for its key. The record is released apart from that.
func (m *Master) Forgotten(k Key) { m.departures.of(m.index.hash(k.Tenant, k.Name)).Add(-1) }

// AllForgotten is Forgotten of all keys: a restore, which runs alone, leaves nothing behind.
func (m *Master) AllForgotten() {
	for i := range m.departures.counts {
		m.departures.counts[i].Store(0)
	}
}

// leavesWithGroup says whether the record of a key that was removed with its group is still there.
func (x *index) leavesWithGroup(h uint64, tenant, name string) (found bool) {
	s := x.shardOf(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	x.each(s, h, tenant, name, func(_ Ref, rec *record) bool {
		found = x.wentWithGroup(rec)
		return found
	})
	return found
}
