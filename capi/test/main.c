// SPDX-License-Identifier: Apache-2.0

// Runs the tests, each in a process of its own: suite [-l] [word...] runs those whose file or name has one of the words.

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "test.h"

extern char **environ;

enum { max_tests = 1024, limit_seconds = 120, skipped = 77 };

static struct test {
    const char *file, *name;
    void (*run)(void);
} tests[max_tests];
static int test_count;

void test_add(const char *file, const char *name, void (*run)(void)) {
    const char *base = strrchr(file, '/');
    if (test_count < max_tests) tests[test_count++] = (struct test){base ? base + 1 : file, name, run};
}

void test_fail(const char *file, int line, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s:%d: ", file, line);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    fflush(stdout);
    _exit(1);
}

void test_skip(const char *why) {
    printf("    %s\n", why);
    fflush(stdout);
    _exit(skipped);
}

const char *scratch(void) { return getenv("TEST_SCRATCH"); }
const char *scratch_shm(void) { return getenv("TEST_SCRATCH_SHM"); }

const char *path_in(const char *dir, const char *name) {
    static char paths[5][4096];
    static unsigned turn;
    char *path = paths[turn++ % COUNT(paths)];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

static int count_entries(const char *dir) {
    int n = 0;
    DIR *d = opendir(dir);
    if (d == NULL) return -1;
    while (readdir(d) != NULL) n++;
    closedir(d);
    return n - 2;
}

int count_threads(void) { return count_entries("/proc/self/task"); }
int count_fds(void) { return count_entries("/proc/self/fd") - 1; }
int count_shm(void) { return count_entries(scratch_shm()); }

long rss_kib(void) {
    char line[256];
    long kib = -1;
    FILE *f = fopen("/proc/self/status", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "VmRSS: %ld", &kib) == 1) break;
    if (f != NULL) fclose(f);
    return kib;
}

double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static void remove_tree(const char *dir) { nftw(dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS); }

// run_one runs a test in a process of its own and returns its exit status, or -1 for one that took too long.
static int run_one(const char *self, struct test *t) {
    char *args[] = {(char *)self, "-1", (char *)t->file, (char *)t->name, NULL};
    pid_t pid;
    int err = posix_spawn(&pid, self, NULL, NULL, args, environ);
    if (err != 0) {
        fprintf(stderr, "posix_spawn: %s\n", strerror(err));
        exit(2);
    }
    double end = now_seconds() + limit_seconds;
    for (;;) {
        int status;
        pid_t got = waitpid(pid, &status, WNOHANG);
        if (got == pid) return status;
        if (now_seconds() > end) {
            kill(pid, SIGABRT); // Go's traceback, if the library is at fault
            sleep(1);
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return -1;
        }
        usleep(2000);
    }
}

static bool wanted(struct test *t, int words, char **word) {
    for (int i = 0; i < words; i++)
        if (strstr(t->file, word[i]) != NULL || strstr(t->name, word[i]) != NULL) return true;
    return words == 0;
}

static int run_all(const char *self, int words, char **word) {
    char dir[4096], shm[4096];
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/mooncake-test-XXXXXX", tmp != NULL ? tmp : "/tmp");
    snprintf(shm, sizeof shm, "/dev/shm/mooncake-test-XXXXXX");
    if (mkdtemp(dir) == NULL || mkdtemp(shm) == NULL) {
        fprintf(stderr, "mkdtemp: %s\n", strerror(errno));
        return 2;
    }
    setenv("TEST_SCRATCH", dir, 1);
    setenv("TEST_SCRATCH_SHM", shm, 1);
    int failed = 0, ran = 0;
    for (struct test *t = tests; t < tests + test_count; t++) {
        if (!wanted(t, words, word)) continue;
        mkdir(dir, 0755);
        mkdir(shm, 0755);
        double start = now_seconds();
        int status = run_one(self, t);
        double ms = (now_seconds() - start) * 1000;
        ran++;
        if (WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == skipped)) {
            printf("%s %s %s %.0f ms\n", WEXITSTATUS(status) == 0 ? "ok  " : "skip", t->file, t->name, ms);
        } else {
            failed++;
            printf("FAIL %s %s: ", t->file, t->name);
            if (status == -1)
                printf("still running after %d s\n", limit_seconds);
            else if (WIFSIGNALED(status))
                printf("killed by signal %d, %s\n", WTERMSIG(status), strsignal(WTERMSIG(status)));
            else
                printf("exit %d\n", WEXITSTATUS(status));
        }
        fflush(stdout);
        remove_tree(dir);
        remove_tree(shm);
    }
    remove_tree(dir);
    remove_tree(shm);
    printf("%d tests, %d failed\n", ran, failed);
    return failed != 0 || ran == 0;
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "-1") == 0) {
        for (struct test *t = tests; t < tests + test_count; t++)
            if (strcmp(t->file, argv[2]) == 0 && strcmp(t->name, argv[3]) == 0) {
                t->run();
                return 0; // through exit: leaks are looked for there
            }
        return 2;
    }
    if (argc == 2 && strcmp(argv[1], "-l") == 0) {
        for (struct test *t = tests; t < tests + test_count; t++) printf("%s %s\n", t->file, t->name);
        return 0;
    }
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0) return 2;
    self[n] = 0;
    return run_all(self, argc - 1, argv + 1);
}
