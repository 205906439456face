package master

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvcache-ai/mooncake-go/store/internal/arena"
	"github.com/kvcache-ai/mooncake-go/store/internal/policy"
)

// TestConcurrently runs random commands on several goroutines. Writers stamp every granule of their space; whoever
// may read must find the stamp of what he reads, and nobody else's, from the moment he may until he lets go.
func TestConcurrently(t *testing.T) {
	ops := 20_000
	if testing.Short() {
		ops /= 10
	}
	f := newFixtureOf(t, sizes{4, 4 << 20, 8 << 20})
	c := &crowd{fixture: f, data: make([]byte, f.empty.Capacity)}
	c.clock.Store(f.now)
	r := seeded(t)
	var wg sync.WaitGroup
	for range 4 {
		w := &worker{crowd: c, r: rand.New(rand.NewPCG(r.Uint64(), 0))}
		wg.Go(func() { w.run(ops) })
	}
	wg.Wait()
	for i := range crowdKeys {
		if _, err := f.Stat(key(crowdKey(i))); err == nil {
			f.remove(crowdKey(i))
		}
	}
	c.noOverlap()
	f.requireEmpty()
}

const crowdKeys = 12

func crowdKey(i int) string { return fmt.Sprintf("key-%d", i) }

type crowd struct {
	*fixture
	data  []byte
	clock atomic.Int64
}

type worker struct {
	*crowd
	r       *rand.Rand
	writers []*crowdWriter
}

type crowdWriter struct {
	Object
	here  bool
	start int64
}

func (c *crowd) bytes(e Extent) []byte { return c.data[e.Off : e.Off+e.Len] }

func (c *crowd) stamp(extents []Extent, stamp uint64) {
	for _, e := range extents {
		for p := c.bytes(e); len(p) >= 8; p = p[min(arena.Granule, len(p)):] {
			binary.LittleEndian.PutUint64(p, stamp)
		}
	}
}

// foreign is the first stamp that is not the one that should be there.
func (c *crowd) foreign(extents []Extent, stamp uint64) uint64 {
	for _, e := range extents {
		for p := c.bytes(e); len(p) >= 8; p = p[min(arena.Granule, len(p)):] {
			if got := binary.LittleEndian.Uint64(p); got != stamp {
				return got
			}
		}
	}
	return stamp
}

// foreignElsewhere is foreign for one that lives in another process: only time tells him apart from the next owner,
// which the race detector does not know.
//
//go:norace
func (c *crowd) foreignElsewhere(extents []Extent, stamp uint64) uint64 {
	for _, e := range extents {
		for i := e.Off; i+8 <= e.Off+e.Len; i += arena.Granule {
			var got uint64
			for b := range 8 {
				got |= uint64(c.data[i+int64(b)]) << (8 * b)
			}
			if got != stamp {
				return got
			}
		}
	}
	return stamp
}

func (w *worker) now() int64 { return w.clock.Add(int64(w.r.IntN(20_000_000))) }

func (w *worker) key() Key { return key(crowdKey(w.r.IntN(crowdKeys))) }

func (w *worker) run(ops int) {
	for range ops {
		switch w.r.IntN(14) {
		case 0, 1, 2, 3:
			w.reserve()
		case 4, 5:
			w.read()
		case 6:
			w.readElsewhere()
		case 7:
			w.drop(w.Remove(w.now(), w.key(), w.r.IntN(2) == 0))
		case 8:
			w.evict()
		case 9:
			if o, err := w.Link(w.now(), LinkRequest{Key: w.key(), Target: w.key().Name, Group: w.group()}); err == nil {
				w.SetDurable(&o)
			}
		case 10:
			w.copyUpOrDown()
		case 11:
			w.groupCommand()
		case 12:
			w.Tick(w.now())
			w.look()
		case 13:
			if len(w.writers) > 4 {
				w.finish(w.writers[0])
				w.writers = w.writers[1:]
			}
		}
		if w.t.Failed() {
			break
		}
	}
	for _, one := range w.writers {
		w.finish(one)
	}
}

func (w *worker) group() string {
	if w.r.IntN(3) == 0 {
		return fmt.Sprintf("key-%d", w.r.IntN(2))
	}
	return ""
}

func (w *worker) drop(gone Replaced, err error) {
	if err == nil && gone.Pinned != 0 {
		w.Release(gone.Pinned)
	}
}

func (w *worker) reserve() {
	q := ReserveRequest{Key: w.key(), Size: 8 + w.r.Int64N(4000), Group: w.group(), Replace: w.r.IntN(2) == 0,
		WriterPin: w.r.IntN(2) == 0}
	now := w.now()
	o, err := w.Reserve(now, q)
	if err != nil {
		return
	}
	one := &crowdWriter{o, q.WriterPin, now}
	w.stamp(o.Extents(), o.Gen)
	if w.r.IntN(20) == 0 {
		w.writers = append(w.writers, one) // for long
		return
	}
	w.finish(one)
}

