package master

import (
	"sync/atomic"

	"github.com/kvcache-ai/mooncake-go/store/internal/status"
)

// A link is a committed record without replicas that names an owner, whose replicas it shares. Owners know their
// links by a chain that the lock of the owner's shard guards. An owner whose key is removed while links are left
// stays as a held record, in the index but found under no key, until the last link goes.

// LinkRequest makes a second key for an object's bytes.
type LinkRequest struct {
	Key
	Target    string // in the same tenant
	Owner     Ref    // a held owner from RestoreHeld, instead of Target
	Gen       uint64 // of a link that comes back at start-up, 0 for a new one
	Group     string
	SoftUntil int64
	HardPin   bool
	Durable   bool
}

// Link commits the second key at once. The result describes it, with the replicas of its owner.
func (m *Master) Link(now int64, q LinkRequest) (Object, error) { return m.link(now, q, Committed) }

// ReserveLink is Link in two steps: the link shares the owner's bytes and keeps them, but nobody sees it before
// CommitLink. AbortLink ends it. Its key is taken until then: nobody waits for a caller between the two, so no time
// ends it. An owner that has no replica on the SSD tier may get one meanwhile; the result says what it had.
func (m *Master) ReserveLink(now int64, q LinkRequest) (Object, error) {
	return m.link(now, q, Reserved)
}

func (m *Master) link(now int64, q LinkRequest, as State) (Object, error) {
	rq := ReserveRequest{Key: q.Key, Size: 1, Group: q.Group, SoftUntil: q.SoftUntil, HardPin: q.HardPin,
		Durable: q.Durable, Placement: OnSSD}
	if err := m.check(&rq); err != nil {
		return Object{}, err
	}
	h := m.index.hash(q.Tenant, q.Name)
	if err := m.precheck(now, h, &rq); err != nil {
		return Object{}, err
	}
	r, err := m.newRecord(now, h, &rq, nil)
	if err != nil {
		return Object{}, err
	}
	if q.Gen != 0 {
		m.sawGen(q.Gen)
		m.mem.at(r).gen = q.Gen
	}
	o, err := m.linkTo(now, h, r, &q, &rq, as)
	if err != nil {
		m.discard(r)
	}
	return o, err
}

func (m *Master) linkTo(now int64, h uint64, r Ref, q *LinkRequest, rq *ReserveRequest, as State) (Object, error) {
	l, owner, err := m.lockLink(h, q)
	if err != nil {
		return Object{}, err
	}
	defer l.unlock()
	s := m.index.shardOf(h)
	// Unlike a put, a link does not take the place of an object that lost its last good replica.
	_, old := m.index.committed(s, h, q.Tenant, q.Name)
	if stale, _, err := m.conflict(now, s, h, rq); err != nil || stale != 0 || old != nil {
		return Object{}, wrapf(status.Exists, "link %.64q", q.Name)
	}
	own := m.mem.at(owner)
	if !readable(loadWord(own)) {
		return Object{}, status.NoReplica
	}
	rec := m.mem.at(r)
	if q.Group != "" {
		g, err := m.groupLocked(groupHash(m.index.hash(q.Tenant, q.Group)), q.Tenant, q.Group)
		if err != nil {
			return Object{}, err
		}
		m.join(g, r, rec)
	}
	rec.size, rec.digest, rec.kind, rec.target = own.size, own.digest, own.kind, owner
	rec.chain, own.chain = own.chain, r
	atomic.StoreInt64(&rec.lease, 0)
	m.mem.seal(r, rec)
	s.insert(h, r)
	atomic.StoreUint64(&rec.word, with(loadWord(rec)|FlagLink, as))
	if as == Committed {
		m.committedMember(rec)
		s.usage.add(rec, loadWord(rec), 1)
	}
	return m.object(r, rec, loadWord(rec)), nil
}

// CommitLink makes a reserved link visible. If a put took the key meanwhile it is status.Exists: then AbortLink is due.
func (m *Master) CommitLink(r Ref, gen uint64) error {
	l, h, rec, err := m.reservation(r, gen)
	if err != nil {
		return err
	}
	defer l.unlock()
	if _, other := m.index.sibling(m.index.shardOf(h), h, r); other != nil {
		return wrapf(status.Exists, "link %.64q", m.mem.name(r, rec))
	}
	setState(rec, Committed)
	m.committedMember(rec)
	m.index.shardOf(h).usage.add(rec, loadWord(rec), 1)
	return nil
}

