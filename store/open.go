package store

import (
	"context"
	"crypto/rand"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store/internal/arena"
	"github.com/kvcache-ai/mooncake-go/store/internal/catalog"
	"github.com/kvcache-ai/mooncake-go/store/internal/dirlock"
	"github.com/kvcache-ai/mooncake-go/store/internal/master"
	"github.com/kvcache-ai/mooncake-go/store/internal/ssd"
	"github.com/kvcache-ai/mooncake-go/store/internal/status"
)

// Open starts an embedded store. With Options.Dir it first brings back what the directory and surviving shared memory
// hold; the memory budget is then taken in the background. ctx bounds only the opening.
func Open(ctx context.Context, opts Options) (*Store, error) {
	return openWith(ctx, opts, seams{})
}

// seams are the parts that tests replace by ones with faults.
type seams struct {
	fs      ssd.FS
	catalog func(dir string) (catalog.Catalog, error)
	limits  arena.MemLimits
	bootID  string
	ssd     ssd.Options
	after   func(time.Duration) <-chan time.Time // instead of time.After, for what Close waits for
}

func openWith(ctx context.Context, opts Options, seam seams) (*Store, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	if opts.Dir != "" {
		var err error
		if opts.Dir, err = filepath.Abs(opts.Dir); err != nil {
			return nil, errors.WithMessage(err, "open store")
		}
	}
	c := &core{opts: opts.WithDefaults(), start: time.Now(), promo: newPromoter()}
	c.wall = c.start.UnixNano()
	c.stop, c.quit = context.WithCancel(context.Background())
	c.failure.happened, c.failure.wait, c.failure.after = make(chan struct{}), stuckWait, time.After
	if seam.after != nil {
		c.failure.after = seam.after
	}
	c.wake.janitor, c.wake.evictor = make(chan struct{}, 1), make(chan struct{}, 1)
	c.wake.grower = make(chan struct{}, 1)
	c.own.byID = make(map[uint64]*arena.File)
	if opts.Repair {
		c.repair = &RepairReport{}
	}
	c.mapping.unmap = c.unmap
	c.mapping.hold()
	if err := c.open(ctx, seam); err != nil {
		c.quit()
		if err = named(err); opts.Dir != "" {
			err = errors.WithMessage(err, opts.Dir)
		}
		if errors.Is(err, ErrCorrupt) && !opts.Repair {
			err = errors.WithMessage(err, "Options.Repair (mooncake_weight repair) opens what verifies")
		}
		return nil, errors.WithMessage(err, "open store")
	}
	return &Store{core: c}, nil
}

func (c *core) open(ctx context.Context, seam seams) (err error) {
	defer func() {
		if err != nil {
			c.abandon()
		}
	}()
	id, err := c.openDir(seam)
	if err != nil {
		return err
	}
	if err := c.openMemory(id, seam); err != nil {
		return err
	}
	if c.catalog != nil {
		if err := c.restoreCatalogue(ctx); err != nil {
			return err
		}
		c.limitSSD()
	}
	c.fitBudget(ctx)
	c.startWorkers()
	return nil
}

const catalogueDir, tierDir = "catalogue", "ssd"

// openDir takes the directory's lock and opens catalogue and SSD tier. Without a directory the store gets an id of
// its own.
func (c *core) openDir(seam seams) (id [16]byte, err error) {
	if c.opts.Dir == "" {
		_, err := rand.Read(id[:])
		return id, err
	}
	if err := os.MkdirAll(c.opts.Dir, 0o700); err != nil {
		return id, errors.WithMessage(err, "make directory")
	}
	if c.lock, err = dirlock.Acquire(c.opts.Dir); err != nil {
		return id, err
	}
	// The lock is ours: no other process makes files there. The catalogue does the same for its directory.
	if err := privateDir(filepath.Join(c.opts.Dir, tierDir)); err != nil {
		return id, errors.WithMessage(err, "make directory")
	}
	if err := c.openCatalogue(filepath.Join(c.opts.Dir, catalogueDir), seam); err != nil {
		return id, err
	}
	fsys := seam.fs
	if fsys == nil {
		fsys = ssd.OSFS{}
	}
	if id, err = c.storeID(fsys); err != nil {
		return id, err
	}
	o := seam.ssd
	o.Repair = c.repair != nil
	o.StoreID, o.QuotaBytes = id, c.opts.SSDBytes
	if c.tier, err = ssd.Open(fsys, filepath.Join(c.opts.Dir, tierDir), o); err != nil {
		return id, errors.WithMessage(err, "ssd tier")
	}
	return id, nil
}

// limitSSD is the default of Options.SSDBytes. What the tier has already counts as free, so it comes after the restore.
func (c *core) limitSSD() {
	if c.opts.SSDBytes != 0 {
		return
	}
	u := c.tier.Usage()
	if u.FreeBytes < 0 {
		c.opts.SSDBytes = math.MaxInt64 / 2 // nobody says; a full disk is an error when it comes to that
		return
	}
	c.opts.SSDBytes = max(1, (u.FreeBytes+u.DiskBytes)/10*9)
}

// storeID is the identity that the directory got at its first Open. A repaired catalogue may have lost it: the SSD tier has it too.
func (c *core) storeID(fsys ssd.FS) (id [16]byte, err error) {
	v, ok, err := c.catalog.Meta("store-id")
	if err != nil || ok && len(v) == len(id) {
		copy(id[:], v)
		return id, err
	}
	found := false
	if c.repair != nil {
		id, found = ssd.StoreID(fsys, filepath.Join(c.opts.Dir, tierDir))
	}
	if !found {
		if _, err := rand.Read(id[:]); err != nil {
			return id, err
		}
	}
	var b catalog.Batch
	b.SetMeta("store-id", id[:])
	return id, c.catalog.Apply(&b, true)
}

