# SPDX-License-Identifier: Apache-2.0
"""Addresses of the memory that objects are read from and written to, without a copy.

A buffer is anything with the buffer protocol (bytes, bytearray, memoryview, mmap, numpy and mlx arrays, ctypes), an
object with __array_interface__, or one with data_ptr(), as torch's CPU tensors have. It must be C-contiguous, and
writable where the store writes to it. One of Python objects is refused: its bytes are pointers. None of those packages
is imported.
"""

from __future__ import annotations

import ctypes
import re
from array import array
from typing import Any, Iterable, Optional, Sequence, Tuple

Buffer = Any
"""What the module's text says; the type system has no name for it that Python 3.9 knows."""

_WRITABLE = 1  # PyBUF_WRITABLE; PyBUF_SIMPLE is 0 and asks for contiguous bytes


class _Export(ctypes.Structure):
    """Py_buffer, whose layout is part of CPython's stable ABI."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_void_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]

    def __del__(self, _release: Any = ctypes.pythonapi.PyBuffer_Release, _byref: Any = ctypes.byref) -> None:
        _release(_byref(self))


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = (ctypes.py_object, ctypes.c_void_p, ctypes.c_int)
_get_buffer.restype = ctypes.c_int
ctypes.pythonapi.PyBuffer_Release.argtypes = (ctypes.c_void_p,)
ctypes.pythonapi.PyBuffer_Release.restype = None
_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t)
_new_bytes.restype = ctypes.py_object

_byref = ctypes.byref
_addressof = ctypes.addressof
_cell = ctypes.c_char.from_buffer


def source(buffer: Buffer) -> Tuple[Any, int, object]:
    """Where to read: an argument for c_void_p, the size in bytes, and what must live as long as that is used."""
    if buffer.__class__ is bytes:
        return buffer, len(buffer), buffer
    try:
        held = memoryview(buffer)
        cell = _cell(held)
    except (TypeError, ValueError, BufferError):
        return _locate(buffer, 0)
    if held.itemsize > 7 and "O" in held.format:  # a pointer has 8 bytes
        _refuse_objects(buffer, held.format)
    return _addressof(cell), held.nbytes, cell


def target(buffer: Buffer) -> Tuple[Any, int, object]:
    """Where to write, as source."""
    try:  # the quick way, for most; c_char.from_buffer refuses what is read-only or not contiguous
        held = memoryview(buffer)
        cell = _cell(held)
    except (TypeError, ValueError, BufferError):
        return _locate(buffer, _WRITABLE)
    if held.itemsize > 7 and "O" in held.format:  # a pointer has 8 bytes
        _refuse_objects(buffer, held.format)
    return _addressof(cell), held.nbytes, cell


def _refuse_objects(buffer: Buffer, format: str) -> None:
    """TypeError for a format, as the struct module and numpy write it, that has O in it outside of fields' names."""
    if "O" in re.sub(":[^:]*:", "", format):
        raise TypeError(f"{type(buffer).__name__} is of Python objects: its bytes are pointers, which can't be stored")


def _locate(buffer: Buffer, flags: int) -> Tuple[Optional[int], int, object]:
    if getattr(getattr(buffer, "dtype", None), "hasobject", False):  # numpy's, also where it has no format
        _refuse_objects(buffer, "O")
    export = _Export()
    try:
        _get_buffer(buffer, _byref(export), flags)
    except (BufferError, ValueError, TypeError) as error:
        reason = error
    else:
        try:
            _refuse_objects(buffer, memoryview(buffer).format)
        except (BufferError, ValueError):
            pass  # a type that has no format, as numpy's dates
        return export.buf, export.len, export
    interface = getattr(buffer, "__array_interface__", None)
    if interface is not None:
        return _locate_array(buffer, interface, flags)
    if callable(getattr(buffer, "data_ptr", None)):
        return _locate_tensor(buffer)
    if isinstance(reason, TypeError):
        raise TypeError(
            f"{type(buffer).__name__} is not a buffer: it has neither the buffer protocol nor "
            "__array_interface__ nor data_ptr()"
        ) from None
    if flags & _WRITABLE and memoryview(buffer).readonly:
        raise ValueError(f"{type(buffer).__name__} is read-only: the store can't write to it") from None
    raise ValueError(f"{type(buffer).__name__} is not C-contiguous: {reason}") from None


