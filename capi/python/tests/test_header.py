# SPDX-License-Identifier: Apache-2.0
"""libmooncake._native declares what include/mooncake.h declares: functions, struct layouts, constants."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path
from typing import Dict, List, Tuple

import pytest

from libmooncake import _native

HEADER = Path(__file__).resolve().parents[3] / "include" / "mooncake.h"
TEXT = re.sub(r"/\*.*?\*/", " ", HEADER.read_text(), flags=re.S)

SCALARS = {
    "int": ctypes.c_int,
    "unsigned": ctypes.c_uint,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "uint32_t": ctypes.c_uint32,
    "size_t": ctypes.c_size_t,
    "double": ctypes.c_double,
}
HANDLES = set(re.findall(r"typedef (?:struct \w+|void) \*(\w+);", TEXT))


def match(pattern: str, text: str) -> Tuple[str, ...]:
    found = re.search(pattern, text, re.S)
    assert found, (pattern, text)
    return found.groups()


def python_types(c_type: str) -> Tuple[object, ...]:
    """The ctypes types that may stand for a C type."""
    c_type = " ".join(c_type.replace("*", " * ").split())
    if c_type == "void":
        return (None,)
    if c_type in ("const char *", "char *"):
        return (ctypes.c_char_p, ctypes.c_void_p)
    if "*" in c_type or c_type in HANDLES:
        return (ctypes.c_void_p,)
    return (SCALARS[c_type],)


def functions() -> Dict[str, Tuple[str, List[str]]]:
    found = {}
    for result, name, arguments in re.findall(
        r"^([\w ]+?\s\**)\s*(mooncake_\w+)\(([^;{}]*?)\);", TEXT, flags=re.S | re.M
    ):
        types = []
        for argument in arguments.split(","):
            if argument.strip() != "void":
                types.append(match(r"^(.*?)\w+$", argument.strip())[0])
        found[name] = (result, types)
    return found


def structs() -> Dict[str, List[Tuple[str, str, int]]]:
    """By C name: field, type and number of elements, 0 for no array."""
    found = {}
    for name, body in re.findall(r"struct (mooncake_\w+) \{(.*?)\}", TEXT, flags=re.S):
        fields = []
        for line in filter(None, (part.strip() for part in body.split(";"))):
            base, first, rest = match(r"^((?:const )?\w+(?: const)?)\s+(.*?\w+(?:\[\d+\])?)((?:,.*)?)$", line)
            for declarator in [first, *filter(None, (part.strip() for part in rest.split(",")))]:
                stars, field, count = match(r"^((?:\*|const|\s)*)(\w+)(?:\[(\d+)\])?$", declarator)
                fields.append((field, base + " " + stars, int(count or 0)))
        found[name] = fields
    return found


FUNCTIONS = functions()
STRUCTS = structs()


def class_of(name: str) -> type:
    found = getattr(_native, "".join(part.title() for part in name.split("_")[1:]))
    assert isinstance(found, type)
    return found


def fields_of(cls: type) -> List[Tuple[str, object]]:
    return [(f[0], f[1]) for c in reversed(cls.__mro__) for f in c.__dict__.get("_fields_", ())]


def test_header_is_understood() -> None:
    assert set(FUNCTIONS) | {"mooncake_init_struct"} == set(re.findall(r"\b(mooncake_\w+)\(", TEXT))
    assert len(STRUCTS) == len(re.findall(r"struct mooncake_\w+ \{", TEXT)) > 10


def test_every_function_is_declared() -> None:
    assert set(_native.FUNCTIONS) == set(FUNCTIONS)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_function(name: str) -> None:
    result, arguments = FUNCTIONS[name]
    declared_result, declared_arguments = _native.FUNCTIONS[name]
    assert declared_result in python_types(result)
    assert len(declared_arguments) == len(arguments)
    for declared, c_type in zip(declared_arguments, arguments):
        assert declared in python_types(c_type), c_type
    function = getattr(_native.lib, name)
    if isinstance(function, ctypes._CFuncPtr):  # type: ignore[attr-defined]  # libmooncake-fast's are other
        assert function.restype is declared_result
        assert tuple(function.argtypes) == declared_arguments


@pytest.mark.parametrize("name", sorted(STRUCTS))
def test_struct(name: str) -> None:
    declared = fields_of(class_of(name))
    assert [field for field, _ in declared] == [field for field, _, _ in STRUCTS[name]]
    for (field, kind), (_, c_type, count) in zip(declared, STRUCTS[name]):
        if count:
            assert issubclass(kind, ctypes.Array) and kind._length_ == count
            kind = kind._type_
        assert kind in python_types(c_type), field


def test_layout_is_the_compiler_s(tmp_path: Path) -> None:
    lines = []
    for name, fields in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
        lines += [f'printf("{name}.{field} %zu\\n", offsetof(struct {name}, {field}));' for field, _, _ in fields]
    program = tmp_path / "layout.c"
    program.write_text('#include <stdio.h>\n#include "mooncake.h"\nint main(void) {\n' + "\n".join(lines) + "\n}\n")
    subprocess.run(["gcc", "-I", str(HEADER.parent), "-o", str(tmp_path / "layout"), str(program)], check=True)
    printed = subprocess.run([str(tmp_path / "layout")], check=True, capture_output=True, text=True).stdout
    expected = dict(line.split() for line in printed.splitlines())
    declared = {}
    for name, fields in STRUCTS.items():
        cls = class_of(name)
        declared[name] = str(ctypes.sizeof(cls))
        for field, _, _ in fields:
            declared[f"{name}.{field}"] = str(getattr(cls, field).offset)
    assert declared == expected


def test_constants() -> None:
    constants = dict(re.findall(r"MOONCAKE_(\w+) = (-?\d+)", TEXT))
    constants["ABI_VERSION"] = match(r"#define MOONCAKE_ABI_VERSION (\d+)", TEXT)[0]
    for name, value in constants.items():
        assert getattr(_native, name) == int(value), name
    codes = {name for name in vars(_native) if re.fullmatch(r"E[A-Z]+", name)}
    assert codes == {name for name in constants if re.fullmatch(r"E[A-Z]+", name)}
    assert match(r"#define MOONCAKE_MAX_KEY (\d+)", TEXT)[0] == str(_native.MAX_KEY)
    assert "#define MOONCAKE_MAX_BATCH (1 << 20)" in TEXT and _native.MAX_BATCH == 1 << 20
