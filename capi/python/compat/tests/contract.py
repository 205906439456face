"""Calls whose results engines build on, and what a mooncake.store answers to each: sessions, ranges, batches, registration.

    python3 contract.py ADDRESS [METADATA-SERVER] >contract.json

asks the mooncake.store that Python finds. contract.json is what the C++ package says, mooncake-transfer-engine-non-cuda
0.3.13.post1, with its master on the same machine:

    mooncake_master --enable_http_metadata_server=true &
    python3 contract.py 127.0.0.1:50051 http://127.0.0.1:8080/metadata >contract.json

test_contract.py compares ours with it.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import random
import sys
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

SIZE = 1 << 20


class At(NamedTuple):
    """An address in memory that is registered."""

    offset: int = 0

    def __repr__(self) -> str:
        return f"at+{self.offset}"


class Free(NamedTuple):
    """An address in memory that only the scenario register registers."""

    offset: int = 0

    def __repr__(self) -> str:
        return f"free+{self.offset}"


Call = Tuple[Any, ...]
"""A method's name and its arguments. Keys are str: each scenario has its own."""

A = At()


def put_session() -> Iterator[Call]:
    start, write, end = "batch_put_session_start", "batch_put_from_multi_buffer_ranges", "batch_put_session_end"
    revoke = "batch_put_session_revoke"
    yield start, ["a", "b"], [200, 50]
    yield write, ["a", "b"], [[At(100)], [A]], [[100], [50]], [[100], [0]]
    yield write, ["a"], [[A, At(50)]], [[50, 50]], [[0, 50]]
    yield write, ["a"], [[A]], [[101]], [[100]]  # past the end
    yield write, ["a", "b"], [[A, A], [A]], [[1, 101], [1]], [[0, 100], [0]]
    yield write, ["a"], [[A]], [[1]], [[(1 << 64) - 1]]
    yield write, ["a"], [[A]], [[0]], [[0]]
    yield write, ["a"], [[A, A]], [[0, 5]], [[0, 0]]
    yield write, ["a"], [[A]], [[0]], [[200]]
    yield write, ["a"], [[A]], [[0]], [[201]]
    yield write, ["a", "b"], [[], [A]], [[], [5]], [[], [0]]
    yield write, ["a"], [[Free()]], [[5]], [[0]]
    yield write, ["a", "b"], [[0], [A]], [[5], [6]], [[0], [0]]
    yield write, ["none", "a"], [[A], [A]], [[5], [5]], [[0], [0]]
    yield write, ["", "a"], [[A], [A]], [[5], [5]], [[0], [0]]
    yield write, ["none", "none"], [[], [A]], [[], [0]], [[], [0]]
    yield write, ["a", "a"], [[A], [A]], [[5], [6]], [[0], [0]]
    yield write, ["a", "b"], [[A], [A, A]], [[5], [6]], [[0], [0]]  # items of other shapes
    yield write, ["a", "b"], [[A], [A]], [[5], [6, 7]], [[0], [0]]
    yield write, ["a", "b"], [[A], [A]], [[5], [6]], [[0], []]
    yield write, ["a", "b"], [[A]], [[5]], [[0]]  # lists of other shapes
    yield write, ["a", "b"], [[A], [A]], [[5]], [[0], [0]]
    yield write, ["a"], [[A], [A]], [[5], [5]], [[0], [0]]
    yield write, [], [], [], []
    for bad in (None, -5, "x", 1.5, 1 << 64):
        yield write, ["a", "b"], [[A], [bad]], [[5], [5]], [[0], [0]]
        yield write, ["a", "b"], [[A], [A]], [[bad], [5]], [[0], [0]]
        yield write, ["a", "b"], [[A], [A]], [[5], [5]], [[bad], [0]]
    yield write, ["a", "b"], [[A], None], [[5], [5]], [[0], [0]]
    yield write, ["a", None], [[A], [A]], [[5], [5]], [[0], [0]]
    yield "batch_is_exist", ["a", "b"]
    yield end, ["a", "b", "none", "a", ""]
    yield end, ["a", "b"]
    yield write, ["a"], [[A]], [[5]], [[0]]
    yield "get_size", "a"
    yield start, ["a", "c", "c"], [200, 50, 50]
    yield start, ["c", "d"], [50, 0]
    yield start, ["e", "f"], [50]
    yield start, ["e"], [50, 50]
    yield start, ["", "g"], [5, 5]
    yield start, [], []
    for bad in (None, -1, "x"):
        yield start, [f"i{bad}", f"j{bad}"], [50, bad]
        yield end, [f"i{bad}", f"j{bad}"]
    yield start, ["k", None], [50, 50]
    yield revoke, ["g", "none", "c", "g", ""]
    yield revoke, ["c"]
    yield end, ["c", "k"]
    yield revoke, []
    yield end, []
    yield start, ["m"], [100]
    yield write, ["m"], [[A]], [[5]], [[0]]
    yield end, ["m"]
    yield "batch_is_exist", ["a", "b", "c", "d", "g", "m"]


