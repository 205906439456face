# SPDX-License-Identifier: Apache-2.0
"""libmooncake-fast, built here: it takes arguments as ctypes does, in every interpreter of the process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "fast" / "libmooncake_fast.c"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the built module."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    headers = sysconfig.get_paths()["include"]
    if compiler is None or not os.path.exists(os.path.join(headers, "Python.h")):
        pytest.skip("no C compiler, or no Python headers")
    place = tmp_path_factory.mktemp("fast")
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{headers}"]
    subprocess.run([compiler, *flags, str(SOURCE), "-o", str(place / "libmooncake_fast.so")], check=True)
    return place


def run(built: Path, code: str, fast: bool = True) -> str:
    environment = dict(os.environ, MOONCAKE_PYTHON_FAST="1" if fast else "0")
    environment["PYTHONPATH"] = os.pathsep.join([str(built), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


WORK = """
import ctypes, sys
import libmooncake
from libmooncake import Store, _native
with Store(pool="fast", memory_bytes=32 << 20) as store:
    store.put_batch(["a", "b"], [b"1", b"2"], groups=["group"] * 2)
    view = store.view("a")
    print(store.get("a"), store.group("group"), store.explain("a"), bytes(view))
    print(type(_native.lib.mooncake_free).__name__)
sys.stdout.flush()
"""


def test_results_are_those_of_ctypes(built: Path) -> None:
    quick, slow = run(built, WORK), run(built, WORK, fast=False)
    assert quick.replace("Function", "_FuncPtr") == slow and "Function" in quick


def test_subinterpreters(built: Path) -> None:
    """Each interpreter has a ctypes of its own, with types of its own, but all share one libmooncake_fast."""
    code = f"""
work = {WORK!r}
try:
    import _interpreters as interpreters
    other = interpreters.create("legacy")
except ImportError:
    import _xxsubinterpreters as interpreters
    other = interpreters.create(isolated=False)
import sys
work = "import sys; sys.path[:] = %r" % sys.path + work
exec(work)
for _ in range(2):
    assert not interpreters.run_string(other, work)
interpreters.destroy(other)
"""
    lines = run(built, code).splitlines()
    assert lines == lines[:2] * 3 and lines[1] == "Function"


def test_memory(built: Path) -> None:
    """What stands for an address, and that a bytearray can't be resized while its call runs."""
    code = """
import ctypes
from libmooncake import _native
import libmooncake_fast

class Pointer(ctypes.c_void_p):
    pass

libc = ctypes.CDLL(None)
address = ctypes.cast(libc.memcmp, ctypes.c_void_p).value
compare = libmooncake_fast.function("memcmp", address, "i", "ppq")
text = ctypes.create_string_buffer(b"value")
at = ctypes.addressof(text)
pointers = at, ctypes.c_void_p(at), Pointer(at), ctypes.byref(text)
for same in (b"value", bytearray(b"value"), memoryview(b"xvalue")[1:], text, *pointers):
    assert compare(same, b"value", 5) == 0, same
for wrong in ("value", 1.0, memoryview(b"v.a.l.u.e.")[::2], object()):
    try:
        compare(wrong, b"value", 5)
    except ctypes.ArgumentError as error:
        assert "argument 1" in str(error)
    else:
        raise AssertionError(wrong)
kept = bytearray(b"value")
try:
    compare(kept, None, "5")
except ctypes.ArgumentError:
    kept.append(1)  # released
"""
    run(built, code)
