// SPDX-License-Identifier: Apache-2.0

// Sections 4 to 6 of mooncake.h: opening a store, objects, and batches over packed keys.

#include <stdlib.h>
#include <string.h>

#include "check.h"

int mooncake_store_open(const mooncake_store_options_t *options, mooncake_store_t *store_out) {
    ENTER(1);
    NOTNULL(store_out);
    STRUCT_IN(mooncake_store_options_t, o, options);
    OPTIONAL_TEXT(o.pool);
    OPTIONAL_TEXT(o.tenant);
    OPTIONAL_TEXT(o.dir);
    OPTIONAL_TEXT(o.shm_dir);
    OPTIONAL_TEXT(o.master);
    DURATION(o, lease_ttl_ms);
    DURATION(o, put_timeout_ms);
    if (o.dir_slots < 0 || o.dir_slots > 1024)
        return mc_fail(MOONCAKE_EINVAL, "%s: dir_slots is %d, not 0 to 1024", __func__, o.dir_slots);
    if (o.offload < 0 || o.offload > MOONCAKE_OFFLOAD_NEVER)
        return mc_fail(MOONCAKE_EINVAL, "%s: offload is %d", __func__, o.offload);
    return mc_open(mc_err(), &o, (uintptr_t *)store_out);
}

int mooncake_store_close(mooncake_store_t store) {
    ENTER(store);
    return mc_close(mc_err(), (uintptr_t)store);
}

int mooncake_store_tenant(mooncake_store_t store, const char *tenant, mooncake_store_t *store_out) {
    ENTER(store);
    TEXT(tenant);
    NOTNULL(store_out);
    return mc_tenant(mc_err(), (uintptr_t)store, (char *)tenant, (uintptr_t *)store_out);
}

int mooncake_store_wait_ready(mooncake_store_t store, int64_t timeout_ms) {
    ENTER(store);
    return mc_wait_ready(mc_err(), (uintptr_t)store, timeout_ms);
}

int mooncake_store_sync(mooncake_store_t store) {
    ENTER(store);
    return mc_sync(mc_err(), (uintptr_t)store);
}

int mooncake_store_put_object(mooncake_store_t store, const char *key, size_t key_size, const void *data, size_t size,
                              const mooncake_put_options_t *options) {
    ENTER(store);
    KEY(key, key_size);
    MEMORY(data, size);
    if (options == NULL) return mc_put(mc_err(), (uintptr_t)store, (char *)key, key_size, (void *)data, size, NULL);
    PUT_OPTIONS(o);
    return mc_put(mc_err(), (uintptr_t)store, (char *)key, key_size, (void *)data, size, &o);
}

int64_t mooncake_store_get_object(mooncake_store_t store, const char *key, size_t key_size, void *buffer, size_t size,
                                  unsigned flags) {
    ENTER(store);
    KEY(key, key_size);
    MEMORY(buffer, size);
    READ_FLAGS();
    return mc_get(mc_err(), (uintptr_t)store, (char *)key, key_size, buffer, size, flags);
}

int mooncake_store_get_copy(mooncake_store_t store, const char *key, size_t key_size, unsigned flags, void **data_out,
                            size_t *size_out) {
    ENTER(store);
    KEY(key, key_size);
    NOTNULL(data_out);
    NOTNULL(size_out);
    READ_FLAGS();
    return mc_get_copy(mc_err(), (uintptr_t)store, (char *)key, key_size, flags, data_out, size_out);
}

int mooncake_store_stat(mooncake_store_t store, const char *key, size_t key_size, mooncake_object_info_t *info) {
    ENTER(store);
    KEY(key, key_size);
    STRUCT_OUT(info);
    STRUCT_IN(mooncake_object_info_t, full, info); // with the place for the group
    if (full.group != NULL) MEMORY(full.group, full.group_capacity);
    int result = mc_stat(mc_err(), (uintptr_t)store, (char *)key, key_size, &full);
    if (result == 0) mc_out(info, &full, sizeof full);
    return result;
}

int mooncake_store_link(mooncake_store_t store, const char *key, size_t key_size, const char *target,
                        size_t target_size, const mooncake_put_options_t *options) {
    ENTER(store);
    KEY(key, key_size);
    KEY(target, target_size);
    PUT_OPTIONS(o);
    return mc_link(mc_err(), (uintptr_t)store, (char *)key, key_size, (char *)target, target_size, &o);
}

#define PINS()                                                                              \
    do {                                                                                    \
        if (hard_pin < -1 || hard_pin > 1)                                                  \
            return mc_fail(MOONCAKE_EINVAL, "%s: hard_pin is %d", __func__, hard_pin);      \
        if (soft_pin_ms < -1 || soft_pin_ms > (int64_t)DAY_MS)                              \
            return mc_fail(MOONCAKE_EINVAL, "%s: soft_pin_ms is %lld", __func__, (long long)soft_pin_ms); \
    } while (0)

