package store

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store/internal/arena"
	"github.com/kvcache-ai/mooncake-go/store/internal/master"
	"github.com/kvcache-ai/mooncake-go/store/internal/status"
)

// The DRAM budget has one pot. The segment's data region grows in the background until only headroom is left; its
// metadata region and memory files of their own grow on demand, out of the headroom first, then out of slabs that are
// wholly free, then by eviction.

const (
	metaStep    = arena.StepBytes
	growStep    = 16 << 20 // of the data region, once the first piece is there
	minHeadroom = 2 * arena.StepBytes
)

// memoryState is how far the segment has grown. mu orders growth and return of memory.
type memoryState struct {
	sync.Mutex
	meta  int64   // where the part of the metadata region in use ends
	gaps  []int64 // steps of it that went back to the machine, by offset, descending
	data  int64   // bytes of the data region that were ever in use
	holes []int64 // slabs that went back to the machine, by offset
	full  error   // why growth stopped, if the machine refused
	ready chan struct{}
	done  atomic.Bool // nothing is left to grow
}

func (c *core) headroom() int64 {
	return max(minHeadroom, roundUp(c.budget.Budget()/64, arena.StepBytes))
}

// firstMemory makes the store able to take its first object; the rest comes in the background.
func (c *core) firstMemory() error {
	c.memory.ready = make(chan struct{})
	if c.memory.meta == 0 {
		if err := c.growMeta(metaStep); err != nil {
			return err
		}
	}
	if c.memory.data == 0 {
		return c.growData(arena.StepBytes)
	}
	return nil
}

// growMeta takes n more bytes for records.
func (c *core) growMeta(n int64) error {
	c.memory.Lock()
	defer c.memory.Unlock()
	if free, usable := c.m.RecordRoom(); usable > 0 && free >= n/2 {
		return nil // somebody else was faster
	}
	off, n := c.nextMeta(n)
	if n <= 0 {
		return errors.WithMessage(ErrNoSpace, "metadata has reached its limit")
	}
	for {
		if !c.takeBudget(arena.Metadata, n) {
			return status.MetaShortage
		}
		err := c.seg.Reserve(arena.MetaRegion, off, n)
		if err == nil {
			break
		}
		c.budget.Sub(arena.Metadata, n)
		if c.memory.meta == 0 || !arena.IsShortage(err) {
			return memoryError(err)
		}
		c.refused(n)
	}
	if off < c.memory.meta {
		c.memory.gaps = c.memory.gaps[:len(c.memory.gaps)-1]
	}
	c.memory.meta = max(c.memory.meta, off+n)
	c.m.AddRecords(off, n)
	return nil
}

// nextMeta is where records get n more bytes: in the lowest gap, or else at the end. n is 0 at the region's limit.
func (c *core) nextMeta(n int64) (off, size int64) {
	if k := len(c.memory.gaps); k > 0 {
		return c.memory.gaps[k-1], arena.StepBytes
	}
	return c.memory.meta, min(n, int64(len(c.seg.Meta()))/arena.StepBytes*arena.StepBytes-c.memory.meta)
}

// maxGaps bounds the gaps in the metadata region, each of which is a mapping; maxMetaSteps how many steps go back at once.
const (
	maxGaps      = 1024
	maxMetaSteps = 64
)

// shrinkMeta gives metadata memory without a record back to the machine, as long as keep bytes stay free for records. It
// returns what it gave. The caller holds memory's lock; readers don't wait for that.
func (c *core) shrinkMeta(keep int64) (given int64) {
	for range maxMetaSteps {
		off, ok := c.m.TakeRecords(keep, len(c.memory.gaps) >= maxGaps)
		if !ok {
			break
		}
		if err := c.seg.Release(arena.MetaRegion, off, arena.StepBytes); err != nil {
			break // the step is lost to records, not to the accounts
		}
		c.budget.Sub(arena.Metadata, arena.StepBytes)
		given += arena.StepBytes
		at, _ := slices.BinarySearchFunc(c.memory.gaps, off, func(a, b int64) int { return cmp.Compare(b, a) })
		c.memory.gaps = slices.Insert(c.memory.gaps, at, off)
		for len(c.memory.gaps) > 0 && c.memory.gaps[0] == c.memory.meta-arena.StepBytes {
			c.memory.meta = c.memory.gaps[0]
			c.memory.gaps = slices.Delete(c.memory.gaps, 0, 1)
		}
	}
	return given
}

