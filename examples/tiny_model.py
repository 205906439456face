"""Makes a model directory of a few bytes, for the examples: tiny_model.py DIRECTORY."""

import json
import pathlib
import struct
import sys

directory = pathlib.Path(sys.argv[1])
directory.mkdir(parents=True)
(directory / "config.json").write_text('{"model_type": "tiny"}\n')
tensors = {
    "layer.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "layer.bias": {"dtype": "F32", "shape": [2], "data_offsets": [24, 32]},
}
header = json.dumps(tensors).encode()
header += b" " * (-len(header) % 8)
values = struct.pack("<8f", 1, 2, 3, 4, 5, 6, 0.5, 0.25)
(directory / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + values)
