package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store/internal/catalog"
	"github.com/kvcache-ai/mooncake-go/store/internal/catalog/catalogtest"
	"github.com/kvcache-ai/mooncake-go/store/internal/ssd/ssdtest"
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

// A copy that was to take the place of another on the SSD tier, to repair it or to bring small objects together, and
// fails half-way leaves the other: the object is as durable as it was.
func TestCrashFailedMove(t *testing.T) {
	ctx := context.Background()
	for name, inject := range map[string]func(r *crashRig){
		"nothing": func(*crashRig) {},
		"write":   func(r *crashRig) { r.fs.Inject(ssdtest.Fault{At: 1, Op: "WriteAt", Err: syscall.EIO}) },
		"sync":    func(r *crashRig) { r.fs.Inject(ssdtest.Fault{At: 1, Op: "Sync", Err: syscall.EIO}) },
		"record":  func(r *crashRig) { r.disk.Inject(catalogtest.Fault{Op: catalogtest.Apply, Err: errDisk}) },
		"record, but written": func(r *crashRig) {
			r.disk.Inject(catalogtest.Fault{Op: catalogtest.Apply, Err: errDisk, Applied: true})
		},
		"records": func(r *crashRig) {
			for i := range 3 {
				r.disk.Inject(catalogtest.Fault{Op: catalogtest.Apply, After: i, Err: errDisk, Applied: i == 0})
			}
		},
	} {
		for i := range 6 {
			t.Run(fmt.Sprint(name, i), func(t *testing.T) {
				r := newCrashRig(t, Options{})
				s := r.boot()
				for _, key := range []string{"k", "gone", "open"} {
					require.NoError(t, s.Put(ctx, key, random(5000), &PutOptions{Durable: true, Type: Weight}))
				}
				require.NoError(t, s.Link(ctx, "link", "k", durably()))
				require.NoError(t, s.Link(ctx, "left", "gone", durably()))
				require.NoError(t, s.Remove("gone", true))
				reader, err := s.acquire("open", nil)
				require.NoError(t, err)
				inject(r)
				s.moveAll(ctx, []uint32{reader.o.SSD.File})
				reader.release()
				r.disk.Heal()
				r.fs.Inject(ssdtest.Fault{})
				if i%2 == 0 {
					require.NoError(t, s.Put(ctx, "next", random(100), durably()))
				}
				if i%3 == 0 {
					r.powerFails(rand.New(rand.NewPCG(uint64(i), 7)))
				} else {
					r.kill()
					r.loseMemory()
				}
				s = r.boot()
				for _, key := range []string{"k", "link", "left", "open"} {
					wantWhole(t, s, key, random(5000))
					info, err := s.Stat(key)
					require.NoError(t, err)
					require.True(t, info.Durable, key)
				}
				wantAbsent(t, s, "gone")
				requireEmptied(t, s)
			})
		}
	}
}