def _locate_array(buffer: Buffer, interface: Any, flags: int) -> Tuple[Optional[int], int, object]:
    data = interface.get("data")
    if not isinstance(data, tuple):
        raise TypeError(f"{type(buffer).__name__} has an __array_interface__ without an address")
    if interface["typestr"][1:2] == "O" or "|O" in str(interface.get("descr")):
        _refuse_objects(buffer, "O")
    address, readonly = data
    if readonly and flags & _WRITABLE:
        raise ValueError(f"{type(buffer).__name__} is read-only: the store can't write to it")
    size = int(interface["typestr"][2:])
    strides = interface.get("strides")
    for length, stride in zip(reversed(interface["shape"]), reversed(strides or interface["shape"])):
        if strides is not None and length > 1 and stride != size:
            raise ValueError(f"{type(buffer).__name__} is not C-contiguous")
        size *= length
    return address, size, buffer


def _locate_tensor(buffer: Buffer) -> Tuple[Optional[int], int, object]:
    device = getattr(getattr(buffer, "device", None), "type", "cpu")
    if device != "cpu":
        raise ValueError(f"{type(buffer).__name__} is on {device}: only memory of the CPU can be used")
    if not buffer.is_contiguous():
        raise ValueError(f"{type(buffer).__name__} is not C-contiguous")
    return buffer.data_ptr(), buffer.numel() * buffer.element_size(), buffer


def new_bytes(size: int) -> bytes:
    """Uninitialised bytes, to be filled before anybody else sees them: pass them as the destination. Saves a copy, or
    the zeroing of a bytearray."""
    fresh: bytes = _new_bytes(None, size)
    return fresh


def address(data: bytes) -> int:
    return ctypes.c_void_p.from_buffer(ctypes.c_char_p(data)).value or 0


_probe = b"where in a bytes object its bytes are"
_bytes_at = address(_probe) - id(_probe)


Gathered = Tuple[Any, bytes, Optional[bytes], object]
"""Buffers as the batch functions take them: buffers, sizes, buffer_counts; and what must live as long as they do."""

def gather(items: Sequence[Any], writable: bool) -> Gathered:
    """The buffers of a batch. An item is a buffer, or a list or tuple of buffers that lie behind each other in the
    object. Lists are looked at once: the caller may change them while the library uses the buffers."""
    counts: Optional[bytes] = None
    items = tuple(items)
    kinds = set(map(type, items))
    if list in kinds or tuple in kinds:
        lists = [tuple(item) if isinstance(item, (list, tuple)) else (item,) for item in items]
        counts = array("I", map(len, lists)).tobytes()
        items = tuple(buffer for buffers in lists for buffer in buffers)
        kinds = set(map(type, items))
    if kinds == {bytes} and not writable:
        return array("Q", map(_bytes_at.__add__, map(id, items))).tobytes(), sizes(map(len, items)), counts, items
    addresses, lengths, kept = array("Q"), array("Q"), []
    for item in items:
        try:  # what source and target do, without a call for each
            held = memoryview(item)
            cell: Any = _cell(held)
            at, length = _addressof(cell), held.nbytes
        except (TypeError, ValueError, BufferError):
            at, length, cell = target(item) if writable else source(item)
        else:
            if held.itemsize > 7 and "O" in held.format:  # a pointer has 8 bytes
                _refuse_objects(item, held.format)
        addresses.append(address(at) if isinstance(at, bytes) else at or 0)
        lengths.append(length)
        kept.append(cell)
    return addresses.tobytes(), lengths.tobytes(), counts, kept


def gather_fragments(
    items: Sequence[Sequence[Tuple[int, Any]]], writable: bool
) -> Tuple[Any, bytes, bytes, bytes, object]:
    """The fragments of a batch, (offset, buffer) pairs for each item, as the functions for ranges take them: buffers,
    sizes, offsets, fragment_counts; and what must live as long as they do."""
    buffers, lengths, _, kept = gather([buffer for fragments in items for _, buffer in fragments], writable)
    offsets = sizes(offset for fragments in items for offset, _ in fragments)
    return buffers, lengths, offsets, array("I", map(len, items)).tobytes(), kept


def sizes(values: Iterable[int]) -> bytes:
    """Numbers as an array of size_t or uint64_t."""
    return array("Q", values).tobytes()
