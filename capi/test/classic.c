// SPDX-License-Identifier: Apache-2.0

// Sections 2 and 3 of mooncake.h: the library, and the 19 functions with every result that the C++ store's have. The
// names of the tests are the rows of its table.

#include <stddef.h>

#include "test.h"

typedef mooncake_replicate_config_t config;

static mooncake_store_t set_up(void) {
    mooncake_store_t s = mooncake_store_create();
    CHECK(s != NULL);
    OK(mooncake_store_setup(s, "localhost", "http://localhost:8080/metadata", 64 * MIB, 16 * MIB, "tcp", "", "embedded"));
    return s;
}

TEST(library_abi_version) { EQ(mooncake_abi_version(), MOONCAKE_ABI_VERSION); }

TEST(library_last_error_is_empty_at_first) {
    STRING(mooncake_last_error(), "");
    EQ(mooncake_last_error_code(), 0);
    mooncake_store_t s = set_up();
    EQ(mooncake_store_is_exist(s, "no"), 0);
    STRING(mooncake_last_error(), "");
}

TEST(library_last_error_is_the_last_that_failed) {
    mooncake_store_t s = set_up();
    ERROR(mooncake_store_get_size(s, "no"), MOONCAKE_ENOTFOUND, "object not found");
    OK(mooncake_store_put(s, "yes", "1", 1, NULL));
    EQ(mooncake_last_error_code(), MOONCAKE_ENOTFOUND); // success leaves it alone
    ERROR(mooncake_store_put(s, NULL, "1", 1, NULL), -1, "key is NULL");
    EQ(mooncake_last_error_code(), -1);
}

TEST(library_free_takes_NULL) { mooncake_free(NULL); }

TEST(struct_replicate_config_is_32_bytes) {
    EQ(sizeof(config), 32);
    EQ(offsetof(config, replica_num), 0);
    EQ(offsetof(config, with_soft_pin), 8);
    EQ(offsetof(config, with_hard_pin), 12);
    EQ(offsetof(config, preferred_segments), 16);
    EQ(offsetof(config, preferred_segments_count), 24);
}

TEST(create_gives_a_handle) {
    mooncake_store_t a = mooncake_store_create(), b = mooncake_store_create();
    CHECK(a != NULL && b != NULL && a != b);
    mooncake_store_destroy(a);
    mooncake_store_destroy(b);
}

TEST(create_is_NULL_beyond_65535) {
    mooncake_store_t *all = calloc(65536, sizeof *all);
    for (int i = 0; i < 65535; i++) {
        all[i] = mooncake_store_create();
        CHECK(all[i] != NULL);
    }
    CHECK(mooncake_store_create() == NULL);
    HOLDS(mooncake_last_error(), "65535 clients");
    EQ(mooncake_last_error_code(), MOONCAKE_EBUSY);
    mooncake_store_t more = NULL;
    EQ(mooncake_store_open(NULL, &more), MOONCAKE_EBUSY);
    CHECK(more == NULL);
    mooncake_store_destroy(all[7]);
    mooncake_store_t again = mooncake_store_create();
    CHECK(again != NULL && again != all[7]); // a handle that was closed stays unknown
    EQ(mooncake_store_health_check(all[7]), 1);
    mooncake_store_destroy(again);
    for (int i = 0; i < 65535; i++) mooncake_store_destroy(all[i]);
    free(all);
}

TEST(destroy_takes_NULL_and_a_second_time) {
    mooncake_store_destroy(NULL);
    mooncake_store_t s = set_up();
    mooncake_store_destroy(s);
    mooncake_store_destroy(s);
    EQ(mooncake_store_is_exist(s, "k"), MOONCAKE_EINVAL);
}

TEST(destroy_of_the_last_client_frees_the_pool) {
    mooncake_store_t s = set_up();
    OK(mooncake_store_put(s, "k", "v", 1, NULL));
    mooncake_store_t t = set_up();
    mooncake_store_destroy(s);
    EQ(mooncake_store_is_exist(t, "k"), 1);
    mooncake_store_destroy(t);
    s = set_up();
    EQ(mooncake_store_is_exist(s, "k"), 0);
}

