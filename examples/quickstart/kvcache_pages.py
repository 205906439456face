# SPDX-License-Identifier: Apache-2.0
"""Watches the KV pages that an engine puts into mooncake.store and gets out of it: each must come back with the bytes that
went in under its key. An answer alone does not show that, since a prompt that repeats itself hides pages in a wrong order."""

from __future__ import annotations

import ctypes
import hashlib
from typing import Any, Dict, List, Sequence, Set


class Pages:
    """The hash of each page at its put, and what was wrong with pages that were got."""

    def __init__(self) -> None:
        self.stored: Dict[str, str] = {}
        self.got = 0
        self.wrong: Set[str] = set()

    def put(self, key: str, pointers: Sequence[int], sizes: Sequence[int]) -> None:
        """A page was stored. A key that exists keeps its bytes, as the store does."""
        self.stored.setdefault(key, _hash(pointers, sizes))

    def get(self, key: str, pointers: Sequence[int], sizes: Sequence[int]) -> None:
        """A page was read into these buffers."""
        self.got += 1
        if self.stored.get(key) != _hash(pointers, sizes):
            self.wrong.add(key)

    def watch(self, store_class: Any) -> None:
        """Look at every page that clients of this class move."""
        put, get = store_class.batch_put_from_multi_buffers, store_class.batch_get_into_multi_buffers

        def watched_put(store: Any, keys: List[str], pointers: Any, sizes: Any, *rest: Any, **options: Any) -> List[int]:
            codes: List[int] = put(store, keys, pointers, sizes, *rest, **options)
            for key, at, size, code in zip(keys, pointers, sizes, codes):
                if code == 0:
                    self.put(key, at, size)
            return codes

        def watched_get(store: Any, keys: List[str], pointers: Any, sizes: Any, *rest: Any, **options: Any) -> List[int]:
            codes: List[int] = get(store, keys, pointers, sizes, *rest, **options)
            for key, at, size, code in zip(keys, pointers, sizes, codes):
                if code > 0:
                    self.get(key, at, size)
            return codes

        store_class.batch_put_from_multi_buffers = watched_put
        store_class.batch_get_into_multi_buffers = watched_get


def _hash(pointers: Sequence[int], sizes: Sequence[int]) -> str:
    digest = hashlib.sha256()
    for at, size in zip(pointers, sizes):
        digest.update(ctypes.string_at(at, size))
    return digest.hexdigest()


def check_the_check() -> None:
    """Pages that come back in swapped order are noticed; in their own order they are not."""
    from mooncake.store import MooncakeDistributedStore

    class Store(MooncakeDistributedStore):
        swap = False

        def batch_get_into_multi_buffers(self, keys: Any, pointers: Any, sizes: Any, *rest: Any) -> List[int]:
            names = list(reversed(keys)) if self.swap else keys
            return super().batch_get_into_multi_buffers(names, pointers, sizes, *rest)

    pages, store = Pages(), Store()
    pages.watch(Store)
    assert store.setup("localhost", "P2PHANDSHAKE", 16 << 20, 0, "tcp", "", "embedded:check-the-check") == 0
    memory = ctypes.create_string_buffer(b"one page" + b"two page" + bytes(16))
    at = ctypes.addressof(memory)
    keys, sizes = ["1", "2"], [[4, 4], [8]]
    assert store.batch_put_from_multi_buffers(keys, [[at, at + 4], [at + 8]], sizes) == [0, 0]
    into = [[at + 16, at + 20], [at + 24]]
    assert store.batch_get_into_multi_buffers(keys, into, sizes) == [8, 8]
    assert (pages.got, pages.wrong) == (2, set()), "pages in order are called wrong"
    Store.swap = True
    assert store.batch_get_into_multi_buffers(keys, into, sizes) == [8, 8]
    assert pages.wrong == {"1", "2"}, "swapped pages are not noticed"
    store.close()


if __name__ == "__main__":
    check_the_check()
