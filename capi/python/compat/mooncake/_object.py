"""Section 1.2 of the C++ store's Python interface: objects as bytes."""

from __future__ import annotations

import ctypes
import logging
from array import array
from itertools import chain
from typing import Any, Callable, List, Optional, Sequence, Tuple

from libmooncake import _native
from libmooncake.buffer import address, new_bytes, source
from libmooncake.key import encode
from libmooncake.view import Lease, new_lease

from ._config import KEEP, REPLACE, ReplicateConfig, put_options
from ._memory import BufferHandle, borrowed, buffer_type
from ._pack import MALFORMED, Buffer, Key, Refused, again, is_key, joined, listed, numbers, sifted
from ._transfer import Transfers

_log = logging.getLogger("mooncake.store")

_lib = _native.lib
_is_exist = _lib.mooncake_store_is_exist
_get_size = _lib.mooncake_store_get_size
_put_object = _lib.mooncake_store_put_object
_get_object = _lib.mooncake_store_get_object
_view = _lib.mooncake_store_view
_remove_by_regex = _lib.mooncake_store_remove_by_regex
_remove_all = _lib.mooncake_store_remove_all
_batch_exist = _lib.mooncake_store_batch_exist
_batch_get_size = _lib.mooncake_store_batch_get_size
_batch_remove = _lib.mooncake_store_batch_remove
_batch_view = _lib.mooncake_store_batch_view

_byref = ctypes.byref
_VIEW_SIZE = ctypes.sizeof(_native.View)

_EINVAL = _native.EINVAL
_EKEY = _native.EKEY
_ENOSPACE = _native.ENOSPACE


