package arena

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/cespare/xxhash/v2"
	"github.com/pkg/errors"
)

// The header of a segment file, little endian, headerBytes long:
//
//	0     8   magic
//	8     4   format
//	12    4   length of the boot id
//	16    16  store id
//	32    64  boot id, padded with zeros
//	96    8   bytes of a slab
//	104   8   bytes of the meta region
//	112   8   bytes that the data region can have; since format 2 the file may end before
//	120       since format 3, the owner:
//	120   8   device of the owner's directory
//	128   8   its inode
//	136   8   when that was made, Unix nanoseconds
//	144   16  epoch
//	160   8   pid of the process that has the segment, or had it last
//	168   8   inode of that process' mount namespace
//	176   8   length of the path
//	184   maxOwnerPath  path of the owner's directory, padded with zeros
//	      zeros
//	4088  8   XXH64 of all before
//
// Magic, format and hash are where they are in every format to come. Behind the header follow two bitmaps of 64-bit
// words, meta and data, with a bit for each step of the region that is reserved. The regions start at multiples of
// StepBytes. Since format 2 the meta region may have steps that are not reserved below others that are.
const (
	headerBytes  = 4096
	headerFormat = 3
	ownedFormat  = 3 // the first that records an owner
	headerMagic  = "MCARENA\x00"
	maxBootID    = 64
	maxOwnerPath = 3072 // a longer path is not recorded

	// maxSegmentBytes bounds what one segment maps, well below the address space.
	maxSegmentBytes = 1 << 45
)

type header struct {
	format                          uint32
	storeID                         [16]byte
	bootID                          string
	slabBytes, metaBytes, dataBytes int64
	owner                           Owner
}

// Owner says which directory a segment belongs to, by what a copy of the directory does not have, and at which epoch: a
// number that directory and segment both get at each open and close, so that only the one that left the segment knows it.
type Owner struct {
	Dev, Ino uint64
	BornNs   int64 // 0 if the file system does not tell
	Epoch    [16]byte

	// For people, and to find the directory: no proof of anything.
	PID        int
	MountSpace uint64
	Path       string
}

// SameDir reports whether two owners are the same directory.
func (o *Owner) SameDir(other *Owner) bool {
	return o.Dev == other.Dev && o.Ino == other.Ino && o.BornNs == other.BornNs
}

// validate returns an error if no segment may have this header.
func (h *header) validate() error {
	switch {
	case h.slabBytes < MinSlabBytes || h.slabBytes > MaxSlabBytes || bits.OnesCount64(uint64(h.slabBytes)) != 1:
		return errors.Errorf("slab of %d bytes", h.slabBytes)
	case h.metaBytes < 0 || h.metaBytes > maxSegmentBytes || h.metaBytes%StepBytes != 0:
		return errors.Errorf("meta region of %d bytes", h.metaBytes)
	case h.dataBytes <= 0 || h.dataBytes > maxSegmentBytes || h.dataBytes%StepBytes != 0:
		return errors.Errorf("data region of %d bytes", h.dataBytes)
	case len(h.bootID) > maxBootID:
		return errors.Errorf("boot id of %d bytes", len(h.bootID))
	}
	return nil
}

// layout is where the parts of a segment lie in its file.
type layout struct {
	region [2]struct{ off, size, bitmap, words int64 }
	used   int64 // header and bitmaps
	total  int64
}

func (h *header) layout() (l layout) {
	at := int64(headerBytes)
	for r, size := range []int64{MetaRegion: h.metaBytes, DataRegion: h.dataBytes} {
		g := &l.region[r]
		g.size, g.bitmap, g.words = size, at, (size/StepBytes+63)/64
		at += g.words * 8
	}
	l.used = at
	at = roundUp(at, StepBytes)
	for r := range l.region {
		l.region[r].off = at
		at += l.region[r].size
	}
	l.total = at
	return l
}

// setData is how much of the data region, the last one, the file has.
func (l *layout) setData(n int64) {
	l.region[DataRegion].size = n
	l.total = l.region[DataRegion].off + n
}

