//go:build failpoints

package main

// #include "guard.h"
import "C"

import "sync/atomic"

var armed atomic.Bool

// failpoint panics when a test has armed it.
func failpoint() {
	if armed.Load() {
		panic("failpoint")
	}
}

// mooncake_test_panic arms the failpoint, or disarms it. Only test builds have it.
//
//export mooncake_test_panic
func mooncake_test_panic(on C.int) { armed.Store(on != 0) }
