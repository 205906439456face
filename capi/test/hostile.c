// SPDX-License-Identifier: Apache-2.0

// What no function may do with arguments that are wrong: crash, hang, or take them. Each returns its code, and the error
// names the function and the argument.

#include <limits.h>
#include <sys/mman.h>
#include <unistd.h>

#include "calls.h"

static world w;

// each runs a test on every function that has to do with the store.
static void each(void (*test)(const function *f)) {
    setenv("MOONCAKE_EMBEDDED", "1", 1);
    for (const function *f = functions; f < functions + function_count; f++) {
        if (is_local(f)) continue;
        world_refresh(&w);
        test(f);
    }
    world_refresh(&w);
    world_end(&w);
}

static bool has(const char *list, const char *name) {
    size_t n = strlen(name);
    for (const char *p = list; (p = strstr(p, name)) != NULL; p += n)
        if ((p == list || p[-1] == ' ') && (p[n] == 0 || p[n] == ' ')) return true;
    return false;
}

// refused checks that a call with bad arguments was refused and says what for.
static void refused(call *c, const char *what, const char *word) {
    const function *f = c->f;
    int64_t r = call_do(c);
    const char *text = mooncake_last_error();
    bool none = strcmp(f->result, "void") == 0;
    if (!none && r >= 0) FAIL("%s, %s: got %lld, want an error", f->name, what, (long long)r);
    if (!none && r == -1 && !is_classic(f)) FAIL("%s, %s: got -1, %s", f->name, what, text);
    if (strstr(text, "panic") != NULL) FAIL("%s, %s: %s", f->name, what, text);
    if (!none && mooncake_last_error_code() != r)
        FAIL("%s, %s: got %lld, last error's code is %d", f->name, what, (long long)r, mooncake_last_error_code());
    if (word != NULL && strstr(text, word) == NULL)
        FAIL("%s, %s: last error: %s\nwant in it: %s", f->name, what, text, word);
    call_clean(c);
}

// survived checks that a call with odd arguments did not end in a panic.
static void survived(call *c, const char *what) {
    int64_t r = call_do(c);
    if (r == -1 && mooncake_last_error_code() == -1 && strstr(mooncake_last_error(), "panic") != NULL)
        FAIL("%s, %s: %s", c->f->name, what, mooncake_last_error());
    call_clean(c);
}

// What may be NULL.
static const char optional[] =
    "config options metadata_server protocol device_name master_server_addr local_hostname key_sizes buffer_counts "
    "fragment_counts";

static bool may_be_null(const function *f, const char *name) {
    return has(optional, name) || (strcmp(f->name, "mooncake_store_remove_group") == 0 && has("keys_out", name)) ||
           (strcmp(f->name, "mooncake_weight_list") == 0 && has("model_id", name)) ||
           strcmp(f->name, "mooncake_store_destroy") == 0;
}

static bool is_pointer(const struct arg *a) {
    size_t n = strlen(a->type);
    return a->type[n - 1] == '*' || strcmp(a->type + n - 2, "_t") == 0;
}

static bool is_number(const struct arg *a) {
    return strncmp(a->type, "size", 4) == 0 || strncmp(a->type, "int", 3) == 0 || strncmp(a->type, "uint", 4) == 0 ||
           strcmp(a->type, "unsigned") == 0;
}

static void null_in_turn(const function *f) {
    for (int i = 0; i < f->arg_count; i++) {
        if (!is_pointer(&f->args[i]) || (is_number(&f->args[i]) && f->args[i].type[strlen(f->args[i].type) - 1] != '*'))
            continue;
        world_refresh(&w);
        call c;
        char what[128];
        call_prepare(&c, f, &w);
        c.args[i] = 0;
        snprintf(what, sizeof what, "%s NULL", f->args[i].name);
        if (may_be_null(f, f->args[i].name))
            survived(&c, what);
        else
            refused(&c, what, f->args[i].name);
    }
}
TEST(every_pointer_NULL_in_turn) { each(null_in_turn); }

