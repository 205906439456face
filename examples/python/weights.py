# SPDX-License-Identifier: Apache-2.0
"""Imports a model directory into a store on disk, loads it back as a directory of links that an engine can open, and
reads a tensor of it where it lies: weights.py STORE-DIRECTORY MODEL-DIRECTORY."""

import os
import struct
import sys

import libmooncake

directory, source = sys.argv[1:]
with libmooncake.Store(dir=directory, memory_bytes=64 << 20, volatile_memory=True) as store:
    with libmooncake.Weights(store) as weights:
        result = weights.import_model("demo/tiny", "1", source)
        print(f"imported {len(result.manifest.files)} files")
        with weights.load("demo/tiny", "1") as loaded:
            print("config.json is there:", int(os.path.exists(os.path.join(loaded, "config.json"))))
        tensors = weights.tensors("demo/tiny", "1")
        for tensor in tensors.values():
            print(f"tensor {tensor.name} {tensor.dtype}, {tensor.nbytes} bytes")
        with tensors["layer.weight"].view() as view:
            values = struct.unpack("<6f", view.data)  # numpy.frombuffer(view.data, "<f4") does not copy
            print(f"sum of layer.weight: {sum(values):g}")
