package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/kvcache-ai/mooncake-go/examples/contest"
	"github.com/kvcache-ai/mooncake-go/store"
)

// runView borrows objects. Beside it stands what a program would do without a store: a map under a lock.
func runView(ctx context.Context, b *contest.Bench) error {
	s, err := openReady(ctx, store.Options{MemoryBytes: 256 << 20, HighWatermark: 1})
	if err != nil {
		return err
	}
	defer s.Close()
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20} {
		key := fmt.Sprintf("view/%d", size)
		if err := s.Put(ctx, key, make([]byte, size), nil); err != nil {
			return err
		}
		if err := viewOne(ctx, b, s, key, size); err != nil {
			return err
		}
	}
	return nil
}

func viewOne(ctx context.Context, b *contest.Bench, s *store.Store, key string, size int) error {
	n := b.Scale(200_000)
	borrow := func(int) error {
		for range n {
			v, err := s.View(ctx, key, nil)
			if err != nil {
				return err
			}
			if err := v.Close(); err != nil {
				return err
			}
		}
		return nil
	}
	m := newLockedMap()
	m.put(key, nil)
	medians, err := b.Contest(
		func() (float64, error) { return contest.NsPerOp(n, 1, borrow) },
		func() (float64, error) {
			return contest.NsPerOp(n, 1, func(int) error {
				for range n {
					m.get(key)
				}
				return nil
			})
		})
	if err != nil {
		return err
	}
	allocs, err := contest.AllocsPerOp(n, func() error { return borrow(0) })
	if err != nil {
		return err
	}
	name := fmt.Sprintf("View and Close, %d KiB", size>>10)
	b.Add(contest.Result{Case: name, Unit: "ns", Value: medians[0], Note: fmt.Sprintf("%.1f allocations", allocs)}.
		Than(medians[1], "Go map under lock").Want("<= 1000 ns", medians[0] <= 1000))
	return nil
}

// lockedMap is what a program has without a store: Go maps, each under its lock.
type lockedMap struct {
	shards [256]struct {
		sync.RWMutex
		m map[string][]byte
		_ [32]byte
	}
}

func newLockedMap() *lockedMap {
	m := new(lockedMap)
	for i := range m.shards {
		m.shards[i].m = make(map[string][]byte)
	}
	return m
}

// shard goes by the last bytes of the key, where ours differ.
func (m *lockedMap) shard(key string) int {
	n := len(key)
	return int(key[n-1]+10*key[n-2]+100*key[n-3]) % len(m.shards)
}

func (m *lockedMap) get(key string) ([]byte, bool) {
	s := &m.shards[m.shard(key)]
	s.RLock()
	p, ok := s.m[key]
	s.RUnlock()
	return p, ok
}

func (m *lockedMap) put(key string, value []byte) {
	s := &m.shards[m.shard(key)]
	s.Lock()
	s.m[key] = append([]byte(nil), value...)
	s.Unlock()
}

func (m *lockedMap) remove(key string) {
	s := &m.shards[m.shard(key)]
	s.Lock()
	delete(s.m, key)
	s.Unlock()
}
