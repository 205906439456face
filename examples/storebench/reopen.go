package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/examples/contest"
	"github.com/kvcache-ai/mooncake-go/store"
)

// runReopen opens a directory with many objects whose memory is gone, as after a reboot. Beside it stands a loop in C
// that only reads the catalogue's records.
func runReopen(ctx context.Context, b *contest.Bench) error {
	if !haveRocksDB {
		b.Note("  this build has no RocksDB, so nothing comes back")
		return nil
	}
	n := b.Scale(1 << 20)
	opts := store.Options{Dir: filepath.Join(b.Dir, "reopen"), MemoryBytes: 512 << 20, HighWatermark: 1}
	shared, err := fillDurable(ctx, opts, n)
	defer func() { _ = os.RemoveAll(shared); _ = os.RemoveAll(opts.Dir) }()
	if err != nil {
		return err
	}
	rounds := b.Rounds
	b.Rounds = min(rounds, 5)
	defer func() { b.Rounds = rounds }()
	m, err := b.Contest(
		func() (float64, error) { return reopenOnce(ctx, opts, shared, n) },
		func() (float64, error) {
			records, scanned, err := scanInC(filepath.Join(opts.Dir, "catalogue"))
			if err == nil && records < n {
				err = errors.Errorf("the scan saw %d records of %d", records, n)
			}
			return scanned.Seconds() * 1e3, err
		})
	if err != nil {
		return err
	}
	b.Add(contest.Result{Case: fmt.Sprintf("Open, %d objects on SSD", n), Unit: "ms", Value: m[0]}.Than(m[1], "scan in C").AtMost(2))
	return nil
}

func fillDurable(ctx context.Context, opts store.Options, n int) (shared string, err error) {
	s, err := openReady(ctx, opts)
	if err != nil {
		return "", err
	}
	defer s.Close()
	u, err := s.Usage()
	if err != nil {
		return "", err
	}
	const batch = 8192
	parts, put := [][]byte{make([]byte, 64)}, &store.PutOptions{Durable: true, Type: store.KVCache}
	for at := 0; at < n; at += batch {
		items := make([]store.PutItem, 0, batch)
		for _, k := range makeKeys('d', span(at, min(at+batch, n))) {
			items = append(items, store.PutItem{Key: k, Parts: parts, Opts: put})
		}
		for _, err := range s.PutBatch(ctx, items) {
			if err != nil {
				return filepath.Dir(u.SharedMemory), err
			}
		}
	}
	return filepath.Dir(u.SharedMemory), nil
}

func reopenOnce(ctx context.Context, opts store.Options, shared string, n int) (float64, error) {
	if err := os.RemoveAll(shared); err != nil {
		return 0, err
	}
	start := time.Now()
	s, err := store.Open(ctx, opts)
	if err != nil {
		return 0, err
	}
	took := time.Since(start)
	if c := s.Counters(); c.RestoredFromSSD != int64(n) {
		return 0, errors.Errorf("%d of %d objects came back", c.RestoredFromSSD, n)
	}
	return took.Seconds() * 1e3, s.Close()
}
