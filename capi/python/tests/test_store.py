# SPDX-License-Identifier: Apache-2.0
"""Objects: every method of Store that is not a batch."""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path

import pytest

import libmooncake
from libmooncake import ObjectType, PutOptions, Store


def test_put_get(store: Store) -> None:
    store.put("key", b"value")
    assert store.get("key") == b"value"
    assert store.get(b"key", verify=True) == b"value"
    assert store.get("key", verify=False) == b"value"
    with pytest.raises(libmooncake.ExistsError) as caught:
        store.put("key", b"other")
    assert caught.value.code == -705 and caught.value.name == "OBJECT_ALREADY_EXISTS"
    store.put("key", b"other", PutOptions(keep=True))
    assert store.get("key") == b"value"


def test_get_missing(store: Store) -> None:
    with pytest.raises(KeyError) as caught:
        store.get("none")
    assert isinstance(caught.value, libmooncake.NotFoundError) and caught.value.code == -704
    assert store.get("none", None) is None
    assert store.get("none", b"default") == b"default"


def test_upsert(store: Store) -> None:
    store.upsert("key", b"one")
    before = store.stat("key").generation
    store.upsert("key", b"two and more", PutOptions(type=ObjectType.KVCACHE, keep=True))
    assert store.get("key") == b"two and more"
    assert store.stat("key").generation > before
    assert store.stat("key").type is ObjectType.KVCACHE


def test_put_parts(store: Store) -> None:
    store.put_parts("key", [b"ab", bytearray(b"cd"), memoryview(b"ef")], PutOptions(hard_pin=True))
    assert store.get("key") == b"abcdef"
    assert store.stat("key").hard_pin
    with pytest.raises(libmooncake.ExistsError):
        store.put_parts("key", [b"ab"])


@pytest.mark.parametrize("key", ["schlüssel", "a" * 4096, "nul\0inside", b"\xff\xfe", "\udcff\udcfe", "\0"])
def test_any_key(store: Store, key: str | bytes) -> None:
    store.put(key, b"value")
    assert store.get(key) == b"value"
    assert store.exists(key) and key in store and store.probe(key)
    assert store.size(key) == 5
    into = bytearray(5)
    assert store.get_into(key, into) == 5 and into == b"value"
    assert store.exists_batch([key, "other"]) == [True, False]
    raw = key if isinstance(key, bytes) else key.encode("utf-8", "surrogateescape")
    assert store.stat(key).key == raw.decode("utf-8", "surrogateescape")
    store.remove(key, force=True)
    assert not store.exists(key)


def test_keys_that_are_none(store: Store) -> None:
    for key in ("", "a" * 4097, b"\0" * 4097):
        with pytest.raises(libmooncake.InvalidKeyError):
            store.put(key, b"value")
        with pytest.raises(ValueError):
            store.get(key)
    for wrong in (1, None, ["a"]):
        with pytest.raises(TypeError):
            store.get(wrong)  # type: ignore[call-overload]
        with pytest.raises(TypeError):
            store.exists(wrong)  # type: ignore[arg-type]


def test_empty_object(store: Store) -> None:
    with pytest.raises(libmooncake.InvalidError):
        store.put("key", b"")


def test_no_space(store: Store) -> None:
    with pytest.raises(libmooncake.NoSpaceError):
        store.put("key", bytes(256 << 20))
    with pytest.raises(libmooncake.NoSpaceError) as caught:
        for i in range(200):
            store.put(f"key{i}", bytes(1 << 20), PutOptions(hard_pin=True))
    assert caught.value.code == -200 and caught.value.text


def test_get_ranges(store: Store) -> None:
    store.put("key", bytes(range(100)))
    one, two = bytearray(3), bytearray(5)
    assert store.get_ranges("key", [(10, one), (50, two)]) == [3, 5]
    assert one == bytes(range(10, 13)) and two == bytes(range(50, 55))
    with pytest.raises(libmooncake.NotFoundError):
        store.get_ranges("none", [(0, one)])
    with pytest.raises(libmooncake.InvalidError):
        store.get_ranges("key", [(99, one)])