def get_session() -> Iterator[Call]:
    start, read, end = "batch_get_session_start", "batch_get_into_multi_buffer_ranges", "batch_get_session_end"
    yield "put", "a", bytes(range(200))
    yield "put", "b", bytes(range(50))
    yield start, ["a", "none", "b", "a", ""]
    yield read, ["a", "none", "b", "a"], [[A], [A], [A], [A]], [[5], [5], [6], [7]], [[0], [0], [0], [0]]
    yield read, ["a", ""], [[A], [A]], [[5], [5]], [[0], [0]]
    yield read, ["a"], [[A, At(500)]], [[5, 7]], [[100, 0]]
    yield read, ["a", "b"], [[A], [A]], [[201], [5]], [[0], [46]]
    yield read, ["a", "b"], [[A], [A]], [[200], [5]], [[0], [45]]
    yield read, ["a", "b"], [[A, A], [A]], [[1, 201], [5]], [[0, 0], [0]]
    yield read, ["a"], [[A]], [[1]], [[(1 << 64) - 1]]
    yield read, ["a", "b"], [[A], [A]], [[0], [5]], [[0], [0]]
    yield read, ["a", "a"], [[A], [A]], [[0], [0]], [[200], [201]]
    yield read, ["a", "b"], [[], [A]], [[], [5]], [[], [0]]
    yield read, ["none", "b"], [[], [A]], [[], [5]], [[], [0]]
    yield read, ["a", "b"], [[Free()], [A]], [[5], [5]], [[0], [0]]
    yield read, ["a", "b"], [[0], [A]], [[5], [5]], [[0], [0]]
    yield read, ["a", "b"], [[A, A], [A]], [[5], [5]], [[0], [0]]
    yield read, ["a", "b"], [[A], [A]], [[5, 5], [5]], [[0], [0]]
    yield read, ["a", "b"], [[A], [A]], [[5], [5]], [[0, 1], [0]]
    yield read, ["a", "b"], [[A]], [[5]], [[0]]
    yield read, ["a", "b"], [[A], [A]], [[5], [5]], [[0]]
    yield read, ["a"], [[A], [A]], [[5], [5]], [[0], [0]]
    yield read, [], [], [], []
    for bad in (None, -5, "x", 1.5, 1 << 64):
        yield read, ["a", "b"], [[A], [bad]], [[5], [5]], [[0], [0]]
        yield read, ["a", "b"], [[A], [A]], [[bad], [5]], [[0], [0]]
        yield read, ["a", "b"], [[A], [A]], [[5], [5]], [[bad], [0]]
    yield read, ["a", "b"], [[A], [A]], [5, [5]], [[0], [0]]
    yield start, ["b", None]
    yield end, ["a", "none"]
    yield read, ["a", "b"], [[A], [A]], [[5], [5]], [[0], [0]]
    yield end, []
    yield end, ["b", None]
    yield end, ["b"]
    yield start, []