TEST(setup_twice_is_EINVAL) {
    mooncake_store_t s = set_up();
    ERROR(mooncake_store_setup(s, "h", "", 64 * MIB, 0, "tcp", "", "embedded"), MOONCAKE_EINVAL, "set up already");
    OK(mooncake_store_close(s));
    EQ(mooncake_store_health_check(s), 1);
    OK(mooncake_store_setup(s, "h", "", 64 * MIB, 0, "tcp", "", "embedded"));
    EQ(mooncake_store_health_check(s), 0);
}

TEST(setup_takes_NULL_strings) {
    mooncake_store_t s = mooncake_store_create();
    unsetenv("MOONCAKE_EMBEDDED");
    // NULL is 127.0.0.1:50051, a cluster.
    ERROR(mooncake_store_setup(s, NULL, NULL, 64 * MIB, 0, NULL, NULL, NULL), MOONCAKE_ENOTSUPPORTED, "127.0.0.1:50051");
    EQ(mooncake_store_health_check(s), 1);
    OK(mooncake_store_setup(s, NULL, NULL, 64 * MIB, 0, NULL, NULL, ""));
    char name[256];
    OK(mooncake_store_get_hostname(s, name, sizeof name));
    HOLDS(name, "localhost:");
}

TEST(setup_of_a_master_is_ENOTSUPPORTED) {
    mooncake_store_t s = mooncake_store_create();
    unsetenv("MOONCAKE_EMBEDDED");
    ERROR(mooncake_store_setup(s, "h", "", 64 * MIB, 0, "tcp", "", "10.0.0.1:50051"), MOONCAKE_ENOTSUPPORTED,
          "10.0.0.1:50051");
    ERROR(mooncake_store_setup(s, "h", "", 64 * MIB, 0, "tcp", "", "embedded:"), MOONCAKE_ENOTSUPPORTED, "embedded:");
    setenv("MOONCAKE_EMBEDDED", "0", 1);
    EQ(mooncake_store_setup(s, "h", "", 64 * MIB, 0, "tcp", "", "10.0.0.1:50051"), MOONCAKE_ENOTSUPPORTED);
    setenv("MOONCAKE_EMBEDDED", "1", 1); // set after the library was loaded
    OK(mooncake_store_setup(s, "h", "", 64 * MIB, 0, "tcp", "", "10.0.0.1:50051"));
    EQ(mooncake_store_health_check(s), 0);
}

TEST(setup_by_environment_names_the_pool_by_address) {
    setenv("MOONCAKE_EMBEDDED", "1", 1);
    mooncake_store_t a = mooncake_store_create(), b = mooncake_store_create(), c = mooncake_store_create();
    OK(mooncake_store_setup(a, "h", "", 64 * MIB, 0, "tcp", "", "one:1"));
    OK(mooncake_store_setup(b, "h", "", 0, 0, "tcp", "", "one:1"));
    OK(mooncake_store_setup(c, "h", "", 64 * MIB, 0, "tcp", "", "two:2"));
    OK(mooncake_store_put(a, "k", "v", 1, NULL));
    EQ(mooncake_store_is_exist(b, "k"), 1);
    EQ(mooncake_store_is_exist(c, "k"), 0);
}

TEST(setup_of_named_pools_are_apart) {
    mooncake_store_t a = mooncake_store_create(), b = mooncake_store_create(), c = mooncake_store_create();
    OK(mooncake_store_setup(a, "h", "", 64 * MIB, 0, "tcp", "", "embedded"));
    OK(mooncake_store_setup(b, "h", "", 64 * MIB, 0, "tcp", "", "embedded:b"));
    OK(mooncake_store_setup(c, "h", "", 16 * MIB, 0, "rdma", "mlx5_0", ""));
    OK(mooncake_store_put(a, "k", "v", 1, NULL));
    EQ(mooncake_store_is_exist(b, "k"), 0);
    EQ(mooncake_store_is_exist(c, "k"), 1);
    mooncake_usage_t u = MOONCAKE_INIT(mooncake_usage_t);
    OK(mooncake_store_usage(c, &u));
    EQ(u.memory_budget, 64 * MIB); // the first client's
}

