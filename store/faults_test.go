package store

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store/internal/catalog"
	"github.com/kvcache-ai/mooncake-go/store/internal/catalog/catalogtest"
	"github.com/kvcache-ai/mooncake-go/store/internal/ssd/ssdtest"
)

// faultStory is a fixed series of operations that touches every kind of I/O. Each says with which of the store's
// errors it may fail, and is tried again then: the store must stay usable.
type faultStory struct {
	t    *testing.T
	name string
	s    *Store
	m    *crashModel
	j    *crashJournal
	ver  uint32
}

func (f *faultStory) try(effects []crashEffect, sync bool, fn func() error, may ...error) {
	f.t.Helper()
	for try := 0; ; try++ {
		err := f.j.entry(crashEntry{Effects: effects, Sync: sync}, fn)
		if err == nil {
			return
		}
		named := false
		for _, want := range may {
			named = named || errors.Is(err, want)
		}
		require.True(f.t, named, "%s: %+v: %v is none of %v", f.name, effects, err, may)
		require.Less(f.t, try, 3, "%s: %+v: still %v", f.name, effects, err)
	}
}

func (f *faultStory) put(key string, size int, o PutOptions) {
	f.t.Helper()
	f.ver++
	x := crashEffect{Key: key, Of: key, Ver: f.ver, Size: size, Durable: o.Durable, Hard: o.HardPin, Type: o.Type, Group: o.Group}
	o.Replace = true
	f.try([]crashEffect{x}, false, func() error { return f.s.Put(context.Background(), key, x.value(), &o) }, ErrNotDurable)
}

func (f *faultStory) remove(key string) {
	f.t.Helper()
	f.try([]crashEffect{{Key: key, Gone: true}}, false, func() error {
		err := f.s.Remove(key, true)
		if errors.Is(err, ErrNotFound) { // the try before got that far
			err = nil
		}
		return err
	}, ErrNotDurable)
}

func (f *faultStory) get(key string) {
	f.t.Helper()
	f.try(nil, false, func() error {
		p, err := f.s.Get(context.Background(), key, &ReadOptions{Verify: VerifyAlways})
		if err == nil {
			require.Equal(f.t, f.m.keys[key].cur.value(), p, "%s: %s", f.name, key)
		}
		return err
	}, ErrRead)
}

func (f *faultStory) link(key, target string) {
	f.t.Helper()
	of := *f.m.keys[target].cur
	of.Durable = true
	x := of
	x.Key, x.Hard, x.Group = key, false, ""
	f.try([]crashEffect{x, of}, false, func() error {
		return f.s.Link(context.Background(), key, target, &PutOptions{Durable: true})
	}, ErrNotDurable)
}

func (f *faultStory) pin(key string) {
	f.t.Helper()
	x, yes := *f.m.keys[key].cur, true
	x.Hard = true
	f.try([]crashEffect{x}, false, func() error { return f.s.SetPins(key, PinChange{HardPin: &yes}) }, ErrNotDurable)
}

// run is the story.
func (f *faultStory) run() {
	f.t.Helper()
	sync := func() {
		f.try(nil, true, func() error { return f.s.Sync(context.Background()) }, ErrNotDurable)
	}
	f.put("cache", 5000, PutOptions{})
	f.put("durable", 70_000, PutOptions{Durable: true, Group: "g"})
	f.put("gone", 30_000, PutOptions{Durable: true})
	f.put("own", 300_000, PutOptions{Durable: true, Type: Weight})
	f.put("ownmem", 200_000, PutOptions{Type: Weight})
	f.put("durable", 900_000, PutOptions{Durable: true, Group: "g"})
	f.put("big", 700_000, PutOptions{Durable: true})
	sync()
	f.link("link", "ownmem")
	f.link("other", "own")
	f.pin("durable")
	f.remove("gone")
	f.remove("own")
	f.put("own", 100_000, PutOptions{Durable: true, Type: Weight})
	f.get("own")
	f.get("own") // and is promoted
	f.get("other")
	f.put("big", 200, PutOptions{})
	f.s.evict(context.Background(), 32<<20)
	for _, key := range []string{"cache", "durable", "own", "other", "link"} {
		f.get(key)
	}
	f.remove("other")
	f.s.runEffects()
	_ = f.s.freeForgotten()
}

// TestFaultSweep makes the n-th operation of each kind fail, for every n that the story reaches, opening included. Then
// the power fails.
func TestFaultSweep(t *testing.T) {
	type kind struct {
		op  string
		err error
	}
	var kinds []kind
	for _, op := range []string{"OpenFile", "ReadDir", "Stat", "Remove", "Rename", "MkdirAll", "SyncDir", "FreeBytes",
		"ReadAt", "WriteAt", "Sync", "Truncate", "Allocate", "PunchHole", "Chmod"} {
		kinds = append(kinds, kind{op, syscall.EIO})
		if op != "ReadAt" && !testing.Short() {
			kinds = append(kinds, kind{op, syscall.ENOSPC})
		}
	}
	for _, k := range kinds {
		t.Run(fmt.Sprintf("%s-%v", k.op, k.err), func(t *testing.T) {
			for n := 1; ; n++ {
				fired := faultRound(t, fmt.Sprintf("%s %d %v", k.op, n, k.err), func(r *crashRig) func() bool {
					r.fs.Inject(ssdtest.Fault{At: n, Op: k.op, Err: k.err, Short: n%2 == 0})
					return r.fs.Fired
				})
				if !fired {
					return
				}
			}
		})
	}
	for op, name := range map[catalogtest.Op]string{catalogtest.Apply: "Apply", catalogtest.Scan: "Scan", catalogtest.Meta: "Meta",
		catalogtest.Open: "Open", catalogtest.Close: "Close"} {
		t.Run(name, func(t *testing.T) {
			for n := 0; ; n++ {
				hit := &countedError{}
				fired := faultRound(t, fmt.Sprintf("%s %d", name, n), func(r *crashRig) func() bool {
					r.disk.Inject(catalogtest.Fault{Op: op, After: n / 2, Err: hit, Applied: n%2 == 1})
					return func() bool { return !r.disk.Armed() }
				})
				if !fired {
					return
				}
			}
		})
	}
}

