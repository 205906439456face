package store

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store/internal/catalog"
	"github.com/kvcache-ai/mooncake-go/store/internal/catalog/catalogtest"
	"github.com/kvcache-ai/mooncake-go/store/internal/ssd/ssdtest"
)

// processUse is what a process holds besides memory.
type processUse struct{ fds, threads, maps, goroutines int }

func useOfProcess(t *testing.T) (u processUse) {
	runtime.GC()
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "Threads:"); ok {
			u.threads, _ = strconv.Atoi(strings.TrimSpace(v))
		}
	}
	u.fds, u.goroutines = len(fds), runtime.NumGoroutine()
	u.maps = strings.Count(string(maps), "/dev/shm/") + strings.Count(string(maps), "memfd:")
	return u
}

// TestReopenLeaksNothing opens and closes a directory again and again, after crashes too, and with Opens that fail
// half-way.
func TestReopenLeaksNothing(t *testing.T) {
	needRocksDB(t)
	ctx := context.Background()
	opts := crashOptions()
	opts.Dir, opts.ShmDir = t.TempDir(), crashShmDir(t)
	cycle := func(i int) {
		s, err := Open(ctx, opts)
		require.NoError(t, err)
		require.NoError(t, s.Upsert(ctx, fmt.Sprint("k", i%10), random(70_000), &PutOptions{Durable: i%2 == 0, Type: Weight}))
		if i > 0 {
			wantAbsentOrWhole(t, s, fmt.Sprint("k", (i-1)%10), random(70_000))
		}
		_, err = Open(ctx, opts)
		require.ErrorIs(t, err, ErrLocked)
		require.NoError(t, s.Close())
		if i%7 == 3 { // as after a crash: no shared memory, or a broken one
			left, err := filepath.Glob(filepath.Join(opts.ShmDir, "*", "segment"))
			require.NoError(t, err)
			require.Len(t, left, 1)
			if i%2 == 0 {
				require.NoError(t, os.Remove(left[0]))
			} else {
				require.NoError(t, os.Truncate(left[0], 1<<20))
			}
		}
	}
	cycles := 100
	if testing.Short() {
		cycles = 20
	}
	for i := range 10 {
		cycle(i)
	}
	before := useOfProcess(t)
	for i := range cycles {
		cycle(10 + i)
	}
	after := useOfProcess(t)
	t.Logf("before %+v, after %+v", before, after)
	require.LessOrEqual(t, after.fds, before.fds)
	require.LessOrEqual(t, after.maps, before.maps)
	require.LessOrEqual(t, after.goroutines, before.goroutines)
	require.LessOrEqual(t, after.threads, before.threads+runtime.GOMAXPROCS(0)) // Go may start one for each P
}

// TestOpenFailsHalfway makes Open fail at each of its steps: the directory is free afterwards, and nothing is lost.
func TestOpenFailsHalfway(t *testing.T) {
	ctx := context.Background()
	r := newCrashRig(t, Options{})
	s := r.boot()
	require.NoError(t, s.Put(ctx, "d", random(5000), durably()))
	require.NoError(t, s.Put(ctx, "m", random(6000), nil))
	require.NoError(t, s.Close())
	failed := 0
	before := useOfProcess(t)
	fail := func(name string) {
		if err := r.open(); err != nil {
			failed++
		} else {
			require.NoError(t, r.s.Close(), name)
		}
		r.fs.Inject(ssdtest.Fault{})
		r.disk.Heal()
	}
	for n := 1; n < 20; n++ {
		r.fs.Inject(ssdtest.Fault{At: n, Err: errDisk})
		fail(fmt.Sprint("file operation ", n))
	}
	for _, op := range []catalogtest.Op{catalogtest.Open, catalogtest.Meta, catalogtest.Scan, catalogtest.Apply} {
		r.disk.Inject(catalogtest.Fault{Op: op, Err: errDisk})
		fail(fmt.Sprint("catalogue ", op))
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	_, err := openWith(canceled, r.opts, r.seams())
	require.ErrorIs(t, err, context.Canceled)
	require.Greater(t, failed, 5)
	after := useOfProcess(t)
	require.LessOrEqual(t, after.fds, before.fds)
	require.LessOrEqual(t, after.maps, before.maps)
	require.LessOrEqual(t, after.goroutines, before.goroutines)
	s = r.boot()
	wantWhole(t, s, "d", random(5000))
	wantWhole(t, s, "m", random(6000))
}

// BenchmarkReopen opens a directory whose catalogue has a million objects of the SSD tier, beside a scan of the same
// records by plain C that does nothing with them.
func BenchmarkReopen(b *testing.B) {
	needRocksDB(b)
	const objects = 1 << 20
	ctx := context.Background()
	opts := Options{Dir: b.TempDir(), ShmDir: crashShmDir(b), MemoryBytes: 1 << 30}
	s, err := Open(ctx, opts)
	require.NoError(b, err)
	require.NoError(b, s.Close())
	fillCatalogue(b, filepath.Join(opts.Dir, catalogueDir), objects)
	var scans, opens []float64
	round := func() {
		c, err := catalog.Open(filepath.Join(opts.Dir, catalogueDir))
		require.NoError(b, err)
		start := time.Now()
		require.NotZero(b, c.(interface{ SumC() uint64 }).SumC())
		scans = append(scans, time.Since(start).Seconds())
		require.NoError(b, c.Close())
		crashEmptyShm(b, opts.ShmDir)
		runtime.GC()
		start = time.Now()
		s, err := Open(ctx, opts)
		opens = append(opens, time.Since(start).Seconds())
		require.NoError(b, err)
		require.Equal(b, int64(objects), s.Counters().RestoredFromSSD)
		require.NoError(b, s.Close())
	}
	round()
	scans, opens = nil, nil
	for b.Loop() {
		round()
	}
	b.ReportMetric(median(scans)*1e3, "C-scan-ms")
	b.ReportMetric(median(opens)*1e3, "open-ms")
	b.ReportMetric(median(opens)/median(scans), "open/C-scan")
}

func crashEmptyShm(b *testing.B, dir string) {
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(b, err)
	for _, name := range left {
		require.NoError(b, os.RemoveAll(name))
	}
}

func fillCatalogue(b *testing.B, dir string, objects int) {
	c, err := catalog.Open(dir)
	require.NoError(b, err)
	var batch catalog.Batch
	for i := range objects {
		h := uint64(i+1) * 0x9e3779b97f4a7c15
		// Containers hold 60000 objects of 4 KiB, 4224 bytes each with their heads.
		batch.Put(&catalog.Record{Key: fmt.Sprintf("%016x%016x%016x%016x", h, h*3, h*5, h*7), Gen: uint64(i + 1), Size: 4096,
			Type: uint8(KVCache), Digest: h, Loc: catalog.Loc{File: uint32(1 + i/60000), Off: uint32(64 + i%60000*66)}})
		if batch.Len() == 4096 || i == objects-1 {
			require.NoError(b, c.Apply(&batch, false))
			batch.Reset()
		}
	}
	require.NoError(b, c.Close())
}

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}