// keepFree is how much room for records stays when data needs the memory.
const keepFree = arena.StepBytes / 2

// squeezeMeta gives all metadata memory back that can be, for data that does not fit otherwise.
func (c *core) squeezeMeta() (given int64) {
	c.m.TrimRecords()
	c.memory.Lock()
	defer c.memory.Unlock()
	for {
		n := c.shrinkMeta(keepFree)
		if given += n; n == 0 {
			break
		}
	}
	if given > 0 {
		signal(c.wake.grower)
	}
	return given
}

// easeMeta gives metadata memory back bit by bit when most of it holds nothing.
func (c *core) easeMeta() {
	free, usable := c.m.RecordRoom()
	if free < usable/2+4*arena.StepBytes {
		return
	}
	c.m.TrimRecords()
	c.memory.Lock()
	defer c.memory.Unlock()
	if c.shrinkMeta(max(usable-free, arena.StepBytes)/2) > 0 {
		signal(c.wake.grower)
	}
}

// growData takes up to n more bytes for objects. It returns errGrown when the budget or the region ends.
func (c *core) growData(n int64) error {
	c.memory.Lock()
	defer c.memory.Unlock()
	off, hole := c.memory.data, false
	if k := len(c.memory.holes); k > 0 {
		off, n, hole = c.memory.holes[k-1], c.seg.SlabBytes(), true
	} else {
		n = min(n, int64(len(c.data))-off, c.seg.SlabBytes()-off%c.seg.SlabBytes())
	}
	if c.budget.Budget()-c.budget.Total()-c.headroom() < n && c.m.IdleRecords() > 0 {
		c.shrinkMeta(keepFree)
	}
	room := c.budget.Budget() - c.budget.Total() - c.headroom()
	if off == 0 && !hole {
		room = n // the first piece is never refused
	}
	if !hole {
		n = min(n, room/arena.StepBytes*arena.StepBytes)
	}
	if n <= 0 || n > room || !c.budget.TryReserve(arena.Data, n) {
		return errGrown
	}
	n, err := c.reserveData(off, n, hole)
	if err != nil {
		return memoryError(err)
	}
	if hole {
		c.memory.holes = c.memory.holes[:len(c.memory.holes)-1]
	} else {
		c.memory.data += n
	}
	c.alloc.AddRange(off, n)
	return nil
}

// reserveData takes the memory of n counted bytes, or of one step if the machine has not got all. It counts no more than
// it has taken.
func (c *core) reserveData(off, n int64, whole bool) (int64, error) {
	err := c.seg.Reserve(arena.DataRegion, off, n)
	if err == nil {
		return n, nil
	}
	if arena.IsShortage(err) && !whole && n > arena.StepBytes {
		c.budget.Sub(arena.Data, n-arena.StepBytes)
		n = arena.StepBytes
		if err = c.seg.Reserve(arena.DataRegion, off, n); err == nil {
			return n, nil
		}
	}
	c.budget.Sub(arena.Data, n)
	if arena.IsShortage(err) {
		c.refused(n)
	}
	return 0, err
}

// refused makes what the machine has given, and has left, the budget, after it did not give n bytes: what is needed next
// has to come from what is there. The caller has counted back what was refused.
func (c *core) refused(n int64) {
	free := c.limits.Free(c.seg.Fd())
	if free >= n {
		free = 0 // it does not say what stood in the way
	}
	c.budget.SetBudget(min(c.budget.Budget(), c.budget.Total()+free))
}

