"""Section 1.3 of the C++ store's Python interface: sessions, for objects that engines move layer by layer."""

from __future__ import annotations

from array import array
from functools import partial
from itertools import islice
from typing import Callable, Dict, List, Optional, Sequence

from libmooncake import _native
from libmooncake.key import encode

from ._client import Client
from ._config import FAIL, ReplicateConfig, put_options
from ._pack import MALFORMED, Key, Refused, again, fit, flat, is_key, lengths, listed, numbers, sifted

_lib = _native.lib
_get_session_start = _lib.mooncake_store_get_session_start
_get_session_read = _lib.mooncake_store_get_session_read
_get_session_end = _lib.mooncake_store_get_session_end
_put_session_start = _lib.mooncake_store_put_session_start
_put_session_write = _lib.mooncake_store_put_session_write
_put_session_end = _lib.mooncake_store_put_session_end
_put_session_revoke = _lib.mooncake_store_put_session_revoke

_EINVAL = _native.EINVAL
_EREPLICA = _native.EREPLICA
_EEXISTS = _native.EEXISTS


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
        return self._transfer(_get_session_read, "q", listed(keys), all_buffer_ptrs, all_sizes, all_src_offsets)

    def batch_get_session_end(self, keys: Sequence[Key]) -> int:
        """0. Keys without a session are skipped."""
        return again(_get_session_end, self._handle, [key for key in listed(keys) if is_key(key)])

    def batch_put_session_start(
        self, keys: Sequence[Key], sizes: Sequence[int], config: Optional[ReplicateConfig] = None
    ) -> List[int]:
        """Reserve keys and room. -705 if an object exists or an earlier item of the batch has the key, -600 if this client
        has a session for it, or for a size of 0."""
        keys = listed(keys)
        options = put_options(config, len(keys), FAIL, True)
        if len(sizes) != len(keys) or type(options) is int:
            return [_EINVAL] * len(keys)
        try:
            wanted = numbers(sizes)
        except MALFORMED as error:
            return sifted(error, partial(self.batch_put_session_start, config=config), keys, (sizes,))
        if not fit(len(keys), None, wanted):
            return [_EINVAL] * len(keys)
        codes = self._short(_put_session_start, keys, wanted.buffer_info()[0], options)
        if _EINVAL in codes:
            for i, first in _repeated(keys).items():
                if codes[first] == 0:
                    codes[i] = _EEXISTS
        return codes

    def batch_put_from_multi_buffer_ranges(
        self,
        keys: Sequence[Key],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        all_dst_offsets: Sequence[Sequence[int]],
    ) -> List[int]:
        """Write fragments of each, in any order. All their bytes; -600 without a session, -702 without a fragment."""
        return self._transfer(_put_session_write, "i", listed(keys), all_buffer_ptrs, all_sizes, all_dst_offsets)

    def batch_put_session_end(self, keys: Sequence[Key]) -> List[int]:
        """Make the objects visible. -2003 if bytes of one are missing: it is not stored."""
        return self._end(_put_session_end, listed(keys))

    def batch_put_session_revoke(self, keys: Sequence[Key]) -> List[int]:
        """Give the objects up."""
        return self._end(_put_session_revoke, listed(keys))

    def _end(self, function: Callable[..., int], keys: List[Key]) -> List[int]:
        """End sessions. A key that comes twice has the result of its session twice."""
        codes = self._short(function, keys)
        if _EINVAL in codes:
            for i, first in _repeated(keys).items():
                codes[i] = codes[first]
        return codes

    def _transfer(
        self,
        function: Callable[..., int],
        kind: str,
        keys: List[Key],
        pointers: Sequence[Sequence[int]],
        sizes: Sequence[Sequence[int]],
        offsets: Sequence[Sequence[int]],
    ) -> List[int]:
        """Move fragments, with a function whose results are of this array type. The bytes of each key, or its code."""
        if not len(keys) == len(pointers) == len(sizes) == len(offsets):
            return [_EINVAL] * len(keys)
        try:
            counts = lengths(pointers, sizes, offsets)
            if counts is None:
                raise Refused(_EINVAL)
            at, length, start = flat(pointers), flat(sizes), flat(offsets)
            if not fit(len(keys), counts, at, length, start):
                return [_EINVAL] * len(keys)
            rest = (
                at.buffer_info()[0],
                length.buffer_info()[0],
                start.buffer_info()[0],
                counts.buffer_info()[0],
            )
            results = array(kind, bytes(len(keys) * array(kind).itemsize))
            codes = self._each(function, keys, results, rest)
        except MALFORMED as error:
            return sifted(error, partial(self._transfer, function, kind), keys, (pointers, sizes, offsets), nested=True)
        return _written(codes, counts, length) if function is _put_session_write else codes


def _written(codes: List[int], counts: array[int], sizes: array[int]) -> List[int]:
    """What the C++ store returns for writes: the bytes of each key, and for a key without fragments that it has no
    place for them."""
    each = iter(sizes)
    written = [sum(islice(each, count)) for count in counts]
    return [code or (size if count else _EREPLICA) for code, size, count in zip(codes, written, counts)]


def _repeated(keys: Sequence[Key]) -> Dict[int, int]:
    """For each item whose key has come before, where it came first."""
    first: Dict[bytes, int] = {}
    found = ((i, first.setdefault(encode(key), i)) for i, key in enumerate(keys) if is_key(key))
    return {i: at for i, at in found if at != i}
