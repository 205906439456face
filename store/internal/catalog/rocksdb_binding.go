//go:build cgo && !norocksdb

package catalog

/*
#cgo CXXFLAGS: -std=c++17 -O2
#cgo LDFLAGS: -lrocksdb -lstdc++
#cgo noescape catalog_fill
#cgo nocallback catalog_fill
#include <stdlib.h>
#include "rocksdb.h"
*/
import "C"

import (
	"unsafe"

	"github.com/pkg/errors"
)

// Memory of an open catalogue: at most memtables x (1 + maxMemtables) and the block cache, which also holds the
// indexes and filters.
const (
	memtableBytes   = 16 << 20
	maxMemtables    = 3
	blockCacheBytes = 16 << 20
	maxOpenFiles    = 128
	maxWALBytes     = 64 << 20
	manifestBytes   = 16 << 20
)

// database is an open RocksDB, see rocksdb.h. Its methods may be called concurrently, but not close.
type database struct{ c *C.catalog_db }

// how says in which way a database is opened. The zero value is the usual one.
type how struct {
	readOnly bool // writes nothing
	salvage  bool // skips damaged records of the log
	faults   faults
}

// faults are for tests: the write or read of that number fails with errno, and with all every later one. 0 is none.
type faults struct {
	write, read uint64
	errno       int
	all         bool
}

func (h how) options() *C.catalog_options {
	return &C.catalog_options{
		memtable_bytes: memtableBytes, block_cache_bytes: blockCacheBytes, max_wal_bytes: maxWALBytes,
		max_manifest_bytes: manifestBytes, max_memtables: maxMemtables, max_open_files: maxOpenFiles,
		read_only: cbool(h.readOnly), salvage: cbool(h.salvage),
		fail_write: C.uint64_t(h.faults.write), fail_read: C.uint64_t(h.faults.read), fail_errno: C.int(h.faults.errno),
		fail_all: cbool(h.faults.all),
	}
}

func cbool(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

func openDatabase(dir string, h how) (*database, error) {
	name := C.CString(dir)
	defer C.free(unsafe.Pointer(name))
	var db database
	if err := classify(C.catalog_open(name, h.options(), &db.c)); err != nil {
		return nil, err
	}
	return &db, nil
}

// rebuildDatabase makes a manifest of the tables and logs in dir.
func rebuildDatabase(dir string, h how) error {
	name := C.CString(dir)
	defer C.free(unsafe.Pointer(name))
	return classify(C.catalog_rebuild(name, h.options()))
}

// close syncs what was written and frees db, also if it returns an error.
func (db *database) close() error { return classify(C.catalog_close(db.c)) }

// write applies a batch. An error freezes the database: it reads, but must be opened again to write.
func (db *database) write(rep []byte, sync bool) error {
	return classify(C.catalog_write(db.c, (*C.char)(unsafe.Pointer(unsafe.SliceData(rep))), C.size_t(len(rep)), cbool(sync)))
}

// frozen is the error of the disk that froze the database, if one has, in the background too.
func (db *database) frozen() error { return classify(C.catalog_frozen(db.c)) }

// get returns nil if there is no such key.
func (db *database) get(key []byte) ([]byte, error) {
	var value *C.char
	var size C.size_t
	err := classify(C.catalog_get(db.c, (*C.char)(unsafe.Pointer(unsafe.SliceData(key))), C.size_t(len(key)), &value, &size))
	if err != nil || value == nil {
		return nil, err
	}
	defer C.free(unsafe.Pointer(value))
	return append([]byte{}, unsafe.Slice((*byte)(unsafe.Pointer(value)), size)...), nil
}

// flush writes what is in memory into a table, if the disk takes it.
func (db *database) flush() error { return classify(C.catalog_flush(db.c)) }

// operations counts what changed or read a file.
func (db *database) operations() (writes, reads uint64) {
	var w, r C.uint64_t
	C.catalog_operations(db.c, &w, &r)
	return uint64(w), uint64(r)
}

// iterator is a scan of the keys with a prefix as of its begin. Its end must come before that of the database.
type iterator struct {
	c      *C.catalog_scan
	prefix C.char
}

// scan begins at the keys with the prefix, or at the first key of all if it is 0.
func (db *database) scan(prefix byte) iterator {
	return iterator{C.catalog_scan_begin(db.c, C.char(prefix)), C.char(prefix)}
}

// fill copies the next records into buf, see catalog_fill. need is the size of a record that did not fit.
func (it iterator) fill(buf []byte) (used, need int) {
	f := C.catalog_fill(it.c, it.prefix, (*C.char)(unsafe.Pointer(&buf[0])), C.size_t(len(buf)))
	return int(f.used), int(f.need)
}

func (it iterator) err() error { return classify(C.catalog_scan_error(it.c)) }

func (it iterator) end() { C.catalog_scan_end(it.c) }

// sum reads the rest as plain C would.
func (it iterator) sum() uint64 { return uint64(C.catalog_sum(it.c, it.prefix)) }

// classify gives a result of RocksDB the sentinel that callers test for, and frees it.
func classify(s C.catalog_status) error {
	if s.code == C.CATALOG_OK {
		return nil
	}
	text := C.GoString(s.text)
	C.free(unsafe.Pointer(s.text))
	switch s.code {
	case C.CATALOG_CORRUPT:
		return errors.Wrap(ErrCorrupt, text)
	case C.CATALOG_NO_SPACE:
		return errors.Wrap(ErrNoSpace, text)
	case C.CATALOG_LOCKED:
		return errors.Wrap(ErrLocked, text)
	}
	return errors.New(text)
}
