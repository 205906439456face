package store

import (
	"context"
	"iter"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store/internal/catalog"
	"github.com/kvcache-ai/mooncake-go/store/internal/master"
	"github.com/kvcache-ai/mooncake-go/store/internal/ssd"
	"github.com/kvcache-ai/mooncake-go/store/internal/status"
)

// The order that survives a crash at any instruction: bytes on the SSD tier, then fdatasync, then the catalogue's
// record, then the master's. Backwards: the key leaves the master, then the catalogue, then the catalogue is synced,
// then the space is freed. Records are kept by key and generation, so that writes of two generations of one key need
// no order between them: at start-up the newest wins and the others are forgotten.

func ssdLoc(l master.Loc) ssd.Loc       { return ssd.Loc{File: l.File, Off: l.Off, Own: l.Own} }
func masterLoc(l ssd.Loc) master.Loc    { return master.Loc{File: l.File, Off: l.Off, Own: l.Own} }
func catalogLoc(l ssd.Loc) catalog.Loc  { return catalog.Loc{File: l.File, Off: l.Off, Own: l.Own} }
func fromCatalog(l catalog.Loc) ssd.Loc { return ssd.Loc{File: l.File, Off: l.Off, Own: l.Own} }

// scopedKey is the identity of an object as the SSD tier keeps it beside the bytes.
func scopedKey(k master.Key) []byte {
	b := make([]byte, 0, len(k.Tenant)+1+len(k.Name))
	b = append(append(b, k.Tenant...), 0)
	return append(b, k.Name...)
}

// catalogueRecord is what the catalogue keeps of an object.
func catalogueRecord(k master.Key, o *master.Object, group string, durable bool, loc ssd.Loc) catalog.Record {
	r := catalog.Record{Tenant: k.Tenant, Key: k.Name, Gen: o.Gen, Size: o.Size, Type: o.Kind, Group: group,
		Digest: o.Digest, Loc: catalogLoc(loc), SoftUntil: o.SoftUntil / 1e6}
	if o.Flags&master.FlagHardPin != 0 {
		r.Flags |= catalog.FlagHardPin
	}
	if durable {
		r.Flags |= catalog.FlagDurable
	}
	if o.Flags&master.FlagLink != 0 {
		r.Flags |= catalog.FlagLink
	}
	if loc.Own != 0 {
		r.Flags |= catalog.FlagOwn
	}
	return r
}

// restoreCatalogue brings back the objects of the SSD tier, tells the tier which of its space is live, and forgets
// records that newer generations or lost owners made void.
func (c *core) restoreCatalogue(ctx context.Context) error {
	var links []catalog.Record
	var stale changes
	var live liveSpace
	owners := linkOwners{at: make(map[ssd.Loc]master.Ref), seen: make(map[master.Key]bool)}
	count := int64(0)
	err := c.scanCatalogue(ctx, func(r *catalog.Record) error {
		if r.Flags&catalog.FlagLink != 0 {
			links = append(links, cloneRecord(r))
			return nil
		}
		old, kept, err := c.restoreRecord(r)
		if err != nil {
			return err
		}
		if old.Pinned != 0 { // a crash came between the record of one generation and the end of the other's
			stale.Delete(r.Tenant, r.Key, old.Gen)
			owners.olds = append(owners.olds, old.Pinned)
			count--
		}
		if !kept {
			stale.Delete(r.Tenant, r.Key, r.Gen)
			return nil
		}
		count++
		live.add(r, r.Key)
		return nil
	})
	if err != nil {
		return err
	}
	for i := range links {
		if err := c.restoreLink(&links[i], &live, &owners, &stale); err != nil {
			return err
		}
	}
	c.dropOlds(&owners)
	c.counters.restoredSSD.Store(count + int64(len(links)))
	if stale.any() {
		if err := stale.apply(c.catalog, true); err != nil {
			return errors.WithMessage(err, "catalogue")
		}
	}
	if err := c.tier.Recover(live.all()); err != nil {
		return errors.WithMessage(err, "ssd tier")
	}
	return c.recordLinks(owners.seen)
}

// recordLinks writes the records of links that survived in memory and have none, because a crash came before.
func (c *core) recordLinks(seen map[master.Key]bool) error {
	if c.counters.restoredMemory.load() == 0 {
		return nil
	}
	var missing []master.Key
	for n := uint32(1); n < c.m.Pages(); n++ {
		for _, k := range c.m.LinkKeys(n) {
			if !seen[k] {
				missing = append(missing, k)
			}
		}
	}
	return c.rewriteKeys(missing)
}

// dropOlds lets go of older generations. Bytes that links share have their owner by now and stay.
func (c *core) dropOlds(owners *linkOwners) {
	for _, old := range owners.olds {
		c.m.Release(old)
	}
	for _, e := range c.m.TakeEffects() {
		if e.Kind != master.FreeSSD || owners.at[ssdLoc(e.SSD)] == 0 {
			c.runEffect(e)
		}
	}
}

// scanCatalogue is the catalogue's scan. A record that does not verify is left out: its object is lost, the rest is
// not.
func (c *core) scanCatalogue(ctx context.Context, fn func(*catalog.Record) error) error {
	err := c.catalog.Scan(ctx, fn)
	if errors.Is(err, catalog.ErrCorrupt) {
		c.counters.corruptRecords.Add(1)
		return nil
	}
	return err
}

func cloneRecord(r *catalog.Record) catalog.Record {
	cp := *r
	cp.Tenant, cp.Key = string([]byte(r.Tenant)), string([]byte(r.Key))
	cp.Group, cp.Target = string([]byte(r.Group)), string([]byte(r.Target))
	return cp
}

