package store

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"
)

// Options configures Open. The zero value is a store in memory.
type Options struct {
	// Dir holds the SSD tier and the catalogue, and lets memory survive the process. One process at a time. Made if it
	// is missing. Default: "", memory only
	Dir string

	// MemoryBytes is the budget for everything in DRAM: objects, their metadata, files of their own, staging. A 64th,
	// 4 MiB at least, stays for metadata and files to grow, and metadata takes 2 MiB at least: 64 MiB have room for 58 of
	// objects. Usage.LargestObject says how much there is for data. It is taken from the machine in the background,
	// starting at Open; where the machine has less, that is the budget until it has more. Addresses, and the size of the
	// segment's file, are taken for the budget twice, or for the budget and 512 MiB. At least MinMemoryBytes.
	// Default: 1 GiB
	MemoryBytes int64

	// SSDBytes is the most that the SSD tier takes. Default: 0, 90 % of what the file system has free at
	// Open, with what the tier already has
	SSDBytes int64

	// ShmDir is the tmpfs that memory with a Dir lives on. Default: /dev/shm
	ShmDir string

	// VolatileMemory keeps memory from surviving the process although there is a Dir: it costs the machine nothing once
	// the process is gone. Memory that an earlier store has left is taken over all the same. Default: false
	VolatileMemory bool

	// LeaseTTL is how long a get or an exists protects an object against eviction and unforced removal.
	// Default: 10 s
	LeaseTTL time.Duration

	// HighWatermark is the used share of memory, and of SSDBytes, above which eviction starts. Default: 0.90
	HighWatermark float64

	// EvictionRatio is the least share of capacity that one eviction frees. Default: 0.05
	EvictionRatio float64

	// FileBytes is the size from which an object may live in a file of its own. A multiple of 4096. Default: 1 MiB
	FileBytes int64

	// Offload says when objects are copied to the SSD tier. Default: OffloadOnEvict
	Offload Offload

	// PromoteAfter is how many reads from SSD within the recent past bring an object back to memory, 1 to 15;
	// negative never does. Default: 2
	PromoteAfter int

	// Repair opens a directory that Open refuses with ErrCorrupt, with what can be had of it: the readable records of the
	// catalogue, of which a copy is kept, and objects on the SSD tier whose bytes verify. Objects that were removed may be back.
	// Store.RepairReport says what was found. Default: false
	Repair bool

	// PutTimeout is how long an unfinished put without a sign of life holds its key. Default: 30 s
	PutTimeout time.Duration

	// Clock replaces the machine's clock, for tests. It must not go back. Default: nil, the machine's
	Clock func() time.Time
}

// Offload says when objects are copied to the SSD tier.
type Offload uint8

const (
	OffloadOnEvict Offload = iota // when memory needs the room, and ahead of that for the coldest
	OffloadEager                  // soon after every put
	OffloadNever                  // only durable puts and Sync write to the SSD tier
)

// MinMemoryBytes is the smallest Options.MemoryBytes.
const MinMemoryBytes = 16 << 20

const (
	defaultMemoryBytes  = 1 << 30
	defaultShmDir       = "/dev/shm"
	defaultLeaseTTL     = 10 * time.Second
	defaultHigh         = 0.90
	defaultRatio        = 0.05
	defaultFileBytes    = 1 << 20
	defaultPromoteAfter = 2
	defaultPutTimeout   = 30 * time.Second
	putReleaseTimeout   = 10 * time.Minute
)

// WithDefaults is o with everything that is zero set to its default, as Open does.
func (o Options) WithDefaults() Options {
	set(&o.MemoryBytes, defaultMemoryBytes)
	set(&o.ShmDir, defaultShmDir)
	set(&o.LeaseTTL, defaultLeaseTTL)
	set(&o.HighWatermark, defaultHigh)
	set(&o.EvictionRatio, defaultRatio)
	set(&o.FileBytes, defaultFileBytes)
	set(&o.PromoteAfter, defaultPromoteAfter)
	set(&o.PutTimeout, defaultPutTimeout)
	return o
}

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate reports everything that is wrong with the options at once.
func (o Options) Validate() error {
	o = o.WithDefaults()
	var errs []error
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrInvalidParams}, args...)...))
		}
	}
	bad(o.MemoryBytes < MinMemoryBytes, "Options.MemoryBytes %d, at least %d", o.MemoryBytes, int64(MinMemoryBytes))
	bad(o.MemoryBytes > 1<<45, "Options.MemoryBytes %d, at most %d", o.MemoryBytes, int64(1)<<45)
	bad(o.SSDBytes < 0, "Options.SSDBytes %d is negative", o.SSDBytes)
	bad(o.LeaseTTL < 0 || o.LeaseTTL > MaxSoftPin, "Options.LeaseTTL %v, 0 to %v", o.LeaseTTL, MaxSoftPin)
	bad(!(o.HighWatermark > 0 && o.HighWatermark <= 1), "Options.HighWatermark %v, above 0 to 1", o.HighWatermark)
	bad(!(o.EvictionRatio > 0 && o.EvictionRatio <= 1), "Options.EvictionRatio %v, above 0 to 1", o.EvictionRatio)
	bad(o.FileBytes < 4096 || o.FileBytes%4096 != 0, "Options.FileBytes %d, a multiple of 4096", o.FileBytes)
	bad(o.Offload > OffloadNever, "Options.Offload %d is unknown", o.Offload)
	bad(o.PromoteAfter > 15, "Options.PromoteAfter %d, at most 15", o.PromoteAfter)
	bad(o.PutTimeout < 0 || o.PutTimeout >= putReleaseTimeout, "Options.PutTimeout %v, below %v", o.PutTimeout, putReleaseTimeout)
	bad(!filepath.IsAbs(o.ShmDir), "Options.ShmDir %q is not absolute", o.ShmDir)
	return errors.Join(errs...)
}
