package master

import (
	"sync/atomic"

	"github.com/kvcache-ai/mooncake-go/store/internal/status"
)

// Acquire finds a readable object, raises its lease to now+ttl (0 for no lease) and pins it, so that neither an
// eviction nor a removal frees its bytes before Release.
func (m *Master) Acquire(now int64, k Key, ttl int64) (Object, error) {
	h := m.index.hash(k.Tenant, k.Name)
	s := m.index.shardOf(h)
	s.mu.Lock()
	r, rec := m.index.committed(s, h, k.Tenant, k.Name)
	if rec == nil {
		err := m.missLocked(s, h, k)
		s.mu.Unlock()
		return Object{}, err
	}
	w := loadWord(rec)
	if w&FlagLink != 0 {
		s.mu.Unlock()
		return m.acquireLink(now, h, k, ttl)
	}
	o, err := m.pinLocked(now, r, rec, ttl)
	if err == nil && rec.group != 0 && !m.stays(rec.group, r) {
		unpin(rec) // it is committed, so this frees nothing
		err = status.NotFound
	}
	s.mu.Unlock()
	return o, err
}

// acquireLink is Acquire when the key's replicas are another record's: that one is pinned, so both are locked.
func (m *Master) acquireLink(now int64, h uint64, k Key, ttl int64) (Object, error) {
	l, r, rec := m.open(h, k)
	defer l.unlock()
	if rec == nil {
		return Object{}, m.missLocked(m.index.shardOf(h), h, k)
	}
	if loadWord(rec)&FlagLink == 0 {
		o, err := m.pinLocked(now, r, rec, ttl)
		if err == nil && rec.group != 0 {
			m.stays(rec.group, r) // its group's shard is locked
		}
		return o, err
	}
	if _, err := m.pinLocked(now, rec.target, m.mem.at(rec.target), ttl); err != nil {
		return Object{}, err
	}
	m.touch(now, r, rec, ttl)
	if rec.group != 0 {
		m.stays(rec.group, r)
	}
	if owner := m.mem.at(rec.target); owner.group != 0 {
		m.stays(owner.group, rec.target) // if it is removed it lives on for its links
	}
	return m.object(r, rec, loadWord(rec)), nil
}

// pinLocked pins the record whose replicas will be read.
func (m *Master) pinLocked(now int64, r Ref, rec *record, ttl int64) (Object, error) {
	w := loadWord(rec)
	if !readable(w) {
		return Object{}, status.NoReplica
	}
	if readersOf(w) >= maxReaders {
		return Object{}, wrapf(status.Busy, "%d readers have it open, the limit of one object", readersOf(w))
	}
	m.touch(now, r, rec, ttl)
	pin(rec)
	return m.object(r, rec, w), nil
}

// touch notes a use: the last use, and the lease if one is asked for. A group's lease is shared, so it is only
// raised when half of it is gone. False says that the group, with the object, was removed before its lease was raised.
func (m *Master) touch(now int64, r Ref, rec *record, ttl int64) (there bool) {
	if sec := seconds(now); rec.lastUse != sec {
		atomic.StoreUint32(&rec.lastUse, sec)
	}
	if ttl == 0 {
		return true
	}
	if rec.group == 0 {
		raiseLease(rec, now+ttl)
		return true
	}
	g := m.mem.at(rec.group)
	if atomic.LoadInt64(&g.lease)-now > ttl/2 {
		return true
	}
	raiseLease(g, now+ttl)
	return m.stays(rec.group, r)
}

// Guard is Acquire for a reader in another process: no pin, but until the lease ends the bytes stay where they are
// even if the key is removed or replaced. The reader must check the lease after its transfer.
func (m *Master) Guard(now int64, k Key, ttl int64) (Object, error) {
	h := m.index.hash(k.Tenant, k.Name)
	l, r, rec := m.open(h, k)
	defer l.unlock()
	if rec == nil {
		return Object{}, m.missLocked(m.index.shardOf(h), h, k)
	}
	holder, owner := r, rec
	if rec.target != 0 {
		holder, owner = rec.target, m.mem.at(rec.target)
	}
	if !readable(loadWord(owner)) {
		return Object{}, status.NoReplica
	}
	m.touch(now, r, rec, ttl)
	m.touch(now, holder, owner, ttl)
	raiseLease(owner, now+ttl) // its own, whether or not its group's covers it
	setFlags(owner, FlagGuarded)
	for _, used := range [...]Ref{r, holder} {
		if g := m.mem.at(used).group; g != 0 {
			m.stays(g, used)
		}
	}
	o := m.object(r, rec, loadWord(rec))
	o.Lease = now + ttl
	return o, nil
}

// Holder is what Release takes for an object that Acquire returned.
func (o *Object) Holder() Ref { return o.holder }

// missLocked tells a key that is being written from one that is not there.
func (m *Master) missLocked(s *shard, h uint64, k Key) error {
	err := error(status.NotFound)
	m.index.find(s, h, k.Tenant, k.Name, func(_ Ref, _ *record, w uint64) bool {
		if stateOf(w) == Reserved {
			err = status.NotReady
		}
		return err == error(status.NotReady)
	})
	return err
}

