package store

import (
	"github.com/kvcache-ai/mooncake-go/store/internal/catalog"
	"github.com/kvcache-ai/mooncake-go/store/internal/master"
	"github.com/kvcache-ai/mooncake-go/store/internal/ssd"
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
