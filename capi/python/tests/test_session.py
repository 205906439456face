# SPDX-License-Identifier: Apache-2.0
"""Sessions."""

from __future__ import annotations

import pytest

import libmooncake
from libmooncake import ObjectType, PutOptions, Store


def test_get_session(store: Store) -> None:
    store.put_batch(["a", "b"], [bytes(range(50)), bytes(range(50, 100))])
    with store.get_session(["a", "none", "b"]) as session:
        assert session.found == [True, False, True]
        store.remove("a", force=True)
        one, two, three = bytearray(2), bytearray(3), bytearray(4)
        assert session.read(["a", "b"], [[(5, one), (10, two)], [(0, three)]]) == [5, 4]
        assert (one, two, three) == (bytes([5, 6]), bytes([10, 11, 12]), bytes([50, 51, 52, 53]))
        with pytest.raises(libmooncake.BatchError):
            session.read(["none"], [[(0, one)]])
        with pytest.raises(ValueError):
            session.read(["a"], [])
    session.end()
    with pytest.raises(libmooncake.BatchError):
        session.read(["b"], [[(0, one)]])


def test_put_session(store: Store) -> None:
    with store.put_session(["a", "b"], [4, 6], PutOptions(type=ObjectType.KVCACHE)) as session:
        session.write(["b"], [[(3, b"xyz")]])
        session.write(["a", "b"], [[(0, b"12"), (2, bytearray(b"34"))], [(0, b"abc")]])
        assert store.exists_batch(["a", "b"]) == [False, False]
    assert store.get_batch(["a", "b"]) == [b"1234", b"abcxyz"]
    assert store.stat("a").type is ObjectType.KVCACHE


def test_put_session_that_fails(store: Store) -> None:
    with pytest.raises(RuntimeError):
        with store.put_session(["a"], [4]):
            raise RuntimeError
    with pytest.raises(libmooncake.BatchError) as caught:
        with store.put_session(["a", "b"], [4, 4]) as session:
            session.write(["b"], [[(0, b"1234")]])
    assert isinstance(caught.value.results[0], libmooncake.IncompleteError) and caught.value.results[1] is None
    assert store.exists_batch(["a", "b"]) == [False, True]
    with pytest.raises(libmooncake.BatchError) as caught:
        store.put_session(["c", "b"], [4, 4])
    assert isinstance(caught.value.results[1], libmooncake.ExistsError)
    store.put("c", b"free")
    session = store.put_session(["d"], [4])
    del session
    store.put("d", b"free")


def test_sessions_of_one_key_are_apart(store: Store) -> None:
    store.put("key", b"A" * 100)
    first, into = store.get_session(["key"]), bytearray(10)
    store.upsert("key", b"B" * 100)
    with store.get_session(["key"]) as second:
        assert first.read(["key"], [[(50, into)]]) == [10] and into == b"A" * 10
        assert second.read(["key"], [[(50, into)]]) == [10] and into == b"B" * 10
    assert first.read(["key"], [[(0, into)]]) == [10] and into == b"A" * 10
    del second
    first.end()
    assert store.stat("key").readers == 0
    with pytest.raises(libmooncake.MooncakeError):
        first.read(["key"], [[(0, into)]])


def test_sessions_end_with_the_store(pool: str) -> None:
    for tenant in (None, "other"):
        store = Store(pool=pool, tenant=tenant, memory_bytes=32 << 20)
        store.put("key", b"value")
        session = store.get_session(["key"])
        store.close()
        with pytest.raises(libmooncake.MooncakeError):
            session.read(["key"], [[(0, bytearray(1))]])
        with Store(pool=pool, memory_bytes=48 << 20) as again:  # the pool was closed
            assert not again.exists("key")
