// SPDX-License-Identifier: Apache-2.0

// Section 11 of mooncake.h: weights.

#include <string.h>

#include "check.h"

#define REVISION()                                                                          \
    do {                                                                                    \
        TEXT(model_id);                                                                     \
        TEXT(revision);                                                                     \
    } while (0)

#define REF (uintptr_t)weight, (char *)model_id, (char *)revision

int mooncake_weight_open(mooncake_store_t store, const mooncake_weight_options_t *options,
                         mooncake_weight_t *weight_out) {
    ENTER(store);
    NOTNULL(weight_out);
    STRUCT_IN(mooncake_weight_options_t, o, options);
    OPTIONAL_TEXT(o.load_dir);
    DURATION(o, unfinished_ttl_ms);
    return mc_weight_open(mc_err(), (uintptr_t)store, &o, (uintptr_t *)weight_out);
}

int mooncake_weight_close(mooncake_weight_t weight) {
    ENTER(weight);
    return mc_weight_close(mc_err(), (uintptr_t)weight);
}

static int patterns(const char *function, const char *what, const char *const *list, size_t count) {
    if (count > 1024) return mc_fail(MOONCAKE_EINVAL, "%s: %s has %zu patterns, limit 1024", function, what, count);
    if (list == NULL && count > 0) return mc_fail(MOONCAKE_EINVAL, "%s: %s is NULL", function, what);
    for (size_t i = 0; i < count; i++)
        if (list[i] == NULL || strnlen(list[i], MC_MAX_TEXT + 1) > MC_MAX_TEXT)
            return mc_fail(MOONCAKE_EINVAL, "%s: %s[%zu] is NULL or too long", function, what, i);
    return 0;
}

int mooncake_weight_import(mooncake_weight_t weight, const mooncake_weight_import_t *request,
                           mooncake_operation_t *operation_out) {
    ENTER(weight);
    NOTNULL(request);
    NOTNULL(operation_out);
    STRUCT_IN(mooncake_weight_import_t, q, request);
    TEXT(q.model_id);
    TEXT(q.revision);
    TEXT(q.source);
    int bad = patterns(__func__, "include", q.include, q.include_count);
    if (bad == 0) bad = patterns(__func__, "exclude", q.exclude, q.exclude_count);
    if (bad != 0) return bad;
    return mc_weight_import(mc_err(), (uintptr_t)weight, &q, (uintptr_t *)operation_out);
}

int mooncake_weight_import_progress(mooncake_operation_t operation, mooncake_weight_progress_t *progress) {
    ENTER(operation);
    STRUCT_OUT(progress);
    mooncake_weight_progress_t full = {.struct_size = sizeof full};
    int result = mc_weight_import_progress(mc_err(), (uintptr_t)operation, &full);
    if (result == 0) mc_out(progress, &full, sizeof full);
    return result;
}

int mooncake_weight_import_result(mooncake_operation_t operation, char **json_out) {
    ENTER(operation);
    NOTNULL(json_out);
    return mc_weight_import_result(mc_err(), (uintptr_t)operation, json_out);
}

int mooncake_weight_manifest(mooncake_weight_t weight, const char *model_id, const char *revision, char **json_out) {
    ENTER(weight);
    REVISION();
    NOTNULL(json_out);
    return mc_weight_manifest(mc_err(), REF, json_out);
}

int mooncake_weight_check(mooncake_weight_t weight, const char *model_id, const char *revision, int deep,
                          char **json_out) {
    ENTER(weight);
    REVISION();
    NOTNULL(json_out);
    return mc_weight_check(mc_err(), REF, deep != 0, json_out);
}

int mooncake_weight_list(mooncake_weight_t weight, const char *model_id, char **json_out) {
    ENTER(weight);
    OPTIONAL_TEXT(model_id);
    NOTNULL(json_out);
    return mc_weight_list(mc_err(), (uintptr_t)weight, (char *)model_id, json_out);
}

int mooncake_weight_usage(mooncake_weight_t weight, char **json_out) {
    ENTER(weight);
    NOTNULL(json_out);
    return mc_weight_usage(mc_err(), (uintptr_t)weight, json_out);
}

