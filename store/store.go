package store

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store/internal/arena"
	"github.com/kvcache-ai/mooncake-go/store/internal/catalog"
	"github.com/kvcache-ai/mooncake-go/store/internal/dirlock"
	cores "github.com/kvcache-ai/mooncake-go/store/internal/lane"
	"github.com/kvcache-ai/mooncake-go/store/internal/master"
	"github.com/kvcache-ai/mooncake-go/store/internal/ssd"
)

// Store is an open store, seen by one tenant. All methods are safe for concurrent use. A Store and everything that
// came from it (views, files, writers) works on one shared core: closing it closes all its tenants' stores.
type Store struct {
	*core
	tenant string
}

// core is what all tenants of one open store share.
type core struct {
	opts  Options
	start time.Time // of the clock, see now
	wall  int64

	m       *master.Master
	budget  *arena.Accounting
	limits  arena.MemLimits
	alloc   *arena.Allocator
	seg     *arena.Segment
	data    []byte // of seg
	files   *arena.FileSet
	own     ownFiles
	home    *arena.Home // of segment and files; nil if the memory dies with the process
	claimed claim       // of the directory on home

	// With Options.Dir.
	lock    *dirlock.Lock
	tier    *ssd.Tier
	catalog catalog.Catalog
	repair  *RepairReport // with Options.Repair
	frees   freeList
	records recordOrder

	effects    sync.Mutex // see runEffects
	stamps     stamps
	gate       gate
	failure    failure
	mapping    mappingRefs
	memory     memoryState
	evicting   evictor
	compacting compactor
	promo      promoter
	log        decisions
	feed       feed
	counters   counters

	stop context.Context
	quit context.CancelFunc
	done sync.WaitGroup
	wake struct {
		janitor chan struct{}
		evictor chan struct{}
		grower  chan struct{}
	}
	unfinished unfinished
	closing    closing
}

// Tenant is the same store seen by another tenant: keys and groups of different tenants never meet. "" and "default"
// are the default tenant.
func (s *Store) Tenant(name string) (*Store, error) {
	if name == "default" {
		name = ""
	}
	if err := checkTenant(name); err != nil {
		return nil, err
	}
	return &Store{s.core, strings.Clone(name)}, nil
}

func (s *Store) key(name string) master.Key { return master.Key{Tenant: s.tenant, Name: name} }

// now is the time of leases and pins in Unix nanoseconds. It never goes back: it is the wall clock at Open plus the
// monotonic time since.
func (c *core) now() int64 {
	if c.opts.Clock != nil {
		return c.opts.Clock().UnixNano()
	}
	return c.wall + int64(time.Since(c.start))
}

// gate counts operations in progress, so that Close can wait for them before memory is unmapped. The count is spread
// over stripes, so that readers on different cores don't share a cache line.
type gate struct {
	refusal atomic.Pointer[error] // why no operation may begin: the store is closed, or has failed; nil if it may
	grace   atomic.Bool           // puts that have begun may go on all the same
	stripes [gateStripes]struct {
		n atomic.Int64
		_ [56]byte
	}
}

const gateStripes = 32

// enter must be followed by leave of what it returned.
func (g *gate) enter() (stripe uint32, err error) {
	stripe = lane()
	g.stripes[stripe].n.Add(1)
	if why := g.refusal.Load(); why != nil {
		g.leave(stripe)
		return 0, *why
	}
	return stripe, nil
}

// enterBegun is enter for the next part of a put that has begun.
func (g *gate) enterBegun() (stripe uint32, err error) {
	stripe = lane()
	g.stripes[stripe].n.Add(1)
	if why := g.refusal.Load(); why != nil && !g.grace.Load() {
		g.leave(stripe)
		return 0, *why
	}
	return stripe, nil
}

// refused is the error of enter.
func (g *gate) refused() error {
	if why := g.refusal.Load(); why != nil {
		return *why
	}
	return nil
}

func (g *gate) leave(stripe uint32) { g.stripes[stripe].n.Add(-1) }

// refuse lets no operation begin any more, and with grace lets the puts go on that have begun.
func (g *gate) refuse(grace bool) {
	g.grace.Store(grace)
	closed := ErrClosed
	g.refusal.Store(&closed)
}

// close refuses all operations and waits for those in progress, until giveUp.
func (g *gate) close(giveUp func() bool) {
	g.refuse(false)
	for wait := 10 * time.Microsecond; !g.idle() && !giveUp(); wait = min(2*wait, time.Millisecond) {
		time.Sleep(wait)
	}
}

func (g *gate) idle() bool {
	var n int64
	for i := range g.stripes {
		n += g.stripes[i].n.Load()
	}
	return n == 0
}

// mappingRefs counts who needs the store's memory mapped: the store itself, and each view and file that is open.
type mappingRefs struct {
	n      atomic.Int64
	copies atomic.Int64 // bytes that views have of their own
	unmap  func()
}

func (r *mappingRefs) hold() { r.n.Add(1) }

func (r *mappingRefs) drop() {
	if r.n.Add(-1) == 0 {
		r.unmap()
	}
}

// ownFiles are the memory files of their own that are mapped, by id.
type ownFiles struct {
	sync.RWMutex
	byID   map[uint64]*arena.File
	linked []*arena.File // of no object any more, but somebody has a hard link to them
}

func (f *ownFiles) keep(file *arena.File) {
	f.Lock()
	f.linked = append(f.linked, file)
	f.Unlock()
}

func (f *ownFiles) takeLinked() []*arena.File {
	f.Lock()
	defer f.Unlock()
	list := f.linked
	f.linked = nil
	return list
}

func (f *ownFiles) get(id uint64) *arena.File {
	f.RLock()
	defer f.RUnlock()
	return f.byID[id]
}

func (f *ownFiles) put(file *arena.File) {
	f.Lock()
	f.byID[file.ID()] = file
	f.Unlock()
}

func (f *ownFiles) take(id uint64) *arena.File {
	f.Lock()
	defer f.Unlock()
	file := f.byID[id]
	delete(f.byID, id)
	return file
}

// bytes is the memory of an extent.
func (c *core) bytes(e master.Extent) []byte {
	if e.Segment == master.OwnFile {
		return c.own.get(uint64(e.Off)).Bytes()[:e.Len:e.Len]
	}
	return c.data[e.Off : e.Off+e.Len : e.Off+e.Len]
}

// signal wakes a background goroutine without waiting for it.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// lane is a stripe that a core keeps for long and that two rarely share.
func lane() uint32 { return cores.Get() % gateStripes }

func checkTenant(name string) error {
	if len(name) > MaxTenantBytes || strings.HasPrefix(name, "_") || strings.ContainsFunc(name, func(r rune) bool {
		return r < 0x20 || r == 0x7f
	}) {
		return errors.WithMessagef(ErrInvalidParams, "tenant %.32q: at most %d bytes, no leading _, no control characters",
			name, MaxTenantBytes)
	}
	return nil
}
