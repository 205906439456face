// SPDX-License-Identifier: Apache-2.0

// Two Go libraries in one process: other 1|2, which of them is loaded first.

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mooncake.h"

static int (*work)(int);
static int (*fault)(void);
static mooncake_store_t (*create)(void);
static int (*setup)(mooncake_store_t, const char *, const char *, uint64_t, uint64_t, const char *, const char *,
                    const char *);
static int (*put)(mooncake_store_t, const char *, const void *, size_t, const mooncake_replicate_config_t *);
static int64_t (*get_into)(mooncake_store_t, const char *, void *, size_t);
static int (*remove_key)(mooncake_store_t, const char *, int);
static mooncake_store_t store;

static void *find(void *h, const char *name) {
    void *p = h == NULL ? NULL : dlsym(h, name);
    if (p == NULL) {
        fprintf(stderr, "%s: %s\n", name, dlerror());
        exit(1);
    }
    return p;
}

static void load_other(void) {
    void *h = dlopen("libother.so", RTLD_NOW | RTLD_LOCAL);
    *(void **)&work = find(h, "other_work");
    *(void **)&fault = find(h, "other_fault");
}

static void load_store(void) {
    void *h = dlopen("libmooncake.so", RTLD_NOW | RTLD_LOCAL);
    *(void **)&create = find(h, "mooncake_store_create");
    *(void **)&setup = find(h, "mooncake_store_setup");
    *(void **)&put = find(h, "mooncake_store_put");
    *(void **)&get_into = find(h, "mooncake_store_get_into");
    *(void **)&remove_key = find(h, "mooncake_store_remove");
}

static void *use_both(void *arg) {
    char key[32], b[20000];
    for (int i = 0; i < 200; i++) {
        snprintf(key, sizeof key, "%p-%d", arg, i);
        memset(b, i, sizeof b);
        if (put(store, key, b, sizeof b, NULL) != 0) exit(2);
        if (work(4) != 6) exit(3);
        if (fault() != 1) exit(6);
        if (get_into(store, key, b, sizeof b) != sizeof b || b[9999] != (char)i) exit(4);
        if (remove_key(store, key, 1) != 0) exit(5);
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc > 1 && argv[1][0] == '2') {
        load_other();
        load_store();
    } else {
        load_store();
        load_other();
    }
    store = create();
    if (setup(store, "h", "", 32 << 20, 0, "tcp", "", "embedded") != 0) return 1;
    pthread_t t[4];
    for (long i = 0; i < 4; i++) pthread_create(&t[i], NULL, use_both, (void *)i);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    return 0;
}
