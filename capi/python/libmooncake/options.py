# SPDX-License-Identifier: Apache-2.0
"""What an object is, and how it is put."""

from __future__ import annotations

import ctypes
import enum
from operator import index
from typing import Any, List, Optional, Sequence, Union

from . import _native
from .key import Key, encode, pack_sized
from .number import unsigned


class ObjectType(enum.IntEnum):
    """What an object is; the numbers are the C++ Mooncake Store's ObjectDataType."""

    UNKNOWN = _native.TYPE_UNKNOWN
    KVCACHE = _native.TYPE_KVCACHE
    TENSOR = _native.TYPE_TENSOR
    WEIGHT = _native.TYPE_WEIGHT
    SAMPLE = _native.TYPE_SAMPLE
    ACTIVATION = _native.TYPE_ACTIVATION
    GRADIENT = _native.TYPE_GRADIENT
    OPTIMIZER_STATE = _native.TYPE_OPTIMIZER_STATE
    METADATA = _native.TYPE_METADATA
    GENERAL = _native.TYPE_GENERAL


def _number(type_: Union[ObjectType, str]) -> int:
    try:
        return ObjectType[type_] if isinstance(type_, str) else index(type_)
    except KeyError:
        raise ValueError(f"type is one of {', '.join(ObjectType.__members__)}, not {type_!r}") from None
    except TypeError:
        raise TypeError(f"type is an ObjectType or its name, not {type(type_).__name__}") from None


class PutOptions:
    """How an object is put. Made once, it serves any number of puts; it does not change.

    type         what the object is: an ObjectType or its name, "KVCACHE". Default: UNKNOWN
    hard_pin     never evicted until it is removed or unpinned
    soft_pin_ms  last in line for eviction for so long, at most 24 h
    group        objects of a group are leased and evicted together
    durable      return only when the object is on stable storage; needs a store with a dir
    own_file     in a file of its own, for Store.file; objects of type WEIGHT always are
    keep         a key that exists keeps its bytes and the put succeeds; the default is ExistsError
    replicas, preferred_segments are for a cluster

    What takes the place of an object that exists is Store.upsert, or replacing() of these.
    """

    __slots__ = ("_kept", "_native", "_replacing", "reference")

    def __init__(
        self,
        *,
        type: Union[ObjectType, str] = ObjectType.UNKNOWN,
        hard_pin: bool = False,
        soft_pin_ms: int = 0,
        group: Optional[Key] = None,
        durable: bool = False,
        own_file: bool = False,
        keep: bool = False,
        replicas: int = 0,
        preferred_segments: Sequence[str] = (),
    ) -> None:
        native = _native.PutOptions()
        native.type = _number(type)
        native.hard_pin = hard_pin
        native.soft_pin_ms = unsigned("soft_pin_ms", soft_pin_ms)
        if group is not None:
            native.group = encode(group)
            native.group_size = len(encode(group))
        native.durable = durable
        native.own_file = own_file
        native.keep = keep
        native.replica_num = unsigned("replicas", replicas)
        self._kept: List[Any] = []
        if preferred_segments:
            segments = (ctypes.c_char_p * len(preferred_segments))(*map(encode, preferred_segments))
            native.preferred_segments = ctypes.addressof(segments)
            native.preferred_segments_count = len(segments)
            self._kept.append(segments)
        self._native = native
        self._replacing: Optional[PutOptions] = None
        self.reference = ctypes.byref(native)
        """The argument for the library."""

    def _copy(self) -> PutOptions:
        other = PutOptions()
        other._native = _native.PutOptions.from_buffer_copy(self._native)
        other._kept = [self]  # whose strings it points to
        other.reference = ctypes.byref(other._native)
        return other

    def replacing(self) -> PutOptions:
        """The same, but that it takes the place of an object that exists."""
        if self._replacing is None:
            other = self._copy()
            other._native.replace, other._native.keep = 1, 0
            self._replacing = other
        return self._replacing

    def grouped(self, groups: Sequence[Key]) -> PutOptions:
        """The same for a batch, with a group for each key."""
        other = self._copy()
        keys, size, sizes, _ = pack_sized(groups)
        other._native.groups = keys
        other._native.groups_size = size
        other._native.group_sizes = ctypes.cast(sizes, ctypes.c_void_p).value  # type: ignore[arg-type]
        other._kept.append(sizes)
        return other


DEFAULT = PutOptions()
REPLACE = DEFAULT.replacing()
