package master

import (
	"sync/atomic"

	"github.com/kvcache-ai/mooncake-go/store/internal/status"
)

// Remove ends an object. Without force a live lease or a reader refuses it; an unfinished put refuses it always. Bytes
// that somebody still reads stay until that ends. Other members of its group stay: groups leave by eviction or
// RemoveGroup.
func (m *Master) Remove(now int64, k Key, force bool) (Replaced, error) {
	h := m.index.hash(k.Tenant, k.Name)
	s := m.index.shardOf(h)
	l, r, rec := m.open(h, k)
	defer l.unlock()
	if rec == nil {
		return Replaced{}, m.missLocked(s, h, k)
	}
	if !force && m.inUse(now, rec) {
		return Replaced{}, status.HasLease
	}
	return m.removeLocked(now, s, h, r, rec), nil
}

// inUse reports a live lease or a reader.
func (m *Master) inUse(now int64, rec *record) bool {
	used := rec
	if rec.target != 0 {
		used = m.mem.at(rec.target)
	}
	return m.leaseEnd(rec) > now || readersOf(loadWord(used)) > 0
}

// removeLocked ends a committed object: it leaves its group, its owner's chain, and the index, but for an owner that
// links need, which is no longer found there. Its bytes go now, with the last reader, or, when links share them, with
// the last link. The shards that covering names are held.
func (m *Master) removeLocked(now int64, s *shard, h uint64, r Ref, rec *record) Replaced {
	w := loadWord(rec)
	out := Replaced{Gen: rec.gen, Size: rec.size, Durable: w&FlagDurable != 0}
	s.usage.add(rec, w, -1)
	m.leave(r, rec)
	if w&FlagLink != 0 {
		s.remove(h, r)
		m.unlink(r, rec)
		out.Pinned = m.pinIfOnSSD(rec.target, h)
		atomic.StoreUint64(&rec.word, uint64(Free))
		m.releaseOwner(now, rec.target)
		m.pool.release(r)
		return out
	}
	out.Pinned = m.pinIfOnSSD(r, h)
	if rec.chain != 0 {
		m.mem.seal(r, rec) // leave changed it
		clearFlags(rec, FlagHardPin)
		setState(rec, Held)
		return out
	}
	s.remove(h, r)
	m.retire(r, rec, guardedUntil(now, rec))
	return out
}

// pinIfOnSSD keeps the SSD space of a record until the caller's catalogue has forgotten the object. One that is on its
// way there counts too: its copier may have told the catalogue already, and not yet us. h is of the key that is removed.
func (m *Master) pinIfOnSSD(r Ref, h uint64) Ref {
	rec := m.mem.at(r)
	if loadWord(rec)&(FlagSSD|FlagOffloading) == 0 {
		return 0
	}
	pin(rec)
	m.departures.of(h).Add(1)
	return r
}

// removeTries bounds how often RemoveGroup without force looks for a moment in which no member is in use.
const removeTries = 8

// RemoveGroup removes all members of a group in one instant, or none. refused names the member that stood in the way.
// With many members it takes a while until their space is free, and it returns then.
func (m *Master) RemoveGroup(now int64, k Key, force bool) (out []RemovedKey, refused string, err error) {
	w := m.walkGroup(k)
	defer m.endWalk(w)
	if !w.begun {
		return nil, "", status.NotGroup
	}
	g := w.g
	m.departures.members.Add(1)
	defer m.departures.members.Add(-1)
	for try := 0; ; try++ {
		if !force {
			m.watch(w)
			if refused, err = m.refusal(w, func(rec *record) error { return m.mayRemove(now, rec) }); err != nil {
				return nil, refused, err
			}
		}
		again, err := m.condemn(now, w)
		switch {
		case err == nil:
			m.reclaim(now, w, func(k Key, _ uint64, gone Replaced) { out = append(out, RemovedKey{k.Name, gone}) })
			return out, "", nil
		case again && try < removeTries:
			continue
		case w.used != 0:
			refused = m.memberName(g, w.used)
		case err == error(status.NotReady):
			m.rewind(w)
			refused, _ = m.refusal(w, beingWritten) // "" if it was committed just now
		}
		return nil, refused, err
	}
}

func (m *Master) mayRemove(now int64, rec *record) error {
	if err := beingWritten(rec); err != nil {
		return err
	}
	if m.inUse(now, rec) {
		return status.HasLease
	}
	return nil
}

func beingWritten(rec *record) error {
	if stateOf(loadWord(rec)) == Reserved {
		return status.NotReady
	}
	return nil
}

// refusal goes on with a walk until a member has an error, and names it.
func (m *Master) refusal(w *walk, check func(*record) error) (name string, err error) {
	m.eachMember(w, func(r Ref, rec *record) bool {
		if err = check(rec); err != nil {
			name = string(m.mem.name(r, rec))
		}
		return err == nil
	})
	return name, err
}

// RemovedKey is a key that went, and what is left to do about it.
type RemovedKey struct {
	Name string
	Replaced
}
