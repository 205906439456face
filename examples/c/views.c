// SPDX-License-Identifier: Apache-2.0

// Reads an object where it lies, without a copy. A view keeps its bytes, also when the key is replaced meanwhile.

#include <mooncake.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { size = 1 << 20 };

static void die(const char *what) {
    fprintf(stderr, "%s: %s\n", what, mooncake_last_error());
    exit(1);
}

int main(void) {
    mooncake_store_options_t options = MOONCAKE_INIT(mooncake_store_options_t);
    options.memory_bytes = 64 << 20;
    mooncake_store_t store;
    if (mooncake_store_open(&options, &store) != 0) die("open");

    char *bytes = malloc(size);
    memset(bytes, 'o', size);
    if (mooncake_store_put_object(store, "k", 1, bytes, size, NULL) != 0) die("put");

    mooncake_view_t old = MOONCAKE_INIT(mooncake_view_t);
    if (mooncake_store_view(store, "k", 1, 0, &old) != 0) die("view");

    mooncake_put_options_t replace = MOONCAKE_INIT(mooncake_put_options_t);
    replace.replace = 1;
    memset(bytes, 'n', size);
    if (mooncake_store_put_object(store, "k", 1, bytes, size, &replace) != 0) die("replace");

    mooncake_view_t new = MOONCAKE_INIT(mooncake_view_t);
    if (mooncake_store_view(store, "k", 1, 0, &new) != 0) die("view");
    printf("old view: %llu bytes of %c\n", (unsigned long long)old.size, ((const char *)old.data)[size - 1]);
    printf("new view: %llu bytes of %c\n", (unsigned long long)new.size, ((const char *)new.data)[size - 1]);
    mooncake_view_close(&old);
    mooncake_view_close(&new);

    free(bytes);
    mooncake_store_destroy(store);
    return 0;
}
