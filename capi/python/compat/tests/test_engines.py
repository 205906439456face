"""What inference engines do with mooncake.store, and what has gone wrong for them: the letters and numbers are those of
the project's list of pitfalls, each with the report that it comes from."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import random
import threading
import time
from typing import Any, Callable, Dict, List

import pytest
from conftest import Connect, Memory
from mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator, ObjectDataType, ReplicateConfig

Store = MooncakeDistributedStore

CALLED = {
    "vLLM": (
        "setup register_buffer batch_is_exist batch_put_from_multi_buffers batch_get_into_multi_buffers "
        "batch_get_into batch_put_from unregister_buffer batch_get_replica_desc remove_all close get_hostname"
    ),
    "vLLM-Ascend": (
        "setup batch_is_exist batch_put_from_multi_buffers batch_get_into_multi_buffers register_buffer "
        "batch_put_session_start batch_put_from_multi_buffer_ranges batch_put_session_end batch_put_session_revoke "
        "batch_get_session_start batch_get_into_multi_buffer_ranges batch_get_session_end"
    ),
    "SGLang": (
        "setup setup_dummy put is_exist get register_buffer batch_is_exist batch_put_from batch_put_from_multi_buffers "
        "batch_get_into batch_get_into_multi_buffers remove_all batch_get_session_start "
        "batch_get_into_multi_buffer_ranges batch_get_session_end"
    ),
    "LMCache": (
        "setup register_buffer unregister_buffer is_exist batch_is_exist put_from batch_put_from batch_get_into put_parts "
        "batch_get_buffer get_hostname close"
    ),
    "store service": (
        "setup mount_segment unmount_segment allocate_and_mount_segment unmount_and_free_segment "
        "unmount_local_disk_segment put get is_exist remove remove_all close"
    ),
    "structured store": (
        "put get remove batch_remove put_from batch_put_from get_into batch_get_into get_into_ranges register_buffer "
        "unregister_buffer"
    ),
    "the rest of 1.1 to 1.4": (
        "init_all health_check alloc_from_mem_pool get_offload_rpc_read_count get_alloc_func_addr get_free_func_addr "
        "put_batch get_batch get_buffer upsert upsert_parts upsert_batch remove_by_regex get_size put_from_with_metadata "
        "upsert_from batch_upsert_from get_replica_desc batch_replica_clear create_copy_task create_move_task query_task"
    ),
}


@pytest.mark.parametrize("engine", CALLED)
def test_e7_every_method_that_is_called_is_there(store: Store, engine: str) -> None:
    missing = [name for name in CALLED[engine].split() if not callable(getattr(store, name, None))]
    assert missing == []


def test_0_1_put_of_an_existing_key_is_0_and_keeps_the_old_bytes(store: Store, memory: Memory) -> None:
    memory[:4] = b"new!"
    assert store.put("k", b"old") == 0
    config = ReplicateConfig()
    assert store.put("k", b"new!") == 0
    assert store.put_parts("k", b"new", b"!") == 0
    assert store.put_batch(["k"], [b"new!"]) == 0
    assert store.put_from("k", memory.at, 4, config) == 0
    assert store.put_from_with_metadata("k", memory.at, memory.at, 2, 2) == 0
    assert store.batch_put_from(["k"], [memory.at], [4]) == [0]
    assert store.batch_put_from_multi_buffers(["k"], [[memory.at]], [[4]]) == [0]
    assert store.get("k") == b"old"


def test_0_2_0_3_codes_and_shapes(store: Store, memory: Memory) -> None:
    """0 or negative for puts, bytes or negative for gets, 1 or 0 for exist, and batches with one result for each key."""
    at = memory.at
    assert store.put("k", bytes(10)) == 0
    assert (store.get_into("k", at, 10), store.get_into("m", at, 10), store.get_into("k", at, 9)) == (10, -704, -600)
    assert (store.is_exist("k"), store.is_exist("m")) == (1, 0)
    assert store.put("", b"v") == -400
    assert store.put("k" * 4097, b"v") == -400
    assert store.remove("k") == -706
    assert store.batch_put_session_start(["k", "s"], [1, 1]) == [-705, 0]
    assert store.get_into("s", at, 10) == -703
    assert store.batch_put_from(["n", "", "k"], [at] * 3, [4] * 3) == [0, -400, 0]


def test_0_3_a_lookup_that_hits_grants_a_lease(store: Store, memory: Memory) -> None:
    lookups: List[Callable[[], object]] = [
        lambda: store.is_exist("k"),
        lambda: store.batch_is_exist(["k"]),
        lambda: store.get_size("k"),
        lambda: store.get("k"),
        lambda: store.get_into("k", memory.at, 10),
        lambda: store.batch_get_into(["k"], [memory.at], [10]),
        lambda: store.get_replica_desc("k"),
    ]
    for lookup in lookups:
        assert store.put("k", b"v") == 0
        lookup()
        assert store.remove("k") == -706
        assert store.remove("k", True) == 0


def test_0_4_a21_sizes_have_64_bits(store: Store) -> None:
    """More than 4 GiB never becomes the rest of it: not as an argument, not as a sum."""
    size = (1 << 32) + 10
    region = mmap.mmap(-1, size + 100, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)  # MAP_NORESERVE
    at = ctypes.addressof(ctypes.c_char.from_buffer(region))
    assert store.put_from("k", at, size) == -200
    assert store.batch_put_from(["k"], [at], [size]) == [-200]
    assert store.batch_put_from_multi_buffers(["k"], [[at, at]], [[1 << 32, 10]]) == [-200]
    assert store.batch_put_session_start(["k"], [size]) == [-200]
    assert store.is_exist("k") == 0
    assert store.put("k", b"value") == 0
    assert store.get_into("k", at, size) == 5
    assert store.batch_get_into(["k"], [at + (1 << 32)], [20]) == [5]
    assert region[1 << 32 : (1 << 32) + 6] == b"value\0"
    assert store.register_buffer(at, size) == 0
    assert store.get_into_ranges([at], [["k"]], [[[1 << 32]]], [[[3]]], [[[2]]]) == [[[2]]]
    assert region[1 << 32 : (1 << 32) + 2] == b"ue"
    assert store.get_into_ranges([at], [["k"]], [[[0]]], [[[(1 << 32) + 3]]], [[[2]]]) == [[[-600]]]


@pytest.mark.skipif(not os.environ.get("MOONCAKE_LARGE_TESTS"), reason="takes 11 GiB: set MOONCAKE_LARGE_TESTS=1")
def test_a21_a_value_of_5_gib(connect: Connect) -> None:
    store = connect(size=6 << 30)
    size = 5 << 30
    region = mmap.mmap(-1, size)
    region[:5], region[-5:] = b"begin", b"ended"
    at = ctypes.addressof(ctypes.c_char.from_buffer(region))
    assert store.put_from("k", at, size) == 0
    assert store.get_size("k") == size == 5368709120
    assert store.get_into("k", at, size) == size
    assert store.batch_get_into(["k"], [at], [size]) == [size]
    assert region[:5] + region[-5:] == b"beginended"


def test_a7_pressure_rejects_some_keys_and_they_can_be_put_again(store: Store, memory: Memory) -> None:
    config = ReplicateConfig()
    config.with_hard_pin = True
    keys = [f"k{i}" for i in range(100)]
    codes = store.batch_put_from(keys, [memory.at] * 100, [1 << 20] * 100, config)
    rejected = [key for key, code in zip(keys, codes) if code != 0]
    assert rejected and {code for code in codes if code} == {-200}
    assert store.batch_is_exist(rejected) == [0] * len(rejected)
    assert store.remove_all(True) == 100 - len(rejected)
    assert store.batch_put_from(rejected, [memory.at] * len(rejected), [1 << 20] * len(rejected), config) == [0] * len(
        rejected
    )


def test_a19_two_gets_within_the_lease_succeed(store: Store) -> None:
    assert store.put("k", b"v") == 0
    assert [store.get("k"), store.get("k")] == [b"v", b"v"]


def test_a20_present_and_absent(store: Store) -> None:
    assert store.put("present", b"v") == 0
    assert store.batch_is_exist(["present", "absent"]) == [1, 0]
    assert [store.is_exist("present"), store.is_exist("absent")] == [1, 0]


def test_a32_unregistered_memory_is_not_kept(store: Store, memory: Memory) -> None:
    """An embedded store copies within the call and keeps no address: what is unregistered can be freed and used again.
    put_from still works for it, as the C++ store's local copies do; only get_into_ranges insists."""
    assert store.register_buffer(memory.at, memory.size) == 0
    memory[:4] = b"old!"
    assert store.put_from("a", memory.at, 4) == 0
    assert store.unregister_buffer(memory.at) == 0
    assert store.unregister_buffer(memory.at) == -600
    memory[:4] = b"new!"
    assert store.get("a") == b"old!"
    assert store.put_from("b", memory.at, 4) == 0
    assert store.get("b") == b"new!"
    assert store.get_into_ranges([memory.at], [["a"]], [[[0]]], [[[0]]], [[[4]]]) == [[[-600]]]
    assert memory[:4] == b"new!"