// liveSpace is what the tier keeps, in no order.
type liveSpace []liveRecord

type liveRecord struct {
	loc  ssd.Loc
	size ssd.RecordSize
}

// add keeps the space of an object that was written under the given key.
func (l *liveSpace) add(r *catalog.Record, key string) {
	*l = append(*l, liveRecord{fromCatalog(r.Loc), ssd.RecordSize{KeyLen: len(r.Tenant) + 1 + len(key), Size: r.Size}})
}

func (l liveSpace) all() iter.Seq2[ssd.Loc, ssd.RecordSize] {
	return func(yield func(ssd.Loc, ssd.RecordSize) bool) {
		for _, r := range l {
			if !yield(r.loc, r.size) {
				return
			}
		}
	}
}

// restoreRecord also returns the older generation that the record took the place of.
func (c *core) restoreRecord(r *catalog.Record) (old master.Replaced, kept bool, err error) {
	c.knowFile(r)
	err = c.growing(func() (err error) {
		var gone master.Replaced
		if gone, kept, err = c.m.RestoreSSD(fromRecord(r, r.Key)); gone.Gen != 0 {
			old = gone
		}
		return err
	})
	return old, kept, err
}

// knowFile remembers how a file of its own looked when its bytes were known to be right.
func (c *core) knowFile(r *catalog.Record) {
	if r.Loc.Own != 0 && r.OwnMtime != 0 {
		c.stamps.put(ssdStamp(r.Loc.Own), fileID{r.Size, r.OwnMtime})
	}
}

func fromRecord(r *catalog.Record, key string) master.FromCatalogue {
	return master.FromCatalogue{Key: master.Key{Tenant: r.Tenant, Name: key}, Gen: r.Gen, Size: r.Size,
		Digest: r.Digest, Kind: r.Type, Group: r.Group, SoftUntil: r.SoftUntil * 1e6,
		HardPin: r.Flags&catalog.FlagHardPin != 0, Durable: r.Flags&catalog.FlagDurable != 0,
		SSD: masterLoc(fromCatalog(r.Loc))}
}

// growing runs fn again with more room for records as long as that is what it lacks.
func (c *core) growing(fn func() error) error {
	for {
		err := fn()
		if !errors.Is(err, status.MetaShortage) {
			return err
		}
		if err := c.growMeta(metaStep); err != nil {
			return errors.WithMessagef(err, "metadata does not fit into Options.MemoryBytes %d", c.opts.MemoryBytes)
		}
	}
}

// linkOwners is what the restoring of links finds: the owners of bytes that only links name, by where the bytes are, the
// keys that have a record, and older generations that are pinned until all owners are known.
type linkOwners struct {
	at   map[ssd.Loc]master.Ref
	seen map[master.Key]bool
	olds []master.Ref
}

// find is the owner that is known for a link's bytes: the object under the target's key, if it still has them, or one
// that an earlier link has found.
func (l *linkOwners) find(c *core, r *catalog.Record) (owner master.Ref, byKey bool) {
	loc := fromCatalog(r.Loc)
	if o, err := c.m.Stat(master.Key{Tenant: r.Tenant, Name: r.Target}); err == nil && o.SSD == masterLoc(loc) {
		return o.Holder(), true
	}
	return l.at[loc], false
}

// restoreLink makes a link again. Its owner is the object under the target's key if that still has the same bytes;
// otherwise one that the links alone keep. The same bytes never get two owners, of which one would free them: a crash
// between the end of a key and that of its record can leave an owner in memory and another in the catalogue.
func (c *core) restoreLink(r *catalog.Record, live *liveSpace, owners *linkOwners, stale *changes) error {
	k := master.Key{Tenant: r.Tenant, Name: r.Key}
	loc, durable := fromCatalog(r.Loc), r.Flags&catalog.FlagDurable != 0
	c.knowFile(r)
	owners.seen[k] = true
	owner, byKey := owners.find(c, r)
	if o, err := c.m.Stat(k); err == nil {
		switch {
		case o.Gen > r.Gen:
			stale.Delete(r.Tenant, r.Key, r.Gen)
			return nil
		case o.Gen == r.Gen && (owner == 0 || owner == o.Holder()): // it survived in memory
			if c.m.AttachHolder(k, masterLoc(loc), durable) {
				live.add(r, r.Target)
				owners.at[loc] = o.Holder()
			}
			return nil
		}
		if err := c.dropOlder(k, r.Gen, owners, stale); err != nil {
			return err
		}
	}
	q := master.LinkRequest{Key: k, Target: r.Target, Group: r.Group, SoftUntil: r.SoftUntil * 1e6, Gen: r.Gen,
		HardPin: r.Flags&catalog.FlagHardPin != 0, Durable: durable}
	if !byKey {
		if owner == 0 {
			err := c.growing(func() (err error) {
				owner, err = c.m.RestoreHeld(fromRecord(r, r.Target))
				return err
			})
			if err != nil {
				return err
			}
			owners.at[loc] = owner
			live.add(r, r.Target)
		}
		q.Owner = owner
	}
	return c.growing(func() error {
		_, err := c.m.Link(c.now(), q)
		return err
	})
}

// dropOlder removes what has a link's key before the link comes back from its record of generation gen.
func (c *core) dropOlder(k master.Key, gen uint64, owners *linkOwners, stale *changes) error {
	gone, err := c.m.Remove(c.now(), k, true)
	if err != nil {
		return err
	}
	if gone.Pinned != 0 {
		if gone.Gen != gen {
			stale.Delete(k.Tenant, k.Name, gone.Gen)
		}
		owners.olds = append(owners.olds, gone.Pinned)
	}
	return nil
}
