#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ask the model in a directory one question with mlx-lm and print the answer, nothing else.

Decoding is greedy, so the same weights give the same answer every time.
"""

from __future__ import annotations

import argparse
import sys

from mlx_lm import generate, load

QUESTION = "What is the capital of France?"


def answer(directory: str, question: str, max_tokens: int) -> str:
    model, tokenizer, *_ = load(directory)
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True)
    return generate(model, tokenizer, prompt, max_tokens=max_tokens).strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", help="model folder with config, tokenizer and safetensors")
    parser.add_argument("--question", default=QUESTION, help=f"Default: {QUESTION}")
    parser.add_argument("--max-tokens", type=int, default=64, help="Default: 64")
    args = parser.parse_args()
    print(answer(args.directory, args.question, args.max_tokens))
    return 0


if __name__ == "__main__":
    sys.exit(main())
