"""Memory: what get_buffer returns, host memory for engines, NUMA."""

from __future__ import annotations

import ctypes
import functools
import logging
import mmap
import os
import sys
from operator import index
from typing import Any, Dict, Optional

from libmooncake.handle import Handle

from ._size import size_of

_log = logging.getLogger("mooncake.store")


class _Byte(ctypes.Union):
    """One byte. A union since the memoryview of an array of unions has the format "B", as bytes have; that of c_ubyte has
    "<B", which memoryview neither indexes nor assigns to bytes."""

    _fields_ = [("value", ctypes.c_ubyte)]


class _Handle:
    """What a BufferHandle adds to an array of its size."""

    _length_: int
    lease: object = None

    def ptr(self) -> int:
        """The address of the bytes."""
        return ctypes.addressof(self)  # type: ignore[arg-type]

    def size(self) -> int:
        return self._length_

    def __repr__(self) -> str:
        return f"<mooncake.store.BufferHandle of {self._length_} bytes>"

    if sys.version_info >= (3, 12):

        def __buffer__(self, flags: int) -> memoryview:
            """Read-only where Python can say so: an older one has no way to."""
            return memoryview(_array(self._length_).from_address(self.ptr())).toreadonly()


@functools.lru_cache(maxsize=1024)
def _array(size: int) -> Any:
    return _Byte * size


@functools.lru_cache(maxsize=1024)
def buffer_type(size: int) -> Any:
    """The type of handles of one size. Before Python 3.12 only a type written in C can have the buffer protocol, so it is
    an array of ctypes, whose size belongs to the type."""
    return type("BufferHandle", (_Handle, BufferHandle, ctypes.Array), {"_type_": _Byte, "_length_": size})


class BufferHandle(Handle):
    """An object's bytes, from get_buffer: memoryview(handle), bytes(handle), ptr(), size(), len(handle). They are the
    store's own memory, neither evicted nor changed until the handle and everything made from it are dropped, and must not
    be written to. Of objects that do not lie in one piece they are a copy."""

    def ptr(self) -> int:
        raise TypeError("BufferHandles come from get_buffer and batch_get_buffer")

    size = ptr


def borrowed(address: int, size: int, lease: object) -> BufferHandle:
    """A handle of memory that lease keeps."""
    handle: BufferHandle = buffer_type(size).from_address(address)
    handle.lease = lease  # type: ignore[attr-defined]
    return handle


_libc = ctypes.CDLL(None, use_errno=True)
_mmap = _libc.mmap
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_mmap.restype = ctypes.c_void_p
_munmap = _libc.munmap
_munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_munmap.restype = ctypes.c_int

_MAP_HUGETLB = 0x40000
_MAP_HUGE_SHIFT = 26
_FAILED = ctypes.c_void_p(-1).value
_LARGEST = 1 << 62


class MooncakeHostMemAllocator(Handle):
    """Page-aligned anonymous memory of this process. MC_STORE_USE_HUGEPAGE takes huge pages, of MC_STORE_HUGEPAGE_SIZE
    (2MB); sizes are then rounded up to them. What is not freed stays until the process ends, also if the allocator is
    dropped: engines keep only the address."""

    def __init__(self) -> None:
        self._sizes: Dict[int, int] = {}

    def alloc(self, size: int) -> int:
        """The address of size bytes, all zero, or 0 if there are none to be had."""
        size = index(size)
        if size < 0:
            raise TypeError(f"size is {size}")
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        if os.environ.get("MC_STORE_USE_HUGEPAGE", "0").lower() not in ("", "0", "false", "no", "off"):
            page = size_of(os.environ.get("MC_STORE_HUGEPAGE_SIZE") or "2MB")
            size = -(-size // page) * page
            flags |= _MAP_HUGETLB | (page.bit_length() - 1) << _MAP_HUGE_SHIFT
        if not 0 < size <= _LARGEST:
            return 0
        address: Optional[int] = _mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        if address is None or address == _FAILED:
            _log.error("alloc of %d bytes: %s", size, os.strerror(ctypes.get_errno()))
            return 0
        self._sizes[address] = size
        return address

    def free(self, ptr: int) -> int:
        """0, or -1 for what alloc did not return or was freed."""
        size = self._sizes.pop(index(ptr), 0)
        if size == 0:
            return -1
        result: int = _munmap(ptr, size)
        return result


def bind_to_numa_node(node: int) -> None:
    """Run this thread on a NUMA node, and take its memory from there as far as it has any. Without libnuma or NUMA only a
    warning."""
    node = index(node)
    numa = _numa()
    if numa is None or numa.numa_available() < 0:
        _log.warning("NUMA is not available: not bound to node %d", node)
        return
    if not 0 <= node <= numa.numa_max_node():
        _log.warning("there is no NUMA node %d, they are 0 to %d", node, numa.numa_max_node())
        return
    if numa.numa_run_on_node(node) != 0:
        _log.warning("can't run on NUMA node %d: %s", node, os.strerror(ctypes.get_errno()))
    numa.numa_set_bind_policy(0)
    numa.numa_set_preferred(node)


@functools.lru_cache(maxsize=None)
def _numa() -> Optional[ctypes.CDLL]:
    try:
        return ctypes.CDLL("libnuma.so.1", use_errno=True)
    except OSError:
        return None
