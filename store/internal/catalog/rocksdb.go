//go:build cgo && !norocksdb

package catalog

import (
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"
)

// rocks is Catalog on one RocksDB directory.
type rocks struct {
	dir string

	mu struct {
		sync.Mutex
		db      *database // nil after a revival that failed, and after Close
		running int       // calls that use db
		busy    bool      // Close or a revival has db for itself
		closed  bool
		freed   bool  // Close has finished
		broken  error // why RocksDB refuses to write until it is opened again; nil if it does not
	}
	change sync.Cond // on mu: running fell to 0, or busy to false
}

// Open opens or creates the catalogue in dir, which is its own: nothing else may be kept there, and nobody else may read
// it. One catalogue may be open on a directory at a time, of any process. Damage of what was on stable storage is
// ErrCorrupt, and changes nothing; see Repair.
func Open(dir string) (Catalog, error) { return openWith(dir, how{}) }

func openWith(dir string, h how) (_ Catalog, err error) {
	c := &rocks{dir: dir}
	c.change.L = &c.mu
	if err := c.open(h); err != nil {
		return nil, errors.WithMessagef(err, "open catalog %s", dir)
	}
	return c, nil
}

func (c *rocks) open(h how) error {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return errors.WithStack(err)
	}
	if !h.salvage {
		marked, err := checkSynced(c.dir)
		if err != nil {
			return err
		}
		if !marked {
			if err := checkUnmarked(c.dir); err != nil {
				return err
			}
		}
		if err := peekFormat(c.dir, marked); err != nil {
			return err
		}
	}
	if err := keepPrivate(c.dir); err != nil {
		return explainOpen(c.dir, err)
	}
	var err error
	if c.mu.db, err = openDatabase(c.dir, h); err != nil {
		return explainOpen(c.dir, err)
	}
	if err = c.initFormat(c.mu.db, h.salvage); err == nil {
		err = c.dropLogs(c.mu.db)
	}
	if err != nil {
		_ = c.mu.db.close()
	}
	return err
}

// keepPrivate takes the directory from other users, and what earlier versions let them read. A file that one of them has
// open keeps its old contents in his eyes, so RocksDB's lock and logs of messages, which he could lock or read on, are made anew.
func keepPrivate(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return errors.WithStack(err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return errors.WithStack(err)
	}
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil || !fi.Mode().IsRegular() {
			continue
		}
		path := filepath.Join(dir, e.Name())
		if strings.HasPrefix(e.Name(), "LOG") || e.Name() == "LOCK" && fi.Mode().Perm()&0o077 != 0 && !writeLocked(path) {
			err = os.Remove(path)
		} else if fi.Mode().Perm()&0o077 != 0 {
			err = os.Chmod(path, 0o600)
		}
		if err != nil {
			return errors.WithStack(err)
		}
	}
	return nil
}

// writeLocked says whether another process, of an earlier version, has the database open. Others than the owner could take a
// read lock only.
func writeLocked(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_RDLCK}
	return unix.FcntlFlock(f.Fd(), unix.F_GETLK, &lock) == nil && lock.Type == unix.F_WRLCK
}

// explainOpen names the usual cause that RocksDB's text says least about.
func explainOpen(dir string, err error) error {
	if !errors.Is(err, ErrLocked) && !errors.Is(err, ErrCorrupt) && unix.Access(dir, unix.W_OK) != nil {
		return errors.Wrapf(os.ErrPermission, "directory is not writable: %s", err)
	}
	return err
}

// peekFormat refuses a directory of a newer format. Opening for writing would already replace the log and the
// manifest, so it looks through a read-only instance, which writes nothing. A directory without a database is fine.
func peekFormat(dir string, marked bool) error {
	if _, err := os.Stat(filepath.Join(dir, "CURRENT")); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return errors.WithStack(err)
	}
	db, err := openDatabase(dir, how{readOnly: true})
	if err != nil {
		return explainOpen(dir, err)
	}
	defer db.close()
	version, err := readFormat(db)
	if err == nil && version >= markedFormat && !marked {
		err = errors.Wrapf(ErrCorrupt, "%s is missing", filepath.Join(dir, markName))
	}
	return err
}

