// SPDX-License-Identifier: Apache-2.0

// Section 11 of mooncake.h: weights, with a tiny model that the tests write.

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "calls.h"

typedef mooncake_weight_import_t import;
typedef mooncake_loaded_t loaded;

enum { size_b = 100000 };

static mooncake_weight_t open_weights(mooncake_store_t s) {
    mooncake_weight_t w;
    OK(mooncake_weight_open(s, NULL, &w));
    return w;
}

static mooncake_operation_t start(mooncake_weight_t w, const char *model, const char *revision, const char *source) {
    import q = MOONCAKE_INIT(import);
    q.model_id = model, q.revision = revision, q.source = source;
    mooncake_operation_t op;
    OK(mooncake_weight_import(w, &q, &op));
    return op;
}

static void finish(mooncake_operation_t op, int want) {
    EQ(mooncake_operation_wait(op, 60000), 1);
    EQ(mooncake_operation_result(op), want);
}

// a_model imports the tiny model, with a tensor of this size, as org/m, revision 1.
static mooncake_weight_t model_of(mooncake_store_t s, size_t size) {
    mooncake_weight_t w = open_weights(s);
    const char *dir = path_in(scratch(), "model");
    write_model(dir, size);
    mooncake_operation_t op = start(w, "org/m", "1", dir);
    finish(op, 0);
    OK(mooncake_operation_free(op));
    return w;
}

static mooncake_weight_t a_model(mooncake_store_t s) { return model_of(s, size_b); }

TEST(import_with_progress_and_result) {
    mooncake_store_t s = open_memory();
    mooncake_weight_t w = open_weights(s);
    char dir[4096];
    snprintf(dir, sizeof dir, "%s/model", scratch());
    write_model(dir, size_b);
    mooncake_operation_t op = start(w, "org/m", "1", dir);
    mooncake_weight_progress_t p = MOONCAKE_INIT(mooncake_weight_progress_t);
    int last = 0;
    while (mooncake_operation_poll(op) == 0) {
        OK(mooncake_weight_import_progress(op, &p));
        CHECK(p.phase >= last && p.phase <= MOONCAKE_IMPORT_DONE);
        last = p.phase;
    }
    OK(mooncake_operation_result(op));
    OK(mooncake_weight_import_progress(op, &p));
    EQ(p.phase, MOONCAKE_IMPORT_DONE);
    EQ(p.files, 2);
    EQ(p.files_done, 2);
    CHECK(p.bytes > size_b && p.bytes_done == p.bytes && p.bytes_read >= p.bytes);
    char *json;
    OK(mooncake_weight_import_result(op, &json));
    HOLDS(json, "\"manifest\":{");
    HOLDS(json, "\"existed\":false");
    HOLDS(json, "model.safetensors");
    HOLDS(json, "\"files_resumed\":0");
    mooncake_free(json);
    OK(mooncake_operation_free(op));
    op = start(w, "org/m", "1", dir); // the same again
    finish(op, 0);
    OK(mooncake_weight_import_result(op, &json));
    HOLDS(json, "\"existed\":true");
    mooncake_free(json);
    OK(mooncake_operation_free(op));
    write_model(dir, size_b + 1); // with other bytes
    op = start(w, "org/m", "1", dir);
    finish(op, MOONCAKE_EEXISTS);
    json = (char *)1;
    EQ(mooncake_weight_import_result(op, &json), MOONCAKE_EEXISTS);
    CHECK(json == NULL);
    OK(mooncake_operation_free(op));
    OK(mooncake_weight_close(w));
}

