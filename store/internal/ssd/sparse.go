package ssd

import (
	"context"

	"github.com/pkg/errors"
)

// Sparse names the containers whose records take less than half of their blocks. What is appended from now on goes
// elsewhere, so that a record that is appended again and freed where it was helps to empty them.
func (t *Tier) Sparse(ctx context.Context) (files []uint32, err error) {
	if err := t.enter(); err != nil {
		return nil, errors.Wrap(err, "sparse")
	}
	defer t.running.Done()
	select {
	case t.appending <- struct{}{}:
		defer func() { <-t.appending }()
	case <-ctx.Done():
		return nil, errors.Wrap(ctx.Err(), "sparse")
	}
	var ended *container
	drop := false
	t.mu.Lock()
	for id, c := range t.mu.files {
		if c.live > c.disk/2 {
			continue
		}
		if c == t.mu.active {
			ended, drop = c, t.sealLocked(c)
		}
		files = append(files, id)
	}
	t.mu.Unlock()
	if ended == nil {
		return files, nil
	}
	if h, err := t.containers.get(ended.id); err == nil {
		_ = h.Truncate(ended.pos) // blocks allocated ahead go back
		t.containers.release(h)
	}
	t.settle(ended)
	if drop {
		t.dropContainers([]*container{ended})
	}
	return files, nil
}
