# SPDX-License-Identifier: Apache-2.0
"""Batches, and the keys they are packed from."""

from __future__ import annotations

import pytest

import libmooncake
from libmooncake import PutOptions, Store
from libmooncake.key import pack


def test_pack() -> None:
    assert pack(["a", "ü"]) == (b"a\0\xc3\xbc", 4, None, 2)
    assert pack([b"a", b"bc"]) == (b"a\0bc", 4, None, 2)
    assert pack(["a", b"bc"]) == (b"abc", 3, b"\1\0\0\0\2\0\0\0", 2)
    assert pack(["a\0", "b"]) == (b"a\0b", 3, b"\2\0\0\0\1\0\0\0", 2)
    assert pack(["a", ""]) == (b"a", 1, b"\1\0\0\0\0\0\0\0", 2)
    assert pack([]) == (b"", 0, b"", 0)
    with pytest.raises(TypeError):
        pack("key")
    with pytest.raises(TypeError):
        pack(["a", 1])  # type: ignore[list-item]


def test_lists_that_grow_during_the_call(store: Store) -> None:
    """A call's results have room for the keys that there were: what another thread adds meanwhile is not looked at."""
    store.put("a", b"1")

    class Key(str):
        def encode(self, *_: str) -> bytes:  # type: ignore[override]
            keys.extend(["a"] * 100_000)
            buffers.extend([bytearray(1)] * 100_000)
            return b"a"

    keys = [Key("a")]
    buffers = [bytearray(1)]
    for call, want in (
        (lambda: store.exists_batch(keys), [True]),
        (lambda: store.size_batch(keys), [1]),
        (lambda: store.get_batch_into(keys, buffers), [1]),
        (lambda: store.get_ranges_batch(keys, [[(0, bytearray(1))]]), [[1]]),
        (lambda: store.get_batch(keys), [b"1"]),
        (lambda: [view and bytes(view) for view in store.view_batch(keys)], [b"1"]),
        (lambda: store.put_batch(keys, buffers, PutOptions(keep=True)), None),
        (lambda: store.get_session(keys).found, [True]),
        (lambda: store.remove_batch(keys, force=True), [True]),
        (lambda: store.put_session(keys, [1]).revoke(), None),
    ):
        del keys[1:], buffers[1:]
        assert call() == want


def test_put_get(store: Store) -> None:
    keys = [f"key{i}" for i in range(1000)]
    store.put_batch(keys, [b"%d" % i for i in range(1000)])
    assert store.get_batch(keys) == [b"%d" % i for i in range(1000)]
    assert store.size_batch(["key5", "none", "key10"]) == [1, None, 2]
    assert store.get_batch(["none", "key7", "none"], verify=True) == [None, b"7", None]
    assert store.get_batch(["none"]) == [None]
    assert store.get_batch([]) == []
    assert store.exists_batch(["none", *keys]) == [False] + [True] * 1000
    assert store.exists_batch(["none", "key1"], lease=False) == [False, True]
    assert store.exists_batch([]) == []


def test_put_parts_groups_options(store: Store) -> None:
    store.put_batch(
        ["a", "b", "c"], [b"1", [b"2", bytearray(b"3")], memoryview(b"4")], PutOptions(hard_pin=True),
        groups=["one", b"two\0", "one"],
    )  # fmt: skip
    assert store.get_batch(["a", "b", "c"]) == [b"1", b"23", b"4"]
    assert store.group("one") == ["a", "c"] and store.group(b"two\0") == ["b"]
    assert store.stat("b").hard_pin


def test_put_that_exists(store: Store) -> None:
    store.put("a", b"old")
    with pytest.raises(libmooncake.BatchError) as caught:
        store.put_batch(["a", "b"], [b"new", b"new"])
    assert caught.value.code == -705
    assert isinstance(caught.value.results[0], libmooncake.ExistsError) and caught.value.results[1] is None
    assert caught.value.results[0].text == "object already exists: 'a'"
    assert caught.value.text == "1 of 2 failed, the first, item 0: object already exists: 'a'"
    assert store.get_batch(["a", "b"]) == [b"old", b"new"]
    store.put_batch(["a", "c"], [b"new", b"new"], PutOptions(keep=True))


def test_get_into(store: Store) -> None:
    store.put_batch(["a", "b"], [b"abc", b"defghi"])
    one, two, three = bytearray(5), bytearray(2), bytearray(4)
    assert store.get_batch_into(["a", "none", "b"], [one, bytearray(1), [two, three]]) == [3, None, 6]
    assert (one, two, three) == (b"abc\0\0", b"de", b"fghi")
    with pytest.raises(libmooncake.BatchError) as caught:
        store.get_batch_into(["a", "none", "b"], [one, bytearray(1), two])
    assert caught.value.results[:2] == [3, None]
    assert isinstance(caught.value.results[2], libmooncake.InvalidError)


