package store

import (
	"time"

	"github.com/kvcache-ai/mooncake-go/store/internal/master"
)

// ObjectType says what an object is; the numbers are the C++ Mooncake Store's ObjectDataType.
type ObjectType uint8

const (
	Unknown ObjectType = iota
	KVCache
	Tensor
	Weight
	Sample
	Activation
	Gradient
	OptimizerState
	Metadata
	General
)

// Types is the number of object types.
const Types = master.Kinds

var typeNames = [Types]string{"UNKNOWN", "KVCACHE", "TENSOR", "WEIGHT", "SAMPLE", "ACTIVATION", "GRADIENT",
	"OPTIMIZER_STATE", "METADATA", "GENERAL"}

func (t ObjectType) String() string {
	if int(t) < len(typeNames) {
		return typeNames[t]
	}
	return "INVALID"
}

// Limits of the API.
const (
	MaxKeyBytes    = master.MaxKeyBytes
	MaxTenantBytes = master.MaxTenantBytes
	MaxGroupBytes  = master.MaxGroupBytes
	MaxBatch       = 1 << 20        // items of one batch call
	MaxSoftPin     = 24 * time.Hour // longest soft pin
)

// PutOptions describes an object that is put. The zero value is an ordinary cache entry.
type PutOptions struct {
	Type ObjectType // Default: Unknown

	// HardPin keeps the object out of every eviction until it is removed or unpinned. Default: false
	HardPin bool

	// SoftPin puts the object last in line for eviction for so long, at most MaxSoftPin. Default: 0, none
	SoftPin time.Duration

	// Group ties objects together: they share one lease and are evicted together or not at all. Fixed for the life of
	// the object. Default: "", none
	Group string

	// Durable makes the put return only when the object, then its metadata, are on stable storage. Needs Options.Dir.
	// Default: false
	Durable bool

	// OwnFile places an object of at least Options.FileBytes in a file of its own, so that File needs no copy. A store
	// without a directory has a memfd for each, at most a quarter of RLIMIT_NOFILE; what is over it lies with the other
	// objects, and File copies it. Objects of type Weight are placed so always; smaller ones that are Durable go to the SSD tier without taking memory, which
	// a hard pin would keep from being given back. Default: false
	OwnFile bool

	// Replace lets the put take the place of an object that exists; readers see the old whole or the new whole. Pins
	// and group of the old object stay if these options have none. Default: false, such a put is ErrExists
	Replace bool

	// Replicas and PreferredSegments are for a cluster. An embedded store has one place for an object: it takes any
	// count as best effort and ignores the segments. Default: 1, none
	Replicas          int
	PreferredSegments []string
}

// Verify says which reads compare what they read with the object's checksums.
type Verify uint8

const (
	// VerifyAuto verifies what crossed a tier or a restart since it was put: every read from SSD, and the first read
	// of memory that survived another process.
	VerifyAuto Verify = iota
	VerifyAlways
	VerifyNever
)

// ReadOptions changes how one read is done. Nil means the zero value.
type ReadOptions struct {
	Verify Verify // Default: VerifyAuto
}

// Tier is a place that replicas are in.
type Tier uint8

const (
	TierMemory Tier = iota
	TierSSD
)

func (t Tier) String() string { return [...]string{"memory", "ssd"}[t] }

// Info describes a committed object.
type Info struct {
	Key        string
	Size       int64
	Type       ObjectType
	Generation uint64
	Digest     uint64 // XXH64 of the object's chunk table, or of its bytes when they are one chunk of 64 KiB or less
	Group      string // only from Stat
	HardPin    bool
	SoftPin    time.Time // end of the soft pin; zero when there is none
	Durable    bool
	Link       bool      // shares the bytes of another key
	InMemory   bool      // has a readable replica in memory
	OnSSD      bool      // has a readable replica on SSD
	Lease      time.Time // end of the read lease; only from Stat
	Readers    int       // reads, views and files open now; only from Stat
}
