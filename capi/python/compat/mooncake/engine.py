"""mooncake.engine: programs import it beside the store. An embedded store moves nothing between machines, so there is no
transfer engine."""

from __future__ import annotations

from typing import Any

from ._cluster import refusal

__all__ = ["TransferEngine"]


class TransferEngine:
    """Exists so that it can be imported. Making one is NotImplementedError."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise refusal("TransferEngine", "moves bytes between machines")
