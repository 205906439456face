"""mooncake.store and mooncake.engine for programs written for the C++ Mooncake Store, over the store that libmooncake runs
in the process itself. See README.md for what is here, what differs and what refuses."""

from __future__ import annotations

import glob
import os
import sys
from typing import List

__version__ = "0.1.0"

FORCE = "MOONCAKE_COMPAT_FORCE"
"""The environment variable that takes this package although the C++ one is installed elsewhere on sys.path."""


def _cpp_modules(package: str) -> List[str]:
    """The extension modules of the C++ Mooncake in a package directory."""
    place = glob.escape(package)
    return sorted(glob.glob(os.path.join(place, "store*.so")) + glob.glob(os.path.join(place, "engine*.so")))


def _refuse_to_shadow() -> None:
    """Two packages called mooncake are one too many: whichever Python finds first would be taken without a word. In one
    directory it even would be half of each, since Python prefers an extension module to a .py file of its name."""
    here = os.path.dirname(os.path.realpath(__file__))
    mixed = _cpp_modules(here)
    if mixed:
        raise ImportError(
            f"libmooncake-compat and the C++ Mooncake are installed into one directory, {here}, which has {mixed[0]}: "
            "uninstall both, then install the one you want"
        )
    if os.environ.get(FORCE, "") not in ("", "0"):
        return
    for place in sys.path:
        package = os.path.join(os.path.realpath(place or "."), "mooncake")
        found = _cpp_modules(package) if package != here else []
        if found:
            raise ImportError(
                f"libmooncake-compat would shadow the C++ Mooncake, which is installed too ({found[0]}): uninstall one of "
                f"them, or set {FORCE}=1 to use libmooncake-compat all the same"
            )


_refuse_to_shadow()
