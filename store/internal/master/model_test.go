package master

import (
	"slices"
)

// model says what every command does, one record after the other, without locks, refs, pages or an index.
type model struct {
	now     int64
	recs    []*mrec // all that are not free
	groups  map[string]*mgroup
	freed   map[Loc]int    // how often the SSD space was given up
	dropped map[uint64]int // how often a memory file was
}

type mgroup struct {
	lease   int64
	members int
}

type mrec struct {
	key                  Key
	ref                  Ref
	gen                  uint64
	size                 int64
	kind                 uint8
	state                State
	group                *mgroup
	groupName            string
	hard, durable        bool
	soft, lease          int64
	owner                *mrec // of a link
	links                []*mrec
	mem, ssd             bool
	bad                  [Tiers]bool
	loc                  Loc
	file                 uint64
	pins                 int
	guarded, copying     bool
	wait                 int64 // of a retired record
	replace, here, taken bool  // of a reservation
}

func (r *mrec) body() *mrec {
	if r.owner != nil {
		return r.owner
	}
	return r
}

func (r *mrec) readable() bool { return r.mem && !r.bad[TierMemory] || r.ssd && !r.bad[TierSSD] }
func (r *mrec) has(t Tier) bool {
	if t == TierMemory {
		return r.mem
	}
	return r.ssd
}

// last reports whether nothing readable is left without tier t.
func (r *mrec) last(t Tier) bool {
	return !(t != TierMemory && r.mem && !r.bad[TierMemory] || t != TierSSD && r.ssd && !r.bad[TierSSD])
}

func (r *mrec) leaseEnd() int64 {
	if r.group != nil {
		return max(r.lease, r.group.lease)
	}
	return r.lease
}

func (m *model) find(k Key, st State) *mrec {
	for _, r := range m.recs {
		if r.key == k && r.state == st {
			return r
		}
	}
	return nil
}

func (m *model) touch(r *mrec, ttl int64) {
	switch {
	case ttl == 0:
	case r.group == nil:
		r.lease = max(r.lease, m.now+ttl)
	case r.group.lease-m.now <= ttl/2:
		r.group.lease = m.now + ttl
	}
}

func (m *model) join(r *mrec, name string) {
	if name == "" {
		return
	}
	id := r.key.Tenant + "/" + name
	if m.groups[id] == nil {
		m.groups[id] = &mgroup{}
	}
	r.group, r.groupName = m.groups[id], name
	r.group.members++
}

func (m *model) leave(r *mrec) {
	if r.group == nil {
		return
	}
	r.lease = max(r.lease, r.group.lease)
	if r.group.members--; r.group.members == 0 {
		delete(m.groups, r.key.Tenant+"/"+r.groupName)
	}
	r.group, r.groupName = nil, ""
}

// retire ends a record; release frees it if nobody uses it.
func (m *model) retire(r *mrec, until int64) {
	r.state, r.wait = Retired, until
	m.release(r, 0)
}

func (m *model) release(r *mrec, pins int) {
	r.pins -= pins
	if r.state != Retired || r.pins > 0 || r.wait > 0 {
		return
	}
	r.state = Free
	m.recs = slices.DeleteFunc(m.recs, func(o *mrec) bool { return o == r })
	if r.ssd {
		m.freed[r.loc]++
	}
	if r.mem && r.file != 0 {
		m.dropped[r.file]++
	}
}

func (m *model) tick() {
	for _, r := range slices.Clone(m.recs) {
		if r.state == Reserved && !r.here && m.now-r.wait >= int64(testRelease) {
			m.takeOver(r)
		}
	}
	for _, r := range slices.Clone(m.recs) {
		if r.state == Retired && r.wait <= m.now {
			r.wait = 0
			m.release(r, 0)
		}
	}
}

func (m *model) guardedUntil(r *mrec) int64 {
	if r.guarded && r.lease > m.now {
		return r.lease
	}
	return 0
}

// drop ends a committed record and returns the one that is pinned for the catalogue's sake.
func (m *model) drop(r *mrec) (pinned *mrec) {
	m.leave(r)
	b := r.body()
	if b.ssd || b.copying { // a record of a copy may be on its way to the catalogue
		b.pins++
		pinned = b
	}
	switch {
	case r.owner != nil:
		b.links = slices.DeleteFunc(b.links, func(o *mrec) bool { return o == r })
		m.retire(r, 0)
		if b.state == Held && len(b.links) == 0 {
			m.retire(b, m.guardedUntil(b))
		}
	case len(r.links) > 0:
		r.state, r.hard = Held, false
	default:
		m.retire(r, m.guardedUntil(r))
	}
	return pinned
}

// endReservation ends a reservation; a writer here lets go of it.
func (m *model) endReservation(r *mrec) {
	m.leave(r)
	m.retire(r, 0)
	if r.here {
		m.release(r, 1)
	}
}

func (m *model) takeOver(r *mrec) {
	start := r.wait // of a reservation: its last sign of life
	m.leave(r)
	r.taken = true
	if r.here {
		m.retire(r, 0)
	} else {
		m.retire(r, start+int64(testRelease))
	}
}

// mayLeave is for one record. Those in a group leave with it.
func (m *model) mayLeave(r *mrec, t Tier) bool {
	if !r.has(t) || r.owner != nil || r.state != Committed && r.state != Held || r.hard || r.copying || r.pins > 0 ||
		r.lease > m.now || r.durable && (t == TierSSD || r.last(t)) || len(r.links) > 0 && (t == TierSSD || r.last(t)) {
		return false
	}
	return !slices.ContainsFunc(r.links, func(l *mrec) bool { return l.hard || l.leaseEnd() > m.now })
}

func (m *model) groupMayLeave(g *mgroup, t Tier) (ok, whole bool) {
	whole = true
	durable, some := false, false
	for _, r := range m.recs {
		if r.group != g {
			continue
		}
		durable = durable || r.durable
		if r.state != Committed || r.owner != nil || r.hard || r.has(t) && !m.mayLeave(r, t) {
			return false, false
		}
		some = some || r.has(t)
		whole = whole && (!r.has(t) || !r.last(t))
	}
	return some && g.lease <= m.now && (whole || !durable), whole
}
