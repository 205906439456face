package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// crashWorker does random operations on keys of its own, so that it knows what each has.
type crashWorker struct {
	s       *Store
	j       *crashJournal
	rng     *rand.Rand
	name    string
	have    map[string]crashEffect
	unsure  map[string]bool // an operation failed: only a removal or a replacing put that works tells again
	ver     uint32
	trusted bool // errors other than a full store are a bug
	stop    *atomic.Bool
	err     error
}

const crashKeys = 20

func newCrashWorker(s *Store, j *crashJournal, seed uint64, name string) *crashWorker {
	return &crashWorker{s: s, j: j, rng: rand.New(rand.NewPCG(seed, uint64(name[0]))), name: name,
		have: map[string]crashEffect{}, unsure: map[string]bool{}, stop: new(atomic.Bool)}
}

// adopt makes the worker know what an earlier one left.
func (w *crashWorker) adopt(m map[string]crashEffect, ver uint32) {
	for name, x := range m {
		if name[:1] == w.name {
			w.have[name] = x
		}
	}
	w.ver = ver
}

func (w *crashWorker) run() {
	for !w.stop.Load() && w.err == nil {
		w.step()
	}
}

func (w *crashWorker) step() {
	switch n := w.rng.IntN(100); {
	case n < 34:
		w.put()
	case n < 42:
		w.batch()
	case n < 50:
		w.writer()
	case n < 62:
		w.remove()
	case n < 65:
		w.removeBatch()
	case n < 73:
		w.link()
	case n < 81:
		w.pin()
	case n < 83:
		w.removeGroup()
	case n < 85:
		_ = w.j.entry(crashEntry{Sync: true}, func() error { return w.s.Sync(context.Background()) })
	case n < 86:
		w.compact()
	default:
		w.get()
	}
}

// compact moves what it may, which changes nothing that can be seen.
func (w *crashWorker) compact() {
	w.s.compacting.Lock()
	defer w.s.compacting.Unlock()
	if files, err := w.s.tier.Sparse(context.Background()); err == nil {
		w.s.moveAll(context.Background(), files)
	}
}

func (w *crashWorker) key() string { return fmt.Sprintf("%s%d", w.name, w.rng.IntN(crashKeys)) }

func (w *crashWorker) size() int {
	switch w.rng.IntN(10) {
	case 0:
		return 16 + w.rng.IntN(600_000)
	case 1, 2, 3:
		return 16 + w.rng.IntN(150_000)
	}
	return 16 + w.rng.IntN(10_000)
}

// fresh is a new version of a key, and the options to put it with.
func (w *crashWorker) fresh(key string) (crashEffect, *PutOptions) {
	w.ver++
	x := crashEffect{Key: key, Of: key, Ver: w.ver, Size: w.size(), Durable: w.rng.IntN(3) == 0, Hard: w.rng.IntN(12) == 0,
		Type: [...]ObjectType{KVCache, KVCache, Weight, Tensor}[w.rng.IntN(4)]}
	if w.rng.IntN(5) == 0 {
		x.Group = fmt.Sprintf("%sgroup%d", w.name, w.rng.IntN(3))
	}
	o := &PutOptions{Type: x.Type, HardPin: x.Hard, Durable: x.Durable, Group: x.Group, Replace: true}
	if old, ok := w.have[key]; ok {
		x.Hard = x.Hard || old.Hard
		x.Group = old.Group
		if o.Group != "" {
			o.Group = old.Group
		}
	}
	return x, o
}

// did applies effects to what the worker knows.
func (w *crashWorker) did(err error, effects ...crashEffect) {
	for _, x := range effects {
		switch {
		case err != nil:
			w.unsure[x.Key] = true
		case x.Gone:
			delete(w.have, x.Key)
			delete(w.unsure, x.Key)
		default:
			w.have[x.Key] = x
			delete(w.unsure, x.Key)
		}
	}
	if err != nil && w.trusted && !errors.Is(err, ErrNoSpace) && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrGroupNotFound) {
		w.err = fmt.Errorf("%+v: %w", effects, err)
	}
}

