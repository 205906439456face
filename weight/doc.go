// Package weight keeps model revisions in the store: a model goes in once, file by file, and an inference engine starts
// from the store without touching the original files. It follows the RFC "Unified KVCache and model weight management"
// (kvcache-ai/Mooncake#2282), phase 1.
//
// # What a revision is in the store
//
// Each file of a revision is one object of type WEIGHT, hard pinned; all are members of one group. An empty file lives
// in the manifest alone. The manifest is a METADATA object, written last: a revision is READY exactly when its manifest
// exists, and it never changes afterwards. While an import runs, or was interrupted, a METADATA object called the
// record says so, and one called a receipt stands for each file that is completely stored.
//
//	weight:{model_id}:{revision}:file:{file_name}     a file
//	weight:{model_id}:{revision}:manifest             the manifest
//	weight:{model_id}:{revision}:record               an import that has not finished, or a deletion that has not
//	weight:{model_id}:{revision}:receipt:{file_name}  what is known of a file that an unfinished import stored
//
// # What a crash leaves
//
//	before the record            nothing
//	record, some files           IMPORTING: invisible to Load; the next import goes on, Abort removes it
//	manifest, record still there READY; Open removes record and receipts
//	record says deleting         Open finishes the deletion
//
// # Who can read a load directory, and who keeps it
//
// Everything of the store belongs to its user, and nobody else can read it. A load directory can be handed out to one
// other user (LoadOptions.User): by access control lists, on exactly its files and the way to them, until it goes. Limits:
// he may copy what he reads, and keeps what he has open or mapped; a hand-out to an engine that this process turned into is
// taken back by the next Open (any command) after the engine's end, since no process of ours is left to notice it.
//
// A directory is in use while a process holds the lock's descriptor, while one that detached it lives, in whatever
// program (told by pid, start time, boot and pid namespace), and while any other process has a file of it open or mapped,
// or works in it. Not seen is a process that went on in a child without the descriptor and has no file of it open, and
// one of another pid namespace that can't be looked into from here, or of another user if this one is not root, unless it
// has the descriptor. Then run the engine in the foreground, or let it inherit LockFile.
//
// The store owns the bytes, their tiers and their checksums; this package never touches replicas or segments.
package weight