int mooncake_store_set_pins(mooncake_store_t store, const char *key, size_t key_size, int hard_pin,
                            int64_t soft_pin_ms) {
    ENTER(store);
    KEY(key, key_size);
    PINS();
    return mc_set_pins(mc_err(), (uintptr_t)store, (char *)key, key_size, 0, hard_pin, soft_pin_ms);
}

int mooncake_store_set_group_pins(mooncake_store_t store, const char *group, size_t group_size, int hard_pin,
                                  int64_t soft_pin_ms) {
    ENTER(store);
    KEY(group, group_size);
    PINS();
    return mc_set_pins(mc_err(), (uintptr_t)store, (char *)group, group_size, 1, hard_pin, soft_pin_ms);
}

int mooncake_store_group(mooncake_store_t store, const char *group, size_t group_size, mooncake_key_list_t **keys_out) {
    ENTER(store);
    KEY(group, group_size);
    NOTNULL(keys_out);
    return mc_group(mc_err(), (uintptr_t)store, (char *)group, group_size, keys_out);
}

int mooncake_store_remove_group(mooncake_store_t store, const char *group, size_t group_size, int force,
                                mooncake_key_list_t **keys_out) {
    ENTER(store);
    KEY(group, group_size);
    return mc_remove_group(mc_err(), (uintptr_t)store, (char *)group, group_size, force != 0, keys_out);
}

int mooncake_store_batch_exist(mooncake_store_t store, const char *keys, size_t keys_size, const uint32_t *key_sizes,
                               size_t count, unsigned flags, int *results) {
    ENTER(store);
    KEYS();
    RESULTS(results);
    FLAGS(MOONCAKE_NO_LEASE);
    return mc_batch_exist(mc_err(), (uintptr_t)store, (char *)keys, keys_size, (uint32_t *)key_sizes, count, flags,
                          results);
}

int mooncake_store_batch_put(mooncake_store_t store, const char *keys, size_t keys_size, const uint32_t *key_sizes,
                             size_t count, void *const *buffers, const size_t *sizes, const uint32_t *buffer_counts,
                             const mooncake_put_options_t *options, int *results) {
    ENTER(store);
    KEYS();
    RESULTS(results);
    BUFFERS(total, buffer_counts);
    PUT_OPTIONS(o);
    GROUPS(o);
    return mc_batch_put(mc_err(), (uintptr_t)store, (char *)keys, keys_size, (uint32_t *)key_sizes, count,
                        (void **)buffers, (size_t *)sizes, (uint32_t *)buffer_counts, total, &o, results);
}

int mooncake_store_batch_get(mooncake_store_t store, const char *keys, size_t keys_size, const uint32_t *key_sizes,
                             size_t count, void *const *buffers, const size_t *sizes, const uint32_t *buffer_counts,
                             unsigned flags, int64_t *results) {
    ENTER(store);
    KEYS();
    RESULTS(results);
    BUFFERS(total, buffer_counts);
    READ_FLAGS();
    return mc_batch_get(mc_err(), (uintptr_t)store, (char *)keys, keys_size, (uint32_t *)key_sizes, count,
                        (void **)buffers, (size_t *)sizes, (uint32_t *)buffer_counts, total, flags, results);
}

int mooncake_store_batch_get_ranges(mooncake_store_t store, const char *keys, size_t keys_size,
                                    const uint32_t *key_sizes, size_t count, void *const *buffers, const size_t *sizes,
                                    const uint64_t *offsets, const uint32_t *fragment_counts, unsigned flags,
                                    int64_t *results) {
    ENTER(store);
    KEYS();
    BUFFERS(total, fragment_counts);
    if (total > 0) {
        NOTNULL(offsets);
        NOTNULL(results);
    }
    READ_FLAGS();
    return mc_batch_get_ranges(mc_err(), (uintptr_t)store, (char *)keys, keys_size, (uint32_t *)key_sizes, count,
                               (void **)buffers, (size_t *)sizes, (uint32_t *)fragment_counts, total,
                               (uint64_t *)offsets, flags, results);
}

int mooncake_store_batch_get_size(mooncake_store_t store, const char *keys, size_t keys_size, const uint32_t *key_sizes,
                                  size_t count, int64_t *results) {
    ENTER(store);
    KEYS();
    RESULTS(results);
    return mc_batch_get_size(mc_err(), (uintptr_t)store, (char *)keys, keys_size, (uint32_t *)key_sizes, count,
                             results);
}

int mooncake_store_batch_remove(mooncake_store_t store, const char *keys, size_t keys_size, const uint32_t *key_sizes,
                                size_t count, int force, int *results) {
    ENTER(store);
    KEYS();
    RESULTS(results);
    return mc_batch_remove(mc_err(), (uintptr_t)store, (char *)keys, keys_size, (uint32_t *)key_sizes, count,
                           force != 0, results);
}