TEST(import_options_and_errors) {
    mooncake_store_t s = open_memory();
    mooncake_weight_t w = open_weights(s);
    char dir[4096];
    snprintf(dir, sizeof dir, "%s/model", scratch());
    write_model(dir, 1000);
    fclose(fopen(path_in(dir, "notes.xyz"), "w"));
    fclose(fopen(path_in(dir, "code.py"), "w"));
    mooncake_operation_t op;
    import q = MOONCAKE_INIT(import);
    ERROR(mooncake_weight_import(w, &q, &op), MOONCAKE_EINVAL, "model_id is NULL");
    q.model_id = "org/m";
    ERROR(mooncake_weight_import(w, &q, &op), MOONCAKE_EINVAL, "revision is NULL");
    q.revision = "1";
    ERROR(mooncake_weight_import(w, &q, &op), MOONCAKE_EINVAL, "source is NULL");
    q.source = dir;
    const char *patterns[] = {"notes.*", NULL};
    q.include = patterns, q.include_count = 2;
    ERROR(mooncake_weight_import(w, &q, &op), MOONCAKE_EINVAL, "include[1]");
    q.include_count = SIZE_MAX;
    ERROR(mooncake_weight_import(w, &q, &op), MOONCAKE_EINVAL, "include");
    q.include = NULL, q.include_count = 1;
    ERROR(mooncake_weight_import(w, &q, &op), MOONCAKE_EINVAL, "include is NULL");
    q.include = patterns, q.include_count = 1;
    const char *exclude[] = {"config.*"};
    q.exclude = exclude, q.exclude_count = 1;
    q.unpinned = 1, q.parallel = 1;
    CHECK(symlink("/etc/passwd", path_in(dir, "hostname")) == 0);
    char source[5000];
    snprintf(source, sizeof source, "file://%s", dir);
    q.source = source;
    OK(mooncake_weight_import(w, &q, &op));
    finish(op, MOONCAKE_ESOURCE); // the link leaves the source
    OK(mooncake_operation_free(op));
    q.follow_links = 1;
    OK(mooncake_weight_import(w, &q, &op));
    finish(op, 0);
    char *json;
    OK(mooncake_weight_import_result(op, &json));
    HOLDS(json, "notes.xyz");
    HOLDS(json, "code.py");
    HOLDS(json, "hostname");
    HOLDS(json, "\"skipped\":[{\"name\":\"config.json\"");
    mooncake_free(json);
    OK(mooncake_operation_free(op));
    loaded l = MOONCAKE_INIT(loaded);
    OK(mooncake_weight_load(w, "org/m", "1", 0, &l));
    EQ(access(path_in(l.dir, "config.json"), F_OK), -1);
    EQ(access(path_in(l.dir, "code.py"), F_OK), 0);
    OK(mooncake_loaded_close(&l));
    op = start(w, "org/m", "2", path_in(scratch(), "nothing"));
    EQ(mooncake_operation_wait(op, 60000), 1);
    CHECK(mooncake_operation_result(op) < -1);
    OK(mooncake_operation_free(op));
    mkdir(path_in(scratch(), "empty"), 0755);
    op = start(w, "org/m", "2", path_in(scratch(), "empty"));
    finish(op, MOONCAKE_ESOURCE);
    OK(mooncake_operation_free(op));
    q.parallel = -1;
    OK(mooncake_weight_import(w, &q, &op));
    finish(op, MOONCAKE_EINVAL);
    OK(mooncake_operation_free(op));
    q.parallel = 0, q.model_id = "";
    OK(mooncake_weight_import(w, &q, &op));
    finish(op, MOONCAKE_EINVAL);
    OK(mooncake_operation_free(op));
    OK(mooncake_weight_close(w));
}

TEST(import_cancelled_and_aborted) {
    mooncake_store_t s = open_memory();
    mooncake_weight_t w = open_weights(s);
    const char *dir = path_in(scratch(), "model");
    write_model(dir, 30 * MIB);
    mooncake_operation_t op = start(w, "org/m", "1", dir);
    OK(mooncake_operation_cancel(op));
    EQ(mooncake_operation_wait(op, 60000), 1);
    int code = mooncake_operation_result(op);
    CHECK(code == 0 || code == MOONCAKE_ECANCELED);
    OK(mooncake_operation_free(op));
    code = mooncake_weight_abort(w, "org/m", "1");
    CHECK(code == 0 || code < -1);
    op = start(w, "org/m", "3", dir);
    OK(mooncake_operation_free(op)); // cancels it and waits
    OK(mooncake_weight_close(w));
}

