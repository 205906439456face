package ssd

import (
	"context"
	"sync"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/store/internal/status"
)

// syncer runs rounds one after the other. Calls that come while a round runs share the next.
type syncer struct {
	mu struct {
		sync.Mutex
		running bool
		next    *syncRound
		broken  error // a round ended by a panic: what it left is not to be relied on
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
	if err := s.mu.broken; err != nil {
		s.mu.Unlock()
		return errors.WithMessage(err, "sync")
	}
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
		r.err = t.syncRound()
		close(r.done)
	}
}

// syncRound is one round. After a panic no other is a success.
func (t *Tier) syncRound() (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = status.Recovered(p)
			t.sync.mu.Lock()
			t.sync.mu.broken = err
			t.sync.mu.Unlock()
		}
	}()
	t.sync.mu.Lock()
	err = t.sync.mu.broken
	t.sync.mu.Unlock()
	if err != nil {
		return err
	}
	return t.syncOnce()
}

// syncOnce syncs every dirty container and the directory and returns the first error.
func (t *Tier) syncOnce() (first error) {
	note := func(err error) {
		if first == nil {
			first = err
		}
	}
	dirty, syncDir, err := t.takeDirty()
	note(err)
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

// takeDirty is what is to be synced, and the failure of a container of which something is still in doubt.
func (t *Tier) takeDirty() (dirty []*container, syncDir bool, failed error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.mu.dirty {
		if c.failed != nil {
			if c.doubtful() > 0 && failed == nil {
				failed = c.failed
			}
			continue
		}
		c.mark, c.flight, c.fresh = c.pos, c.flight+c.fresh, 0
		dirty = append(dirty, c)
	}
	syncDir = t.mu.dirDirty
	t.mu.dirDirty = false
	return dirty, syncDir, failed
}

func (t *Tier) syncContainer(c *container) error {
	h := t.refDirty(c)
	if h == nil {
		return nil
	}
	err := syncFile(h, containerName(c.id))
	drop := t.synced(c, err)
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

// refDirty takes a reference to the file of a dirty container: nil if that was emptied and dropped meanwhile.
func (t *Tier) refDirty(c *container) *handle {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.mu.dirty[c]; !ok {
		return nil
	}
	t.containers.ref(c.h)
	return c.h
}

// syncFile is a Sync whose panic is an error, after which as little is known as after any other.
func syncFile(f File, name string) (err error) {
	defer status.Recover(&err)
	return ioError(f.Sync(), "%s", name)
}

// synced notes what came of a sync, and says whether the container is to be dropped.
func (t *Tier) synced(c *container, err error) (drop bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		c.failed = err
		drop = t.sealLocked(c)
	} else {
		c.synced, c.flight = c.mark, 0
	}
	if err == nil && c.synced == c.pos || err != nil && c.doubtful() == 0 {
		delete(t.mu.dirty, c)
	}
	return drop
}
