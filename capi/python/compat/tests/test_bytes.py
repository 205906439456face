"""Section 1.2 of the C++ store's Python interface: the byte API."""

from __future__ import annotations

import array
import logging
from typing import Any, Callable

import pytest
from conftest import Connect
from mooncake.store import BufferHandle, MooncakeDistributedStore, ReplicateConfig

Store = MooncakeDistributedStore


def test_1_2_put_and_get(store: Store) -> None:
    assert store.put("k", b"value") == 0
    assert store.get("k") == b"value"


@pytest.mark.parametrize(
    "value", [bytearray(b"abcd"), memoryview(b"abcd"), array.array("H", [0x6261, 0x6463]), memoryview(b"xabcdx")[1:5]]
)
def test_1_2_put_takes_any_buffer(store: Store, value: Any) -> None:
    assert store.put("k", value) == 0
    assert store.get("k") == b"abcd"


def test_1_2_put_refuses_what_is_no_buffer(store: Store) -> None:
    for value in ("text", 1, None):
        with pytest.raises(TypeError):
            store.put("k", value)


def test_1_2_put_existing_key_is_0_and_keeps_old_bytes(store: Store) -> None:
    assert store.put("k", b"old") == 0
    assert store.put("k", b"newer") == 0
    assert store.get("k") == b"old"


def test_1_2_put_empty_is_600(store: Store) -> None:
    assert store.put("k", b"") == -600
    assert store.is_exist("k") == 0


def test_1_2_put_pool_full_is_200(store: Store) -> None:
    config = ReplicateConfig()
    config.with_hard_pin = True
    codes = [store.put(f"k{i}", bytes(4 << 20), config) for i in range(30)]
    assert set(codes) == {0, -200}
    assert [store.is_exist(f"k{i}") for i in range(30)] == [int(code == 0) for code in codes]


def test_1_2_put_same_node_is_600(store: Store) -> None:
    config = ReplicateConfig()
    config.prefer_alloc_in_same_node = True
    assert store.put("k", b"v", config) == -600


def test_1_2_put_local_buffer_size_0_works_here(connect: Connect, address: str) -> None:
    """There is no staging arena that could be missing or exhausted."""
    store = Store()
    assert store.setup("h", "P2PHANDSHAKE", 32 << 20, 0, "tcp", "", address) == 0
    assert store.put("k", bytes(20 << 20)) == 0
    assert store.get("k") == bytes(20 << 20)
    store.close()


def test_1_2_put_parts(store: Store) -> None:
    assert store.put_parts("k", b"meta", memoryview(b"data"), bytearray(b"tail")) == 0
    assert store.get("k") == b"metadatatail"
    assert store.put_parts("k", b"other") == 0
    assert store.get("k") == b"metadatatail"
    assert store.put_parts("c", b"x", b"", b"y", config=ReplicateConfig()) == 0
    assert store.get("c") == b"xy"


def test_1_2_put_parts_total_0_is_0_with_a_warning(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "mooncake.store"):
        assert store.put_parts("k", b"", b"") == 0
        assert store.put_parts("k") == 0
    assert len(caplog.records) == 2
    assert store.is_exist("k") == 0


def test_1_2_put_parts_must_be_one_dimensional_bytes(store: Store) -> None:
    for part in (array.array("H", [1]), memoryview(bytes(4)).cast("B", (2, 2))):
        with pytest.raises(RuntimeError, match="1-D"):
            store.put_parts("k", part)
    with pytest.raises(TypeError):
        store.put_parts("k", "text")


def test_1_2_put_batch(store: Store) -> None:
    assert store.put_batch(["a", "b"], [b"1", b"22"]) == 0
    assert store.get_batch(["a", "b"]) == [b"1", b"22"]
    assert store.put_batch([], []) == 0


def test_1_2_put_batch_is_the_first_error(store: Store) -> None:
    assert store.put_batch(["a", "", "c"], [b"1", b"2", b"3"]) == -400
    assert store.get_batch(["a", "", "c"]) == [b"1", b"", b"3"]


