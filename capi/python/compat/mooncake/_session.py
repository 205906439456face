"""Section 1.3 of the C++ store's Python interface: sessions, for objects that engines move layer by layer."""

from __future__ import annotations

from array import array
from typing import Callable, List, Optional, Sequence

from libmooncake import _native

from ._client import Client
from ._config import FAIL, ReplicateConfig, put_options
from ._pack import Key, again, fit, flat, lengths, listed, numbers

_lib = _native.lib
_get_session_start = _lib.mooncake_store_get_session_start
_get_session_read = _lib.mooncake_store_get_session_read
_get_session_end = _lib.mooncake_store_get_session_end
_put_session_start = _lib.mooncake_store_put_session_start
_put_session_write = _lib.mooncake_store_put_session_write
_put_session_end = _lib.mooncake_store_put_session_end
_put_session_revoke = _lib.mooncake_store_put_session_revoke

_EINVAL = _native.EINVAL


class Sessions(Client):
    __slots__ = ()

    def batch_get_session_start(self, keys: Sequence[Key]) -> List[int]:
        """Hold objects for reading: they are neither evicted nor changed until their session ends."""
        return self._short(_get_session_start, listed(keys))

    def batch_get_into_multi_buffer_ranges(
        self,
        keys: Sequence[Key],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        all_src_offsets: Sequence[Sequence[int]],
    ) -> List[int]:
        """Read fragments of each. All their bytes, or -600 without a session."""
        keys = listed(keys)
        results = array("q", bytes(8 * len(keys)))
        return self._session(_get_session_read, keys, all_buffer_ptrs, all_sizes, all_src_offsets, results)

    def batch_get_session_end(self, keys: Sequence[Key]) -> int:
        """0. Keys without a session are skipped."""
        return again(_get_session_end, self._handle, listed(keys))

    def batch_put_session_start(
        self, keys: Sequence[Key], sizes: Sequence[int], config: Optional[ReplicateConfig] = None
    ) -> List[int]:
        """Reserve keys and room. -705 if an object exists, -600 if this client has a session for the key."""
        keys = listed(keys)
        options = put_options(config, len(keys), FAIL, True)
        if len(sizes) != len(keys) or type(options) is int:
            return [_EINVAL] * len(keys)
        wanted = numbers(sizes)
        if not fit(len(keys), None, wanted):
            return [_EINVAL] * len(keys)
        return self._short(_put_session_start, keys, wanted.buffer_info()[0], options)

    def batch_put_from_multi_buffer_ranges(
        self,
        keys: Sequence[Key],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        all_dst_offsets: Sequence[Sequence[int]],
    ) -> List[int]:
        """Write fragments of each, in any order."""
        keys = listed(keys)
        results = array("i", bytes(4 * len(keys)))
        return self._session(_put_session_write, keys, all_buffer_ptrs, all_sizes, all_dst_offsets, results)

    def batch_put_session_end(self, keys: Sequence[Key]) -> List[int]:
        """Make the objects visible. -2003 if bytes of one are missing: it is not stored."""
        return self._short(_put_session_end, listed(keys))

    def batch_put_session_revoke(self, keys: Sequence[Key]) -> List[int]:
        """Give the objects up."""
        return self._short(_put_session_revoke, listed(keys))

    def _session(
        self,
        function: Callable[..., int],
        keys: List[Key],
        pointers: Sequence[Sequence[int]],
        sizes: Sequence[Sequence[int]],
        offsets: Sequence[Sequence[int]],
        results: array[int],
    ) -> List[int]:
        counts = lengths(len(keys), pointers, sizes, offsets)
        if counts is None:
            return [_EINVAL] * len(keys)
        at, length, start = flat(pointers), flat(sizes), flat(offsets)
        if not fit(len(keys), counts, at, length, start):
            return [_EINVAL] * len(keys)
        rest = (
            at.buffer_info()[0],
            length.buffer_info()[0],
            start.buffer_info()[0],
            counts.buffer_info()[0],
        )
        return self._each(function, keys, results, rest)
