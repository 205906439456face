package ssd

import (
	"cmp"
	"slices"
)

// Freed names a record whose space is to be given back.
type Freed struct {
	Loc    Loc
	KeyLen int
	Size   int64
}

// Free is FreeAll of one record.
func (t *Tier) Free(loc Loc, keyLen int, size int64) { t.FreeAll([]Freed{{loc, keyLen, size}}) }

// FreeAll gives back the space of records, and their own files: blocks that become wholly free are punched out, those
// side by side in one go; a container that becomes empty is removed. The caller calls it once for each record, when the
// catalogue has durably forgotten the object and no reader is left; freeing twice panics. What the file system refuses
// to give back stays counted in Usage until its container goes. A record that Recover did not hear of is ignored.
func (t *Tier) FreeAll(list []Freed) {
	if t.enter() != nil {
		return
	}
	defer t.running.Done()
	runs := make(map[*container][]run)
	for _, f := range list {
		if f.Loc.Own != 0 {
			t.freeOwn(f.Loc.Own)
		}
		c, start, end := t.release(f.Loc, f.Loc.place(f.KeyLen, f.Size))
		switch {
		case c == nil:
			continue
		case start < 0:
			delete(runs, c)
			t.dropContainers([]*container{c})
			continue
		case start < end:
			runs[c] = append(runs[c], run{start, end})
		}
		t.settle(c)
	}
	for c, blocks := range runs {
		for _, r := range merged(blocks) {
			t.punch(c, r.start, r.end)
		}
	}
}

// run is blocks side by side.
type run struct{ start, end int64 }

// merged joins runs that lie side by side. They don't overlap.
func merged(list []run) (out []run) {
	slices.SortFunc(list, func(a, b run) int { return cmp.Compare(a.start, b.start) })
	for _, r := range list {
		if n := len(out); n > 0 && out[n-1].end == r.start {
			out[n-1].end = r.end
		} else {
			out = append(out, r)
		}
	}
	return out
}

// release takes the record out of the books and returns its container, nil if that is not known, and the blocks to
// punch; start is negative if the container is to be dropped as a whole.
func (t *Tier) release(loc Loc, s span) (c *container, start, end int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c = t.mu.files[loc.File]; c == nil {
		return nil, 0, 0
	}
	c.forget(s)
	t.mu.live -= s.len()
	start, end = c.release(s.off, s.end)
	if c.failed != nil && c.doubtful() == 0 {
		delete(t.mu.dirty, c)
	}
	if t.unlistLocked(c) {
		return c, -1, 0
	}
	c.disk -= end - start
	t.mu.disk -= end - start
	return c, start, end
}

// punch gives blocks back that were uncounted; if that fails they are counted again.
func (t *Tier) punch(c *container, start, end int64) {
	h, err := t.containers.get(c.id)
	if err == nil {
		err = h.PunchHole(start, end-start)
		t.containers.release(h)
	}
	if err == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.files[c.id] == c {
		c.disk += end - start
		t.mu.disk += end - start
	}
}

// freeOwn removes an own file. One that stays is an orphan for Recover.
func (t *Tier) freeOwn(own uint32) {
	t.mu.Lock()
	n := t.mu.owns[own]
	delete(t.mu.owns, own)
	t.mu.live -= n
	t.mu.disk -= alignUp(n, BlockBytes)
	t.mu.Unlock()
	t.owns.drop(own)
	_ = t.removeFile(t.OwnPath(own))
}
