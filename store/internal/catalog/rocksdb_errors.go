//go:build cgo && !norocksdb

package catalog

import (
	"os"
	"strings"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"
)

// classify gives an error of RocksDB, which is only text, the sentinel that callers test for.
func classify(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	switch {
	case strings.Contains(text, "No space left on device"):
		return errors.Wrap(ErrNoSpace, text)
	case strings.HasPrefix(text, "Corruption:"):
		return errors.Wrap(ErrCorrupt, text)
	}
	return errors.WithStack(err)
}

// classifyOpen is classify for opening dir, where RocksDB's text says least about the usual causes.
func classifyOpen(dir string, err error) error {
	text := err.Error()
	if strings.Contains(text, "lock hold by current process") ||
		strings.Contains(text, "While lock file") && strings.Contains(text, "Resource temporarily unavailable") {
		return errors.Wrap(ErrLocked, text)
	}
	if unix.Access(dir, unix.W_OK) != nil && strings.HasPrefix(text, "IO error:") {
		return errors.Wrapf(os.ErrPermission, "directory is not writable: %s", text)
	}
	return classify(err)
}
