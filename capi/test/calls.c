// SPDX-License-Identifier: Apache-2.0

#include <sys/stat.h>
#include <unistd.h>

#include "calls.h"

#pragma GCC diagnostic ignored "-Wcast-function-type" // every function is called with words

#define ARG(type, name) {type, name}
#define FUNCTION(name, result, address, ...) \
    {name, result, (int64_t (*)())address, COUNT(((struct arg[]){{0}, ##__VA_ARGS__})) - 1, {__VA_ARGS__}},
const function functions[] = {
#include "functions.inc"
};
const int function_count = COUNT(functions);

static const char *const classic[] = {
#include "classic.inc"
};

bool is_classic(const function *f) {
    for (size_t i = 0; i < COUNT(classic); i++)
        if (strcmp(classic[i], f->name) == 0) return true;
    return false;
}

bool is_local(const function *f) {
    return strcmp(f->name, "mooncake_abi_version") == 0 || strcmp(f->name, "mooncake_free") == 0 ||
           strstr(f->name, "_last_error") != NULL || strcmp(f->name, "mooncake_error_name") == 0;
}

static char model[] = "org/model", revision[] = "1";

static void write_file(const char *path, const void *data, size_t size) {
    FILE *f = fopen(path, "w");
    if (f == NULL || fwrite(data, 1, size, f) != size || fclose(f) != 0) FAIL("can't write %s", path);
}

void write_model(const char *dir, size_t size) {
    char head[512];
    float a[6] = {0, 1, 2, 3, 4, 5};
    mkdir(dir, 0755);
    write_file(path_in(dir, "config.json"), "{\"model_type\": \"test\"}\n", 23);
    int n = snprintf(head, sizeof head,
                     "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
                     "\"b\":{\"dtype\":\"U8\",\"shape\":[%zu],\"data_offsets\":[24,%zu]},"
                     "\"empty\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[%zu,%zu]}}",
                     size, size + 24, size + 24, size + 24);
    while (n % 8 != 0) head[n++] = ' ';
    size_t total = 8 + (size_t)n + sizeof a + size;
    char *file = malloc(total);
    uint64_t header = (uint64_t)n;
    unsigned char *b = bytes(size, 9);
    memcpy(file, &header, 8);
    memcpy(file + 8, head, (size_t)n);
    memcpy(file + 8 + n, a, sizeof a);
    memcpy(file + 8 + n + sizeof a, b, size);
    write_file(path_in(dir, "model.safetensors"), file, total);
    free(b);
    free(file);
}

void world_refresh(world *w) {
    static unsigned turn;
    if (w->store == NULL) {
        mooncake_store_options_t o = MOONCAKE_INIT(mooncake_store_options_t);
        o.memory_bytes = 64 * MIB;
        o.file_bytes = object_size;
        OK(mooncake_store_open(&o, &w->store));
        write_model(path_in(scratch(), "model"), 1000);
    }
    if (w->fresh == NULL) w->fresh = mooncake_store_create();
    OK(mooncake_store_close(w->fresh));
    mooncake_put_options_t keep = MOONCAKE_INIT(mooncake_put_options_t);
    keep.keep = 1;
    keep.group = "group";
    keep.group_size = 5;
    unsigned char *p = bytes(object_size, 5);
    OK(mooncake_store_put_object(w->store, "key", 3, p, object_size, &keep));
    OK(mooncake_store_put_object(w->store, "key2", 4, p, object_size, &keep));
    free(p);
    if (w->writer == NULL) {
        char key[32];
        snprintf(key, sizeof key, "writer-%u", turn++);
        OK(mooncake_store_create_object(w->store, key, MOONCAKE_NUL, 2 * object_size, NULL, &w->writer));
    }
    if (w->list == NULL) OK(mooncake_store_list(w->store, "key", 3, &w->list));
    if (w->events == NULL) OK(mooncake_store_events(w->store, 16, &w->events));
    if (w->weight == NULL) OK(mooncake_weight_open(w->store, NULL, &w->weight));
    if (w->operation == NULL) {
        mooncake_weight_import_t q = MOONCAKE_INIT(mooncake_weight_import_t);
        q.model_id = model, q.revision = revision, q.source = path_in(scratch(), "model");
        OK(mooncake_weight_import(w->weight, &q, &w->operation));
        EQ(mooncake_operation_wait(w->operation, 10000), 1);
        OK(mooncake_operation_result(w->operation));
    }
    if (w->weight_file == NULL)
        OK(mooncake_weight_open_file(w->weight, model, revision, "model.safetensors", &w->weight_file));
    if (w->view.handle == 0) {
        w->view = MOONCAKE_INIT(mooncake_view_t);
        OK(mooncake_store_view(w->store, "key", 3, 0, &w->view));
    }
    if (w->file.handle == 0) {
        w->file = MOONCAKE_INIT(mooncake_file_t);
        OK(mooncake_store_file(w->store, "key", 3, 0, &w->file));
    }
    if (w->loaded.handle == 0) {
        w->loaded = MOONCAKE_INIT(mooncake_loaded_t);
        OK(mooncake_weight_load(w->weight, model, revision, 0, &w->loaded));
    }
}

void world_end(world *w) {
    OK(mooncake_loaded_close(&w->loaded));
    OK(mooncake_file_close(&w->file));
    OK(mooncake_view_close(&w->view));
    OK(mooncake_weight_file_close(w->weight_file));
    OK(mooncake_operation_free(w->operation));
    OK(mooncake_weight_close(w->weight));
    OK(mooncake_events_close(w->events));
    OK(mooncake_list_close(w->list));
    OK(mooncake_writer_abort(w->writer));
    mooncake_store_destroy(w->fresh);
    mooncake_store_destroy(w->store);
    memset(w, 0, sizeof *w);
}

static bool named(const function *f, const char *name) { return strcmp(f->name, name) == 0; }

static bool ends(const char *s, const char *with) {
    size_t n = strlen(s), m = strlen(with);
    return n >= m && strcmp(s + n - m, with) == 0;
}

// closes reports whether a function ends the handle that it is given.
static bool closes(const function *f) {
    return ends(f->name, "_close") || ends(f->name, "_free") || ends(f->name, "_destroy") || ends(f->name, "_detach") ||
           named(f, "mooncake_writer_commit") || named(f, "mooncake_writer_abort");
}

#define IS(t, n) (strcmp(type, t) == 0 && strcmp(name, n) == 0)
#define TYPE(t) (strcmp(type, t) == 0)
#define NAME(n) (strcmp(name, n) == 0)

static uintptr_t struct_of(call *c, const char *type, bool good) {
    world *w = c->w;
    bool end = closes(c->f);
    if (TYPE("const mooncake_store_options_t *")) {
        c->s.store = MOONCAKE_INIT(mooncake_store_options_t);
        c->s.store.join = 1;
    } else if (TYPE("const mooncake_put_options_t *")) {
        c->s.put = MOONCAKE_INIT(mooncake_put_options_t);
        c->s.put.keep = 1;
    } else if (TYPE("const mooncake_weight_options_t *")) {
        c->s.weight = MOONCAKE_INIT(mooncake_weight_options_t);
    } else if (TYPE("const mooncake_weight_import_t *")) {
        c->s.import = MOONCAKE_INIT(mooncake_weight_import_t);
        c->s.import.model_id = model, c->s.import.revision = revision;
        c->s.import.source = path_in(scratch(), "model");
    } else if (TYPE("mooncake_view_t *") || TYPE("const mooncake_view_t *")) {
        c->s.view = end || TYPE("const mooncake_view_t *") ? w->view : MOONCAKE_INIT(mooncake_view_t);
    } else if (TYPE("mooncake_file_t *")) {
        c->s.file = end ? w->file : MOONCAKE_INIT(mooncake_file_t);
    } else if (TYPE("mooncake_loaded_t *") || TYPE("const mooncake_loaded_t *")) {
        c->s.loaded = end || TYPE("const mooncake_loaded_t *") ? w->loaded : MOONCAKE_INIT(mooncake_loaded_t);
    } else if (TYPE("mooncake_object_info_t *")) {
        c->s.info = MOONCAKE_INIT(mooncake_object_info_t);
    } else if (TYPE("mooncake_usage_t *")) {
        c->s.usage = MOONCAKE_INIT(mooncake_usage_t);
    } else if (TYPE("mooncake_counters_t *")) {
        c->s.counters = MOONCAKE_INIT(mooncake_counters_t);
    } else if (TYPE("mooncake_event_t *")) {
        c->s.event = MOONCAKE_INIT(mooncake_event_t);
    } else if (TYPE("mooncake_weight_progress_t *")) {
        c->s.progress = MOONCAKE_INIT(mooncake_weight_progress_t);
    } else {
        return !good;
    }
    return (uintptr_t)&c->s;
}

int struct_arg(const function *f, size_t *size, bool *in) {
    static call c;
    static world none;
    c.f = f, c.w = &none;
    for (int i = 0; i < f->arg_count; i++) {
        const char *type = f->args[i].type;
        if (strcmp(f->args[i].name, "views") == 0) continue;
        if (struct_of(&c, type, true) != (uintptr_t)&c.s) continue;
        if (closes(f) || TYPE("const mooncake_view_t *")) c.s.view = MOONCAKE_INIT(mooncake_view_t);
        if (TYPE("mooncake_file_t *")) c.s.file = MOONCAKE_INIT(mooncake_file_t);
        if (TYPE("mooncake_loaded_t *") || TYPE("const mooncake_loaded_t *")) c.s.loaded = MOONCAKE_INIT(mooncake_loaded_t);
        *size = c.s.struct_size;
        *in = strncmp(type, "const ", 6) == 0 || closes(f) || TYPE("mooncake_object_info_t *");
        return i;
    }
    return -1;
}

// good is a good value of an argument.
static uintptr_t good(call *c, const char *type, const char *name) {
    world *w = c->w;
    const function *f = c->f;
    bool unset = named(f, "mooncake_store_setup") || named(f, "mooncake_store_init_all") ||
                 named(f, "mooncake_store_destroy") || named(f, "mooncake_store_close");
    if (TYPE("mooncake_store_t")) return (uintptr_t)(unset ? w->fresh : w->store);
    if (TYPE("mooncake_weight_t")) return (uintptr_t)w->weight;
    if (TYPE("mooncake_operation_t")) return (uintptr_t)w->operation;
    if (TYPE("mooncake_writer_t")) return (uintptr_t)w->writer;
    if (TYPE("mooncake_list_t")) return (uintptr_t)w->list;
    if (TYPE("mooncake_events_t")) return (uintptr_t)w->events;
    if (TYPE("mooncake_weight_file_t")) return (uintptr_t)w->weight_file;
    if (IS("const char *", "key") || NAME("target") || NAME("prefix")) return (uintptr_t)"key";
    if (NAME("key_size") || NAME("target_size") || NAME("prefix_size")) return 3;
    if (IS("const char *", "group")) return (uintptr_t)"group";
    if (NAME("group_size")) return 5;
    if (IS("const char *", "keys")) return (uintptr_t)"keykey2";
    if (NAME("keys_size")) return 7;
    if (NAME("key_sizes")) return (uintptr_t)c->key_sizes;
    if (IS("const char **", "keys")) return (uintptr_t)c->keys;
    if (NAME("count")) return 2;
    if (NAME("buffers")) return (uintptr_t)c->buffers;
    if (IS("const uint64_t *", "sizes")) return (uintptr_t)c->wide_sizes;
    if (NAME("sizes")) return (uintptr_t)c->sizes;
    if (NAME("offsets")) return (uintptr_t)c->offsets;
    if (NAME("buffer_counts") || NAME("fragment_counts")) return (uintptr_t)c->counts;
    if (NAME("results") || NAME("results_out") || NAME("free_out")) return (uintptr_t)c->numbers;
    if (NAME("evictable_out")) return (uintptr_t)c->more_numbers;
    if (NAME("flags") || NAME("timeout_ms") || NAME("soft_pin_ms") || NAME("hard_pin") || NAME("tier") || NAME("deep") ||
        NAME("verify") || NAME("offset"))
        return 0;
    if (NAME("force")) return 1;
    if (IS("size_t", "buffer")) return 16;
    if (NAME("size")) return object_size;
    if (NAME("value") || NAME("data") || IS("void *", "buffer")) return (uintptr_t)c->buffers[0];
    if (NAME("config")) return (uintptr_t)&c->config;
    if (NAME("views")) return (uintptr_t)c->views;
    if (NAME("view_size")) return sizeof c->views[0];
    if (NAME("segments")) return (uintptr_t)c->segments;
    if (NAME("capacity")) return COUNT(c->segments);
    if (NAME("buf_out")) return (uintptr_t)c->name;
    if (NAME("buf_len")) return sizeof c->name;
    if (NAME("global_segment_size") || NAME("local_buffer_size") || NAME("mount_segment_size")) return 16 * MIB;
    if (NAME("local_hostname") || NAME("metadata_server") || NAME("protocol") || NAME("device_name")) return (uintptr_t)"h";
    if (NAME("master_server_addr")) return (uintptr_t)"embedded:calls";
    if (NAME("tenant")) return (uintptr_t)"other";
    if (NAME("pattern")) return (uintptr_t)"^zzz";
    if (NAME("model_id")) return (uintptr_t)model;
    if (NAME("revision")) return (uintptr_t)revision;
    if (NAME("user")) return (uintptr_t)"0";
    if (NAME("name")) return (uintptr_t)(ends(f->name, "_open_file") ? "model.safetensors" : "a");
    if (NAME("size_out")) return (uintptr_t)&c->size_out;
    if (NAME("fd_out")) return (uintptr_t)&c->fd;
    if (ends(name, "_out")) return (uintptr_t)&c->out;
    if (NAME("code")) return (uintptr_t)-704;
    if (NAME("p")) return 0;
    uintptr_t s = struct_of(c, type, true);
    if (s == 0) FAIL("%s: calls.c knows no good value of %s %s", f->name, type, name);
    return s;
}

void call_prepare(call *c, const function *f, world *w) {
    static char memory[2][2 * object_size];
    memset(c, 0, sizeof *c);
    c->f = f, c->w = w, c->fd = -1;
    c->sizes[0] = c->sizes[1] = object_size;
    c->wide_sizes[0] = c->wide_sizes[1] = object_size;
    c->key_sizes[0] = 3, c->key_sizes[1] = 4;
    c->counts[0] = c->counts[1] = 1;
    c->keys[0] = "key", c->keys[1] = "key2";
    c->buffers[0] = memory[0], c->buffers[1] = memory[1];
    c->config.replica_num = 1;
    c->views[0].struct_size = c->views[1].struct_size = sizeof(mooncake_view_t);
    for (int i = 0; i < f->arg_count; i++) c->args[i] = good(c, f->args[i].type, f->args[i].name);
}

int64_t call_do(call *c) {
    const uintptr_t *a = c->args;
    int64_t r = c->f->address(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11]);
    if (strcmp(c->f->result, "int") == 0) r = (int)r;
    return c->result = strcmp(c->f->result, "void") == 0 ? 0 : r;
}

// given closes what is in c->out, by the type of the argument that it was for.
static void given(call *c, const char *type) {
    if (c->out == NULL) return;
    if (TYPE("mooncake_store_t *"))
        mooncake_store_destroy(c->out);
    else if (TYPE("mooncake_operation_t *"))
        OK(mooncake_operation_free(c->out));
    else if (TYPE("mooncake_writer_t *"))
        OK(mooncake_writer_abort(c->out));
    else if (TYPE("mooncake_list_t *"))
        OK(mooncake_list_close(c->out));
    else if (TYPE("mooncake_events_t *"))
        OK(mooncake_events_close(c->out));
    else if (TYPE("mooncake_weight_t *"))
        OK(mooncake_weight_close(c->out));
    else if (TYPE("mooncake_weight_file_t *"))
        OK(mooncake_weight_file_close(c->out));
    else
        mooncake_free(c->out);
    c->out = NULL;
}

void call_clean(call *c) {
    world *w = c->w;
    for (int i = 0; i < c->f->arg_count; i++) {
        const char *type = c->f->args[i].type, *name = c->f->args[i].name;
        if (ends(name, "_out")) given(c, type);
        if (NAME("views"))
            for (int v = 0; v < 2; v++)
                if (c->views[v].handle != 0) OK(mooncake_view_close(&c->views[v]));
        bool refused = c->result == MOONCAKE_EINVAL || c->result == MOONCAKE_EINTERNAL;
        if (closes(c->f)) {
            if (refused) continue; // nothing was closed
            if (TYPE("mooncake_store_t") && !named(c->f, "mooncake_store_close")) w->fresh = NULL;
            if (TYPE("mooncake_weight_t")) {
                w->weight = NULL;
                mooncake_loaded_close(&w->loaded); // given up with it
            }
            if (TYPE("mooncake_operation_t")) w->operation = NULL;
            if (TYPE("mooncake_writer_t")) w->writer = NULL;
            if (TYPE("mooncake_list_t")) w->list = NULL;
            if (TYPE("mooncake_events_t")) w->events = NULL;
            if (TYPE("mooncake_weight_file_t")) w->weight_file = NULL;
            if (TYPE("mooncake_view_t *")) w->view.handle = c->s.view.handle;
            if (TYPE("mooncake_file_t *")) w->file.handle = c->s.file.handle;
            if (TYPE("mooncake_loaded_t *")) w->loaded.handle = c->s.loaded.handle;
        } else if (c->args[i] == (uintptr_t)&c->s) {
            if (TYPE("mooncake_view_t *") && c->s.view.handle != 0) OK(mooncake_view_close(&c->s.view));
            if (TYPE("mooncake_file_t *") && c->s.file.handle != 0) OK(mooncake_file_close(&c->s.file));
            if (TYPE("mooncake_loaded_t *") && c->s.loaded.handle != 0) OK(mooncake_loaded_close(&c->s.loaded));
        }
    }
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    mooncake_store_put_session_revoke(w->store, "keykey2", 7, c->key_sizes, 2, (int *)c->numbers);
    mooncake_store_get_session_end(w->store, "keykey2", 7, c->key_sizes, 2);
}