// askAgain raises a budget that refused has lowered by what the machine has now, and reports whether it did.
func (c *core) askAgain() bool {
	c.memory.Lock()
	defer c.memory.Unlock()
	if c.budget.Budget() >= c.opts.MemoryBytes {
		return false
	}
	now := min(c.opts.MemoryBytes, c.budget.Total()+c.limits.Free(c.seg.Fd()))
	if now >= c.budget.Budget()+arena.StepBytes {
		c.budget.SetBudget(now)
		signal(c.wake.grower)
		return true
	}
	return false
}

var errGrown = errors.New("memory budget is used up")

// takeBudget counts n bytes against the budget, giving free slabs back to the machine if need be. The caller holds
// memory's lock.
func (c *core) takeBudget(p arena.Purpose, n int64) bool {
	for !c.budget.TryReserve(p, n) {
		off, ok := c.alloc.TakeIdleSlab()
		if !ok {
			if p != arena.Metadata && c.shrinkMeta(keepFree) > 0 {
				continue
			}
			return false
		}
		if err := c.seg.Release(arena.DataRegion, off, c.seg.SlabBytes()); err != nil {
			return false // the slab is lost to allocation, not to the accounts
		}
		c.budget.Sub(arena.Data, c.seg.SlabBytes())
		c.memory.holes = append(c.memory.holes, off)
	}
	return true
}

// fitBudget gives memory back that an earlier process took under a larger budget. What leased or pinned objects hold
// stays taken until they go.
func (c *core) fitBudget(ctx context.Context) {
	for {
		c.memory.Lock()
		fits := c.takeBudget(arena.Data, 0)
		c.memory.Unlock()
		if fits || c.evict(ctx, c.budget.Total()-c.opts.MemoryBytes, 0) == 0 {
			return
		}
	}
}

// grow is the goroutine that takes the memory budget from the machine, and later what objects gave back.
func (c *core) grow() {
	for {
		err := c.growData(growStep)
		switch {
		case c.stop.Err() != nil:
			return
		case err == nil:
			continue
		case err != errGrown:
			c.memory.Lock()
			c.memory.full = err
			c.memory.Unlock()
		}
		if !c.memory.done.Swap(true) {
			close(c.memory.ready)
		}
		select {
		case <-c.stop.Done():
			return
		case <-c.wake.grower:
		}
	}
}

