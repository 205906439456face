"""Where objects are, and tasks that move them: the classes of mooncake.store that describe both."""

from __future__ import annotations

from enum import IntEnum
from typing import List, NamedTuple, Tuple

from libmooncake import _native

UUID = Tuple[int, int]


class ReplicaStatus(IntEnum):
    UNDEFINED = 0
    INITIALIZED = 1
    PROCESSING = 2
    COMPLETE = 3
    REMOVED = 4
    FAILED = 5


class ReplicaType(IntEnum):
    MEMORY = 0
    DISK = 1
    LOCAL_DISK = 2
    NOF_SSD = 3
    ALL = 4
    DFS = 100


class TaskType(IntEnum):
    REPLICA_COPY = 0
    REPLICA_MOVE = 1


class TaskStatus(IntEnum):
    PENDING = 0
    PROCESSING = 1
    FAILED = 2
    SUCCESS = 3


class QueryTaskResponse(NamedTuple):
    """What query_task returns in a cluster. An embedded store has no tasks."""

    id: UUID
    type: TaskType
    status: TaskStatus
    created_at_ms_epoch: int
    last_updated_at_ms_epoch: int
    assigned_client: UUID
    message: str


class BufferDescriptor(NamedTuple):
    size: int
    buffer_address: int
    """0: an embedded store moves objects, so no address of one is true for longer than a call."""
    transport_endpoint: str


class MemoryDescriptor(NamedTuple):
    buffer_descriptor: BufferDescriptor


class DiskDescriptor(NamedTuple):
    file_path: str
    object_size: int


class LocalDiskDescriptor(NamedTuple):
    client_id: UUID
    object_size: int
    transport_endpoint: str


class ReplicaDescriptor:
    """One place that has an object's bytes: memory, or the SSD of the embedded store."""

    __slots__ = ("_type", "_size", "_endpoint", "status")

    def __init__(self, kind: ReplicaType, size: int, endpoint: str) -> None:
        self._type, self._size, self._endpoint = kind, size, endpoint
        self.status = ReplicaStatus.COMPLETE

    def is_memory_replica(self) -> bool:
        return self._type == ReplicaType.MEMORY

    def is_disk_replica(self) -> bool:
        """False: a shared file system is a cluster's."""
        return self._type == ReplicaType.DISK

    def is_local_disk_replica(self) -> bool:
        return self._type == ReplicaType.LOCAL_DISK

    def get_memory_descriptor(self) -> MemoryDescriptor:
        self._must_be(ReplicaType.MEMORY)
        return MemoryDescriptor(BufferDescriptor(self._size, 0, self._endpoint))

    def get_disk_descriptor(self) -> DiskDescriptor:
        self._must_be(ReplicaType.DISK)
        return DiskDescriptor("", self._size)

    def get_local_disk_descriptor(self) -> LocalDiskDescriptor:
        self._must_be(ReplicaType.LOCAL_DISK)
        return LocalDiskDescriptor((0, 0), self._size, self._endpoint)

    def _must_be(self, kind: ReplicaType) -> None:
        if self._type != kind:
            raise RuntimeError(f"the replica is of type {self._type.name}, not {kind.name}")

    def __repr__(self) -> str:
        return f"<ReplicaDescriptor {self._type.name}, {self._size} bytes, {self.status.name}>"


def replicas(info: _native.ObjectInfo, endpoint: str) -> List[ReplicaDescriptor]:
    """The places that have an object."""
    kinds = ((ReplicaType.MEMORY, info.in_memory), (ReplicaType.LOCAL_DISK, info.on_ssd))
    return [ReplicaDescriptor(kind, info.size, endpoint) for kind, there in kinds if there]
