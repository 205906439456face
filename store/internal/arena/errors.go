package arena

import "errors"

// Attaching to what an earlier process left.
var (
	// ErrStale means that the segment belongs to another store or another boot: none of its bytes are of use.
	ErrStale = errors.New("arena: segment of another store or boot")
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
