# SPDX-License-Identifier: Apache-2.0
"""The tests run against the libmooncake that Python finds: an installed one, else this source tree with the library
that make -C capi has built. MOONCAKE_LIBRARY names another library."""

from __future__ import annotations

import importlib.util
import itertools
import os
import sys
from pathlib import Path
from typing import Iterator

import pytest

SOURCE = Path(__file__).resolve().parents[1]
BUILT = SOURCE.parent / "build" / "libmooncake.so"

if importlib.util.find_spec("libmooncake") is None:
    sys.path.insert(0, str(SOURCE))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
if not any((Path(p) / "libmooncake" / "libmooncake.so").exists() for p in sys.path):
    os.environ.setdefault("MOONCAKE_LIBRARY", str(BUILT))

import libmooncake  # noqa: E402

_pools = itertools.count()


@pytest.fixture
def pool() -> str:
    """A store that no other test has."""
    return f"test-{next(_pools)}"


@pytest.fixture
def store(pool: str) -> Iterator[libmooncake.Store]:
    """A store in memory."""
    with libmooncake.Store(pool=pool, memory_bytes=128 << 20) as opened:
        yield opened


@pytest.fixture
def disk(pool: str, tmp_path: Path) -> Iterator[libmooncake.Store]:
    """A store with an SSD tier."""
    try:
        opened = libmooncake.Store(pool=pool, memory_bytes=128 << 20, dir=tmp_path / "store", volatile_memory=True)
    except libmooncake.ModeError:
        pytest.skip("the library was built without RocksDB")
    with opened:
        yield opened
