// SPDX-License-Identifier: Apache-2.0

// Section 10 of mooncake.h: what the store holds and does.

#include <poll.h>
#include <pthread.h>

#include "test.h"

TEST(usage_counts_what_is_there) {
    mooncake_store_t s = open_memory(), t;
    OK(mooncake_store_tenant(s, "other", &t));
    mooncake_put_options_t o = MOONCAKE_INIT(mooncake_put_options_t);
    o.type = MOONCAKE_TYPE_TENSOR, o.hard_pin = 1, o.group = "g", o.group_size = 1;
    OK(mooncake_store_put_object(s, "k", 1, "12345", 5, &o));
    put(t, "k", 1000, 1); // of all tenants
    OK(mooncake_store_link(s, "link", 4, "k", 1, NULL));
    mooncake_writer_t w;
    OK(mooncake_store_create_object(s, "w", 1, 5000, NULL, &w));
    mooncake_usage_t u = MOONCAKE_INIT(mooncake_usage_t);
    OK(mooncake_store_usage(s, &u));
    EQ(u.objects[MOONCAKE_TYPE_TENSOR], 2);
    EQ(u.objects[0], 1);
    EQ(u.memory_count[0], 1);
    EQ(u.memory_bytes[0], 1000);
    EQ(u.hard_pinned, 1);
    EQ(u.groups, 1);
    CHECK(u.reserved_bytes >= 5000);
    EQ(u.memory_budget, 64 * MIB);
    CHECK(u.memory_taken > 0 && u.data_capacity > 0 && u.data_free > 0 && u.largest_free > 0);
    EQ(u.growing, 0);
    OK(mooncake_writer_abort(w));
    OK(mooncake_store_usage(s, &u));
    EQ(u.reserved_bytes, 0);
}

TEST(counters_count_once) {
    mooncake_store_t s = open_memory();
    put(s, "k", 100, 1);
    check_bytes(s, "k", 100, 1);
    EQ(mooncake_store_get_size(s, "no"), MOONCAKE_ENOTFOUND);
    char b[1];
    EQ(mooncake_store_get_into(s, "no", b, 1), MOONCAKE_ENOTFOUND);
    OK(mooncake_store_remove(s, "k", 1));
    mooncake_counters_t c = MOONCAKE_INIT(mooncake_counters_t);
    OK(mooncake_store_counters(s, &c));
    EQ(c.puts, 1);
    EQ(c.put_bytes, 100);
    EQ(c.memory_hits, 1);
    EQ(c.memory_hit_bytes, 100);
    CHECK(c.misses >= 1);
    EQ(c.removed, 1);
    EQ(c.ssd_hits + c.evictions + c.corrupt_records, 0);
}

TEST(room_of_both_tiers) {
    mooncake_store_t s = open_memory();
    put(s, "k", 10 * MIB, 1);
    int64_t free_bytes, evictable;
    OK(mooncake_store_room(s, 0, &free_bytes, &evictable));
    CHECK(free_bytes > 40 * (int64_t)MIB && evictable >= 10 * (int64_t)MIB);
    OK(mooncake_store_set_pins(s, "k", 1, 1, -1));
    OK(mooncake_store_room(s, 0, &free_bytes, &evictable));
    EQ(evictable, 0);
    EQ(mooncake_store_room(s, 1, &free_bytes, &evictable), MOONCAKE_EMODE); // there is no such tier
    ERROR(mooncake_store_room(s, 2, &free_bytes, &evictable), MOONCAKE_EINVAL, "tier is 2");
}

TEST(explain_is_JSON) {
    mooncake_store_t s = open_memory();
    char *json;
    OK(mooncake_store_explain(s, "k", 1, &json));
    STRING(json, "[]");
    mooncake_free(json);
    put(s, "first", MIB, 1);
    for (int i = 0; i < 100; i++) {
        char key[16];
        snprintf(key, sizeof key, "n%d", i);
        put(s, key, MIB, 1);
    }
    OK(mooncake_store_explain(s, "first", MOONCAKE_NUL, &json));
    HOLDS(json, "\"tier\":\"memory\"");
    HOLDS(json, "\"reason\":");
    mooncake_free(json);
}

