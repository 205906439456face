package arena

import (
	"os"
	"unsafe"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"
)

// MapPrivate maps size bytes of zeros, outside the Go heap and of this process alone: like shared memory they are left
// out of forked children and core dumps. The error wraps ErrLimit if the machine has not got them. UnmapPrivate gives
// them back.
func MapPrivate(size int64, limits MemLimits) ([]byte, error) {
	length := roundUp(size, int64(os.Getpagesize()))
	if err := limits.Check(length); err != nil {
		return nil, err
	}
	if n := processMappings.private.Add(1); n > limits.maxMappings() {
		processMappings.private.Add(-1)
		return nil, errors.Wrapf(ErrLimit, "map %d bytes: %d copies are mapped, an eighth of vm.max_map_count", size, n-1)
	}
	raw, err := unix.MmapPtr(-1, 0, nil, uintptr(length), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		processMappings.private.Add(-1)
		return nil, errors.Wrapf(limitError(err, "map memory"), "%d bytes", size)
	}
	mem := unsafe.Slice((*byte)(raw), size) // the mapping is ours until UnmapPrivate
	if err := keepPrivate(mem); err != nil {
		_ = UnmapPrivate(mem)
		return nil, err
	}
	return mem, nil
}

// UnmapPrivate gives back what MapPrivate returned, the whole slice.
func UnmapPrivate(mem []byte) error {
	processMappings.private.Add(-1)
	return unmapFile(mem)
}
