// SPDX-License-Identifier: Apache-2.0

// Reads an object where it lies, without a copy. A view keeps its bytes, also when the key is replaced meanwhile.

#include <iostream>

#include "store.hpp"

static int run() {
    Store store = open_store(64 << 20);
    std::string bytes(1 << 20, 'o');
    check(mooncake_store_put_object(store.get(), "k", 1, bytes.data(), bytes.size(), nullptr), "put");
    View before(store, "k");

    auto replace = MOONCAKE_INIT(mooncake_put_options_t);
    replace.replace = 1;
    bytes.assign(bytes.size(), 'n');
    check(mooncake_store_put_object(store.get(), "k", 1, bytes.data(), bytes.size(), &replace), "replace");
    View after(store, "k");

    std::cout << "old view: " << before.size() << " bytes of " << before.data()[before.size() - 1] << "\n";
    std::cout << "new view: " << after.size() << " bytes of " << after.data()[after.size() - 1] << "\n";
    return 0;
}

int main() try {
    return run();
} catch (const std::exception &e) {
    std::cerr << e.what() << "\n";
    return 1;
}
