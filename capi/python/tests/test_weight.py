# SPDX-License-Identifier: Apache-2.0
"""Weights: a tiny model goes in, is checked, loaded and read."""

from __future__ import annotations

import asyncio
import io
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import pytest

import libmooncake
from libmooncake import InvalidError, Store, Weights

numpy = pytest.importorskip("numpy")

TENSORS: Dict[str, Tuple[str, List[int], bytes]] = {
    "embed.weight": ("F32", [64, 32], numpy.arange(2048, dtype="<f4").tobytes()),
    "norm.weight": ("BF16", [32], b"\x80\x3f" * 32),
    "scalar": ("I64", [], struct.pack("<q", -5)),
    "mask": ("BOOL", [2, 3], b"\1\0\1\0\1\0"),
    "empty": ("F32", [0, 4], b""),
    "large": ("U8", [3 << 20], os.urandom(3 << 20)),
}


def safetensors(tensors: Dict[str, Tuple[str, List[int], bytes]]) -> bytes:
    header: Dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


@pytest.fixture
def source(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "tiny"}')
    (model / "tokenizer.json").write_text("{}")
    (model / "README.md").write_text("# tiny")
    (model / "model.safetensors").write_bytes(safetensors(TENSORS))
    return model


@pytest.fixture
def weights(disk: Store) -> Iterator[Weights]:
    with Weights(disk) as opened:
        yield opened


@pytest.fixture
def imported(weights: Weights, source: Path) -> Weights:
    weights.import_model("org/tiny", "1", source)
    return weights


def test_import(weights: Weights, source: Path) -> None:
    result = weights.import_model("org/tiny", "1", str(source), progress=False)
    assert not result.existed and result.bytes_read > 3 << 20
    assert result.skipped == ()
    manifest = weights.manifest("org/tiny", "1")
    assert manifest == result.manifest
    assert (manifest.model_id, manifest.revision) == ("org/tiny", "1")
    assert {"README.md", "config.json", "model.safetensors"} <= {file.name for file in manifest.files}
    assert manifest.nbytes == sum(file.nbytes for file in manifest.files)
    assert weights.import_model("org/tiny", "1", source.as_uri()).existed
    (source / "config.json").write_text('{"model_type": "other"}')
    with pytest.raises(libmooncake.ExistsError):
        weights.import_model("org/tiny", "1", source)
    again = weights.import_model("org/tiny", "2", source, include=["README*"], exclude=["tokenizer.json"], parallel=1)
    assert again.files_linked == 1
    assert {file.name for file in again.manifest.files} == {"README.md", "config.json", "model.safetensors"}


def test_import_chooses(weights: Weights, source: Path, tmp_path: Path) -> None:
    (source / "pytorch_model.bin").write_bytes(b"PK\3\4" + bytes(4 << 20))
    (source / "onnx").mkdir()
    (source / "onnx" / "model.onnx").write_bytes(b"x")
    (tmp_path / "extra.json").write_text("{}")
    (source / "linked.json").symlink_to(tmp_path / "extra.json")
    with pytest.raises(libmooncake.SourceError, match="follow_links.*extra.json"):
        weights.import_model("org/tiny", "1", source)
    with pytest.raises(libmooncake.InvalidError, match="onix"):
        weights.import_model("org/tiny", "1", source, include=["onix/"])
    result = weights.import_model("org/tiny", "1", source, include=["onnx/"], follow_links=True)
    assert dict(result.skipped) == {"pytorch_model.bin": "weights in another format: model.safetensors is taken"}
    assert weights.manifest("org/tiny", "1").skipped == result.skipped
    assert {"onnx/model.onnx", "linked.json"} < {file.name for file in result.manifest.files}


def test_import_operation(weights: Weights, source: Path) -> None:
    with weights.start_import("org/tiny", "1", source) as operation:
        assert operation.wait(30)
        progress = operation.progress()
        result = operation.result()
    assert progress.phase == "done" and progress.files_done == progress.files == len(result.manifest.files)
    assert progress.nbytes_done == progress.nbytes == result.manifest.nbytes

    async def again() -> libmooncake.ImportResult:
        return await weights.start_import("org/tiny", "1", source)

    assert asyncio.run(again()).existed


