"""Which memory a client has registered."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Dict, List, Tuple


class Regions:
    """Memory by address. Any thread may use it, and none waits: a process forked at any time can use it too."""

    __slots__ = ("_sizes", "_state", "_table")

    def __init__(self) -> None:
        self._sizes: Dict[int, int] = {}
        self._state = object()  # another one after each change
        self._table: Tuple[object, List[int], List[int]] = (self._state, [], [])

    def add(self, base: int, size: int) -> None:
        self._sizes[base] = size
        self._state = object()

    def remove(self, base: int) -> None:
        self._sizes.pop(base, None)
        self._state = object()

    def holds(self, at: int, size: int) -> bool:
        """Whether [at, at + size) lies in one region."""
        state = self._state
        made, bases, ends = self._table
        if made is not state:
            regions = sorted(list(self._sizes.items()))
            bases = [base for base, _ in regions]
            ends = list(accumulate((base + length for base, length in regions), max))
            self._table = (state, bases, ends)
        i = bisect_right(bases, at)
        return i > 0 and ends[i - 1] >= at + size