// readFormat returns the database's format if this program reads it, and 0 if none is marked.
func readFormat(db *database) (uint32, error) {
	value, found, err := readMeta(db, formatMeta)
	if err != nil || !found {
		return 0, err
	}
	return checkFormat(value)
}

// initFormat marks a new database, or one of an older format, which differs in nothing that has to be changed. The mark is
// synced before anything else is written, and what survives a crash is a prefix, so records without a mark are not ours or
// not whole; a salvage takes them all the same.
func (c *rocks) initFormat(db *database, salvage bool) error {
	version, err := readFormat(db)
	if salvage && errors.Is(err, ErrCorrupt) {
		version, err = 0, nil
	}
	if err != nil || version == FormatVersion {
		return err
	}
	if version == 0 && !salvage {
		if err := checkNoEntries(db); err != nil {
			return err
		}
	}
	return c.write(db, formatBatch(), true)
}

func checkNoEntries(db *database) error {
	it := db.scan(0)
	defer it.end()
	if used, need := it.fill(make([]byte, 64)); used+need > 0 {
		return errors.Wrap(ErrCorrupt, "database has entries but no format version")
	}
	return it.err()
}

func formatBatch() *Batch {
	var b Batch
	b.setMeta(formatMeta, formatValue(FormatVersion))
	return &b
}

// maxLogs is how many logs a directory may have before dropLogs.
const maxLogs = 8

// dropLogs has the next open remove old logs. RocksDB begins a log at each open and keeps it until something is flushed
// after it, which never happens to who only reads.
func (c *rocks) dropLogs(db *database) error {
	logs, err := filepath.Glob(filepath.Join(c.dir, "*.log"))
	if err != nil || len(logs) <= maxLogs {
		return nil // not worth an error
	}
	return c.write(db, formatBatch(), true)
}

func (c *rocks) Apply(b *Batch, sync bool) error {
	if err := b.Err(); err != nil {
		return errors.WithMessage(err, "catalog: apply")
	}
	if b.Len() == 0 && !sync {
		return nil
	}
	db, err := c.enter(true)
	if err != nil {
		return errors.WithMessage(err, "catalog: apply")
	}
	defer c.leave()
	err = c.write(db, b, sync)
	if err != nil {
		c.markBroken(err)
	}
	return errors.WithMessagef(err, "catalog: apply %d changes", b.Len())
}

func (c *rocks) write(db *database, b *Batch, sync bool) error {
	rep := b.rep
	if len(rep) == 0 {
		rep = make([]byte, batchHeader)
	}
	return db.write(rep, sync)
}

func (c *rocks) Get(tenant, key string, gen uint64) (*Record, bool, error) {
	if len(tenant) > MaxTenantBytes || len(key) > MaxKeyBytes {
		return nil, false, nil
	}
	db, err := c.enter(false)
	if err != nil {
		return nil, false, err
	}
	defer c.leave()
	stored := AppendKey(nil, tenant, key, gen)
	value, err := db.get(stored)
	if err != nil {
		return nil, false, errors.WithMessagef(err, "catalog: get %.64q", key)
	}
	if value == nil {
		return nil, false, nil
	}
	r := new(Record)
	if err := r.Decode(stored, value); err != nil {
		return nil, false, errors.WithMessage(err, "catalog: get")
	}
	return r, true, nil
}

func (c *rocks) Meta(name string) ([]byte, bool, error) {
	db, err := c.enter(false)
	if err != nil {
		return nil, false, err
	}
	defer c.leave()
	return readMeta(db, name)
}

func readMeta(db *database, name string) ([]byte, bool, error) {
	stored := AppendMetaKey(nil, name)
	value, err := db.get(stored)
	if err != nil {
		return nil, false, errors.WithMessagef(err, "catalog: meta %q", name)
	}
	if value == nil {
		return nil, false, nil
	}
	value, err = OpenMeta(stored, value)
	return value, err == nil, err
}
