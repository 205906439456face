# SPDX-License-Identifier: Apache-2.0
"""Batches with malformed items: a key that is none, a buffer that is none, an offset below 0."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, Optional, Sequence, TypeVar, cast

from . import _native, buffer
from .errors import BatchError, InvalidError, MooncakeError
from .key import encode
from .operation import Operation

F = TypeVar("F", bound=Callable[..., Any])

_MALFORMED = (TypeError, ValueError, BufferError, OverflowError)


def alone(writable: Optional[bool] = None, fragments: bool = False, wide: bool = False) -> Callable[[F], F]:
    """For methods that take keys, and unless writable is None a buffer for each, or fragments: a malformed item fails by
    itself, with an InvalidError among the results of a BatchError, after the others have run. If no item is well formed
    the exception is raised as it is. wide says that results are one for each fragment. Calls look for malformed items only
    after they have failed."""

    def decorate(method: F) -> F:
        @functools.wraps(method)
        def call(self: Any, keys: Any, *arguments: Any, **options: Any) -> Any:
            try:
                return method(self, keys, *arguments, **options)
            except _MALFORMED as error:
                if isinstance(error, MooncakeError) or isinstance(keys, (str, bytes)):
                    raise
                if writable is not None and not arguments:
                    raise
                items = None if writable is None else arguments[0]
                bad = _malformed(keys, items, bool(writable), fragments)
                if not bad or len(bad) == len(keys):
                    raise
                good = [i for i in range(len(keys)) if i not in bad]
                if items is not None:
                    arguments = ([items[i] for i in good], *arguments[1:])
                if options.get("groups") is not None:
                    options["groups"] = [options["groups"][i] for i in good]
                widths = [_width(item) for item in items] if wide and items is not None else [1] * len(keys)
                return _merged(lambda: method(self, [keys[i] for i in good], *arguments, **options), bad, widths)

        return cast(F, call)

    return decorate


def _malformed(
    keys: Sequence[Any], items: Optional[Sequence[Any]], writable: bool, fragments: bool
) -> Dict[int, InvalidError]:
    """The malformed items by place. None if there are not as many items as keys."""
    bad: Dict[int, InvalidError] = {}
    if items is not None and len(items) != len(keys):
        return bad
    for i, key in enumerate(keys):
        try:
            encode(key)
            if items is not None and fragments:
                buffer.gather_fragments([tuple(items[i])], writable)
            elif items is not None:
                buffer.gather([items[i]], writable)
        except _MALFORMED as error:
            bad[i] = InvalidError(_native.EINVAL, f"item {i}: {error}")
            bad[i].__cause__ = error
    return bad


def _width(item: Any) -> int:
    """How many results an item with fragments has."""
    return len(item) if hasattr(item, "__len__") else 1


def _merged(run: Callable[[], Any], bad: Dict[int, InvalidError], widths: List[int]) -> Any:
    """What run returns or raises, with the errors of the malformed items among it: a BatchError. Of an operation once it
    is done."""
    try:
        found = run()
    except BatchError as error:
        raise _error(error.results, bad, widths) from None
    if isinstance(found, Operation):
        finish = found._finish
        found._finish = lambda code: _merged(lambda: finish(code), bad, widths)
        return found
    raise _error(_flat(found), bad, widths)


def _flat(found: Optional[List[Any]]) -> Optional[List[Any]]:
    """Results in one list, as those of fragments are in a BatchError."""
    if found and all(isinstance(item, list) for item in found):
        return [result for item in found for result in item]
    return found


def _error(found: Optional[List[Any]], bad: Dict[int, InvalidError], widths: List[int]) -> BatchError:
    results: List[Any] = []
    left = iter(found if found is not None else [None] * sum(widths))
    for i, width in enumerate(widths):
        results += [bad[i]] * width if i in bad else [next(left) for _ in range(width)]
    failed = [item for item in results if isinstance(item, MooncakeError)]
    first = failed[0]
    return BatchError(first.code, f"{len(failed)} of {len(results)} failed, the first: {first.text}", results)
