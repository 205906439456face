// Package master is the metadata authority: which keys exist, in which generation, committed or not, with which pins,
// groups and leases, and which bytes of which segment or file hold them. It is a state machine: commands and the
// time come in as arguments, results and effects go out; it does no I/O and reads no clock. The embedded store calls
// it directly, a client in another process sits on the same methods.
//
// # Entry states
//
//	reserved   space is taken, the writer fills it; invisible to readers
//	committed  complete and visible
//	retired    no longer visible, but a reader, a writer or a lease given to another process still needs the bytes
//	held       no longer visible under its own key, but links share its bytes
//	free       the record and its space may be reused
//
// reserve makes a record, commit makes it visible with one atomic store of its word, and everything that ends a
// record goes through retire, which frees it at once or when the last user lets go. Put refuses a key that exists;
// a replacing put writes the new generation beside the old one and commit swaps them under the key's shard lock, so
// a reader sees the old whole or the new whole. A generation is given out at reserve and only grows; a replacing
// commit that finds a newer generation committed counts as having happened before it.
//
// # Where records live
//
// A record is a fixed header, the key and the extents, in memory that the owner lends (the metadata region of a
// shared-memory segment), so that it survives the process. Nothing in it is a Go pointer. The index is slices of
// integers on the heap. After a crash Restore reads the records back: a committed record whose own checksum holds
// and whose extents can still be claimed returns, flagged unverified; anything else is dropped.
//
// # Locks
//
// A shard lock guards the index slots and the records of the keys that hash to it. Several shard locks are taken in
// ascending order. Inside a shard lock the locks of a page pool, an allocator and the lists of a Master may be taken,
// never two of them at once. The reader count, the lease and the last use of a record change without a lock, by
// atomic operations; a pin on a record is only ever taken under its shard lock, which is why a record that has no
// readers there can be freed. Scans, and commands that name a record by its ref, look at it first without any lock
// (memory.glance), and then ask the index under the lock of the shard that its hash names whether the ref still is
// that record. Group membership is guarded by the shard lock of the group's record, the chain of
// links by that of the owner's. No command holds locks for longer than a few records take: what concerns all members of a
// group goes through them in steps (walk), and a group is removed in one instant by a change of its record, after which no
// look-up finds a member, whether or not its record has been taken away yet.
package master
