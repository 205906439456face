package catalog

import (
	"encoding/binary"
	"iter"

	"github.com/pkg/errors"
)

// RocksDB's write batch format, which is also that of its log and therefore fixed: a sequence number u64 (filled in
// by RocksDB), a count u32, then per operation a tag, and key and value as length-prefixed strings.
const (
	batchHeader    = 12
	batchTagDelete = 0
	batchTagPut    = 1
)

// Batch collects changes for one Apply; later ones win. The zero value is ready. A Batch is not safe for concurrent
// use. A change that breaks a limit is not added, and Apply of this Batch fails as a whole with that error.
//
// It is kept in RocksDB's own encoding, so that Apply is two calls into C, not one for each record.
type Batch struct {
	rep   []byte
	count int
	err   error

	key, value []byte // scratch
}

// Put sets the record of r.Tenant, r.Key and r.Gen. Other generations of the key keep theirs.
func (b *Batch) Put(r *Record) {
	if err := r.validate(); err != nil {
		b.fail(err)
		return
	}
	b.key = AppendKey(b.key[:0], r.Tenant, r.Key, r.Gen)
	b.value = r.appendValue(b.value[:0], b.key)
	b.add(batchTagPut, b.key, b.value)
}

// Delete removes the record of one generation of a key, if there is one.
func (b *Batch) Delete(tenant, key string, gen uint64) {
	r := Record{Tenant: tenant, Key: key}
	if err := r.validate(); err != nil {
		b.fail(err)
		return
	}
	b.key = AppendKey(b.key[:0], tenant, key, gen)
	b.add(batchTagDelete, b.key, nil)
}

// SetMeta sets a named value. The name "format" is the catalogue's own.
func (b *Batch) SetMeta(name string, value []byte) {
	switch {
	case name == formatMeta:
		b.fail(errors.Wrapf(ErrLimit, "meta name %q is reserved", name))
	case len(name) > MaxMetaNameBytes:
		b.fail(errors.Wrapf(ErrLimit, "meta name of %d bytes, limit %d", len(name), MaxMetaNameBytes))
	case len(value) > MaxMetaBytes:
		b.fail(errors.Wrapf(ErrLimit, "meta value of %d bytes, limit %d", len(value), MaxMetaBytes))
	default:
		b.setMeta(name, value)
	}
}

func (b *Batch) setMeta(name string, value []byte) {
	b.key = AppendMetaKey(b.key[:0], name)
	b.value = sealMeta(b.value[:0], b.key, value)
	b.add(batchTagPut, b.key, b.value)
}

// PutStored sets a stored key to a value as it is, with its checksum. It is for tests, which so write what a newer program or
// damage leaves.
func (b *Batch) PutStored(key, value []byte) {
	b.add(batchTagPut, key, binary.LittleEndian.AppendUint32(append([]byte{}, value...), checksum(key, value)))
}

// Reset empties the batch and keeps its memory.
func (b *Batch) Reset() { b.rep, b.count, b.err = b.rep[:0], 0, nil }

// Len is the number of changes.
func (b *Batch) Len() int { return b.count }

// Bytes is about the size of the changes in the log; Apply refuses more than MaxBatchBytes.
func (b *Batch) Bytes() int { return len(b.rep) }

// Err is the error with which Apply would refuse this batch, nil if it would not.
func (b *Batch) Err() error {
	if b.err == nil && len(b.rep) > MaxBatchBytes {
		return errors.Wrapf(ErrLimit, "batch of %d bytes, limit %d", len(b.rep), MaxBatchBytes)
	}
	return b.err
}

// All yields the changes in order as stored keys and values, nil for a deletion, for other implementations of
// Catalog. The slices share the batch's memory.
func (b *Batch) All() iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		for p := b.rep[min(batchHeader, len(b.rep)):]; len(p) > 0; {
			tag := p[0]
			key, rest := cutString(p[1:])
			var value []byte
			if p = rest; tag == batchTagPut {
				value, p = cutString(p)
			}
			if !yield(key, value) {
				return
			}
		}
	}
}

// cutString takes a length-prefixed string off the front of p, which add has written.
func cutString(p []byte) (s, rest []byte) {
	v, n := binary.Uvarint(p)
	end := n + int(v)
	return p[n:end:end], p[end:]
}

func (b *Batch) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

func (b *Batch) add(tag byte, key, value []byte) {
	if b.err != nil || len(b.rep) > MaxBatchBytes {
		b.fail(b.Err())
		return
	}
	if len(b.rep) == 0 {
		b.rep = append(b.rep, make([]byte, batchHeader)...)
	}
	b.rep = binary.AppendUvarint(append(b.rep, tag), uint64(len(key)))
	b.rep = append(b.rep, key...)
	if tag == batchTagPut {
		b.rep = append(binary.AppendUvarint(b.rep, uint64(len(value))), value...)
	}
	b.count++
	binary.LittleEndian.PutUint32(b.rep[batchHeader-4:], uint32(b.count))
}
