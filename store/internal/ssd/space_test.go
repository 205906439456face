package ssd_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvcache-ai/mooncake-go/store/internal/ssd"
	"github.com/kvcache-ai/mooncake-go/store/internal/ssd/ssdtest"
)

// blocks is what the files of kind suffix take on disk, in bytes.
func blocks(t *testing.T, fs ssd.FS, dir, suffix string) (n int64) {
	t.Helper()
	names, err := fs.ReadDir(dir)
	ssdtest.NoError(t, err)
	for _, name := range names {
		if strings.HasSuffix(name, suffix) {
			info, err := fs.Stat(filepath.Join(dir, name))
			ssdtest.NoError(t, err)
			n += info.Blocks * 512
		}
	}
	return n
}

// TestFreePunches frees records of one container in random order: what it takes on disk follows, to nothing.
func TestFreePunches(t *testing.T) {
	fileSystems(t, func(t *testing.T, fs ssd.FS, dir string) {
		rng := newRand(t)
		tier := open(t, fs, dir, ssd.Options{ContainerBytes: 8 << 20})
		var objects []*object
		for i := range 200 {
			objects = append(objects, newObject(rng, fmt.Sprint(i), rng.IntN(3000)))
		}
		objects = append(objects, newObject(rng, "large", 1<<20))
		ssdtest.NoError(t, add(tier, objects...))
		last := newObject(rng, "fills the container", 7<<20)
		ssdtest.NoError(t, add(tier, last)) // rolls: the first container gives back what it allocated ahead
		ssdtest.NoError(t, tier.Sync(ctx))
		wantUsage(t, tier, 2, 0)
		file := filepath.Join(dir, fmt.Sprintf("%08x.log", objects[0].loc.File))
		rng.Shuffle(len(objects), func(i, j int) { objects[i], objects[j] = objects[j], objects[i] })
		for i, o := range objects {
			before := tier.Usage()
			free(tier, o)
			u := tier.Usage()
			if i == len(objects)-1 {
				break
			}
			if u.DiskBytes > before.DiskBytes || u.LiveBytes >= before.LiveBytes {
				t.Fatalf("Usage %+v after Free, %+v before", u, before)
			}
			info, err := fs.Stat(file)
			ssdtest.NoError(t, err)
			// The other container has its data, head and header; a file system may add a block for its tree.
			if want, got := u.DiskBytes-7<<20-2*4096, info.Blocks*512; got < want || got > want+8192 {
				t.Fatalf("after %d frees %d bytes on disk, Usage says %d", i+1, got, want)
			}
			for _, o := range objects[i+1 : min(i+4, len(objects))] {
				ssdtest.NoError(t, verify(tier, o))
			}
		}
		if _, err := fs.Stat(file); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("an empty container stays: %v", err)
		}
		ssdtest.NoError(t, verify(tier, last))
	})
}

func TestFreeTwicePanics(t *testing.T) {
	tier := open(t, new(ssdtest.FaultFS), "/tier", ssd.Options{})
	rng := newRand(t)
	a, b := newObject(rng, "a", 100), newObject(rng, "b", 100)
	ssdtest.NoError(t, add(tier, a, b))
	free(tier, a)
	defer func() {
		if r := recover(); !strings.HasPrefix(fmt.Sprint(r), "ssd: BUG") {
			t.Fatalf("second Free: %v, want a panic", r)
		}
		ssdtest.NoError(t, verify(tier, b))
	}()
	free(tier, a)
}

