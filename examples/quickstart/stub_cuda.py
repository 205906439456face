#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write stand-ins for the CUDA libraries that PyPI's torch is linked with, so that it loads on a machine without them.

torch's own libraries name libcudart, libcublas and others as needed, and the dynamic loader refuses them all when one
is missing, although nothing of CUDA is called on a CPU. Each stand-in defines the symbols that torch's libraries look
for there, with their versions. A function of it returns 100, which CUDA calls "no device", or a text where the name
says that it returns one: torch then finds no GPU and works on the CPU.

Needs binutils and gcc. Libraries that are there already stay as they are.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

TORCH_LIBRARY = re.compile(r"lib(torch|c10|shm|caffe2).*\.so$")
SYSTEM_LIBRARY = re.compile(r"(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|libgomp|ld-linux.*)\.so")
NO_DEVICE = 100  # cudaErrorNoDevice
TEXT_FUNCTION = re.compile(r"ErrorString|GetErrorName|Get(Error|Last)?(String|Name)$")

# Which library an unversioned symbol belongs to, by how it starts. The longest start that fits decides.
OWNERS = {
    "__cuda": "libcudart",
    "cuFile": "libcufile",
    "cublas": "libcublas",
    "cuda": "libcudart",
    "cudnn": "libcudnn",
    "cufft": "libcufft",
    "cupti": "libcupti",
    "curand": "libcurand",
    "cusolver": "libcusolver",
    "cusparse": "libcusparse",
    "cusparseLt": "libcusparseLt",
    "nccl": "libnccl",
    "nvrtc": "libnvrtc",
    "nvshmem": "libnvshmem_host",
    "pnccl": "libnccl",
}


@dataclass
class Imports:
    """What a set of libraries needs from others."""

    sonames: set[str] = field(default_factory=set)
    versioned: set[tuple[str, str, str]] = field(default_factory=set)  # soname, version, symbol
    plain: set[str] = field(default_factory=set)
    defined: set[str] = field(default_factory=set)


@dataclass
class Stub:
    """The symbols of one stand-in."""

    versions: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    plain: set[str] = field(default_factory=set)

    def source(self) -> str:
        symbols = self.plain.union(*self.versions.values())
        return "".join(f"{definition(s)}\n" for s in sorted(symbols)) or "typedef int empty;\n"

    def version_script(self) -> str:
        lines = (
            f"{version} {{ global: {' '.join(f'{s};' for s in sorted(symbols))} }};\n"
            for version, symbols in sorted(self.versions.items())
        )
        return "".join(lines)


def definition(symbol: str) -> str:
    if TEXT_FUNCTION.search(symbol):
        return f'const char *{symbol}(void) {{ return "no CUDA here"; }}'
    return f"long {symbol}(void) {{ return {NO_DEVICE}; }}"


def output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def read_imports(libraries: Iterable[Path]) -> Imports:
    result = Imports()
    for library in libraries:
        headers = output("objdump", "-p", library)
        result.sonames.update(re.findall(r"^\s+NEEDED\s+(\S+)", headers, re.MULTILINE))
        read_symbols(result, output("nm", "-D", library), version_owners(headers))
    return result


def version_owners(headers: str) -> dict[str, str]:
    """Which library each symbol version comes from: the "Version References" of objdump -p."""
    owners: dict[str, str] = {}
    soname = None
    for line in headers.splitlines():
        if match := re.match(r"\s+required from (\S+):", line):
            soname = match[1]
        elif soname and (match := re.match(r"\s+0x\w+ 0x\w+ \d+ (\S+)", line)):
            owners[match[1]] = soname
    return owners


def read_symbols(result: Imports, names: str, owners: dict[str, str]) -> None:
    for line in names.splitlines():
        kind, name = line.split()[-2:]
        symbol, _, version = name.partition("@")
        version = version.lstrip("@")
        if kind != "U":
            result.defined.add(symbol)
        elif not version:
            result.plain.add(symbol)
        elif version in owners:
            result.versioned.add((owners[version], version, symbol))


def plan(imports: Imports, shipped: set[str]) -> dict[str, Stub]:
    """The stand-ins to make, by soname."""
    missing = {n for n in imports.sonames if n not in shipped and not SYSTEM_LIBRARY.match(n)}
    stubs = {soname: Stub() for soname in missing}
    for soname, version, symbol in imports.versioned:
        if soname in stubs:
            stubs[soname].versions[version].add(symbol)
    for symbol in imports.plain - imports.defined:
        if library := owner(symbol, missing):
            stubs[library].plain.add(symbol)
    return stubs


def owner(symbol: str, sonames: set[str]) -> str | None:
    starts = sorted((s for s in OWNERS if symbol.startswith(s)), key=len, reverse=True)
    for start in starts:
        for soname in sonames:
            if soname.startswith(f"{OWNERS[start]}.so"):
                return soname
    return None


def compile_stub(stub: Stub, target: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory, "stub.c")
        source.write_text(stub.source())
        command = ["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{target.name}"]
        if script := stub.version_script():
            Path(directory, "stub.map").write_text(script)
            command.append(f"-Wl,--version-script={directory}/stub.map")
        subprocess.run([*command, "-o", str(target), str(source)], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Write stand-ins for the CUDA libraries that torch names as needed.")
    parser.add_argument("directory", type=Path, help="torch/lib in site-packages")
    directory: Path = parser.parse_args().directory

    libraries = sorted(p for p in directory.iterdir() if TORCH_LIBRARY.fullmatch(p.name))
    if not libraries:
        print(f"stub_cuda: no library of torch in {directory}", file=sys.stderr)
        return 1
    stubs = plan(read_imports(libraries), {p.name for p in directory.iterdir()})
    for soname, stub in stubs.items():
        compile_stub(stub, directory / soname)
    print(f"{len(stubs)} stand-ins in {directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
