# SPDX-License-Identifier: Apache-2.0
"""Moves pages between a program's own memory and the store, many in one call and with one copy each way.

The pages of a request are a group: they are kept and evicted together.
"""

import libmooncake

PAGES, PAGE_BYTES = 4, 64 << 10

out = [bytes([ord("a") + i]) * PAGE_BYTES for i in range(PAGES)]
into = [bytearray(PAGE_BYTES) for _ in range(PAGES + 1)]
keys = [f"page-{i}" for i in range(PAGES)]

with libmooncake.Store(memory_bytes=64 << 20) as store:
    store.put_batch(keys, out, libmooncake.PutOptions(type=libmooncake.ObjectType.KVCACHE, group="request-7"))
    for key in keys:
        print(f"put {key}: OK")
    keys.append("page-9")
    for key, size in zip(keys, store.get_batch_into(keys, into)):
        print(f"get {key}: OBJECT_NOT_FOUND" if size is None else f"get {key}: {size} bytes")
    print("equal:", int(out == into[:PAGES]))
