// SPDX-License-Identifier: Apache-2.0

// Stores and objects for the tests of a program that is linked with the library.

#include "test.h"

mooncake_store_t open_memory(void) {
    mooncake_store_options_t o = MOONCAKE_INIT(mooncake_store_options_t);
    o.memory_bytes = 64 * MIB;
    mooncake_store_t store = NULL;
    OK(mooncake_store_open(&o, &store));
    EQ(mooncake_store_wait_ready(store, -1), 1);
    return store;
}

mooncake_store_t open_dir(void) {
    mooncake_store_options_t o = MOONCAKE_INIT(mooncake_store_options_t);
    o.memory_bytes = 64 * MIB;
    o.ssd_bytes = 256 * MIB;
    o.dir = path_in(scratch(), "d");
    o.shm_dir = scratch_shm();
    o.volatile_memory = 1;
    mooncake_store_t store = NULL;
    int code = mooncake_store_open(&o, &store);
    if (code == MOONCAKE_EMODE) test_skip("this library has no RocksDB");
    OK(code);
    EQ(mooncake_store_wait_ready(store, -1), 1);
    return store;
}

unsigned char *bytes(size_t size, unsigned seed) {
    unsigned char *p = malloc(size ? size : 1);
    uint64_t x = seed * 2654435761u + 1;
    for (size_t i = 0; i < size; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        p[i] = (unsigned char)(x >> 56);
    }
    return p;
}

void put(mooncake_store_t store, const char *key, size_t size, unsigned seed) {
    unsigned char *p = bytes(size, seed);
    int code = mooncake_store_put_object(store, key, MOONCAKE_NUL, p, size, NULL);
    if (code != 0) FAIL("put %s of %zu bytes: %d, %s", key, size, code, mooncake_last_error());
    free(p);
}

void check_bytes(mooncake_store_t store, const char *key, size_t size, unsigned seed) {
    unsigned char *want = bytes(size, seed), *got = malloc(size);
    int64_t n = mooncake_store_get_object(store, key, MOONCAKE_NUL, got, size, 0);
    if (n != (int64_t)size) FAIL("get %s: got %lld, want %zu; %s", key, (long long)n, size, mooncake_last_error());
    for (size_t i = 0; i < size; i++)
        if (got[i] != want[i]) FAIL("get %s: byte %zu is %d, want %d", key, i, got[i], want[i]);
    free(want);
    free(got);
}