// TestRecover keeps some of the records of a previous life.
func TestRecover(t *testing.T) {
	fileSystems(t, func(t *testing.T, fs ssd.FS, dir string) {
		rng := newRand(t)
		opts := ssd.Options{ContainerBytes: 1 << 20}
		tier := open(t, fs, dir, opts)
		var keep []*object
		for i := range 60 {
			o := newObject(rng, fmt.Sprint("k", i), rng.IntN(200<<10))
			if i%10 == 0 {
				ssdtest.NoError(t, addOwn(tier, o))
			} else {
				ssdtest.NoError(t, add(tier, o))
			}
			if rng.IntN(3) == 0 {
				keep = append(keep, o)
			}
		}
		w, err := tier.CreateOwn(1 << 20) // never finished
		ssdtest.NoError(t, err)
		next := w.ID() + 1
		ssdtest.NoError(t, tier.Sync(ctx))
		ssdtest.NoError(t, tier.Close())
		for _, name := range []string{"00000000.log", "notes.txt", "TIER.tmp"} {
			f, err := fs.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE, 0o600)
			ssdtest.NoError(t, err)
			ssdtest.NoError(t, f.Close())
		}

		tier = open(t, fs, dir, opts)
		fresh := newObject(rng, "appended before Recover", 1000)
		ssdtest.NoError(t, add(tier, fresh))
		ssdtest.NoError(t, tier.Recover(live(append(keep, keep[0], fresh)...)))
		if fresh.loc.File < next {
			t.Fatalf("file id %d is used again", fresh.loc.File)
		}
		keep = append(keep, fresh)
		files := make(map[string]bool)
		var liveBytes int64
		for _, o := range keep {
			ssdtest.NoError(t, verify(tier, o))
			files[fmt.Sprintf("%08x.log", o.loc.File)] = true
			liveBytes += o.head.Size
			if o.loc.Own != 0 {
				files[filepath.Base(tier.OwnPath(o.loc.Own))] = true
			}
		}
		names, err := fs.ReadDir(dir)
		ssdtest.NoError(t, err)
		for _, name := range names {
			if !files[name] && name != "TIER" && name != "notes.txt" && name != "00000000.log" {
				t.Errorf("orphan %s stays", name)
			}
		}
		u := tier.Usage()
		if u.LiveBytes < liveBytes || u.DiskBytes > liveBytes+int64(len(keep))*3*4096 {
			t.Fatalf("Usage = %+v with %d live bytes", u, liveBytes)
		}
		active := fmt.Sprintf("%08x.log", fresh.loc.File)
		onDisk := blocks(t, fs, dir, ".log") + blocks(t, fs, dir, ".obj") - blocks(t, fs, dir, active)
		if onDisk > u.DiskBytes+int64(len(names))*8192 {
			t.Fatalf("%d bytes on disk, Usage says %d", onDisk, u.DiskBytes)
		}
		for _, o := range keep {
			free(tier, o)
		}
		if u := tier.Usage(); u.LiveBytes != 0 {
			t.Fatalf("Usage = %+v, want nothing live", u)
		}
	})
}

func TestRecoverRefuses(t *testing.T) {
	fs := new(ssdtest.FaultFS)
	tier := open(t, fs, "/tier", ssd.Options{})
	rng := newRand(t)
	a := newObject(rng, "a", 1000)
	ssdtest.NoError(t, add(tier, a))
	ssdtest.NoError(t, tier.Close())
	tier = open(t, fs, "/tier", ssd.Options{})
	over, outside, huge := *a, *a, *a
	over.loc.Off++
	outside.loc.Off = 1
	huge.head.Size = ssd.MaxObjectBytes + 1
	ssdtest.ErrorIs(t, tier.Recover(live(a, &over)), ssd.ErrCorrupt)
	ssdtest.ErrorIs(t, tier.Recover(live(a, &outside)), ssd.ErrInvalid)
	ssdtest.ErrorIs(t, tier.Recover(live(a, &huge)), ssd.ErrInvalid)
	ssdtest.NoError(t, tier.Recover(live(a)))
	ssdtest.NoError(t, verify(tier, a))
}

func TestNextFile(t *testing.T) {
	fs := new(ssdtest.FaultFS)
	last := uint32(0)
	for range 5 {
		tier := open(t, fs, "/tier", ssd.Options{})
		ssdtest.NoError(t, tier.Recover(live()))
		for range 3 {
			w, err := tier.CreateOwn(1)
			ssdtest.NoError(t, err)
			w.Abort() // nothing of it stays but its id
			if w.ID() <= last {
				t.Fatalf("file id %d after %d", w.ID(), last)
			}
			last = w.ID()
		}
		fs.Crash(nil)
		ssdtest.NoError(t, tier.Close())
	}
	tier := open(t, fs, "/tier", ssd.Options{NextFile: 1 << 31})
	if n := tier.Usage().NextFile; n != 1<<31 {
		t.Fatalf("NextFile = %d, want %d", n, 1<<31)
	}
	tier = open(t, fs, "/tier2", ssd.Options{NextFile: 1<<32 - 10})
	_, err := tier.CreateOwn(1)
	ssdtest.ErrorIs(t, err, ssd.ErrInvalid)
}

func TestQuota(t *testing.T) {
	fs := new(ssdtest.FaultFS)
	const quota = 1 << 20
	tier := open(t, fs, "/tier", ssd.Options{QuotaBytes: quota, ContainerBytes: 256 << 10})
	fillAndFree(t, tier, func() {
		if u := tier.Usage(); u.DiskBytes > quota {
			t.Fatalf("Usage = %+v above the quota", u)
		}
	})
}

// fillAndFree fills the tier until it is full, twice with room made between.
func fillAndFree(t *testing.T, tier *ssd.Tier, check func()) {
	rng := newRand(t)
	var all []*object
	for round := range 3 {
		n := len(all)
		for i := 0; ; i++ {
			o := newObject(rng, fmt.Sprintf("%d/%d", round, i), rng.IntN(100<<10))
			store := func() error { return add(tier, o) }
			if i%5 == 0 {
				store = func() error { return addOwn(tier, o) }
			}
			err := store()
			if err == nil {
				err = tier.Sync(ctx)
				all = append(all, o)
			}
			check()
			if err != nil {
				ssdtest.ErrorIs(t, err, ssd.ErrNoSpace)
				break
			}
		}
		if len(all) == n {
			t.Fatalf("round %d stored nothing", round)
		}
		for _, o := range all {
			ssdtest.NoError(t, verify(tier, o))
		}
		half := len(all) / 2
		for _, o := range all[:half] {
			free(tier, o)
		}
		all = all[half:]
	}
}

