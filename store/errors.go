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
	ErrInternal    error = status.Internal // a bug of the store: see Store.Err
)

// Recovered makes an error of what recover returned: ErrInternal, with the text of the panic and the stack that it came
// from. To be called by the deferred function itself. See Store.Fail.
func Recovered(p any) error { return status.Recovered(p) }

// Code is upstream's ErrorCode for err: 0 for nil, -1 for ErrInternal and for an error that has none. Codes below -2000
// are our own: the end of a context is -2005 (context.Canceled) and -2006 (context.DeadlineExceeded). An error of the
// system that has no name of the store's is -1100 for fs.ErrNotExist, -1101 for fs.ErrPermission and what else keeps a
// path from being opened, -1102 for EIO, and -200, that of ErrNoSpace, for a full disk or no memory.
func Code(err error) int { return status.Code(err) }