TEST(setup_of_small_and_huge_segments) {
    mooncake_store_t s = mooncake_store_create();
    OK(mooncake_store_setup(s, "h", "", 1, 0, "tcp", "", "embedded"));
    mooncake_usage_t u = MOONCAKE_INIT(mooncake_usage_t);
    OK(mooncake_store_usage(s, &u));
    EQ(u.memory_budget, 16 * MIB);
    OK(mooncake_store_close(s));
    CHECK(mooncake_store_setup(s, "h", "", UINT64_MAX, 0, "tcp", "", "embedded") == MOONCAKE_EINVAL);
    int code = mooncake_store_setup(s, "h", "", INT64_MAX, UINT64_MAX, "tcp", "", "embedded");
    if (code >= 0) FAIL("setup of 8 EiB: %d", code);
    EQ(mooncake_store_health_check(s), 1);
    OK(mooncake_store_setup(s, "h", "", 64 * MIB, 0, "tcp", "", "embedded")); // a failure leaves the handle usable
}

TEST(init_all_uses_the_default_address) {
    mooncake_store_t s = mooncake_store_create();
    unsetenv("MOONCAKE_EMBEDDED");
    ERROR(mooncake_store_init_all(s, "tcp", "", 64 * MIB), MOONCAKE_ENOTSUPPORTED, "127.0.0.1:50051");
    setenv("MOONCAKE_EMBEDDED", "1", 1);
    OK(mooncake_store_init_all(s, "tcp", "", 64 * MIB));
    char name[64];
    OK(mooncake_store_get_hostname(s, name, sizeof name));
    STRING(name, "localhost:12345");
}

TEST(health_check_0_1_and_NULL) {
    mooncake_store_t s = mooncake_store_create();
    EQ(mooncake_store_health_check(s), 1);
    OK(mooncake_store_setup(s, "h", "", 64 * MIB, 0, "tcp", "", "embedded"));
    EQ(mooncake_store_health_check(s), 0);
    OK(mooncake_store_close(s));
    EQ(mooncake_store_health_check(s), 1);
    mooncake_store_destroy(s);
    EQ(mooncake_store_health_check(s), 1);
    EQ(mooncake_store_health_check(NULL), -1);
}

TEST(put_and_get_into) {
    mooncake_store_t s = set_up();
    static const size_t sizes[] = {1, 7, 511, 512, 513, 4095, 4096, 65535, MIB - 1, MIB, MIB + 1};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        char key[32];
        snprintf(key, sizeof key, "key-%zu", i);
        unsigned char *p = bytes(sizes[i], (unsigned)i);
        OK(mooncake_store_put(s, key, p, sizes[i], NULL));
        free(p);
        check_bytes(s, key, sizes[i], (unsigned)i);
        EQ(mooncake_store_get_size(s, key), sizes[i]);
    }
}

TEST(put_of_an_existing_key_keeps_its_bytes) {
    mooncake_store_t s = set_up();
    OK(mooncake_store_put(s, "k", "old", 3, NULL));
    OK(mooncake_store_put(s, "k", "newer", 5, NULL));
    char b[8] = "";
    EQ(mooncake_store_get_into(s, "k", b, sizeof b), 3);
    STRING(b, "old");
    OK(mooncake_store_put_from(s, "k", "newer", 5, NULL));
    EQ(mooncake_store_get_size(s, "k"), 3);
}

TEST(put_of_size_0) {
    mooncake_store_t s = set_up();
    EQ(mooncake_store_put(s, "k", "v", 0, NULL), MOONCAKE_EINVAL);
    EQ(mooncake_store_put(s, "k", NULL, 0, NULL), MOONCAKE_EINVAL); // the value may be NULL only then
    EQ(mooncake_store_put(s, "k", NULL, 1, NULL), -1);
    EQ(mooncake_store_is_exist(s, "k"), 0);
    OK(mooncake_store_put_from(s, "k", "v", 0, NULL)); // stores nothing
    EQ(mooncake_store_is_exist(s, "k"), 0);
    EQ(mooncake_store_put_from(s, "k", NULL, 0, NULL), -1);
}

TEST(put_of_bad_keys) {
    mooncake_store_t s = set_up();
    char key[MOONCAKE_MAX_KEY + 2];
    memset(key, 'k', sizeof key);
    key[MOONCAKE_MAX_KEY + 1] = 0;
    EQ(mooncake_store_put(s, key, "v", 1, NULL), MOONCAKE_EKEY);
    EQ(mooncake_store_put_from(s, key, "v", 1, NULL), MOONCAKE_EKEY);
    EQ(mooncake_store_put(s, "", "v", 1, NULL), MOONCAKE_EKEY);
    key[MOONCAKE_MAX_KEY] = 0;
    OK(mooncake_store_put(s, key, "v", 1, NULL));
    EQ(mooncake_store_is_exist(s, key), 1);
    EQ(mooncake_store_is_exist(s, ""), MOONCAKE_EKEY);
}

