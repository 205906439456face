# SPDX-License-Identifier: Apache-2.0
"""Objects that stand for something of the library in this process."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex


class Handle:
    """The base of classes with a handle of the library, or memory of it. The number of a handle means another object in
    another process, and the finalizer of a copy would close what the original uses: they can't be pickled or copied."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} belongs to its process, and can't be pickled or copied")

    def __reduce__(self) -> NoReturn:
        self.__reduce_ex__(2)
