"""Checks files with the reference implementation of safetensors, for TestCompareWithPython.

    compare.py read DIR          one JSON line per DIR/*.st: {"file", "error"} or {"file", "metadata", "tensors"}
    compare.py write DIR N SEED  N random files, with DIR/<n>.json saying what is in each

A tensor is [dtype, shape, data as hex]. Needs safetensors and numpy.
"""

import ctypes
import glob
import json
import os
import random
import sys

import numpy
import safetensors
import safetensors.numpy

DTYPES = {  # name in the header -> name that the package takes, bits
    "BOOL": ("bool", 8), "U8": ("uint8", 8), "I8": ("int8", 8), "F8_E5M2": ("float8_e5m2", 8),
    "F8_E4M3": ("float8_e4m3fn", 8), "F8_E8M0": ("float8_e8m0fnu", 8), "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8), "I16": ("int16", 16), "U16": ("uint16", 16), "F16": ("float16", 16),
    "BF16": ("bfloat16", 16), "I32": ("int32", 32), "U32": ("uint32", 32), "F32": ("float32", 32),
    "C64": ("complex64", 64), "F64": ("float64", 64), "I64": ("int64", 64), "U64": ("uint64", 64),
}
PARTS = ["a", "layer.", "0", "é", "模型", '"', "\\", "/", "\n", "\x01", "\x7f", " ", "{", "😀", ".weight", "\u2028", "\x00"]


def read(directory: str) -> None:
    for path in sorted(glob.glob(os.path.join(directory, "*.st"))):
        out = {"file": os.path.basename(path)}
        with open(path, "rb") as f:
            data = f.read()
        try:
            tensors = safetensors.deserialize(data)
            out["tensors"] = {n: [t["dtype"], t["shape"], bytes(t["data"]).hex()] for n, t in tensors}
            with safetensors.safe_open(path, "numpy") as f:
                out["metadata"] = f.metadata()
        except Exception as e:  # a panic in the package's native code is one too
            out = {"file": out["file"], "error": f"{type(e).__name__}: {e}"}
        print(json.dumps(out), flush=True)


def write(directory: str, count: int, seed: int) -> None:
    rng = random.Random(seed)
    for i in range(count):
        tensors, specs, keep = {}, {}, []
        for _ in range(rng.randrange(12)):
            name = "".join(rng.choices(PARTS, k=rng.randrange(5)))
            dtype = rng.choice(list(DTYPES))
            shape = [rng.randrange(5) for _ in range(rng.randrange(4))]
            data = rng.randbytes(int(numpy.prod(shape, dtype=int)) * DTYPES[dtype][1] // 8)
            buffer = ctypes.create_string_buffer(data, max(1, len(data)))
            keep.append(buffer)
            tensors[name] = [dtype, shape, data.hex()]
            specs[name] = safetensors.TensorSpec(
                dtype=DTYPES[dtype][0], shape=shape, data_ptr=ctypes.addressof(buffer), data_len=len(data))
        # One entry: the package writes more in no fixed order, and the bytes are compared.
        metadata = rng.choice([None, {}, {rng.choice(PARTS): "".join(rng.choices(PARTS, k=4))}])
        if not tensors and metadata == {}:
            metadata = None  # version 0.8.0 writes '{},"__metadata__":{}}', which it can't read itself
        with open(os.path.join(directory, f"{i}.st"), "wb") as f:
            f.write(safetensors.serialize(specs, metadata))
        with open(os.path.join(directory, f"{i}.json"), "w") as f:
            json.dump({"metadata": metadata, "tensors": tensors}, f)
    values = {"f32": numpy.array([1], "<f4"), "i64": numpy.array([1], "<i8"), "t": numpy.arange(6, dtype="<i2").reshape(2, 3).T.copy()}
    safetensors.numpy.save_file(values, os.path.join(directory, "values.safetensors"))


if __name__ == "__main__":
    if sys.argv[1] == "read":
        read(sys.argv[2])
    else:
        write(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