def test_writer(store: Store) -> None:
    with store.create("key", 10) as writer:
        assert writer.write(b"abc") == 3
        writer.write_at(7, bytearray(b"xyz"))
        writer.write_at(3, memoryview(b"defg"))
        assert not store.exists("key")
    assert writer.closed and store.get("key") == b"abcdefgxyz"
    with pytest.raises(libmooncake.InvalidError):
        writer.commit()
    with pytest.raises(libmooncake.InvalidError):
        writer.write(b"late")
    writer.abort()
    assert store.exists("key")


def test_writer_that_fails(store: Store) -> None:
    with pytest.raises(RuntimeError):
        with store.create("key", 10):
            raise RuntimeError
    with pytest.raises(libmooncake.IncompleteError):
        with store.create("key", 10) as writer:
            writer.write(b"abc")
    writer = store.create("key", 10)
    with pytest.raises(libmooncake.ExistsError):
        store.create("key", 10)
    del writer
    store.put("key", b"value")


def test_writer_from_threads(store: Store) -> None:
    with store.create("key", 16 * 4096) as writer:
        threads = [threading.Thread(target=writer.write_at, args=(i * 4096, bytes([i]) * 4096)) for i in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert store.get("key") == b"".join(bytes([i]) * 4096 for i in range(16))


def test_probe_grants_no_lease(store: Store) -> None:
    store.put("key", b"value")
    assert store.probe("key") and not store.probe("none")
    store.remove("key")
    store.put("key", b"value")
    assert store.exists("key")
    with pytest.raises(libmooncake.LeasedError) as caught:
        store.remove("key")
    assert caught.value.code == -706
    assert store.stat("key").lease_ms > 0
    store.remove("key", force=True)
    with pytest.raises(libmooncake.NotFoundError):
        store.remove("key")


def test_stat(store: Store) -> None:
    options = PutOptions(type=ObjectType.TENSOR, soft_pin_ms=60_000, group=b"group\0\xff")
    store.put("key", b"value", options)
    info = store.stat("key")
    assert (info.key, info.nbytes, info.type, info.group) == ("key", 5, ObjectType.TENSOR, "group\0\udcff")
    assert 0 < info.soft_pin_ms <= 60_000 and not info.hard_pin
    assert info.in_memory and not info.on_ssd and not info.durable and not info.link and info.readers == 0
    with pytest.raises(libmooncake.NotFoundError):
        store.stat("none")


def test_group_of_full_length(store: Store) -> None:
    store.put("key", b"value", PutOptions(group="g" * 4096))
    assert store.stat("key").group == "g" * 4096


def test_remove_all_and_regex(store: Store) -> None:
    store.put_batch([f"a{i}" for i in range(10)] + ["b"], [b"x"] * 11)
    assert store.remove_regex("^a[0-4]$") == 5
    with pytest.raises(libmooncake.InvalidError):
        store.remove_regex("(")
    assert store.exists("b")
    assert store.remove_all() == 5
    assert store.remove_all(force=True) == 1


def test_link(store: Store) -> None:
    store.put("target", b"value")
    store.link("link", "target")
    store.remove("target", force=True)
    assert store.get("link") == b"value"
    assert store.stat("link").link
    with pytest.raises(libmooncake.NotFoundError):
        store.link("other", "none")


def test_pins(store: Store) -> None:
    store.put("key", b"value")
    store.set_pins("key", hard_pin=True, soft_pin_ms=1000)
    info = store.stat("key")
    assert info.hard_pin and info.soft_pin_ms > 0
    store.set_pins("key", soft_pin_ms=0)
    info = store.stat("key")
    assert info.hard_pin and info.soft_pin_ms == 0
    store.set_pins("key", hard_pin=False)
    assert not store.stat("key").hard_pin
    with pytest.raises(libmooncake.NotFoundError):
        store.set_pins("none", hard_pin=True)
    with pytest.raises(libmooncake.InvalidError):
        store.set_pins("key", soft_pin_ms=25 * 3600 * 1000)


def test_groups(store: Store) -> None:
    options = PutOptions(group="group")
    for i in range(3):
        store.put(f"key{i}", b"value", options)
    assert store.group("group") == ["key0", "key1", "key2"]
    assert store.group("none") == []
    store.set_group_pins("group", hard_pin=True)
    assert all(store.stat(f"key{i}").hard_pin for i in range(3))
    with pytest.raises(libmooncake.NoGroupError):
        store.set_group_pins("none", hard_pin=True)
    store.get("key1")
    with pytest.raises(libmooncake.LeasedError):
        store.remove_group("group")
    assert sorted(store.remove_group("group", force=True)) == ["key0", "key1", "key2"]
    assert store.group("group") == []


def test_tenant(store: Store) -> None:
    store.put("key", b"one")
    with store.tenant("other") as other:
        assert not other.exists("key")
        other.put("key", b"two")
        assert store.get("key") == b"one"
    assert not store.closed and store.get("key") == b"one"


def test_clients_share_a_pool(store: Store, pool: str) -> None:
    store.put("key", b"value")
    with Store(pool=pool) as other:
        assert other.get("key") == b"value"
    with pytest.raises(libmooncake.InvalidError):
        Store(pool=pool, memory_bytes=256 << 20)
    with Store(pool=pool, memory_bytes=256 << 20, join=True) as other:
        assert other.get("key") == b"value"
    with Store(pool=pool + "-other", memory_bytes=16 << 20) as other:
        assert not other.exists("key")


def test_options(pool: str, tmp_path: Path) -> None:
    try:
        opened = Store(
            pool=pool, tenant="t", dir=tmp_path, memory_bytes=32 << 20, ssd_bytes=64 << 20, shm_dir="/dev/shm",
            volatile_memory=True, offload="eager", lease_ttl_ms=1, high_watermark=0.8, eviction_ratio=0.1,
            file_bytes=8192, promote_after=-1, dir_slots=2, put_timeout_ms=1000,
        )  # fmt: skip
    except libmooncake.ModeError:
        pytest.skip("the library was built without RocksDB")
    with opened:
        opened.put("key", b"value", PutOptions(durable=True))
        assert (tmp_path / "slot-0").is_dir()
        info = opened.stat("key")
        assert info.durable and info.on_ssd
        opened.sync()


def test_wrong_options(pool: str) -> None:
    for wrong in ({"memory_bytes": 1}, {"high_watermark": 2.0}, {"offload": "sometimes"}, {"memory_bytes": -1},
                  {"file_bytes": 5}, {"pool": "nul\0inside"}):  # fmt: skip
        with pytest.raises(ValueError):
            Store(**{"pool": pool, **wrong})  # type: ignore[arg-type]
    with pytest.raises(libmooncake.MooncakeError):
        Store(pool=pool, master="somewhere:1")


def test_locked_directory(disk: Store, tmp_path: Path, pool: str) -> None:
    with pytest.raises(libmooncake.LockedError) as caught:
        Store(pool=pool + "-other", dir=tmp_path / "store", memory_bytes=16 << 20)
    assert str(os.getpid()) in caught.value.text


def test_durable_survives(tmp_path: Path, pool: str) -> None:
    try:
        with Store(pool=pool, dir=tmp_path, memory_bytes=32 << 20, volatile_memory=True) as first:
            first.put("key", b"value", PutOptions(durable=True))
    except libmooncake.ModeError:
        pytest.skip("the library was built without RocksDB")
    with Store(pool=pool, dir=tmp_path, memory_bytes=32 << 20, volatile_memory=True) as second:
        assert second.get("key") == b"value"
        assert second.counters().restored_from_ssd == 1


def test_sync_needs_a_directory(store: Store) -> None:
    with pytest.raises(libmooncake.ModeError):
        store.sync()
    with pytest.raises(libmooncake.MooncakeError):
        store.put("key", b"value", PutOptions(durable=True))


def test_file(disk: Store) -> None:
    data = os.urandom(2 << 20)
    disk.put("key", data, PutOptions(type=ObjectType.WEIGHT))
    with disk.file("key") as file:
        assert file.nbytes == len(data)
        with open(file, "rb") as opened:
            assert opened.read() == data
        disk.remove("key", force=True)
        assert os.path.exists(file.path)
    assert file.closed
    file.close()
    disk.put("small", b"value")
    with pytest.raises(libmooncake.UnsupportedError):
        disk.file("small")
    dropped = disk.create("other", 2 << 20)
    dropped.write(data)
    dropped.commit()
    path = disk.file("other").path  # dropped at once: closed
    assert isinstance(path, str)


def test_list(store: Store) -> None:
    store.put_batch([f"a/{i}" for i in range(100)] + ["b"], [b"value"] * 101)
    assert sorted(info.key for info in store.list("a/")) == sorted(f"a/{i}" for i in range(100))
    assert len(list(store.list())) == 101
    info = next(store.list(b"b"))
    assert (info.key, info.nbytes, info.in_memory) == ("b", 5, True)
    with store.list() as listing:
        next(listing)
    assert list(listing) == []


def test_usage_counters_room(store: Store) -> None:
    store.put("key", bytes(1000), PutOptions(type=ObjectType.KVCACHE))
    store.get("key")
    store.get("none", None)
    usage = store.usage()
    assert usage.objects[ObjectType.KVCACHE] == 1 and usage.memory_bytes[ObjectType.KVCACHE] >= 1000
    assert usage.memory_budget == 128 << 20 and isinstance(usage.growing, bool)
    counters = store.counters()
    assert (counters.puts, counters.put_bytes) == (1, 1000)
    assert counters.memory_hits >= 1 and counters.misses >= 1
    room = store.room()
    assert room.free > 0 and room.evictable >= 0


def test_wait_ready(store: Store) -> None:
    assert store.wait_ready()
    assert store.wait_ready(0.5)
    assert not store.usage().growing


def test_explain(store: Store) -> None:
    assert store.explain("none") == []
    store.put("first", bytes(1 << 20))
    for i in range(150):
        store.put(f"key{i}", bytes(1 << 20))
    decisions = store.explain("first")
    assert decisions and decisions[0].what == "evicted" and decisions[0].tier == "memory" and decisions[0].reason
    assert decisions[0].time.startswith("20")


def test_closed(store: Store) -> None:
    assert store.healthy() and not store.closed and store.handle
    store.put("key", b"value")
    store.close()
    store.close()
    assert store.closed and not store.healthy()
    calls = [
        lambda: store.get("key"), lambda: store.exists("key"), lambda: store.put("key", b"x"),
        lambda: store.get_into("key", bytearray(5)), lambda: store.exists_batch(["key"]), lambda: store.probe("key"),
        lambda: store.get_batch(["key"]), lambda: store.view("key"), lambda: store.stat("key"),
        lambda: store.list(), lambda: store.usage(), lambda: store.events(), lambda: store.remove("key"),
        lambda: store.create("key", 5), lambda: store.size("key"), lambda: store.tenant("t"),
        lambda: store.remove_all(), lambda: store.handle, lambda: libmooncake.Weights(store),
        lambda: store.put_batch_async(["key"], [b"x"]),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(libmooncake.UnavailableError):
            call()


def test_errors_travel() -> None:
    error = pickle.loads(pickle.dumps(libmooncake.NotFoundError(-704, "get: none")))
    assert isinstance(error, libmooncake.NotFoundError)
    assert str(error) == "get: none (OBJECT_NOT_FOUND, -704)"
    batch = libmooncake.BatchError(-706, "text", [True, libmooncake.LeasedError(-706)])
    again = pickle.loads(pickle.dumps(batch))
    assert again.code == -706 and again.results[0] is True and isinstance(again.results[1], libmooncake.LeasedError)


def test_store_does_not_travel(store: Store) -> None:
    with pytest.raises(TypeError):
        pickle.dumps(store)


def test_errors_name_the_key(store: Store) -> None:
    store.put("there", b"value")
    store.put("read", b"value")
    store.get("read")
    calls = {
        "'none'": [
            lambda: store.get("none"),
            lambda: store.get_into("none", bytearray(5)),
            lambda: store.get_ranges("none", [(0, bytearray(5))]),
            lambda: store.view("none"),
            lambda: store.file("none"),
            lambda: store.stat("none"),
            lambda: store.size(b"none"),
            lambda: store.size("none"),
            lambda: store.remove("none"),
            lambda: store.set_pins("none", hard_pin=True),
            lambda: store.set_group_pins("none", hard_pin=True),
            lambda: store.remove_group("none"),
        ],
        "'there'": [
            lambda: store.put("there", b"x"),
            lambda: store.put_parts("there", [b"x"]),
            lambda: store.create("there", 5),
            lambda: store.link("there", "read"),
        ],
        "'read'": [lambda: store.remove("read")],
        '"read"': [lambda: store.get_into("read", bytearray(1))],
        f"'{'k' * 64}'...": [lambda: store.stat("k" * 65)],
    }
    for name, failing in calls.items():
        for call in failing:
            with pytest.raises(libmooncake.MooncakeError) as caught:
                call()
            assert caught.value.text.count(name.strip("'\".")) == 1 and name in str(caught.value), caught.value
            assert caught.value.args == (caught.value.code, caught.value.text)


@pytest.mark.parametrize(
    "name", ["memory_bytes", "ssd_bytes", "lease_ttl_ms", "file_bytes", "promote_after", "dir_slots", "put_timeout_ms"]
)
def test_options_that_are_no_integers(name: str) -> None:
    for wrong in ("1GB", 1.5):
        with pytest.raises(TypeError, match=f"{name} is an integer, not {type(wrong).__name__}"):
            Store(pool="never", **{name: wrong})  # type: ignore[arg-type]


def test_types_by_name(store: Store) -> None:
    store.put("key", b"x", PutOptions(type="KVCACHE"))
    assert store.stat("key").type is libmooncake.ObjectType.KVCACHE
    with pytest.raises(ValueError, match="KVCACHE.*not 'CACHE'"):
        PutOptions(type="CACHE")
    with pytest.raises(TypeError, match="ObjectType"):
        PutOptions(type=1.0)  # type: ignore[arg-type]


def test_repr(pool: str, disk: Store) -> None:
    store = Store(pool=pool, join=True)
    assert repr(store) == f"<libmooncake.Store, pool {pool!r}>"
    with store.tenant("t") as other:
        assert repr(other) == f"<libmooncake.Store, pool {pool!r}, tenant 't'>"
    operation = store.put_batch_async(["key"], [b"x"])
    operation.result()
    assert repr(operation) == "<libmooncake.Operation, done>"
    operation.close()
    assert repr(operation) == "<libmooncake.Operation, closed>"
    store.close()
    assert repr(store) == f"<libmooncake.Store, pool {pool!r}, closed>"


def test_many_threads(store: Store) -> None:
    failures = []

    def work(i: int) -> None:
        try:
            into = bytearray(1000)
            for j in range(200):
                store.put(f"{i}/{j}", bytes([i]) * 1000)
                assert store.get_into(f"{i}/{j}", into) == 1000 and into == bytes([i]) * 1000
                assert store.exists(f"{i}/{j}") and not store.exists(f"{i}/none")
                with pytest.raises(libmooncake.NotFoundError) as caught:
                    store.get(f"{i}/none")
                assert caught.value.code == -704
                store.remove(f"{i}/{j}", force=True)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("number", [-1, 1 << 64, (1 << 64) + 5, 1 << 70])
def test_numbers_that_do_not_fit(store: Store, number: int) -> None:
    """ctypes would take their low bits: an offset of 2**64 for 0."""
    store.put("there", b"0123456789")
    with store.create("written", 10) as writer:
        writer.write(b"0123456789")
        with pytest.raises(ValueError, match=f"offset is {number}"):
            writer.write_at(number, b"xxxxx")
    assert store.get("written") == b"0123456789"
    for call in (
        lambda: store.create("key", number),
        lambda: store.set_pins("there", soft_pin_ms=number),
        lambda: PutOptions(soft_pin_ms=number),
        lambda: store.events(number),
        lambda: Store(pool="numbers", memory_bytes=number),
        lambda: Store(pool="numbers", promote_after=(1 << 32) + 2),
        lambda: Store(pool="numbers", dir_slots=number),
    ):
        with pytest.raises((ValueError, libmooncake.InvalidError)):
            call()
    with pytest.raises((ValueError, OverflowError)):
        store.get_ranges("there", [(number, bytearray(1))])


def test_numbers_of_other_types(store: Store) -> None:
    numpy = pytest.importorskip("numpy")
    with store.create("key", numpy.int64(10)) as writer:
        writer.write_at(numpy.uint32(5), b"56789")
        writer.write_at(0, b"01234")
    assert store.get("key") == b"0123456789"
    for wrong in (1.0, "1", None):
        with pytest.raises(TypeError):
            store.create("other", wrong)  # type: ignore[arg-type]
