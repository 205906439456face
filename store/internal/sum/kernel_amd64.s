#include "textflag.h"

// How far ahead of the reads the source is prefetched: one page, which hides the memory's latency at this speed. The
// hardware's own prefetcher starts anew on every page.
#define AHEAD 4096

// ROUND is a round of XXH64 with a word that is lost. R12 and R13 hold the second and first prime.
#define ROUND(lane, word) \
	IMULQ R12, word; \
	ADDQ  word, lane; \
	ROLQ  $31, lane; \
	IMULQ R13, lane

// READ takes one word, COPY stores it too, from the register it is then hashed from.
#define READ(at, lane, word) \
	MOVQ at(SI), word; \
	ROUND(lane, word)

#define COPY(store, at, lane, word) \
	MOVQ  at(SI), word; \
	store word, at(DI); \
	ROUND(lane, word)

#define READ64 \
	READ(0, R8, BX); \
	READ(8, R9, R15); \
	READ(16, R10, BX); \
	READ(24, R11, R15); \
	READ(32, R8, BX); \
	READ(40, R9, R15); \
	READ(48, R10, BX); \
	READ(56, R11, R15); \
	ADDQ $64, SI

#define COPY64(store) \
	COPY(store, 0, R8, BX); \
	COPY(store, 8, R9, R15); \
	COPY(store, 16, R10, BX); \
	COPY(store, 24, R11, R15); \
	COPY(store, 32, R8, BX); \
	COPY(store, 40, R9, R15); \
	COPY(store, 48, R10, BX); \
	COPY(store, 56, R11, R15); \
	ADDQ $64, SI; \
	ADDQ $64, DI

#define LOADLANES \
	MOVQ v+0(FP), AX; \
	MOVQ 0(AX), R8; \
	MOVQ 8(AX), R9; \
	MOVQ 16(AX), R10; \
	MOVQ 24(AX), R11; \
	MOVQ $0x9E3779B185EBCA87, R13; \
	MOVQ $0xC2B2AE3D27D4EB4F, R12

#define SAVELANES \
	MOVQ R8, 0(AX); \
	MOVQ R9, 8(AX); \
	MOVQ R10, 16(AX); \
	MOVQ R11, 24(AX)

// PLAN prefetches the first min(AHEAD, reach) bytes and splits the CX bytes to take: CX become those taken with a prefetch
// AHEAD of them, min(CX, reach-AHEAD) or none, and DX the rest, both multiples of 64. DX is reach on entry.
#define PLAN(fetch) \
	MOVQ    $AHEAD, R14; \
	CMPQ    DX, R14; \
	CMOVQCS DX, R14; \
	ADDQ    SI, R14; \
	MOVQ    SI, BX; \
fetch: \
	PREFETCHT0 (BX); \
	ADDQ    $64, BX; \
	CMPQ    BX, R14; \
	JCS     fetch; \
	XORL    BX, BX; \
	SUBQ    $AHEAD, DX; \
	CMOVQCS BX, DX; \
	ANDQ    $~63, DX; \
	CMPQ    DX, CX; \
	CMOVQHI CX, DX; \
	SUBQ    DX, CX; \
	XCHGQ   CX, DX

// func hashAhead(v *lanes, src *byte, n, reach uintptr)
TEXT ·hashAhead(SB), NOSPLIT, $0-32
	LOADLANES
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ reach+24(FP), DX
	PLAN(fetch)
	TESTQ CX, CX
	JZ    near

far:
	PREFETCHT0 AHEAD(SI)
	READ64
	SUBQ $64, CX
	JNZ  far

near:
	TESTQ DX, DX
	JZ    done

last:
	READ64
	SUBQ $64, DX
	JNZ  last

done:
	SAVELANES
	RET

// func copyHashPlain(v *lanes, dst, src *byte, n uintptr)
TEXT ·copyHashPlain(SB), NOSPLIT, $0-32
	LOADLANES
	MOVQ dst+8(FP), DI
	MOVQ src+16(FP), SI
	MOVQ n+24(FP), CX

