"""Section 1.3 of the C++ store's Python interface: memory of the program's, by address."""

from __future__ import annotations

import random
from typing import Any, Callable, List, Tuple

import pytest
from conftest import Memory
from mooncake.store import MooncakeDistributedStore, ReplicateConfig

Store = MooncakeDistributedStore


def fill(memory: Memory, seed: int = 1) -> bytes:
    data = random.Random(seed).randbytes(1 << 20) * (memory.size >> 20)
    memory[: memory.size] = data
    return data


def test_1_3_put_from_and_get_into(store: Store, memory: Memory) -> None:
    data = fill(memory)
    assert store.put_from("k", memory.at, 5000) == 0
    memory[:10000] = bytes(10000)
    assert store.get_into("k", memory.at + 1, 5000) == 5000
    assert memory[1:5001] == data[:5000] and memory[0:1] == memory[5001:5002] == b"\0"


def test_1_3_put_from_existing_key_is_0_and_keeps_old_bytes(store: Store, memory: Memory) -> None:
    data = fill(memory)
    assert store.put_from("k", memory.at, 100) == 0
    assert store.put_from("k", memory.at + 100, 200) == 0
    assert store.get("k") == data[:100]


def test_1_3_put_from_size_0_is_0_and_stores_nothing(store: Store, memory: Memory) -> None:
    assert store.put_from("k", memory.at, 0) == 0
    assert store.is_exist("k") == 0


def test_1_3_put_from_null_is_600(store: Store) -> None:
    assert store.put_from("k", 0, 10) == -600
    assert store.get_into("k", 0, 10) == -600
    assert store.is_exist("k") == 0


def test_1_3_put_from_same_node_is_600(store: Store, memory: Memory) -> None:
    config = ReplicateConfig()
    config.prefer_alloc_in_same_node = True
    assert store.put_from("k", memory.at, 10, config) == -600
    assert store.put_from_with_metadata("k", memory.at, memory.at, 10, 10, config) == -600
    assert store.batch_put_from(["k"], [memory.at], [10], config) == [-600]
    assert store.batch_put_from_multi_buffers(["k"], [[memory.at]], [[10]], config) == [0]
    config.replica_num = 2
    assert store.batch_put_from_multi_buffers(["l"], [[memory.at]], [[10]], config) == [-600]


def test_1_3_put_from_with_metadata(store: Store, memory: Memory) -> None:
    data = fill(memory)
    assert store.put_from_with_metadata("k", memory.at + 100, memory.at, 1000, 28) == 0
    assert store.get("k") == data[:28] + data[100:1100]
    assert store.put_from_with_metadata("k", memory.at, memory.at, 5, 5) == 0
    assert store.get_size("k") == 1028


def test_1_3_put_from_with_metadata_size_0_is_0(store: Store, memory: Memory) -> None:
    assert store.put_from_with_metadata("k", memory.at, memory.at, 0, 28) == 0
    assert store.is_exist("k") == 0


def test_1_3_put_from_with_metadata_failure_is_negative(store: Store, memory: Memory) -> None:
    """The C++ store returns the magnitude of the code here. Ours is a code."""
    assert store.put_from_with_metadata("", memory.at, memory.at, 10, 10) == -400
    assert store.put_from_with_metadata("k", 0, memory.at, 10, 10) == -600
    assert Store().put_from_with_metadata("k", memory.at, memory.at, 10, 10) == -600


def test_1_3_batch_put_from_and_batch_get_into(store: Store, memory: Memory) -> None:
    data = fill(memory)
    sizes = [4096, 1, 100_000]
    starts = [0, 4096, 5000]
    keys = ["a", "b", "c"]
    assert store.batch_put_from(keys, [memory.at + at for at in starts], sizes) == [0, 0, 0]
    memory[: memory.size] = bytes(memory.size)
    half = memory.size // 2
    got = store.batch_get_into(keys + ["d"], [memory.at + half + at for at in starts] + [memory.at], sizes + [10])
    assert got == sizes + [-704]
    for at, size in zip(starts, sizes):
        assert memory[half + at : half + at + size] == data[at : at + size]


