// SPDX-License-Identifier: Apache-2.0

// Many threads: on one handle, on handles that others close, and one after the other.

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "test.h"

static mooncake_store_t store;
static atomic_int stop;

static void run_threads(int n, void *(*work)(void *), double seconds) {
    pthread_t t[64];
    stop = 0;
    for (intptr_t i = 0; i < n; i++) CHECK(pthread_create(&t[i], NULL, work, (void *)i) == 0);
    if (seconds > 0) usleep((useconds_t)(seconds * 1e6));
    stop = 1;
    for (int i = 0; i < n; i++) pthread_join(t[i], NULL);
}

// Everything at once on a few keys: what is read is one of the values that were put, whole.
static void *everything(void *arg) {
    unsigned seed = (unsigned)(intptr_t)arg;
    unsigned char *data = malloc(20000), *got = malloc(20000);
    while (!stop) {
        char key[8];
        snprintf(key, sizeof key, "k%d", rand_r(&seed) % 8);
        memset(data, rand_r(&seed) % 256, 20000);
        mooncake_put_options_t o = MOONCAKE_INIT(mooncake_put_options_t);
        o.replace = 1;
        int64_t r = mooncake_store_put_object(store, key, MOONCAKE_NUL, data, 20000, &o);
        if (r != 0 && r != MOONCAKE_EEXISTS && r != MOONCAKE_EBUSY)
            FAIL("put: %lld %s", (long long)r, mooncake_last_error());
        r = mooncake_store_get_into(store, key, got, 20000);
        if (r == 20000) {
            for (int i = 1; i < 20000; i++) CHECK(got[i] == got[0]);
        } else if (r != MOONCAKE_ENOTFOUND && r != MOONCAKE_ENOTREADY) {
            FAIL("get: %lld %s", (long long)r, mooncake_last_error());
        }
        mooncake_view_t v = MOONCAKE_INIT(mooncake_view_t);
        if (mooncake_store_view(store, key, MOONCAKE_NUL, 0, &v) == 0) {
            const unsigned char *p = v.data;
            for (size_t i = 1; i < v.size; i++) CHECK(p[i] == p[0]);
            OK(mooncake_view_close(&v));
        }
        if (rand_r(&seed) % 4 == 0) mooncake_store_remove(store, key, 1);
        mooncake_list_t list;
        mooncake_object_info_t info = MOONCAKE_INIT(mooncake_object_info_t);
        OK(mooncake_store_list(store, "k", 1, &list));
        while (mooncake_list_next(list, &info) == 1) CHECK(info.size == 20000);
        OK(mooncake_list_close(list));
    }
    free(data);
    free(got);
    return NULL;
}

TEST(many_threads_on_one_handle) {
    store = open_memory();
    run_threads(8, everything, 1.5);
    mooncake_object_info_t info = MOONCAKE_INIT(mooncake_object_info_t);
    for (int i = 0; i < 8; i++) {
        char key[8];
        snprintf(key, sizeof key, "k%d", i);
        if (mooncake_store_stat(store, key, MOONCAKE_NUL, &info) == 0) EQ(info.readers, 0);
    }
    mooncake_store_destroy(store);
}

// The last error is the thread's own.
static void *own_error(void *arg) {
    char key[32];
    snprintf(key, sizeof key, "thread-%d", (int)(intptr_t)arg);
    char b[1];
    STRING(mooncake_last_error(), "");
    OK(mooncake_store_put(store, key, "12", 2, NULL));
    for (int i = 0; i < 1000; i++) {
        EQ(mooncake_store_get_into(store, key, b, 1), MOONCAKE_EINVAL);
        HOLDS(mooncake_last_error(), key);
    }
    return NULL;
}

TEST(last_error_is_of_the_thread) {
    store = open_memory();
    run_threads(8, own_error, 0);
}

// Calls into a client that another thread destroys: each is done or refused.
static _Atomic(mooncake_store_t) current;

