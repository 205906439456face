"""Section 1.3 of the C++ store's Python interface: fragments of objects, to places in registered memory."""

from __future__ import annotations

from array import array
from itertools import chain, compress, islice, repeat
from operator import add
from typing import Any, List, Optional, Sequence, Tuple

from libmooncake import _native

from ._client import Client
from ._pack import MALFORMED, Key, again, fit, is_key, is_number, numbers

_batch_get_ranges = _native.lib.mooncake_store_batch_get_ranges

_EINVAL = _native.EINVAL


class Ranges(Client):
    __slots__ = ()

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
        registered buffer is -600, a range that is not in the object too.

        If the lists differ in shape, the results have the shape of buffer_ptrs, all_keys and all_dst_offsets, and one
        fragment where those have no list. -600 are the fragments of a key whose lists differ in length, all of a buffer
        whose lists are not as long as its keys, and everything if the outer lists differ."""
        fragments = (all_dst_offsets, all_src_offsets, all_sizes)
        try:
            if _same_shape(buffer_ptrs, all_keys, *fragments):
                return self._even_ranges(buffer_ptrs, all_keys, fragments)
        except MALFORMED:
            pass
        return self._uneven_ranges(buffer_ptrs, all_keys, fragments)

    def _even_ranges(
        self,
        buffer_ptrs: Sequence[int],
        all_keys: Sequence[Sequence[Key]],
        fragments: Sequence[Sequence[Sequence[Sequence[int]]]],
    ) -> List[List[List[int]]]:
        keys = list(chain.from_iterable(all_keys))
        shape = [list(map(len, row)) for row in fragments[0]]
        to, offsets, sizes = (
            numbers(list(chain.from_iterable(chain.from_iterable(column)))) for column in fragments
        )
        bases = chain.from_iterable(map(repeat, numbers(buffer_ptrs), map(sum, shape)))
        codes = iter(self._get_ranges(keys, list(chain.from_iterable(shape)), list(map(add, bases, to)), sizes, offsets))
        return [[list(islice(codes, count)) for count in row] for row in shape]

    def _uneven_ranges(
        self,
        buffer_ptrs: Sequence[int],
        all_keys: Sequence[Sequence[Key]],
        fragments: Sequence[Sequence[Sequence[Sequence[int]]]],
    ) -> List[List[List[int]]]:
        """get_into_ranges of lists that differ in shape, or have malformed items."""
        bases = list(buffer_ptrs)
        columns: List[List[Any]] = [list(all_keys), *map(list, fragments)]
        even = all(len(column) == len(bases) for column in columns)
        wanted = _Wanted()
        results = []
        for i, base in enumerate(bases):
            keys, *rows = [_listed(column, i) for column in columns]
            names = [b""] if keys is None else keys
            fits = even and keys is not None and is_number(base) and all(len(row or ()) == len(keys) for row in rows)
            cells = [[_listed(row, j) for row in rows] for j in range(len(names))]
            results.append([wanted.add(key, base if fits else None, *cell) for key, cell in zip(names, cells)])
        codes = self._get_ranges(wanted.keys, wanted.counts, wanted.places, wanted.sizes, wanted.offsets)
        for (cell, k), code in zip(wanted.results, codes):
            cell[k] = code
        return results

    def _get_ranges(
        self, keys: List[Key], counts: List[int], places: Sequence[int], sizes: Sequence[int], offsets: Sequence[int]
    ) -> List[int]:
        """The results of get_into_ranges in one list. Fragments without a registered place are not asked for."""
        holds = self._regions.holds
        placed = [holds(at, size) for at, size in zip(places, sizes)]
        if not all(placed):
            flags = iter(placed)
            counts = [sum(islice(flags, count)) for count in counts]
            places, sizes, offsets = (list(compress(values, placed)) for values in (places, sizes, offsets))
        at, length, start, each = numbers(places), numbers(sizes), numbers(offsets), array("I", counts)
        if not fit(len(keys), each, at, length, start):
            return [_EINVAL] * len(placed)
        results = array("q", bytes(8 * len(places)))
        code = again(
            _batch_get_ranges,
            self._handle,
            keys,
            at.buffer_info()[0],
            length.buffer_info()[0],
            start.buffer_info()[0],
            each.buffer_info()[0],
            0,
            results.buffer_info()[0],
        )
        found = iter(results if code >= 0 else [code] * len(results))
        return [next(found) if there else _EINVAL for there in placed]


class _Wanted:
    """The fragments of lists that differ in shape which can be read, and where their results belong."""

    def __init__(self) -> None:
        self.keys: List[Key] = []
        self.counts: List[int] = []
        self.places: List[int] = []
        self.sizes: List[int] = []
        self.offsets: List[int] = []
        self.results: List[Tuple[List[int], int]] = []

    def add(
        self,
        key: Key,
        base: Optional[int],
        to: Optional[List[int]],
        offsets: Optional[List[int]],
        sizes: Optional[List[int]],
    ) -> List[int]:
        """The results of a key's fragments, -600 until they are read. base None says that none can be."""
        cell = [_EINVAL] * (1 if to is None else len(to))
        if base is None or to is None or offsets is None or sizes is None or not len(to) == len(offsets) == len(sizes):
            return cell
        sound = [k for k, fragment in enumerate(zip(to, offsets, sizes)) if all(map(is_number, fragment))]
        self.keys.append(key if is_key(key) else b"")
        self.counts.append(len(sound))
        for k in sound:
            self.places.append(base + to[k])
            self.sizes.append(sizes[k])
            self.offsets.append(offsets[k])
            self.results.append((cell, k))
        return cell


def _listed(items: Optional[Sequence[Any]], i: int) -> Optional[List[Any]]:
    """The list at a place of a list, or None if there is none."""
    if items is None or i >= len(items) or isinstance(items[i], (str, bytes)):
        return None
    try:
        return list(items[i])
    except TypeError:
        return None


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
