package arena

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"
)

// A process may have only so many mappings (vm.max_map_count) and descriptors (RLIMIT_NOFILE). One that reaches either
// limit can't start a thread or open a file any more, whoever used them up. So a FileSet keeps a bounded number of files
// mapped, and all mappings of this package together stay below a share of the limit. A file is mapped when it is pinned,
// and stays mapped afterwards until another one needs the slot.

const (
	// Of max_map_count, a quarter: half of that for files of objects, which may need two mappings each, half for
	// private mappings.
	mappingShare = 8
	// Of RLIMIT_NOFILE, a quarter for memfds.
	descriptorShare = 4

	// unmapped is the count of pins of a File without a mapping.
	unmapped = -1
)

// processMappings counts the mappings of this process by kind, over all stores.
var processMappings struct{ files, private atomic.Int64 }

// maxMappings is how many mappings of one kind this process may have.
func (l MemLimits) maxMappings() int64 {
	if l.Mappings > 0 {
		return l.Mappings
	}
	return machineMappings()
}

var machineMappings = sync.OnceValue(func() int64 {
	n := int64(65530) // the kernel's default
	if p, err := os.ReadFile("/proc/sys/vm/max_map_count"); err == nil {
		if v, err := strconv.ParseInt(strings.TrimSpace(string(p)), 10, 64); err == nil {
			n = v
		}
	}
	return max(n/mappingShare, 16)
})

// maxDescriptors is how many memfds of objects one set may have.
func (l MemLimits) maxDescriptors() int64 {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 1024 / descriptorShare
	}
	return int64(max(min(r.Cur, 1<<20)/descriptorShare, 8))
}

// fileCache is the files of a set that are mapped. Pin and Unpin of a mapped file take no lock.
type fileCache struct {
	limits MemLimits

	mu struct {
		sync.Mutex
		ring   []*File // the mapped ones
		hand   int     // where the search for an idle one goes on
		booked int64   // slots of files that are being mapped
	}
}

// Mapped returns how many files of the set are mapped.
func (f *FileSet) Mapped() int {
	f.cache.mu.Lock()
	defer f.cache.mu.Unlock()
	return len(f.cache.mu.ring)
}

// book takes a slot for one more mapping, if need be the slot of an idle file. The error wraps ErrTooManyFiles.
func (c *fileCache) book() error {
	for {
		idle, ok := c.tryBook()
		if ok {
			return unmapIdle(idle)
		}
		if idle == nil {
			return errors.Wrapf(ErrTooManyFiles, "%d files of objects are mapped and in use, an eighth of vm.max_map_count", c.limits.maxMappings())
		}
		if err := unmapIdle(idle); err != nil {
			return err
		}
	}
}

func unmapIdle(mem []byte) error {
	if mem == nil {
		return nil
	}
	return unmapFile(mem)
}

// tryBook returns the mapping of an idle file for the caller to unmap where there is no slot left otherwise.
func (c *fileCache) tryBook() (idle []byte, ok bool) {
	limit := c.limits.maxMappings()
	c.mu.Lock()
	defer c.mu.Unlock()
	own := int64(len(c.mu.ring)) + c.mu.booked
	if own < limit && (c.limits.Mappings > 0 || processMappings.files.Load() < limit) {
		c.mu.booked++
		processMappings.files.Add(1)
		return nil, true
	}
	if idle = c.takeIdleLocked(); idle != nil {
		c.mu.booked++
		processMappings.files.Add(1)
		return idle, true
	}
	return nil, false
}

// takeIdleLocked removes the mapping of a file that nobody has pinned; one that was used since the hand last passed it
// gets a second chance.
func (c *fileCache) takeIdleLocked() []byte {
	for range 2 * len(c.mu.ring) {
		c.mu.hand %= len(c.mu.ring)
		f := c.mu.ring[c.mu.hand]
		if f.used.Swap(false) || !f.pins.CompareAndSwap(0, unmapped) {
			c.mu.hand++
			continue
		}
		return c.dropLocked(f)
	}
	return nil
}

// dropLocked takes a file out of the ring and returns its mapping.
func (c *fileCache) dropLocked(f *File) []byte {
	last := len(c.mu.ring) - 1
	c.mu.ring[f.slot] = c.mu.ring[last]
	c.mu.ring[f.slot].slot = f.slot
	c.mu.ring[last] = nil
	c.mu.ring = c.mu.ring[:last]
	mem := f.mem
	f.mem = nil
	processMappings.files.Add(-1)
	return mem
}

