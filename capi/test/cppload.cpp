// SPDX-License-Identifier: Apache-2.0

// A C++ program that loads the library.

#include <dlfcn.h>

#include <cstdio>
#include <thread>
#include <vector>

#include "mooncake.h"

template <class F> static F find(void *library, const char *name, F) { return reinterpret_cast<F>(dlsym(library, name)); }
#define FIND(name) auto name##_ = find(library, #name, &name)

int main() {
    void *library = dlopen("libmooncake.so", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    FIND(mooncake_store_open);
    FIND(mooncake_store_put);
    FIND(mooncake_store_is_exist);
    FIND(mooncake_store_destroy);
    mooncake_store_t store;
    if (mooncake_store_open_(nullptr, &store) != 0 || mooncake_store_put_(store, "k", "v", 1, nullptr) != 0) return 2;
    std::vector<std::thread> threads;
    int found[8] = {};
    for (int &f : found)
        threads.emplace_back([&f, store, mooncake_store_is_exist_] { f = mooncake_store_is_exist_(store, "k"); });
    for (auto &t : threads) t.join();
    for (int f : found)
        if (f != 1) return 3;
    mooncake_store_destroy_(store);
}
