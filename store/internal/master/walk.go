package master

import (
	"slices"
	"sync/atomic"

	"github.com/kvcache-ai/mooncake-go/store/internal/status"
)

// A group may have millions of members, on all shards. A command that concerns them all goes through them by a walk: a
// few at a time, and no lock is held from one step to the next, so that nobody waits for longer than a step. A group
// is removed all the same in one instant: its record changes from groupState to goneGroup, and from there on no look-up
// finds a member. What is left of the members is then taken away in steps.

// groupStep is how many members a command looks at or changes while it holds locks.
const groupStep = 16

// walk is a command's way through a group's members, newest first. It is registered at the shard of the group's record,
// whose lock guards it. Members that join while it is on its way are not visited.
type walk struct {
	hash    uint64 // of the group
	g       Ref    // 0 once the group has ended
	at      Ref    // the next member, 0 at the end; moved on when that one leaves
	changed bool   // members joined, or their pins changed, since it began
	used    Ref    // a member that got a use while another walk watched the group, 0 for none
	watches bool   // see watch
	strict  bool   // changed keeps condemn from removing the group
	begun   bool   // there was a group
	removed bool   // another command removed it
}

// walkGroup begins a walk. endWalk must follow.
func (m *Master) walkGroup(k Key) *walk {
	gh := groupHash(m.index.hash(k.Tenant, k.Name))
	s := m.index.shardOf(gh)
	s.mu.Lock()
	defer s.mu.Unlock()
	g, _ := m.index.groupOf(s, gh, k.Tenant, k.Name)
	return m.beginWalk(s, gh, g)
}

// walkRef is walkGroup for a group that was found without a lock.
func (m *Master) walkRef(g Ref, gen uint64) *walk {
	gh, _ := m.peek(g, gen)
	s := m.index.shardOf(gh)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.holds(gh, g) {
		g = 0
	} else if grp := m.mem.at(g); grp.gen != gen || stateOf(loadWord(grp)) != groupState {
		g = 0
	}
	return m.beginWalk(s, gh, g)
}

func (m *Master) beginWalk(s *shard, gh uint64, g Ref) *walk {
	w := &walk{hash: gh, g: g}
	if g != 0 {
		w.at, w.begun = m.mem.at(g).next, true
		s.walks = append(s.walks, w)
	}
	return w
}

