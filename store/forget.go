package store

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store/internal/catalog"
	"github.com/kvcache-ai/mooncake-go/store/internal/master"
	"github.com/kvcache-ai/mooncake-go/store/internal/ssd"
)

// recordOrder orders writes of the catalogue that follow from what the master said. Who writes records of objects
// that others can see holds it from its look at the master to the end of its write; who deletes the records of
// objects that it took out of the master holds it for reading, which is enough: a record that was written before the
// object went is deleted after, and after it went none is written.
type recordOrder struct {
	sync.RWMutex
	late lateRecords
}

// lateRecords are keys whose records could not be written: what the master says of them may not be on disk.
type lateRecords struct {
	writing sync.Mutex // taken before all others: who finds no keys may rely on it that they are written
	sync.Mutex
	keys map[master.Key]struct{}
	ever atomic.Bool // there were some
}

// add copies the keys: they may be in memory of the caller of a public method.
func (l *lateRecords) add(keys []master.Key) {
	l.Lock()
	defer l.Unlock()
	if l.keys == nil {
		l.keys = make(map[master.Key]struct{})
	}
	for _, k := range keys {
		l.keys[cloneKey(k)] = struct{}{}
	}
	l.ever.Store(true)
}

func (l *lateRecords) take() []master.Key {
	l.Lock()
	defer l.Unlock()
	keys := slices.Collect(maps.Keys(l.keys))
	l.keys = nil
	return keys
}

// forgotten is space on the SSD tier that the catalogue no longer names.
type forgotten struct {
	loc    master.Loc
	keyLen int
	size   int64
}

// deletion is a record that the catalogue is to forget, and what can go once it has.
type deletion struct {
	key    master.Key
	gen    uint64
	keep   bool       // of a copy that was to take another's place: while the object is there, its record names the other
	ref    master.Ref // with keep, of the object
	pinned master.Ref // to release, if not 0: then the master counts the key as leaving, unless
	told   bool       // it was told that this can't be waited for
	space  forgotten  // to free, if its size is not 0
	owed   bool       // the record would break a promise if it came back: see settle
}

// freeList is space that may be freed after the catalogue's next sync, and records that it could not be brought to
// forget yet. Until it has, their space stays.
type freeList struct {
	freeing  sync.Mutex // taken before all others
	retrying sync.Mutex // taken before records: who finds nothing failed may rely on it that it is done
	sync.Mutex
	list   []forgotten
	linked []forgotten // files that were to be freed but have hard links
	failed []deletion
	owed   map[master.Key]int // how many of failed, and of those that are being retried, are owed
	owing  atomic.Bool        // there is one: most calls need not look
}

func (f *freeList) keep(space forgotten) {
	f.Lock()
	f.linked = append(f.linked, space)
	f.Unlock()
}

func (f *freeList) takeLinked() []forgotten {
	f.Lock()
	defer f.Unlock()
	list := f.linked
	f.linked = nil
	return list
}

func (f *freeList) add(space ...forgotten) {
	f.Lock()
	f.list = append(f.list, space...)
	f.Unlock()
}

func (f *freeList) take() []forgotten {
	f.Lock()
	defer f.Unlock()
	list := f.list
	f.list = nil
	return list
}

// addFailed copies the keys: they may be in memory of the caller of a public method.
func (f *freeList) addFailed(list []deletion) {
	f.Lock()
	defer f.Unlock()
	for _, d := range list {
		d.key = cloneKey(d.key)
		f.failed = append(f.failed, d)
		if !d.owed {
			continue
		}
		if f.owed == nil {
			f.owed = make(map[master.Key]int)
		}
		f.owed[d.key]++
		f.owing.Store(true)
	}
}

func cloneKey(k master.Key) master.Key {
	return master.Key{Tenant: strings.Clone(k.Tenant), Name: strings.Clone(k.Name)}
}

// putBack returns what takeFailed took and could not be done.
func (f *freeList) putBack(list []deletion) {
	f.Lock()
	f.failed = append(f.failed, list...)
	f.Unlock()
}

// paid strikes out what takeFailed took and was done.
func (f *freeList) paid(list []deletion) {
	f.Lock()
	defer f.Unlock()
	for _, d := range list {
		if !d.owed {
			continue
		}
		if f.owed[d.key]--; f.owed[d.key] == 0 {
			delete(f.owed, d.key)
		}
	}
	f.owing.Store(len(f.owed) > 0)
}

