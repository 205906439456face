// SPDX-License-Identifier: Apache-2.0

// Panics in the library, in a build with the tag failpoints: every function that enters Go says so, and works afterwards.

#include "calls.h"

void mooncake_test_panic(int on);

TEST(every_function_survives_a_panic) {
    setenv("MOONCAKE_EMBEDDED", "1", 1);
    world w = {0};
    int n = 0;
    for (const function *f = functions; f < functions + function_count; f++) {
        if (is_local(f)) continue;
        world_refresh(&w);
        call c;
        call_prepare(&c, f, &w);
        mooncake_test_panic(1);
        int64_t r = call_do(&c);
        mooncake_test_panic(0);
        bool handle = strcmp(f->name, "mooncake_store_create") == 0;
        if (strcmp(f->result, "void") != 0 && r != (handle ? 0 : MOONCAKE_EINTERNAL))
            FAIL("%s: got %lld", f->name, (long long)r);
        HOLDS(mooncake_last_error(), "panic: failpoint");
        EQ(mooncake_last_error_code(), MOONCAKE_EINTERNAL);
        n++;
        call_prepare(&c, f, &w);
        r = call_do(&c);
        if (strcmp(f->name, "mooncake_weight_abort") == 0 && r == MOONCAKE_EINVAL) r = 0; // the revision is READY
        if (r == MOONCAKE_EINTERNAL || (handle && r == 0) || r == MOONCAKE_EINVAL || r == MOONCAKE_EUNAVAILABLE)
            FAIL("%s after a panic: %lld, %s", f->name, (long long)r, mooncake_last_error());
        if (handle) mooncake_store_destroy((void *)(uintptr_t)r);
        call_clean(&c);
    }
    CHECK(n > 90);
    world_refresh(&w);
    check_bytes(w.store, "key", object_size, 5);
    world_end(&w);
}
