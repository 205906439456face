"""Section 1.5 of the C++ store's Python interface: ReplicateConfig and the enumerations, with section 3's numbers."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Dict, Type

import libmooncake
import pytest
from conftest import Memory
from mooncake import store as module
from mooncake.store import MooncakeDistributedStore, ObjectDataType, ReplicateConfig, SoftPinAction

Store = MooncakeDistributedStore

DEFAULTS: Dict[str, Any] = {
    "replica_num": 1,
    "nof_replica_num": 0,
    "dfs_replica_num": 0,
    "soft_pin_action": SoftPinAction.PRESERVE,
    "soft_pin_ttl_ms": None,
    "with_hard_pin": False,
    "preferred_segments": [],
    "preferred_nof_segments": [],
    "preferred_segment": "",
    "prefer_alloc_in_same_node": False,
    "data_type": ObjectDataType.UNKNOWN,
    "group_ids": None,
}


def native(store: Store, address: str) -> libmooncake.Store:
    """The same pool, with everything that libmooncake tells about it."""
    return libmooncake.Store(pool=address.partition(":")[2])


@pytest.mark.parametrize("name", DEFAULTS)
def test_1_5_config_defaults(name: str) -> None:
    assert getattr(ReplicateConfig(), name) == DEFAULTS[name]
    assert hasattr(ReplicateConfig, name)  # engines ask the class


def test_1_5_config_lists_are_its_own() -> None:
    ReplicateConfig().preferred_segments.append("a:1")
    assert ReplicateConfig().preferred_segments == []


@pytest.mark.parametrize("name", ["with_soft_pin", "session_ids", "replicas"])
def test_1_5_config_has_no_other_attribute(name: str) -> None:
    """There is no with_soft_pin in Python; SGLang asks for session_ids with hasattr."""
    config = ReplicateConfig()
    assert not hasattr(config, name)
    with pytest.raises(AttributeError, match=name):
        setattr(config, name, True)


@pytest.mark.parametrize(
    "name, value",
    [
        ("replica_num", -1),
        ("replica_num", 1 << 64),
        ("replica_num", "1"),
        ("replica_num", 1.0),
        ("soft_pin_ttl_ms", -1),
        ("soft_pin_ttl_ms", 1 << 64),
        ("soft_pin_ttl_ms", "1"),
        ("soft_pin_action", 1),
        ("data_type", 2),
        ("data_type", SoftPinAction.ENABLE),
        ("with_hard_pin", "yes"),
        ("preferred_segment", None),
        ("preferred_segments", "a:1"),
        ("preferred_segments", [1]),
        ("group_ids", "g"),
        ("group_ids", [b"g"]),
    ],
)
def test_1_5_config_wrong_values_are_typeerror(name: str, value: object) -> None:
    with pytest.raises(TypeError):
        setattr(ReplicateConfig(), name, value)


def test_1_5_config_str() -> None:
    config = ReplicateConfig()
    config.group_ids = ["g"]
    config.soft_pin_action = SoftPinAction.ENABLE
    text = str(config)
    assert text.startswith("ReplicateConfig: { replica_num: 1, ")
    assert "soft_pin_action: ENABLE" in text and "group_ids: ['g']" in text and "data_type: UNKNOWN" in text


def test_1_5_config_of_another_class_is_typeerror(store: Store) -> None:
    with pytest.raises(TypeError, match="ReplicateConfig"):
        store.put("k", b"v", {"replica_num": 1})  # type: ignore[arg-type]


def test_1_5_config_none_and_default(store: Store, memory: Memory) -> None:
    assert store.put("a", b"v", None) == 0
    assert store.put("b", b"v", config=ReplicateConfig()) == 0
    assert store.batch_put_from(["c"], [memory.at], [4], None) == [0]
    assert store.batch_put_from(["d"], [memory.at], [4], ReplicateConfig()) == [0]


def test_1_5_replica_num_0_is_600_and_more_is_best_effort(store: Store) -> None:
    config = ReplicateConfig()
    config.replica_num = 0
    assert store.put("k", b"v", config) == -600
    config.replica_num = 3
    assert store.put("k", b"v", config) == 0


@pytest.mark.parametrize("name", ["nof_replica_num", "dfs_replica_num"])
def test_1_5_replicas_that_do_not_exist_here_are_600(store: Store, name: str) -> None:
    config = ReplicateConfig()
    setattr(config, name, 1)
    assert store.put("k", b"v", config) == -600


def test_1_5_preferred_segments_are_accepted(store: Store, memory: Memory) -> None:
    """vLLM and LMCache set the old preferred_segment."""
    config = ReplicateConfig()
    config.preferred_segment = store.get_hostname()
    config.preferred_segments = ["a:1", "b:2"]
    config.preferred_nof_segments = ["c"]
    assert store.put_from("k", memory.at, 10, config) == 0


def test_1_5_data_type(store: Store, address: str) -> None:
    config = ReplicateConfig()
    for kind in ObjectDataType:
        config.data_type = kind
        assert store.put(kind.name, b"v", config) == 0
    with native(store, address) as other:
        assert [int(other.stat(kind.name).type) for kind in ObjectDataType] == [int(kind) for kind in ObjectDataType]


def test_1_5_hard_pin(store: Store, memory: Memory) -> None:
    config = ReplicateConfig()
    config.with_hard_pin = True
    assert store.put("put", b"pinned", config) == 0
    assert store.put_from("from", memory.at, 10, config) == 0
    assert store.batch_put_from(["batch"], [memory.at], [10], config) == [0]
    assert store.batch_put_from_multi_buffers(["multi"], [[memory.at]], [[10]], config) == [0]
    assert store.put_parts("parts", b"x", config=config) == 0
    assert store.put_batch(["values"], [b"x"], config) == 0
    assert store.upsert("upsert", b"x", config) == 0
    for i in range(200):
        store.put(f"k{i}", bytes(1 << 20))
    pinned = ["put", "from", "batch", "multi", "parts", "values", "upsert"]
    assert store.batch_is_exist(pinned) == [1] * 7
    assert store.batch_remove(pinned, True) == [0] * 7


def test_1_5_soft_pin(store: Store, address: str) -> None:
    config = ReplicateConfig()
    config.soft_pin_action = SoftPinAction.ENABLE
    assert store.put("default", b"v", config) == 0
    config.soft_pin_ttl_ms = 60_000
    assert store.put("minute", b"v", config) == 0
    config.soft_pin_ttl_ms = 0
    assert store.put("none", b"v", config) == 0
    config.soft_pin_ttl_ms = 24 * 3600 * 1000
    assert store.put("day", b"v", config) == 0
    with native(store, address) as other:
        left = {key: other.stat(key).soft_pin_ms for key in ("default", "minute", "none", "day")}
    assert 29 * 60_000 < left["default"] <= 30 * 60_000
    assert 50_000 < left["minute"] <= 60_000
    assert left["none"] == 0
    assert 23 * 3600_000 < left["day"] <= 24 * 3600_000


def test_1_5_soft_pin_longer_than_24_h_is_600(store: Store) -> None:
    config = ReplicateConfig()
    config.soft_pin_action = SoftPinAction.ENABLE
    for ttl in (24 * 3600 * 1000 + 1, (1 << 64) - 1):
        config.soft_pin_ttl_ms = ttl
        assert store.put("k", b"v", config) == -600


@pytest.mark.parametrize("action", [SoftPinAction.PRESERVE, SoftPinAction.DISABLE])
def test_1_5_soft_pin_ttl_without_enable_is_600(store: Store, action: SoftPinAction) -> None:
    config = ReplicateConfig()
    config.soft_pin_action = action
    config.soft_pin_ttl_ms = 1000
    assert store.put("k", b"v", config) == -600
    config.soft_pin_ttl_ms = None
    assert store.put("k", b"v", config) == 0


def test_1_5_soft_pin_preserve_keeps_it_over_an_upsert(store: Store, address: str) -> None:
    config = ReplicateConfig()
    config.soft_pin_action = SoftPinAction.ENABLE
    assert store.put("k", b"v", config) == 0
    config.soft_pin_action = SoftPinAction.PRESERVE
    assert store.upsert("k", b"w", config) == 0
    with native(store, address) as other:
        assert other.stat("k").soft_pin_ms > 0


def test_1_5_soft_pin_disable_ends_it_with_an_upsert(store: Store, address: str) -> None:
    config = ReplicateConfig()
    config.soft_pin_action = SoftPinAction.ENABLE
    assert store.put("k", b"v", config) == 0
    config.soft_pin_action = SoftPinAction.DISABLE
    assert store.upsert("k", b"w", config) == 0
    with native(store, address) as other:
        assert other.stat("k").soft_pin_ms == 0


def test_1_5_group_ids_one_for_each_key(store: Store, memory: Memory, address: str) -> None:
    config = ReplicateConfig()
    config.group_ids = ["one", "two", "one", "", "nul\0"]
    keys = ["a", "b", "c", "d", "e"]
    assert store.batch_put_from(keys, [memory.at] * 5, [10] * 5, config) == [0] * 5
    with native(store, address) as other:
        assert [other.stat(key).group or "" for key in keys] == config.group_ids
        assert sorted(map(str, other.group("one"))) == ["a", "c"]


def test_1_5_group_ids_mismatch_is_600(store: Store, memory: Memory) -> None:
    config = ReplicateConfig()
    config.group_ids = ["one", "two"]
    assert store.put("k", b"v", config) == -600
    assert store.batch_put_from(["a"], [memory.at], [10], config) == [-600]
    assert store.put_batch(["a", "b", "c"], [b"1"] * 3, config) == -600
    config.group_ids = []
    assert store.put("k", b"v", config) == -600
    config.group_ids = ["one"]
    assert store.put("k", b"v", config) == 0


def numbered(names: str) -> Dict[str, int]:
    return {name: i for i, name in enumerate(names.split())}


ENUMS: Dict[str, Dict[str, int]] = {
    "ObjectDataType": numbered(
        "UNKNOWN KVCACHE TENSOR WEIGHT SAMPLE ACTIVATION GRADIENT OPTIMIZER_STATE METADATA GENERAL"
    ),
    "ReplicaStatus": numbered("UNDEFINED INITIALIZED PROCESSING COMPLETE REMOVED FAILED"),
    "ReplicaType": dict(MEMORY=0, DISK=1, LOCAL_DISK=2, NOF_SSD=3, ALL=4, DFS=100),
    "SoftPinAction": dict(PRESERVE=0, ENABLE=1, DISABLE=2),
    "TaskStatus": dict(PENDING=0, PROCESSING=1, FAILED=2, SUCCESS=3),
    "TaskType": dict(REPLICA_COPY=0, REPLICA_MOVE=1),
}


@pytest.mark.parametrize("name", ENUMS)
def test_1_5_enumerations_have_the_cpp_numbers(name: str) -> None:
    enum: Type[IntEnum] = getattr(module, name)
    assert {item.name: item.value for item in enum} == ENUMS[name]
