//go:build cgo && !norocksdb

package main

/*
#cgo LDFLAGS: -lrocksdb
#include <stdlib.h>
#include "rocksdb/c.h"

// Reads every record of an open database and adds up their lengths.
static size_t scan_all(rocksdb_t *db, size_t *records) {
	rocksdb_readoptions_t *ro = rocksdb_readoptions_create();
	rocksdb_readoptions_set_fill_cache(ro, 0);
	rocksdb_readoptions_set_readahead_size(ro, 2 << 20);
	rocksdb_iterator_t *it = rocksdb_create_iterator(db, ro);
	size_t sum = 0;
	for (rocksdb_iter_seek_to_first(it); rocksdb_iter_valid(it); rocksdb_iter_next(it)) {
		size_t klen, vlen;
		rocksdb_iter_key(it, &klen);
		rocksdb_iter_value(it, &vlen);
		sum += klen + vlen;
		++*records;
	}
	rocksdb_iter_destroy(it);
	rocksdb_readoptions_destroy(ro);
	return sum;
}
*/
import "C"

import (
	"time"
	"unsafe"

	"github.com/pkg/errors"
)

const haveRocksDB = true

// scanInC opens the database of a store that is closed, and returns the time that reading its records took.
func scanInC(dir string) (records int, took time.Duration, err error) {
	path := C.CString(dir)
	defer C.free(unsafe.Pointer(path))
	opts := C.rocksdb_options_create()
	defer C.rocksdb_options_destroy(opts)
	var failure *C.char
	db := C.rocksdb_open_for_read_only(opts, path, 0, &failure)
	if failure != nil {
		defer C.rocksdb_free(unsafe.Pointer(failure))
		return 0, 0, errors.Errorf("open %s: %s", dir, C.GoString(failure))
	}
	defer C.rocksdb_close(db)
	var n C.size_t
	start := time.Now()
	C.scan_all(db, &n)
	return int(n), time.Since(start), nil
}
