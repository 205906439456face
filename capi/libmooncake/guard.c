// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE
#include "guard.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// Go's runtime needs its thread-local word in the static TLS block, and with it all that this library has: a program that
// loads it late has 1.5 KiB left there for all of its libraries. So the text is elsewhere, and goes with its thread.
static __thread mc_error *mine;
static pthread_key_t at_exit;
static int at_exit_is_a_key; // a process has 1024 of them; without one the text is never freed

static void end_thread(void *e) {
    mine = NULL;
    free(e);
}

mc_error *mc_err(void) {
    static mc_error nobodys; // when there is no memory: better than none
    if (__builtin_expect(mine == NULL, 0)) {
        mc_error *e = calloc(1, sizeof *e);
        if (e == NULL) return &nobodys;
        mine = e;
        if (at_exit_is_a_key) pthread_setspecific(at_exit, e);
    }
    return mine;
}

int mc_fail(int code, const char *format, ...) {
    va_list args;
    mc_error *e = mc_err();
    va_start(args, format);
    vsnprintf(e->text, sizeof e->text, format, args);
    va_end(args);
    e->code = code;
    return code;
}

// The word that mc_alive points to is 1, and something else in a fork: on a page that the kernel wipes there, or, on
// kernels before 4.14, by a handler of fork, which a bare clone does not run.
static volatile int alive = 1;
volatile int *mc_alive = &alive;

static void in_child(void) { alive = 0; }

__attribute__((constructor)) static void prepare(void) {
    at_exit_is_a_key = pthread_key_create(&at_exit, end_thread) == 0;
    size_t size = (size_t)sysconf(_SC_PAGESIZE);
    void *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page != MAP_FAILED) {
        if (madvise(page, size, MADV_WIPEONFORK) == 0) {
            *(volatile int *)page = 1;
            mc_alive = page;
            return;
        }
        munmap(page, size);
    }
    pthread_atfork(NULL, NULL, in_child);
}

int mc_forked_slow(void) {
    return mc_fail(MOONCAKE_EUNAVAILABLE,
                   "this process was forked from the one that loaded libmooncake, whose threads it does not have: load "
                   "the library after the fork, or start the process with spawn");
}

size_t mc_key_size(const char *key, size_t size) {
    return size == MOONCAKE_NUL ? strnlen(key, MOONCAKE_MAX_KEY + 1) : size;
}

int64_t mc_buffers(const char *function, size_t count, const uint32_t *counts, void *const *buffers,
                   const size_t *sizes) {
    uint64_t total = count;
    if (counts != NULL) {
        total = 0;
        for (size_t i = 0; i < count; i++) total += counts[i]; // at most 2^20 times 2^32
    }
    if (total > MOONCAKE_MAX_BATCH)
        return mc_fail(MOONCAKE_EINVAL, "%s: %llu buffers, limit %d", function, (unsigned long long)total,
                       MOONCAKE_MAX_BATCH);
    if (total > 0 && (buffers == NULL || sizes == NULL))
        return mc_fail(MOONCAKE_EINVAL, "%s: %s is NULL", function, buffers == NULL ? "buffers" : "sizes");
    for (size_t i = 0; i < total; i++)
        if (!mc_fits(buffers[i], sizes[i]))
            return mc_fail(MOONCAKE_EINVAL, "%s: buffers[%zu] is %p with size %zu", function, i, buffers[i], sizes[i]);
    return (int64_t)total;
}

int mc_keys(const char *function, const char *keys, size_t keys_size, const uint32_t *key_sizes, size_t count) {
    if (count > MOONCAKE_MAX_BATCH)
        return mc_fail(MOONCAKE_EINVAL, "%s: %zu keys, limit %d", function, count, MOONCAKE_MAX_BATCH);
    if (!mc_fits(keys, keys_size))
        return mc_fail(MOONCAKE_EINVAL, "%s: keys is %p with size %zu", function, (const void *)keys, keys_size);
    if (key_sizes == NULL) return 0; // whoever cuts them counts them
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) sum += key_sizes[i];
    if (sum != keys_size)
        return mc_fail(MOONCAKE_EINVAL, "%s: key_sizes add up to %llu, keys_size is %zu", function,
                       (unsigned long long)sum, keys_size);
    return 0;
}

// No struct of any version will be larger.
enum { max_struct = 64 << 10 };

static size_t size_of_struct(const void *p) {
    size_t size;
    memcpy(&size, p, sizeof size);
    return size;
}

int mc_in(const char *function, const char *type, void *to, size_t to_size, const void *from) {
    size_t size = size_of_struct(from);
    if (size < sizeof size || size > max_struct)
        return mc_fail(MOONCAKE_EINVAL, "%s: struct_size of %s is %zu", function, type, size);
    for (size_t i = to_size; i < size; i++)
        if (((const char *)from)[i] != 0)
            return mc_fail(MOONCAKE_EINVAL, "%s: %s has a field at byte %zu that this version of the library lacks",
                           function, type, i);
    memset(to, 0, to_size);
    memcpy(to, from, size < to_size ? size : to_size);
    return 0;
}

int mc_room(const char *function, const char *type, const void *to) {
    if (to == NULL) return mc_fail(MOONCAKE_EINVAL, "%s: %s is NULL", function, type);
    size_t size = size_of_struct(to);
    if (size < sizeof size || size > max_struct)
        return mc_fail(MOONCAKE_EINVAL, "%s: struct_size of %s is %zu", function, type, size);
    return 0;
}

void mc_out(void *to, const void *from, size_t from_size) {
    size_t size = size_of_struct(to);
    if (size > from_size) size = from_size;
    memcpy((char *)to + sizeof size, (const char *)from + sizeof size, size - sizeof size);
}

int mc_put_options(const char *function, mooncake_put_options_t *o) {
    if (o->type > MOONCAKE_TYPE_GENERAL) return mc_fail(MOONCAKE_EINVAL, "%s: type is %u", function, o->type);
    if (o->soft_pin_ms > DAY_MS)
        return mc_fail(MOONCAKE_EINVAL, "%s: soft_pin_ms is %llu, limit %llu", function,
                       (unsigned long long)o->soft_pin_ms, (unsigned long long)DAY_MS);
    if (o->group == NULL && o->group_size != 0 && o->group_size != MOONCAKE_NUL)
        return mc_fail(MOONCAKE_EINVAL, "%s: group is NULL with size %zu", function, o->group_size);
    o->group_size = o->group == NULL ? 0 : mc_key_size(o->group, o->group_size);
    if (!mc_fits(o->group, o->group_size))
        return mc_fail(MOONCAKE_EINVAL, "%s: group has size %zu", function, o->group_size);
    if (o->preferred_segments == NULL && o->preferred_segments_count > 0)
        return mc_fail(MOONCAKE_EINVAL, "%s: preferred_segments is NULL, its count is %zu", function,
                       o->preferred_segments_count);
    return 0;
}
