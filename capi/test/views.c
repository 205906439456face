// SPDX-License-Identifier: Apache-2.0

// Section 7 of mooncake.h: views, files, writers.

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test.h"

typedef mooncake_view_t view;
typedef mooncake_file_t file;

// A 64th of the memory: 16 MiB of the default.
TEST(view_is_one_piece_up_to_16_MiB) {
    mooncake_store_t s;
    OK(mooncake_store_open(NULL, &s));
    static const size_t sizes[] = {1, 4096, 100000, 16 * MIB};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        char key[8];
        snprintf(key, sizeof key, "k%zu", i);
        put(s, key, sizes[i], (unsigned)i);
        view v = MOONCAKE_INIT(view);
        OK(mooncake_store_view(s, key, MOONCAKE_NUL, 0, &v));
        EQ(v.size, sizes[i]);
        EQ(v.segment_count, 1);
        CHECK(v.data != NULL && v.handle != 0);
        unsigned char *want = bytes(sizes[i], (unsigned)i);
        EQ(memcmp(v.data, want, sizes[i]), 0);
        free(want);
        mooncake_segment_t g;
        EQ(mooncake_view_segments(&v, &g, 1), 1);
        CHECK(g.data == v.data && g.size == v.size);
        OK(mooncake_view_close(&v));
        EQ(v.handle, 0);
        ERROR(mooncake_view_close(&v), MOONCAKE_EINVAL, "no such handle");
        EQ(mooncake_view_segments(&v, &g, 1), MOONCAKE_EINVAL);
    }
    view v = MOONCAKE_INIT(view);
    EQ(mooncake_store_view(s, "no", 2, 0, &v), MOONCAKE_ENOTFOUND);
    EQ(v.handle, 0);
}

TEST(view_of_more_has_segments) {
    mooncake_store_t s = open_memory();
    size_t size = 40 * MIB;
    put(s, "k", size, 1);
    view v = MOONCAKE_INIT(view);
    OK(mooncake_store_view(s, "k", 1, MOONCAKE_VERIFY_ALWAYS, &v));
    CHECK(v.segment_count >= 20 && v.data == NULL);
    mooncake_segment_t g[64];
    EQ(mooncake_view_segments(&v, NULL, 0), v.segment_count);
    EQ(mooncake_view_segments(&v, g, 1), v.segment_count);
    EQ(mooncake_view_segments(&v, g, COUNT(g)), v.segment_count);
    unsigned char *want = bytes(size, 1), *at = want;
    for (size_t i = 0; i < v.segment_count; i++) {
        EQ(memcmp(g[i].data, at, g[i].size), 0);
        at += g[i].size;
    }
    EQ(at - want, size);
    free(want);
    EQ(mooncake_view_segments(&v, NULL, 1), MOONCAKE_EINVAL);
    OK(mooncake_view_close(&v));
}

// A view keeps its bytes, whatever happens to the key and the store.
TEST(view_outlives_key_and_store) {
    mooncake_store_t s = open_memory();
    put(s, "k", 5000, 1);
    view v = MOONCAKE_INIT(view);
    OK(mooncake_store_view(s, "k", 1, 0, &v));
    OK(mooncake_store_remove(s, "k", 1));
    unsigned char *want = bytes(5000, 1);
    for (int i = 0; i < 200; i++) {
        char key[16];
        snprintf(key, sizeof key, "n%d", i);
        put(s, key, MIB, 2);
    }
    EQ(memcmp(v.data, want, 5000), 0);
    mooncake_store_destroy(s);
    EQ(memcmp(v.data, want, 5000), 0);
    free(want);
    OK(mooncake_view_close(&v));
}

TEST(view_needs_room_for_its_handle) {
    mooncake_store_t s = open_memory();
    put(s, "k", 10, 1);
    view v = MOONCAKE_INIT(view);
    v.struct_size = sizeof v.struct_size;
    ERROR(mooncake_store_view(s, "k", 1, 0, &v), MOONCAKE_EINVAL, "struct_size");
    mooncake_object_info_t info = MOONCAKE_INIT(mooncake_object_info_t);
    OK(mooncake_store_stat(s, "k", 1, &info));
    EQ(info.readers, 0);
    v.struct_size += sizeof v.handle;
    OK(mooncake_store_view(s, "k", 1, 0, &v));
    OK(mooncake_view_close(&v));
}