static bool is_handle(const char *type) {
    return strncmp(type, "mooncake_", 9) == 0 && type[strlen(type) - 1] != '*';
}

// A handle that is none, of another kind, or was closed.
static void bad_handles(const function *f) {
    if (f->arg_count == 0 || !is_handle(f->args[0].type)) return;
    const uintptr_t bad[] = {1,
                             0xdeadbeef,
                             UINTPTR_MAX,
                             (uintptr_t)&w,
                             (uintptr_t)INTPTR_MIN,
                             (uintptr_t)w.store + 1,
                             (uintptr_t)w.store + (1 << 20),
                             (uintptr_t)w.store,
                             (uintptr_t)w.weight,
                             (uintptr_t)w.operation,
                             (uintptr_t)w.writer,
                             (uintptr_t)w.list,
                             (uintptr_t)w.events,
                             (uintptr_t)w.weight_file,
                             w.view.handle,
                             w.file.handle,
                             w.loaded.handle};
    for (size_t i = 0; i < COUNT(bad); i++) {
        call c;
        char what[64];
        call_prepare(&c, f, &w);
        if (bad[i] == c.args[0] || (strcmp(f->args[0].type, "mooncake_store_t") == 0 && bad[i] == (uintptr_t)w.store))
            continue;
        c.args[0] = bad[i];
        snprintf(what, sizeof what, "handle %#lx", (unsigned long)bad[i]);
        world before = w;
        if (strcmp(f->name, "mooncake_store_health_check") == 0)
            EQ(call_do(&c), 1);
        else if (strcmp(f->name, "mooncake_store_destroy") == 0)
            call_do(&c);
        else
            refused(&c, what, "no such handle");
        w = before; // nothing was closed
    }
}
TEST(every_handle_garbage_or_of_another_kind) { each(bad_handles); }

static void closed_handle(const function *f) {
    if (f->arg_count == 0 || !is_handle(f->args[0].type)) return;
    world other = {0};
    world_refresh(&other);
    world closed = other;
    world_end(&other);
    call c;
    call_prepare(&c, f, &w);
    const char *type = f->args[0].type;
    uintptr_t handle = strcmp(type, "mooncake_store_t") == 0       ? (uintptr_t)closed.store
                       : strcmp(type, "mooncake_weight_t") == 0    ? (uintptr_t)closed.weight
                       : strcmp(type, "mooncake_operation_t") == 0 ? (uintptr_t)closed.operation
                       : strcmp(type, "mooncake_writer_t") == 0    ? (uintptr_t)closed.writer
                       : strcmp(type, "mooncake_list_t") == 0      ? (uintptr_t)closed.list
                       : strcmp(type, "mooncake_events_t") == 0    ? (uintptr_t)closed.events
                                                                   : (uintptr_t)closed.weight_file;
    c.args[0] = handle;
    world before = w;
    if (strcmp(f->name, "mooncake_store_health_check") == 0)
        EQ(call_do(&c), 1);
    else
        refused(&c, "closed", strcmp(f->result, "void") == 0 ? NULL : "no such handle");
    w = before;
}
TEST(every_handle_closed) { each(closed_handle); }

// The handles of structs: views, files, loaded directories.
static void bad_struct_handles(const function *f) {
    size_t size;
    bool in;
    int i = struct_arg(f, &size, &in);
    if (i < 0 || !in) return;
    const char *type = f->args[i].type;
    if (strstr(type, "view_t") == NULL && strstr(type, "file_t") == NULL && strstr(type, "loaded_t") == NULL) return;
    const uint64_t bad[] = {0, 1, 0xdeadbeef, UINT64_MAX, (uintptr_t)w.store, (uintptr_t)w.list, (uintptr_t)w.writer,
                            w.view.handle, w.file.handle, w.loaded.handle};
    for (size_t k = 0; k < COUNT(bad); k++) {
        call c;
        call_prepare(&c, f, &w);
        if (c.s.view.handle == bad[k]) continue;
        c.s.view.handle = bad[k]; // at the same place in all three
        world before = w;
        refused(&c, "bad handle", "no such handle");
        w = before;
    }
}
TEST(every_struct_with_a_bad_handle) { each(bad_struct_handles); }

