# SPDX-License-Identifier: Apache-2.0
"""The PEP 517 backend: builds libmooncake.so from the Go module around this directory and puts it into the wheel, with
the shared libraries that it needs (RocksDB and what that uses), so that the wheel runs on any Linux with a glibc as new
as this machine's. One wheel serves all versions of Python, since ctypes loads the library.

MOONCAKE_WITHOUT_ROCKSDB=1 builds the memory-only library, which needs nothing but Go and a C compiler.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Iterator, Optional

from setuptools import build_meta

HERE = Path(__file__).resolve().parent
CAPI = HERE.parent
ROOT = CAPI.parent
LIBRARIES = ("libmooncake.so", "libmooncake_store.so")
WITHOUT_ROCKSDB = "MOONCAKE_WITHOUT_ROCKSDB"
SYSTEM = re.compile(r"(libc|libm|libpthread|libgcc_s|libstdc\+\+|libz|ld-linux[-\w]*)\.so")  # in every manylinux system

# setuptools would call a wheel without extension modules "any".
SETUP = """
from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.dist import Distribution

class PlatformWheel(bdist_wheel):
    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])

class BinaryDistribution(Distribution):
    def has_ext_modules(self):
        return True

setup(cmdclass={"bdist_wheel": PlatformWheel}, distclass=BinaryDistribution)
"""

get_requires_for_build_wheel = build_meta.get_requires_for_build_wheel


def prepare_metadata_for_build_wheel(directory: str, settings: Any = None) -> str:
    with _staged():
        return build_meta.prepare_metadata_for_build_wheel(directory, settings)


def build_wheel(directory: str, settings: Any = None, metadata: Optional[str] = None) -> str:
    with _staged() as stage, tempfile.TemporaryDirectory() as wheels:
        _make(stage / "libmooncake")
        wheel = build_meta.build_wheel(wheels, settings, metadata)
        return _repair(Path(wheels) / wheel, Path(directory))


def build_sdist(directory: str, settings: Any = None) -> str:
    raise SystemExit(
        "libmooncake has no source distribution of its own: its source is the Go module around it. "
        "Build a wheel from a checkout: pip wheel --no-deps ./capi/python"
    )


@contextlib.contextmanager
def _staged() -> Iterator[Path]:
    """A copy of the project to build in, as the working directory: setuptools leaves files behind."""
    back = os.getcwd()
    with tempfile.TemporaryDirectory() as temporary:
        stage = Path(temporary)
        shutil.copytree(
            HERE / "libmooncake", stage / "libmooncake", ignore=shutil.ignore_patterns("__pycache__", "*.so")
        )
        for name in ("pyproject.toml", "README.md"):
            shutil.copy(HERE / name, stage)
        if not (ROOT / "LICENSE").exists() or not (CAPI / "Makefile").exists():
            raise SystemExit(f"{ROOT} is not a checkout of Mooncake Go, whose capi/python this must be")
        shutil.copy(ROOT / "LICENSE", stage)
        shutil.copytree(ROOT / "include", stage / "libmooncake" / "include")
        (stage / "setup.py").write_text(SETUP)
        os.chdir(stage)
        try:
            yield stage
        finally:
            os.chdir(back)


def _make(target: Path) -> None:
    """Build the libraries into target."""
    for tool in ("make", "cc"):
        if shutil.which(tool) is None:
            raise SystemExit(f"libmooncake needs {tool} to be built (Debian: apt-get install build-essential)")
    if shutil.which("go") is None and not os.path.exists("/usr/local/go/bin/go"):
        raise SystemExit(
            "libmooncake needs Go 1.26 to be built: https://go.dev/dl. It has to be in PATH or /usr/local/go"
        )
    memory_only = os.environ.get(WITHOUT_ROCKSDB, "") not in ("", "0")
    with tempfile.TemporaryDirectory() as build:
        command = ["make", "-C", str(CAPI), f"BUILD={build}", *(["ROCKSDB=no"] if memory_only else [])]
        if subprocess.run(command, stdout=sys.stderr).returncode:
            hint = (
                ""
                if memory_only
                else (
                    f". If it misses RocksDB (Debian: apt-get install librocksdb-dev), {WITHOUT_ROCKSDB}=1 builds "
                    "the library without it: the store is memory only then"
                )
            )
            raise SystemExit("libmooncake.so could not be built" + hint)
        for name in LIBRARIES:
            shutil.copy(os.path.join(build, name), target)
    _copy_licences(target / LIBRARIES[0], target / "licenses")


def _copy_licences(library: Path, target: Path) -> None:
    """Put what Debian says about the licences of the libraries that the wheel will carry beside them. Without Debian's
    tools, none: whoever passes such a wheel on has to see to it."""
    needed = subprocess.run(["ldd", str(library)], capture_output=True, text=True, check=True).stdout
    carried = {os.path.realpath(path) for path in re.findall(r"=> (/\S+)", needed)}
    for path in sorted(path for path in carried if not SYSTEM.match(os.path.basename(path))):
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            owner = subprocess.run(["dpkg-query", "--search", "*/" + os.path.basename(path)],
                                   capture_output=True, text=True, check=True).stdout.split(":")[0]  # fmt: skip
            target.mkdir(exist_ok=True)
            shutil.copy(f"/usr/share/doc/{owner}/copyright", target / f"{owner}.txt")


def _repair(wheel: Path, directory: Path) -> str:
    """Put the libraries of the system that the wheel needs into it and give it the manylinux tag that fits."""
    with tempfile.TemporaryDirectory() as repaired:
        command = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", repaired, str(wheel)]
        if subprocess.run(command, stdout=sys.stderr).returncode:
            raise SystemExit("auditwheel could not make the wheel independent of this machine")
        found = next(Path(repaired).glob("*.whl"))
        shutil.copy(found, directory)
        return found.name
