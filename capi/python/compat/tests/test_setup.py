"""Section 1.1 of the C++ store's Python interface: life cycle."""

from __future__ import annotations

import copy
import inspect
import logging
import pickle
import signal
from pathlib import Path
from typing import Any, Callable, Dict, Iterator

import libmooncake
import pytest
from conftest import Connect, Memory
from mooncake.store import MooncakeDistributedStore, last_error

SEVEN = ("host:17000", "P2PHANDSHAKE", 32 << 20, 16 << 20, "tcp", "")


def fresh() -> MooncakeDistributedStore:
    return MooncakeDistributedStore()


def test_1_1_setup_positional_seven(address: str) -> None:
    store = fresh()
    assert store.setup(*SEVEN, address) == 0
    assert store.get_hostname() == "host:17000"
    assert store.close() == 0


def test_1_1_setup_positional_engine_eighth(address: str) -> None:
    """SGLang passes a transfer engine, or None, as the eighth."""
    for engine in (None, object()):
        store = fresh()
        assert store.setup(*SEVEN, address, engine) == 0
        assert store.close() == 0


def test_1_1_setup_all_positional_and_keywords(address: str, tmp_path: Path) -> None:
    store = fresh()
    assert store.setup(*SEVEN, address, None, False, "", "tenant", False, 9300) == 0
    assert store.close() == 0
    assert (
        store.setup(
            local_hostname="h",
            metadata_server="P2PHANDSHAKE",
            global_segment_size=32 << 20,
            local_buffer_size=16 << 20,
            protocol="rdma",
            rdma_devices="mlx5_0",
            master_server_addr=address,
            engine=None,
            enable_ssd_offload=True,
            ssd_offload_path=str(tmp_path),
            tenant_id="tenant",
            enable_client_http_server=True,
            client_http_port=9301,
        )
        == 0
    )
    assert store.close() == 0


@pytest.mark.parametrize("given", range(1, 7))
def test_1_1_setup_first_seven_are_mandatory(given: int) -> None:
    names = list(inspect.signature(MooncakeDistributedStore.setup).parameters)[1:]
    with pytest.raises(TypeError, match=names[given]):
        fresh().setup(*SEVEN[:given])  # type: ignore[arg-type]


def test_1_1_setup_unknown_keyword_is_typeerror_that_names_it(address: str) -> None:
    """SGLang drops the keyword that the text names and tries again: exactly one must be named."""
    keywords: Dict[str, Any] = {"tenant_id": "t", "enable_ssd_offload": False, "ssd_offload_path": "", "novelty": 1}
    with pytest.raises(TypeError) as caught:
        fresh().setup(*SEVEN, address, None, **keywords)
    assert [name for name in keywords if name in str(caught.value)] == ["novelty"]
    del keywords["novelty"]
    store = fresh()
    assert store.setup(*SEVEN, address, None, **keywords) == 0
    store.close()


def test_1_1_setup_signature_and_doc_name_the_options() -> None:
    """vLLM-Ascend looks there before it passes them."""
    for name in ("enable_ssd_offload", "ssd_offload_path", "engine", "tenant_id"):
        assert name in inspect.signature(MooncakeDistributedStore.setup).parameters
        assert name in (MooncakeDistributedStore.setup.__doc__ or "")


@pytest.mark.parametrize(
    "position, value", [(0, 1), (1, b"x"), (2, "16MB"), (2, 1.5), (2, -1), (3, -1), (4, 1), (5, None)]
)
def test_1_1_setup_wrong_type_is_typeerror(address: str, position: int, value: object) -> None:
    arguments: Any = [*SEVEN, address]
    arguments[position] = value
    with pytest.raises(TypeError):
        fresh().setup(*arguments)


def test_1_1_setup_dict_documented_names(address: str) -> None:
    store = fresh()
    config = dict(
        local_hostname="host",
        metadata_server="P2PHANDSHAKE",
        global_segment_size="32MB",
        local_buffer_size=16 << 20,
        protocol="tcp",
        rdma_devices="",
        master_server_addr=address,
        enable_ssd_offload="false",
        tenant_id="t",
        enable_client_http_server=False,
        client_http_port="9300",
        ipc_socket_path="",
    )
    assert store.setup(config) == 0
    assert store.get_hostname().startswith("host:")
    store.close()


