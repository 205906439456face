package store

import (
	"io/fs"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store/internal/arena"
)

// openSegment opens the memory that the directory has left, or makes new memory. Memory that is in use, or that another
// directory or state has left, is left as it is.
func (c *core) openSegment(id [16]byte, o arena.SegmentOptions) (attached bool, err error) {
	if c.opts.Dir == "" {
		c.seg, err = arena.CreateSegment(o)
		return false, memoryError(err)
	}
	if o.Owner, err = ownerOf(c.dirFd(), c.opts.Dir); err != nil {
		return false, err
	}
	left, ok, err := readClaim(c.dirFd())
	if err != nil {
		return false, err
	}
	if ok {
		if attached, err = c.adoptSegment(&left, o); attached || err != nil {
			return attached, err
		}
	}
	return false, c.makeSegment(id, o)
}

func (c *core) dirFd() int { return int(c.lock.Dir().Fd()) }

// adoptSegment attaches the segment that the directory claims, if it is still the one that the directory left.
func (c *core) adoptSegment(left *claim, o arena.SegmentOptions) (attached bool, err error) {
	home, err := arena.OpenHome(c.opts.ShmDir, left.home())
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, arena.ErrForeign) {
		return false, nil
	}
	if err != nil {
		return false, errors.WithMessage(err, "shared memory")
	}
	o.Home, o.Epochs = home, left.epochs()
	home.Wait()
	defer home.Ready()
	seg, err := arena.AttachSegment(o)
	if err == nil {
		c.home, c.seg = home, seg
		left.has = seg.Owner().Epoch
		c.claimed = *left
		if err := c.nextEpoch(); err != nil {
			return false, err
		}
		return true, nil
	}
	defer home.Close()
	for _, cold := range []error{fs.ErrNotExist, arena.ErrStale, arena.ErrCorrupt, arena.ErrInUse} {
		if errors.Is(err, cold) {
			return false, nil
		}
	}
	if errors.Is(err, arena.ErrLimit) {
		return false, memoryError(err)
	}
	if errors.Is(err, arena.ErrNewerFormat) {
		return false, errors.WithMessage(ErrNewerFormat, err.Error())
	}
	return false, err
}

// nextEpoch begins a new epoch on both sides, the directory's first.
func (c *core) nextEpoch() error {
	o, err := ownerOf(c.dirFd(), c.opts.Dir)
	if err != nil {
		return err
	}
	c.claimed.next, o.Epoch = newEpoch(), [16]byte{}
	if err := writeClaim(c.dirFd(), &c.claimed); err != nil {
		return err
	}
	o.Epoch = c.claimed.next
	if err := c.seg.Own(o); err != nil {
		return err
	}
	c.claimed.has = c.claimed.next
	return nil
}

// makeSegment makes new memory. What the directory has left and could not adopt is given back first.
func (c *core) makeSegment(id [16]byte, o arena.SegmentOptions) error {
	if err := dropClaim(c.dirFd()); err != nil {
		return err
	}
	freeLeft(c.opts.ShmDir, o.BootID, o.Owner)
	freeLegacy(c.opts.ShmDir, id)
	if err := o.Limits.Check(c.opts.MemoryBytes); err != nil {
		return memoryError(err)
	}
	if c.opts.VolatileMemory {
		var err error
		c.seg, err = arena.CreateSegment(o)
		return memoryError(err)
	}
	home, name, err := c.newHome(id)
	if err != nil {
		return errors.WithMessage(err, "shared memory")
	}
	c.home, o.Home = home, home
	defer home.Ready()
	c.claimed = claim{name: name, has: newEpoch()}
	c.claimed.next = c.claimed.has
	o.Owner.Epoch = c.claimed.has
	if c.seg, err = arena.CreateSegment(o); err != nil {
		c.seg = nil
		_ = home.Remove()
		return memoryError(err)
	}
	return writeClaim(c.dirFd(), &c.claimed)
}

// newHome makes a directory for the memory. The first choice of its name is the store's id, which keeps a version that
// knows no other name from opening the directory beside this memory; a name that is taken is avoided.
func (c *core) newHome(id [16]byte) (home *arena.Home, name [16]byte, err error) {
	name = id
	for range 16 {
		home, err = arena.MakeHome(c.opts.ShmDir, (&claim{name: name}).home())
		if !errors.Is(err, fs.ErrExist) {
			return home, name, err
		}
		name = newEpoch()
	}
	return nil, name, err
}

// leaveMemory ends the epoch of a store that is closed: a copy of the directory from while it was open claims nothing then.
// It returns an error if the memory will not come back, because somebody deleted it while the store was open.
func (c *core) leaveMemory() error {
	if c.home == nil || c.seg == nil {
		return nil
	}
	if !c.seg.Named() {
		return errors.Errorf("%s was deleted while the store was open: what is in memory alone is lost", c.seg.Path())
	}
	return c.nextEpoch()
}

// closeMemory unmaps the memory and gives up its lock.
func (c *core) closeMemory() {
	if c.seg != nil {
		_ = c.seg.Close(false)
	}
	if c.files != nil {
		_ = c.files.Close()
	}
	if c.home != nil {
		_ = c.home.Close()
	}
}