def test_1_2_put_batch_with_an_empty_value_stores_nothing(store: Store) -> None:
    assert store.put("c", b"old") == 0
    assert store.put_batch(["a", "b"], [b"1", b""]) == -600
    assert store.upsert_batch(["b", "c"], [b"", b"3"]) == -600
    assert store.get_batch(["a", "b", "c"]) == [b"", b"", b"old"]


@pytest.mark.parametrize("bad", [None, 5, "text"])
def test_1_2_a_value_that_is_no_buffer_fails_alone(store: Store, bad: object) -> None:
    assert store.put_batch(["a", "b"], [bad, b"2"]) == -600
    assert store.upsert_batch(["c", "d"], [b"3", bad]) == -600
    assert store.get_batch(["a", "b", "c", "d"]) == [b"", b"2", b"3", b""]


@pytest.mark.parametrize("bad", [None, 1, "\ud800"])
def test_1_2_a_key_that_is_none_fails_alone(store: Store, bad: Any) -> None:
    """The others of its batch do not notice."""
    assert store.put_batch([bad, "a"], [b"1", b"2"]) == -600
    assert store.batch_is_exist(["a", bad]) == [1, -400]
    assert store.get_batch([bad, "a"]) == [b"", b"2"]
    handles = store.batch_get_buffer(["a", bad])
    assert handles[0] is not None and handles[1] is None
    del handles
    assert list(store.batch_get_replica_desc([bad, "a"])) == ["a"]
    assert store.batch_remove([bad, "a"], True) == [-400, 0]
    assert store.put("a", b"2") == 0
    assert store.batch_replica_clear([bad, "a"]) == ["a"]


def test_1_2_put_batch_size_mismatch_is_600(store: Store) -> None:
    assert store.put_batch(["a", "b"], [b"1"]) == -600
    assert store.is_exist("a") == 0


def test_1_2_get_miss_is_empty_bytes(store: Store) -> None:
    assert store.get("missing") == b""
    assert store.get("") == b""
    assert store.get("k" * 5000) == b""


def test_1_2_get_batch(store: Store) -> None:
    assert store.put("a", b"1") == 0 and store.put("c", bytes(100_000)) == 0
    assert store.get_batch(["a", "b", "c"]) == [b"1", b"", bytes(100_000)]
    assert store.get_batch([]) == []


def test_1_2_get_buffer(store: Store) -> None:
    assert store.put("k", b"value") == 0
    handle = store.get_buffer("k")
    assert handle is not None and isinstance(handle, BufferHandle)
    assert handle.size() == len(handle) == 5  # type: ignore[arg-type]
    assert bytes(handle) == b"value"  # type: ignore[call-overload]
    assert store.get_buffer("missing") is None


def test_1_2_batch_get_buffer(store: Store) -> None:
    assert store.put_batch(["a", "c"], [b"1", b"3"]) == 0
    one, two, three = store.batch_get_buffer(["a", "b", "c"])
    assert bytes(one) == b"1" and two is None and bytes(three) == b"3"  # type: ignore[call-overload]
    assert store.batch_get_buffer([]) == []


def test_1_2_upsert_replaces(store: Store) -> None:
    assert store.upsert("k", b"first") == 0
    assert store.upsert("k", b"second one") == 0
    assert store.get("k") == b"second one"
    assert store.upsert("k", b"") == -600
    assert store.get("k") == b"second one"


def test_1_2_upsert_parts_replaces(store: Store) -> None:
    assert store.put("k", b"old") == 0
    assert store.upsert_parts("k", b"a", b"bc", config=ReplicateConfig()) == 0
    assert store.get("k") == b"abc"


def test_1_2_upsert_batch_replaces(store: Store) -> None:
    assert store.put("a", b"old") == 0
    assert store.upsert_batch(["a", "b"], [b"new", b"too"]) == 0
    assert store.get_batch(["a", "b"]) == [b"new", b"too"]
    assert store.upsert_batch(["a"], []) == -600


