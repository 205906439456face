// SPDX-License-Identifier: Apache-2.0

// Imports a model directory into a store on disk, loads it back as a directory of links that an engine can open, and
// reads a tensor of it where it lies.
//
// usage: weights STORE-DIRECTORY MODEL-DIRECTORY

#include <mooncake.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void die(const char *what) {
    fprintf(stderr, "%s: %s\n", what, mooncake_last_error());
    exit(1);
}

static void import(mooncake_weight_t weights, const char *source) {
    mooncake_weight_import_t request = MOONCAKE_INIT(mooncake_weight_import_t);
    request.model_id = "demo/tiny";
    request.revision = "1";
    request.source = source;
    mooncake_operation_t operation;
    if (mooncake_weight_import(weights, &request, &operation) != 0) die("import");
    mooncake_weight_progress_t progress = MOONCAKE_INIT(mooncake_weight_progress_t);
    while (mooncake_operation_wait(operation, 100) == 0) {
        mooncake_weight_import_progress(operation, &progress);
        fprintf(stderr, "%lld of %lld bytes\n", (long long)progress.bytes_done, (long long)progress.bytes);
    }
    if (mooncake_operation_result(operation) != 0) die("import");
    mooncake_weight_import_progress(operation, &progress);
    printf("imported %lld files\n", (long long)progress.files_done);
    mooncake_operation_free(operation);
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: %s STORE-DIRECTORY MODEL-DIRECTORY\n", argv[0]);
        return 2;
    }
    mooncake_store_options_t options = MOONCAKE_INIT(mooncake_store_options_t);
    options.dir = argv[1];
    options.volatile_memory = 1;
    options.memory_bytes = 64 << 20;
    mooncake_store_t store;
    if (mooncake_store_open(&options, &store) != 0) die("open");
    mooncake_weight_t weights;
    if (mooncake_weight_open(store, NULL, &weights) != 0) die("weights");
    import(weights, argv[2]);

    mooncake_loaded_t loaded = MOONCAKE_INIT(mooncake_loaded_t);
    if (mooncake_weight_load(weights, "demo/tiny", "1", 0, &loaded) != 0) die("load");
    char path[4096];
    snprintf(path, sizeof path, "%s/config.json", loaded.dir);
    printf("config.json is there: %d\n", access(path, R_OK) == 0);

    mooncake_tensor_list_t *tensors;
    if (mooncake_weight_tensors(weights, "demo/tiny", "1", &tensors) != 0) die("tensors");
    for (size_t i = 0; i < tensors->count; i++) {
        const mooncake_tensor_t *t =
            (const mooncake_tensor_t *)((const char *)tensors->tensors + i * tensors->tensor_size);
        printf("tensor %s %s, %llu bytes\n", t->name, t->dtype, (unsigned long long)t->size);
    }
    mooncake_free(tensors);

    mooncake_view_t view = MOONCAKE_INIT(mooncake_view_t);
    if (mooncake_weight_view_tensor(weights, "demo/tiny", "1", "layer.weight", &view) != 0) die("view");
    float sum = 0, x;
    for (size_t i = 0; i < view.size / sizeof x; i++) {
        memcpy(&x, (const char *)view.data + i * sizeof x, sizeof x); // a tensor in a file need not be aligned
        sum += x;
    }
    printf("sum of layer.weight: %g\n", sum);
    mooncake_view_close(&view);

    mooncake_loaded_close(&loaded);
    mooncake_weight_close(weights);
    mooncake_store_destroy(store);
    return 0;
}
