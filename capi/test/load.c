// SPDX-License-Identifier: Apache-2.0

// The library as dlopen gives it to a program that was not linked with it, and what loading and using it does to signals.

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

// What the macros of test.h say when something fails; nothing here is linked with the library.
const char *mooncake_last_error(void) { return ""; }
const char *mooncake_error_name(int code) { return code == 0 ? "OK" : ""; }
int mooncake_last_error_code(void) { return 0; }

static const char *const names[] = {
#include "classic.inc"
};

static struct {
    mooncake_store_t (*create)(void);
    void (*destroy)(mooncake_store_t);
    int (*setup)(mooncake_store_t, const char *, const char *, uint64_t, uint64_t, const char *, const char *,
                 const char *);
    int (*put)(mooncake_store_t, const char *, const void *, size_t, const mooncake_replicate_config_t *);
    int64_t (*get_into)(mooncake_store_t, const char *, void *, size_t);
    int (*is_exist)(mooncake_store_t, const char *);
    int (*remove)(mooncake_store_t, const char *, int);
} lib;

static void *load(const char *name) {
    void *h = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (h == NULL) FAIL("dlopen %s: %s", name, dlerror());
    *(void **)&lib.create = dlsym(h, "mooncake_store_create");
    *(void **)&lib.destroy = dlsym(h, "mooncake_store_destroy");
    *(void **)&lib.setup = dlsym(h, "mooncake_store_setup");
    *(void **)&lib.put = dlsym(h, "mooncake_store_put");
    *(void **)&lib.get_into = dlsym(h, "mooncake_store_get_into");
    *(void **)&lib.is_exist = dlsym(h, "mooncake_store_is_exist");
    *(void **)&lib.remove = dlsym(h, "mooncake_store_remove");
    CHECK(lib.create && lib.destroy && lib.setup && lib.put && lib.get_into && lib.is_exist && lib.remove);
    return h;
}

static mooncake_store_t set_up(void) {
    mooncake_store_t s = lib.create();
    CHECK(s != NULL);
    OK(lib.setup(s, "h", "", 32 * MIB, 0, "tcp", "", "embedded"));
    return s;
}

static void round_trip(mooncake_store_t s) {
    char b[8] = "";
    lib.remove(s, "k", 1);
    OK(lib.put(s, "k", "value", 5, NULL));
    EQ(lib.get_into(s, "k", b, sizeof b), 5);
    STRING(b, "value");
}

// As Rust's loader does it: all 19 before anything is called.
TEST(dlopen_of_the_store_library_has_all_19) {
    double start = now_seconds();
    void *h = dlopen("libmooncake_store.so", RTLD_NOW | RTLD_LOCAL);
    if (h == NULL) FAIL("%s", dlerror());
    if (now_seconds() - start > 1) FAIL("dlopen took %.1f s", now_seconds() - start);
    void *real = dlopen("libmooncake.so", RTLD_NOW | RTLD_LOCAL);
    EQ(COUNT(names), 19);
    for (size_t i = 0; i < COUNT(names); i++) {
        void *p = dlsym(h, names[i]);
        if (p == NULL) FAIL("%s: %s", names[i], dlerror());
        if (p != dlsym(real, names[i])) FAIL("%s is not libmooncake.so's", names[i]);
    }
    load("libmooncake_store.so");
    round_trip(set_up());
}

static int count_maps(const char *name) {
    char line[4096], last[4096] = "";
    int files = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, f) != NULL) {
        char *path = strchr(line, '/');
        if (path == NULL || strstr(path, name) == NULL || strcmp(path, last) == 0) continue;
        strcpy(last, path);
        files++;
    }
    fclose(f);
    return files;
}

TEST(dlopen_of_both_names_is_one_library) {
    load("libmooncake_store.so");
    mooncake_store_t s = set_up();
    OK(lib.put(s, "k", "1", 1, NULL));
    load("libmooncake.so");
    mooncake_store_t t = set_up();
    EQ(lib.is_exist(t, "k"), 1); // one pool
    EQ(count_maps("libmooncake.so"), 1);
}

TEST(dlopen_twice_and_dlclose) {
    void *a = load("libmooncake.so"), *b = dlopen("libmooncake.so", RTLD_NOW);
    CHECK(a == b);
    mooncake_store_t s = set_up();
    dlclose(a);
    dlclose(b);
    round_trip(s); // it stays
    EQ(count_maps("libmooncake.so"), 1);
    a = load("libmooncake_store.so");
    dlclose(a);
    round_trip(s);
    load("libmooncake.so");
    round_trip(s);
    lib.destroy(s);
}

static atomic_int stop;

static void *idle(void *arg) {
    while (!stop) usleep(1000);
    return arg;
}

static void *use(void *arg) {
    round_trip(set_up());
    return arg;
}

