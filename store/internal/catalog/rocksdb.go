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
	dir     string
	db      *grocksdb.DB
	async   *grocksdb.WriteOptions
	sync    *grocksdb.WriteOptions
	point   *grocksdb.ReadOptions
	scan    *grocksdb.ReadOptions
	mu      sync.Mutex
	closed  bool           // guarded by mu
	running sync.WaitGroup // calls between enter and leave; Add only under mu while not closed
	done    chan struct{}  // closed when Close has finished
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
		db:    db,
		async: grocksdb.NewDefaultWriteOptions(),
		sync:  grocksdb.NewDefaultWriteOptions(),
		point: grocksdb.NewDefaultReadOptions(),
		scan:  newScanOptions(),
		done:  make(chan struct{}),
	}
	c.sync.SetSync(true)
	if err := c.initFormat(); err != nil {
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
func (c *rocks) initFormat() error {
	found, err := readFormat(c.db, c.point)
	if err != nil || found {
		return err
	}
	it := c.db.NewIterator(c.scan)
	defer it.Close()
	if it.SeekToFirst(); it.Valid() {
		return errors.Wrap(ErrCorrupt, "database has entries but no format version")
	}
	if err := it.Err(); err != nil {
		return classify(err)
	}
	var b Batch
	b.setMeta(formatMeta, formatValue(FormatVersion))
	return c.write(&b, true)
}

func (c *rocks) enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	c.running.Add(1)
	return nil
}

func (c *rocks) leave() { c.running.Done() }

func (c *rocks) Apply(b *Batch, sync bool) error {
	if err := b.Err(); err != nil {
		return errors.WithMessage(err, "catalog: apply")
	}
	if b.Len() == 0 && !sync {
		return nil
	}
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	return errors.WithMessagef(c.write(b, sync), "catalog: apply %d changes", b.Len())
}

func (c *rocks) write(b *Batch, sync bool) error {
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
	return classify(c.db.Write(opts, wb))
}

func (c *rocks) Get(tenant, key string) (*Record, bool, error) {
	if len(tenant) > MaxTenantBytes || len(key) > MaxKeyBytes {
		return nil, false, nil
	}
	if err := c.enter(); err != nil {
		return nil, false, err
	}
	defer c.leave()
	stored := AppendKey(nil, tenant, key)
	value, err := c.db.GetBytes(c.point, stored)
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
	if err := c.enter(); err != nil {
		return nil, false, err
	}
	defer c.leave()
	return readMeta(c.db, c.point, name)
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

func (c *rocks) Close() error {
	c.mu.Lock()
	again := c.closed
	c.closed = true
	c.mu.Unlock()
	if again {
		<-c.done
		return nil
	}
	c.running.Wait()
	c.db.Close()
	c.async.Destroy()
	c.sync.Destroy()
	c.point.Destroy()
	c.scan.Destroy()
	close(c.done)
	return nil
}
