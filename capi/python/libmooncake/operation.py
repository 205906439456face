# SPDX-License-Identifier: Apache-2.0
"""Calls that run on their own."""

from __future__ import annotations

import asyncio
import os
import select
import weakref
from typing import Any, Callable, Generator, Generic, Optional, TypeVar

from . import _native
from .errors import check, last
from .handle import Handle

T = TypeVar("T")

_poll = _native.lib.mooncake_operation_poll
_free = _native.lib.mooncake_operation_free


async def readable(fd: int) -> None:
    """Return when a descriptor is readable. Its duplicate is watched, so that several tasks can wait for one."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    watched = os.dup(fd)
    try:
        loop.add_reader(watched, lambda: None if ready.done() else ready.set_result(None))
        await ready
    finally:
        loop.remove_reader(watched)
        os.close(watched)


def wait_readable(fd: int, timeout: Optional[float]) -> bool:
    """Wait for a descriptor with signals being handled, as KeyboardInterrupt needs. None waits for ever."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout is None else max(0, int(timeout * 1000 + 0.999))))


class Operation(Handle, Generic[T]):
    """An asynchronous batch or import. Wait for it with wait() and result(), with await, or with fileno() in an event
    loop. A task that is cancelled while it awaits an operation cancels it. The buffers that it was given are used until
    it is done; it keeps them alive. One that is dropped while it runs is cancelled and waited for."""

    def __init__(self, handle: int, finish: Callable[[int], T], kept: object) -> None:
        self._handle = handle
        self._finish = finish
        # The operation ends before what it uses goes: the finalizer holds kept until it has run.
        self._finalizer = weakref.finalize(self, _release, handle, kept)

    def poll(self) -> bool:
        """Whether it is done."""
        return check(_poll(self._handle)) == 1

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Wait until it is done, at most timeout seconds. Returns whether it is."""
        return self.poll() or (wait_readable(self.fileno(), timeout) and self.poll())

    def result(self, timeout: Optional[float] = None) -> T:
        """Wait as wait does and return what the synchronous form returns, or raise what it raises. NotReadyError if it
        is not done in time."""
        self.wait(timeout)
        code = _native.lib.mooncake_operation_result(self._handle)
        if code == _native.ENOTREADY and not self.poll():
            raise last(code)
        return self._finish(code)

    def cancel(self) -> None:
        """Ask it to end early. Wait for the end as usual."""
        check(_native.lib.mooncake_operation_cancel(self._handle))

    def fileno(self) -> int:
        """A descriptor that is readable once it is done. It belongs to the operation."""
        return check(_native.lib.mooncake_operation_eventfd(self._handle))

    def close(self) -> None:
        """Give the operation up; one that runs is cancelled and waited for. Nothing else can be asked of it then."""
        self._finalizer()

    def __await__(self) -> Generator[Any, None, T]:
        return self._wait().__await__()

    async def _wait(self) -> T:
        try:
            if not self.poll():
                await readable(self.fileno())
        except asyncio.CancelledError:
            self.cancel()
            raise
        return self.result()

    def __repr__(self) -> str:
        state = "closed" if not self._finalizer.alive else "done" if _poll(self._handle) == 1 else "running"
        return f"<libmooncake.{type(self).__name__}, {state}>"

    def __enter__(self) -> Operation[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _release(handle: int, kept: object) -> None:
    _free(handle)
