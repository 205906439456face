#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Keep vLLM's KV cache in a store: vLLM's own MooncakeStoreConnector, which imports mooncake.store, over libmooncake.

    kvcache.py MODEL-DIRECTORY

Asks the same question twice. Before the second time vLLM's own prefix cache is emptied, so that what it does not compute
again comes from the store. Fails unless both answers are equal and most of the prompt came from the store.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile

import libmooncake

CONFIG = {
    "master_server_address": "embedded",  # the store is in this process
    "metadata_server": "P2PHANDSHAKE",
    "protocol": "tcp",
    "device_name": "",
    "global_segment_size": "1GB",
    "local_buffer_size": "64MB",
}
PROMPT = "Paris is the capital of France. " * 90 + "The capital of France is"


def main(model: str) -> int:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
        json.dump(CONFIG, config)
        config.flush()
        os.environ["MOONCAKE_CONFIG_PATH"] = config.name
        return ask_twice(model)


def ask_twice(model: str) -> int:
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    engine = LLM(
        model=model,
        enforce_eager=True,
        max_model_len=2048,
        kv_transfer_config=KVTransferConfig(
            kv_connector="MooncakeStoreConnector",
            kv_role="kv_both",
            kv_connector_extra_config={"load_async": True},
        ),
    )
    greedy = SamplingParams(temperature=0, max_tokens=16)
    first = engine.generate([PROMPT], greedy)[0]
    assert engine.reset_prefix_cache()
    second = engine.generate([PROMPT], greedy)[0]

    with libmooncake.Store() as store:  # the one that vLLM has open: they name the same pool
        hits = store.counters().memory_hit_bytes
    tokens = len(second.prompt_token_ids or [])
    print(f"first:  {first.outputs[0].text!r}, {first.num_cached_tokens} of {tokens} prompt tokens from a cache")
    print(f"second: {second.outputs[0].text!r}, {second.num_cached_tokens} of {tokens} prompt tokens from a cache")
    print(f"bytes that the store gave: {hits:,}")
    same = first.outputs[0].text == second.outputs[0].text
    return 0 if same and (second.num_cached_tokens or 0) > tokens / 2 and hits > 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
