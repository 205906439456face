# SPDX-License-Identifier: Apache-2.0
"""A malformed item of a batch fails alone."""

from __future__ import annotations

from typing import Any, Callable, List

import pytest

import libmooncake

Store = libmooncake.Store


def results(call: Callable[[], Any]) -> List[Any]:
    """What a batch that fails returned for each item; "bad" for what was malformed."""
    with pytest.raises(libmooncake.BatchError) as raised:
        call()
    assert "item" in str(raised.value)
    return ["bad" if isinstance(item, libmooncake.InvalidError) else item for item in raised.value.results]


@pytest.mark.parametrize("bad", [None, 5, "text", ["list"], bytes])
def test_a_buffer_that_is_none(store: Store, bad: Any) -> None:
    assert results(lambda: store.put_batch(["a", "x", "b"], [b"1", bad, b"22"])) == [None, "bad", None]
    assert store.exists_batch(["a", "x", "b"]) == [True, False, True]
    into = bytearray(1), bytearray(2)
    assert results(lambda: store.get_batch_into(["a", "a", "b"], [into[0], bad, into[1]])) == [1, "bad", 2]
    assert into == (b"1", b"22")
    read = lambda: store.get_ranges_batch(["a", "b"], [[(0, into[0]), (0, bad)], [(0, into[1]), (1, into[0])]])  # noqa: E731
    assert results(read) == ["bad", "bad", 2, 1]
    assert into == (b"2", b"22")


@pytest.mark.parametrize("bad", [None, -1, 1.5, 1 << 64, "1"])
def test_an_offset_that_is_none(store: Store, bad: Any) -> None:
    store.put_batch(["a", "b"], [b"abc", b"def"])
    one, two = bytearray(1), bytearray(1)
    assert results(lambda: store.get_ranges_batch(["a", "b"], [[(bad, one)], [(1, two)]])) == ["bad", 1]
    assert two == b"e"
    with store.get_session(["a", "b"]) as session:
        assert results(lambda: session.read(["a", "b"], [[(2, one)], [(bad, two)]])) == [1, "bad"]
        assert one == b"c"
    with store.put_session(["c", "d"], [1, 1]) as writing:
        assert results(lambda: writing.write(["c", "d"], [[(bad, b"1")], [(0, b"2")]])) == ["bad", None]
        writing.write(["c"], [[(0, b"1")]])
    assert store.get_batch(["c", "d"]) == [b"1", b"2"]


@pytest.mark.parametrize("bad", [None, 5, "\ud800"])
def test_a_key_that_is_none(store: Store, bad: Any) -> None:
    assert results(lambda: store.put_batch(["a", bad], [b"1", b"2"])) == [None, "bad"]
    groups = lambda: store.put_batch([bad, "b"], [b"2", b"2"], groups=["g", "h"])  # noqa: E731
    assert results(groups) == ["bad", None]
    assert store.group("h") == ["b"] and store.group("g") == []
    assert results(lambda: store.exists_batch([bad, "a", "none"])) == ["bad", True, False]
    assert results(lambda: store.size_batch([bad, "a", "none"])) == ["bad", 1, None]
    assert results(lambda: store.get_batch(["a", bad, "none"])) == [b"1", "bad", None]
    views = results(lambda: store.view_batch(["a", bad]))
    assert views[0].tobytes() == b"1" and views[1] == "bad"
    del views
    assert results(lambda: store.remove_batch([bad, "a", "none"], force=True)) == ["bad", True, False]


def test_operations(store: Store) -> None:
    with store.put_batch_async(["a", "x"], [b"1", None]) as put:
        assert results(put.result) == [None, "bad"]
    into = bytearray(1)
    with store.get_batch_into_async(["x", "a"], [5, into]) as get:
        assert results(get.result) == ["bad", 1]
    assert into == b"1"


def test_errors_of_the_store_stand_beside_them(store: Store) -> None:
    store.put("a", b"1")
    with pytest.raises(libmooncake.BatchError) as raised:
        store.put_batch(["x", "a", "b"], [None, b"2", b"3"])
    kinds = list(map(type, raised.value.results))
    assert kinds == [libmooncake.InvalidError, libmooncake.ExistsError, type(None)]
    assert store.get("b") == b"3"


def test_a_batch_with_nothing_else_raises_what_is_wrong(store: Store) -> None:
    with pytest.raises(TypeError, match="not a buffer"):
        store.put_batch(["a"], [None])
    with pytest.raises(TypeError):
        store.exists_batch([5])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="2 keys"):
        store.put_batch(["a", "b"], [None])
