package master

import (
	"slices"

	"github.com/kvcache-ai/mooncake-go/store/internal/policy"
	"github.com/kvcache-ai/mooncake-go/store/internal/status"
)

func (d *driver) evict() {
	tier := Tier(d.r.IntN(int(Tiers)))
	all, _ := d.Victims(d.model.now, tier, policy.Need{Bytes: 1 << 40}, policy.Config{})
	d.equal(d.expectVictims(tier), len(all), "victims")
	for _, v := range all[:min(len(all), d.r.IntN(3))] {
		gone, err := d.Evict(d.model.now, v, tier)
		if !d.same(nil, err, "Evict(%+v)", v) {
			return
		}
		for _, e := range gone {
			d.evicted(e, tier)
		}
	}
}

func (d *driver) expectVictims(tier Tier) (n int) {
	for _, r := range d.recs {
		if r.group == nil && d.mayLeave(r, tier) {
			n++
		}
	}
	for _, g := range d.groups {
		if ok, _ := d.groupMayLeave(g, tier); ok {
			n++
		}
	}
	return n
}

func (d *driver) evicted(e Evicted, tier Tier) {
	i := slices.IndexFunc(d.recs, func(r *mrec) bool { return r.gen == e.Gen && r.owner == nil })
	r := d.recs[i]
	d.equal(r.key, e.Key, "evicted key")
	if e.Removed {
		d.wasReplaced(r, d.drop(r), e.Gone)
		return
	}
	d.equal(false, r.last(tier), "the last replica left")
	if tier == TierSSD {
		d.equal(r.loc, e.SSD, "evicted from")
		d.returned[r.loc]++
		r.ssd, r.loc = false, Loc{}
	} else {
		if r.file != 0 {
			d.dropped[r.file]++
		}
		r.mem, r.file = false, 0
	}
	r.bad[tier] = false
}

func (d *driver) startCopy() {
	if len(d.recs) == 0 {
		return
	}
	r, tier := d.recs[d.r.IntN(len(d.recs))], Tier(d.r.IntN(int(Tiers)))
	var want error
	switch {
	case r.owner != nil || r.state != Committed && r.state != Held:
		want = status.NotFound
	case r.has(tier) && !(tier == TierSSD && r.bad[tier]) || r.copying || !r.readable():
		want = status.Busy
	}
	c, err := d.StartCopy(r.ref, r.gen, tier)
	if !d.same(want, err, "StartCopy(%v, %d)", r.key, tier) {
		return
	}
	d.equal(r.groupName, c.Group, "group of copy")
	r.pins++
	r.copying = true
	one := &copying{rec: r, tier: tier}
	if tier == TierMemory {
		if one.extents, err = d.PlaceCopy(&c); err != nil {
			d.t.Fatal(err)
		}
	}
	d.copies = append(d.copies, one)
}

func (d *driver) endCopy() {
	c, ok := pop(d.r, &d.copies)
	if !ok {
		return
	}
	r := c.rec
	r.copying = false
	alive := r.state == Committed || r.state == Held
	var want error
	if !alive {
		want = status.NotFound
	}
	switch {
	case d.r.IntN(4) == 0:
		if c.tier == TierMemory {
			d.FreeExtents(c.extents)
		}
		d.Uncopied(r.ref)
	case c.tier == TierMemory:
		d.same(want, d.Promoted(r.ref, c.extents), "Promoted(%v)", r.key)
		r.mem = r.mem || alive
	default:
		loc := d.loc()
		if alive && r.ssd && r.pins > 1 {
			want = status.Busy
		}
		if d.same(want, d.Attach(r.ref, loc, false), "Attach(%v)", r.key) {
			if r.ssd {
				d.freed[r.loc]++
			}
			r.ssd, r.loc, r.bad[TierSSD] = true, loc, false
		} else {
			d.returned[loc]++
		}
	}
	d.release(r, 1)
}

func (d *driver) quarantine() {
	k := d.key()
	r := d.find(k, Committed)
	o, err := d.Acquire(d.model.now, k, 0)
	if !d.same(d.readError(k, r), err, "Acquire(%v)", k) {
		return
	}
	tier := Tier(d.r.IntN(int(Tiers)))
	if b := r.body(); b.has(tier) {
		b.bad[tier] = true
		d.equal(b.readable(), d.Quarantine(&o, tier), "Quarantine")
	}
	d.Release(o.Holder())
}
