package store

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store/internal/catalog/catalogtest"
)

// Each test here has a catalogue that failed before the machine did: what is acknowledged after that must hold all the same.

// failApplies makes the catalogue fail from the after-th write on. Of the first, the record is written all the same.
func (r *crashRig) failApplies(after int, applied bool) {
	for i := range 1000 { // the janitor tries again and again
		r.disk.Inject(catalogtest.Fault{Op: catalogtest.Apply, After: after + i, Err: errDisk, Applied: applied && i == 0})
	}
}

func setHard(s *Store, key string, hard bool) error {
	return s.SetPins(key, PinChange{HardPin: &hard})
}

func wantHard(t *testing.T, s *Store, key string, hard bool) {
	t.Helper()
	i, err := s.Stat(key)
	require.NoError(t, err)
	require.Equal(t, hard, i.HardPin, "hard pin of %q", key)
}

// A failed put of a durable object may have left its record, with the pins of then.
func TestCrashPinAfterFailedUpsert(t *testing.T) {
	ctx := context.Background()
	for _, size := range []int{6000, 200_000} {
		r := newCrashRig(t, Options{FileBytes: 64 << 10})
		s := r.boot()
		require.NoError(t, s.Put(ctx, "k", random(5000), durably()))
		r.failApplies(0, true)
		require.ErrorIs(t, s.Upsert(ctx, "k", random(size), &PutOptions{Durable: true, OwnFile: true}), ErrNotDurable)
		require.ErrorIs(t, setHard(s, "k", true), ErrNotDurable)
		r.disk.Heal()
		require.NoError(t, setHard(s, "k", true))
		s = r.reboot()
		wantHard(t, s, "k", true)
		wantWhole(t, s, "k", random(5000))
	}
}

// A failed copy to the SSD tier may have left its record; memory that survives has the pins of now.
func TestCrashPinAfterFailedCopy(t *testing.T) {
	ctx := context.Background()
	r := newCrashRig(t, Options{Offload: OffloadNever})
	s := r.boot()
	require.NoError(t, s.Put(ctx, "k", random(5000), nil))
	r.failApplies(0, true)
	require.ErrorIs(t, s.Sync(ctx), ErrNotDurable)
	r.disk.Heal()
	require.NoError(t, setHard(s, "k", true))
	r.kill()
	s = r.boot()
	wantHard(t, s, "k", true)
	wantWhole(t, s, "k", random(5000))
}

// Sync promises what is there, not what a failed put would have put there.
func TestCrashSyncAfterFailedUpsert(t *testing.T) {
	ctx := context.Background()
	r := newCrashRig(t, Options{Offload: OffloadNever})
	s := r.boot()
	require.NoError(t, s.Put(ctx, "k", random(5000), nil))
	r.failApplies(0, true)
	require.ErrorIs(t, s.Upsert(ctx, "k", random(6000), durably()), ErrNotDurable)
	require.ErrorIs(t, s.Sync(ctx), ErrNotDurable)
	r.disk.Heal()
	require.NoError(t, s.Sync(ctx))
	s = r.reboot()
	wantWhole(t, s, "k", random(5000))
}

// What comes after a durable object whose end could not be written is not acknowledged before it is.
func TestCrashAfterFailedRemove(t *testing.T) {
	ctx := context.Background()
	for name, then := range map[string]func(s *Store) error{
		"put":    func(s *Store) error { return s.Put(ctx, "k", random(6000), nil) },
		"link":   func(s *Store) error { return s.Link(ctx, "k", "other", nil) },
		"upsert": func(s *Store) error { return s.Upsert(ctx, "k", random(6000), nil) },
		"put, remove": func(s *Store) error {
			_ = s.Put(ctx, "k", random(6000), nil)
			return s.Remove("k", true)
		},
		"put, remove batch": func(s *Store) error {
			_ = s.Put(ctx, "k", random(6000), nil)
			return s.RemoveBatch([]string{"other", "k"}, true)[1]
		},
		"put, remove all": func(s *Store) error {
			_ = s.Put(ctx, "k", random(6000), nil)
			_, err := s.RemoveAll(ctx, true)
			return err
		},
		"put, remove group": func(s *Store) error {
			_ = s.Put(ctx, "k", random(6000), &PutOptions{Group: "g"})
			_, err := s.RemoveGroup("g", true)
			return err
		},
	} {
		for _, healed := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				r := newCrashRig(t, Options{Offload: OffloadNever})
				s := r.boot()
				require.NoError(t, s.Put(ctx, "other", random(100), nil))
				require.NoError(t, s.Put(ctx, "k", random(5000), durably()))
				r.failApplies(0, false)
				require.ErrorIs(t, s.Remove("k", true), ErrNotDurable)
				if !healed {
					require.ErrorIs(t, then(s), ErrNotDurable)
					r.disk.Heal()
					return
				}
				r.disk.Heal()
				require.NoError(t, then(s))
				s = r.reboot()
				wantAbsent(t, s, "k")
			})
		}
	}
}

