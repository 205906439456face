"""mooncake.store: the C++ Mooncake Store's Python interface, over the store that libmooncake runs in this process.

Results. Unless a method says otherwise an int that is 0 is success and one that is negative the C++ store's code; a batch
has one result for each key. Batches whose lists do not match are all -600. Nothing of this raises but TypeError for an
argument of the wrong type and what setup says. Methods can be called from any thread and run without the GIL. In a process
that was forked from the one that imported this module every call fails at once.
"""

from __future__ import annotations

from ctypes import byref
from typing import Any, Dict, List, Optional, Sequence, Tuple

from libmooncake import _native
from libmooncake.key import encode

from ._client import last_error
from ._cluster import (
    BufferPool,
    EngramStore,
    EngramStoreConfig,
    MooncakeDistributedNoFRegister,
    MooncakeDistributedStoreAsync,
    ParallelAxis,
    ReadTarget,
    TensorParallelism,
    missing_method,
)
from ._config import ObjectDataType, ReplicateConfig, SoftPinAction
from ._memory import BufferHandle, MooncakeHostMemAllocator, bind_to_numa_node
from ._object import Objects
from ._pack import Key, listed
from ._replica import (
    UUID,
    BufferDescriptor,
    DiskDescriptor,
    LocalDiskDescriptor,
    MemoryDescriptor,
    QueryTaskResponse,
    ReplicaDescriptor,
    ReplicaStatus,
    ReplicaType,
    TaskStatus,
    TaskType,
    replicas,
)
from ._session import Sessions

__all__ = [
    "BufferDescriptor",
    "BufferHandle",
    "BufferPool",
    "DiskDescriptor",
    "EngramStore",
    "EngramStoreConfig",
    "LocalDiskDescriptor",
    "MemoryDescriptor",
    "MooncakeDistributedNoFRegister",
    "MooncakeDistributedStore",
    "MooncakeDistributedStoreAsync",
    "MooncakeHostMemAllocator",
    "ObjectDataType",
    "ParallelAxis",
    "QueryTaskResponse",
    "ReadTarget",
    "ReplicaDescriptor",
    "ReplicaStatus",
    "ReplicaType",
    "ReplicateConfig",
    "SoftPinAction",
    "TaskStatus",
    "TaskType",
    "TensorParallelism",
    "bind_to_numa_node",
    "last_error",
]

_stat = _native.lib.mooncake_store_stat
_ENOTSUPPORTED = _native.ENOTSUPPORTED


class MooncakeDistributedStore(Objects, Sessions):
    """A client of a store in this process: see the module's text."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        raise missing_method(name)

    # Section 1.4 of the C++ store's Python interface: replicas, and the tasks that move them.

    def get_replica_desc(self, key: Key) -> List[ReplicaDescriptor]:
        """Where an object is. [] if there is none."""
        return self.batch_get_replica_desc([key]).get(key, [])

    def batch_get_replica_desc(self, keys: Sequence[Key]) -> Dict[Key, List[ReplicaDescriptor]]:
        """Where objects are. Missing ones are left out."""
        keys = listed(keys)
        found: Dict[Key, List[ReplicaDescriptor]] = {}
        for key, there in zip(keys, self.batch_is_exist(keys)):
            if there == 1:
                name, info = encode(key), _native.ObjectInfo()
                if _stat(self._handle, name, len(name), byref(info)) == 0:
                    found[key] = replicas(info, self._hostname)
        return found

    def batch_replica_clear(self, keys: Sequence[Key], segment_name: str = "") -> List[Key]:
        """Remove objects, and return the keys of those that were. segment_name is this client's name, or "" for all."""
        keys = listed(keys)
        if segment_name not in ("", self._hostname):
            return []
        return [key for key, code in zip(keys, self.batch_remove(keys)) if code == 0]

    def create_copy_task(self, key: Key, targets: Sequence[str]) -> Tuple[UUID, int]:
        """((0, 0), -1012): there is nowhere to copy to."""
        return (0, 0), _ENOTSUPPORTED

    def create_move_task(self, key: Key, source: str, target: str) -> Tuple[UUID, int]:
        """((0, 0), -1012)"""
        return (0, 0), _ENOTSUPPORTED

    def query_task(self, task_id: UUID) -> Tuple[Optional[QueryTaskResponse], int]:
        """(None, -1012)"""
        return None, _ENOTSUPPORTED
