"""Section 1.3 of the C++ store's Python interface: memory of the program's, by address."""

from __future__ import annotations

from array import array
from itertools import chain, compress
from typing import Any, List, Optional, Sequence

from libmooncake import _native
from libmooncake.key import encode

from ._client import Client
from ._config import KEEP, REPLACE, ReplicateConfig, ends_soft_pin, put_options
from ._pack import Key, again, fit, flat, joined, lengths, listed, numbers

_lib = _native.lib
_put_object = _lib.mooncake_store_put_object
_get_object = _lib.mooncake_store_get_object
_batch_put = _lib.mooncake_store_batch_put
_batch_get = _lib.mooncake_store_batch_get
_batch_get_ranges = _lib.mooncake_store_batch_get_ranges
_set_pins = _lib.mooncake_store_set_pins

_EINVAL = _native.EINVAL


class Transfers(Client):
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
        return self._put_all([key], pointers, sizes, array("I", (2,)), config, KEEP, False)[0]

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
        lengths = numbers(sizes)
        codes = self._put_all(keys, numbers(buffer_ptrs), lengths, None, config, existing, False)
        if _EINVAL in codes and self._handle is not None:
            codes = [code if size else 0 for code, size in zip(codes, lengths)]
        return codes

    def batch_put_from_multi_buffers(
        self,
        keys: Sequence[Key],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        config: Optional[ReplicateConfig] = None,
    ) -> List[int]:
        """put_from of each, from several buffers that follow each other in the object."""
        keys = listed(keys)
        counts = lengths(len(keys), all_buffer_ptrs, all_sizes)
        if counts is None:
            return [_EINVAL] * len(keys)
        codes = self._put_all(keys, flat(all_buffer_ptrs), flat(all_sizes), counts, config, KEEP, True)
        if _EINVAL in codes and self._handle is not None:
            codes = [code if any(sizes) else 0 for code, sizes in zip(codes, all_sizes)]
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
                return [code] * count
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
        return self._get_all(keys, numbers(buffer_ptrs), numbers(sizes), None)

    def batch_get_into_multi_buffers(
        self,
        keys: Sequence[Key],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        prefer_alloc_in_same_node: bool = False,
    ) -> List[int]:
        """get_into of each, into several buffers that are filled one after the other."""
        keys = listed(keys)
        counts = lengths(len(keys), all_buffer_ptrs, all_sizes)
        if counts is None:
            return [_EINVAL] * len(keys)
        return self._get_all(keys, flat(all_buffer_ptrs), flat(all_sizes), counts)

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
                return [code] * count
        return results.tolist()

    def get_into_ranges(
        self,
        buffer_ptrs: Sequence[int],
        all_keys: Sequence[Sequence[Key]],
        all_dst_offsets: Sequence[Sequence[Sequence[int]]],
        all_src_offsets: Sequence[Sequence[Sequence[int]]],
        all_sizes: Sequence[Sequence[Sequence[int]]],
    ) -> List[List[List[int]]]:
        """Fragments of objects, by buffer, key and fragment: all_sizes bytes from all_src_offsets of the object to
        all_dst_offsets of the buffer. Their bytes or codes, by buffer, key and fragment. A destination that is not in one
        registered buffer is -600, a range that is not in the object too."""
        if not _same_shape(buffer_ptrs, all_keys, all_dst_offsets, all_src_offsets, all_sizes):
            return [[[_EINVAL] * len(sizes) for sizes in row] for row in all_sizes]
        keys = list(chain.from_iterable(all_keys))
        counts = [len(sizes) for row in all_sizes for sizes in row]
        offsets = [offset for row in all_src_offsets for offsets in row for offset in offsets]
        sizes = [size for row in all_sizes for sizes in row for size in sizes]
        places = [
            base + offset for base, row in zip(buffer_ptrs, all_dst_offsets) for offsets in row for offset in offsets
        ]
        codes = iter(self._get_ranges(keys, counts, places, sizes, offsets))
        return [[[next(codes) for _ in sizes] for sizes in row] for row in all_sizes]

    def _get_ranges(
        self, keys: List[Key], counts: List[int], places: List[int], sizes: List[int], offsets: List[int]
    ) -> List[int]:
        """The results of get_into_ranges in one list. Fragments without a registered place are not asked for."""
        holds = self._regions.holds
        placed = [holds(at, size) for at, size in zip(places, sizes)]
        if not all(placed):
            flags = iter(placed)
            counts = [sum(next(flags) for _ in range(count)) for count in counts]
            places, sizes, offsets = (list(compress(values, placed)) for values in (places, sizes, offsets))
        at, length, start = numbers(places), numbers(sizes), numbers(offsets)
        if not fit(len(keys), array("I", counts), at, length, start):
            return [_EINVAL] * len(placed)
        results = array("q", bytes(8 * len(places)))
        code = again(
            _batch_get_ranges,
            self._handle,
            keys,
            at.buffer_info()[0],
            length.buffer_info()[0],
            start.buffer_info()[0],
            array("I", counts).tobytes(),
            0,
            results.buffer_info()[0],
        )
        found = iter(results if code >= 0 else [code] * len(results))
        return [next(found) if there else _EINVAL for there in placed]


def _place(buffer_ptr: Any, size: Any) -> Sequence[int]:
    """An address and a size of any type that is an integer, as numpy's are. ctypes would take a str for an address, and the
    low 64 bits of a number that is larger."""
    return numbers((buffer_ptr, size))


def _same_shape(first: Sequence[object], *others: Sequence[Sequence[Any]]) -> bool:
    """Whether nested lists by buffer, key and fragment are of one shape. all_keys, the first of others, ends at the key."""
    if any(len(other) != len(first) for other in others):
        return False
    keys, *fragments = others
    for row, *rows in zip(keys, *fragments):
        if any(len(other) != len(row) for other in rows):
            return False
        if any(len({len(cell) for cell in cells}) != 1 for cells in zip(*rows)):
            return False
    return True