def test_1_3_batch_put_from_existing_keys_are_0(store: Store, memory: Memory) -> None:
    assert store.put("a", b"old") == 0
    assert store.batch_put_from(["a", "b", "b"], [memory.at] * 3, [10, 20, 30]) == [0, 0, 0]
    assert store.get("a") == b"old" and store.get_size("b") in (20, 30)


def test_1_3_batch_put_from_size_0_is_0_and_stores_nothing(store: Store, memory: Memory) -> None:
    assert store.batch_put_from(["a", "b"], [memory.at] * 2, [0, 10]) == [0, 0]
    assert store.batch_put_from_multi_buffers(["c", "d"], [[memory.at], []], [[0], []]) == [0, 0]
    assert store.batch_is_exist(["a", "b", "c", "d"]) == [0, 1, 0, 0]


def test_1_3_length_mismatch_is_all_600(store: Store, memory: Memory) -> None:
    at = memory.at
    assert store.batch_put_from(["a", "b"], [at], [10, 10]) == [-600, -600]
    assert store.batch_put_from(["a", "b"], [at, at], [10]) == [-600, -600]
    assert store.batch_upsert_from(["a", "b"], [at], [10]) == [-600, -600]
    assert store.batch_get_into(["a", "b"], [at, at, at], [10, 10]) == [-600, -600]
    assert store.batch_put_from_multi_buffers(["a", "b"], [[at]], [[10]]) == [-600, -600]
    assert store.batch_put_from_multi_buffers(["a", "b"], [[at], [at, at]], [[10], [10]]) == [-600, -600]
    assert store.batch_get_into_multi_buffers(["a", "b"], [[at], [at]], [[10], [10, 10]]) == [-704, -600]
    assert store.batch_get_session_start(["k"]) == [-704]
    assert store.batch_get_into_multi_buffer_ranges(["a", "b"], [[at]], [[1]], [[0]]) == [-600, -600]
    assert store.batch_get_into_multi_buffer_ranges(["a"], [[at]], [[1]], [[0, 1]]) == [-600]
    assert store.batch_put_session_start(["a", "b"], [1]) == [-600, -600]
    assert store.batch_put_from_multi_buffer_ranges(["a", "b"], [[at]], [[1]], [[0]]) == [-600, -600]
    assert store.get_into_ranges([at], [["a", "b"]], [[[0], [0]]], [[[0], [0]]], [[[1]]]) == [[[-600], [-600]]]
    assert store.batch_is_exist(["a", "b"]) == [0, 0]


def test_1_3_batch_put_from_pool_full_is_200_for_those(store: Store, memory: Memory) -> None:
    config = ReplicateConfig()
    config.with_hard_pin = True
    keys = [f"k{i}" for i in range(30)]
    codes = store.batch_put_from(keys, [memory.at] * 30, [4 << 20] * 30, config)
    assert set(codes) == {0, -200}
    assert store.batch_is_exist(keys) == [int(code == 0) for code in codes]


def test_1_3_batch_put_from_multi_buffers(store: Store, memory: Memory) -> None:
    data = fill(memory)
    at = memory.at
    pointers = [[at, at + 1000, at + 5000], [at + 9000]]
    sizes = [[10, 0, 100], [4096]]
    assert store.batch_put_from_multi_buffers(["a", "b"], pointers, sizes) == [0, 0]
    assert store.get("a") == data[:10] + data[5000:5100]
    assert store.get("b") == data[9000 : 9000 + 4096]
    assert store.batch_put_from_multi_buffers(["a"], [[at]], [[5]], ReplicateConfig()) == [0]
    assert store.get_size("a") == 110


def test_1_3_upsert_from_replaces(store: Store, memory: Memory) -> None:
    data = fill(memory)
    assert store.put("k", b"old") == 0
    assert store.upsert_from("k", memory.at, 10) == 0
    assert store.get("k") == data[:10]
    assert store.upsert_from("k", memory.at, 0) == 0
    assert store.get("k") == data[:10]


