"""Objects that own something of this process can't be pickled or copied."""

from __future__ import annotations

import copy
import importlib
import pickle
import pkgutil
from enum import Enum
from typing import Iterator, Set

import mooncake
import pytest
from libmooncake.handle import Handle
from mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator

PLAIN: Set[str] = set("""
    Regions Request ReplicateConfig QueryTaskResponse BufferDescriptor MemoryDescriptor DiskDescriptor LocalDiskDescriptor
    ReplicaDescriptor Process _Wanted
""".split())
"""Classes of plain values; Regions is a client's own."""


def classes() -> Iterator[type]:
    """All classes of the package, but exceptions, enumerations, those that can't be made and parts of BufferHandle."""
    for module in pkgutil.iter_modules(mooncake.__path__):
        if module.name not in ("_cluster", "engine"):
            for value in vars(importlib.import_module(f"mooncake.{module.name}")).values():
                if isinstance(value, type) and value.__module__ == f"mooncake.{module.name}":
                    if not issubclass(value, (Exception, Enum)) and value.__name__ not in ("_Byte", "_Handle"):
                        yield value


def test_every_class_is_plain_or_a_handle() -> None:
    assert {cls.__name__ for cls in classes() if not issubclass(cls, Handle)} == PLAIN


def test_handles_refuse(store: MooncakeDistributedStore) -> None:
    assert store.put("k", b"value") == 0
    for thing in (store, store.get_buffer("k"), MooncakeHostMemAllocator()):
        for make in (copy.copy, copy.deepcopy, pickle.dumps, lambda x: pickle.dumps(x, 0)):
            with pytest.raises(TypeError, match="belongs to its process"):
                make(thing)
    assert store.get("k") == b"value"
