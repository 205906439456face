# SPDX-License-Identifier: Apache-2.0
"""Keys: str or bytes. A str is its UTF-8; bytes that are not UTF-8 come back as str with surrogate escapes, and go in
so, as file names do in os.fsdecode."""

from __future__ import annotations

from array import array
from typing import Iterable, List, Optional, Sequence, Tuple, Union

Key = Union[str, bytes]


def encode(key: Key) -> bytes:
    try:
        return key.encode()  # type: ignore[union-attr]
    except (AttributeError, UnicodeEncodeError):
        pass
    if isinstance(key, str):
        return key.encode("utf-8", "surrogateescape")
    if isinstance(key, (bytes, bytearray, memoryview)):
        return bytes(key)
    raise TypeError(f"a key is str or bytes, not {type(key).__name__}")


def decode(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")


def listed(keys: Iterable[Key]) -> List[Key]:
    """A list of the call's own: another thread may change the caller's while the library fills as many results as there
    were keys."""
    _refuse_one(keys)
    return list(keys)


def _refuse_one(keys: object) -> None:
    if isinstance(keys, (str, bytes)):
        raise TypeError("keys are a sequence of keys, not one key")


Packed = Tuple[bytes, int, Optional[bytes], int]
"""Keys as the batch functions take them: keys, keys_size, key_sizes, count. No sizes: each key ends with NUL."""


def pack(keys: Sequence[Key]) -> Packed:
    """One join and no object for each key, unless keys are mixed, hold NUL, or the last is empty."""
    _refuse_one(keys)
    count = len(keys)
    try:
        if count and keys[0].__class__ is str:
            joined = "\0".join(keys).encode("utf-8", "surrogateescape")  # type: ignore[arg-type]
        else:
            joined = b"\0".join(keys)  # type: ignore[arg-type]
        if joined.count(b"\0") == count - 1 and keys[-1]:
            return joined, len(joined), None, count
    except TypeError:
        pass  # mixed
    return pack_sized(keys)


def pack_sized(keys: Sequence[Key]) -> Packed:
    """pack with sizes, for any keys."""
    encoded: List[bytes] = [key if type(key) is bytes else encode(key) for key in keys]
    joined = b"".join(encoded)
    return joined, len(joined), array("I", map(len, encoded)).tobytes(), len(encoded)
