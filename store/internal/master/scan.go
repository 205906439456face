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
	m.survey(n, func(r Ref, seen *record) {
		if stateOf(seen.word) != Committed {
			return
		}
		s := m.index.shardOf(seen.hash)
		s.mu.Lock()
		defer s.mu.Unlock()
		rec := m.mem.at(r)
		w := loadWord(rec)
		if !s.holds(seen.hash, r) || rec.gen != seen.gen || stateOf(w) != Committed || m.index.wentWithGroup(rec) {
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

// MemoryOnly lists the objects of one page, of all tenants, whose bytes can be read in memory and nowhere else.
func (m *Master) MemoryOnly(n uint32) (out []Victim) {
	m.survey(n, func(r Ref, rec *record) {
		w := rec.word
		if st := stateOf(w); st != Committed && st != Held || w&(FlagMemory|FlagMemoryBad|FlagLink) != FlagMemory ||
			w&(FlagSSD|FlagSSDBad) == FlagSSD {
			return
		}
		v := Victim{Gen: rec.gen}
		v.Ref, v.Size = r, rec.size
		out = append(out, v)
	})
	return out
}

// OnSSD lists the objects of one page, of all tenants, that have a good replica at a place on the SSD tier that in names.
func (m *Master) OnSSD(n uint32, in func(Loc) bool) (out []Victim) {
	m.survey(n, func(r Ref, rec *record) {
		w := rec.word
		if st := stateOf(w); st != Committed && st != Held || w&(FlagSSD|FlagSSDBad|FlagLink) != FlagSSD || !in(rec.loc()) {
			return
		}
		v := Victim{Gen: rec.gen}
		v.Ref, v.Size = r, rec.size
		out = append(out, v)
	})
	return out
}

// survey calls fn with a copy of each record of a page that is in use, taken without a lock; fn must not keep it. A copy
// is of one moment, but that moment is over: whoever acts on it looks again.
func (m *Master) survey(n uint32, fn func(Ref, *record)) {
	var rec record
	pg := m.pool.glance(n)
	for i := range int64(pg.records()) {
		r := recordRef(n, i, classSizes[pg.class])
		rec = m.mem.glance(r)
		if st := stateOf(rec.word); st == Free || st == Retired || st == reaping {
			continue
		}
		if now := m.pool.glance(n); now.magic != pg.magic || now.class != pg.class {
			return // its records went, and others of another size may be there
		}
		if m.mem.still(r, &rec) {
			fn(r, &rec)
		}
	}
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
		m.survey(n, func(r Ref, rec *record) {
			var c policy.Candidate
			var ok, isLeased bool
			switch stateOf(rec.word) {
			case groupState:
				c, ok, isLeased = m.groupCandidate(now, tier, r, rec.gen)
			case Committed, Held:
				c, ok, isLeased = m.candidate(now, tier, r, rec)
			}
			switch {
			case ok:
				fn(c)
			case isLeased:
				leased += c.Size
			}
		})
	}
	return leased
}

// Victims chooses what should leave a tier so that need is met, oldest first, the same for the same state. It holds no
// lock for longer than a few records; Evict checks each victim again. It also reports how many bytes
// stayed only because somebody holds a lease on them.
func (m *Master) Victims(now int64, tier Tier, need policy.Need, cfg policy.Config) (out []Victim, leased int64) {
	sel := policy.NewSelector(need, cfg)
	leased = m.eachCandidate(now, tier, sel.Offer)
	for _, c := range sel.Victims() {
		rec := m.mem.glance(c.Ref)
		out = append(out, Victim{Candidate: c, Gen: c.Key, Group: rec.gen == c.Key && stateOf(rec.word) == groupState})
	}
	return out, leased
}

// candidate judges an ungrouped object by a copy of its record.
func (m *Master) candidate(now int64, tier Tier, r Ref, rec *record) (c policy.Candidate, ok, leased bool) {
	if rec.group != 0 {
		return c, false, false // leaves with its group
	}
	soft := rec.softUntil > now
	ok, leased = m.evictable(now, tier, rec)
	if ok && rec.chain != 0 {
		ok, soft = m.ownerMayLeave(now, r, rec)
	}
	return policy.Candidate{Ref: r, LastUse: rec.lastUse, Size: rec.size, Type: rec.kind, Soft: soft, Key: rec.gen}, ok, leased
}

// ownerMayLeave asks the links of an owner, which a copy of its record was taken of, for their pins.
func (m *Master) ownerMayLeave(now int64, r Ref, seen *record) (ok, soft bool) {
	s := m.index.shardOf(seen.hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !m.isObject(s, seen.hash, r, seen.gen) {
		return false, false
	}
	hard, soft := m.pinnedByLink(now, m.mem.at(r))
	return !hard, soft || seen.softUntil > now
}

// evictable is the predicate of policy.Evictable for a record, or a copy of one, and a tier. It does not look at the
// pins of links. leased says that only a lease keeps the object.
func (m *Master) evictable(now int64, tier Tier, rec *record) (ok, leased bool) {
	w := loadWord(rec)
	last := !hasOther(w, tier)
	if w&(FlagMemory<<tier) == 0 || w&FlagOffloading != 0 || w&FlagDurable != 0 && (tier == TierSSD || last) {
		return false, false
	}
	st := policy.State{
		Committed: stateOf(w) == Committed || stateOf(w) == Held,
		HardPin:   w&FlagHardPin != 0,
		LeaseLive: atomic.LoadInt64(&rec.lease) > now,
		Readers:   readersOf(w),
	}
	if rec.chain != 0 && (last || tier == TierSSD) {
		// Bytes that several keys share leave memory only if the SSD tier keeps them, and never the SSD tier: the
		// catalogue has a record of each link that names them.
		st.Links = 1
	}
	unleased := st
	unleased.LeaseLive = false
	ok = policy.Evictable(st)
	return ok, !ok && policy.Evictable(unleased)
}

// groupCandidate sums a group up: it may leave only if each member may.
func (m *Master) groupCandidate(now int64, tier Tier, g Ref, gen uint64) (c policy.Candidate, ok, leased bool) {
	w := m.walkRef(g, gen)
	c = policy.Candidate{Ref: g, Key: gen}
	sum := groupSum{whole: true, ok: true}
	m.eachMember(w, func(_ Ref, rec *record) bool {
		m.addMember(now, tier, rec, &sum)
		if loadWord(rec)&(FlagMemory<<tier) != 0 {
			c.Size += rec.size
		}
		c.LastUse = max(c.LastUse, rec.lastUse)
		c.Type = rec.kind
		if sum.ok { // so none is a link
			_, soft := m.pinnedByLink(now, rec)
			c.Soft = c.Soft || soft || rec.softUntil > now
		}
		return true
	})
	if !m.endWalk(w) {
		return policy.Candidate{}, false, false
	}
	ok, leased = sum.result()
	return c, ok && c.Size > 0, leased
}

// groupSum is what members say about whether their group may leave a tier. whole says that each has another replica to
// live on; otherwise all are removed.
type groupSum struct{ whole, ok, leased, durable bool }

func (sum *groupSum) result() (ok, leased bool) {
	if !sum.ok || !sum.whole && sum.durable {
		return false, false // a promise is not broken for its neighbour's sake
	}
	return !sum.leased, sum.leased
}

// addMember asks a member of a group. The shards that step names are held.
func (m *Master) addMember(now int64, tier Tier, rec *record, sum *groupSum) {
	w := loadWord(rec)
	sum.durable = sum.durable || w&FlagDurable != 0
	sum.leased = sum.leased || atomic.LoadInt64(&m.mem.at(rec.group).lease) > now
	if stateOf(w) != Committed || w&(FlagHardPin|FlagLink) != 0 {
		sum.ok = false
		return
	}
	if w&(FlagMemory<<tier) == 0 {
		return
	}
	may, isLeased := m.evictableLocked(now, tier, rec)
	sum.ok = sum.ok && (may || isLeased)
	sum.leased = sum.leased || isLeased
	sum.whole = sum.whole && hasOther(w, tier)
}

// sweepPages bounds the work of one Tick: a few milliseconds. A store of ten million objects is gone through in a minute.
const sweepPages = 1024

// sweep takes abandoned reservations over that nobody else would, since nobody puts their key.
func (m *Master) sweep(now int64) {
	limit := m.pool.limit()
	for range min(sweepPages, limit-1) {
		n := 1 + m.swept.Add(1)%(limit-1)
		m.survey(n, func(r Ref, rec *record) {
			if stateOf(rec.word) == Reserved && rec.word&(FlagWriterPin|FlagLink) == 0 && now-rec.lease >= int64(m.opts.ReleaseTimeout) {
				m.takeOver(now, r, rec.gen)
			}
		})
	}
}
