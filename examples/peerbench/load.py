# SPDX-License-Identifier: Apache-2.0
"""One load on whichever mooncake.store is installed: load.py MASTER METADATA SECONDS. Prints a JSON object per case.

One client with one thread, in the process that owns the memory. The first case is the machine's own copy from memory that
is out of the cache.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import random
import statistics
import sys
import time
from typing import Any, Callable, List, Tuple

from mooncake.store import MooncakeDistributedStore

SEGMENT = 4 << 30
BUFFER = 512 << 20
CASES = [(4096, 1), (4096, 32), (65536, 32), (1 << 20, 16), (4 << 20, 1)]
EXIST = [1, 128, 1000]
PUT_BYTES = 1 << 30  # at most, for each case


def memory(size: int) -> Tuple[mmap.mmap, int]:
    """Memory that has been touched."""
    kept = mmap.mmap(-1, size)
    address = ctypes.addressof(ctypes.c_char.from_buffer(kept))
    ctypes.memset(address, 1, size)
    return kept, address


def timed(call: Callable[[], Any], seconds: float, limit: int = 1 << 30) -> List[int]:
    """How many nanoseconds each call took."""
    took: List[int] = []
    end = time.perf_counter() + seconds
    while len(took) < limit and time.perf_counter() < end:
        start = time.perf_counter_ns()
        call()
        took.append(time.perf_counter_ns() - start)
    return took


def report(case: str, took: List[int], keys: int, size: int) -> None:
    total = sum(took) / 1e9
    figures = {
        "case": case,
        "p50_us": statistics.median(took) / 1e3,
        "keys_per_s": len(took) * keys / total,
        "GB_per_s": len(took) * keys * size / total / 1e9,
    }
    print(json.dumps(figures), flush=True)


class Load:
    def __init__(self, store: Any, seconds: float) -> None:
        self.store = store
        self.seconds = seconds
        self.random = random.Random(1)
        self.kept, self.base = memory(BUFFER)
        assert store.register_buffer(self.base, BUFFER) == 0

    def memcpy(self) -> None:
        size = 4 << 20
        kept, to = memory(8 * size)
        turn = 0

        def copy() -> None:
            nonlocal turn
            turn += 1
            ctypes.memmove(to + turn % 8 * size, self.base + turn * 3 * size % (BUFFER - size), size)

        report("memcpy 4 MiB", timed(copy, self.seconds), 1, size)

    def fill(self, size: int, batch: int) -> List[str]:
        """The keys that are read: so many that they don't stay in the cache."""
        keys = [f"bench-{size}-{i}" for i in range(max(batch, min(4096, BUFFER // size)))]
        for i in range(0, len(keys), 32):
            some = keys[i : i + 32]
            at = [self.base + j * size % (BUFFER - size) for j in range(len(some))]
            assert not any(self.store.batch_put_from(some, at, [size] * len(some)))
        return keys

    def exist(self) -> None:
        keys = self.fill(4096, 1)
        for n in EXIST:
            some = keys[:n]
            assert self.store.batch_is_exist(some) == [1] * n
            report(f"exist x{n}", timed(lambda: self.store.batch_is_exist(some), self.seconds), n, 0)

    def get(self, size: int, batch: int) -> None:
        keys = self.fill(size, batch)
        at = [self.base + i * size for i in range(batch)]
        sizes = [size] * batch

        def one() -> None:
            got = self.store.get_into(keys[self.random.randrange(len(keys))], self.base, size)
            assert got == size, got

        def many() -> None:
            first = self.random.randrange(len(keys) - batch + 1)
            got = self.store.batch_get_into(keys[first : first + batch], at, sizes)
            assert got == sizes, got

        report(f"get {size} x{batch}", timed(one if batch == 1 else many, self.seconds), batch, size)

    def put(self, size: int, batch: int) -> None:
        at = [self.base + i * size for i in range(batch)]
        sizes = [size] * batch
        turn = 0

        def put() -> None:
            nonlocal turn
            turn += 1
            if batch == 1:
                result = self.store.put_from(f"w-{size}-1-{turn}", self.base, size)
            else:
                result = max(map(abs, self.store.batch_put_from([f"w-{size}-{batch}-{turn}-{i}" for i in range(batch)], at, sizes)))
            assert result == 0, result

        report(f"put {size} x{batch}", timed(put, self.seconds, PUT_BYTES // (size * batch)), batch, size)
        self.store.remove_by_regex(f"^w-{size}-{batch}-", True)


def main() -> None:
    master, metadata, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    store = MooncakeDistributedStore()
    result = store.setup("127.0.0.1", metadata, SEGMENT, BUFFER, "tcp", "", master)
    assert result == 0, result
    time.sleep(3)  # the memory is taken in the background
    load = Load(store, seconds)
    load.memcpy()
    load.exist()
    for size, batch in CASES:
        load.get(size, batch)
    for size, batch in CASES:
        load.put(size, batch)
    store.close()


if __name__ == "__main__":
    main()
