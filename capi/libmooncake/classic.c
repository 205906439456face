// SPDX-License-Identifier: Apache-2.0

// Section 3 of mooncake.h: the functions of the C++ Mooncake Store's store_c.h. What they refuse by themselves is -1, as
// there.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

#define ENTER_CLASSIC()                                                                     \
    do {                                                                                    \
        int forked_ = mc_forked();                                                          \
        if (forked_ != 0) return forked_;                                                   \
    } while (0)

#define REQUIRE(p)                                                                          \
    do {                                                                                    \
        if ((p) == NULL) return mc_fail(-1, "%s: " #p " is NULL", __func__);                \
    } while (0)

#define REQUIRE_MEMORY(p, size)                                                             \
    do {                                                                                    \
        if (!mc_fits((p), (size)))                                                          \
            return mc_fail(-1, "%s: " #p " is %p with size %zu", __func__, (const void *)(p), (size_t)(size)); \
    } while (0)

// What with_soft_pin asks for: the time that the C++ store's master gives it.
enum { soft_pin_ms = 30 * 60 * 1000 };

// options_of is a config as put options of ours. A key that exists keeps its bytes.
static int options_of(mooncake_put_options_t *o, const mooncake_replicate_config_t *config) {
    memset(o, 0, sizeof *o);
    o->struct_size = sizeof *o;
    o->keep = 1;
    if (config == NULL) return 0;
    if (config->replica_num == 0) return mc_fail(MOONCAKE_EINVAL, "put: config.replica_num is 0");
    if (config->preferred_segments == NULL && config->preferred_segments_count > 0)
        return mc_fail(MOONCAKE_EINVAL, "put: config.preferred_segments is NULL, its count is %zu",
                       config->preferred_segments_count);
    o->replica_num = config->replica_num;
    o->soft_pin_ms = config->with_soft_pin != 0 ? soft_pin_ms : 0;
    o->hard_pin = config->with_hard_pin != 0;
    o->preferred_segments = config->preferred_segments;
    o->preferred_segments_count = config->preferred_segments_count;
    return 0;
}

mooncake_store_t mooncake_store_create(void) {
    if (mc_forked() != 0) return NULL;
    return (mooncake_store_t)mc_create(mc_err());
}

void mooncake_store_destroy(mooncake_store_t store) {
    if (store == NULL || mc_forked() != 0) return;
    mc_destroy(mc_err(), (uintptr_t)store);
}

static int setup(mooncake_store_t store, const char *hostname, uint64_t segment_size, const char *address) {
    const char *forced = getenv("MOONCAKE_EMBEDDED"); // not Go's copy, which is from when the library was loaded
    int embedded = forced != NULL && forced[0] != 0 && strcmp(forced, "0") != 0;
    int result = mc_setup(mc_err(), (uintptr_t)store, (char *)hostname, segment_size, (char *)address, embedded);
    // What a program that was made for a cluster runs into first, and it does not know mooncake_last_error.
    if (result == MOONCAKE_ENOTSUPPORTED) fprintf(stderr, "libmooncake: setup: %s\n", mooncake_last_error());
    return result;
}

static const char default_address[] = "127.0.0.1:50051";

int mooncake_store_setup(mooncake_store_t store, const char *local_hostname, const char *metadata_server,
                         uint64_t global_segment_size, uint64_t local_buffer_size, const char *protocol,
                         const char *device_name, const char *master_server_addr) {
    (void)metadata_server, (void)local_buffer_size, (void)protocol, (void)device_name;
    ENTER_CLASSIC();
    REQUIRE(store);
    OPTIONAL_TEXT(local_hostname);
    OPTIONAL_TEXT(master_server_addr);
    return setup(store, local_hostname != NULL ? local_hostname : "", global_segment_size,
                 master_server_addr != NULL ? master_server_addr : default_address);
}

int mooncake_store_init_all(mooncake_store_t store, const char *protocol, const char *device_name,
                            uint64_t mount_segment_size) {
    (void)protocol, (void)device_name;
    ENTER_CLASSIC();
    REQUIRE(store);
    return setup(store, "localhost:12345", mount_segment_size, default_address);
}

int mooncake_store_health_check(mooncake_store_t store) {
    ENTER_CLASSIC();
    REQUIRE(store);
    return mc_health_check(mc_err(), (uintptr_t)store);
}

static int put(const char *function, mooncake_store_t store, const char *key, const void *value, size_t size,
               const mooncake_replicate_config_t *config) {
    mooncake_put_options_t options;
    int bad = options_of(&options, config);
    if (bad != 0) return bad;
    if (!mc_fits(value, size)) return mc_fail(-1, "%s: value is %p with size %zu", function, value, size);
    return mc_put(mc_err(), (uintptr_t)store, (char *)key, mc_key_size(key, MOONCAKE_NUL), (void *)value, size, &options);
}

int mooncake_store_put(mooncake_store_t store, const char *key, const void *value, size_t size,
                       const mooncake_replicate_config_t *config) {
    ENTER_CLASSIC();
    REQUIRE(store);
    REQUIRE(key);
    return put(__func__, store, key, value, size, config);
}

int mooncake_store_put_from(mooncake_store_t store, const char *key, void *buffer, size_t size,
                            const mooncake_replicate_config_t *config) {
    ENTER_CLASSIC();
    REQUIRE(store);
    REQUIRE(key);
    REQUIRE(buffer);
    if (size == 0) return 0;
    return put(__func__, store, key, buffer, size, config);
}

// A batch's keys are measured into an array: on the stack when it is short.
enum { short_batch = 256 };

#define KEY_SIZES()                                                                         \
    uint32_t short_sizes[short_batch];                                                      \
    uint32_t *key_sizes = measure(__func__, keys, count, short_sizes);                      \
    do {                                                                                    \
        if (key_sizes == NULL) return -1;                                                   \
    } while (0)

static uint32_t *measure(const char *function, const char **keys, size_t count, uint32_t *space) {
    if (count > MOONCAKE_MAX_BATCH) {
        mc_fail(-1, "%s: count is %zu, limit %d", function, count, MOONCAKE_MAX_BATCH);
        return NULL;
    }
    uint32_t *sizes = count <= short_batch ? space : malloc(count * sizeof *sizes);
    if (sizes == NULL) {
        mc_fail(-1, "%s: no memory for %zu keys", function, count);
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        if (keys[i] == NULL) {
            mc_fail(-1, "%s: keys[%zu] is NULL", function, i);
            if (sizes != space) free(sizes);
            return NULL;
        }
        sizes[i] = (uint32_t)mc_key_size(keys[i], MOONCAKE_NUL);
    }
    return sizes;
}

#define FREE_KEY_SIZES()                                                                    \
    do {                                                                                    \
        if (key_sizes != short_sizes) free(key_sizes);                                      \
    } while (0)

static int check_buffers(const char *function, void *const *buffers, const size_t *sizes, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!mc_fits(buffers[i], sizes[i]))
            return mc_fail(-1, "%s: buffers[%zu] is %p with size %zu", function, i, buffers[i], sizes[i]);
    return 0;
}

int mooncake_store_batch_put_from(mooncake_store_t store, const char **keys, void **buffers, const size_t *sizes,
                                  size_t count, const mooncake_replicate_config_t *config, int *results_out) {
    ENTER_CLASSIC();
    REQUIRE(store);
    if (count > 0) {
        REQUIRE(keys);
        REQUIRE(buffers);
        REQUIRE(sizes);
        REQUIRE(results_out);
    }
    KEY_SIZES();
    mooncake_put_options_t options;
    int result = check_buffers(__func__, buffers, sizes, count);
    if (result == 0) {
        int bad = options_of(&options, config);
        for (size_t i = 0; bad != 0 && i < count; i++) results_out[i] = bad;
        if (bad == 0)
            result = mc_batch_put_strings(mc_err(), (uintptr_t)store, (char **)keys, key_sizes, count, buffers,
                                          (size_t *)sizes, &options, results_out);
    }
    FREE_KEY_SIZES();
    return result;
}

int64_t mooncake_store_get_into(mooncake_store_t store, const char *key, void *buffer, size_t size) {
    ENTER_CLASSIC();
    REQUIRE(store);
    REQUIRE(key);
    REQUIRE(buffer);
    REQUIRE_MEMORY(buffer, size);
    return mc_get(mc_err(), (uintptr_t)store, (char *)key, mc_key_size(key, MOONCAKE_NUL), buffer, size, 0);
}

int mooncake_store_batch_get_into(mooncake_store_t store, const char **keys, void **buffers, const size_t *sizes,
                                  size_t count, int64_t *results_out) {
    ENTER_CLASSIC();
    REQUIRE(store);
    if (count > 0) {
        REQUIRE(keys);
        REQUIRE(buffers);
        REQUIRE(sizes);
        REQUIRE(results_out);
    }
    KEY_SIZES();
    int result = check_buffers(__func__, buffers, sizes, count);
    if (result == 0)
        result = mc_batch_get_strings(mc_err(), (uintptr_t)store, (char **)keys, key_sizes, count, buffers,
                                      (size_t *)sizes, results_out);
    FREE_KEY_SIZES();
    return result;
}

int mooncake_store_is_exist(mooncake_store_t store, const char *key) {
    ENTER_CLASSIC();
    REQUIRE(store);
    REQUIRE(key);
    return mc_exist(mc_err(), (uintptr_t)store, (char *)key, mc_key_size(key, MOONCAKE_NUL));
}

int mooncake_store_batch_is_exist(mooncake_store_t store, const char **keys, size_t count, int *results_out) {
    ENTER_CLASSIC();
    REQUIRE(store);
    if (count > 0) {
        REQUIRE(keys);
        REQUIRE(results_out);
    }
    KEY_SIZES();
    int result = mc_batch_exist_strings(mc_err(), (uintptr_t)store, (char **)keys, key_sizes, count, results_out);
    FREE_KEY_SIZES();
    return result;
}

int64_t mooncake_store_get_size(mooncake_store_t store, const char *key) {
    ENTER_CLASSIC();
    REQUIRE(store);
    REQUIRE(key);
    return mc_get_size(mc_err(), (uintptr_t)store, (char *)key, mc_key_size(key, MOONCAKE_NUL));
}

int mooncake_store_get_hostname(mooncake_store_t store, char *buf_out, size_t buf_len) {
    ENTER_CLASSIC();
    REQUIRE(store);
    REQUIRE(buf_out);
    REQUIRE_MEMORY(buf_out, buf_len);
    return mc_get_hostname(mc_err(), (uintptr_t)store, buf_out, buf_len);
}

int mooncake_store_remove(mooncake_store_t store, const char *key, int force) {
    ENTER_CLASSIC();
    REQUIRE(store);
    REQUIRE(key);
    return mc_remove(mc_err(), (uintptr_t)store, (char *)key, mc_key_size(key, MOONCAKE_NUL), force != 0);
}

int64_t mooncake_store_remove_by_regex(mooncake_store_t store, const char *pattern, int force) {
    ENTER_CLASSIC();
    REQUIRE(store);
    REQUIRE(pattern);
    OPTIONAL_TEXT(pattern);
    return mc_remove_by_regex(mc_err(), (uintptr_t)store, (char *)pattern, force != 0);
}

int64_t mooncake_store_remove_all(mooncake_store_t store, int force) {
    ENTER_CLASSIC();
    REQUIRE(store);
    return mc_remove_all(mc_err(), (uintptr_t)store, force != 0);
}

int mooncake_store_register_buffer(mooncake_store_t store, void *buffer, size_t size) {
    ENTER_CLASSIC();
    REQUIRE(store);
    REQUIRE(buffer);
    REQUIRE_MEMORY(buffer, size);
    if (size == 0) return mc_fail(-1, "%s: size is 0", __func__);
    return mc_register_buffer(mc_err(), (uintptr_t)store, (uintptr_t)buffer, size);
}

int mooncake_store_unregister_buffer(mooncake_store_t store, void *buffer) {
    ENTER_CLASSIC();
    REQUIRE(store);
    REQUIRE(buffer);
    return mc_unregister_buffer(mc_err(), (uintptr_t)store, (uintptr_t)buffer);
}