def test_1_3_batch_upsert_from_replaces(store: Store, memory: Memory) -> None:
    data = fill(memory)
    assert store.put("a", b"old") == 0
    assert store.batch_upsert_from(["a", "b"], [memory.at, memory.at + 50], [10, 20], ReplicateConfig()) == [0, 0]
    assert store.get_batch(["a", "b"]) == [data[:10], data[50:70]]


def test_1_3_get_into_codes(store: Store, memory: Memory) -> None:
    assert store.get_into("missing", memory.at, 10) == -704
    assert store.batch_put_session_start(["unfinished"], [4]) == [0]
    assert store.get_into("unfinished", memory.at, 10) == -703


def test_1_3_get_into_smaller_buffer_is_600_and_untouched(store: Store, memory: Memory) -> None:
    assert store.put("k", b"value") == 0
    memory[:5] = b"-----"
    assert store.get_into("k", memory.at, 4) == -600
    assert store.batch_get_into(["k"], [memory.at], [4]) == [-600]
    assert memory[:5] == b"-----"


def test_1_3_get_into_larger_buffer_gets_only_the_object(store: Store, memory: Memory) -> None:
    assert store.put("k", b"value") == 0
    memory[:10] = b"----------"
    assert store.get_into("k", memory.at, 10) == 5
    assert memory[:10] == b"value-----"


def test_1_3_batch_get_into_results_are_independent(store: Store, memory: Memory) -> None:
    assert store.put("a", b"1234") == 0 and store.put("b", b"5678") == 0
    at = memory.at
    assert store.batch_get_into(
        ["a", "x", "b", "b", ""], [at, at + 10, at + 20, at + 30, at + 40], [4, 4, 3, 9, 4]
    ) == [
        4,
        -704,
        -600,
        4,
        -400,
    ]


def test_1_3_batch_get_into_multi_buffers(store: Store, memory: Memory) -> None:
    assert store.put("a", b"0123456789") == 0
    at = memory.at
    pointers = [[at, at + 100, at + 200], [at + 300], [at + 400, at + 500]]
    sizes = [[3, 4, 10], [10], [4, 5]]
    assert store.batch_get_into_multi_buffers(["a", "missing", "a"], pointers, sizes) == [10, -704, -600]
    assert (memory[:3], memory[100:104], memory[200:204]) == (b"012", b"3456", b"789\0")
    assert store.batch_get_into_multi_buffers(["a"], [[at]], [[10]], True) == [10]
    assert store.batch_get_into_multi_buffers(["a"], [[at]], [[10]], prefer_alloc_in_same_node=True) == [10]


def test_1_3_get_into_ranges_by_buffer_key_and_fragment(store: Store, memory: Memory) -> None:
    assert store.put("a", b"abcdefghij") == 0 and store.put("b", b"0123456789") == 0
    assert store.register_buffer(memory.at, 1000) == 0
    assert store.register_buffer(memory.at + 4096, 1000) == 0
    got = store.get_into_ranges(
        [memory.at, memory.at + 4096],
        [["a", "b"], ["a", "a"]],
        [[[0, 5], [10]], [[0], [100, 200]]],
        [[[0, 8], [3]], [[9], [2, 4]]],
        [[[3, 2], [4]], [[1], [2, 0]]],
    )
    assert got == [[[3, 2], [4]], [[1], [2, 0]]]
    assert memory[:3] == b"abc" and memory[5:7] == b"ij" and memory[10:14] == b"3456"
    assert memory[4096:4097] == b"j" and memory[4196:4198] == b"cd"


def test_1_3_get_into_ranges_destination_must_be_registered(store: Store, memory: Memory) -> None:
    assert store.put("a", b"abcdefghij") == 0
    at = memory.at
    assert store.get_into_ranges([at], [["a"]], [[[0]]], [[[0]]], [[[3]]]) == [[[-600]]]
    assert store.register_buffer(at, 10) == 0
    assert store.register_buffer(at + 10, 10) == 0
    got = store.get_into_ranges([at], [["a", "a"]], [[[7, 8, 0], [11]]], [[[0, 0, 5], [1]]], [[[3, 3, 2], [4]]])
    assert got == [[[3, -600, 2], [4]]]  # the second spans two buffers
    assert memory[:12] == b"fg\0\0\0\0\0abc\0b"
    assert store.unregister_buffer(at + 10) == 0
    assert store.get_into_ranges([at], [["a"]], [[[7, 11]]], [[[0, 0]]], [[[3, 4]]]) == [[[3, -600]]]


