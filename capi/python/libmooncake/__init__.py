# SPDX-License-Identifier: Apache-2.0
"""One store for KV cache and model weights, in the process of the inference engine that uses it.

import libmooncake

with libmooncake.Store(memory_bytes=8 << 30) as store:
    store.put("page-1", kv)                  # any buffer: bytes, numpy, torch on the CPU, mlx
    store.get_into("page-1", buffer)         # one copy
    with store.view("page-1") as view:       # none
        array = numpy.frombuffer(view.data, dtype="float16")

weights = libmooncake.Weights(libmooncake.Store(dir="/var/lib/mooncake"))
weights.import_model("org/model", "1", "/models/model")
with weights.load("org/model", "1") as loaded:
    engine = start(model=loaded.dir)
"""

from . import _native
from ._native import MAX_BATCH, MAX_KEY
from .errors import (
    BatchError,
    BusyError,
    CanceledError,
    ChecksumError,
    DamagedError,
    ExistsError,
    ImportingError,
    IncompleteError,
    InternalError,
    InvalidError,
    InvalidKeyError,
    LeasedError,
    LockedError,
    ModeError,
    MooncakeError,
    NoGroupError,
    NoReplicaError,
    NoSpaceError,
    NotDurableError,
    NoTensorError,
    NotFoundError,
    NotReadyError,
    NotWriterError,
    PinnedError,
    SourceError,
    StorageError,
    TamperedError,
    TimedOutError,
    UnavailableError,
    UnsupportedError,
    VersionError,
)
from .event import Event, EventKind, Events
from .info import Counters, Decision, ObjectInfo, Room, Usage
from .listing import Listing
from .model import FileReport, ImportResult, Manifest, ModelFile, Progress, Report, RevisionUsage, Summary, WeightUsage
from .operation import Operation
from .options import ObjectType, PutOptions
from .session import GetSession, PutSession
from .store import Store
from .tensor import Tensor
from .view import File, View
from .weight import ImportOperation, Loaded, Tensors, WeightFile, Weights
from .writer import Writer

__version__ = "0.1.0"

__all__ = [
    "BatchError",
    "BusyError",
    "CanceledError",
    "ChecksumError",
    "Counters",
    "DamagedError",
    "Decision",
    "Event",
    "EventKind",
    "Events",
    "ExistsError",
    "File",
    "FileReport",
    "GetSession",
    "ImportOperation",
    "ImportResult",
    "ImportingError",
    "IncompleteError",
    "InternalError",
    "InvalidError",
    "InvalidKeyError",
    "LeasedError",
    "Listing",
    "Loaded",
    "LockedError",
    "MAX_BATCH",
    "MAX_KEY",
    "Manifest",
    "ModeError",
    "ModelFile",
    "MooncakeError",
    "NoGroupError",
    "NoReplicaError",
    "NoSpaceError",
    "NoTensorError",
    "NotDurableError",
    "NotFoundError",
    "NotReadyError",
    "NotWriterError",
    "ObjectInfo",
    "ObjectType",
    "Operation",
    "PinnedError",
    "Progress",
    "PutOptions",
    "PutSession",
    "Report",
    "RevisionUsage",
    "Room",
    "SourceError",
    "StorageError",
    "Store",
    "Summary",
    "TamperedError",
    "Tensor",
    "Tensors",
    "TimedOutError",
    "UnavailableError",
    "UnsupportedError",
    "Usage",
    "VersionError",
    "View",
    "WeightFile",
    "WeightUsage",
    "Weights",
    "Writer",
    "abi_version",
    "library_path",
]


def abi_version() -> int:
    """MOONCAKE_ABI_VERSION of the loaded library."""
    return int(_native.lib.mooncake_abi_version())


def library_path() -> str:
    """The file of the loaded library."""
    return _native.path
