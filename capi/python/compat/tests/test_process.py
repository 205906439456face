"""Processes: fork, import beside the C++ package, leaks, the GIL."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Dict

import mooncake
import pytest
from libmooncake import _native

PACKAGE = Path(mooncake.__file__).parent


def run(program: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    variables: Dict[str, str] = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-c", program], cwd="/", env=variables, capture_output=True, text=True, timeout=120
    )


FORK = """
import ctypes, os, sys, threading, time
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("h", "P2PHANDSHAKE", 64 << 20, 1 << 20, "tcp", "", "embedded") == 0
assert store.put("k", b"value") == 0
memory = ctypes.create_string_buffer(4096)
at = ctypes.addressof(memory)
assert store.register_buffer(at, 4096) == 0
stop = False
def busy():
    while not stop:
        store.upsert("busy", bytes(10000)), store.get("busy"), store.register_buffer(at, 4096)
        other = MooncakeDistributedStore()
        other.setup("h", "P2PHANDSHAKE", 0, 0, "tcp", "", "embedded"), other.close()
threads = [threading.Thread(target=busy) for _ in range(2)]
[thread.start() for thread in threads]
for attempt in range(10):
    time.sleep(0.01)
    pid = os.fork()
    if pid == 0:
        begin = time.monotonic()
        results = [
            store.put("a", b"v"), store.upsert("a", b"v"), store.put_parts("a", b"v"), store.put_batch(["a"], [b"v"]),
            store.remove("k"), store.remove_all(), store.remove_by_regex("k"), store.get_size("k"),
            store.put_from("a", at, 5), store.get_into("k", at, 4096), store.put_from_with_metadata("a", at, at, 1, 1),
            store.batch_put_from(["a"], [at], [1])[0], store.batch_get_into(["k"], [at], [4096])[0],
            store.batch_put_from_multi_buffers(["a"], [[at]], [[1]])[0],
            store.batch_get_into_multi_buffers(["k"], [[at]], [[4096]])[0],
            store.get_into_ranges([at], [["k"]], [[[0]]], [[[0]]], [[[1]]])[0][0][0],
            store.batch_get_session_start(["k"])[0], store.batch_put_session_start(["a"], [1])[0],
            store.batch_get_session_end(["k"]), store.batch_remove(["k"])[0],
            store.register_buffer(at, 4096), store.unregister_buffer(at), store.close(),
            MooncakeDistributedStore().setup("h", "m", 0, 0, "tcp", "", "embedded"),
        ]
        good = results == [-1010] * len(results)
        good &= store.get("k") == b"" and store.get_batch(["k"]) == [b""] and store.get_buffer("k") is None
        good &= store.batch_get_buffer(["k"]) == [None] and store.is_exist("k") == 0 and store.batch_is_exist(["k"]) == [0]
        good &= store.health_check() == 2 and store.get_replica_desc("k") == []
        good &= time.monotonic() - begin < 1
        if not good:
            print(results, file=sys.stderr)
        os._exit(0 if good else 1)
    assert os.waitpid(pid, 0)[1] == 0
stop = True
[thread.join() for thread in threads]
assert store.get("k") == b"value"
print("fine")
"""


def test_f1_a_forked_child_gets_codes_and_never_hangs() -> None:
    done = run(FORK)
    assert done.stdout == "fine\n", done.stderr


IMPORTED_IN_CHILDREN = """
import os
for _ in range(5):
    pid = os.fork()
    if pid == 0:
        from mooncake.store import MooncakeDistributedStore
        store = MooncakeDistributedStore()
        good = store.setup("h", "P2PHANDSHAKE", 0, 0, "tcp", "", "embedded") == 0 and store.put("k", b"v") == 0
        os._exit(0 if good and store.get("k") == b"v" and store.close() == 0 else 1)
    assert os.waitpid(pid, 0)[1] == 0
print("fine")
"""


def test_f2_import_in_each_child_works() -> None:
    done = run(IMPORTED_IN_CHILDREN)
    assert done.stdout == "fine\n", done.stderr


CYCLES = """
import os
from mooncake.store import MooncakeDistributedStore
def state():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return len(os.listdir("/proc/self/fd")), int(status["Threads"]), int(status["VmRSS"].split()[0])
def cycle(i):
    store = MooncakeDistributedStore()
    assert store.setup("h", "P2PHANDSHAKE", 32 << 20, 1 << 20, "tcp", "", f"embedded:{i % 3}") == 0
    assert store.put("k", bytes(1 << 20)) == 0
    assert store.get("k") == bytes(1 << 20)
    assert store.batch_put_session_start(["s"], [10]) == [0] and store.batch_get_session_start(["k"]) == [0]
    if i % 2:
        assert store.close() == 0
