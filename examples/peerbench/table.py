# SPDX-License-Identifier: Apache-2.0
"""Prints the medians of two sets of load.py's output side by side: table.py THEIRS OURS."""

from __future__ import annotations

import json
import statistics
import sys
from typing import Dict, List


def medians(path: str) -> Dict[str, Dict[str, float]]:
    cases: Dict[str, Dict[str, List[float]]] = {}
    with open(path) as lines:
        for line in lines:
            figures = json.loads(line)
            case = cases.setdefault(figures.pop("case"), {})
            for name, value in figures.items():
                case.setdefault(name, []).append(value)
    return {case: {name: statistics.median(values) for name, values in figures.items()} for case, figures in cases.items()}


def main() -> None:
    theirs, ours = medians(sys.argv[1]), medians(sys.argv[2])
    memcpy = ours["memcpy 4 MiB"]["GB_per_s"]
    print(f"{'case':<18}{'C++ p50':>10}{'ours':>10}  {'C++ keys/s':>12}{'ours':>12}  {'C++ GB/s':>9}{'ours':>7}  ratio  of memcpy")
    for case, own in ours.items():
        other = theirs[case]
        print(
            f"{case:<18}{other['p50_us']:>7.1f} us{own['p50_us']:>7.1f} us  {other['keys_per_s']:>12,.0f}"
            f"{own['keys_per_s']:>12,.0f}  {other['GB_per_s']:>9.2f}{own['GB_per_s']:>7.2f}"
            f"  {own['keys_per_s'] / other['keys_per_s']:>5.1f}  {own['GB_per_s'] / memcpy:>9.2f}"
        )


if __name__ == "__main__":
    main()
