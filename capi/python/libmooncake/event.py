# SPDX-License-Identifier: Apache-2.0
"""What happens to the objects of a store, as it happens."""

from __future__ import annotations

import ctypes
import enum
import os
import sys
import threading
import weakref
from dataclasses import dataclass
from typing import Iterator, Optional

from . import _native
from .errors import InvalidError, UnavailableError, check
from .handle import Handle
from .key import decode
from .operation import readable, wait_readable
from .options import ObjectType


class EventKind(enum.IntEnum):
    PUT = _native.EVENT_PUT
    REMOVED = _native.EVENT_REMOVED
    EVICTED = _native.EVENT_EVICTED
    """The object is gone."""
    DEMOTED = _native.EVENT_DEMOTED
    """It left a tier and is still in another."""
    QUARANTINED = _native.EVENT_QUARANTINED
    """A replica's bytes were wrong; it is not read any more."""
    DROPPED = _native.EVENT_DROPPED
    """The program was too slow: nbytes events are missing here."""


@dataclass(frozen=True)
class Event:
    kind: EventKind
    key: str
    tenant: str
    nbytes: int
    type: ObjectType
    on_ssd: bool
    """Which tier an evicted, demoted or quarantined object left: SSD, else memory."""


_ONE = (1).to_bytes(8, sys.byteorder)  # what an eventfd adds


class Events(Handle):
    """A subscription to what happens to the objects of all tenants of a pool. Iterate over it, in one thread at a time,
    or over it with async for; the loop ends when the store is closed, or this is. Close it, or leave its with block, to
    end it, from any thread."""

    def __init__(self, store: object, handle: int) -> None:
        self._handle = handle
        self._event = _native.Event()
        # The store, not closed, is what makes events: a subscription keeps it from being dropped.
        self._store = store
        self._lock = threading.RLock()  # of close, and of what must not meet it
        self._finalizer = weakref.finalize(self, _native.lib.mooncake_events_close, handle)

    def next(self, timeout: Optional[float] = None) -> Optional[Event]:
        """The next event, or None after timeout seconds without one. UnavailableError when the store is closed and no
        event is left, InvalidError once this is closed."""
        event = self._take()
        if event is None:
            fd = self._duplicate()
            try:
                ready = wait_readable(fd, timeout)
            finally:
                os.close(fd)
            if ready:
                event = self._take()
        return event

    def _duplicate(self) -> int:
        """A descriptor to wait for that close in another thread leaves open."""
        with self._lock:
            return os.dup(self.fileno())

    def _take(self) -> Optional[Event]:
        native = self._event
        with self._lock:  # whom close has woken sees it closed
            found = check(_native.lib.mooncake_events_next(self._handle, 0, ctypes.byref(native)))
        if found == 0:
            return None
        return Event(
            kind=EventKind(native.kind),
            key=decode(ctypes.string_at(native.key, native.key_size)) if native.key else "",
            tenant=(native.tenant or b"").decode("utf-8", "surrogateescape") or "default",
            nbytes=native.size,
            type=ObjectType(native.type),
            on_ssd=native.tier == 1,
        )

    def fileno(self) -> int:
        """A descriptor that is readable while events wait, or the store is closed. It belongs to the subscription."""
        return check(_native.lib.mooncake_events_eventfd(self._handle))

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive

    def close(self) -> None:
        """End the subscription, and with it loops that wait for its events. A second close does nothing."""
        with self._lock:
            fd = -1 if self.closed else _native.lib.mooncake_events_eventfd(self._handle)
            if fd >= 0:  # not in a forked child
                os.write(fd, _ONE)  # wakes those who wait
            self._finalizer()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        try:
            while True:
                event = self.next()
                if event is not None:
                    return event
        except UnavailableError:
            raise StopIteration from None
        except InvalidError:
            if not self.closed:
                raise
            raise StopIteration from None

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> Event:
        try:
            while True:
                event = self._take()
                if event is not None:
                    return event
                fd = self._duplicate()
                try:
                    await readable(fd)
                finally:
                    os.close(fd)
        except UnavailableError:
            raise StopAsyncIteration from None
        except InvalidError:
            if not self.closed:
                raise
            raise StopAsyncIteration from None

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
