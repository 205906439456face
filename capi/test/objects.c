// SPDX-License-Identifier: Apache-2.0

// Section 5 of mooncake.h: objects.

#include <sys/resource.h>
#include <unistd.h>

#include "test.h"

typedef mooncake_put_options_t put_options;
typedef mooncake_object_info_t info;

static info stat_of(mooncake_store_t s, const char *key) {
    info i = MOONCAKE_INIT(info);
    OK(mooncake_store_stat(s, key, MOONCAKE_NUL, &i));
    return i;
}

TEST(put_object_results) {
    mooncake_store_t s = open_memory();
    OK(mooncake_store_put_object(s, "k", 1, "old", 3, NULL));
    EQ(mooncake_store_put_object(s, "k", 1, "new", 3, NULL), MOONCAKE_EEXISTS);
    put_options o = MOONCAKE_INIT(put_options);
    o.keep = 1;
    OK(mooncake_store_put_object(s, "k", 1, "newer", 5, &o));
    char b[8] = "";
    EQ(mooncake_store_get_object(s, "k", 1, b, sizeof b, 0), 3);
    STRING(b, "old");
    o = MOONCAKE_INIT(put_options), o.replace = 1;
    OK(mooncake_store_put_object(s, "k", 1, "newer", 5, &o));
    EQ(mooncake_store_get_object(s, "k", 1, b, sizeof b, 0), 5);
    STRING(b, "newer");
    EQ(mooncake_store_put_object(s, "e", 1, "", 0, NULL), MOONCAKE_EINVAL);
    EQ(mooncake_store_put_object(s, "", 0, "x", 1, NULL), MOONCAKE_EKEY);
    o = MOONCAKE_INIT(put_options), o.type = 10;
    ERROR(mooncake_store_put_object(s, "t", 1, "x", 1, &o), MOONCAKE_EINVAL, "type is 10");
    o = MOONCAKE_INIT(put_options), o.soft_pin_ms = 24 * 3600 * 1000 + 1;
    ERROR(mooncake_store_put_object(s, "t", 1, "x", 1, &o), MOONCAKE_EINVAL, "soft_pin_ms");
    o = MOONCAKE_INIT(put_options), o.preferred_segments_count = 1;
    ERROR(mooncake_store_put_object(s, "t", 1, "x", 1, &o), MOONCAKE_EINVAL, "preferred_segments");
    o = MOONCAKE_INIT(put_options), o.group_size = 1;
    ERROR(mooncake_store_put_object(s, "t", 1, "x", 1, &o), MOONCAKE_EINVAL, "group");
    o = MOONCAKE_INIT(put_options), o.group = "g", o.group_size = (size_t)PTRDIFF_MAX + 1;
    CHECK(mooncake_store_put_object(s, "t", 1, "x", 1, &o) < -1);
    o.group_size = PTRDIFF_MAX;
    CHECK(mooncake_store_put_object(s, "t", 1, "x", 1, &o) < -1);
    EQ(mooncake_store_put_object(s, "t", 1, "x", PTRDIFF_MAX, NULL), MOONCAKE_ENOSPACE);
}

TEST(put_object_of_every_type) {
    mooncake_store_t s = open_memory();
    for (uint32_t type = 0; type <= MOONCAKE_TYPE_GENERAL; type++) {
        char key[8];
        snprintf(key, sizeof key, "t%u", type);
        put_options o = MOONCAKE_INIT(put_options);
        o.type = type;
        OK(mooncake_store_put_object(s, key, MOONCAKE_NUL, "x", 1, &o));
        EQ(stat_of(s, key).type, type);
    }
    mooncake_usage_t u = MOONCAKE_INIT(mooncake_usage_t);
    OK(mooncake_store_usage(s, &u));
    for (int i = 0; i < 10; i++) EQ(u.objects[i], 1);
}