def ranges() -> Iterator[Call]:
    read = "get_into_ranges"
    yield "put", "a", b"abcdefghij"
    yield "put", "b", b"0123456789"
    yield read, [A], [["a", "b"]], [[[0], [10]]], [[[0], [0]]], [[[3], [4]]]
    yield read, [A, At(50)], [["a"], ["b", "a"]], [[[0, 5]], [[0], [9]]], [[[1, 2]], [[3], [4]]], [[[3, 4]], [[5], [6]]]
    yield read, [At(100)], [["a"]], [[[5]]], [[[0]]], [[[3]]]
    yield read, [A], [["a", "a"]], [[[0], [20]]], [[[0], [0]]], [[[4], [4]]]
    yield read, [A], [["a", "b"]], [[[0], [2]]], [[[0], [0]]], [[[4], [4]]]  # overlap
    yield read, [A], [["a"]], [[[0, 1]]], [[[0, 3]]], [[[0, 2]]]
    yield read, [A], [["a"]], [[[0, 1]]], [[[10, 11]]], [[[0, 0]]]
    yield read, [A], [["a"]], [[[0, 20, 30]]], [[[8, 10, 0]]], [[[3, 1, 10]]]
    yield read, [A], [["a"]], [[[0, 20]]], [[[(1 << 64) - 1, 0]]], [[[3, 1]]]
    yield read, [A], [["a"]], [[[(1 << 64) - 1, 0]]], [[[0, 0]]], [[[3, 1]]]
    yield read, [A], [["a"]], [[[SIZE - 2, 0]]], [[[0, 0]]], [[[3, 1]]]
    yield read, [A], [["a"]], [[[0, 0]]], [[[0, 0]]], [[[(1 << 64) - 1, 1]]]
    yield read, [A], [["none", "a"]], [[[0, 1], [9]]], [[[0, 3], [0]]], [[[1, 2], [1]]]
    yield read, [A], [["none", "a"]], [[[0], [2]]], [[[0], [0]]], [[[0], [1]]]
    yield read, [A], [["", "a"]], [[[0], [2]]], [[[0], [0]]], [[[1], [1]]]
    yield read, [Free(), A], [["a"], ["a"]], [[[0]], [[0]]], [[[0]], [[0]]], [[[3]], [[1]]]
    yield read, [Free()], [["none"]], [[[0]]], [[[0]]], [[[3]]]
    yield read, [0, A], [["a"], ["a"]], [[[0]], [[0]]], [[[0]], [[0]]], [[[3]], [[1]]]
    yield read, [], [], [], [], []
    yield read, [A], [[]], [[]], [[]], [[]]
    yield read, [A], [["a"]], [[[]]], [[[]]], [[[]]]
    yield read, [A], [["none"]], [[[]]], [[[]]], [[[]]]
    # Lists of other shapes: a fragment, a key, a buffer.
    one, two = [[[1], [1]]], [[[1, 2], [1]]]
    yield read, [A], [["a", "b"]], two, one, one
    yield read, [A], [["a", "b"]], one, two, one
    yield read, [A], [["a", "b"]], one, one, two
    yield read, [A], [["a", "b"]], one, one, [[[1], []]]
    yield read, [A], [["a", "b"]], [[[], [1]]], one, one
    yield read, [A], [["none", "b"]], two, one, one
    for short in ([[[1]]], [[]], [[[1, 2]]], [[[]]], [[[1], [1], [1]]], [[[1], [], [2, 3]]]):
        yield read, [A], [["a", "b"]], short, one, one
        yield read, [A], [["a", "b"]], one, short, one
        yield read, [A], [["a", "b"]], [[[1, 2], []]], one, short
    yield read, [A], [["a", "b"]], [[[0], []]], [[[0], []]], [[[1]]]
    yield read, [A], [["a"]], one, one, one
    yield read, [A], [[]], one, one, one
    yield read, [A], [["a", "b", "a"]], one, one, one
    keys, both = [["a", "b"], ["a"]], [[[0, 1], []], [[1, 2, 4]]]
    yield read, [A, At(100)], keys, both, both, both
    for columns in ([both[:1], both, both], [both, both[:1], both], [both, both, both[:1]], [[], [], []]):
        yield (read, [A, At(100)], keys, *columns)
    yield read, [A], keys, both, both, both
    yield read, [], keys, both, both, both
    yield read, [A, At(100), A], keys, both, both, both
    yield read, [A, At(100)], keys[:1], both, both, both
    yield read, [A, At(100)], [], both, both, both
    yield read, [A, At(100), A], [[], ["a"]], [], [], []
    yield read, [A, At(100)], keys, [[[0, 1]], [[0]]], [[[0, 1], [1]], [[0]]], [[[1, 1], [1]], [[1]]]
    yield read, [0], [["a", "b"]], [[[0, 1], []]], [[[0], [0]]], [[[1]]]
    for bad in (None, -5, "x", 1.5, 1 << 64):
        yield read, [A], [["a", "b"]], [[[0, bad], [3]]], [[[0, 0], [0]]], [[[1, 1], [1]]]
        yield read, [A], [["a", "b"]], [[[0, 1], [3]]], [[[0, bad], [0]]], [[[1, 1], [1]]]
        yield read, [A], [["a", "b"]], [[[0, 1], [3]]], [[[0, 0], [0]]], [[[1, bad], [1]]]
        yield read, [bad, A], [["a"], ["b"]], [[[0]], [[3]]], [[[0]], [[0]]], [[[1]], [[1]]]
    yield read, [A], [["a", None]], [[[0], [3]]], [[[0], [0]]], [[[1], [1]]]
    yield read, [A], [["a", "b"]], [[[0], None]], [[[0], [0]]], [[[1], [1]]]
    yield read, [A], [["a", "b"]], [[[0], [1]]], [[[0], [0]]], [[[1], 1]]


