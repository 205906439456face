# SPDX-License-Identifier: Apache-2.0
"""Weights: model revisions in a store. A model goes in once; an engine starts from the store."""

from __future__ import annotations

import ctypes
import io
import os
import sys
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, Optional, Sequence, Tuple, Type, Union

from . import _native, buffer, model
from .errors import NoTensorError, check, last
from .handle import Handle
from .info import taken
from .model import ImportResult, Manifest, Progress, Report, Summary, WeightUsage
from .number import optional, signed, unsigned
from .operation import Operation
from .tensor import Tensor, tensor_list

if TYPE_CHECKING:
    from .store import Store

_lib = _native.lib
_byref = ctypes.byref
_pointer = ctypes.c_void_p
_PHASES = ("", "listing", "checking", "importing", "comparing", "done")


class ImportOperation(Operation[ImportResult]):
    """An import that runs. Cancelled, or dropped, it leaves what is stored completely for the next import of the
    revision; several callers that ask for the same share one, which ends when all of them have given up."""

    def progress(self) -> Progress:
        """How far it is. At any time before it is closed."""
        native = _native.WeightProgress()
        check(_lib.mooncake_weight_import_progress(self._handle, _byref(native)))
        return Progress(
            phase=_PHASES[native.phase] if native.phase < len(_PHASES) else str(native.phase),
            files=native.files,
            files_done=native.files_done,
            files_reused=native.files_reused,
            nbytes=native.bytes,
            nbytes_done=native.bytes_done,
            bytes_read=native.bytes_read,
            elapsed_ms=native.elapsed_ms,
        )


