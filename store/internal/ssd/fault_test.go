package ssd_test

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/kvcache-ai/mooncake-go/store/internal/ssd"
	"github.com/kvcache-ai/mooncake-go/store/internal/ssd/ssdtest"
)

func containerOf(o *object) string { return fmt.Sprintf("/tier/%08x.log", o.loc.File) }

// TestEveryBit flips every bit of a stored head, table and data, one at a time.
func TestEveryBit(t *testing.T) {
	fs := new(ssdtest.FaultFS)
	tier := open(t, fs, "/tier", ssd.Options{})
	rng := newRand(t)
	o := newObject(rng, "some key", 300)
	large := newObject(rng, "two chunks", chunk+10)
	ssdtest.NoError(t, add(tier, o, large))
	flip := func(o *object, off int64, bit int) {
		t.Helper()
		name := containerOf(o)
		fs.Corrupt(name, off, func(b byte) byte { return b ^ 1<<bit })
		err := verify(tier, o)
		if !errors.Is(err, ssd.ErrCorrupt) && !errors.Is(err, ssd.ErrNewerFormat) {
			t.Fatalf("bit %d at %d flipped: %v, want ErrCorrupt", bit, off, err)
		}
		fs.Corrupt(name, off, func(b byte) byte { return b ^ 1<<bit })
	}
	start := int64(o.loc.Off) * 64
	head := int64(64 + len(o.head.Key) + 8)
	data := (start + head + 63) &^ 63
	for bit := range 8 {
		for off := start; off < start+head; off++ {
			flip(o, off, bit)
		}
		for off := data; off < data+o.head.Size; off++ {
			flip(o, off, bit)
		}
		for off := int64(large.loc.Off) * 64; off < int64(large.loc.Off)*64+64+10+16; off++ {
			flip(large, off, bit)
		}
	}
	dataOfLarge := (int64(large.loc.Off)*64 + 64 + 10 + 16 + 4095) &^ 4095
	for range 200 {
		flip(large, dataOfLarge+rng.Int64N(large.head.Size), rng.IntN(8))
	}
	ssdtest.NoError(t, verify(tier, o))
	ssdtest.NoError(t, verify(tier, large))

	// A range that does not touch the bad chunk is good.
	fs.Corrupt(containerOf(o), dataOfLarge+chunk+3, func(b byte) byte { return b + 1 })
	dst := make([]byte, chunk)
	ssdtest.NoError(t, tier.Read(ctx, large.loc, &large.head, 0, dst))
	ssdtest.ErrorIs(t, tier.Read(ctx, large.loc, &large.head, chunk+8, dst[:1]), ssd.ErrCorrupt)
}

// TestSwappedRecords reads records by the Loc, key or size of another.
func TestSwappedRecords(t *testing.T) {
	tier := open(t, new(ssdtest.FaultFS), "/tier", ssd.Options{})
	rng := newRand(t)
	a, b := newObject(rng, "key a", 500), newObject(rng, "key b", 500)
	ssdtest.NoError(t, add(tier, a, b))
	for _, x := range []struct {
		loc  ssd.Loc
		key  string
		size int64
	}{
		{b.loc, "key a", 500}, {a.loc, "key b", 500}, {a.loc, "key", 500}, {a.loc, "key a", 499}, {a.loc, "key a", 1 << 20},
		{ssd.Loc{File: a.loc.File, Off: a.loc.Off, Own: 5}, "key a", 500}, {ssd.Loc{File: a.loc.File, Off: a.loc.Off + 1}, "key a", 500},
		{ssd.Loc{File: a.loc.File}, "key a", 500},
	} {
		_, err := tier.ReadHead(ctx, x.loc, []byte(x.key), x.size)
		if !errors.Is(err, ssd.ErrCorrupt) && !errors.Is(err, ssd.ErrTruncated) {
			t.Errorf("ReadHead(%v, %q, %d) = %v, want ErrCorrupt", x.loc, x.key, x.size, err)
		}
	}
}

