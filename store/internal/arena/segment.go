package arena

import (
	"io/fs"
	"iter"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"
)

// Region is one of the two regions of a Segment.
type Region uint8

// The regions: metadata that must survive with the data, and the data.
const (
	MetaRegion Region = iota
	DataRegion
)

func (r Region) String() string { return [...]string{"meta", "data"}[r] }

// SegmentOptions describes a segment. For AttachSegment the other sizes are those of the file: what is given here is not
// used.
type SegmentOptions struct {
	// Path of the file, on tmpfs: on a disk an I/O error would kill the process. Default: a memfd, which dies with the process.
	Path string
	// DataBytes and MetaBytes are how far the regions can grow. Both are rounded up to StepBytes and cost address space
	// and file size only, until they are reserved. DataBytes must be positive. AttachSegment extends a data region that is
	// smaller than DataBytes.
	DataBytes, MetaBytes int64
	// MaxDataBytes is how far AttachSegment can extend the data region. Default: DataBytes.
	MaxDataBytes int64
	// SlabBytes is recorded for the allocator of the data region. Default: SlabBytes(DataBytes).
	SlabBytes int64
	// StoreID says whose segment it is: another store does not attach to it.
	StoreID [16]byte
	// BootID tells boots of the machine apart. Default: the kernel's.
	BootID string
	// Limits are asked before memory is taken.
	Limits MemLimits
}

// Segment is a shared-memory file, mapped once from its creation to Close. Its two regions begin without memory; Reserve
// takes it and Release gives it back. What is reserved is recorded in the file itself, so that a process that attaches
// after a crash knows it. The caller sees to it that one process at a time has the segment.
//
// All methods may be called from several goroutines, Reserve and Release for disjoint ranges.
type Segment struct {
	path   string
	header header
	layout layout
	limits MemLimits

	file identity

	mu  sync.RWMutex // held for writing by Close
	fd  int          // -1 after Close
	mem []byte       // nil after Close
}

// CreateSegment makes a segment in which nothing is reserved. It replaces what is at Path in one step: a process that has
// the earlier file mapped keeps it.
func CreateSegment(o SegmentOptions) (*Segment, error) {
	h, err := o.header()
	if err != nil {
		return nil, errors.Wrap(err, "create segment")
	}
	h.metaBytes = roundUp(o.MetaBytes, StepBytes)
	dataBytes := roundUp(o.DataBytes, StepBytes)
	if h.dataBytes = dataBytes; dataBytes > 0 {
		h.dataBytes = max(dataBytes, roundUp(o.MaxDataBytes, StepBytes))
	}
	if h.slabBytes = o.SlabBytes; h.slabBytes == 0 {
		h.slabBytes = SlabBytes(dataBytes)
	}
	if err := h.validate(); err != nil {
		return nil, errors.Wrap(err, "create segment")
	}
	temporary := ""
	if o.Path != "" {
		temporary = o.Path + ".new"
		if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Wrap(err, "create segment: remove an unfinished one")
		}
	}
	fd, err := createFile(temporary, "mooncake-segment")
	if err != nil {
		return nil, errors.Wrapf(err, "create segment %s", o.Path)
	}
	s := &Segment{fd: fd, path: o.Path, header: h, layout: h.layout(), limits: o.Limits}
	s.layout.setData(dataBytes)
	if err := s.format(temporary); err != nil {
		_ = s.Close(false)
		if temporary != "" {
			_ = os.Remove(temporary)
		}
		return nil, errors.Wrapf(err, "create segment %s", o.Path)
	}
	return s, nil
}