TEST(batch_view_opens_what_is_there) {
    mooncake_store_t s = open_memory();
    put(s, "a", 10, 1);
    put(s, "b", 20 * MIB, 2);
    struct later { // of a version with more fields
        view v;
        char more[64];
    } v[3];
    memset(v, 0xee, sizeof v);
    int r[3];
    OK(mooncake_store_batch_view(s, "a\0no\0b", 6, NULL, 3, 0, &v[0].v, sizeof v[0], r));
    OK(r[0]);
    EQ(r[1], MOONCAKE_ENOTFOUND);
    OK(r[2]);
    EQ(v[0].v.struct_size, sizeof v[0]);
    EQ(v[0].v.size, 10);
    EQ(v[0].more[63], 0);
    EQ(v[1].v.handle, 0);
    EQ(v[2].v.size, 20 * MIB);
    CHECK(v[2].v.segment_count > 1);
    OK(mooncake_view_close(&v[0].v));
    OK(mooncake_view_close(&v[2].v));
    struct earlier {
        size_t struct_size;
        uint64_t handle;
    } w;
    OK(mooncake_store_batch_view(s, "a", 1, NULL, 1, 0, (view *)&w, sizeof w, r));
    CHECK(w.handle != 0);
    OK(mooncake_view_close((view *)&w));
    EQ(mooncake_store_batch_view(s, "a", 1, NULL, 1, 0, &v[0].v, 8, r), MOONCAKE_EINVAL);
    EQ(mooncake_store_batch_view(s, "a", 1, NULL, 1, 0, &v[0].v, 17, r), MOONCAKE_EINVAL);
}

static void check_file(file *f, size_t size, unsigned seed) {
    EQ(f->size, size);
    struct stat st;
    CHECK(stat(f->path, &st) == 0);
    EQ(st.st_size, size);
    unsigned char *want = bytes(size, seed), *got = malloc(size);
    int fd = open(f->path, O_RDONLY);
    CHECK(fd >= 0 && read(fd, got, size) == (ssize_t)size);
    close(fd);
    EQ(memcmp(got, want, size), 0);
    free(want);
    free(got);
}

TEST(file_in_memory) {
    mooncake_store_t s = open_memory();
    put(s, "small", 100, 1);
    put(s, "k", 2 * MIB, 1);
    file f = MOONCAKE_INIT(file);
    EQ(mooncake_store_file(s, "small", 5, 0, &f), MOONCAKE_ENOTSUPPORTED);
    EQ(f.handle, 0);
    EQ(mooncake_store_file(s, "no", 2, 0, &f), MOONCAKE_ENOTFOUND);
    OK(mooncake_store_file(s, "k", 1, 0, &f));
    EQ(f.tier, 0);
    check_file(&f, 2 * MIB, 1);
    OK(mooncake_file_close(&f));
    EQ(f.handle, 0);
    CHECK(f.path == NULL);
    EQ(mooncake_file_close(&f), MOONCAKE_EINVAL);
}

TEST(file_of_its_own_on_ssd) {
    mooncake_store_t s = open_dir();
    mooncake_put_options_t o = MOONCAKE_INIT(mooncake_put_options_t);
    o.own_file = 1, o.durable = 1, o.type = MOONCAKE_TYPE_WEIGHT;
    unsigned char *p = bytes(3 * MIB, 1);
    OK(mooncake_store_put_object(s, "k", 1, p, 3 * MIB, &o));
    free(p);
    file f = MOONCAKE_INIT(file);
    OK(mooncake_store_file(s, "k", 1, MOONCAKE_VERIFY_ALWAYS, &f));
    EQ(f.temporary, 0);
    check_file(&f, 3 * MIB, 1);
    OK(mooncake_file_close(&f));
    // One that somebody writes to while it is out is tampered with.
    OK(mooncake_store_file(s, "k", 1, 0, &f));
    chmod(f.path, 0644);
    int fd = open(f.path, O_WRONLY);
    CHECK(fd >= 0 && pwrite(fd, "x", 1, 5) == 1);
    close(fd);
    EQ(mooncake_file_close(&f), MOONCAKE_ETAMPERED);
    EQ(f.handle, 0);
}

