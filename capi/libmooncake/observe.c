// SPDX-License-Identifier: Apache-2.0

// Section 10 of mooncake.h: what the store holds and does.

#include <string.h>

#include "check.h"

int mooncake_store_usage(mooncake_store_t store, mooncake_usage_t *usage) {
    ENTER(store);
    STRUCT_OUT(usage);
    mooncake_usage_t full = {.struct_size = sizeof full};
    int result = mc_usage(mc_err(), (uintptr_t)store, &full);
    if (result == 0) mc_out(usage, &full, sizeof full);
    return result;
}

int mooncake_store_counters(mooncake_store_t store, mooncake_counters_t *counters) {
    ENTER(store);
    STRUCT_OUT(counters);
    mooncake_counters_t full = {.struct_size = sizeof full};
    int result = mc_counters(mc_err(), (uintptr_t)store, &full);
    if (result == 0) mc_out(counters, &full, sizeof full);
    return result;
}

int mooncake_store_room(mooncake_store_t store, int tier, int64_t *free_out, int64_t *evictable_out) {
    ENTER(store);
    NOTNULL(free_out);
    NOTNULL(evictable_out);
    if (tier != 0 && tier != 1) return mc_fail(MOONCAKE_EINVAL, "%s: tier is %d", __func__, tier);
    return mc_room_of(mc_err(), (uintptr_t)store, tier, free_out, evictable_out);
}

int mooncake_store_explain(mooncake_store_t store, const char *key, size_t key_size, char **json_out) {
    ENTER(store);
    KEY(key, key_size);
    NOTNULL(json_out);
    return mc_explain(mc_err(), (uintptr_t)store, (char *)key, key_size, json_out);
}

int mooncake_store_list(mooncake_store_t store, const char *prefix, size_t prefix_size, mooncake_list_t *list_out) {
    ENTER(store);
    KEY(prefix, prefix_size);
    NOTNULL(list_out);
    return mc_list(mc_err(), (uintptr_t)store, (char *)prefix, prefix_size, (uintptr_t *)list_out);
}

int mooncake_list_next(mooncake_list_t list, mooncake_object_info_t *info) {
    ENTER(list);
    STRUCT_OUT(info);
    STRUCT_IN(mooncake_object_info_t, full, info); // with the place for the group
    if (full.group != NULL) MEMORY(full.group, full.group_capacity);
    int result = mc_list_next(mc_err(), (uintptr_t)list, &full);
    if (result == 1) mc_out(info, &full, sizeof full);
    return result;
}

int mooncake_list_close(mooncake_list_t list) {
    ENTER(list);
    return mc_list_close(mc_err(), (uintptr_t)list);
}

int mooncake_store_events(mooncake_store_t store, size_t buffer, mooncake_events_t *events_out) {
    ENTER(store);
    NOTNULL(events_out);
    if (buffer < 1 || buffer > 1 << 20)
        return mc_fail(MOONCAKE_EINVAL, "%s: buffer is %zu, not 1 to %d", __func__, buffer, 1 << 20);
    return mc_events(mc_err(), (uintptr_t)store, buffer, (uintptr_t *)events_out);
}

int mooncake_events_next(mooncake_events_t events, int64_t timeout_ms, mooncake_event_t *event) {
    ENTER(events);
    STRUCT_OUT(event);
    mooncake_event_t full = {.struct_size = sizeof full};
    int result = mc_events_next(mc_err(), (uintptr_t)events, timeout_ms, &full);
    if (result == 1) mc_out(event, &full, sizeof full);
    return result;
}

int mooncake_events_eventfd(mooncake_events_t events) {
    ENTER(events);
    return mc_events_eventfd(mc_err(), (uintptr_t)events);
}

int mooncake_events_close(mooncake_events_t events) {
    ENTER(events);
    return mc_events_close(mc_err(), (uintptr_t)events);
}
