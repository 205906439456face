# SPDX-License-Identifier: Apache-2.0
"""A walk over the objects of a store."""

from __future__ import annotations

import ctypes
import weakref
from typing import Iterator

from . import _native
from .errors import check
from .handle import Handle
from .info import ObjectInfo, object_info


class Listing(Handle):
    """An iterator over objects. An object that is there from start to end is seen once. It ends by itself, and when it
    is closed or dropped."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._info = _native.ObjectInfo()
        self._finalizer = weakref.finalize(self, _native.lib.mooncake_list_close, handle)

    def __iter__(self) -> Iterator[ObjectInfo]:
        return self

    def __next__(self) -> ObjectInfo:
        info = self._info
        if not self._finalizer.alive:
            raise StopIteration
        if check(_native.lib.mooncake_list_next(self._handle, ctypes.byref(info))) == 0:
            self.close()
            raise StopIteration
        return object_info(info, ctypes.string_at(info.key, info.key_size))

    def close(self) -> None:
        self._finalizer()

    def __enter__(self) -> Listing:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
