package sum

import "unsafe"

// address is for alignment alone.
func address(p []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(p))) }
