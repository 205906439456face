"""The tests run against the mooncake and libmooncake that Python finds: installed ones, else this source tree with the
library that make -C capi has built. MOONCAKE_LIBRARY names another library."""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import mmap
import os
import sys
from pathlib import Path
from typing import Callable, Iterator

import pytest

SOURCE = Path(__file__).resolve().parents[1]
BUILT = SOURCE.parents[1] / "build" / "libmooncake.so"



def installed(name: str, place: Path) -> bool:
    """Whether Python finds the package elsewhere than here: a working directory is no path for child processes."""
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None and not Path(spec.origin).is_relative_to(place)


missing = [
    str(place) for name, place in (("mooncake", SOURCE), ("libmooncake", SOURCE.parent)) if not installed(name, place)
]
if missing:
    sys.path[:0] = missing
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*missing, os.environ.get("PYTHONPATH")]))
if not any((Path(p) / "libmooncake" / "libmooncake.so").exists() for p in sys.path):
    os.environ.setdefault("MOONCAKE_LIBRARY", str(BUILT))
os.environ.pop("MOONCAKE_EMBEDDED", None)

from mooncake.store import MooncakeDistributedStore  # noqa: E402

_pools = itertools.count()


class Memory:
    """Memory with an address, as engines have it."""

    def __init__(self, size: int) -> None:
        self.map = mmap.mmap(-1, size)
        self.at = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.size = size

    def __getitem__(self, part: slice) -> bytes:
        return self.map[part]

    def __setitem__(self, part: slice, data: bytes) -> None:
        self.map[part] = data


@pytest.fixture
def memory() -> Memory:
    return Memory(4 << 20)


@pytest.fixture
def address() -> str:
    """The address of a store that no other test has."""
    return f"embedded:test-{next(_pools)}"


Connect = Callable[..., MooncakeDistributedStore]


@pytest.fixture
def connect(address: str) -> Iterator[Connect]:
    """Makes clients of one store."""
    made = []

    def client(*, size: int = 64 << 20, **options: object) -> MooncakeDistributedStore:
        store = MooncakeDistributedStore()
        made.append(store)
        assert store.setup("host", "P2PHANDSHAKE", size, 16 << 20, "tcp", "", address, **options) == 0  # type: ignore[arg-type]
        return store

    yield client
    for store in made:
        store.close()


@pytest.fixture
def store(connect: Connect) -> MooncakeDistributedStore:
    return connect()


@pytest.fixture
def disk(connect: Connect, tmp_path: Path) -> MooncakeDistributedStore:
    """A client of a store with an SSD tier."""
    return connect(enable_ssd_offload=True, ssd_offload_path=str(tmp_path))
