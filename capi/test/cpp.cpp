// SPDX-License-Identifier: Apache-2.0

// mooncake.h in C++11 and later.

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "mooncake.h"
#include "store_c.h"

static_assert(sizeof(mooncake_replicate_config_t) == 32, "the layout is the C++ store's");
static_assert(MOONCAKE_ENOTFOUND == -704, "the codes are the C++ store's");

#define CHECK(c)                                                                                     \
    do {                                                                                             \
        if (!(c)) {                                                                                  \
            std::fprintf(stderr, "%s:%d: %s is false: %s\n", __FILE__, __LINE__, #c, mooncake_last_error()); \
            std::exit(1);                                                                            \
        }                                                                                            \
    } while (0)

int main() {
    auto options = MOONCAKE_INIT(mooncake_store_options_t);
    CHECK(options.struct_size == sizeof options && options.dir == nullptr && options.memory_bytes == 0);
    options.memory_bytes = 32 << 20;
    mooncake_store_t store = nullptr;
    CHECK(mooncake_store_open(&options, &store) == MOONCAKE_OK);
    CHECK(mooncake_store_put_object(store, "key", 3, "hello", 5, nullptr) == 0);
    auto view = MOONCAKE_INIT(mooncake_view_t);
    CHECK(mooncake_store_view(store, "key", MOONCAKE_NUL, 0, &view) == 0);
    CHECK(view.size == 5 && std::memcmp(view.data, "hello", 5) == 0);
    CHECK(mooncake_view_close(&view) == 0);
    try {
        throw 1; // unwinding works beside Go's runtime
    } catch (int) {
    }
    CHECK(mooncake_store_get_size(store, "no") == MOONCAKE_ENOTFOUND);
    mooncake_store_destroy(store);
}