// clear makes sure what a key has after an operation on it failed. It reports whether that is known now.
func (w *crashWorker) clear(key string) bool {
	if !w.unsure[key] {
		return true
	}
	i, err := w.s.Stat(key)
	old, had := w.have[key]
	switch {
	case err != nil:
		delete(w.have, key)
	case had && i.Type == old.Type && int(i.Size) == old.Size:
		old.Hard, old.Group = i.HardPin, i.Group
		w.have[key] = old
	default: // it is something else: start anew
		x := crashEffect{Key: key, Gone: true}
		if w.j.do([]crashEffect{x}, func() error { return w.s.Remove(key, true) }) != nil {
			if _, err := w.s.Stat(key); err == nil {
				return false
			}
			// Only the record is left. Nobody inherits the pins of what was there.
		}
		delete(w.have, key)
	}
	delete(w.unsure, key)
	return true
}

func (w *crashWorker) put() {
	key := w.key()
	if !w.clear(key) {
		return
	}
	x, o := w.fresh(key)
	v := x.value()
	w.did(w.j.do([]crashEffect{x}, func() error {
		switch w.rng.IntN(3) {
		case 0:
			return w.s.PutParts(context.Background(), key, [][]byte{v[:7], v[7:]}, o)
		case 1:
			return w.s.PutFrom(context.Background(), key, onlyReader{bytes.NewReader(v)}, int64(len(v)), o)
		}
		return w.s.Put(context.Background(), key, v, o)
	}), x)
}

// onlyReader hides what a bytes.Reader can do besides.
type onlyReader struct{ r *bytes.Reader }

func (r onlyReader) Read(p []byte) (int, error) { return r.r.Read(p) }

// batch puts several keys; each has its own result.
func (w *crashWorker) batch() {
	var items []PutItem
	var effects []crashEffect
	for _, i := range w.rng.Perm(crashKeys)[:3] {
		key := fmt.Sprintf("%s%d", w.name, i)
		if !w.clear(key) {
			continue
		}
		x, o := w.fresh(key)
		effects = append(effects, x)
		items = append(items, PutItem{Key: key, Parts: [][]byte{x.value()}, Opts: o})
	}
	w.many(effects, func() []error { return w.s.PutBatch(context.Background(), items) })
}

// many journals the results of a batch: one entry, or if some failed those apart.
func (w *crashWorker) many(effects []crashEffect, fn func() []error) {
	var errs []error
	_ = w.j.nested(effects, func() []error { errs = fn(); return errs })
	for i, x := range effects {
		w.did(errs[i], x)
	}
}

// nested journals one operation per effect around a call that does all.
func (j *crashJournal) nested(effects []crashEffect, fn func() []error) (errs []error) {
	var inner func(i int) error
	inner = func(i int) error {
		if i == len(effects) {
			errs = fn()
			return nil
		}
		return j.do(effects[i:i+1], func() error {
			_ = inner(i + 1)
			return errs[i]
		})
	}
	_ = inner(0)
	return errs
}

func (w *crashWorker) writer() {
	key := w.key()
	if !w.clear(key) {
		return
	}
	x, o := w.fresh(key)
	v := x.value()
	end := w.rng.IntN(8)
	if end == 0 { // never committed
		if wr, err := w.s.Create(context.Background(), key, int64(len(v)), o); err == nil {
			_, _ = wr.Write(v[:len(v)/2])
			if w.rng.IntN(2) == 0 {
				wr.Abort()
			} else {
				defer wr.Abort() // after a while
				w.get()
			}
		}
		return
	}
	w.did(w.j.do([]crashEffect{x}, func() error {
		wr, err := w.s.Create(context.Background(), key, int64(len(v)), o)
		if err != nil {
			return err
		}
		for at := 0; at < len(v); {
			n := min(len(v)-at, 1+w.rng.IntN(40_000))
			if _, err := wr.Write(v[at : at+n]); err != nil {
				wr.Abort()
				return err
			}
			at += n
		}
		return wr.Commit(context.Background())
	}), x)
}

