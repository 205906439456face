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

const (
	diskBytes = contest.DiskBytes
	diskBatch = 16 // objects made durable with one sync
)

// ssdRow writes and reads objects of 4 MiB on the SSD tier.
type ssdRow struct {
	b      *contest.Bench
	s      *store.Store
	dir    string
	shared string
	count  int // objects in a turn
	value  []byte
	own    bool
}

func runSSD(ctx context.Context, b *contest.Bench) error {
	if !haveRocksDB {
		b.Note("  this build has no RocksDB, so the store has no SSD tier")
		return nil
	}
	r := &ssdRow{b: b, dir: filepath.Join(b.Dir, "ssd"), count: max(b.Scale(64), diskBatch), value: make([]byte, diskBytes)}
	contest.FillRandom(r.value)
	if err := r.open(ctx); err != nil {
		return err
	}
	defer r.end()
	if err := r.writes(ctx); err != nil {
		return err
	}
	return r.reads(ctx)
}

func (r *ssdRow) open(ctx context.Context) (err error) {
	r.s, err = openReady(ctx, store.Options{Dir: r.dir, MemoryBytes: int64(r.count)*diskBytes*5/4 + 64<<20, HighWatermark: 1,
		Offload: store.OffloadNever, PromoteAfter: -1})
	if err != nil {
		return err
	}
	u, err := r.s.Usage()
	r.shared = filepath.Dir(u.SharedMemory)
	return err
}

func (r *ssdRow) end() {
	_ = r.s.Close()
	_ = os.RemoveAll(r.shared)
	_ = os.RemoveAll(r.dir)
}

func (r *ssdRow) writes(ctx context.Context) error {
	own := *r
	own.own = true
	m, err := r.b.Contest(r.machine(ctx, 1, true), r.put(ctx, r), r.put(ctx, &own), r.machine(ctx, diskBatch, true), r.batch(ctx))
	if err != nil {
		return err
	}
	figure := func(what string, v, limit float64) {
		r.b.Add(contest.Result{Case: what, Unit: "GB/s", Value: v}.Than(limit, contest.DiskTool()).AtLeast(0.85))
	}
	figure("durable put 4 MiB", m[1], m[0])
	figure("durable put 4 MiB, own file", m[2], m[0]) // which is a file more to sync each time
	figure(fmt.Sprintf("durable batch of %d x 4 MiB", diskBatch), m[4], m[3])
	return nil
}

// machine does the pattern without a store, on a file that is new when it is written.
func (r *ssdRow) machine(ctx context.Context, syncEvery int, write bool) contest.Contender {
	file := filepath.Join(r.b.Dir, "machine")
	disk := contest.Disk{Files: []string{file}, Bytes: int64(r.count) * diskBytes, Write: write, SyncEvery: syncEvery}
	return func() (float64, error) {
		if write {
			_ = os.Remove(file)
		}
		return disk.Run(ctx)
	}
}

func (r *ssdRow) key(i int) string { return fmt.Sprintf("ssd/%v/%d", r.own, i) }

func (r *ssdRow) put(ctx context.Context, as *ssdRow) contest.Contender {
	opts := &store.PutOptions{Durable: true, OwnFile: as.own}
	return func() (float64, error) {
		start := time.Now()
		for i := range r.count {
			if err := r.s.Put(ctx, as.key(i), r.value, opts); err != nil {
				return 0, err
			}
		}
		return r.speed(start), r.clear(ctx)
	}
}

func (r *ssdRow) batch(ctx context.Context) contest.Contender {
	opts := &store.PutOptions{Durable: true}
	return func() (float64, error) {
		start := time.Now()
		for at := 0; at < r.count; at += diskBatch {
			items := make([]store.PutItem, diskBatch)
			for i := range items {
				items[i] = store.PutItem{Key: r.key(at + i), Parts: [][]byte{r.value}, Opts: opts}
			}
			for _, err := range r.s.PutBatch(ctx, items) {
				if err != nil {
					return 0, err
				}
			}
		}
		return r.speed(start), r.clear(ctx)
	}
}

func (r *ssdRow) speed(start time.Time) float64 {
	return float64(r.count) * diskBytes / 1e9 / time.Since(start).Seconds()
}

// clear removes everything, and lets the store free the disk before the next turn.
func (r *ssdRow) clear(ctx context.Context) error {
	_, err := r.s.RemoveAll(ctx, true)
	time.Sleep(100 * time.Millisecond)
	return err
}

// reads puts objects, forgets the memory that holds some of them, and reads them from SSD.
func (r *ssdRow) reads(ctx context.Context) error {
	own := *r
	own.own = true
	for i := range r.count {
		for _, as := range []*ssdRow{r, &own} {
			if err := r.s.Put(ctx, as.key(i), r.value, &store.PutOptions{Durable: true, OwnFile: as.own}); err != nil {
				return err
			}
		}
	}
	if err := r.s.Close(); err != nil {
		return err
	}
	if err := os.RemoveAll(r.shared); err != nil {
		return err
	}
	if err := r.open(ctx); err != nil {
		return err
	}
	if _, err := r.machine(ctx, diskBatch, true)(); err != nil {
		return err
	}
	m, err := r.b.Contest(r.machine(ctx, 0, false), r.get(ctx, r, store.VerifyAuto), r.get(ctx, &own, store.VerifyAuto))
	if err != nil {
		return err
	}
	r.b.Add(contest.Result{Case: "read 4 MiB from SSD, verified", Unit: "GB/s", Value: m[1]}.Than(m[0], contest.DiskTool()).AtLeast(0.85))
	r.b.Add(contest.Result{Case: "  from files of their own", Unit: "GB/s", Value: m[2]}.Than(m[0], contest.DiskTool()).AtLeast(0.85))
	return nil
}

func (r *ssdRow) get(ctx context.Context, as *ssdRow, verify store.Verify) contest.Contender {
	dst, opts := make([]byte, diskBytes), &store.ReadOptions{Verify: verify}
	return func() (float64, error) {
		before, start := r.s.Counters(), time.Now()
		for i := range r.count {
			if _, err := r.s.GetInto(ctx, as.key(i), dst, opts); err != nil {
				return 0, err
			}
		}
		v := r.speed(start)
		if n := r.s.Counters().Hits[store.TierSSD] - before.Hits[store.TierSSD]; n != int64(r.count) {
			return 0, errors.Errorf("%d of %d reads came from SSD", n, r.count)
		}
		return v, nil
	}
}