def multi_buffers() -> Iterator[Call]:
    put, get = "batch_put_from_multi_buffers", "batch_get_into_multi_buffers"
    yield put, ["1", "2"], [[A, At(10)], [A]], [[5, 5], [3]]
    yield put, ["3", "4"], [[A, At(10)], [A]], [[5], [3]]
    yield put, ["5", "6"], [[A, At(10)]], [[5, 5]]
    yield put, ["7", "8"], [[A], [A]], [[0], [5]]
    yield put, ["9", "10"], [[A, A], [A]], [[0, 5], [5]]
    yield put, ["11", "12"], [[], [A]], [[], [5]]
    yield put, ["13", "14"], [[Free()], [A]], [[5], [5]]
    yield put, ["", "15"], [[A], [A]], [[5], [5]]
    yield put, ["16", "16"], [[A], [A]], [[5], [6]]
    yield put, ["17", "18"], [[A], [A]], [[5], [6]]
    yield put, ["1", "19"], [[A], [A]], [[5], [6]]
    yield put, [], [], []
    for bad in (None, -5, "x", 1 << 64):
        yield put, [f"20{bad}", f"21{bad}"], [[A], [bad]], [[5], [5]]
        yield put, [f"22{bad}", f"23{bad}"], [[A], [A]], [[bad], [5]]
    yield put, ["24", None], [[A], [A]], [[5], [5]]
    yield put, ["25", "26"], [[A], None], [[5], [5]]
    yield "batch_is_exist", [str(i) for i in range(1, 27)]
    yield get, ["1", "2"], [[A, At(10)], [At(20)]], [[5, 5], [3]]
    yield get, ["1", "2"], [[A, At(10)], [At(20)]], [[5], [3]]
    yield get, ["1", "2"], [[A], [At(20)]], [[5, 6], [3]]
    yield get, ["1", "2"], [[A, At(10)]], [[5, 5]]
    yield get, ["1", "2"], [[A], [At(20)]], [[9], [3]]
    yield get, ["1", "2"], [[], [At(20)]], [[], [3]]
    yield get, ["1", "2"], [[A], [At(20)]], [[0], [3]]
    yield get, ["1", "2"], [[Free()], [A]], [[10], [3]]
    yield get, ["none", "2", "none"], [[A], [A], []], [[10], [3], []]
    yield get, ["none", "2"], [[A], [A, A]], [[10], [3]]
    yield get, ["", "2"], [[A], [A]], [[10], [3]]
    yield get, ["1", "1"], [[A], [At(20)]], [[10], [10]]
    yield get, ["1", "none", "2"], [[A], [A], [A]], [[9], [10], [3]], True
    yield get, [], [], []
    for bad in (None, -5, "x", 1 << 64):
        yield get, ["1", "2"], [[A], [bad]], [[10], [3]]
        yield get, ["1", "2"], [[A], [At(20)]], [[bad], [3]]
    yield get, ["1", None], [[A], [At(20)]], [[10], [3]]
    yield get, ["1", "2"], [[A], 7], [[10], [3]]


