// SPDX-License-Identifier: Apache-2.0

// What the tests of the C interface share. A test is a function in any file of the suite; main.c runs each in a process
// of its own, so one that crashes or hangs fails alone.

#ifndef TEST_H
#define TEST_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mooncake.h"

// TEST(name) { ... } defines a test.
#define TEST(name)                                                                          \
    static void name(void);                                                                 \
    __attribute__((constructor)) static void add_##name(void) { test_add(__FILE__, #name, name); } \
    static void name(void)

void test_add(const char *file, const char *name, void (*run)(void));

// test_fail ends the test. The message says what was called, what it gave and what was wanted.
__attribute__((noreturn, format(printf, 3, 4))) void test_fail(const char *file, int line, const char *format, ...);

// test_skip ends the test without a verdict.
__attribute__((noreturn)) void test_skip(const char *why);

#define FAIL(...) test_fail(__FILE__, __LINE__, __VA_ARGS__)

#define CHECK(condition)                                                                    \
    do {                                                                                    \
        if (!(condition)) FAIL("%s is false; last error: %s", #condition, mooncake_last_error()); \
    } while (0)

// EQ compares numbers: codes, sizes, counts.
#define EQ(call, want)                                                                      \
    do {                                                                                    \
        long long got_ = (long long)(call), want_ = (long long)(want);                      \
        if (got_ != want_)                                                                  \
            FAIL("%s: got %lld (%s), want %lld (%s); last error: %s", #call, got_, mooncake_error_name((int)got_), \
                 want_, mooncake_error_name((int)want_), mooncake_last_error());            \
    } while (0)

#define OK(call) EQ(call, 0)

// ERROR is EQ for a negative code whose text must hold some words.
#define ERROR(call, want, words)                                                            \
    do {                                                                                    \
        EQ(call, want);                                                                     \
        EQ(mooncake_last_error_code(), want);                                               \
        if (strstr(mooncake_last_error(), words) == NULL)                                   \
            FAIL("%s: last error: %s\nwant in it: %s", #call, mooncake_last_error(), words); \
    } while (0)

#define STRING(got, want)                                                                   \
    do {                                                                                    \
        const char *got_ = (got), *want_ = (want);                                          \
        if (got_ == NULL || strcmp(got_, want_) != 0) FAIL("%s: got %s, want %s", #got, got_ ? got_ : "NULL", want_); \
    } while (0)

// HOLDS looks for words in a text.
#define HOLDS(text, words)                                                                  \
    do {                                                                                    \
        const char *text_ = (text);                                                         \
        if (text_ == NULL || strstr(text_, (words)) == NULL)                                \
            FAIL("%s: got %s\nwant in it: %s", #text, text_ ? text_ : "NULL", words);       \
    } while (0)

#define MIB ((size_t)1 << 20)
#define COUNT(array) (sizeof(array) / sizeof *(array))

// scratch is a directory on disk of the test's own; scratch_shm one in /dev/shm. Both are gone afterwards.
const char *scratch(void);
const char *scratch_shm(void);

// path_in is dir/name, in static memory that the fifth call after it uses again.
const char *path_in(const char *dir, const char *name);

// open_memory opens a memory-only store of 64 MiB, open_dir one with a directory, "d" in scratch, and volatile memory.
// Either ends the test if it can't; open_dir skips it in a library without RocksDB.
mooncake_store_t open_memory(void);
mooncake_store_t open_dir(void);

// bytes is size bytes that depend on seed, to be freed.
unsigned char *bytes(size_t size, unsigned seed);

// put stores such bytes under a key, get compares.
void put(mooncake_store_t store, const char *key, size_t size, unsigned seed);
void check_bytes(mooncake_store_t store, const char *key, size_t size, unsigned seed);

// Of this process.
int count_threads(void);
int count_fds(void);
long rss_kib(void);
int count_shm(void);

double now_seconds(void);

// sanitized is whether this is a build for AddressSanitizer, which keeps freed memory for a while.
#ifdef __SANITIZE_ADDRESS__
#define sanitized true
#else
#define sanitized false
#endif

#endif
