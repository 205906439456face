package ssd

// Free gives back the space of a record, and its own file: blocks that become wholly free are punched out, a container
// that becomes empty is removed. The caller calls it once, when the catalogue has durably forgotten the object and no
// reader is left; freeing twice panics. What the file system refuses to give back stays counted in Usage until
// its container goes. A record that Recover did not hear of is ignored.
func (t *Tier) Free(loc Loc, keyLen int, size int64) {
	if t.enter() != nil {
		return
	}
	defer t.running.Done()
	if loc.Own != 0 {
		t.freeOwn(loc.Own)
	}
	c, start, end := t.release(loc, loc.place(keyLen, size))
	if c == nil {
		return
	}
	t.settle(c)
	if start == end {
		return
	}
	if start < 0 {
		t.dropContainers([]*container{c})
	} else {
		t.punch(c, start, end)
	}
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
