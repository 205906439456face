package main

import (
	"context"

	"github.com/kvcache-ai/mooncake-go/store"
)

// runChurn puts and removes tiny objects: reserve, commit and remove, with what a public call adds.
func runChurn(ctx context.Context, b *bench) error {
	s, err := openReady(ctx, store.Options{MemoryBytes: 256 << 20, HighWatermark: 1})
	if err != nil {
		return err
	}
	defer s.Close()
	n := b.scale(200_000)
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
	var turns []contender
	for threads := 1; threads <= 2; threads++ {
		for _, fn := range []func(int) error{ours, theirs} {
			turns = append(turns, func() (float64, error) {
				ns, err := nsPerOp(n, threads, fn)
				return float64(threads) * 1e3 / ns, err
			})
		}
	}
	r, err := b.contest(turns...)
	if err != nil {
		return err
	}
	b.add(result{Case: "put + remove, 1 thread", Unit: "M/s", Value: r[0]}.than(r[1], "Go maps under locks"))
	b.add(result{Case: "put + remove, 2 threads", Unit: "M/s", Value: r[2]}.than(r[3], "Go maps under locks").
		want(">= 1 M/s", r[2] >= 1))
	return nil
}