type countedError struct{}

func (*countedError) Error() string { return "injected" }
func (*countedError) Unwrap() error { return catalog.ErrNoSpace }

// faultRound runs the story with one fault, then the power fails.
func faultRound(t *testing.T, name string, inject func(*crashRig) (fired func() bool)) bool {
	opts := crashOptions()
	opts.PromoteAfter = -1
	r := newCrashRig(t, opts)
	m := newCrashModel()
	fired := inject(r)
	if err := r.open(); err != nil {
		require.True(t, fired(), "%s: Open: %v", name, err)
		r.boot()
	}
	f := &faultStory{t: t, name: name, s: r.s, m: m, j: &crashJournal{write: m.add}}
	f.run()
	hit := fired()
	if hit { // also what is on the disk is right, as far as it was promised
		r.powerFails(nil)
		m.checkAll(t, r.boot(), crashPower)
		m.empty(t, r.s)
	}
	r.fs.Inject(ssdtest.Fault{})
	r.disk.Heal()
	_ = r.s.Close()
	r.s = nil
	return hit
}

// TestFaultLasting has a disk that fails for a while: everything fails by name, what was stored still reads, and when
// the disk works again so does the store.
func TestFaultLasting(t *testing.T) {
	ctx := context.Background()
	for _, op := range []string{"WriteAt", "Sync"} {
		for _, cause := range []error{syscall.EIO, syscall.ENOSPC} {
			r := newCrashRig(t, Options{})
			s := r.boot()
			require.NoError(t, s.Put(ctx, "old", random(5000), durably()))
			r.fs.Inject(ssdtest.Fault{At: 1, Op: op, Err: cause, Stay: true})
			for range 5 {
				err := s.Put(ctx, "new", random(6000), durably())
				require.ErrorIs(t, err, ErrNotDurable)
				if cause == syscall.ENOSPC {
					require.ErrorIs(t, err, ErrNoSpace)
				}
				wantAbsent(t, s, "new")
			}
			require.NoError(t, s.Put(ctx, "memory", random(7000), nil))
			require.ErrorIs(t, s.Sync(ctx), ErrNotDurable)
			wantWhole(t, s, "old", random(5000))
			r.fs.Inject(ssdtest.Fault{})
			require.NoError(t, s.Put(ctx, "new", random(6000), durably()))
			require.NoError(t, s.Sync(ctx))
			s = r.reboot()
			for key, n := range map[string]int{"old": 5000, "new": 6000, "memory": 7000} {
				wantWhole(t, s, key, random(n))
			}
		}
	}
}

// TestFaultReads has a disk that can't be read: the error says so, and nothing is taken for bad that is not.
func TestFaultReads(t *testing.T) {
	ctx := context.Background()
	r := newCrashRig(t, Options{LeaseTTL: time.Nanosecond, PromoteAfter: -1})
	s := r.boot()
	require.NoError(t, s.Put(ctx, "k", random(200_000), durably()))
	s = r.reboot()
	r.fs.Inject(ssdtest.Fault{At: 1, Op: "ReadAt", Err: syscall.EIO, Stay: true})
	for range 3 {
		_, err := s.Get(ctx, "k", nil)
		require.ErrorIs(t, err, ErrRead)
		require.ErrorIs(t, err, syscall.EIO)
		_, err = s.View(ctx, "k", nil)
		require.ErrorIs(t, err, ErrRead)
	}
	r.fs.Inject(ssdtest.Fault{})
	wantWhole(t, s, "k", random(200_000))
}

// TestReopenKeepsSSDLimit has a disk that is mostly full with the store's own objects: they are no reason for a lower
// limit after a restart.
func TestReopenKeepsSSDLimit(t *testing.T) {
	r := newCrashRig(t, Options{})
	r.fs.SetCapacity(16 << 20)
	s := r.boot()
	for i := range 10 {
		require.NoError(t, s.Put(context.Background(), fmt.Sprint(i), random(1<<20), nil))
	}
	require.NoError(t, s.Sync(context.Background()))
	before, err := s.Usage()
	require.NoError(t, err)
	s = r.reboot()
	after, err := s.Usage()
	require.NoError(t, err)
	require.InEpsilon(t, before.SSDLimit, after.SSDLimit, 0.1)
	require.NoError(t, s.Put(context.Background(), "more", random(1<<20), durably()))
	for i := range 10 {
		wantWhole(t, s, fmt.Sprint(i), random(1<<20))
	}
}
