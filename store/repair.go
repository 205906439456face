package store

import (
	"bytes"
	"context"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store/internal/catalog"
	"github.com/kvcache-ai/mooncake-go/store/internal/ssd"
)

// RepairReport says what an Open with Options.Repair found and did. If nothing was damaged, nothing was changed.
type RepairReport struct {
	// Damage is why the catalogue, as it was, could not be opened or trusted; nil if it could.
	Damage error
	// Backup is a copy of the catalogue as it was, "" if it needed none.
	Backup string
	// SkippedRecords counts records of the catalogue that do not verify.
	SkippedRecords int64
	// Adopted are the objects whose bytes verify on the SSD tier and that the catalogue did not name, at most MaxRepaired of
	// them; AdoptedObjects and AdoptedBytes count all.
	Adopted        []AdoptedObject
	AdoptedObjects int64
	AdoptedBytes   int64
	// UnreadableRecords counts records on the SSD tier that nothing names and that do not verify. They are given up.
	UnreadableRecords int64
}

// AdoptedObject is an object that a repair brought back.
type AdoptedObject struct {
	Tenant, Key string
	Size        int64
	Type        ObjectType
}

// MaxRepaired bounds RepairReport.Adopted.
const MaxRepaired = 100_000

// RepairReport returns what Open has found, nil if it was not asked to repair.
func (s *Store) RepairReport() *RepairReport { return s.repair }

// damaged says that the catalogue may lack objects whose bytes are on the SSD tier.
func (r *RepairReport) damaged() bool { return r != nil && (r.Damage != nil || r.SkippedRecords > 0) }

// openCatalogue opens the catalogue, with Options.Repair also a damaged one.
func (c *core) openCatalogue(dir string, seam seams) (err error) {
	switch {
	case seam.catalog != nil:
		c.catalog, err = seam.catalog(dir)
	case c.repair != nil:
		var found *catalog.Repaired
		if c.catalog, found, err = catalog.Repair(dir); err == nil && found != nil {
			c.repair.Damage, c.repair.Backup = namedError{ErrCorrupt, found.Damage}, found.Backup
		}
	default:
		c.catalog, err = catalog.Open(dir)
	}
	return errors.WithMessage(err, "catalogue")
}

// adopt gives the catalogue the objects that a damage has taken from it: those whose record on the SSD tier verifies. Which of
// them were removed before, the tier can't tell. A record says the key, type and size, not pins and groups: objects that are
// not KV cache come back durable and hard pinned, so that nothing drops them before somebody has looked.
func (c *core) adopt(ctx context.Context, live *liveSpace, restore func(*catalog.Record) error) error {
	var adopted changes
	unreadable, err := c.tier.FindOrphans(ctx, live.all(), func(f *ssd.Found) error {
		tenant, key, ok := bytes.Cut(f.Head.Key, []byte{0})
		if !ok || len(key) == 0 {
			return nil
		}
		r := catalog.Record{Tenant: string(tenant), Key: string(key), Gen: f.Head.Gen, Size: f.Head.Size, Type: f.Head.Type,
			Digest: f.Head.Digest, Loc: catalogLoc(f.Loc)}
		if ObjectType(r.Type) != KVCache {
			r.Flags |= catalog.FlagDurable | catalog.FlagHardPin
		}
		if f.Loc.Own != 0 {
			r.Flags |= catalog.FlagOwn
			if _, r.OwnMtime, _ = c.tier.OwnStamp(f.Loc.Own); r.OwnMtime == 0 {
				return nil
			}
		}
		if o, err := c.m.Stat(linkKey(&r)); err == nil && o.Gen >= r.Gen && !(o.Gen == r.Gen && o.SSD == masterLoc(ssd.Loc{})) {
			return nil // replaced, or there
		}
		adopted.Put(&r)
		c.repair.AdoptedObjects++
		c.repair.AdoptedBytes += r.Size
		if len(c.repair.Adopted) < MaxRepaired {
			c.repair.Adopted = append(c.repair.Adopted, AdoptedObject{r.Tenant, r.Key, r.Size, ObjectType(r.Type)})
		}
		return restore(&r)
	})
	c.repair.UnreadableRecords += int64(unreadable)
	if err != nil {
		return errors.WithMessage(err, "repair")
	}
	return errors.WithMessage(adopted.apply(c.catalog, true), "repair: catalogue")
}
