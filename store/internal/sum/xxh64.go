package sum

import (
	"encoding/binary"
	"math/bits"
)

// The constants and steps of XXH64, https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md.
const (
	prime1 uint64 = 11400714785074694791
	prime2 uint64 = 14029467366897019727
	prime3 uint64 = 1609587929392839161
	prime4 uint64 = 9650029242287828579
	prime5 uint64 = 2870177450012600261
)

const (
	stripeBytes = 32              // what one step of the four lanes takes
	tailBytes   = 2 * stripeBytes // what one step of a kernel takes; fewer are left over
)

// lanes are the four accumulators of XXH64 over whole stripes.
type lanes [4]uint64

func newLanes() lanes {
	p1 := prime1 // a variable: the constant sums would overflow
	return lanes{p1 + prime2, prime2, 0, -p1}
}

func round(acc, word uint64) uint64 {
	return bits.RotateLeft64(acc+word*prime2, 31) * prime1
}

func mergeRound(h, lane uint64) uint64 {
	return (h^round(0, lane))*prime1 + prime4
}

// stripesGo takes the whole stripes of p into v.
func stripesGo(v *lanes, p []byte) {
	v0, v1, v2, v3 := v[0], v[1], v[2], v[3]
	for ; len(p) >= stripeBytes; p = p[stripeBytes:] {
		v0 = round(v0, binary.LittleEndian.Uint64(p[0:8:len(p)]))
		v1 = round(v1, binary.LittleEndian.Uint64(p[8:16:len(p)]))
		v2 = round(v2, binary.LittleEndian.Uint64(p[16:24:len(p)]))
		v3 = round(v3, binary.LittleEndian.Uint64(p[24:32:len(p)]))
	}
	*v = lanes{v0, v1, v2, v3}
}

// finish returns the hash of total bytes. The last of them are tail, fewer than tailBytes; those before are in v already.
func finish(v *lanes, total uint64, tail []byte) uint64 {
	if len(tail) >= stripeBytes {
		stripesGo(v, tail)
		tail = tail[stripeBytes:]
	}
	h := prime5
	if total >= stripeBytes {
		h = bits.RotateLeft64(v[0], 1) + bits.RotateLeft64(v[1], 7) +
			bits.RotateLeft64(v[2], 12) + bits.RotateLeft64(v[3], 18)
		for _, lane := range v {
			h = mergeRound(h, lane)
		}
	}
	h += total
	for ; len(tail) >= 8; tail = tail[8:] {
		h ^= round(0, binary.LittleEndian.Uint64(tail))
		h = bits.RotateLeft64(h, 27)*prime1 + prime4
	}
	if len(tail) >= 4 {
		h ^= uint64(binary.LittleEndian.Uint32(tail)) * prime1
		h = bits.RotateLeft64(h, 23)*prime2 + prime3
		tail = tail[4:]
	}
	for _, b := range tail {
		h ^= uint64(b) * prime5
		h = bits.RotateLeft64(h, 11) * prime1
	}
	h = (h ^ h>>33) * prime2
	h = (h ^ h>>29) * prime3
	return h ^ h>>32
}

// copyHashBlocksGo copies src to dst and takes it into v; it holds whole stripes. The bytes pass through a buffer that no
// one else sees, so that those hashed are those written; it is small enough to stay in the first-level cache.
func copyHashBlocksGo(v *lanes, dst, src []byte) {
	var buf [2048]byte
	for len(src) > 0 {
		n := copy(buf[:], src)
		stripesGo(v, buf[:n])
		copy(dst, buf[:n])
		dst, src = dst[n:], src[n:]
	}
}
