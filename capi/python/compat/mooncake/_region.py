"""Which memory a client has registered."""

from __future__ import annotations

from bisect import bisect_right
from typing import Dict, List, Tuple


class Regions:
    """Memory by address, in regions that do not overlap. Any thread may use it, and none waits: a process forked at any
    time can use it too."""

    __slots__ = ("_regions", "_state", "_table")

    def __init__(self) -> None:
        self._regions: Dict[int, Tuple[int, int]] = {}
        self._state = object()  # another one after each change
        self._table: Tuple[object, List[int], List[int]] = (self._state, [], [])

    def add(self, base: int, size: int) -> bool:
        """Register memory that the library has registered. False if it was registered already: the library takes the same
        region twice."""
        region = (base, base + size)
        added = self._regions.setdefault(base, region) is region
        self._state = object()
        return added

    def remove(self, base: int) -> None:
        self._regions.pop(base, None)
        self._state = object()

    def holds(self, at: int, size: int) -> bool:
        """Whether [at, at + size) lies in one region."""
        state = self._state
        made, bases, ends = self._table
        if made is not state:
            regions = sorted(list(self._regions.values()))
            bases = [base for base, _ in regions]
            ends = [end for _, end in regions]
            self._table = (state, bases, ends)
        i = bisect_right(bases, at)
        return i > 0 and ends[i - 1] >= at + size
