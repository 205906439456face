package source

import (
	"fmt"
	"io/fs"

	"github.com/pkg/errors"
)

// The errors of every source. Compare with errors.Is; messages name the file, and the limit where there is one.
// What a source's own system reports besides (permission denied, an I/O error) is wrapped and passed on.
var (
	// The location.
	ErrBadLocation   = errors.New("source: malformed location")
	ErrUnknownScheme = errors.New("source: no opener for this scheme")

	// Names and what stands behind them.
	ErrBadName  = errors.New("source: invalid file name")
	ErrRefused  = errors.New("source: refused")                             // not a regular file, or leads out of the root
	ErrLimit    = errors.New("source: limit exceeded")                      // the message says which and its value
	ErrNotFound = fmt.Errorf("source: not found (%w)", fs.ErrNotExist)      // also matches fs.ErrNotExist
	ErrClosed   = fmt.Errorf("source: used after close (%w)", fs.ErrClosed) // also matches fs.ErrClosed

	// Reading.
	ErrChanged = errors.New("source: file changed while it was read")
	ErrShort   = errors.New("source: fewer bytes than the file's size")
)
