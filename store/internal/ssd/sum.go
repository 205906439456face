package ssd

import "github.com/cespare/xxhash/v2"

const chunkBytes = 64 << 10

// chunks is how many chunks size bytes have.
func chunks(size int64) int { return int((size + chunkBytes - 1) / chunkBytes) }

func hash(p []byte) uint64 { return xxhash.Sum64(p) }

// newDigest starts a hash over several pieces.
func newDigest() *xxhash.Digest { return xxhash.New() }

// copyHash copies src to dst and returns the hash of what dst now holds.
func copyHash(dst, src []byte) uint64 {
	copy(dst, src)
	return xxhash.Sum64(dst[:len(src)])
}

// copyBytes copies a large block to staging.
func copyBytes(dst, src []byte) int { return copy(dst, src) }

// tableDigest is the digest of an object whose encoded chunk table is given.
func tableDigest(encoded []byte) uint64 {
	if len(encoded) == 8 {
		return le.Uint64(encoded)
	}
	return xxhash.Sum64(encoded)
}