TEST(put_without_room_is_ENOSPACE) {
    mooncake_store_t s = set_up();
    config pin = {.replica_num = 1, .with_hard_pin = 1};
    void *big = calloc(1, 128 * MIB);
    OK(mooncake_store_put(s, "pinned", big, 40 * MIB, &pin));
    ERROR(mooncake_store_put(s, "k", big, 40 * MIB, NULL), MOONCAKE_ENOSPACE, "k");
    ERROR(mooncake_store_put_from(s, "k", big, 40 * MIB, NULL), MOONCAKE_ENOSPACE, "k");
    EQ(mooncake_store_is_exist(s, "k"), 0);
    ERROR(mooncake_store_put(s, "k", big, 128 * MIB, NULL), MOONCAKE_ENOSPACE, "k"); // it never will have
    free(big);
}

TEST(put_with_a_config) {
    mooncake_store_t s = set_up();
    config c = {.replica_num = 0};
    ERROR(mooncake_store_put(s, "k", "v", 1, &c), MOONCAKE_EINVAL, "replica_num");
    EQ(mooncake_store_put_from(s, "k", "v", 1, &c), MOONCAKE_EINVAL);
    const char *segments[] = {NULL, "somewhere:1", NULL};
    c = (config){.replica_num = 2, .with_soft_pin = 1, .with_hard_pin = 7, .preferred_segments = segments,
                 .preferred_segments_count = 3};
    OK(mooncake_store_put(s, "k", "v", 1, &c)); // as many replicas as there are places
    mooncake_object_info_t info = MOONCAKE_INIT(mooncake_object_info_t);
    OK(mooncake_store_stat(s, "k", MOONCAKE_NUL, &info));
    EQ(info.hard_pin, 1);
    CHECK(info.soft_pin_ms > 29 * 60 * 1000 && info.soft_pin_ms <= 30 * 60 * 1000);
    c = (config){.replica_num = SIZE_MAX};
    OK(mooncake_store_put(s, "many", "v", 1, &c));
    c = (config){.replica_num = 1, .preferred_segments_count = 1};
    ERROR(mooncake_store_put(s, "n", "v", 1, &c), MOONCAKE_EINVAL, "preferred_segments");
}

// A hard pin survives pressure by every way to put, and remove ends it.
TEST(put_hard_pinned_stays) {
    mooncake_store_t s = set_up();
    config pin = {.replica_num = 1, .with_hard_pin = 1};
    unsigned char *p = bytes(MIB, 1);
    const char *keys[] = {"pin-batch"};
    void *buffers[] = {p};
    size_t sizes[] = {MIB};
    int results[1];
    OK(mooncake_store_put(s, "pin-put", p, MIB, &pin));
    OK(mooncake_store_put_from(s, "pin-from", p, MIB, &pin));
    OK(mooncake_store_batch_put_from(s, keys, buffers, sizes, 1, &pin, results));
    OK(results[0]);
    for (int i = 0; i < 200; i++) {
        char key[32];
        snprintf(key, sizeof key, "n-%d", i);
        OK(mooncake_store_put(s, key, p, MIB, NULL));
    }
    free(p);
    check_bytes(s, "pin-put", MIB, 1);
    check_bytes(s, "pin-from", MIB, 1);
    check_bytes(s, "pin-batch", MIB, 1);
    EQ(mooncake_store_is_exist(s, "n-0"), 0);
    OK(mooncake_store_remove(s, "pin-put", 1));
    EQ(mooncake_store_is_exist(s, "pin-put"), 0);
}

