package arena

import "unsafe"

// At is the T that lies at byte off of mem. T must hold no Go pointers, since mem is not scanned by the collector and
// may be shared with other processes; off must be aligned for T. The result is valid as long as mem's memory is.
func At[T any](mem []byte, off int64) *T {
	var t T
	_ = mem[off : off+int64(unsafe.Sizeof(t))] // bounds
	// Right because the range was just checked, and mem is memory outside the Go heap (or one pointer-free
	// allocation), so that no pointer in T can be missed by the collector.
	return (*T)(unsafe.Pointer(&mem[off]))
}
