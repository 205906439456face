/* SPDX-License-Identifier: Apache-2.0
 *
 * mooncake.h: one store for KV cache and model weights, in the process that links libmooncake.so.
 *
 * Contents
 *   1  Conventions: results, errors, strings, ownership, threads, fork, signals, the ABI promise
 *   2  Library
 *   3  The 19 functions of the C++ Mooncake Store's store_c.h
 *   4  Store: open and close
 *   5  Objects: put, get, ranges, remove, stat, pins, groups, links
 *   6  Batches over packed keys
 *   7  Views, files, writers
 *   8  Sessions: reading and writing objects in pieces, layer by layer
 *   9  Operations: asynchronous batches and imports
 *  10  What the store holds and does: usage, counters, listing, explanations, events
 *  11  Weights: model revisions
 *
 * ---- 1 Conventions -------------------------------------------------------------------------------------------------
 *
 * Results. An int or int64_t that is negative is a MOONCAKE_E... code; what else it can be stands with each function.
 * Codes to -1999 are the C++ Mooncake Store's and mean what they mean there; codes from -2000 down are this library's.
 * A function says in its comment which codes are its own; beside those any can return
 *   MOONCAKE_EINTERNAL     our fault: a panic inside, with its text in mooncake_last_error
 *   MOONCAKE_EINVAL        an argument is NULL, too large, or does not fit another one; a handle is none or was closed;
 *                          a client is not set up
 *   MOONCAKE_EUNAVAILABLE  the store was closed meanwhile, or this process is a fork of the one that loaded the
 *                          library.
 * The 19 functions of section 3 keep their own rule for NULL arguments and handles, which is -1.
 *
 * Errors. mooncake_last_error gives the text for the last call of this thread that failed. A call that succeeds leaves
 * it alone. Batches return 0 when they ran; each item's code is in results, and the text is that of the first item that
 * failed for another reason than a missing key.
 *
 * Strings and keys. A const char * without a size ends with NUL. A key is any bytes, at most 4096, and comes with its
 * size; MOONCAKE_NUL as the size says that it ends with NUL. Whatever is passed in is copied, or not used any more,
 * when the call returns; only asynchronous operations use buffers and results for longer, until they are done.
 *
 * Ownership. Structs are the caller's. One with a handle must be new or closed when a function opens it: its handle is
 * overwritten, also by a failure. A handle inside one, or returned, is closed by the function that its comment
 * names, once; a second close is MOONCAKE_EINVAL and harmless. Memory in a ** argument is freed with mooncake_free.
 * Handles keep what they came from: a view outlives the close of its store.
 *
 * Structs that may grow start with struct_size. Set it to sizeof the struct; MOONCAKE_INIT(type) does, with every other
 * field zero, which is always the default. The library reads and writes no further than struct_size. Fields of a struct
 * that is passed in which this library does not know yet must be zero, else MOONCAKE_EINVAL.
 *
 * Threads. Every function can be called from any thread at any time, on the same handle too, except that a handle must
 * not be used after the call that closes it has returned; one that is has no effect but MOONCAKE_EINVAL. No function
 * calls back into the program.
 *
 * fork. A child made by fork has none of the library's threads. Every call in it returns MOONCAKE_EUNAVAILABLE at once
 * and mooncake_last_error says why; the parent is not affected. Memory of views is not mapped in the child. What execs
 * another program, as subprocess and posix_spawn do, is fine. Load the library after the fork, or start workers with
 * spawn.
 *
 * Signals. The library handles SIGSEGV, SIGBUS, SIGFPE and SIGPIPE, and passes on to what the program had in place when
 * it loaded the library, a handler or the default, what did not happen in library code; and SIGURG, with which it
 * interrupts its own threads. The dispositions of SIGINT, SIGTERM, SIGCHLD, SIGPROF, SIGABRT and the others stay the
 * program's, but that their handlers get SA_ONSTACK, since they may run on a thread of the library's.
 *
 * The ABI promise. Functions are never removed and never change their signature or meaning; structs grow at the end;
 * codes and enumerators keep their numbers. mooncake_abi_version grows by one with every release that adds something;
 * a program that needs what came with version N checks that the library has at least N. The SONAME is libmooncake.so
 * and will stay so. The library stays loaded once it is: dlclose does nothing.
 */
#ifndef MOONCAKE_H
#define MOONCAKE_H

#include <stddef.h>
#include <stdint.h>

#define MOONCAKE_ABI_VERSION 1

