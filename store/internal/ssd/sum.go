package ssd

import (
	"github.com/cespare/xxhash/v2"

	"github.com/kvcache-ai/mooncake-go/store/internal/sum"
)

const chunkBytes = sum.ChunkBytes

// chunks is how many chunks size bytes have.
func chunks(size int64) int { return sum.Chunks(size) }

func hash(p []byte) uint64 { return sum.Hash(p) }

// newDigest starts a hash over several pieces.
func newDigest() *xxhash.Digest { return xxhash.New() }

// copyHash copies src to dst and returns the hash of what dst now holds.
func copyHash(dst, src []byte) uint64 { return sum.CopyHash(dst[:len(src)], src) }

// copyBytes copies a large block to staging.
func copyBytes(dst, src []byte) int {
	n := min(len(dst), len(src))
	sum.Copy(dst[:n], src[:n])
	return n
}

// tableDigest is the digest of an object whose encoded chunk table is given.
func tableDigest(encoded []byte) uint64 {
	if len(encoded) == 8 {
		return le.Uint64(encoded)
	}
	return hash(encoded)
}
