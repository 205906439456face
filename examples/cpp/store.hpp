// SPDX-License-Identifier: Apache-2.0

// What a C++ program may want around mooncake.h: owners that close, and errors that are thrown.

#ifndef EXAMPLES_STORE_HPP
#define EXAMPLES_STORE_HPP

#include <mooncake.h>

#include <memory>
#include <stdexcept>
#include <string>

// check throws what a negative result stands for.
inline int64_t check(int64_t result, const char *what) {
    if (result < 0) throw std::runtime_error(std::string(what) + ": " + mooncake_last_error());
    return result;
}

struct StoreCloser {
    void operator()(void *store) const { mooncake_store_destroy(store); }
};
using Store = std::unique_ptr<void, StoreCloser>;

inline Store open_store(const mooncake_store_options_t &options) {
    mooncake_store_t store = nullptr;
    check(mooncake_store_open(&options, &store), "open");
    return Store(store);
}

inline Store open_store(uint64_t memory_bytes) {
    auto options = MOONCAKE_INIT(mooncake_store_options_t);
    options.memory_bytes = memory_bytes;
    return open_store(options);
}

// View is an object's bytes where they lie.
class View {
public:
    View(const Store &store, const std::string &key) {
        check(mooncake_store_view(store.get(), key.data(), key.size(), 0, &view_), "view");
    }
    View(mooncake_weight_t weights, const char *model, const char *revision, const char *tensor) {
        check(mooncake_weight_view_tensor(weights, model, revision, tensor, &view_), "view");
    }
    ~View() { mooncake_view_close(&view_); }
    View(const View &) = delete;
    View &operator=(const View &) = delete;

    const char *data() const { return static_cast<const char *>(view_.data); }
    size_t size() const { return view_.size; }

private:
    mooncake_view_t view_ = MOONCAKE_INIT(mooncake_view_t);
};

#endif
