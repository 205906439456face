# SPDX-License-Identifier: Apache-2.0
"""Exceptions. Each carries the library's code; MooncakeError catches all of them."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple, Type, Union

from . import _native


class MooncakeError(Exception):
    """A call that failed: code is the header's MOONCAKE_E... number, name the C++ Mooncake Store's name for it, text
    what happened to what."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text or _TEXTS.get(code) or self.name

    @property
    def name(self) -> str:
        name: bytes = _native.lib.mooncake_error_name(self.code)
        return name.decode("utf-8", "replace")

    def __str__(self) -> str:
        return f"{self.text} ({self.name}, {self.code})"


class InternalError(MooncakeError):
    """A fault of the library."""


class NoSpaceError(MooncakeError):
    """No room, and nothing may be evicted for it."""


class VersionError(MooncakeError):
    """Written by a newer version."""


class InvalidError(MooncakeError, ValueError):
    """An argument is wrong, or does not fit another one."""


class InvalidKeyError(InvalidError):
    """A key that is empty or longer than 4096 bytes."""


class NotWriterError(MooncakeError):
    """The put was taken over, committed or aborted already."""


class NotReadyError(MooncakeError):
    """Only an unfinished put has this key, or the revision is not READY, or the operation still runs."""


class NotFoundError(MooncakeError, KeyError):
    """No such object, revision, group or tensor."""

    __str__ = MooncakeError.__str__


class NoGroupError(NotFoundError):
    """No such group."""


class NoTensorError(NotFoundError):
    """No such tensor."""


class NoReplicaError(MooncakeError):
    """No readable replica of the wanted kind."""


class ExistsError(MooncakeError):
    """The key or the revision exists; a revision with other bytes."""


class LeasedError(MooncakeError):
    """The object is leased or being read; the revision is loaded."""


class PinnedError(MooncakeError):
    """The object is pinned."""


class BusyError(MooncakeError):
    """In use; try again."""


class UnavailableError(MooncakeError):
    """The store is closed, or this process is a fork of the one that loaded the library."""


class ModeError(MooncakeError):
    """Needs a directory, or RocksDB, that this store or build does not have."""


class UnsupportedError(MooncakeError):
    """Not supported."""


class StorageError(MooncakeError):
    """A file can't be opened, read or written."""


class LockedError(StorageError):
    """Another process has the directory open; the text has its pid."""


class NotDurableError(StorageError):
    """Could not be made durable."""


class DamagedError(MooncakeError):
    """Bytes are not what was stored: a file of a revision is missing or damaged, metadata does not parse."""


class ChecksumError(DamagedError):
    """Bytes do not have the checksum that they were stored with."""


class TamperedError(DamagedError):
    """A file that was handed out was changed."""


class IncompleteError(MooncakeError):
    """Committed before all of it was written."""


class CanceledError(MooncakeError):
    """The operation was cancelled."""


class TimedOutError(MooncakeError):
    """Took longer than was allowed."""


class SourceError(MooncakeError):
    """The source of an import is not a complete model."""


class ImportingError(MooncakeError):
    """An import of the revision is running."""


class BatchError(MooncakeError):
    """Items of a batch failed; code and text are those of the first, and name its key and place. results has one entry
    for each item: what the batch would have returned for it, or the MooncakeError."""

    def __init__(self, code: int, text: str = "", results: Optional[List[Any]] = None) -> None:
        super().__init__(code, text)
        self.results: List[Any] = results if results is not None else []

    def __reduce__(self) -> Tuple[Any, ...]:
        return type(self), (self.code, self.text, self.results)


_CLASSES: Dict[int, Type[MooncakeError]] = {
    _native.EINTERNAL: InternalError,
    _native.ENOSPACE: NoSpaceError,
    _native.EVERSION: VersionError,
    _native.EKEY: InvalidKeyError,
    _native.EWRITE: StorageError,
    _native.EINVAL: InvalidError,
    _native.ENOTWRITER: NotWriterError,
    _native.EREPLICA: NoReplicaError,
    _native.ENOTREADY: NotReadyError,
    _native.ENOTFOUND: NotFoundError,
    _native.EEXISTS: ExistsError,
    _native.ELEASED: LeasedError,
    _native.EBUSY: BusyError,
    _native.ECHECKSUM: ChecksumError,
    _native.EUNAVAILABLE: UnavailableError,
    _native.EMODE: ModeError,
    _native.ENOTSUPPORTED: UnsupportedError,
    _native.ENOFILE: StorageError,
    _native.EOPEN: StorageError,
    _native.EREAD: StorageError,
    _native.ELOCKED: LockedError,
    _native.ETAMPERED: TamperedError,
    _native.ECORRUPT: DamagedError,
    _native.ENOTDURABLE: NotDurableError,
    _native.EPINNED: PinnedError,
    _native.ENOGROUP: NoGroupError,
    _native.EINCOMPLETE: IncompleteError,
    _native.ECANCELED: CanceledError,
    _native.ETIMEOUT: TimedOutError,
    _native.ESOURCE: SourceError,
    _native.EDAMAGED: DamagedError,
    _native.EIMPORTING: ImportingError,
    _native.ENOTENSOR: NoTensorError,
}


_TEXTS = {
    _native.ENOSPACE: "no space",
    _native.EINVAL: "invalid argument",
    _native.ENOTREADY: "object is not ready",
    _native.ENOTFOUND: "object not found",
    _native.EEXISTS: "object already exists",
    _native.ELEASED: "object is leased",
}
"""The library's own, for items of a batch, which come with a code only."""


def make(code: int, text: str = "") -> MooncakeError:
    """The exception for a code."""
    return _CLASSES.get(code, MooncakeError)(code, text)


def named(error: MooncakeError, key: Union[str, bytes]) -> MooncakeError:
    """The same error, with the key in its text unless the library has put it there, quoted."""
    if '"' not in error.text and error.code not in (_native.EKEY, _native.EUNAVAILABLE):
        text = key if isinstance(key, str) else bytes(key).decode("utf-8", "surrogateescape")
        error.text = f"{error.text}: {text[:64]!r}{'...' if len(text) > 64 else ''}"
        error.args = (error.code, error.text, *error.args[2:])
    return error


def last(code: int) -> MooncakeError:
    """The exception for the call of this thread that has just returned code."""
    text = ""
    if _native.lib.mooncake_last_error_code() == code:
        text = _native.lib.mooncake_last_error().decode("utf-8", "replace")
    return make(code, text)


def check(code: int) -> int:
    """code, or the exception for it if it is negative."""
    if code < 0:
        raise last(code)
    return code