class Weights(Handle):
    """The model revisions of a store's tenant.

    load_dir           where load makes directories. Default: "loads" in the store's dir
    unfinished_ttl_ms  how long an interrupted import can be resumed. Default: 24 h

    Close it, or leave its with block. The last one of a pool and tenant ends imports that still run, which stay
    resumable, and gives up the directories that are still loaded. It keeps the pool open, also when the Store is closed.
    """

    def __init__(
        self,
        store: Store,
        *,
        load_dir: Optional[Union[str, os.PathLike[str]]] = None,
        unfinished_ttl_ms: Optional[int] = None,
    ) -> None:
        options = _native.WeightOptions()
        options.load_dir = None if load_dir is None else os.fsencode(load_dir)
        options.unfinished_ttl_ms = optional("unfinished_ttl_ms", unfinished_ttl_ms)
        handle = _pointer()
        check(_lib.mooncake_weight_open(store.handle, _byref(options), _byref(handle)))
        self._handle = handle.value or 0
        self._finalizer = weakref.finalize(self, _lib.mooncake_weight_close, self._handle)

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive

    def close(self) -> None:
        """A second close does nothing."""
        self._finalizer()

    def __enter__(self) -> Weights:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def import_model(
        self,
        model_id: str,
        revision: str,
        source: Union[str, os.PathLike[str]],
        *,
        progress: Optional[bool] = None,
        **options: Any,
    ) -> ImportResult:
        """Import a revision and wait for it; options are those of start_import. progress shows a bar, if tqdm is
        installed; by default when stderr is a terminal. KeyboardInterrupt stops the import, and the next one of the
        revision goes on from there."""
        operation = self.start_import(model_id, revision, source, **options)
        with operation:
            if progress or (progress is None and sys.stderr is not None and sys.stderr.isatty()):
                _show(operation, f"{model_id}@{revision}")
            return operation.result()

    def start_import(
        self,
        model_id: str,
        revision: str,
        source: Union[str, os.PathLike[str]],
        *,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        code: bool = False,
        unpinned: bool = False,
        memory_only: bool = False,
        parallel: int = 0,
        follow_links: bool = False,
    ) -> ImportOperation:
        """Begin an import, or join the same one that runs.

        source            a local directory or a file:// URI
        include, exclude  patterns of file names to take that are left out otherwise, and to leave out: of a whole name
                          or its last element; with a slash at the end, of a folder
        follow_links      take what symbolic links out of the source lead to; without it such a link is an error
        code              no effect: the model's Python files are always taken
        unpinned          let the store evict the revision
        memory_only       in a store with a dir: does not survive the machine's restart
        parallel          files read at a time, at most 8. Default: 2

        Every file is taken except those that are known not to be needed: the same weights in another format, version
        control, caches, training state. The result's skipped names each, with the reason.

        SourceError if the source is not a complete model, ExistsError if the revision exists with other bytes,
        NoSpaceError, ...: from here or from the operation's result.
        """
        request = _native.WeightImport()
        request.model_id, request.revision = _string(model_id), _string(revision)
        request.source = os.fsencode(source)
        included, excluded = _strings(include), _strings(exclude)
        request.include, request.include_count = ctypes.addressof(included), len(included)
        request.exclude, request.exclude_count = ctypes.addressof(excluded), len(excluded)
        request.code, request.unpinned, request.memory_only = code, unpinned, memory_only
        request.parallel = signed("parallel", parallel, bits=32)
        request.follow_links = follow_links
        handle = _pointer()
        check(_lib.mooncake_weight_import(self._handle, _byref(request), _byref(handle)))
        number = handle.value or 0

        def finish(result: int) -> ImportResult:
            check(result)
            return model.import_result(_json(_lib.mooncake_weight_import_result, number))

        return ImportOperation(number, finish, self)

    def check(self, model_id: str, revision: str, *, deep: bool = False) -> Report:
        """Look at each file of a READY revision: what is wrong is in the report. deep reads and compares every byte."""
        text = _pointer()
        code = _lib.mooncake_weight_check(self._handle, _string(model_id), _string(revision), deep, _byref(text))
        if code < 0 and not (code == _native.EDAMAGED and text.value):
            raise last(code)
        return model.report(taken(text))

    def manifest(self, model_id: str, revision: str) -> Manifest:
        """The manifest of a READY revision."""
        return model.manifest(_json(_lib.mooncake_weight_manifest, self._handle, _string(model_id), _string(revision)))

    def list(self, model_id: Optional[str] = None) -> Tuple[Summary, ...]:
        """The revisions of a model, or of all."""
        name = None if model_id is None else _string(model_id)
        return model.summaries(_json(_lib.mooncake_weight_list, self._handle, name))

    def usage(self) -> WeightUsage:
        """What READY revisions take."""
        return model.usage(_json(_lib.mooncake_weight_usage, self._handle))

    def delete(self, model_id: str, revision: str) -> None:
        """Remove a READY revision. LeasedError while it is loaded, with who has it."""
        check(_lib.mooncake_weight_delete(self._handle, _string(model_id), _string(revision)))

    def abort(self, model_id: str, revision: str) -> None:
        """Remove what an unfinished import has stored."""
        check(_lib.mooncake_weight_abort(self._handle, _string(model_id), _string(revision)))

    def load(self, model_id: str, revision: str, *, verify: bool = False) -> Loaded:
        """A revision as a directory of its files. verify reads and compares every byte first. While it is open the
        revision can't be deleted."""
        native = _native.Loaded()
        check(_lib.mooncake_weight_load(self._handle, _string(model_id), _string(revision), verify, _byref(native)))
        return Loaded(self, native)

    def open(self, model_id: str, revision: str, name: str) -> WeightFile:
        """A file of a revision, to read and seek in. io.BufferedReader(file) makes small reads cheap."""
        handle = _pointer()
        check(
            _lib.mooncake_weight_open_file(
                self._handle, _string(model_id), _string(revision), _string(name), _byref(handle)
            )
        )
        return WeightFile(self, handle.value or 0, name)

    def tensors(self, model_id: str, revision: str) -> Tensors:
        """The tensors of a READY revision's safetensors files, by name, ordered by file and offset. Only headers are
        read."""
        block = _pointer()
        check(_lib.mooncake_weight_tensors(self._handle, _string(model_id), _string(revision), _byref(block)))
        found = {tensor.name: tensor for tensor in tensor_list(self, self._handle, model_id, revision, block)}
        return Tensors(model_id, revision, found)