def test_1_3_get_into_ranges_source_must_be_inside(store: Store, memory: Memory) -> None:
    assert store.put("a", b"abcdefghij") == 0
    assert store.register_buffer(memory.at, memory.size) == 0
    got = store.get_into_ranges(
        [memory.at], [["a", "missing"]], [[[0, 10, 20], [30, 40]]], [[[8, 10, 0], [0, 1]]], [[[3, 1, 10], [1, 1]]]
    )
    assert got == [[[-600, -600, 10], [-704, -704]]]
    assert memory[20:30] == b"abcdefghij"


def test_1_3_get_into_ranges_overlapping_destinations_are_600(store: Store, memory: Memory) -> None:
    assert store.put("a", b"abcdefghij") == 0
    assert store.register_buffer(memory.at, memory.size) == 0
    got = store.get_into_ranges(
        [memory.at], [["a", "a", "a"]], [[[0], [2], [100]]], [[[0], [0], [0]]], [[[4], [4], [4]]]
    )
    assert got == [[[-600], [-600], [4]]]


def test_1_3_get_into_ranges_empty(store: Store, memory: Memory) -> None:
    assert store.get_into_ranges([], [], [], [], []) == []
    assert store.register_buffer(memory.at, 10) == 0
    assert store.get_into_ranges([memory.at], [[]], [[]], [[]], [[]]) == [[]]
    assert store.get_into_ranges([memory.at], [["k"]], [[[]]], [[[]]], [[[]]]) == [[[]]]


def test_1_3_get_into_ranges_of_other_shapes_follow_the_keys(store: Store, memory: Memory) -> None:
    assert store.put("a", b"abcdefghij") == 0
    assert store.register_buffer(memory.at, memory.size) == 0
    read, at = store.get_into_ranges, memory.at
    assert read([at], [["a", "a"]], [[[0], []]], [[[0], []]], [[[1]]]) == [[[-600], []]]
    assert read([at], [["a", "a"]], [[[0], [5, 9]]], [[[0], [0, 0]]], [[[3], [3]]]) == [[[3], [-600, -600]]]
    assert memory[:3] == b"abc"


def test_1_3_registered_memory_that_is_registered_again_stays(store: Store, memory: Memory) -> None:
    """As in the C++ store what overlaps a registered buffer is refused, and it is neither shrunk nor dropped."""
    assert store.put("a", b"abcdefghij") == 0
    at = memory.at
    assert store.register_buffer(at, 1000) == 0
    for base, size in ((at, 1000), (at, 10), (at, 2000), (at + 10, 5), (at + 990, 100)):
        assert store.register_buffer(base, size) == -600
        assert store.get_into_ranges([at], [["a"]], [[[12, 990, 995]]], [[[0, 0, 0]]], [[[10, 10, 10]]]) == [[[10, 10, -600]]]
    assert store.unregister_buffer(at + 10) == -600
    assert store.unregister_buffer(at) == 0
    assert store.unregister_buffer(at) == -600
    assert store.get_into_ranges([at], [["a"]], [[[0]]], [[[0]]], [[[10]]]) == [[[-600]]]
    assert store.register_buffer(at, 10) == 0


