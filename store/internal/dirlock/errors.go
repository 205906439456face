package dirlock

import "errors"

// ErrHeld means that someone else has the directory; the message says who.
var ErrHeld = errors.New("directory is in use")
