//go:build race

package sum

import (
	"runtime"
	"unsafe"
)

// noteRead tells the race detector what a kernel, which it cannot see, reads.
func noteRead(p []byte) {
	if len(p) > 0 {
		runtime.RaceReadRange(unsafe.Pointer(unsafe.SliceData(p)), len(p))
	}
}

// noteWrite does so for what a kernel writes.
func noteWrite(p []byte) {
	if len(p) > 0 {
		runtime.RaceWriteRange(unsafe.Pointer(unsafe.SliceData(p)), len(p))
	}
}
