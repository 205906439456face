package store

import "github.com/kvcache-ai/mooncake-go/store/internal/status"

// The store's errors. Compare with errors.Is; Code gives the number that C and Python callers of the C++ Mooncake
// Store know. Messages say which key and which limit.
var (
	// Arguments.
	ErrInvalidKey     error = status.InvalidKey
	ErrInvalidParams  error = status.InvalidParams
	ErrTooLarge       error = status.TooLarge
	ErrBufferTooSmall error = status.BufferTooSmall
	ErrNotSupported   error = status.Unsupported

	// Writing.
	ErrNoSpace    error = status.NoSpace
	ErrExists     error = status.Exists
	ErrNotWriter  error = status.IllegalWriter // the put was taken over, committed or aborted already
	ErrWrite      error = status.WriteFail
	ErrIncomplete error = status.Incomplete
	ErrNotDurable error = status.PersistFail

	// Reading.
	ErrNotFound  error = status.NotFound
	ErrNotReady  error = status.NotReady // only an unfinished put has this key
	ErrNoReplica error = status.NoReplica
	ErrChecksum  error = status.Checksum
	ErrRead      error = status.ReadFail
	ErrTampered  error = status.Tampered

	// Removing and changing.
	ErrHasLease      error = status.HasLease
	ErrBusy          error = status.Busy
	ErrGroupNotFound error = status.NotGroup

	// The store.
	ErrClosed      error = status.Closed
	ErrLocked      error = status.Locked
	ErrNewerFormat error = status.NewerFormat
	ErrCorrupt     error = status.Corrupt
	ErrMemoryLimit error = status.MemoryLimit
	ErrUnavailable error = status.Unavailable
)

// Code is upstream's ErrorCode for err: 0 for nil, -1 for an error that has none.
func Code(err error) int { return status.Code(err) }
