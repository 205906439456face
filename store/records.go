package store

import (
	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store/internal/catalog"
	"github.com/kvcache-ai/mooncake-go/store/internal/master"
)

// rewrite brings the catalogue's records of the tenant's objects on the SSD tier up to date, on stable storage if one
// is durable.
func (s *Store) rewrite(names []string) error {
	keys := make([]master.Key, len(names))
	for i, name := range names {
		keys[i] = s.key(name)
	}
	return s.rewriteKeys(keys)
}

func (c *core) rewriteKeys(keys []master.Key) error {
	if c.catalog == nil || len(keys) == 0 {
		return nil
	}
	sync, err := c.rewriteNow(keys)
	for _, k := range keys {
		if err == nil {
			err = c.settle(k.Tenant, k.Name)
		}
	}
	if err == nil && sync {
		var empty catalog.Batch
		err = c.catalog.Apply(&empty, true)
	}
	if err != nil {
		c.records.late.add(keys)
		return errors.WithMessage(durabilityError{named(err)}, "catalogue")
	}
	return nil
}

// rewriteLate tries the records again that could not be written.
func (c *core) rewriteLate() error {
	c.records.late.writing.Lock()
	defer c.records.late.writing.Unlock()
	return c.rewriteKeys(c.records.late.take())
}

// rewriteNow writes without sync, in order with all others who write records of these objects.
func (c *core) rewriteNow(keys []master.Key) (durable bool, err error) {
	c.records.Lock()
	defer c.records.Unlock()
	var b changes
	for _, k := range keys {
		o, err := c.m.Stat(k)
		if err != nil || o.Flags&master.FlagSSD == 0 {
			continue
		}
		r := c.recordOf(k, &o)
		b.Put(&r)
		durable = durable || o.Flags&master.FlagDurable != 0
	}
	if !b.any() {
		return false, nil
	}
	return durable, b.apply(c.catalog, false)
}

// recordLinksOf records the links of an object, with another place of its bytes than the master knows if loc is one. The
// caller holds records.
func (c *core) recordLinksOf(b *changes, tenant string, owner master.Ref, gen uint64, loc master.Loc) {
	for _, name := range c.m.Links(owner, gen) {
		k := master.Key{Tenant: tenant, Name: name}
		o, err := c.m.Stat(k)
		if err != nil || o.Holder() != owner || o.Flags&master.FlagSSD == 0 {
			continue
		}
		if loc != (master.Loc{}) {
			o.SSD = loc
		}
		r := c.recordOf(k, &o)
		b.Put(&r)
	}
}

// recordOf is the catalogue's record of an object that is on the SSD tier.
func (c *core) recordOf(k master.Key, o *master.Object) catalog.Record {
	r := catalogueRecord(k, o, c.m.GroupOf(k), o.Flags&master.FlagDurable != 0, ssdLoc(o.SSD))
	if o.Flags&master.FlagLink != 0 {
		r.Target = c.m.OwnerName(k)
	}
	c.stampRecord(&r, o)
	return r
}

// stampRecord adds how the file of an object in a file of its own looked when its bytes were known to be right.
func (c *core) stampRecord(r *catalog.Record, o *master.Object) {
	if o.SSD.Own != 0 {
		if id, ok := c.stamps.get(ssdStamp(o.SSD.Own)); ok {
			r.OwnMtime = id.mtimeNs
		}
	}
}
