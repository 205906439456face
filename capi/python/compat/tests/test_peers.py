"""A second process of one engine that opens a store of its own says so: with tensor parallelism above 1 vLLM's lookup would
never hit, silently."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Dict

import pytest

WORKER = """
def work(pool, ready, go):
    from mooncake.store import MooncakeDistributedStore  # not in the parent: a fork of a process that has it is refused
    store = MooncakeDistributedStore()
    assert store.setup("h", "P2PHANDSHAKE", 0, 0, "tcp", "", pool) == 0
    ready.put(1), go.get()
    store.close()
"""
PARENT = """
import multiprocessing, os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
from worker import work
if __name__ == "__main__":
    spawn, one_by_one, pools = multiprocessing.get_context(sys.argv[1]), sys.argv[2] == "1", sys.argv[3:]
    ready, go = spawn.Queue(), spawn.Queue()
    if pools[0] == "self":
        from mooncake.store import MooncakeDistributedStore
        store = MooncakeDistributedStore()
        assert store.setup("h", "P2PHANDSHAKE", 0, 0, "tcp", "", pools.pop()) == 0
        pools.pop(0)
    workers = [spawn.Process(target=work, args=(pool, ready, go)) for pool in pools]
    for worker in workers:
        worker.start(), ready.get(timeout=60)
        if one_by_one:
            go.put(1), worker.join()
    if not one_by_one:
        [go.put(1) for _ in workers]
    [worker.join() for worker in workers]
    assert [worker.exitcode for worker in workers] == [0] * len(workers)
"""


def engine(directory: Path, runtime: str, *arguments: str, **environment: str) -> str:
    """What an engine with workers writes to stderr."""
    (directory / "worker.py").write_text(WORKER)
    (directory / "parent.py").write_text(PARENT)
    variables: Dict[str, str] = {**os.environ, "XDG_RUNTIME_DIR": runtime, **environment}
    command = [sys.executable, str(directory / "parent.py"), *arguments]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stderr


SAID = "never hits"


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_the_second_worker_with_a_store_of_its_own_says_so(tmp_path: Path, method: str) -> None:
    said = engine(tmp_path, str(tmp_path), method, "0", "embedded", "embedded")
    assert said.count(SAID) == 1 and "'embedded'" in said
    assert list(tmp_path.glob("mooncake-compat-*/*")) == []


def test_each_worker_but_the_first_says_so(tmp_path: Path) -> None:
    assert engine(tmp_path, str(tmp_path), "spawn", "0", *["embedded"] * 3).count(SAID) == 2


def test_a_worker_of_an_engine_that_has_the_store_says_so(tmp_path: Path) -> None:
    assert engine(tmp_path, str(tmp_path), "spawn", "0", "self", "embedded", "embedded").count(SAID) == 1


@pytest.mark.parametrize(
    "arguments",
    [("0", "embedded:a", "embedded:b"), ("0", "embedded"), ("1", "embedded", "embedded")],
    ids=["names", "one", "in turns"],
)
def test_who_shares_no_name_or_no_time_is_silent(tmp_path: Path, arguments: "tuple[str, ...]") -> None:
    assert engine(tmp_path, str(tmp_path), "spawn", *arguments) == ""


STRANGER = """
import sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("h", "P2PHANDSHAKE", 0, 0, "tcp", "", "embedded") == 0
print("open", flush=True)
sys.stdin.read()
sys.stdin.close()
"""


@pytest.mark.parametrize(
    "rank", [{}, {"RANK": "0", "WORLD_SIZE": "1"}, {"RANK": "0", "WORLD_SIZE": "2"}], ids=["none", "alone", "two"]
)
def test_programs_that_one_script_starts_are_strangers_but_for_ranks(tmp_path: Path, rank: Dict[str, str]) -> None:
    variables = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), **rank}
    pipe = subprocess.PIPE
    programs = []
    for _ in range(2):
        program = subprocess.Popen(
            [sys.executable, "-c", STRANGER], env=variables, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )
        programs.append(program)
        assert program.stdout is not None and program.stdout.readline() == "open\n"
    said = [program.communicate(timeout=60)[1].count(SAID) for program in programs]
    assert said == [0, int(rank.get("WORLD_SIZE") == "2")]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / f"mooncake-compat-{os.getuid()}"
    left.mkdir(mode=0o700)
    namespace = os.stat("/proc/self/ns/pid").st_ino
    (left / f"{namespace}-{os.getpid()}-1-0-00").touch()  # another process had this number
    (left / "another file").touch()
    assert engine(tmp_path, str(tmp_path), "spawn", "0", "embedded") == ""
    assert [file.name for file in left.iterdir()] == ["another file"]


def test_a_directory_that_can_not_be_used_changes_nothing(tmp_path: Path) -> None:
    assert engine(tmp_path, "/proc/none", "spawn", "0", "embedded", "embedded") == ""
    (tmp_path / f"mooncake-compat-{os.getuid()}").symlink_to("/tmp")
    assert engine(tmp_path, str(tmp_path), "spawn", "0", "embedded", "embedded") == ""


def test_a_program_with_logging_is_told_in_its_log_and_on_stderr(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import logging; logging.basicConfig(format='LOG %(message)s')")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    said = engine(tmp_path, str(tmp_path), "spawn", "0", "embedded", "embedded", PYTHONPATH=path)
    assert said.count(SAID) == 2 and said.count("LOG process") == 1 and said.count("mooncake.store: process") == 1
