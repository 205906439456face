// Package catalog keeps the store's durable metadata: one record per object that a restart brings back, and a few
// named values. It knows nothing of what a record means; the store decides what is written, when, and in what order
// with the data it describes.
//
// Open gives the RocksDB implementation. Built with the tag norocksdb, or without cgo, the package still compiles
// and Open returns ErrUnavailable. Package catalogtest has an in-memory implementation that can crash.
package catalog

import "context"

// Limits of a record and of a batch. A record beyond one of them fails its whole batch with ErrLimit.
const (
	MaxTenantBytes   = 255
	MaxKeyBytes      = 4096
	MaxGroupBytes    = 4096
	MaxMetaNameBytes = 255
	MaxMetaBytes     = 1 << 20
	MaxBatchBytes    = 64 << 20
)

// FormatVersion is the version of the directory's format that this package writes, and the newest that it reads. It
// is kept under the meta name "format", which SetMeta refuses.
const FormatVersion = 2

// Loc says where on the SSD tier an object's bytes are, in the tier's own terms. The zero Loc means nowhere.
type Loc struct {
	File uint32
	Off  uint32
	Own  uint32
}

// Flags are the bits of Record.Flags. The catalogue stores unknown bits unchanged.
type Flags uint16

const (
	FlagHardPin Flags = 1 << iota // never a victim
	FlagDurable                   // the caller was told that it is on stable storage
	FlagLink                      // shares the bytes of another key's object
	FlagOwn                       // the bytes lie in a file of their own
)

// Record is what the catalogue holds of one generation of an object. Tenant, Key and Gen name it; the rest is opaque
// here. Generations are kept apart so that writing a new one and forgetting an old one need no order between them.
type Record struct {
	Tenant    string
	Key       string
	Gen       uint64
	Size      int64 // >= 0
	Type      uint8
	Flags     Flags
	SoftUntil int64 // end of the soft pin, Unix milliseconds; 0 = none
	Group     string
	Target    string // of a link: the key under which the bytes were written
	Digest    uint64
	Loc       Loc
	OwnMtime  int64 // modification time of the own file, Unix nanoseconds; 0 = none
}

// Repaired says what a Repair found.
type Repaired struct {
	Damage error  // the error of Open
	Backup string // the directory with a copy of the files as they were
}

// Catalog is durable metadata. All methods may be called concurrently; after Close they return ErrClosed.
type Catalog interface {
	// Apply makes all changes of b visible, or none. With sync it returns after b and everything applied before it
	// are on stable storage; without, b survives the death of this process but not that of the machine. An empty b
	// with sync only does the latter. What survives a crash is always a prefix of the batches in Apply order. An
	// Apply that failed may still have written b, whole: it can show from then on, or after the next Open, or not at all. The
	// next Apply tries to recover; until one succeeds, the others fail and reads go on. b may be reused at once.
	Apply(b *Batch, sync bool) error

	// Scan calls fn for every record as of the call, in the order of the stored keys: by tenant (shorter names first),
	// then by the bytes of the key with those of the generation, big endian, behind it. So the generations of one key
	// come in rising order, but records of a longer key that begins with this one may come between them. The record
	// and its strings are valid only during the call of fn. An error of fn ends the scan and is returned as it is.
	// Records that do not verify are skipped; Scan then returns a *SkippedError after it visited all others. Any other
	// error ends it: records are left that fn did not see. fn may call the other methods, but not Close.
	Scan(ctx context.Context, fn func(*Record) error) error

	// Get returns the record of one generation of a key. A missing one is (nil, false, nil).
	Get(tenant, key string, gen uint64) (*Record, bool, error)

	// Meta returns the value last set under name. A missing one is (nil, false, nil).
	Meta(name string) ([]byte, bool, error)

	// Close waits for calls in progress and syncs. The catalogue is closed also if it returns an error: then what was not
	// synced before may be lost with the machine. A second Close does nothing.
	Close() error
}