static void *call_current(void *arg) {
    (void)arg;
    while (!stop) {
        mooncake_store_t s = current;
        char b[4096];
        int64_t r = mooncake_store_put(s, "k", b, sizeof b, NULL);
        CHECK(r == 0 || r == MOONCAKE_EINVAL || r == MOONCAKE_EUNAVAILABLE || r == MOONCAKE_EEXISTS);
        r = mooncake_store_get_into(s, "k", b, sizeof b);
        CHECK(r == 4096 || r == MOONCAKE_EINVAL || r == MOONCAKE_EUNAVAILABLE || r == MOONCAKE_ENOTFOUND ||
              r == MOONCAKE_ENOTREADY);
        mooncake_view_t v = MOONCAKE_INIT(mooncake_view_t);
        if (mooncake_store_view(s, "k", 1, 0, &v) == 0) {
            volatile char c = *(const char *)v.data; // still there, closed store or not
            (void)c;
            OK(mooncake_view_close(&v));
        }
        int found;
        mooncake_store_get_session_start(s, "k", 1, NULL, 1, &found);
        mooncake_usage_t u = MOONCAKE_INIT(mooncake_usage_t);
        mooncake_store_usage(s, &u);
    }
    return NULL;
}

TEST(destroy_while_others_call) {
    pthread_t t[4];
    mooncake_store_options_t o = MOONCAKE_INIT(mooncake_store_options_t);
    o.memory_bytes = 16 * MIB;
    mooncake_store_t s;
    OK(mooncake_store_open(&o, &s));
    current = s;
    for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, call_current, NULL);
    for (int i = 0; i < 50; i++) {
        mooncake_store_destroy(s);
        OK(mooncake_store_open(&o, &s));
        current = s;
        usleep(1000);
    }
    stop = 1;
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    mooncake_store_destroy(s);
}

// A handle that many close at once is closed by one of them.
static mooncake_view_t shared_view;
static mooncake_writer_t shared_writer;
static mooncake_list_t shared_list;
static mooncake_events_t shared_events;
static mooncake_operation_t shared_operation;
static atomic_int closed[5];
static pthread_barrier_t together;

static void count_close(int which, int code) {
    CHECK(code == 0 || code == MOONCAKE_EINVAL);
    closed[which] += code == 0;
}

static void *close_all(void *arg) {
    mooncake_view_t view = shared_view;
    mooncake_object_info_t info = MOONCAKE_INIT(mooncake_object_info_t);
    mooncake_event_t event = MOONCAKE_INIT(mooncake_event_t);
    pthread_barrier_wait(&together);
    count_close(0, mooncake_view_close(&view));
    mooncake_writer_write(shared_writer, "x", 1);
    count_close(1, mooncake_writer_abort(shared_writer));
    int next;
    while ((next = mooncake_list_next(shared_list, &info)) == 1) {
        if (arg == NULL) break; // the others walk on, until it is closed
    }
    if (next < 0) EQ(next, MOONCAKE_EINVAL);
    count_close(2, mooncake_list_close(shared_list));
    mooncake_events_next(shared_events, 1, &event);
    count_close(3, mooncake_events_close(shared_events));
    mooncake_operation_wait(shared_operation, 1);
    count_close(4, mooncake_operation_free(shared_operation));
    return NULL;
}

TEST(close_of_one_handle_by_many) {
    store = open_memory();
    put(store, "k", 100, 1);
    for (int i = 0; i < 2000; i++) {
        char key[16];
        snprintf(key, sizeof key, "many%d", i);
        put(store, key, 1, 1);
    }
    pthread_barrier_init(&together, NULL, 8);
    for (int round = 0; round < 100; round++) {
        int64_t n;
        char b[100];
        void *buffers[] = {b};
        size_t sizes[] = {100};
        shared_view = MOONCAKE_INIT(mooncake_view_t);
        OK(mooncake_store_view(store, "k", 1, 0, &shared_view));
        OK(mooncake_store_create_object(store, "w", 1, 100, NULL, &shared_writer));
        OK(mooncake_store_list(store, "", 0, &shared_list));
        OK(mooncake_store_events(store, 10, &shared_events));
        OK(mooncake_store_batch_get_async(store, "k", 1, NULL, 1, buffers, sizes, NULL, 0, &n, &shared_operation));
        run_threads(8, close_all, 0);
    }
    for (int i = 0; i < 5; i++) EQ(closed[i], 100);
    mooncake_object_info_t info = MOONCAKE_INIT(mooncake_object_info_t);
    OK(mooncake_store_stat(store, "k", 1, &info));
    EQ(info.readers, 0);
}