// WaitReady returns when the whole memory budget was taken from the machine, or the machine refused the rest: then
// with the reason, and the store goes on with what it has.
func (s *Store) WaitReady(ctx context.Context) error {
	if err := s.gate.refused(); err != nil {
		return err
	}
	select {
	case <-s.memory.ready:
		s.memory.Lock()
		defer s.memory.Unlock()
		return s.memory.full
	case <-s.stop.Done():
		return s.gate.refused()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// newOwnFile makes a memory file for one object, pinned until seal, making room for it if need be.
func (c *core) newOwnFile(ctx context.Context, size int64) (*arena.File, error) {
	n := roundUp(size, 4096)
	for try := 0; ; try++ {
		c.memory.Lock()
		ok := c.takeBudget(arena.OwnFile, n)
		c.memory.Unlock()
		if ok {
			f, err := c.files.Create(size)
			if err == nil {
				c.own.put(f)
				return f, nil
			}
			c.budget.Sub(arena.OwnFile, n)
			if !arena.IsShortage(err) || try >= maxFileTries {
				return nil, fileError(err)
			}
			c.refused(n)
			continue
		}
		if c.evict(ctx, max(n, c.seg.SlabBytes()), n) == 0 && !c.askAgain() || try >= maxFileTries {
			return nil, errors.WithMessagef(ErrNoSpace, "a file of %d bytes: %d of the memory budget %d are taken",
				size, c.budget.Total(), c.budget.Budget())
		}
	}
}

// maxFileTries bounds the refusals and evictions of one file. An eviction may free little that is a whole slab.
const maxFileTries = 64

// dropOwnFile frees a memory file that no object has.
func (c *core) dropOwnFile(id uint64) {
	f := c.own.take(id)
	if f == nil {
		return
	}
	c.stamps.drop(memoryStamp(id))
	c.freeFile(f)
}

// freeFile gives a memory file's bytes back. One that somebody has a hard link to keeps its memory: it counts as long
// as the link is there.
func (c *core) freeFile(f *arena.File) {
	if hasLinks(f.Path()) {
		c.own.keep(f)
		return
	}
	n := roundUp(f.Size(), 4096)
	_ = f.Remove()
	c.budget.Sub(arena.OwnFile, n)
	signal(c.wake.grower)
}

// restoreMemory brings back what an earlier process left in the segment.
func (c *core) restoreMemory() {
	for off, n := range c.seg.Reserved(arena.MetaRegion) {
		c.budget.Add(arena.Metadata, n)
		for at := c.memory.meta; at < off; at += arena.StepBytes {
			c.memory.gaps = slices.Insert(c.memory.gaps, 0, at)
		}
		c.memory.meta = off + n
		c.m.AddRecords(off, n)
	}
	for off, n := range c.seg.Reserved(arena.DataRegion) {
		c.budget.Add(arena.Data, n)
		for at := roundUp(c.memory.data, c.seg.SlabBytes()); at < off/c.seg.SlabBytes()*c.seg.SlabBytes(); at += c.seg.SlabBytes() {
			c.memory.holes = append(c.memory.holes, at)
		}
		c.memory.data = off + n
		c.alloc.AddRange(off, n)
	}
	found := c.m.Restore(c.attachOwnFile)
	c.counters.restoredMemory.set(found.Kept)
	c.runEffects()
	ids, _ := c.files.List()
	for _, id := range ids {
		if c.own.get(id) == nil {
			_ = c.files.Remove(id)
		}
	}
}

func (c *core) attachOwnFile(id uint64, size int64) error {
	if c.own.get(id) != nil {
		return status.Corrupt // two objects can't have one file
	}
	f, err := c.files.Attach(id, size)
	if err != nil {
		return err
	}
	f.HandOut() // the earlier process may have
	c.budget.Add(arena.OwnFile, roundUp(size, 4096))
	c.own.put(f)
	return nil
}

// janitor frees what the master gave up, lets time pass for it, and forgets what the catalogue forgot.
func (c *core) janitor() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var seen int64 // puts
	for {
		select {
		case <-c.stop.Done():
			if c.failure.get() == nil {
				c.runEffects()
			}
			return
		case <-tick.C:
			c.m.Tick(c.now())
			c.askAgain()
			c.easeMeta()
			c.feed.tellMissed()
			for _, f := range c.own.takeLinked() {
				c.freeFile(f)
			}
			c.freeUnlinked()
			_ = c.rewriteLate() // what fails stays late
			if puts, _ := c.counters.puts.load(); puts != seen && c.eager() {
				seen = puts
				signal(c.wake.evictor) // noticeUse waits for more than a few small puts
			}
		case <-c.wake.janitor:
		}
		c.runEffects()
		if c.tier != nil {
			_ = c.freeForgotten() // what could not be freed now stays on the list
		}
	}
}

// runEffects frees what the master gave up. When it returns, that is free, whoever did it.
func (c *core) runEffects() {
	c.effects.Lock()
	defer c.effects.Unlock()
	for _, e := range c.m.TakeEffects() {
		c.runEffect(e)
	}
}

func (c *core) runEffect(e master.Effect) {
	switch e.Kind {
	case master.FreeOwnFile:
		c.dropOwnFile(e.OwnFile)
	case master.FreeSSD:
		c.frees.add(forgotten{e.SSD, e.KeyLen, e.Size})
	}
}