func TestTruncatedAndMissing(t *testing.T) {
	fsys := new(ssdtest.FaultFS)
	tier := open(t, fsys, "/tier", ssd.Options{})
	rng := newRand(t)
	a, b, own := newObject(rng, "a", 100), newObject(rng, "b", 2<<20), newObject(rng, "own", 1<<20+9)
	ssdtest.NoError(t, add(tier, a, b))
	ssdtest.NoError(t, addOwn(tier, own))
	path := tier.OwnPath(own.loc.Own)
	fsys.Resize(path, own.head.Size-1)
	ssdtest.ErrorIs(t, verify(tier, own), ssd.ErrTruncated)
	fsys.Resize(path, own.head.Size) // the last byte is zero now
	if own.data[own.head.Size-1] != 0 {
		ssdtest.ErrorIs(t, verify(tier, own), ssd.ErrCorrupt)
	}
	fsys.Resize(containerOf(a), 1<<20)
	ssdtest.NoError(t, verify(tier, a))
	ssdtest.ErrorIs(t, verify(tier, b), ssd.ErrTruncated)
	fsys.Resize(containerOf(a), 0)
	ssdtest.ErrorIs(t, verify(tier, a), ssd.ErrTruncated)
	ssdtest.NoError(t, tier.Close())
	ssdtest.NoError(t, fsys.Remove(path))
	ssdtest.NoError(t, fsys.Remove(containerOf(a)))

	tier = open(t, fsys, "/tier", ssd.Options{})
	ssdtest.NoError(t, tier.Recover(live(a, b, own)))
	for _, o := range []*object{a, b, own} {
		ssdtest.ErrorIs(t, verify(tier, o), fs.ErrNotExist)
		free(tier, o)
	}
	wantUsage(t, tier, 0, 0)
	ssdtest.NoError(t, add(tier, a))
	ssdtest.NoError(t, verify(tier, a))
}

// TestCrash appends, syncs, frees and crashes: what was synced reads back, what was not reads back right or fails.
func TestCrash(t *testing.T) {
	for round := range 40 {
		rng := newRand(t)
		fsys := new(ssdtest.FaultFS)
		opts := ssd.Options{ContainerBytes: 256 << 10, BatchBytes: 64 << 10}
		var synced []*object
		used := make(map[uint32]bool) // ids
		for life := range 4 {
			tier := open(t, fsys, "/tier", opts)
			ssdtest.NoError(t, tier.Recover(live(synced...)))
			for _, o := range synced {
				ssdtest.NoError(t, verify(tier, o))
			}
			seen := make(map[uint32]bool)
			var loose []*object
			for i := range 1 + rng.IntN(20) {
				o := newObject(rng, fmt.Sprintf("%d/%d", life, i), rng.IntN(100<<10))
				store := add
				if rng.IntN(4) == 0 {
					store = func(t *ssd.Tier, o ...*object) error { return addOwn(t, o[0]) }
				}
				ssdtest.NoError(t, store(tier, o))
				seen[o.loc.File], seen[o.loc.Own] = true, true
				loose = append(loose, o)
				if rng.IntN(4) == 0 {
					ssdtest.NoError(t, tier.Sync(ctx))
					synced, loose = append(synced, loose...), nil
				}
				if len(synced) > 0 && rng.IntN(4) == 0 {
					j := rng.IntN(len(synced))
					free(tier, synced[j])
					synced = slices.Delete(synced, j, j+1)
				}
			}
			for id := range seen {
				if id != 0 && used[id] {
					t.Fatalf("round %d, life %d: file id %d was used before", round, life, id)
				}
				used[id] = true
			}
			if rng.IntN(2) == 0 {
				fsys.Crash(nil)
			} else {
				fsys.Crash(rng)
			}
			ssdtest.NoError(t, tier.Close())
			tier = open(t, fsys, "/tier", opts)
			for _, o := range loose {
				_ = verify(tier, o) // panics on wrong bytes
			}
			ssdtest.NoError(t, tier.Close())
		}
	}
}

// scenario stores, syncs, reads and frees; it frees what an operation failed for and keeps what was synced.
func scenario(tier *ssd.Tier, rng *rand.Rand, kept *[]*object) (failed bool) {
	note := func(err error, undo ...*object) bool {
		if err != nil {
			failed = true
			for _, o := range undo {
				free(tier, o)
			}
		}
		return err == nil
	}
	for i := range 3 {
		a, b := newObject(rng, fmt.Sprintf("a%d", i), 1000), newObject(rng, fmt.Sprintf("b%d", i), 70<<10)
		if note(add(tier, a, b)) && note(tier.Sync(ctx), a, b) {
			*kept = append(*kept, a)
			free(tier, b)
		}
		own := newObject(rng, fmt.Sprintf("own%d", i), 5000)
		if note(addOwn(tier, own)) && note(tier.Sync(ctx), own) {
			*kept = append(*kept, own)
		}
		for _, o := range *kept {
			note(verify(tier, o))
		}
	}
	return failed
}

