# SPDX-License-Identifier: Apache-2.0
"""Asynchronous batches: waiting for them in every way."""

from __future__ import annotations

import asyncio
import gc
import select
import threading
from typing import List, Optional

import pytest

import libmooncake
from libmooncake import Store

KEYS = [f"key{i}" for i in range(100)]


def test_put_get(store: Store) -> None:
    operation = store.put_batch_async(KEYS, [bytes([i]) * 10_000 for i in range(100)], groups=["group"] * 100)
    assert operation.result() is None
    assert operation.poll() and operation.wait() and operation.wait(0)
    assert store.group("group") == KEYS
    into = [bytearray(10_000) for _ in range(101)]
    with store.get_batch_into_async([*KEYS, "none"], into) as reading:
        assert reading.result() == [10_000] * 100 + [None]
    assert into == [bytes([i]) * 10_000 for i in range(100)] + [bytes(10_000)]


def test_lists_that_change_while_it_runs(store: Store) -> None:
    for size in (1 << 20, 10_000):
        buffers: List[object] = [bytes([i]) * size for i in range(32)]
        keys = [f"{size}/{i}" for i in range(32)]
        with store.put_batch_async(keys, buffers) as operation:
            buffers.clear()
            keys.clear()
            _unused = [b"\xff" * size for _ in range(32)]  # takes the memory of what is not kept
            operation.result()
        assert store.get_batch([f"{size}/{i}" for i in range(32)]) == [bytes([i]) * size for i in range(32)]
        store.remove_all(force=True)


def test_errors(store: Store) -> None:
    store.put("a", b"old")
    operation = store.put_batch_async(["a", "b"], [b"new", b"new"])
    for _ in range(2):
        with pytest.raises(libmooncake.BatchError) as caught:
            operation.result()
        assert isinstance(caught.value.results[0], libmooncake.ExistsError)
    assert store.get("b") == b"new"
    with pytest.raises(ValueError):
        store.put_batch_async(["a"], [])
    operation.close()
    with pytest.raises(libmooncake.InvalidError):
        operation.poll()


def test_descriptor(store: Store) -> None:
    operation = store.put_batch_async(KEYS, [b"value"] * 100)
    assert select.select([operation], [], [], 10)[0] == [operation]
    assert operation.poll()
    assert select.select([operation], [], [], 0)[0] == [operation]


def test_await(store: Store) -> None:
    async def work() -> List[Optional[int]]:
        into = [bytearray(10_000) for _ in KEYS]
        writes = [store.put_batch_async([f"{i}/{key}" for key in KEYS], [b"x" * 10_000] * 100) for i in range(8)]
        await asyncio.gather(*writes)
        one = store.get_batch_into_async([f"3/{key}" for key in KEYS], into)
        first, second = await asyncio.gather(_awaited(one), _awaited(one))
        assert first == second
        with pytest.raises(libmooncake.BatchError):
            await store.put_batch_async(["0/key0"], [b"x"])
        return await one

    async def _awaited(operation: libmooncake.Operation[List[Optional[int]]]) -> List[Optional[int]]:
        return await operation

    assert asyncio.run(work()) == [10_000] * 100


def test_cancelled_task(store: Store) -> None:
    async def work() -> None:
        operation = store.put_batch_async(KEYS, [bytes(1_000_000)] * 100)

        async def wait() -> None:
            await operation

        task = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert operation.wait(10)

    asyncio.run(work())


def test_cancel(store: Store) -> None:
    operation = store.put_batch_async(KEYS, [bytes(1_000_000)] * 100)
    operation.cancel()
    assert operation.wait(10)
    try:
        operation.result()
    except libmooncake.MooncakeError as error:
        assert error.code in (-2005, -200)


def test_dropped_while_it_runs(store: Store) -> None:
    for _ in range(20):
        store.put_batch_async(KEYS, [bytes(100_000)] * 100)
        gc.collect()
        store.remove_all(force=True)


def test_buffers_are_kept(store: Store) -> None:
    operation = store.put_batch_async(KEYS, [bytes([i]) * 100_000 for i in range(100)])
    gc.collect()
    junk = [bytes(100_000) for _ in range(100)]
    operation.result()
    assert store.get_batch(KEYS) == [bytes([i]) * 100_000 for i in range(100)] and junk


def test_from_threads(store: Store) -> None:
    operation = store.put_batch_async(KEYS, [bytes(10_000)] * 100)
    done: List[bool] = []
    threads = [threading.Thread(target=lambda: done.append(operation.wait(10))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [True] * 8
