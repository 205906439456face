#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Wait until a server with OpenAI's API is ready, ask it one question greedily, and print the answer, nothing else."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import urllib.request

QUESTION = "What is the capital of France?"
POLL_SECONDS = 0.5
ANSWER_SECONDS = 120


def wait_ready(url: str, pid: int, timeout_seconds: float) -> None:
    """Return when the server is ready; TimeoutError or ProcessLookupError if it will not be."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        os.kill(pid, 0)  # is it alive?
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:  # refused, reset, timed out, or not 200 yet
            if time.monotonic() > deadline:
                raise TimeoutError(f"not ready after {timeout_seconds:.0f} s") from None
        time.sleep(POLL_SECONDS)


def ask(url: str, model: str, question: str) -> str:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 64,
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as response:
        content: str = json.load(response)["choices"][0]["message"]["content"]
    return content.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="of the server, such as http://127.0.0.1:8000")
    parser.add_argument("model", help="name under which the server has the model")
    parser.add_argument("--pid", type=int, required=True, help="process of the server, to notice when it ends")
    parser.add_argument("--timeout", type=float, default=300, help="seconds until it must be ready. Default: 300")
    args = parser.parse_args()
    try:
        wait_ready(args.url, args.pid, args.timeout)
        print(ask(args.url, args.model, QUESTION))
    except ProcessLookupError:
        print("ask: the server has ended", file=sys.stderr)
        return 1
    except OSError as error:  # TimeoutError and urllib's errors are such
        print(f"ask: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
