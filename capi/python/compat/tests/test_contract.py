"""The results of sessions, ranges, batches and registration are those of the C++ package: contract.py has the calls,
contract.json its answers. What differs on purpose is listed here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Tuple

import contract
import pytest
from mooncake.store import MooncakeDistributedStore

Store = MooncakeDistributedStore
GOLDEN: Dict[str, List[List[Any]]] = json.loads(Path(__file__).with_name("contract.json").read_text())

# An empty key is INVALID_KEY.
EMPTY_KEYS = {
    "batch_put_session_start(['', 'g'], [5, 5])": [-400, 0],
    "batch_get_session_start(['a', 'none', 'b', 'a', ''])": [0, -704, 0, 0, -400],
    "get_into_ranges([at+0], [['', 'a']], [[[0], [2]]], [[[0], [0]]], [[[1], [1]]])": [[[-400], [1]]],
    "batch_put_from_multi_buffers(['', '15'], [[at+0], [at+0]], [[5], [5]])": [-400, 0],
    "batch_get_into_multi_buffers(['', '2'], [[at+0], [at+0]], [[10], [3]])": [-400, 3],
    "batch_get_into(['1', 'none', '1', '1', '1', ''], [at+0, at+20, at+40, at+60, at+80, at+90], [7, 5, 4, 0, 7, 5])": [
        7, -704, -600, -600, 7, -400,
    ],
    "batch_is_exist(['1', 'none', ''])": [1, 0, -400],
    "put_batch(['', '28'], [b'x', b'y'])": -400,
    "batch_remove(['28', 'none', '', '29', '29'], True)": [0, -704, -400, 0, -704],
}  # fmt: skip
# Size 0 is 0 and stores nothing, as in put_from.
NO_BYTES = {
    "batch_put_from_multi_buffers(['7', '8'], [[at+0], [at+0]], [[0], [5]])": [0, 0],
    "batch_put_from_multi_buffers(['11', '12'], [[], [at+0]], [[], [5]])": [0, 0],
    "batch_put_from(['1', '2', '', '1'], [at+0, at+0, at+0, at+0], [5, 0, 5, 6])": [0, 0, -400, 0],
    "batch_upsert_from(['1', '6', '', '7'], [at+0, at+0, at+0, at+0], [7, 0, 5, 6])": [0, 0, -400, 0],
}
# An object is stored when all its bytes were written.
INCOMPLETE = {
    "batch_put_session_end(['iNone', 'jNone'])": [-2003, -600],
    "batch_put_session_end(['i-1', 'j-1'])": [-2003, -600],
    "batch_put_session_end(['ix', 'jx'])": [-2003, -600],
    "batch_put_session_end(['c', 'k'])": [-600, -2003],
    "batch_put_session_end(['m'])": [-2003],
    "batch_is_exist(['a', 'b', 'c', 'd', 'g', 'm'])": [1, 1, 0, 0, 0, 0],
}
# Buffers and sizes of one item that are not equally many are -600. The C++ store reads as far as one of the lists goes.
UNEVEN = {
    "batch_get_into_multi_buffers(['1', '2'], [[at+0], [at+20]], [[5, 6], [3]])": [-600, 3],
    "batch_get_into_multi_buffers(['none', '2'], [[at+0], [at+0, at+0]], [[10], [3]])": [-704, -600],
}
# Destinations that overlap; one in another registered buffer than the base.
RANGES = {
    "get_into_ranges([at+0], [['a', 'b']], [[[0], [2]]], [[[0], [0]]], [[[4], [4]]])": [[[-600], [-600]]],
    "get_into_ranges([free+0], [['a']], [[[4096]]], [[[0]]], [[[3]]])": [[[3]]],
}
# What is there after a malformed item has failed alone. The C++ package raises and does nothing.
AFTER_MALFORMED = {
    "batch_is_exist(%s)" % [str(i) for i in range(1, 27)]: [
        1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 0,
    ],
    "batch_is_exist(%s)" % [str(i) for i in range(1, 15)]: [1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 1],
    "batch_is_exist(%s)" % [str(i) for i in range(20, 33)]: [0] * 8 + [1, 1, 0, 1, 1],
}  # fmt: skip
# Calls with a malformed item that have no result for each item.
ONE_RESULT = {
    "put_batch(['30', '31'], [None, b'y'])": -600,
    "put_batch([None, '32'], [b'x', b'y'])": -600,
    "get_batch(['28', None])": ["y", ""],
    "batch_get_session_end(['b', None])": 0,
}
DIFFERENCES = {
    **EMPTY_KEYS, **NO_BYTES, **INCOMPLETE, **UNEVEN, **RANGES, **AFTER_MALFORMED, **ONE_RESULT,
}  # fmt: skip


@pytest.fixture(scope="module")
def ours() -> Dict[str, List[Tuple[str, Any]]]:
    store = Store()
    assert store.setup("host", "P2PHANDSHAKE", 256 << 20, 16 << 20, "tcp", "", "embedded:contract") == 0
    try:
        return contract.answers(store)
    finally:
        store.close()


def flat(answer: Any) -> List[Any]:
    return [code for item in answer for code in flat(item)] if isinstance(answer, list) else [answer]


@pytest.mark.parametrize("scenario", GOLDEN)
def test_1_3_results_are_those_of_the_cpp_package(ours: Dict[str, List[Tuple[str, Any]]], scenario: str) -> None:
    golden, wrong, malformed = GOLDEN[scenario], [], []
    assert [call for call, _ in golden] == [call for call, _ in ours[scenario]], "make contract.json again"
    for (call, theirs), (_, our) in zip(golden, ours[scenario]):
        want = DIFFERENCES.get(call, theirs)
        if want == "TypeError":
            malformed.append((call, our))
        elif our != want:
            wrong.append((call, our, "want", want))
    assert not wrong
    for call, our in malformed:
        codes = flat(our)
        failed = [code for code in codes if code in (-600, -400)]
        assert len(failed) == 1 and all(code >= 0 for code in codes if code not in failed), (call, our)


def test_every_difference_is_one() -> None:
    """A line that the C++ package agrees with, or that no scenario has, says nothing."""
    theirs = {call: answer for calls in GOLDEN.values() for call, answer in calls}
    assert [call for call, our in DIFFERENCES.items() if call not in theirs] == []
    same = [call for calls in GOLDEN.values() for call, answer in calls if call in DIFFERENCES and DIFFERENCES[call] == answer]
    assert same == []
