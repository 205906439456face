//go:build cgo && !norocksdb

package catalog

import (
	"os"
	"path/filepath"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"
)

// After the disk failed a write, the database is frozen (see guard.h): it takes no further ones until it is opened again. So
// the next Apply that finds no other call running opens it again. Reads go on meanwhile.

// enter hands out the database for one call, which ends with leave. An error leaves nothing to end.
func (c *rocks) enter(write bool) (*database, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.mu.busy {
		c.change.Wait()
	}
	if c.mu.closed {
		return nil, ErrClosed
	}
	if c.mu.broken != nil && (write || c.mu.db == nil) {
		if err := c.reviveLocked(); err != nil {
			return nil, err
		}
	}
	c.mu.running++
	return c.mu.db, nil
}

func (c *rocks) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.running--; c.mu.running == 0 {
		c.change.Broadcast()
	}
}

func (c *rocks) markBroken(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.broken = err
}

// reviveLocked opens the database again, or returns why not. It lets go of mu meanwhile and keeps others out by
// busy. It does not wait for calls in progress: a Scan may be waiting for the very Apply that came here.
func (c *rocks) reviveLocked() error {
	if c.mu.running > 0 {
		return c.mu.broken
	}
	db := c.mu.db
	c.mu.busy = true
	c.mu.Unlock()
	err := checkRoom(c.dir)
	if err == nil {
		if db != nil {
			_ = db.close() // it is frozen: the error is known
		}
		db, err = nil, nil
		if _, err = checkSynced(c.dir); err == nil {
			db, err = openDatabase(c.dir, how{})
		}
	}
	c.mu.Lock()
	c.mu.busy = false
	c.change.Broadcast()
	c.mu.db, c.mu.broken = db, err
	return errors.WithMessage(err, "catalog: open again after a failed write")
}

// openSlackBytes is room for a new manifest, options file and log, beside the recovered records.
const openSlackBytes = 1 << 20

// checkRoom keeps a database on a full disk open for reading: opening it writes the log's contents into a table.
func checkRoom(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return errors.WithStack(err)
	}
	need := int64(openSlackBytes)
	for _, e := range entries {
		if fi, err := e.Info(); err == nil && filepath.Ext(e.Name()) == ".log" {
			need += fi.Size()
		}
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return errors.Wrapf(err, "statfs %s", dir)
	}
	if free := int64(fs.Bavail) * int64(fs.Bsize); fs.Blocks > 0 && free < need { // a file system may not say: all zero
		return errors.Wrapf(ErrNoSpace, "%d bytes free in %s, need %d to open", free, dir, need)
	}
	return nil
}

func (c *rocks) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.closed = true
	for c.mu.busy || c.mu.running > 0 {
		c.change.Wait()
	}
	if c.mu.freed {
		return nil
	}
	db := c.mu.db
	c.mu.db, c.mu.busy = nil, true
	c.mu.Unlock()
	var err error
	if db != nil {
		err = db.close()
	}
	c.mu.Lock()
	c.mu.freed, c.mu.busy = true, false
	c.change.Broadcast()
	return errors.WithMessagef(err, "catalog: close %s", c.dir)
}
