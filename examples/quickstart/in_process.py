#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Import a model into a store, delete its original files, and start mlx-lm from the store, all in this process.

    in_process.py STORE-DIRECTORY MODEL-DIRECTORY

The engine's answer is all that goes to the standard output. MODEL-DIRECTORY is gone afterwards.
"""

from __future__ import annotations

import argparse
import shutil
import sys

import libmooncake
import mlx.core
from generate import QUESTION, answer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", help="directory of the store; made if it is missing")
    parser.add_argument("model", help="model folder with config, tokenizer and safetensors; deleted")
    parser.add_argument("--memory-bytes", type=int, default=1 << 30, help="budget for memory. Default: 1 GiB")
    args = parser.parse_args()

    with libmooncake.Store(dir=args.store, memory_bytes=args.memory_bytes, volatile_memory=True) as store:
        with libmooncake.Weights(store) as weights:
            weights.import_model("smollm2", "1", args.model)
            shutil.rmtree(args.model)
            assert weights.check("smollm2", "1", deep=True).ok
            with weights.load("smollm2", "1") as loaded:
                compare_with_engine(weights, loaded.dir)
                print(answer(loaded.dir, QUESTION, 64))
    return 0


def compare_with_engine(weights: libmooncake.Weights, directory: str) -> None:
    """See that a tensor where it lies in the store is what the engine reads from the loaded files."""
    tensors = weights.tensors("smollm2", "1")
    name, tensor = next(iter(tensors.items()))
    theirs = mlx.core.load(f"{directory}/{tensor.file}")[name]
    ours = tensor.view()
    assert bytes(memoryview(theirs.view(mlx.core.uint8)).cast("B")) == bytes(ours.data), name


if __name__ == "__main__":
    sys.exit(main())
