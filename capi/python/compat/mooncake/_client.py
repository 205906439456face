"""Section 1.1 of the C++ store's Python interface: the life cycle of a client."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from array import array
from operator import index
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

from libmooncake import _native
from libmooncake.handle import Handle

from . import _peers, _setup
from ._cluster import refusal
from ._pack import MALFORMED, Key, Refused, again, joined, sifted
from ._region import Regions

_log = logging.getLogger("mooncake.store")
_process = os.getpid()

_lib = _native.lib
_open = _lib.mooncake_store_open
_destroy = _lib.mooncake_store_destroy

_byref = ctypes.byref

_EINVAL = _native.EINVAL
_ENOTSUPPORTED = _native.ENOTSUPPORTED
_EUNAVAILABLE = _native.EUNAVAILABLE


def last_error() -> str:
    """What the last store call of this thread that failed had to say: for people. Not in the C++ package."""
    text: bytes = _lib.mooncake_last_error()
    return text.decode("utf-8", "replace")


class Client(Handle):
    """A client of a store in this process, and how it calls the library."""

    __slots__ = ("_handle", "_hostname", "_ssd", "_lock", "_regions", "_opened", "__weakref__")

    _handle: Optional[int]
    _opened: Optional[_peers.Opened]

    def __init__(self) -> None:
        self._handle = None
        self._hostname = ""
        self._ssd = False
        self._lock = threading.RLock()  # of setup and close; a signal handler may close what its thread sets up
        self._regions = Regions()
        self._opened = None

    def __del__(self, _destroy: Any = _destroy) -> None:
        handle = self._handle
        if handle is not None:
            _destroy(handle)

    def setup(
        self,
        local_hostname: Union[str, Mapping[str, Any]],
        metadata_server: Optional[str] = None,
        global_segment_size: Optional[int] = None,
        local_buffer_size: Optional[int] = None,
        protocol: Optional[str] = None,
        rdma_devices: Optional[str] = None,
        master_server_addr: Optional[str] = None,
        engine: Any = None,
        enable_ssd_offload: bool = False,
        ssd_offload_path: str = "",
        tenant_id: str = "default",
        enable_client_http_server: bool = False,
        client_http_port: int = 9300,
    ) -> int:
        """Open the store that master_server_addr stands for, or join it if this process has it open. The first seven
        arguments are mandatory, unless the first is a dict that has them all by name.

        "", "embedded" and "embedded:NAME" are stores in this process; with MOONCAKE_EMBEDDED=1 in the environment every
        address is. The first client of a store gives it its memory, global_segment_size bytes but at least 16 MiB, and its
        SSD tier: enable_ssd_offload, in a directory ssd_offload_path that processes can share. tenant_id keeps keys apart.
        engine, metadata_server, local_buffer_size, protocol, rdma_devices, enable_client_http_server and client_http_port
        are for a cluster: any value is accepted. A dict can say lease_ttl_ms (or default_kv_lease_ttl, as the C++ master
        does): how long a read or is_exist protects an object, 1 ms to 24 h, "30s" for example. Default:
        MOONCAKE_LEASE_TTL_MS of the environment, else 10 s.

        0; -600 for what can't be, or if it is set up; -1012 for the address of a master; another code if the store can't
        be opened. The reason is logged. TypeError for an argument of the wrong type, and for an unknown name."""
        if isinstance(local_hostname, Mapping):
            return self._begin(lambda: _setup.of_dict(local_hostname))
        arguments = {
            "local_hostname": local_hostname,
            "metadata_server": metadata_server,
            "global_segment_size": global_segment_size,
            "local_buffer_size": local_buffer_size,
            "protocol": protocol,
            "rdma_devices": rdma_devices,
            "master_server_addr": master_server_addr,
            "enable_ssd_offload": enable_ssd_offload,
            "ssd_offload_path": ssd_offload_path,
            "tenant_id": tenant_id,
            "enable_client_http_server": enable_client_http_server,
            "client_http_port": client_http_port,
        }
        return self._begin(lambda: _setup.of_arguments(arguments))

    def init_all(self, protocol: str, device_name: str, mount_segment_size: int = 16 << 20) -> int:
        """setup with the host name localhost:12345 and the default address of a master."""
        arguments = {
            "local_hostname": "localhost:12345",
            "metadata_server": "127.0.0.1:2379",
            "global_segment_size": mount_segment_size,
            "local_buffer_size": 1 << 30,
            "protocol": protocol,
            "rdma_devices": device_name,
        }
        return self._begin(lambda: _setup.of_arguments(arguments))

    def _begin(self, parse: Callable[[], _setup.Request]) -> int:
        if os.getpid() != _process:
            return self._refused(
                "setup", _EUNAVAILABLE, "this process is a fork of the one that imported mooncake.store"
            )
        with self._lock:
            if self._handle is not None:
                return self._refused("setup", _EINVAL, "the client is set up already")
            try:
                request = parse()
                options = _setup.options_of(request)
            except _setup.Refused as refused:
                return self._refused("setup", refused.code, str(refused))
            return self._connect(request, options)

    def _connect(self, request: _setup.Request, options: _native.StoreOptions) -> int:
        handle = ctypes.c_void_p()
        code: int = _open(_byref(options), _byref(handle))
        if code < 0:
            return self._refused("setup", code, last_error())
        if self._handle is not None:  # set up by a signal handler meanwhile
            _destroy(handle)
            return self._refused("setup", _EINVAL, "the client is set up already")
        name = ctypes.create_string_buffer(4096)
        _lib.mooncake_store_get_hostname(handle, name, len(name))
        self._hostname = _setup.hostname_of(request.local_hostname, name.value.decode())
        self._ssd = request.enable_ssd_offload
        if request.enable_client_http_server:
            _log.warning("an embedded store has no HTTP server: nothing listens at port %d", request.client_http_port)
        self._handle = handle.value
        self._opened = _peers.Opened(_setup.pool_of(request.master_server_addr))
        self._warn_of_memory(request)
        return 0

    def _warn_of_memory(self, request: _setup.Request) -> None:
        """Say so if this client brings memory that is not used: an earlier one has given the store its memory."""
        usage = _native.Usage()
        if _lib.mooncake_store_usage(self._handle, _byref(usage)) == 0 and usage.memory_budget < request.global_segment_size:
            _log.warning(
                "global_segment_size %d adds nothing: an earlier client of this store has given it %d bytes",
                request.global_segment_size,
                usage.memory_budget,
            )

    def _refused(self, method: str, code: int, why: str) -> int:
        _log.error("%s: %s (%d)", method, why, code)
        return code

    def setup_dummy(self, mem_pool_size: int, local_buffer_size: int, server_address: str) -> int:
        """-1012: there is no client process to connect to."""
        return self._refused(
            "setup_dummy", _ENOTSUPPORTED, f"there is no client process at {server_address!r}: use setup"
        )

    def close(self) -> int:
        """0, also when it is closed. setup can follow. Objects whose session was not ended are not stored."""
        if os.getpid() != _process:
            return _EUNAVAILABLE
        with self._lock:
            handle, self._handle = self._handle, None
            self._hostname = ""
            self._regions = Regions()
            if self._opened is not None:
                self._opened.close()
        if handle is not None:
            _destroy(handle)
        return 0

    def health_check(self) -> int:
        """0 healthy, 1 not set up or closed, 2 the store does not answer."""
        if self._handle is None:
            return 1
        state: int = _lib.mooncake_store_health_check(self._handle)
        return state if state >= 0 else 2

    def get_hostname(self) -> str:
        """The client's name, host:port, or ""."""
        return self._hostname

    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """Says that [buffer_ptr, buffer_ptr + size) is memory of the program's. Only get_into_ranges asks. -600 for memory
        that overlaps what is registered, which stays as it is."""
        buffer_ptr, size = index(buffer_ptr), index(size)
        if buffer_ptr <= 0 or size <= 0 or buffer_ptr + size > 1 << 64:
            return _EINVAL
        code: int = _lib.mooncake_store_register_buffer(self._handle, buffer_ptr, size)
        if code != 0:
            return _EINVAL if code == -1 else code
        return 0 if self._regions.add(buffer_ptr, size) else _EINVAL

    def unregister_buffer(self, buffer_ptr: int) -> int:
        """-600 for what is not registered."""
        buffer_ptr = index(buffer_ptr)
        if buffer_ptr <= 0:
            return _EINVAL
        code: int = _lib.mooncake_store_unregister_buffer(self._handle, buffer_ptr)
        if code != 0:
            return _EINVAL if code == -1 else code
        self._regions.remove(buffer_ptr)
        return 0

    def alloc_from_mem_pool(self, size: int) -> int:
        """0: memory that a client process shares is a cluster's. MooncakeHostMemAllocator has memory."""
        return 0

    def mount_segment(
        self, path: str, size: int, offset: int = 0, protocol: str = "tcp", location: str = ""
    ) -> Dict[str, Any]:
        """ret -1012: an embedded store's memory is what setup gave it."""
        return {"ret": _ENOTSUPPORTED, "segment_ids": []}

    def unmount_segment(self, segment_ids: Sequence[str], grace_period_seconds: int = 0) -> int:
        """-1012"""
        return _ENOTSUPPORTED

    def allocate_and_mount_segment(self, size: int, protocol: str = "tcp", location: str = "") -> Dict[str, Any]:
        """ret -1012"""
        return {"ret": _ENOTSUPPORTED, "segment_ids": [], "allocated_size": 0}

    def unmount_and_free_segment(self, segment_ids: Sequence[str], grace_period_seconds: int = 0) -> int:
        """-1012"""
        return _ENOTSUPPORTED

    def unmount_local_disk_segment(self, grace_period_seconds: int = 0) -> int:
        """0 without an SSD tier, else -1012: it goes with the store."""
        return _ENOTSUPPORTED if self._ssd and self._handle is not None else 0

    def get_offload_rpc_read_count(self) -> int:
        """0: nobody reads over the network."""
        return 0

    def get_alloc_func_addr(self) -> int:
        raise refusal("get_alloc_func_addr", "allocates memory that a client process shares")

    def get_free_func_addr(self) -> int:
        raise refusal("get_free_func_addr", "frees memory that a client process shares")

    # ---- calls

    def _short(self, function: Callable[..., int], keys: List[Key], *rest: Any) -> List[int]:
        """An int for each key."""
        results = array("i", bytes(4 * len(keys)))
        try:
            return self._each(function, keys, results, rest)
        except MALFORMED as error:
            return sifted(error, lambda keys: self._short(function, keys, *rest), keys)

    def _long(self, function: Callable[..., int], keys: List[Key], *rest: Any) -> List[int]:
        """An int64_t for each key."""
        results = array("q", bytes(8 * len(keys)))
        try:
            return self._each(function, keys, results, rest)
        except MALFORMED as error:
            return sifted(error, lambda keys: self._long(function, keys, *rest), keys)

    def _each(self, function: Callable[..., int], keys: List[Key], results: array[int], rest: Any) -> List[int]:
        packed = joined(keys)
        count = len(keys)
        at = results.buffer_info()[0]
        code = function(self._handle, packed, len(packed), None, count, *rest, at)
        if code == _EINVAL:
            code = again(function, self._handle, keys, *rest, at)
        if code < 0:
            raise Refused(code)
        return results.tolist()
