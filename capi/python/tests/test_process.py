# SPDX-License-Identifier: Apache-2.0
"""The library in its process: GIL, threads, signals, fork, subprocesses, what is left behind."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, List

import pytest

import libmooncake
from libmooncake import Store, _native

SIGNALS = ("INT", "TERM", "CHLD", "USR1", "USR2", "ABRT", "HUP", "QUIT", "ALRM", "PROF")


def run(program: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    command = [
        sys.executable,
        "-W",
        "ignore::DeprecationWarning",
        "-c",
        program,
    ]  # Python 3.12 warns of fork with threads
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


def test_calls_run_without_the_gil(store: Store) -> None:
    count = 0
    stop = threading.Event()

    def advance() -> None:
        nonlocal count
        while not stop.is_set():
            count += 1

    thread = threading.Thread(target=advance)
    with store.events() as events:
        thread.start()
        before = count
        # Blocks inside the library for half a second.
        assert _native.lib.mooncake_events_next(events._handle, 500, ctypes.byref(_native.Event())) == 0
        after = count
    stop.set()
    thread.join()
    assert after - before > 1000


def test_fork(store: Store) -> None:
    store.put("key", b"value")
    kept: List[Any] = [
        store.view("key"), store.create("other", 10), store.events(), store.list(), store.get_session(["key"]),
        store.put_batch_async(["a"], [b"x"]), store.put_session(["s"], [3]),
    ]  # fmt: skip
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        started = time.monotonic()
        told = []
        for call in (
            lambda: store.get("key"), lambda: store.exists("key"), lambda: store.put("new", b"x"),
            lambda: store.exists_batch(["key"]), lambda: store.usage(), lambda: Store(pool="child"),
            lambda: kept[5].result(), lambda: kept[1].write(b"x"), lambda: kept[2].next(), lambda: next(kept[3]),
            lambda: libmooncake.Weights(store), lambda: store.view("key"), lambda: store.wait_ready(),
        ):  # fmt: skip
            try:
                call()
                told.append("none")
            except libmooncake.UnavailableError as error:
                told.append("" if "fork" in error.text else error.text)
            except BaseException as error:
                told.append(repr(error))
        kept.clear()  # finalizers
        store.close()
        if time.monotonic() - started > 1:
            told.append("slow")
        os.write(writer, "\n".join(filter(None, told)).encode() or b"ok")
        os._exit(0)
    os.close(writer)
    assert os.read(reader, 65536) == b"ok"
    os.close(reader)
    assert os.waitpid(pid, 0)[1] == 0
    assert kept[0].tobytes() == b"value" and store.get("key") == b"value"
    kept[1].write(b"0123456789")
    kept[1].commit()
    assert store.get("other") == b"0123456789"


def test_child_of_fork_ends_in_peace() -> None:
    """Its finalizers and atexit run in it."""
    done = run(
        """
import os, sys, libmooncake
store = libmooncake.Store(pool="p", memory_bytes=32 << 20)
store.put("key", b"value")
view = store.view("key"); writer = store.create("w", 10); events = store.events()
operation = store.put_batch_async(["a"], [b"x"])
pid = os.fork()
if pid == 0:
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), store.get("key"), view.tobytes())
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "7 b'value' b'value'\n", "")


def in_child(queue: Any) -> None:
    try:
        with libmooncake.Store(pool="child", memory_bytes=32 << 20) as store:
            store.put("key", b"value")
            queue.put(store.get("key"))
    except libmooncake.MooncakeError as error:
        queue.put(error)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(store: Store, method: str) -> None:
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=in_child, args=(queue,))
    process.start()
    result = queue.get(timeout=60)
    process.join(60)
    assert process.exitcode == 0
    if method == "fork":
        assert isinstance(result, libmooncake.UnavailableError)
    else:
        assert result == b"value"


def test_load_after_fork() -> None:
    done = run(
        """
import os
pids = []
for i in range(5):
    pid = os.fork()
    if pid == 0:
        import libmooncake
        with libmooncake.Store(memory_bytes=32 << 20) as store:
            store.put("key", b"value")
            os._exit(0 if store.get("key") == b"value" else 1)
    pids.append(pid)
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids])
"""
    )
    assert (done.stdout, done.stderr) == ("[0, 0, 0, 0, 0]\n", "")


def test_subprocesses(store: Store) -> None:
    for _ in range(100):
        assert subprocess.run(["/bin/true"]).returncode == 0
    assert store.healthy()


def test_signal_handlers_stay() -> None:
    done = run(
        f"""
import ctypes, signal
libc = ctypes.CDLL(None)
def actions():
    found = {{}}
    for name in {SIGNALS!r}:
        number = getattr(signal, "SIG" + name)
        action = ctypes.create_string_buffer(152)  # struct sigaction: handler, mask (8 bytes are set), flags
        assert libc.sigaction(number, None, action) == 0
        flags = int.from_bytes(action.raw[136:140], "little") & ~0x08000000  # the runtime adds SA_ONSTACK, as it must
        found[name] = action.raw[:16], flags, signal.getsignal(number)
    return found
def blocked():
    return [line for line in open("/proc/self/status") if line.startswith("SigBlk")]
def changed(before):
    now = actions()
    return [name for name in now if now[name] != before[0][name]], blocked() == before[1]
signal.signal(signal.SIGUSR1, lambda *_: None)
before = actions(), blocked()
import libmooncake
with libmooncake.Store(memory_bytes=32 << 20) as store:
    store.put("key", b"value")
    print(changed(before))
print(changed(before))
"""
    )
    assert (done.stdout, done.stderr) == ("([], True)\n" * 2, "")


