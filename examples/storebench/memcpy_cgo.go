//go:build cgo

package main

/*
#include <string.h>
*/
import "C"

import "unsafe"

// libc is the name of the C library's memcpy, empty if there is none to call.
const libc = "memcpy"

// memcpy copies src to dst, which is as long.
func memcpy(dst, src []byte) {
	// Both stay alive and in place during the call; C keeps neither.
	C.memcpy(unsafe.Pointer(unsafe.SliceData(dst)), unsafe.Pointer(unsafe.SliceData(src)), C.size_t(len(src)))
}
