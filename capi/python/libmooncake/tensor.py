# SPDX-License-Identifier: Apache-2.0
"""Tensors of a revision's safetensors files."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Iterator, Tuple

from . import _native, buffer
from .errors import check
from .handle import Handle
from .view import View, new_lease

if TYPE_CHECKING:
    from .weight import Weights

# numpy's names for dtypes of safetensors; the second row is ml_dtypes'.
_NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U64": "<u8",
          "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?", "C64": "<c8"}  # fmt: skip
_ML_DTYPES = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"}


@dataclass(frozen=True)
class Tensor(Handle):
    """Where a tensor is: nbytes at offset of a file of the revision, as the file stores them."""

    name: str
    dtype: str
    """As safetensors spells it: F32, BF16, ..."""
    shape: Tuple[int, ...]
    file: str
    offset: int
    nbytes: int
    _weights: Weights = field(repr=False, compare=False)
    _handle: int = field(repr=False, compare=False)
    _names: Tuple[bytes, bytes, bytes] = field(repr=False, compare=False)

    def view(self) -> View:
        """Borrow the bytes, without a copy where they are in memory."""
        lease = new_lease()
        check(_native.lib.mooncake_weight_view_tensor(self._handle, *self._names, ctypes.byref(lease)))
        return View(lease)

    def read_into(self, into: buffer.Buffer) -> int:
        """Copy the bytes into a buffer, which may be larger, and return their number."""
        at, size, _kept = buffer.target(into)
        return check(_native.lib.mooncake_weight_read_tensor(self._handle, *self._names, at, size))

    def numpy(self) -> Any:
        """A read-only numpy array of the borrowed bytes, which are kept as long as it lives. numpy has no bfloat16 and
        no float8: those need the package ml_dtypes, without which this is a TypeError; view() always works, for
        torch.frombuffer(tensor.view().data, dtype=torch.bfloat16).reshape(tensor.shape) for example."""
        import numpy  # pyright: ignore[reportMissingImports]

        return numpy.frombuffer(self.view().data, dtype=_numpy_dtype(self.dtype)).reshape(self.shape)


def _numpy_dtype(name: str) -> Any:
    if name in _NUMPY:
        return _NUMPY[name]
    if name not in _ML_DTYPES:
        raise TypeError(f"numpy has nothing for {name}: use view()")
    try:
        import ml_dtypes  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise TypeError(
            f"numpy has nothing for {name} without the package ml_dtypes: install it or use view()"
        ) from None
    return getattr(ml_dtypes, _ML_DTYPES[name])


def tensor_list(
    weights: Weights, handle: int, model_id: str, revision: str, block: ctypes.c_void_p
) -> Iterator[Tensor]:
    """The tensors of a mooncake_tensor_list_t *; frees it."""
    names = model_id.encode("utf-8", "surrogateescape"), revision.encode("utf-8", "surrogateescape")
    try:
        found = _native.TensorList.from_address(block.value or 0)
        for i in range(found.count):
            native = _native.Tensor.from_address(found.tensors + i * found.tensor_size)
            shape = (ctypes.c_int64 * native.dims).from_address(native.shape) if native.dims else ()
            yield Tensor(
                name=native.name.decode("utf-8", "surrogateescape"),
                dtype=native.dtype.decode(),
                shape=tuple(shape),
                file=native.file.decode("utf-8", "surrogateescape"),
                offset=native.offset,
                nbytes=native.size,
                _weights=weights,
                _handle=handle,
                _names=(*names, native.name),
            )
    finally:
        _native.lib.mooncake_free(block)