// Exists reports whether a readable object is there, and raises its lease if ttl is not 0.
func (m *Master) Exists(now int64, k Key, ttl int64) bool {
	return m.exists(now, m.index.hash(k.Tenant, k.Name), k, ttl)
}

func (m *Master) exists(now int64, h uint64, k Key, ttl int64) bool {
	s := m.index.shardOf(h)
	s.mu.Lock()
	r, rec := m.index.committed(s, h, k.Tenant, k.Name)
	return m.existsUnlock(now, s, h, r, rec, k, ttl)
}

// existsUnlock is Exists once the record, nil if there is none, is found. It unlocks the shard.
func (m *Master) existsUnlock(now int64, s *shard, h uint64, r Ref, rec *record, k Key, ttl int64) bool {
	if rec == nil {
		s.mu.Unlock()
		return false
	}
	w := loadWord(rec)
	if w&FlagLink != 0 {
		s.mu.Unlock()
		return m.linkExists(now, h, k, ttl)
	}
	ok := readable(w)
	if ok {
		ok = m.touch(now, r, rec, ttl)
	}
	s.mu.Unlock()
	return ok
}

// linkExists pins nothing: it says the same of an object that has all the readers it can have.
func (m *Master) linkExists(now int64, h uint64, k Key, ttl int64) bool {
	l, r, rec := m.open(h, k)
	defer l.unlock()
	if rec == nil {
		return false
	}
	if rec.target == 0 {
		return readable(loadWord(rec)) && m.touch(now, r, rec, ttl)
	}
	owner := m.mem.at(rec.target)
	if !readable(loadWord(owner)) {
		return false
	}
	m.touch(now, rec.target, owner, ttl) // if its group is removed it lives on for its links
	return m.touch(now, r, rec, ttl)
}

// warmBatch is how many keys of a batch go from step to step together, so that their cache misses overlap.
const warmBatch = 32

// ExistsBatch fills found, which is as long as names.
func (m *Master) ExistsBatch(now int64, tenant string, names []string, ttl int64, found []bool) {
	var ring [3][warmBatch]probe
	part := func(i int) ([]string, []probe) {
		from := i * warmBatch
		if from < 0 || from >= len(names) {
			return nil, nil
		}
		return names[from:min(from+warmBatch, len(names))], ring[i%len(ring)][:]
	}
	for i := 0; (i-2)*warmBatch < len(names); i++ {
		if part, batch := part(i); part != nil {
			m.index.warmSlots(batch, tenant, part)
		}
		if part, batch := part(i - 1); part != nil {
			m.index.warmRecords(batch, tenant, part)
		}
		if part, batch := part(i - 2); part != nil {
			m.existsPart(now, batch, tenant, part, ttl, found[(i-2)*warmBatch:])
		}
	}
}

func (m *Master) existsPart(now int64, batch []probe, tenant string, names []string, ttl int64, found []bool) {
	for i, name := range names {
		p := &batch[i]
		s := m.index.shardOf(p.hash)
		s.mu.Lock()
		r, rec := Ref(p.slot), m.index.again(s, p, tenant, name)
		if rec == nil {
			r, rec = m.index.committed(s, p.hash, tenant, name)
		}
		found[i] = m.existsUnlock(now, s, p.hash, r, rec, Key{tenant, name}, ttl)
	}
}

// Stat describes an object without touching its lease or last use. Reservations answer status.NotReady.
func (m *Master) Stat(k Key) (Object, error) {
	h := m.index.hash(k.Tenant, k.Name)
	l, r, rec := m.open(h, k)
	defer l.unlock()
	if rec == nil {
		return Object{}, m.missLocked(m.index.shardOf(h), h, k)
	}
	return m.object(r, rec, loadWord(rec)), nil
}

// GroupOf is the group of an object, "" when it has none.
func (m *Master) GroupOf(k Key) string {
	h := m.index.hash(k.Tenant, k.Name)
	l, _, rec := m.open(h, k)
	defer l.unlock()
	if rec == nil || rec.group == 0 {
		return ""
	}
	return string(m.mem.name(rec.group, m.mem.at(rec.group)))
}

// open locks the shards of a key's committed record, its group's and its owner's too. rec is nil when there is none;
// the key's own shard is locked either way.
func (m *Master) open(h uint64, k Key) (l locks, r Ref, rec *record) {
	s := m.index.shardOf(h)
	l = m.index.only(h)
	for {
		l.lock()
		if r, rec = m.index.committed(s, h, k.Tenant, k.Name); rec == nil {
			return l, 0, nil
		}
		if rec.group|rec.target == 0 {
			return l, r, rec
		}
		wider := m.covering(l, rec)
		if wider.n == l.n {
			return l, r, rec
		}
		l.unlock()
		l = wider
	}
}

// CheckLease is what a reader in another process does after its transfer.
func (o *Object) CheckLease(now int64) error {
	if now >= o.Lease {
		return status.LeaseExpired
	}
	return nil
}