class Tensors(Handle, Mapping[str, Tensor]):
    """The tensors of a revision by name."""

    def __init__(self, model_id: str, revision: str, found: Dict[str, Tensor]) -> None:
        self.model_id = model_id
        self.revision = revision
        self._found = found

    def __getitem__(self, name: str) -> Tensor:
        try:
            return self._found[name]
        except KeyError:
            raise NoTensorError(_native.ENOTENSOR, f"{self.model_id}@{self.revision} has no tensor {name!r}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        return f"<libmooncake.Tensors of {self.model_id}@{self.revision}, {len(self)}>"


class Loaded(Handle):
    """A loaded revision: dir is a directory of its files under their own names, at the same path each time, and
    os.fspath gives it too. Its last element tells model and revision. Only this user can read it, see hand_out. Large files are the store's own, hard-linked: everything in it is read-only. It stays until
    this is closed or dropped, and until no process is left that inherited lock_fd."""

    def __init__(self, weights: Weights, native: _native.Loaded) -> None:
        self.dir: str = os.fsdecode(native.dir)
        self.lock_fd: int = native.lock_fd
        """A program that inherits this descriptor, by pass_fds of subprocess.Popen for example, keeps the directory
        until it ends, also when this process is gone."""
        self._weights = weights
        self._native = native
        self._finalizer = weakref.finalize(self, _lib.mooncake_loaded_close, _byref(native))

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive

    def close(self) -> None:
        """Give the directory up. TamperedError if a file of it was changed. A second close does nothing."""
        if self._finalizer.detach():
            check(_lib.mooncake_loaded_close(_byref(self._native)))

    def hand_out(self, user: Union[str, int]) -> None:
        """Let another user read the directory, until it goes: a name, or a number that may have ":group" behind it.
        InvalidError names what is in the way, such as a directory above the store's that the user can't enter."""
        check(_lib.mooncake_loaded_hand_out(_byref(self._native), _string(str(user))))

    def detach(self) -> int:
        """close, but that the directory stays for whoever has the returned descriptor open or inherits it: the program
        that this process turns into by os.exec. InvalidError, and it stays loaded, if the bytes are only in this
        process's memory."""
        fd = ctypes.c_int()
        check(_lib.mooncake_loaded_detach(_byref(self._native), _byref(fd)))
        self._finalizer.detach()
        return fd.value

    def __fspath__(self) -> str:
        return self.dir

    def __enter__(self) -> Loaded:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<libmooncake.Loaded {self.dir!r}{', closed' if self.closed else ''}>"


class WeightFile(Handle, io.RawIOBase):
    """A file of a revision, read out of the store."""

    def __init__(self, weights: Weights, handle: int, name: str) -> None:
        super().__init__()
        self.name = name
        self._weights = weights
        self._handle = handle
        self._position = 0
        self._finalizer = weakref.finalize(self, _lib.mooncake_weight_file_close, handle)
        self.nbytes = check(_lib.mooncake_weight_file_size(handle))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read_at(self, offset: int, into: buffer.Buffer) -> int:
        """Read from an offset into a buffer, and return how many bytes: fewer than fit only at the end. From any
        thread."""
        if self.closed:
            raise ValueError("I/O operation on closed file")
        offset = unsigned("offset", offset)
        at, size, _kept = buffer.target(into)
        return check(_lib.mooncake_weight_file_read_at(self._handle, at, size, offset)) if size else 0

    def readinto(self, into: buffer.Buffer) -> int:
        count = self.read_at(self._position, into)
        self._position += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.nbytes}[whence]
        if base + offset < 0:
            raise ValueError(f"negative seek position {base + offset}")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        super().close()
        self._finalizer()


def _show(operation: ImportOperation, title: str) -> None:
    """A bar until the operation is done, if tqdm is there."""
    try:
        from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        return
    with tqdm(desc=title, unit="B", unit_scale=True, unit_divisor=1024) as bar:
        done = False
        while not done:
            done = operation.wait(0.2)
            progress = operation.progress()
            bar.total = progress.nbytes or None
            bar.set_postfix_str(progress.phase, refresh=False)
            bar.update(progress.nbytes_done - bar.n)


def _json(call: Callable[..., int], *arguments: Any) -> bytes:
    text = _pointer()
    check(call(*arguments, _byref(text)))
    return taken(text)


def _string(text: str) -> bytes:
    encoded = text.encode("utf-8", "surrogateescape")
    if b"\0" in encoded:
        raise ValueError(f"{text!r} has a NUL in it")
    return encoded


def _strings(texts: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    if isinstance(texts, str):
        raise TypeError("patterns are a list of strings, not one string")
    return (ctypes.c_char_p * len(texts))(*map(_string, texts))
