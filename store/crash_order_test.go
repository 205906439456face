package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store/internal/catalog/catalogtest"
)

// Each test here is an order of events that once lost, resurrected or corrupted something.

var errDisk = errors.New("injected")

func durably() *PutOptions { return &PutOptions{Durable: true} }

// TestCrashBetweenUpsertAndForget leaves the records of two generations: the older must not come back when the newer
// is removed.
func TestCrashBetweenUpsertAndForget(t *testing.T) {
	ctx := context.Background()
	r := newCrashRig(t, Options{})
	s := r.boot()
	require.NoError(t, s.Put(ctx, "k", random(5000), durably()))
	r.disk.Inject(catalogtest.Fault{Op: catalogtest.Apply, After: 1, Err: errDisk})
	require.NoError(t, s.Upsert(ctx, "k", random(6000), durably()))
	s = r.reboot()
	wantWhole(t, s, "k", random(6000))
	u, err := s.Usage()
	require.NoError(t, err)
	require.Zero(t, u.InUse)
	require.NoError(t, s.Remove("k", true))
	s = r.reboot()
	wantAbsent(t, s, "k")
}

// TestCrashLinkGeneration has a link whose generation is far above all others: after a restart it must not win over
// newer puts.
func TestCrashLinkGeneration(t *testing.T) {
	ctx := context.Background()
	r := newCrashRig(t, Options{})
	s := r.boot()
	require.NoError(t, s.Put(ctx, "a", random(5000), durably()))
	for range 100 {
		require.NoError(t, s.Put(ctx, "x", random(10), nil))
		require.NoError(t, s.Remove("x", true))
	}
	require.NoError(t, s.Link(ctx, "b", "a", durably()))
	s = r.reboot()
	wantWhole(t, s, "b", random(5000))
	require.NoError(t, s.Upsert(ctx, "b", random(77), durably()))
	wantWhole(t, s, "b", random(77))
	s = r.reboot()
	wantWhole(t, s, "b", random(77))
}

// TestCrashUpsertInherits checks that pins and group that a durable put takes over are on disk.
func TestCrashUpsertInherits(t *testing.T) {
	ctx := context.Background()
	for _, n := range []int{3000, 2 << 20} {
		r := newCrashRig(t, Options{})
		s := r.boot()
		require.NoError(t, s.Put(ctx, "k", random(9), &PutOptions{HardPin: true, SoftPin: time.Hour, Group: "g"}))
		before, err := s.Stat("k")
		require.NoError(t, err)
		require.NoError(t, s.Upsert(ctx, "k", random(n), &PutOptions{Durable: true, OwnFile: true}))
		s = r.reboot()
		i, err := s.Stat("k")
		require.NoError(t, err)
		require.True(t, i.HardPin)
		require.Equal(t, "g", i.Group)
		require.Equal(t, before.SoftPin.UnixMilli(), i.SoftPin.UnixMilli())
	}
}

// TestCrashSyncLinks checks that Sync makes links durable whose bytes were only in memory.
func TestCrashSyncLinks(t *testing.T) {
	ctx := context.Background()
	r := newCrashRig(t, Options{})
	s := r.boot()
	require.NoError(t, s.Put(ctx, "a", random(5000), nil))
	require.NoError(t, s.Link(ctx, "b", "a", nil))
	require.NoError(t, s.Put(ctx, "c", random(6000), nil))
	require.NoError(t, s.Link(ctx, "d", "c", nil))
	require.NoError(t, s.Remove("c", true))
	require.NoError(t, s.Sync(ctx))
	s = r.reboot()
	wantWhole(t, s, "a", random(5000))
	wantWhole(t, s, "b", random(5000))
	wantAbsent(t, s, "c") // only its link was left
	wantWhole(t, s, "d", random(6000))
	require.NoError(t, s.Remove("a", true))
	s = r.reboot()
	wantWhole(t, s, "b", random(5000))
	wantWhole(t, s, "d", random(6000))
}

// TestCrashSyncWaitsForOffload checks that Sync does not overlook an object that somebody else is copying.
func TestCrashSyncWaitsForOffload(t *testing.T) {
	ctx := context.Background()
	r := newCrashRig(t, Options{})
	s := r.boot()
	require.NoError(t, s.Put(ctx, "a", random(5000), nil))
	gate := r.holdApply()
	first, second := make(chan error), make(chan error)
	go func() { first <- s.Sync(ctx) }()
	<-gate.arrived
	go func() { second <- s.Sync(ctx) }()
	select {
	case err := <-second:
		t.Fatalf("Sync = %v while the object has no record yet", err)
	case <-time.After(30 * time.Millisecond):
	}
	close(gate.release)
	require.NoError(t, <-first)
	require.NoError(t, <-second)
}