def test_1_1_setup_dict_lmcache_names(address: str) -> None:
    """LMCache says master_server_address and device_name, and makes everything str."""
    store = fresh()
    config = {
        "local_hostname": "host",
        "metadata_server": "P2PHANDSHAKE",
        "global_segment_size": str(32 << 20),
        "local_buffer_size": str(16 << 20),
        "protocol": "tcp",
        "device_name": "",
        "master_server_address": address,
    }
    assert store.setup(config) == 0
    assert store.put("k", b"v") == 0
    store.close()


def test_1_1_setup_dict_defaults_are_16_mib_tcp_and_the_default_master() -> None:
    assert fresh().setup({"local_hostname": "h", "metadata_server": "P2PHANDSHAKE"}) == -1012
    assert "127.0.0.1:50051" not in last_error()  # it did not come that far


def test_1_1_setup_dict_unknown_name_is_typeerror_that_names_it(address: str) -> None:
    with pytest.raises(TypeError, match="storage_root"):
        fresh().setup(
            {"local_hostname": "h", "metadata_server": "m", "master_server_addr": address, "storage_root": ""}
        )


@pytest.mark.parametrize("size", ["50%", "", "much", "-1", "16XB", "1e9"])
def test_1_1_setup_dict_bad_size_is_rejected(address: str, size: str) -> None:
    config = {"local_hostname": "h", "metadata_server": "m", "master_server_addr": address, "global_segment_size": size}
    assert fresh().setup(config) == -600


@pytest.mark.parametrize("size", ["16MB", "16 mb", "16m", "16777216", "0.015625GB", "16384k", "16777216b", 16 << 20, 0])
def test_1_1_setup_dict_sizes_with_units(address: str, size: object) -> None:
    store = fresh()
    config = {"local_hostname": "h", "metadata_server": "m", "master_server_addr": address, "global_segment_size": size}
    assert store.setup(config) == 0
    store.close()


def test_1_1_setup_dict_segment_below_1_kib_is_rejected(address: str) -> None:
    config = {
        "local_hostname": "h",
        "metadata_server": "m",
        "master_server_addr": address,
        "global_segment_size": "1023",
    }
    assert fresh().setup(config) == -600


@pytest.mark.parametrize("missing", ["local_hostname", "metadata_server"])
def test_1_1_setup_dict_needs_hostname_and_metadata_server(address: str, missing: str) -> None:
    config = {"local_hostname": "h", "metadata_server": "m", "master_server_addr": address}
    del config[missing]
    assert fresh().setup(config) == -600


def test_1_1_setup_dict_bad_flag_is_rejected(address: str) -> None:
    config = {
        "local_hostname": "h",
        "metadata_server": "m",
        "master_server_addr": address,
        "enable_ssd_offload": "perhaps",
    }
    assert fresh().setup(config) == -600


def test_1_1_setup_twice_is_600(store: MooncakeDistributedStore, address: str) -> None:
    assert store.setup(*SEVEN, address) == -600
    assert store.init_all("tcp", "", 1 << 20) == -600
    assert store.put("k", b"v") == 0


def test_1_1_setup_after_close(address: str) -> None:
    store = fresh()
    for _ in range(3):
        assert store.setup(*SEVEN, address) == 0
        assert store.put("k", b"v") == 0
        assert store.close() == 0
        assert store.get("k") == b""


def test_1_1_setup_segment_size_0_and_small(address: str) -> None:
    for size in (0, 1, 1024):
        store = fresh()
        assert store.setup("h", "P2PHANDSHAKE", size, 0, "tcp", "", address) == 0
        assert store.put("k", bytes(1 << 20)) == 0
        store.close()


def test_1_1_setup_clients_share_a_pool_and_sizes_add_nothing(connect: Connect) -> None:
    first = connect(size=32 << 20)
    second = connect(size=1 << 30)
    assert first.put("k", b"v") == 0
    assert second.get("k") == b"v"
    assert first.close() == 0
    assert second.get("k") == b"v"