/* MOONCAKE_INIT(type) is a value of a struct that starts with struct_size: everything else is zero. */
#ifdef __cplusplus
template <class T> inline T mooncake_init_struct() {
    T t = T();
    t.struct_size = sizeof t;
    return t;
}
#define MOONCAKE_INIT(type) mooncake_init_struct<type>()
extern "C" {
#else
#define MOONCAKE_INIT(type) ((type){.struct_size = sizeof(type)})
#endif

/* MOONCAKE_NUL as the size of a key or a group says that it ends with NUL. */
#define MOONCAKE_NUL SIZE_MAX

#define MOONCAKE_MAX_KEY 4096        /* bytes of a key or a group */
#define MOONCAKE_MAX_BATCH (1 << 20) /* items of a batch, fragments of one and segments of one */

/* Codes. */
enum {
    MOONCAKE_OK = 0,
    MOONCAKE_EINTERNAL = -1,
    MOONCAKE_ENOSPACE = -200,       /* no room, and nothing may be evicted for it */
    MOONCAKE_EVERSION = -300,       /* written by a newer version */
    MOONCAKE_EKEY = -400,           /* empty or longer than MOONCAKE_MAX_KEY */
    MOONCAKE_EWRITE = -500,
    MOONCAKE_EINVAL = -600,
    MOONCAKE_ENOTWRITER = -601,     /* the put was taken over, committed or aborted already */
    MOONCAKE_EREPLICA = -702,       /* no readable replica of the wanted kind */
    MOONCAKE_ENOTREADY = -703,      /* only an unfinished put has this key; the revision is not READY */
    MOONCAKE_ENOTFOUND = -704,
    MOONCAKE_EEXISTS = -705,
    MOONCAKE_ELEASED = -706,        /* leased or being read; the revision is loaded */
    MOONCAKE_ELEASEEXPIRED = -707,
    MOONCAKE_EBUSY = -714,
    MOONCAKE_ECHECKSUM = -801,
    MOONCAKE_EUNAVAILABLE = -1010,  /* closed, not set up, or in a forked child */
    MOONCAKE_EMODE = -1011,         /* needs a directory, or RocksDB, that this store or build does not have */
    MOONCAKE_ENOTSUPPORTED = -1012,
    MOONCAKE_ENOFILE = -1100,
    MOONCAKE_EOPEN = -1101,
    MOONCAKE_EREAD = -1102,
    MOONCAKE_ELOCKED = -1105,       /* another process has the directory open */
    MOONCAKE_ETAMPERED = -1106,     /* a file that was handed out was changed */
    MOONCAKE_ECORRUPT = -1502,
    MOONCAKE_ENOTDURABLE = -1503,
    MOONCAKE_EPINNED = -2001,
    MOONCAKE_ENOGROUP = -2002,
    MOONCAKE_EINCOMPLETE = -2003,   /* committed before all of it was written */
    MOONCAKE_ECANCELED = -2005,
    MOONCAKE_ETIMEOUT = -2006,
    MOONCAKE_ESOURCE = -2101,       /* the source of an import is not a complete model */
    MOONCAKE_EDAMAGED = -2102,      /* a file of the revision is missing or damaged */
    MOONCAKE_EIMPORTING = -2103,    /* an import of the revision is running */
    MOONCAKE_ENOTENSOR = -2104
};

/* ---- 2 Library --------------------------------------------------------------------------------------------------- */

/* mooncake_abi_version is the MOONCAKE_ABI_VERSION that the library was built with. */
int mooncake_abi_version(void);

/* mooncake_last_error is the text for the last call of this thread that failed, "" before the first. It never is NULL
 * and stays valid until the next library call of this thread. */
const char *mooncake_last_error(void);

/* mooncake_last_error_code is the code that belongs to mooncake_last_error, 0 before the first. */
int mooncake_last_error_code(void);

/* mooncake_error_name is a code's name as the C++ Mooncake Store spells it, for example "OBJECT_NOT_FOUND", or
 * "UNKNOWN". The string is static. */
const char *mooncake_error_name(int code);

/* mooncake_free frees what a function has put into a ** argument. NULL is fine. */
void mooncake_free(void *p);

/* ---- 3 The 19 functions of store_c.h -------------------------------------------------------------------------------
 *
 * Names, layouts and results are the C++ Mooncake Store's: a program compiled against its header runs with this
 * library. What is different is where setup goes: see there. NULL handles and NULL required pointers are -1. Batches
 * return 0 when they ran, also if every key failed: read results_out. */

/* mooncake_store_t is a client of a store. Any number of threads can use one. */
typedef void *mooncake_store_t;

struct mooncake_replicate_config {
    size_t replica_num;              /* 0 is MOONCAKE_EINVAL; more than the store has places for is best effort */
    int with_soft_pin;               /* not 0: last in line for eviction for 30 minutes */
    int with_hard_pin;               /* not 0: never evicted; remove ends it all the same */
    const char **preferred_segments; /* for a cluster; NULL entries are skipped */
    size_t preferred_segments_count;
};
typedef struct mooncake_replicate_config mooncake_replicate_config_t;

/* mooncake_store_create makes a client that is not set up. NULL only when there are 65535 of them already. */
mooncake_store_t mooncake_store_create(void);

/* mooncake_store_destroy closes a client and ends its handle; NULL is fine. The last client of a pool closes the pool,
 * after calls in progress in other threads. */
void mooncake_store_destroy(mooncake_store_t store);

/* mooncake_store_setup connects a client.
 *
 * master_server_addr "" or "embedded" opens the store in this process, without a server, and "embedded:NAME" one beside
 * it under a name: clients of a process that say the same share one pool. The environment variable MOONCAKE_EMBEDDED=1
 * does so for every address, which then is the pool's name. NULL is "127.0.0.1:50051". An address of a master is
 * MOONCAKE_ENOTSUPPORTED in this version.
 *
 * The first client of a pool sets its memory: global_segment_size bytes, at least 16 MiB, for objects and their
 * metadata, taken from the machine in the background. Later clients share it; their sizes add nothing. The memory is
 * given back when the last client closes. local_buffer_size, protocol, device_name and metadata_server are for a
 * cluster: any value is accepted. local_hostname is what mooncake_store_get_hostname returns; without a port it gets
 * one. A second setup without a close is MOONCAKE_EINVAL. */
int mooncake_store_setup(mooncake_store_t store, const char *local_hostname, const char *metadata_server,
                         uint64_t global_segment_size, uint64_t local_buffer_size, const char *protocol,
                         const char *device_name, const char *master_server_addr);

/* mooncake_store_init_all is setup with "localhost:12345" and the default address. */
int mooncake_store_init_all(mooncake_store_t store, const char *protocol, const char *device_name,
                            uint64_t mount_segment_size);

/* mooncake_store_health_check: 0 healthy, 1 not set up or closed, 2 the store does not answer. */
int mooncake_store_health_check(mooncake_store_t store);

/* mooncake_store_put stores size bytes. A key that exists keeps its bytes and the result is 0. Size 0 is
 * MOONCAKE_EINVAL; no room is MOONCAKE_ENOSPACE. config NULL is one replica without pins. */
int mooncake_store_put(mooncake_store_t store, const char *key, const void *value, size_t size,
                       const mooncake_replicate_config_t *config);

/* mooncake_store_put_from is put, but that size 0 stores nothing and is 0. */
int mooncake_store_put_from(mooncake_store_t store, const char *key, void *buffer, size_t size,
                            const mooncake_replicate_config_t *config);

int mooncake_store_batch_put_from(mooncake_store_t store, const char **keys, void **buffers, const size_t *sizes,
                                  size_t count, const mooncake_replicate_config_t *config, int *results_out);

/* mooncake_store_get_into copies an object into a buffer, which may be larger, and returns its size.
 * MOONCAKE_ENOTFOUND, MOONCAKE_ENOTREADY, MOONCAKE_EINVAL for a buffer that is too small: it stays as it is. After any
 * other error its content is undefined. Protects the object for the lease time, 10 s. */
int64_t mooncake_store_get_into(mooncake_store_t store, const char *key, void *buffer, size_t size);

int mooncake_store_batch_get_into(mooncake_store_t store, const char **keys, void **buffers, const size_t *sizes,
                                  size_t count, int64_t *results_out);

/* mooncake_store_is_exist: 1 there is a readable object, which is protected for the lease time; 0 there is none. */
int mooncake_store_is_exist(mooncake_store_t store, const char *key);

int mooncake_store_batch_is_exist(mooncake_store_t store, const char **keys, size_t count, int *results_out);

/* mooncake_store_get_size is the size of an object or MOONCAKE_ENOTFOUND. Protects it for the lease time. */
int64_t mooncake_store_get_size(mooncake_store_t store, const char *key);

/* mooncake_store_get_hostname writes this client's name, host:port, and a NUL. -1 if that does not fit buf_len. */
int mooncake_store_get_hostname(mooncake_store_t store, char *buf_out, size_t buf_len);

/* mooncake_store_remove ends an object: MOONCAKE_ENOTFOUND, MOONCAKE_ELEASED unless force, MOONCAKE_ENOTREADY for a
 * key that only an unfinished put has, forced or not. Views of it keep its bytes. */
int mooncake_store_remove(mooncake_store_t store, const char *key, int force);

/* mooncake_store_remove_by_regex removes the objects whose key has a match of pattern anywhere in it, and returns how
 * many. The syntax is RE2's: no look-around, no back references; a pattern that does not parse is MOONCAKE_EINVAL.
 * What can't be removed is skipped. */
int64_t mooncake_store_remove_by_regex(mooncake_store_t store, const char *pattern, int force);

/* mooncake_store_remove_all removes all objects of the tenant that can be removed, and returns how many. */
int64_t mooncake_store_remove_all(mooncake_store_t store, int force);

/* mooncake_store_register_buffer and mooncake_store_unregister_buffer tell which memory transfers will use. An embedded
 * store copies inside the process and needs neither. MOONCAKE_EINVAL for memory that overlaps what this client has
 * registered, which stays as it is; the same range again is 0 and changes nothing. Unregistering what is not registered
 * is MOONCAKE_EINVAL. */
int mooncake_store_register_buffer(mooncake_store_t store, void *buffer, size_t size);
int mooncake_store_unregister_buffer(mooncake_store_t store, void *buffer);

/* ---- 4 Store: open and close ------------------------------------------------------------------------------------- */

enum { /* mooncake_store_options.offload */
    MOONCAKE_OFFLOAD_ON_EVICT = 0, /* when memory needs the room */
    MOONCAKE_OFFLOAD_EAGER = 1,    /* soon after every put */
    MOONCAKE_OFFLOAD_NEVER = 2     /* only durable puts and mooncake_store_sync write to the SSD tier */
};

typedef struct mooncake_store_options {
    size_t struct_size;
    const char *pool;         /* clients of this process that name the same pool share it. Default: that of dir, so that
                               * clients with the same dir share; without a dir "embedded" */
    const char *tenant;       /* keys and groups of different tenants never meet. Default: "default" */
    const char *dir;          /* holds the SSD tier and lets memory survive the process; one process at a time. Made, with
                               * its parents, if it is missing. Default, and "": memory only */
    uint64_t memory_bytes;    /* budget for everything in DRAM. At least 16 MiB. Default: 1 GiB */
    uint64_t ssd_bytes;       /* most that the SSD tier takes. Default: 90 % of what the file system has free */
    const char *shm_dir;      /* directory on a tmpfs, for memory with a dir; made if missing. Default: /dev/shm */
    int volatile_memory;      /* not 0: memory with a dir does not survive the process. Default: it does */
    int offload;              /* MOONCAKE_OFFLOAD_... */
    uint64_t lease_ttl_ms;    /* how long a get or exist protects an object. Default: 10000 */
    double high_watermark;    /* used share above which eviction starts. Default: 0.90 */
    double eviction_ratio;    /* least share that one eviction frees. Default: 0.05 */
    uint64_t file_bytes;      /* from this size an object may have a file of its own; n * 4096. Default: 1 MiB */
    int promote_after;        /* reads from SSD that bring an object back to memory, 1 to 15; < 0: never. Default: 2 */
    int dir_slots;            /* not 0: dir is shared by several processes: take the first of up to so many
                               * subdirectories slot-0, slot-1, ... that no process has open. At most 1024 */
    uint64_t put_timeout_ms;  /* how long an unfinished put without a sign of life holds its key. Default: 30000 */
    int join;                 /* not 0: if the pool is open take it as it is, whatever the other options say */
    const char *master;       /* of a cluster to join. Not supported yet: leave NULL */
} mooncake_store_options_t;

/* mooncake_store_open makes a client and opens the store in this process, or joins the pool if it is open. Who joins
 * may leave options at their defaults; one that says something else than the pool has is MOONCAKE_EINVAL. options may
 * be NULL. MOONCAKE_ELOCKED if another process has dir open, with its pid in the error. Close with
 * mooncake_store_destroy. */
int mooncake_store_open(const mooncake_store_options_t *options, mooncake_store_t *store_out);

/* mooncake_store_close closes a client but keeps its handle, which can be set up again. 0 also when it was closed. */
int mooncake_store_close(mooncake_store_t store);

/* mooncake_store_tenant makes another client of the same pool that sees another tenant. */
int mooncake_store_tenant(mooncake_store_t store, const char *tenant, mooncake_store_t *store_out);

/* mooncake_store_wait_ready waits until the whole memory budget was taken from the machine: 1, or 0 after timeout_ms,
 * or MOONCAKE_ENOSPACE if the machine refused the rest, with the reason; the store goes on with what it has. Negative
 * timeouts wait for ever, here and everywhere. */
int mooncake_store_wait_ready(mooncake_store_t store, int64_t timeout_ms);

/* mooncake_store_sync returns when every object that was there is on stable storage. MOONCAKE_EMODE without a dir. */
int mooncake_store_sync(mooncake_store_t store);

/* ---- 5 Objects --------------------------------------------------------------------------------------------------- */

enum { /* what an object is; the numbers are ObjectDataType's */
    MOONCAKE_TYPE_UNKNOWN = 0, MOONCAKE_TYPE_KVCACHE = 1, MOONCAKE_TYPE_TENSOR = 2, MOONCAKE_TYPE_WEIGHT = 3,
    MOONCAKE_TYPE_SAMPLE = 4, MOONCAKE_TYPE_ACTIVATION = 5, MOONCAKE_TYPE_GRADIENT = 6,
    MOONCAKE_TYPE_OPTIMIZER_STATE = 7, MOONCAKE_TYPE_METADATA = 8, MOONCAKE_TYPE_GENERAL = 9
};

enum { /* flags of reads; 0 verifies what crossed a tier or a restart */
    MOONCAKE_VERIFY_ALWAYS = 1,
    MOONCAKE_VERIFY_NEVER = 2,
    MOONCAKE_NO_LEASE = 4 /* exist only: neither a lease nor a use */
};

typedef struct mooncake_put_options {
    size_t struct_size;
    uint32_t type;            /* MOONCAKE_TYPE_... */
    int hard_pin;             /* never evicted until it is removed or unpinned */
    uint64_t soft_pin_ms;     /* last in line for eviction for so long, at most 24 h */
    const char *group;        /* objects of a group are leased and evicted together. NULL: none */
    size_t group_size;        /* bytes of group, or MOONCAKE_NUL */
    int durable;              /* return only when the object is on stable storage; MOONCAKE_EINVAL without a dir */
    int own_file;             /* in a file of its own, for mooncake_store_file; type WEIGHT always is */
    int replace;              /* take the place of an object that exists (upsert). Default: MOONCAKE_EEXISTS */
    int keep;                 /* a key that exists keeps its bytes and is 0, as in section 3; replace goes before it */
    size_t replica_num;       /* for a cluster. Default: 1 */
    const char *const *preferred_segments;
    size_t preferred_segments_count;
    const char *groups;       /* batches: a group for each key, packed like keys; overrides group. NULL: none */
    size_t groups_size;
    const uint32_t *group_sizes;
} mooncake_put_options_t;

/* mooncake_store_put_object stores size bytes under a key. options may be NULL. MOONCAKE_EEXISTS unless replace or
 * keep; MOONCAKE_EINVAL for size 0; MOONCAKE_ENOSPACE. */
int mooncake_store_put_object(mooncake_store_t store, const char *key, size_t key_size, const void *data, size_t size,
                              const mooncake_put_options_t *options);

/* mooncake_store_get_object is mooncake_store_get_into for any key. */
int64_t mooncake_store_get_object(mooncake_store_t store, const char *key, size_t key_size, void *buffer, size_t size,
                                  unsigned flags);

/* mooncake_store_get_copy returns an object's bytes in memory that mooncake_free frees. */
int mooncake_store_get_copy(mooncake_store_t store, const char *key, size_t key_size, unsigned flags, void **data_out,
                            size_t *size_out);

typedef struct mooncake_object_info {
    size_t struct_size;
    const char *key;          /* set by mooncake_list_next: valid until the next call on the list */
    size_t key_size;
    uint64_t size;            /* bytes */
    uint64_t generation;      /* grows with every put of the key */
    uint64_t digest;          /* XXH64 of the object's checksums, or of its bytes up to 64 KiB */
    uint32_t type;
    int hard_pin, durable, link, in_memory, on_ssd;
    int64_t soft_pin_ms;      /* what is left of the soft pin, 0 for none */
    int64_t lease_ms;         /* what is left of the lease. From here on only mooncake_store_stat knows */
    int64_t readers;          /* reads, views and files open now */
    char *group;              /* in: where to write the group, or NULL; out: the group, cut to group_capacity */
    size_t group_capacity;
    size_t group_size;        /* out: all of it */
} mooncake_object_info_t;

/* mooncake_store_stat describes an object, without a lease. MOONCAKE_ENOTFOUND, MOONCAKE_ENOTREADY. */
int mooncake_store_stat(mooncake_store_t store, const char *key, size_t key_size, mooncake_object_info_t *info);

/* mooncake_store_link makes target's bytes readable under a second key; they go with the last of the two. Of options
 * only pins, group and durable count. */
int mooncake_store_link(mooncake_store_t store, const char *key, size_t key_size, const char *target,
                        size_t target_size, const mooncake_put_options_t *options);

/* mooncake_store_set_pins changes an object's pins: hard_pin 1, 0, or -1 to leave it; soft_pin_ms from now, 0 ends it,
 * -1 leaves it. mooncake_store_set_group_pins does so for all members of a group in one step. */
int mooncake_store_set_pins(mooncake_store_t store, const char *key, size_t key_size, int hard_pin,
                            int64_t soft_pin_ms);
int mooncake_store_set_group_pins(mooncake_store_t store, const char *group, size_t group_size, int hard_pin,
                                  int64_t soft_pin_ms);

/* A list of keys in one block, freed with mooncake_free: the keys lie in data one after the other. */
typedef struct mooncake_key_list {
    size_t count;
    const char *data;
    const uint32_t *sizes;
} mooncake_key_list_t;

/* mooncake_store_group lists the members of a group, oldest first. None is an empty list. */
int mooncake_store_group(mooncake_store_t store, const char *group, size_t group_size, mooncake_key_list_t **keys_out);

/* mooncake_store_remove_group removes all members of a group in one step or, with MOONCAKE_ELEASED or
 * MOONCAKE_ENOTREADY that names one, none. MOONCAKE_ENOGROUP without members. keys_out may be NULL. */
int mooncake_store_remove_group(mooncake_store_t store, const char *group, size_t group_size, int force,
                                mooncake_key_list_t **keys_out);

/* ---- 6 Batches over packed keys ------------------------------------------------------------------------------------
 *
 * count keys lie in keys, keys_size bytes, one after the other. key_sizes gives the size of each; NULL says that each
 * ends with NUL (the last may lack it). Sizes that don't add up to keys_size are MOONCAKE_EINVAL and nothing is done.
 * Every batch returns 0 when it ran; results has count items. One result never depends on another. */

/* 1, 0 or a code for each. flags: MOONCAKE_NO_LEASE. */
int mooncake_store_batch_exist(mooncake_store_t store, const char *keys, size_t keys_size, const uint32_t *key_sizes,
                               size_t count, unsigned flags, int *results);

/* mooncake_store_batch_put stores key i from its buffers one after the other: buffer_counts[i] of them, or one each if
 * buffer_counts is NULL; buffers and sizes have the sum. 0 or a code for each. All that are durable become so with one
 * sync. */
int mooncake_store_batch_put(mooncake_store_t store, const char *keys, size_t keys_size, const uint32_t *key_sizes,
                             size_t count, void *const *buffers, const size_t *sizes, const uint32_t *buffer_counts,
                             const mooncake_put_options_t *options, int *results);

/* mooncake_store_batch_get reads object i into its buffers one after the other, which may be larger together. The size
 * of the object or a code for each. Buffers of a batch must not overlap. flags: MOONCAKE_VERIFY_... */
int mooncake_store_batch_get(mooncake_store_t store, const char *keys, size_t keys_size, const uint32_t *key_sizes,
                             size_t count, void *const *buffers, const size_t *sizes, const uint32_t *buffer_counts,
                             unsigned flags, int64_t *results);

/* mooncake_store_batch_get_ranges reads fragments: of object i the next fragment_counts[i] (NULL: one each) of sizes[j]
 * bytes from byte offsets[j] to buffers[j]. results has one item for each fragment: its size or a code. Ranges are
 * verified as whole reads are. Destinations that overlap are MOONCAKE_EINVAL, both of them. */
int mooncake_store_batch_get_ranges(mooncake_store_t store, const char *keys, size_t keys_size,
                                    const uint32_t *key_sizes, size_t count, void *const *buffers, const size_t *sizes,
                                    const uint64_t *offsets, const uint32_t *fragment_counts, unsigned flags,
                                    int64_t *results);

/* The size of each object, with a lease, or a code. */
int mooncake_store_batch_get_size(mooncake_store_t store, const char *keys, size_t keys_size, const uint32_t *key_sizes,
                                  size_t count, int64_t *results);

/* 0 or a code for each, as mooncake_store_remove. */
int mooncake_store_batch_remove(mooncake_store_t store, const char *keys, size_t keys_size, const uint32_t *key_sizes,
                                size_t count, int force, int *results);

/* ---- 7 Views, files, writers ------------------------------------------------------------------------------------- */

/* A view borrows an object's bytes in the store's memory. While it is open they are neither evicted nor moved, also if
 * the key is removed or replaced or the store closed. They are read-only: writing corrupts the store. */
typedef struct mooncake_view {
    size_t struct_size;
    uint64_t handle;          /* 0 when closed */
    const void *data;         /* the bytes if they are one piece, else NULL: see mooncake_view_segments */
    uint64_t size;
    size_t segment_count;
} mooncake_view_t;

typedef struct mooncake_segment {
    const void *data;
    size_t size;
} mooncake_segment_t;

/* mooncake_store_view opens a view. An object that is only on SSD is brought to memory first. One piece are objects up to
 * a 64th of memory_bytes, rounded down to a power of two between 2 and 64 MiB (16 MiB by default), and those in files of
 * their own. flags: MOONCAKE_VERIFY_... Close with mooncake_view_close. */
int mooncake_store_view(mooncake_store_t store, const char *key, size_t key_size, unsigned flags,
                        mooncake_view_t *view);

/* mooncake_store_batch_view opens many. views is an array of structs of view_size bytes each, whose struct_size need
 * not be set; results is 0 or a code for each, and only views with 0 are open. */
int mooncake_store_batch_view(mooncake_store_t store, const char *keys, size_t keys_size, const uint32_t *key_sizes,
                              size_t count, unsigned flags, mooncake_view_t *views, size_t view_size, int *results);

/* mooncake_view_segments writes up to capacity pieces and returns how many there are. */
int64_t mooncake_view_segments(const mooncake_view_t *view, mooncake_segment_t *segments, size_t capacity);

/* mooncake_view_close gives the bytes back and sets handle to 0. */
int mooncake_view_close(mooncake_view_t *view);

/* A file is a path at which an object's bytes can be opened, mapped or hard-linked by any program while it is open. It
 * is the store's own: open it read-only. */
typedef struct mooncake_file {
    size_t struct_size;
    uint64_t handle;          /* 0 when closed */
    const char *path;         /* valid until mooncake_file_close */
    uint64_t size;
    int tier;                 /* 0 memory, 1 SSD */
    int temporary;            /* made for this call: goes with its close */
} mooncake_file_t;

/* mooncake_store_file hands an object out as a file. Objects with a file of their own cost nothing, others are copied
 * to a memory file. Objects smaller than file_bytes are MOONCAKE_ENOTSUPPORTED: read them. */
int mooncake_store_file(mooncake_store_t store, const char *key, size_t key_size, unsigned flags,
                        mooncake_file_t *file);

/* mooncake_file_close gives the file back. MOONCAKE_ETAMPERED if it was changed meanwhile. */
int mooncake_file_close(mooncake_file_t *file);

/* A writer is an object of known size that is written in pieces and visible only when it is committed. */
typedef struct mooncake_writer *mooncake_writer_t;

/* mooncake_store_create_object reserves the key and the room. End with mooncake_writer_commit or mooncake_writer_abort;
 * a pause longer than put_timeout_ms lets others take the key over. */
int mooncake_store_create_object(mooncake_store_t store, const char *key, size_t key_size, uint64_t size,
                                 const mooncake_put_options_t *options, mooncake_writer_t *writer_out);

/* mooncake_writer_write appends. mooncake_writer_write_at writes anywhere; pieces may come in any order and from
 * several threads; what is written twice has one of the two. */
int mooncake_writer_write(mooncake_writer_t writer, const void *data, size_t size);
int mooncake_writer_write_at(mooncake_writer_t writer, uint64_t offset, const void *data, size_t size);

/* mooncake_writer_commit makes the object visible and ends the handle, whatever it returns. MOONCAKE_EINCOMPLETE if
 * bytes are missing, MOONCAKE_ENOTWRITER if the put was taken over: nothing was stored then. */
int mooncake_writer_commit(mooncake_writer_t writer);

/* mooncake_writer_abort gives the room back and ends the handle. */
int mooncake_writer_abort(mooncake_writer_t writer);

/* ---- 8 Sessions ----------------------------------------------------------------------------------------------------
 *
 * A session keeps what a key stands for inside the client, so that an engine moves an object layer by layer without
 * asking for it again. Sessions belong to a client; closing it ends them: what was not sealed is not stored. At most
 * MOONCAKE_MAX_BATCH of a kind. Keys are packed as in section 6. */

/* mooncake_store_get_session_start holds objects for reading: 0, MOONCAKE_ENOTFOUND, ... for each. They are neither
 * evicted nor changed until the session ends. Starting a key again is 0 and reads what the key stands for now. */
int mooncake_store_get_session_start(mooncake_store_t store, const char *keys, size_t keys_size,
                                     const uint32_t *key_sizes, size_t count, int *results);

/* mooncake_store_get_session_read reads fragments of each key, as mooncake_store_batch_get_ranges but for results:
 * count items, the bytes of all the key's fragments or a code. MOONCAKE_EINVAL without a session. */
int mooncake_store_get_session_read(mooncake_store_t store, const char *keys, size_t keys_size,
                                    const uint32_t *key_sizes, size_t count, void *const *buffers, const size_t *sizes,
                                    const uint64_t *offsets, const uint32_t *fragment_counts, int64_t *results);

/* mooncake_store_get_session_end ends sessions; keys without one are skipped. 0. */
int mooncake_store_get_session_end(mooncake_store_t store, const char *keys, size_t keys_size,
                                   const uint32_t *key_sizes, size_t count);

/* mooncake_store_put_session_start reserves keys for objects of these sizes: MOONCAKE_EEXISTS if the object exists,
 * MOONCAKE_EINVAL if this client has a session for it. options may be NULL. */
int mooncake_store_put_session_start(mooncake_store_t store, const char *keys, size_t keys_size,
                                     const uint32_t *key_sizes, size_t count, const uint64_t *sizes,
                                     const mooncake_put_options_t *options, int *results);

/* mooncake_store_put_session_write writes fragments, in any order and from any thread. 0 or a code for each key. */
int mooncake_store_put_session_write(mooncake_store_t store, const char *keys, size_t keys_size,
                                     const uint32_t *key_sizes, size_t count, void *const *buffers, const size_t *sizes,
                                     const uint64_t *offsets, const uint32_t *fragment_counts, int *results);

/* mooncake_store_put_session_end makes the objects visible: MOONCAKE_EINCOMPLETE if bytes are missing, and then nothing
 * is stored. mooncake_store_put_session_revoke gives them up. Both end the sessions. */
int mooncake_store_put_session_end(mooncake_store_t store, const char *keys, size_t keys_size,
                                   const uint32_t *key_sizes, size_t count, int *results);
int mooncake_store_put_session_revoke(mooncake_store_t store, const char *keys, size_t keys_size,
                                      const uint32_t *key_sizes, size_t count, int *results);

/* ---- 9 Operations --------------------------------------------------------------------------------------------------
 *
 * An operation is a call that runs on its own. Buffers and results that it was given are used until it is done. */
typedef struct mooncake_operation *mooncake_operation_t;

/* The asynchronous forms of mooncake_store_batch_put and mooncake_store_batch_get. Arguments are checked before they
 * return; then the keys are copied. Not done items of a cancelled batch are MOONCAKE_ECANCELED. */
int mooncake_store_batch_put_async(mooncake_store_t store, const char *keys, size_t keys_size,
                                   const uint32_t *key_sizes, size_t count, void *const *buffers, const size_t *sizes,
                                   const uint32_t *buffer_counts, const mooncake_put_options_t *options, int *results,
                                   mooncake_operation_t *operation_out);
int mooncake_store_batch_get_async(mooncake_store_t store, const char *keys, size_t keys_size,
                                   const uint32_t *key_sizes, size_t count, void *const *buffers, const size_t *sizes,
                                   const uint32_t *buffer_counts, unsigned flags, int64_t *results,
                                   mooncake_operation_t *operation_out);

/* mooncake_operation_poll: 1 done, 0 running. */
int mooncake_operation_poll(mooncake_operation_t operation);

/* mooncake_operation_wait waits up to timeout_ms: 1 done, 0 running. */
int mooncake_operation_wait(mooncake_operation_t operation, int64_t timeout_ms);

/* mooncake_operation_result is what the synchronous form would have returned; its error text is in mooncake_last_error.
 * MOONCAKE_ENOTREADY while it runs. */
int mooncake_operation_result(mooncake_operation_t operation);

/* mooncake_operation_eventfd is a descriptor that poll(2) finds readable once the operation is done. It belongs to the
 * operation: don't close it. */
int mooncake_operation_eventfd(mooncake_operation_t operation);

/* mooncake_operation_cancel asks the operation to end early and returns at once; wait for the end as usual. */
int mooncake_operation_cancel(mooncake_operation_t operation);

/* mooncake_operation_free ends the handle. One that runs is cancelled and waited for: when this returns, nothing
 * touches its buffers and results any more. */
int mooncake_operation_free(mooncake_operation_t operation);

/* ---- 10 What the store holds and does ---------------------------------------------------------------------------- */

typedef struct mooncake_usage {
    size_t struct_size;
    int64_t objects[10];         /* by MOONCAKE_TYPE_..., links included */
    int64_t memory_count[10], memory_bytes[10];
    int64_t ssd_count[10], ssd_bytes[10];
    int64_t hard_pinned, groups;
    int64_t reserved_bytes;      /* of unfinished puts */
    int64_t in_use_bytes;        /* removed or replaced, but still read */
    int64_t memory_budget, memory_taken;
    int64_t data_capacity, data_free, largest_free;
    int64_t own_files_bytes, metadata_bytes, index_bytes;
    int64_t ssd_limit, ssd_live, ssd_on_disk;
    int growing;                 /* the machine still gives memory */
} mooncake_usage_t;

/* mooncake_store_usage adds up what the pool holds, of all tenants. */
int mooncake_store_usage(mooncake_store_t store, mooncake_usage_t *usage);

typedef struct mooncake_counters {
    size_t struct_size;
    int64_t puts, put_bytes;
    int64_t memory_hits, memory_hit_bytes, ssd_hits, ssd_hit_bytes, misses;
    int64_t removed, quarantined;
    int64_t evictions, evictions_freed, evictions_leased;
    int64_t memory_evicted, memory_evicted_bytes, ssd_evicted, ssd_evicted_bytes;
    int64_t offloaded, offloaded_bytes, offload_failures;
    int64_t promotions, promoted_bytes, promotion_failures, promotions_dropped;
    int64_t allocation_failures;
    int64_t restored_from_memory, restored_from_ssd, corrupt_records, events_dropped;
} mooncake_counters_t;

/* mooncake_store_counters: what happened since the pool was opened. */
int mooncake_store_counters(mooncake_store_t store, mooncake_counters_t *counters);

/* mooncake_store_room: how many bytes a tier (0 memory, 1 SSD) could take now, and how many more if all left it that
 * may. */
int mooncake_store_room(mooncake_store_t store, int tier, int64_t *free_out, int64_t *evictable_out);

/* mooncake_store_explain tells what the store did to a key by itself, oldest first, as JSON:
 * [{"time": RFC 3339, "what": ..., "tier": "memory" or "ssd", "reason": ...}, ...]. Free with mooncake_free. */
int mooncake_store_explain(mooncake_store_t store, const char *key, size_t key_size, char **json_out);

/* A list walks over the objects whose key starts with a prefix, in no order. Grants no leases. */
typedef struct mooncake_list *mooncake_list_t;
int mooncake_store_list(mooncake_store_t store, const char *prefix, size_t prefix_size, mooncake_list_t *list_out);

/* mooncake_list_next: 1 and the next object, or 0 at the end. info->key is valid until the next call on the list. */
int mooncake_list_next(mooncake_list_t list, mooncake_object_info_t *info);
int mooncake_list_close(mooncake_list_t list);

enum { /* mooncake_event.kind */
    MOONCAKE_EVENT_PUT = 1, MOONCAKE_EVENT_REMOVED = 2, MOONCAKE_EVENT_EVICTED = 3, MOONCAKE_EVENT_DEMOTED = 4,
    MOONCAKE_EVENT_QUARANTINED = 5, MOONCAKE_EVENT_DROPPED = 6
};

typedef struct mooncake_event {
    size_t struct_size;
    int kind;
    int tier;                 /* 0 memory, 1 SSD: which one an evicted, demoted or quarantined object left */
    uint32_t type;
    uint64_t size;            /* of the object; of MOONCAKE_EVENT_DROPPED how many events are missing here */
    const char *key;          /* key and tenant are valid until the next call on the subscription */
    size_t key_size;
    const char *tenant;
} mooncake_event_t;

/* A subscription to what happens to the objects of all tenants. buffer is how many events it holds, 1 to 1048576; when
 * the program is too slow the rest is dropped and counted; MOONCAKE_EVENT_DROPPED says so, a second later at most once
 * there is room. */
typedef struct mooncake_events *mooncake_events_t;
int mooncake_store_events(mooncake_store_t store, size_t buffer, mooncake_events_t *events_out);

/* mooncake_events_next: 1 and an event, 0 after timeout_ms without one, MOONCAKE_EUNAVAILABLE when the store is closed
 * and no event is left. One thread at a time. */
int mooncake_events_next(mooncake_events_t events, int64_t timeout_ms, mooncake_event_t *event);

/* mooncake_events_eventfd is a descriptor that poll(2) finds readable while events wait, or the store is closed. It
 * belongs to the subscription. */
int mooncake_events_eventfd(mooncake_events_t events);
int mooncake_events_close(mooncake_events_t events);

/* ---- 11 Weights ----------------------------------------------------------------------------------------------------
 *
 * A revision of a model is a set of files, named by model_id and revision, that is imported once, never changes, and is
 * there whole or not at all. */
typedef struct mooncake_weight *mooncake_weight_t;

typedef struct mooncake_weight_options {
    size_t struct_size;
    const char *load_dir;          /* where load makes directories. Default: "loads" in the store's dir */
    uint64_t unfinished_ttl_ms;    /* how long an interrupted import can be resumed. Default: 24 h */
} mooncake_weight_options_t;

/* mooncake_weight_open gives access to the revisions of a client's tenant. Clients of a pool and tenant share it;
 * options of all but the first must be default or equal. options may be NULL. It keeps the pool open. */
int mooncake_weight_open(mooncake_store_t store, const mooncake_weight_options_t *options,
                         mooncake_weight_t *weight_out);

/* mooncake_weight_close ends the handle. The last one of a pool and tenant ends imports that still run, which stay
 * resumable, and gives up the directories that are still loaded. */
int mooncake_weight_close(mooncake_weight_t weight);

typedef struct mooncake_weight_import {
    size_t struct_size;
    const char *model_id;          /* required */
    const char *revision;          /* required */
    const char *source;            /* required: a local directory or a file:// URI */
    const char *const *include;    /* patterns of file names to take that are left out otherwise, see below */
    size_t include_count;
    const char *const *exclude;    /* patterns of file names to leave out; they beat include */
    size_t exclude_count;
    int code;                      /* no effect: the model's Python files are always taken */
    int unpinned;                  /* let the store evict the revision */
    int memory_only;               /* in a store with a dir: does not survive the machine's restart */
    int parallel;                  /* files read at a time, at most 8. Default: 2 */
    size_t replica_num;            /* for a cluster. Default: 1 */
    int follow_links;              /* take what symbolic links out of source lead to. Default: such a link is an error */
} mooncake_weight_import_t;

/* Every file of source is taken except those that are known not to be needed: the same weights in another format, version
 * control, caches, training state. The result and the manifest name each in "skipped", with the reason. A pattern is one of
 * glob(7), for a whole name or its last element; with a slash at its end it is for all files below a folder. A pattern that
 * matches no file is MOONCAKE_EINVAL, the exclusion of a file that another one needs MOONCAKE_ESOURCE.
 *
 * mooncake_weight_import starts an import, or joins the same one that runs. The operation is cancelled for this caller
 * only, and that of the last caller is done when nothing reads the source any more. What is stored stays for the next
 * import of the revision. Result codes: MOONCAKE_ESOURCE, MOONCAKE_EEXISTS (the revision exists with other bytes),
 * MOONCAKE_ENOSPACE, MOONCAKE_ECANCELED, ... */
int mooncake_weight_import(mooncake_weight_t weight, const mooncake_weight_import_t *request,
                           mooncake_operation_t *operation_out);

enum { /* mooncake_weight_progress.phase */
    MOONCAKE_IMPORT_LISTING = 1, MOONCAKE_IMPORT_CHECKING = 2, MOONCAKE_IMPORT_IMPORTING = 3,
    MOONCAKE_IMPORT_COMPARING = 4, MOONCAKE_IMPORT_DONE = 5
};

typedef struct mooncake_weight_progress {
    size_t struct_size;
    int phase;                     /* MOONCAKE_IMPORT_..., 0 before the first */
    int64_t files, files_done, files_reused;
    int64_t bytes, bytes_done, bytes_read;
    int64_t elapsed_ms;
} mooncake_weight_progress_t;

/* mooncake_weight_import_progress can be called at any time before the operation is freed. */
int mooncake_weight_import_progress(mooncake_operation_t operation, mooncake_weight_progress_t *progress);

/* mooncake_weight_import_result is the JSON of what a done import did: {"manifest": ..., "skipped": [...],
 * "bytes_read": n, "files_resumed": n, "files_linked": n, "existed": bool}. The operation's code if it failed. */
int mooncake_weight_import_result(mooncake_operation_t operation, char **json_out);

/* JSON of a revision's manifest; of a check; of the revisions of a model (model_id NULL: of all), an array; of what READY
 * revisions take, {"revisions": [{"ref": ..., "bytes": n, "shared": n}, ...], "total_bytes": n}. mooncake_weight_check
 * returns MOONCAKE_EDAMAGED if something is wrong, and sets the report whenever there is one; deep reads every byte. Free
 * with mooncake_free. */
int mooncake_weight_manifest(mooncake_weight_t weight, const char *model_id, const char *revision, char **json_out);
int mooncake_weight_check(mooncake_weight_t weight, const char *model_id, const char *revision, int deep,
                          char **json_out);
int mooncake_weight_list(mooncake_weight_t weight, const char *model_id, char **json_out);
int mooncake_weight_usage(mooncake_weight_t weight, char **json_out);

/* mooncake_weight_delete removes a READY revision. MOONCAKE_ELEASED while it is loaded, with who has it.
 * mooncake_weight_abort removes what an unfinished import has stored. */
int mooncake_weight_delete(mooncake_weight_t weight, const char *model_id, const char *revision);
int mooncake_weight_abort(mooncake_weight_t weight, const char *model_id, const char *revision);

/* A loaded revision: a directory of its files under their own names, at the same path each time, whose last element
 * tells model and revision. Large files are the store's own, hard-linked: no byte is copied. */
typedef struct mooncake_loaded {
    size_t struct_size;
    uint64_t handle;               /* 0 when closed */
    const char *dir;               /* valid until it is closed */
    int lock_fd;                   /* a program that inherits this descriptor keeps the directory until it ends */
} mooncake_loaded_t;

/* mooncake_weight_load makes the directory. verify reads and compares every byte first. While it is open the revision
 * can't be deleted. */
int mooncake_weight_load(mooncake_weight_t weight, const char *model_id, const char *revision, int verify,
                         mooncake_loaded_t *loaded);

/* mooncake_loaded_close gives the directory up; MOONCAKE_ETAMPERED if a file of it that is the store's own, of file_bytes
 * and more, was changed. Smaller ones are copies, made anew by each first load. */
int mooncake_loaded_close(mooncake_loaded_t *loaded);

/* mooncake_loaded_hand_out lets another user read the directory, until it goes: nobody but the store's user can otherwise.
 * user is a name, or a number that may have ":group" behind it. It needs POSIX access control lists, and files that are
 * the store's own, hard-linked. MOONCAKE_EINVAL names what is in the way, such as a directory above the store's dir that
 * the user can't enter. */
int mooncake_loaded_hand_out(const mooncake_loaded_t *loaded, const char *user);

/* mooncake_loaded_detach is close, but that the directory stays for whoever has *fd_out open or inherits it: the
 * program that this process turns into by exec, also if that closes it. MOONCAKE_EINVAL, and it stays loaded, if the bytes
 * are only in this process's memory. */
int mooncake_loaded_detach(mooncake_loaded_t *loaded, int *fd_out);

/* One file of a revision, read by offset. */
typedef struct mooncake_weight_file *mooncake_weight_file_t;
int mooncake_weight_open_file(mooncake_weight_t weight, const char *model_id, const char *revision, const char *name,
                              mooncake_weight_file_t *file_out);
int64_t mooncake_weight_file_size(mooncake_weight_file_t file);

/* mooncake_weight_file_read_at reads up to size bytes from offset and returns how many: fewer only at the end. */
int64_t mooncake_weight_file_read_at(mooncake_weight_file_t file, void *buffer, size_t size, uint64_t offset);
int mooncake_weight_file_close(mooncake_weight_file_t file);

typedef struct mooncake_tensor {
    const char *name;
    const char *dtype;             /* as safetensors spells it: F32, BF16, ... */
    const int64_t *shape;
    size_t dims;
    const char *file;              /* of the revision */
    uint64_t offset;               /* of its bytes in the file */
    uint64_t size;                 /* bytes */
} mooncake_tensor_t;

/* A list of tensors in one block, freed with mooncake_free. Tensor i is at (const char *)tensors + i * tensor_size. */
typedef struct mooncake_tensor_list {
    size_t count;
    size_t tensor_size;
    const mooncake_tensor_t *tensors;
} mooncake_tensor_list_t;

/* mooncake_weight_tensors lists the tensors of a READY revision's safetensors files, by file and offset. A name that only
 * the metadata of its file gives to a tensor (tied weights) is an entry with the same bytes. Where files have tensors of the
 * same name, FILE:NAME is the name of one of them. */
int mooncake_weight_tensors(mooncake_weight_t weight, const char *model_id, const char *revision,
                            mooncake_tensor_list_t **tensors_out);

/* mooncake_weight_read_tensor copies a tensor's bytes into a buffer, which may be larger, and returns their number.
 * MOONCAKE_ENOTENSOR. */
int64_t mooncake_weight_read_tensor(mooncake_weight_t weight, const char *model_id, const char *revision,
                                    const char *name, void *buffer, size_t size);

/* mooncake_weight_view_tensor borrows a tensor's bytes. Close with mooncake_view_close. */
int mooncake_weight_view_tensor(mooncake_weight_t weight, const char *model_id, const char *revision, const char *name,
                                mooncake_view_t *view);

#ifdef __cplusplus
}
#endif

#endif /* MOONCAKE_H */