// TestEveryFault fails each operation in turn: what was stored stays, the tier goes on, and a restart finds all of it.
func TestEveryFault(t *testing.T) {
	opts := ssd.Options{ContainerBytes: 128 << 10, BatchBytes: 64 << 10, OwnWriters: 1}
	faults := map[string]ssdtest.Fault{
		"EIO":    {Err: syscall.EIO},
		"ENOSPC": {Err: syscall.ENOSPC},
		"short":  {Op: "WriteAt", Err: syscall.EIO, Short: true},
		"sync":   {Op: "Sync", Err: syscall.EIO},
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			for n := 1; ; n++ {
				fsys := new(ssdtest.FaultFS)
				tier := open(t, fsys, "/tier", opts)
				before := newObject(rng, "before", 5000)
				ssdtest.NoError(t, add(tier, before))
				ssdtest.NoError(t, tier.Sync(ctx))
				kept := []*object{before}
				fault.At = n
				fsys.Inject(fault)
				failed := scenario(tier, rng, &kept)
				if !fsys.Fired() {
					if failed || n < 5 {
						t.Fatalf("no fault at %d, but a failure: %v", n, failed)
					}
					return
				}
				fsys.Inject(ssdtest.Fault{})
				if scenario(tier, rng, &kept) {
					t.Fatalf("fault at %d: the tier is not usable after it", n)
				}
				fsys.Crash(nil)
				ssdtest.NoError(t, tier.Close())
				tier = open(t, fsys, "/tier", opts)
				ssdtest.NoError(t, tier.Recover(live(kept...)))
				for _, o := range kept {
					ssdtest.NoError(t, verify(tier, o))
				}
				ssdtest.NoError(t, tier.Close())
			}
		})
	}
}

// TestEveryFaultAtStart fails each operation of Open and Recover: an error or success, and the next start is whole.
func TestEveryFaultAtStart(t *testing.T) {
	rng := newRand(t)
	for n := 1; ; n++ {
		fsys := new(ssdtest.FaultFS)
		tier := open(t, fsys, "/tier", ssd.Options{})
		a, b, own := newObject(rng, "a", 9000), newObject(rng, "b", 20000), newObject(rng, "own", 9000)
		ssdtest.NoError(t, add(tier, b, a))
		ssdtest.NoError(t, addOwn(tier, own))
		ssdtest.NoError(t, tier.Sync(ctx))
		ssdtest.NoError(t, tier.Close())
		fsys.Inject(ssdtest.Fault{At: n, Err: syscall.EIO})
		if tier, err := ssd.Open(fsys, "/tier", ssd.Options{}); err == nil {
			_ = tier.Recover(live(a))
			ssdtest.NoError(t, tier.Close())
		}
		fired := fsys.Fired()
		fsys.Inject(ssdtest.Fault{})
		tier = open(t, fsys, "/tier", ssd.Options{})
		ssdtest.NoError(t, tier.Recover(live(a)))
		ssdtest.NoError(t, verify(tier, a))
		wantUsage(t, tier, 1, 0)
		ssdtest.NoError(t, tier.Close())
		if !fired {
			return
		}
	}
}

// TestFailedSync: nobody is told that a record in doubt is durable, not even by a later Sync.
func TestFailedSync(t *testing.T) {
	fsys := new(ssdtest.FaultFS)
	tier := open(t, fsys, "/tier", ssd.Options{})
	rng := newRand(t)
	old, a, b, c := newObject(rng, "old", 10), newObject(rng, "a", 10), newObject(rng, "b", 10), newObject(rng, "c", 10)
	ssdtest.NoError(t, add(tier, old))
	ssdtest.NoError(t, tier.Sync(ctx))
	ssdtest.NoError(t, add(tier, a))
	ssdtest.NoError(t, add(tier, b))
	fsys.Inject(ssdtest.Fault{At: 1, Op: "Sync", Err: syscall.EIO})
	ssdtest.ErrorIs(t, tier.Sync(ctx), syscall.EIO)
	free(tier, a)
	ssdtest.ErrorIs(t, tier.Sync(ctx), syscall.EIO) // b is in doubt
	ssdtest.NoError(t, add(tier, c))
	if c.loc.File == a.loc.File {
		t.Fatal("appended to a container whose sync failed")
	}
	free(tier, old) // synced, no part of the doubt
	ssdtest.ErrorIs(t, tier.Sync(ctx), syscall.EIO)
	free(tier, b)
	ssdtest.NoError(t, tier.Sync(ctx))
	ssdtest.NoError(t, verify(tier, c))
	wantUsage(t, tier, 1, 0)
}

