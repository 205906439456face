package store

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pkg/errors"
	"github.com/stretchr/testify/require"
)

func (a *actor) remove(key string) {
	force := a.r.IntN(2) == 0
	var err error
	if a.r.IntN(2) == 0 {
		err = a.s.Remove(key, force)
	} else {
		err = a.s.RemoveBatch([]string{key}, force)[0]
	}
	if errors.Is(err, ErrHasLease) && !force {
		return
	}
	if a.model.found(a, key, err) {
		delete(a.model, key)
	}
}

func (a *actor) link(key string) {
	target := a.key()
	a.nextID++
	o := &object{order: a.nextID}
	opts := a.options(o)
	err := a.s.Link(context.Background(), key, target, opts)
	switch {
	case errors.Is(err, ErrExists):
		a.check(a.model[key] != nil, "link %s: exists, but never was put or was removed", key)
		return
	case errors.Is(err, ErrBusy), errors.Is(err, ErrNoSpace):
		return
	case errors.Is(err, ErrNotFound):
		a.model.gone(a, target)
		return
	}
	a.ok(err, "link %s to %s", key, target)
	t := a.model[target]
	a.check(t != nil && key != target, "linked %s to %s, which is not there", key, target)
	a.model.gone(a, key)
	o.src, o.id, o.size = t.src, t.id, t.size
	a.model[key] = o
}

func (a *actor) pin(key string) {
	hard, soft := a.r.IntN(8) == 0, time.Duration(a.r.IntN(2))*time.Minute
	if o := a.model[key]; o != nil && o.size > 64<<10 {
		hard = false
	}
	err := a.s.SetPins(key, PinChange{HardPin: &hard, SoftPin: &soft})
	if a.model.found(a, key, err) {
		a.model[key].hard = hard
	}
}

// groups lists, pins or removes a whole group.
func (a *actor) groups(string) {
	group := fmt.Sprintf("%s-group-%d", a.name, a.r.IntN(4))
	names, err := a.s.Group(group)
	if errors.Is(err, ErrGroupNotFound) {
		return
	}
	a.ok(err, "list group %s", group)
	for _, name := range names {
		o := a.model[name]
		a.check(o != nil && o.group == group, "group %s has %s: model %+v", group, name, o)
	}
	if a.r.IntN(2) == 0 {
		hard := false
		if err := a.s.SetGroupPins(group, PinChange{HardPin: &hard}); !errors.Is(err, ErrGroupNotFound) {
			a.ok(err, "unpin group %s", group)
			for _, o := range a.model {
				o.hard = o.hard && o.group != group
			}
		}
		return
	}
	removed, err := a.s.RemoveGroup(group, a.r.IntN(2) == 0)
	if errors.Is(err, ErrHasLease) || errors.Is(err, ErrGroupNotFound) {
		return
	}
	a.ok(err, "remove group %s", group)
	for _, name := range removed {
		o := a.model[name]
		a.check(o != nil && o.group == group, "group %s had %s: model %+v", group, name, o)
		delete(a.model, name)
	}
	for name, o := range a.model {
		if o.group == group { // evicted before
			_, err := a.s.Stat(name)
			a.check(errors.Is(err, ErrNotFound), "%s is there without its group %s: %v", name, group, err)
			a.model.gone(a, name)
			break
		}
	}
}

// batch puts several keys of which one is bad and one comes twice, and reads them.
func (a *actor) batch(key string) {
	ctx := context.Background()
	var items []PutItem
	var objects []*object
	for i := range 4 {
		k := key
		if i == 1 || i == 2 {
			k = a.key()
		}
		o, opts, p := a.fresh(k)
		items = append(items, PutItem{k, [][]byte{p}, opts})
		objects = append(objects, o)
	}
	a.putBatch(items, objects)
	gets := make([]GetItem, len(objects))
	for i, o := range objects {
		gets[i] = GetItem{Key: items[i].Key, Dst: [][]byte{make([]byte, o.size)}}
		if old := a.model[items[i].Key]; old != nil && old.size > o.size {
			gets[i].Dst[0] = make([]byte, old.size)
		}
	}
	a.s.GetBatch(ctx, gets, a.readOptions())
	for i, g := range gets {
		if g.Err != nil {
			a.check(errors.Is(g.Err, ErrNotFound), "batch get of %s: %v", g.Key, g.Err)
			a.model.gone(a, g.Key)
		} else if a.model.found(a, g.Key, nil) {
			a.check(bytes.Equal(gets[i].Dst[0][:g.N], a.want(g.Key)), "batch get of %s: wrong bytes", g.Key)
		}
	}
}

