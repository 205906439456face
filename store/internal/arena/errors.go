package arena

import "errors"

// Attaching to what an earlier process left.
var (
	// ErrStale means that the segment belongs to another store, another boot or another state of the directory: none of its
	// bytes are of use.
	ErrStale = errors.New("arena: segment of another store or boot")
	// ErrInUse means that a process has the segment.
	ErrInUse = errors.New("arena: segment is in use")
	// ErrForeign means that a directory in shared memory was made by another user, or can be changed by one.
	ErrForeign = errors.New("arena: made or writable by another user")
	// ErrCorrupt means that the file is no whole segment or object: truncated, overwritten, or not ours.
	ErrCorrupt = errors.New("arena: corrupt")
	// ErrNewerFormat means that a newer version wrote the segment. It is left as it is.
	ErrNewerFormat = errors.New("arena: format is newer than this version reads")
)

// Taking memory.
var (
	// ErrLimit means that the machine does not let this process take that much memory now.
	ErrLimit = errors.New("arena: over a memory limit of the machine")
	// ErrTooManyFiles means that as many files of objects are mapped or open at once as a process should have.
	ErrTooManyFiles = errors.New("arena: too many files of objects in use")
)
