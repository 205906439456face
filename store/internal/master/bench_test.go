package master

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvcache-ai/mooncake-go/store/internal/policy"
)

// BenchmarkCycle is reserve, commit and remove of one small object.
func BenchmarkCycle(b *testing.B) {
	for _, goroutines := range []int{1, 2} {
		b.Run(fmt.Sprintf("goroutines=%d", goroutines), func(b *testing.B) {
			f := newFixtureOf(b, sizes{256, 64 << 20, 64 << 20})
			var left atomic.Int64
			left.Store(int64(b.N))
			b.ReportAllocs()
			b.ResetTimer()
			start := cpu()
			var wg sync.WaitGroup
			for g := range goroutines {
				wg.Go(func() { cycle(b, f, g, &left) })
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1e6, "M/s")
			b.ReportMetric((cpu()-start)/float64(b.N), "cpu-ns/op")
		})
	}
}

func cycle(b *testing.B, f *fixture, g int, left *atomic.Int64) {
	names := keys(fmt.Sprintf("tenant-model-layer-%d", g), 1024)
	for i := 0; left.Add(-1) >= 0; i++ {
		k := Key{"", names[i%len(names)]}
		o, err := f.Reserve(f.now, ReserveRequest{Key: k, Size: 4096, WriterPin: true})
		if err == nil {
			_, err = f.Commit(f.now, o.Ref, o.Gen, 1, Loc{})
		}
		if err == nil {
			_, err = f.Remove(f.now, k, true)
		}
		if err != nil {
			b.Error(err)
			return
		}
	}
}

// cpu is the time that this process has computed for: on a machine that others use too it says more than the clock.
func cpu() float64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return float64(u.Utime.Nano() + u.Stime.Nano())
}

// keys are n names of 32 bytes.
func keys(prefix string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%0*d", prefix, 31-len(prefix), i)
	}
	return names
}

func fill(b *testing.B, f *fixture, names []string) {
	for _, name := range names {
		o, err := f.Reserve(f.now, ReserveRequest{Key: key(name), Size: 64, Placement: InArena})
		if err == nil {
			_, err = f.Commit(f.now, o.Ref, o.Gen, 1, Loc{})
		}
		require.NoError(b, err)
	}
}

func BenchmarkAcquireRelease(b *testing.B) {
	f := newFixtureOf(b, sizes{256, 64 << 20, 16 << 20})
	names := keys("acquire", 10_000)
	fill(b, f, names)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		o, err := f.Acquire(f.now, Key{"", names[i]}, 5*second)
		if err != nil {
			b.Fatal(err)
		}
		f.Release(o.Holder())
		if i++; i == len(names) {
			i = 0
		}
	}
}

func BenchmarkExistsBatch(b *testing.B) {
	b.Run("hot", func(b *testing.B) {
		f := newFixtureOf(b, sizes{256, 64 << 20, 16 << 20})
		names := keys("exists", 1000)
		fill(b, f, names)
		existsBatch(b, f, names)
	})
	b.Run("1M", func(b *testing.B) {
		f := newFixtureOf(b, sizes{256, 512 << 20, 64 << 20})
		names := keys("exists", 1_000_000)
		fill(b, f, names)
		existsBatch(b, f, names)
	})
	b.Run("10M", func(b *testing.B) {
		f, names := tenMillion(b)
		existsBatch(b, f, names)
	})
}

// existsBatch asks for batches of 1000 names, far apart from each other.
func existsBatch(b *testing.B, f *fixture, names []string) {
	const batch = 1000
	found := make([]bool, batch)
	asked := make([]string, batch)
	at, spent := 0, 0.0
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		for i := range asked {
			at = (at + 7_368_787) % len(names)
			asked[i] = strings.Clone(names[at]) // as if it had come in with a request
		}
		b.StartTimer()
		start := cpu()
		f.ExistsBatch(f.now, "", asked, 5*second, found)
		spent += cpu() - start
		if !found[0] || !found[batch-1] {
			b.Fatal("not found")
		}
	}
	b.ReportMetric(float64(b.N)*batch/b.Elapsed().Seconds()/1e6, "M/s")
	b.ReportMetric(spent/float64(b.N)/batch, "cpu-ns/key")
}

// tenMillion is a master with as many tiny objects. It reports what a record costs beyond its key.
func tenMillion(b *testing.B) (*fixture, []string) {
	const n = 10_000_000
	f := newFixtureOf(b, sizes{256, 3 << 30, n * 64})
	names := keys("ten-million", n)
	runtime.GC()
	fill(b, f, names)
	u := f.Usage()
	perRecord := float64(u.RecordMem+u.IndexMem)/n - float64(len(names[0]))
	require.LessOrEqual(b, perRecord, 160.0)
	b.Cleanup(func() {
		b.Logf("%.1f bytes a record beyond its key: %d MiB of records, %d of the index", perRecord, u.RecordMem>>20, u.IndexMem>>20)
	})
	return f, names
}

func BenchmarkVictims(b *testing.B) {
	f := newFixtureOf(b, sizes{256, 512 << 20, 64 << 20})
	fill(b, f, keys("victim", 1_000_000))
	f.now += second
	b.ReportAllocs()
	for b.Loop() {
		if v, _ := f.Victims(f.now, TierMemory, policy.Need{Bytes: 1 << 20}, policy.Config{}); len(v) != 1<<14 {
			b.Fatal(len(v))
		}
	}
	b.ReportMetric(b.Elapsed().Seconds()*1e9/float64(b.N)/1e6, "ns/record")
}

func BenchmarkRestore(b *testing.B) {
	f := newFixtureOf(b, sizes{256, 512 << 20, 64 << 20})
	fill(b, f, keys("restore", 1_000_000))
	for b.Loop() {
		if _, found := f.restart(); found.Kept != 1_000_000 {
			b.Fatal(found)
		}
	}
}
