package source

import (
	"context"
	"strings"

	"github.com/pkg/errors"
)

// Opener opens the locations of one scheme. It gets the location as the user wrote it, because what may stand
// unescaped in a key differs between systems. Credentials, endpoints and retries are its own configuration.
type Opener interface {
	Open(ctx context.Context, location string) (Source, error)
}

// Mux picks the opener by a location's scheme. The zero value knows none. It is a small value, made for one call or
// for a program; Handle and Open must not run at the same time.
type Mux struct {
	openers map[string]Opener
}

// LocalScheme is the scheme of paths, which have none of their own.
const LocalScheme = "file"

// NewMux returns a Mux that opens local paths and file:// URLs.
func NewMux() *Mux {
	m := &Mux{}
	m.Handle(LocalScheme, Local{})
	return m
}

// Handle makes o open the locations that begin with "scheme://", in any case; nil removes the scheme.
func (m *Mux) Handle(scheme string, o Opener) {
	if m.openers == nil {
		m.openers = make(map[string]Opener)
	}
	if o == nil {
		delete(m.openers, strings.ToLower(scheme))
		return
	}
	m.openers[strings.ToLower(scheme)] = o
}

// Open opens a location. Errors: ErrBadLocation, ErrUnknownScheme, and those of the scheme's opener.
func (m *Mux) Open(ctx context.Context, location string) (Source, error) {
	if location == "" {
		return nil, errors.Wrap(ErrBadLocation, "empty")
	}
	scheme := Scheme(location)
	if scheme == "" {
		scheme = LocalScheme
	}
	o := m.openers[scheme]
	if o == nil {
		return nil, errors.Wrapf(ErrUnknownScheme, "open %.40q: %q", location, scheme)
	}
	return o.Open(ctx, location)
}

// Scheme returns what stands before "://" in lower case, or "" when the location is a path. A scheme is a letter,
// then letters, digits, "+", "-" and "." (RFC 3986, 3.1).
func Scheme(location string) string {
	scheme, _, ok := strings.Cut(location, "://")
	if !ok || scheme == "" {
		return ""
	}
	for i := range len(scheme) {
		c := scheme[i] | 0x20
		letter := 'a' <= c && c <= 'z'
		other := strings.IndexByte("0123456789+-.", scheme[i]) >= 0
		if !letter && (i == 0 || !other) {
			return ""
		}
	}
	return strings.ToLower(scheme)
}