// TestGroupCommit: concurrent callers share syncs.
func TestGroupCommit(t *testing.T) {
	fsys := &slowSync{FS: new(ssdtest.FaultFS), entered: make(chan struct{}), leave: make(chan struct{})}
	tier := open(t, fsys, "/tier", ssd.Options{})
	rng := newRand(t)
	ssdtest.NoError(t, add(tier, newObject(rng, "k", 10)))
	results := make(chan error)
	go func() { results <- tier.Sync(ctx) }()
	<-fsys.entered // the first round syncs
	ssdtest.NoError(t, add(tier, newObject(rng, "l", 10)))
	started := make(chan struct{})
	for range 10 {
		go func() {
			started <- struct{}{}
			results <- tier.Sync(ctx)
		}()
	}
	for range 10 {
		<-started
	}
	close(fsys.leave)
	go func() {
		for range fsys.entered {
		}
	}()
	for range 11 {
		ssdtest.NoError(t, <-results)
	}
	// Calls that had not yet joined the second round run a later one, in which nothing is dirty.
	if n := fsys.count.Load(); n != 2 {
		t.Fatalf("%d syncs for 11 calls, want 2", n)
	}
	close(fsys.entered)
}

// slowSync counts the syncs of files that are not TIER and holds them up.
type slowSync struct {
	ssd.FS
	entered, leave chan struct{}
	count          atomic.Int64
}

type slowFile struct {
	ssd.File
	s *slowSync
}

func (s *slowSync) OpenFile(name string, flag int, perm fs.FileMode) (ssd.File, error) {
	f, err := s.FS.OpenFile(name, flag, perm)
	if err != nil || len(name) > 5 && name[len(name)-4:] != ".log" {
		return f, err
	}
	return slowFile{f, s}, nil
}

func (f slowFile) Sync() error {
	f.s.count.Add(1)
	f.s.entered <- struct{}{}
	<-f.s.leave
	return f.File.Sync()
}

// TestConcurrent appends, reads, syncs and frees at once.
func TestConcurrent(t *testing.T) {
	fileSystems(t, func(t *testing.T, fs ssd.FS, dir string) {
		tier := open(t, fs, dir, ssd.Options{ContainerBytes: 1 << 20, BatchBytes: 128 << 10})
		var kept struct {
			sync.Mutex
			objects []*object
		}
		var workers sync.WaitGroup
		for w := range 6 {
			rng := rand.New(rand.NewPCG(uint64(w), 1))
			workers.Go(func() {
				var mine []*object
				for i := range 24 {
					var batch []*object
					for j := range 1 + rng.IntN(3) {
						batch = append(batch, newObject(rng, fmt.Sprintf("%d/%d/%d", w, i, j), rng.IntN(150<<10)))
					}
					var err error
					if i%8 == 0 {
						batch = batch[:1]
						err = addOwn(tier, batch[0])
					} else {
						err = add(tier, batch...)
					}
					if err == nil && i%3 == 0 {
						err = tier.Sync(ctx)
					}
					if err != nil {
						t.Error(err)
						return
					}
					mine = append(mine, batch...)
					o := mine[rng.IntN(len(mine))]
					if err := verify(tier, o); err != nil {
						t.Error(err)
						return
					}
					if j := rng.IntN(len(mine)); i%2 == 0 {
						free(tier, mine[j])
						mine = slices.Delete(mine, j, j+1)
					}
					_ = tier.Usage()
				}
				kept.Lock()
				defer kept.Unlock()
				kept.objects = append(kept.objects, mine...)
			})
		}
		workers.Wait()
		ssdtest.NoError(t, tier.Sync(ctx))
		for _, o := range kept.objects {
			ssdtest.NoError(t, verify(tier, o))
		}
		ssdtest.NoError(t, tier.Close())
		tier = open(t, fs, dir, ssd.Options{})
		ssdtest.NoError(t, tier.Recover(live(kept.objects...)))
		for _, o := range kept.objects {
			ssdtest.NoError(t, verify(tier, o))
			free(tier, o)
		}
		if u := wantUsage(t, tier, 0, 0); u.LiveBytes != 0 || u.DiskBytes != 0 {
			t.Fatalf("Usage = %+v, want nothing", u)
		}
	})
}
