//go:build cgo && !norocksdb

package catalog

import (
	"os"
	"path/filepath"
	"sync"

	"github.com/linxGnu/grocksdb"
	"github.com/pkg/errors"
)

// rocks is Catalog on one RocksDB directory.
type rocks struct {
	dir   string
	async *grocksdb.WriteOptions
	sync  *grocksdb.WriteOptions
	point *grocksdb.ReadOptions
	scan  *grocksdb.ReadOptions

	mu struct {
		sync.Mutex
		db      *grocksdb.DB // nil after a revival that failed, and after Close
		running int          // calls that use db
		busy    bool         // Close or a revival has db for itself
		closed  bool
		freed   bool  // Close has finished
		broken  error // why RocksDB refuses to write until it is opened again; nil if it does not
	}
	change sync.Cond // on mu: running fell to 0, or busy to false
}

// Open opens or creates the catalogue in dir, which is its own: nothing else may be kept there. One catalogue may be
// open on a directory at a time, of any process.
func Open(dir string) (Catalog, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, errors.Wrapf(err, "open catalog %s", dir)
	}
	if err := peekFormat(dir); err != nil {
		return nil, errors.WithMessagef(err, "open catalog %s", dir)
	}
	db, err := openDB(dir, grocksdb.OpenDb)
	if err != nil {
		return nil, errors.WithMessagef(classifyOpen(dir, err), "open catalog %s", dir)
	}
	c := &rocks{
		dir:   dir,
		async: grocksdb.NewDefaultWriteOptions(),
		sync:  grocksdb.NewDefaultWriteOptions(),
		point: grocksdb.NewDefaultReadOptions(),
		scan:  newScanOptions(),
	}
	c.mu.db, c.change.L = db, &c.mu
	c.sync.SetSync(true)
	err = c.initFormat(db)
	if err == nil {
		err = c.dropLogs(db)
	}
	if err != nil {
		c.Close()
		return nil, errors.WithMessagef(err, "open catalog %s", dir)
	}
	return c, nil
}

// peekFormat refuses a directory of a newer format. Opening for writing would already replace the log and the
// manifest, so it looks through a read-only instance, which writes nothing. A directory without a database is fine.
func peekFormat(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "CURRENT")); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return errors.WithStack(err)
	}
	db, err := openDB(dir, func(opts *grocksdb.Options, dir string) (*grocksdb.DB, error) {
		return grocksdb.OpenDbForReadOnly(opts, dir, false)
	})
	if err != nil {
		return classifyOpen(dir, err)
	}
	defer db.Close()
	opts := grocksdb.NewDefaultReadOptions()
	defer opts.Destroy()
	_, err = readFormat(db, opts)
	return err
}

// readFormat reports whether the database has a format that this program reads.
func readFormat(db *grocksdb.DB, opts *grocksdb.ReadOptions) (found bool, err error) {
	value, found, err := readMeta(db, opts, formatMeta)
	if err != nil || !found {
		return false, err
	}
	return true, checkFormat(value)
}

// initFormat marks a new database. The mark is synced before anything else is written, and what survives a crash is
// a prefix, so records without a mark are not ours or not whole.
func (c *rocks) initFormat(db *grocksdb.DB) error {
	found, err := readFormat(db, c.point)
	if err != nil || found {
		return err
	}
	it := db.NewIterator(c.scan)
	defer it.Close()
	if it.SeekToFirst(); it.Valid() {
		return errors.Wrap(ErrCorrupt, "database has entries but no format version")
	}
	if err := it.Err(); err != nil {
		return classify(err)
	}
	var b Batch
	b.setMeta(formatMeta, formatValue(FormatVersion))
	return c.write(db, &b, true)
}

// maxLogs is how many logs a directory may have before dropLogs.
const maxLogs = 8

// dropLogs has the next open remove old logs. RocksDB begins a log at each open and keeps it until something is flushed
// after it, which never happens to who only reads.
func (c *rocks) dropLogs(db *grocksdb.DB) error {
	logs, err := filepath.Glob(filepath.Join(c.dir, "*.log"))
	if err != nil || len(logs) <= maxLogs {
		return nil // not worth an error
	}
	var b Batch
	b.setMeta(formatMeta, formatValue(FormatVersion))
	return c.write(db, &b, true)
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

func (c *rocks) write(db *grocksdb.DB, b *Batch, sync bool) error {
	opts := c.async
	if sync {
		opts = c.sync
	}
	rep := b.rep
	if len(rep) == 0 {
		rep = make([]byte, batchHeader)
	}
	wb := grocksdb.WriteBatchFrom(rep)
	defer wb.Destroy()
	return classify(db.Write(opts, wb))
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
	value, err := db.GetBytes(c.point, stored)
	if err != nil {
		return nil, false, errors.WithMessagef(classify(err), "catalog: get %.64q", key)
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
	return readMeta(db, c.point, name)
}

func readMeta(db *grocksdb.DB, opts *grocksdb.ReadOptions, name string) ([]byte, bool, error) {
	stored := AppendMetaKey(nil, name)
	value, err := db.GetBytes(opts, stored)
	if err != nil {
		return nil, false, errors.WithMessagef(classify(err), "catalog: meta %q", name)
	}
	if value == nil {
		return nil, false, nil
	}
	value, err = OpenMeta(stored, value)
	return value, err == nil, err
}
