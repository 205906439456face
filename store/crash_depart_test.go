package store

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/pkg/errors"
	"github.com/stretchr/testify/require"
)

// TestRemovalIsNotOvertaken removes an object whose record is on disk, and holds the write that forgets it. Meanwhile others put
// and remove the same key. What they are told must still hold if the process dies: no older object may come back.
func TestRemovalIsNotOvertaken(t *testing.T) {
	ctx := context.Background()
	removals := map[string]func(s *Store) error{
		"remove": func(s *Store) error { return s.Remove("k", true) },
		"batch":  func(s *Store) error { return s.RemoveBatch([]string{"k"}, true)[0] },
		"regex":  func(s *Store) error { _, err := s.RemoveRegex(ctx, "^k$", true); return err },
		"group":  func(s *Store) error { _, err := s.RemoveGroup("g", true); return err },
		"upsert": func(s *Store) error { return s.Upsert(ctx, "k", random(70), nil) },
	}
	for name, remove := range removals {
		t.Run(name, func(t *testing.T) {
			r := newCrashRig(t, Options{})
			s := r.boot()
			require.NoError(t, s.Put(ctx, "k", random(5000), &PutOptions{Group: "g"}))
			require.NoError(t, s.Sync(ctx)) // it is on the SSD tier, but not durable
			gate := r.holdApply()
			removed := make(chan error, 1)
			go func() { removed <- remove(s) }()
			<-gate.arrived // the key is gone, its record is not

			var released atomic.Bool
			others := make(chan error, 1)
			go func() {
				err := s.Upsert(ctx, "k", random(60), nil)
				if err == nil {
					err = s.Remove("k", true)
				}
				if errors.Is(err, ErrNotFound) {
					err = nil // a removal of many may have come to the new object too
				}
				if !released.Load() {
					t.Error("a removal was acknowledged while the record of an older object was there")
				}
				others <- err
			}()
			for i := 0; i < 1_000_000 && len(others) == 0; i++ { // long enough for one that does not wait
				runtime.Gosched()
			}
			released.Store(true)
			close(gate.release)
			require.NoError(t, <-removed)
			require.NoError(t, <-others)
			r.kill()
			s = r.boot()
			wantAbsent(t, s, "k")
			require.NoError(t, s.Close())
		})
	}
}
