// SPDX-License-Identifier: Apache-2.0

// What every function of the library does before it enters Go: look whether this process is a fork, check its
// arguments, and give Go the place for an error.

#ifndef GUARD_H
#define GUARD_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "mooncake.h"

#define DAY_MS ((uint64_t)24 * 60 * 60 * 1000)

// mc_error is what mooncake_last_error tells a thread. Go writes into it while it is inside a call of that thread. An
// empty text stands for the code's own.
typedef struct mc_error {
    int code;
    char text[1020];
} mc_error;

// mc_err is the calling thread's.
mc_error *mc_err(void);

// mc_fail notes an error of the calling thread and returns its code.
__attribute__((format(printf, 2, 3))) int mc_fail(int code, const char *format, ...);

// mc_forked reports whether this process is a fork of the one that loaded the library: 0, or the error to return.
int mc_forked_slow(void);
extern volatile int *mc_alive;
static inline int mc_forked(void) { return __builtin_expect(*mc_alive != 1, 0) ? mc_forked_slow() : 0; }

// mc_key_size is the size of a key that may be given as MOONCAKE_NUL, cut to one byte more than a key may have.
size_t mc_key_size(const char *key, size_t size);

// mc_fits reports whether size bytes at p can be memory of this process at all.
static inline int mc_fits(const void *p, size_t size) {
    return size == 0 || (p != NULL && size <= PTRDIFF_MAX && (uintptr_t)p <= UINTPTR_MAX - size);
}

// mc_malloc is malloc. C.malloc of cgo is not: it ends the process when there is no memory.
static inline void *mc_malloc(size_t size) { return malloc(size); }

// mc_buffers checks the arrays of a batch: how many buffers there are in total, or a code. counts NULL is one for each.
int64_t mc_buffers(const char *function, size_t count, const uint32_t *counts, void *const *buffers, const size_t *sizes);

// mc_keys checks packed keys: 0 or a code.
int mc_keys(const char *function, const char *keys, size_t keys_size, const uint32_t *key_sizes, size_t count);

// mc_in copies a struct that is passed in to one of this version, zero where the caller's is shorter. 0 or a code.
int mc_in(const char *function, const char *type, void *to, size_t to_size, const void *from);

// mc_room checks a struct that is written to: it must hold at least its struct_size. 0 or a code.
int mc_room(const char *function, const char *type, const void *to);

// mc_put_options checks the options of a put and replaces MOONCAKE_NUL in them. 0 or a code.
int mc_put_options(const char *function, mooncake_put_options_t *o);

// mc_out copies a struct of this version to the caller's, as far as that goes.
void mc_out(void *to, const void *from, size_t from_size);

#endif