TEST(batch_put_from_gives_each_key_its_result) {
    mooncake_store_t s = set_up();
    const char *keys[] = {"a", "", "b", "c", "a"};
    void *buffers[] = {"aa", "x", NULL, "ccc", "zz"};
    size_t sizes[] = {2, 1, 0, 3, 2};
    int r[5] = {9, 9, 9, 9, 9};
    OK(mooncake_store_batch_put_from(s, keys, buffers, sizes, 5, NULL, r));
    OK(r[0]);
    EQ(r[1], MOONCAKE_EKEY);
    OK(r[2]); // an empty one stores nothing
    OK(r[3]);
    OK(r[4]);
    EQ(mooncake_store_is_exist(s, "b"), 0);
    char b[4] = "";
    EQ(mooncake_store_get_into(s, "a", b, 4), 2);
    STRING(b, "aa");
    config none = {.replica_num = 0};
    OK(mooncake_store_batch_put_from(s, keys, buffers, sizes, 5, &none, r));
    for (int i = 0; i < 5; i++) EQ(r[i], MOONCAKE_EINVAL);
}

TEST(batch_put_from_leaves_results_alone_on_bad_arguments) {
    mooncake_store_t s = set_up();
    const char *keys[] = {"a", NULL};
    void *buffers[] = {"aa", "x"};
    size_t sizes[] = {2, 1};
    int r[2] = {9, 9};
    EQ(mooncake_store_batch_put_from(s, keys, buffers, sizes, 2, NULL, r), -1);
    EQ(mooncake_store_batch_put_from(s, NULL, buffers, sizes, 2, NULL, r), -1);
    EQ(mooncake_store_batch_put_from(s, keys, NULL, sizes, 2, NULL, r), -1);
    EQ(mooncake_store_batch_put_from(s, keys, buffers, NULL, 2, NULL, r), -1);
    EQ(mooncake_store_batch_put_from(s, keys, buffers, sizes, 2, NULL, NULL), -1);
    EQ(mooncake_store_batch_put_from(NULL, keys, buffers, sizes, 1, NULL, r), -1);
    keys[1] = "b";
    buffers[1] = NULL;
    ERROR(mooncake_store_batch_put_from(s, keys, buffers, sizes, 2, NULL, r), -1, "buffers[1]");
    EQ(r[0], 9);
    EQ(r[1], 9);
    EQ(mooncake_store_is_exist(s, "a"), 0);
    OK(mooncake_store_batch_put_from(s, NULL, NULL, NULL, 0, NULL, NULL)); // an empty batch needs none
}

// 100 equal objects into room for fewer: those that fit are there, at the right places; the others say so.
TEST(batch_put_from_beyond_the_room) {
    mooncake_store_t s = set_up();
    config pin = {.replica_num = 1, .with_hard_pin = 1};
    enum { n = 100 };
    char names[n][16];
    const char *keys[n];
    void *buffers[n], *p = bytes(MIB, 3);
    size_t sizes[n];
    int r[n], good = 0;
    for (int i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], "k-%d", i);
        keys[i] = names[i], buffers[i] = p, sizes[i] = MIB;
    }
    OK(mooncake_store_batch_put_from(s, keys, buffers, sizes, n, &pin, r));
    for (int i = 0; i < n; i++) {
        if (r[i] != 0) EQ(r[i], MOONCAKE_ENOSPACE);
        EQ(mooncake_store_is_exist(s, keys[i]), r[i] == 0);
        good += r[i] == 0;
    }
    if (good < 40 || good > 63) FAIL("%d of 100 MiB fit into 64 MiB", good);
    HOLDS(mooncake_last_error(), "need");
    free(p);
}

TEST(get_into_results) {
    mooncake_store_t s = set_up();
    OK(mooncake_store_put(s, "k", "hello", 5, NULL));
    char b[16];
    memset(b, 'x', sizeof b);
    EQ(mooncake_store_get_into(s, "no", b, sizeof b), MOONCAKE_ENOTFOUND);
    EQ(mooncake_store_get_into(s, "k", b, 4), MOONCAKE_EINVAL);
    EQ(b[0], 'x'); // it stays as it is
    EQ(mooncake_store_get_into(s, "k", b, 0), MOONCAKE_EINVAL);
    EQ(mooncake_store_get_into(s, "k", b, sizeof b), 5);
    EQ(memcmp(b, "helloxxx", 8), 0);
    EQ(mooncake_store_get_into(s, "k", NULL, 0), -1);
    EQ(mooncake_store_get_into(s, NULL, b, 1), -1);
    EQ(mooncake_store_get_into(NULL, "k", b, 1), -1);
    EQ(mooncake_store_get_into(s, "k", b, SIZE_MAX), -1);
}

