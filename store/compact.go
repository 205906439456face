package store

import (
	"context"
	"slices"
	"sync"

	"github.com/kvcache-ai/mooncake-go/store/internal/master"
	"github.com/kvcache-ai/mooncake-go/store/internal/ssd"
)

// Records of the SSD tier lie in blocks, and a block is free when all in it are. Small objects that come and go leave
// blocks with little in them: they are moved together before the blocks use the quota up.

const (
	compactBytes  = 8 << 20 // moved with one sync
	compactObject = 1 << 20 // larger ones have blocks of their own
)

// compactor lets one compaction run at a time.
type compactor struct {
	sync.Mutex
	slack int64 // what the last one left: less than a little more is not worth another
}

// compact moves records of sparse containers if n more bytes would bring the tier over its watermark, and much of it is
// blocks with little in them. What can't be moved stays.
func (c *core) compact(ctx context.Context, n int64) {
	limit := c.opts.SSDBytes
	u := c.tier.Usage()
	slack := u.DiskBytes - u.LiveBytes
	if u.DiskBytes+n <= int64(float64(limit)*c.opts.HighWatermark) || slack < limit/16 || !c.compacting.TryLock() {
		return
	}
	defer c.compacting.Unlock()
	if slack < c.compacting.slack+limit/32 {
		return
	}
	files, err := c.tier.Sparse(ctx)
	if err == nil && len(files) > 0 {
		c.moveAll(ctx, files)
	}
	u = c.tier.Usage()
	c.compacting.slack = u.DiskBytes - u.LiveBytes
}

// moveAll moves the small objects of containers.
func (c *core) moveAll(ctx context.Context, files []uint32) {
	slices.Sort(files)
	in := func(loc master.Loc) bool {
		_, found := slices.BinarySearch(files, loc.File)
		return found && loc.Own == 0
	}
	var list []copied
	var bytes int64
	for n := uint32(1); n < c.m.Pages(); n++ {
		for _, v := range c.m.OnSSD(n, in) {
			one, ok := c.startMove(ctx, v)
			if !ok {
				continue
			}
			list, bytes = append(list, one), bytes+one.Size
			u := c.tier.Usage()
			if len(list) < offloadCount && bytes < min(compactBytes, (c.opts.SSDBytes-u.DiskBytes)/4) {
				continue
			}
			if c.move(ctx, list) != nil {
				return
			}
			list, bytes = nil, 0
		}
	}
	_ = c.move(ctx, list)
}

// startMove pins an object and reads it, verified.
func (c *core) startMove(ctx context.Context, v master.Victim) (one copied, ok bool) {
	if v.Size > compactObject || ctx.Err() != nil {
		return one, false
	}
	cp, err := c.m.StartMove(v.Ref, v.Gen)
	if err != nil {
		return one, false // busy or gone
	}
	one = copied{Copying: cp, p: staged{key: cp.Key, group: cp.Group, o: cp.Object}}
	loc := ssdLoc(cp.SSD)
	var h ssd.Head
	if h, err = c.tier.HeadAt(ctx, loc, cp.SSDKeyLen, cp.Size); err == nil && h.Digest != cp.Digest {
		err = ErrChecksum
	}
	if err == nil {
		p := make([]byte, cp.Size)
		one.p.table, one.p.data = h.Table, [][]byte{p}
		err = c.tier.Read(ctx, loc, &h, 0, p)
	}
	if err != nil { // its next reader finds out what is wrong
		c.m.Uncopied(v.Ref)
		return one, false
	}
	return one, true
}

// move writes objects to another place on the SSD tier and frees where they were.
func (c *core) move(ctx context.Context, list []copied) error {
	if len(list) == 0 {
		return nil
	}
	attached, err := c.writeOffload(ctx, list)
	if !attached {
		for i := range list {
			c.m.Uncopied(list[i].Ref)
		}
		return err
	}
	c.runEffects()
	return c.freeForgotten()
}
