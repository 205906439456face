// SPDX-License-Identifier: Apache-2.0

// Section 4 of mooncake.h: open and close.

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

typedef mooncake_store_options_t options;

static int open_with(const options *o, mooncake_store_t *s) { return mooncake_store_open(o, s); }

static mooncake_usage_t usage_of(mooncake_store_t s) {
    mooncake_usage_t u = MOONCAKE_INIT(mooncake_usage_t);
    OK(mooncake_store_usage(s, &u));
    return u;
}

TEST(open_without_options) {
    mooncake_store_t s;
    OK(open_with(NULL, &s));
    EQ(usage_of(s).memory_budget, (int64_t)1 << 30);
    OK(mooncake_store_put(s, "k", "v", 1, NULL)); // while the memory is still being taken
    EQ(mooncake_store_wait_ready(s, -1), 1);
    EQ(usage_of(s).growing, 0);
    mooncake_store_destroy(s);
}

TEST(open_sets_each_option) {
    options o = MOONCAKE_INIT(options);
    o.pool = "p", o.tenant = "t", o.memory_bytes = 32 * MIB, o.lease_ttl_ms = 50, o.high_watermark = 0.5,
    o.eviction_ratio = 0.1, o.file_bytes = 8192, o.promote_after = -1, o.put_timeout_ms = 100,
    o.offload = MOONCAKE_OFFLOAD_NEVER;
    mooncake_store_t s, t;
    OK(open_with(&o, &s));
    EQ(usage_of(s).memory_budget, 32 * MIB);
    OK(mooncake_store_put(s, "k", "v", 1, NULL));
    EQ(mooncake_store_is_exist(s, "k"), 1);
    EQ(mooncake_store_remove(s, "k", 0), MOONCAKE_ELEASED);
    usleep(60000); // the lease of 50 ms
    OK(mooncake_store_remove(s, "k", 0));
    put(s, "file", 8192, 1);
    mooncake_file_t f = MOONCAKE_INIT(mooncake_file_t);
    OK(mooncake_store_file(s, "file", 4, 0, &f));
    OK(mooncake_file_close(&f));
    mooncake_writer_t w, v;
    OK(mooncake_store_create_object(s, "w", 1, 1, NULL, &w));
    ERROR(mooncake_store_create_object(s, "w", 1, 1, NULL, &v), MOONCAKE_EEXISTS, "somebody else is writing it");
    OK(mooncake_writer_write(w, "y", 1));
    usleep(200000); // the put timeout of 100 ms
    OK(mooncake_store_create_object(s, "w", 1, 1, NULL, &v));
    EQ(mooncake_writer_commit(w), MOONCAKE_ENOTWRITER);
    OK(mooncake_writer_write(v, "x", 1));
    OK(mooncake_writer_commit(v));
    options join = MOONCAKE_INIT(options);
    join.pool = "p", join.tenant = "t";
    OK(open_with(&join, &t)); // the defaults join
    EQ(mooncake_store_is_exist(t, "w"), 1);
}

TEST(open_refuses_bad_options) {
    mooncake_store_t s = (void *)&s;
    options o = MOONCAKE_INIT(options);
    o.memory_bytes = 1;
    ERROR(open_with(&o, &s), MOONCAKE_EINVAL, "memory_bytes");
    CHECK(s == NULL);
    o.memory_bytes = UINT64_MAX;
    ERROR(open_with(&o, &s), MOONCAKE_EINVAL, "memory_bytes");
    o = MOONCAKE_INIT(options), o.high_watermark = 2;
    EQ(open_with(&o, &s), MOONCAKE_EINVAL);
    o = MOONCAKE_INIT(options), o.eviction_ratio = -1;
    EQ(open_with(&o, &s), MOONCAKE_EINVAL);
    o = MOONCAKE_INIT(options), o.high_watermark = 0.0 / 0.0;
    EQ(open_with(&o, &s), MOONCAKE_EINVAL);
    o = MOONCAKE_INIT(options), o.file_bytes = 5000;
    EQ(open_with(&o, &s), MOONCAKE_EINVAL);
    o = MOONCAKE_INIT(options), o.promote_after = 16;
    EQ(open_with(&o, &s), MOONCAKE_EINVAL);
    o = MOONCAKE_INIT(options), o.offload = 3;
    ERROR(open_with(&o, &s), MOONCAKE_EINVAL, "offload is 3");
    o = MOONCAKE_INIT(options), o.offload = -1;
    EQ(open_with(&o, &s), MOONCAKE_EINVAL);
    o = MOONCAKE_INIT(options), o.dir_slots = 1025;
    ERROR(open_with(&o, &s), MOONCAKE_EINVAL, "dir_slots");
    o = MOONCAKE_INIT(options), o.dir_slots = -1;
    EQ(open_with(&o, &s), MOONCAKE_EINVAL);
    o = MOONCAKE_INIT(options), o.lease_ttl_ms = UINT64_MAX;
    ERROR(open_with(&o, &s), MOONCAKE_EINVAL, "lease_ttl_ms");
    o = MOONCAKE_INIT(options), o.put_timeout_ms = UINT64_MAX;
    ERROR(open_with(&o, &s), MOONCAKE_EINVAL, "put_timeout_ms");
    o = MOONCAKE_INIT(options), o.master = "10.0.0.1:50051";
    ERROR(open_with(&o, &s), MOONCAKE_ENOTSUPPORTED, "10.0.0.1:50051");
    o.master = "embedded"; // no master either: a pool is named by pool
    ERROR(open_with(&o, &s), MOONCAKE_ENOTSUPPORTED, "embedded");
    o = MOONCAKE_INIT(options), o.dir = "/dev/null/x";
    int code = open_with(&o, &s);
    CHECK(code < 0 && s == NULL);
    OK(open_with(NULL, &s)); // no failure leaves a pool behind
    EQ(usage_of(s).memory_budget, (int64_t)1 << 30);
    char tenant[300];
    memset(tenant, 't', sizeof tenant), tenant[299] = 0;
    o = MOONCAKE_INIT(options), o.tenant = tenant;
    EQ(open_with(&o, &s), MOONCAKE_EINVAL);
}

