package main

import (
	"bytes"
	"context"
	"time"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/examples/contest"
	"github.com/kvcache-ai/mooncake-go/store"
)

// runOpen opens a store with much memory. It serves at once; what takes long is to get the pages from the kernel.
func runOpen(ctx context.Context, b *contest.Bench) error {
	size := int64(b.Scale(8 << 30))
	var opened, first []float64
	rounds := b.Rounds
	b.Rounds = min(rounds, 3)
	defer func() { b.Rounds = rounds }()
	m, err := b.Contest(
		func() (float64, error) {
			start := time.Now()
			s, err := newShared(size)
			if err != nil {
				return 0, err
			}
			took := time.Since(start)
			s.close()
			return took.Seconds(), nil
		},
		func() (float64, error) {
			o, f, all, err := openOnce(ctx, size)
			opened, first = append(opened, o.Seconds()*1e3), append(first, f.Seconds()*1e3)
			return all.Seconds(), err
		})
	if err != nil {
		return err
	}
	b.Add(contest.Result{Case: "Open", Unit: "ms", Value: contest.Median(opened)})
	b.Add(contest.Result{Case: "Open, first Put and Get", Unit: "ms", Value: contest.Median(first)}.Want("at once", contest.Median(first) < 50))
	b.Add(contest.Result{Case: "Open until all is populated", Unit: "s", Value: m[1]}.Than(m[0], "fallocate + populate").AtMost(1.1))
	return nil
}

func openOnce(ctx context.Context, size int64) (opened, first, all time.Duration, err error) {
	start := time.Now()
	s, err := store.Open(ctx, store.Options{MemoryBytes: size})
	if err != nil {
		return 0, 0, 0, err
	}
	defer s.Close()
	opened = time.Since(start)
	want := bytes.Repeat([]byte("x"), smallBytes)
	if err := s.Put(ctx, "first", want, nil); err != nil {
		return 0, 0, 0, err
	}
	got, err := s.Get(ctx, "first", nil)
	if err != nil || !bytes.Equal(got, want) {
		return 0, 0, 0, errors.Errorf("first object: %v", err)
	}
	first = time.Since(start)
	err = s.WaitReady(ctx)
	return opened, first, time.Since(start), err
}
