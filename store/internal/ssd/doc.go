// Package ssd keeps the SSD tier's files below one directory: append-only containers of many records, and data files of
// their own for objects that are handed out by path. It knows nothing of what keys mean, of leases, policy or the
// catalogue: a caller remembers the Loc that Append returned, and gives it back to Read and Free.
//
// # Files
//
//	TIER          version, store id and the lowest file id never given out; replaced by rename
//	%08x.log      a container: a header block, then records
//	%08x.obj      the data of one object, its head is a record in a container
//
// Containers and data files share one sequence of ids, and an id is never used twice, even after a crash. All integers
// are little-endian. Each TIER file and container header is one block of 4 KiB that ends in the XXH64 of what precedes
// it. A record starts at a multiple of 64 bytes:
//
//	0   magic "MKRC"     4   version u16      6   type u8       7   zero
//	8   key length u32   12  own file id u32  16  size u64      24  generation u64
//	32  digest u64       40  chunks u32       44  file id u32   48  offset / 64 u32   52 zero
//	56  XXH64 of bytes 0-55, key and table
//	64  key, then the table: XXH64 of each 64 KiB chunk of the data, the last may be short
//
// The data follows at the next multiple of 64, or of 4096 when it is 64 KiB or longer, so that it can be read straight
// into aligned memory. A head names its own place, so a block that lands elsewhere does not verify.
//
// # Durability
//
// Blocks that hold an acknowledged record are never written again: each Append begins at a fresh 4 KiB block, so
// neither a torn write nor a failing one can touch what was stored before. A record is durable once a Sync that began
// after its Append has returned nil. A crash leaves records that were not synced absent or failing verification.
package ssd
