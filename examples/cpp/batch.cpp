// SPDX-License-Identifier: Apache-2.0

// Moves pages between a program's own memory and the store, many in one call and with one copy each way. The pages of a
// request are a group: they are kept and evicted together.

#include <iostream>
#include <vector>

#include "store.hpp"

static const size_t pages = 4, page_bytes = 64 << 10;

static int run() {
    Store store = open_store(64 << 20);
    std::vector<char> out(pages * page_bytes), in((pages + 1) * page_bytes);
    std::vector<void *> from, to;
    std::string keys; // one after the other, each with its NUL
    for (size_t i = 0; i < pages; i++) {
        std::fill_n(out.begin() + i * page_bytes, page_bytes, static_cast<char>('a' + i));
        from.push_back(&out[i * page_bytes]);
        to.push_back(&in[i * page_bytes]);
        keys += "page-" + std::to_string(i) + '\0';
    }
    to.push_back(&in[pages * page_bytes]);
    std::vector<size_t> sizes(pages + 1, page_bytes);

    auto put = MOONCAKE_INIT(mooncake_put_options_t);
    put.type = MOONCAKE_TYPE_KVCACHE;
    put.group = "request-7";
    put.group_size = MOONCAKE_NUL;
    std::vector<int> stored(pages);
    check(mooncake_store_batch_put(store.get(), keys.data(), keys.size(), nullptr, pages, from.data(), sizes.data(),
                                   nullptr, &put, stored.data()), "put");
    for (size_t i = 0; i < pages; i++) std::cout << "put page-" << i << ": " << mooncake_error_name(stored[i]) << "\n";

    keys += std::string("page-9") + '\0';
    std::vector<int64_t> got(pages + 1);
    check(mooncake_store_batch_get(store.get(), keys.data(), keys.size(), nullptr, pages + 1, to.data(), sizes.data(),
                                   nullptr, 0, got.data()), "get");
    for (size_t i = 0; i < pages; i++) std::cout << "get page-" << i << ": " << got[i] << " bytes\n";
    std::cout << "get page-9: " << mooncake_error_name(static_cast<int>(got[pages])) << "\n";
    std::cout << "equal: " << std::equal(out.begin(), out.end(), in.begin()) << "\n";
    return 0;
}

int main() try {
    return run();
} catch (const std::exception &e) {
    std::cerr << e.what() << "\n";
    return 1;
}