// TestCrashPinRacesRemove rewrites an object's record while it is being removed.
func TestCrashPinRacesRemove(t *testing.T) {
	ctx := context.Background()
	r := newCrashRig(t, Options{})
	s := r.boot()
	require.NoError(t, s.Put(ctx, "k", random(5000), durably()))
	gate := r.holdApply()
	pinned, removed := make(chan error, 1), make(chan error, 1)
	yes := true
	go func() { pinned <- s.SetPins("k", PinChange{HardPin: &yes}) }()
	<-gate.arrived
	go func() { removed <- s.Remove("k", true) }()
	select {
	case err := <-removed:
		require.NoError(t, err)
		removed <- nil
	case <-time.After(30 * time.Millisecond):
	}
	close(gate.release)
	require.NoError(t, <-pinned)
	require.NoError(t, <-removed)
	s = r.reboot()
	wantAbsent(t, s, "k")
}

// TestCrashEvictionRacesOffload lets an object leave the SSD tier and be written there again at once.
func TestCrashEvictionRacesOffload(t *testing.T) {
	ctx := context.Background()
	r := newCrashRig(t, Options{})
	s := r.boot()
	require.NoError(t, s.Put(ctx, "k", random(5000), nil))
	require.NoError(t, s.Sync(ctx))
	gate := r.holdApply()
	evicted, synced := make(chan struct{}), make(chan error, 1)
	go func() { s.evictSSD(ctx, 1<<20); close(evicted) }()
	<-gate.arrived
	go func() { synced <- s.Sync(ctx) }()
	select {
	case err := <-synced:
		synced <- err
	case <-time.After(30 * time.Millisecond):
	}
	close(gate.release)
	<-evicted
	require.NoError(t, <-synced)
	s = r.reboot()
	wantWhole(t, s, "k", random(5000))
}

// TestCrashEvictedOwnerOfLink checks that no link's record outlives the bytes it names.
func TestCrashEvictedOwnerOfLink(t *testing.T) {
	ctx := context.Background()
	r := newCrashRig(t, Options{})
	s := r.boot()
	require.NoError(t, s.Put(ctx, "a", random(5000), nil))
	require.NoError(t, s.Sync(ctx))
	require.NoError(t, s.Link(ctx, "b", "a", nil))
	s.evictSSD(ctx, 1<<20)
	s = r.reboot()
	wantAbsentOrWhole(t, s, "a", random(5000))
	wantAbsentOrWhole(t, s, "b", random(5000))
}

// TestCrashFailedForget has a catalogue that fails when an object is removed: its space must not be freed while its
// record is there.
func TestCrashFailedForget(t *testing.T) {
	ctx := context.Background()
	for _, died := range []bool{false, true} {
		r := newCrashRig(t, Options{})
		s := r.boot()
		require.NoError(t, s.Put(ctx, "k", random(5000), durably()))
		r.disk.Inject(catalogtest.Fault{Op: catalogtest.Apply, Err: errDisk})
		if died {
			r.disk.Inject(catalogtest.Fault{Op: catalogtest.Apply, After: 1, Err: errDisk})
			r.disk.Inject(catalogtest.Fault{Op: catalogtest.Apply, After: 2, Err: errDisk})
		}
		require.ErrorIs(t, s.Remove("k", true), ErrNotDurable)
		wantAbsent(t, s, "k")
		_ = s.freeForgotten()
		_ = s.freeForgotten()
		s = r.reboot()
		if !died {
			wantAbsent(t, s, "k")
		}
		wantAbsentOrWhole(t, s, "k", random(5000))
	}
}

// TestCrashFailedPutThenRemove has a put whose record may have been written although the catalogue said no. A later
// removal of the key ends that, too.
func TestCrashFailedPutThenRemove(t *testing.T) {
	ctx := context.Background()
	r := newCrashRig(t, Options{})
	s := r.boot()
	require.NoError(t, s.Put(ctx, "k", random(5000), durably()))
	r.disk.Inject(catalogtest.Fault{Op: catalogtest.Apply, Err: errDisk, Applied: true})
	r.disk.Inject(catalogtest.Fault{Op: catalogtest.Apply, After: 1, Err: errDisk})
	r.disk.Inject(catalogtest.Fault{Op: catalogtest.Apply, After: 2, Err: errDisk})
	require.ErrorIs(t, s.Upsert(ctx, "k", random(6000), durably()), ErrNotDurable)
	wantWhole(t, s, "k", random(5000))
	for s.freeForgotten() != nil {
	}
	require.NoError(t, s.Remove("k", true))
	s = r.reboot()
	wantAbsent(t, s, "k")
}

