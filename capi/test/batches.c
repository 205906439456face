// SPDX-License-Identifier: Apache-2.0

// Section 6 of mooncake.h: batches over packed keys. What is wrong with arguments is in hostile.c.

#include "test.h"

typedef mooncake_put_options_t put_options;

TEST(batch_put_and_get_in_both_forms) {
    mooncake_store_t s = open_memory();
    void *buffers[] = {"one", "two!", "three"};
    size_t sizes[] = {3, 4, 5};
    int r[3] = {9, 9, 9};
    OK(mooncake_store_batch_put(s, "a\0bb\0ccc", 8, NULL, 3, buffers, sizes, NULL, NULL, r)); // the last lacks its NUL
    for (int i = 0; i < 3; i++) OK(r[i]);
    uint32_t key_sizes[] = {1, 2, 3};
    char one[3], two[8], three[4];
    void *into[] = {one, two, three};
    size_t room[] = {3, 8, 4};
    int64_t got[3];
    OK(mooncake_store_batch_get(s, "abbccc", 6, key_sizes, 3, into, room, NULL, 0, got));
    EQ(got[0], 3);
    EQ(got[1], 4);
    EQ(got[2], MOONCAKE_EINVAL); // its buffer is too small: no matter to the others
    EQ(memcmp(one, "one", 3) + memcmp(two, "two!", 4), 0);
    OK(mooncake_store_batch_put(s, "a\0z\0", 4, NULL, 2, buffers, sizes, NULL, NULL, r));
    EQ(r[0], MOONCAKE_EEXISTS);
    OK(r[1]);
    put_options o = MOONCAKE_INIT(put_options);
    o.keep = 1;
    OK(mooncake_store_batch_put(s, "a\0y\0", 4, NULL, 2, buffers, sizes, NULL, &o, r));
    EQ(r[0] + r[1], 0);
    EQ(mooncake_store_get_size(s, "a"), 3);
    o = MOONCAKE_INIT(put_options), o.replace = 1;
    OK(mooncake_store_batch_put(s, "a", 1, NULL, 1, buffers + 2, sizes + 2, NULL, &o, r));
    EQ(mooncake_store_get_size(s, "a"), 5);
}

TEST(batch_put_from_several_buffers) {
    mooncake_store_t s = open_memory();
    void *buffers[] = {"he", "llo", "", "x", "world"};
    size_t sizes[] = {2, 3, 0, 1, 5};
    uint32_t key_sizes[] = {1, 1, 1}, counts[] = {3, 0, 2};
    int r[3];
    OK(mooncake_store_batch_put(s, "abc", 3, key_sizes, 3, buffers, sizes, counts, NULL, r));
    OK(r[0]);
    EQ(r[1], MOONCAKE_EINVAL); // nothing in it
    OK(r[2]);
    char first[2], rest[10];
    void *into[] = {first, rest};
    size_t room[] = {2, 10};
    uint32_t pieces[] = {2};
    int64_t n;
    OK(mooncake_store_batch_get(s, "a", 1, NULL, 1, into, room, pieces, MOONCAKE_VERIFY_ALWAYS, &n));
    EQ(n, 5);
    EQ(memcmp(first, "he", 2) + memcmp(rest, "llo", 3), 0);
    EQ(mooncake_store_get_size(s, "c"), 6);
}

TEST(batch_keys_hold_NUL) {
    mooncake_store_t s = open_memory();
    void *buffers[] = {"1", "2"};
    size_t sizes[] = {1, 1};
    uint32_t key_sizes[] = {3, 3};
    int r[2];
    OK(mooncake_store_batch_put(s, "a\0ba\0c", 6, key_sizes, 2, buffers, sizes, NULL, NULL, r));
    OK(mooncake_store_batch_exist(s, "a\0ba\0c", 6, key_sizes, 2, 0, r));
    EQ(r[0] + r[1], 2);
    EQ(mooncake_store_is_exist(s, "a"), 0);
}

TEST(batch_of_nothing_is_fine) {
    mooncake_store_t s = open_memory();
    OK(mooncake_store_batch_exist(s, NULL, 0, NULL, 0, 0, NULL));
    OK(mooncake_store_batch_put(s, NULL, 0, NULL, 0, NULL, NULL, NULL, NULL, NULL));
    OK(mooncake_store_batch_get(s, NULL, 0, NULL, 0, NULL, NULL, NULL, 0, NULL));
    OK(mooncake_store_batch_get_ranges(s, NULL, 0, NULL, 0, NULL, NULL, NULL, NULL, 0, NULL));
    OK(mooncake_store_batch_get_size(s, NULL, 0, NULL, 0, NULL));
    OK(mooncake_store_batch_remove(s, NULL, 0, NULL, 0, 0, NULL));
    OK(mooncake_store_batch_view(s, NULL, 0, NULL, 0, 0, NULL, sizeof(mooncake_view_t), NULL));
    OK(mooncake_store_get_session_start(s, NULL, 0, NULL, 0, NULL));
    OK(mooncake_store_get_session_end(s, NULL, 0, NULL, 0));
    OK(mooncake_store_put_session_start(s, NULL, 0, NULL, 0, NULL, NULL, NULL));
    OK(mooncake_store_put_session_end(s, NULL, 0, NULL, 0, NULL));
    mooncake_operation_t op;
    OK(mooncake_store_batch_put_async(s, NULL, 0, NULL, 0, NULL, NULL, NULL, NULL, NULL, &op));
    EQ(mooncake_operation_wait(op, -1), 1);
    OK(mooncake_operation_result(op));
    OK(mooncake_operation_free(op));
}

