package catalog

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"math/bits"
	"unsafe"

	"github.com/pkg/errors"
)

// The stored form. Keys:
//
//	'm' name                       a meta value
//	'o' len(tenant) u8, tenant, key, gen u64 big endian  the record of one generation of an object
//
// A value ends with the CRC-32C of its key and of all value bytes before, little endian: it finds every flip of a
// bit, and a value that came under a wrong key. A record's value, integers little endian:
//
//	0  version u8
//	1  type u8
//	2  flags u16
//	4  digest u64
//	12 loc.file u32, loc.off u32, loc.own u32
//	24 size uvarint, softUntil varint, ownMtime varint, len(group) uvarint, group, len(target) uvarint, target
const (
	prefixMeta   = 'm'
	prefixObject = 'o'

	recordVersion   = 1
	recordFixed     = 24
	checksumBytes   = 4
	genBytes        = 8
	maxRecordVarint = 3*binary.MaxVarintLen64 + 2*binary.MaxVarintLen16
	maxKeyStored    = 2 + MaxTenantBytes + MaxKeyBytes + genBytes
	maxValueStored  = recordFixed + maxRecordVarint + MaxGroupBytes + MaxKeyBytes + checksumBytes
)

// castagnoli returns the table of CRC-32C, which amd64 and arm64 have an instruction for. crc32 builds it once.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

func checksum(key, body []byte) uint32 {
	table := castagnoli()
	return crc32.Update(crc32.Update(0, table, key), table, body)
}

// AppendKey appends the stored key of a generation of an object to dst. tenant must not be longer than MaxTenantBytes.
func AppendKey(dst []byte, tenant, key string, gen uint64) []byte {
	dst = append(dst, prefixObject, byte(len(tenant)))
	dst = append(dst, tenant...)
	dst = append(dst, key...)
	return binary.BigEndian.AppendUint64(dst, gen)
}

// AppendMetaKey appends the stored key of a meta value to dst.
func AppendMetaKey(dst []byte, name string) []byte {
	return append(append(dst, prefixMeta), name...)
}

// IsRecordKey reports whether stored is the stored key of an object rather than of a meta value.
func IsRecordKey(stored []byte) bool { return len(stored) > 0 && stored[0] == prefixObject }

// validate checks r against the limits.
func (r *Record) validate() error {
	switch {
	case len(r.Tenant) > MaxTenantBytes:
		return errors.Wrapf(ErrLimit, "tenant of %d bytes, limit %d", len(r.Tenant), MaxTenantBytes)
	case len(r.Key) > MaxKeyBytes:
		return errors.Wrapf(ErrLimit, "key of %d bytes, limit %d", len(r.Key), MaxKeyBytes)
	case len(r.Group) > MaxGroupBytes:
		return errors.Wrapf(ErrLimit, "group of %d bytes, limit %d", len(r.Group), MaxGroupBytes)
	case len(r.Target) > MaxKeyBytes:
		return errors.Wrapf(ErrLimit, "target of %d bytes, limit %d", len(r.Target), MaxKeyBytes)
	case r.Size < 0:
		return errors.Wrapf(ErrLimit, "size %d of %q is negative", r.Size, r.Key)
	}
	return nil
}

// appendValue appends the stored value of r, which lies under the given stored key, to dst.
func (r *Record) appendValue(dst, key []byte) []byte {
	start := len(dst)
	dst = append(dst, recordVersion, r.Type)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(r.Flags))
	dst = binary.LittleEndian.AppendUint64(dst, r.Digest)
	dst = binary.LittleEndian.AppendUint32(dst, r.Loc.File)
	dst = binary.LittleEndian.AppendUint32(dst, r.Loc.Off)
	dst = binary.LittleEndian.AppendUint32(dst, r.Loc.Own)
	dst = binary.AppendUvarint(dst, uint64(r.Size))
	dst = binary.AppendVarint(dst, r.SoftUntil)
	dst = binary.AppendVarint(dst, r.OwnMtime)
	dst = binary.AppendUvarint(dst, uint64(len(r.Group)))
	dst = append(dst, r.Group...)
	dst = binary.AppendUvarint(dst, uint64(len(r.Target)))
	dst = append(dst, r.Target...)
	return binary.LittleEndian.AppendUint32(dst, checksum(key, dst[start:]))
}

