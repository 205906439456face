// SPDX-License-Identifier: Apache-2.0

// Section 8 of mooncake.h: sessions.

#include <string.h>

#include "check.h"

#define PACKED (char *)keys, keys_size, (uint32_t *)key_sizes, count

int mooncake_store_get_session_start(mooncake_store_t store, const char *keys, size_t keys_size,
                                     const uint32_t *key_sizes, size_t count, int *results) {
    ENTER(store);
    KEYS();
    RESULTS(results);
    return mc_get_session_start(mc_err(), (uintptr_t)store, PACKED, results);
}

int mooncake_store_get_session_read(mooncake_store_t store, const char *keys, size_t keys_size,
                                    const uint32_t *key_sizes, size_t count, void *const *buffers, const size_t *sizes,
                                    const uint64_t *offsets, const uint32_t *fragment_counts, int64_t *results) {
    ENTER(store);
    KEYS();
    RESULTS(results);
    BUFFERS(total, fragment_counts);
    if (total > 0) NOTNULL(offsets);
    return mc_get_session_read(mc_err(), (uintptr_t)store, PACKED, (void **)buffers, (size_t *)sizes,
                               (uint32_t *)fragment_counts, total, (uint64_t *)offsets, results);
}

int mooncake_store_get_session_end(mooncake_store_t store, const char *keys, size_t keys_size,
                                   const uint32_t *key_sizes, size_t count) {
    ENTER(store);
    KEYS();
    return mc_get_session_end(mc_err(), (uintptr_t)store, PACKED);
}

int mooncake_store_put_session_start(mooncake_store_t store, const char *keys, size_t keys_size,
                                     const uint32_t *key_sizes, size_t count, const uint64_t *sizes,
                                     const mooncake_put_options_t *options, int *results) {
    ENTER(store);
    KEYS();
    RESULTS(results);
    if (count > 0) NOTNULL(sizes);
    PUT_OPTIONS(o);
    GROUPS(o);
    return mc_put_session_start(mc_err(), (uintptr_t)store, PACKED, (uint64_t *)sizes, &o, results);
}

int mooncake_store_put_session_write(mooncake_store_t store, const char *keys, size_t keys_size,
                                     const uint32_t *key_sizes, size_t count, void *const *buffers, const size_t *sizes,
                                     const uint64_t *offsets, const uint32_t *fragment_counts, int *results) {
    ENTER(store);
    KEYS();
    RESULTS(results);
    BUFFERS(total, fragment_counts);
    if (total > 0) NOTNULL(offsets);
    return mc_put_session_write(mc_err(), (uintptr_t)store, PACKED, (void **)buffers, (size_t *)sizes,
                                (uint32_t *)fragment_counts, total, (uint64_t *)offsets, results);
}

int mooncake_store_put_session_end(mooncake_store_t store, const char *keys, size_t keys_size,
                                   const uint32_t *key_sizes, size_t count, int *results) {
    ENTER(store);
    KEYS();
    RESULTS(results);
    return mc_put_session_end(mc_err(), (uintptr_t)store, PACKED, 0, results);
}

int mooncake_store_put_session_revoke(mooncake_store_t store, const char *keys, size_t keys_size,
                                      const uint32_t *key_sizes, size_t count, int *results) {
    ENTER(store);
    KEYS();
    RESULTS(results);
    return mc_put_session_end(mc_err(), (uintptr_t)store, PACKED, 1, results);
}
