"""Loads safetensors files when told to: a line "load DIR" is answered with the seconds it took, "hold DIR" keeps the
files mapped with every page touched until "drop"."""

import glob
import os
import sys
import time

import numpy as np
from safetensors import safe_open

held = []


def touch(tensor):
    """Reads one byte of every page."""
    return int(tensor.reshape(-1).view(np.uint8)[::4096].sum())


def load(directory, keep):
    start = time.perf_counter()
    for path in sorted(glob.glob(os.path.join(directory, "*.safetensors"))):
        file = safe_open(path, framework="np")
        for name in file.keys():
            touch(file.get_tensor(name))
        if keep:
            held.append(file)
    return time.perf_counter() - start


print("ready", flush=True)
for line in sys.stdin:
    verb, _, directory = line.strip().partition(" ")
    if verb == "drop":
        held.clear()
        print(0, flush=True)
    else:
        print(load(directory, verb == "hold"), flush=True)
