// SPDX-License-Identifier: Apache-2.0

// Processes: what a fork of one that has the library can do, and what it can't.

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "calls.h"

// child_refuses is what a forked child checks: every function returns MOONCAKE_EUNAVAILABLE, all of them within a second.
// Its exit status is the number of the function that did not, from 1, or 0.
static int child_refuses(world *w) {
    double start = now_seconds();
    alarm(10); // one that hangs
    for (int i = 0; i < function_count; i++) {
        const function *f = functions + i;
        if (is_local(f)) continue;
        call c;
        call_prepare(&c, f, w);
        int64_t r = call_do(&c);
        bool none = strcmp(f->result, "void") == 0, handle = strcmp(f->name, "mooncake_store_create") == 0;
        if (!none && r != (handle ? 0 : MOONCAKE_EUNAVAILABLE)) return i + 1;
        if (!none && (mooncake_last_error_code() != MOONCAKE_EUNAVAILABLE ||
                      strstr(mooncake_last_error(), "forked") == NULL))
            return i + 1;
    }
    mooncake_store_t s;
    if (mooncake_store_open(NULL, &s) != MOONCAKE_EUNAVAILABLE) return 250;
    if (mooncake_abi_version() != MOONCAKE_ABI_VERSION) return 251;
    return now_seconds() - start < 1 ? 0 : 252;
}

static void check_child(pid_t pid) {
    int status;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    if (WIFSIGNALED(status)) FAIL("the child was killed by signal %d", WTERMSIG(status));
    int n = WEXITSTATUS(status);
    if (n > 0) FAIL("in the child: %s", n <= function_count ? functions[n - 1].name : n == 252 ? "more than 1 s" : "open");
}

TEST(fork_after_load_is_refused) {
    world w = {0};
    world_refresh(&w);
    for (int i = 0; i < 3; i++) {
        pid_t pid = fork();
        if (pid == 0) _exit(child_refuses(&w));
        check_child(pid);
        check_bytes(w.store, "key", object_size, 5); // the parent is well
        world_refresh(&w);
    }
    world_end(&w);
}

// vfork and a bare clone, which run no handlers of fork.
TEST(clone_after_load_is_refused) {
    world w = {0};
    world_refresh(&w);
    pid_t pid = (pid_t)syscall(SYS_clone, 17 /* SIGCHLD */, 0, 0, 0, 0);
    if (pid == 0) _exit(child_refuses(&w));
    check_child(pid);
    world_end(&w);
}

// What a view shows is not in the child, where the parent would change it.
TEST(views_are_not_mapped_in_a_fork) {
    mooncake_store_t s = open_memory();
    put(s, "k", 100000, 1);
    mooncake_view_t v = MOONCAKE_INIT(mooncake_view_t);
    OK(mooncake_store_view(s, "k", 1, 0, &v));
    void *page = (void *)((uintptr_t)v.data & ~(uintptr_t)4095);
    EQ(msync(page, 4096, MS_ASYNC), 0);
    pid_t pid = fork();
    if (pid == 0) _exit(msync(page, 4096, MS_ASYNC) == -1 && errno == ENOMEM ? 0 : 1);
    int status;
    waitpid(pid, &status, 0);
    EQ(status, 0);
    OK(mooncake_view_close(&v));
}

// A child that is refused can fork again, and exit through exit.
TEST(fork_of_a_fork_and_exit) {
    mooncake_store_t s = open_memory();
    pid_t pid = fork();
    if (pid == 0) {
        pid_t second = fork();
        if (second == 0) exit(mooncake_store_is_exist(s, "k") == MOONCAKE_EUNAVAILABLE ? 0 : 1);
        int status;
        waitpid(second, &status, 0);
        alarm(10);
        exit(status != 0);
    }
    int status;
    waitpid(pid, &status, 0);
    EQ(status, 0);
    EQ(mooncake_store_is_exist(s, "k"), 0);
}

static mooncake_store_t busy;
static atomic_int stop;

static void *work(void *arg) {
    char key[16], b[10000];
    snprintf(key, sizeof key, "w%d", (int)(intptr_t)arg);
    while (!stop) {
        OK(mooncake_store_put(busy, key, b, sizeof b, NULL));
        EQ(mooncake_store_get_into(busy, key, b, sizeof b), sizeof b);
        OK(mooncake_store_remove(busy, key, 1));
    }
    return NULL;
}

TEST(fork_while_others_are_inside_calls) {
    world w = {0};
    world_refresh(&w);
    busy = w.store;
    pthread_t t[4];
    for (intptr_t i = 0; i < 4; i++) pthread_create(&t[i], NULL, work, (void *)i);
    for (int i = 0; i < 30; i++) {
        pid_t pid = fork();
        if (pid == 0) _exit(child_refuses(&w));
        check_child(pid);
    }
    stop = 1;
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    world_end(&w);
}

// What execs is fine.
TEST(subprocesses_100_times) {
    busy = open_memory();
    pthread_t t;
    pthread_create(&t, NULL, work, (void *)1);
    for (int i = 0; i < 100; i++) {
        FILE *f = popen("echo hello", "r");
        char line[16] = "";
        CHECK(f != NULL && fgets(line, sizeof line, f) != NULL);
        STRING(line, "hello\n");
        EQ(pclose(f), 0);
    }
    stop = 1;
    pthread_join(t, NULL);
}

// What the library opened is not inherited through exec.
TEST(descriptors_are_closed_on_exec) {
    world w = {0};
    world_refresh(&w);
    CHECK(mooncake_operation_eventfd(w.operation) > 2 && mooncake_events_eventfd(w.events) > 2);
    FILE *f = popen("ls /proc/self/fd | wc -l", "r");
    int n = 0;
    CHECK(f != NULL && fscanf(f, "%d", &n) == 1);
    pclose(f);
    if (n > 6) FAIL("a program that was started has %d descriptors", n);
    world_end(&w);
}