TEST(writer_in_order_and_anywhere) {
    mooncake_store_t s = open_memory();
    size_t size = 20 * MIB + 5;
    unsigned char *p = bytes(size, 3);
    mooncake_writer_t w;
    OK(mooncake_store_create_object(s, "k", 1, size, NULL, &w));
    for (size_t at = 0; at < size; at += 3 * MIB) {
        size_t n = size - at < 3 * MIB ? size - at : 3 * MIB;
        OK(mooncake_writer_write(w, p + at, n));
    }
    EQ(mooncake_store_is_exist(s, "k"), 0);
    OK(mooncake_writer_commit(w));
    check_bytes(s, "k", size, 3);
    EQ(mooncake_writer_commit(w), MOONCAKE_EINVAL);
    EQ(mooncake_writer_write(w, p, 1), MOONCAKE_EINVAL);
    EQ(mooncake_writer_abort(w), MOONCAKE_EINVAL);
    OK(mooncake_store_create_object(s, "r", 1, 100, NULL, &w));
    OK(mooncake_writer_write_at(w, 50, p + 50, 50));
    OK(mooncake_writer_write_at(w, 0, p, 50));
    OK(mooncake_writer_commit(w));
    check_bytes(s, "r", 100, 3);
    free(p);
}

TEST(writer_errors) {
    mooncake_store_t s = open_memory();
    mooncake_writer_t w = (void *)1;
    put(s, "there", 1, 1);
    EQ(mooncake_store_create_object(s, "there", 5, 10, NULL, &w), MOONCAKE_EEXISTS);
    CHECK(w == NULL);
    EQ(mooncake_store_create_object(s, "k", 1, 0, NULL, &w), MOONCAKE_EINVAL);
    EQ(mooncake_store_create_object(s, "k", 1, UINT64_MAX, NULL, &w), MOONCAKE_EINVAL);
    EQ(mooncake_store_create_object(s, "k", 1, INT64_MAX, NULL, &w), MOONCAKE_ENOSPACE);
    OK(mooncake_store_create_object(s, "k", 1, 10, NULL, &w));
    CHECK(mooncake_writer_write(w, "12345678901", 11) < -1); // more than there is to be
    EQ(mooncake_writer_write_at(w, 10, "x", 1), MOONCAKE_EINVAL);
    EQ(mooncake_writer_write_at(w, UINT64_MAX, "x", 1), MOONCAKE_EINVAL);
    OK(mooncake_writer_write_at(w, 0, NULL, 0));
    EQ(mooncake_writer_commit(w), MOONCAKE_EINCOMPLETE);
    EQ(mooncake_store_is_exist(s, "k"), 0);
    OK(mooncake_store_create_object(s, "k", 1, 10, NULL, &w)); // the key is free again
    OK(mooncake_writer_abort(w));
    EQ(mooncake_writer_abort(w), MOONCAKE_EINVAL);
    mooncake_put_options_t o = MOONCAKE_INIT(mooncake_put_options_t);
    o.replace = 1;
    OK(mooncake_store_create_object(s, "there", 5, 2, &o, &w));
    EQ(mooncake_store_get_size(s, "there"), 1); // the old one until the commit
    OK(mooncake_writer_write(w, "ab", 2));
    OK(mooncake_writer_commit(w));
    EQ(mooncake_store_get_size(s, "there"), 2);
}

static mooncake_writer_t shared;
static unsigned char *source;
enum { piece = 64 << 10, pieces = 64 };

static void *write_pieces(void *of) {
    for (intptr_t i = (intptr_t)of; i < pieces; i += 4)
        OK(mooncake_writer_write_at(shared, (uint64_t)i * piece, source + i * piece, piece));
    return NULL;
}

TEST(writer_from_several_threads) {
    mooncake_store_t s = open_memory();
    source = bytes(piece * pieces, 4);
    OK(mooncake_store_create_object(s, "k", 1, piece * pieces, NULL, &shared));
    pthread_t t[4];
    for (intptr_t i = 0; i < 4; i++) pthread_create(&t[i], NULL, write_pieces, (void *)i);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    OK(mooncake_writer_commit(shared));
    check_bytes(s, "k", piece * pieces, 4);
    free(source);
}
