package main

import (
	"context"

	"github.com/kvcache-ai/mooncake-go/examples/contest"
	"github.com/kvcache-ai/mooncake-go/store"
)

// runChurn puts and removes tiny objects: reserve, commit and remove, with what a public call adds.
func runChurn(ctx context.Context, b *contest.Bench) error {
	s, err := openReady(ctx, store.Options{MemoryBytes: 256 << 20, HighWatermark: 1})
	if err != nil {
		return err
	}
	defer s.Close()
	n := b.Scale(200_000)
	keys := [2][]string{makeKeys('a', upTo(n)), makeKeys('b', upTo(n))}
	value := make([]byte, 16)
	ours := func(thread int) error {
		for _, k := range keys[thread] {
			if err := s.Put(ctx, k, value, nil); err != nil {
				return err
			}
			if err := s.Remove(k, true); err != nil {
				return err
			}
		}
		return nil
	}
	m := newLockedMap()
	theirs := func(thread int) error {
		for _, k := range keys[thread] {
			m.put(k, value)
			m.remove(k)
		}
		return nil
	}
	var turns []contest.Contender
	for threads := 1; threads <= 2; threads++ {
		for _, fn := range []func(int) error{ours, theirs} {
			turns = append(turns, func() (float64, error) {
				ns, err := contest.NsPerOp(n, threads, fn)
				return float64(threads) * 1e3 / ns, err
			})
		}
	}
	r, err := b.Contest(turns...)
	if err != nil {
		return err
	}
	b.Add(contest.Result{Case: "put + remove, 1 thread", Unit: "M/s", Value: r[0]}.Than(r[1], "Go maps under locks"))
	b.Add(contest.Result{Case: "put + remove, 2 threads", Unit: "M/s", Value: r[2]}.Than(r[3], "Go maps under locks").
		Want(">= 1 M/s", r[2] >= 1))
	return nil
}
