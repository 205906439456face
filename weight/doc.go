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
// The store owns the bytes, their tiers and their checksums; this package never touches replicas or segments.
package weight