func (w *crashWorker) remove() {
	key := w.key()
	w.clear(key)
	x := crashEffect{Key: key, Gone: true}
	if _, ok := w.have[key]; ok {
		w.did(w.j.do([]crashEffect{x}, func() error { return w.s.Remove(key, true) }), x)
	}
}

func (w *crashWorker) removeBatch() {
	var keys []string
	var effects []crashEffect
	for _, i := range w.rng.Perm(crashKeys)[:4] {
		key := fmt.Sprintf("%s%d", w.name, i)
		w.clear(key)
		if _, ok := w.have[key]; ok {
			keys, effects = append(keys, key), append(effects, crashEffect{Key: key, Gone: true})
		}
	}
	if len(keys) > 0 {
		w.many(effects, func() []error { return w.s.RemoveBatch(keys, true) })
	}
}

func (w *crashWorker) removeGroup() {
	group := fmt.Sprintf("%sgroup%d", w.name, w.rng.IntN(3))
	var effects []crashEffect
	for key, x := range w.have {
		if w.unsure[key] {
			return
		}
		if x.Group == group {
			effects = append(effects, crashEffect{Key: key, Gone: true})
		}
	}
	if len(effects) > 0 {
		w.did(w.j.do(effects, func() error { _, err := w.s.RemoveGroup(group, true); return err }), effects...)
	}
}

func (w *crashWorker) link() {
	key, target := w.key(), w.key()
	w.clear(key)
	w.clear(target)
	of, ok := w.have[target]
	if _, there := w.have[key]; there || !ok || w.unsure[key] || w.unsure[target] {
		return
	}
	x := of
	x.Key, x.Hard, x.Group, x.Durable = key, w.rng.IntN(8) == 0, "", w.rng.IntN(2) == 0
	effects := []crashEffect{x}
	if x.Durable { // makes the target durable, too
		of.Durable = true
		effects = append(effects, of)
	}
	w.did(w.j.do(effects, func() error {
		return w.s.Link(context.Background(), key, target, &PutOptions{HardPin: x.Hard, Durable: x.Durable})
	}), effects...)
}

func (w *crashWorker) pin() {
	key := w.key()
	w.clear(key)
	x, ok := w.have[key]
	if !ok || w.unsure[key] {
		return
	}
	x.Hard = w.rng.IntN(4) == 0
	w.did(w.j.do([]crashEffect{x}, func() error { return w.s.SetPins(key, PinChange{HardPin: &x.Hard}) }), x)
}

// get reads a key, several times in a row now and then, so that it is promoted.
func (w *crashWorker) get() {
	key := w.key()
	x, ok := w.have[key]
	if w.unsure[key] {
		return
	}
	for range 1 + w.rng.IntN(4) {
		p, err := w.s.Get(context.Background(), key, nil)
		switch {
		case w.stop.Load() || !w.trusted:
		case !ok && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrNotReady):
			w.err = fmt.Errorf("Get(%q) = %d bytes, %v, want ErrNotFound", key, len(p), err)
		case ok && err != nil:
			w.err = fmt.Errorf("Get(%q): %w, want %+v", key, err, x)
		case ok && !bytes.Equal(p, x.value()):
			w.err = fmt.Errorf("Get(%q): %d bytes that are not %+v", key, len(p), x)
		}
	}
}

// crashOptions are those of a store with little memory.
func crashOptions() Options {
	return Options{MemoryBytes: MinMemoryBytes, FileBytes: 64 << 10, LeaseTTL: time.Millisecond, PromoteAfter: 1,
		HighWatermark: 0.6, EvictionRatio: 0.1}
}
