package store

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store/internal/arena"
	"github.com/kvcache-ai/mooncake-go/store/internal/master"
	"github.com/kvcache-ai/mooncake-go/store/internal/policy"
	"github.com/kvcache-ai/mooncake-go/store/internal/ssd"
)

// evictor orders evictions: one at a time, so that two puts under pressure don't both free the same share.
type evictor struct {
	memory sync.Mutex
	ssd    sync.Mutex
	used   atomic.Int64 // bytes put since the background eviction last looked, but for those in puts
	puts   [gateStripes]struct {
		bytes atomic.Int64
		_     [56]byte
	}
	leased atomic.Int64 // bytes that the last eviction of memory left only because of leases

	// copying orders copies to the SSD tier, so that Sync does not overlook what somebody else is copying. Taken after
	// memory and before ssd.
	copying sync.Mutex
}

// noticeUse wakes the background eviction once in a while. What all cores would write, each writes seldom.
func (c *core) noticeUse(n int64) {
	mine := &c.evicting.puts[lane()].bytes
	if n = mine.Add(n); n <= c.opts.MemoryBytes/128/gateStripes {
		return
	}
	mine.Add(-n)
	if c.evicting.used.Add(n) > c.opts.MemoryBytes/128 {
		c.evicting.used.Store(0)
		signal(c.wake.evictor)
	}
}

// evictLoop keeps memory below its watermark, and copies the coldest objects to the SSD tier before they have to go.
func (c *core) evictLoop() {
	for {
		select {
		case <-c.stop.Done():
			return
		case <-c.wake.evictor:
		}
		if c.eager() {
			_ = c.offloadAll(c.stop) // what can't be written now stays in memory
		}
		if !c.memory.done.Load() {
			continue // the machine still gives memory: no pressure yet
		}
		used, capacity := c.memoryUse()
		if n := policy.Pressure(used, capacity, c.opts.HighWatermark, c.opts.EvictionRatio, false); n > 0 {
			c.evict(c.stop, n, 0)
			continue
		}
		ahead := c.opts.HighWatermark - c.opts.EvictionRatio
		if n := policy.Pressure(used, capacity, ahead, c.opts.EvictionRatio, false); n > 0 && c.canOffload() {
			victims, _ := c.m.Victims(c.now(), master.TierMemory, policy.Need{Bytes: n}, policy.Config{})
			_ = c.offloadVictims(c.stop, victims) // they are still in memory
		}
	}
}

// eager reports whether objects are copied to the SSD tier soon after they were put.
func (c *core) eager() bool { return c.tier != nil && c.opts.Offload == OffloadEager }

func (c *core) canOffload() bool { return c.tier != nil && c.opts.Offload != OffloadNever }

// memoryUse is what objects take and what they could.
func (c *core) memoryUse() (used, capacity int64) {
	st, own := c.alloc.Stats(), c.budget.Used(arena.OwnFile)
	return st.Capacity - st.Free + own, st.Capacity + own
}

// evict frees need bytes of memory if it can, and at least the configured share of it. It returns the bytes that left.
// Nothing leaves when all that may would not make room for an object of size bytes.
func (c *core) evict(ctx context.Context, need, size int64) (freed int64) {
	c.evicting.memory.Lock()
	defer c.evicting.memory.Unlock()
	used, capacity := c.memoryUse()
	need = max(need, policy.Pressure(used, capacity, c.opts.HighWatermark, c.opts.EvictionRatio, true))
	c.counters.evictions.attempted.add(1)
	// The same state has the same victims: what refuses to leave is asked for on top in the next round.
	stuck := int64(0)
	for range maxEvictRounds {
		left, more := c.evictRound(ctx, need-freed+stuck, size)
		freed += left
		if stuck += more; more == 0 || freed >= need {
			break
		}
	}
	switch {
	case freed > 0:
		c.counters.evictions.successful.add(1)
	case c.evicting.leased.Load() > 0:
		c.counters.evictions.blockedByLease.add(1)
	}
	c.runEffects()
	return freed
}

