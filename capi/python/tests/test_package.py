# SPDX-License-Identifier: Apache-2.0
"""The package itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import libmooncake

ROOT = Path(__file__).resolve().parents[1]


def test_version() -> None:
    assert libmooncake.__version__ == (ROOT.parent / "VERSION").read_text().strip()
    assert libmooncake.abi_version() >= 1
    assert Path(libmooncake.library_path()).name.endswith(".so")


def test_all() -> None:
    for name in libmooncake.__all__:
        assert hasattr(libmooncake, name)
    defined = {
        name for name, value in vars(libmooncake).items() if re.match(r"[A-Z]", name) and not name.startswith("_")
    }
    assert defined <= set(libmooncake.__all__)


def test_every_error_is_exported() -> None:
    from libmooncake import _native, errors

    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.MooncakeError):
            assert getattr(libmooncake, name) is value
    for name, code in vars(_native).items():
        if re.fullmatch(r"E[A-Z]+", name) and name != "ELEASEEXPIRED":
            assert type(errors.make(code)) is not errors.MooncakeError, name


def test_only_the_standard_library_is_imported() -> None:
    program = "import sys; had = set(sys.modules); import libmooncake; print(*set(sys.modules) - had)"
    env = {**os.environ, "MOONCAKE_PYTHON_FAST": "0"}
    printed = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    ).stdout
    assert {name.split(".")[0] for name in printed.split()} - {"libmooncake"} <= set(
        getattr(sys, "stdlib_module_names", printed.split())
    )


def test_readme() -> None:
    """Its first program runs as it stands, the other one is Python."""
    pytest.importorskip("numpy")
    objects, weights = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    subprocess.run([sys.executable, "-c", objects], check=True, timeout=60)
    compile(weights, "README.md", "exec")