// Keys that are empty or too long are EKEY, and nobody else's matter, in every batch.
TEST(batch_of_bad_keys) {
    mooncake_store_t s = open_memory();
    static char keys[1 + 0 + MOONCAKE_MAX_KEY + 1 + 2];
    memset(keys, 'k', sizeof keys);
    uint32_t key_sizes[] = {1, 0, MOONCAKE_MAX_KEY + 1, 2};
    size_t n = sizeof keys;
    char space[4][4];
    void *buffers[] = {space[0], space[1], space[2], space[3]};
    size_t sizes[] = {4, 4, 4, 4};
    uint64_t offsets[4] = {0}, wide[] = {4, 4, 4, 4};
    int r[4];
    int64_t w[4];
#define BAD(results) (results[1] == MOONCAKE_EKEY && results[2] == MOONCAKE_EKEY)
    OK(mooncake_store_batch_put(s, keys, n, key_sizes, 4, buffers, sizes, NULL, NULL, r));
    CHECK(r[0] == 0 && r[3] == 0 && BAD(r));
    OK(mooncake_store_batch_exist(s, keys, n, key_sizes, 4, 0, r));
    CHECK(r[0] == 1 && r[3] == 1 && BAD(r));
    OK(mooncake_store_batch_exist(s, keys, n, key_sizes, 4, MOONCAKE_NO_LEASE, r));
    CHECK(r[0] == 1 && r[3] == 1 && BAD(r));
    OK(mooncake_store_batch_get(s, keys, n, key_sizes, 4, buffers, sizes, NULL, 0, w));
    CHECK(w[0] == 4 && w[3] == 4 && BAD(w));
    OK(mooncake_store_batch_get_ranges(s, keys, n, key_sizes, 4, buffers, sizes, offsets, NULL, 0, w));
    CHECK(w[0] == 4 && w[3] == 4 && BAD(w));
    OK(mooncake_store_batch_get_size(s, keys, n, key_sizes, 4, w));
    CHECK(w[0] == 4 && w[3] == 4 && BAD(w));
    mooncake_view_t views[4];
    OK(mooncake_store_batch_view(s, keys, n, key_sizes, 4, 0, views, sizeof views[0], r));
    CHECK(r[0] == 0 && r[3] == 0 && BAD(r));
    OK(mooncake_view_close(&views[0]));
    OK(mooncake_view_close(&views[3]));
    OK(mooncake_store_get_session_start(s, keys, n, key_sizes, 4, r));
    CHECK(r[0] == 0 && r[3] == 0 && BAD(r));
    OK(mooncake_store_get_session_end(s, keys, n, key_sizes, 4));
    OK(mooncake_store_batch_remove(s, keys, n, key_sizes, 4, 1, r));
    CHECK(r[0] == 0 && r[3] == 0 && BAD(r));
    OK(mooncake_store_put_session_start(s, keys, n, key_sizes, 4, wide, NULL, r));
    CHECK(r[0] == 0 && r[3] == 0 && BAD(r));
    OK(mooncake_store_put_session_revoke(s, keys, n, key_sizes, 4, r));
}

TEST(batch_put_with_groups) {
    mooncake_store_t s = open_memory();
    void *buffers[] = {"1", "2", "3"};
    size_t sizes[] = {1, 1, 1};
    int r[3];
    put_options o = MOONCAKE_INIT(put_options);
    o.groups = "g1\0\0g2", o.groups_size = 6; // the second has none
    OK(mooncake_store_batch_put(s, "a\0b\0c", 5, NULL, 3, buffers, sizes, NULL, &o, r));
    mooncake_key_list_t *keys;
    OK(mooncake_store_group(s, "g2", 2, &keys));
    EQ(keys->count, 1);
    EQ(keys->data[0], 'c');
    mooncake_free(keys);
    uint32_t sizes32[] = {2, 0, 2};
    o.groups = "g1g2", o.groups_size = 4, o.group_sizes = sizes32;
    OK(mooncake_store_batch_put(s, "d\0e\0f", 5, NULL, 3, buffers, sizes, NULL, &o, r));
    OK(mooncake_store_group(s, "g1", 2, &keys));
    EQ(keys->count, 2);
    mooncake_free(keys);
    o.groups_size = 5;
    ERROR(mooncake_store_batch_put(s, "g\0h\0i", 5, NULL, 3, buffers, sizes, NULL, &o, r), MOONCAKE_EINVAL, "add up");
    o.group_sizes = NULL;
    ERROR(mooncake_store_batch_put(s, "g\0h\0i", 5, NULL, 3, buffers, sizes, NULL, &o, r), MOONCAKE_EINVAL, "groups");
    EQ(mooncake_store_is_exist(s, "g"), 0); // nothing was done
}