// open_below counts the descriptors of this process for files in a directory.
static int open_below(const char *dir) {
    int n = 0;
    for (int fd = 0; fd < 1024; fd++) {
        char link[64], file[4096];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t size = readlink(link, file, sizeof file - 1);
        if (size > 0) file[size] = 0, n += strstr(file, dir) != NULL;
    }
    return n;
}

// Whoever frees an import that nobody else waits for may take its source away.
TEST(import_freed_lets_go_of_the_source) {
    mooncake_store_t s = open_memory();
    mooncake_weight_t w = open_weights(s);
    const char *dir = path_in(scratch(), "model");
    write_model(dir, 30 * MIB);
    for (int i = 0; i < 40; i++) {
        mooncake_operation_t op = start(w, "org/m", "1", dir);
        usleep((useconds_t)i * 250);
        OK(mooncake_operation_free(op));
        EQ(open_below(dir), 0);
        mooncake_weight_abort(w, "org/m", "1");
        mooncake_weight_delete(w, "org/m", "1");
    }
    OK(mooncake_weight_close(w));
}

TEST(check_manifest_list_usage) {
    mooncake_store_t s = open_memory();
    mooncake_weight_t w = a_model(s);
    char *json;
    OK(mooncake_weight_manifest(w, "org/m", "1", &json));
    HOLDS(json, "\"model_id\":\"org/m\"");
    HOLDS(json, "\"status\":\"READY\"");
    mooncake_free(json);
    OK(mooncake_weight_check(w, "org/m", "1", 0, &json));
    mooncake_free(json);
    OK(mooncake_weight_check(w, "org/m", "1", 1, &json));
    CHECK(json[0] == '{');
    mooncake_free(json);
    OK(mooncake_weight_list(w, NULL, &json));
    HOLDS(json, "org/m");
    mooncake_free(json);
    OK(mooncake_weight_list(w, "org/other", &json));
    STRING(json, "[]");
    mooncake_free(json);
    OK(mooncake_weight_usage(w, &json));
    HOLDS(json, "\"total_bytes\":");
    HOLDS(json, "\"revisions\":[{");
    mooncake_free(json);
    EQ(mooncake_weight_manifest(w, "org/m", "2", &json), MOONCAKE_ENOTFOUND);
    EQ(mooncake_weight_check(w, "org/m", "2", 1, &json), MOONCAKE_ENOTFOUND);
    CHECK(json == NULL);
    OK(mooncake_weight_close(w));
}