loop:
	COPY64(MOVQ)
	SUBQ $64, CX
	JNZ  loop
	SAVELANES
	RET

// func copyHashStream(v *lanes, dst, src *byte, n, reach uintptr)
TEXT ·copyHashStream(SB), NOSPLIT, $0-40
	LOADLANES
	MOVQ dst+8(FP), DI
	MOVQ src+16(FP), SI
	MOVQ n+24(FP), CX
	MOVQ reach+32(FP), DX
	PLAN(fetch)
	TESTQ CX, CX
	JZ    near

far:
	PREFETCHT0 AHEAD(SI)
	COPY64(MOVNTIQ)
	SUBQ $64, CX
	JNZ  far

near:
	TESTQ DX, DX
	JZ    done

last:
	COPY64(MOVNTIQ)
	SUBQ $64, DX
	JNZ  last

done:
	SFENCE
	SAVELANES
	RET

#define MOVE64 \
	MOVOU  0(SI), X0; \
	MOVOU  16(SI), X1; \
	MOVOU  32(SI), X2; \
	MOVOU  48(SI), X3; \
	MOVNTO X0, 0(DI); \
	MOVNTO X1, 16(DI); \
	MOVNTO X2, 32(DI); \
	MOVNTO X3, 48(DI); \
	ADDQ   $64, SI; \
	ADDQ   $64, DI

// func copyStreamSSE2(dst, src *byte, n, reach uintptr)
TEXT ·copyStreamSSE2(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ reach+24(FP), DX
	PLAN(fetch)
	TESTQ CX, CX
	JZ    near

far:
	PREFETCHT0 AHEAD(SI)
	MOVE64
	SUBQ $64, CX
	JNZ  far

near:
	TESTQ DX, DX
	JZ    done

last:
	MOVE64
	SUBQ $64, DX
	JNZ  last

done:
	SFENCE
	RET

// QUAD is one round of the four lanes of a chunk. Y30 and Y31 hold the first and second prime in every lane.
#define QUAD(at, base, lanes, word) \
	VPMULLQ at(base), Y31, word; \
	VPADDQ  word, lanes, lanes; \
	VPROLQ  $31, lanes, lanes; \
	VPMULLQ Y30, lanes, lanes

// func hashQuadAVX512(v *[4]lanes, src *byte)
TEXT ·hashQuadAVX512(SB), NOSPLIT, $0-16
	MOVQ v+0(FP), AX
	MOVQ src+8(FP), SI
	LEAQ 0x10000(SI), DI
	LEAQ 0x20000(SI), R8
	LEAQ 0x30000(SI), R9
	MOVQ $0x9E3779B185EBCA87, R13
	MOVQ $0xC2B2AE3D27D4EB4F, R12
	VPBROADCASTQ R13, Y30
	VPBROADCASTQ R12, Y31
	VMOVDQU 0(AX), Y0
	VMOVDQU 32(AX), Y1
	VMOVDQU 64(AX), Y2
	VMOVDQU 96(AX), Y3
	MOVQ $0x10000, CX

loop:
	PREFETCHT0 2048(SI)
	PREFETCHT0 2048(DI)
	PREFETCHT0 2048(R8)
	PREFETCHT0 2048(R9)
	QUAD(0, SI, Y0, Y4)
	QUAD(0, DI, Y1, Y5)
	QUAD(0, R8, Y2, Y6)
	QUAD(0, R9, Y3, Y7)
	QUAD(32, SI, Y0, Y8)
	QUAD(32, DI, Y1, Y9)
	QUAD(32, R8, Y2, Y10)
	QUAD(32, R9, Y3, Y11)
	ADDQ $64, SI
	ADDQ $64, DI
	ADDQ $64, R8
	ADDQ $64, R9
	SUBQ $64, CX
	JNZ  loop
	VMOVDQU Y0, 0(AX)
	VMOVDQU Y1, 32(AX)
	VMOVDQU Y2, 64(AX)
	VMOVDQU Y3, 96(AX)
	VZEROUPPER
	RET