// Sizes and counts that nothing has.
static void huge_sizes(const function *f) {
    static const size_t huge[] = {SIZE_MAX, (size_t)PTRDIFF_MAX + 1};
    for (int i = 0; i < f->arg_count; i++) {
        if (strcmp(f->args[i].type, "size_t") != 0) continue;
        for (size_t k = 0; k < COUNT(huge); k++) {
            call c;
            char what[128];
            const char *name = f->args[i].name;
            world_refresh(&w);
            call_prepare(&c, f, &w);
            c.args[i] = huge[k];
            snprintf(what, sizeof what, "%s %#zx", name, huge[k]);
            bool nul = huge[k] == MOONCAKE_NUL && has("key_size target_size prefix_size group_size", name);
            if (nul || has("capacity", name))
                survived(&c, what);
            else
                refused(&c, what, NULL);
        }
    }
}
TEST(every_size_huge) { each(huge_sizes); }

// The sizes inside arrays.
static void huge_elements(const function *f) {
    static const size_t huge[] = {SIZE_MAX, (size_t)PTRDIFF_MAX + 1};
    for (size_t k = 0; k < COUNT(huge); k++) {
        call c;
        for (int i = 0; i < f->arg_count; i++) {
            const char *name = f->args[i].name, *type = f->args[i].type;
            world_refresh(&w);
            call_prepare(&c, f, &w);
            if (strcmp(name, "sizes") == 0 && strcmp(type, "const uint64_t *") != 0) {
                c.sizes[1] = huge[k];
                refused(&c, "sizes[1] huge", "buffers[1]");
            } else if (strcmp(name, "buffers") == 0) {
                c.buffers[1] = NULL;
                refused(&c, "buffers[1] NULL", "buffers[1]");
            } else if (strcmp(name, "key_sizes") == 0) {
                c.key_sizes[0] = UINT32_MAX;
                refused(&c, "key_sizes[0] huge", "add up");
            } else if (strcmp(name, "buffer_counts") == 0 || strcmp(name, "fragment_counts") == 0) {
                c.counts[0] = UINT32_MAX;
                refused(&c, "counts[0] huge", "buffers");
            } else if (strcmp(name, "keys") == 0 && strcmp(type, "const char **") == 0) {
                c.keys[1] = NULL;
                refused(&c, "keys[1] NULL", "keys[1]");
            } else if (strcmp(name, "offsets") == 0) {
                c.offsets[0] = UINT64_MAX, c.offsets[1] = INT64_MAX;
                EQ(call_do(&c), 0);
                bool wide = strcmp(f->args[f->arg_count - 1].type, "int64_t *") == 0;
                for (int n = 0; n < 2; n++) EQ(wide ? c.numbers[n] : ((int *)c.numbers)[n], MOONCAKE_EINVAL);
                call_clean(&c);
            } else if (strcmp(name, "sizes") == 0) {
                c.wide_sizes[1] = huge[k];
                EQ(call_do(&c), 0);
                CHECK(((int *)c.numbers)[1] < -1);
                call_clean(&c);
            }
        }
    }
}
TEST(every_array_with_a_huge_element) { each(huge_elements); }

static void too_many(const function *f) {
    for (int i = 0; i < f->arg_count; i++) {
        if (strcmp(f->args[i].name, "count") != 0) continue;
        call c;
        call_prepare(&c, f, &w);
        c.args[i] = MOONCAKE_MAX_BATCH + 1;
        refused(&c, "a count beyond MOONCAKE_MAX_BATCH", "limit");
    }
}
TEST(every_count_beyond_the_limit) { each(too_many); }

