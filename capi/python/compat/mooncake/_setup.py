"""What setup is told, in any of its forms, and what that means for an embedded store."""

from __future__ import annotations

import os
import re
from operator import index
from typing import Any, Callable, Dict, Mapping, NamedTuple

from libmooncake import _native

from ._size import size_of

SSD_LIMIT = "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES"
LEASE_TTL = "MOONCAKE_LEASE_TTL_MS"
EMBEDDED = "MOONCAKE_EMBEDDED"
"""The environment variable that opens an embedded store for the address of any master. Read by each setup."""

_SMALLEST_MEMORY = 16 << 20
_SLOTS = 256
_MOST = (1 << 63) - 1


class Refused(Exception):
    """A setup that can't be: a code, and why."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class Request(NamedTuple):
    local_hostname: str
    metadata_server: str
    global_segment_size: int = 16 << 20
    local_buffer_size: int = 16 << 20
    protocol: str = "tcp"
    rdma_devices: str = ""
    master_server_addr: str = "127.0.0.1:50051"
    enable_ssd_offload: bool = False
    ssd_offload_path: str = ""
    tenant_id: str = "default"
    enable_client_http_server: bool = False
    client_http_port: int = 9300
    lease_ttl_ms: int = 0  # 0: what the environment says, or the store's default


def _string(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"setup(): {name} is a str, not {type(value).__name__}")
    return value


def _number(name: str, value: Any) -> int:
    try:
        number = index(value)
    except TypeError:
        raise TypeError(f"setup(): {name} is an int, not {type(value).__name__}") from None
    if number < 0:
        raise TypeError(f"setup(): {name} is {number}, which is negative")
    return number


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, int)):
        raise TypeError(f"setup(): {name} is a bool, not {type(value).__name__}")
    return bool(value)


_CHECKS: Dict[str, Callable[[str, Any], Any]] = {
    "local_hostname": _string,
    "metadata_server": _string,
    "global_segment_size": _number,
    "local_buffer_size": _number,
    "protocol": _string,
    "rdma_devices": _string,
    "master_server_addr": _string,
    "enable_ssd_offload": _flag,
    "ssd_offload_path": _string,
    "tenant_id": _string,
    "enable_client_http_server": _flag,
    "client_http_port": _number,
    "lease_ttl_ms": _number,  # only from a dict
}


def of_arguments(arguments: Mapping[str, Any]) -> Request:
    """The request of setup's separate arguments; None is one that was not given. TypeError names the first that is
    missing or of the wrong type."""
    given: Dict[str, Any] = {}
    for name, value in arguments.items():
        if value is None:
            raise TypeError(f"setup() missing required argument: '{name}'")
        given[name] = _CHECKS[name](name, value)
    return Request(**given)


_OTHER_NAMES = {
    "master_server_address": "master_server_addr",
    "device_name": "rdma_devices",
    "default_kv_lease_ttl": "lease_ttl_ms",  # the C++ master's flag
}
_UNUSED = frozenset(("ipc_socket_path", "engine"))
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


def of_dict(config: Mapping[str, Any]) -> Request:
    """The request of setup(dict): values are made str first. TypeError names the first key that is unknown."""
    given: Dict[str, Any] = {}
    for key, value in config.items():
        name = _OTHER_NAMES.get(key, key)
        if name in _UNUSED:
            continue
        if name not in _CHECKS:
            raise TypeError(f"setup() got an unexpected name {key!r} in its dict")
        text = str(value).strip()
        given[name] = _lease(key, text) if name == "lease_ttl_ms" else _parse(name, text)
    for name in ("local_hostname", "metadata_server"):
        if not given.get(name):
            raise Refused(_native.EINVAL, f"{name} is missing")
    if 0 < given.get("global_segment_size", 0) < 1024:
        raise Refused(_native.EINVAL, f"global_segment_size is {given['global_segment_size']}: 0, or at least 1024")
    return Request(**given)


def _parse(name: str, text: str) -> Any:
    check = _CHECKS[name]
    if check is _number:
        try:
            return size_of(text)
        except ValueError as error:
            raise Refused(_native.EINVAL, f"{name}: {error}") from None
    if check is _flag:
        if text.lower() not in _TRUE + _FALSE:
            raise Refused(_native.EINVAL, f"{name} is {text!r}: true or false")
        return text.lower() in _TRUE
    return text


_DURATION = re.compile(r"(\d+)\s*(ms|s|m|h)?")
_MILLISECONDS = {None: 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_LONGEST_LEASE_MS = 24 * 3_600_000


def _lease(name: str, text: str) -> int:
    """Milliseconds of "5000", "5s", "30m" and the like, as the C++ master takes them. Refused if it is no time, 0, or
    more than 24 h."""
    match = _DURATION.fullmatch(text)
    milliseconds = int(match[1]) * _MILLISECONDS[match[2]] if match else 0
    if not 0 < milliseconds <= _LONGEST_LEASE_MS:
        raise Refused(
            _native.EINVAL, f"{name} is {text!r}: milliseconds, or a number with ms, s, m or h, above 0 and at most 24 h"
        )
    return milliseconds


def pool_of(address: str) -> str:
    """The pool that the address of a master stands for: a name in this process. Refused if it is an address."""
    if address in ("", "embedded"):
        return "embedded"
    name = address[len("embedded:") :]
    if address.startswith("embedded:") and name:
        return name
    if os.environ.get(EMBEDDED, "") not in ("", "0"):
        return address
    raise Refused(
        _native.ENOTSUPPORTED,
        f"can't join the cluster at {address!r}: this version opens stores in this process only. Use the address "
        f"'embedded', or set {EMBEDDED}=1",
    )


def options_of(request: Request) -> _native.StoreOptions:
    """What the library is asked to open. Refused if it can't be."""
    options = _native.StoreOptions()
    options.pool = _bytes("master_server_addr", pool_of(request.master_server_addr))
    options.tenant = _bytes("tenant_id", request.tenant_id)
    options.memory_bytes = _memory(request.global_segment_size)
    options.lease_ttl_ms = request.lease_ttl_ms or _lease_of_environment()
    options.join = 1
    options.volatile_memory = 1
    if request.enable_ssd_offload:
        options.dir = _ssd(request.ssd_offload_path)
        options.dir_slots = _SLOTS  # the processes of an engine are all given one path
        options.ssd_bytes = _ssd_bytes()
    return options


