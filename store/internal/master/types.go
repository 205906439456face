package master

import (
	"time"

	"github.com/kvcache-ai/mooncake-go/store/internal/policy"
)

// Limits of what a command may carry.
const (
	MaxKeyBytes    = 4096
	MaxTenantBytes = 255
	MaxGroupBytes  = 4096
	MaxExtents     = 1024 // of one replica, its chunk table included
	MaxObjectBytes = 1 << 46
	Kinds          = 10 // ObjectDataType values
)

// Options configures a Master. Validate is the caller's: these come from store.Options.
type Options struct {
	Records        []byte        // metadata memory, at least 1 MiB, zeroed or kept from a store that crashed
	Shards         int           // power of two
	DiscardTimeout time.Duration // a put without a sign of life for so long may be taken over
	ReleaseTimeout time.Duration // and its space is free this long after its start
	Notify         func()        // called when effects wait; must not block, may be called under locks
	Freed          func(Extent)  // for tests, if not nil: called before space of a segment is free; may be called under locks
	Stepped        func(int)     // for tests, if not nil: told how many members of a group a command handled under one hold of locks
}

// Key is an object's identity. Tenant "" is the default tenant.
type Key struct {
	Tenant string
	Name   string
}

// Placement says where a reservation gets its bytes.
type Placement uint8

const (
	InArena   Placement = iota // extents of a segment
	InOwnFile                  // a memory file of its own, made by the caller: ReserveRequest.OwnFile
	OnSSD                      // none in memory: the caller writes it to the SSD tier
)

// ReserveRequest asks for room for an object.
type ReserveRequest struct {
	Key
	Size      int64
	Kind      uint8
	Group     string
	SoftUntil int64 // unix ns, 0 for no soft pin
	HardPin   bool
	Durable   bool
	Replace   bool // beside a committed object, which commit replaces
	Placement Placement
	OwnFile   uint64 // with InOwnFile
	WriterPin bool   // the writer lives in this process: space is never reused before Commit or Abort
}

// Object describes a committed or reserved object by value, so that a lookup allocates nothing.
type Object struct {
	Ref       Ref
	Gen       uint64
	Size      int64
	Digest    uint64
	Flags     uint64
	Lease     int64 // end, unix ns
	SoftUntil int64
	LastUse   uint32
	Kind      uint8
	Readers   int
	SSD       Loc
	SSDKeyLen int // of the key that the SSD tier has beside the bytes: tenant, NUL, name of the owner

	n      uint16
	few    [3]Extent
	many   []Extent
	holder Ref // the record whose replicas these are: Ref, or a link's owner
}

// Extents are the pieces of the memory replica, without the chunk table; none when there is no such replica.
func (o *Object) Extents() []Extent {
	all := o.all()
	if o.Flags&FlagTable != 0 {
		return all[:len(all)-1]
	}
	return all
}

// Table is the extent of the chunk table, if the memory replica has one.
func (o *Object) Table() (Extent, bool) {
	all := o.all()
	if o.Flags&FlagTable == 0 || len(all) == 0 {
		return Extent{}, false
	}
	return all[len(all)-1], true
}

func (o *Object) all() []Extent {
	if o.many != nil {
		return o.many
	}
	return o.few[:o.n]
}

// InMemory and OnSSD say which replicas can be read.
func (o *Object) InMemory() bool { return o.Flags&(FlagMemory|FlagMemoryBad) == FlagMemory }

func (o *Object) OnSSD() bool { return o.Flags&(FlagSSD|FlagSSDBad) == FlagSSD }

// Readable reports whether a replica is left that can be read.
func (o *Object) Readable() bool { return readable(o.Flags) }

func readable(w uint64) bool {
	return w&(FlagMemory|FlagMemoryBad) == FlagMemory || w&(FlagSSD|FlagSSDBad) == FlagSSD
}

// Replaced tells a committer what its object took the place of, and a remover what went.
type Replaced struct {
	Gen     uint64 // 0: nothing
	Pinned  Ref    // non-zero: the catalogue may know Gen; once the catalogue has forgotten Gen, Release it and tell Forgotten
	Durable bool
	Size    int64
}

// EffectKind says what an Effect asks of the owner of the bytes.
type EffectKind uint8

const (
	FreeOwnFile EffectKind = iota // the memory file OwnFile has no user left
	FreeSSD                       // SSD has no user left; the catalogue no longer names it
)

// Effect is something that the owner of the bytes must do now that no reader is left.
type Effect struct {
	Kind    EffectKind
	OwnFile uint64
	SSD     Loc
	KeyLen  int // of the scoped key, as the SSD tier stores it
	Size    int64
	Gen     uint64
}

// Victim is an object, or with Group set all members of one, that a pass chose to leave memory.
type Victim struct {
	policy.Candidate
	Gen   uint64
	Group bool
	Spare bool // a group stays if a member would be lost: the caller copies it to another tier first
}

// Tier numbers the columns of usage.
type Tier uint8

const (
	TierMemory Tier = iota
	TierSSD
	Tiers
)

// Usage counts objects and bytes by type and tier. An object in both tiers counts in both, and once in Objects.
// Links count as objects, their bytes where the owner's are.
type Usage struct {
	Objects   [Kinds]int64
	Count     [Kinds][Tiers]int64
	Bytes     [Kinds][Tiers]int64
	HardPins  int64
	Groups    int64
	Reserved  int64 // bytes of reservations
	Reading   int64 // objects retired but still in use
	RecordMem int64 // bytes of the pages that hold records
	IndexMem  int64 // bytes of the index
}

type usage struct {
	objects  [Kinds]int64
	count    [Kinds][Tiers]int64
	bytes    [Kinds][Tiers]int64
	hardPins int64
	groups   int64
	reserved int64
}