// finish ends a put. Until then, or until the release timeout, its space is its own.
func (w *worker) finish(one *crowdWriter) {
	var got uint64
	if one.here {
		got = w.foreign(one.Extents(), one.Gen)
	} else if got = w.foreignElsewhere(one.Extents(), one.Gen); w.clock.Load() >= one.start+int64(testRelease) {
		got = one.Gen
	}
	if got != one.Gen {
		w.t.Errorf("writer of generation %d (here %v) finds stamp %d in its space", one.Gen, one.here, got)
	}
	if w.r.IntN(5) == 0 {
		_ = w.Abort(one.Ref, one.Gen)
		return
	}
	var loc Loc
	if w.r.IntN(2) == 0 {
		loc = Loc{1, uint32(one.Gen), 0}
	}
	w.drop(w.Commit(w.now(), one.Ref, one.Gen, one.Gen, loc))
}

func (w *worker) read() {
	o, err := w.Acquire(w.now(), w.key(), w.r.Int64N(2)*second)
	if err != nil {
		return
	}
	for range 1 + w.r.IntN(3) {
		if got := w.foreign(o.Extents(), o.Digest); o.InMemory() && got != o.Digest {
			w.t.Errorf("reader of generation %d finds stamp %d", o.Digest, got)
		}
		runtime.Gosched()
	}
	w.Release(o.Holder())
}

func (w *worker) readElsewhere() {
	o, err := w.Guard(w.now(), w.key(), second)
	if err != nil || !o.InMemory() {
		return
	}
	runtime.Gosched()
	got := w.foreignElsewhere(o.Extents(), o.Digest)
	if o.CheckLease(w.clock.Load()) == nil && got != o.Digest {
		w.t.Errorf("guarded reader of generation %d finds stamp %d", o.Digest, got)
	}
}

func (w *worker) evict() {
	tier := Tier(w.r.IntN(int(Tiers)))
	victims, _ := w.Victims(w.now(), tier, policy.Need{Bytes: 10000}, policy.Config{})
	for _, v := range victims {
		gone, err := w.Evict(w.now(), v, tier)
		for _, e := range gone {
			w.drop(e.Gone, err)
		}
	}
}

func (w *worker) copyUpOrDown() {
	o, err := w.Stat(w.key())
	if err != nil {
		return
	}
	c, err := w.StartCopy(o.Holder(), w.GenOf(o.Holder()), Tier(w.r.IntN(int(Tiers))))
	if err != nil {
		return
	}
	runtime.Gosched()
	if c.InMemory() {
		if got := w.foreign(c.Extents(), c.Digest); got != c.Digest {
			w.t.Errorf("copier of generation %d finds stamp %d", c.Digest, got)
		}
		_ = w.Attach(c.Ref, Loc{2, uint32(c.Gen), 0}, false)
		return
	}
	extents, err := w.PlaceCopy(&c)
	if err != nil {
		w.Uncopied(c.Ref)
		return
	}
	w.stamp(extents, c.Digest)
	_ = w.Promoted(c.Ref, extents)
}

func (w *worker) groupCommand() {
	k := key(fmt.Sprintf("key-%d", w.r.IntN(2)))
	if w.r.IntN(3) != 0 {
		_, _ = w.Group(k)
		pin := w.r.IntN(8) == 0
		_, _ = w.PinGroup(k, PinRequest{HardPin: &pin})
		return
	}
	gone, _, err := w.RemoveGroup(w.now(), k, w.r.IntN(2) == 0)
	for _, one := range gone {
		w.drop(one.Replaced, err)
	}
}

// look uses what walks the records without their locks.
func (w *worker) look() {
	for n := uint32(1); n < w.Pages(); n++ {
		for _, found := range w.ScanPage(n, key("key-1"), nil) {
			if found.Name != "key-1" && found.Name != "key-10" && found.Name != "key-11" {
				w.t.Errorf("scan for key-1 found %q", found.Name)
			}
		}
		for _, v := range w.MemoryOnly(n) {
			if c, err := w.StartCopy(v.Ref, v.Gen, TierSSD); err == nil {
				w.Uncopied(c.Ref)
			}
		}
	}
	names := []string{crowdKey(0), crowdKey(1), crowdKey(2)}
	w.ExistsBatch(w.now(), "", names, second, make([]bool, 3))
	_ = w.Usage()
	w.TakeEffects()
}
