package catalog

import (
	"fmt"

	"github.com/pkg/errors"
)

// Errors of Open.
var (
	// ErrUnavailable says that this build has no RocksDB.
	ErrUnavailable = errors.New("catalog: built without RocksDB (tag norocksdb or no cgo): only memory, no directory")
	// ErrNewerFormat says that a newer version of this program wrote the directory or the record. Nothing is changed.
	ErrNewerFormat = errors.New("catalog: format is newer than this program")
	// ErrLocked says that another open catalogue, of this or another process, holds the directory.
	ErrLocked = errors.New("catalog: directory is in use")
)

// SkippedError is what Scan returns when it visited all records but those that do not verify.
type SkippedError struct {
	Records int
	First   error // names the first
	Newer   error // names the first of a newer format, if there is one: who frees what no record names must not go on
}

func (e *SkippedError) Error() string {
	return fmt.Sprintf("catalog: scan: %d records do not verify, the first: %v", e.Records, e.First)
}

// Unwrap makes it an ErrCorrupt, an ErrNewerFormat or both.
func (e *SkippedError) Unwrap() []error {
	if e.Newer == nil {
		return []error{e.First}
	}
	return []error{e.First, e.Newer}
}

// Add counts a record that did not verify.
func (e *SkippedError) Add(err error) {
	if e.Records++; e.Records == 1 {
		e.First = err
	}
	if e.Newer == nil && errors.Is(err, ErrNewerFormat) {
		e.Newer = err
	}
}

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
