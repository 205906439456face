package store

import (
	"context"
	"iter"
	"sync"

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

// forgotten is space on the SSD tier that the catalogue no longer names.
type forgotten struct {
	loc    master.Loc
	keyLen int
	size   int64
}

// freeList is space that may be freed after the catalogue's next sync.
type freeList struct {
	sync.Mutex
	list []forgotten
}

func (f *freeList) add(space ...forgotten) {
	f.Lock()
	f.list = append(f.list, space...)
	f.Unlock()
}

func (f *freeList) take() []forgotten {
	f.Lock()
	defer f.Unlock()
	list := f.list
	f.list = nil
	return list
}

// freeForgotten syncs the catalogue, then frees what it had forgotten before.
func (c *core) freeForgotten() error {
	list := c.frees.take()
	if len(list) == 0 {
		return nil
	}
	var empty catalog.Batch
	if err := c.catalog.Apply(&empty, true); err != nil {
		c.frees.add(list...)
		return errors.WithMessage(err, "sync catalogue")
	}
	for _, f := range list {
		c.tier.Free(ssdLoc(f.loc), f.keyLen, f.size)
	}
	return nil
}

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

// forget takes objects out of the catalogue that were removed or replaced, and lets go of their space. Removals of
// durable objects are on stable storage when it returns. Names and gone are parallel.
func (c *core) forget(tenant string, names []string, gone []master.Replaced) error {
	if c.catalog == nil {
		return nil
	}
	var b catalog.Batch
	sync := false
	for i, g := range gone {
		if g.Pinned != 0 {
			b.Delete(tenant, names[i], g.Gen)
			sync = sync || g.Durable
		}
	}
	if b.Len() == 0 {
		return nil
	}
	err := c.catalog.Apply(&b, sync)
	for _, g := range gone {
		if g.Pinned != 0 {
			c.m.Release(g.Pinned)
		}
	}
	return errors.WithMessage(err, "catalogue")
}

func (c *core) forgetOne(tenant, name string, g master.Replaced) error {
	if g.Pinned == 0 || c.catalog == nil {
		return nil
	}
	return c.forget(tenant, []string{name}, []master.Replaced{g})
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
	var stale catalog.Batch
	var live liveSpace
	count := int64(0)
	err := c.scanCatalogue(ctx, func(r *catalog.Record) error {
		if r.Flags&catalog.FlagLink != 0 {
			links = append(links, cloneRecord(r))
			return nil
		}
		kept, older, err := c.restoreRecord(r)
		if err != nil {
			return err
		}
		for _, gone := range older {
			if gone.Pinned != 0 { // its space was live so far; it is freed once the catalogue has forgotten it
				stale.Delete(r.Tenant, r.Key, gone.Gen)
				c.m.Release(gone.Pinned)
			}
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
	owners := make(linkOwners)
	for i := range links {
		if err := c.restoreLink(&links[i], &live, owners, &stale); err != nil {
			return err
		}
	}
	c.counters.restoredSSD.Store(count + int64(len(links)))
	if stale.Len() > 0 {
		if err := c.catalog.Apply(&stale, true); err != nil {
			return errors.WithMessage(err, "catalogue")
		}
	}
	return errors.WithMessage(c.tier.Recover(live.all()), "ssd tier")
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

func (c *core) restoreRecord(r *catalog.Record) (kept bool, older []master.Replaced, err error) {
	err = c.growing(func() error {
		var gone []master.Replaced
		kept, gone, err = c.m.RestoreSSD(fromRecord(r, r.Key))
		older = append(older, gone...)
		return err
	})
	return kept, older, err
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

// linkOwners are the owners that only links name, by where their bytes are.
type linkOwners map[ssd.Loc]master.Ref

// restoreLink makes a link again. Its owner is the object under the target's key if that still has the same bytes;
// otherwise one that the links alone keep.
func (c *core) restoreLink(r *catalog.Record, live *liveSpace, owners linkOwners, stale *catalog.Batch) error {
	k := master.Key{Tenant: r.Tenant, Name: r.Key}
	loc, durable := fromCatalog(r.Loc), r.Flags&catalog.FlagDurable != 0
	if o, err := c.m.Stat(k); err == nil {
		switch {
		case o.Gen > r.Gen:
			stale.Delete(r.Tenant, r.Key, r.Gen)
			return nil
		case o.Gen == r.Gen: // it survived in memory
			if c.m.AttachHolder(k, masterLoc(loc), durable) {
				live.add(r, r.Target)
			}
			return nil
		}
		if gone, err := c.m.Remove(c.now(), k, true); err != nil {
			return err
		} else if gone.Pinned != 0 {
			c.m.Release(gone.Pinned)
		}
	}
	q := master.LinkRequest{Key: k, Target: r.Target, Group: r.Group, SoftUntil: r.SoftUntil * 1e6, Gen: r.Gen,
		HardPin: r.Flags&catalog.FlagHardPin != 0, Durable: durable}
	owner, err := c.m.Stat(master.Key{Tenant: r.Tenant, Name: r.Target})
	if err != nil || owner.SSD != masterLoc(loc) {
		if q.Owner = owners[loc]; q.Owner == 0 {
			err := c.growing(func() (err error) {
				q.Owner, err = c.m.RestoreHeld(fromRecord(r, r.Target))
				return err
			})
			if err != nil {
				return err
			}
			owners[loc] = q.Owner
			live.add(r, r.Target)
		}
	}
	return c.growing(func() error {
		_, err := c.m.Link(c.now(), q)
		return err
	})
}
