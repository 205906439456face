"""Section 1.5 of the C++ store's Python interface: BufferHandle, MooncakeHostMemAllocator; 1.1: bind_to_numa_node."""

from __future__ import annotations

import ctypes
import gc
import logging
import sys
import threading
from typing import Any

import pytest
from conftest import Connect
from mooncake.store import (
    BufferHandle,
    MooncakeDistributedStore,
    MooncakeHostMemAllocator,
    ReplicateConfig,
    bind_to_numa_node,
)

Store = MooncakeDistributedStore
VALUE = bytes(range(256)) * 16


@pytest.fixture
def handle(store: Store) -> Any:
    assert store.put("k", VALUE) == 0
    return store.get_buffer("k")


def test_1_5_handle_ptr_size_len(handle: Any) -> None:
    assert handle.size() == len(handle) == len(VALUE)
    assert ctypes.string_at(handle.ptr(), handle.size()) == VALUE


def test_1_5_handle_has_the_buffer_protocol(handle: Any) -> None:
    view = memoryview(handle)
    assert (view.format, view.itemsize, view.ndim, view.nbytes, view.c_contiguous) == ("B", 1, 1, len(VALUE), True)
    assert bytes(handle) == VALUE and view == VALUE and view[5] == 5
    assert view[:28].tobytes() == VALUE[:28]


def test_1_5_handle_can_be_copied_to_a_bytearray(handle: Any) -> None:
    """As LMCache does: formats must be the same."""
    to = bytearray(len(VALUE) - 28)
    memoryview(to)[:] = memoryview(handle)[28:]
    assert to == VALUE[28:]


def test_1_5_handle_with_numpy(handle: Any) -> None:
    numpy = pytest.importorskip("numpy")
    assert numpy.frombuffer(handle, dtype=numpy.uint8).tobytes() == VALUE
    assert numpy.asarray(handle).dtype == numpy.uint8


@pytest.mark.skipif(sys.version_info < (3, 12), reason="an older Python has no way to say so")
def test_1_5_handle_is_read_only(handle: Any) -> None:
    assert memoryview(handle).readonly


def test_1_5_handle_cannot_be_made(handle: Any) -> None:
    assert isinstance(handle, BufferHandle)
    with pytest.raises(TypeError):
        BufferHandle().size()


def open_readers(store: Store, address: str) -> int:
    import libmooncake

    with libmooncake.Store(pool=address.partition(":")[2]) as other:
        return other.stat("k").readers


def test_1_5_handle_keeps_its_lease_until_dropped(store: Store, address: str, handle: Any) -> None:
    assert open_readers(store, address) == 1
    view = memoryview(handle)[10:20]
    del handle  # the fixture has another reference
    gc.collect()
    assert open_readers(store, address) == 1
    assert view == VALUE[10:20]


def test_1_5_handle_lease_ends_with_the_last_reference(store: Store, address: str) -> None:
    assert store.put("k", VALUE) == 0
    handle: Any = store.get_buffer("k")
    view = memoryview(handle)[10:20]
    del handle
    assert open_readers(store, address) == 1
    assert view == VALUE[10:20]
    del view
    assert open_readers(store, address) == 0


def test_1_5_handle_bytes_stay_over_remove_upsert_and_close(store: Store, handle: Any) -> None:
    assert store.upsert("k", b"other") == 0
    assert store.remove("k", True) == 0
    for i in range(100):
        store.put(f"k{i}", bytes(1 << 20))
    assert bytes(handle) == VALUE
    store.close()
    assert bytes(handle) == VALUE


def test_1_5_batch_handles_release_their_leases(store: Store, address: str) -> None:
    assert store.put("k", VALUE) == 0
    for _ in range(3):
        handles = store.batch_get_buffer(["k", "missing", "k"])
        assert open_readers(store, address) == 2
        del handles
        assert open_readers(store, address) == 0


def test_1_5_handle_of_a_large_object_is_one_piece(connect: Connect, address: str) -> None:
    """Objects above 16 MiB lie in pieces: the handle is a copy."""
    store = connect(size=256 << 20)
    value = VALUE * (40 << 8)  # 40 MiB
    assert store.put("k", value) == 0
    for handle in (store.get_buffer("k"), store.batch_get_buffer(["k"])[0]):
        assert bytes(handle) == value  # type: ignore[call-overload]


def test_1_5_handle_of_an_object_on_ssd_while_memory_is_pinned(disk: Store) -> None:
    assert disk.put("cold", VALUE * 1024) == 0
    config = ReplicateConfig()
    config.with_hard_pin = True
    for i in range(40):
        disk.put(f"hot{i}", bytes(2 << 20), config)
    assert bytes(disk.get_buffer("cold")) == VALUE * 1024  # type: ignore[call-overload]


def test_1_5_allocator() -> None:
    allocator = MooncakeHostMemAllocator()
    one, two = allocator.alloc(1 << 20), allocator.alloc(5)
    assert one and two and one % 4096 == two % 4096 == 0
    assert ctypes.string_at(one, 1 << 20) == bytes(1 << 20)
    ctypes.memset(one, 7, 1 << 20)
    assert allocator.free(one) == 0
    assert allocator.free(one) == -1
    assert allocator.free(two + 1) == -1
    assert allocator.free(two) == 0


def test_e10_allocation_failure_is_0() -> None:
    allocator = MooncakeHostMemAllocator()
    assert allocator.alloc(0) == 0
    assert allocator.alloc(1 << 60) == 0
    assert allocator.alloc(1 << 80) == 0
    with pytest.raises(TypeError):
        allocator.alloc(-1)
    with pytest.raises(TypeError):
        allocator.alloc("1")  # type: ignore[arg-type]


def test_e10_failed_get_buffer_is_none_not_a_partial_handle(store: Store) -> None:
    assert store.get_buffer("missing") is None
    assert store.batch_get_buffer(["missing", ""]) == [None, None]


def test_1_5_allocator_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the machine has none, an allocation fails as any other."""
    monkeypatch.setenv("MC_STORE_USE_HUGEPAGE", "1")
    allocator = MooncakeHostMemAllocator()
    at = allocator.alloc(5)
    if at:
        assert at % (2 << 20) == 0
        ctypes.memset(at, 1, 2 << 20)
        assert allocator.free(at) == 0


def test_1_5_allocated_memory_serves_transfers(store: Store) -> None:
    allocator = MooncakeHostMemAllocator()
    at = allocator.alloc(8192)
    assert store.register_buffer(at, 8192) == 0
    ctypes.memmove(at, b"hello", 5)
    assert store.put_from("k", at, 5) == 0
    assert store.get_into("k", at + 4096, 5) == 5
    assert ctypes.string_at(at + 4096, 5) == b"hello"
    assert store.unregister_buffer(at) == 0
    assert allocator.free(at) == 0


def test_1_1_bind_to_numa_node(caplog: pytest.LogCaptureFixture) -> None:
    """In a thread of its own, since it stays bound. A node that does not exist is a warning."""

    def bind() -> None:
        assert bind_to_numa_node(0) is None  # type: ignore[func-returns-value]
        with caplog.at_level(logging.WARNING, "mooncake.store"):
            bind_to_numa_node(4096)

    thread = threading.Thread(target=bind)
    thread.start()
    thread.join()
    assert caplog.records
    with pytest.raises(TypeError):
        bind_to_numa_node("0")  # type: ignore[arg-type]