// format makes the file a segment and gives it its name.
func (s *Segment) format(temporary string) error {
	if err := setSize(s.fd, s.layout.total); err != nil {
		return err
	}
	if temporary == "" {
		// Whoever is given the descriptor can't shorten the file, which would turn our next access into a SIGBUS.
		if _, err := unix.FcntlInt(uintptr(s.fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
			return errors.Wrap(err, "seal")
		}
	}
	if err := s.limits.CheckFile(s.fd, s.layout.used); err != nil {
		return err
	}
	if err := s.mapAll(); err != nil {
		return err
	}
	if err := populate(s.fd, s.mem[:s.layout.used], 0, false); err != nil {
		return err
	}
	if err := fence(s.region(MetaRegion)); err != nil {
		return err
	}
	copy(s.mem, s.header.encode())
	if temporary == "" {
		return nil
	}
	return errors.Wrap(os.Rename(temporary, s.path), "name the segment")
}

// AttachSegment opens the segment that an earlier process left at Path. Memory that was being reserved or released when
// that process died is given back. The error wraps fs.ErrNotExist, ErrStale, ErrCorrupt or ErrNewerFormat where that is
// the reason; the file is never changed then.
func AttachSegment(o SegmentOptions) (*Segment, error) {
	s, err := attachSegment(o)
	return s, errors.Wrapf(err, "attach segment %s", o.Path)
}

func attachSegment(o SegmentOptions) (*Segment, error) {
	want, err := o.header()
	if err != nil {
		return nil, err
	}
	fd, st, err := openRegular(o.Path, unix.O_RDWR)
	if err != nil {
		return nil, err
	}
	s := &Segment{fd: fd, path: o.Path, limits: o.Limits}
	if err := s.load(want, st.Size, o.DataBytes); err != nil {
		_ = s.Close(false)
		return nil, err
	}
	return s, nil
}

// load reads the header, maps the file, and gives back what is not recorded as reserved.
func (s *Segment) load(want header, size, dataBytes int64) error {
	p := make([]byte, headerBytes)
	n, err := unix.Pread(s.fd, p, 0)
	if err != nil {
		return errors.Wrap(err, "read header")
	}
	if s.header, err = parseHeader(p[:n]); err != nil {
		return err
	}
	if s.header.storeID != want.storeID || s.header.bootID != want.bootID {
		return errors.Wrapf(ErrStale, "segment of %v, wanted %v", &s.header, &want)
	}
	s.layout = s.header.layout()
	if err := s.fit(size, roundUp(dataBytes, StepBytes)); err != nil {
		return err
	}
	if err := s.mapAll(); err != nil {
		return err
	}
	for _, r := range []Region{MetaRegion, DataRegion} {
		for off, n := range s.runs(r, false) {
			if err := s.vacate(r, off, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// fit makes the layout that of a file of size bytes, whose data region it extends to dataBytes if it can be.
func (s *Segment) fit(size, dataBytes int64) error {
	most := s.layout.region[DataRegion].size
	data := size - s.layout.region[DataRegion].off
	if data <= 0 || data > most || data%StepBytes != 0 || s.header.format == 1 && data != most {
		return errors.Wrapf(ErrCorrupt, "file of %d bytes, its header says up to %d", size, s.layout.total)
	}
	s.layout.setData(data)
	if dataBytes = min(dataBytes, most); dataBytes <= data {
		return nil
	}
	s.layout.setData(dataBytes)
	return setSize(s.fd, s.layout.total)
}

// vacate gives the memory behind a range back to the machine. Others may still look at a record in the meta region
// without a lock: there they see zeros, where reading a hole of the file would take memory, or be a fault if there is none.
func (s *Segment) vacate(r Region, off, n int64) error {
	if r == MetaRegion {
		if err := fence(s.region(r)[off : off+n]); err != nil {
			return err
		}
	}
	return punch(s.fd, s.layout.region[r].off+off, n)
}

func (s *Segment) mapAll() error {
	mem, err := mapFile(s.fd, s.layout.total, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return limitError(err, "map the segment")
	}
	s.mem = mem
	adviseHuge(mem[s.layout.region[MetaRegion].off:])
	s.file, err = identify(s.fd)
	return err
}

func (o *SegmentOptions) header() (header, error) {
	h := header{format: headerFormat, storeID: o.StoreID, bootID: o.BootID}
	if h.bootID == "" {
		id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		if err != nil {
			return h, errors.Wrap(err, "boot id")
		}
		h.bootID = strings.TrimSpace(string(id))
	}
	return h, nil
}

// Data returns the data region. Only what is reserved may be touched: elsewhere a read may take memory that is not
// counted, and a write may kill the process. Valid until Close.
func (s *Segment) Data() []byte { return s.region(DataRegion) }

// Meta returns the meta region, under the same terms as Data, except that what is not reserved reads as zeros that take
// no memory.
func (s *Segment) Meta() []byte { return s.region(MetaRegion) }

func (s *Segment) region(r Region) []byte {
	g := &s.layout.region[r]
	return s.mem[g.off : g.off+g.size : g.off+g.size]
}

// Offset returns where a region starts in the file, for a process that maps or sends the file by descriptor.
func (s *Segment) Offset(r Region) int64 { return s.layout.region[r].off }

// Fd returns the descriptor of the file, which stays the Segment's.
func (s *Segment) Fd() int { return s.fd }

// Path returns the name of the file, "" for a memfd.
func (s *Segment) Path() string { return s.path }

// MayHaveGaps reports whether steps of the meta region may be released below others. Versions that write format 1 would
// not see the records behind a gap.
func (s *Segment) MayHaveGaps() bool { return s.header.format >= 2 }

// SlabBytes returns the slab size recorded in the segment.
func (s *Segment) SlabBytes() int64 { return s.header.slabBytes }

// Reserve takes the memory behind [off, off+n) of a region, all or nothing. Both are multiples of StepBytes and nothing
// of the range is reserved yet. The error wraps ErrLimit if the machine has not got it. It costs about 0.4 s/GiB
// with small pages, and other callers may reserve other ranges meanwhile.
func (s *Segment) Reserve(r Region, off, n int64) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.checkRange(r, off, n); err != nil {
		return errors.Wrap(err, "reserve")
	}
	for at := off; at < off+n; at += StepBytes {
		if s.reserved(r, at) {
			return errors.Errorf("reserve %v [%d, +%d): %d is reserved already", r, off, n, at)
		}
	}
	for done := int64(0); done < n; {
		size := min(checkBytes, n-done)
		if err := s.reservePart(r, off+done, size, n-done); err != nil {
			_ = s.release(r, off, done+size) // can only fail for what the next attach gives back
			return errors.Wrapf(err, "reserve %v [%d, +%d)", r, off, n)
		}
		done += size
	}
	return nil
}

// reservePart takes n bytes at off if the machine has the wanted ones. It is recorded as reserved once it is there.
func (s *Segment) reservePart(r Region, off, n, wanted int64) error {
	if err := s.limits.CheckFile(s.fd, wanted); err != nil {
		return err
	}
	mem, start := s.region(r)[off:off+n], s.layout.region[r].off+off
	if r == MetaRegion {
		if err := mapOver(mem, s.fd, start); err != nil {
			return limitError(err, "map memory")
		}
	}
	if err := populate(s.fd, mem, start, s.limits.sharedHugePages()); err != nil {
		return limitError(err, "take memory")
	}
	for at := off; at < off+n; at += StepBytes {
		word, bit := s.bit(r, at)
		atomic.OrUint64(word, bit)
	}
	return nil
}

// Release gives the memory behind [off, off+n) of a region back to the machine; its bytes are lost. Both are multiples of
// StepBytes; what is not reserved stays so.
func (s *Segment) Release(r Region, off, n int64) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.checkRange(r, off, n); err != nil {
		return errors.Wrap(err, "release")
	}
	return errors.Wrapf(s.release(r, off, n), "release %v [%d, +%d)", r, off, n)
}

func (s *Segment) release(r Region, off, n int64) error {
	for at := off; at < off+n; at += StepBytes {
		word, bit := s.bit(r, at)
		atomic.AndUint64(word, ^bit)
	}
	return s.vacate(r, off, n)
}

// Reserved yields the reserved ranges of a region as (offset, length), in ascending order, neighbours joined.
func (s *Segment) Reserved(r Region) iter.Seq2[int64, int64] { return s.runs(r, true) }

// runs yields the longest ranges whose steps all are reserved, or all are not.
func (s *Segment) runs(r Region, reserved bool) iter.Seq2[int64, int64] {
	return func(yield func(off, n int64) bool) {
		start := int64(-1)
		size := s.layout.region[r].size
		for at := int64(0); at <= size; at += StepBytes {
			if at < size && s.reserved(r, at) == reserved {
				if start < 0 {
					start = at
				}
			} else if start >= 0 {
				if !yield(start, at-start) {
					return
				}
				start = -1
			}
		}
	}
}

// ReservedBytes returns how much of a region is reserved.
func (s *Segment) ReservedBytes(r Region) (n int64) {
	for _, size := range s.Reserved(r) {
		n += size
	}
	return n
}

func (s *Segment) checkRange(r Region, off, n int64) error {
	if s.mem == nil {
		return os.ErrClosed
	}
	if off < 0 || n <= 0 || off%StepBytes != 0 || n%StepBytes != 0 || n > s.layout.region[r].size-off {
		return errors.Errorf("[%d, +%d) is no range of whole steps of %d bytes in the %v region", off, n, StepBytes, r)
	}
	return nil
}

// bit returns the word and the bit in the file that say whether the step at off is reserved.
func (s *Segment) bit(r Region, off int64) (*uint64, uint64) {
	step := off / StepBytes
	at := s.layout.region[r].bitmap + step/64*8
	// The bitmap starts at a multiple of 8 of a mapping that starts at a page, and lies within it.
	return (*uint64)(unsafe.Pointer(&s.mem[at])), 1 << (step % 64)
}

func (s *Segment) reserved(r Region, off int64) bool {
	word, bit := s.bit(r, off)
	return atomic.LoadUint64(word)&bit != 0
}

// Close unmaps the segment, and with remove deletes its file, unless another has taken its name. After it nothing that
// was returned by Data or Meta may be used.
func (s *Segment) Close(remove bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return os.ErrClosed
	}
	var first error
	if remove && s.path != "" {
		first = s.file.remove(s.path)
	}
	if s.mem != nil {
		if err := unmapFile(s.mem); first == nil {
			first = err
		}
	}
	if err := unix.Close(s.fd); first == nil {
		first = errors.Wrap(err, "close segment")
	}
	s.mem, s.fd = nil, -1
	return first
}
