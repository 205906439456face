# SPDX-License-Identifier: Apache-2.0
"""Results of batches."""

from __future__ import annotations

from array import array
from typing import Any, Callable, List, Optional, Sequence, Sized, Tuple, TypeVar

from . import _native
from .errors import BatchError, MooncakeError, last, make, named
from .key import Key

T = TypeVar("T")

ABSENT = (_native.ENOTFOUND, _native.ENOTREADY)
"""Codes of a key that has no readable object: none, or only one whose first put is not finished."""


def codes(count: int) -> Tuple[array[int], int]:
    """An int for each item, and its address."""
    results = array("i", bytes(4 * count))
    return results, results.buffer_info()[0]


def sizes(count: int) -> Tuple[array[int], int]:
    """An int64_t for each item, and its address."""
    results = array("q", bytes(8 * count))
    return results, results.buffer_info()[0]


def values(
    results: array[int], value: Callable[[int], T], keys: Optional[Sequence[Key]] = None, late: bool = False
) -> List[Optional[T]]:
    """value(i) for each item that did not fail, None for each that is absent. BatchError if anything else failed."""
    codes = results.tolist()
    if not codes or min(codes) >= 0:
        return [value(i) for i in range(len(codes))]
    items: List[Any] = [
        value(i) if code >= 0 else None if code in ABSENT else make(code) for i, code in enumerate(codes)
    ]
    check(items, keys, late)
    return items


def numbers(results: array[int], keys: Optional[Sequence[Key]] = None, late: bool = False) -> List[Optional[int]]:
    """values for results that are the values."""
    if not results or min(results) >= 0:
        return [*results]
    return values(results, results.__getitem__, keys, late)


def fragment_numbers(results: array[int], keys: Sequence[Key], fragments: Sequence[Sized]) -> List[Optional[int]]:
    """numbers for batches with a result for each fragment."""
    if not results or min(results) >= 0:
        return [*results]
    return numbers(results, [key for key, wanted in zip(keys, fragments) for _ in range(len(wanted))])


def done(results: array[int], keys: Optional[Sequence[Key]] = None, late: bool = False) -> None:
    """For batches whose items have no value: BatchError if any failed, a missing key included."""
    codes = results.tolist()
    if codes and min(codes) < 0:
        check([make(code) if code < 0 else None for code in codes], keys, late)


def check(items: List[Any], keys: Optional[Sequence[Key]] = None, late: bool = False) -> None:
    """Raise the BatchError for a batch whose call has just returned, if exceptions are among its items. The library's
    text is that of the first which failed for another reason than a missing key; late says that other calls may have
    come between, so that it could be theirs. keys has one for each item."""
    failed = [i for i, item in enumerate(items) if isinstance(item, MooncakeError)]
    if not failed:
        return
    i = next((i for i in failed if items[i].code != _native.ENOTFOUND), failed[0])
    first = items[i]
    if not late:
        first.text = last(first.code).text
        first.args = (first.code, first.text)
    if keys is not None:
        for key, item in zip(keys, items):
            if isinstance(item, MooncakeError):
                named(item, key)
    raise BatchError(first.code, f"{len(failed)} of {len(items)} failed, the first, item {i}: {first.text}", items)


def same_length(keys: Sequence[object], others: Sequence[object]) -> None:
    if len(keys) != len(others):
        raise ValueError(f"{len(keys)} keys, but {len(others)} items for them")
