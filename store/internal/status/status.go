// Package status holds the store's sentinel errors and the numeric codes that C and Python callers of the C++
// Mooncake Store know them by. Codes never change; a new error gets a new code below -2000.
package status

import (
	"context"
	"errors"
	"io/fs"
	"syscall"
)

// Error is a sentinel: compare with errors.Is, never by text.
type Error struct {
	Code int // upstream's ErrorCode, always negative
	Name string
	Text string
}

func (e *Error) Error() string { return e.Text }

// The errors, grouped by when they occur. Two sentinels may share a code: the code is what a C caller sees, the
// sentinel is what a Go caller can tell apart.
var (
	// The caller's arguments.
	InvalidKey     = &Error{-400, "INVALID_KEY", "invalid key"}
	InvalidParams  = &Error{-600, "INVALID_PARAMS", "invalid argument"}
	TooLarge       = &Error{-200, "NO_AVAILABLE_HANDLE", "object too large"}
	BufferTooSmall = &Error{-600, "INVALID_PARAMS", "buffer smaller than the object"}
	Unsupported    = &Error{-1012, "NOT_SUPPORTED", "not supported"}

	// Writing.
	NoSpace       = &Error{-200, "NO_AVAILABLE_HANDLE", "no space"}
	Exists        = &Error{-705, "OBJECT_ALREADY_EXISTS", "object already exists"}
	IllegalWriter = &Error{-601, "ILLEGAL_CLIENT", "the reservation belongs to someone else or was taken away"}
	InvalidWrite  = &Error{-700, "INVALID_WRITE", "write in a state that does not allow it"}
	WriteFail     = &Error{-500, "WRITE_FAIL", "write failed"}
	Incomplete    = &Error{-2003, "OBJECT_INCOMPLETE", "object is not completely written"}

	// Reading.
	NotFound     = &Error{-704, "OBJECT_NOT_FOUND", "object not found"}
	NotReady     = &Error{-703, "REPLICA_IS_NOT_READY", "object is still being written"}
	NoReplica    = &Error{-702, "INVALID_REPLICA", "no readable replica of the wanted kind"}
	LeaseExpired = &Error{-707, "LEASE_EXPIRED", "lease expired"}
	Checksum     = &Error{-801, "CHECKSUM_MISMATCH", "checksum mismatch"}
	ReadFail     = &Error{-1102, "FILE_READ_FAIL", "read failed"}
	Tampered     = &Error{-1106, "FILE_INVALID_HANDLE", "file was changed from outside"}

	// Removing and changing.
	HasLease = &Error{-706, "OBJECT_HAS_LEASE", "object is leased"}
	Busy     = &Error{-714, "OBJECT_REPLICA_BUSY", "object is in use"}
	Pinned   = &Error{-2001, "OBJECT_PINNED", "object is pinned"}
	NotGroup = &Error{-2002, "GROUP_NOT_FOUND", "group not found"}

	// The store itself.
	Internal     = &Error{-1, "INTERNAL_ERROR", "internal error"}
	Closed       = &Error{-1010, "UNAVAILABLE_IN_CURRENT_STATUS", "store is closed"}
	Locked       = &Error{-1105, "FILE_LOCK_FAIL", "directory is in use by another store"}
	NewerFormat  = &Error{-300, "INVALID_VERSION", "written by a newer version"}
	Corrupt      = &Error{-1502, "DESERIALIZE_FAIL", "corrupt metadata"}
	Unavailable  = &Error{-1011, "UNAVAILABLE_IN_CURRENT_MODE", "not available in this build or mode"}
	PersistFail  = &Error{-1503, "PERSISTENT_FAIL", "could not be made durable"}
	MemoryLimit  = &Error{-200, "NO_AVAILABLE_HANDLE", "the machine does not give the memory asked for"}
	MetaShortage = &Error{-200, "NO_AVAILABLE_HANDLE", "no room for metadata"}
)

// foreign are errors of others that C callers should tell apart. Upstream has no codes for the end of a caller's context.
var foreign = [...]struct {
	err  error
	code int
}{
	{context.Canceled, -2005}, {context.DeadlineExceeded, -2006},
	{fs.ErrNotExist, -1100}, {fs.ErrPermission, -1101}, {syscall.ENOSPC, NoSpace.Code},
	{syscall.ENOMEM, NoSpace.Code},
	{syscall.ENOTDIR, -1101}, {syscall.EISDIR, -1101}, {syscall.ELOOP, -1101}, {syscall.ENAMETOOLONG, -1101},
	{syscall.EROFS, -1101}, {syscall.EMFILE, -1101}, {syscall.ENFILE, -1101}, {syscall.EIO, ReadFail.Code},
}

// Code is the numeric code of the first status in err's chain, else that of an error of the system or of a context, else
// -1 (INTERNAL_ERROR). nil is 0.
func Code(err error) int {
	code := codeOf(err)
	if code != Internal.Code || errors.Is(err, Internal) {
		return code
	}
	for _, f := range foreign {
		if errors.Is(err, f.err) {
			return f.code
		}
	}
	return code
}

func codeOf(err error) int {
	for err != nil {
		switch e := err.(type) {
		case *Error:
			return e.Code
		case interface{ Unwrap() error }:
			err = e.Unwrap()
		case interface{ Unwrap() []error }:
			for _, inner := range e.Unwrap() {
				if c := codeOf(inner); c != Internal.Code {
					return c
				}
			}
			return -1
		default:
			return -1
		}
	}
	return 0
}