def batches() -> Iterator[Call]:
    put, get, upsert = "batch_put_from", "batch_get_into", "batch_upsert_from"
    yield put, ["1", "2", "", "1"], [A, A, A, A], [5, 0, 5, 6]
    yield put, ["3", "4"], [A], [5, 5]
    yield put, ["5"], [Free()], [5]
    yield upsert, ["1", "6", "", "7"], [A, A, A, A], [7, 0, 5, 6]
    yield get, ["1", "none", "1", "1", "1", ""], [A, At(20), At(40), At(60), At(80), At(90)], [7, 5, 4, 0, 7, 5]
    yield get, ["1", "5"], [A, At(20)], [7]
    for bad in (None, -5, "x", 1 << 64):
        yield put, [f"8{bad}", f"9{bad}"], [A, bad], [5, 5]
        yield put, [f"10{bad}", f"11{bad}"], [A, A], [bad, 5]
        yield upsert, [f"12{bad}", f"13{bad}"], [A, A], [bad, 5]
        yield get, ["1", "1"], [A, bad], [7, 7]
        yield get, ["1", "1"], [A, At(20)], [bad, 7]
    yield put, ["14", None], [A, A], [5, 5]
    yield get, ["1", None], [A, At(20)], [7, 7]
    yield "batch_is_exist", [str(i) for i in range(1, 15)]
    yield "batch_is_exist", ["1", "none", ""]
    yield "batch_is_exist", ["1", None]
    yield "batch_is_exist", []
    yield "put_batch", ["20", "21"], [b"", b"x"]
    yield "put_batch", ["22", "23"], [b"x", b""]
    yield "upsert_batch", ["24", "25"], [b"", b"x"]
    yield "put_batch", ["26", "27"], [b"x"]
    yield "put_batch", [], []
    yield "put_batch", ["", "28"], [b"x", b"y"]
    yield "put_batch", ["29", "29"], [b"1", b"22"]
    yield "put_batch", ["30", "31"], [None, b"y"]
    yield "put_batch", [None, "32"], [b"x", b"y"]
    yield "batch_is_exist", [str(i) for i in range(20, 33)]
    yield "get_batch", ["28", "none", ""]
    yield "get_batch", ["28", None]
    yield "batch_remove", ["28", "none", "", "29", "29"], True
    yield "batch_remove", ["1", None], True
    yield "batch_remove", []


def register() -> Iterator[Call]:
    """Memory that overlaps: Free is registered here, and not at the end."""
    base, add, remove, read = Free(), "register_buffer", "unregister_buffer", "get_into_ranges"

    def readable(*places: int) -> Iterator[Call]:
        for place in places:
            yield read, [base], [["a"]], [[[place]]], [[[0]]], [[[3]]]

    yield "put", "a", b"abcdefghij"
    yield add, base, 8192
    for again in ((base, 8192), (base, 4096), (base, 16384), (Free(100), 50), (Free(8000), 4096), (Free(8191), 1)):
        yield (add, *again)
        yield from readable(0, 5000, 8189, 8190, 9000)
    yield remove, Free(100)
    yield remove, Free(8000)
    yield remove, base
    yield from readable(0, 5000)
    yield remove, base
    yield add, base, 0
    yield add, 0, 10
    yield add, base, 4096
    yield add, Free(4096), 4096
    yield from readable(4095, 4096)
    yield add, base, 8192
    yield remove, base
    yield from readable(0, 4096)
    yield add, base, 4097
    yield add, base, 4096
    yield remove, base
    yield remove, Free(4096)
    yield remove, base


