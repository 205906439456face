# SPDX-License-Identifier: Apache-2.0
"""Objects with a handle of the library can't be pickled or copied: see libmooncake.handle."""

from __future__ import annotations

import copy
import copyreg
import ctypes
import enum
import importlib
import pickle
import pkgutil
from pathlib import Path
from typing import Any, Callable, Iterator, List

import pytest

import libmooncake
from libmooncake.handle import Handle

Store = libmooncake.Store

COPIES: List[Callable[[Any], Any]] = [copy.copy, copy.deepcopy]
COPIES += [lambda x, protocol=protocol: pickle.dumps(x, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]

# Classes of plain values. PutOptions has values of its own that it points to, and never changes.
PLAIN = set("""
    PutOptions Event ObjectInfo Usage Counters Room Decision ModelFile Manifest FileReport Report ImportResult
    Holder Summary RevisionUsage WeightUsage Progress
""".split())


def classes() -> Iterator[type]:
    """All classes of the package, but exceptions, enumerations and structs."""
    for module in pkgutil.iter_modules(libmooncake.__path__):
        if not any((Path(directory) / f"{module.name}.py").exists() for directory in libmooncake.__path__):
            continue  # the library lies there too, in an installed package
        for value in vars(importlib.import_module(f"libmooncake.{module.name}")).values():
            if isinstance(value, type) and value.__module__ == f"libmooncake.{module.name}":
                struct = issubclass(value, (ctypes.Structure, ctypes.Array)) and not issubclass(value, Handle)
                if not struct and not issubclass(value, (Exception, enum.Enum)):
                    yield value


def refuses(thing: object) -> None:
    for make in COPIES:
        with pytest.raises(TypeError, match="belongs to its process"):
            make(thing)


def test_every_class_is_plain_or_a_handle() -> None:
    """A new class is one of the two: the base Handle, or the list above if it is nothing but values."""
    assert {cls.__name__ for cls in classes() if not issubclass(cls, Handle)} == PLAIN


@pytest.mark.parametrize("cls", [cls for cls in classes() if cls is not Handle and issubclass(cls, Handle)])
def test_a_handle_has_no_other_way_to_be_copied(cls: Any) -> None:
    assert cls.__reduce_ex__ is Handle.__reduce_ex__ and cls.__reduce__ is Handle.__reduce__
    assert not hasattr(cls, "__copy__") and not hasattr(cls, "__deepcopy__") and cls not in copyreg.dispatch_table


def test_open_ones_refuse_and_stay_open(store: Store, tmp_path: Path) -> None:
    store.put("key", b"value")
    with store.create("other", 3) as writer, store.view("key") as view, store.get_session(["key"]) as session:
        for thing in (store, writer, view, session, store.list(), store.events()):
            refuses(thing)
        writer.write(b"abc")
        assert view.tobytes() == b"value"
    assert store.get("other") == b"abc"


def test_weights_and_their_files_refuse(disk: Store, tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.mkdir()
    (source / "config.json").write_text('{"model_type": "none"}')
    header = b'{"t": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}'
    (source / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"1")
    with libmooncake.Weights(disk) as weights:
        weights.import_model("m", "1", source, progress=False)
        file = weights.open("m", "1", "config.json")
        loaded = weights.load("m", "1")
        tensors = weights.tensors("m", "1")
        for thing in (weights, file, loaded, tensors, tensors["t"]):
            refuses(thing)
        assert file.read() == (source / "config.json").read_bytes()
        file.close()
        loaded.close()