TEST(batch_exist_without_a_lease) {
    mooncake_store_t s = open_memory();
    put(s, "k", 10, 1);
    int r[2];
    OK(mooncake_store_batch_exist(s, "k\0no", 4, NULL, 2, MOONCAKE_NO_LEASE, r));
    EQ(r[0], 1);
    EQ(r[1], 0);
    OK(mooncake_store_remove(s, "k", 0));
    put(s, "k", 10, 1);
    OK(mooncake_store_batch_exist(s, "k", 1, NULL, 1, 0, r));
    EQ(mooncake_store_remove(s, "k", 0), MOONCAKE_ELEASED);
}

TEST(batch_get_ranges_of_several) {
    mooncake_store_t s = open_memory();
    size_t size = 20 * MIB; // more than one segment
    put(s, "big", size, 1);
    put(s, "small", 100, 2);
    unsigned char *big = bytes(size, 1), *small = bytes(100, 2);
    unsigned char a[1000], b[3000], c[10], d[10], e[1];
    void *buffers[] = {a, b, c, d, e};
    size_t sizes[] = {1000, 3000, 10, 10, 1};
    uint64_t offsets[] = {16 * MIB - 500, size - 3000, 90, 91, 0};
    uint32_t counts[] = {2, 2, 1};
    int64_t r[5];
    OK(mooncake_store_batch_get_ranges(s, "big\0small\0none", 14, NULL, 3, buffers, sizes, offsets, counts, 0, r));
    EQ(r[0], 1000);
    EQ(r[1], 3000);
    EQ(r[2], 10);
    EQ(r[3], MOONCAKE_EINVAL); // one byte too far: only this one
    EQ(r[4], MOONCAKE_ENOTFOUND);
    EQ(memcmp(a, big + offsets[0], 1000) + memcmp(b, big + offsets[1], 3000) + memcmp(c, small + 90, 10), 0);
    buffers[1] = a + 999; // overlaps
    sizes[1] = 10;
    OK(mooncake_store_batch_get_ranges(s, "big", 3, NULL, 1, buffers, sizes, offsets, counts, MOONCAKE_VERIFY_ALWAYS, r));
    EQ(r[0], MOONCAKE_EINVAL);
    EQ(r[1], MOONCAKE_EINVAL);
    free(big);
    free(small);
}

TEST(batch_get_size_and_remove) {
    mooncake_store_t s = open_memory();
    put(s, "a", 10, 1);
    put(s, "b", 20, 1);
    int64_t size[3];
    OK(mooncake_store_batch_get_size(s, "a\0no\0b", 6, NULL, 3, size));
    EQ(size[0], 10);
    EQ(size[1], MOONCAKE_ENOTFOUND);
    EQ(size[2], 20);
    int r[3];
    OK(mooncake_store_batch_remove(s, "a\0no\0b", 6, NULL, 3, 0, r));
    EQ(r[0], MOONCAKE_ELEASED);
    EQ(r[1], MOONCAKE_ENOTFOUND);
    EQ(r[2], MOONCAKE_ELEASED);
    OK(mooncake_store_batch_remove(s, "a\0no\0b", 6, NULL, 3, 1, r));
    EQ(r[0] + r[2], 0);
}

TEST(batch_error_is_the_first_that_is_no_miss) {
    mooncake_store_t s = open_memory();
    put(s, "first", 10, 1);
    put(s, "second", 10, 1);
    char b[4];
    void *buffers[] = {b, b, b};
    size_t sizes[] = {4, 4, 4};
    int64_t r[3];
    OK(mooncake_store_batch_get(s, "none\0first\0second", 17, NULL, 3, buffers, sizes, NULL, 0, r));
    HOLDS(mooncake_last_error(), "first");
    EQ(mooncake_last_error_code(), MOONCAKE_EINVAL);
}

// As many keys as a batch may have.
TEST(batch_of_the_most) {
    mooncake_store_t s = open_memory();
    enum { n = MOONCAKE_MAX_BATCH };
    char *keys = malloc((size_t)n * 8), *p = keys;
    for (int i = 0; i < n; i++) p += sprintf(p, "%x", i) + 1;
    int *r = malloc(n * sizeof *r);
    put(s, "fffff", 1, 1);
    OK(mooncake_store_batch_exist(s, keys, (size_t)(p - keys), NULL, n, 0, r));
    for (int i = 0; i < n - 1; i++) EQ(r[i], 0);
    EQ(r[n - 1], 1);
    free(keys);
    free(r);
}