TEST(keys_are_any_bytes) {
    mooncake_store_t s = open_memory();
    static const struct {
        const char *key;
        size_t size;
    } keys[] = {{"a\0b", 3}, {"a\0c", 3}, {"a", 1}, {"\0", 1}, {"\xff\xfe", 2}, {"../x", 4}, {"a/b", 3}, {"a:b", 3}};
    for (size_t i = 0; i < COUNT(keys); i++) {
        char value = (char)('0' + i);
        OK(mooncake_store_put_object(s, keys[i].key, keys[i].size, &value, 1, NULL));
    }
    for (size_t i = 0; i < COUNT(keys); i++) {
        char value;
        EQ(mooncake_store_get_object(s, keys[i].key, keys[i].size, &value, 1, 0), 1);
        EQ(value, '0' + i);
    }
    EQ(mooncake_store_is_exist(s, "a"), 1);
    char long_key[MOONCAKE_MAX_KEY + 1];
    memset(long_key, 'x', sizeof long_key);
    OK(mooncake_store_put_object(s, long_key, MOONCAKE_MAX_KEY, "v", 1, NULL));
    EQ(mooncake_store_put_object(s, long_key, MOONCAKE_MAX_KEY + 1, "v", 1, NULL), MOONCAKE_EKEY);
    info i = MOONCAKE_INIT(info);
    EQ(mooncake_store_stat(s, long_key, MOONCAKE_MAX_KEY + 1, &i), MOONCAKE_EKEY);
}

TEST(get_object_flags) {
    mooncake_store_t s = open_memory();
    put(s, "k", 1000, 1);
    char b[1000];
    EQ(mooncake_store_get_object(s, "k", 1, b, 1000, MOONCAKE_VERIFY_ALWAYS), 1000);
    EQ(mooncake_store_get_object(s, "k", 1, b, 1000, MOONCAKE_VERIFY_NEVER), 1000);
    EQ(mooncake_store_get_object(s, "k", 1, b, 999, 0), MOONCAKE_EINVAL);
    EQ(mooncake_store_get_object(s, "k", 1, b, 1000, 3), MOONCAKE_EINVAL);
    EQ(mooncake_store_get_object(s, "k", 1, b, 1000, MOONCAKE_NO_LEASE), MOONCAKE_EINVAL);
    EQ(mooncake_store_get_object(s, "k", 1, b, 1000, 1u << 31), MOONCAKE_EINVAL);
    EQ(mooncake_store_get_object(s, "k", 1, NULL, 0, 0), MOONCAKE_EINVAL);
}

TEST(get_copy_is_freed_by_mooncake_free) {
    mooncake_store_t s = open_memory();
    put(s, "k", 20 * MIB, 1);
    void *p = (void *)1;
    size_t size = 7;
    OK(mooncake_store_get_copy(s, "k", 1, 0, &p, &size));
    EQ(size, 20 * MIB);
    unsigned char *want = bytes(size, 1);
    EQ(memcmp(p, want, size), 0);
    free(want);
    mooncake_free(p);
    EQ(mooncake_store_get_copy(s, "no", 2, 0, &p, &size), MOONCAKE_ENOTFOUND);
    CHECK(p == NULL && size == 0);
}

TEST(get_copy_without_memory_is_ENOSPACE) {
    if (sanitized) test_skip("the sanitizer has its own malloc");
    mooncake_store_options_t o = MOONCAKE_INIT(mooncake_store_options_t);
    o.memory_bytes = 512 * MIB;
    mooncake_store_t s;
    OK(mooncake_store_open(&o, &s));
    EQ(mooncake_store_wait_ready(s, -1), 1);
    char *p = calloc(1, 300 * MIB);
    OK(mooncake_store_put_object(s, "k", 1, p, 300 * MIB, NULL));
    free(p);
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    CHECK(f != NULL && fscanf(f, "%ld", &pages) == 1);
    fclose(f);
    struct rlimit limit = {(rlim_t)pages * 4096 + 200 * MIB, RLIM_INFINITY};
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    void *data;
    size_t size;
    ERROR(mooncake_store_get_copy(s, "k", 1, 0, &data, &size), MOONCAKE_ENOSPACE, "no memory");
    EQ(mooncake_store_is_exist(s, "k"), 1);
}

