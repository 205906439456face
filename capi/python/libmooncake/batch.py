# SPDX-License-Identifier: Apache-2.0
"""Results of batches."""

from __future__ import annotations

from array import array
from typing import Any, Callable, List, Optional, Sequence, Tuple, TypeVar

from . import _native
from .errors import BatchError, MooncakeError, last, make

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


def values(results: array[int], value: Callable[[int], T]) -> List[Optional[T]]:
    """value(i) for each item that did not fail, None for each that is absent. BatchError if anything else failed."""
    codes = results.tolist()
    if not codes or min(codes) >= 0:
        return [value(i) for i in range(len(codes))]
    items: List[Any] = [
        value(i) if code >= 0 else None if code in ABSENT else make(code) for i, code in enumerate(codes)
    ]
    check(items)
    return items


def numbers(results: array[int]) -> List[Optional[int]]:
    """values for results that are the values."""
    if not results or min(results) >= 0:
        return [*results]
    return values(results, results.__getitem__)


def done(results: array[int]) -> None:
    """For batches whose items have no value: BatchError if any failed, a missing key included."""
    codes = results.tolist()
    if codes and min(codes) < 0:
        check([make(code) if code < 0 else None for code in codes])


def check(items: List[Any]) -> None:
    """Raise the BatchError for a batch whose call has just returned, if exceptions are among its items. The library's
    text is that of the first which failed for another reason than a missing key."""
    errors = [item for item in items if isinstance(item, MooncakeError)]
    if not errors:
        return
    first = next((error for error in errors if error.code != _native.ENOTFOUND), errors[0])
    first.text = last(first.code).text
    first.args = (first.code, first.text)
    raise BatchError(first.code, f"{len(errors)} of {len(items)} failed, the first: {first.text}", items)


def same_length(keys: Sequence[object], others: Sequence[object]) -> None:
    if len(keys) != len(others):
        raise ValueError(f"{len(keys)} keys, but {len(others)} items for them")
