package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/metrics"
	"time"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/examples/contest"
	"github.com/kvcache-ai/mooncake-go/store"
)

const tinyBytes = 8

// runKeys fills a store with tiny objects and asks what they cost.
func runKeys(ctx context.Context, b *contest.Bench) error {
	n := b.Scale(10_000_000)
	s, err := openReady(ctx, store.Options{
		MemoryBytes: int64(n)*288 + int64(smallObjects(b))*smallBytes*9/8 + 64<<20, HighWatermark: 1})
	if err != nil {
		return err
	}
	defer s.Close()
	empty, err := s.Usage()
	if err != nil {
		return err
	}
	if err := fillTiny(ctx, b, s, n); err != nil {
		return err
	}
	if err := metadata(b, s, &empty, n); err != nil {
		return err
	}
	r, err := newSmallRow(ctx, b, s)
	if err != nil {
		return err
	}
	defer r.raw.close()
	r.extra, r.what = 0.7, fmt.Sprintf("%g M keys", float64(n)/1e6)
	if err := r.measure(ctx); err != nil {
		return err
	}
	return existsAmong(b, s, r.raw, n)
}

// fillTiny puts n objects from two threads.
func fillTiny(ctx context.Context, b *contest.Bench, s *store.Store, n int) error {
	contest.Settle()
	gc := gcSeconds()
	took, err := contest.Parallel(2, func(t int) error {
		value := make([]byte, tinyBytes)
		const chunk = 4096
		for from := t * (n / 2); from < (t+1)*(n/2); from += chunk {
			for _, k := range makeKeys('t', span(from, min(from+chunk, (t+1)*(n/2)))) {
				if err := s.Put(ctx, k, value, nil); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	b.Add(contest.Result{Case: fmt.Sprintf("put %g M objects, 2 threads", float64(n)/1e6), Unit: "M/s", Value: float64(n) / 1e6 / took.Seconds(),
		Note: fmt.Sprintf("GC took %.2f of %.2f CPU seconds", gcSeconds()-gc, 2*took.Seconds())})
	return nil
}

// metadata tells what an object costs beyond its key and value, and what the collector has to do with it.
func metadata(b *contest.Bench, s *store.Store, empty *store.Usage, n int) error {
	u, err := s.Usage()
	if err != nil {
		return err
	}
	count := float64(n)
	meta := float64(u.RecordBytes-empty.RecordBytes+u.IndexBytes-empty.IndexBytes)/count - keyBytes
	data := float64(empty.DataFree-u.DataFree+u.DataCapacity-empty.DataCapacity)/count - tinyBytes
	b.Add(contest.Result{Case: "metadata beyond the key", Unit: "bytes", Value: meta, Note: fmt.Sprintf(
		"records %.0f, index %.0f, key -%d; rounding of an %d-byte value is %.0f more", float64(u.RecordBytes)/count,
		float64(u.IndexBytes)/count, keyBytes, tinyBytes, data)}.Want("<= 160 bytes", meta <= 160))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu, start := gcSeconds(), time.Now()
	runtime.GC()
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	b.Add(contest.Result{Case: "full GC", Unit: "ms", Value: took.Seconds() * 1e3, Note: fmt.Sprintf("pauses %.0f us, %.1f ms of CPU, heap %d MiB",
		float64(after.PauseTotalNs-before.PauseTotalNs)/1e3, (gcSeconds()-cpu)*1e3, after.HeapAlloc>>20)})
	return nil
}

// gcSeconds is the CPU time of garbage collection so far.
func gcSeconds() float64 {
	sample := []metrics.Sample{{Name: "/cpu/classes/gc/total:cpu-seconds"}}
	metrics.Read(sample)
	return sample[0].Value.Float64()
}

// existsAmong asks for keys that are nowhere near each other. Beside it stand the cache misses that this takes at
// least: a slot of an index, then a record.
func existsAmong(b *contest.Bench, s *store.Store, raw *shared, n int) error {
	calls := b.Scale(400)
	found := make([]bool, existsBatch)
	random := uint64(1)
	draw := func() int {
		random = random*6364136223846793005 + 1442695040888963407
		return int(random >> 33)
	}
	numbers := make([]int, calls*existsBatch)
	var sink byte
	m, err := b.Contest(
		func() (float64, error) {
			for i := range numbers {
				numbers[i] = draw() % (n / 2 * 2)
			}
			keys := makeKeys('t', numbers)
			ns, err := contest.NsPerOp(len(keys), 1, func(int) error {
				for at := 0; at < len(keys); at += existsBatch {
					if err := allFound(s, keys[at:at+existsBatch], found); err != nil {
						return err
					}
				}
				return nil
			})
			return 1e3 / ns, err
		},
		func() (float64, error) {
			for i := range numbers {
				numbers[i] = draw() % (len(raw.mem) - 1<<20)
			}
			ns, err := contest.NsPerOp(len(numbers), 1, func(int) error {
				for _, k := range numbers {
					next := k ^ int(raw.mem[k])<<12 // depends on what was read
					sink += raw.mem[next]
				}
				return nil
			})
			return 1e3 / ns, err
		})
	if err != nil {
		return err
	}
	runtime.KeepAlive(sink)
	b.Add(contest.Result{Case: fmt.Sprintf("ExistsBatch of 1000, %g M keys", float64(n)/1e6), Unit: "M keys/s", Value: m[0]}.
		Than(m[1], "two random reads each").Want(">= 5 M/s", m[0] >= 5))
	return nil
}

func allFound(s *store.Store, keys []string, found []bool) error {
	if err := s.ExistsBatch(keys, found); err != nil {
		return err
	}
	for i, ok := range found {
		if !ok {
			return errors.Errorf("%s is gone", keys[i])
		}
	}
	return nil
}