// TestCrashDurableInEvictedGroup has a group that memory pressure wants to take, one member of which is durable.
func TestCrashDurableInEvictedGroup(t *testing.T) {
	ctx := context.Background()
	r := newCrashRig(t, Options{Offload: OffloadNever, LeaseTTL: time.Nanosecond})
	s := r.boot()
	require.NoError(t, s.Put(ctx, "d", random(5000), &PutOptions{Durable: true, Group: "g"}))
	require.NoError(t, s.Put(ctx, "m", random(6000), &PutOptions{Group: "g"}))
	for i := range 40 {
		require.NoError(t, s.Put(ctx, fmt.Sprint(i), random(1<<20), nil))
	}
	wantWhole(t, s, "d", random(5000))
	s = r.reboot()
	wantWhole(t, s, "d", random(5000))
}

// TestCrashDurableLinkUndone has a durable link whose record may or may not have been written: nothing of it stays.
func TestCrashDurableLinkUndone(t *testing.T) {
	ctx := context.Background()
	r := newCrashRig(t, Options{})
	s := r.boot()
	require.NoError(t, s.Put(ctx, "a", random(5000), durably()))
	r.disk.Inject(catalogtest.Fault{Op: catalogtest.Apply, Err: errDisk, Applied: true})
	require.ErrorIs(t, s.Link(ctx, "b", "a", durably()), ErrNotDurable)
	wantAbsent(t, s, "b")
	require.NoError(t, s.Remove("a", true))
	s.runEffects()
	require.NoError(t, s.freeForgotten())
	u, err := s.Usage()
	require.NoError(t, err)
	require.Zero(t, u.InUse)
	require.Zero(t, u.SSDLive)
	s = r.reboot()
	wantAbsent(t, s, "a")
	wantAbsent(t, s, "b")
}

// TestCrashPinAfterFailure repeats a pin that could not be written: the second try must not succeed without writing.
func TestCrashPinAfterFailure(t *testing.T) {
	ctx := context.Background()
	r := newCrashRig(t, Options{})
	s := r.boot()
	require.NoError(t, s.Put(ctx, "k", random(5000), durably()))
	r.disk.Inject(catalogtest.Fault{Op: catalogtest.Apply, Err: errDisk})
	yes := true
	require.ErrorIs(t, s.SetPins("k", PinChange{HardPin: &yes}), ErrNotDurable)
	require.NoError(t, s.SetPins("k", PinChange{HardPin: &yes}))
	s = r.reboot()
	i, err := s.Stat("k")
	require.NoError(t, err)
	require.True(t, i.HardPin)
}

// TestCrashLargeBatch is over what one write of the catalogue may hold.
func TestCrashLargeBatch(t *testing.T) {
	if testing.Short() {
		t.Skip("100 MB of keys")
	}
	ctx := context.Background()
	r := newCrashRig(t, Options{MemoryBytes: 512 << 20})
	s := r.boot()
	const n = 17000
	items, keys := make([]PutItem, n), make([]string, n)
	for i := range items {
		keys[i] = fmt.Sprintf("%05d%s", i, strings.Repeat("k", 4000))
		items[i] = PutItem{Key: keys[i], Parts: [][]byte{random(10)}, Opts: durably()}
	}
	for i, err := range s.PutBatch(ctx, items) {
		require.NoError(t, err, "item %d", i)
	}
	s = r.reboot()
	wantWhole(t, s, keys[n-1], random(10))
	for i, err := range s.RemoveBatch(keys, true) {
		require.NoError(t, err, "item %d", i)
	}
	s = r.reboot()
	u, err := s.Usage()
	require.NoError(t, err)
	require.Zero(t, u.Objects[Unknown])
}