def test_broken_pipes_are_errors_as_before() -> None:
    """The library handles SIGPIPE and passes on to what the program had: Python ignores it."""
    done = run("""
import os
import libmooncake
with libmooncake.Store(memory_bytes=32 << 20) as store:
    store.put("key", b"value")
    here, there = os.pipe()
    os.close(here)
    try:
        os.write(there, b"x")
    except BrokenPipeError:
        print("fine")
""")
    assert (done.stdout, done.stderr) == ("fine\n", "")


@pytest.mark.parametrize("waits", [
    "store.events().next()", "store.events().next(60)", "[None for _ in store.events()]", "time.sleep(60)",
    "busy(store)",
])  # fmt: skip
def test_keyboard_interrupt(waits: str) -> None:
    program = f"""
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs this in the background may have it ignored
import libmooncake
def busy(store):
    while True:
        store.exists("key")
store = libmooncake.Store(memory_bytes=32 << 20)
print("ready", flush=True)
try:
    {waits}
except KeyboardInterrupt:
    store.put("key", b"value")
    print("interrupted", store.get("key"))
"""
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout and child.stdout.readline() == "ready\n"
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=10)[0] == "interrupted b'value'\n"
    assert child.returncode == 0


def test_termination() -> None:
    program = """
import signal, sys, time
signal.signal(int(sys.argv[1]), signal.SIG_DFL)  # nohup has SIGHUP ignored
import libmooncake
s = libmooncake.Store(memory_bytes=32 << 20)
print("x", flush=True)
time.sleep(60)
"""
    for number in (signal.SIGTERM, signal.SIGABRT, signal.SIGHUP):
        child = subprocess.Popen([sys.executable, "-c", program, str(int(number))], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert child.stdout
        child.stdout.readline()
        child.send_signal(number)
        assert child.wait(10) == -number
        child.stdout.close()


@pytest.mark.parametrize(
    "after",
    [
        "import libmooncake; s = libmooncake.Store(memory_bytes=32 << 20); faulthandler.enable()",
        "faulthandler.enable(); import libmooncake; s = libmooncake.Store(memory_bytes=32 << 20)",
    ],
)
def test_faulthandler_prints(after: str) -> None:
    done = run(f"import faulthandler, ctypes; {after}; ctypes.string_at(0)")
    assert done.returncode == -signal.SIGSEGV
    assert "Segmentation fault" in done.stderr and 'File "<string>"' in done.stderr


def test_memory_faults_that_the_program_handles() -> None:
    done = run(
        """
import faulthandler, os, signal, libmooncake
store = libmooncake.Store(memory_bytes=32 << 20)
faulthandler.dump_traceback_later(0.2)
import time; time.sleep(0.5)
store.put("key", b"value")
print(store.get("key"))
"""
    )
    assert done.stdout == "b'value'\n" and "Timeout" in done.stderr


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def rss() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def test_nothing_is_left_behind(pool: str) -> None:
    def cycle() -> None:
        with Store(pool=pool, memory_bytes=16 << 20) as store:
            store.put("key", bytes(1 << 20))
            store.view("key").close()
            list(store.list())
            store.events().close()
            store.put_batch_async(["a"], [b"x"]).result()
            with pytest.raises(libmooncake.NotFoundError):
                store.get("none")

    for _ in range(10):
        cycle()
    fds, tasks, memory = len(os.listdir("/proc/self/fd")), threads(), rss()
    for _ in range(100):
        cycle()
    assert len(os.listdir("/proc/self/fd")) <= fds
    assert threads() <= tasks + 4
    assert rss() < memory + (32 << 20)


def test_short_threads(store: Store) -> None:
    store.put("key", b"value")

    def work() -> None:
        for _ in range(20):
            thread = threading.Thread(target=store.exists, args=("key",))
            thread.start()
            thread.join()

    work()
    tasks = threads()
    for _ in range(50):
        work()
    assert threads() <= tasks + 4


def test_second_copies_are_refused(tmp_path: Path) -> None:
    """A second Go runtime in the process would be a second store."""
    path = libmooncake.library_path()
    shutil.copy(path, tmp_path / "other.so")
    done = run(
        f"import ctypes; ctypes.CDLL({path!r}); import libmooncake",
        env={**os.environ, "MOONCAKE_LIBRARY": str(tmp_path / "other.so")},
    )
    assert "another libmooncake.so loaded" in done.stderr
    env = {name: value for name, value in os.environ.items() if name != "MOONCAKE_LIBRARY"}
    done = run(
        f"import ctypes; ctypes.CDLL({path!r}); import libmooncake; "
        "print(len({line.split()[-1] for line in open('/proc/self/maps') if 'libmooncake.so' in line}))",
        env=env,
    )
    assert (done.stdout, done.stderr) == ("1\n", "")
    libraries = Path(path).parent.parent / "libmooncake.libs"  # of a wheel: the copy is too far from them
    done = run(
        "import libmooncake; print(libmooncake.library_path())",
        env={**os.environ, "MOONCAKE_LIBRARY": str(tmp_path / "other.so"), "LD_LIBRARY_PATH": str(libraries)},
    )
    assert (done.stdout, done.stderr) == (str(tmp_path / "other.so") + "\n", "")
    done = run("import libmooncake", env={**os.environ, "MOONCAKE_LIBRARY": "/none/libmooncake.so"})
    assert "ImportError: MOONCAKE_LIBRARY is /none/libmooncake.so" in done.stderr