// endWalk reports whether there was a group that no other command has removed.
func (m *Master) endWalk(w *walk) (found bool) {
	if !w.begun {
		return false
	}
	s := m.index.shardOf(w.hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.Index(s.walks, w)
	last := len(s.walks) - 1
	s.walks[at], s.walks[last] = s.walks[last], nil
	s.walks = s.walks[:last]
	if w.watches && w.g != 0 {
		m.unwatch(w)
	}
	return !w.removed
}

// eachWalk calls fn for the walks through a group. The caller holds the group's shard.
func (m *Master) eachWalk(g Ref, fn func(*walk)) {
	for _, w := range m.index.shardOf(m.mem.at(g).hash).walks {
		if w.g == g {
			fn(w)
		}
	}
}

// eachMember visits the members that the walk has not come to yet. visit ends it by returning false.
func (m *Master) eachMember(w *walk, visit func(r Ref, rec *record) bool) {
	for w.begun && m.step(w, visit) {
	}
}

// step visits the next few members, with their shards, their owners' and the group's locked, and reports whether there
// may be more.
func (m *Master) step(w *walk, visit func(r Ref, rec *record) bool) (more bool) {
	l := m.index.only(w.hash)
	for {
		l.lock()
		wider := m.coveringStep(l, w)
		if wider.n == l.n {
			break
		}
		l.unlock()
		l = wider
	}
	defer l.unlock()
	n := 0
	for w.at != 0 && n < groupStep {
		r := w.at
		rec := m.mem.at(r)
		w.at = rec.next
		n++
		if !visit(r, rec) {
			w.at = 0
		}
	}
	if m.opts.Stepped != nil {
		m.opts.Stepped(n)
	}
	return w.at != 0
}

// coveringStep is the set with the shards of the members of the next step. Members can't leave while the group's shard is
// held, so their hashes can be read; the links among them can't either, so their owners stay.
func (m *Master) coveringStep(l locks, w *walk) locks {
	n := 0
	for r := w.at; r != 0 && n < groupStep; n++ {
		rec := m.mem.at(r)
		l = l.with(rec.hash)
		if rec.target != 0 {
			l = l.with(m.mem.at(rec.target).hash)
		}
		r = rec.next
	}
	return l
}

// watch begins the walk again, for a removal that is to happen only if no member is in use. Whoever uses a member that it
// has visited leaves a note: see stays.
func (m *Master) watch(w *walk) {
	s := m.index.shardOf(w.hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.g == 0 {
		return
	}
	grp := m.mem.at(w.g)
	m.passUse(grp, w.g)
	w.watches, w.used, w.changed, w.at = true, 0, false, grp.next
	setFlags(grp, groupWatched)
}

// rewind begins the walk again.
func (m *Master) rewind(w *walk) {
	s := m.index.shardOf(w.hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.g != 0 {
		w.at = m.mem.at(w.g).next
	}
}

// passUse hands a note to the walks that it concerns.
func (m *Master) passUse(grp *record, g Ref) {
	if loadWord(grp)&groupUsed == 0 {
		return
	}
	used := atomic.LoadUint32(&grp.prev)
	clearFlags(grp, groupUsed)
	m.eachWalk(g, func(other *walk) { other.used = used })
}

// unwatch ends the notes, unless another walk needs them.
func (m *Master) unwatch(w *walk) {
	grp := m.mem.at(w.g)
	others := false
	m.eachWalk(w.g, func(other *walk) { others = others || other.watches })
	if !others {
		clearFlags(grp, groupWatched|groupUsed)
	}
}

// stays is called by whoever begins to use a member of a group, once it is pinned or leased, with the member's shard
// locked. It leaves a note for a removal that has looked at the member already. False says that the group was removed
// first: then the member is not there any more.
func (m *Master) stays(g, member Ref) bool {
	grp := m.mem.at(g)
	for {
		w := loadWord(grp)
		switch {
		case stateOf(w) == goneGroup:
			return false
		case w&groupWatched == 0 || w&groupUsed != 0:
			return true
		}
		atomic.StoreUint32(&grp.prev, member)
		if atomic.CompareAndSwapUint64(&grp.word, w, w|groupUsed) {
			return true
		}
	}
}

// condemn removes a group for all who look for its members, in one instant. reclaim takes them away. It refuses a group
// with a member that is being written. One that the walk watched it also refuses for a lease, and for a use that a member
// got since the walk looked at it, if only for a moment: again says that another walk may find it unused.
func (m *Master) condemn(now int64, w *walk) (again bool, why error) {
	s := m.index.shardOf(w.hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.g == 0 {
		return false, status.NotGroup
	}
	grp := m.mem.at(w.g)
	switch {
	case grp.ssdOff != 0:
		return false, status.NotReady
	case w.strict && w.changed:
		return true, status.Busy
	}
	for {
		word := loadWord(grp)
		if w.watches {
			if m.passUse(grp, w.g); w.used != 0 {
				return true, status.HasLease
			}
			if atomic.LoadInt64(&grp.lease) > now {
				w.used = grp.next
				return false, status.HasLease
			}
			word &^= groupUsed // CompareAndSwap finds out
		}
		if atomic.CompareAndSwapUint64(&grp.word, word, uint64(goneGroup)) {
			break
		}
	}
	w.at = grp.next
	m.eachWalk(w.g, func(other *walk) {
		if other != w {
			other.g, other.at, other.removed = 0, 0, true
		}
	})
	return false, nil
}

// memberName is the name of a record if it still is a member of the group.
func (m *Master) memberName(g, r Ref) string {
	seen := m.mem.glance(r)
	s := m.index.shardOf(seen.hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	if rec := m.mem.at(r); s.holds(seen.hash, r) && rec.group == g {
		return string(m.mem.name(r, rec))
	}
	return ""
}

// reclaim takes the members of a condemned group away, and tells of each. Names are made, and tell is called, with no lock
// held: readers would wait for the collector, or for a list that grows.
func (m *Master) reclaim(now int64, w *walk, tell func(k Key, gen uint64, gone Replaced)) {
	var taken [groupStep]struct {
		tenant, name int // lengths in text
		gen          uint64
		gone         Replaced
	}
	text := make([]byte, 0, 16<<10)
	for more := w.begun; more; {
		n := 0
		text = text[:0]
		more = m.step(w, func(r Ref, rec *record) bool {
			t := &taken[n]
			n++
			tenant, name := m.mem.tenant(r, rec), m.mem.name(r, rec)
			text = append(append(text, tenant...), name...)
			t.tenant, t.name, t.gen = len(tenant), len(name), rec.gen
			t.gone = m.removeLocked(now, m.index.shardOf(rec.hash), rec.hash, r, rec)
			return true
		})
		rest := text
		for i := range taken[:n] {
			t := &taken[i]
			k := Key{string(rest[:t.tenant]), string(rest[t.tenant : t.tenant+t.name])}
			rest = rest[t.tenant+t.name:]
			tell(k, t.gen, t.gone)
		}
	}
}