static void *set_up_and_close(void *arg) {
    (void)arg;
    while (!stop) {
        int r = mooncake_store_setup(store, "h", "", 16 * MIB, 0, "tcp", "", "embedded");
        CHECK(r == 0 || r == MOONCAKE_EINVAL);
        r = mooncake_store_is_exist(store, "k");
        CHECK(r == 0 || r == MOONCAKE_EINVAL || r == MOONCAKE_EUNAVAILABLE);
        OK(mooncake_store_close(store));
    }
    return NULL;
}

TEST(setup_and_close_of_one_client_by_many) {
    store = mooncake_store_create();
    run_threads(4, set_up_and_close, 0.5);
    mooncake_store_destroy(store);
}

static void *one_call(void *arg) {
    (void)arg;
    EQ(mooncake_store_is_exist(store, "k"), 1);
    return NULL;
}

// 10,000 threads that make one call each leave nothing behind.
TEST(short_threads_leave_nothing) {
    store = open_memory();
    OK(mooncake_store_put(store, "k", "v", 1, NULL));
    int threads = 0;
    long rss = 0;
    for (int i = 0; i < 11000; i++) {
        if (i == 1000) threads = count_threads(), rss = rss_kib();
        pthread_t t;
        CHECK(pthread_create(&t, NULL, one_call, NULL) == 0);
        pthread_join(t, NULL);
    }
    usleep(100000);
    if (count_threads() > threads + 3) FAIL("%d threads, then %d", threads, count_threads());
    if (!sanitized && rss_kib() > rss + 4096) FAIL("%ld KiB, then %ld", rss, rss_kib());
    mooncake_store_destroy(store);
}

static void open_and_close(bool dir) {
    mooncake_store_options_t o = MOONCAKE_INIT(mooncake_store_options_t);
    o.memory_bytes = 16 * MIB;
    if (dir) o.dir = path_in(scratch(), "d"), o.shm_dir = scratch_shm(), o.volatile_memory = 1, o.ssd_bytes = 64 * MIB;
    mooncake_store_t s;
    int code = mooncake_store_open(&o, &s);
    if (dir && code == MOONCAKE_EMODE) test_skip("this library has no RocksDB");
    OK(code);
    put(s, "k", 5000, 1);
    mooncake_store_remove(s, "k", 1);
    mooncake_events_t events;
    OK(mooncake_store_events(s, 10, &events));
    mooncake_weight_t w;
    OK(mooncake_weight_open(s, NULL, &w));
    mooncake_store_destroy(s);
    OK(mooncake_weight_close(w));
    OK(mooncake_events_close(events));
}

static void cycles(bool dir, int n) {
    int threads = 0, fds = 0, shm = 0;
    long rss = 0;
    for (int i = 0; i < n + 10; i++) {
        if (i == 10) threads = count_threads(), fds = count_fds(), rss = rss_kib(), shm = count_shm();
        open_and_close(dir);
    }
    usleep(200000);
    EQ(count_fds(), fds);
    EQ(count_shm(), shm);
    if (count_threads() > threads + 3) FAIL("%d threads, then %d", threads, count_threads());
    if (!sanitized && rss_kib() > rss + 16384) FAIL("%ld KiB, then %ld", rss, rss_kib());
}

TEST(open_and_close_100_times) { cycles(false, 100); }
TEST(open_and_close_100_times_with_a_dir) { cycles(true, 100); }
