// SPDX-License-Identifier: Apache-2.0

// Section 9 of mooncake.h: operations.

#include <poll.h>
#include <pthread.h>

#include "test.h"

typedef mooncake_operation_t operation;

static bool readable(int fd, int timeout_ms) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, timeout_ms) == 1 && p.revents == POLLIN;
}

TEST(async_put_and_get) {
    mooncake_store_t s = open_memory();
    unsigned char *a = bytes(MIB, 1), *b = bytes(100, 2);
    char keys[] = "a\0b";
    void *buffers[] = {a, b};
    size_t sizes[] = {MIB, 100};
    int r[2] = {9, 9};
    operation op;
    OK(mooncake_store_batch_put_async(s, keys, 3, NULL, 2, buffers, sizes, NULL, NULL, r, &op));
    memset(keys, 'x', sizeof keys); // copied, as the arrays are
    buffers[0] = NULL, sizes[1] = 0;
    EQ(mooncake_operation_wait(op, -1), 1);
    EQ(mooncake_operation_poll(op), 1);
    OK(mooncake_operation_result(op));
    EQ(r[0] + r[1], 0);
    OK(mooncake_operation_free(op));
    EQ(mooncake_operation_free(op), MOONCAKE_EINVAL);
    check_bytes(s, "a", MIB, 1);
    unsigned char *into = malloc(MIB);
    void *dst[] = {into, into + MIB - 10};
    size_t room[] = {MIB - 10, 10};
    uint32_t counts[] = {2, 0};
    int64_t n[2];
    OK(mooncake_store_batch_get_async(s, "a\0no", 4, NULL, 2, dst, room, counts, 0, n, &op));
    int fd = mooncake_operation_eventfd(op);
    CHECK(fd >= 0 && readable(fd, 10000));
    EQ(mooncake_operation_eventfd(op), fd);
    EQ(mooncake_operation_poll(op), 1);
    OK(mooncake_operation_result(op));
    EQ(n[0], MIB);
    EQ(n[1], MOONCAKE_ENOTFOUND);
    EQ(memcmp(into, a, MIB), 0);
    CHECK(readable(fd, 0)); // stays so
    OK(mooncake_operation_free(op));
    free(a), free(b), free(into);
}

TEST(async_eventfd_of_a_done_operation) {
    mooncake_store_t s = open_memory();
    int64_t n;
    char b[1];
    void *buffers[] = {b};
    size_t sizes[] = {1};
    operation op;
    OK(mooncake_store_batch_get_async(s, "no", 2, NULL, 1, buffers, sizes, NULL, 0, &n, &op));
    EQ(mooncake_operation_wait(op, 10000), 1);
    CHECK(readable(mooncake_operation_eventfd(op), 0));
    OK(mooncake_operation_cancel(op)); // nothing to cancel
    OK(mooncake_operation_result(op));
    OK(mooncake_operation_free(op));
}

// Cancelled, freed while it runs, or left to the end: nothing touches the results after free.
static mooncake_operation_t freed;
static pthread_barrier_t together;

static void *ask_for_eventfd(void *arg) {
    (void)arg;
    pthread_barrier_wait(&together);
    int fd = mooncake_operation_eventfd(freed);
    CHECK(fd >= 0 || fd == MOONCAKE_EINVAL);
    return NULL;
}

// An eventfd that is made while another thread frees the operation is closed too.
TEST(async_eventfd_while_it_is_freed) {
    mooncake_store_t s = open_memory();
    put(s, "k", 100, 1);
    pthread_barrier_init(&together, NULL, 3);
    int fds = 0;
    for (int i = 0; i < 5000; i++) {
        if (i == 100) fds = count_fds();
        char b[100];
        void *buffers[] = {b};
        size_t sizes[] = {100};
        int64_t n;
        pthread_t t[2];
        OK(mooncake_store_batch_get_async(s, "k", 1, NULL, 1, buffers, sizes, NULL, 0, &n, &freed));
        for (int j = 0; j < 2; j++) CHECK(pthread_create(&t[j], NULL, ask_for_eventfd, NULL) == 0);
        pthread_barrier_wait(&together);
        OK(mooncake_operation_free(freed));
        for (int j = 0; j < 2; j++) pthread_join(t[j], NULL);
    }
    EQ(count_fds(), fds);
    mooncake_store_destroy(s);
}