// A removal must not overtake the end of what was there before, which somebody else is trying again.
func TestCrashRemoveWaitsForRetry(t *testing.T) {
	ctx := context.Background()
	r := newCrashRig(t, Options{Offload: OffloadNever})
	s := r.boot()
	require.NoError(t, s.Put(ctx, "k", random(5000), durably()))
	r.disk.Inject(catalogtest.Fault{Op: catalogtest.Apply, After: 1, Err: errDisk})
	r.disk.Inject(catalogtest.Fault{Op: catalogtest.Apply, After: 2, Err: errDisk})
	gate := r.holdApplyAfter(2) // the new record, the failed end of the old one, the retry: whoever does it
	require.NoError(t, s.Upsert(ctx, "k", random(6000), durably()))
	go func() { _ = s.freeForgotten() }()
	<-gate.arrived
	removed := make(chan error, 1)
	go func() { removed <- s.Remove("k", true) }()
	time.Sleep(30 * time.Millisecond) // it waits for the retry, or is about to
	for i := range 1000 {
		r.disk.Inject(catalogtest.Fault{Op: catalogtest.Apply, After: 2 + i, Err: errDisk})
	}
	close(gate.release)
	if err := <-removed; err != nil {
		require.ErrorIs(t, err, ErrNotDurable)
		r.disk.Heal()
		return
	}
	r.powerFails(nil)
	r.disk.Heal()
	s = r.boot()
	wantAbsent(t, s, "k")
}

// Pins that are changed while a durable put takes the object's place are in the record that wins.
func TestCrashPinRacesUpsert(t *testing.T) {
	ctx := context.Background()
	for _, size := range []int{6000, 200_000} {
		r := newCrashRig(t, Options{FileBytes: 64 << 10})
		s := r.boot()
		require.NoError(t, s.Put(ctx, "k", random(5000), durably()))
		record := r.holdApply()
		put, pinned := make(chan error, 1), make(chan error, 1)
		go func() { put <- s.Upsert(ctx, "k", random(size), &PutOptions{Durable: true, OwnFile: true}) }()
		<-record.arrived
		go func() { pinned <- setHard(s, "k", true) }()
		acknowledged := false
		select {
		case err := <-pinned:
			require.NoError(t, err)
			acknowledged = true
		case <-time.After(30 * time.Millisecond):
		}
		next := r.holdApply()
		close(record.release)
		<-next.arrived
		if acknowledged { // it must hold at any moment from here on
			r.power.off.Store(true)
			r.fs.Crash(nil)
			r.disk.Crash(0)
		}
		close(next.release)
		if err := <-put; !acknowledged {
			require.NoError(t, err)
			require.NoError(t, <-pinned)
		}
		s = r.reboot()
		wantHard(t, s, "k", true)
		wantWhole(t, s, "k", random(size))
	}
}

// Repeating a change of a group's pins that could not be written writes it, for all members.
func TestCrashGroupPinAfterFailure(t *testing.T) {
	ctx := context.Background()
	r := newCrashRig(t, Options{})
	s := r.boot()
	hard := true
	for _, key := range []string{"a", "b"} {
		require.NoError(t, s.Put(ctx, key, random(5000), &PutOptions{Durable: true, Group: "g"}))
	}
	r.failApplies(0, false)
	require.ErrorIs(t, s.SetGroupPins("g", PinChange{HardPin: &hard}), ErrNotDurable)
	r.disk.Heal()
	require.NoError(t, s.Put(ctx, "c", random(5000), &PutOptions{Durable: true, Group: "g"})) // which does change
	require.NoError(t, s.SetGroupPins("g", PinChange{HardPin: &hard}))
	s = r.reboot()
	for _, key := range []string{"a", "b", "c"} {
		wantHard(t, s, key, true)
	}
}

