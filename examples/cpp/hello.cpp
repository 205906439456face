// SPDX-License-Identifier: Apache-2.0

// Opens a store in this process, puts an object, reads it back and removes it.

#include <iostream>

#include "store.hpp"

static int run() {
    Store store = open_store(64 << 20);
    check(mooncake_store_put(store.get(), "hello", "world", 5, nullptr), "put");
    std::string buffer(16, '\0');
    buffer.resize(check(mooncake_store_get_into(store.get(), "hello", &buffer[0], buffer.size()), "get"));
    std::cout << "get hello: " << buffer << "\n";
    std::cout << "exists: " << mooncake_store_is_exist(store.get(), "hello") << "\n";

    // The reads above protect the object for ten seconds: only force removes it now.
    std::cout << "remove: " << mooncake_error_name(mooncake_store_remove(store.get(), "hello", 0)) << "\n";
    std::cout << "remove by force: " << mooncake_error_name(mooncake_store_remove(store.get(), "hello", 1)) << "\n";
    std::cout << "exists: " << mooncake_store_is_exist(store.get(), "hello") << "\n";
    return 0;
}

int main() try {
    return run();
} catch (const std::exception &e) {
    std::cerr << e.what() << "\n";
    return 1;
}
