"""Names of mooncake.store that need what an embedded store does not have: other machines, torch, a device. They exist, so
that imports work, and refuse when they are used."""

from __future__ import annotations

from typing import Any


def refusal(name: str, why: str) -> NotImplementedError:
    return NotImplementedError(f"mooncake: {name} {why}, which libmooncake's embedded store does not do")


class _Refused:
    _why = "needs a cluster"

    def __init__(self, *_: Any, **__: Any) -> None:
        raise refusal(type(self).__name__, self._why)


class MooncakeDistributedStoreAsync(_Refused):
    _why = "runs methods in an executor: use MooncakeDistributedStore with asyncio.to_thread"


class BufferPool(_Refused):
    _why = "hands out pieces of a client's local buffer"


class EngramStoreConfig(_Refused):
    _why = "describes embedding tables"


class EngramStore(_Refused):
    _why = "holds embedding tables"


class MooncakeDistributedNoFRegister(_Refused):
    _why = "registers NVMe-over-Fabrics targets"


class ParallelAxis(_Refused):
    _why = "describes sharded tensors"


class TensorParallelism(_Refused):
    _why = "describes sharded tensors"


class ReadTarget(_Refused):
    _why = "describes sharded tensors"


_TENSOR_METHODS = frozenset(
    prefix + name + layout + suffix
    for prefix in ("", "batch_")
    for name in "put_tensor get_tensor pub_tensor upsert_tensor upsert_pub_tensor".split()
    for layout in ("", "_with_tp", "_with_parallelism")
    for suffix in ("", "_into", "_from", "_into_cuda")
) | {"save_tensor_to_safetensor", "load_tensor_from_safetensor"}


def missing_method(name: str) -> AttributeError:
    """What MooncakeDistributedStore says about a method that it does not have. An AttributeError, so that hasattr and
    getattr with a default tell the truth to programs that choose by them."""
    if name in _TENSOR_METHODS:
        return AttributeError(
            f"MooncakeDistributedStore.{name}: libmooncake's embedded store has no tensor methods in this version; store "
            "the bytes, or use libmooncake's weights"
        )
    return AttributeError(f"'MooncakeDistributedStore' object has no attribute {name!r}")