TEST(get_into_of_an_unfinished_put_is_ENOTREADY) {
    mooncake_store_t s = set_up();
    mooncake_writer_t w;
    OK(mooncake_store_create_object(s, "k", 1, 4, NULL, &w));
    char b[4];
    EQ(mooncake_store_get_into(s, "k", b, 4), MOONCAKE_ENOTREADY);
    EQ(mooncake_store_get_size(s, "k"), MOONCAKE_ENOTREADY);
    EQ(mooncake_store_is_exist(s, "k"), 0);
    EQ(mooncake_store_remove(s, "k", 0), MOONCAKE_ENOTREADY);
    EQ(mooncake_store_remove(s, "k", 1), MOONCAKE_ENOTREADY);
    OK(mooncake_writer_abort(w));
}

TEST(batch_get_into_gives_each_key_its_result) {
    mooncake_store_t s = set_up();
    OK(mooncake_store_put(s, "a", "aaaa", 4, NULL));
    OK(mooncake_store_put(s, "b", "bb", 2, NULL));
    char a[4], b[8], c[4], d[1];
    const char *keys[] = {"a", "b", "no", "a", ""};
    void *buffers[] = {a, b, c, d, NULL};
    size_t sizes[] = {4, 8, 4, 1, 0};
    int64_t r[5];
    OK(mooncake_store_batch_get_into(s, keys, buffers, sizes, 5, r));
    EQ(r[0], 4);
    EQ(r[1], 2);
    EQ(r[2], MOONCAKE_ENOTFOUND);
    EQ(r[3], MOONCAKE_EINVAL);
    EQ(r[4], MOONCAKE_EKEY);
    EQ(memcmp(a, "aaaa", 4) + memcmp(b, "bb", 2), 0);
    r[0] = 9;
    EQ(mooncake_store_batch_get_into(s, NULL, buffers, sizes, 5, r), -1);
    EQ(mooncake_store_batch_get_into(s, keys, NULL, sizes, 5, r), -1);
    EQ(mooncake_store_batch_get_into(s, keys, buffers, NULL, 5, r), -1);
    EQ(mooncake_store_batch_get_into(s, keys, buffers, sizes, 5, NULL), -1);
    EQ(mooncake_store_batch_get_into(s, keys, buffers, sizes, MOONCAKE_MAX_BATCH + 1, r), -1);
    EQ(r[0], 9);
    OK(mooncake_store_batch_get_into(s, NULL, NULL, NULL, 0, NULL));
}

TEST(is_exist_1_0_and_errors) {
    mooncake_store_t s = set_up();
    OK(mooncake_store_put(s, "k", "v", 1, NULL));
    EQ(mooncake_store_is_exist(s, "k"), 1);
    EQ(mooncake_store_is_exist(s, "no"), 0);
    EQ(mooncake_store_is_exist(s, NULL), -1);
    EQ(mooncake_store_is_exist(NULL, "k"), -1);
    mooncake_store_t unset = mooncake_store_create();
    ERROR(mooncake_store_is_exist(unset, "k"), MOONCAKE_EINVAL, "not set up");
}

TEST(batch_is_exist_2_of_3) {
    mooncake_store_t s = set_up();
    OK(mooncake_store_put(s, "a", "1", 1, NULL));
    OK(mooncake_store_put(s, "c", "1", 1, NULL));
    const char *keys[] = {"a", "b", "c", ""};
    int r[4];
    OK(mooncake_store_batch_is_exist(s, keys, 4, r));
    EQ(r[0], 1);
    EQ(r[1], 0);
    EQ(r[2], 1);
    EQ(r[3], MOONCAKE_EKEY);
    EQ(mooncake_store_batch_is_exist(s, NULL, 1, r), -1);
    EQ(mooncake_store_batch_is_exist(s, keys, 1, NULL), -1);
    EQ(mooncake_store_batch_is_exist(NULL, keys, 1, r), -1);
    OK(mooncake_store_batch_is_exist(s, NULL, 0, NULL));
    EQ(mooncake_store_batch_is_exist(s, keys, SIZE_MAX, r), -1);
}