TEST(list_walks_by_prefix) {
    mooncake_store_t s = open_memory();
    enum { n = 1000 };
    mooncake_put_options_t o = MOONCAKE_INIT(mooncake_put_options_t);
    o.group = "the group", o.group_size = MOONCAKE_NUL;
    for (int i = 0; i < n; i++) {
        char key[16];
        snprintf(key, sizeof key, "a/%d", i);
        OK(mooncake_store_put_object(s, key, MOONCAKE_NUL, key, i < 16 ? (size_t)i + 1 : sizeof key, &o));
    }
    put(s, "b/1", 1, 1);
    mooncake_list_t list;
    OK(mooncake_store_list(s, "a/", 2, &list));
    static bool seen[n];
    char group[32];
    mooncake_object_info_t info = MOONCAKE_INIT(mooncake_object_info_t);
    info.group = group, info.group_capacity = sizeof group;
    int found = 0, r;
    while ((r = mooncake_list_next(list, &info)) == 1) {
        CHECK(info.key_size >= 3 && memcmp(info.key, "a/", 2) == 0);
        char digits[8] = "";
        memcpy(digits, info.key + 2, info.key_size - 2);
        int i = atoi(digits);
        CHECK(i >= 0 && i < n && !seen[i]);
        seen[i] = true;
        EQ(info.size, i < 16 ? i + 1 : 16);
        CHECK(info.group == group && info.group_capacity == sizeof group); // stat's, not touched
        found++;
    }
    EQ(r, 0);
    EQ(found, n);
    EQ(mooncake_list_next(list, &info), 0);
    OK(mooncake_list_close(list));
    EQ(mooncake_list_close(list), MOONCAKE_EINVAL);
    EQ(mooncake_list_next(list, &info), MOONCAKE_EINVAL);
    OK(mooncake_store_list(s, "", 0, &list)); // all, and closed in the middle
    EQ(mooncake_list_next(list, &info), 1);
    OK(mooncake_list_close(list));
    mooncake_list_t last;
    OK(mooncake_store_list(s, "zzz", 3, &last));
    EQ(mooncake_list_next(last, &info), 0);
    OK(mooncake_list_close(last));
}

TEST(list_of_a_closed_store_ends) {
    mooncake_store_t s = open_memory();
    for (int i = 0; i < 2000; i++) {
        char key[16];
        snprintf(key, sizeof key, "%d", i);
        put(s, key, 1, 1);
    }
    mooncake_list_t list;
    OK(mooncake_store_list(s, "", 0, &list));
    mooncake_store_destroy(s);
    mooncake_object_info_t info = MOONCAKE_INIT(mooncake_object_info_t);
    int r, n = 0;
    while ((r = mooncake_list_next(list, &info)) == 1) n++;
    CHECK(r == 0 || r == MOONCAKE_EUNAVAILABLE);
    CHECK(n <= 2000);
    OK(mooncake_list_close(list));
}

static bool readable(int fd, int timeout_ms) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, timeout_ms) == 1;
}