def test_1_2_remove(store: Store) -> None:
    assert store.put("k", b"v") == 0
    assert store.remove("k") == 0
    assert store.remove("k") == -704
    assert store.remove("k", True) == -704


def test_1_2_remove_leased_is_706_unless_force(store: Store) -> None:
    """A fresh put has no lease; is_exist and get grant one."""
    assert store.put("k", b"v") == 0
    assert store.is_exist("k") == 1
    assert store.remove("k") == -706
    assert store.remove("k", force=True) == 0
    assert store.is_exist("k") == 0


def test_1_2_remove_unfinished_is_703_even_forced(store: Store) -> None:
    assert store.batch_put_session_start(["k"], [4]) == [0]
    assert store.remove("k") == -703
    assert store.remove("k", True) == -703


def test_1_2_batch_remove(store: Store) -> None:
    assert store.put_batch(["a", "b"], [b"1", b"2"]) == 0
    assert store.is_exist("b") == 1
    assert store.batch_remove(["a", "b", "c"]) == [0, -706, -704]
    assert store.batch_remove(["b"], True) == [0]
    assert store.batch_remove([]) == []


def test_1_2_remove_by_regex_searches(store: Store) -> None:
    assert store.put_batch(["abc", "xbz", "q"], [b"1", b"2", b"3"]) == 0
    assert store.remove_by_regex("b") == 2
    assert store.batch_is_exist(["abc", "xbz", "q"]) == [0, 0, 1]
    assert store.remove_by_regex("^q$") == 0  # leased: skipped
    assert store.remove_by_regex("^q$", True) == 1


def test_1_2_remove_by_regex_bad_pattern_is_600(store: Store) -> None:
    for pattern in ("(", "(?=a)b", r"(a)\1", "a\0b"):
        assert store.remove_by_regex(pattern) == -600


def test_1_2_remove_all_counts_and_skips_leased(store: Store) -> None:
    assert store.put_batch(["a", "b", "c"], [b"1", b"2", b"3"]) == 0
    assert store.is_exist("a") == 1
    assert store.remove_all() == 2
    assert store.remove_all(True) == 1
    assert store.remove_all(force=True) == 0


def test_1_2_is_exist_is_1_or_0_and_grants_a_lease(store: Store) -> None:
    assert store.is_exist("k") == 0
    assert store.put("k", b"v") == 0
    assert store.is_exist("k") == 1
    assert store.remove("k") == -706


def test_1_2_is_exist_of_an_unfinished_object_is_0(store: Store) -> None:
    assert store.batch_put_session_start(["k"], [4]) == [0]
    assert store.is_exist("k") == 0
    assert store.batch_is_exist(["k"]) == [0]


def test_1_2_batch_is_exist(store: Store) -> None:
    assert store.put("a", b"1") == 0
    assert store.batch_is_exist(["a", "b"]) == [1, 0]
    assert store.batch_is_exist(("b", "a")) == [0, 1]
    assert store.batch_is_exist([]) == []
    assert store.remove("a") == -706


def test_1_2_exist_of_what_is_no_key_is_negative(store: Store) -> None:
    assert store.is_exist("") == -400
    assert store.is_exist("k" * 4097) == -400
    assert store.batch_is_exist(["", "k" * 4097, "k"]) == [-400, -400, 0]
    assert store.batch_is_exist([""]) == [-400]


def test_1_2_get_size_and_lease(store: Store) -> None:
    assert store.get_size("k") == -704
    assert store.put("k", b"value") == 0
    assert store.get_size("k") == 5
    assert store.remove("k") == -706


def test_1_2_get_grants_a_lease(store: Store) -> None:
    assert store.put("k", b"value") == 0
    assert store.get("k") == b"value"
    assert store.remove("k") == -706


KEYS = ["plain", "nul\0inside", "\0", "nul at the end\0", "ü日本", "x" * 4096, "a\nb", "../x", "last\0"]


