#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Keep vLLM's KV cache in a store: vLLM's own MooncakeStoreConnector, which imports mooncake.store, over libmooncake.

    kvcache.py MODEL-DIRECTORY

Asks the same question twice. Before the second time vLLM's own prefix cache is emptied, so that what it does not compute
again comes from the store. Fails unless both answers are equal, most of the prompt came from the store, and every page came
back with the bytes that were put under its key. The prompt is a list of facts that are all different: pages in another order
are another prompt.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile

import libmooncake
from kvcache_pages import Pages, check_the_check

CONFIG = {
    "master_server_address": "embedded",  # the store is in this process
    "metadata_server": "P2PHANDSHAKE",
    "protocol": "tcp",
    "device_name": "",
    "global_segment_size": "1GB",
    "local_buffer_size": "64MB",
}
THINGS = ("lamp", "book", "rope", "coin", "map", "drum", "key", "bowl")
FACTS = "".join(f"Box {i} holds a {THINGS[i * 5 % 8]} and its code is {i * 7919 % 9973}. " for i in range(1, 61))
PROMPT = FACTS + "The code of box 37 is"


def main(model: str) -> int:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
        json.dump(CONFIG, config)
        config.flush()
        os.environ["MOONCAKE_CONFIG_PATH"] = config.name
        check_the_check()
        return ask_twice(model)


def ask_twice(model: str) -> int:
    from mooncake.store import MooncakeDistributedStore
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    pages = Pages()
    pages.watch(MooncakeDistributedStore)
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
    print(f"pages: {len(pages.stored)} put, {pages.got} got, {len(pages.wrong)} of those with other bytes than were put")
    same = first.outputs[0].text == second.outputs[0].text
    whole = pages.got > 1 and not pages.wrong
    return 0 if same and whole and (second.num_cached_tokens or 0) > tokens / 2 and hits > 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