// Decode sets r from a stored key and value. r's strings share the memory of key and value: they are valid as long
// as those are left alone. It allocates nothing but an error. On error r holds nothing of use.
func (r *Record) Decode(key, value []byte) error {
	if len(key) < 2 || len(key) > maxKeyStored || key[0] != prefixObject || len(key) < 2+int(key[1])+genBytes ||
		len(key)-2-int(key[1])-genBytes > MaxKeyBytes {
		return errors.Wrapf(ErrCorrupt, "stored key %.64q of %d bytes", key, len(key))
	}
	if len(value) > maxValueStored {
		return errors.Wrapf(ErrCorrupt, "record of key %.64q has %d bytes", key, len(value))
	}
	body, err := verify(key, value)
	if err != nil {
		return err
	}
	if len(body) == 0 || body[0] == 0 {
		return errors.Wrapf(ErrCorrupt, "record of key %.64q has no version", key)
	}
	if body[0] > recordVersion {
		return errors.Wrapf(ErrNewerFormat, "record of key %.64q has version %d, newest known %d", key, body[0], recordVersion)
	}
	if !r.decodeBody(body) {
		return errors.Wrapf(ErrCorrupt, "record of key %.64q does not parse", key)
	}
	tenant, name := 2+int(key[1]), len(key)-genBytes
	r.Tenant, r.Key, r.Gen = borrow(key[2:tenant]), borrow(key[tenant:name]), binary.BigEndian.Uint64(key[name:])
	return nil
}

// decodeBody parses the value without its checksum. It accepts only what appendValue writes.
func (r *Record) decodeBody(p []byte) bool {
	if len(p) < recordFixed {
		return false
	}
	le := binary.LittleEndian
	r.Type, r.Flags, r.Digest = p[1], Flags(le.Uint16(p[2:])), le.Uint64(p[4:])
	r.Loc = Loc{File: le.Uint32(p[12:]), Off: le.Uint32(p[16:]), Own: le.Uint32(p[20:])}
	p = p[recordFixed:]

	var v [3]uint64
	for i := range v {
		var n int
		if v[i], n = uvarint(p); n == 0 {
			return false
		}
		p = p[n:]
	}
	group, p, ok := cutBounded(p, MaxGroupBytes)
	if !ok {
		return false
	}
	target, p, ok := cutBounded(p, MaxKeyBytes)
	if !ok || len(p) != 0 || v[0] > math.MaxInt64 {
		return false
	}
	r.Size, r.SoftUntil, r.OwnMtime = int64(v[0]), unzigzag(v[1]), unzigzag(v[2])
	r.Group, r.Target = borrow(group), borrow(target)
	return true
}

// cutBounded takes a length-prefixed string of at most limit bytes off the front of p.
func cutBounded(p []byte, limit uint64) (s, rest []byte, ok bool) {
	n, k := uvarint(p)
	if k == 0 || n > limit || n > uint64(len(p)-k) {
		return nil, nil, false
	}
	return p[k : k+int(n)], p[k+int(n):], true
}

// uvarint is binary.Uvarint that refuses (n = 0) encodings longer than needed, so that each record has one form.
func uvarint(p []byte) (v uint64, n int) {
	if len(p) > 0 && p[0] < 0x80 {
		return uint64(p[0]), 1
	}
	v, n = binary.Uvarint(p)
	if n <= 0 || n != max(1, (bits.Len64(v)+6)/7) {
		return 0, 0
	}
	return v, n
}

func unzigzag(v uint64) int64 { return int64(v>>1) ^ -int64(v&1) }

// sealMeta appends the stored value of a meta value to dst.
func sealMeta(dst, key, value []byte) []byte {
	return binary.LittleEndian.AppendUint32(append(dst, value...), checksum(key, value))
}

// OpenMeta returns the meta value in a stored value, sharing its memory, or ErrCorrupt.
func OpenMeta(key, value []byte) ([]byte, error) { return verify(key, value) }

// verify checks and cuts off the checksum.
func verify(key, value []byte) ([]byte, error) {
	n := len(value) - checksumBytes
	if n < 0 {
		return nil, errors.Wrapf(ErrCorrupt, "value of key %.64q has %d bytes", key, len(value))
	}
	if want, got := binary.LittleEndian.Uint32(value[n:]), checksum(key, value[:n]); want != got {
		return nil, errors.Wrapf(ErrCorrupt, "value of key %.64q: checksum %08x, want %08x", key, got, want)
	}
	return value[:n:n], nil
}

// borrow returns p as a string without a copy. It is right only where the contract already says that the string
// lives no longer than p does unchanged: Decode's, and through it Scan's.
func borrow(p []byte) string { return unsafe.String(unsafe.SliceData(p), len(p)) }
