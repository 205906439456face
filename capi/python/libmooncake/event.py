# SPDX-License-Identifier: Apache-2.0
"""What happens to the objects of a store, as it happens."""

from __future__ import annotations

import ctypes
import enum
import weakref
from dataclasses import dataclass
from typing import Iterator, Optional

from . import _native
from .errors import UnavailableError, check
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


class Events:
    """A subscription to what happens to the objects of all tenants of a pool. Iterate over it, in one thread at a time,
    or over it with async for; the loop ends when the store is closed. Close it, or leave its with block, to end it."""

    def __init__(self, store: object, handle: int) -> None:
        self._handle = handle
        self._event = _native.Event()
        # The store, not closed, is what makes events: a subscription keeps it from being dropped.
        self._store = store
        self._finalizer = weakref.finalize(self, _native.lib.mooncake_events_close, handle)

    def next(self, timeout: Optional[float] = None) -> Optional[Event]:
        """The next event, or None after timeout seconds without one. UnavailableError when the store is closed and no
        event is left."""
        event = self._take()
        if event is None and wait_readable(self.fileno(), timeout):
            event = self._take()
        return event

    def _take(self) -> Optional[Event]:
        native = self._event
        if check(_native.lib.mooncake_events_next(self._handle, 0, ctypes.byref(native))) == 0:
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

    def close(self) -> None:
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

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> Event:
        try:
            while True:
                event = self._take()
                if event is not None:
                    return event
                await readable(self.fileno())
        except UnavailableError:
            raise StopAsyncIteration from None

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