def test_1_3_get_session(store: Store, memory: Memory) -> None:
    assert store.put_batch(["a", "b"], [b"abcdefghij", b"0123456789"]) == 0
    keys: List[str] = ["a", "b"]
    at = memory.at
    assert store.batch_get_session_start(keys + ["missing"]) == [0, 0, -704]
    for layer in range(2):
        pointers = [[at + layer * 100, at + layer * 100 + 50], [at + 1000 + layer * 100]]
        got = store.batch_get_into_multi_buffer_ranges(
            keys, pointers, [[2, 3], [5]], [[layer * 5, layer * 5 + 2], [layer * 5]]
        )
        assert got == [5, 5]
    assert memory[0:2] + memory[50:53] + memory[100:102] + memory[150:153] == b"abcdefghij"
    assert memory[1000:1005] + memory[1100:1105] == b"0123456789"
    assert store.batch_get_into_multi_buffer_ranges(["a"], [[at]], [[6]], [[5]]) == [-600]
    assert store.batch_get_session_end(keys) == 0
    assert store.batch_get_session_end(keys) == 0
    assert store.batch_get_into_multi_buffer_ranges(keys, [[at], [at]], [[1], [1]], [[0], [0]]) == [-600, -600]


def test_1_3_get_session_holds_the_object(store: Store, memory: Memory) -> None:
    """Here a session's lease never runs out, so -707 does not happen, and nobody takes the object away."""
    assert store.put("k", b"old bytes") == 0
    assert store.batch_get_session_start(["k"]) == [0]
    assert store.upsert("k", b"new") == 0
    assert store.remove("k", True) == 0
    assert store.batch_get_into_multi_buffer_ranges(["k"], [[memory.at]], [[9]], [[0]]) == [9]
    assert memory[:9] == b"old bytes"
    assert store.batch_get_session_end(["k"]) == 0


def test_1_3_put_session(store: Store, memory: Memory) -> None:
    data = fill(memory)
    keys = ["a", "b"]
    at = memory.at
    assert store.batch_put_session_start(keys, [200, 50]) == [0, 0]
    assert store.batch_is_exist(keys) == [0, 0]
    assert store.batch_put_from_multi_buffer_ranges(keys, [[at + 100], [at]], [[100], [50]], [[100], [0]]) == [100, 50]
    assert store.batch_put_from_multi_buffer_ranges(["a"], [[at, at + 50]], [[50, 50]], [[0, 50]]) == [100]
    assert store.batch_put_session_end(keys) == [0, 0]
    assert store.get_batch(keys) == [data[:200], data[:50]]
    assert store.batch_put_session_end(keys) == [-600, -600]


def test_1_3_put_session_of_an_existing_object_is_705(store: Store) -> None:
    assert store.put("k", b"v") == 0
    assert store.batch_put_session_start(["k", "l"], [4, 4]) == [-705, 0]


def test_1_3_close_gives_open_put_sessions_up(store: Store, connect: "object", memory: Memory) -> None:
    other = connect()  # type: ignore[operator]
    assert other.batch_put_session_start(["k"], [4]) == [0]
    assert store.batch_put_session_start(["k"], [4]) == [-703] or store.is_exist("k") == 0
    assert other.close() == 0
    assert store.put("k", b"v") == 0


def test_1_3_put_session_twice_is_600(store: Store) -> None:
    assert store.batch_put_session_start(["k"], [4]) == [0]
    assert store.batch_put_session_start(["k"], [4]) == [-600]


def test_1_3_put_session_revoke(store: Store) -> None:
    assert store.batch_put_session_start(["k"], [4]) == [0]
    assert store.batch_put_session_revoke(["k", "missing"]) == [0, -600]
    assert store.put("k", b"v") == 0
    assert store.get("k") == b"v"


def test_1_3_put_session_incomplete_is_2003_and_not_stored(store: Store, memory: Memory) -> None:
    assert store.batch_put_session_start(["k"], [4]) == [0]
    assert store.batch_put_from_multi_buffer_ranges(["k"], [[memory.at]], [[3]], [[0]]) == [3]
    assert store.batch_put_session_end(["k"]) == [-2003]
    assert store.is_exist("k") == 0


def test_1_3_put_session_group_ids_must_match(store: Store) -> None:
    config = ReplicateConfig()
    config.group_ids = ["g"]
    assert store.batch_put_session_start(["a", "b"], [4, 4], config) == [-600, -600]
    config.group_ids = ["g", "g"]
    assert store.batch_put_session_start(["a", "b"], [4, 4], config) == [0, 0]