TEST(open_joins_a_pool_with_equal_options_only) {
    options o = MOONCAKE_INIT(options);
    o.memory_bytes = 64 * MIB;
    mooncake_store_t a, b, c;
    OK(open_with(&o, &a));
    OK(open_with(&o, &b));
    OK(mooncake_store_put(a, "k", "v", 1, NULL));
    EQ(mooncake_store_is_exist(b, "k"), 1);
    o.memory_bytes = 65 * MIB;
    ERROR(open_with(&o, &c), MOONCAKE_EINVAL, "memory_bytes");
    o.join = 1;
    OK(open_with(&o, &c));
    EQ(usage_of(c).memory_budget, 64 * MIB);
    o = MOONCAKE_INIT(options);
    o.lease_ttl_ms = 10000; // what the pool has by default
    OK(open_with(&o, &c));
    o.lease_ttl_ms = 1;
    ERROR(open_with(&o, &c), MOONCAKE_EINVAL, "lease_ttl_ms");
    o = MOONCAKE_INIT(options), o.promote_after = 5;
    EQ(open_with(&o, &c), MOONCAKE_EINVAL);
    o = MOONCAKE_INIT(options), o.pool = "other", o.memory_bytes = 16 * MIB;
    OK(open_with(&o, &c));
    EQ(mooncake_store_is_exist(c, "k"), 0);
}

TEST(close_keeps_the_handle) {
    mooncake_store_t s = open_memory();
    OK(mooncake_store_close(s));
    OK(mooncake_store_close(s));
    ERROR(mooncake_store_is_exist(s, "k"), MOONCAKE_EINVAL, "not set up");
    OK(mooncake_store_setup(s, "h", "", 16 * MIB, 0, "tcp", "", "embedded:again"));
    EQ(mooncake_store_is_exist(s, "k"), 0);
    mooncake_store_destroy(s);
    EQ(mooncake_store_close(s), MOONCAKE_EINVAL);
}

TEST(tenants_are_apart) {
    mooncake_store_t a = open_memory(), b, c;
    OK(mooncake_store_tenant(a, "b", &b));
    OK(mooncake_store_tenant(b, "", &c)); // the default tenant again
    OK(mooncake_store_put(a, "k", "a", 1, NULL));
    EQ(mooncake_store_is_exist(b, "k"), 0);
    EQ(mooncake_store_is_exist(c, "k"), 1);
    mooncake_store_destroy(a);
    EQ(mooncake_store_is_exist(c, "k"), 1); // it keeps the pool
    EQ(mooncake_store_tenant(a, "b", &b), MOONCAKE_EINVAL);
    mooncake_store_t unset = mooncake_store_create();
    EQ(mooncake_store_tenant(unset, "b", &b), MOONCAKE_EINVAL);
    CHECK(b == NULL);
}

TEST(wait_ready_times_out) {
    options o = MOONCAKE_INIT(options);
    o.memory_bytes = (uint64_t)2 << 30;
    mooncake_store_t s;
    OK(open_with(&o, &s));
    EQ(mooncake_store_wait_ready(s, 0), 0);
    EQ(mooncake_store_wait_ready(s, 60000), 1);
    EQ(mooncake_store_wait_ready(s, INT64_MAX), 1);
    EQ(mooncake_store_wait_ready(s, INT64_MIN), 1);
}

TEST(sync_needs_a_dir) {
    mooncake_store_t s = open_memory();
    EQ(mooncake_store_sync(s), MOONCAKE_EMODE);
    mooncake_put_options_t o = MOONCAKE_INIT(mooncake_put_options_t);
    o.durable = 1;
    ERROR(mooncake_store_put_object(s, "k", 1, "v", 1, &o), MOONCAKE_EINVAL, "Durable");
}