TEST(events_in_order_with_an_eventfd) {
    mooncake_store_t s = open_memory(), t;
    OK(mooncake_store_tenant(s, "other", &t));
    mooncake_events_t events;
    OK(mooncake_store_events(s, 100, &events));
    int fd = mooncake_events_eventfd(events);
    CHECK(fd >= 0);
    EQ(readable(fd, 0), false);
    mooncake_event_t e = MOONCAKE_INIT(mooncake_event_t);
    EQ(mooncake_events_next(events, 0, &e), 0);
    EQ(mooncake_events_next(events, 20, &e), 0);
    mooncake_put_options_t o = MOONCAKE_INIT(mooncake_put_options_t);
    o.type = MOONCAKE_TYPE_KVCACHE;
    OK(mooncake_store_put_object(s, "a\0b", 3, "12345", 5, &o));
    put(t, "k", 10, 1);
    OK(mooncake_store_remove(t, "k", 1));
    CHECK(readable(fd, 10000));
    EQ(mooncake_events_next(events, 10000, &e), 1);
    EQ(e.kind, MOONCAKE_EVENT_PUT);
    EQ(e.type, MOONCAKE_TYPE_KVCACHE);
    EQ(e.size, 5);
    EQ(e.key_size, 3);
    EQ(memcmp(e.key, "a\0b", 3), 0);
    STRING(e.tenant, "default");
    EQ(mooncake_events_next(events, 10000, &e), 1);
    STRING(e.tenant, "other");
    EQ(mooncake_events_next(events, 10000, &e), 1);
    EQ(e.kind, MOONCAKE_EVENT_REMOVED);
    EQ(mooncake_events_next(events, 0, &e), 0);
    EQ(readable(fd, 0), false);
    OK(mooncake_events_close(events));
    EQ(mooncake_events_close(events), MOONCAKE_EINVAL);
}

TEST(events_dropped_are_counted) {
    mooncake_store_t s = open_memory();
    mooncake_events_t events;
    OK(mooncake_store_events(s, 4, &events));
    for (int i = 0; i < 100; i++) {
        char key[16];
        snprintf(key, sizeof key, "%d", i);
        put(s, key, 1, 1);
    }
    uint64_t got = 0, dropped = 0;
    mooncake_event_t e = MOONCAKE_INIT(mooncake_event_t);
    for (int round = 0; round < 2; round++) { // what was dropped stands before the next event
        while (mooncake_events_next(events, 200, &e) == 1) {
            if (e.kind == MOONCAKE_EVENT_DROPPED)
                dropped += e.size;
            else
                got++;
        }
        if (round == 0) put(s, "last", 1, 1);
    }
    EQ(got + dropped, 101);
    CHECK(dropped > 0);
    OK(mooncake_events_close(events));
}

TEST(events_of_a_closed_store) {
    mooncake_store_t s = open_memory();
    mooncake_events_t events;
    OK(mooncake_store_events(s, 100, &events));
    put(s, "k", 10, 1);
    mooncake_store_destroy(s);
    mooncake_event_t e = MOONCAKE_INIT(mooncake_event_t);
    EQ(mooncake_events_next(events, 10000, &e), 1); // what is left
    CHECK(readable(mooncake_events_eventfd(events), 10000));
    EQ(mooncake_events_next(events, 10000, &e), MOONCAKE_EUNAVAILABLE);
    EQ(mooncake_events_next(events, -1, &e), MOONCAKE_EUNAVAILABLE);
    CHECK(readable(mooncake_events_eventfd(events), 0));
    OK(mooncake_events_close(events));
}

static void *wait_for_ever(void *events) {
    mooncake_event_t e = MOONCAKE_INIT(mooncake_event_t);
    return (void *)(intptr_t)mooncake_events_next(events, -1, &e);
}

TEST(events_close_wakes_who_waits) {
    mooncake_store_t s = open_memory();
    mooncake_events_t events;
    OK(mooncake_store_events(s, 100, &events));
    pthread_t t;
    pthread_create(&t, NULL, wait_for_ever, events);
    double end = now_seconds() + 0.05;
    while (now_seconds() < end) {
        put(s, "k", 1, 1);
        OK(mooncake_store_remove(s, "k", 1));
    }
    void *r;
    OK(mooncake_events_close(events));
    pthread_join(t, &r);
    CHECK((intptr_t)r == 1 || (intptr_t)r == MOONCAKE_EINVAL);
    OK(mooncake_store_events(s, 100, &events));
    EQ(mooncake_store_events(s, 0, &events), MOONCAKE_EINVAL);
    EQ(mooncake_store_events(s, (1 << 20) + 1, &events), MOONCAKE_EINVAL);
}
