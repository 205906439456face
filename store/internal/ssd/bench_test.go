package ssd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvcache-ai/mooncake-go/store/internal/ssd"
	"github.com/kvcache-ai/mooncake-go/store/internal/ssd/ssdtest"
)

const benchBytes = 4 << 20

// benchFile is a raw file for direct I/O on the benchmark's file system.
func benchFile(b *testing.B, dir string) int {
	fd, err := unix.Open(filepath.Join(dir, "raw"), os.O_RDWR|os.O_CREATE|syscall.O_DIRECT, 0o600)
	ssdtest.NoError(b, err)
	b.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// sideBySide runs raw and tier in turn, so that both see the same noise, and reports both and their ratio.
func sideBySide(b *testing.B, raw, tier func(i int64)) {
	var times [2]time.Duration
	b.ReportAllocs()
	n := int64(0)
	for ; b.Loop(); n++ {
		for j, f := range []func(int64){raw, tier} {
			start := time.Now()
			f(n)
			times[j] += time.Since(start)
		}
	}
	mbs := func(d time.Duration) float64 { return float64(n*benchBytes) / 1e6 / d.Seconds() }
	b.ReportMetric(mbs(times[0]), "raw-MB/s")
	b.ReportMetric(mbs(times[1]), "tier-MB/s")
	b.ReportMetric(times[0].Seconds()/times[1].Seconds(), "ratio")
}

// BenchmarkWrite is Append and Sync of objects of 4 MiB, beside pwrite and fdatasync of as many bytes in a loop.
func BenchmarkWrite(b *testing.B) {
	b.Run("4MiB", benchWrite)
	b.Run("parallel", func(b *testing.B) { // callers whose copying and syncing overlap
		tier := open(b, ssd.OSFS{}, b.TempDir(), ssd.Options{})
		o := newObject(newRand(b), "k", benchBytes)
		b.SetBytes(benchBytes)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				mine := object{head: o.head, data: o.data}
				ssdtest.NoError(b, add(tier, &mine))
				ssdtest.NoError(b, tier.Sync(ctx))
				free(tier, &mine)
			}
		})
	})
	b.Run("own", func(b *testing.B) {
		tier := open(b, ssd.OSFS{}, b.TempDir(), ssd.Options{ReadaheadBytes: -1})
		o := newObject(newRand(b), "k", 64<<20)
		b.SetBytes(64 << 20)
		for b.Loop() {
			ssdtest.NoError(b, addOwn(tier, o))
			ssdtest.NoError(b, tier.Sync(ctx))
			free(tier, o)
		}
	})
}

const keep = 64 // objects, or the disk fills up

// benchWrite writes objects that lie 64 bytes behind a multiple of 4096, as they may in an arena.
func benchWrite(b *testing.B) {
	dir := b.TempDir()
	fd := benchFile(b, dir)
	tier := open(b, ssd.OSFS{}, filepath.Join(dir, "tier"), ssd.Options{})
	o := newObject(newRand(b), "some key of a usual length", benchBytes)
	memory := ssdtest.Blocks(b, benchBytes/4096+1)[64:][:benchBytes]
	copy(memory, o.data)
	buf := ssdtest.Blocks(b, benchBytes/4096)
	copy(buf, o.data) // untouched memory is one page of zeros, and faster
	item := ssd.Item{Head: o.head, Data: [][]byte{memory}}
	var ring []object
	raw := func(i int64) {
		if i%keep == 0 { // new blocks each time, as in the tier
			ssdtest.NoError(b, unix.Ftruncate(fd, 0))
			ssdtest.NoError(b, unix.Fallocate(fd, 0, 0, keep*benchBytes))
		}
		_, err := unix.Pwrite(fd, buf, i%keep*benchBytes)
		ssdtest.NoError(b, err)
		ssdtest.NoError(b, unix.Fdatasync(fd))
	}
	sideBySide(b, raw, func(i int64) {
		if i%keep == 0 {
			for j := range ring {
				free(tier, &ring[j])
			}
			ring = ring[:0]
		}
		locs, err := tier.Append(ctx, []ssd.Item{item})
		ssdtest.NoError(b, err)
		ssdtest.NoError(b, tier.Sync(ctx))
		ring = append(ring, object{head: o.head, loc: locs[0]})
	})
}

// BenchmarkRead is Read of objects of 4 MiB, beside pread of as many bytes in a loop.
func BenchmarkRead(b *testing.B) {
	const count = 64
	dst := ssdtest.Blocks(b, benchBytes/4096+1)
	fd := benchFile(b, b.TempDir())
	raw := func(i int64) {
		_, err := unix.Pread(fd, dst[:benchBytes], i*7%count*benchBytes)
		ssdtest.NoError(b, err)
	}
	tier := open(b, ssd.OSFS{}, b.TempDir(), ssd.Options{})
	var objects [count]*object
	rng := newRand(b)
	for i := range objects {
		objects[i] = newObject(rng, fmt.Sprint("k", i), benchBytes)
		ssdtest.NoError(b, add(tier, objects[i]))
		copy(dst, objects[i].data)
		_, err := unix.Pwrite(fd, dst[:benchBytes], int64(i)*benchBytes)
		ssdtest.NoError(b, err)
		objects[i].data = nil
	}
	for _, c := range []struct {
		name     string
		shift    int
		verified bool
	}{{"verified", 0, true}, {"unverified", 0, false}, {"unaligned", 64, true}} {
		b.Run(c.name, func(b *testing.B) {
			sideBySide(b, raw, func(i int64) {
				o := objects[i*7%count]
				h := o.head
				if !c.verified {
					h.Table = nil
				}
				ssdtest.NoError(b, tier.Read(ctx, o.loc, &h, 0, dst[c.shift:][:benchBytes]))
			})
		})
	}
}

// BenchmarkReadSmall is head and data of objects of 4 KiB.
func BenchmarkReadSmall(b *testing.B) {
	tier := open(b, ssd.OSFS{}, b.TempDir(), ssd.Options{})
	objects := make([]*object, 1000)
	rng := newRand(b)
	for i := range objects {
		objects[i] = newObject(rng, fmt.Sprint("k", i), 4096)
	}
	ssdtest.NoError(b, add(tier, objects...))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		ssdtest.NoError(b, verify(tier, objects[i*7%len(objects)]))
	}
}