func (h *header) encode() []byte {
	p := make([]byte, headerBytes)
	copy(p, headerMagic)
	binary.LittleEndian.PutUint32(p[8:], h.format)
	binary.LittleEndian.PutUint32(p[12:], uint32(len(h.bootID)))
	copy(p[16:32], h.storeID[:])
	copy(p[32:96], h.bootID)
	binary.LittleEndian.PutUint64(p[96:], uint64(h.slabBytes))
	binary.LittleEndian.PutUint64(p[104:], uint64(h.metaBytes))
	binary.LittleEndian.PutUint64(p[112:], uint64(h.dataBytes))
	if h.format >= ownedFormat {
		h.owner.encode(p)
	}
	binary.LittleEndian.PutUint64(p[headerBytes-8:], xxhash.Sum64(p[:headerBytes-8]))
	return p
}

func (o *Owner) encode(p []byte) {
	binary.LittleEndian.PutUint64(p[120:], o.Dev)
	binary.LittleEndian.PutUint64(p[128:], o.Ino)
	binary.LittleEndian.PutUint64(p[136:], uint64(o.BornNs))
	copy(p[144:160], o.Epoch[:])
	binary.LittleEndian.PutUint64(p[160:], uint64(o.PID))
	binary.LittleEndian.PutUint64(p[168:], o.MountSpace)
	if len(o.Path) <= maxOwnerPath {
		binary.LittleEndian.PutUint64(p[176:], uint64(len(o.Path)))
		copy(p[184:184+maxOwnerPath], o.Path)
	}
}

func decodeOwner(p []byte) Owner {
	n := min(binary.LittleEndian.Uint64(p[176:]), maxOwnerPath)
	return Owner{
		Dev:        binary.LittleEndian.Uint64(p[120:]),
		Ino:        binary.LittleEndian.Uint64(p[128:]),
		BornNs:     int64(binary.LittleEndian.Uint64(p[136:])),
		Epoch:      [16]byte(p[144:160]),
		PID:        int(binary.LittleEndian.Uint64(p[160:])),
		MountSpace: binary.LittleEndian.Uint64(p[168:]),
		Path:       string(p[184 : 184+n]),
	}
}

// parseHeader reads a header from a file that anyone may have written. Errors wrap ErrCorrupt or ErrNewerFormat.
func parseHeader(p []byte) (header, error) {
	if len(p) != headerBytes {
		return header{}, errors.Wrapf(ErrCorrupt, "header of %d bytes", len(p))
	}
	if string(p[:8]) != headerMagic {
		return header{}, errors.Wrap(ErrCorrupt, "no segment header")
	}
	if got, want := xxhash.Sum64(p[:headerBytes-8]), binary.LittleEndian.Uint64(p[headerBytes-8:]); got != want {
		return header{}, errors.Wrap(ErrCorrupt, "header checksum")
	}
	format := binary.LittleEndian.Uint32(p[8:])
	if format > headerFormat {
		return header{}, errors.Wrapf(ErrNewerFormat, "segment format %d, newest known %d", format, headerFormat)
	}
	n := binary.LittleEndian.Uint32(p[12:])
	if format < 1 || n > maxBootID {
		return header{}, errors.Wrapf(ErrCorrupt, "segment format %d, boot id of %d bytes", format, n)
	}
	h := header{
		format:    format,
		storeID:   [16]byte(p[16:32]),
		bootID:    string(p[32 : 32+n]),
		slabBytes: int64(binary.LittleEndian.Uint64(p[96:])),
		metaBytes: int64(binary.LittleEndian.Uint64(p[104:])),
		dataBytes: int64(binary.LittleEndian.Uint64(p[112:])),
	}
	if format >= ownedFormat {
		h.owner = decodeOwner(p)
	}
	if err := h.validate(); err != nil {
		return header{}, errors.Wrap(ErrCorrupt, err.Error())
	}
	if string(h.encode()) != string(p) {
		return header{}, errors.Wrap(ErrCorrupt, "header is not in its one form")
	}
	return h, nil
}

func (h *header) String() string {
	return fmt.Sprintf("store %x, boot %s, epoch %x", h.storeID, h.bootID, h.owner.Epoch)
}

func roundUp(n, unit int64) int64 { return (n + unit - 1) / unit * unit }
