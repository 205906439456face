# SPDX-License-Identifier: Apache-2.0
"""Views: no copy, and the lease lasts as long as anything made from them."""

from __future__ import annotations

import gc
import weakref

import pytest

import libmooncake
from libmooncake import Store

numpy = pytest.importorskip("numpy")


def readers(store: Store) -> int:
    gc.collect()
    return store.stat("key").readers


def test_view(store: Store) -> None:
    store.put("key", bytes(range(256)))
    with store.view("key") as view:
        assert view.nbytes == len(view) == 256 and not view.closed
        assert view.data == bytes(range(256)) and view.data.readonly and view.data.format == "B"
        assert view.tobytes() == bytes(view) == bytes(range(256))
        assert len(view.segments) == 1
        assert readers(store) == 1
        with pytest.raises(TypeError):
            view.data[0] = 1
        with pytest.raises(libmooncake.LeasedError):
            store.remove("key")
    assert view.closed and readers(store) == 0
    view.close()
    with pytest.raises(ValueError):
        view.data
    with pytest.raises(libmooncake.NotFoundError):
        store.view("none")


def test_no_copy(store: Store) -> None:
    store.put("key", b"value")
    one, two = store.view("key"), store.view("key")
    assert numpy.asarray(one).ctypes.data == numpy.frombuffer(two.data, "u1").ctypes.data


@pytest.mark.parametrize("end", ["close", "with", "drop"])
@pytest.mark.parametrize("make", ["frombuffer", "asarray", "slice", "cast", "nested"])
def test_arrays_keep_the_lease(store: Store, end: str, make: str) -> None:
    values = numpy.arange(100_000, dtype="u4")
    store.put("key", values)
    view = store.view("key")
    if make == "frombuffer":
        held = numpy.frombuffer(view.data, "u4")
    elif make == "asarray":
        held = numpy.asarray(view).view("u4")
    elif make == "slice":
        held = numpy.frombuffer(view.data[4:-4], "u4")
        values = values[1:-1]
    elif make == "cast":
        held = numpy.asarray(view.data.cast("I"))
    else:
        held = numpy.frombuffer(memoryview(numpy.frombuffer(view.data, "u4"))[10:], "u4")[5:]
        values = values[15:]
    if end == "close":
        view.close()
    elif end == "with":
        with view:
            pass
    del view
    assert readers(store) == 1
    store.remove("key", force=True)
    for i in range(200):  # the room would be taken again if it were free
        store.put("fill", bytes([i]) * 1_000_000)
        store.remove("fill", force=True)
    assert (held == values).all()
    assert not held.flags.writeable
    store.put("key", b"value")
    del held
    assert readers(store) == 0


def test_view_outlives_the_store(store: Store) -> None:
    store.put("key", b"value" * 1000)
    view = store.view("key")
    data = numpy.frombuffer(view.data, "u1")
    store.close()
    assert data.tobytes() == view.tobytes() == b"value" * 1000
    view.close()
    del data, view
    gc.collect()


def test_cycles_are_collected(store: Store) -> None:
    store.put("key", b"value")
    cycle = [store.view("key")]
    cycle.append(cycle)  # type: ignore[arg-type]
    assert readers(store) == 1
    del cycle
    assert readers(store) == 0


def test_weak_references(store: Store) -> None:
    store.put("key", b"value")
    view = store.view("key")
    reference = weakref.ref(view)
    del view
    assert reference() is None


def test_pieces(store: Store) -> None:
    data = numpy.random.default_rng(1).integers(0, 256, 40 << 20, "u1")
    store.put("key", data)
    with store.view("key") as view:
        assert view.nbytes == sum(piece.nbytes for piece in view.segments) == data.nbytes
        assert numpy.array_equal(numpy.frombuffer(view.tobytes(), "u1"), data)
        if len(view.segments) > 1:
            with pytest.raises(BufferError):
                view.data
        kept = numpy.frombuffer(view.segments[-1], "u1")
    assert readers(store) == 1
    assert numpy.array_equal(kept, data[-len(kept) :])
    del kept
    assert readers(store) == 0


def test_verify(store: Store) -> None:
    store.put("key", b"value")
    for verify in (None, True, False):
        assert store.view("key", verify=verify).tobytes() == b"value"


def test_torch(store: Store) -> None:
    torch = pytest.importorskip("torch")
    values = torch.arange(1000, dtype=torch.bfloat16)
    store.put("key", values)
    held = torch.frombuffer(store.view("key").data, dtype=torch.bfloat16)
    assert readers(store) == 1
    assert torch.equal(held, values)
    del held
    assert readers(store) == 0
    into = torch.zeros_like(values)
    assert store.get_into("key", into) == 2000 and torch.equal(into, values)
