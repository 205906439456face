package store

import (
	"context"
	"encoding/binary"
	"sync"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store/internal/master"
	"github.com/kvcache-ai/mooncake-go/store/internal/policy"
	"github.com/kvcache-ai/mooncake-go/store/internal/ssd"
)

// promoter brings objects back to memory that are read from SSD again and again.
type promoter struct {
	mu     sync.Mutex
	sketch *policy.Sketch
	queue  chan promotion
}

type promotion struct {
	ref master.Ref
	gen uint64
}

const (
	promoteQueue = 256
	sketchKeys   = 1 << 16
	sketchSeed   = 0x6d6f6f6e63616b65
)

func newPromoter() promoter {
	return promoter{sketch: policy.NewSketch(sketchKeys, sketchSeed), queue: make(chan promotion, promoteQueue)}
}

// considerPromotion counts a read from SSD, and queues the object once it was read often enough lately and memory is
// below its watermark. A full queue drops it: it will be read again. A hard-pinned object stays where it is: no pressure
// would ever get its copy out of memory again.
func (s *Store) considerPromotion(o *master.Object, key string) {
	const never = master.FlagLink | master.FlagMemory | master.FlagHardPin
	if s.opts.PromoteAfter < 0 || o.Flags&never != 0 || o.Size > s.opts.MemoryBytes/8 {
		return
	}
	s.promo.mu.Lock()
	seen := s.promo.sketch.Touch(o.Gen * 0x9e3779b97f4a7c15)
	s.promo.mu.Unlock()
	used, capacity := s.memoryUse()
	if !policy.Admit(seen, s.opts.PromoteAfter, used+o.Size, capacity, s.opts.HighWatermark) {
		return
	}
	select {
	case s.promo.queue <- promotion{o.Holder(), o.Gen}:
	default:
		s.counters.promotions.dropped.add(1)
	}
}

func (c *core) promoteLoop() {
	for {
		select {
		case <-c.stop.Done():
			return
		case p := <-c.promo.queue:
			_ = c.promote(c.stop, p.ref, p.gen, false) // it stays readable where it is
		}
	}
}

// promote copies an object from the SSD tier to memory. With force it evicts others for that.
func (c *core) promote(ctx context.Context, ref master.Ref, gen uint64, force bool) error {
	cp, err := c.m.StartCopy(ref, gen, master.TierMemory)
	if err != nil {
		return err
	}
	extents, err := c.m.PlaceCopy(&cp)
	if errors.Is(err, ErrNoSpace) && force && c.evict(ctx, cp.Size+cp.Size/8, cp.Size) > 0 {
		extents, err = c.m.PlaceCopy(&cp)
	}
	if err != nil {
		c.m.Uncopied(ref)
		return err
	}
	if err := c.copyUp(ctx, &cp, extents); err != nil {
		c.counters.promotions.failed.add(1)
		c.m.FreeExtents(extents)
		c.m.Uncopied(ref)
		return err
	}
	if err := c.m.Promoted(ref, extents); err != nil {
		return err
	}
	c.counters.promotions.completed.add(1)
	c.counters.promotions.bytes.add(cp.Size)
	c.noticeUse(cp.Size)
	return nil
}

// copyUp reads the object, verified, into its new extents, and writes the chunk table behind.
func (c *core) copyUp(ctx context.Context, cp *master.Copying, extents []master.Extent) error {
	loc := ssdLoc(cp.SSD)
	h, err := c.tier.HeadAt(ctx, loc, cp.SSDKeyLen, cp.Size)
	if err == nil && h.Digest != cp.Digest {
		err = ErrChecksum
	}
	if err != nil {
		return err
	}
	data := extents
	if len(h.Table) > 1 {
		data = extents[:len(extents)-1]
		p := c.bytes(extents[len(extents)-1])
		for i, sum := range h.Table {
			binary.LittleEndian.PutUint64(p[i*8:], sum)
		}
	}
	off := int64(0)
	for _, e := range data {
		if err := c.tier.Read(ctx, loc, &h, off, c.bytes(e)); err != nil {
			return err
		}
		off += e.Len
	}
	return nil
}

// ssdError gives errors of reading the SSD tier their place among the store's.
func ssdError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ssd.ErrCorrupt), errors.Is(err, ssd.ErrTruncated):
		return errors.WithMessage(ErrChecksum, err.Error())
	case errors.Is(err, ssd.ErrNewerFormat):
		return errors.WithMessage(ErrNewerFormat, err.Error())
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	return tierError{err}
}

// readError is ssdError for reads: a full disk that shows there is an I/O error, not a lack of room.
func readError(err error) error {
	if errors.Is(err, ssd.ErrNoSpace) {
		return tierError{err}
	}
	return ssdError(err)
}

// tierError is an I/O error of the SSD tier: ErrRead and what the system said.
type tierError struct{ cause error }

func (e tierError) Error() string   { return "ssd tier: " + e.cause.Error() }
func (e tierError) Unwrap() []error { return []error{ErrRead, e.cause} }