def test_1_3_put_session_outside_the_object_is_600(store: Store, memory: Memory) -> None:
    assert store.batch_put_session_start(["k"], [4]) == [0]
    assert store.batch_put_from_multi_buffer_ranges(["k"], [[memory.at]], [[2]], [[3]]) == [-600]


def test_1_3_sessions_are_a_client_s(store: Store, connect: "object", memory: Memory) -> None:
    other = connect()  # type: ignore[operator]
    assert store.put("k", b"v") == 0
    assert store.batch_get_session_start(["k"]) == [0]
    assert other.batch_get_into_multi_buffer_ranges(["k"], [[memory.at]], [[1]], [[0]]) == [-600]


def test_1_3_newer_probes_find_nothing(store: Store) -> None:
    for name in ("batch_get_session_start_with_sources", "record_prefetched_tokens"):
        assert not hasattr(store, name)
        assert getattr(store, name, None) is None


def test_1_3_not_set_up(memory: Memory) -> None:
    store, at = Store(), memory.at
    assert store.put_from("k", at, 10) == -600
    assert store.put_from("k", at, 0) == -600
    assert store.upsert_from("k", at, 10) == -600
    assert store.put_from_with_metadata("k", at, at, 0, 1) == -600
    assert store.batch_put_from(["k", "l"], [at, at], [10, 0]) == [-600, -600]
    assert store.batch_upsert_from(["k"], [at], [10]) == [-600]
    assert store.batch_put_from_multi_buffers(["k"], [[at]], [[0]]) == [-600]
    assert store.get_into("k", at, 10) == -600
    assert store.batch_get_into(["k", "l"], [at, at], [10, 10]) == [-600, -600]
    assert store.batch_get_into_multi_buffers(["k"], [[at]], [[10]]) == [-600]
    assert store.get_into_ranges([at], [["k"]], [[[0]]], [[[0]]], [[[1]]]) == [[[-600]]]
    assert store.batch_get_session_start(["k"]) == [-600]
    assert store.batch_get_into_multi_buffer_ranges(["k"], [[at]], [[1]], [[0]]) == [-600]
    assert store.batch_get_session_end(["k"]) == -600
    assert store.batch_put_session_start(["k"], [4]) == [-600]
    assert store.batch_put_from_multi_buffer_ranges(["k"], [[at]], [[1]], [[0]]) == [-600]
    assert store.batch_put_session_end(["k"]) == [-600]
    assert store.batch_put_session_revoke(["k"]) == [-600]


def test_1_3_empty_batches(store: Store) -> None:
    for client in (store, Store()):
        assert client.batch_put_from([], [], []) == []
        assert client.batch_get_into([], [], []) == []
        assert client.batch_put_from_multi_buffers([], [], []) == []
        assert client.batch_get_into_multi_buffers([], [], []) == []
        assert client.batch_put_session_start([], []) == []
        assert client.batch_get_session_start([]) == []