// putBatch puts items, which are objects, and an item that is bad.
func (a *actor) putBatch(items []PutItem, objects []*object) {
	items = append(items, PutItem{Key: "", Parts: [][]byte{{1}}})
	errs := a.s.PutBatch(context.Background(), items)
	a.check(errors.Is(errs[len(objects)], ErrInvalidKey), "put of an empty key in a batch: %v", errs[len(objects)])
	// What is put again was gone before. All of it is, before the group of one is judged: another of its members may be
	// there again, by another item.
	before := make(model)
	for i, err := range errs[:len(objects)] {
		if key := items[i].Key; err == nil && a.model[key] != nil {
			before[key] = a.model[key]
			delete(a.model, key)
		}
	}
	for key, o := range before {
		a.model.evicted(a, key, o)
	}
	// Durable items of a batch become visible after all others.
	for _, durable := range []bool{false, true} {
		for i, o := range objects {
			if o.durable == durable {
				if errors.Is(errs[i], ErrExists) { // perhaps because of another item of this batch
					continue
				}
				a.model.put(a, items[i].Key, o, false, errs[i])
			}
		}
	}
}

// scan lists the actor's keys.
func (a *actor) scan(string) {
	seen := make(map[string]bool)
	for info, err := range a.s.Objects(context.Background(), a.name+"/") {
		a.ok(err, "scan")
		o := a.model[info.Key]
		a.check(o != nil && info.Size == int64(o.size), "scan found %+v, model %+v", info, o)
		a.check(!seen[info.Key], "scan found %s twice", info.Key)
		seen[info.Key] = true
	}
	for key := range a.model {
		if _, err := a.s.Stat(key); !seen[key] && a.model[key] != nil {
			a.check(errors.Is(err, ErrNotFound), "scan missed %s: %v", key, err)
			a.model.gone(a, key)
		}
	}
}

func (a *actor) removeRegex(key string) {
	n, err := a.s.RemoveRegex(context.Background(), "^"+key+"[0-9]?$", true)
	a.ok(err, "remove by pattern")
	for k := range a.model {
		if k == key || len(k) == len(key)+1 && strings.HasPrefix(k, key) {
			_, err := a.s.Stat(k)
			a.check(errors.Is(err, ErrNotFound), "%s is there after its removal by pattern: %v", k, err)
			delete(a.model, k)
			n--
		}
	}
	a.check(n <= 0, "removed %d by pattern that were not there", n)
}

// shared does something to a key that others use as well.
func (a *actor) shared() {
	ctx := context.Background()
	key := fmt.Sprintf("shared/%d", a.r.IntN(16))
	id, size := a.r.Uint64(), max(a.size(), 16)
	opts := &PutOptions{OwnFile: a.r.IntN(2) == 0, Durable: a.disk && a.r.IntN(100) == 0}
	var err error
	switch a.r.IntN(8) {
	case 0:
		err = a.s.Put(ctx, key, value(key, id, size), opts)
	case 1:
		err = a.s.Upsert(ctx, key, value(key, id, size), opts)
	case 2:
		var w *Writer
		if w, err = a.s.Create(ctx, key, int64(size), nil); err == nil {
			p := value(key, id, size)
			_, err = w.Write(p[:size/2])
			a.ok(err, "write shared %s", key)
			_, err = w.Write(p[size/2:])
			a.ok(err, "write shared %s", key)
			err = w.Commit(ctx)
		}
	case 3:
		err = a.s.Remove(key, a.r.IntN(2) == 0)
	case 4:
		var v *View
		if v, err = a.s.View(ctx, key, a.readOptions()); err == nil {
			p := bytes.Join(v.Segments(), nil)
			a.whole(key, p)
			if len(a.views) < 4 {
				a.views = append(a.views, heldView{v, p})
			} else {
				a.ok(v.Close(), "close view of %s", key)
			}
		}
	case 5:
		var f *File
		if f, err = a.s.File(ctx, key, a.readOptions()); err == nil {
			p, err := os.ReadFile(f.Path())
			a.ok(err, "read file of %s", key)
			a.whole(key, p)
			a.ok(f.Close(), "close file of %s", key)
		}
	default:
		var p []byte
		if p, err = a.s.Get(ctx, key, a.readOptions()); err == nil {
			a.whole(key, p)
		}
	}
	for _, may := range []error{nil, ErrNotFound, ErrExists, ErrNotReady, ErrHasLease, ErrNoSpace, ErrNotSupported} {
		if errors.Is(err, may) {
			return
		}
	}
	a.ok(err, "shared %s", key)
}

