package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/kvcache-ai/mooncake-go/examples/contest"
	"github.com/kvcache-ai/mooncake-go/store"
)

// runTensor reads tensors by name, and objects of their own that have the same bytes. Both are far more than the caches.
func (b *bench) runTensor(ctx context.Context, c *contest.Bench) error {
	size := max(b.size/4, 2*largeTensor*int64(b.shards)+minShard)
	from, err := makeCheckpoint(filepath.Join(c.Dir, "tensors"), size, b.shards)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(from.dir) }()
	w, err := openWeights(ctx, "", 2*from.bytes+int64(len(from.large))*largeTensor/8+spare)
	if err != nil {
		return err
	}
	defer w.end()
	if _, err := w.Import(ctx, sourceRequest(from)); err != nil {
		return err
	}
	if err := tensorRow(ctx, c, w, from.large, largeTensor, 1); err != nil {
		return err
	}
	return tensorRow(ctx, c, w, from.small, smallTensor, max(1, 20_000/len(from.small)))
}

// tensorRow reads all of the named tensors so many times in a turn, in an order that no prefetcher knows.
func tensorRow(ctx context.Context, c *contest.Bench, w *weights, names []string, size, times int) error {
	buf := make([]byte, size)
	for _, name := range names {
		if _, err := w.ReadTensor(ctx, ref, name, buf); err != nil {
			return err
		}
		if err := w.s.Put(ctx, "alone/"+name, buf, &store.PutOptions{Type: store.Weight}); err != nil {
			return err
		}
	}
	turn := func(read func(name string) error) contest.Contender {
		order := rand.New(rand.NewPCG(1, 2)).Perm(len(names))
		return func() (float64, error) {
			return contest.GBps(int64(size*times*len(names)), 1, func(int) error {
				for i := range times * len(names) {
					if err := read(names[order[i%len(order)]]); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	contest.Settle()
	m, err := c.Contest(
		turn(func(name string) error { _, err := w.ReadTensor(ctx, ref, name, buf); return err }),
		turn(func(name string) error { _, err := w.s.GetInto(ctx, "alone/"+name, buf, nil); return err }))
	if err != nil {
		return err
	}
	c.Add(contest.Result{Case: fmt.Sprintf("tensor of %d KiB by name", size>>10), Unit: "GB/s", Value: m[0]}.
		Than(m[1], "GetInto of an object").AtLeast(0.9))
	return nil
}