// mapped ends a booking: with mem as the mapping of f, pinned once, or without one.
func (c *fileCache) mapped(f *File, mem []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.booked--
	if mem == nil {
		processMappings.files.Add(-1)
		return
	}
	f.mem, f.slot = mem, len(c.mu.ring)
	c.mu.ring = append(c.mu.ring, f)
	f.pins.Store(1)
}

// drop removes the mapping of f whoever has it pinned, and returns it.
func (c *fileCache) drop(f *File) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.pins.Swap(unmapped) == unmapped {
		return nil
	}
	return c.dropLocked(f)
}

// Pin maps the file, unless it is mapped, and keeps it mapped until Unpin. The error wraps ErrTooManyFiles if too many
// other files are pinned, and fs.ErrNotExist if the file is gone.
func (f *File) Pin() ([]byte, error) {
	for n := f.pins.Load(); n != unmapped; n = f.pins.Load() {
		if f.pins.CompareAndSwap(n, n+1) {
			if !f.used.Load() {
				f.used.Store(true)
			}
			return f.mem, nil
		}
	}
	return f.pinSlow()
}

// Unpin ends one Pin. It may follow Close and Remove, which unmap a file that is pinned.
func (f *File) Unpin() {
	for {
		n := f.pins.Load()
		if n == unmapped || f.pins.CompareAndSwap(n, n-1) {
			return
		}
	}
}

func (f *File) pinSlow() ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, os.ErrClosed
	}
	for n := f.pins.Load(); n != unmapped; n = f.pins.Load() { // somebody else was faster
		if f.pins.CompareAndSwap(n, n+1) {
			return f.mem, nil
		}
	}
	if f.size == 0 {
		return nil, nil
	}
	if err := f.cache.book(); err != nil {
		return nil, errors.Wrapf(err, "map file %d", f.id)
	}
	mem, err := f.reopen()
	f.cache.mapped(f, mem)
	return mem, errors.Wrapf(limitError(err, "map memory"), "file %d", f.id)
}

// reopen maps the file again, if it is still the one that it was.
func (f *File) reopen() ([]byte, error) {
	if f.path == "" {
		return f.mapOf(f.fd)
	}
	mode := unix.O_RDWR
	if f.sealed {
		mode = unix.O_RDONLY
	}
	fd, st, err := openRegular(f.at.fd, fileName(f.id), mode)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }() // the mapping needs none
	if (identity{st.Dev, st.Ino}) != f.file || st.Size != f.size {
		return nil, errors.Wrapf(ErrCorrupt, "%s was replaced", f.path)
	}
	return f.mapOf(fd)
}

func (f *File) mapOf(fd int) ([]byte, error) {
	prot := unix.PROT_READ | unix.PROT_WRITE
	if f.sealed {
		prot = unix.PROT_READ
	}
	return mapFile(fd, f.size, prot)
}

// limitError makes an error of the system that a limit of this process caused an ErrLimit that names the limit.
func limitError(err error, what string) error {
	limit := ""
	switch {
	case err == nil || errors.Is(err, ErrLimit):
		return err
	case errors.Is(err, syscall.EMFILE):
		limit = rlimitText(unix.RLIMIT_NOFILE, "RLIMIT_NOFILE (ulimit -n)", "")
	case errors.Is(err, syscall.ENFILE):
		limit = "fs.file-max"
	case errors.Is(err, syscall.EFBIG):
		limit = rlimitText(unix.RLIMIT_FSIZE, "RLIMIT_FSIZE (ulimit -f)", " bytes")
	case errors.Is(err, syscall.ENOMEM):
		limit = rlimitText(unix.RLIMIT_AS, "RLIMIT_AS (ulimit -v)", " bytes") + " or vm.max_map_count"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		limit = "the size of the file system"
	default:
		return err
	}
	return &limitReached{what, limit, err}
}

// limitReached is an error of the system that names the limit behind it.
type limitReached struct {
	what, limit string
	cause       error
}

func (e *limitReached) Error() string {
	return fmt.Sprintf("%s: %v: %v; the limit is %s", e.what, ErrLimit, e.cause, e.limit)
}

func (e *limitReached) Unwrap() []error { return []error{ErrLimit, e.cause} }

func rlimitText(which int, name, unit string) string {
	var r unix.Rlimit
	if err := unix.Getrlimit(which, &r); err != nil || r.Cur == unix.RLIM_INFINITY {
		return name
	}
	return name + " = " + strconv.FormatUint(r.Cur, 10) + unit
}
