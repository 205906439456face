# SPDX-License-Identifier: Apache-2.0
"""The functions and structs of mooncake.h, for ctypes. Importing this module loads the library.

Nothing here raises on a negative result: callers check, and read mooncake_last_error in the same thread before another
call. The library is loaded as a CDLL, so calls run without the GIL.

Pointers and handles are c_void_p, which takes None, an address, bytes (without a copy), ctypes arrays and byref().
Strings are c_char_p: bytes or None; the sizes of keys come separately, so that they may hold NUL.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import c_char_p, c_double, c_int, c_int64, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from typing import Any, Dict, Optional, Tuple, Type

ABI_VERSION = 1
"""The ABI that this package needs: MOONCAKE_ABI_VERSION of the header that it was written for."""

SONAME = "libmooncake.so"
LIBRARY_VARIABLE = "MOONCAKE_LIBRARY"
FAST_VARIABLE = "MOONCAKE_PYTHON_FAST"  # 0: the functions are those of ctypes, also if libmooncake-fast is installed

MAX_KEY = 4096
MAX_BATCH = 1 << 20
NUL = ctypes.c_size_t(-1).value
"""MOONCAKE_NUL: as the size of a key says that it ends with NUL."""

# Codes. The names are the header's without MOONCAKE_.
OK = 0
EINTERNAL = -1
ENOSPACE = -200
EVERSION = -300
EKEY = -400
EWRITE = -500
EINVAL = -600
ENOTWRITER = -601
EREPLICA = -702
ENOTREADY = -703
ENOTFOUND = -704
EEXISTS = -705
ELEASED = -706
ELEASEEXPIRED = -707
EBUSY = -714
ECHECKSUM = -801
EUNAVAILABLE = -1010
EMODE = -1011
ENOTSUPPORTED = -1012
ENOFILE = -1100
EOPEN = -1101
EREAD = -1102
ELOCKED = -1105
ETAMPERED = -1106
ECORRUPT = -1502
ENOTDURABLE = -1503
EPINNED = -2001
ENOGROUP = -2002
EINCOMPLETE = -2003
ECANCELED = -2005
ETIMEOUT = -2006
ESOURCE = -2101
EDAMAGED = -2102
EIMPORTING = -2103
ENOTENSOR = -2104

OFFLOAD_ON_EVICT = 0
OFFLOAD_EAGER = 1
OFFLOAD_NEVER = 2

TYPE_UNKNOWN = 0
TYPE_KVCACHE = 1
TYPE_TENSOR = 2
TYPE_WEIGHT = 3
TYPE_SAMPLE = 4
TYPE_ACTIVATION = 5
TYPE_GRADIENT = 6
TYPE_OPTIMIZER_STATE = 7
TYPE_METADATA = 8
TYPE_GENERAL = 9

VERIFY_ALWAYS = 1
VERIFY_NEVER = 2
NO_LEASE = 4

EVENT_PUT = 1
EVENT_REMOVED = 2
EVENT_EVICTED = 3
EVENT_DEMOTED = 4
EVENT_QUARANTINED = 5
EVENT_DROPPED = 6

IMPORT_LISTING = 1
IMPORT_CHECKING = 2
IMPORT_IMPORTING = 3
IMPORT_COMPARING = 4
IMPORT_DONE = 5


class ReplicateConfig(ctypes.Structure):
    _fields_ = [
        ("replica_num", c_size_t),
        ("with_soft_pin", c_int),
        ("with_hard_pin", c_int),
        ("preferred_segments", c_void_p),
        ("preferred_segments_count", c_size_t),
    ]


class Sized(ctypes.Structure):
    """A struct that may grow: struct_size is set when it is made, every other field is zero."""

    _fields_ = [("struct_size", c_size_t)]

    def __init__(self) -> None:
        super().__init__(ctypes.sizeof(self))


class StoreOptions(Sized):
    _fields_ = [
        ("pool", c_char_p),
        ("tenant", c_char_p),
        ("dir", c_char_p),
        ("memory_bytes", c_uint64),
        ("ssd_bytes", c_uint64),
        ("shm_dir", c_char_p),
        ("volatile_memory", c_int),
        ("offload", c_int),
        ("lease_ttl_ms", c_uint64),
        ("high_watermark", c_double),
        ("eviction_ratio", c_double),
        ("file_bytes", c_uint64),
        ("promote_after", c_int),
        ("dir_slots", c_int),
        ("put_timeout_ms", c_uint64),
        ("join", c_int),
        ("master", c_char_p),
    ]


class PutOptions(Sized):
    _fields_ = [
        ("type", c_uint32),
        ("hard_pin", c_int),
        ("soft_pin_ms", c_uint64),
        ("group", c_char_p),
        ("group_size", c_size_t),
        ("durable", c_int),
        ("own_file", c_int),
        ("replace", c_int),
        ("keep", c_int),
        ("replica_num", c_size_t),
        ("preferred_segments", c_void_p),
        ("preferred_segments_count", c_size_t),
        ("groups", c_char_p),
        ("groups_size", c_size_t),
        ("group_sizes", c_void_p),
    ]


class ObjectInfo(Sized):
    _fields_ = [
        ("key", c_void_p),
        ("key_size", c_size_t),
        ("size", c_uint64),
        ("generation", c_uint64),
        ("digest", c_uint64),
        ("type", c_uint32),
        ("hard_pin", c_int),
        ("durable", c_int),
        ("link", c_int),
        ("in_memory", c_int),
        ("on_ssd", c_int),
        ("soft_pin_ms", c_int64),
        ("lease_ms", c_int64),
        ("readers", c_int64),
        ("group", c_void_p),
        ("group_capacity", c_size_t),
        ("group_size", c_size_t),
    ]


class KeyList(ctypes.Structure):
    _fields_ = [("count", c_size_t), ("data", c_void_p), ("sizes", c_void_p)]


class View(Sized):
    _fields_ = [("handle", c_uint64), ("data", c_void_p), ("size", c_uint64), ("segment_count", c_size_t)]


class Segment(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("size", c_size_t)]


class File(Sized):
    _fields_ = [("handle", c_uint64), ("path", c_char_p), ("size", c_uint64), ("tier", c_int), ("temporary", c_int)]


class Usage(Sized):
    _fields_ = [
        ("objects", c_int64 * 10),
        ("memory_count", c_int64 * 10),
        ("memory_bytes", c_int64 * 10),
        ("ssd_count", c_int64 * 10),
        ("ssd_bytes", c_int64 * 10),
        ("hard_pinned", c_int64),
        ("groups", c_int64),
        ("reserved_bytes", c_int64),
        ("in_use_bytes", c_int64),
        ("memory_budget", c_int64),
        ("memory_taken", c_int64),
        ("data_capacity", c_int64),
        ("data_free", c_int64),
        ("largest_free", c_int64),
        ("own_files_bytes", c_int64),
        ("metadata_bytes", c_int64),
        ("index_bytes", c_int64),
        ("ssd_limit", c_int64),
        ("ssd_live", c_int64),
        ("ssd_on_disk", c_int64),
        ("growing", c_int),
    ]


class Counters(Sized):
    _fields_ = [
        ("puts", c_int64),
        ("put_bytes", c_int64),
        ("memory_hits", c_int64),
        ("memory_hit_bytes", c_int64),
        ("ssd_hits", c_int64),
        ("ssd_hit_bytes", c_int64),
        ("misses", c_int64),
        ("removed", c_int64),
        ("quarantined", c_int64),
        ("evictions", c_int64),
        ("evictions_freed", c_int64),
        ("evictions_leased", c_int64),
        ("memory_evicted", c_int64),
        ("memory_evicted_bytes", c_int64),
        ("ssd_evicted", c_int64),
        ("ssd_evicted_bytes", c_int64),
        ("offloaded", c_int64),
        ("offloaded_bytes", c_int64),
        ("offload_failures", c_int64),
        ("promotions", c_int64),
        ("promoted_bytes", c_int64),
        ("promotion_failures", c_int64),
        ("promotions_dropped", c_int64),
        ("allocation_failures", c_int64),
        ("restored_from_memory", c_int64),
        ("restored_from_ssd", c_int64),
        ("corrupt_records", c_int64),
        ("events_dropped", c_int64),
    ]


class Event(Sized):
    _fields_ = [
        ("kind", c_int),
        ("tier", c_int),
        ("type", c_uint32),
        ("size", c_uint64),
        ("key", c_void_p),
        ("key_size", c_size_t),
        ("tenant", c_char_p),
    ]


class WeightOptions(Sized):
    _fields_ = [("load_dir", c_char_p), ("unfinished_ttl_ms", c_uint64)]


class WeightImport(Sized):
    _fields_ = [
        ("model_id", c_char_p),
        ("revision", c_char_p),
        ("source", c_char_p),
        ("include", c_void_p),
        ("include_count", c_size_t),
        ("exclude", c_void_p),
        ("exclude_count", c_size_t),
        ("code", c_int),
        ("unpinned", c_int),
        ("memory_only", c_int),
        ("parallel", c_int),
        ("replica_num", c_size_t),
        ("follow_links", c_int),
    ]


class WeightProgress(Sized):
    _fields_ = [
        ("phase", c_int),
        ("files", c_int64),
        ("files_done", c_int64),
        ("files_reused", c_int64),
        ("bytes", c_int64),
        ("bytes_done", c_int64),
        ("bytes_read", c_int64),
        ("elapsed_ms", c_int64),
    ]


class Loaded(Sized):
    _fields_ = [("handle", c_uint64), ("dir", c_char_p), ("lock_fd", c_int)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("dtype", c_char_p),
        ("shape", c_void_p),
        ("dims", c_size_t),
        ("file", c_char_p),
        ("offset", c_uint64),
        ("size", c_uint64),
    ]


class TensorList(ctypes.Structure):
    _fields_ = [("count", c_size_t), ("tensor_size", c_size_t), ("tensors", c_void_p)]


# One letter for each type, so that a line below can be read beside its prototype.
_P, _S, _N = c_void_p, c_char_p, c_size_t
_I, _U, _I64, _U64 = c_int, c_uint, c_int64, c_uint64
_KEY = (_S, _N)
_KEYS = (_S, _N, _P, _N)  # keys, keys_size, key_sizes, count

FUNCTIONS: Dict[str, Tuple[Optional[Type[Any]], Tuple[Type[Any], ...]]] = {
    # 2 Library
    "mooncake_abi_version": (_I, ()),
    "mooncake_last_error": (_S, ()),
    "mooncake_last_error_code": (_I, ()),
    "mooncake_error_name": (_S, (_I,)),
    "mooncake_free": (None, (_P,)),
    # 3 The 19 functions of store_c.h
    "mooncake_store_create": (_P, ()),
    "mooncake_store_destroy": (None, (_P,)),
    "mooncake_store_setup": (_I, (_P, _S, _S, _U64, _U64, _S, _S, _S)),
    "mooncake_store_init_all": (_I, (_P, _S, _S, _U64)),
    "mooncake_store_health_check": (_I, (_P,)),
    "mooncake_store_put": (_I, (_P, _S, _P, _N, _P)),
    "mooncake_store_put_from": (_I, (_P, _S, _P, _N, _P)),
    "mooncake_store_batch_put_from": (_I, (_P, _P, _P, _P, _N, _P, _P)),
    "mooncake_store_get_into": (_I64, (_P, _S, _P, _N)),
    "mooncake_store_batch_get_into": (_I, (_P, _P, _P, _P, _N, _P)),
    "mooncake_store_is_exist": (_I, (_P, _S)),
    "mooncake_store_batch_is_exist": (_I, (_P, _P, _N, _P)),
    "mooncake_store_get_size": (_I64, (_P, _S)),
    "mooncake_store_get_hostname": (_I, (_P, _P, _N)),
    "mooncake_store_remove": (_I, (_P, _S, _I)),
    "mooncake_store_remove_by_regex": (_I64, (_P, _S, _I)),
    "mooncake_store_remove_all": (_I64, (_P, _I)),
    "mooncake_store_register_buffer": (_I, (_P, _P, _N)),
    "mooncake_store_unregister_buffer": (_I, (_P, _P)),
    # 4 Store
    "mooncake_store_open": (_I, (_P, _P)),
    "mooncake_store_close": (_I, (_P,)),
    "mooncake_store_tenant": (_I, (_P, _S, _P)),
    "mooncake_store_wait_ready": (_I, (_P, _I64)),
    "mooncake_store_sync": (_I, (_P,)),
    # 5 Objects
    "mooncake_store_put_object": (_I, (_P, *_KEY, _P, _N, _P)),
    "mooncake_store_get_object": (_I64, (_P, *_KEY, _P, _N, _U)),
    "mooncake_store_get_copy": (_I, (_P, *_KEY, _U, _P, _P)),
    "mooncake_store_stat": (_I, (_P, *_KEY, _P)),
    "mooncake_store_link": (_I, (_P, *_KEY, *_KEY, _P)),
    "mooncake_store_set_pins": (_I, (_P, *_KEY, _I, _I64)),
    "mooncake_store_set_group_pins": (_I, (_P, *_KEY, _I, _I64)),
    "mooncake_store_group": (_I, (_P, *_KEY, _P)),
    "mooncake_store_remove_group": (_I, (_P, *_KEY, _I, _P)),
    # 6 Batches
    "mooncake_store_batch_exist": (_I, (_P, *_KEYS, _U, _P)),
    "mooncake_store_batch_put": (_I, (_P, *_KEYS, _P, _P, _P, _P, _P)),
    "mooncake_store_batch_get": (_I, (_P, *_KEYS, _P, _P, _P, _U, _P)),
    "mooncake_store_batch_get_ranges": (_I, (_P, *_KEYS, _P, _P, _P, _P, _U, _P)),
    "mooncake_store_batch_get_size": (_I, (_P, *_KEYS, _P)),
    "mooncake_store_batch_remove": (_I, (_P, *_KEYS, _I, _P)),
    # 7 Views, files, writers
    "mooncake_store_view": (_I, (_P, *_KEY, _U, _P)),
    "mooncake_store_batch_view": (_I, (_P, *_KEYS, _U, _P, _N, _P)),
    "mooncake_view_segments": (_I64, (_P, _P, _N)),
    "mooncake_view_close": (_I, (_P,)),
    "mooncake_store_file": (_I, (_P, *_KEY, _U, _P)),
    "mooncake_file_close": (_I, (_P,)),
    "mooncake_store_create_object": (_I, (_P, *_KEY, _U64, _P, _P)),
    "mooncake_writer_write": (_I, (_P, _P, _N)),
    "mooncake_writer_write_at": (_I, (_P, _U64, _P, _N)),
    "mooncake_writer_commit": (_I, (_P,)),
    "mooncake_writer_abort": (_I, (_P,)),
    # 8 Sessions
    "mooncake_store_get_session_start": (_I, (_P, *_KEYS, _P)),
    "mooncake_store_get_session_read": (_I, (_P, *_KEYS, _P, _P, _P, _P, _P)),
    "mooncake_store_get_session_end": (_I, (_P, *_KEYS)),
    "mooncake_store_put_session_start": (_I, (_P, *_KEYS, _P, _P, _P)),
    "mooncake_store_put_session_write": (_I, (_P, *_KEYS, _P, _P, _P, _P, _P)),
    "mooncake_store_put_session_end": (_I, (_P, *_KEYS, _P)),
    "mooncake_store_put_session_revoke": (_I, (_P, *_KEYS, _P)),
    # 9 Operations
    "mooncake_store_batch_put_async": (_I, (_P, *_KEYS, _P, _P, _P, _P, _P, _P)),
    "mooncake_store_batch_get_async": (_I, (_P, *_KEYS, _P, _P, _P, _U, _P, _P)),
    "mooncake_operation_poll": (_I, (_P,)),
    "mooncake_operation_wait": (_I, (_P, _I64)),
    "mooncake_operation_result": (_I, (_P,)),
    "mooncake_operation_eventfd": (_I, (_P,)),
    "mooncake_operation_cancel": (_I, (_P,)),
    "mooncake_operation_free": (_I, (_P,)),
    # 10 What the store holds and does
    "mooncake_store_usage": (_I, (_P, _P)),
    "mooncake_store_counters": (_I, (_P, _P)),
    "mooncake_store_room": (_I, (_P, _I, _P, _P)),
    "mooncake_store_explain": (_I, (_P, *_KEY, _P)),
    "mooncake_store_list": (_I, (_P, *_KEY, _P)),
    "mooncake_list_next": (_I, (_P, _P)),
    "mooncake_list_close": (_I, (_P,)),
    "mooncake_store_events": (_I, (_P, _N, _P)),
    "mooncake_events_next": (_I, (_P, _I64, _P)),
    "mooncake_events_eventfd": (_I, (_P,)),
    "mooncake_events_close": (_I, (_P,)),
    # 11 Weights
    "mooncake_weight_open": (_I, (_P, _P, _P)),
    "mooncake_weight_close": (_I, (_P,)),
    "mooncake_weight_import": (_I, (_P, _P, _P)),
    "mooncake_weight_import_progress": (_I, (_P, _P)),
    "mooncake_weight_import_result": (_I, (_P, _P)),
    "mooncake_weight_manifest": (_I, (_P, _S, _S, _P)),
    "mooncake_weight_check": (_I, (_P, _S, _S, _I, _P)),
    "mooncake_weight_list": (_I, (_P, _S, _P)),
    "mooncake_weight_usage": (_I, (_P, _P)),
    "mooncake_weight_delete": (_I, (_P, _S, _S)),
    "mooncake_weight_abort": (_I, (_P, _S, _S)),
    "mooncake_weight_load": (_I, (_P, _S, _S, _I, _P)),
    "mooncake_loaded_close": (_I, (_P,)),
    "mooncake_loaded_hand_out": (_I, (_P, _S)),
    "mooncake_loaded_detach": (_I, (_P, _P)),
    "mooncake_weight_open_file": (_I, (_P, _S, _S, _S, _P)),
    "mooncake_weight_file_size": (_I64, (_P,)),
    "mooncake_weight_file_read_at": (_I64, (_P, _P, _N, _U64)),
    "mooncake_weight_file_close": (_I, (_P,)),
    "mooncake_weight_tensors": (_I, (_P, _S, _S, _P)),
    "mooncake_weight_read_tensor": (_I64, (_P, _S, _S, _S, _P, _N)),
    "mooncake_weight_view_tensor": (_I, (_P, _S, _S, _S, _P)),
}


def _loaded(name: str) -> Optional[ctypes.CDLL]:
    """A library that this process has already loaded, by SONAME or path. Nothing is loaded."""
    try:
        return ctypes.CDLL(name, mode=os.RTLD_NOLOAD)
    except OSError:
        return None


def _open() -> ctypes.CDLL:
    """The library. A second copy of it would be a second Go runtime and a second store: one that the process has
    already goes before everything else, and MOONCAKE_LIBRARY may not name another."""
    present = _loaded(SONAME)
    path = os.environ.get(LIBRARY_VARIABLE)
    if path:
        if present is not None and _loaded(path) is None:
            raise ImportError(f"{LIBRARY_VARIABLE} is {path}, but this process has another {SONAME} loaded")
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            raise ImportError(f"{LIBRARY_VARIABLE} is {path}: {error}") from error
    if present is not None:
        return present
    bundled = os.path.join(os.path.dirname(os.path.abspath(__file__)), SONAME)
    if os.path.exists(bundled):
        try:
            return ctypes.CDLL(bundled)
        except OSError as error:
            raise ImportError(f"cannot load {bundled}: {error}") from error
    try:
        return ctypes.CDLL(SONAME)
    except OSError as error:
        raise ImportError(
            f"no {SONAME}: {LIBRARY_VARIABLE} is not set, {bundled} does not exist, and the system has none ({error})"
        ) from error


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    try:
        version = int(library.mooncake_abi_version())
        if version < ABI_VERSION:
            raise ImportError(f"{library._name} has ABI {version}, this package needs at least {ABI_VERSION}")
        for name, (result, arguments) in FUNCTIONS.items():
            function = getattr(library, name)
            function.restype = result
            function.argtypes = arguments
    except AttributeError as error:
        raise ImportError(f"{library._name} is not the {SONAME} that this package needs: {error}") from None
    return library


def _quicker(library: ctypes.CDLL) -> None:
    """Replace the functions by those of the package libmooncake-fast, which take the same arguments, if it is there."""
    if os.environ.get(FAST_VARIABLE) == "0":
        return
    try:
        from libmooncake_fast import function  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]
    except ImportError:
        return
    kinds = {
        c_int: "i",
        c_uint: "i",
        c_int64: "q",
        c_uint64: "q",
        c_size_t: "q",
        c_char_p: "s",
        c_void_p: "p",
        None: "v",
    }
    for name, (result, arguments) in FUNCTIONS.items():
        address = ctypes.cast(getattr(library, name), c_void_p).value
        setattr(library, name, function(name, address, kinds[result], "".join(kinds[a] for a in arguments)))


class _DlInfo(ctypes.Structure):
    _fields_ = [("file", c_char_p), ("base", c_void_p), ("symbol", c_char_p), ("address", c_void_p)]


def _file(library: ctypes.CDLL) -> str:
    info = _DlInfo()
    ctypes.CDLL(None).dladdr(ctypes.cast(library.mooncake_abi_version, c_void_p), ctypes.byref(info))
    return os.fsdecode(info.file)


lib = _declare(_open())
"""The loaded library: lib.mooncake_store_open and so on."""

path = _file(lib)
"""The file that lib was loaded from."""

_quicker(lib)
