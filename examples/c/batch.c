// SPDX-License-Identifier: Apache-2.0

// Moves pages between a program's own memory and the store, many in one call and with one copy each way. The pages of a
// request are a group: they are kept and evicted together.

#include <mooncake.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { pages = 4, page_bytes = 64 << 10 };

// The keys of a batch lie one after the other; each ends with NUL.
static const char keys[] = "page-0\0page-1\0page-2\0page-3\0page-9";

static void die(const char *what) {
    fprintf(stderr, "%s: %s\n", what, mooncake_last_error());
    exit(1);
}

int main(void) {
    mooncake_store_options_t options = MOONCAKE_INIT(mooncake_store_options_t);
    options.memory_bytes = 64 << 20;
    mooncake_store_t store;
    if (mooncake_store_open(&options, &store) != 0) die("open");

    char *out = malloc(pages * page_bytes), *in = calloc(pages + 1, page_bytes);
    void *from[pages], *to[pages + 1];
    size_t sizes[pages + 1];
    for (int i = 0; i <= pages; i++) {
        sizes[i] = page_bytes;
        to[i] = in + i * page_bytes;
        if (i == pages) break;
        from[i] = out + i * page_bytes;
        memset(from[i], 'a' + i, page_bytes);
    }

    mooncake_put_options_t put = MOONCAKE_INIT(mooncake_put_options_t);
    put.type = MOONCAKE_TYPE_KVCACHE;
    put.group = "request-7";
    put.group_size = MOONCAKE_NUL;
    int stored[pages];
    size_t four_keys = pages * sizeof "page-0";
    if (mooncake_store_batch_put(store, keys, four_keys, NULL, pages, from, sizes, NULL, &put, stored) != 0) die("put");
    for (int i = 0; i < pages; i++) printf("put page-%d: %s\n", i, mooncake_error_name(stored[i]));

    int64_t got[pages + 1];
    if (mooncake_store_batch_get(store, keys, sizeof keys, NULL, pages + 1, to, sizes, NULL, 0, got) != 0) die("get");
    for (int i = 0; i < pages; i++) printf("get page-%d: %lld bytes\n", i, (long long)got[i]);
    printf("get page-9: %s\n", mooncake_error_name((int)got[pages]));
    printf("equal: %d\n", memcmp(in, out, pages * page_bytes) == 0);

    free(in);
    free(out);
    mooncake_store_destroy(store);
    return 0;
}
