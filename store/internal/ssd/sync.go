package ssd

import (
	"context"
	"sync"

	"github.com/pkg/errors"
)

// syncer runs rounds one after the other. Calls that come while a round runs share the next.
type syncer struct {
	mu struct {
		sync.Mutex
		running bool
		next    *syncRound
	}
}

type syncRound struct {
	done chan struct{}
	err  error
}

// Sync makes durable what Append and AppendHead had returned before the call, and the names of finished own files.
//
// After an error of the disk nobody knows what of a container reached it, and asking again would not tell. So from then
// on every Sync fails until the records that were in doubt have been freed: each caller frees what it has appended and
// not seen synced, and appends it again if it likes.
func (t *Tier) Sync(ctx context.Context) error {
	if err := t.enter(); err != nil {
		return errors.Wrap(err, "sync")
	}
	defer t.running.Done()
	s := &t.sync
	s.mu.Lock()
	if s.mu.next == nil {
		s.mu.next = &syncRound{done: make(chan struct{})}
	}
	r := s.mu.next
	if !s.mu.running {
		s.mu.running = true
		t.running.Go(t.syncRounds)
	}
	s.mu.Unlock()
	select {
	case <-r.done:
		return errors.WithMessage(r.err, "sync")
	case <-ctx.Done():
		return errors.Wrap(ctx.Err(), "sync")
	}
}

// syncRounds runs rounds until no caller waits for one.
func (t *Tier) syncRounds() {
	s := &t.sync
	for {
		s.mu.Lock()
		r := s.mu.next
		s.mu.next = nil
		s.mu.running = r != nil
		s.mu.Unlock()
		if r == nil {
			return
		}
		r.err = t.syncOnce()
		close(r.done)
	}
}

// syncOnce syncs every dirty container and the directory and returns the first error.
func (t *Tier) syncOnce() (first error) {
	note := func(err error) {
		if first == nil {
			first = err
		}
	}
	t.mu.Lock()
	var dirty []*container
	for c := range t.mu.dirty {
		if c.failed != nil {
			if c.doubtful() > 0 {
				note(c.failed)
			}
			continue
		}
		c.mark, c.flight, c.fresh = c.pos, c.flight+c.fresh, 0
		dirty = append(dirty, c)
	}
	syncDir := t.mu.dirDirty
	t.mu.dirDirty = false
	t.mu.Unlock()
	for _, c := range dirty {
		note(t.syncContainer(c))
	}
	if syncDir {
		if err := t.fs.SyncDir(t.dir); err != nil {
			t.mu.Lock()
			t.mu.dirDirty = true
			t.mu.Unlock()
			note(ioError(err, "directory %s", t.dir))
		}
	}
	return first
}

func (t *Tier) syncContainer(c *container) error {
	t.mu.Lock()
	if _, ok := t.mu.dirty[c]; !ok { // emptied and dropped meanwhile
		t.mu.Unlock()
		return nil
	}
	h := c.h
	t.containers.ref(h)
	t.mu.Unlock()
	err := ioError(h.Sync(), "%s", containerName(c.id))
	t.mu.Lock()
	drop := false
	if err != nil {
		c.failed = err
		drop = t.sealLocked(c)
	} else {
		c.synced, c.flight = c.mark, 0
	}
	if err == nil && c.synced == c.pos || err != nil && c.doubtful() == 0 {
		delete(t.mu.dirty, c)
	}
	t.mu.Unlock()
	if err != nil {
		_ = h.Truncate(c.pos) // it is failed, so pos stays: an append that is writing behind it will not be committed
	}
	t.containers.release(h)
	t.settle(c)
	if drop {
		t.dropContainers([]*container{c})
	}
	return err
}