// TestDiskFull runs on a real small file system.
func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16m"); err != nil {
		t.Skipf("mounting a tmpfs: %v", err)
	}
	t.Cleanup(func() { ssdtest.NoError(t, unix.Unmount(dir, 0)) })
	tier := open(t, ssd.OSFS{}, filepath.Join(dir, "tier"), ssd.Options{ContainerBytes: 4 << 20})
	fillAndFree(t, tier, func() {})
}

func TestCapacity(t *testing.T) {
	fs := new(ssdtest.FaultFS)
	fs.SetCapacity(2 << 20)
	fillAndFree(t, open(t, fs, "/tier", ssd.Options{ContainerBytes: 512 << 10, BatchBytes: 64 << 10}), func() {})
}

// TestManyFiles uses more files than stay open.
func TestManyFiles(t *testing.T) {
	tier := open(t, ssd.OSFS{}, t.TempDir(), ssd.Options{ContainerBytes: 64 << 10})
	rng := newRand(t)
	before := openFiles(t)
	var all []*object
	for i := range 300 {
		o := newObject(rng, fmt.Sprint(i), 60<<10)
		ssdtest.NoError(t, add(tier, o))
		all = append(all, o)
	}
	ssdtest.NoError(t, tier.Sync(ctx))
	for range 2 {
		for _, o := range all {
			ssdtest.NoError(t, verify(tier, o))
		}
	}
	if n := openFiles(t) - before; n > 140 {
		t.Fatalf("%d files are open", n)
	}
	wantUsage(t, tier, 300, 0)
}

func openFiles(t *testing.T) int {
	fds, err := os.ReadDir("/proc/self/fd")
	ssdtest.NoError(t, err)
	return len(fds)
}

func mapped(t *testing.T) int {
	maps, err := os.ReadFile("/proc/self/maps")
	ssdtest.NoError(t, err)
	return bytes.Count(maps, []byte("\n"))
}

// TestOpenClose leaves nothing behind.
func TestOpenClose(t *testing.T) {
	dir := t.TempDir()
	rng := rand.New(rand.NewPCG(1, 1))
	o := newObject(rng, "k", 70000)
	cycle := func() {
		tier, err := ssd.Open(ssd.OSFS{}, dir, ssd.Options{ContainerBytes: 1 << 20, BatchBytes: 1 << 20})
		ssdtest.NoError(t, err)
		ssdtest.NoError(t, tier.Recover(live()))
		ssdtest.NoError(t, add(tier, o))
		_, err = tier.CreateOwn(100)
		ssdtest.NoError(t, err)
		ssdtest.NoError(t, tier.Sync(ctx))
		ssdtest.NoError(t, verify(tier, o))
		ssdtest.NoError(t, tier.Close())
	}
	var fds, maps int
	var heap uint64
	for i := range 100 {
		cycle()
		if i%50 == 9 {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			if i == 9 {
				fds, maps, heap = openFiles(t), mapped(t), m.HeapAlloc
				continue
			}
			if openFiles(t) > fds || mapped(t) > maps+20 || m.HeapAlloc > heap+1<<20 {
				t.Fatalf("cycle %d: %d fds, %d mappings, %d heap; were %d, %d, %d",
					i, openFiles(t), mapped(t), m.HeapAlloc, fds, maps, heap)
			}
		}
	}
	names, err := os.ReadDir(dir)
	ssdtest.NoError(t, err)
	if len(names) > 2 {
		t.Fatalf("%d files are left", len(names))
	}
}

// TestFreeAllPunchesOnce frees many small objects side by side with one hole.
func TestFreeAllPunchesOnce(t *testing.T) {
	fs := new(ssdtest.FaultFS)
	tier := open(t, fs, "/tier", ssd.Options{})
	rng := newRand(t)
	before := tier.Usage()
	var all []*object
	for i := range 300 {
		all = append(all, newObject(rng, fmt.Sprint(i), 1+rng.IntN(20<<10)))
	}
	last := newObject(rng, "last", 100)
	ssdtest.NoError(t, add(tier, append(all, last)...))
	ssdtest.NoError(t, tier.Sync(ctx))
	var list []ssd.Freed
	for _, o := range all {
		list = append(list, ssd.Freed{Loc: o.loc, KeyLen: len(o.head.Key), Size: o.head.Size})
	}
	rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	fs.Inject(ssdtest.Fault{Op: "PunchHole", At: 2})
	tier.FreeAll(list)
	if fs.Fired() {
		t.Fatal("more than one hole was punched")
	}
	if u := tier.Usage(); u.DiskBytes > before.DiskBytes+4*ssd.BlockBytes {
		t.Fatalf("Usage = %+v, was %+v", u, before)
	}
	ssdtest.NoError(t, verify(tier, last))
}