TEST(batch_of_a_client_that_is_not_set_up) {
    mooncake_store_t s = mooncake_store_create();
    const char *keys[] = {"a", "b"};
    int r[2] = {9, 9};
    OK(mooncake_store_batch_is_exist(s, keys, 2, r));
    EQ(r[0], MOONCAKE_EINVAL);
    EQ(r[1], MOONCAKE_EINVAL);
}

// More keys than the stack has space for, through both batches.
TEST(batch_of_10000) {
    mooncake_store_t s = set_up();
    enum { n = 10000 };
    char(*names)[16] = malloc(n * sizeof *names);
    const char **keys = malloc(n * sizeof *keys);
    void **buffers = malloc(n * sizeof *buffers);
    size_t *sizes = malloc(n * sizeof *sizes);
    int *r = malloc(n * sizeof *r), *values = malloc(n * sizeof *values);
    int64_t *got = malloc(n * sizeof *got);
    for (int i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], "k-%d", i);
        keys[i] = names[i], values[i] = i, buffers[i] = values + i, sizes[i] = sizeof *values;
    }
    OK(mooncake_store_batch_put_from(s, keys, buffers, sizes, n, NULL, r));
    for (int i = 0; i < n; i++) OK(r[i]);
    memset(values, 0, n * sizeof *values);
    OK(mooncake_store_batch_get_into(s, keys, buffers, sizes, n, got));
    for (int i = 0; i < n; i++) {
        EQ(got[i], sizeof *values);
        EQ(values[i], i);
    }
    OK(mooncake_store_batch_is_exist(s, keys, n, r));
    for (int i = 0; i < n; i++) EQ(r[i], 1);
    keys[n - 1] = NULL;
    EQ(mooncake_store_batch_is_exist(s, keys, n, r), -1);
    free(names), free(keys), free(buffers), free(sizes), free(r), free(values), free(got);
}

TEST(get_size_results) {
    mooncake_store_t s = set_up();
    OK(mooncake_store_put(s, "k", "hello", 5, NULL));
    EQ(mooncake_store_get_size(s, "k"), 5);
    EQ(mooncake_store_get_size(s, "no"), MOONCAKE_ENOTFOUND);
    EQ(mooncake_store_get_size(s, NULL), -1);
    EQ(mooncake_store_get_size(NULL, "k"), -1);
    EQ(mooncake_store_remove(s, "k", 0), MOONCAKE_ELEASED); // get_size gives a lease
}

TEST(get_hostname_fits_or_minus_1) {
    mooncake_store_t s = mooncake_store_create();
    char name[64];
    EQ(mooncake_store_get_hostname(s, name, sizeof name), MOONCAKE_EINVAL);
    OK(mooncake_store_setup(s, "box:7", "", 64 * MIB, 0, "tcp", "", "embedded"));
    OK(mooncake_store_get_hostname(s, name, 6));
    STRING(name, "box:7");
    EQ(mooncake_store_get_hostname(s, name, 5), -1);
    EQ(mooncake_store_get_hostname(s, name, 0), -1);
    EQ(mooncake_store_get_hostname(s, NULL, 64), -1);
    EQ(mooncake_store_get_hostname(NULL, name, 64), -1);
    mooncake_store_t other = set_up();
    OK(mooncake_store_get_hostname(other, name, sizeof name));
    CHECK(strncmp(name, "localhost:", 10) == 0 && atoi(name + 10) > 0);
}

TEST(remove_results) {
    mooncake_store_t s = set_up();
    EQ(mooncake_store_remove(s, "no", 0), MOONCAKE_ENOTFOUND);
    EQ(mooncake_store_remove(s, "no", 1), MOONCAKE_ENOTFOUND);
    OK(mooncake_store_put(s, "k", "v", 1, NULL));
    EQ(mooncake_store_is_exist(s, "k"), 1); // gives a lease
    EQ(mooncake_store_remove(s, "k", 0), MOONCAKE_ELEASED);
    OK(mooncake_store_remove(s, "k", -1)); // any truth is force
    EQ(mooncake_store_is_exist(s, "k"), 0);
    OK(mooncake_store_put(s, "k", "v", 1, NULL));
    OK(mooncake_store_remove(s, "k", 0)); // a fresh put has no lease
    EQ(mooncake_store_remove(s, NULL, 0), -1);
    EQ(mooncake_store_remove(NULL, "k", 0), -1);
}

