package source

import (
	"strings"
	"unicode/utf8"

	"github.com/pkg/errors"
)

// CheckName says whether name can be a file of a source: relative, slash-separated, valid UTF-8, no NUL, no empty, "."
// or ".." element, at most MaxNameBytes bytes and MaxDepth elements. Errors: ErrBadName, ErrLimit.
func CheckName(name string) error {
	if len(name) > MaxNameBytes {
		return errors.Wrapf(ErrLimit, "name %.60q... has %d bytes, at most %d", name, len(name), MaxNameBytes)
	}
	if !utf8.ValidString(name) {
		return errors.Wrapf(ErrBadName, "%q: not valid UTF-8", name)
	}
	if strings.IndexByte(name, 0) >= 0 {
		return errors.Wrapf(ErrBadName, "%q: holds a NUL", name)
	}
	elements := strings.Split(name, "/")
	if len(elements) > MaxDepth {
		return errors.Wrapf(ErrLimit, "name %.60q is %d elements deep, at most %d", name, len(elements), MaxDepth)
	}
	for _, e := range elements {
		if e == "" || e == "." || e == ".." {
			return errors.Wrapf(ErrBadName, "%q: element %q", name, e)
		}
	}
	return nil
}