// openMemory attaches the segment of an earlier process or makes a new one, and the master over it.
func (c *core) openMemory(id [16]byte, seam seams) error {
	c.budget, c.limits = arena.NewAccounting(c.opts.MemoryBytes), seam.limits
	if err := c.checkMemory(seam); err != nil && c.opts.Dir == "" {
		return memoryError(err)
	}
	o := arena.SegmentOptions{
		DataBytes: roundUp(c.opts.MemoryBytes, arena.MaxSlabBytes/16), MaxDataBytes: max(64<<30, 4*c.opts.MemoryBytes),
		MetaBytes: max(c.opts.MemoryBytes, minMetaRegion), StoreID: id, BootID: seam.bootID,
		SlabBytes: arena.SlabBytes(c.realBudget()), Limits: seam.limits,
	}
	attached, err := c.openSegment(id, o)
	if err != nil {
		return err
	}
	if c.home != nil {
		c.files, err = c.home.Files(seam.limits)
	} else {
		c.files, err = arena.OpenFileSet("", seam.limits)
	}
	if err != nil {
		return err
	}
	c.data = c.seg.Data()
	c.alloc = arena.NewAllocator(c.seg.SlabBytes())
	m := master.Options{
		Records: c.seg.Meta(), Shards: shards(), DiscardTimeout: c.opts.PutTimeout, ReleaseTimeout: putReleaseTimeout,
		Notify: func() { signal(c.wake.janitor) },
	}
	if arena.Invariants {
		m.Freed = func(e master.Extent) { arena.Poison(c.bytes(e)) }
	}
	c.m = master.New(m)
	c.m.Mount(0, c.alloc)
	if attached {
		c.restoreMemory()
	}
	return c.firstMemory()
}

// realBudget is the budget, or the size of the tmpfs where that is less: only whole slabs can go back to it.
func (c *core) realBudget() int64 {
	if c.opts.Dir == "" {
		return c.opts.MemoryBytes
	}
	if size := arena.FileSystemBytes(c.opts.ShmDir); size > 0 {
		return min(size, c.opts.MemoryBytes)
	}
	return c.opts.MemoryBytes
}

// minMetaRegion is how far the metadata of a segment can grow at least, also under a later budget that is larger than
// today's. The data region is extended by an Open with a larger budget. Both cost addresses, and file size, in proportion
// to the budget, which RLIMIT_AS and RLIMIT_FSIZE may bound.
const minMetaRegion = 512 << 20

// checkMemory asks the machine for the budget. If it has not got it, memory that dead stores have left is given back first.
func (c *core) checkMemory(seam seams) error {
	err := seam.limits.Check(c.opts.MemoryBytes)
	if err == nil {
		return nil
	}
	freeLeft(c.opts.ShmDir, seam.bootID, arena.Owner{})
	return seam.limits.Check(c.opts.MemoryBytes)
}

// memoryError makes a refusal of the machine an ErrMemoryLimit, whose text says which limit it was.
func memoryError(err error) error {
	if errors.Is(err, arena.ErrLimit) {
		return errors.WithMessage(ErrMemoryLimit, err.Error())
	}
	return err
}

// shards is enough for all cores to rarely meet.
func shards() int {
	n := 256
	for n < 16*runtime.GOMAXPROCS(0) && n < 4096 {
		n *= 2
	}
	return n
}

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }

func (c *core) startWorkers() {
	workers := []func(){c.grow, c.janitor, c.evictLoop}
	if c.tier != nil {
		workers = append(workers, c.promoteLoop)
	}
	for _, w := range workers {
		c.done.Go(func() { c.background(w) })
	}
}

// closeDir brings catalogue and SSD tier to rest. What a failed store believes to be free is left to the next Open.
func (c *core) closeDir() (err error) {
	if c.opts.Dir == "" {
		return nil
	}
	if c.failure.get() == nil {
		err = c.freeForgotten()
		if e := c.leaveMemory(); err == nil {
			err = e
		}
	}
	for _, end := range []func() error{c.tier.Close, c.catalog.Close} {
		if e := safely(end); err == nil {
			err = e
		}
	}
	return err
}

// safely makes a panic of fn an error, so that what follows it is done as well.
func safely(fn func() error) (err error) {
	defer status.Recover(&err)
	return fn()
}

// unmap runs when the store is closed and the last view is too. Only then may another store have the directory: it
// would reuse memory that a view still shows.
func (c *core) unmap() {
	if c.failure.get() == nil {
		c.runEffects()
	}
	for _, f := range c.own.byID {
		_ = f.Close()
	}
	for _, f := range c.own.linked {
		_ = f.Remove()
	}
	c.closeMemory()
	if c.lock != nil {
		_ = c.lock.Release()
	}
}

// abandon undoes an Open that failed half-way.
func (c *core) abandon() {
	if c.seg != nil {
		for _, f := range c.own.byID {
			_ = f.Close()
		}
	}
	c.closeMemory()
	if c.tier != nil {
		_ = c.tier.Close()
	}
	if c.catalog != nil {
		_ = c.catalog.Close()
	}
	if c.lock != nil {
		_ = c.lock.Release()
	}
}

// Dir is Options.Dir as an absolute path: "" for a store in memory.
func (s *Store) Dir() string { return s.opts.Dir }
