# SPDX-License-Identifier: Apache-2.0
"""Integers as they cross to the library. ctypes cuts one that is too large to the low bits of its type: an offset of
2**64 would be 0."""

from __future__ import annotations

from operator import index
from typing import Optional, SupportsIndex


def unsigned(name: str, value: SupportsIndex, bits: int = 64) -> int:
    number = _integer(name, value)
    if number < 0:
        raise ValueError(f"{name} is {number}, less than 0")
    if number >> bits:
        raise ValueError(f"{name} is {number}, more than 2**{bits} - 1")
    return number


def optional(name: str, value: Optional[SupportsIndex], bits: int = 64) -> int:
    """unsigned, with the 0 that says default for None."""
    return 0 if value is None else unsigned(name, value, bits)


def signed(name: str, value: SupportsIndex, bits: int) -> int:
    number = _integer(name, value)
    if not -1 << (bits - 1) <= number < 1 << (bits - 1):
        raise ValueError(f"{name} is {number}, which does not fit {bits} bits")
    return number


def _integer(name: str, value: SupportsIndex) -> int:
    try:
        return index(value)
    except TypeError:
        raise TypeError(f"{name} is an integer, not {type(value).__name__}") from None