for i in range(20):
    cycle(i)
before = state()
for i in range(100):
    cycle(i)
after = state()
print(before, after)
assert after[0] <= before[0] + 2 and after[1] <= before[1] + 3 and after[2] <= before[2] + 32 * 1024
"""


def test_e12_100_cycles_keep_descriptors_threads_and_memory_flat() -> None:
    """Every other client is only dropped, not closed."""
    done = run(CYCLES)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a67_calls_run_without_the_gil() -> None:
    """The library is a CDLL: ctypes drops the GIL for each of its functions. libmooncake-fast always does."""
    holds_the_gil = 0x4  # FUNCFLAG_PYTHONAPI
    for name in _native.FUNCTIONS:
        assert not getattr(getattr(_native.lib, name), "_flags_", 0) & holds_the_gil, name


NEVER_CLOSED = """
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("h", "P2PHANDSHAKE", 32 << 20, 1 << 20, "tcp", "", "embedded", None, True, PATH) == 0
assert store.put("k", bytes(1 << 20)) == 0
handle = store.get_buffer("k")
"""


def test_a_process_that_never_closes_ends(tmp_path: Path) -> None:
    """SGLang never does. The next one takes the same slot."""
    for _ in range(2):
        done = run(f"PATH = {str(tmp_path)!r}\n" + NEVER_CLOSED)
        assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["slot-0"]


RANK = """
import sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("h", "P2PHANDSHAKE", 32 << 20, 1 << 20, "tcp", "", "embedded", None, True, PATH) == 0
value = RANK * (4 << 20)
for i in range(12):
    assert store.put(f"k{i}", value) == 0
print("up", flush=True)
sys.stdin.readline()
assert all(store.get(f"k{i}") == value for i in range(12))
print("fine", flush=True)
"""


def test_a45_ranks_share_an_ssd_path(tmp_path: Path) -> None:
    """Tensor-parallel ranks are all given one path: none sees or harms another's files."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", f"PATH = {str(tmp_path)!r}\nRANK = b'{i}'\n" + RANK],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(3)
    ]
    for rank in ranks:
        assert rank.stdout and rank.stdout.readline() == "up\n"
    for rank in ranks:
        assert rank.communicate("\n", timeout=60)[0] == "fine\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["slot-0", "slot-1", "slot-2"]


def copy_of_package(place: Path) -> None:
    shutil.copytree(PACKAGE, place / "mooncake", ignore=shutil.ignore_patterns("__pycache__"))


def path_of(*places: Path) -> str:
    return os.pathsep.join([*map(str, places), *filter(None, sys.path)])


@pytest.mark.parametrize("module_name", ["store.so", "engine.cpython-311-x86_64-linux-gnu.so"])
def test_import_refuses_one_directory_with_the_cpp_package(tmp_path: Path, module_name: str) -> None:
    copy_of_package(tmp_path)
    (tmp_path / "mooncake" / module_name).touch()
    for environment in ({}, {"MOONCAKE_COMPAT_FORCE": "1"}):
        done = run("import mooncake.engine", PYTHONPATH=path_of(tmp_path), **environment)
        assert done.returncode != 0 and "into one directory" in done.stderr and module_name in done.stderr


def test_import_refuses_to_shadow_the_cpp_package(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    copy_of_package(ours)
    (theirs / "mooncake").mkdir(parents=True)
    (theirs / "mooncake" / "store.cpython-311-x86_64-linux-gnu.so").touch()
    done = run("import mooncake.store", PYTHONPATH=path_of(ours, theirs))
    assert done.returncode != 0 and "would shadow the C++ Mooncake" in done.stderr
    done = run("import mooncake.store", PYTHONPATH=path_of(ours, theirs), MOONCAKE_COMPAT_FORCE="1")
    assert done.returncode == 0, done.stderr


def test_import_leaves_the_environment_to_setup() -> None:
    """MOONCAKE_EMBEDDED set after the import counts."""
    done = run(
        "from mooncake.store import MooncakeDistributedStore as Store; import os\n"
        "os.environ['MOONCAKE_EMBEDDED'] = '1'\n"
        "print(Store().setup('h', 'P2PHANDSHAKE', 0, 0, 'tcp', '', '10.0.0.1:50051'))"
    )
    assert done.stdout == "0\n", done.stderr


def test_one_version() -> None:
    source = Path(__file__).resolve().parents[1]
    version = (source.parents[1] / "VERSION").read_text().strip()
    assert mooncake.__version__ == version
    assert f'"libmooncake == {version}"' in (source / "pyproject.toml").read_text()
