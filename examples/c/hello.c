// SPDX-License-Identifier: Apache-2.0

// Opens a store in this process, puts an object, reads it back and removes it.

#include <mooncake.h>
#include <stdio.h>

int main(void) {
    mooncake_store_options_t options = MOONCAKE_INIT(mooncake_store_options_t);
    options.memory_bytes = 64 << 20;
    mooncake_store_t store;
    if (mooncake_store_open(&options, &store) != 0) {
        fprintf(stderr, "open: %s\n", mooncake_last_error());
        return 1;
    }
    if (mooncake_store_put(store, "hello", "world", 5, NULL) != 0) {
        fprintf(stderr, "put: %s\n", mooncake_last_error());
        return 1;
    }
    char buffer[16];
    int64_t n = mooncake_store_get_into(store, "hello", buffer, sizeof buffer);
    if (n < 0) {
        fprintf(stderr, "get: %s\n", mooncake_last_error());
        return 1;
    }
    printf("get hello: %.*s\n", (int)n, buffer);
    printf("exists: %d\n", mooncake_store_is_exist(store, "hello"));

    // The reads above protect the object for ten seconds: only force removes it now.
    printf("remove: %s\n", mooncake_error_name(mooncake_store_remove(store, "hello", 0)));
    printf("remove by force: %s\n", mooncake_error_name(mooncake_store_remove(store, "hello", 1)));
    printf("exists: %d\n", mooncake_store_is_exist(store, "hello"));
    mooncake_store_destroy(store);
    return 0;
}
