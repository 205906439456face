//go:build cgo && !norocksdb

package catalog

import (
	"context"
	"encoding/binary"

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
	it := db.scan(prefixObject)
	defer it.end()

	s := scanner{fn: fn}
	buf := make([]byte, scanBuffer)
	for more := true; more; {
		if err := ctx.Err(); err != nil {
			return err
		}
		used, need := it.fill(buf)
		if more = need > 0; more && used == 0 {
			return errors.Wrapf(ErrCorrupt, "catalog: entry of %d bytes", need)
		}
		if err := s.visit(buf[:used]); err != nil {
			return err
		}
	}
	if err := it.err(); err != nil {
		return errors.WithMessage(err, "catalog: scan")
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
	it := c.mu.db.scan(prefixObject)
	defer it.end()
	return it.sum()
}
