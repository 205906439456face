package master

import (
	"sync/atomic"

	"github.com/cespare/xxhash/v2"

	"github.com/kvcache-ai/mooncake-go/store/internal/arena"
)

// Ref names a record: its offset in the metadata memory in units of 16 bytes. 0 is no record.
type Ref = uint32

const refUnit = 16

// State is where an entry is in its life; see the package comment.
type State uint8

const (
	Free State = iota
	Reserved
	Committed
	Retired
	Held
	groupState // the record of a group, not of an object
	reaping    // being freed: claimed by exactly one goroutine
	goneGroup  // the record of a group that was removed: its members are found no more, and are being taken away
)

// The word of a record: state in bits 0-3, flags above, the reader count in the top 24 bits.
const (
	stateMask uint64 = 0xf

	FlagHardPin    uint64 = 1 << 4
	FlagMemory     uint64 = 1 << 5  // has a replica in memory
	FlagSSD        uint64 = 1 << 6  // has a replica on the SSD tier
	FlagOwnMemory  uint64 = 1 << 7  // the memory replica is a file of its own
	FlagMemoryBad  uint64 = 1 << 8  // quarantined
	FlagSSDBad     uint64 = 1 << 9  // quarantined
	FlagUnverified uint64 = 1 << 10 // came back from a restart and was not read since
	FlagLink       uint64 = 1 << 11 // shares the replicas of target
	FlagDurable    uint64 = 1 << 12 // the SSD replica is what its owner was promised; never dropped
	FlagGuarded    uint64 = 1 << 13 // another process may read until the lease ends, whatever happens to the key
	FlagReplace    uint64 = 1 << 14 // reserved by a replacing put
	FlagTable      uint64 = 1 << 15 // the last extent is the chunk table
	FlagWriterPin  uint64 = 1 << 16 // a writer of this process holds a pin until it commits or aborts
	FlagOffloading uint64 = 1 << 17 // somebody is copying it to another tier

	readerShift        = 40
	oneReader   uint64 = 1 << readerShift

	// Readers are refused from maxReaders on. The other half of the count is for pins that can't be refused: those of
	// removals and writers.
	maxReaders = 1 << (64 - readerShift - 1)
	maxPins    = 1<<(64-readerShift) - 1
)

func stateOf(word uint64) State     { return State(word & stateMask) }
func readersOf(word uint64) int     { return int(word >> readerShift) }
func with(w uint64, s State) uint64 { return w&^stateMask | uint64(s) }

// record is the header of an entry. The key follows it (tenant, then name), then room for extCap extents, aligned to
// 8 bytes. word, lease and lastUse are atomic. check covers everything that is fixed between commit and the next
// change of extents: the fields from gen to extCap, the key and the used extents. hash is this process's hash of the
// key, so that a record can be found from its ref without a look at the key.
type record struct {
	word      uint64
	lease     int64 // end of the read lease, unix ns; start of the reservation while reserved
	softUntil int64 // end of the soft pin, unix ns; 0 is none
	lastUse   uint32
	check     uint32
	hash      uint64

	gen    uint64
	size   int64
	digest uint64
	group  Ref // record of the group, 0 for none
	target Ref // a link's owner
	keyLen uint16
	tenLen uint8
	kind   uint8 // ObjectDataType
	nExt   uint16
	extCap uint16

	next, prev Ref    // neighbours in the group's list; a group: first member in next, in prev one with groupUsed
	chain      Ref    // an owner: first link; a link: next link; a group: number of members
	ssdFile    uint32 // a group: counts the changes of its membership
	ssdOff     uint32 // a group: number of members that are reservations
	ssdOwn     uint32
}

const (
	recordBytes = 104
	fixedFrom   = 40 // what check covers of the header: from gen to extCap
	fixedTo     = 80
	extentBytes = 16
)

// extent is the stored form of Extent: segment in the top 16 bits of off.
type extent struct {
	off uint64
	n   int64
}

// SegmentID numbers a segment; OwnFile says that the extent is a file of its own, with its id as the offset.
type SegmentID uint16

const OwnFile SegmentID = 0xffff

const offBits = 48

// Extent is a piece of a replica: n bytes at Off of a segment.
type Extent struct {
	Segment SegmentID
	Off     int64
	Len     int64
}

func pack(e Extent) extent { return extent{uint64(e.Segment)<<offBits | uint64(e.Off), e.Len} }
func unpack(e extent) Extent {
	return Extent{SegmentID(e.off >> offBits), int64(e.off & (1<<offBits - 1)), e.n}
}

// memory is the metadata memory that records live in, addressed by Ref.
type memory []byte

func (m memory) at(r Ref) *record { return arena.At[record](m, int64(r)*refUnit) }

// glance copies a record's header without its lock. Others may be changing it, or have made another record of the
// memory since, and even one of another size: what the copy says is a hint that must be checked under the lock. That
// makes the race harmless, and the detector need not look: every field is plain data.
//
//go:norace
func (m memory) glance(r Ref) record { return *m.at(r) }

