//go:build cgo && !norocksdb

package catalog

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/pkg/errors"
)

// Repair opens a catalogue that Open refuses as corrupt, with what can be read of it. It first copies the directory, as it is,
// beside it. Records in damaged parts are lost, and the deletion of a record may be, so that it is there again. It is Open,
// and the Repaired is nil, if there is no damage.
func Repair(dir string) (Catalog, *Repaired, error) {
	c, err := readable(Open(dir))
	if err == nil || !errors.Is(err, ErrCorrupt) || errors.Is(err, ErrNewerFormat) {
		return c, nil, err
	}
	r := &Repaired{Damage: err}
	if r.Backup, err = copyAside(dir); err != nil {
		return nil, nil, errors.WithMessagef(err, "repair catalog %s: copy it first", dir)
	}
	c, err = salvage(dir)
	return c, r, errors.WithMessagef(err, "repair catalog %s (a copy is in %s)", dir, r.Backup)
}

// salvage tries what keeps most first: skip the damaged records of the log; make a manifest of the tables and logs that are
// there; begin anew.
func salvage(dir string) (Catalog, error) {
	if err := os.Remove(filepath.Join(dir, markName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, errors.WithStack(err)
	}
	if checkCurrent(dir, 0) == nil {
		c, err := readable(openWith(dir, how{salvage: true}))
		if err == nil || !errors.Is(err, ErrCorrupt) || errors.Is(err, ErrNewerFormat) {
			return c, err
		}
	}
	if err := rebuildDatabase(dir, how{salvage: true}); err == nil {
		c, err := readable(openWith(dir, how{salvage: true}))
		if err == nil || errors.Is(err, ErrNewerFormat) {
			return c, err
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, errors.WithStack(err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return nil, errors.WithStack(err)
		}
	}
	return Open(dir)
}

// readable passes a catalogue on all of whose tables can be read: opening it reads few of them. Single records that do not
// verify are left to who scans it.
func readable(c Catalog, err error) (Catalog, error) {
	if err != nil {
		return nil, err
	}
	err = c.Scan(context.Background(), func(*Record) error { return nil })
	var skipped *SkippedError
	if err == nil || errors.As(err, &skipped) {
		return c, nil
	}
	_ = c.Close()
	return nil, err
}

// copyAside copies the files of dir to a new directory beside it.
func copyAside(dir string) (string, error) {
	for i := 1; ; i++ {
		to := fmt.Sprintf("%s-damaged-%d", filepath.Clean(dir), i)
		err := os.Mkdir(to, 0o700)
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if err != nil {
			return "", errors.WithStack(err)
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			return "", errors.WithStack(err)
		}
		for _, e := range entries {
			if !e.Type().IsRegular() {
				continue
			}
			if err := copyOne(filepath.Join(to, e.Name()), filepath.Join(dir, e.Name())); err != nil {
				return "", err
			}
		}
		return to, nil
	}
}

func copyOne(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return errors.WithStack(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return errors.WithStack(err)
	}
	_, err = io.Copy(out, in)
	if err == nil {
		err = out.Sync()
	}
	if e := out.Close(); err == nil {
		err = e
	}
	return errors.WithStack(err)
}
