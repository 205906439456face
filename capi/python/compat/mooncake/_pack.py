"""Keys, numbers and results as they cross to the library."""

from __future__ import annotations

from array import array
from itertools import chain
from typing import Any, Callable, Iterable, List, Optional, Sequence, Union

from libmooncake.key import encode, pack_sized

Key = Union[str, bytes]
Buffer = Any
"""Anything with the buffer protocol."""

# Keys are one string in which each ends with NUL. One that holds a NUL makes their number wrong: the library then answers
# -600 and does nothing, and the call is repeated with the keys' sizes, by again().


def joined(keys: Sequence[Key]) -> bytes:
    try:
        return ("\0".join(keys) + "\0").encode()  # type: ignore[arg-type]
    except (TypeError, UnicodeEncodeError):  # bytes among them, or what file names have for bytes
        return b"\0".join(map(encode, keys)) + b"\0"


def again(function: Callable[..., int], handle: Any, keys: Sequence[Key], *rest: Any) -> int:
    return function(handle, *pack_sized(keys), *rest)


def listed(keys: Iterable[Key]) -> List[Key]:
    if isinstance(keys, (str, bytes)):
        raise TypeError("keys are a list of str, not one")
    return list(keys)


def numbers(values: Iterable[int]) -> array[int]:
    """Addresses, sizes or offsets as the library takes them."""
    try:
        return array("Q", values)
    except OverflowError:
        raise TypeError("addresses, sizes and offsets are integers from 0 to 2**64 - 1") from None


def flat(rows: Sequence[Iterable[int]]) -> array[int]:
    return numbers(list(chain.from_iterable(rows)))


def fit(count: int, counts: Optional[array[int]], *rows: array[int]) -> bool:
    """Whether each of rows has a number for each of count items, or as many as counts says. The caller's lists had the
    right lengths when they were looked at first, but another thread may have changed them since."""
    total = count if counts is None else sum(counts)
    return all(len(row) == total for row in rows) and (counts is None or len(counts) == count)


def lengths(count: int, *rows: Sequence[Sequence[int]]) -> Optional[array[int]]:
    """How many numbers there are for each of count keys, or None if the nested lists are not of one shape."""
    first, *others = [list(map(len, row)) for row in rows]
    if len(first) != count or any(other != first for other in others):
        return None
    return array("I", first)
