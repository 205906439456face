"""Other processes of one engine that have a store of the same name, each its own. Tensor-parallel ranks are such processes,
and a lookup that asks one store for the pages of all ranks never finds them, which nobody would notice.

A process that opens a store leaves an empty file, whose name says all there is to say, in a directory of its user's. Files of
processes that are gone are removed by whoever sees them. Nothing depends on the files: where they can't be made, there is
no warning."""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import stat
import sys
import threading
from typing import Dict, List, NamedTuple, Optional

from libmooncake.handle import Handle

_log = logging.getLogger("mooncake.store")


class Process(NamedTuple):
    """A process that has a store, as its file's name says."""

    namespace: int  # of process ids
    pid: int
    started: int  # in clock ticks since the machine booted
    engine: int  # the process that started it as one of its workers, or 0
    pool: str  # a hash of the store's name

    def is_alive(self) -> bool:
        return _started(self.pid) == self.started

    def is_of(self, other: Process) -> bool:
        """Whether both belong to one engine."""
        return other.pid == self.engine or (self.engine != 0 and other.engine == self.engine) or other.engine == self.pid

    @property
    def file(self) -> str:
        return "-".join(map(str, self))


def _parsed(file: str) -> Optional[Process]:
    try:
        namespace, pid, started, engine, pool = file.split("-")
        return Process(int(namespace), int(pid), int(started), int(engine), pool)
    except ValueError:
        return None


def _started(pid: int) -> int:
    """When a process was started, or 0 if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])  # the name before it may have spaces
    except (OSError, IndexError, ValueError):
        return 0


def _engine() -> int:
    """The process whose worker this one is: who started it by multiprocessing, or as one of several ranks."""
    module = sys.modules.get("multiprocessing.process")
    parent = module.parent_process() if module is not None else None
    if parent is not None:
        return int(parent.pid)
    if "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") not in ("", "0", "1"):
        return os.getppid()
    return 0


def _directory() -> str:
    """The directory with the files, made if it is missing. OSError if it can't be trusted."""
    base = os.environ.get("XDG_RUNTIME_DIR") or "/dev/shm"
    path = os.path.join(base, f"mooncake-compat-{os.getuid()}")
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{path} is not a directory of this user's")
    return path


_process = os.getpid()
_lock = threading.RLock()  # a signal handler may close what its thread sets up
_clients: Dict[str, int] = {}  # how many of this process have a store of the name
_files: Dict[str, str] = {}
_warned = False


class Opened(Handle):
    """A client's word that it has a store of a name, until it is closed or dropped. Warns, once in a process, if another
    process of the engine has one."""

    __slots__ = ("_pool",)

    def __init__(self, pool: str) -> None:
        self._pool: Optional[str] = pool
        others: List[Process] = []
        with _lock:
            _clients[pool] = _clients.get(pool, 0) + 1
            if _clients[pool] == 1:
                try:
                    others = _enter(pool)
                except OSError:
                    pass
        if others:
            _warn(pool, others[0].pid)

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is None or os.getpid() != _process:
            return
        with _lock:
            _clients[pool] -= 1
            if _clients[pool] == 0:
                _remove(_files.pop(pool, ""))

    __del__ = close


@atexit.register
def _at_exit() -> None:
    if os.getpid() == _process:
        for path in list(_files.values()):
            _remove(path)


def _enter(pool: str) -> List[Process]:
    """Leave this process's file, and return the others of its engine."""
    directory = _directory()
    me = Process(
        os.stat("/proc/self/ns/pid").st_ino,
        os.getpid(),
        _started(os.getpid()),
        _engine(),
        hashlib.sha256(pool.encode("utf-8", "surrogateescape")).hexdigest()[:16],
    )
    _files[pool] = os.path.join(directory, me.file)
    with open(_files[pool], "w", opener=lambda path, flags: os.open(path, flags, 0o600)):
        pass
    others = []
    for file in os.listdir(directory):
        other = _parsed(file)
        if other is None or other.namespace != me.namespace or other.pid == me.pid:
            continue
        if not other.is_alive():
            _remove(os.path.join(directory, file))
        elif other.pool == me.pool and me.is_of(other):
            others.append(other)
    return others


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _warn(pool: str, pid: int) -> None:
    global _warned
    if _warned:
        return
    _warned = True
    text = (
        f"process {pid} of this engine has a store {pool!r} of its own, and so has this one: neither finds what the other has "
        "put. With tensor parallelism above 1 the engine's lookup never hits. Until processes can share a store, run the "
        "engine with one worker process, or with the C++ Mooncake and a master"
    )
    shown = not _log.hasHandlers()  # logging writes to stderr by itself if nobody has set it up
    _log.warning("%s", text)
    if not shown and sys.stderr is not None:
        print(f"mooncake.store: {text}", file=sys.stderr)
