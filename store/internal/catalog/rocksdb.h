// The part of RocksDB that this package uses, as C functions. The C interface of RocksDB can neither replace the file system
// nor the logger, and a catalogue needs both: see guard.h.
#ifndef MOONCAKE_CATALOG_ROCKSDB_H
#define MOONCAKE_CATALOG_ROCKSDB_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct catalog_db catalog_db;
typedef struct catalog_scan catalog_scan;

enum { CATALOG_OK, CATALOG_FAILED, CATALOG_CORRUPT, CATALOG_NO_SPACE, CATALOG_LOCKED };

// The result of a call. text is NULL if code is CATALOG_OK, else the caller frees it.
typedef struct {
	int code;
	char *text;
} catalog_status;

typedef struct {
	size_t memtable_bytes, block_cache_bytes, max_wal_bytes, max_manifest_bytes;
	int max_memtables, max_open_files;
	int read_only; // writes nothing
	int salvage;   // skips damaged records of the log
	// For tests: the operation of this number that changes (or reads) a file fails with this errno, and with fail_all every
	// later one too. 0 is none.
	uint64_t fail_write, fail_read;
	int fail_errno, fail_all;
} catalog_options;

// Opens the database in dir, which exists. *db is NULL after an error.
catalog_status catalog_open(const char *dir, const catalog_options *options, catalog_db **db);

// Syncs the log and frees db, also after an error. The error is that of the sync, or the one that froze the database before.
catalog_status catalog_close(catalog_db *db);

// The error that froze the database, CATALOG_OK if none has.
catalog_status catalog_frozen(catalog_db *db);

// Writes a batch in RocksDB's encoding, see batch.go.
catalog_status catalog_write(catalog_db *db, const char *batch, size_t size, int sync);

// Sets *value to the value of a key, which the caller frees, or to NULL if there is none.
catalog_status catalog_get(catalog_db *db, const char *key, size_t key_size, char **value, size_t *value_size);

// Begins a scan of the keys from prefix on, as of this call. The caller ends it by catalog_scan_end.
catalog_scan *catalog_scan_begin(catalog_db *db, char prefix);
catalog_status catalog_scan_error(catalog_scan *scan);
void catalog_scan_end(catalog_scan *scan);

typedef struct {
	size_t used; // bytes of buf that were filled
	size_t need; // bytes of the next record, for which there was no room; 0 = there is none
} catalog_filled;

// Copies records [key length u32][value length u32][key][value] into buf as long as they fit and the key starts with prefix.
// The next call goes on where this one stopped.
catalog_filled catalog_fill(catalog_scan *scan, char prefix, char *buf, size_t cap);

// The least that C can do with each record: what the benchmark of Scan compares with.
size_t catalog_sum(catalog_scan *scan, char prefix);

// Rebuilds the manifest of the database in dir from its tables and logs.
catalog_status catalog_rebuild(const char *dir, const catalog_options *options);

// For tests: writes what is in memory into a table.
catalog_status catalog_flush(catalog_db *db);

// For tests: how many operations that change, or read, a file the database has made.
void catalog_operations(catalog_db *db, uint64_t *writes, uint64_t *reads);

#ifdef __cplusplus
}
#endif
#endif
