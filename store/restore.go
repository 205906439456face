package store

import (
	"context"
	"iter"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store/internal/arena"
	"github.com/kvcache-ai/mooncake-go/store/internal/catalog"
	"github.com/kvcache-ai/mooncake-go/store/internal/master"
	"github.com/kvcache-ai/mooncake-go/store/internal/ssd"
	"github.com/kvcache-ai/mooncake-go/store/internal/status"
)

// restoreCatalogue brings back the objects of the SSD tier, tells the tier which of its space is live, and forgets
// records that newer generations or lost owners made void.
func (c *core) restoreCatalogue(ctx context.Context) error {
	var links []catalog.Record
	var stale changes
	var live liveSpace
	owners := linkOwners{at: make(map[ssd.Loc]master.Ref), newest: make(map[master.Key]uint64)}
	count := int64(0)
	restore := func(r *catalog.Record) error {
		older, kept, err := c.restoreRecord(r)
		if err != nil {
			return err
		}
		for _, old := range older {
			if old.Pinned != 0 { // a crash came between the record of one generation and the end of the other's
				stale.Delete(r.Tenant, r.Key, old.Gen)
				owners.olds = append(owners.olds, old.Pinned)
				count--
			}
		}
		if !kept {
			stale.Delete(r.Tenant, r.Key, r.Gen)
			return nil
		}
		count++
		live.add(r, r.Key)
		owners.checkGroup(c, r)
		return nil
	}
	err := c.scanBatches(ctx, func(r *catalog.Record) error {
		if r.Flags&catalog.FlagLink != 0 {
			links = append(links, cloneRecord(r))
			owners.newest[linkKey(&links[len(links)-1])] = r.Gen // those of a key come in rising order
			return nil
		}
		return restore(r)
	})
	if err != nil {
		return err
	}
	for i := range links {
		if err := c.restoreLink(&links[i], &live, &owners, &stale); err != nil {
			return err
		}
	}
	if c.repair.damaged() {
		if err := c.adopt(ctx, &live, restore); err != nil {
			return err
		}
	}
	c.dropOlds(&owners)
	c.counters.restoredSSD.set(count + int64(len(owners.newest)))
	// In any case: what a killed process had not synced must be, before the tier frees what the catalogue does not name.
	if err := stale.apply(c.catalog, true); err != nil {
		return errors.WithMessage(err, "catalogue")
	}
	if err := c.tier.Recover(live.all()); err != nil {
		return errors.WithMessage(err, "ssd tier")
	}
	if err := c.recordLinks(owners.newest); err != nil {
		return err
	}
	return c.rewriteKeys(owners.regrouped)
}

// checkGroup notes an object that survived in memory with another group than its record has, as versions wrote it that
// lost the group of an upsert. A group is fixed for the life of an object, so memory is right.
func (l *linkOwners) checkGroup(c *core, r *catalog.Record) {
	if c.counters.restoredMemory.load() == 0 {
		return
	}
	if k := linkKey(r); c.m.GroupOf(k) != r.Group {
		l.regrouped = append(l.regrouped, cloneKey(k))
	}
}

func linkKey(r *catalog.Record) master.Key { return master.Key{Tenant: r.Tenant, Name: r.Key} }

