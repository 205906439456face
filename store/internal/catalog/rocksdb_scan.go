//go:build cgo && !norocksdb

package catalog

/*
#cgo LDFLAGS: -lrocksdb
#cgo noescape catalog_fill
#cgo nocallback catalog_fill
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "rocksdb/c.h"

typedef struct {
	size_t used; // bytes of buf that were filled
	size_t need; // bytes of the next record, for which there was no room; 0 = there is none
} catalog_filled;

// Copies records [key length u32][value length u32][key][value] into buf as long as they fit and the key starts with
// prefix, and leaves the iterator at the first that was not copied.
static catalog_filled catalog_fill(void *iterator, char prefix, char *buf, size_t cap) {
	rocksdb_iterator_t *it = iterator;
	catalog_filled f = {0, 0};
	for (; rocksdb_iter_valid(it); rocksdb_iter_next(it)) {
		size_t klen, vlen;
		const char *key = rocksdb_iter_key(it, &klen);
		if (klen == 0 || key[0] != prefix)
			break;
		const char *value = rocksdb_iter_value(it, &vlen);
		size_t n = 8 + klen + vlen;
		if (n > cap - f.used) {
			f.need = n;
			break;
		}
		uint32_t lens[2] = {klen, vlen};
		char *p = buf + f.used;
		memcpy(p, lens, 8);
		memcpy(p + 8, key, klen);
		memcpy(p + 8 + klen, value, vlen);
		f.used += n;
	}
	return f;
}

// The least that C can do with each record: what the benchmark of Scan compares with.
static size_t catalog_sum(void *iterator, char prefix) {
	rocksdb_iterator_t *it = iterator;
	size_t sum = 0;
	for (; rocksdb_iter_valid(it); rocksdb_iter_next(it)) {
		size_t klen, vlen;
		const char *key = rocksdb_iter_key(it, &klen);
		if (klen == 0 || key[0] != prefix)
			break;
		rocksdb_iter_value(it, &vlen);
		sum += klen + vlen;
	}
	return sum;
}
*/
import "C"

import (
	"context"
	"encoding/binary"
	"reflect"
	"unsafe"

	"github.com/linxGnu/grocksdb"
	"github.com/pkg/errors"
)

// scanBuffer amortizes the call into C over thousands of records and holds any record of ours.
const scanBuffer = 1 << 20

func (c *rocks) Scan(ctx context.Context, fn func(*Record) error) error {
	db, err := c.enter(false)
	if err != nil {
		return err
	}
	defer c.leave()
	it := db.NewIterator(c.scan)
	defer it.Close()
	it.Seek([]byte{prefixObject})

	s := scanner{fn: fn}
	raw, buf := rawIterator(it), make([]byte, scanBuffer)
	for more := true; more; {
		if err := ctx.Err(); err != nil {
			return err
		}
		filled := C.catalog_fill(raw, prefixObject, (*C.char)(unsafe.Pointer(&buf[0])), C.size_t(len(buf)))
		if more = filled.need > 0; more && filled.used == 0 {
			return errors.Wrapf(ErrCorrupt, "catalog: entry of %d bytes", uint64(filled.need))
		}
		if err := s.visit(buf[:filled.used]); err != nil {
			return err
		}
	}
	if err := it.Err(); err != nil {
		return errors.WithMessage(classify(err), "catalog: scan")
	}
	return s.result()
}

// scanner hands records to fn and remembers those that do not verify.
type scanner struct {
	fn      func(*Record) error
	record  Record
	skipped SkippedError
}

// visit takes what catalog_fill wrote. The records are copied there, so that C and RocksDB are done with them.
func (s *scanner) visit(p []byte) error {
	for len(p) > 0 {
		klen, vlen := binary.NativeEndian.Uint32(p), binary.NativeEndian.Uint32(p[4:])
		end := 8 + int(klen) + int(vlen)
		key, value := p[8:8+klen], p[8+klen:end]
		p = p[end:]
		if err := s.record.Decode(key, value); err != nil {
			s.skipped.Add(err)
			continue
		}
		if err := s.fn(&s.record); err != nil {
			return err
		}
	}
	return nil
}

func (s *scanner) result() error {
	if s.skipped.Records == 0 {
		return nil
	}
	return &s.skipped
}

// SumC reads all records as plain C would, for benchmarks that compare with that.
func (c *rocks) SumC() uint64 {
	it := c.mu.db.NewIterator(c.scan)
	defer it.Close()
	it.Seek([]byte{prefixObject})
	return uint64(C.catalog_sum(rawIterator(it), prefixObject))
}

// rawIterator returns the rocksdb_iterator_t behind it, which grocksdb 1.7 keeps to itself. reflect checks that the
// field exists and is a pointer, and panics if another release of grocksdb has changed it.
func rawIterator(it *grocksdb.Iterator) unsafe.Pointer {
	return reflect.ValueOf(it).Elem().FieldByName("c").UnsafePointer()
}
