# SPDX-License-Identifier: Apache-2.0
"""Bytes of the store without a copy: views of its memory, and files."""

from __future__ import annotations

import ctypes
import os
import weakref
from types import TracebackType
from typing import Any, Dict, List, Optional, Tuple, Type

from . import _native
from .errors import check
from .handle import Handle

_close_view = _native.lib.mooncake_view_close
_close_file = _native.lib.mooncake_file_close
_byref = ctypes.byref


class Lease(Handle, _native.View):
    """The open view of the library. It is closed when nothing refers to it any more. new_lease makes one."""

    def __del__(self, _close: Any = _close_view, _byref: Any = _byref) -> None:
        if self.handle:
            _close(_byref(self))


_new, _template = Lease.from_buffer_copy, bytes(_native.View())


def new_lease() -> Lease:
    """Lease(), three times as fast."""
    return _new(_template)


class _Memory(ctypes.c_ubyte * (1 << 60)):  # type: ignore[misc]
    """Memory of the store at an address. Every buffer that is made from it refers to it, and it to its lease. One type
    serves all sizes, since a type for each costs more than a view: the length says nothing."""

    lease: object


_from_address = _Memory.from_address


def memory(address: int, size: int, lease: object) -> memoryview:
    """A read-only memoryview that keeps lease alive, and so does everything made from it."""
    at = _from_address(address)
    at.lease = lease
    return memoryview(at).cast("B")[:size].toreadonly()


class View(Handle):
    """An object's bytes in the store's memory, read-only. While they can be reached they are neither evicted nor moved,
    also if the key is removed or replaced or the store closed.

    data is a memoryview for numpy.frombuffer, torch.frombuffer and everything else that takes a buffer. The lease ends
    when the view is closed or dropped and nothing made from data is left: closing never takes memory from under an
    array. In a forked child the memory is not mapped.
    """

    __slots__ = ("__weakref__", "_segments", "nbytes")

    def __init__(self, lease: Lease) -> None:
        self.nbytes: int = lease.size
        self._segments: Optional[Tuple[memoryview, ...]]
        if lease.data:
            self._segments = (memory(lease.data, self.nbytes, lease),)
        elif not self.nbytes:  # a tensor without elements; an object has bytes
            self._segments = (memoryview(b""),)
        else:
            self._segments = _segments(lease)

    @property
    def segments(self) -> Tuple[memoryview, ...]:
        """The pieces that the bytes lie in, in order."""
        if self._segments is None:
            raise ValueError("the view is closed")
        return self._segments

    @property
    def data(self) -> memoryview:
        """The bytes, if they are one piece. Objects in files of their own are, weights among them, and those up to a
        64th of memory_bytes, rounded down to a power of two between 2 and 64 MiB: 16 MiB by default. Of larger ones
        this can be a BufferError: see segments and tobytes."""
        segments = self.segments
        if len(segments) != 1:
            raise BufferError(f"the object lies in {len(segments)} pieces: use segments, tobytes or get_into")
        return segments[0]

    @property
    def closed(self) -> bool:
        return self._segments is None

    def tobytes(self) -> bytes:
        """A copy."""
        return b"".join(self.segments)

    def close(self) -> None:
        """Drop this view's hold on the memory. What was made from data keeps its own."""
        self._segments = None

    def __len__(self) -> int:
        return self.nbytes

    def __bytes__(self) -> bytes:
        return self.tobytes()

    def __buffer__(self, flags: int) -> memoryview:
        """The buffer protocol, from Python 3.12 on."""
        return self.data

    @property
    def __array_interface__(self) -> Dict[str, Any]:
        """For numpy.asarray(view), an array of bytes."""
        return {"version": 3, "typestr": "|u1", "shape": (self.nbytes,), "data": self.data}

    def __enter__(self) -> View:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<libmooncake.View of {self.nbytes} bytes{', closed' if self.closed else ''}>"


def _segments(lease: Lease) -> Tuple[memoryview, ...]:
    count: int = lease.segment_count
    pieces = (_native.Segment * count)()
    check(_native.lib.mooncake_view_segments(_byref(lease), pieces, count))
    found: List[memoryview] = [memory(piece.data, piece.size, lease) for piece in pieces]
    return tuple(found)


class File(Handle):
    """A path at which any program can open, map or hard-link an object's bytes while this is open. It is the store's
    own file: open it read-only. Works with os.fspath, so open(file, "rb") does."""

    def __init__(self, native: _native.File) -> None:
        self.path: str = os.fsdecode(native.path)
        self.nbytes: int = native.size
        self.on_ssd = native.tier == 1
        self.temporary = bool(native.temporary)
        self._native = native
        self._finalizer = weakref.finalize(self, _close_file, _byref(native))

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive

    def close(self) -> None:
        """Give the file back: TamperedError if it was changed meanwhile. A second close does nothing."""
        if self._finalizer.detach():
            check(_close_file(_byref(self._native)))

    def __fspath__(self) -> str:
        return self.path

    def __enter__(self) -> File:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<libmooncake.File {self.path!r}, {self.nbytes} bytes{', closed' if self.closed else ''}>"