// maxEvictRounds bounds how often one eviction looks for other victims.
const maxEvictRounds = 4

// evictRound chooses victims once. It returns the bytes that left, and those that could not.
func (c *core) evictRound(ctx context.Context, need, size int64) (freed, stuck int64) {
	victims, leased := c.m.Victims(c.now(), master.TierMemory, policy.Need{Bytes: need}, policy.Config{})
	c.evicting.leased.Store(leased)
	room := c.alloc.Stats().Free + c.budget.Budget() - c.budget.Total()
	for _, v := range victims {
		room += v.Size
	}
	if room < size {
		return 0, 0
	}
	for len(victims) > 0 && ctx.Err() == nil {
		batch := victims[:batchLen(victims)]
		victims = victims[len(batch):]
		spare := c.canOffload() && c.offloadVictims(ctx, batch) == nil
		left, not := c.evictBatch(batch, spare)
		freed, stuck = freed+left, stuck+not
	}
	return freed, stuck
}

// offloadBytes and offloadCount bound what is copied to the SSD tier with one sync.
const (
	offloadBytes = 64 << 20
	offloadCount = 4096
)

// batchLen is how many victims go through offload and eviction together.
func batchLen(victims []master.Victim) int {
	var n int64
	for i, v := range victims {
		if n += v.Size; n > offloadBytes && i > 0 || i == offloadCount {
			return i
		}
	}
	return len(victims)
}

// evictBatch lets victims leave. With spare a group stays that got a member since its copy: the next round copies that
// one too, instead of losing all.
func (c *core) evictBatch(batch []master.Victim, spare bool) (freed, stuck int64) {
	for _, v := range batch {
		v.Spare = spare
		left, err := c.evictOne(v)
		if err != nil { // it was read or removed meanwhile, or a group must stay because a member could not be copied
			stuck += v.Size
		}
		freed += left
	}
	return freed, stuck
}

// evictOne lets a victim leave memory. The records of a group's members go with them, before a durable put of one of
// their keys can be acknowledged: an old record must not outlive the removal of a newer object.
func (c *core) evictOne(v master.Victim) (freed int64, err error) {
	if v.Group && c.catalog != nil {
		c.records.Lock()
		defer c.records.Unlock()
	}
	gone, err := c.m.Evict(c.now(), v, master.TierMemory)
	var list []deletion
	for _, e := range gone {
		freed += e.Size
		c.noteEvicted(e, TierMemory)
		switch {
		case !e.Removed || e.Gone.Pinned == 0:
		case v.Group:
			list = append(list, deletion{key: e.Key, gen: e.Gen, pinned: e.Gone.Pinned})
		default:
			_ = c.forgetOne(e.Tenant, e.Name, e.Gone) // what fails is tried again
		}
	}
	if len(list) > 0 {
		_ = c.deleteRecords(list, false) // what fails is tried again
	}
	return freed, err
}

func (c *core) noteEvicted(e master.Evicted, t Tier) {
	c.counters.evictions.keys[t].add(1)
	c.counters.evictions.bytes[t].add(e.Size)
	what, reason := Demoted, "memory pressure; it stays on SSD"
	switch {
	case e.Removed && t == TierMemory:
		what, reason = Evicted, "memory pressure; it was nowhere else"
	case e.Removed:
		what, reason = Evicted, "the SSD tier is full; it was nowhere else"
	case t == TierSSD:
		reason = "the SSD tier is full; it stays in memory"
	}
	c.log.add(Decision{Time: c.clock(), Tenant: e.Tenant, Key: e.Name, What: what, Tier: t, Reason: reason})
	kind := EventDemoted
	if e.Removed {
		kind = EventEvicted
	}
	c.feed.send(Event{Kind: kind, Tenant: e.Tenant, Key: e.Name, Size: e.Size, Tier: t})
}

