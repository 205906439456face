# SPDX-License-Identifier: Apache-2.0
"""Events."""

from __future__ import annotations

import asyncio
import select
import threading
import time
from typing import List

import pytest

import libmooncake
from libmooncake import Event, EventKind, ObjectType, PutOptions, Store


def test_events(store: Store) -> None:
    with store.events() as events:
        assert events.next(0) is None
        assert not select.select([events], [], [], 0)[0]
        store.put("key\0ü", b"value", PutOptions(type=ObjectType.KVCACHE))
        store.remove("key\0ü")
        with store.tenant("other") as other:
            other.put("key", b"value")
        assert select.select([events], [], [], 10)[0]
        put = events.next(10)
        assert put == Event(EventKind.PUT, "key\0ü", "default", 5, ObjectType.KVCACHE, False)
        removed = events.next(10)
        assert removed and removed.kind is EventKind.REMOVED and removed.key == "key\0ü"
        last = events.next(10)
        assert last and last.tenant == "other"
        started = time.monotonic()
        assert events.next(0.2) is None
        assert 0.19 < time.monotonic() - started < 5
    with pytest.raises(libmooncake.InvalidError):
        events.next(0)


def test_dropped_events(store: Store) -> None:
    with store.events(buffer=2) as events:
        store.put_batch([f"key{i}" for i in range(100)], [b"x"] * 100)
        told = dropped = more = 0
        while told + dropped < 100 + more:
            event = events.next(0.2)
            if event is None:  # that events were dropped is told before the next one that is not
                store.put(f"more{more}", b"x")
                more += 1
            elif event.kind is EventKind.DROPPED:
                dropped += event.nbytes
            else:
                told += 1
        assert dropped > 0 and told + dropped == 100 + more
    with pytest.raises(libmooncake.InvalidError):
        store.events(buffer=0)


def test_iteration_ends_with_the_store(store: Store) -> None:
    events = store.events()
    seen: List[str] = []

    def read() -> None:
        seen.extend(event.key for event in events)

    reader = threading.Thread(target=read)
    reader.start()
    store.put_batch(["a", "b"], [b"x", b"y"])
    time.sleep(0.1)
    store.close()
    reader.join(10)
    assert not reader.is_alive() and sorted(seen) == ["a", "b"]
    events.close()
    events.close()


def test_async_iteration(store: Store) -> None:
    async def work() -> List[str]:
        seen = []
        events = store.events()
        asyncio.get_running_loop().call_later(0.05, lambda: store.put("b", b"x"))
        asyncio.get_running_loop().call_later(0.1, store.close)
        store.put("a", b"x")
        async for event in events:
            seen.append(event.key)
        return seen

    assert asyncio.run(asyncio.wait_for(work(), 20)) == ["a", "b"]


def test_close_ends_loops(store: Store) -> None:
    """From another thread, or another task, while the loop waits; a loop that begins later ends at once."""
    events = store.events()
    seen: List[str] = []
    reader = threading.Thread(target=lambda: seen.extend(event.key for event in events))
    reader.start()
    store.put("a", b"x")
    time.sleep(0.1)
    events.close()
    reader.join(10)
    assert not reader.is_alive() and seen == ["a"]
    assert events.closed and list(events) == []

    async def work() -> List[str]:
        events = store.events()
        asyncio.get_running_loop().call_later(0.05, lambda: store.put("b", b"x"))
        asyncio.get_running_loop().call_later(0.1, events.close)
        return [event.key async for event in events]

    assert asyncio.run(asyncio.wait_for(work(), 20)) == ["b"]


def test_close_ends_next(store: Store) -> None:
    events = store.events()
    threading.Timer(0.1, events.close).start()
    with pytest.raises(libmooncake.InvalidError):
        events.next(20)