TEST(tensors_are_listed_read_and_viewed) {
    mooncake_store_t s = open_memory();
    mooncake_weight_t w = a_model(s);
    mooncake_tensor_list_t *list;
    OK(mooncake_weight_tensors(w, "org/m", "1", &list));
    EQ(list->count, 3);
    EQ(list->tensor_size, sizeof(mooncake_tensor_t));
    const mooncake_tensor_t *a = list->tensors, *b = a + 1;
    STRING(a->name, "a");
    STRING(a->dtype, "F32");
    STRING(a->file, "model.safetensors");
    EQ(a->dims, 2);
    EQ(a->shape[0], 2);
    EQ(a->shape[1], 3);
    EQ(a->size, 24);
    STRING(b->name, "b");
    EQ(b->dims, 1);
    EQ(b->size, size_b);
    EQ(b->offset, a->offset + 24);
    float f[6];
    EQ(mooncake_weight_read_tensor(w, "org/m", "1", "a", f, sizeof f), 24);
    for (int i = 0; i < 6; i++) CHECK(f[i] == (float)i);
    EQ(mooncake_weight_read_tensor(w, "org/m", "1", "a", f, 23), MOONCAKE_EINVAL);
    EQ(mooncake_weight_read_tensor(w, "org/m", "1", "none", f, sizeof f), MOONCAKE_ENOTENSOR);
    EQ(mooncake_weight_read_tensor(w, "org/m", "2", "a", f, sizeof f), MOONCAKE_ENOTFOUND);
    mooncake_view_t v = MOONCAKE_INIT(mooncake_view_t);
    OK(mooncake_weight_view_tensor(w, "org/m", "1", "b", &v));
    EQ(v.size, size_b);
    unsigned char *want = bytes(size_b, 9);
    EQ(memcmp(v.data, want, size_b), 0);
    mooncake_segment_t g;
    EQ(mooncake_view_segments(&v, &g, 1), 1);
    CHECK(g.data == v.data);
    mooncake_weight_file_t file;
    OK(mooncake_weight_open_file(w, "org/m", "1", "model.safetensors", &file));
    int64_t size = mooncake_weight_file_size(file);
    EQ(size, b->offset + size_b);
    unsigned char *got = malloc(size_b);
    EQ(mooncake_weight_file_read_at(file, got, size_b, b->offset), size_b);
    EQ(memcmp(got, want, size_b), 0);
    EQ(mooncake_weight_file_read_at(file, got, 100, (uint64_t)size - 10), 10); // fewer only at the end
    EQ(mooncake_weight_file_read_at(file, got, 100, (uint64_t)size), 0);
    EQ(mooncake_weight_file_read_at(file, got, 100, UINT64_MAX), 0);
    OK(mooncake_weight_file_close(file));
    EQ(mooncake_weight_file_size(file), MOONCAKE_EINVAL);
    EQ(mooncake_weight_open_file(w, "org/m", "1", "none", &file), MOONCAKE_ENOTFOUND);
    CHECK(file == NULL);
    free(got);
    mooncake_free(list);
    // Nothing in it, but there.
    mooncake_view_t empty = MOONCAKE_INIT(mooncake_view_t);
    OK(mooncake_weight_view_tensor(w, "org/m", "1", "empty", &empty));
    EQ(empty.size, 0);
    OK(mooncake_view_close(&empty));
    EQ(mooncake_weight_read_tensor(w, "org/m", "1", "empty", f, 4), 0);
    OK(mooncake_weight_close(w));
    mooncake_store_destroy(s);
    EQ(memcmp(v.data, want, size_b), 0); // a view outlives the handle
    free(want);
    OK(mooncake_view_close(&v));
}

TEST(load_links_files) {
    mooncake_store_t s = open_memory();
    mooncake_weight_t w = a_model(s);
    loaded l = MOONCAKE_INIT(loaded);
    OK(mooncake_weight_load(w, "org/m", "1", 1, &l));
    CHECK(l.handle != 0 && l.lock_fd >= 0);
    struct stat st;
    CHECK(stat(path_in(l.dir, "model.safetensors"), &st) == 0 && st.st_size > size_b);
    CHECK(stat(path_in(l.dir, "config.json"), &st) == 0 && st.st_size == 23);
    ERROR(mooncake_weight_delete(w, "org/m", "1"), MOONCAKE_ELEASED, "org/m");
    char dir[4096];
    snprintf(dir, sizeof dir, "%s", l.dir);
    OK(mooncake_loaded_close(&l));
    CHECK(l.handle == 0 && l.dir == NULL && l.lock_fd == -1);
    EQ(access(dir, F_OK), -1);
    EQ(mooncake_loaded_close(&l), MOONCAKE_EINVAL);
    EQ(mooncake_weight_load(w, "org/m", "2", 0, &l), MOONCAKE_ENOTFOUND);
    CHECK(l.handle == 0);
    OK(mooncake_weight_delete(w, "org/m", "1"));
    EQ(mooncake_weight_delete(w, "org/m", "1"), MOONCAKE_ENOTFOUND);
    OK(mooncake_weight_close(w));
}

