package catalog

import "github.com/pkg/errors"

// Errors of Open.
var (
	// ErrUnavailable says that this build has no RocksDB.
	ErrUnavailable = errors.New("catalog: built without RocksDB (tag norocksdb or no cgo): only memory, no directory")
	// ErrNewerFormat says that a newer version of this program wrote the directory or the record. Nothing is changed.
	ErrNewerFormat = errors.New("catalog: format is newer than this program")
	// ErrLocked says that another open catalogue, of this or another process, holds the directory.
	ErrLocked = errors.New("catalog: directory is in use")
)

// Errors of any method.
var (
	// ErrCorrupt says that what was read is not what was written. The message names the key or RocksDB's file.
	ErrCorrupt = errors.New("catalog: corrupt")
	// ErrNoSpace says that the file system is full. A later Apply tries again.
	ErrNoSpace = errors.New("catalog: no space left on device")
	// ErrLimit says that a record, a meta value or a batch is larger than this package allows, or out of its range.
	ErrLimit = errors.New("catalog: over a limit")
	// ErrClosed says that Close was called before.
	ErrClosed = errors.New("catalog: closed")
)