def test_1_1_setup_hostname_without_port_gets_one_between_12300_and_14300(address: str) -> None:
    one, two = fresh(), fresh()
    for store in (one, two):
        assert store.setup("host", *SEVEN[1:], address) == 0
        host, port = store.get_hostname().split(":")
        assert host == "host" and 12300 <= int(port) < 14300
    assert one.get_hostname() != two.get_hostname()
    one.close()
    two.close()


def test_1_1_setup_hostname_ipv6(address: str) -> None:
    store = fresh()
    assert store.setup("[::1]", *SEVEN[1:], address) == 0
    assert store.get_hostname().startswith("[::1]:1")
    store.close()


@pytest.mark.parametrize("master", ["10.0.0.1:50051", "etcd://10.0.0.1:2379", "localhost:50051", "embedded:"])
def test_1_1_setup_master_address_is_1012_and_says_why(master: str, caplog: pytest.LogCaptureFixture) -> None:
    store = fresh()
    with caplog.at_level(logging.ERROR, "mooncake.store"):
        assert store.setup(*SEVEN, master) == -1012
    assert master in caplog.text and "MOONCAKE_EMBEDDED" in caplog.text
    assert store.health_check() == 1


def test_1_1_setup_environment_makes_any_address_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """MOONCAKE_EMBEDDED is read by each setup, not at import."""
    one, two, other = fresh(), fresh(), fresh()
    monkeypatch.setenv("MOONCAKE_EMBEDDED", "1")
    assert one.setup(*SEVEN, "10.0.0.1:50051") == 0
    assert two.setup(*SEVEN, "10.0.0.1:50051") == 0
    assert other.setup(*SEVEN, "10.0.0.2:50051") == 0
    assert one.put("k", b"v") == 0
    assert two.get("k") == b"v" and other.get("k") == b""
    monkeypatch.setenv("MOONCAKE_EMBEDDED", "0")
    assert fresh().setup(*SEVEN, "10.0.0.1:50051") == -1012
    for store in (one, two, other):
        store.close()


def test_1_1_setup_empty_and_embedded_are_one_pool() -> None:
    one, two = fresh(), fresh()
    assert one.setup(*SEVEN, "") == 0
    assert two.setup(*SEVEN, "embedded") == 0
    assert one.put("k", b"v") == 0 and two.get("k") == b"v"
    one.close()
    two.close()


def test_1_1_setup_tenants_never_meet(connect: Connect) -> None:
    one, two, default = connect(tenant_id="one"), connect(tenant_id="two"), connect()
    for store in (one, two, default):
        assert store.is_exist("k") == 0
        assert store.put("k", str(id(store)).encode()) == 0
    for store in (one, two, default):
        assert store.get("k") == str(id(store)).encode()
    assert one.remove_all(True) == 1
    assert two.is_exist("k") == 1


@pytest.mark.parametrize("tenant", ["_hidden", "a\0b", "a\nb"])
def test_1_1_setup_invalid_tenant_is_negative(address: str, tenant: str) -> None:
    store = fresh()
    assert store.setup(*SEVEN, address, tenant_id=tenant) < 0
    assert store.health_check() == 1