func (f *freeList) owesAny(tenant string, names []string) bool {
	if !f.owing.Load() {
		return false
	}
	f.Lock()
	defer f.Unlock()
	return slices.ContainsFunc(names, func(name string) bool { return f.owed[master.Key{Tenant: tenant, Name: name}] > 0 })
}

func (f *freeList) takeFailed() []deletion {
	f.Lock()
	defer f.Unlock()
	list := f.failed
	f.failed = nil
	return list
}

// freeForgotten syncs the catalogue, then frees what it had forgotten before. When it returns, that is free, whoever
// did it.
func (c *core) freeForgotten() error {
	c.frees.freeing.Lock()
	defer c.frees.freeing.Unlock()
	if err := c.retryDeletes(); err != nil {
		return err
	}
	list := c.frees.take()
	if len(list) == 0 {
		return nil
	}
	var empty catalog.Batch
	if err := c.catalog.Apply(&empty, true); err != nil {
		c.frees.add(list...)
		return errors.WithMessage(err, "sync catalogue")
	}
	c.free(list)
	return nil
}

// free gives space of the SSD tier back. A file that somebody has a hard link to keeps its blocks: it counts as long
// as the link is there.
func (c *core) free(list []forgotten) {
	freed := make([]ssd.Freed, 0, min(len(list), freeBatch))
	for part := range slices.Chunk(list, freeBatch) {
		freed = freed[:0]
		for _, f := range part {
			if f.loc.Own != 0 && hasLinks(c.tier.OwnPath(f.loc.Own)) {
				c.frees.keep(f)
				continue
			}
			c.stamps.drop(ssdStamp(f.loc.Own))
			freed = append(freed, ssd.Freed{Loc: ssdLoc(f.loc), KeyLen: f.keyLen, Size: f.size})
		}
		c.tier.FreeAll(freed)
	}
}

// freeBatch bounds how much of the SSD tier is taken out of its books before it is given back to the file system.
const freeBatch = 4096

// freeUnlinked looks again at the files that had links.
func (c *core) freeUnlinked() { c.free(c.frees.takeLinked()) }

// deleteRecords makes the catalogue forget objects that left the master. What fails is tried again later, with its
// space kept, since nobody knows whether the records are there. The caller holds records for reading, or nobody can
// know of the objects.
func (c *core) deleteRecords(list []deletion, sync bool) error {
	var b changes
	for _, d := range list {
		b.Delete(d.key.Tenant, d.key.Name, d.gen)
	}
	if err := b.apply(c.catalog, sync); err != nil {
		c.addFailed(list)
		signal(c.wake.janitor)
		return err
	}
	for _, d := range list {
		c.departed(d)
		if d.space.size != 0 {
			c.frees.add(d.space)
		}
	}
	return nil
}

// retryDeletes tries again what deleteRecords could not do. Meanwhile an object that only left the SSD tier may be
// there again: then its record is the new one.
func (c *core) retryDeletes() error {
	c.frees.retrying.Lock()
	defer c.frees.retrying.Unlock()
	list := c.frees.takeFailed()
	if len(list) == 0 {
		return nil
	}
	c.records.Lock()
	var b changes
	sync := false
	for _, d := range list {
		sync = sync || d.owed
		if o, err := c.m.Stat(d.key); err != nil || o.Gen != d.gen || o.Flags&master.FlagSSD == 0 {
			b.Delete(d.key.Tenant, d.key.Name, d.gen)
		} else if d.keep {
			r := c.recordOf(d.key, &o)
			b.Put(&r)
		}
		if d.keep {
			c.recordLinksOf(&b, d.key.Tenant, d.ref, d.gen, master.Loc{})
		}
	}
	err := b.apply(c.catalog, sync)
	c.records.Unlock()
	if err != nil {
		c.frees.putBack(list)
		return errors.WithMessage(err, "catalogue")
	}
	c.frees.paid(list)
	for _, d := range list {
		c.departed(d)
		if d.space.size != 0 {
			c.frees.add(d.space)
		}
	}
	c.runEffects()
	return nil
}

// departed ends a removal that the catalogue has taken.
func (c *core) departed(d deletion) {
	if d.pinned == 0 {
		return
	}
	if !d.told {
		c.m.Forgotten(d.key)
	}
	c.m.Release(d.pinned)
}

