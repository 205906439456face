// Command libmooncake is libmooncake.so, the store and everything on it for programs that are not written in Go.
// include/mooncake.h is its manual; build it with make in the directory above.
//
// A call goes through two halves. The C half (guard.c and a file for each section of the header) looks whether the
// process is a fork, checks every argument and fills in struct versions: nothing that is wrong by itself reaches Go. The Go
// half (a file of the same name) finds the handle and calls store or weight. Each exported function has a barrier that
// turns a panic into a code. Handles are numbers, so C never holds a Go pointer, and one that was closed is only unknown.
// Whatever is handed out, bytes of views, paths, lists, is memory outside the Go heap.
package main

/*
#cgo CFLAGS: -I${SRCDIR}/../../include -std=gnu11 -O2 -Wall -Wextra
#include "guard.h"
*/
import "C"

func main() {}
