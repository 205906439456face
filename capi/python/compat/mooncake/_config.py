"""How an object is to be stored, and the enumerations of mooncake.store, with the C++ Mooncake's numbers."""

from __future__ import annotations

from ctypes import byref
from enum import IntEnum
from operator import index
from typing import Any, Callable, Dict, List, Optional

from libmooncake import _native
from libmooncake.buffer import address
from libmooncake.key import pack


class ObjectDataType(IntEnum):
    UNKNOWN = 0
    KVCACHE = 1
    TENSOR = 2
    WEIGHT = 3
    SAMPLE = 4
    ACTIVATION = 5
    GRADIENT = 6
    OPTIMIZER_STATE = 7
    METADATA = 8
    GENERAL = 9


class SoftPinAction(IntEnum):
    PRESERVE = 0
    ENABLE = 1
    DISABLE = 2


def _count(name: str, value: Any) -> int:
    number = index(value)
    if not 0 <= number < 1 << 64:
        raise TypeError(f"ReplicateConfig.{name} is an integer from 0 to 2**64 - 1, not {number}")
    return number


def _optional_count(name: str, value: Any) -> Optional[int]:
    return None if value is None else _count(name, value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, int)):
        raise TypeError(f"ReplicateConfig.{name} is a bool, not {type(value).__name__}")
    return bool(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"ReplicateConfig.{name} is a str, not {type(value).__name__}")
    return value


def _texts(name: str, value: Any) -> List[str]:
    if isinstance(value, (str, bytes)):
        raise TypeError(f"ReplicateConfig.{name} is a list of str, not {type(value).__name__}")
    return [_text(name, item) for item in value]


def _optional_texts(name: str, value: Any) -> Optional[List[str]]:
    return None if value is None else _texts(name, value)


def _enum(kind: type) -> Callable[[str, Any], Any]:
    def check(name: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError(f"ReplicateConfig.{name} is a {kind.__name__}, not {type(value).__name__}")
        return value

    return check


class ReplicateConfig:
    """How an object is stored. replica_num, preferred_segment and preferred_segments are accepted and mean nothing while
    the store is in this process. A value of the wrong type or range is a TypeError when it is set, an attribute that does
    not exist an AttributeError; combinations that make no sense fail the put that uses them, with -600."""

    replica_num: int = 1
    nof_replica_num: int = 0
    dfs_replica_num: int = 0
    soft_pin_action: SoftPinAction = SoftPinAction.PRESERVE
    soft_pin_ttl_ms: Optional[int] = None
    with_hard_pin: bool = False
    preferred_segments: List[str] = []
    preferred_nof_segments: List[str] = []
    preferred_segment: str = ""
    prefer_alloc_in_same_node: bool = False
    data_type: ObjectDataType = ObjectDataType.UNKNOWN
    group_ids: Optional[List[str]] = None

    def __init__(self) -> None:
        self.__dict__.update(preferred_segments=[], preferred_nof_segments=[])  # not the class's

    def __setattr__(self, name: str, value: Any) -> None:
        check = _CHECKS.get(name)
        if check is None:
            raise AttributeError(f"'ReplicateConfig' object has no attribute {name!r}")
        self.__dict__[name] = check(name, value)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"can't delete attribute {name!r}")

    def __str__(self) -> str:
        values = ((name, getattr(self, name)) for name in _CHECKS)
        return (
            "ReplicateConfig: { "
            + ", ".join(f"{name}: {value.name if isinstance(value, IntEnum) else value}" for name, value in values)
            + " }"
        )

    __repr__ = __str__


_CHECKS: Dict[str, Callable[[str, Any], Any]] = {
    "replica_num": _count,
    "nof_replica_num": _count,
    "dfs_replica_num": _count,
    "soft_pin_action": _enum(SoftPinAction),
    "soft_pin_ttl_ms": _optional_count,
    "with_hard_pin": _flag,
    "preferred_segments": _texts,
    "preferred_nof_segments": _texts,
    "preferred_segment": _text,
    "prefer_alloc_in_same_node": _flag,
    "data_type": _enum(ObjectDataType),
    "group_ids": _optional_texts,
}

# What a put does with a key that exists: keep its bytes and succeed, replace it, or fail.
KEEP, REPLACE, FAIL = "keep", "replace", "fail"

_DEFAULT_SOFT_PIN_MS = 30 * 60 * 1000
_INERT = frozenset(("replica_num", "preferred_segment", "preferred_segments", "preferred_nof_segments"))
"""Fields that only matter in a cluster."""

_EINVAL = _native.EINVAL


def _options(existing: str) -> _native.PutOptions:
    options = _native.PutOptions()
    options.keep = existing == KEEP
    options.replace = existing == REPLACE
    return options


_PLAIN: Dict[str, Any] = {existing: byref(_options(existing)) for existing in (KEEP, REPLACE, FAIL)}


def put_options(config: Optional[ReplicateConfig], count: int, existing: str, same_node: bool = False) -> Any:
    """The argument of the library's puts that says how to store count objects, or a negative int: the code of a config
    that can't be. same_node says that the caller honours prefer_alloc_in_same_node, which an embedded store does by
    nature."""
    if config is None:
        return _PLAIN[existing]
    if type(config) is not ReplicateConfig:
        raise TypeError(f"config is a ReplicateConfig, not {type(config).__name__}")
    if config.__dict__.keys() <= _INERT:
        return _PLAIN[existing] if config.replica_num else _EINVAL
    return _checked(config, count, existing, same_node)


def _checked(config: ReplicateConfig, count: int, existing: str, same_node: bool) -> Any:
    if config.replica_num == 0 or config.nof_replica_num or config.dfs_replica_num:
        return _EINVAL
    if config.prefer_alloc_in_same_node and not (same_node and config.replica_num == 1):
        return _EINVAL
    groups = [] if config.group_ids is None else [*config.group_ids]
    if config.group_ids is not None and len(groups) != count:
        return _EINVAL
    options = _options(existing)
    options.type = config.data_type
    options.hard_pin = config.with_hard_pin
    if config.soft_pin_action == SoftPinAction.ENABLE:
        ttl = config.soft_pin_ttl_ms
        options.soft_pin_ms = _DEFAULT_SOFT_PIN_MS if ttl is None else ttl  # the library refuses more than 24 h
    elif config.soft_pin_ttl_ms is not None:
        return _EINVAL
    if groups:
        options.groups, options.groups_size, sizes, _ = pack(groups)
        if sizes is not None:
            options.kept = sizes  # as long as the struct
            options.group_sizes = address(sizes)
    return byref(options)


def ends_soft_pin(config: ReplicateConfig) -> bool:
    """Whether an upsert takes the soft pin of the object that it replaces away. The library's leaves pins as they are."""
    action = config.soft_pin_action
    return action == SoftPinAction.DISABLE or (action == SoftPinAction.ENABLE and config.soft_pin_ttl_ms == 0)
