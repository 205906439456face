package sum

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// quadBytes is what hashQuad takes.
const quadBytes = 4 * ChunkBytes

// haveQuad says whether this CPU runs hashQuad.
func haveQuad() bool { return cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512VL }

// hashQuad sets out to the hashes of the first four chunks of src. Other CPUs multiply 64-bit words one by one.
func hashQuad(out *[4]uint64, src []byte) {
	src = src[:quadBytes:quadBytes]
	noteRead(src)
	one := newLanes()
	v := [4]lanes{one, one, one, one}
	hashQuadAVX512(&v, &src[0])
	for i := range v {
		out[i] = finish(&v[i], ChunkBytes, nil)
	}
}

// copyStream copies src to dst past the caches. Both have tailBytes at least.
func copyStream(dst, src []byte) {
	head := int(-addr(dst) & (tailBytes - 1)) // up to the first whole line of dst
	copy(dst[:head], src[:head])
	dst, src = dst[head:], src[head:]
	for len(src) >= tailBytes {
		n := min(len(src), pieceBytes) &^ (tailBytes - 1)
		copyStreamSSE2(&dst[0], &src[0], uintptr(n), uintptr(len(src)))
		dst, src = dst[n:], src[n:]
	}
	copy(dst, src)
}

// hashBlocks takes p into v. Its length is a positive multiple of tailBytes, and reach is as for hash.
func hashBlocks(v *lanes, p []byte, reach int) {
	hashAhead(v, &p[0], uintptr(len(p)), uintptr(reach))
}

// copyHashBlocks copies src to dst and takes it into v. Its length is a positive multiple of tailBytes, and reach is as for
// hash.
func copyHashBlocks(v *lanes, dst, src []byte, reach int) {
	if len(src) < streamCopyHashBytes {
		copyHashPlain(v, &dst[0], &src[0], uintptr(len(src)))
		return
	}
	copyHashStream(v, &dst[0], &src[0], uintptr(len(src)), uintptr(reach))
}

// The kernels take n bytes, a positive multiple of tailBytes, at any alignment unless they say otherwise. They prefetch the
// source, but nothing at or behind src+reach; reach is n at least. They cannot be preempted.

// hashAhead takes the bytes at src into v.
//
//go:noescape
func hashAhead(v *lanes, src *byte, n, reach uintptr)

// copyHashPlain copies the bytes at src to dst through the caches, without prefetching, and takes them into v.
//
//go:noescape
func copyHashPlain(v *lanes, dst, src *byte, n uintptr)

// copyHashStream copies the bytes at src to dst past the caches and takes them into v. It ends with a store fence, for the
// goroutine may go on on another CPU, where a fence would not order these stores.
//
//go:noescape
func copyHashStream(v *lanes, dst, src *byte, n, reach uintptr)

// copyStreamSSE2 copies the bytes at src to dst, which is aligned to tailBytes, past the caches. It ends with a store fence.
//
//go:noescape
func copyStreamSSE2(dst, src *byte, n, reach uintptr)

// hashQuadAVX512 takes the four chunks that begin at src into v. It needs AVX-512 DQ and VL. It prefetches 2 KiB more than it
// takes: who verifies much goes on there, and a prefetch does not fault.
//
//go:noescape
func hashQuadAVX512(v *[4]lanes, src *byte)

// addr is for alignment alone; nothing is made of it.
func addr(p []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(p))) }