TEST(loaded_detach_from_memory_is_EINVAL) {
    mooncake_store_t s = open_memory();
    mooncake_weight_t w = model_of(s, 3 * MIB);
    loaded l = MOONCAKE_INIT(loaded);
    OK(mooncake_weight_load(w, "org/m", "1", 0, &l));
    int fd = 9;
    EQ(mooncake_loaded_detach(&l, &fd), MOONCAKE_EINVAL);
    EQ(fd, -1);
    CHECK(l.handle != 0); // it stays loaded
    OK(mooncake_loaded_close(&l));
    OK(mooncake_weight_close(w));
}

// A program started by fork and exec keeps the directory, which goes when it ends.
TEST(loaded_detach_stays_for_who_inherits_it) {
    mooncake_store_t s = open_dir();
    mooncake_weight_options_t o = MOONCAKE_INIT(mooncake_weight_options_t);
    o.load_dir = path_in(scratch(), "loads");
    o.unfinished_ttl_ms = 1000;
    mooncake_weight_t w;
    OK(mooncake_weight_open(s, &o, &w));
    const char *model = path_in(scratch(), "model");
    write_model(model, 3 * MIB);
    mooncake_operation_t op = start(w, "org/m", "1", model);
    finish(op, 0);
    OK(mooncake_operation_free(op));
    loaded l = MOONCAKE_INIT(loaded);
    OK(mooncake_weight_load(w, "org/m", "1", 0, &l));
    HOLDS(l.dir, "loads/org--m--1");
    EQ(mooncake_loaded_hand_out(&l, "no such user"), MOONCAKE_EINVAL);
    HOLDS(mooncake_last_error(), "no such user");
    EQ(mooncake_loaded_hand_out(&l, NULL), MOONCAKE_EINVAL);
    OK(mooncake_loaded_hand_out(&l, "0")); // who may read everything
    char dir[4096];
    snprintf(dir, sizeof dir, "%s", l.dir);
    int fd = -1;
    OK(mooncake_loaded_detach(&l, &fd));
    CHECK(fd >= 0 && l.handle == 0);
    EQ(fcntl(fd, F_GETFD), 0); // survives exec
    int out[2];
    CHECK(pipe(out) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(out[1], 1);
        execlp("ls", "ls", dir, (char *)NULL);
        _exit(127);
    }
    close(out[1]);
    char text[1000] = "";
    size_t n = 0;
    ssize_t r;
    while ((r = read(out[0], text + n, sizeof text - n - 1)) > 0) n += (size_t)r;
    int status;
    waitpid(pid, &status, 0);
    EQ(status, 0);
    HOLDS(text, "config.json");
    HOLDS(text, "model.safetensors");
    EQ(mooncake_loaded_close(&l), MOONCAKE_EINVAL);
    close(fd);
    close(out[0]);
    OK(mooncake_weight_close(w));
}

// The tenant of a setup and the default one of an open are the same, and so are their revisions.
TEST(weight_handles_of_setup_and_open_share) {
    mooncake_store_t s = open_memory(), t = mooncake_store_create();
    OK(mooncake_store_setup(t, "h", "", 0, 0, "tcp", "", "embedded"));
    mooncake_weight_t a = a_model(s), b;
    mooncake_weight_options_t o = MOONCAKE_INIT(mooncake_weight_options_t);
    o.load_dir = "/somewhere/else";
    EQ(mooncake_weight_open(t, &o, &b), MOONCAKE_EINVAL);
    OK(mooncake_weight_open(t, NULL, &b));
    loaded l = MOONCAKE_INIT(loaded);
    OK(mooncake_weight_load(b, "org/m", "1", 0, &l));
    EQ(mooncake_weight_delete(a, "org/m", "1"), MOONCAKE_ELEASED);
    OK(mooncake_loaded_close(&l));
    OK(mooncake_weight_close(a));
    OK(mooncake_weight_close(b));
}

