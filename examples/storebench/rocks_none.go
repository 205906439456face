//go:build !cgo || norocksdb

package main

import (
	"context"
	"time"
)

const haveRocksDB = false

func scanInC(string) (int, time.Duration, error) { return 0, 0, nil }

func runRocksDB(_ context.Context, b *bench) error {
	b.note("  this build has no RocksDB")
	return nil
}