TEST(remove_by_regex_counts) {
    mooncake_store_t s = set_up();
    const char *keys[] = {"model/1", "model/2", "model/33", "other"};
    for (size_t i = 0; i < COUNT(keys); i++) OK(mooncake_store_put(s, keys[i], "v", 1, NULL));
    EQ(mooncake_store_remove_by_regex(s, "^model/[0-9]$", 0), 2);
    EQ(mooncake_store_remove_by_regex(s, "nothing", 1), 0);
    EQ(mooncake_store_is_exist(s, "model/33"), 1);
    EQ(mooncake_store_remove_by_regex(s, "33", 0), 0); // leased: skipped
    EQ(mooncake_store_remove_by_regex(s, "33", 1), 1); // found anywhere in the key
    EQ(mooncake_store_remove_by_regex(s, "(", 1), MOONCAKE_EINVAL);
    EQ(mooncake_store_remove_by_regex(s, "(?=x)", 1), MOONCAKE_EINVAL);
    EQ(mooncake_store_remove_by_regex(s, NULL, 1), -1);
    EQ(mooncake_store_remove_by_regex(NULL, "x", 1), -1);
    EQ(mooncake_store_remove_by_regex(s, "", 1), 1);
}

TEST(remove_all_after_5_puts) {
    mooncake_store_t s = set_up();
    char key[] = "k0";
    for (; key[1] < '5'; key[1]++) OK(mooncake_store_put(s, key, "v", 1, NULL));
    EQ(mooncake_store_is_exist(s, "k3"), 1);
    EQ(mooncake_store_remove_all(s, 0), 4); // all but the leased one
    EQ(mooncake_store_remove_all(s, 1), 1);
    EQ(mooncake_store_remove_all(s, 1), 0);
    EQ(mooncake_store_remove_all(NULL, 1), -1);
}

TEST(remove_all_is_of_the_tenant) {
    mooncake_store_t s = set_up(), t;
    OK(mooncake_store_tenant(s, "other", &t));
    OK(mooncake_store_put(s, "k", "v", 1, NULL));
    OK(mooncake_store_put(t, "k", "w", 1, NULL));
    EQ(mooncake_store_remove_all(t, 1), 1);
    EQ(mooncake_store_is_exist(s, "k"), 1);
}

TEST(register_buffer_keeps_book) {
    mooncake_store_t s = set_up();
    char space[128], *b = space;
    OK(mooncake_store_register_buffer(s, b, 64));
    OK(mooncake_store_register_buffer(s, b, 64)); // the same again changes nothing
    ERROR(mooncake_store_register_buffer(s, b, 32), MOONCAKE_EINVAL, "overlaps");
    ERROR(mooncake_store_register_buffer(s, b, 65), MOONCAKE_EINVAL, "overlaps");
    ERROR(mooncake_store_register_buffer(s, b + 8, 8), MOONCAKE_EINVAL, "overlaps");
    ERROR(mooncake_store_register_buffer(s, b + 63, 8), MOONCAKE_EINVAL, "overlaps");
    OK(mooncake_store_register_buffer(s, b + 64, 8)); // right behind it
    ERROR(mooncake_store_unregister_buffer(s, b + 8), MOONCAKE_EINVAL, "none is registered");
    OK(mooncake_store_unregister_buffer(s, b));
    ERROR(mooncake_store_unregister_buffer(s, b), MOONCAKE_EINVAL, "none is registered");
    OK(mooncake_store_register_buffer(s, b, 32));
    EQ(mooncake_store_register_buffer(s, NULL, 1), -1);
    EQ(mooncake_store_register_buffer(s, b, 0), -1);
    EQ(mooncake_store_register_buffer(s, b, SIZE_MAX), -1);
    EQ(mooncake_store_register_buffer(NULL, b, 1), -1);
    EQ(mooncake_store_unregister_buffer(s, NULL), -1);
    EQ(mooncake_store_unregister_buffer(NULL, b), -1);
}

// get_into is 64 bits wide: a size beyond 32 bits is not cut. No such memory is needed, only such a number.
TEST(get_size_is_64_bits) {
    EQ(sizeof mooncake_store_get_into(NULL, NULL, NULL, 0), 8);
    EQ(sizeof mooncake_store_get_size(NULL, NULL), 8);
    EQ(sizeof mooncake_store_remove_all(NULL, 0), 8);
}