TEST(dlopen_after_threads_exist) {
    pthread_t t[4], u;
    for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, idle, NULL);
    load("libmooncake.so");
    round_trip(set_up());
    pthread_create(&u, NULL, use, NULL);
    pthread_join(u, NULL);
    stop = 1;
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
}

static void *load_and_use(void *arg) {
    void *h = dlopen(arg, RTLD_NOW | RTLD_LOCAL);
    CHECK(h != NULL);
    mooncake_store_t (*create)(void);
    *(void **)&create = dlsym(h, "mooncake_store_create");
    return create();
}

TEST(dlopen_from_8_threads_at_once) {
    pthread_t t[8];
    for (int i = 0; i < 8; i++)
        pthread_create(&t[i], NULL, load_and_use, i % 2 ? "libmooncake.so" : "libmooncake_store.so");
    for (int i = 0; i < 8; i++) {
        void *s;
        pthread_join(t[i], &s);
        CHECK(s != NULL);
    }
    EQ(count_maps("libmooncake.so"), 1);
}

// Loaded in each child of a program that has not loaded it.
TEST(fork_then_load_in_5_children) {
    pid_t pids[5];
    for (int i = 0; i < 5; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            alarm(20);
            load("libmooncake.so");
            mooncake_store_t s = set_up();
            round_trip(s);
            lib.destroy(s);
            _exit(0);
        }
    }
    for (int i = 0; i < 5; i++) {
        int status;
        waitpid(pids[i], &status, 0);
        EQ(status, 0);
    }
}

static void *store_work(void *s) {
    char b[50000];
    while (!stop) {
        lib.put(s, "busy", b, sizeof b, NULL);
        lib.get_into(s, "busy", b, sizeof b);
        lib.remove(s, "busy", 1);
    }
    return NULL;
}

// busy_for keeps the store busy from two threads while the caller does something else.
static pthread_t workers[2];
static mooncake_store_t start_work(void) {
    mooncake_store_t s = set_up();
    stop = 0;
    for (int i = 0; i < 2; i++) pthread_create(&workers[i], NULL, store_work, s);
    return s;
}
static void end_work(mooncake_store_t s) {
    stop = 1;
    for (int i = 0; i < 2; i++) pthread_join(workers[i], NULL);
    lib.destroy(s);
}

static volatile sig_atomic_t signals;
static void on_signal(int sig) { signals += sig != 0; }

static const int untouched[] = {SIGINT,  SIGTERM, SIGCHLD, SIGUSR1, SIGUSR2,  SIGPROF,   SIGABRT, SIGHUP,
                                SIGQUIT, SIGALRM, SIGILL,  SIGTRAP, SIGWINCH, SIGVTALRM, SIGTSTP};

static void check_dispositions(bool handlers) {
    struct sigaction before[COUNT(untouched)], after;
    for (size_t i = 0; i < COUNT(untouched); i++) {
        struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
        if (handlers) CHECK(sigaction(untouched[i], &a, NULL) == 0);
        CHECK(sigaction(untouched[i], NULL, &before[i]) == 0);
    }
    load("libmooncake.so");
    mooncake_store_t s = start_work();
    usleep(100000);
    end_work(s);
    for (size_t i = 0; i < COUNT(untouched); i++) {
        CHECK(sigaction(untouched[i], NULL, &after) == 0);
        if (after.sa_handler != before[i].sa_handler) FAIL("the handler of signal %d has changed", untouched[i]);
        // A handler gets SA_ONSTACK, since it may have to run on a thread of the library's, whose stack is small.
        if ((after.sa_flags & ~SA_ONSTACK) != (before[i].sa_flags & ~SA_ONSTACK))
            FAIL("the flags of signal %d were %#x, are %#x", untouched[i], before[i].sa_flags, after.sa_flags);
        for (int n = 1; n < 65; n++)
            if (sigismember(&after.sa_mask, n) != sigismember(&before[i].sa_mask, n))
                FAIL("the mask of signal %d has changed", untouched[i]);
    }
}

TEST(signals_keep_their_defaults) { check_dispositions(false); }
TEST(signals_keep_their_handlers) { check_dispositions(true); }

// write_to_nobody writes to a pipe that nobody reads.
static ssize_t write_to_nobody(void) {
    int p[2];
    CHECK(pipe(p) == 0);
    close(p[0]);
    ssize_t n = write(p[1], "x", 1);
    close(p[1]);
    return n;
}

// The library has a handler of its own for SIGPIPE, but what the program had stays true.
TEST(SIGPIPE_is_ignored_if_it_was) {
    signal(SIGPIPE, SIG_IGN);
    load("libmooncake.so");
    mooncake_store_t s = start_work();
    EQ(write_to_nobody(), -1);
    EQ(errno, EPIPE);
    end_work(s);
    EQ(write_to_nobody(), -1);
}