def test_import_with_a_bar(weights: Weights, source: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    weights.import_model("org/tiny", "1", source, progress=True)
    assert "org/tiny@1" in capfd.readouterr().err


def test_import_that_fails(weights: Weights, source: Path, tmp_path: Path) -> None:
    for wrong in (tmp_path / "none", tmp_path):
        with pytest.raises((libmooncake.SourceError, libmooncake.StorageError)):
            weights.import_model("org/tiny", "1", wrong)
    with pytest.raises(libmooncake.InvalidError):
        weights.import_model("org/tiny", "a/b", source)
    with pytest.raises(TypeError):
        weights.import_model("org/tiny", "1", source, include="*.md")
    (source / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(libmooncake.SourceError):
        weights.import_model("org/tiny", "1", source)


def test_cancelled_import(weights: Weights, source: Path) -> None:
    (source / "model.safetensors").write_bytes(safetensors({"big": ("U8", [64 << 20], bytes(64 << 20))}))
    operation = weights.start_import("org/tiny", "1", source)
    operation.cancel()
    with pytest.raises(libmooncake.CanceledError):
        operation.result(30)
    operation.close()
    for summary in weights.list():
        assert summary.state == "IMPORTING"
        weights.abort("org/tiny", "1")
    assert weights.list() == ()


def test_check(imported: Weights) -> None:
    report = imported.check("org/tiny", "1")
    assert report.ok and report.state == "READY" and not any(file.problem for file in report.files)
    assert imported.check("org/tiny", "1", deep=True).ok
    with pytest.raises(libmooncake.NotFoundError):
        imported.check("org/tiny", "2")


def test_check_of_a_damaged_one(imported: Weights, disk: Store) -> None:
    file = next(f for f in imported.manifest("org/tiny", "1").files if f.name == "config.json")
    assert file.key is not None
    disk.remove(file.key, force=True)
    report = imported.check("org/tiny", "1")
    assert not report.ok
    assert [f.name for f in report.files if f.problem] == ["config.json"]
    with pytest.raises(libmooncake.DamagedError):
        imported.load("org/tiny", "1")


def test_list_and_usage(imported: Weights) -> None:
    (summary,) = imported.list()
    assert (summary.model_id, summary.revision, summary.state, summary.running) == ("org/tiny", "1", "READY", False)
    assert imported.list("org/tiny") == (summary,) and imported.list("org/other") == ()
    usage = imported.usage()
    assert len(usage.revisions) == 1 and usage.nbytes >= usage.revisions[0].nbytes > 3 << 20


def test_load(imported: Weights, source: Path) -> None:
    with imported.load("org/tiny", "1", verify=True) as loaded:
        directory = Path(loaded)
        assert str(directory) == loaded.dir
        assert (directory / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()
        assert (directory / "config.json").read_text() == (source / "config.json").read_text()
        with pytest.raises(libmooncake.LeasedError):
            imported.delete("org/tiny", "1")
        (summary,) = imported.list()
        assert [holder.pid for holder in summary.in_use] == [os.getpid()]
        with imported.load("org/tiny", "1") as second:
            assert second.dir == loaded.dir
        assert directory.exists()
    assert loaded.closed and not directory.exists()
    loaded.close()
    assert imported.load("org/tiny", "1").dir == loaded.dir  # dropped at once
    imported.delete("org/tiny", "1")
    with pytest.raises(libmooncake.NotFoundError):
        imported.load("org/tiny", "1")


def test_loaded_keeps_its_lock_for_children(imported: Weights) -> None:
    with imported.load("org/tiny", "1") as loaded:
        child = subprocess.Popen(["sleep", "60"], pass_fds=[loaded.lock_fd])
    try:
        assert os.path.exists(loaded.dir)
        with pytest.raises(libmooncake.LeasedError):
            imported.delete("org/tiny", "1")
    finally:
        child.kill()
        child.wait()
    imported.delete("org/tiny", "1")


def test_detach(imported: Weights) -> None:
    loaded = imported.load("org/tiny", "1")
    loaded.hand_out(0)
    with pytest.raises(InvalidError, match="no such user"):
        loaded.hand_out("no such user")
    fd = loaded.detach()
    assert loaded.closed and os.path.exists(loaded.dir)
    os.close(fd)
    imported.delete("org/tiny", "1")


def test_file(imported: Weights, source: Path) -> None:
    expected = (source / "model.safetensors").read_bytes()
    with imported.open("org/tiny", "1", "model.safetensors") as file:
        assert isinstance(file, io.RawIOBase) and file.nbytes == len(expected)
        assert file.read(8) == expected[:8] and file.tell() == 8
        assert file.readall() == expected[8:]
        assert file.read() == b""
        assert file.seek(-5, os.SEEK_END) == len(expected) - 5 and file.read() == expected[-5:]
        assert file.seek(10) == 10 and file.seek(2, os.SEEK_CUR) == 12
        into = bytearray(100)
        assert file.read_at(20, into) == 100 and into == expected[20:120]
        assert file.read_at(len(expected), into) == 0
        with pytest.raises(ValueError):
            file.seek(-1)
        assert file.readable() and file.seekable() and not file.writable()
        assert io.BufferedReader(imported.open("org/tiny", "1", "config.json")).read() == b'{"model_type": "tiny"}'
    with pytest.raises(ValueError):
        file.read(1)
    with pytest.raises(libmooncake.NotFoundError):
        imported.open("org/tiny", "1", "none")


def test_tensors(imported: Weights) -> None:
    tensors = imported.tensors("org/tiny", "1")
    assert repr(tensors) == f"<libmooncake.Tensors of org/tiny@1, {len(tensors)}>"
    assert len(tensors) == len(TENSORS) and set(tensors) == set(TENSORS)
    for name, (dtype, shape, data) in TENSORS.items():
        tensor = tensors[name]
        assert (tensor.name, tensor.dtype, tensor.shape, tensor.nbytes) == (name, dtype, tuple(shape), len(data))
        assert tensor.file == "model.safetensors"
        into = bytearray(len(data) + 1)
        assert tensor.read_into(into) == len(data) and into[:-1] == data
        with tensor.view() as view:
            assert view.tobytes() == data
    with imported.open("org/tiny", "1", "model.safetensors") as file:
        file.seek(tensors["large"].offset)
        assert file.read(100) == TENSORS["large"][2][:100]
    with pytest.raises(KeyError) as caught:
        tensors["none"]
    assert caught.value.code == -2104  # type: ignore[attr-defined]


def test_tensors_as_numpy(imported: Weights, disk: Store) -> None:
    tensors = imported.tensors("org/tiny", "1")
    embed = tensors["embed.weight"].numpy()
    assert embed.shape == (64, 32) and embed.dtype == "f4" and (embed.ravel() == numpy.arange(2048)).all()
    assert tensors["scalar"].numpy() == -5 and tensors["scalar"].numpy().shape == ()
    assert tensors["mask"].numpy().tolist() == [[True, False, True], [False, True, False]]
    assert tensors["empty"].numpy().shape == (0, 4)
    try:
        import ml_dtypes
    except ImportError:
        with pytest.raises(TypeError, match="ml_dtypes"):
            tensors["norm.weight"].numpy()
    else:
        norm = tensors["norm.weight"].numpy()
        assert norm.dtype == ml_dtypes.bfloat16 and (norm.astype("f4") == 1).all()
    large = tensors["large"].numpy()
    del tensors
    imported.close()
    disk.close()
    assert large.tobytes() == TENSORS["large"][2]


def test_memory_only_store(store: Store, source: Path) -> None:
    with Weights(store) as weights:
        weights.import_model("org/tiny", "1", source, unpinned=True, memory_only=True, code=True)
        with weights.load("org/tiny", "1") as loaded:
            assert (Path(loaded.dir) / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()
            with pytest.raises(libmooncake.InvalidError):
                loaded.detach()
            assert not loaded.closed


def test_options(disk: Store, tmp_path: Path, source: Path) -> None:
    with Weights(disk, load_dir=tmp_path / "elsewhere", unfinished_ttl_ms=1000) as weights:
        weights.import_model("org/tiny", "1", source)
        with weights.load("org/tiny", "1") as loaded:
            assert loaded.dir.startswith(str(tmp_path / "elsewhere"))
        with pytest.raises(libmooncake.InvalidError):
            Weights(disk, load_dir=tmp_path / "third")


def test_keeps_the_pool_open(disk: Store, source: Path) -> None:
    weights = Weights(disk)
    weights.import_model("org/tiny", "1", source)
    disk.close()
    assert weights.check("org/tiny", "1").ok
    weights.close()
    weights.close()
    assert weights.closed
    with pytest.raises(libmooncake.MooncakeError):
        weights.list()


def test_dropped_in_any_order(pool: str, tmp_path: Path, source: Path) -> None:
    program = f"""
import libmooncake
store = libmooncake.Store(pool="p", dir={str(tmp_path / "d")!r}, memory_bytes=64 << 20, volatile_memory=True)
weights = libmooncake.Weights(store)
weights.import_model("m", "1", {str(source)!r})
loaded = weights.load("m", "1")
file = weights.open("m", "1", "config.json")
view = weights.tensors("m", "1")["large"].view().data
operation = weights.start_import("m", "2", {str(source)!r})
print("end")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    if "ModeError" in done.stderr:
        pytest.skip("the library was built without RocksDB")
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
