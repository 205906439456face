//go:build cgo && !norocksdb

package catalog

import "github.com/linxGnu/grocksdb"

// Memory of an open catalogue: at most memtables x (1 + maxMemtables) and the block cache, which also holds the
// indexes and filters.
const (
	memtableBytes   = 16 << 20
	maxMemtables    = 3
	blockCacheBytes = 16 << 20
	maxOpenFiles    = 128
	maxWALBytes     = 64 << 20
	infoLogBytes    = 1 << 20
	manifestBytes   = 16 << 20
)

// openDB opens dir with our options, which RocksDB copies.
func openDB(dir string, open func(*grocksdb.Options, string) (*grocksdb.DB, error)) (*grocksdb.DB, error) {
	cache := grocksdb.NewLRUCache(blockCacheBytes)
	defer cache.Destroy()
	table := grocksdb.NewDefaultBlockBasedTableOptions()
	defer table.Destroy()
	table.SetBlockCache(cache)
	table.SetCacheIndexAndFilterBlocks(true)
	table.SetPinL0FilterAndIndexBlocksInCache(true)
	table.SetFilterPolicy(grocksdb.NewBloomFilterFull(10))
	table.SetBlockSize(16 << 10)
	table.SetFormatVersion(5)

	opts := grocksdb.NewDefaultOptions()
	defer opts.Destroy()
	opts.SetCreateIfMissing(true)
	opts.SetBlockBasedTableFactory(table)
	opts.SetCompression(grocksdb.NoCompression) // records are short and mostly hashes
	opts.SetWriteBufferSize(memtableBytes)
	opts.SetMaxWriteBufferNumber(maxMemtables)
	opts.SetMaxTotalWalSize(maxWALBytes)
	opts.SetLevelCompactionDynamicLevelBytes(true)
	opts.SetMaxBackgroundJobs(2)
	opts.SetBytesPerSync(1 << 20)

	// A torn or damaged tail of the log ends the recovery there: a prefix, and a directory that opens.
	opts.SetWALRecoveryMode(grocksdb.PointInTimeRecovery)

	opts.SetMaxOpenFiles(maxOpenFiles)
	opts.SetMaxFileOpeningThreads(1)
	opts.SetSkipStatsUpdateOnDBOpen(true)
	opts.SetMaxManifestFileSize(manifestBytes)
	opts.SetManifestPreallocationSize(64 << 10)
	opts.SetInfoLogLevel(grocksdb.WarnInfoLogLevel)
	opts.SetMaxLogFileSize(infoLogBytes)
	opts.SetKeepLogFileNum(1)
	opts.SetStatsDumpPeriodSec(0)
	opts.SetStatsPersistPeriodSec(0)
	return open(opts, dir)
}

// newScanOptions are for reading everything once: large reads that leave the cache to the point reads.
func newScanOptions() *grocksdb.ReadOptions {
	opts := grocksdb.NewDefaultReadOptions()
	opts.SetFillCache(false)
	opts.SetReadaheadSize(2 << 20)
	return opts
}