// TestModelOfEvictedGroup puts members of a group again, in one batch and in any order, after it was evicted.
func TestModelOfEvictedGroup(t *testing.T) {
	s := openTest(t, Options{MemoryBytes: MinMemoryBytes, LeaseTTL: time.Nanosecond})
	a := &actor{s: s, name: "a", model: make(model)}
	put := func(names ...string) {
		var items []PutItem
		var objects []*object
		for _, name := range names {
			a.nextID++
			o := &object{src: name, id: a.nextID, size: 100, order: a.nextID, group: "g"}
			objects = append(objects, o)
			items = append(items, PutItem{name, [][]byte{value(name, o.id, o.size)}, &PutOptions{Group: "g"}})
		}
		a.putBatch(items, objects)
	}
	for range 2 {
		put("a/1", "a/2", "a/3", "a/4")
		require.Positive(t, s.evict(context.Background(), 400, 0))
		put("a/4", "a/1")
		require.Len(t, a.model, 2)
		require.Positive(t, s.evict(context.Background(), 400, 0))
	}
	a.probe("a/1")
	require.Empty(t, a.model)
}

func TestModel(t *testing.T) {
	for name, opts := range map[string]Options{
		"memory":    {},
		"directory": {Dir: t.TempDir(), SSDBytes: 32 << 20},
		"eager":     {Dir: t.TempDir(), SSDBytes: 32 << 20, Offload: OffloadEager, PromoteAfter: 1},
		"never":     {Dir: t.TempDir(), SSDBytes: 32 << 20, Offload: OffloadNever, PromoteAfter: -1},
	} {
		t.Run(name, func(t *testing.T) {
			opts.MemoryBytes, opts.FileBytes, opts.LeaseTTL = 20<<20, 64<<10, time.Millisecond
			runModel(t, opts)
		})
	}
}

func runModel(t *testing.T, opts Options) {
	seed, ops := *modelSeed, *modelOps
	if seed == 0 {
		seed = rand.Uint64()
	}
	if ops == 0 {
		ops = 25_000
		if raceEnabled {
			ops /= 5
		}
	}
	s := openTest(t, opts)
	const actors = 4
	var stop atomic.Bool
	var wg sync.WaitGroup
	for i := range actors {
		a := &actor{s: s, r: rand.New(rand.NewPCG(seed, uint64(i))), name: fmt.Sprint("actor", i), disk: opts.Dir != "",
			model: make(model), nextID: uint64(i) << 48}
		wg.Go(func() {
			defer func() {
				if f, ok := recover().(modelFailure); ok {
					stop.Store(true)
					t.Errorf("-seed %d: %s\n%v", seed, f, s.Explain(""))
				}
			}()
			for n := 0; n < ops/actors && !stop.Load(); n++ {
				a.step()
			}
			a.letGo("")
			a.scan("")
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	c := s.Counters()
	t.Logf("-seed %d: %d puts, %d evicted from memory, %d from SSD, %d offloaded, %d promoted", seed, c.Puts,
		c.EvictedKeys[TierMemory], c.EvictedKeys[TierSSD], c.OffloadedKeys, c.Promotions)
	require.Zero(t, c.Quarantined)
	requireEmptied(t, s)
}

// requireEmptied removes everything and checks that nothing stays taken.
func requireEmptied(t *testing.T, s *Store) {
	t.Helper()
	ctx := context.Background()
	require.NoError(t, s.WaitReady(ctx))
	var u Usage
	eventually(t, "all objects removed", func() bool {
		_, err := s.RemoveAll(ctx, true)
		require.NoError(t, err)
		u, err = s.Usage()
		require.NoError(t, err)
		return u.Objects == [Types]int64{} && u.InUse == 0 && u.Reserved == 0 && u.OwnFiles == 0 && u.SSDLive == 0 &&
			u.DataFree == u.DataCapacity && u.HardPinned == 0 && u.Groups == 0 && u.Tiers == [2][Types]TierUsage{}
	})
	if t.Failed() {
		t.Logf("%+v", u)
	}
}
