// SPDX-License-Identifier: Apache-2.0

// Section 7 of mooncake.h: views, files, writers.

#include <string.h>

#include "check.h"

int mooncake_store_view(mooncake_store_t store, const char *key, size_t key_size, unsigned flags,
                        mooncake_view_t *view) {
    ENTER(store);
    KEY(key, key_size);
    READ_FLAGS();
    HANDLE_OUT(view);
    mooncake_view_t full = {.struct_size = sizeof full};
    int result = mc_view(mc_err(), (uintptr_t)store, (char *)key, key_size, flags, &full);
    mc_out(view, &full, sizeof full);
    return result;
}

int mooncake_store_batch_view(mooncake_store_t store, const char *keys, size_t keys_size, const uint32_t *key_sizes,
                              size_t count, unsigned flags, mooncake_view_t *views, size_t view_size, int *results) {
    ENTER(store);
    KEYS();
    RESULTS(views);
    RESULTS(results);
    READ_FLAGS();
    // The handle, without which a view could not be closed, is a must.
    if (view_size < offsetof(mooncake_view_t, data) || view_size % _Alignof(mooncake_view_t) != 0 || view_size > 4096)
        return mc_fail(MOONCAKE_EINVAL, "%s: view_size is %zu", __func__, view_size);
    return mc_batch_view(mc_err(), (uintptr_t)store, (char *)keys, keys_size, (uint32_t *)key_sizes, count, flags, views,
                         view_size, results);
}

int64_t mooncake_view_segments(const mooncake_view_t *view, mooncake_segment_t *segments, size_t capacity) {
    ENTER(1);
    NOTNULL(view);
    if (capacity > MOONCAKE_MAX_BATCH) capacity = MOONCAKE_MAX_BATCH;
    if (capacity > 0) NOTNULL(segments);
    STRUCT_IN(mooncake_view_t, v, view);
    return mc_view_segments(mc_err(), v.handle, segments, capacity);
}

int mooncake_view_close(mooncake_view_t *view) {
    ENTER(1);
    STRUCT_OUT(view);
    STRUCT_IN(mooncake_view_t, v, view);
    int result = mc_view_close(mc_err(), v.handle);
    mooncake_view_t closed = {.struct_size = sizeof closed};
    mc_out(view, &closed, sizeof closed);
    return result;
}

int mooncake_store_file(mooncake_store_t store, const char *key, size_t key_size, unsigned flags,
                        mooncake_file_t *file) {
    ENTER(store);
    KEY(key, key_size);
    READ_FLAGS();
    HANDLE_OUT(file);
    mooncake_file_t full = {.struct_size = sizeof full};
    int result = mc_file(mc_err(), (uintptr_t)store, (char *)key, key_size, flags, &full);
    mc_out(file, &full, sizeof full);
    return result;
}

int mooncake_file_close(mooncake_file_t *file) {
    ENTER(1);
    STRUCT_OUT(file);
    STRUCT_IN(mooncake_file_t, f, file);
    int result = mc_file_close(mc_err(), f.handle);
    mooncake_file_t closed = {.struct_size = sizeof closed};
    mc_out(file, &closed, sizeof closed);
    return result;
}

int mooncake_store_create_object(mooncake_store_t store, const char *key, size_t key_size, uint64_t size,
                                 const mooncake_put_options_t *options, mooncake_writer_t *writer_out) {
    ENTER(store);
    KEY(key, key_size);
    NOTNULL(writer_out);
    PUT_OPTIONS(o);
    return mc_create_object(mc_err(), (uintptr_t)store, (char *)key, key_size, size, &o, (uintptr_t *)writer_out);
}

int mooncake_writer_write(mooncake_writer_t writer, const void *data, size_t size) {
    ENTER(writer);
    MEMORY(data, size);
    return mc_writer_write(mc_err(), (uintptr_t)writer, 0, 0, (void *)data, size);
}

int mooncake_writer_write_at(mooncake_writer_t writer, uint64_t offset, const void *data, size_t size) {
    ENTER(writer);
    MEMORY(data, size);
    return mc_writer_write(mc_err(), (uintptr_t)writer, 1, offset, (void *)data, size);
}

int mooncake_writer_commit(mooncake_writer_t writer) {
    ENTER(writer);
    return mc_writer_end(mc_err(), (uintptr_t)writer, 1);
}

int mooncake_writer_abort(mooncake_writer_t writer) {
    ENTER(writer);
    return mc_writer_end(mc_err(), (uintptr_t)writer, 0);
}
