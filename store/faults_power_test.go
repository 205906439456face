package store

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store/internal/catalog/catalogtest"
	"github.com/kvcache-ai/mooncake-go/store/internal/ssd/ssdtest"
)

// TestCrashPower runs the workload of TestCrash in this process on a disk that drops what was not synced, or keeps a
// random part of it, or lets only the process die. Some rounds have faults on the way. Replay with -crash-seed; the
// moment differs.
func TestCrashPower(t *testing.T) {
	seed := *crashSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	rounds := *crashRounds
	if testing.Short() {
		rounds /= 10
	}
	for done := 0; done < rounds; done += crashChain {
		powerChainOf(t, seed+uint64(done), min(crashChain, rounds-done))
	}
}

func powerChainOf(t *testing.T, seed uint64, rounds int) {
	rng := rand.New(rand.NewPCG(seed, 2))
	opts := crashOptions()
	opts.Offload = Offload(rng.IntN(2))
	r := newCrashRig(t, opts)
	m := newCrashModel()
	s := r.boot()
	for i := range rounds {
		faults, how := rng.IntN(3) == 0, rng.IntN(3)
		t.Logf("seed %d round %d: how %d, faults %v", seed, i, how, faults)
		o := crashOrder{Seed: seed + uint64(i), Ver: uint32(i+1) * 1_000_000, Have: m.have()}
		powerRun(t, r, &o, m, faults, how, rng)
		switch {
		case faults:
			how = crashPower // of what a failed write left of a cache may come back what was not synced
		case how == crashKill:
			// Unlike in TestCrash its goroutines run on for a moment, without the disk: an object whose copy fails then
			// may be evicted from the memory that survives.
			how = crashReboot
		}
		s = r.boot()
		m.checkAll(t, s, how)
		if i%3 == 2 {
			m.fill(t, s)
		}
	}
	m.empty(t, s)
	require.NoError(t, s.Close())
	r.s = nil
}

// powerRun works until the machine ends at a random moment.
func powerRun(t *testing.T, r *crashRig, o *crashOrder, m *crashModel, faults bool, how int, rng *rand.Rand) {
	j := &crashJournal{write: m.add}
	var wg sync.WaitGroup
	workers := o.workers(r.s, j)
	for _, w := range workers {
		w.trusted = !faults
		wg.Go(w.run)
	}
	for end := time.Now().Add(time.Duration(rng.IntN(120)) * time.Millisecond); time.Now().Before(end); {
		if faults {
			injectSome(r, rng)
		}
		time.Sleep(3 * time.Millisecond)
	}
	j.mu.Lock() // nothing is acknowledged after the end
	j.over = true
	for _, w := range workers {
		w.stop.Store(true)
		if !faults {
			require.NoError(t, w.err)
		}
	}
	r.power.off.Store(true)
	switch how {
	case crashPower:
		var torn *rand.Rand
		keep := 0
		if rng.IntN(2) == 0 {
			torn, keep = rng, rng.IntN(r.disk.Unsynced()+1)
		}
		r.fs.Crash(torn)
		r.disk.Crash(keep)
	default:
		r.disk.Kill()
	}
	j.mu.Unlock()
	wg.Wait()
	_ = r.s.Close()
	r.s = nil
	r.fs.Inject(ssdtest.Fault{})
	r.disk.Heal()
	if how != crashKill {
		r.loseMemory()
	}
}

func injectSome(r *crashRig, rng *rand.Rand) {
	errs := []error{syscall.EIO, syscall.ENOSPC}
	ops := []string{"WriteAt", "Sync", "SyncDir", "OpenFile", "Allocate", "Truncate", "PunchHole", "ReadAt", "Rename", "Chmod"}
	r.fs.Inject(ssdtest.Fault{At: 1 + rng.IntN(6), Op: ops[rng.IntN(len(ops))], Err: errs[rng.IntN(2)], Short: rng.IntN(2) == 0})
	if rng.IntN(2) == 0 {
		r.disk.Inject(catalogtest.Fault{Op: catalogtest.Apply, After: rng.IntN(8), Err: fmt.Errorf("injected"), Applied: rng.IntN(2) == 0})
	}
}
