// SPDX-License-Identifier: Apache-2.0

// What calls from C cost, in one run: rounds of every measurement in turn, and of each the median. Prints a line for each
// and, last, "ns EMPTY EXIST" of the medians and "ns EMPTY EXIST" of the quietest rounds, for who compares them with Go.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mooncake.h"

void bench_empty(void); // in a library of its own, through the PLT
void other_empty(void); // the same in Go, with nothing but cgo

enum { rounds = 15, keys = 1000, object = 4096 };

static mooncake_store_t store;
static char packed[keys * 32], *strings[keys], buffer[object];
static size_t packed_size;
static uint32_t sizes[keys];
static int results[keys];

static void check(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "bench: %s: %s\n", what, mooncake_last_error());
    exit(1);
}

static void empty(void) { bench_empty(); }
static void version(void) { mooncake_abi_version(); }
static void callback(void) { other_empty(); }
static void exist(void) { check(mooncake_store_is_exist(store, "key-0") == 1, "is_exist"); }
static void miss(void) { check(mooncake_store_is_exist(store, "no such key") == 0, "is_exist of a miss"); }
static void get(void) { check(mooncake_store_get_into(store, "key-0", buffer, object) == object, "get_into"); }
static void batch(void) {
    check(mooncake_store_batch_exist(store, packed, packed_size, sizes, keys, 0, results) == 0, "batch_exist");
}
static void classic(void) {
    check(mooncake_store_batch_is_exist(store, (const char **)strings, keys, results) == 0, "batch_is_exist");
}

static struct {
    const char *name;
    void (*call)(void);
    long times;
    double ns[rounds];
} all[] = {
    {"empty C function through the PLT", empty, 20000000, {0}},
    {"mooncake_abi_version", version, 20000000, {0}},
    {"empty Go function: cgo's own cost", callback, 500000, {0}},
    {"mooncake_store_is_exist, a hit", exist, 500000, {0}},
    {"mooncake_store_is_exist, a miss", miss, 500000, {0}},
    {"mooncake_store_get_into, 4 KiB", get, 200000, {0}},
    {"mooncake_store_batch_exist, 1000 packed keys", batch, 500, {0}},
    {"mooncake_store_batch_is_exist, 1000 strings", classic, 500, {0}},
};
enum { count = sizeof all / sizeof *all, the_callback = 2, the_exist = 3 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(void) {
    mooncake_store_options_t o = MOONCAKE_INIT(mooncake_store_options_t);
    o.memory_bytes = 256 << 20;
    check(mooncake_store_open(&o, &store) == 0, "open");
    check(mooncake_store_wait_ready(store, -1) == 1, "wait_ready");
    char *p = packed;
    for (int i = 0; i < keys; i++) {
        int n = snprintf(p, 32, "key-%d", i);
        strings[i] = strdup(p);
        check(mooncake_store_put(store, strings[i], buffer, object, NULL) == 0, "put");
        sizes[i] = (uint32_t)n;
        p += n;
    }
    packed_size = (size_t)(p - packed);
    for (int r = 0; r < rounds; r++)
        for (int i = 0; i < count; i++) {
            double start = now();
            for (long k = 0; k < all[i].times / rounds; k++) all[i].call();
            all[i].ns[r] = (now() - start) / (double)(all[i].times / rounds);
        }
    for (int i = 0; i < count; i++) {
        qsort(all[i].ns, rounds, sizeof(double), compare);
        printf("%-46s %9.1f ns   (%.1f to %.1f)\n", all[i].name, all[i].ns[rounds / 2], all[i].ns[0],
               all[i].ns[rounds - 1]);
    }
    for (int r = rounds / 2; r >= 0; r -= rounds / 2)
        printf("ns %.1f %.1f\n", all[the_callback].ns[r], all[the_exist].ns[r]);
    mooncake_store_destroy(store);
    return 0;
}
