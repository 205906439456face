package weight

import "errors"

// The package's errors, for errors.Is. What the store refuses comes through as the store's error.
var (
	ErrInvalid    = errors.New("weight: invalid argument")
	ErrNotFound   = errors.New("weight: no such revision")
	ErrNotReady   = errors.New("weight: revision is not READY")
	ErrDifferent  = errors.New("weight: revision exists with other bytes")
	ErrInUse      = errors.New("weight: revision is in use")
	ErrSource     = errors.New("weight: source is not a complete model")
	ErrDamaged    = errors.New("weight: a file of the revision is missing or damaged")
	ErrImporting  = errors.New("weight: an import of the revision is running")
	ErrClosed     = errors.New("weight: closed")
	ErrNoRoom     = errors.New("weight: the store has no room for the revision")
	ErrNewer      = errors.New("weight: written by a newer version")
	ErrNoTensor   = errors.New("weight: no such tensor")
	ErrUnreadable = errors.New("weight: metadata of a revision does not parse")
)