def _lease_of_environment() -> int:
    """0 is the library's default."""
    text = os.environ.get(LEASE_TTL, "").strip()
    return _lease(LEASE_TTL, text) if text else 0


def _ssd_bytes() -> int:
    """The most that this process's SSD tier may take; 0 is the library's default."""
    text = os.environ.get(SSD_LIMIT, "").strip()
    if not text:
        return 0
    try:
        limit = size_of(text)
    except ValueError as error:
        raise Refused(_native.EINVAL, f"{SSD_LIMIT}: {error}") from None
    if not 0 < limit <= _MOST:
        raise Refused(_native.EINVAL, f"{SSD_LIMIT} is {text!r}")
    return limit


def _bytes(name: str, text: str) -> bytes:
    if "\0" in text:
        raise Refused(_native.EINVAL, f"{name} holds a NUL")
    return text.encode()


def _memory(segment: int) -> int:
    if segment > _MOST:
        raise Refused(_native.EINVAL, f"global_segment_size is {segment}")
    return max(segment, _SMALLEST_MEMORY)


def _ssd(path: str) -> bytes:
    path = path or os.environ.get("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", "")
    if not path:
        raise Refused(_native.EINVAL, "enable_ssd_offload without ssd_offload_path")
    if not os.path.isdir(path):
        raise Refused(_native.EINVAL, f"ssd_offload_path {path!r} is not a directory")
    return os.fsencode(path)


def hostname_of(wanted: str, port_from: str) -> str:
    """The client's name: with a port of its own, which the library has chosen, unless it came with one."""
    wanted = wanted or "localhost"
    if ":" in wanted and not wanted.endswith("]"):
        return wanted
    return f"{wanted}:{port_from.rpartition(':')[2]}"