// still reports whether a record is the one that seen was copied from, in the same state.
//
//go:norace
func (m memory) still(r Ref, seen *record) bool {
	rec := m.at(r)
	return rec.gen == seen.gen && (rec.word^seen.word)&stateMask == 0
}

func (m memory) tenant(r Ref, rec *record) []byte {
	o := int64(r)*refUnit + recordBytes
	return m[o : o+int64(rec.tenLen)]
}

func (m memory) name(r Ref, rec *record) []byte {
	o := int64(r)*refUnit + recordBytes + int64(rec.tenLen)
	return m[o : o+int64(rec.keyLen)]
}

func extentsOffset(tenLen, keyLen int) int64 {
	return (recordBytes + int64(tenLen) + int64(keyLen) + 7) &^ 7
}

func (m memory) extent(r Ref, rec *record, i int) *extent {
	o := int64(r)*refUnit + extentsOffset(int(rec.tenLen), int(rec.keyLen)) + int64(i)*extentBytes
	return arena.At[extent](m, o)
}

// checksum is the value of rec.check for the record's present content.
func (m memory) checksum(r Ref, rec *record) uint32 {
	base := int64(r) * refUnit
	ext := base + extentsOffset(int(rec.tenLen), int(rec.keyLen))
	fixed := m[base+fixedFrom : base+fixedTo]
	h := xxhash.Sum64(fixed)
	h = h*0x9e3779b97f4a7c15 ^ xxhash.Sum64(m[base+recordBytes:ext+int64(rec.nExt)*extentBytes])
	return uint32(h ^ h>>32)
}

func (m memory) seal(r Ref, rec *record) { rec.check = m.checksum(r, rec) }

// recordSize is the room that a record needs.
func recordSize(tenLen, keyLen, extCap int) int64 {
	return extentsOffset(tenLen, keyLen) + int64(extCap)*extentBytes
}

// Flags in the word of a group.
const (
	groupWatched uint64 = 1 << 4 // somebody is about to remove it if no member is in use
	groupUsed    uint64 = 1 << 5 // a member got a use since
)

func loadWord(rec *record) uint64 { return atomic.LoadUint64(&rec.word) }

// setState changes the state and leaves flags and readers as they are.
func setState(rec *record, s State) {
	for {
		w := atomic.LoadUint64(&rec.word)
		if atomic.CompareAndSwapUint64(&rec.word, w, with(w, s)) {
			return
		}
	}
}

// end moves a record to Retired, or, when it has no reader, to reaping. Then it reports true: the caller, and nobody
// else, frees it.
func end(rec *record) (last bool) {
	for {
		w := atomic.LoadUint64(&rec.word)
		next := with(w&^FlagGuarded, Retired)
		if last = readersOf(w) == 0; last {
			next = with(next, reaping)
		}
		if atomic.CompareAndSwapUint64(&rec.word, w, next) {
			return last
		}
	}
}

// pin adds a reader. The caller holds the record's shard lock, so that readers can only become fewer meanwhile. One
// more than fits would wrap to none, and the bytes would be free under all the others.
func pin(rec *record) {
	if readersOf(loadWord(rec)) == maxPins {
		panic("master: BUG: too many pins of one record")
	}
	atomic.AddUint64(&rec.word, oneReader)
}

// unpin takes one reader off. It decides in the same step whether the caller frees the record: after it the record
// may be gone.
func unpin(rec *record) (last bool) {
	for {
		w := atomic.LoadUint64(&rec.word)
		if readersOf(w) == 0 {
			panic("master: BUG: release of a record that is not pinned")
		}
		next := w - oneReader
		if last = readersOf(next) == 0 && stateOf(w) == Retired && w&FlagGuarded == 0; last {
			next = with(next, reaping)
		}
		if atomic.CompareAndSwapUint64(&rec.word, w, next) {
			return last
		}
	}
}

func setFlags(rec *record, set uint64)     { atomic.OrUint64(&rec.word, set) }
func clearFlags(rec *record, clear uint64) { atomic.AndUint64(&rec.word, ^clear) }

// raiseLease moves the lease's end forward, never back.
func raiseLease(rec *record, end int64) {
	for {
		old := atomic.LoadInt64(&rec.lease)
		if old >= end || atomic.CompareAndSwapInt64(&rec.lease, old, end) {
			return
		}
	}
}

func (rec *record) loc() Loc { return Loc{rec.ssdFile, rec.ssdOff, rec.ssdOwn} }

func (rec *record) setLoc(l Loc) { rec.ssdFile, rec.ssdOff, rec.ssdOwn = l.File, l.Off, l.Own }

// Loc says where on the SSD tier an object is; the zero Loc is nowhere. Its fields mean what ssd.Loc says.
type Loc struct{ File, Off, Own uint32 }