class Objects(Transfers):
    __slots__ = ()

    def put(self, key: Key, value: Buffer, config: Optional[ReplicateConfig] = None) -> int:
        """A key that exists keeps its bytes, and that is 0. -600 for an empty value, -200 if there is no room."""
        return self._put(key, value, config, KEEP)

    def upsert(self, key: Key, value: Buffer, config: Optional[ReplicateConfig] = None) -> int:
        """put that replaces."""
        return self._put(key, value, config, REPLACE)

    def _put(self, key: Key, value: Buffer, config: Optional[ReplicateConfig], existing: str) -> int:
        if type(key) is not bytes:
            key = encode(key)
        at, size, _kept = source(value)
        options = put_options(config, 1, existing)
        if type(options) is int:
            return options
        code: int = _put_object(self._handle, key, len(key), at, size, options)
        if config is not None and existing == REPLACE:
            self._unpin([key], [code], config)
        return code

    def put_parts(self, key: Key, *parts: Buffer, config: Optional[ReplicateConfig] = None) -> int:
        """put of all parts, one after the other. Nothing at all is 0 and stores nothing."""
        return self._put_parts(key, parts, config, KEEP)

    def upsert_parts(self, key: Key, *parts: Buffer, config: Optional[ReplicateConfig] = None) -> int:
        return self._put_parts(key, parts, config, REPLACE)

    def _put_parts(self, key: Key, parts: Sequence[Buffer], config: Optional[ReplicateConfig], existing: str) -> int:
        for part in parts:
            shape = memoryview(part)
            if shape.ndim != 1 or shape.itemsize != 1:
                raise RuntimeError("parts must be 1-D bytes-like")
        located = [source(part) for part in parts]
        if not any(size for _, size, _ in located):
            _log.warning("put_parts of %r: nothing to store", key)
            return 0 if self._handle is not None else _EINVAL
        return self._put_located([key], [located], config, existing)[0]

    def put_batch(self, keys: Sequence[Key], values: Sequence[Buffer], config: Optional[ReplicateConfig] = None) -> int:
        """0, or the first code that is not. Each value is stored, or not, on its own; but one that is empty is -600 and
        nothing is stored."""
        return self._put_batch(keys, values, config, KEEP)

    def upsert_batch(
        self, keys: Sequence[Key], values: Sequence[Buffer], config: Optional[ReplicateConfig] = None
    ) -> int:
        return self._put_batch(keys, values, config, REPLACE)

    def _put_batch(
        self, keys: Sequence[Key], values: Sequence[Buffer], config: Optional[ReplicateConfig], existing: str
    ) -> int:
        keys = listed(keys)
        if len(keys) != len(values) or self._handle is None:
            return _EINVAL
        places = list(map(_located, values))
        if any(place and not place[0][1] for place in places) or len(places) != len(keys):
            return _EINVAL
        sound = [bool(place) and is_key(key) for key, place in zip(keys, places)]
        keys = [key if good else b"" for key, good in zip(keys, sound)]
        codes = self._put_located(keys, places, config, existing)
        return next((code if good else _EINVAL for code, good in zip(codes, sound) if code != 0), 0)

    def _put_located(
        self,
        keys: List[Key],
        values: Sequence[Sequence[Tuple[Any, int, object]]],
        config: Optional[ReplicateConfig],
        existing: str,
    ) -> List[int]:
        """Put values that are lists of source()'s results."""
        parts = list(chain.from_iterable(values))
        pointers = numbers(address(at) if type(at) is bytes else at or 0 for at, _, _ in parts)
        sizes = numbers(size for _, size, _ in parts)
        try:
            return self._put_all(keys, pointers, sizes, array("I", map(len, values)), config, existing, False)
        except Refused as refused:
            return [refused.code] * len(keys)

    def get(self, key: Key) -> bytes:
        """The bytes, or b"" if there are none or they can't be read."""
        data: bytes = self._read(encode(key), new_bytes, b"")
        return data

    def _read(self, key: bytes, make: Callable[[int], Any], nothing: Any) -> Any:
        """What make makes for an object's size, filled with it, or nothing."""
        size = self._size(key)
        while size > 0:
            data = make(size)
            got: int = _get_object(self._handle, key, len(key), data, size, 0)
            if got == size:
                return data
            if got < 0 and got != _EINVAL:
                return nothing
            now = self._size(key)  # it was replaced meanwhile
            if now == size:
                return nothing
            size = now
        return nothing

    def _size(self, key: bytes) -> int:
        if self._handle is None:
            return _EINVAL
        if b"\0" not in key:
            return _get_size(self._handle, key)  # type: ignore[no-any-return]
        results = array("q", (0,))
        code = again(_batch_get_size, self._handle, [key], results.buffer_info()[0])
        return code or results[0]

    def get_batch(self, keys: Sequence[Key]) -> List[bytes]:
        """get of each. [b""] if the client is not set up."""
        keys = listed(keys)
        if self._handle is None:
            return [b""]
        keys = [key if is_key(key) else b"" for key in keys]
        sizes = self._long(_batch_get_size, keys)
        found = [i for i, size in enumerate(sizes) if size > 0]
        values = [b""] * len(keys)
        for i in found:
            values[i] = new_bytes(sizes[i])
        got = self.batch_get_into(
            [keys[i] for i in found], [address(values[i]) for i in found], [sizes[i] for i in found]
        )
        for i, n in zip(found, got):
            if n != sizes[i]:  # gone, or replaced meanwhile
                values[i] = self.get(keys[i])
        return values

    def get_buffer(self, key: Key) -> Optional[BufferHandle]:
        """The bytes as the store has them, without a copy, or None. They stay until the handle is dropped."""
        key = encode(key)
        lease = new_lease()
        code: int = _view(self._handle, key, len(key), 0, _byref(lease))
        return self._handle_of(key, lease, code)

    def batch_get_buffer(self, keys: Sequence[Key]) -> List[Optional[BufferHandle]]:
        """get_buffer of each. [] if the client is not set up."""
        keys = listed(keys)
        if self._handle is None:
            return []
        keys = [key if is_key(key) else b"" for key in keys]
        views = (_native.View * len(keys))()
        results = array("i", bytes(4 * len(keys)))
        code = again(_batch_view, self._handle, keys, 0, views, _VIEW_SIZE, results.buffer_info()[0])
        if code < 0:
            return [None] * len(keys)
        return [
            self._handle_of(encode(key), Lease.from_buffer_copy(view), result)
            for key, view, result in zip(keys, views, results)
        ]

    def _handle_of(self, key: bytes, lease: Lease, code: int) -> Optional[BufferHandle]:
        if code == 0 and lease.data:
            return borrowed(lease.data, lease.size, lease)
        if code == 0 or code == _ENOSPACE:  # in pieces, or on SSD only and memory is full: a copy
            handle: Optional[BufferHandle] = self._read(key, lambda size: buffer_type(size)(), None)
            return handle
        return None

    def remove(self, key: Key, force: bool = False) -> int:
        """-704 if it is missing, -706 if it is leased and force does not say to ignore that, -703 if only an unfinished
        put has the key."""
        return self._short(_batch_remove, [key], bool(force))[0]

    def batch_remove(self, keys: Sequence[Key], force: bool = False) -> List[int]:
        return self._short(_batch_remove, listed(keys), bool(force))

    def remove_by_regex(self, regex_pattern: str, force: bool = False) -> int:
        """How many objects were removed of those whose key has a match. The syntax is RE2's. -600 for a bad pattern."""
        pattern = encode(regex_pattern)
        if b"\0" in pattern or self._handle is None:
            return _EINVAL
        return _remove_by_regex(self._handle, pattern, bool(force))  # type: ignore[no-any-return]

    def remove_all(self, force: bool = False) -> int:
        """How many objects of the tenant were removed. Leased ones are not unless force."""
        if self._handle is None:
            return _EINVAL
        return _remove_all(self._handle, bool(force))  # type: ignore[no-any-return]

    def is_exist(self, key: Key) -> int:
        """1 or 0; negative for what is no key. 0 too if the client is not set up. Protects what is there for the lease time, 10 s by
        default."""
        if type(key) is not bytes:
            key = encode(key)
        if b"\0" in key:
            return self.batch_is_exist([key])[0]
        found: int = _is_exist(self._handle, key)
        return found if found >= 0 or found == _EKEY else 0

    def batch_is_exist(self, keys: Sequence[Key]) -> List[int]:
        keys = listed(keys)
        count = len(keys)
        try:
            packed = joined(keys)
        except MALFORMED as error:
            return sifted(error, self.batch_is_exist, keys)
        results = array("i", bytes(4 * count))
        at = results.buffer_info()[0]
        if _batch_exist(self._handle, packed, len(packed), None, count, 0, at) < 0:
            if again(_batch_exist, self._handle, keys, 0, at) < 0:
                return [0] * count
        return results.tolist()

    def get_size(self, key: Key) -> int:
        """Bytes, or a code. Protects the object for the lease time."""
        return self._size(encode(key))


def _located(value: Any) -> List[Tuple[Any, int, object]]:
    """Where a value's bytes are. Nowhere if it is no buffer."""
    try:
        return [source(value)]
    except (TypeError, ValueError, BufferError):
        return []