// AbortLink ends a reserved link. What the catalogue may know of it is in the result, as from Remove.
func (m *Master) AbortLink(now int64, r Ref, gen uint64) (Replaced, error) {
	l, h, rec, err := m.reservation(r, gen)
	if err != nil {
		return Replaced{}, err
	}
	defer l.unlock()
	s := m.index.shardOf(h)
	s.usage.add(rec, loadWord(rec), 1) // which the end takes off
	return m.removeLocked(now, s, h, r, rec), nil
}

// StatReserved describes a reserved link, with the replicas that its owner has now.
func (m *Master) StatReserved(r Ref, gen uint64) (Object, error) {
	l, _, rec, err := m.reservation(r, gen)
	if err != nil {
		return Object{}, err
	}
	defer l.unlock()
	return m.object(r, rec, loadWord(rec)), nil
}

// lockLink locks the shards of the new key, its group and the owner: the target, or what the target links to.
func (m *Master) lockLink(h uint64, q *LinkRequest) (l locks, owner Ref, err error) {
	th := m.index.hash(q.Tenant, q.Target)
	l = m.index.only(h).with(th)
	if q.Group != "" {
		l = l.with(groupHash(m.index.hash(q.Tenant, q.Group)))
	}
	if q.Owner != 0 {
		l = l.with(m.mem.at(q.Owner).hash)
		l.lock()
		return l, q.Owner, nil
	}
	for {
		l.lock()
		r, rec := m.index.committed(m.index.shardOf(th), th, q.Tenant, q.Target)
		if rec == nil {
			l.unlock()
			return l, 0, wrapf(status.NotFound, "link %.64q to %.64q", q.Name, q.Target)
		}
		if rec.target == 0 {
			return l, r, nil
		}
		wider := l.with(m.mem.at(rec.target).hash)
		if wider.n == l.n {
			return l, rec.target, nil
		}
		l.unlock()
		l = wider
	}
}

// unlink takes a link out of its owner's chain.
func (m *Master) unlink(r Ref, rec *record) {
	at := &m.mem.at(rec.target).chain
	for *at != r {
		at = &m.mem.at(*at).chain
	}
	*at = rec.chain
}

// releaseOwner frees a held owner that lost its last link.
func (m *Master) releaseOwner(now int64, owner Ref) {
	rec := m.mem.at(owner)
	if stateOf(loadWord(rec)) != Held || rec.chain != 0 {
		return
	}
	s := m.index.shardOf(rec.hash)
	s.remove(rec.hash, owner)
	s.usage.addReplicas(rec, loadWord(rec), -1)
	m.retire(owner, rec, guardedUntil(now, rec))
}

// guardedUntil is when the last reader in another process has ended, 0 if it has.
func guardedUntil(now int64, rec *record) int64 {
	if end := atomic.LoadInt64(&rec.lease); loadWord(rec)&FlagGuarded != 0 && end > now {
		return end
	}
	return 0
}

// pinnedByLink reports whether a link of an owner has a hard pin, a live lease or a soft pin.
func (m *Master) pinnedByLink(now int64, rec *record) (hard, soft bool) {
	for r := rec.chain; r != 0; {
		link := m.mem.at(r)
		hard = hard || loadWord(link)&FlagHardPin != 0 || m.leaseEnd(link) > now
		soft = soft || link.softUntil > now
		r = link.chain
	}
	return hard, soft
}

// NameOf is the key of a record that is pinned, or that a link of the caller keeps.
func (m *Master) NameOf(r Ref) string { return string(m.mem.name(r, m.mem.at(r))) }

// OwnerName is the key under which a link's bytes were put.
func (m *Master) OwnerName(k Key) string {
	l, _, rec := m.open(m.index.hash(k.Tenant, k.Name), k)
	defer l.unlock()
	if rec == nil || rec.target == 0 {
		return ""
	}
	return string(m.mem.name(rec.target, m.mem.at(rec.target)))
}
