# SPDX-License-Identifier: Apache-2.0
"""Reads an object where it lies, without a copy. A view keeps its bytes, also when the key is replaced meanwhile."""

import libmooncake

SIZE = 1 << 20

with libmooncake.Store(memory_bytes=64 << 20) as store:
    store.put("k", b"o" * SIZE)
    with store.view("k") as old:
        store.upsert("k", b"n" * SIZE)
        with store.view("k") as new:
            print(f"old view: {len(old.data)} bytes of {chr(old.data[-1])}")
            print(f"new view: {len(new.data)} bytes of {chr(new.data[-1])}")
