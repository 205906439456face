// SPDX-License-Identifier: Apache-2.0

// A program as it is written for the C++ Mooncake Store, in what C and C++ have in common. It calls all 19 functions:
// the five tests of the C++ store's Go binding, and what they leave out. Run with MOONCAKE_EMBEDDED=1, since it names a
// master.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef OUR_HEADER
#include "store_c.h"
#else
#include "upstream.h"
#endif

#define CHECK(c)                                                                \
    do {                                                                        \
        if (!(c)) {                                                             \
            fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #c);    \
            exit(1);                                                            \
        }                                                                       \
    } while (0)

int main(void) {
    mooncake_store_t s = mooncake_store_create();
    CHECK(s != NULL);
    CHECK(mooncake_store_setup(s, "localhost", "http://localhost:8080/metadata", 512u << 20, 128u << 20, "tcp", "",
                               "localhost:50051") == 0);
    CHECK(mooncake_store_health_check(s) == 0);

    char value[] = "hello", buffer[64];
    CHECK(mooncake_store_put(s, "key", value, 5, NULL) == 0);
    CHECK(mooncake_store_is_exist(s, "key") == 1);
    CHECK(mooncake_store_get_size(s, "key") == 5);
    CHECK(mooncake_store_get_into(s, "key", buffer, sizeof buffer) == 5 && memcmp(buffer, "hello", 5) == 0);
    CHECK(mooncake_store_remove(s, "key", 1) == 0);
    CHECK(mooncake_store_is_exist(s, "key") == 0);

    const char *keys[] = {"a", "missing", "b"};
    void *buffers[] = {value, value, value};
    size_t sizes[] = {1, 2, 3};
    int results[3];
    int64_t lengths[3];
    const char *two[] = {"a", "b"};
    CHECK(mooncake_store_batch_put_from(s, two, buffers, sizes, 2, NULL, results) == 0);
    CHECK(results[0] == 0 && results[1] == 0);
    CHECK(mooncake_store_batch_is_exist(s, keys, 3, results) == 0);
    CHECK(results[0] == 1 && results[1] == 0 && results[2] == 1);
    void *into[] = {buffer, buffer + 16, buffer + 32};
    size_t room[] = {16, 16, 16};
    CHECK(mooncake_store_batch_get_into(s, keys, into, room, 3, lengths) == 0);
    CHECK(lengths[0] == 1 && lengths[1] == -704 && lengths[2] == 2);
    CHECK(mooncake_store_remove_by_regex(s, "^a$", 1) == 1);
    CHECK(mooncake_store_remove_all(s, 1) == 1);

    for (int i = 0; i < 5; i++) {
        snprintf(buffer, sizeof buffer, "n%d", i);
        CHECK(mooncake_store_put(s, buffer, value, 5, NULL) == 0);
    }
    CHECK(mooncake_store_remove_all(s, 0) == 5); // a fresh put has no lease

    CHECK(mooncake_store_get_hostname(s, buffer, sizeof buffer) == 0 && buffer[0] != 0);

    mooncake_replicate_config_t config;
    memset(&config, 0, sizeof config);
    config.replica_num = 2;
    config.with_soft_pin = 1;
    CHECK(mooncake_store_register_buffer(s, value, sizeof value) == 0);
    CHECK(mooncake_store_put_from(s, "key", value, 5, &config) == 0);
    CHECK(mooncake_store_is_exist(s, "key") == 1);
    CHECK(mooncake_store_unregister_buffer(s, value) == 0);
    mooncake_store_destroy(s);

    s = mooncake_store_create();
    CHECK(mooncake_store_init_all(s, "tcp", "", 64u << 20) == 0);
    mooncake_store_destroy(s);
    return 0;
}
