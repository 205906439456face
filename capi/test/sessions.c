// SPDX-License-Identifier: Apache-2.0

// Section 8 of mooncake.h: sessions.

#include "test.h"

TEST(get_session_reads_by_layers) {
    mooncake_store_t s = open_memory();
    put(s, "a", 20 * MIB, 1);
    put(s, "b", 1000, 2);
    int r[3];
    OK(mooncake_store_get_session_start(s, "a\0no\0b", 6, NULL, 3, r));
    OK(r[0]);
    EQ(r[1], MOONCAKE_ENOTFOUND);
    OK(r[2]);
    unsigned char *a = bytes(20 * MIB, 1), *b = bytes(1000, 2), x[2000], y[100], z[100];
    void *buffers[] = {x, y, z};
    size_t sizes[] = {2000, 100, 100};
    uint64_t offsets[] = {16 * MIB - 1000, 0, 900};
    uint32_t counts[] = {1, 2};
    int64_t n[3];
    OK(mooncake_store_get_session_read(s, "a\0b", 3, NULL, 2, buffers, sizes, offsets, counts, n));
    EQ(n[0], 2000);
    EQ(n[1], 200);
    EQ(memcmp(x, a + offsets[0], 2000) + memcmp(y, b, 100) + memcmp(z, b + 900, 100), 0);
    OK(mooncake_store_remove(s, "b", 1)); // the session still has it
    OK(mooncake_store_get_session_read(s, "b", 1, NULL, 1, buffers, sizes + 1, offsets + 1, NULL, n));
    EQ(n[0], 100);
    put(s, "b", 500, 3);
    OK(mooncake_store_get_session_start(s, "b", 1, NULL, 1, r)); // reads what it stands for now
    OK(r[0]);
    offsets[0] = 450;
    OK(mooncake_store_get_session_read(s, "b", 1, NULL, 1, buffers + 1, sizes + 1, offsets, NULL, n));
    EQ(n[0], MOONCAKE_EINVAL); // 100 from 450 of 500
    OK(mooncake_store_get_session_read(s, "no", 2, NULL, 1, buffers, sizes, offsets, NULL, n));
    EQ(n[0], MOONCAKE_EINVAL);
    HOLDS(mooncake_last_error(), "no session");
    OK(mooncake_store_get_session_end(s, "a\0no\0b", 6, NULL, 3));
    OK(mooncake_store_get_session_read(s, "a", 1, NULL, 1, buffers, sizes, offsets, NULL, n));
    EQ(n[0], MOONCAKE_EINVAL);
    free(a);
    free(b);
}

TEST(put_session_writes_by_layers) {
    mooncake_store_t s = open_memory();
    put(s, "there", 1, 1);
    uint64_t sizes[] = {100, 5, 200};
    int r[3];
    OK(mooncake_store_put_session_start(s, "a\0there\0b", 9, NULL, 3, sizes, NULL, r));
    OK(r[0]);
    EQ(r[1], MOONCAKE_EEXISTS);
    OK(r[2]);
    OK(mooncake_store_put_session_start(s, "a", 1, NULL, 1, sizes, NULL, r));
    EQ(r[0], MOONCAKE_EINVAL);
    HOLDS(mooncake_last_error(), "has a session");
    unsigned char *p = bytes(200, 5);
    void *buffers[] = {p + 50, p, p};
    size_t lengths[] = {50, 50, 100};
    uint64_t offsets[] = {50, 0, 0};
    uint32_t counts[] = {2, 1};
    OK(mooncake_store_put_session_write(s, "a\0b", 3, NULL, 2, buffers, lengths, offsets, counts, r));
    EQ(r[0] + r[1], 0);
    EQ(mooncake_store_is_exist(s, "a"), 0);
    OK(mooncake_store_put_session_end(s, "a\0b\0no", 6, NULL, 3, r));
    OK(r[0]);
    EQ(r[1], MOONCAKE_EINCOMPLETE);
    EQ(r[2], MOONCAKE_EINVAL);
    check_bytes(s, "a", 100, 5);
    EQ(mooncake_store_is_exist(s, "b"), 0);
    OK(mooncake_store_put_session_start(s, "b", 1, NULL, 1, sizes, NULL, r));
    OK(r[0]);
    OK(mooncake_store_put_session_revoke(s, "b\0no", 4, NULL, 2, r));
    OK(r[0]);
    EQ(r[1], MOONCAKE_EINVAL);
    OK(mooncake_store_put_session_write(s, "b", 1, NULL, 1, buffers, lengths, offsets, NULL, r));
    EQ(r[0], MOONCAKE_EINVAL);
    mooncake_put_options_t o = MOONCAKE_INIT(mooncake_put_options_t);
    o.groups = "g\0h", o.groups_size = 3;
    OK(mooncake_store_put_session_start(s, "c\0d", 3, NULL, 2, sizes, &o, r));
    EQ(r[0] + r[1], 0);
    o.groups_size = 1;
    ERROR(mooncake_store_put_session_start(s, "e\0f", 3, NULL, 2, sizes, &o, r), MOONCAKE_EINVAL, "groups");
    free(p);
}

TEST(sessions_end_with_their_client) {
    mooncake_store_t s = open_memory(), t;
    OK(mooncake_store_tenant(s, "", &t));
    put(s, "k", 100, 1);
    uint64_t size = 10;
    int r;
    OK(mooncake_store_get_session_start(t, "k", 1, NULL, 1, &r));
    OK(mooncake_store_put_session_start(t, "new", 3, NULL, 1, &size, NULL, &r));
    OK(r);
    mooncake_object_info_t info = MOONCAKE_INIT(mooncake_object_info_t);
    OK(mooncake_store_stat(s, "k", 1, &info));
    EQ(info.readers, 1);
    EQ(mooncake_store_stat(s, "new", 3, &info), MOONCAKE_ENOTREADY);
    mooncake_store_destroy(t);
    OK(mooncake_store_stat(s, "k", 1, &info));
    EQ(info.readers, 0);
    EQ(mooncake_store_stat(s, "new", 3, &info), MOONCAKE_ENOTFOUND);
}