def test_1_1_setup_ssd_offload_needs_a_directory(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = fresh()
    monkeypatch.delenv("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", raising=False)
    assert store.setup(*SEVEN, address, None, True) == -600
    assert store.setup(*SEVEN, address, None, True, str(tmp_path / "missing")) == -600
    monkeypatch.setenv("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", str(tmp_path))
    assert store.setup(*SEVEN, address, None, True) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["slot-0"]
    store.close()


def test_1_1_setup_ssd_offload_has_a_limit(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = fresh()
    for wrong in ("much", "-1", "50%"):
        monkeypatch.setenv("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", wrong)
        assert store.setup(*SEVEN, address, None, True, str(tmp_path)) == -600
    monkeypatch.setenv("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", "64MB")
    assert store.setup(*SEVEN, address, None, True, str(tmp_path)) == 0
    with libmooncake.Store(pool=address[len("embedded:") :]) as same:
        assert same.usage().ssd_limit == 64 << 20
    store.close()


def lease_of(config: Dict[str, Any]) -> int:
    """What is left in ms of the lease that is_exist has just given an object."""
    store, (_, _, pool) = fresh(), config["master_server_addr"].partition(":")
    assert store.setup(config) == 0
    assert store.put("k", b"v") == 0 and store.is_exist("k") == 1
    with libmooncake.Store(pool=pool) as other:
        left = other.stat("k").lease_ms
    assert store.close() == 0
    return left


@pytest.mark.parametrize("name", ["lease_ttl_ms", "default_kv_lease_ttl"])
@pytest.mark.parametrize("value", [3_600_000, "3600000", "3600000ms", "3600s", "60m", "1h"])
def test_1_1_setup_dict_lease(address: str, name: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    config: Dict[str, Any] = {"local_hostname": "h", "metadata_server": "m", "master_server_addr": address}
    assert 0 < lease_of(config) <= 10_000
    monkeypatch.setenv("MOONCAKE_LEASE_TTL_MS", "7200s")  # a dict goes before it
    assert 10_000 < lease_of({**config, name: value}) <= 3_600_000
    assert 3_600_000 < lease_of(config) <= 7_200_000


@pytest.mark.parametrize("value", ["0", "-1", "soon", "1.5s", "25h", "5 d", "1" * 30])
def test_1_1_setup_lease_that_can_not_be_is_600_and_named(
    address: str, value: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    config: Dict[str, Any] = {"local_hostname": "h", "metadata_server": "m", "master_server_addr": address}
    for name in ("lease_ttl_ms", "default_kv_lease_ttl"):
        assert fresh().setup({**config, name: value}) == -600
        assert f"{name} is {value!r}" in caplog.text
        caplog.clear()
    monkeypatch.setenv("MOONCAKE_LEASE_TTL_MS", value)
    assert fresh().setup(config) == fresh().setup(*SEVEN, address) == -600
    assert caplog.text.count(f"MOONCAKE_LEASE_TTL_MS is {value!r}") == 2


def test_1_1_setup_warns_of_memory_that_is_not_used(address: str, caplog: pytest.LogCaptureFixture) -> None:
    first, second, third = fresh(), fresh(), fresh()
    with caplog.at_level(logging.WARNING, "mooncake.store"):
        assert first.setup("h:1", "", 0, 0, "tcp", "", address) == 0
        assert second.setup("h:2", "", 0, 0, "tcp", "", address) == 0
        assert not caplog.records
        assert third.setup("h:3", "", 1 << 30, 0, "tcp", "", address) == 0
    assert "1073741824 adds nothing" in caplog.text and str(16 << 20) in caplog.text
    for store in (first, second, third):
        store.close()


def test_1_1_setup_ssd_offload_takes_what_memory_has_no_room_for(disk: MooncakeDistributedStore) -> None:
    value = bytes(range(256)) * (4 << 12)  # 4 MiB
    for i in range(40):  # 160 MiB into 64
        assert disk.put(f"k{i}", value + bytes([i])) == 0
    found = [disk.get(f"k{i}") == value + bytes([i]) for i in range(40)]
    assert all(found)


def test_1_1_setup_client_http_server_is_accepted_with_a_warning(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = fresh()
    assert store.setup(*SEVEN, address, enable_client_http_server=True, client_http_port=9377) == 0
    assert "9377" in caplog.text
    store.close()


def test_1_1_setup_dummy_refuses(caplog: pytest.LogCaptureFixture) -> None:
    store = fresh()
    assert store.setup_dummy(1 << 30, 16 << 20, "127.0.0.1:50052") == -1012
    assert "127.0.0.1:50052" in caplog.text
    assert store.is_exist("k") == 0


def test_1_1_init_all_is_setup_of_the_default_address(monkeypatch: pytest.MonkeyPatch) -> None:
    store = fresh()
    assert store.init_all("tcp", "", 16 << 20) == -1012
    monkeypatch.setenv("MOONCAKE_EMBEDDED", "1")
    assert store.init_all("tcp", "", 16 << 20) == 0
    assert store.get_hostname() == "localhost:12345"
    assert store.put("k", b"v") == 0
    assert store.close() == 0


def test_1_1_close_is_idempotent(store: MooncakeDistributedStore) -> None:
    assert [store.close(), store.close(), MooncakeDistributedStore().close()] == [0, 0, 0]
    assert store.get_hostname() == ""


def test_1_1_health_check(address: str) -> None:
    store = fresh()
    assert store.health_check() == 1
    assert store.setup(*SEVEN, address) == 0
    assert store.health_check() == 0
    store.close()
    assert store.health_check() == 1


def test_1_1_register_and_unregister_buffer(store: MooncakeDistributedStore, memory: Memory) -> None:
    assert store.register_buffer(memory.at, memory.size) == 0
    assert store.register_buffer(0, 4096) == -600
    assert store.register_buffer(memory.at, 0) == -600
    assert store.register_buffer(memory.at, 1 << 64) == -600
    assert store.unregister_buffer(memory.at) == 0
    assert store.unregister_buffer(memory.at) == -600
    assert store.unregister_buffer(0) == -600


def test_1_1_register_buffer_not_set_up_is_600(memory: Memory) -> None:
    assert fresh().register_buffer(memory.at, memory.size) == -600
    assert fresh().unregister_buffer(memory.at) == -600


def test_1_1_memory_of_a_client_process_refuses(store: MooncakeDistributedStore) -> None:
    assert store.alloc_from_mem_pool(4096) == 0
    with pytest.raises(NotImplementedError, match="get_alloc_func_addr"):
        store.get_alloc_func_addr()
    with pytest.raises(NotImplementedError, match="get_free_func_addr"):
        store.get_free_func_addr()


def test_1_1_segments_refuse_with_the_documented_shapes(store: MooncakeDistributedStore) -> None:
    assert store.mount_segment("/dev/shm/x", 1 << 20) == {"ret": -1012, "segment_ids": []}
    assert store.allocate_and_mount_segment(1 << 20, "tcp", "") == {
        "ret": -1012,
        "segment_ids": [],
        "allocated_size": 0,
    }
    assert store.unmount_segment(["a-b"]) == -1012
    assert store.unmount_and_free_segment(["a-b"], 5) == -1012


def test_1_1_unmount_local_disk_segment_without_an_ssd_tier_is_0(store: MooncakeDistributedStore) -> None:
    assert store.unmount_local_disk_segment(0) == 0


def test_1_1_unmount_local_disk_segment_refuses(disk: MooncakeDistributedStore) -> None:
    assert disk.unmount_local_disk_segment(0) == -1012


def test_1_1_get_offload_rpc_read_count(store: MooncakeDistributedStore) -> None:
    assert store.get_offload_rpc_read_count() == 0


def test_1_1_a_client_can_not_be_copied(store: MooncakeDistributedStore) -> None:
    """A copy that is dropped would end the client of the one that it is a copy of."""
    assert store.put("k", b"value") == 0
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            make(store)
    assert store.get("k") == b"value"


@pytest.fixture
def on_signal() -> Iterator[Callable[[Callable[[], Any]], None]]:
    """What a handler of SIGUSR1 does. A test that hangs ends after some seconds."""

    def late(*_: object) -> None:
        raise TimeoutError

    before = [(number, signal.getsignal(number)) for number in (signal.SIGUSR1, signal.SIGALRM)]
    signal.signal(signal.SIGALRM, late)
    signal.alarm(10)
    yield lambda work: signal.signal(signal.SIGUSR1, lambda *_: work()) and None
    signal.alarm(0)
    for number, handler in before:
        signal.signal(number, handler)


def test_1_1_a_signal_handler_uses_the_client_that_is_being_set_up(
    address: str, on_signal: Callable[[Callable[[], Any]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    import mooncake._client

    opened = mooncake._client._open

    def open_and_signal(*arguments: Any) -> Any:
        code = opened(*arguments)
        monkeypatch.undo()
        signal.raise_signal(signal.SIGUSR1)
        return code

    store, inner = fresh(), []
    for work, want, outcome in (
        (store.close, 0, 0),  # nothing to close yet
        (lambda: store.setup(*SEVEN, address), 0, -600),
    ):
        monkeypatch.setattr(mooncake._client, "_open", open_and_signal)
        on_signal(lambda work=work: inner.append(work()))
        assert store.setup(*SEVEN, address) == outcome
        assert inner.pop() == want
        assert store.health_check() == 0
        assert store.close() == 0
    with libmooncake.Store(pool=address.partition(":")[2], memory_bytes=48 << 20):  # nobody has the pool open any more
        pass