TEST(stat_tells_all) {
    mooncake_store_t s = open_memory();
    put_options o = MOONCAKE_INIT(put_options);
    o.type = MOONCAKE_TYPE_KVCACHE, o.hard_pin = 1, o.soft_pin_ms = 60000;
    o.group = "my group", o.group_size = MOONCAKE_NUL;
    OK(mooncake_store_put_object(s, "k", 1, "hello", 5, &o));
    char group[16];
    memset(group, 'x', sizeof group);
    info i = MOONCAKE_INIT(info);
    i.group = group, i.group_capacity = 4;
    OK(mooncake_store_stat(s, "k", 1, &i));
    EQ(i.size, 5);
    EQ(i.type, MOONCAKE_TYPE_KVCACHE);
    EQ(i.hard_pin, 1);
    CHECK(i.soft_pin_ms > 50000 && i.soft_pin_ms <= 60000);
    EQ(i.durable + i.link + i.on_ssd, 0);
    EQ(i.in_memory, 1);
    EQ(i.lease_ms, 0);
    EQ(i.readers, 0);
    EQ(i.group_size, 8);
    EQ(memcmp(group, "my gxxxx", 8), 0); // cut to its capacity
    CHECK(i.group == group && i.group_capacity == 4);
    EQ(mooncake_store_is_exist(s, "k"), 1);
    mooncake_view_t v = MOONCAKE_INIT(mooncake_view_t);
    OK(mooncake_store_view(s, "k", 1, 0, &v));
    OK(mooncake_store_stat(s, "k", 1, &i));
    CHECK(i.lease_ms > 0 && i.lease_ms <= 10000);
    EQ(i.readers, 1);
    OK(mooncake_view_close(&v));
    uint64_t generation = i.generation, digest = i.digest;
    o = MOONCAKE_INIT(put_options), o.replace = 1;
    OK(mooncake_store_put_object(s, "k", 1, "world", 5, &o));
    OK(mooncake_store_stat(s, "k", 1, &i));
    CHECK(i.generation > generation && i.digest != digest);
    EQ(mooncake_store_stat(s, "no", 2, &i), MOONCAKE_ENOTFOUND);
    i.group_capacity = SIZE_MAX;
    EQ(mooncake_store_stat(s, "k", 1, &i), MOONCAKE_EINVAL);
}

TEST(link_shares_bytes) {
    mooncake_store_t s = open_memory();
    put(s, "target", 1000, 1);
    OK(mooncake_store_link(s, "link", 4, "target", 6, NULL));
    EQ(mooncake_store_link(s, "link", 4, "target", 6, NULL), MOONCAKE_EEXISTS);
    put_options o = MOONCAKE_INIT(put_options);
    o.keep = 1;
    OK(mooncake_store_link(s, "link", 4, "target", 6, &o));
    EQ(mooncake_store_link(s, "other", 5, "nothing", 7, NULL), MOONCAKE_ENOTFOUND);
    EQ(stat_of(s, "link").link, 1);
    OK(mooncake_store_remove(s, "target", 1));
    check_bytes(s, "link", 1000, 1);
    EQ(stat_of(s, "link").digest != 0, 1);
}