// offloadVictims copies to the SSD tier those that are not there. A failure leaves them in memory only.
func (c *core) offloadVictims(ctx context.Context, victims []master.Victim) error {
	c.evicting.copying.Lock()
	defer c.evicting.copying.Unlock()
	var o offload
	for _, v := range victims {
		if !v.Group {
			_ = o.addNext(ctx, c, v.Ref, v.Gen) // busy or gone: nothing to do
			continue
		}
		for _, member := range c.m.GroupMembers(v) {
			_ = o.addNext(ctx, c, member.Ref, member.Gen)
		}
	}
	return o.write(ctx, c)
}

// offloadAll copies every object to the SSD tier that was committed before the call and is only in memory.
func (c *core) offloadAll(ctx context.Context) error {
	upTo := c.m.Generation()
	for {
		busy, err := c.offloadPass(ctx, upTo)
		if err != nil || busy == 0 {
			return err
		}
		select { // somebody else is copying the rest
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

func (c *core) offloadPass(ctx context.Context, upTo uint64) (busy int, err error) {
	c.evicting.copying.Lock()
	defer c.evicting.copying.Unlock()
	var o offload
	for n := uint32(1); n < c.m.Pages(); n++ {
		for _, v := range c.m.MemoryOnly(n) {
			if v.Gen > upTo {
				continue
			}
			switch err := o.addNext(ctx, c, v.Ref, v.Gen); {
			case errors.Is(err, errMappings):
				return busy, err
			case errors.Is(err, ErrBusy):
				busy++
			}
			if o.bytes < offloadBytes && len(o.list) < offloadCount {
				continue
			}
			if err := o.write(ctx, c); err != nil {
				return busy, err
			}
		}
	}
	return busy, o.write(ctx, c)
}

// offloadOne copies one object to the SSD tier.
func (c *core) offloadOne(ctx context.Context, ref master.Ref) error {
	c.evicting.copying.Lock()
	defer c.evicting.copying.Unlock()
	var o offload
	_ = o.add(c, ref, c.m.GenOf(ref)) // what is wrong shows to the caller
	return o.write(ctx, c)
}

// offload is objects on their way to the SSD tier with one sync.
type offload struct {
	list  []copied
	bytes int64
	files int // memory files that are pinned
}

type copied struct {
	master.Copying
	p staged
}

// add pins an object for the copy. ErrBusy: it is there already, or somebody else copies it.
func (o *offload) add(c *core, ref master.Ref, gen uint64) error {
	cp, err := c.m.StartCopy(ref, gen, master.TierSSD)
	if err != nil {
		return err
	}
	one := copied{Copying: cp}
	one.p = staged{key: cp.Key, group: cp.Group, o: cp.Object}
	if one.p.file, err = c.pin(&cp.Object); errors.Is(err, ErrBusy) {
		c.m.Uncopied(ref)
		return errors.WithMessage(errMappings, err.Error())
	}
	if err == nil {
		one.p.data = c.pieces(&cp.Object, nil)
		err = c.untouched(&cp.Object)
	}
	if err == nil {
		one.p.table, err = c.loadTable(&cp.Object, nil)
	}
	if err == nil && cp.Flags&master.FlagSSDBad != 0 { // it takes the place of one: let it be better
		err = verifyRange(context.Background(), nil, slices.Clone(one.p.data), 0, cp.Size, cp.Size, one.p.table)
	}
	if err != nil {
		unpinFile(one.p.file)
		if isLost(err) {
			c.quarantine(&reading{s: &Store{c, cp.Tenant}, key: cp.Name, o: cp.Object}, TierMemory, err)
		}
		c.m.Uncopied(ref)
		return err
	}
	if one.p.file != nil {
		o.files++
	}
	o.list = append(o.list, one)
	o.bytes += cp.Size
	return nil
}

// write copies what was added and starts anew.
func (o *offload) write(ctx context.Context, c *core) error {
	list, bytes := o.list, o.bytes
	*o = offload{}
	if len(list) == 0 {
		return nil
	}
	defer func() {
		for i := range list {
			unpinFile(list[i].p.file)
		}
	}()
	err := c.roomOnSSD(ctx, bytes)
	attached := false
	if err == nil {
		attached, err = c.writeOffload(ctx, list)
	}
	if err != nil {
		c.counters.offload.failed.add(int64(len(list)))
		for i := range list {
			if !attached {
				c.m.Uncopied(list[i].Ref)
			}
		}
		return err
	}
	c.counters.offload.keys.add(int64(len(list)))
	c.counters.offload.bytes.add(bytes)
	return nil
}

// appendCopies writes the bytes into the tier's containers.
func (c *core) appendCopies(ctx context.Context, list []copied) ([]ssd.Loc, error) {
	items := make([]ssd.Item, 0, len(list))
	for i := range list {
		p := &list[i].p
		items = append(items, ssd.Item{Head: p.head(), Data: p.data})
	}
	return c.tier.Append(ctx, items)
}

// writeOffload puts bytes, then metadata, on the SSD tier. The catalogue is not synced: what is lost with the machine
// is a cache. attached reports whether the copies became part of the objects.
func (c *core) writeOffload(ctx context.Context, list []copied) (attached bool, err error) {
	locs, err := c.appendCopies(ctx, list)
	if err != nil {
		return false, err
	}
	undo := make([]deletion, len(list))
	for i := range list {
		undo[i] = undone(list[i].Key, list[i].Gen, locs[i], list[i].Size)
		undo[i].ref, undo[i].keep = list[i].Ref, list[i].Flags&master.FlagSSD != 0
	}
	if err = c.tier.Sync(ctx); err != nil {
		c.undo(undo)
		return false, err
	}
	late, busy, err := c.attach(list, locs, undo)
	if err != nil {
		_ = c.freeForgotten() // what can't be forgotten now stays on the list
		return false, err
	}
	c.undo(append(late, busy...))
	if err = c.followUp(list); err == nil && len(busy) > 0 {
		err = errors.WithMessagef(ErrBusy, "%.64q: what it has on the SSD tier is open", busy[0].key.Name)
	}
	return true, err
}

// attach writes the records of copies, then tells the master. An object that was removed meanwhile and lives on for its
// links gets no record of its own. It returns what came too late, and what can't take the place of a bad replica now. After
// an error, undo is on the list of what the catalogue has to forget: who changes pins next finds it there.
func (c *core) attach(list []copied, locs []ssd.Loc, undo []deletion) (late, busy []deletion, err error) {
	c.records.Lock()
	defer c.records.Unlock()
	var b changes
	for i := range list {
		c.recordCopy(&b, &list[i], locs[i])
	}
	if err := b.apply(c.catalog, false); err != nil {
		c.frees.addFailed(undo)
		return nil, nil, err
	}
	for i := range list {
		switch err := c.m.Attach(list[i].Ref, masterLoc(locs[i]), false); {
		case errors.Is(err, ErrBusy):
			busy = append(busy, undo[i])
		case err != nil: // removed meanwhile
			late = append(late, undo[i])
		}
	}
	return late, busy, nil
}

// recordCopy records a copy that the master does not know of yet. Where it takes the place of another, no record may
// name that other any more when its space is freed.
func (c *core) recordCopy(b *changes, one *copied, loc ssd.Loc) {
	p := &one.p
	if o, err := c.m.Stat(p.key); err == nil && o.Gen == p.o.Gen {
		p.o.Flags, p.o.SoftUntil = o.Flags, o.SoftUntil // pins may have changed; who changes them now waits
		r := catalogueRecord(p.key, &p.o, p.group, o.Flags&master.FlagDurable != 0, loc)
		b.Put(&r)
	}
	if p.o.Flags&master.FlagSSD != 0 {
		c.recordLinksOf(b, p.key.Tenant, one.Ref, p.o.Gen, masterLoc(loc))
	}
}

// followUp forgets what was removed while it was copied and lives on for its links, and records the links that are older
// than the copies.
func (c *core) followUp(list []copied) error {
	var again []master.Key
	var gone []deletion
	for i := range list {
		p := &list[i].p
		o, err := c.m.Stat(p.key)
		if err != nil || o.Gen != p.o.Gen {
			gone = append(gone, deletion{key: p.key, gen: p.o.Gen})
		}
		for _, name := range c.m.Links(list[i].Ref, p.o.Gen) {
			again = append(again, master.Key{Tenant: p.key.Tenant, Name: name})
		}
	}
	var err error
	if len(gone) > 0 {
		err = c.deleteRecords(gone, false)
	}
	if e := c.rewriteKeys(again); e != nil { // also when the other failed: nobody else would look at these links
		err = e
	}
	return err
}

// roomOnSSD makes room for n more bytes on the SSD tier, below its watermark if it can.
func (c *core) roomOnSSD(ctx context.Context, n int64) error {
	c.compact(ctx, n)
	limit := int64(float64(c.opts.SSDBytes) * c.opts.HighWatermark)
	u := c.tier.Usage()
	over := max(u.LiveBytes+n-limit, u.DiskBytes+n-c.opts.SSDBytes)
	if over <= 0 {
		return nil
	}
	c.evictSSD(ctx, max(over, int64(float64(c.opts.SSDBytes)*c.opts.EvictionRatio)))
	if live := c.tier.Usage().LiveBytes; live+n > c.opts.SSDBytes {
		return errors.WithMessagef(ErrNoSpace, "the SSD tier holds %d bytes, %d more are over its limit %d", live, n, c.opts.SSDBytes)
	}
	return nil
}

// evictSSD lets the oldest objects leave the SSD tier that nobody was promised to find there.
func (c *core) evictSSD(ctx context.Context, need int64) {
	c.evicting.ssd.Lock()
	defer c.evicting.ssd.Unlock()
	victims, _ := c.m.Victims(c.now(), master.TierSSD, policy.Need{Bytes: need}, policy.Config{})
	c.dropFromSSD(ctx, victims)
	c.runEffects()
	_ = c.freeForgotten()
}

// dropFromSSD evicts victims and forgets their records; a copy back to the SSD tier of those that stay in memory waits
// until it has, and so does a durable put of the others' keys.
func (c *core) dropFromSSD(ctx context.Context, victims []master.Victim) {
	c.records.Lock()
	defer c.records.Unlock()
	var list []deletion
	for _, v := range victims {
		if ctx.Err() != nil {
			break
		}
		gone, err := c.m.Evict(c.now(), v, master.TierSSD)
		if err != nil {
			continue
		}
		for _, e := range gone {
			c.noteEvicted(e, TierSSD)
			d := deletion{key: e.Key, gen: e.Gen, pinned: e.Gone.Pinned}
			if !e.Removed {
				d.space = forgotten{e.SSD, len(e.Tenant) + 1 + len(e.Name), e.Size}
			}
			list = append(list, d)
		}
	}
	if len(list) > 0 {
		_ = c.deleteRecords(list, false) // what fails is tried again
	}
}

// Room reports how many bytes a tier could take now, and how many more if everything left it that may: what is leased,
// pinned, read or promised stays. Nothing changes.
func (s *Store) Room(t Tier) (free, evictable int64, err error) {
	stripe, err := s.gate.enter()
	if err != nil {
		return 0, 0, err
	}
	defer s.gate.leave(stripe)
	evictable = s.m.Evictable(s.now(), master.Tier(t))
	if t == TierMemory {
		st := s.alloc.Stats()
		return st.Free + max(0, s.budget.Budget()-s.budget.Total()), evictable, nil
	}
	if s.tier == nil {
		return 0, 0, errors.WithMessage(ErrUnavailable, "room: the store has no Options.Dir")
	}
	u := s.tier.Usage()
	free = s.opts.SSDBytes - u.LiveBytes
	if u.FreeBytes >= 0 {
		free = min(free, u.FreeBytes)
	}
	return max(0, free), evictable, nil
}

// whyFull adds to a refusal what stood in the way.
func (c *core) whyFull(err error) error {
	u := c.m.Usage()
	return errors.WithMessagef(err, "nothing more can be evicted: %d bytes are leased, %d objects hard pinned, %d bytes being written",
		c.evicting.leased.Load(), u.HardPins, u.Reserved)
}
