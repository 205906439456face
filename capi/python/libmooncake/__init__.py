# SPDX-License-Identifier: Apache-2.0
"""One store for KV cache and model weights, in the process of the inference engine that uses it."""

__version__ = "0.1.0"
