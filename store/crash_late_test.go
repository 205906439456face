package store

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store/internal/catalog"
	"github.com/kvcache-ai/mooncake-go/store/internal/catalog/catalogtest"
)

// A link whose record could not be written when its target came to the SSD tier is written by the next Sync, which
// says so.
func TestCrashSyncWritesLateLinks(t *testing.T) {
	ctx := context.Background()
	r := newCrashRig(t, Options{Offload: OffloadNever})
	s := r.boot()
	require.NoError(t, s.Put(ctx, "target", random(5000), nil))
	require.NoError(t, s.Link(ctx, "link", "target", nil))
	r.disk.Inject(catalogtest.Fault{Op: catalogtest.Apply, After: 1, Err: errDisk}) // after the target's record
	require.ErrorIs(t, s.Sync(ctx), ErrNotDurable)
	require.NoError(t, s.Sync(ctx))
	s = r.reboot()
	wantWhole(t, s, "target", random(5000))
	wantWhole(t, s, "link", random(5000))
}

// What a start-up frees is no longer named by a catalogue that loses its last unsynced changes afterwards.
func TestCrashAfterRecovery(t *testing.T) {
	ctx := context.Background()
	for i := range 10 { // of each power failure something else survives
		size := []int{5000, 200_000}[i%2]
		r := newCrashRig(t, Options{FileBytes: 64 << 10})
		s := r.boot()
		require.NoError(t, s.Put(ctx, "k", random(size), &PutOptions{Durable: true, OwnFile: true}))
		require.NoError(t, s.Put(ctx, "other", random(100), &PutOptions{Durable: true}))
		info, err := s.Stat("k")
		require.NoError(t, err)
		var b catalog.Batch
		b.Delete("", "k", info.Generation)
		require.NoError(t, s.catalog.Apply(&b, false)) // a removal that is killed before it could sync
		r.kill()
		r.loseMemory()
		s = r.boot()
		wantAbsent(t, s, "k")
		r.powerFails(rand.New(rand.NewPCG(uint64(i), 1)))
		s = r.boot()
		wantAbsentOrWhole(t, s, "k", random(size))
		wantWhole(t, s, "other", random(100))
	}
}
