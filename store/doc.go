// Package store is one store for KV cache and model weights that a program embeds: typed objects in DRAM and on SSD,
// pins, leases and groups, and bytes that are either the ones that were put or an error.
//
// Open starts a store in this process with nothing beside it. With Options.Dir set, what is on the SSD tier, and
// what survived in shared memory, comes back at the next Open.
//
// # Objects
//
// An object is bytes under a key of a tenant, with a type, pins and at most one group, fixed at the put. It is
// immutable: Put refuses a key that exists, Upsert writes a new generation beside the old one and swaps, so that a
// reader sees the old whole or the new whole. Every put computes XXH64 per chunk of 64 KiB in the pass that copies;
// reads verify what crossed a tier or a restart, and everything with VerifyAlways. A replica that fails is not read
// again, and the next one is tried.
//
// # Who keeps what
//
//	Get, GetInto, Exists  lease it for Options.LeaseTTL: no eviction, no unforced Remove
//	View, File            hold its bytes until they are closed, also if the key is removed or replaced
//	SoftPin               last in line for eviction until it ends
//	HardPin               never evicted; Remove ends it all the same
//	Group                 its members share one lease and leave memory together or not at all; one with a link stays
//	Durable               the SSD replica is on stable storage when the put returns, and is never evicted
//	Link                  a second key for the same bytes, which go with the last key
//
// # What it keeps of a caller
//
// The store keeps no reference to keys, groups or bytes of a caller after a call returns, however it ends: it copies what
// it needs. So they may be in memory that is reused at once, of C for example. That holds for Create too, whose Writer
// has a copy of its key, and for each Write; for View and File; for what background work, Explain and Events tell later.
// What is written into buffers of a caller is written before the call returns, an error and a context that has ended
// included. What a call returns may share the strings it was given, such as Info.Key.
//
// # When it fails
//
// A bug in the store must not end the process of its host, nor go on with books that may be wrong. A panic in background
// work makes the store a failed one: Err tells why, with the stack, and every later operation returns that, an
// ErrInternal. A panic in a goroutine that works for one operation is that operation's error. A panic in the goroutine of
// a caller is the caller's, as in every Go program: who recovers it should call Fail. A failed store is closed as any
// other, and the next Open finds what a crash would have left.
//
// # Tiers
//
// Memory is one budget, Options.MemoryBytes: a segment of shared memory that is taken from the machine in the
// background, the metadata in it, and files of their own for large objects that ask for one. Above
// Options.HighWatermark the oldest objects without a lease leave it, to the SSD tier if there is a directory, else for
// good; Explain tells which and why. What is read from SSD again and again comes back.
//
// # What a crash leaves
//
// The order is: bytes on SSD, fdatasync, catalogue, master; backwards it is master, catalogue, sync, space. So after
// kill -9 at any instruction the directory opens; an acknowledged durable put is whole; an acknowledged removal of a
// durable object stays; everything else is whole or absent. After kill -9 alone, what was in shared memory is back too.
//
// # Copies of a directory
//
// Shared memory belongs to the directory and the state of it that left the memory. A copy, and a directory that was set
// back, start without it, with what is on SSD; a directory that was moved keeps it. Memory whose directory is gone is
// freed by the next Open that makes new memory, and by FreeLeftovers.
package store
