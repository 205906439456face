"""Section 1.4 of the C++ store's Python interface: replicas, tasks; and the names of 1.5 that refuse."""

from __future__ import annotations

import pytest
from mooncake import store as module
from mooncake.engine import TransferEngine
from mooncake.store import MooncakeDistributedStore, QueryTaskResponse, ReplicaStatus, TaskStatus, TaskType

Store = MooncakeDistributedStore


def test_1_4_get_replica_desc(store: Store) -> None:
    assert store.get_replica_desc("k") == []
    assert store.put("k", b"value") == 0
    (replica,) = store.get_replica_desc("k")
    assert replica.status == ReplicaStatus.COMPLETE
    assert replica.is_memory_replica() is True
    assert replica.is_disk_replica() is False
    assert replica.is_local_disk_replica() is False
    buffer = replica.get_memory_descriptor().buffer_descriptor
    assert buffer.size == 5 and buffer.transport_endpoint == store.get_hostname() and buffer.buffer_address == 0
    with pytest.raises(RuntimeError):
        replica.get_disk_descriptor()
    with pytest.raises(RuntimeError):
        replica.get_local_disk_descriptor()
    assert store.remove("k") == -706  # asking is a lease


def test_1_4_batch_get_replica_desc_leaves_missing_keys_out(store: Store) -> None:
    assert store.put_batch(["a", "b"], [b"1", b"2"]) == 0
    found = store.batch_get_replica_desc(["a", "x", "b", ""])
    assert list(found) == ["a", "b"]
    assert all(replica.is_memory_replica() for replicas in found.values() for replica in replicas)
    assert store.batch_get_replica_desc([]) == {}


def test_1_4_replica_on_ssd(disk: Store) -> None:
    keys = [f"k{i}" for i in range(40)]
    for key in keys:
        assert disk.put(key, bytes(4 << 20)) == 0
    found = disk.batch_get_replica_desc(keys)
    assert list(found) == keys
    on_ssd = [replica for replicas in found.values() for replica in replicas if replica.is_local_disk_replica()]
    assert on_ssd
    assert on_ssd[0].get_local_disk_descriptor().object_size == 4 << 20
    assert not on_ssd[0].is_memory_replica() and not on_ssd[0].is_disk_replica()
    with pytest.raises(RuntimeError):
        on_ssd[0].get_memory_descriptor()


def test_1_4_batch_replica_clear(store: Store) -> None:
    assert store.put_batch(["a", "b", "c"], [b"1", b"2", b"3"]) == 0
    assert store.is_exist("b") == 1
    assert store.batch_put_session_start(["unfinished"], [4]) == [0]
    assert store.batch_replica_clear(["a", "b", "unfinished", "missing"]) == ["a"]
    assert store.batch_replica_clear(["c"], "other:1") == []
    assert store.batch_replica_clear(["c"], store.get_hostname()) == ["c"]
    assert store.batch_is_exist(["a", "b", "c"]) == [0, 1, 0]


def test_1_4_tasks_refuse(store: Store) -> None:
    assert store.put("k", b"v") == 0
    assert store.create_copy_task("k", ["other:1"]) == ((0, 0), -1012)
    assert store.create_move_task("k", store.get_hostname(), "other:1") == ((0, 0), -1012)
    assert store.query_task((1, 2)) == (None, -1012)


def test_1_4_not_set_up() -> None:
    assert Store().get_replica_desc("k") == []
    assert Store().batch_get_replica_desc(["k"]) == {}
    assert Store().batch_replica_clear(["k"]) == []


def test_1_5_query_task_response_has_its_fields() -> None:
    response = QueryTaskResponse((1, 2), TaskType.REPLICA_COPY, TaskStatus.SUCCESS, 1, 2, (3, 4), "")
    assert (response.id, response.status.name, response.assigned_client) == ((1, 2), "SUCCESS", (3, 4))


REFUSED = [
    "MooncakeDistributedStoreAsync",
    "BufferPool",
    "EngramStoreConfig",
    "EngramStore",
    "MooncakeDistributedNoFRegister",
    "ParallelAxis",
    "TensorParallelism",
    "ReadTarget",
]


@pytest.mark.parametrize("name", REFUSED)
def test_1_5_classes_that_refuse(name: str) -> None:
    with pytest.raises(NotImplementedError, match=name):
        getattr(module, name)(1, two=2)


def test_transfer_engine_can_be_imported_and_refuses() -> None:
    """vLLM imports it."""
    with pytest.raises(NotImplementedError, match="TransferEngine"):
        TransferEngine()


TENSOR_METHODS = [
    "put_tensor", "get_tensor", "batch_put_tensor", "batch_get_tensor", "get_tensor_into", "batch_get_tensor_into",
    "put_tensor_from", "batch_put_tensor_from", "upsert_tensor", "upsert_tensor_from", "batch_upsert_tensor",
    "batch_upsert_tensor_from", "pub_tensor", "batch_pub_tensor", "upsert_pub_tensor", "batch_upsert_pub_tensor",
    "put_tensor_with_tp", "get_tensor_with_tp", "batch_put_tensor_with_tp", "batch_get_tensor_with_tp",
    "get_tensor_with_tp_into", "pub_tensor_with_tp", "batch_pub_tensor_with_tp", "put_tensor_with_parallelism",
    "get_tensor_with_parallelism", "upsert_tensor_with_parallelism", "get_tensor_into_cuda",
    "batch_get_tensor_into_cuda", "save_tensor_to_safetensor", "load_tensor_from_safetensor",
]  # fmt: skip


@pytest.mark.parametrize("name", TENSOR_METHODS)
def test_1_6_tensor_methods_are_missing_and_say_why(store: Store, name: str) -> None:
    """A probe with hasattr gets the truth; a call gets the reason."""
    assert not hasattr(store, name)
    with pytest.raises(AttributeError, match="no tensor methods"):
        getattr(store, name)("k")


def test_unknown_attributes_are_attributeerror(store: Store) -> None:
    with pytest.raises(AttributeError, match="'MooncakeDistributedStore' object has no attribute 'nonsense'"):
        store.nonsense
    with pytest.raises(AttributeError):
        store.anything = 1  # type: ignore[attr-defined]