// TestCrashRemovingOwnerOfLink is killed between the end of an owner's key and that of its record: the bytes must not
// get two owners, one of whom frees them.
func TestCrashRemovingOwnerOfLink(t *testing.T) {
	ctx := context.Background()
	for _, victim := range []string{"a", "b", "c"} { // a is put, the others are links to it
		r := newCrashRig(t, Options{})
		s := r.boot()
		require.NoError(t, s.Put(ctx, "a", random(5000), durably()))
		require.NoError(t, s.Link(ctx, "b", "a", durably()))
		require.NoError(t, s.Link(ctx, "c", "a", durably()))
		if victim != "a" {
			require.NoError(t, s.Remove("a", true))
		}
		for i := range 1000 { // the janitor tries again
			r.disk.Inject(catalogtest.Fault{Op: catalogtest.Apply, After: i, Err: errDisk})
		}
		require.ErrorIs(t, s.Remove(victim, true), ErrNotDurable)
		r.kill()
		r.disk.Heal()
		s = r.boot()
		wantAbsentOrWhole(t, s, victim, random(5000))
		_ = s.Remove(victim, true)
		for _, key := range []string{"a", "b", "c"} {
			if key == victim || victim != "a" && key == "a" {
				continue
			}
			s.runEffects()
			require.NoError(t, s.freeForgotten())
			r.kill() // a power failure might bring punched blocks back
			r.loseMemory()
			s = r.boot()
			wantAbsent(t, s, victim)
			wantWhole(t, s, key, random(5000))
			require.NoError(t, s.Remove(key, true))
		}
		s.runEffects()
		require.NoError(t, s.freeForgotten())
		u, err := s.Usage()
		require.NoError(t, err)
		require.Zero(t, u.SSDLive)
	}
}

// TestCrashReplacingOwnerOfLink is killed between the record of a new generation and the end of the old one, whose
// bytes a link shares.
func TestCrashReplacingOwnerOfLink(t *testing.T) {
	ctx := context.Background()
	r := newCrashRig(t, Options{})
	s := r.boot()
	require.NoError(t, s.Put(ctx, "a", random(5000), durably()))
	require.NoError(t, s.Link(ctx, "b", "a", durably()))
	for i := range 1000 {
		r.disk.Inject(catalogtest.Fault{Op: catalogtest.Apply, After: 1 + i, Err: errDisk})
	}
	require.NoError(t, s.Upsert(ctx, "a", random(6000), durably()))
	for range 2 {
		r.kill()
		r.loseMemory()
		r.disk.Heal()
		s = r.boot()
		s.runEffects()
		require.NoError(t, s.freeForgotten())
		wantWhole(t, s, "a", random(6000))
		wantWhole(t, s, "b", random(5000))
	}
}

// TestCrashLinkWithoutRecord is killed after an object got to the SSD tier and before its link's record was written:
// the link came back from memory, and Sync must write it.
func TestCrashLinkWithoutRecord(t *testing.T) {
	ctx := context.Background()
	r := newCrashRig(t, Options{})
	s := r.boot()
	require.NoError(t, s.Put(ctx, "a", random(5000), nil))
	require.NoError(t, s.Link(ctx, "b", "a", nil))
	for i := range 1000 {
		r.disk.Inject(catalogtest.Fault{Op: catalogtest.Apply, After: 1 + i, Err: errDisk})
	}
	require.ErrorIs(t, s.Sync(ctx), ErrNotDurable)
	r.kill()
	r.disk.Heal()
	s = r.boot()
	wantWhole(t, s, "b", random(5000))
	require.NoError(t, s.Sync(ctx))
	s = r.reboot()
	wantWhole(t, s, "a", random(5000))
	wantWhole(t, s, "b", random(5000))
}

// TestCrashUnacknowledgedPin has a pin that memory has and the catalogue has not: after a kill it is one or the other,
// and stays so.
func TestCrashUnacknowledgedPin(t *testing.T) {
	ctx := context.Background()
	r := newCrashRig(t, Options{})
	s := r.boot()
	require.NoError(t, s.Put(ctx, "a", random(5000), durably()))
	require.NoError(t, s.Link(ctx, "b", "a", durably()))
	for i := range 1000 {
		r.disk.Inject(catalogtest.Fault{Op: catalogtest.Apply, After: i, Err: errDisk})
	}
	yes := true
	for _, key := range []string{"a", "b"} {
		require.ErrorIs(t, s.SetPins(key, PinChange{HardPin: &yes}), ErrNotDurable)
	}
	r.kill()
	r.disk.Heal()
	s = r.boot()
	require.NoError(t, s.Sync(ctx))
	infos, _ := s.StatBatch([]string{"a", "b"})
	s = r.reboot()
	again, _ := s.StatBatch([]string{"a", "b"})
	for i := range infos {
		require.Equal(t, infos[i].HardPin, again[i].HardPin, infos[i].Key)
	}
}