// recordLinks writes the records of links that survived in memory and have none, because a crash came before.
func (c *core) recordLinks(recorded map[master.Key]uint64) error {
	if c.counters.restoredMemory.load() == 0 {
		return nil
	}
	var missing []master.Key
	for n := uint32(1); n < c.m.Pages(); n++ {
		for _, k := range c.m.LinkKeys(n) {
			if _, ok := recorded[k]; !ok {
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
	c.m.AllForgotten()
}

// scanCatalogue is the catalogue's scan. A record that does not verify is an error, and so is a scan that ended early: what was
// not seen must not be taken for gone. A repair leaves such records out.
func (c *core) scanCatalogue(ctx context.Context, fn func(*catalog.Record) error) error {
	err := c.catalog.Scan(ctx, fn)
	var skipped *catalog.SkippedError
	if errors.As(err, &skipped) && skipped.Newer == nil && c.repair != nil {
		c.counters.corruptRecords.add(int64(skipped.Records))
		c.repair.SkippedRecords += int64(skipped.Records)
		return nil
	}
	return errors.WithMessage(err, "catalogue")
}

// scanBatches is scanCatalogue with fn on a goroutine of its own: reading and restoring take about the same time.
func (c *core) scanBatches(ctx context.Context, fn func(*catalog.Record) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	batches := make(chan []catalog.Record, 2)
	failed := make(chan error, 1)
	go func() {
		var first error
		for batch := range batches { // to the end, so that the scan does not wait
			if first == nil {
				if first = eachRecord(batch, fn); first != nil {
					cancel()
				}
			}
		}
		failed <- first
	}()
	var b recordBatch
	err := c.scanCatalogue(ctx, func(r *catalog.Record) error {
		if b.add(r); len(b.records) == cap(b.records) {
			batches <- b.take()
		}
		return ctx.Err()
	})
	batches <- b.take()
	close(batches)
	if first := <-failed; first != nil {
		return first
	}
	return err
}

// eachRecord calls fn up to its first error. It runs beside the caller, so a panic is one.
func eachRecord(batch []catalog.Record, fn func(*catalog.Record) error) (err error) {
	defer status.Recover(&err)
	for i := range batch {
		if err := fn(&batch[i]); err != nil {
			return err
		}
	}
	return nil
}

// recordBatch copies records out of a scan, with one string for the text of all.
type recordBatch struct {
	records []catalog.Record
	text    []byte
}

func (b *recordBatch) add(r *catalog.Record) {
	if b.records == nil {
		b.records = make([]catalog.Record, 0, 2048)
	}
	b.records = append(b.records, *r)
	for _, s := range [...]string{r.Tenant, r.Key, r.Group, r.Target} {
		b.text = append(b.text, s...)
	}
}

func (b *recordBatch) take() []catalog.Record {
	text := string(b.text)
	cut := func(s *string) { n := len(*s); *s, text = text[:n], text[n:] }
	for i := range b.records {
		r := &b.records[i]
		cut(&r.Tenant)
		cut(&r.Key)
		cut(&r.Group)
		cut(&r.Target)
	}
	records := b.records
	b.records, b.text = nil, b.text[:0]
	return records
}

func cloneRecord(r *catalog.Record) catalog.Record {
	cp := *r
	cp.Tenant, cp.Key = string([]byte(r.Tenant)), string([]byte(r.Key))
	cp.Group, cp.Target = string([]byte(r.Group)), string([]byte(r.Target))
	return cp
}

// liveSpace is what the tier keeps, in no order and in pieces that don't move.
type liveSpace [][]liveRecord

type liveRecord struct {
	loc  ssd.Loc
	size ssd.RecordSize
}

// add keeps the space of an object that was written under the given key.
func (l *liveSpace) add(r *catalog.Record, key string) {
	last := len(*l) - 1
	if last < 0 || len((*l)[last]) == cap((*l)[last]) {
		*l, last = append(*l, make([]liveRecord, 0, 1<<12)), last+1
	}
	(*l)[last] = append((*l)[last], liveRecord{fromCatalog(r.Loc), ssd.RecordSize{KeyLen: len(r.Tenant) + 1 + len(key), Size: r.Size}})
}

func (l liveSpace) all() iter.Seq2[ssd.Loc, ssd.RecordSize] {
	return func(yield func(ssd.Loc, ssd.RecordSize) bool) {
		for _, piece := range l {
			for _, r := range piece {
				if !yield(r.loc, r.size) {
					return
				}
			}
		}
	}
}

// restoreRecord also returns the older generations that the record took the place of.
func (c *core) restoreRecord(r *catalog.Record) (older []master.Replaced, kept bool, err error) {
	c.knowFile(r)
	err = c.growing(func() (err error) {
		var gone []master.Replaced
		kept, gone, err = c.m.RestoreSSD(fromRecord(r, r.Key))
		older = append(older, gone...)
		return err
	})
	return older, kept, err
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
		step := max(metaStep, roundUp(c.budget.Used(arena.Metadata)/4, arena.StepBytes))
		if err = c.growMeta(step); errors.Is(err, status.MetaShortage) {
			err = c.growMeta(metaStep)
		}
		if err != nil {
			return errors.WithMessagef(err, "metadata does not fit into Options.MemoryBytes %d", c.opts.MemoryBytes)
		}
	}
}

// linkOwners is what the restoring of links finds: the owners of bytes that only links name, by where the bytes are, the
// newest generation of each key that has a record of a link, and older generations of objects, pinned until all owners
// are known.
type linkOwners struct {
	at     map[ssd.Loc]master.Ref
	newest map[master.Key]uint64
	olds   []master.Ref

	regrouped []master.Key // see checkGroup
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
// between the end of a key and that of its record can leave an owner in memory and another in the catalogue. Of a key that
// was linked again before its first record was forgotten only the newest is made: the end of the other would take an owner
// away that has no other link yet.
func (c *core) restoreLink(r *catalog.Record, live *liveSpace, owners *linkOwners, stale *changes) error {
	k := linkKey(r)
	if r.Gen < owners.newest[k] {
		stale.Delete(r.Tenant, r.Key, r.Gen)
		return nil
	}
	loc, durable := fromCatalog(r.Loc), r.Flags&catalog.FlagDurable != 0
	c.knowFile(r)
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
			owners.checkGroup(c, r)
			hard, soft := r.Flags&catalog.FlagHardPin != 0, r.SoftUntil*1e6
			_, err := c.m.Pin(k, master.PinRequest{HardPin: &hard, SoftUntil: &soft})
			return err
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
