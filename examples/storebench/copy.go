package main

import (
	"bytes"
	"context"
	"fmt"

	"github.com/kvcache-ai/mooncake-go/examples/contest"
	"github.com/kvcache-ai/mooncake-go/store"
)

// copyRow measures large objects. Source, target and the store's ring of objects are each far larger than the caches,
// and blocks follow each other in an order that no prefetcher knows.
type copyRow struct {
	b         *contest.Bench
	s         *store.Store
	src, dst  *shared
	ring      int // bytes of each
	size      int // of a block
	threads   int
	next      int // blocks used so far, by all contenders
	oldest    int // object in the store
	newest    int // one past the newest
	positions []int
}

func runCopy(ctx context.Context, b *contest.Bench) error {
	r := &copyRow{b: b, ring: max(b.Scale(1<<30), 256<<20)}
	s, err := openReady(ctx, store.Options{MemoryBytes: int64(r.ring)*5/4 + 64<<20, HighWatermark: 1})
	if err != nil {
		return err
	}
	defer s.Close()
	r.s = s
	for _, p := range []**shared{&r.src, &r.dst} {
		if *p, err = newShared(int64(r.ring)); err != nil {
			return err
		}
		defer (*p).close()
	}
	contest.FillRandom(r.src.mem)
	for _, size := range []int{1 << 20, 4 << 20, 16 << 20, 64 << 20} {
		if err := r.measureSize(ctx, size); err != nil {
			return err
		}
	}
	return nil
}

// openReady opens a store whose memory is all there, so that populating it disturbs nothing.
func openReady(ctx context.Context, opts store.Options) (*store.Store, error) {
	s, err := store.Open(ctx, opts)
	if err != nil {
		return nil, err
	}
	if err := s.WaitReady(ctx); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

func (r *copyRow) measureSize(ctx context.Context, size int) error {
	r.size, r.positions = size, order(r.ring/size)
	r.oldest, r.newest = 0, 0
	for r.newest < r.ring/size {
		if err := r.put(ctx, r.newest, false); err != nil {
			return err
		}
		r.newest++
	}
	for r.threads = 1; r.threads <= 2; r.threads++ {
		if err := r.measure(ctx); err != nil {
			return err
		}
	}
	_, err := r.s.RemoveAll(ctx, true)
	return err
}

func (r *copyRow) measure(ctx context.Context) error {
	m, err := r.b.Contest(
		r.raw(func(dst, src []byte) { copy(dst, src) }), r.raw(memcpy),
		r.get(ctx, store.VerifyNever), r.get(ctx, store.VerifyAlways), r.puts(ctx, false), r.puts(ctx, true))
	if err != nil {
		return err
	}
	limit, of := m[0], "Go copy"
	if libc != "" && m[1] > limit {
		limit, of = m[1], libc
	}
	where := fmt.Sprintf("%d MiB, %d thread(s)", r.size>>20, r.threads)
	figure := func(i int, what string, goal float64) {
		r.b.Add(contest.Result{Case: what + " " + where, Unit: "GB/s", Value: m[i]}.Than(limit, of).AtLeast(goal))
	}
	figure(2, "GetInto", 0.9)
	figure(3, "GetInto verified", 0.7)
	figure(4, "Put", 0.7)
	figure(5, "PutFrom", 0.7)
	return nil
}

// turn is how many blocks each thread moves in a turn.
func (r *copyRow) turn() int { return max(1, r.ring/4/r.size/r.threads) }

// take hands out the next blocks to a turn's threads.
func (r *copyRow) take() (at func(thread, i int) int, blocks int) {
	start, n := r.next, r.turn()
	r.next += n * r.threads
	return func(thread, i int) int { return r.positions[(start+thread*n+i)%len(r.positions)] }, n
}

func (r *copyRow) block(s *shared, i int) []byte { return s.mem[i*r.size:][:r.size] }

func (r *copyRow) raw(move func(dst, src []byte)) contest.Contender {
	return func() (float64, error) {
		at, n := r.take()
		return contest.GBps(int64(n)*int64(r.threads)*int64(r.size), r.threads, func(t int) error {
			for i := range n {
				k := at(t, i)
				move(r.block(r.dst, k), r.block(r.src, k))
			}
			return nil
		})
	}
}

func (r *copyRow) key(i int) string { return fmt.Sprintf("large/%d/%d", r.size, i) }

func (r *copyRow) get(ctx context.Context, verify store.Verify) contest.Contender {
	opts := &store.ReadOptions{Verify: verify}
	return func() (float64, error) {
		at, n := r.take()
		return contest.GBps(int64(n)*int64(r.threads)*int64(r.size), r.threads, func(t int) error {
			for i := range n {
				k := at(t, i)
				if _, err := r.s.GetInto(ctx, r.key(r.oldest+k), r.block(r.dst, k), opts); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// puts first removes, untimed, the oldest objects: their memory, long out of the caches, is what the new ones get.
func (r *copyRow) puts(ctx context.Context, from bool) contest.Contender {
	return func() (float64, error) {
		n := r.turn()
		for range n * r.threads {
			if err := r.s.Remove(r.key(r.oldest), true); err != nil {
				return 0, err
			}
			r.oldest++
		}
		first := r.newest
		r.newest += n * r.threads
		return contest.GBps(int64(n)*int64(r.threads)*int64(r.size), r.threads, func(t int) error {
			for i := range n {
				if err := r.put(ctx, first+t*n+i, from); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

func (r *copyRow) put(ctx context.Context, i int, from bool) error {
	p := r.block(r.src, r.positions[i%len(r.positions)])
	if from {
		return r.s.PutFrom(ctx, r.key(i), bytes.NewReader(p), int64(len(p)), nil)
	}
	return r.s.Put(ctx, r.key(i), p, nil)
}