// addFailed keeps deletions for later. Nobody waits for them: what is owed to their keys settle knows.
func (c *core) addFailed(list []deletion) {
	for i, d := range list {
		if d.pinned != 0 && !d.told {
			c.m.Forgotten(d.key)
			list[i].told = true
		}
	}
	c.frees.addFailed(list)
}

// awaitDepartures waits for removals of these keys by others that have not got through to the catalogue: an operation that came
// after them must not be acknowledged before, since a crash would bring back what they removed. The caller holds no lock, and
// its own removals are through.
func (c *core) awaitDepartures(tenant string, names ...string) {
	if c.catalog == nil {
		return
	}
	for _, name := range names {
		for wait := time.Microsecond; c.m.Leaving(master.Key{Tenant: tenant, Name: name}) && c.failure.get() == nil; wait = min(2*wait, time.Millisecond) {
			time.Sleep(wait)
		}
	}
}

// settle makes sure that the catalogue has forgotten, on stable storage, what it once failed to forget of these keys: a
// removed durable object, or a put that failed and whose record may be there all the same. Until it has, what happens to
// these keys next must not be acknowledged: after a crash the record would be the newest.
func (c *core) settle(tenant string, names ...string) error {
	if !c.frees.owesAny(tenant, names) {
		return nil
	}
	if err := c.retryDeletes(); err != nil {
		return errors.WithMessage(durabilityError{named(err)}, "catalogue")
	}
	return nil
}

// forget takes objects out of the catalogue that were removed or replaced, and lets go of their space. Removals of
// durable objects are on stable storage when it returns. Names and gone are parallel.
func (c *core) forget(tenant string, names []string, gone []master.Replaced) error {
	if c.catalog == nil {
		return nil
	}
	var list []deletion
	sync := false
	for i, g := range gone {
		if g.Pinned != 0 {
			k := master.Key{Tenant: tenant, Name: names[i]}
			list = append(list, deletion{key: k, gen: g.Gen, pinned: g.Pinned, owed: g.Durable})
			sync = sync || g.Durable
		}
	}
	if len(list) == 0 {
		return c.settle(tenant, names...)
	}
	err := c.retryDeletes() // they may name the same keys, and this must not come back
	if err != nil {
		c.addFailed(list)
	} else {
		c.records.RLock()
		err = c.deleteRecords(list, sync)
		c.records.RUnlock()
	}
	if err != nil {
		return errors.WithMessage(durabilityError{named(err)}, "catalogue")
	}
	return nil
}

func (c *core) forgetOne(tenant, name string, g master.Replaced) error {
	switch {
	case c.catalog == nil:
		return nil
	case g.Pinned == 0:
		return c.settle(tenant, name)
	}
	return c.forget(tenant, []string{name}, []master.Replaced{g})
}

// undo takes back what was written for objects that did not become visible, so that a tier in doubt about them
// works again.
func (c *core) undo(list []deletion) {
	var fresh, kept []deletion
	for _, d := range list {
		if d.keep {
			kept = append(kept, d)
		} else {
			fresh = append(fresh, d)
		}
	}
	c.frees.addFailed(kept)
	if len(fresh) > 0 && c.deleteRecords(fresh, false) != nil {
		return
	}
	if len(list) > 0 {
		_ = c.freeForgotten() // what can't be freed now stays on the list
	}
}

// changes is a batch of any size: what is over the limit of one write is written before. What a crash then leaves is
// the first of them.
type changes struct {
	full []*catalog.Batch
	b    catalog.Batch
}

const changesBytes = catalog.MaxBatchBytes / 8

func (b *changes) Put(r *catalog.Record) { b.b.Put(r); b.cut() }

func (b *changes) Delete(tenant, key string, gen uint64) { b.b.Delete(tenant, key, gen); b.cut() }

func (b *changes) cut() {
	if b.b.Bytes() >= changesBytes {
		full := b.b
		b.full, b.b = append(b.full, &full), catalog.Batch{}
	}
}

func (b *changes) any() bool { return b.b.Len() > 0 || len(b.full) > 0 }

func (b *changes) apply(c catalog.Catalog, sync bool) error {
	for _, full := range b.full {
		if err := c.Apply(full, false); err != nil {
			return err
		}
	}
	return c.Apply(&b.b, sync)
}