TEST(async_cancel_and_free_while_running) {
    mooncake_store_t s = open_memory();
    enum { count = 2000 };
    static char keys[count * 8];
    char *p = keys, *data = calloc(1, 16 << 10);
    void **buffers = malloc(count * sizeof *buffers);
    size_t *sizes = malloc(count * sizeof *sizes);
    for (int i = 0; i < count; i++) p += sprintf(p, "k%d", i) + 1, buffers[i] = data, sizes[i] = 16 << 10;
    for (int round = 0; round < 20; round++) {
        int *r = malloc(count * sizeof *r);
        memset(r, 0x55, count * sizeof *r);
        mooncake_put_options_t o = MOONCAKE_INIT(mooncake_put_options_t);
        o.replace = 1;
        operation op;
        OK(mooncake_store_batch_put_async(s, keys, (size_t)(p - keys), NULL, count, buffers, sizes, NULL, &o, r, &op));
        int code = mooncake_operation_result(op);
        CHECK(code == 0 || code == MOONCAKE_ENOTREADY);
        if (round % 2) OK(mooncake_operation_cancel(op));
        if (round % 3) EQ(mooncake_operation_wait(op, -1), 1);
        OK(mooncake_operation_free(op));
        for (int i = 0; i < count; i++) CHECK(r[i] == 0 || r[i] == MOONCAKE_ECANCELED);
        free(r);
    }
    free(data), free(buffers), free(sizes);
}

TEST(async_outlives_its_client) {
    mooncake_store_t s = open_memory();
    put(s, "k", MIB, 1);
    unsigned char *b = malloc(MIB);
    void *buffers[] = {b};
    size_t sizes[] = {MIB};
    int64_t n = 9;
    operation op;
    OK(mooncake_store_batch_get_async(s, "k", 1, NULL, 1, buffers, sizes, NULL, 0, &n, &op));
    mooncake_store_destroy(s);
    EQ(mooncake_operation_wait(op, 10000), 1);
    CHECK(n == (int64_t)MIB || n == MOONCAKE_EUNAVAILABLE);
    OK(mooncake_operation_free(op));
    free(b);
}

TEST(async_arguments_are_checked_at_once) {
    mooncake_store_t s = open_memory();
    operation op = (void *)1;
    int r;
    void *buffers[] = {"x"};
    size_t sizes[] = {1};
    ERROR(mooncake_store_batch_put_async(s, "a\0b\0", 4, NULL, 1, buffers, sizes, NULL, NULL, &r, &op), MOONCAKE_EINVAL,
          "more than 1");
    CHECK(op == NULL);
    mooncake_store_t unset = mooncake_store_create();
    EQ(mooncake_store_batch_put_async(unset, "a", 1, NULL, 1, buffers, sizes, NULL, NULL, &r, &op), MOONCAKE_EINVAL);
    char *json = (char *)1;
    OK(mooncake_store_batch_put_async(s, "a", 1, NULL, 1, buffers, sizes, NULL, NULL, &r, &op));
    EQ(mooncake_operation_wait(op, -1), 1);
    ERROR(mooncake_weight_import_result(op, &json), MOONCAKE_EINVAL, "not an import");
    CHECK(json == NULL);
    mooncake_weight_progress_t progress = MOONCAKE_INIT(mooncake_weight_progress_t);
    OK(mooncake_weight_import_progress(op, &progress));
    EQ(progress.phase, 0);
    OK(mooncake_operation_free(op));
}

TEST(async_with_groups) {
    mooncake_store_t s = open_memory();
    void *buffers[] = {"1", "2"};
    size_t sizes[] = {1, 1};
    int r[2];
    char groups[] = "g\0h", group[] = "one";
    mooncake_put_options_t o = MOONCAKE_INIT(mooncake_put_options_t);
    o.groups = groups, o.groups_size = 3;
    operation op;
    OK(mooncake_store_batch_put_async(s, "a\0b", 3, NULL, 2, buffers, sizes, NULL, &o, r, &op));
    memset(groups, 'x', sizeof groups);
    OK(mooncake_operation_wait(op, -1) - 1);
    OK(mooncake_operation_free(op));
    o = MOONCAKE_INIT(mooncake_put_options_t), o.group = group, o.group_size = MOONCAKE_NUL;
    OK(mooncake_store_batch_put_async(s, "c\0d", 3, NULL, 2, buffers, sizes, NULL, &o, r, &op));
    memset(group, 'x', 3);
    OK(mooncake_operation_wait(op, -1) - 1);
    OK(mooncake_operation_free(op));
    static const char *const names[] = {"g", "h", "one"};
    for (int i = 0; i < 3; i++) {
        mooncake_key_list_t *keys;
        OK(mooncake_store_group(s, names[i], MOONCAKE_NUL, &keys));
        EQ(keys->count, i == 2 ? 2 : 1);
        mooncake_free(keys);
    }
}
