package master

import (
	"strings"
	"sync/atomic"

	"github.com/kvcache-ai/mooncake-go/store/internal/policy"
)

// Pages is one more than the last page that ScanPage has to visit to see every object.
func (m *Master) Pages() uint32 { return m.pool.limit() }

// Found is an object that a scan saw.
type Found struct {
	Key
	Object
}

// ScanPage appends the committed objects of one page whose tenant is k.Tenant and whose key starts with k.Name. An
// object that is there during a whole scan of all pages is seen exactly once: records do not move.
func (m *Master) ScanPage(n uint32, k Key, dst []Found) []Found {
	m.pool.records(n, func(r Ref, rec *record) {
		w := loadWord(rec)
		if stateOf(w) != Committed {
			return
		}
		gen := rec.gen
		h, ok := m.peek(r, gen)
		if !ok {
			return
		}
		s := m.index.shardOf(h)
		s.mu.Lock()
		defer s.mu.Unlock()
		if w = loadWord(rec); stateOf(w) != Committed || rec.gen != gen || !s.holds(h, r) {
			return
		}
		if string(m.mem.tenant(r, rec)) != k.Tenant || !strings.HasPrefix(string(m.mem.name(r, rec)), k.Name) {
			return
		}
		f := Found{Key: Key{k.Tenant, string(m.mem.name(r, rec))}}
		if rec.target == 0 {
			f.Object = m.object(r, rec, w)
		} else {
			f.Object = Object{Ref: r, Gen: rec.gen, Size: rec.size, Digest: rec.digest, Flags: w, Kind: rec.kind}
		}
		dst = append(dst, f)
	})
	return dst
}

// MemoryOnly lists the objects of one page, of all tenants, that have their bytes in memory and nowhere else.
func (m *Master) MemoryOnly(n uint32) (out []Victim) {
	m.pool.records(n, func(r Ref, rec *record) {
		w := loadWord(rec)
		if st := stateOf(w); st != Committed && st != Held || w&(FlagMemory|FlagMemoryBad|FlagSSD|FlagLink) != FlagMemory {
			return
		}
		v := Victim{Gen: rec.gen}
		v.Ref, v.Size = r, rec.size
		out = append(out, v)
	})
	return out
}

// Evictable adds up what may leave a tier.
func (m *Master) Evictable(now int64, tier Tier) (bytes int64) {
	m.eachCandidate(now, tier, func(c policy.Candidate) { bytes += c.Size })
	return bytes
}

// eachCandidate calls fn for every object and group that may leave a tier, and returns the bytes that stay only for
// their leases.
func (m *Master) eachCandidate(now int64, tier Tier, fn func(policy.Candidate)) (leased int64) {
	for n := uint32(1); n < m.pool.limit(); n++ {
		m.pool.records(n, func(r Ref, rec *record) {
			c, ok := policy.Candidate{}, false
			switch stateOf(loadWord(rec)) {
			case Committed, Held:
				c, ok = m.candidate(now, tier, r, rec, &leased)
			case groupState:
				c, ok = m.groupCandidate(now, tier, r, rec, &leased)
			}
			if ok {
				fn(c)
			}
		})
	}
	return leased
}

// Victims chooses what should leave a tier so that need is met, oldest first, the same for the same state. It holds no
// lock for longer than one record or one group; Evict checks each victim again. It also reports how many bytes
// stayed only because somebody holds a lease on them.
func (m *Master) Victims(now int64, tier Tier, need policy.Need, cfg policy.Config) (out []Victim, leased int64) {
	sel := policy.NewSelector(need, cfg)
	leased = m.eachCandidate(now, tier, sel.Offer)
	for _, c := range sel.Victims() {
		rec := m.mem.at(c.Ref)
		out = append(out, Victim{Candidate: c, Gen: rec.gen, Group: stateOf(loadWord(rec)) == groupState})
	}
	return out, leased
}

// candidate looks at an object without its lock: a wrong answer costs a try, since Evict looks again.
func (m *Master) candidate(now int64, tier Tier, r Ref, rec *record, leased *int64) (policy.Candidate, bool) {
	if rec.group != 0 {
		return policy.Candidate{}, false // leaves with its group
	}
	ok, isLeased := m.evictable(now, tier, rec)
	if isLeased {
		*leased += rec.size
	}
	return policy.Candidate{Ref: r, LastUse: atomic.LoadUint32(&rec.lastUse), Size: rec.size, Type: rec.kind,
		Soft: rec.softUntil > now, Key: rec.gen}, ok
}

// evictable is the predicate of policy.Evictable for a record and a tier.
func (m *Master) evictable(now int64, tier Tier, rec *record) (ok, leased bool) {
	w := loadWord(rec)
	if w&(FlagMemory<<tier) == 0 || w&(FlagOffloading|FlagGuarded) != 0 || tier == TierSSD && w&FlagDurable != 0 {
		return false, false
	}
	st := policy.State{
		Committed: stateOf(w) == Committed || stateOf(w) == Held,
		HardPin:   w&FlagHardPin != 0,
		LeaseLive: atomic.LoadInt64(&rec.lease) > now,
		Readers:   readersOf(w),
		// Bytes that several keys share leave memory only if the SSD tier keeps them, and never the SSD tier: the
		// catalogue has a record of each link that names them.
		Links: 0,
	}
	other := FlagMemory | FlagSSD
	if rec.chain != 0 && (tier == TierSSD || w&other != other) {
		st.Links = 1
	}
	ok = policy.Evictable(st)
	unleased := st
	unleased.LeaseLive = false
	return ok, !ok && policy.Evictable(unleased)
}

// groupCandidate sums a group up: it may leave only if each member may. Only the group's shard is held.
func (m *Master) groupCandidate(now int64, tier Tier, g Ref, grp *record, leased *int64) (policy.Candidate, bool) {
	h, ok := m.peek(g, grp.gen)
	if !ok {
		return policy.Candidate{}, false
	}
	s := m.index.shardOf(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	if stateOf(loadWord(grp)) != groupState || !s.holds(h, g) {
		return policy.Candidate{}, false
	}
	c := policy.Candidate{Ref: g, Key: grp.gen}
	ok, isLeased := true, atomic.LoadInt64(&grp.lease) > now
	for r := grp.next; r != 0; {
		rec := m.mem.at(r)
		w := loadWord(rec)
		if w&(FlagMemory<<tier) != 0 {
			c.Size += rec.size
			may, _ := m.evictable(now, tier, rec)
			ok = ok && may
		} else if stateOf(w) != Committed || w&(FlagHardPin|FlagLink) != 0 || tier == TierSSD && w&FlagDurable != 0 {
			ok = false
		}
		c.LastUse = max(c.LastUse, atomic.LoadUint32(&rec.lastUse))
		c.Type = rec.kind
		c.Soft = c.Soft || rec.softUntil > now
		r = rec.next
	}
	if ok && isLeased {
		*leased += c.Size
	}
	return c, ok && !isLeased && c.Size > 0
}