def test_ranges(store: Store) -> None:
    store.put_batch(["a", "b"], [bytes(range(50)), bytes(range(50, 100))])
    buffers = [bytearray(3) for _ in range(4)]
    found = store.get_ranges_batch(
        ["a", "none", "b"], [[(1, buffers[0]), (40, buffers[1])], [(0, buffers[2])], [(7, buffers[3])]]
    )
    assert found == [[3, 3], [None], [3]]
    assert [bytes(b) for b in buffers] == [bytes([1, 2, 3]), bytes([40, 41, 42]), bytes(3), bytes([57, 58, 59])]


def test_remove(store: Store) -> None:
    store.put_batch(["a", "b", "c"], [b"x"] * 3)
    store.get("b")
    with pytest.raises(libmooncake.BatchError) as caught:
        store.remove_batch(["a", "b", "none"])
    assert caught.value.code == -706
    assert isinstance(caught.value.results[1], libmooncake.LeasedError)
    assert store.remove_batch(["a", "b", "c"], force=True) == [False, True, True]


def test_unfinished_puts(store: Store) -> None:
    """There is nothing to read yet, as if the key were missing; but it can't be removed."""
    with store.create("a", 5) as writer:
        assert store.exists_batch(["a"]) == [False]
        assert store.get_batch(["a"]) == store.size_batch(["a"]) == store.view_batch(["a"]) == [None]
        assert store.get_batch_into(["a"], [bytearray(5)]) == [None]
        assert store.get("a", None) is None
        with pytest.raises(libmooncake.NotReadyError):
            store.get("a")
        with pytest.raises(libmooncake.BatchError) as caught:
            store.remove_batch(["a", "none"])
        assert isinstance(caught.value.results[0], libmooncake.NotReadyError) and caught.value.results[1] is False
        writer.write(b"value")


def test_errors_are_short(store: Store) -> None:
    store.put_batch(["a", "b"], [bytes(10_000_000), b"x"])
    with pytest.raises(libmooncake.BatchError) as caught:
        store.get_batch_into(["a", "b"], [bytearray(10_000_000), bytearray()])
    assert len(repr(caught.value)) < 300


def test_wrong_lengths(store: Store) -> None:
    for call in (
        lambda: store.put_batch(["a", "b"], [b"x"]),
        lambda: store.put_batch(["a"], [b"x"], groups=["a", "b"]),
        lambda: store.get_batch_into(["a"], []),
        lambda: store.get_ranges_batch(["a"], []),
    ):
        with pytest.raises(ValueError):
            call()
    with pytest.raises(TypeError):
        store.exists_batch("key")


def test_view_batch(store: Store) -> None:
    store.put_batch(["a", "b"], [b"abc", b"defghi"])
    views = store.view_batch(["a", "none", "b"])
    assert [view and view.tobytes() for view in views] == [b"abc", None, b"defghi"]
    assert store.stat("a").readers == 1
    del views
    assert store.stat("a").readers == 0


def test_errors_name_the_keys(store: Store) -> None:
    store.put_batch(["a", "b"], [b"old", b"old"])
    for put in (store.put_batch, lambda *arguments: store.put_batch_async(*arguments).result()):
        with pytest.raises(libmooncake.BatchError) as caught:
            put(["c", b"a", "b"], [b"x"] * 3, PutOptions())
        assert caught.value.text == "2 of 3 failed, the first, item 1: object already exists: 'a'"
        assert [getattr(item, "text", None) for item in caught.value.results] == [
            None, "object already exists: 'a'", "object already exists: 'b'"
        ]  # fmt: skip
        store.remove("c")
    with pytest.raises(libmooncake.BatchError, match='item 2: get "b": 3 bytes from byte 2'):
        store.get_ranges_batch(["a", "b"], [[(0, bytearray(1)), (0, bytearray(1))], [(2, bytearray(3))]])


def test_asynchronous_errors_are_their_own(store: Store) -> None:
    """The text of another call of the thread that failed of the same is not taken for theirs."""
    store.put_batch(["a", "b"], [b"old", b"old"])
    reading = store.get_batch_into_async(["a"], [bytearray(1)])
    with pytest.raises(libmooncake.InvalidError):
        store.get_into("b", bytearray(1))
    with pytest.raises(libmooncake.BatchError) as caught:
        reading.result()
    assert "'a'" in caught.value.text and '"b"' not in caught.value.text