SIZES = [1, 7, 511, 512, 513, 4095, 4096, 65535, (1 << 20) - 1, (1 << 20) + 1]


@pytest.mark.parametrize("size", [0, *SIZES])
def test_a37_sizes(store: Store, memory: Memory, size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert store.put("bytes", data) == (0 if size else -600)
    memory[:size] = data
    assert store.put_from("from", memory.at, size) == 0
    assert store.get("bytes") == store.get("from") == data
    if size:
        memory[:size] = bytes(size)
        assert store.get_into("from", memory.at, memory.size) == size
        assert memory[:size] == data


def test_a37_sizes_in_one_batch(store: Store, memory: Memory) -> None:
    data = random.Random(1).randbytes(2 << 20)
    memory[: len(data)] = data
    keys = [str(size) for size in SIZES]
    assert store.batch_put_from(keys, [memory.at] * len(SIZES), SIZES) == [0] * len(SIZES)
    assert store.get_batch(keys) == [data[:size] for size in SIZES]


def test_e1_absent_get_is_empty_bytes(store: Store) -> None:
    assert store.get("absent") == b""
    assert store.get_batch(["absent"]) == [b""]


def test_e2_size_0_has_one_answer_in_each_call_and_is_never_stored(store: Store, memory: Memory) -> None:
    """put of nothing is an error; the calls by address say 0. None of them makes an object, so no get ever returns 0."""
    at = memory.at
    assert store.put("k", b"") == -600
    assert store.put_batch(["k"], [b""]) == -600
    assert store.put_parts("k", b"") == 0
    assert store.put_from("k", at, 0) == 0
    assert store.put_from_with_metadata("k", at, at, 0, 0) == 0
    assert store.batch_put_from(["k"], [at], [0]) == [0]
    assert store.batch_put_from_multi_buffers(["k"], [[at, at]], [[0, 0]]) == [0]
    assert store.batch_put_session_start(["k"], [0]) == [-600]
    assert store.is_exist("k") == 0
    assert store.get_into("k", at, 10) == -704
    assert store.batch_get_into(["k"], [at], [10]) == [-704]


def test_e3_exists_is_exactly_1_and_failures_are_negative(store: Store) -> None:
    assert store.put("k", b"v") == 0
    found = store.is_exist("k")
    assert found == 1 and type(found) is int
    assert store.batch_is_exist(["k", "m"]) == [1, 0]
    assert store.get_size("m") < 0


def test_e6_what_exists_can_be_read(store: Store, memory: Memory) -> None:
    keys = [f"k{i}" for i in range(2000)]
    assert store.batch_put_from(keys, [memory.at] * 2000, [1000] * 2000) == [0] * 2000
    assert store.batch_is_exist(keys) == [1] * 2000
    assert store.batch_get_into(keys, [memory.at + 2000 * i for i in range(2000)], [1000] * 2000) == [1000] * 2000


def test_e11_concurrent_batches_keep_their_bytes_apart(connect: Connect) -> None:
    store = connect(size=256 << 20)
    failures: List[str] = []

    def work(worker: int) -> None:
        memory = Memory(24 << 20)
        sizes = [2_400_000] * 4 + [16_384] * 4
        starts = [sum(sizes[:i]) for i in range(8)]
        half = 12 << 20
        for round in range(4):
            data = random.Random(worker * 100 + round).randbytes(sum(sizes))
            memory[: len(data)] = data
            keys = [f"{worker}-{round}-{i}" for i in range(8)]
            put = store.batch_put_from(keys, [memory.at + at for at in starts], sizes)
            got = store.batch_get_into(keys, [memory.at + half + at for at in starts], sizes)
            for at, size, code, n in zip(starts, sizes, put, got):
                if code == 0 and n == size:
                    if (
                        hashlib.sha256(memory[half + at : half + at + size]).digest()
                        != hashlib.sha256(data[at : at + size]).digest()
                    ):
                        failures.append(f"{worker}-{round}: other bytes at {at}")
                elif not (code == -200 or n == -704):
                    failures.append(f"{worker}-{round}: put {code}, got {n}")
            store.batch_remove(keys, True)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_e17_closing_a_client_leaves_the_others_keys(connect: Connect) -> None:
    one, two = connect(), connect()
    assert one.put("one", b"1") == 0 and two.put("two", b"2") == 0
    assert one.close() == 0
    assert two.get_batch(["one", "two"]) == [b"1", b"2"]


def test_sglang_start(address: str, memory: Memory) -> None:
    """Its set-up, warm-up, pages, and end."""
    store = Store()
    assert store.setup("host", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", address, None, tenant_id="default") == 0
    value = bytes(4 << 10)
    assert store.put("sglang_mooncake_store_warmup_key", value) == 0
    assert store.is_exist("sglang_mooncake_store_warmup_key") == 1
    assert store.get("sglang_mooncake_store_warmup_key") == value
    assert MooncakeHostMemAllocator().alloc(1 << 20) > 0
    assert store.register_buffer(memory.at, memory.size) == 0
    config = ReplicateConfig()
    assert hasattr(config, "group_ids") and not hasattr(config, "session_ids")
    keys = [f"model_{i}_0_{part}" for i in range(64) for part in "kv"]
    config.group_ids = [f"sglang-hicache:{key}" for key in keys]
    pointers = [memory.at + 4096 * i for i in range(128)]
    assert store.batch_is_exist(keys) == [0] * 128
    assert all(code == 0 for code in store.batch_put_from(keys, pointers, [4096] * 128, config))
    assert all(n > 0 for n in store.batch_get_into(keys, pointers, [4096] * 128))
    pages = [f"page{i}" for i in range(4)]
    rows, sizes = [pointers[:3]] * 4, [[4096] * 3] * 4
    assert store.batch_put_from_multi_buffers(pages, rows, sizes) == [0] * 4
    assert (
        store.batch_get_into_multi_buffers(pages, [pointers[i * 3 : i * 3 + 3] for i in range(4)], sizes)
        == [3 * 4096] * 4
    )
    assert isinstance(store.remove_all(), int)
    store.close()


def test_vllm_connector(address: str, memory: Memory) -> None:
    store = Store()
    assert store.setup("10.0.0.1:12345", "P2PHANDSHAKE", 64 << 20, 64 << 20, "rdma", "mlx5_0", address) == 0
    assert store.register_buffer(memory.at, memory.size) == 0
    config = ReplicateConfig()
    config.preferred_segment = store.get_hostname()
    keys = [f"block-{i}" for i in range(32)]
    rows = [[memory.at + 8192 * i, memory.at + 8192 * i + 4096] for i in range(32)]
    sizes = [[4096, 4096]] * 32
    assert store.batch_put_from_multi_buffers(keys, rows, sizes, config) == [0] * 32
    assert store.batch_is_exist(keys + ["block-32"]) == [1] * 32 + [0]
    assert store.batch_get_into_multi_buffers(keys, rows, sizes) == [8192] * 32
    tiers = store.batch_get_replica_desc(keys)
    assert all(
        replica.is_memory_replica() and not replica.is_disk_replica() and not replica.is_local_disk_replica()
        for replicas in tiers.values()
        for replica in replicas
    )
    config.data_type = ObjectDataType.TENSOR
    assert store.batch_put_from(["embedding"], [memory.at], [4096], config) == [0]
    assert store.remove_all(force=True) == 33
    assert store.close() == 0


def test_lmcache_connector(address: str, memory: Memory) -> None:
    store = Store()
    names: Dict[str, Any] = dict(local_hostname="h", metadata_server="P2PHANDSHAKE", protocol="tcp", device_name="")
    store.setup(
        {**names, "global_segment_size": "67108864", "local_buffer_size": "1048576", "master_server_address": address}
    )
    config = ReplicateConfig()
    config.replica_num = 1
    config.preferred_segment = store.get_hostname()
    assert store.register_buffer(memory.at, memory.size) == 0
    meta, data = bytes(range(28)), memoryview(random.Random(1).randbytes(100_000))
    assert not store.is_exist("chunk")
    store.put_parts("chunk", meta, data)
    assert store.is_exist("chunk")
    (found,) = store.batch_get_buffer(["chunk"])
    view: Any = memoryview(found)  # type: ignore[arg-type]
    to = bytearray(len(data))
    memoryview(to)[:] = view[28 : 28 + len(data)]
    assert bytes(view[:28]) == meta and to == data
    assert store.put_from("block", memory.at, 4096, config) == 0
    assert store.batch_get_into(["block", "missing"], [memory.at, memory.at + 4096], [4096, 4096]) == [4096, -704]
    assert store.unregister_buffer(memory.at) == 0
    store.close()
    assert not store.is_exist("chunk")  # an error code would read as a hit


def test_ascend_layers(store: Store, memory: Memory) -> None:
    keys, layers, size = ["a", "b"], 4, 1000
    memory[: 2 * layers * size] = data = random.Random(1).randbytes(2 * layers * size)
    assert store.batch_put_session_start(keys, [layers * size] * 2) == [0, 0]
    for layer in range(layers):
        rows = [[memory.at + (i * layers + layer) * size] for i in range(2)]
        assert store.batch_put_from_multi_buffer_ranges(keys, rows, [[size]] * 2, [[layer * size]] * 2) == [size, size]
    assert store.batch_put_session_end(keys) == [0, 0]
    memory[: len(data)] = bytes(len(data))
    assert store.batch_get_session_start(keys) == [0, 0]
    for layer in range(layers):
        rows = [[memory.at + (i * layers + layer) * size] for i in range(2)]
        assert store.batch_get_into_multi_buffer_ranges(keys, rows, [[size]] * 2, [[layer * size]] * 2) == [size, size]
    assert store.batch_get_session_end(keys) == 0
    assert memory[: len(data)] == data


def test_many_threads_on_one_client(store: Store) -> None:
    """vLLM runs several receive threads, LMCache a pool."""
    stop = time.monotonic() + 1
    failures: List[object] = []

    def work(worker: int) -> None:
        memory = Memory(1 << 20)
        i = 0
        while time.monotonic() < stop:
            i += 1
            key, data = f"{worker}-{i % 50}", b"%d-%d" % (worker, i)
            if store.upsert(key, data) != 0:
                failures.append(key)
            memory[:20] = bytes(20)
            n = store.get_into(key, memory.at, 20)
            if memory[: max(n, 0)] != data or store.get(key) != data:
                failures.append((key, n))
            if store.batch_is_exist([key, "missing"]) != [1, 0]:
                failures.append("exist")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_close_while_others_call(connect: Connect, memory: Memory) -> None:
    """Calls in progress end; later ones say that the client is closed."""
    store = connect()
    assert store.put("k", bytes(1 << 20)) == 0
    seen = set()
    started = threading.Event()

    def work() -> None:
        while True:
            n = store.get_into("k", memory.at, memory.size)
            seen.add(n)
            started.set()
            if n < 0:
                return

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    started.wait()
    assert store.close() == 0
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert seen <= {1 << 20, -600, -1010}
