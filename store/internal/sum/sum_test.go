package sum

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/stretchr/testify/require"
)

// seeded returns a source of random numbers and prints its seed.
func seeded(t testing.TB) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func fill(r *rand.Rand, p []byte) {
	for len(p) >= 8 {
		binary.LittleEndian.PutUint64(p, r.Uint64())
		p = p[8:]
	}
	for i := range p {
		p[i] = byte(r.Uint32())
	}
}

func naiveTable(p []byte) []uint64 {
	var table []uint64
	for len(p) > 0 {
		n := min(ChunkBytes, len(p))
		table = append(table, xxhash.Sum64(p[:n]))
		p = p[n:]
	}
	return table
}

// guarded returns n bytes at an address off past a multiple of 64, with guard bytes around them, and a check of these.
func guarded(n, off int) (p []byte, check func(t testing.TB)) {
	const guard = 128
	all := bytes.Repeat([]byte{0xA5}, n+off+2*guard+64)
	from := guard
	for (int(address(all))+from)%64 != off%64 {
		from++
	}
	return all[from : from+n : from+n], func(t testing.TB) {
		t.Helper()
		for i, b := range all {
			if b != 0xA5 && (i < from || i >= from+n) {
				t.Fatalf("%d bytes at offset %d: wrote byte %d beside them", n, off, i-from)
			}
		}
	}
}

// checkAll compares every way to hash and to copy src with xxhash and Go's copy.
func checkAll(t testing.TB, src []byte, off int) {
	t.Helper()
	want, wantTable := xxhash.Sum64(src), naiveTable(src)
	verify := func(name string, f func(dst []byte)) {
		t.Helper()
		dst, check := guarded(len(src), off)
		f(dst)
		check(t)
		if !bytes.Equal(dst, src) {
			t.Fatalf("%s of %d bytes to offset %d copied wrong bytes", name, len(src), off)
		}
	}
	equal := func(name string, got uint64) {
		t.Helper()
		if got != want {
			t.Fatalf("%s of %d bytes = %x, want %x", name, len(src), got, want)
		}
	}
	verify("Copy", func(dst []byte) { Copy(dst, src) })
	verify("CopyHash", func(dst []byte) { equal("CopyHash", CopyHash(dst, src)) })
	verify("CopyHashChunks", func(dst []byte) { require.Equal(t, wantTable, CopyHashChunks(dst, src, nil)) })
	verify("CopyVerify", func(dst []byte) { require.Equal(t, -1, CopyVerify(dst, src, wantTable)) })
	verify("copyHashBlocksGo", func(dst []byte) {
		v, n := newLanes(), len(src)&^(tailBytes-1)
		copyHashBlocksGo(&v, dst[:n], src[:n])
		copy(dst[n:], src[n:])
		equal("copyHashBlocksGo", finish(&v, uint64(len(src)), src[n:]))
	})
	equal("Hash", Hash(src))
	equal("hash", hash(src, len(src)))
	require.Equal(t, wantTable, HashChunks(src, nil))
	require.Equal(t, -1, VerifyChunks(src, wantTable))
	if len(wantTable) == 1 {
		equal("TableDigest", TableDigest(wantTable))
	}
}

func TestShort(t *testing.T) {
	r := seeded(t)
	for n := range 1001 {
		src := make([]byte, n+8)
		fill(r, src)
		checkAll(t, src[n%8:n%8+n], r.IntN(64))
	}
}

func TestRandomLengths(t *testing.T) {
	r := seeded(t)
	buf := make([]byte, 1<<20+64)
	fill(r, buf)
	for range 100 {
		n := r.IntN(1 << (1 + r.IntN(20)))
		at := r.IntN(64)
		checkAll(t, buf[at:at+n], r.IntN(64))
	}
}

// TestThresholds takes every length around those where another kernel or loop takes over.
func TestThresholds(t *testing.T) {
	r := seeded(t)
	buf := make([]byte, 2*pieceBytes)
	fill(r, buf)
	for _, n := range []int{4096, streamCopyHashBytes, aheadHashBytes, streamCopyBytes, ChunkBytes, ChunkBytes + 4096,
		pieceBytes, pieceBytes + ChunkBytes} {
		for _, d := range []int{-65, -64, -63, -33, -1, 0, 1, 31, 32, 63, 64, 65} {
			checkAll(t, buf[:n+d], r.IntN(64))
		}
	}
}

// TestReach gives the kernels every kind of read-ahead limit.
func TestReach(t *testing.T) {
	src := make([]byte, 32<<10)
	fill(seeded(t), src)
	dst := make([]byte, len(src))
	for _, n := range []int{64, 4032, 4096, 4160, 8192, 8256, 12288} {
		for _, reach := range []int{n, n + 1, n + 63, n + 64, n + 4095, n + 4096, n + 4097, len(src)} {
			require.Equal(t, xxhash.Sum64(src[:n]), hash(src[:n], reach))
			clear(dst)
			require.Equal(t, xxhash.Sum64(src[:n]), copyHash(dst[:n], src[:n], reach))
			require.True(t, bytes.Equal(src[:n], dst[:n]))
		}
	}
}

