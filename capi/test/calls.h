// SPDX-License-Identifier: Apache-2.0

// Every function of mooncake.h, with good arguments for each: what tests that do the same to all of them go by. The list
// comes out of the header (signatures.awk), so a new function is in it, and a new kind of argument ends the tests until
// calls.c knows a good one.

#ifndef CALLS_H
#define CALLS_H

#include "test.h"

enum { max_args = 12, object_size = 64 << 10 };

typedef struct function {
    const char *name, *result;
    int64_t (*address)(); // called with max_args words, whatever it takes
    int arg_count;
    struct arg {
        const char *type, *name;
    } args[max_args];
} function;

extern const function functions[];
extern const int function_count;

// is_local reports whether a function needs neither the store nor the process that loaded the library.
bool is_local(const function *f);

// is_classic reports whether it is one of the 19, whose result for NULL is -1.
bool is_classic(const function *f);

// A world has an open handle of each kind.
typedef struct world {
    mooncake_store_t store, fresh; // fresh is not set up
    mooncake_writer_t writer;
    mooncake_operation_t operation; // a done import
    mooncake_list_t list;
    mooncake_events_t events;
    mooncake_weight_t weight;
    mooncake_weight_file_t weight_file;
    mooncake_view_t view;
    mooncake_file_t file;
    mooncake_loaded_t loaded;
} world;

// refresh opens what a world lacks. world_end closes all of it.
void world_refresh(world *w);
void world_end(world *w);

// A call is a function with arguments, and the memory that they point to.
typedef struct call {
    const function *f;
    uintptr_t args[max_args];
    world *w;
    int64_t result;
    void *out; // for all ** arguments and handles that are given out
    size_t size_out;
    int64_t numbers[2], more_numbers[2];
    int fd;
    size_t sizes[2];
    uint64_t wide_sizes[2], offsets[2];
    uint32_t key_sizes[2], counts[2];
    const char *keys[2];
    void *buffers[2];
    char name[256];
    mooncake_replicate_config_t config;
    mooncake_segment_t segments[4];
    mooncake_view_t views[2];
    // What starts with struct_size has room for a longer struct of a later version.
    union {
        size_t struct_size;
        mooncake_put_options_t put;
        mooncake_store_options_t store;
        mooncake_weight_options_t weight;
        mooncake_weight_import_t import;
        mooncake_object_info_t info;
        mooncake_view_t view;
        mooncake_file_t file;
        mooncake_loaded_t loaded;
        mooncake_usage_t usage;
        mooncake_counters_t counters;
        mooncake_event_t event;
        mooncake_weight_progress_t progress;
        char bytes[1024];
    } s;
} call;

// call_prepare gives a function good arguments, call_do calls it, call_clean closes what it has given out and notes what
// it has closed. memory is two objects' worth of space.
void call_prepare(call *c, const function *f, world *w);
int64_t call_do(call *c);
void call_clean(call *c);

// struct_arg is the index of the argument that starts with struct_size, or -1; *size its size in this version; *in
// whether the library reads it.
int struct_arg(const function *f, size_t *size, bool *in);

// write_model makes a directory with a tiny model: config.json and model.safetensors with the tensors "a", F32 [2, 3],
// 0 to 5, and "b", U8 [size].
void write_model(const char *dir, size_t size);

#endif
