"""Keys, numbers and results as they cross to the library."""

from __future__ import annotations

from array import array
from itertools import chain
from operator import index
from typing import Any, Callable, Iterable, List, Optional, Sequence, Union

from libmooncake import _native
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


def lengths(*rows: Sequence[Sequence[int]]) -> Optional[array[int]]:
    """How many numbers there are for each key, or None if the nested lists are not of one shape."""
    first, *others = [list(map(len, row)) for row in rows]
    if any(other != first for other in others):
        return None
    return array("I", first)


# A malformed item of a batch (a key that is no key, a number that is none, a buffer that can't be) fails alone. The calls
# do not look for one: they run as if all were well, and are repeated without the malformed items when that fails.


class Refused(TypeError):
    """The library has refused a whole batch."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


MALFORMED = (TypeError, UnicodeEncodeError)
"""What is raised for an item that can't cross to the library. Refused is one of them."""

_EINVAL = _native.EINVAL
_NO_KEY = b""
"""A key that the library refuses: the code is the item's alone."""


def sifted(
    error: Exception,
    call: Callable[..., List[Any]],
    keys: Sequence[Key],
    columns: Sequence[Sequence[Any]] = (),
    nested: bool = False,
) -> List[Any]:
    """The results of call(keys, *columns), which has raised error, without the items that are malformed: -400 if the key
    is, else -600. Columns have a number for each key, or if nested a list of numbers; the first two are buffers and sizes.
    If no item is malformed the error is the call's."""
    keys, lists = list(keys), [list(column) for column in columns]
    keyed = [is_key(key) for key in keys]
    sound = [_is_sound(cells, nested) for cells in zip(*lists)] if lists else keyed
    if len(sound) == len(keyed) and all(keyed) and all(sound):
        if isinstance(error, Refused):
            return [error.code] * len(keys)
        raise error
    for i in range(len(keys)):
        if not (keyed[i] and sound[i]):
            keys[i] = _NO_KEY
            for column in lists:
                column[i] = [] if nested else 0
    codes = call(keys, *lists)
    return [code if whole or not key else _EINVAL for code, whole, key in zip(codes, sound, keyed)]


def _is_sound(cells: Sequence[Any], nested: bool) -> bool:
    """Whether the cells of an item are numbers, or lists of equally many, and its buffers possible."""
    if not nested:
        return all(map(is_number, cells)) and _is_memory(*cells[:2])
    try:
        rows = [list(cell) for cell in cells]
    except TypeError:
        return False
    if any(len(row) != len(rows[0]) for row in rows):
        return False
    return all(all(map(is_number, row)) for row in rows) and all(map(_is_memory, *rows[:2]))


def _is_memory(at: Any, size: Any = 0) -> bool:
    first, count = index(at), index(size)
    return count == 0 or (first > 0 and count < 1 << 63 and first + count < 1 << 64)


def is_key(key: Any) -> bool:
    try:
        encode(key)
    except MALFORMED:
        return False
    return True


def is_number(value: Any) -> bool:
    try:
        return 0 <= index(value) < 1 << 64
    except TypeError:
        return False
