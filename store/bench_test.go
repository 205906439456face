package store

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// These are for finding what changed. The figures beside the machine's own are examples/storebench's.

// benchRing is how many bytes of objects the benchmarks go round, which is more than most caches hold.
const benchRing = 512 << 20

func openBench(b *testing.B, memory int64) *Store {
	b.Helper()
	s, err := Open(context.Background(), Options{MemoryBytes: memory, HighWatermark: 1})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, s.Close()) })
	require.NoError(b, s.WaitReady(context.Background()))
	return s
}

// fillBench puts objects of the given size until they make up total bytes, and returns their keys in random order.
func fillBench(b *testing.B, s *Store, size, total int) []string {
	b.Helper()
	value := random(size)
	keys := make([]string, total/size)
	for i := range keys {
		keys[i] = fmt.Sprintf("bench/%026d", i)
		require.NoError(b, s.Put(context.Background(), keys[i], value, nil))
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	return keys
}

var benchSizes = []int{1 << 20, 4 << 20, 16 << 20, 64 << 20}

func BenchmarkGetInto(b *testing.B) {
	for _, size := range benchSizes {
		for _, verify := range []Verify{VerifyNever, VerifyAlways} {
			name := fmt.Sprintf("%dMiB/verified=%v", size>>20, verify == VerifyAlways)
			b.Run(name, func(b *testing.B) {
				s := openBench(b, benchRing*5/4)
				keys, dst := fillBench(b, s, size, benchRing), make([]byte, benchRing)
				for i := 0; i < len(dst); i += 4096 {
					dst[i] = 1 // have the page now
				}
				benchReads(b, s, keys, dst, size, &ReadOptions{Verify: verify})
			})
		}
	}
}

func BenchmarkGet4K(b *testing.B) {
	s := openBench(b, benchRing*5/4)
	keys := fillBench(b, s, 4096, benchRing)
	benchReads(b, s, keys, make([]byte, 4096), 4096, nil)
}

// benchReads goes round keys, and round dst in steps of size.
func benchReads(b *testing.B, s *Store, keys []string, dst []byte, size int, opts *ReadOptions) {
	ctx := context.Background()
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		at := i % (len(dst) / size) * size
		if _, err := s.GetInto(ctx, keys[i%len(keys)], dst[at:at+size], opts); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPut(b *testing.B) {
	for _, size := range append([]int{4 << 10}, benchSizes...) {
		for _, from := range []bool{false, true} {
			b.Run(fmt.Sprintf("%dKiB/from=%v", size>>10, from), func(b *testing.B) {
				s := openBench(b, benchRing*5/4)
				benchPuts(b, s, size, from)
			})
		}
	}
}

// benchPuts puts a ring of objects; each takes the memory of the one that it pushes out.
func benchPuts(b *testing.B, s *Store, size int, from bool) {
	ctx, src := context.Background(), random(benchRing/2)
	keys := make([]string, benchRing/size)
	for i := range keys {
		keys[i] = fmt.Sprintf("put/%028d", i)
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		key, at := keys[i%len(keys)], i%(len(src)/size)*size
		if i >= len(keys) {
			if err := s.Remove(key, true); err != nil {
				b.Fatal(err)
			}
		}
		var err error
		if from {
			err = s.PutFrom(ctx, key, bytes.NewReader(src[at:at+size]), int64(size), nil)
		} else {
			err = s.Put(ctx, key, src[at:at+size], nil)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkView(b *testing.B) {
	for _, size := range []int{4 << 10, 1 << 20, 64 << 20} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			s := openBench(b, 256<<20)
			key := fillBench(b, s, size, size)[0]
			b.ReportAllocs()
			for b.Loop() {
				v, err := s.View(context.Background(), key, nil)
				if err != nil {
					b.Fatal(err)
				}
				if err := v.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkExistsBatch(b *testing.B) {
	for _, n := range []int{10_000, 1_000_000} {
		b.Run(fmt.Sprintf("keys=%d", n), func(b *testing.B) {
			s := openBench(b, 512<<20)
			keys, found := fillBench(b, s, 8, 8*n), make([]bool, 1000)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				at := i * len(found) % len(keys)
				if err := s.ExistsBatch(keys[at:at+len(found)], found); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)*1000/1e6/b.Elapsed().Seconds(), "Mkeys/s")
		})
	}
}

// BenchmarkPutRemove is a reservation, a commit and a removal, on all cores.
func BenchmarkPutRemove(b *testing.B) {
	s, ctx, value := openBench(b, 256<<20), context.Background(), make([]byte, 16)
	var workers atomic.Int64
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		keys, worker := make([]string, 4096), workers.Add(1)
		for i := range keys {
			keys[i] = fmt.Sprintf("%d/%028d", worker, i)
		}
		for i := 0; pb.Next(); i++ {
			key := keys[i%len(keys)]
			if err := s.Put(ctx, key, value, nil); err != nil {
				b.Error(err)
				return
			}
			if err := s.Remove(key, true); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
