# SPDX-License-Identifier: Apache-2.0
"""What the store tells about itself and its objects."""

from __future__ import annotations

import ctypes
import json
from dataclasses import dataclass, fields
from typing import Any, List, Optional, Tuple

from . import _native
from .key import decode
from .options import ObjectType


@dataclass(frozen=True)
class ObjectInfo:
    """A committed object. lease_ms, readers and group come from Store.stat only."""

    key: str
    nbytes: int
    type: ObjectType
    generation: int
    digest: int
    """XXH64 of the object's checksums, or of its bytes up to 64 KiB."""
    group: Optional[str]
    hard_pin: bool
    soft_pin_ms: int
    """What is left of the soft pin, 0 for none."""
    durable: bool
    link: bool
    in_memory: bool
    on_ssd: bool
    lease_ms: int
    """What is left of the lease."""
    readers: int
    """Reads, views and files that are open now."""


def object_info(native: _native.ObjectInfo, key: bytes, group: bytes = b"") -> ObjectInfo:
    return ObjectInfo(
        key=decode(key),
        nbytes=native.size,
        type=ObjectType(native.type),
        generation=native.generation,
        digest=native.digest,
        group=decode(group) if group else None,
        hard_pin=bool(native.hard_pin),
        soft_pin_ms=native.soft_pin_ms,
        durable=bool(native.durable),
        link=bool(native.link),
        in_memory=bool(native.in_memory),
        on_ssd=bool(native.on_ssd),
        lease_ms=native.lease_ms,
        readers=native.readers,
    )


@dataclass(frozen=True)
class Usage:
    """What a pool holds, of all tenants. Tuples have one entry for each ObjectType."""

    objects: Tuple[int, ...]
    """Links included."""
    memory_count: Tuple[int, ...]
    memory_bytes: Tuple[int, ...]
    ssd_count: Tuple[int, ...]
    ssd_bytes: Tuple[int, ...]
    hard_pinned: int
    groups: int
    reserved_bytes: int
    """Of unfinished puts."""
    in_use_bytes: int
    """Removed or replaced, but still read."""
    memory_budget: int
    memory_taken: int
    data_capacity: int
    data_free: int
    largest_free: int
    own_files_bytes: int
    metadata_bytes: int
    index_bytes: int
    ssd_limit: int
    ssd_live: int
    ssd_on_disk: int
    growing: bool
    """The machine still gives memory."""


@dataclass(frozen=True)
class Counters:
    """What happened since the pool was opened."""

    puts: int
    put_bytes: int
    memory_hits: int
    memory_hit_bytes: int
    ssd_hits: int
    ssd_hit_bytes: int
    misses: int
    removed: int
    quarantined: int
    evictions: int
    evictions_freed: int
    evictions_leased: int
    memory_evicted: int
    memory_evicted_bytes: int
    ssd_evicted: int
    ssd_evicted_bytes: int
    offloaded: int
    offloaded_bytes: int
    offload_failures: int
    promotions: int
    promoted_bytes: int
    promotion_failures: int
    promotions_dropped: int
    allocation_failures: int
    restored_from_memory: int
    restored_from_ssd: int
    corrupt_records: int
    events_dropped: int


def usage(native: _native.Usage) -> Usage:
    values = {field.name: getattr(native, field.name) for field in fields(Usage)}
    for name, value in values.items():
        if isinstance(value, ctypes.Array):
            values[name] = tuple(value)
    values["growing"] = bool(native.growing)
    return Usage(**values)


def counters(native: _native.Counters) -> Counters:
    return Counters(**{field.name: getattr(native, field.name) for field in fields(Counters)})


@dataclass(frozen=True)
class Decision:
    """Something that the store did to an object by itself."""

    time: str
    """RFC 3339."""
    what: str
    """evicted, demoted or quarantined."""
    tier: str
    """memory or ssd."""
    reason: str


def decisions(text: str) -> List[Decision]:
    found = json.loads(text) or []
    return [Decision(d.get("time", ""), d.get("what", ""), d.get("tier", ""), d.get("reason", "")) for d in found]


@dataclass(frozen=True)
class Room:
    """What a tier could take."""

    free: int
    evictable: int
    """What it could take beyond free if all left it that may."""


def taken(pointer: Any) -> bytes:
    """The string at a char * that a function has put into an argument; frees it."""
    try:
        return ctypes.string_at(pointer.value) if pointer.value else b""
    finally:
        _native.lib.mooncake_free(pointer)


def taken_keys(pointer: Any) -> List[str]:
    """The keys of a mooncake_key_list_t *; frees it."""
    if not pointer.value:
        return []
    try:
        keys = _native.KeyList.from_address(pointer.value)
        sizes = (ctypes.c_uint32 * keys.count).from_address(keys.sizes) if keys.count else ()
        found, at = [], keys.data or 0
        for size in sizes:
            found.append(decode(ctypes.string_at(at, size)))
            at += size
        return found
    finally:
        _native.lib.mooncake_free(pointer)
