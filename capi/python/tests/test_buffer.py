# SPDX-License-Identifier: Apache-2.0
"""Buffers in: what is accepted, what is refused, and that nothing is copied."""

from __future__ import annotations

import array
import ctypes
import mmap
from typing import Any, Dict

import pytest

import libmooncake
from libmooncake import Store, buffer

numpy = pytest.importorskip("numpy")


class Interface:
    """Only an __array_interface__, as some array libraries have."""

    def __init__(self, of: Any, **changed: Any) -> None:
        self.of = of
        self.__array_interface__: Dict[str, Any] = {**of.__array_interface__, **changed}


class Tensor:
    """What torch's tensors have."""

    def __init__(self, of: Any, device: str = "cpu") -> None:
        self.of = of
        self.device = type("device", (), {"type": device})()

    def is_contiguous(self) -> bool:
        return bool(self.of.flags.c_contiguous)

    def data_ptr(self) -> int:
        return int(self.of.ctypes.data)

    def numel(self) -> int:
        return int(self.of.size)

    def element_size(self) -> int:
        return int(self.of.itemsize)


def test_no_copy() -> None:
    for data in (bytearray(b"abc"), numpy.zeros(5, "f4"), array.array("i", [1, 2]), (ctypes.c_int * 3)()):
        at, size, _ = buffer.source(data)
        assert (at, size) == buffer.target(data)[:2]
        assert at == numpy.frombuffer(data, "u1").ctypes.data and size == memoryview(data).nbytes
    data = b"some bytes"
    assert buffer.source(data)[0] is data
    assert buffer.address(data) == numpy.frombuffer(data, "u1").ctypes.data
    assert buffer.source(memoryview(data))[0] == numpy.frombuffer(data, "u1").ctypes.data
    assert buffer.source(memoryview(data)[5:])[:2] == (buffer.address(data) + 5, 5)


def test_exports_are_held() -> None:
    data = bytearray(b"abc")
    located = buffer.target(data)
    with pytest.raises(BufferError):
        data.append(1)
    del located
    data.append(1)
    readonly = memoryview(bytearray(b"abc")).toreadonly()
    located = buffer.source(readonly)
    with pytest.raises(BufferError):
        readonly.obj.append(1)
    del located
    readonly.release()


def test_sources(store: Store) -> None:
    values = numpy.arange(1000, dtype="f4").reshape(10, 100)
    mapped = mmap.mmap(-1, 4096)
    mapped[:4] = b"mmap"
    for i, data in enumerate([
        values, values.tobytes(), bytearray(values), memoryview(values), values[2:4], array.array("d", [1, 2]), mapped,
        memoryview(b"read-only"), Interface(values), Tensor(values), numpy.float32(3), numpy.zeros((3, 4), "M8[s]"),
    ]):  # fmt: skip
        store.put(f"key{i}", data)
        of = getattr(data, "of", data)
        assert store.get(f"key{i}") == (of.tobytes() if hasattr(of, "tobytes") else bytes(of)), type(data)


def test_targets(store: Store) -> None:
    values = numpy.arange(1000, dtype="f4")
    store.put("key", values)
    for into in (numpy.zeros_like(values), numpy.zeros((2, 500), "f4"), numpy.zeros(5000, "u1")):
        assert store.get_into("key", into) == 4000
        assert (into.reshape(-1).view("u1")[:4000].view("f4") == values).all()
    into = numpy.zeros_like(values)
    assert store.get_into("key", Tensor(into)) == 4000 and (into == values).all()
    into = numpy.zeros_like(values)
    assert store.get_into("key", Interface(into)) == 4000 and (into == values).all()
    assert store.get_batch_into(["key"], [[into[:300], into[300:]]]) == [4000]


def test_types_that_memoryview_does_not_know(store: Store) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = numpy.arange(10).astype(ml_dtypes.bfloat16)
    store.put("key", values)
    into = numpy.zeros_like(values)
    assert store.get_into("key", into) == 20 and (into == values).all()


@pytest.mark.parametrize("what", ["strided", "transposed", "fortran"])
def test_not_contiguous(store: Store, what: str) -> None:
    base = numpy.zeros((10, 10))
    data = {"strided": base[:, ::2], "transposed": numpy.zeros((3, 4)).T, "fortran": numpy.asfortranarray(base)}[what]
    store.put("key", b"value")
    for wrong in (data, Interface(data), Tensor(data)):
        with pytest.raises(ValueError, match="not C-contiguous"):
            store.put("other", wrong)
        with pytest.raises(ValueError, match="not C-contiguous"):
            store.get_into("key", wrong)
        with pytest.raises(ValueError, match="not C-contiguous"):
            store.get_batch_into(["key"], [wrong])


def test_read_only_targets(store: Store) -> None:
    store.put("key", b"value")
    frozen = numpy.zeros(10, "u1")
    frozen.flags.writeable = False
    for wrong in (b"bytes of ", memoryview(b"bytes of "), frozen, Interface(frozen)):
        with pytest.raises(ValueError, match="read-only"):
            store.get_into("key", wrong)
    assert not frozen.any()


def test_no_buffers(store: Store) -> None:
    for wrong in ("text", 5, None, [b"list"], object()):
        with pytest.raises(TypeError):
            store.put("key", wrong)
        with pytest.raises(TypeError):
            store.get_into("key", wrong)
    with pytest.raises(ValueError, match="is on cuda"):
        store.put("key", Tensor(numpy.zeros(3), "cuda"))


def test_too_small(store: Store) -> None:
    store.put("key", b"value")
    into = bytearray(b"1234")
    with pytest.raises(libmooncake.InvalidError):
        store.get_into("key", into)
    assert into == b"1234"
    with pytest.raises(libmooncake.InvalidError):
        store.get_into("key", bytearray())


def test_python_objects(store: Store) -> None:
    """Their bytes are pointers."""
    objects = numpy.array([object()] * 3)
    fixed = numpy.array([object()])
    fixed.flags.writeable = False
    structured = numpy.zeros(2, [("a", "i4"), ("b", "O")])
    dated = numpy.zeros(2, [("a", "M8[s]"), ("b", "O")])  # has no format
    text = numpy.zeros(2, [("Offset", "i4"), ("O", "f4")])
    for data in (objects, fixed, structured, dated, objects[::2], (ctypes.py_object * 2)(), structured[0]):
        for call in (
            lambda data=data: store.put("key", data),
            lambda data=data: store.put_batch(["key"], [data]),
            lambda data=data: store.get_into("key", data),
            lambda data=data: store.get_batch_into(["key"], [[bytearray(1), data]]),
        ):
            with pytest.raises(TypeError, match="Python objects"):
                call()
    for typestr, descr in (("|O", [("", "|O")]), ("|V16", structured.dtype.descr)):
        interface = Interface(numpy.zeros(4, "V16"), typestr=typestr, descr=descr)
        for locate in (buffer.source, buffer.target):
            with pytest.raises(TypeError, match="Python objects"):
                locate(interface)
    store.put("key", text)
    store.get_into("key", text)
    assert store.size("key") == 16