TEST(weight_handles_share_and_keep_the_pool) {
    mooncake_store_t s = open_memory();
    mooncake_weight_t a = a_model(s), b, c;
    OK(mooncake_weight_open(s, NULL, &b));
    mooncake_weight_options_t o = MOONCAKE_INIT(mooncake_weight_options_t);
    o.load_dir = "/somewhere/else";
    ERROR(mooncake_weight_open(s, &o, &c), MOONCAKE_EINVAL, "other options");
    CHECK(c == NULL);
    o = MOONCAKE_INIT(mooncake_weight_options_t), o.unfinished_ttl_ms = UINT64_MAX;
    EQ(mooncake_weight_open(s, &o, &c), MOONCAKE_EINVAL);
    mooncake_store_destroy(s); // the weight handles keep the pool
    char *json;
    OK(mooncake_weight_check(b, "org/m", "1", 1, &json));
    mooncake_free(json);
    s = open_memory(); // the same pool
    loaded l = MOONCAKE_INIT(loaded);
    OK(mooncake_weight_load(a, "org/m", "1", 0, &l));
    OK(mooncake_weight_close(a));
    OK(mooncake_weight_check(b, "org/m", "1", 0, &json));
    mooncake_free(json);
    OK(mooncake_weight_close(b)); // the last: gives up what is loaded
    EQ(access(l.dir, F_OK), -1);
    int code = mooncake_loaded_close(&l);
    CHECK(code == 0 || code == MOONCAKE_EINVAL || code == MOONCAKE_EUNAVAILABLE);
    EQ(mooncake_weight_close(b), MOONCAKE_EINVAL);
    OK(mooncake_weight_open(s, NULL, &c));
    OK(mooncake_weight_check(c, "org/m", "1", 1, &json)); // the objects stayed in the pool
    mooncake_free(json);
    OK(mooncake_weight_close(c));
}

TEST(check_finds_damage) {
    mooncake_store_t s = open_memory();
    mooncake_weight_t w = a_model(s);
    char *json;
    OK(mooncake_weight_manifest(w, "org/m", "1", &json));
    // The object of the last file, whose key the manifest tells.
    char *key = strstr(strstr(json, "model.safetensors"), "\"key\":\"") + 7;
    *strchr(key, '"') = 0;
    OK(mooncake_store_remove(s, key, 1));
    mooncake_free(json);
    json = NULL;
    EQ(mooncake_weight_check(w, "org/m", "1", 0, &json), MOONCAKE_EDAMAGED);
    HOLDS(json, "model.safetensors"); // the report is there
    mooncake_free(json);
    EQ(mooncake_weight_check(w, "org/m", "1", 1, &json), MOONCAKE_EDAMAGED);
    mooncake_free(json);
    loaded l = MOONCAKE_INIT(loaded);
    EQ(mooncake_weight_load(w, "org/m", "1", 0, &l), MOONCAKE_EDAMAGED);
    OK(mooncake_weight_close(w));
}

// Closing the last handle ends what runs, and whoever waits for it learns.
TEST(close_ends_an_import_that_runs) {
    mooncake_store_t s = open_memory();
    mooncake_weight_t w = open_weights(s);
    char dir[4096];
    snprintf(dir, sizeof dir, "%s/model", scratch());
    write_model(dir, 30 * MIB);
    mooncake_operation_t op = start(w, "org/m", "1", dir);
    OK(mooncake_weight_close(w));
    mooncake_store_destroy(s);
    EQ(mooncake_operation_wait(op, 60000), 1);
    int code = mooncake_operation_result(op);
    CHECK(code == 0 || code == MOONCAKE_ECANCELED || code == MOONCAKE_EUNAVAILABLE);
    OK(mooncake_operation_free(op));
}
