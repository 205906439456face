# SPDX-License-Identifier: Apache-2.0
"""Objects that are written in pieces."""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import Optional, Type

from . import _native, buffer
from .errors import InvalidError, check
from .handle import Handle
from .number import unsigned


class Writer(Handle):
    """An object of known size that is visible only when it is committed. As a context manager it commits at the end of
    the block and aborts on an exception; one that is dropped aborts."""

    def __init__(self, handle: int, nbytes: int) -> None:
        self.nbytes = nbytes
        self._handle = handle
        self._finalizer = weakref.finalize(self, _native.lib.mooncake_writer_abort, handle)

    @property
    def closed(self) -> bool:
        """Committed or aborted."""
        return not self._finalizer.alive

    def write(self, data: buffer.Buffer) -> int:
        """Append, and return the number of bytes, all of them."""
        at, size, _kept = buffer.source(data)
        check(_native.lib.mooncake_writer_write(self._handle, at, size))
        return size

    def write_at(self, offset: int, data: buffer.Buffer) -> int:
        """Write anywhere. Pieces may come in any order and from several threads; what is written twice has one of the
        two."""
        at, size, _kept = buffer.source(data)
        check(_native.lib.mooncake_writer_write_at(self._handle, unsigned("offset", offset), at, size))
        return size

    def commit(self) -> None:
        """Make the object visible. IncompleteError if bytes are missing, NotWriterError if the put was taken over:
        nothing was stored then. The writer is closed in any case."""
        if not self._finalizer.detach():
            raise InvalidError(_native.EINVAL, "the writer is closed")
        check(_native.lib.mooncake_writer_commit(self._handle))

    def abort(self) -> None:
        """Give the room back. Does nothing once the writer is closed."""
        self._finalizer()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if kind is not None:
            self.abort()
        elif not self.closed:
            self.commit()