// Keys cut by NUL, when there are fewer or more of them than count says.
static void miscounted(const function *f) {
    int keys = -1, count = -1;
    for (int i = 0; i < f->arg_count; i++) {
        if (strcmp(f->args[i].name, "keys") == 0 && strcmp(f->args[i].type, "const char *") == 0) keys = i;
        if (strcmp(f->args[i].name, "count") == 0) count = i;
    }
    if (keys < 0) return;
    static const struct {
        const char *keys;
        size_t size, count;
    } bad[] = {{"key", 3, 2},  {"key\0", 4, 2}, {"key\0key2\0x", 10, 2}, {"key\0key2\0\0", 10, 2},
               {"", 0, 2},     {"key", 3, 0}};
    for (size_t k = 0; k < COUNT(bad); k++) {
        call c;
        call_prepare(&c, f, &w);
        c.args[keys] = (uintptr_t)bad[k].keys, c.args[keys + 1] = bad[k].size, c.args[keys + 2] = 0;
        c.args[count] = bad[k].count;
        refused(&c, bad[k].keys, "keys hold");
    }
    call c;
    call_prepare(&c, f, &w);
    c.args[keys] = (uintptr_t)"key\0key2", c.args[keys + 1] = 8, c.args[keys + 2] = 0; // the last may lack its NUL
    EQ(call_do(&c), 0);
    call_clean(&c);
    call_prepare(&c, f, &w);
    c.args[keys + 1] = 8; // does not match key_sizes
    refused(&c, "keys_size 8", "add up");
}
TEST(every_packed_keys_miscounted) { each(miscounted); }

static void odd_ints(const function *f) {
    static const int64_t odd[] = {-1, INT_MIN, INT_MAX, 2, INT64_MIN, INT64_MAX};
    for (int i = 0; i < f->arg_count; i++) {
        const char *type = f->args[i].type, *name = f->args[i].name;
        bool narrow = strcmp(type, "int") == 0;
        if (!narrow && strcmp(type, "int64_t") != 0 && strcmp(type, "uint64_t") != 0 && strcmp(type, "unsigned") != 0)
            continue;
        for (size_t k = 0; k < COUNT(odd); k++) {
            if (has("timeout_ms", name) && odd[k] != 2) continue; // waits for ever, and may
            if ((narrow || strcmp(type, "unsigned") == 0) && (odd[k] < INT_MIN || odd[k] > INT_MAX)) continue;
            if (strstr(f->name, "read_at") != NULL) continue; // past the end there is nothing: 0
            call c;
            char what[64];
            world_refresh(&w);
            call_prepare(&c, f, &w);
            c.args[i] = narrow || strcmp(type, "unsigned") == 0 ? (uintptr_t)(unsigned)odd[k] : (uintptr_t)odd[k];
            snprintf(what, sizeof what, "%s %lld", name, (long long)odd[k]);
            bool in = has("force verify deep", name);
            bool pin = has("hard_pin soft_pin_ms", name) && odd[k] == -1;
            if (in || pin || (has("flags soft_pin_ms size timeout_ms offset", name) && odd[k] >= 0 && odd[k] <= 2) ||
                strstr(name, "_segment_size") != NULL || strcmp(name, "local_buffer_size") == 0 ||
                (has("soft_pin_ms", name) && odd[k] == INT_MAX))
                survived(&c, what);
            else
                refused(&c, what, NULL);
        }
    }
}
TEST(every_number_odd) { each(odd_ints); }

// edge is memory that ends where a page without access begins.
static char *edge(size_t size, char fill) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (size + page - 1) / page * page;
    char *p = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED && mprotect(p + room, page, PROT_NONE) == 0);
    memset(p + room - size, fill, size);
    return p + room - size;
}

