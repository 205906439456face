// SPDX-License-Identifier: Apache-2.0

// Short forms of the checks that the functions of mooncake.h start with. Each returns from the function that it is in.

#ifndef CHECK_H
#define CHECK_H

#include "_cgo_export.h"
#include "guard.h"

// ENTER refuses a forked process and a handle that is NULL or 0.
#define ENTER(handle)                                                                                    \
    do {                                                                                                 \
        int forked_ = mc_forked();                                                                       \
        if (forked_ != 0) return forked_;                                                                \
        if ((handle) == 0) return mc_fail(MOONCAKE_EINVAL, "%s: " #handle " is not open", __func__);     \
    } while (0)

// NOTNULL refuses a NULL argument.
#define NOTNULL(p)                                                                                       \
    do {                                                                                                 \
        if ((p) == NULL) return mc_fail(MOONCAKE_EINVAL, "%s: " #p " is NULL", __func__);                \
    } while (0)

// MEMORY refuses memory that can't be: NULL, or past the end of the address space.
#define MEMORY(p, size)                                                                                  \
    do {                                                                                                 \
        if (!mc_fits((p), (size)))                                                                       \
            return mc_fail(MOONCAKE_EINVAL, "%s: " #p " is %p with size %zu", __func__, (const void *)(p), (size_t)(size)); \
    } while (0)

// KEY checks one key, and replaces MOONCAKE_NUL in its size by what it stands for. One that is too long may have any
// size: nothing may look at it.
#define KEY(key, size)                                                                                   \
    do {                                                                                                 \
        NOTNULL(key);                                                                                    \
        size = mc_key_size(key, size);                                                                   \
        if (size > MOONCAKE_MAX_KEY)                                                                     \
            return mc_fail(MOONCAKE_EKEY, "%s: " #key " is longer than %d bytes", __func__, MOONCAKE_MAX_KEY); \
        MEMORY(key, size);                                                                               \
    } while (0)

// KEYS checks packed keys.
#define KEYS()                                                                                           \
    do {                                                                                                 \
        int bad_ = mc_keys(__func__, keys, keys_size, key_sizes, count);                                 \
        if (bad_ != 0) return bad_;                                                                      \
    } while (0)

// RESULTS refuses a NULL array of results, but for an empty batch.
#define RESULTS(results)                                                                                 \
    do {                                                                                                 \
        if ((results) == NULL && count > 0) return mc_fail(MOONCAKE_EINVAL, "%s: " #results " is NULL", __func__); \
    } while (0)

// BUFFERS checks the buffers of a batch, and gives their number.
#define BUFFERS(total, counts)                                                                           \
    int64_t total = mc_buffers(__func__, count, counts, buffers, sizes);                                 \
    do {                                                                                                 \
        if (total < 0) return (int)total;                                                                \
    } while (0)

// TEXT refuses a string that is NULL or longer than any that means something.
#define TEXT(s)                                                                                          \
    do {                                                                                                 \
        NOTNULL(s);                                                                                      \
        OPTIONAL_TEXT(s);                                                                                \
    } while (0)

#define OPTIONAL_TEXT(s)                                                                                 \
    do {                                                                                                 \
        if ((s) != NULL && strnlen((s), MC_MAX_TEXT + 1) > MC_MAX_TEXT)                                   \
            return mc_fail(MOONCAKE_EINVAL, "%s: " #s " is longer than %d bytes", __func__, MC_MAX_TEXT); \
    } while (0)

enum { MC_MAX_TEXT = 16384 };

// STRUCT_IN copies a struct that the caller passed in, or all zero for NULL.
#define STRUCT_IN(type, name, from)                                                                      \
    type name = {.struct_size = sizeof(type)};                                                           \
    do {                                                                                                 \
        if ((from) != NULL) {                                                                            \
            int bad_ = mc_in(__func__, #from, &name, sizeof name, (from));                               \
            if (bad_ != 0) return bad_;                                                                  \
        }                                                                                                \
    } while (0)

// STRUCT_OUT checks a struct of the caller that will be written.
#define STRUCT_OUT(to)                                                                                   \
    do {                                                                                                 \
        int bad_ = mc_room(__func__, #to, (to));                                                         \
        if (bad_ != 0) return bad_;                                                                      \
    } while (0)

// HANDLE_OUT is STRUCT_OUT for a struct that must have room for its handle, the second field: without it what is handed
// out could not be closed.
#define HANDLE_OUT(to)                                                                                   \
    do {                                                                                                 \
        STRUCT_OUT(to);                                                                                  \
        if ((to)->struct_size < sizeof(size_t) + sizeof(uint64_t))                                       \
            return mc_fail(MOONCAKE_EINVAL, "%s: struct_size of " #to " is %zu", __func__, (to)->struct_size); \
    } while (0)

// PUT_OPTIONS copies and checks what a put is given.
#define PUT_OPTIONS(o)                                                                      \
    STRUCT_IN(mooncake_put_options_t, o, options);                                          \
    do {                                                                                    \
        int bad_ = mc_put_options(__func__, &o);                                                 \
        if (bad_ != 0) return bad_;                                                         \
    } while (0)

// GROUPS checks the groups of a batch.
#define GROUPS(o)                                                                           \
    do {                                                                                    \
        if ((o).groups != NULL) {                                                           \
            int bad_ = mc_keys(__func__, (o).groups, (o).groups_size, (o).group_sizes, count); \
            if (bad_ != 0) return bad_;                                                     \
        }                                                                                   \
    } while (0)

// DURATION refuses a duration whose nanoseconds do not fit 63 bits.
#define DURATION(s, field)                                                                  \
    do {                                                                                    \
        if ((s).field > INT64_MAX / 1000000)                                                \
            return mc_fail(MOONCAKE_EINVAL, "%s: " #field " is %llu", __func__, (unsigned long long)(s).field); \
    } while (0)

// FLAGS refuses flags that a function does not know.
#define FLAGS(known)                                                                        \
    do {                                                                                    \
        if ((flags & ~(unsigned)(known)) != 0 ||                                            \
            (flags & (MOONCAKE_VERIFY_ALWAYS | MOONCAKE_VERIFY_NEVER)) == (MOONCAKE_VERIFY_ALWAYS | MOONCAKE_VERIFY_NEVER)) \
            return mc_fail(MOONCAKE_EINVAL, "%s: flags are %#x", __func__, flags);          \
    } while (0)

#define READ_FLAGS() FLAGS(MOONCAKE_VERIFY_ALWAYS | MOONCAKE_VERIFY_NEVER)

#endif
