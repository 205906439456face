package weight

import (
	"errors"

	"github.com/kvcache-ai/mooncake-go/artifact/source"
	"github.com/kvcache-ai/mooncake-go/store"
)

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

// roomError is ErrNoRoom and the store's ErrNoSpace, with its code.
type roomError struct{}

func (roomError) Error() string   { return ErrNoRoom.Error() }
func (roomError) Unwrap() []error { return []error{ErrNoRoom, store.ErrNoSpace} }

// damaged makes what the store says of a replica also an ErrDamaged.
type damaged struct{ cause error }

func (e damaged) Error() string   { return ErrDamaged.Error() + ": " + e.cause.Error() }
func (e damaged) Unwrap() []error { return []error{ErrDamaged, e.cause} }

// recovered, deferred, makes a panic the error that the function returns: in a goroutine it would end the process.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = store.Recovered(p)
	}
}

// codes are those that C callers know the package's errors by, in the order in which they count.
var codes = [...]struct {
	err  error
	code int
}{
	{ErrInvalid, -600}, {ErrNotFound, -704}, {ErrNotReady, -703}, {ErrDifferent, -705}, {ErrInUse, -706},
	{ErrSource, -2101}, {ErrDamaged, -2102}, {ErrImporting, -2103}, {ErrNoTensor, -2104}, {ErrClosed, -1010},
	{ErrNoRoom, -200}, {ErrNewer, -300}, {ErrUnreadable, -1502},
	{source.ErrBadLocation, -2101}, {source.ErrUnknownScheme, -2101}, {source.ErrBadName, -2101}, {source.ErrRefused, -2101},
	{source.ErrLimit, -2101}, {source.ErrNotFound, -2101}, {source.ErrChanged, -2101}, {source.ErrShort, -2101},
}

// Code is the number of err for C callers: 0 for nil, that of the package's error if there is one, else store.Code. They
// are upstream's numbers for what means the same there; those below -2000 are our own: -2101 ErrSource and
// what package source says of a source, -2102 ErrDamaged, -2103 ErrImporting, -2104 ErrNoTensor, -2005 context.Canceled, -2006 context.DeadlineExceeded.
func Code(err error) int {
	for _, c := range codes {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	return store.Code(err)
}
