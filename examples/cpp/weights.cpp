// SPDX-License-Identifier: Apache-2.0

// Imports a model directory into a store on disk, loads it back as a directory of links that an engine can open, and
// reads a tensor of it where it lies.
//
// usage: weights STORE-DIRECTORY MODEL-DIRECTORY

#include <cstring>
#include <fstream>
#include <iostream>

#include "store.hpp"

static const char model[] = "demo/tiny", revision[] = "1";

struct WeightsCloser {
    void operator()(mooncake_weight_t weights) const { mooncake_weight_close(weights); }
};
using Weights = std::unique_ptr<mooncake_weight, WeightsCloser>;

struct OperationFreer {
    void operator()(mooncake_operation_t operation) const { mooncake_operation_free(operation); }
};
using Operation = std::unique_ptr<mooncake_operation, OperationFreer>;

static void import_model(mooncake_weight_t weights, const char *source) {
    auto request = MOONCAKE_INIT(mooncake_weight_import_t);
    request.model_id = model;
    request.revision = revision;
    request.source = source;
    mooncake_operation_t started = nullptr;
    check(mooncake_weight_import(weights, &request, &started), "import");
    Operation operation(started);
    check(mooncake_operation_wait(operation.get(), -1), "wait");
    check(mooncake_operation_result(operation.get()), "import");
    auto progress = MOONCAKE_INIT(mooncake_weight_progress_t);
    check(mooncake_weight_import_progress(operation.get(), &progress), "progress");
    std::cout << "imported " << progress.files_done << " files\n";
}

static float sum(const View &view) {
    float total = 0, x;
    for (size_t i = 0; i < view.size() / sizeof x; i++) {
        std::memcpy(&x, view.data() + i * sizeof x, sizeof x); // a tensor in a file need not be aligned
        total += x;
    }
    return total;
}

static int run(const char *dir, const char *source) {
    auto options = MOONCAKE_INIT(mooncake_store_options_t);
    options.dir = dir;
    options.volatile_memory = 1;
    options.memory_bytes = 64 << 20;
    Store store = open_store(options);
    mooncake_weight_t opened = nullptr;
    check(mooncake_weight_open(store.get(), nullptr, &opened), "weights");
    Weights weights(opened);
    import_model(weights.get(), source);

    auto loaded = MOONCAKE_INIT(mooncake_loaded_t);
    check(mooncake_weight_load(weights.get(), model, revision, 0, &loaded), "load");
    std::cout << "config.json is there: " << std::ifstream(std::string(loaded.dir) + "/config.json").good() << "\n";

    mooncake_tensor_list_t *tensors = nullptr;
    check(mooncake_weight_tensors(weights.get(), model, revision, &tensors), "tensors");
    for (size_t i = 0; i < tensors->count; i++) {
        auto t = reinterpret_cast<const mooncake_tensor_t *>(reinterpret_cast<const char *>(tensors->tensors) +
                                                             i * tensors->tensor_size);
        std::cout << "tensor " << t->name << " " << t->dtype << ", " << t->size << " bytes\n";
    }
    mooncake_free(tensors);
    std::cout << "sum of layer.weight: " << sum(View(weights.get(), model, revision, "layer.weight")) << "\n";
    check(mooncake_loaded_close(&loaded), "close");
    return 0;
}

int main(int argc, char **argv) try {
    if (argc != 3) {
        std::cerr << "usage: " << argv[0] << " STORE-DIRECTORY MODEL-DIRECTORY\n";
        return 2;
    }
    return run(argv[1], argv[2]);
} catch (const std::exception &e) {
    std::cerr << e.what() << "\n";
    return 1;
}
