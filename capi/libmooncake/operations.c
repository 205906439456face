// SPDX-License-Identifier: Apache-2.0

// Section 9 of mooncake.h: operations.

#include <string.h>

#include "check.h"

int mooncake_store_batch_put_async(mooncake_store_t store, const char *keys, size_t keys_size,
                                   const uint32_t *key_sizes, size_t count, void *const *buffers, const size_t *sizes,
                                   const uint32_t *buffer_counts, const mooncake_put_options_t *options, int *results,
                                   mooncake_operation_t *operation_out) {
    ENTER(store);
    KEYS();
    RESULTS(results);
    NOTNULL(operation_out);
    BUFFERS(total, buffer_counts);
    PUT_OPTIONS(o);
    GROUPS(o);
    return mc_batch_put_async(mc_err(), (uintptr_t)store, (char *)keys, keys_size, (uint32_t *)key_sizes, count,
                              (void **)buffers, (size_t *)sizes, (uint32_t *)buffer_counts, total, &o, results,
                              (uintptr_t *)operation_out);
}

int mooncake_store_batch_get_async(mooncake_store_t store, const char *keys, size_t keys_size,
                                   const uint32_t *key_sizes, size_t count, void *const *buffers, const size_t *sizes,
                                   const uint32_t *buffer_counts, unsigned flags, int64_t *results,
                                   mooncake_operation_t *operation_out) {
    ENTER(store);
    KEYS();
    RESULTS(results);
    NOTNULL(operation_out);
    BUFFERS(total, buffer_counts);
    READ_FLAGS();
    return mc_batch_get_async(mc_err(), (uintptr_t)store, (char *)keys, keys_size, (uint32_t *)key_sizes, count,
                              (void **)buffers, (size_t *)sizes, (uint32_t *)buffer_counts, total, flags, results,
                              (uintptr_t *)operation_out);
}

int mooncake_operation_poll(mooncake_operation_t operation) {
    ENTER(operation);
    return mc_operation_wait(mc_err(), (uintptr_t)operation, 0);
}

int mooncake_operation_wait(mooncake_operation_t operation, int64_t timeout_ms) {
    ENTER(operation);
    return mc_operation_wait(mc_err(), (uintptr_t)operation, timeout_ms);
}

int mooncake_operation_result(mooncake_operation_t operation) {
    ENTER(operation);
    return mc_operation_result(mc_err(), (uintptr_t)operation);
}

int mooncake_operation_eventfd(mooncake_operation_t operation) {
    ENTER(operation);
    return mc_operation_eventfd(mc_err(), (uintptr_t)operation);
}

int mooncake_operation_cancel(mooncake_operation_t operation) {
    ENTER(operation);
    return mc_operation_cancel(mc_err(), (uintptr_t)operation);
}

int mooncake_operation_free(mooncake_operation_t operation) {
    ENTER(operation);
    return mc_operation_free(mc_err(), (uintptr_t)operation);
}