TEST(dir_keeps_what_is_durable) {
    mooncake_store_t s = open_dir();
    mooncake_put_options_t o = MOONCAKE_INIT(mooncake_put_options_t);
    o.durable = 1;
    OK(mooncake_store_put_object(s, "durable", MOONCAKE_NUL, "1", 1, &o));
    put(s, "synced", 100000, 7);
    OK(mooncake_store_sync(s));
    mooncake_object_info_t info = MOONCAKE_INIT(mooncake_object_info_t);
    OK(mooncake_store_stat(s, "durable", MOONCAKE_NUL, &info));
    EQ(info.durable, 1);
    EQ(info.on_ssd, 1);
    mooncake_store_destroy(s);
    s = open_dir();
    EQ(mooncake_store_is_exist(s, "durable"), 1);
    check_bytes(s, "synced", 100000, 7);
}

// Memory in a tmpfs survives the process that put it there, not the one that said volatile.
TEST(dir_keeps_memory_over_close) {
    options o = MOONCAKE_INIT(options);
    o.memory_bytes = 32 * MIB, o.dir = path_in(scratch(), "d"), o.shm_dir = scratch_shm(), o.ssd_bytes = 64 * MIB;
    o.offload = MOONCAKE_OFFLOAD_NEVER;
    mooncake_store_t s;
    int code = open_with(&o, &s);
    if (code == MOONCAKE_EMODE) test_skip("this library has no RocksDB");
    OK(code);
    EQ(mooncake_store_wait_ready(s, -1), 1);
    put(s, "k", 5000, 1);
    mooncake_store_destroy(s);
    OK(open_with(&o, &s));
    check_bytes(s, "k", 5000, 1);
    mooncake_counters_t c = MOONCAKE_INIT(mooncake_counters_t);
    OK(mooncake_store_counters(s, &c));
    EQ(c.restored_from_memory, 1);
}

TEST(dir_of_another_process_is_ELOCKED) {
    mooncake_store_t s = open_dir();
    char pid[32];
    snprintf(pid, sizeof pid, "%d", getpid());
    // The same pool joins; another pool of this process may not have the directory either.
    options o = MOONCAKE_INIT(options);
    o.pool = "second", o.dir = path_in(scratch(), "d"), o.memory_bytes = 16 * MIB, o.shm_dir = scratch_shm();
    mooncake_store_t t;
    ERROR(open_with(&o, &t), MOONCAKE_ELOCKED, pid);
    mooncake_store_destroy(s);
    OK(open_with(&o, &t));
}

TEST(a_dir_has_a_pool_of_its_own) {
    mooncake_store_t memory = open_memory(), disk, same;
    mooncake_store_options_t o = MOONCAKE_INIT(mooncake_store_options_t);
    o.dir = path_in(scratch(), "d");
    o.shm_dir = scratch_shm();
    o.memory_bytes = 32 * MIB;
    o.volatile_memory = 1;
    int code = mooncake_store_open(&o, &disk);
    if (code == MOONCAKE_EMODE) test_skip("this library has no RocksDB");
    OK(code);
    EQ(mooncake_store_open(&o, &same), 0);
    EQ(mooncake_store_put(disk, "k", "v", 1, NULL), 0);
    EQ(mooncake_store_is_exist(same, "k"), 1);
    EQ(mooncake_store_is_exist(memory, "k"), 0);
    mooncake_store_destroy(memory);
    mooncake_store_destroy(disk);
    mooncake_store_destroy(same);
}

TEST(dir_slots_take_the_first_that_is_free) {
    mooncake_store_t s[3];
    for (int i = 0; i < 3; i++) {
        char pool[8];
        snprintf(pool, sizeof pool, "p%d", i);
        options o = MOONCAKE_INIT(options);
        o.pool = pool, o.dir = path_in(scratch(), "slots"), o.dir_slots = 2, o.memory_bytes = 16 * MIB,
        o.shm_dir = scratch_shm(), o.volatile_memory = 1;
        mkdir(o.dir, 0755);
        int code = open_with(&o, &s[i]);
        if (code == MOONCAKE_EMODE) test_skip("this library has no RocksDB");
        if (i < 2)
            OK(code);
        else
            ERROR(code, MOONCAKE_ELOCKED, "all 2 slots");
    }
    EQ(access(path_in(scratch(), "slots/slot-0"), F_OK), 0);
    EQ(access(path_in(scratch(), "slots/slot-1"), F_OK), 0);
}

TEST(offload_eager_writes_soon) {
    options o = MOONCAKE_INIT(options);
    o.memory_bytes = 64 * MIB, o.dir = path_in(scratch(), "d"), o.shm_dir = scratch_shm(), o.volatile_memory = 1;
    o.ssd_bytes = 64 * MIB, o.offload = MOONCAKE_OFFLOAD_EAGER;
    mooncake_store_t s;
    int code = open_with(&o, &s);
    if (code == MOONCAKE_EMODE) test_skip("this library has no RocksDB");
    OK(code);
    put(s, "k", 100000, 1);
    put(s, "more", 4 * MIB, 2); // the writer looks when a 128th of the memory was filled
    mooncake_object_info_t info = MOONCAKE_INIT(mooncake_object_info_t);
    double end = now_seconds() + 20;
    while (info.on_ssd == 0 && now_seconds() < end) {
        usleep(10000);
        OK(mooncake_store_stat(s, "k", 1, &info));
    }
    EQ(info.on_ssd, 1);
    CHECK(usage_of(s).ssd_count[0] >= 1);
}