def random_sessions() -> Iterator[Call]:
    """Objects of random sizes written and read in random pieces, some of which lie outside."""
    rnd = random.Random(1)
    keys = [f"k{i}" for i in range(8)]
    sizes = [rnd.randrange(1, 300) for _ in keys]
    yield "batch_put_session_start", keys, sizes

    def pieces() -> Tuple[Any, ...]:
        some = [rnd.randrange(len(keys)) for _ in range(rnd.randrange(1, 5))]
        counts = [rnd.randrange(1, 4) for _ in some]
        places = [[At(rnd.randrange(SIZE - 512)) for _ in range(n)] for n in counts]
        lengths = [[rnd.randrange(sizes[i] // 2 + 2) for _ in range(n)] for i, n in zip(some, counts)]
        offsets = [[rnd.randrange(sizes[i] // 2 + 3) for _ in range(n)] for i, n in zip(some, counts)]
        return [keys[i] for i in some], places, lengths, offsets

    for _ in range(60):
        yield ("batch_put_from_multi_buffer_ranges", *pieces())
    for key, size in zip(keys, sizes):
        yield "batch_put_from_multi_buffer_ranges", [key], [[A]], [[size]], [[0]]
    yield "batch_put_session_end", keys
    yield "batch_get_session_start", keys[:6]
    for _ in range(60):
        yield ("batch_get_into_multi_buffer_ranges", *pieces())
    for i, key in enumerate(keys):
        steps = [rnd.randrange(sizes[i] + 10) for _ in range(4)]
        places = [1000 * (i + 1) for i in range(4)]
        yield "get_into_ranges", [A], [[key]], [[places]], [[steps]], [[[rnd.randrange(20) for _ in range(4)]]]
    yield "batch_get_session_end", keys


def no_room() -> Iterator[Call]:
    """The last one: it makes the store evict."""
    yield "batch_put_session_start", ["a", "b"], [1 << 40, 50]
    yield "batch_put_session_end", ["a"]
    yield "batch_put_session_revoke", ["b"]
    yield "batch_put_from_multi_buffers", ["c", "d"], [[A], [A]], [[1 << 40], [6]]
    yield "batch_put_from", ["e", "f"], [A, A], [1 << 40, 6]


SCENARIOS = (put_session, get_session, ranges, multi_buffers, batches, register, random_sessions, no_room)


class Memory:
    def __init__(self) -> None:
        self.map = mmap.mmap(-1, SIZE)
        self.at = ctypes.addressof(ctypes.c_char.from_buffer(self.map))


def text_of(call: Call) -> str:
    name, *arguments = call
    return f"{name}({', '.join(map(repr, arguments))})"


def answers(store: Any) -> Dict[str, List[Tuple[str, Any]]]:
    """Each scenario's calls, and what store answers to them."""
    registered, free = Memory(), Memory()
    assert store.register_buffer(registered.at, SIZE) == 0

    def real(argument: Any, scenario: str) -> Any:
        if isinstance(argument, At):
            return registered.at + argument.offset
        if isinstance(argument, Free):
            return free.at + argument.offset
        if isinstance(argument, list):
            return [real(item, scenario) for item in argument]
        return f"{scenario}/{argument}" if isinstance(argument, str) and argument else argument

    found: Dict[str, List[Tuple[str, Any]]] = {}
    for scenario in SCENARIOS:
        name = scenario.__name__
        found[name] = []
        for call in scenario():
            try:
                answer = getattr(store, call[0])(*(real(argument, name) for argument in call[1:]))
            except TypeError:
                answer = "TypeError"
            if isinstance(answer, list):  # as JSON has it
                answer = [item.decode() if isinstance(item, bytes) else item for item in answer]
            found[name].append((text_of(call), answer))
    return found


def main(address: str, metadata: str = "P2PHANDSHAKE") -> None:
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", metadata, 256 << 20, 64 << 20, "tcp", "", address) == 0
    lines = (
        json.dumps(name) + ": [\n" + ",\n".join(map(json.dumps, calls)) + "\n]" for name, calls in answers(store).items()
    )
    print("{\n" + ",\n".join(lines) + "\n}")
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