int mooncake_weight_delete(mooncake_weight_t weight, const char *model_id, const char *revision) {
    ENTER(weight);
    REVISION();
    return mc_weight_delete(mc_err(), REF, 0);
}

int mooncake_weight_abort(mooncake_weight_t weight, const char *model_id, const char *revision) {
    ENTER(weight);
    REVISION();
    return mc_weight_delete(mc_err(), REF, 1);
}

int mooncake_weight_load(mooncake_weight_t weight, const char *model_id, const char *revision, int verify,
                         mooncake_loaded_t *loaded) {
    ENTER(weight);
    REVISION();
    HANDLE_OUT(loaded);
    mooncake_loaded_t full = {.struct_size = sizeof full, .lock_fd = -1};
    int result = mc_weight_load(mc_err(), REF, verify != 0, &full);
    mc_out(loaded, &full, sizeof full);
    return result;
}

static const mooncake_loaded_t not_loaded = {.struct_size = sizeof(mooncake_loaded_t), .lock_fd = -1};

int mooncake_loaded_close(mooncake_loaded_t *loaded) {
    ENTER(1);
    STRUCT_OUT(loaded);
    STRUCT_IN(mooncake_loaded_t, l, loaded);
    int result = mc_loaded_close(mc_err(), l.handle);
    mc_out(loaded, &not_loaded, sizeof not_loaded);
    return result;
}

int mooncake_loaded_hand_out(const mooncake_loaded_t *loaded, const char *user) {
    ENTER(1);
    NOTNULL(loaded);
    TEXT(user);
    STRUCT_IN(mooncake_loaded_t, l, loaded);
    return mc_loaded_hand_out(mc_err(), l.handle, (char *)user);
}

int mooncake_loaded_detach(mooncake_loaded_t *loaded, int *fd_out) {
    ENTER(1);
    STRUCT_OUT(loaded);
    NOTNULL(fd_out);
    STRUCT_IN(mooncake_loaded_t, l, loaded);
    int result = mc_loaded_detach(mc_err(), l.handle, fd_out);
    if (result == 0) mc_out(loaded, &not_loaded, sizeof not_loaded);
    return result;
}

int mooncake_weight_open_file(mooncake_weight_t weight, const char *model_id, const char *revision, const char *name,
                              mooncake_weight_file_t *file_out) {
    ENTER(weight);
    REVISION();
    TEXT(name);
    NOTNULL(file_out);
    return mc_weight_open_file(mc_err(), REF, (char *)name, (uintptr_t *)file_out);
}

int64_t mooncake_weight_file_size(mooncake_weight_file_t file) {
    ENTER(file);
    return mc_weight_file_size(mc_err(), (uintptr_t)file);
}

int64_t mooncake_weight_file_read_at(mooncake_weight_file_t file, void *buffer, size_t size, uint64_t offset) {
    ENTER(file);
    MEMORY(buffer, size);
    return mc_weight_file_read_at(mc_err(), (uintptr_t)file, buffer, size, offset);
}

int mooncake_weight_file_close(mooncake_weight_file_t file) {
    ENTER(file);
    return mc_weight_file_close(mc_err(), (uintptr_t)file);
}

int mooncake_weight_tensors(mooncake_weight_t weight, const char *model_id, const char *revision,
                            mooncake_tensor_list_t **tensors_out) {
    ENTER(weight);
    REVISION();
    NOTNULL(tensors_out);
    return mc_weight_tensors(mc_err(), REF, tensors_out);
}

int64_t mooncake_weight_read_tensor(mooncake_weight_t weight, const char *model_id, const char *revision,
                                    const char *name, void *buffer, size_t size) {
    ENTER(weight);
    REVISION();
    TEXT(name);
    MEMORY(buffer, size);
    return mc_weight_read_tensor(mc_err(), REF, (char *)name, buffer, size);
}

int mooncake_weight_view_tensor(mooncake_weight_t weight, const char *model_id, const char *revision, const char *name,
                                mooncake_view_t *view) {
    ENTER(weight);
    REVISION();
    TEXT(name);
    HANDLE_OUT(view);
    mooncake_view_t full = {.struct_size = sizeof full};
    int result = mc_weight_view_tensor(mc_err(), REF, (char *)name, &full);
    mc_out(view, &full, sizeof full);
    return result;
}
