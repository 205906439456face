# SPDX-License-Identifier: Apache-2.0
"""Opens a store in this process, puts an object, reads it back and removes it."""

import libmooncake

with libmooncake.Store(memory_bytes=64 << 20) as store:
    store.put("hello", b"world")
    print("get hello:", store.get("hello").decode())
    print("exists:", int(store.exists("hello")))

    # The reads above protect the object for ten seconds: only force removes it now.
    try:
        store.remove("hello")
    except libmooncake.LeasedError as error:
        print("remove:", error.name)
    store.remove("hello", force=True)
    print("remove by force: OK")
    print("exists:", int(store.exists("hello")))