TEST(SIGPIPE_ends_the_process_by_default) {
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGPIPE, SIG_DFL);
        load("libmooncake.so");
        round_trip(set_up());
        write_to_nobody();
        _exit(0);
    }
    int status;
    waitpid(pid, &status, 0);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE);
}

TEST(sigmask_of_the_thread_stays) {
    sigset_t before, after;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    load("libmooncake.so");
    round_trip(set_up());
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    for (int n = 1; n < 65; n++) EQ(sigismember(&after, n), sigismember(&before, n));
}

// Handlers of the host run, those of signals that come in the middle of calls too.
TEST(handlers_of_the_host_run) {
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGPIPE, &a, NULL);
    sigaction(SIGPROF, &a, NULL);
    sigaction(SIGUSR1, &a, NULL);
    load("libmooncake.so");
    mooncake_store_t s = start_work();
    int p[2];
    CHECK(pipe(p) == 0);
    close(p[0]);
    EQ(write(p[1], "x", 1), -1);
    EQ(errno, EPIPE);
    EQ(signals, 1);
    raise(SIGPROF);
    EQ(signals, 2);
    for (int i = 0; i < 200; i++) {
        pthread_kill(workers[i % 2], SIGUSR1);
        usleep(500);
    }
    usleep(10000);
    CHECK(signals > 100); // some met
    struct itimerval every = {{0, 1000}, {0, 1000}};
    int before = signals;
    setitimer(ITIMER_PROF, &every, NULL);
    double end = now_seconds() + 20;
    while (signals < before + 50 && now_seconds() < end) round_trip(s);
    CHECK(signals >= before + 50);
    setitimer(ITIMER_PROF, &(struct itimerval){{0, 0}, {0, 0}}, NULL);
    end_work(s);
}

// A handler that is put in place after the library was loaded.
TEST(handlers_set_later_run) {
    load("libmooncake.so");
    mooncake_store_t s = start_work();
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_RESTART | SA_ONSTACK};
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGPIPE, &a, NULL);
    raise(SIGINT);
    raise(SIGPIPE);
    EQ(signals, 2);
    round_trip(s);
    end_work(s);
}

static int interrupted, wake[2];

static void *read_forever(void *arg) {
    char c;
    for (;;) {
        ssize_t n = read(wake[0], &c, 1);
        if (n == 1 && c == 'q') return arg;
        if (n < 0 && errno == EINTR) interrupted++;
    }
}

// The library's own signals go to its own threads: a system call of the host's is not interrupted.
TEST(no_EINTR_for_a_thread_of_the_host) {
    load("libmooncake.so");
    CHECK(pipe(wake) == 0);
    pthread_t reader;
    pthread_create(&reader, NULL, read_forever, NULL);
    mooncake_store_t s = start_work();
    int slept = 0;
    for (int i = 0; i < 30; i++) slept += usleep(100000) != 0;
    end_work(s);
    EQ(write(wake[1], "q", 1), 1);
    pthread_join(reader, NULL);
    EQ(interrupted, 0);
    EQ(slept, 0);
}

static sigjmp_buf back;
static volatile sig_atomic_t faults;
static void on_fault(int sig, siginfo_t *info, void *context) {
    (void)sig, (void)context;
    faults += info->si_addr != NULL;
    siglongjmp(back, 1);
}

static void fault(void) {
    char *p = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (sigsetjmp(back, 1) == 0) {
        *(volatile char *)p = 1;
        FAIL("no fault");
    }
    munmap(p, 4096);
}

static void *fault_in_thread(void *arg) {
    fault();
    return arg;
}

TEST(SIGSEGV_handler_from_before_the_load_is_called) {
    struct sigaction a = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &a, NULL);
    load("libmooncake.so");
    mooncake_store_t s = start_work();
    fault();
    round_trip(s);
    fault(); // in a thread that has been inside the library
    EQ(faults, 2);
    end_work(s);
}

TEST(SIGSEGV_in_a_thread_without_a_call) {
    struct sigaction a = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &a, NULL);
    load("libmooncake.so");
    mooncake_store_t s = set_up();
    pthread_t t;
    pthread_create(&t, NULL, fault_in_thread, NULL);
    pthread_join(t, NULL);
    EQ(faults, 1);
    round_trip(s);
}

// A fault of the host's without a handler ends it by the signal, not in a traceback of the library's.
TEST(SIGSEGV_without_a_handler_ends_the_process) {
    pid_t pid = fork();
    if (pid == 0) {
        load("libmooncake.so");
        round_trip(set_up());
        *(volatile char *)(uintptr_t)16 = 1;
        _exit(0);
    }
    int status;
    waitpid(pid, &status, 0);
    CHECK(WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGABRT));
}

TEST(SIGABRT_dumps_core_as_ever) {
    pid_t pid = fork();
    if (pid == 0) {
        load("libmooncake.so");
        round_trip(set_up());
        abort();
    }
    int status;
    waitpid(pid, &status, 0);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}
