//go:build cgo && !norocksdb

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/linxGnu/grocksdb"
	"github.com/pkg/errors"

	"github.com/kvcache-ai/mooncake-go/examples/contest"
	"github.com/kvcache-ai/mooncake-go/store"
)

// rocksRow compares with RocksDB as somebody would use it instead: no compression, its log on and not synced, a block
// cache that holds everything.
type rocksRow struct {
	b     *contest.Bench
	s     *store.Store
	db    *grocksdb.DB
	ro    *grocksdb.ReadOptions
	wo    *grocksdb.WriteOptions
	size  int
	keys  []string
	fresh []string // for puts
	value []byte
}

func runRocksDB(ctx context.Context, b *contest.Bench) error {
	s, err := openReady(ctx, store.Options{MemoryBytes: 768 << 20, HighWatermark: 1})
	if err != nil {
		return err
	}
	defer s.Close()
	for _, c := range []struct {
		size, count, puts int
		get, put          float64
	}{{4 << 10, 32768, 8192, 4, 5}, {64 << 10, 4096, 1024, 1.5, 10}, {4 << 20, 64, 32, 1.2, 10}} {
		r := &rocksRow{b: b, s: s, size: c.size, value: make([]byte, c.size)}
		r.keys, r.fresh = makeKeys('r', order(c.count)), makeKeys('f', upTo(c.puts))
		contest.FillRandom(r.value)
		if err := r.measure(ctx, c.get, c.put); err != nil {
			return err
		}
	}
	return nil
}

func (r *rocksRow) measure(ctx context.Context, get, put float64) error {
	close, err := r.openRocks()
	if err != nil {
		return err
	}
	defer close()
	for _, k := range r.keys {
		if err := r.db.Put(r.wo, []byte(k), r.value); err != nil {
			return err
		}
		if err := r.s.Put(ctx, k, r.value, nil); err != nil {
			return err
		}
	}
	r.db.CompactRange(grocksdb.Range{})
	r.quiet()
	gets, err := r.b.Contest(r.turn(r.keys, r.getRocks), r.turn(r.keys, func(k string, dst []byte) error {
		_, err := r.s.GetInto(ctx, k, dst, nil)
		return err
	}))
	if err != nil {
		return err
	}
	puts, err := r.b.Contest(r.putRocks, func() (float64, error) { return r.putOurs(ctx) })
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%d KiB", r.size>>10)
	r.b.Add(contest.Result{Case: "get " + name, Unit: "k/s", Value: gets[1]}.Than(gets[0], "RocksDB").AtLeast(get))
	r.b.Add(contest.Result{Case: "put " + name, Unit: "k/s", Value: puts[1]}.Than(puts[0], "RocksDB").AtLeast(put))
	_, err = r.s.RemoveAll(ctx, true)
	return err
}

func (r *rocksRow) openRocks() (close func(), err error) {
	cache := grocksdb.NewLRUCache(768 << 20)
	table := grocksdb.NewDefaultBlockBasedTableOptions()
	table.SetBlockCache(cache)
	table.SetFilterPolicy(grocksdb.NewBloomFilterFull(10))
	opts := grocksdb.NewDefaultOptions()
	opts.SetCreateIfMissing(true)
	opts.SetCompression(grocksdb.NoCompression)
	opts.SetBlockBasedTableFactory(table)
	if r.db, err = grocksdb.OpenDb(opts, filepath.Join(r.b.Dir, fmt.Sprintf("rocks-%d", r.size))); err != nil {
		return nil, err
	}
	r.ro, r.wo = grocksdb.NewDefaultReadOptions(), grocksdb.NewDefaultWriteOptions()
	return func() {
		r.db.Close()
		r.ro.Destroy()
		r.wo.Destroy()
		opts.Destroy()
		table.Destroy()
		cache.Destroy()
	}, nil
}

// quiet waits until RocksDB does nothing in the background, which would slow the other's turn.
func (r *rocksRow) quiet() {
	for range 200 {
		if r.db.GetProperty("rocksdb.num-running-compactions") == "0" && r.db.GetProperty("rocksdb.num-running-flushes") == "0" {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// turn reads all objects once, in thousands a second.
func (r *rocksRow) turn(keys []string, get func(key string, dst []byte) error) contest.Contender {
	return func() (float64, error) {
		dst := make([]byte, r.size)
		ns, err := contest.NsPerOp(len(keys), 1, func(int) error {
			for _, k := range keys {
				if err := get(k, dst); err != nil {
					return err
				}
			}
			return nil
		})
		return 1e6 / ns, err
	}
}

// getRocks pins the value in the block cache and copies it out, which costs the least.
func (r *rocksRow) getRocks(k string, dst []byte) error {
	v, err := r.db.GetPinned(r.ro, []byte(k))
	if err != nil {
		return err
	}
	defer v.Destroy()
	if copy(dst, v.Data()) != r.size {
		return errors.Errorf("%s: %d bytes", k, len(v.Data()))
	}
	return nil
}

func (r *rocksRow) putRocks() (float64, error) {
	defer r.quiet()
	ns, err := contest.NsPerOp(len(r.fresh), 1, func(int) error {
		for _, k := range r.fresh {
			if err := r.db.Put(r.wo, []byte(k), r.value); err != nil {
				return err
			}
		}
		return nil
	})
	return 1e6 / ns, err
}

func (r *rocksRow) putOurs(ctx context.Context) (float64, error) {
	ns, err := contest.NsPerOp(len(r.fresh), 1, func(int) error {
		for _, k := range r.fresh {
			if err := r.s.Put(ctx, k, r.value, nil); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	for _, err := range r.s.RemoveBatch(r.fresh, true) {
		if err != nil {
			return 0, err
		}
	}
	return 1e6 / ns, nil
}