@pytest.mark.parametrize("key", KEYS)
def test_1_2_any_key_in_every_method(store: Store, key: str) -> None:
    assert store.put(key, b"v1") == 0
    assert store.get(key) == b"v1"
    assert store.is_exist(key) == 1
    assert store.get_size(key) == 2
    assert bytes(store.get_buffer(key)) == b"v1"  # type: ignore[call-overload]
    assert store.upsert(key, b"v22") == 0
    assert list(store.batch_get_replica_desc([key])) == [key]
    assert store.get(key.encode()) == b"v22"
    assert store.remove(key, True) == 0
    assert store.is_exist(key) == 0


@pytest.mark.parametrize("odd", KEYS + [""])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_1_2_any_key_anywhere_in_a_batch(store: Store, odd: str, at: int) -> None:
    keys = ["one", "two"]
    keys.insert(at, odd)
    values = [f"value of {key!r}".encode() for key in keys]
    no_key = odd == ""
    assert store.put_batch(keys, values) == (-400 if no_key else 0)
    if no_key:
        values[at] = b""
    assert store.get_batch(keys) == values
    assert store.batch_is_exist(keys) == [-400 if key == "" else 1 for key in keys]
    assert [h and bytes(h) for h in store.batch_get_buffer(keys)] == [v or None for v in values]  # type: ignore[call-overload]
    assert store.batch_remove(keys, True) == [-400 if key == "" else 0 for key in keys]


def test_1_2_keys_may_be_bytes_and_mixed(store: Store) -> None:
    assert store.put_batch(["a", b"b", b"\xff\xfe"], [b"1", b"2", b"3"]) == 0
    assert store.batch_is_exist([b"a", "b", b"\xff\xfe"]) == [1, 1, 1]
    assert store.get(b"\xff\xfe") == b"3"


def test_1_2_keys_that_are_none_are_typeerror(store: Store) -> None:
    calls: "list[Callable[[], object]]" = [
        lambda: store.put(1, b"v"),  # type: ignore[arg-type]
        lambda: store.get(None),  # type: ignore[arg-type]
        lambda: store.is_exist(1),  # type: ignore[arg-type]
        lambda: store.batch_is_exist("abc"),
        lambda: store.get_batch(b"abc"),  # type: ignore[arg-type]
        lambda: store.batch_get_into("a", [1], [1]),
        lambda: store.batch_put_from("a", [1], [1]),
    ]
    for call in calls:
        with pytest.raises(TypeError):
            call()


def test_1_2_a_batch_that_is_too_long(store: Store) -> None:
    keys = ["k"] * ((1 << 20) + 1)
    assert set(store.batch_is_exist(keys)) == {0}
    assert set(store.batch_remove(keys)) == {-600}


def test_1_2_not_set_up() -> None:
    """-600, b"", None, [] or a list of -600, after the method's type. But exist is 0: LMCache takes an error for a hit."""
    store = Store()
    assert store.put("k", b"v") == -600
    assert store.put_parts("k", b"v") == -600
    assert store.put_parts("k", b"") == -600
    assert store.put_batch(["k"], [b"v"]) == -600
    assert store.upsert("k", b"v") == -600
    assert store.upsert_parts("k", b"v") == -600
    assert store.upsert_batch(["k"], [b"v"]) == -600
    assert store.get("k") == b""
    assert store.get_batch(["k", "l"]) == [b""]
    assert store.get_buffer("k") is None
    assert store.batch_get_buffer(["k"]) == []
    assert store.remove("k") == -600
    assert store.batch_remove(["k", "l"]) == [-600, -600]
    assert store.remove_by_regex("k") == -600
    assert store.remove_all() == -600
    assert store.is_exist("k") == 0
    assert store.is_exist("k\0") == 0
    assert store.batch_is_exist(["k", "l"]) == [0, 0]
    assert store.get_size("k") == -600
    assert store.get_hostname() == ""


def test_1_2_closed_is_as_not_set_up(store: Store) -> None:
    assert store.put("k", b"v") == 0
    store.close()
    assert store.put("k", b"v") == -600
    assert store.get("k") == b""
    assert store.is_exist("k") == 0
    assert store.batch_is_exist(["k"]) == [0]
    assert store.batch_get_into(["k"], [1], [1]) == [-600]
