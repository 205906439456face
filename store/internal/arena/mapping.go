package arena

import (
	"os"
	"unsafe"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"
)

// StepBytes is the unit in which memory is taken from the kernel and given back: one huge page.
const StepBytes = 2 << 20

// checkBytes is how much is taken between two looks at the limits.
const checkBytes = 64 << 20

// mapFile maps size bytes of fd shared. A mapping of at least StepBytes starts at a multiple of it, without which the
// kernel gives no huge pages. The memory is left out of forked children, which would keep it after it is reused here,
// and out of core dumps.
func mapFile(fd int, size int64, prot int) ([]byte, error) {
	length := roundUp(size, int64(os.Getpagesize()))
	slack := int64(0)
	if size >= StepBytes {
		slack = StepBytes
	}
	const anonymous = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE
	raw, err := unix.MmapPtr(-1, 0, nil, uintptr(length+slack), unix.PROT_NONE, anonymous)
	if err != nil {
		return nil, errors.Wrapf(err, "reserve %d bytes of address space", size)
	}
	start := raw
	if slack > 0 {
		head := int64(-uintptr(raw) & (StepBytes - 1))
		start = unsafe.Add(raw, head) // inside the range just reserved, which is longer by a whole step
		_ = unmap(raw, uintptr(head))
		_ = unmap(unsafe.Add(start, length), uintptr(slack-head))
	}
	if _, err := unix.MmapPtr(fd, 0, start, uintptr(size), prot, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
		_ = unmap(start, uintptr(size))
		return nil, errors.Wrapf(err, "map %d bytes", size)
	}
	mem := unsafe.Slice((*byte)(start), size) // the mapping is ours until unmapFile
	if err := keepPrivate(mem); err != nil {
		_ = unmapFile(mem)
		return nil, err
	}
	return mem, nil
}

// mapOver replaces what is mapped at mem by fd from off on.
func mapOver(mem []byte, fd int, off int64) error {
	if _, err := unix.MmapPtr(fd, off, unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
		return errors.Wrapf(err, "map %d bytes", len(mem))
	}
	adviseHuge(mem)
	return keepPrivate(mem)
}

// fence replaces what is mapped at mem by zeros that take no memory. Writing to them is a fault.
func fence(mem []byte) error {
	if len(mem) == 0 {
		return nil
	}
	_, err := unix.MmapPtr(-1, 0, unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)), unix.PROT_READ,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED)
	return errors.Wrapf(err, "fence %d bytes", len(mem))
}

// keepPrivate leaves a mapping out of forked children and of core dumps.
func keepPrivate(mem []byte) error {
	for _, advice := range []int{unix.MADV_DONTFORK, unix.MADV_DONTDUMP} {
		if err := unix.Madvise(mem, advice); err != nil {
			return errors.Wrapf(err, "madvise %d", advice)
		}
	}
	return nil
}

func unmapFile(mem []byte) error {
	return errors.Wrap(unmap(unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem))), "unmap")
}

func unmap(p unsafe.Pointer, n uintptr) error {
	if n == 0 {
		return nil
	}
	return unix.MunmapPtr(p, n)
}

// adviseHuge asks for huge pages. A kernel that has none for shared memory refuses, which is no failure.
func adviseHuge(mem []byte) {
	if len(mem) > 0 {
		_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	}
}

// populate takes the pages of mem from the kernel, mem being the mapping of fd at off. Where huge pages are to be had,
// they come by a fault in the advised mapping only: fallocate would take small ones. Where not, fallocate before the fault
// is a little cheaper. A file system that is full is ENOSPC from one and EFAULT from the other. Steps are small because
// the kernel holds the lock of the whole address space during a fault, and starts a fallocate over at every signal.
func populate(fd int, mem []byte, off int64, huge bool) error {
	for done := 0; done < len(mem); done += StepBytes {
		step := mem[done:min(done+StepBytes, len(mem))]
		if err := populateStep(fd, step, off+int64(done), huge); err != nil {
			return errors.Wrapf(err, "populate %d bytes at %d", len(step), off+int64(done))
		}
	}
	return nil
}

func populateStep(fd int, step []byte, off int64, huge bool) error {
	allocate := func() error { return unix.Fallocate(fd, 0, off, int64(len(step))) }
	if !huge {
		if err := retry(allocate); err != nil {
			return err
		}
	}
	err := retry(func() error { return unix.Madvise(step, unix.MADV_POPULATE_WRITE) })
	switch {
	case errors.Is(err, unix.EINVAL): // before Linux 5.14: the space is taken here, each page mapped when first used
		return retry(allocate)
	case errors.Is(err, unix.EFAULT):
		return errors.Wrap(unix.ENOSPC, "the file system is full")
	}
	return err
}

// setSize sets the size of a file. Beyond RLIMIT_FSIZE the kernel would also send SIGXFSZ, which ends a C process.
func setSize(fd int, n int64) error {
	var r unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_FSIZE, &r)
	if err == nil && uint64(n) > r.Cur {
		err = unix.EFBIG
	} else {
		err = unix.Ftruncate(fd, n)
	}
	return limitError(errors.Wrapf(err, "set size %d", n), "make a file")
}

// punch gives the pages of [off, off+n) back to the kernel.
func punch(fd int, off, n int64) error {
	err := retry(func() error { return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n) })
	return errors.Wrapf(err, "punch hole of %d bytes at %d", n, off)
}

// retry repeats f while a signal interrupts it: the Go runtime sends many.
func retry(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