func TestVerifyNamesTheFirstBadChunk(t *testing.T) {
	r := seeded(t)
	src := make([]byte, 11*ChunkBytes+100)
	fill(r, src)
	table := HashChunks(src, nil)
	dst := make([]byte, len(src))
	for bad := range table {
		at := min(bad*ChunkBytes+r.IntN(ChunkBytes), len(src)-1)
		src[at] ^= 1 << r.IntN(7)
		src[len(src)-1] ^= 0x80 // a second bad chunk behind it
		require.Equal(t, bad, VerifyChunks(src, table))
		require.Equal(t, bad, CopyVerify(dst, src, table))
		table = HashChunks(src, table[:0])
	}
	require.Equal(t, -1, VerifyChunks(nil, nil))
	require.Equal(t, -1, CopyVerify(nil, nil, nil))
}

func TestTableDigest(t *testing.T) {
	r := seeded(t)
	require.Equal(t, xxhash.Sum64(nil), TableDigest(nil))
	require.Equal(t, uint64(7), TableDigest([]uint64{7}))
	for n := 2; n < 40; n++ {
		table := make([]uint64, n)
		raw := make([]byte, 0, 8*n)
		for i := range table {
			table[i] = r.Uint64()
			raw = binary.LittleEndian.AppendUint64(raw, table[i])
		}
		require.Equal(t, xxhash.Sum64(raw), TableDigest(table), "%d hashes", n)
	}
}

func TestChunks(t *testing.T) {
	for size, want := range map[int64]int{0: 0, 1: 1, ChunkBytes - 1: 1, ChunkBytes: 1, ChunkBytes + 1: 2, 50 << 30: 819200} {
		require.Equal(t, want, Chunks(size), "Chunks(%d)", size)
	}
}

func TestMismatchPanics(t *testing.T) {
	require.Panics(t, func() { Copy(make([]byte, 1), nil) })
	require.Panics(t, func() { CopyHash(nil, make([]byte, 1)) })
	require.Panics(t, func() { CopyHashChunks(nil, make([]byte, 1), nil) })
	require.Panics(t, func() { CopyVerify(make([]byte, 1), make([]byte, 1), nil) })
	require.Panics(t, func() { VerifyChunks(nil, make([]uint64, 1)) })
	require.Panics(t, func() { new(Hasher).CopyTo(nil, make([]byte, 1)) })
}

func TestHasherPieces(t *testing.T) {
	r := seeded(t)
	src := make([]byte, 9*ChunkBytes+77)
	fill(r, src)
	var h Hasher
	require.Empty(t, h.Table())
	for round := range 60 {
		n := r.IntN(len(src) + 1)
		most := 1 << (1 + r.IntN(19))
		dst, check := guarded(n, r.IntN(64))
		h.Reset(h.Table())
		for at := 0; at < n; {
			k := min(r.IntN(most)+r.IntN(2), n-at)
			if round%3 == 0 || round%3 == 1 && r.IntN(2) == 0 {
				_, err := h.Write(src[at : at+k])
				require.NoError(t, err)
				copy(dst[at:], src[at:at+k])
			} else {
				h.CopyTo(dst[at:at+k], src[at:at+k])
			}
			at += k
			if r.IntN(20) == 0 {
				h.Table() // must not disturb what follows
			}
		}
		check(t)
		require.True(t, bytes.Equal(src[:n], dst), "round %d copied wrong bytes", round)
		require.Equal(t, TableDigest(naiveTable(src[:n])), TableDigest(h.Table()), "round %d", round)
		require.Len(t, h.Table(), Chunks(int64(n)))
	}
}

func TestNoAllocation(t *testing.T) {
	src, dst := make([]byte, 6*ChunkBytes+5), make([]byte, 6*ChunkBytes+5)
	table := make([]uint64, 0, 8)
	var h Hasher
	require.Zero(t, testing.AllocsPerRun(10, func() {
		Copy(dst, src)
		CopyHash(dst, src)
		table = CopyHashChunks(dst, src, table[:0])
		VerifyChunks(src, table)
		CopyVerify(dst, src, table)
		TableDigest(table)
		h.Reset(table[:0])
		_, _ = h.Write(src[:100])
		h.CopyTo(dst[100:], src[100:])
		table = h.Table()
	}))
}

func FuzzSum(f *testing.F) {
	f.Add([]byte("abc"), uint32(1), uint8(3))
	f.Add(make([]byte, 100), uint32(300000), uint8(63))
	f.Fuzz(func(t *testing.T, seed []byte, n uint32, off uint8) {
		src := make([]byte, n%(5*ChunkBytes))
		for i := 0; i < len(src) && len(seed) > 0; i += len(seed) + i/7 {
			copy(src[i:], seed)
		}
		checkAll(t, src, int(off%64))
	})
}