// Strings that do not end are read no further than they may be long.
static void endless_strings(const function *f) {
    static char *key, *text;
    if (key == NULL) key = edge(MOONCAKE_MAX_KEY + 1, 'k'), text = edge(16385, 't');
    for (int i = 0; i < f->arg_count; i++) {
        if (strcmp(f->args[i].type, "const char *") != 0) continue;
        const char *name = f->args[i].name;
        bool sized = i + 1 < f->arg_count && strstr(f->args[i + 1].name, "_size") != NULL;
        call c;
        char what[64];
        world_refresh(&w);
        call_prepare(&c, f, &w);
        bool is_key = has("key target prefix group", name);
        c.args[i] = (uintptr_t)(is_key ? key : text);
        if (sized && is_key) c.args[i + 1] = MOONCAKE_NUL;
        if (strcmp(name, "keys") == 0) continue;
        snprintf(what, sizeof what, "endless %s", name);
        if (has("metadata_server protocol device_name", name)) {
            survived(&c, what); // not read at all
            continue;
        }
        refused(&c, what, NULL);
        if (sized && is_key) {
            world_refresh(&w);
            call_prepare(&c, f, &w);
            c.args[i] = (uintptr_t)key, c.args[i + 1] = PTRDIFF_MAX; // not looked into, only refused
            refused(&c, "a key of PTRDIFF_MAX bytes", NULL);
            world_refresh(&w);
            call_prepare(&c, f, &w);
            c.args[i] = (uintptr_t)key, c.args[i + 1] = MOONCAKE_MAX_KEY + 1;
            refused(&c, "a key of 4097 bytes", NULL);
            world_refresh(&w);
            call_prepare(&c, f, &w);
            c.args[i] = (uintptr_t)key, c.args[i + 1] = MOONCAKE_MAX_KEY;
            survived(&c, "a key of 4096 bytes");
        }
    }
}
TEST(every_string_without_an_end) { each(endless_strings); }

// struct_size: none, too small, huge, shorter than this version's, longer with zeros, longer with more.
static void struct_sizes(const function *f) {
    size_t size;
    bool in;
    int i = struct_arg(f, &size, &in);
    if (i < 0) return;
    static const size_t bad[] = {0, 1, 7, (64 << 10) + 1, SIZE_MAX, (size_t)PTRDIFF_MAX + 1};
    call c;
    for (size_t k = 0; k < COUNT(bad); k++) {
        call_prepare(&c, f, &w);
        c.s.struct_size = bad[k];
        refused(&c, "bad struct_size", "struct_size");
        world_refresh(&w);
    }
    call_prepare(&c, f, &w);
    c.s.struct_size = size + 64; // of a later version, whose fields are zero
    int64_t with = call_do(&c);
    if (with < 0 && with != MOONCAKE_EEXISTS)
        FAIL("%s, struct_size %zu: %lld, %s", f->name, size + 64, (long long)with, mooncake_last_error());
    call_clean(&c);
    world_refresh(&w);
    call_prepare(&c, f, &w);
    memset(c.s.bytes + size, 0xee, 64);
    c.s.struct_size = size + 64;
    if (in) {
        refused(&c, "a field of a later version", "this version");
    } else {
        CHECK(call_do(&c) != MOONCAKE_EINVAL);
        for (size_t n = size; n < size + 64; n++) EQ((unsigned char)c.s.bytes[n], 0xee);
        c.s.struct_size = size;
        call_clean(&c);
    }
    world_refresh(&w);
    // Of earlier versions: nothing behind them is touched.
    for (size_t n = sizeof(size_t); n < size; n += in ? sizeof(void *) : 1) {
        call_prepare(&c, f, &w);
        char good[sizeof c.s];
        memcpy(good, &c.s, sizeof good);
        if (!in) memset(c.s.bytes + n, 0xdd, size - n), memcpy(good, &c.s, sizeof good);
        c.s.struct_size = n;
        int64_t r = call_do(&c);
        if (r == -1) FAIL("%s, struct_size %zu: %s", f->name, n, mooncake_last_error());
        for (size_t b = n; b < size; b++)
            if (c.s.bytes[b] != good[b]) FAIL("%s, struct_size %zu: byte %zu was written", f->name, n, b);
        c.s.struct_size = size;
        if (n < 16) memset(c.s.bytes + 8, 0, size - 8); // no place for a handle
        call_clean(&c);
        world_refresh(&w);
    }
}
TEST(every_struct_size) { each(struct_sizes); }
