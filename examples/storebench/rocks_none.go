//go:build !cgo || norocksdb

package main

import (
	"context"
	"time"

	"github.com/kvcache-ai/mooncake-go/examples/contest"
)

const haveRocksDB = false

func scanInC(string) (int, time.Duration, error) { return 0, 0, nil }

func runRocksDB(_ context.Context, b *contest.Bench) error {
	b.Note("  this build has no RocksDB")
	return nil
}