// An evicted object's record does not outlive the removal of a durable object that was put after it.
func TestCrashPutAfterEviction(t *testing.T) {
	ctx := context.Background()
	for name, evict := range map[string]func(s *Store, group bool){
		"from ssd": func(s *Store, group bool) { s.evict(ctx, 1<<20, 0); s.evictSSD(ctx, 1<<20) },
		"from memory": func(s *Store, group bool) {
			if group {
				_ = s.Put(ctx, "late", random(100), &PutOptions{Group: "g"}) // is nowhere else
			}
			s.evict(ctx, 1<<20, 0)
		},
	} {
		for _, group := range []string{"", "g"} {
			if name == "from memory" && group == "" {
				continue // stays on SSD
			}
			t.Run(name+group, func(t *testing.T) {
				r := newCrashRig(t, Options{Offload: OffloadNever, LeaseTTL: time.Nanosecond})
				s := r.boot()
				require.NoError(t, s.Put(ctx, "k", random(5000), &PutOptions{Group: group}))
				require.NoError(t, s.Sync(ctx))
				gate := r.holdApply()
				evicted, removed := make(chan struct{}), make(chan error, 1)
				go func() { evict(s, group != ""); close(evicted) }()
				<-gate.arrived
				go func() {
					err := s.Put(ctx, "k", random(6000), durably())
					if err == nil {
						err = s.Remove("k", true)
					}
					removed <- err
				}()
				select {
				case err := <-removed: // it must hold at any moment from here on
					removed <- err
					r.power.off.Store(true)
					r.fs.Crash(nil)
					r.disk.Crash(0)
				case <-time.After(30 * time.Millisecond):
				}
				close(gate.release)
				<-evicted
				require.NoError(t, <-removed)
				s = r.reboot()
				wantAbsent(t, s, "k")
			})
		}
	}
}

// A copy of several objects of which one was removed meanwhile records the links of the others also if the removed one
// can't be forgotten; or Sync says that it has not.
func TestCrashSyncLinksBesideRemoved(t *testing.T) {
	ctx := context.Background()
	r := newCrashRig(t, Options{Offload: OffloadNever})
	s := r.boot()
	require.NoError(t, s.Put(ctx, "a", random(5000), nil))
	require.NoError(t, s.Link(ctx, "b", "a", nil))
	require.NoError(t, s.Put(ctx, "c", random(6000), nil))
	require.NoError(t, s.Link(ctx, "d", "c", nil))
	require.NoError(t, s.Remove("c", true))
	r.disk.Inject(catalogtest.Fault{Op: catalogtest.Apply, After: 1, Err: errDisk}) // after the records of the copies
	require.ErrorIs(t, s.Sync(ctx), ErrNotDurable)
	require.NoError(t, s.Sync(ctx))
	s = r.reboot()
	wantWhole(t, s, "a", random(5000))
	wantWhole(t, s, "b", random(5000))
	wantAbsent(t, s, "c")
	wantWhole(t, s, "d", random(6000))
}

// A key that was linked again before its first record was forgotten has two records, of the same bytes.
func TestCrashLinkedTwice(t *testing.T) {
	ctx := context.Background()
	r := newCrashRig(t, Options{})
	s := r.boot()
	require.NoError(t, s.Put(ctx, "a", random(5000), durably()))
	require.NoError(t, s.Link(ctx, "first", "a", nil))
	require.NoError(t, s.Link(ctx, "second", "a", durably()))
	require.NoError(t, s.Remove("a", true))
	r.failApplies(0, false)
	require.ErrorIs(t, s.Remove("first", true), ErrNotDurable)
	r.disk.Heal()
	require.NoError(t, s.Link(ctx, "first", "second", nil))
	r.kill()
	r.loseMemory()
	s = r.boot()
	wantWhole(t, s, "first", random(5000))
	wantWhole(t, s, "second", random(5000))
	for i := range 50 { // who reuses what is free would show
		require.NoError(t, s.Put(ctx, fmt.Sprint(i), random(3000), durably()))
	}
	wantWhole(t, s, "first", random(5000))
	wantWhole(t, s, "second", random(5000))
	requireEmptied(t, s)
}

// TestCrashWorkerAfterFailedRemove checks the workload of the crash tests: what a removal has ended whose record could not
// be written has no pins to inherit.
func TestCrashWorkerAfterFailedRemove(t *testing.T) {
	ctx := context.Background()
	r := newCrashRig(t, Options{})
	s := r.boot()
	m := newCrashModel()
	w := newCrashWorker(s, &crashJournal{write: m.add}, 1, "a")
	put := func(x crashEffect) {
		w.did(w.j.do([]crashEffect{x}, func() error {
			return s.Put(ctx, x.Key, x.value(), &PutOptions{Durable: x.Durable, HardPin: x.Hard, Replace: true})
		}), x)
	}
	put(crashEffect{Key: "a1", Of: "a1", Ver: 1, Size: 5000, Durable: true, Hard: true})
	r.failApplies(0, false)
	put(crashEffect{Key: "a1", Of: "a1", Ver: 2, Size: 6000, Hard: true})
	require.True(t, w.unsure["a1"])
	r.disk.Heal()
	require.NoError(t, s.Sync(ctx))
	r.failApplies(0, false)
	require.True(t, w.clear("a1")) // removes it
	require.Empty(t, w.have)
	r.disk.Heal()
	put(crashEffect{Key: "a1", Of: "a1", Ver: 3, Size: 7000, Durable: true})
	s = r.reboot()
	m.checkAll(t, s, crashPower)
	wantHard(t, s, "a1", false)
}
