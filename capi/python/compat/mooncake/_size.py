"""Sizes as configurations write them."""

from __future__ import annotations

import re

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgt])?b?)\s*", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def size_of(text: str) -> int:
    """Bytes of "4096", "16MB", "1.5 g" and the like; units are powers of 1024. ValueError for anything else."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size: write bytes, or a unit from KB to TB")
    number, unit = match.groups()
    scale = _UNITS[(unit or "").lower()]
    return int(number) * scale if number.isdigit() else int(float(number) * scale)
