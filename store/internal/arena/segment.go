package arena

import (
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/pkg/errors"
	"golang.org/x/sys/unix"

	"github.com/kvcache-ai/mooncake-go/store/internal/filelock"
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
	// Home is the directory that the file lies in, instead of Path. It must stay open as long as the segment.
	Home *Home
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
	// Owner is recorded in a segment that is made. One that is attached must be left by the same directory, at one of Epochs.
	Owner  Owner
	Epochs [][16]byte
	// BootID tells boots of the machine apart. Default: the kernel's.
	BootID string
	// Limits are asked before memory is taken.
	Limits MemLimits
}

// Segment is a shared-memory file, mapped once from its creation to Close. Its two regions begin without memory; Reserve
// takes it and Release gives it back. What is reserved is recorded in the file itself, so that a process that attaches
// after a crash knows it. The file is locked as long as it is mapped, so that one process at a time has the segment, however
// many know its name.
//
// All methods may be called from several goroutines, Reserve and Release for disjoint ranges.
type Segment struct {
	path   string
	dir    int // the directory of path, not ours with a Home; -1 for a memfd
	home   *Home
	lock   *filelock.Lock
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
	s := &Segment{fd: -1, dir: -1, header: h, layout: h.layout(), limits: o.Limits}
	s.layout.setData(dataBytes)
	err = s.place(&o)
	if err == nil {
		err = s.create()
	}
	if err != nil {
		_ = s.Close(false)
		return nil, errors.Wrapf(err, "create segment %s", s.path)
	}
	return s, nil
}

// place opens the directory that the file is in.
func (s *Segment) place(o *SegmentOptions) (err error) {
	s.path = o.Path
	if s.home = o.Home; s.home != nil {
		s.path, s.dir = filepath.Join(o.Home.Path(), segmentName), o.Home.fd
	} else if o.Path != "" {
		s.dir, err = unix.Open(filepath.Dir(o.Path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	return errors.Wrap(err, "open directory")
}

// name is that of the file in its directory.
func (s *Segment) name() string { return filepath.Base(s.path) }

// create makes the file, locked before it has its name.
func (s *Segment) create() (err error) {
	if s.path == "" {
		if s.fd, err = createMemfd("mooncake-segment"); err != nil {
			return err
		}
		return s.format("")
	}
	temporary := s.name() + ".new"
	if err := unix.Unlinkat(s.dir, temporary, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errors.Wrap(err, "remove an unfinished one")
	}
	if s.fd, err = createFile(s.dir, temporary); err != nil {
		return err
	}
	if err = s.takeLock(temporary); err == nil {
		err = s.format(temporary)
	}
	if err != nil {
		_ = unix.Unlinkat(s.dir, temporary, 0)
	}
	return err
}

// takeLock locks the file, which must have that name. The error wraps ErrInUse if another process has it.
func (s *Segment) takeLock(name string) (err error) {
	if s.file, err = identify(s.fd); err != nil {
		return err
	}
	s.lock, err = filelock.Take(func() (int, error) {
		fd, _, err := openRegular(s.dir, name, unix.O_RDONLY)
		return fd, err
	})
	if errors.Is(err, filelock.ErrHeld) {
		return errors.Wrap(ErrInUse, err.Error())
	}
	if err == nil && !s.file.names(s.dir, name) {
		return errors.Wrap(fs.ErrNotExist, "removed meanwhile")
	}
	return err
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
	return errors.Wrap(unix.Renameat(s.dir, temporary, s.dir, s.name()), "name the segment")
}

// AttachSegment opens the segment that an earlier process left at Path. Memory that was being reserved or released when
// that process died is given back. The error wraps fs.ErrNotExist, ErrInUse, ErrStale, ErrCorrupt or ErrNewerFormat where
// that is the reason; the file is never changed then.
func AttachSegment(o SegmentOptions) (*Segment, error) {
	s, err := attachSegment(o)
	return s, errors.Wrapf(err, "attach segment %s", o.Path)
}

func attachSegment(o SegmentOptions) (*Segment, error) {
	want, err := o.header()
	if err != nil {
		return nil, err
	}
	s := &Segment{fd: -1, dir: -1, limits: o.Limits}
	if err := s.attach(&o, want); err != nil {
		_ = s.Close(false)
		return nil, err
	}
	return s, nil
}

func (s *Segment) attach(o *SegmentOptions, want header) error {
	if err := s.place(o); err != nil {
		return err
	}
	if s.path == "" {
		return errors.Wrap(fs.ErrNotExist, "no path")
	}
	fd, st, err := openRegular(s.dir, s.name(), unix.O_RDWR)
	if err != nil {
		return err
	}
	s.fd = fd
	if err := s.takeLock(s.name()); err != nil {
		return err
	}
	return s.load(want, o.Epochs, st.Size, o.DataBytes)
}

// load reads the header, maps the file, and gives back what is not recorded as reserved.
func (s *Segment) load(want header, epochs [][16]byte, size, dataBytes int64) error {
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
	if s.header.format < ownedFormat {
		return errors.Wrapf(ErrStale, "segment format %d, which does not say whose it is", s.header.format)
	}
	if !s.header.owner.SameDir(&want.owner) || !slices.Contains(epochs, s.header.owner.Epoch) {
		return errors.Wrapf(ErrStale, "segment of directory %s, left at another epoch or by another directory", s.header.owner.Path)
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
	if data <= 0 || data > most || data%StepBytes != 0 {
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
	h := header{format: headerFormat, storeID: o.StoreID, bootID: o.BootID, owner: o.Owner}
	if h.bootID == "" {
		id, err := BootID()
		if err != nil {
			return h, err
		}
		h.bootID = id
	}
	return h, nil
}

// BootID is the kernel's name of this boot.
func BootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), errors.Wrap(err, "boot id")
}

// Owner returns who left the segment, or has it.
func (s *Segment) Owner() Owner { return s.header.owner }

// Own records who has the segment from now on. A process that dies within leaves the old record or the new one: the
// kernel writes a page of tmpfs whole.
func (s *Segment) Own(o Owner) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return os.ErrClosed
	}
	h := s.header
	h.owner = o
	if _, err := unix.Pwrite(s.fd, h.encode(), 0); err != nil {
		return errors.Wrap(err, "record the owner of the segment")
	}
	s.header = h
	return nil
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
	if s.fd < 0 && s.dir < 0 {
		return os.ErrClosed
	}
	var first error
	keep := func(err error) {
		if first == nil {
			first = err
		}
	}
	if remove && s.path != "" && s.fd >= 0 {
		keep(s.file.remove(s.dir, s.name()))
	}
	if s.mem != nil {
		keep(unmapFile(s.mem))
	}
	if s.lock != nil {
		keep(s.lock.Release())
	}
	if s.fd >= 0 {
		keep(errors.Wrap(unix.Close(s.fd), "close segment"))
	}
	if s.home == nil && s.dir >= 0 {
		_ = unix.Close(s.dir)
	}
	s.mem, s.lock, s.fd, s.dir = nil, nil, -1, -1
	return first
}

// Named reports whether the file still has its name. One that was deleted goes with the process.
func (s *Segment) Named() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.fd >= 0 && s.dir >= 0 && s.file.names(unix.AT_FDCWD, s.path)
}
