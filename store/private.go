package store

import (
	"io/fs"
	"os"

	"github.com/pkg/errors"
)

// privateDir makes a directory that only this user can enter, whatever the umask. One that an earlier version left open
// to others is closed, and its files with it: those first, so that a crash in between leaves the directory to be closed
// by the next Open.
func privateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm()&0o077 == 0 {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	if err := closeFiles(root); err != nil {
		return err
	}
	return root.Chmod(".", 0o700)
}

// closeFiles takes the group's and the others' rights to the files of a directory. Links are not followed.
func closeFiles(root *os.Root) error {
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	entries, err := d.ReadDir(-1)
	_ = d.Close()
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		info, err := root.Lstat(e.Name())
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			err = root.Chmod(e.Name(), info.Mode().Perm()&^0o077)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
