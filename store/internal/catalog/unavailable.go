//go:build norocksdb || !cgo

package catalog

import "github.com/pkg/errors"

// Open returns ErrUnavailable: this build has no RocksDB.
func Open(dir string) (Catalog, error) {
	return nil, errors.Wrapf(ErrUnavailable, "open %s", dir)
}

// Repair returns ErrUnavailable too.
func Repair(dir string) (Catalog, *Repaired, error) {
	c, err := Open(dir)
	return c, nil, err
}
