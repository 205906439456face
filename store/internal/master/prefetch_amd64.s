#include "textflag.h"

// func prefetch(at *uintptr, n int)
TEXT ·prefetch(SB), NOSPLIT, $0-16
	MOVQ at+0(FP), SI
	MOVQ n+8(FP), CX
	JMP  check

next:
	MOVQ       (SI), AX
	PREFETCHT0 (AX)
	ADDQ       $8, SI
	DECQ       CX

check:
	TESTQ CX, CX
	JNZ   next
	RET