TEST(set_pins_changes_one_or_a_group) {
    mooncake_store_t s = open_memory();
    put_options o = MOONCAKE_INIT(put_options);
    o.group = "g", o.group_size = 1;
    OK(mooncake_store_put_object(s, "a", 1, "x", 1, &o));
    OK(mooncake_store_put_object(s, "b", 1, "x", 1, &o));
    OK(mooncake_store_set_pins(s, "a", 1, 1, -1));
    EQ(stat_of(s, "a").hard_pin, 1);
    EQ(stat_of(s, "b").hard_pin, 0);
    OK(mooncake_store_set_pins(s, "a", 1, 0, 5000));
    EQ(stat_of(s, "a").hard_pin, 0);
    CHECK(stat_of(s, "a").soft_pin_ms > 0);
    OK(mooncake_store_set_pins(s, "a", 1, -1, 0));
    EQ(stat_of(s, "a").soft_pin_ms, 0);
    OK(mooncake_store_set_group_pins(s, "g", 1, 1, 1000));
    EQ(stat_of(s, "a").hard_pin + stat_of(s, "b").hard_pin, 2);
    EQ(mooncake_store_set_pins(s, "no", 2, 1, -1), MOONCAKE_ENOTFOUND);
    EQ(mooncake_store_set_group_pins(s, "no", 2, 1, -1), MOONCAKE_ENOGROUP);
    EQ(mooncake_store_set_pins(s, "a", 1, 2, -1), MOONCAKE_EINVAL);
    EQ(mooncake_store_set_pins(s, "a", 1, 0, -2), MOONCAKE_EINVAL);
    EQ(mooncake_store_set_pins(s, "a", 1, 0, 24 * 3600 * 1000 + 1), MOONCAKE_EINVAL);
    OK(mooncake_store_set_pins(s, "a", 1, -1, -1));
}

TEST(group_lists_and_removes) {
    mooncake_store_t s = open_memory();
    put_options o = MOONCAKE_INIT(put_options);
    o.group = "g\0h", o.group_size = 3;
    OK(mooncake_store_put_object(s, "first", 5, "x", 1, &o));
    OK(mooncake_store_put_object(s, "a\0b", 3, "x", 1, &o));
    mooncake_key_list_t *keys = NULL;
    OK(mooncake_store_group(s, "g\0h", 3, &keys));
    EQ(keys->count, 2);
    EQ(keys->sizes[0], 5);
    EQ(keys->sizes[1], 3);
    EQ(memcmp(keys->data, "firsta\0b", 8), 0);
    mooncake_free(keys);
    OK(mooncake_store_group(s, "none", 4, &keys));
    EQ(keys->count, 0);
    mooncake_free(keys);
    EQ(mooncake_store_is_exist(s, "first"), 1); // leases the group
    keys = (void *)1;
    ERROR(mooncake_store_remove_group(s, "g\0h", 3, 0, &keys), MOONCAKE_ELEASED, "g");
    CHECK(keys == NULL);
    OK(mooncake_store_remove_group(s, "g\0h", 3, 1, &keys));
    EQ(keys->count, 2);
    mooncake_free(keys);
    EQ(mooncake_store_is_exist(s, "first"), 0);
    EQ(mooncake_store_remove_group(s, "g\0h", 3, 1, NULL), MOONCAKE_ENOGROUP);
    OK(mooncake_store_put_object(s, "third", 5, "x", 1, &o));
    OK(mooncake_store_remove_group(s, "g\0h", 3, 0, NULL));
}

// A group goes together.
TEST(group_is_evicted_together) {
    mooncake_store_t s = open_memory();
    put_options o = MOONCAKE_INIT(put_options);
    unsigned char *p = bytes(MIB, 1);
    for (int i = 0; i < 200; i++) {
        char k[16], v[16], group[16];
        snprintf(k, sizeof k, "k%d", i), snprintf(v, sizeof v, "v%d", i), snprintf(group, sizeof group, "g%d", i);
        o.group = group, o.group_size = MOONCAKE_NUL;
        OK(mooncake_store_put_object(s, k, MOONCAKE_NUL, p, MIB / 2, &o));
        OK(mooncake_store_put_object(s, v, MOONCAKE_NUL, p, MIB / 2, &o));
    }
    free(p);
    int there = 0;
    for (int i = 0; i < 199; i++) {
        char keys[40];
        int r[2];
        int n = snprintf(keys, sizeof keys, "k%d%cv%d", i, 0, i);
        OK(mooncake_store_batch_exist(s, keys, (size_t)n, NULL, 2, MOONCAKE_NO_LEASE, r));
        EQ(r[0], r[1]);
        there += r[0];
    }
    CHECK(there > 20 && there < 70);
}
