package master

import "github.com/pkg/errors"

// wrapf adds what was asked and which limit it met, without the stack that errors.Wrapf would collect: these are
// operating errors, and some of them are frequent.
func wrapf(err error, format string, args ...any) error {
	return errors.WithMessagef(err, format, args...)
}