class Index:
    """An integer as numpy's are: not an int, but good as an index."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


def test_1_3_integers_that_are_not_int(store: Store, memory: Memory) -> None:
    at, ten = Index(memory.at), Index(10)
    assert store.register_buffer(at, ten) == 0  # type: ignore[arg-type]
    assert store.put_from("k", at, ten) == 0  # type: ignore[arg-type]
    assert store.get_into("k", at, ten) == 10  # type: ignore[arg-type]
    assert store.batch_get_into(["k"], [at], [ten]) == [10]  # type: ignore[list-item]
    assert store.unregister_buffer(at) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [-1, 1 << 64, 1.5, None, "1"])
def test_1_3_what_is_no_address_or_size_is_typeerror(store: Store, memory: Memory, bad: Any) -> None:
    with pytest.raises(TypeError):
        store.put_from("k", memory.at, bad)
    with pytest.raises(TypeError):
        store.get_into("k", bad, 1)
    with pytest.raises(TypeError):
        store.upsert_from("k", bad, 1)


@pytest.mark.parametrize("bad", [-1, 1 << 64, 1.5, None, "1", []])
def test_1_3_a_malformed_item_fails_alone(store: Store, memory: Memory, bad: Any) -> None:
    """Each place of a batch call in turn holds what is no number, in the first item and in the last."""
    at, keys = memory.at, ["a", "b"]
    assert store.register_buffer(at, memory.size) == 0
    fill(memory)

    def both(call: Callable[..., List[int]], good: List[int], *columns: List[Any]) -> None:
        """columns are good; each item of each is replaced by bad."""
        for column in columns:
            for i in range(2):
                nested, was = isinstance(column[i], list), column[i]
                for wrong in ([[bad], bad, [*was, bad]] if nested else [bad]):
                    column[i] = wrong
                    assert call(keys, *columns) == [-600 if i == k else good[k] for k in range(2)]
                    column[i] = was
        assert call(keys, *columns) == good

    config = ReplicateConfig()
    config.group_ids = ["g", "h"]
    both(store.batch_put_from, [0, 0], [at, at], [10, 10])
    both(lambda *a: store.batch_put_from(*a, config), [0, 0], [at, at], [10, 10])
    both(store.batch_upsert_from, [0, 0], [at, at], [10, 10])
    both(store.batch_get_into, [10, 10], [at, at + 100], [10, 10])
    both(lambda k, p, s: store.batch_get_into_multi_buffers(k, p, s), [10, 10], [[at], [at + 100]], [[10], [10]])
    assert store.batch_get_session_start([*keys, bad]) == [0, 0, -704 if bad == "1" else -400]
    read = store.batch_get_into_multi_buffer_ranges
    both(read, [5, 5], [[at], [at + 100]], [[5], [5]], [[0], [5]])
    assert store.batch_get_session_end([bad, *keys]) == 0
    assert store.batch_remove(keys, True) == [0, 0]
    starts = store.batch_put_session_start(keys, [10, bad])
    assert starts == [0, -600] and store.batch_put_session_start(["b"], [10]) == [0]
    write = store.batch_put_from_multi_buffer_ranges
    both(write, [10, 10], [[at], [at + 100]], [[10], [10]], [[0], [0]])
    assert store.batch_put_session_end(keys) == [0, 0]


def test_1_3_null_with_a_size_fails_alone(store: Store, memory: Memory) -> None:
    at = memory.at
    assert store.batch_put_from(["a", "b"], [0, at], [10, 10]) == [-600, 0]
    assert store.batch_put_from_multi_buffers(["a", "c"], [[at, 0], [at]], [[10, 1], [10]]) == [-600, 0]
    assert store.batch_get_into(["b", "c"], [0, at], [10, 10]) == [-600, 10]
    assert store.batch_get_into(["b", "c"], [at, at + 20], [1 << 63, 10]) == [-600, 10]
    assert store.batch_get_into(["b", "c"], [at, (1 << 64) - 5], [10, 10]) == [10, -600]


def test_1_3_lists_that_grow_during_the_call(store: Store, memory: Memory) -> None:
    """Results have room for the keys that there were: what another thread adds meanwhile is not looked at, or is -600."""
    assert store.put("a", b"1") == 0

    class Key(str):
        def encode(self, *_: str) -> bytes:  # type: ignore[override]
            for items, item in ((keys, "a"), (pointers, memory.at), (sizes, 1)):
                items.extend([item] * 100_000)
            return b"a"

    keys: List[Any] = [Key("a"), b"a"]  # mixed, so that each is encoded by itself
    pointers: List[Any] = [memory.at, memory.at]
    sizes: List[Any] = [1, 1]
    calls: List[Tuple[Callable[[], Any], Any]] = [
        (lambda: store.batch_is_exist(keys), [1, 1]),
        (lambda: store.batch_get_into(keys, pointers, sizes), [1, 1]),
        (lambda: store.batch_put_from(keys, pointers, sizes), [0, 0]),
        (lambda: store.batch_upsert_from(keys, pointers, sizes), [0, 0]),
        (lambda: store.batch_get_session_start(keys), [0, 0]),
        (lambda: store.batch_remove(keys, True), [0, -704]),
    ]
    for call, want in calls:
        for items in (keys, pointers, sizes):
            del items[2:]
        assert call() == want
