# SPDX-License-Identifier: Apache-2.0
"""Sessions: objects that are read or written in pieces, layer by layer, without asking for them again."""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import TYPE_CHECKING, List, Optional, Sequence, Tuple, Type

from . import _native, batch, buffer
from .errors import BatchError, InvalidError, check
from .handle import Handle
from .key import Key, listed, pack
from .options import PutOptions
from .sift import alone

if TYPE_CHECKING:
    from .store import Store

Fragments = Sequence[Tuple[int, buffer.Buffer]]
"""(offset in the object, buffer) pairs."""


class GetSession(Handle):
    """Objects that are held for reading: neither evicted nor changed until the session ends, with its block, with end()
    or with the store. found says for each key whether there is an object; read only those."""

    def __init__(self, store: Store, keys: Sequence[Key]) -> None:
        keys = listed(keys)
        packed = pack(keys)
        results, at = batch.codes(len(keys))
        # The library has one session of a client and key, which a second start of the key moves on to what the key
        # stands for then, and an end ends for both. So each of ours has a client of its own.
        self._client = store.tenant(store._tenant)
        self._finalizer = weakref.finalize(self, self._client.close)
        check(_native.lib.mooncake_store_get_session_start(self._client._handle, *packed, at))
        store._sessions.add(self)
        self.found: List[bool] = [item is not None for item in batch.numbers(results, keys)]

    @alone(writable=True, fragments=True)
    def read(self, keys: Sequence[Key], fragments: Sequence[Fragments]) -> List[Optional[int]]:
        """Read fragments of objects of the session: for each key a list of (offset, buffer). Returns how many bytes
        that were for each."""
        keys, fragments = listed(keys), list(map(tuple, fragments))
        if self._client.closed:
            ended = [InvalidError(_native.EINVAL, "the session has ended") for _ in keys]
            raise BatchError(_native.EINVAL, "the session has ended", ended)
        results, at = batch.sizes(len(keys))
        batch.same_length(keys, fragments)
        buffers, sizes, offsets, counts, _kept = buffer.gather_fragments(fragments, writable=True)
        check(
            _native.lib.mooncake_store_get_session_read(
                self._client._handle, *pack(keys), buffers, sizes, offsets, counts, at
            )
        )
        return batch.fragment_numbers(results, keys, fragments)

    def end(self) -> None:
        self._finalizer()

    def __enter__(self) -> GetSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class PutSession(Handle):
    """Objects that are written in pieces and become visible when the session ends: with its block, or with end(). An
    exception in the block, or revoke(), gives them up, and so does dropping the session."""

    def __init__(
        self, store: Store, keys: Sequence[Key], sizes: Sequence[int], options: Optional[PutOptions] = None
    ) -> None:
        keys, sizes = listed(keys), list(sizes)
        batch.same_length(keys, sizes)
        self._keys = keys
        self._packed = pack(keys)
        results, at = batch.codes(len(keys))
        self._store = store
        check(
            _native.lib.mooncake_store_put_session_start(
                store._handle, *self._packed, buffer.sizes(sizes), options and options.reference, at
            )
        )
        self._finalizer = weakref.finalize(self, _revoke_put, store, self._packed)
        started = [key for key, code in zip(keys, results) if code == 0]
        if len(started) < len(keys):
            self._finalizer.detach()
            try:
                batch.done(results, keys)
            finally:
                _revoke_put(store, pack(started))

    @alone(writable=False, fragments=True)
    def write(self, keys: Sequence[Key], fragments: Sequence[Fragments]) -> None:
        """Write fragments of objects of the session, in any order and from any thread: for each key a list of (offset,
        buffer)."""
        keys, fragments = listed(keys), list(map(tuple, fragments))
        results, at = batch.codes(len(keys))
        batch.same_length(keys, fragments)
        buffers, sizes, offsets, counts, _kept = buffer.gather_fragments(fragments, writable=False)
        check(
            _native.lib.mooncake_store_put_session_write(
                self._store._handle, *pack(keys), buffers, sizes, offsets, counts, at
            )
        )
        batch.done(results, keys)

    def end(self) -> None:
        """Make the objects visible. BatchError with an IncompleteError for each that misses bytes: it is not stored."""
        if self._finalizer.detach():
            results, at = batch.codes(self._packed[3])
            check(_native.lib.mooncake_store_put_session_end(self._store._handle, *self._packed, at))
            batch.done(results, self._keys)

    def revoke(self) -> None:
        """Give the objects up."""
        self._finalizer()

    def __enter__(self) -> PutSession:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if kind is None:
            self.end()
        else:
            self.revoke()


def _revoke_put(store: Store, packed: Tuple[object, ...]) -> None:
    _results, at = batch.codes(packed[3])  # type: ignore[arg-type]
    _native.lib.mooncake_store_put_session_revoke(store._handle, *packed, at)
