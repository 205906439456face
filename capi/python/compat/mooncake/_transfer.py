"""Section 1.3 of the C++ store's Python interface: memory of the program's, by address."""

from __future__ import annotations

from array import array
from functools import partial
from typing import Any, List, Optional, Sequence

from libmooncake import _native
from libmooncake.key import encode

from ._config import KEEP, REPLACE, ReplicateConfig, ends_soft_pin, put_options
from ._pack import MALFORMED, Key, Refused, again, fit, flat, joined, lengths, listed, numbers, sifted
from ._ranges import Ranges

_lib = _native.lib
_put_object = _lib.mooncake_store_put_object
_get_object = _lib.mooncake_store_get_object
_batch_put = _lib.mooncake_store_batch_put
_batch_get = _lib.mooncake_store_batch_get
_set_pins = _lib.mooncake_store_set_pins

_EINVAL = _native.EINVAL


class Transfers(Ranges):
    __slots__ = ()

    def put_from(self, key: Key, buffer_ptr: int, size: int, config: Optional[ReplicateConfig] = None) -> int:
        """put of size bytes of memory. Size 0 is 0 and stores nothing."""
        return self._put_from(key, buffer_ptr, size, config, KEEP)

    def upsert_from(self, key: Key, buffer_ptr: int, size: int, config: Optional[ReplicateConfig] = None) -> int:
        return self._put_from(key, buffer_ptr, size, config, REPLACE)

    def _put_from(self, key: Key, buffer_ptr: int, size: int, config: Optional[ReplicateConfig], existing: str) -> int:
        if type(key) is not bytes:
            key = encode(key)
        if type(buffer_ptr) is not int or type(size) is not int or (buffer_ptr | size) >> 64:
            buffer_ptr, size = _place(buffer_ptr, size)
        options = put_options(config, 1, existing)
        if type(options) is int:
            return options
        code: int = _put_object(self._handle, key, len(key), buffer_ptr, size, options)
        if config is not None and existing == REPLACE:
            self._unpin([key], [code], config)
        return 0 if code == _EINVAL and not size and self._handle is not None else code

    def put_from_with_metadata(
        self,
        key: Key,
        buffer_ptr: int,
        metadata_buffer_ptr: int,
        size: int,
        metadata_size: int,
        config: Optional[ReplicateConfig] = None,
    ) -> int:
        """The object is the metadata, then the data. Size 0 is 0 and stores nothing."""
        if not size:
            return 0 if self._handle is not None else _EINVAL
        pointers, sizes = numbers((metadata_buffer_ptr, buffer_ptr)), numbers((metadata_size, size))
        try:
            return self._put_all([key], pointers, sizes, array("I", (2,)), config, KEEP, False)[0]
        except Refused as refused:
            return refused.code

    def batch_put_from(
        self,
        keys: Sequence[Key],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: Optional[ReplicateConfig] = None,
    ) -> List[int]:
        """put_from of each."""
        return self._batch_put_from(keys, buffer_ptrs, sizes, config, KEEP)

    def batch_upsert_from(
        self,
        keys: Sequence[Key],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: Optional[ReplicateConfig] = None,
    ) -> List[int]:
        return self._batch_put_from(keys, buffer_ptrs, sizes, config, REPLACE)

    def _batch_put_from(
        self,
        keys: Sequence[Key],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: Optional[ReplicateConfig],
        existing: str,
    ) -> List[int]:
        keys = listed(keys)
        if not len(keys) == len(buffer_ptrs) == len(sizes):
            return [_EINVAL] * len(keys)
        try:
            lengths = numbers(sizes)
            codes = self._put_all(keys, numbers(buffer_ptrs), lengths, None, config, existing, False)
        except MALFORMED as error:
            call = partial(self._batch_put_from, config=config, existing=existing)
            return sifted(error, call, keys, (buffer_ptrs, sizes))
        if _EINVAL in codes and self._handle is not None:
            codes = [0 if code == _EINVAL and not size else code for code, size in zip(codes, lengths)]
        return codes

    def batch_put_from_multi_buffers(
        self,
        keys: Sequence[Key],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        config: Optional[ReplicateConfig] = None,
    ) -> List[int]:
        """put_from of each, from several buffers that follow each other in the object. All -600 if one has more buffers
        than sizes or fewer."""
        keys = listed(keys)
        if not len(keys) == len(all_buffer_ptrs) == len(all_sizes):
            return [_EINVAL] * len(keys)
        try:
            counts = lengths(all_buffer_ptrs, all_sizes)
            if counts is None:
                return [_EINVAL] * len(keys)
            codes = self._put_all(keys, flat(all_buffer_ptrs), flat(all_sizes), counts, config, KEEP, True)
        except MALFORMED as error:
            call = partial(self.batch_put_from_multi_buffers, config=config)
            return sifted(error, call, keys, (all_buffer_ptrs, all_sizes), nested=True)
        if _EINVAL in codes and self._handle is not None:
            codes = [0 if code == _EINVAL and not any(sizes) else code for code, sizes in zip(codes, all_sizes)]
        return codes

    def _put_all(
        self,
        keys: List[Key],
        pointers: array[int],
        sizes: array[int],
        counts: Optional[array[int]],
        config: Optional[ReplicateConfig],
        existing: str,
        same_node: bool,
    ) -> List[int]:
        count = len(keys)
        if not fit(count, counts, pointers, sizes):
            return [_EINVAL] * count
        options = put_options(config, count, existing, same_node)
        if type(options) is int:
            return [options] * count
        packed = joined(keys)
        results = array("i", bytes(4 * count))
        rest = (
            pointers.buffer_info()[0],
            sizes.buffer_info()[0],
            None if counts is None else counts.buffer_info()[0],
            options,
            results.buffer_info()[0],
        )
        code = _batch_put(self._handle, packed, len(packed), None, count, *rest)
        if code < 0:
            code = again(_batch_put, self._handle, keys, *rest)
            if code < 0:
                raise Refused(code)
        codes = results.tolist()
        if config is not None and existing == REPLACE:
            self._unpin(keys, codes, config)
        return codes

    def _unpin(self, keys: Sequence[Key], codes: List[int], config: ReplicateConfig) -> None:
        """End the soft pin that an upsert leaves an object, if config says so."""
        if ends_soft_pin(config):
            for key, code in zip(keys, codes):
                if code == 0:
                    name = encode(key)
                    _set_pins(self._handle, name, len(name), -1, 0)

    def get_into(self, key: Key, buffer_ptr: int, size: int) -> int:
        """Bytes read, -704, -703, or -600 if the object is larger than size."""
        if type(key) is not bytes:
            key = encode(key)
        if type(buffer_ptr) is not int or type(size) is not int or (buffer_ptr | size) >> 64:
            buffer_ptr, size = _place(buffer_ptr, size)
        return _get_object(self._handle, key, len(key), buffer_ptr, size, 0)  # type: ignore[no-any-return]

    def batch_get_into(self, keys: Sequence[Key], buffer_ptrs: Sequence[int], sizes: Sequence[int]) -> List[int]:
        """get_into of each."""
        keys = listed(keys)
        if not len(keys) == len(buffer_ptrs) == len(sizes):
            return [_EINVAL] * len(keys)
        try:
            return self._get_all(keys, numbers(buffer_ptrs), numbers(sizes), None)
        except MALFORMED as error:
            return sifted(error, self.batch_get_into, keys, (buffer_ptrs, sizes))

    def batch_get_into_multi_buffers(
        self,
        keys: Sequence[Key],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        prefer_alloc_in_same_node: bool = False,
    ) -> List[int]:
        """get_into of each, into several buffers that are filled one after the other."""
        keys = listed(keys)
        if not len(keys) == len(all_buffer_ptrs) == len(all_sizes):
            return [_EINVAL] * len(keys)
        try:
            counts = lengths(all_buffer_ptrs, all_sizes)
            if counts is None:
                raise Refused(_EINVAL)
            return self._get_all(keys, flat(all_buffer_ptrs), flat(all_sizes), counts)
        except MALFORMED as error:
            return sifted(error, self.batch_get_into_multi_buffers, keys, (all_buffer_ptrs, all_sizes), nested=True)

    def _get_all(
        self, keys: List[Key], pointers: array[int], sizes: array[int], counts: Optional[array[int]]
    ) -> List[int]:
        packed = joined(keys)
        count = len(keys)
        if not fit(count, counts, pointers, sizes):
            return [_EINVAL] * count
        results = array("q", bytes(8 * count))
        rest = (
            pointers.buffer_info()[0],
            sizes.buffer_info()[0],
            None if counts is None else counts.buffer_info()[0],
            0,
            results.buffer_info()[0],
        )
        code = _batch_get(self._handle, packed, len(packed), None, count, *rest)
        if code < 0:
            code = again(_batch_get, self._handle, keys, *rest)
            if code < 0:
                raise Refused(code)
        return results.tolist()


def _place(buffer_ptr: Any, size: Any) -> Sequence[int]:
    """An address and a size of any type that is an integer, as numpy's are. ctypes would take a str for an address, and the
    low 64 bits of a number that is larger."""
    return numbers((buffer_ptr, size))
