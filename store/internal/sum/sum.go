package sum

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// ChunkBytes is how many bytes one hash of a table covers.
const ChunkBytes = 64 << 10

// Sizes measured on Sapphire Rapids, between what is best with both sides in the cache and with both out of it.
const (
	streamCopyBytes     = 32 << 10 // Copy bypasses the caches from here
	streamCopyHashBytes = 8 << 10  // copying with a hash does so earlier: the hash hides the drain of the stores
	aheadHashBytes      = 16 << 10 // Hash prefetches from here
)

// pieceBytes bounds one call of a kernel, which the scheduler cannot interrupt, to about 30 microseconds.
const pieceBytes = 256 << 10

// Chunks returns the number of chunks of size bytes: 0 of none.
func Chunks(size int64) int {
	if size <= 0 {
		return 0
	}
	return int((size-1)/ChunkBytes) + 1
}

// Copy copies src to dst, which is as long and does not overlap it.
func Copy(dst, src []byte) {
	mustMatch(dst, src)
	if len(src) < streamCopyBytes {
		copy(dst, src)
		return
	}
	noteRead(src)
	noteWrite(dst)
	copyStream(dst, src)
}

// Hash returns the XXH64 of p with seed 0.
func Hash(p []byte) uint64 {
	if len(p) < aheadHashBytes {
		noteRead(p)
		return xxhash.Sum64(p)
	}
	return hash(p, len(p))
}

// CopyHash copies src to dst, which is as long and does not overlap it, and returns the Hash of the bytes it wrote.
func CopyHash(dst, src []byte) uint64 {
	mustMatch(dst, src)
	return copyHash(dst, src, len(src))
}

// HashChunks appends the hashes of the chunks of src to table.
func HashChunks(src []byte, table []uint64) []uint64 {
	for len(src) >= quadBytes && haveQuad() {
		var quad [4]uint64
		hashQuad(&quad, src)
		table = append(table, quad[:]...)
		src = src[quadBytes:]
	}
	for len(src) > 0 {
		n := min(ChunkBytes, len(src))
		table = append(table, hash(src[:n], len(src)))
		src = src[n:]
	}
	return table
}

// CopyHashChunks is CopyHash with one hash for each chunk of src, appended to table.
func CopyHashChunks(dst, src []byte, table []uint64) []uint64 {
	mustMatch(dst, src)
	for len(src) > 0 {
		n := min(ChunkBytes, len(src))
		table = append(table, copyHash(dst[:n], src[:n], len(src)))
		dst, src = dst[n:], src[n:]
	}
	return table
}

// VerifyChunks returns the index of the first chunk of src whose hash is not the table's, or -1. The table has
// Chunks(len(src)) hashes; a part of an object is verified by whole chunks.
func VerifyChunks(src []byte, table []uint64) int {
	mustCover(src, table)
	at := 0
	for ; len(src) >= quadBytes && haveQuad(); at += 4 {
		var quad [4]uint64
		hashQuad(&quad, src)
		for i, h := range quad {
			if h != table[at+i] {
				return at + i
			}
		}
		src = src[quadBytes:]
	}
	for ; len(src) > 0; at++ {
		n := min(ChunkBytes, len(src))
		if hash(src[:n], len(src)) != table[at] {
			return at
		}
		src = src[n:]
	}
	return -1
}

// CopyVerify copies src to dst, which is as long and does not overlap it, and returns the index of the first chunk whose
// written bytes do not have the table's hash, or -1. It stops there: dst then holds the chunks up to and with the bad one.
func CopyVerify(dst, src []byte, table []uint64) int {
	mustMatch(dst, src)
	mustCover(src, table)
	for at := 0; len(src) > 0; at++ {
		n := min(ChunkBytes, len(src))
		if copyHash(dst[:n], src[:n], len(src)) != table[at] {
			return at
		}
		dst, src = dst[n:], src[n:]
	}
	return -1
}

// TableDigest returns the digest of an object whose chunks have the hashes in table.
func TableDigest(table []uint64) uint64 {
	if len(table) == 1 {
		return table[0]
	}
	v := newLanes()
	var block [tailBytes]byte
	total := uint64(len(table)) * 8
	for ; len(table) >= tailBytes/8; table = table[tailBytes/8:] {
		putWords(&block, table[:tailBytes/8])
		stripesGo(&v, block[:])
	}
	putWords(&block, table)
	return finish(&v, total, block[:len(table)*8])
}

func putWords(block *[tailBytes]byte, words []uint64) {
	for i, w := range words {
		binary.LittleEndian.PutUint64(block[8*i:], w)
	}
}

// hash returns the Hash of p. The caller goes on to read up to reach bytes from the start of p, at least p itself.
func hash(p []byte, reach int) uint64 {
	noteRead(p)
	v := newLanes()
	total := uint64(len(p))
	for len(p) >= tailBytes {
		n := min(len(p), pieceBytes) &^ (tailBytes - 1)
		hashBlocks(&v, p[:n], reach)
		p, reach = p[n:], reach-n
	}
	return finish(&v, total, p)
}

// copyHash is CopyHash; reach is as for hash.
func copyHash(dst, src []byte, reach int) uint64 {
	noteRead(src)
	noteWrite(dst)
	v := newLanes()
	total := uint64(len(src))
	for len(src) >= tailBytes {
		n := min(len(src), pieceBytes) &^ (tailBytes - 1)
		copyHashBlocks(&v, dst[:n], src[:n], reach)
		dst, src, reach = dst[n:], src[n:], reach-n
	}
	var tail [tailBytes]byte // hashed and stored from here: src may change under us
	n := copy(tail[:], src)
	copy(dst, tail[:n])
	return finish(&v, total, tail[:n])
}

func mustMatch(dst, src []byte) {
	if len(dst) != len(src) {
		panic("sum: BUG: source and target differ in length")
	}
}

func mustCover(src []byte, table []uint64) {
	if Chunks(int64(len(src))) != len(table) {
		panic("sum: BUG: the table does not have one hash for each chunk")
	}
}
