# SPDX-License-Identifier: Apache-2.0
"""Store: objects by key."""

from __future__ import annotations

import ctypes
import os
import weakref
from types import TracebackType
from typing import Any, Callable, List, Optional, Sequence, Tuple, Type, TypeVar, Union, overload

from . import _native, batch, buffer
from .buffer import Buffer, source, target
from .errors import MooncakeError, NotFoundError, UnavailableError, last, make, named
from .event import Events
from .handle import Handle
from .info import (
    Counters,
    Decision,
    ObjectInfo,
    Room,
    Usage,
    counters,
    decisions,
    object_info,
    taken,
    taken_keys,
    usage,
)
from .key import Key, encode, listed, pack
from .listing import Listing
from .number import optional, signed, unsigned
from .operation import Operation
from .options import DEFAULT, REPLACE, PutOptions
from .session import Fragments, GetSession, PutSession
from .sift import alone
from .view import File, Lease, View, new_lease
from .writer import Writer

T = TypeVar("T")
Path = Union[str, bytes, "os.PathLike[str]"]

_lib = _native.lib
_byref = ctypes.byref
_pointer = ctypes.c_void_p
# The calls for which every lookup counts.
_is_exist = _lib.mooncake_store_is_exist
_batch_exist = _lib.mooncake_store_batch_exist
_put_object = _lib.mooncake_store_put_object
_get_object = _lib.mooncake_store_get_object
_get_size = _lib.mooncake_store_get_size
_view = _lib.mooncake_store_view

_OFFLOAD = {
    None: _native.OFFLOAD_ON_EVICT,
    "on_evict": _native.OFFLOAD_ON_EVICT,
    "eager": _native.OFFLOAD_EAGER,
    "never": _native.OFFLOAD_NEVER,
}
_VERIFY = {None: 0, True: _native.VERIFY_ALWAYS, False: _native.VERIFY_NEVER}
_is_one = (1).__eq__
_NO_DEFAULT: Any = object()


class Store(Handle):
    """A client of a store in this process. Everything can be called from any thread, and runs without the GIL.

    Store() opens the store, or joins it if the process has it open already: clients that name the same pool share it.
    Options, all with the store's defaults for None:

    pool             which of the process's stores. Default: the directory, or "embedded" without one
    tenant           keys and groups of different tenants never meet. Default: "default"
    dir              holds the SSD tier and lets memory survive the process; one process at a time. Made, with its
                     parents, if it is missing. Default, and "": memory only
    memory_bytes     budget for everything in DRAM. At least 16 MiB. Default: 1 GiB
    ssd_bytes        most that the SSD tier takes. Default: 90 % of what the file system has free
    shm_dir          tmpfs for memory with a dir. Default: /dev/shm
    volatile_memory  memory with a dir does not survive the process. Default: it does, in shm_dir until the next open
    offload          "on_evict", "eager" (soon after every put) or "never". Default: "on_evict"
    lease_ttl_ms     how long a get or exists protects an object. Default: 10000
    high_watermark   used share above which eviction starts. Default: 0.90
    eviction_ratio   least share that one eviction frees. Default: 0.05
    file_bytes       from this size an object may have a file of its own; n * 4096. Default: 1 MiB
    promote_after    reads from SSD that bring an object back to memory, 1 to 15; negative: never. Default: 2
    dir_slots        dir is shared by several processes: take the first free of so many subdirectories slot-0, ...
    put_timeout_ms   how long an unfinished put without a sign of life holds its key. Default: 30000
    join             if the pool is open take it as it is, whatever the other options say
    master           of a cluster to join. Not supported yet

    Reads take verify: None verifies what crossed a tier or a restart, True everything, False nothing.

    Close it, or leave its with block, to end the client; the last one of a pool closes the pool. Views outlive it. A
    forked child can't use it: UnavailableError.
    """

    _handle: Optional[int] = None
    _name = "not open"

    def __init__(
        self,
        *,
        pool: Optional[str] = None,
        tenant: Optional[str] = None,
        dir: Optional[Path] = None,
        memory_bytes: Optional[int] = None,
        ssd_bytes: Optional[int] = None,
        shm_dir: Optional[Path] = None,
        volatile_memory: bool = False,
        offload: Optional[str] = None,
        lease_ttl_ms: Optional[int] = None,
        high_watermark: Optional[float] = None,
        eviction_ratio: Optional[float] = None,
        file_bytes: Optional[int] = None,
        promote_after: Optional[int] = None,
        dir_slots: Optional[int] = None,
        put_timeout_ms: Optional[int] = None,
        join: bool = False,
        master: Optional[str] = None,
    ) -> None:
        if offload not in _OFFLOAD:
            raise ValueError(f"offload is 'on_evict', 'eager' or 'never', not {offload!r}")
        self._name = f"pool {pool!r}" if pool is not None else f"dir {os.fsdecode(dir)!r}" if dir else "memory"
        options = _native.StoreOptions()
        options.pool = _string(pool)
        options.tenant = _string(tenant)
        options.dir = _path(dir)
        options.memory_bytes = optional("memory_bytes", memory_bytes)
        options.ssd_bytes = optional("ssd_bytes", ssd_bytes)
        options.shm_dir = _path(shm_dir)
        options.volatile_memory = volatile_memory
        options.offload = _OFFLOAD[offload]
        options.lease_ttl_ms = optional("lease_ttl_ms", lease_ttl_ms)
        options.high_watermark = high_watermark or 0
        options.eviction_ratio = eviction_ratio or 0
        options.file_bytes = optional("file_bytes", file_bytes)
        options.promote_after = signed("promote_after", promote_after or 0, bits=32)
        options.dir_slots = optional("dir_slots", dir_slots, bits=31)
        options.put_timeout_ms = optional("put_timeout_ms", put_timeout_ms)
        options.join = join
        options.master = _string(master)
        handle = _pointer()
        code = _lib.mooncake_store_open(_byref(options), _byref(handle))
        if code < 0:
            raise last(code)
        self._own(handle.value, tenant or "default")

    def _own(self, handle: Optional[int], tenant: str) -> None:
        self._handle, self._tenant = handle, tenant
        self._sessions: weakref.WeakSet[GetSession] = weakref.WeakSet()  # which end with the store

    def tenant(self, name: str) -> Store:
        """Another client of the same pool that sees another tenant."""
        handle = _pointer()
        self._check(_lib.mooncake_store_tenant(self._handle, _string(name), _byref(handle)))
        other = Store.__new__(Store)
        other._own(handle.value, name)
        other._name = f"{self._name}, tenant {name!r}"
        return other

    @property
    def handle(self) -> int:
        """The library's mooncake_store_t, for calls through ctypes of your own. Valid until the store is closed."""
        if self._handle is None:
            raise _closed()
        return self._handle

    @property
    def closed(self) -> bool:
        return self._handle is None

    def close(self) -> None:
        """End the client. A second close does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None:
            for session in list(self._sessions):
                session.end()
            _lib.mooncake_store_destroy(handle)

    def __del__(self, _destroy: Callable[[int], None] = _lib.mooncake_store_destroy) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            _destroy(handle)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<libmooncake.Store, {self._name}{', closed' if self.closed else ''}>"

    def _check(self, code: int, key: Optional[bytes] = None) -> int:
        if code < 0:
            raise self._error(code, key)
        return code

    def _error(self, code: int, key: Optional[bytes] = None) -> MooncakeError:
        """What the call that has just returned code failed of; key is the one that it was for."""
        if self._handle is None:
            return _closed()
        return last(code) if key is None else named(last(code), key)

    # ---- objects

    def put(self, key: Key, data: Buffer, options: Optional[PutOptions] = None) -> None:
        """Store the bytes of a buffer. ExistsError for a key that exists unless options say keep."""
        if type(key) is not bytes:
            key = encode(key)
        at, size, _kept = source(data)
        code = _put_object(self._handle, key, len(key), at, size, options and options.reference)
        if code < 0:
            raise self._error(code, key)

    def put_parts(self, key: Key, parts: Sequence[Buffer], options: Optional[PutOptions] = None) -> None:
        """Store several buffers one after the other as one object."""
        _one(self.put_batch, [key], [list(parts)], options)

    def upsert(self, key: Key, data: Buffer, options: Optional[PutOptions] = None) -> None:
        """put that takes the place of an object that exists. Readers see the old one whole or the new one whole."""
        self.put(key, data, options.replacing() if options is not None else REPLACE)

    @overload
    def get(self, key: Key, *, verify: Optional[bool] = None) -> bytes: ...

    @overload
    def get(self, key: Key, default: T, *, verify: Optional[bool] = None) -> Union[bytes, T]: ...

    def get(self, key: Key, default: Any = _NO_DEFAULT, *, verify: Optional[bool] = None) -> Any:
        """An object's bytes, copied. Without a default a missing one is NotFoundError, which is a KeyError, and
        one whose first put is not finished NotReadyError."""
        key = encode(key)
        size = self._size(key)
        while True:
            data = buffer.new_bytes(max(size, 0))
            got = _get_object(self._handle, key, len(key), data, len(data), _VERIFY[verify])  # a miss is counted here
            if got == size >= 0:
                return data
            if got >= 0 or got == _native.EINVAL:  # it is there now, or was replaced by one of another size
                before, size = size, self._size(key)
                if size != before:
                    continue
            if got in batch.ABSENT and default is not _NO_DEFAULT:
                return default
            raise self._error(got, key)

    def get_into(self, key: Key, into: Buffer, *, verify: Optional[bool] = None) -> int:
        """Copy an object into a buffer, which may be larger, and return its size. InvalidError for a buffer that is too
        small: it stays as it is. After any other error its content is undefined."""
        if type(key) is not bytes:
            key = encode(key)
        at, size, _kept = target(into)
        got: int = _get_object(self._handle, key, len(key), at, size, 0 if verify is None else _VERIFY[verify])
        if got < 0:
            raise self._error(got, key)
        return got

    def get_ranges(self, key: Key, fragments: Fragments, *, verify: Optional[bool] = None) -> List[int]:
        """Fill buffers from offsets of an object: (offset, buffer) pairs. Returns the bytes read for each."""
        found = _one(self.get_ranges_batch, [key], [fragments], verify=verify)[0]
        sizes: List[int] = [n for n in found if n is not None]
        if len(sizes) < len(found):
            raise named(NotFoundError(_native.ENOTFOUND), key)
        return sizes

    def view(self, key: Key, *, verify: Optional[bool] = None) -> View:
        """Borrow an object's bytes, without a copy. One that is only on SSD is brought to memory first."""
        if type(key) is not bytes:
            key = encode(key)
        lease = new_lease()
        code = _view(self._handle, key, len(key), _VERIFY[verify], _byref(lease))
        if code < 0:
            raise self._error(code, key)
        return View(lease)

    def file(self, key: Key, *, verify: Optional[bool] = None) -> File:
        """An object as a file for any program. Free for objects with a file of their own; others are copied to a memory
        file. UnsupportedError for objects smaller than file_bytes."""
        key = encode(key)
        native = _native.File()
        self._check(_lib.mooncake_store_file(self._handle, key, len(key), _VERIFY[verify], _byref(native)), key)
        return File(native)

    def create(self, key: Key, nbytes: int, options: Optional[PutOptions] = None) -> Writer:
        """Begin an object that is written in pieces."""
        key, nbytes = encode(key), unsigned("nbytes", nbytes)
        handle = _pointer()
        self._check(
            _lib.mooncake_store_create_object(
                self._handle, key, len(key), nbytes, options and options.reference, _byref(handle)
            ),
            key,
        )
        return Writer(handle.value or 0, nbytes)

    def exists(self, key: Key) -> bool:
        """Whether there is a readable object. It is protected for the lease time."""
        if type(key) is not bytes:
            key = encode(key)
        if b"\0" in key:
            return self.exists_batch([key])[0]
        code: int = _is_exist(self._handle, key)
        if code < 0:
            raise self._error(code, key)
        return code == 1

    __contains__ = exists

    def probe(self, key: Key) -> bool:
        """exists without a lease and without counting as a use."""
        return self.exists_batch([key], lease=False)[0]

    def stat(self, key: Key) -> ObjectInfo:
        """Describe an object, without a lease."""
        key = encode(key)
        info = _native.ObjectInfo()
        group = ctypes.create_string_buffer(_native.MAX_KEY)
        info.group, info.group_capacity = ctypes.addressof(group), len(group)
        self._check(_lib.mooncake_store_stat(self._handle, key, len(key), _byref(info)), key)
        return object_info(info, key, group.raw[: info.group_size])

    def size(self, key: Key) -> int:
        """An object's size in bytes. It is protected for the lease time."""
        key = encode(key)
        size = self._size(key)
        if size < 0:
            raise self._error(size, key)
        return size

    def _size(self, key: bytes) -> int:
        if b"\0" not in key:
            return _get_size(self._handle, key)  # type: ignore[no-any-return]
        results, at = batch.sizes(1)
        self._check(_lib.mooncake_store_batch_get_size(self._handle, *pack([key]), at))
        return results[0]

    def remove(self, key: Key, *, force: bool = False) -> None:
        """End an object. LeasedError unless force. Views of it keep its bytes."""
        if not _one(self.remove_batch, [key], force=force)[0]:
            raise named(NotFoundError(_native.ENOTFOUND), key)

    def remove_all(self, *, force: bool = False) -> int:
        """End all objects of the tenant that can be removed, and return how many."""
        return self._check(_lib.mooncake_store_remove_all(self._handle, force))

    def remove_regex(self, pattern: str, *, force: bool = False) -> int:
        """End the objects whose key has a match of pattern anywhere in it, and return how many. The syntax is RE2's: no
        look-around, no back references. What can't be removed is skipped."""
        return self._check(_lib.mooncake_store_remove_by_regex(self._handle, _string(pattern), force))

    def link(self, key: Key, target: Key, options: Optional[PutOptions] = None) -> None:
        """Make target's bytes readable under a second key. They go with the last of the two. Of options only pins,
        group and durable count."""
        key, target = encode(key), encode(target)
        self._check(
            _lib.mooncake_store_link(self._handle, key, len(key), target, len(target), options and options.reference),
            key,
        )

    def set_pins(self, key: Key, *, hard_pin: Optional[bool] = None, soft_pin_ms: Optional[int] = None) -> None:
        """Change an object's pins: soft_pin_ms counts from now, 0 ends it; None leaves a pin as it is."""
        key = encode(key)
        self._check(_lib.mooncake_store_set_pins(self._handle, key, len(key), *_pins(hard_pin, soft_pin_ms)), key)

    def group(self, group: Key) -> List[str]:
        """The members of a group, oldest first. None is an empty list."""
        group = encode(group)
        keys = _pointer()
        code = _lib.mooncake_store_group(self._handle, group, len(group), _byref(keys))
        if code != _native.ENOGROUP:
            self._check(code)
        return taken_keys(keys)

    def set_group_pins(self, group: Key, *, hard_pin: Optional[bool] = None, soft_pin_ms: Optional[int] = None) -> None:
        """set_pins for all members of a group in one step."""
        group = encode(group)
        self._check(
            _lib.mooncake_store_set_group_pins(self._handle, group, len(group), *_pins(hard_pin, soft_pin_ms)), group
        )

    def remove_group(self, group: Key, *, force: bool = False) -> List[str]:
        """Remove all members of a group in one step and return them, or none: LeasedError, NotReadyError names one."""
        group = encode(group)
        keys = _pointer()
        self._check(_lib.mooncake_store_remove_group(self._handle, group, len(group), force, _byref(keys)), group)
        return taken_keys(keys)

    # ---- batches: all items run; a key without a readable object is None or False; BatchError for all other failures, also
    # for an item that is no key or no buffer

    @alone()
    def exists_batch(self, keys: Sequence[Key], *, lease: bool = True) -> List[bool]:
        """exists for each key, or probe without lease."""
        keys = listed(keys)
        results, at = batch.codes(len(keys))
        code = _batch_exist(self._handle, *pack(keys), 0 if lease else _native.NO_LEASE, at)
        if code < 0:
            raise self._error(code)
        codes = results.tolist()
        if codes and min(codes) < 0:
            batch.check([make(code) if code < 0 else code == 1 for code in codes], keys)
        return list(map(_is_one, codes))

    @alone()
    def size_batch(self, keys: Sequence[Key]) -> List[Optional[int]]:
        """size for each key."""
        keys = listed(keys)
        results, at = batch.sizes(len(keys))
        self._check(_lib.mooncake_store_batch_get_size(self._handle, *pack(keys), at))
        return batch.numbers(results, keys)

    @alone(writable=False)
    def put_batch(
        self,
        keys: Sequence[Key],
        buffers: Sequence[Union[Buffer, List[Buffer]]],
        options: Optional[PutOptions] = None,
        *,
        groups: Optional[Sequence[Key]] = None,
    ) -> None:
        """put each key from its buffer, or list of buffers one after the other. All that are durable become so with one
        sync. groups: one for each key."""
        keys = listed(keys)
        results, at = batch.codes(len(keys))
        put = self._put_arguments(keys, buffers, options, groups)
        self._check(_lib.mooncake_store_batch_put(self._handle, *put[0], at))
        batch.done(results, keys)

    @alone()
    def get_batch(self, keys: Sequence[Key], *, verify: Optional[bool] = None) -> List[Optional[bytes]]:
        """get for each key."""
        keys = listed(keys)
        packed = pack(keys)
        fresh: List[Any] = list(map(buffer.new_bytes, [size or 0 for size in self.size_batch(keys)]))
        results, at = batch.sizes(len(keys))
        buffers, sizes, counts, _kept = buffer.gather(fresh, writable=False)  # ours, and unseen: written all the same
        self._check(
            _lib.mooncake_store_batch_get(self._handle, *packed, buffers, sizes, counts, _VERIFY[verify], at)
        )
        if results.tobytes() == sizes:
            return fresh
        for i, (key, data) in enumerate(zip(keys, fresh)):
            if results[i] != len(data) and (results[i] >= 0 or results[i] == _native.EINVAL):
                fresh[i] = self.get(key, None, verify=verify)  # it was put or replaced meanwhile
                results[i] = _native.ENOTFOUND if fresh[i] is None else len(fresh[i])
        return batch.values(results, fresh.__getitem__, keys)

    @alone(writable=True)
    def get_batch_into(
        self, keys: Sequence[Key], buffers: Sequence[Union[Buffer, List[Buffer]]], *, verify: Optional[bool] = None
    ) -> List[Optional[int]]:
        """get_into for each key and its buffer, or list of buffers that are filled one after the other. Returns sizes.
        Buffers must not overlap."""
        keys, buffers = listed(keys), list(buffers)
        results, at = batch.sizes(len(keys))
        batch.same_length(keys, buffers)
        addresses, sizes, counts, _kept = buffer.gather(buffers, writable=True)
        self._check(
            _lib.mooncake_store_batch_get(self._handle, *pack(keys), addresses, sizes, counts, _VERIFY[verify], at)
        )
        return batch.numbers(results, keys)

    @alone(writable=True, fragments=True, wide=True)
    def get_ranges_batch(
        self, keys: Sequence[Key], fragments: Sequence[Fragments], *, verify: Optional[bool] = None
    ) -> List[List[Optional[int]]]:
        """get_ranges for each key: a list of (offset, buffer) for each, a list of sizes for each."""
        keys, fragments = listed(keys), list(map(tuple, fragments))
        batch.same_length(keys, fragments)
        results, at = batch.sizes(sum(map(len, fragments)))
        addresses, sizes, offsets, counts, _kept = buffer.gather_fragments(fragments, writable=True)
        self._check(
            _lib.mooncake_store_batch_get_ranges(
                self._handle, *pack(keys), addresses, sizes, offsets, counts, _VERIFY[verify], at
            )
        )
        found = iter(batch.fragment_numbers(results, keys, fragments))
        return [[next(found) for _ in wanted] for wanted in fragments]

    @alone()
    def view_batch(self, keys: Sequence[Key], *, verify: Optional[bool] = None) -> List[Optional[View]]:
        """view for each key."""
        keys = listed(keys)
        results, at = batch.codes(len(keys))
        views = (_native.View * len(keys))()
        size = ctypes.sizeof(_native.View)
        self._check(_lib.mooncake_store_batch_view(self._handle, *pack(keys), _VERIFY[verify], views, size, at))
        leases = [Lease.from_buffer_copy(views, i * size) if code == 0 else None for i, code in enumerate(results)]
        return batch.values(results, lambda i: View(leases[i]), keys)  # type: ignore[arg-type]

    @alone()
    def remove_batch(self, keys: Sequence[Key], *, force: bool = False) -> List[bool]:
        """remove for each key. Returns whether there was an object."""
        keys = listed(keys)
        results, at = batch.codes(len(keys))
        self._check(_lib.mooncake_store_batch_remove(self._handle, *pack(keys), force, at))
        removed = [code != _native.ENOTFOUND for code in results]
        batch.check([make(code) if code < 0 and there else there for code, there in zip(results, removed)], keys)
        return removed

    @alone(writable=False)
    def put_batch_async(
        self,
        keys: Sequence[Key],
        buffers: Sequence[Union[Buffer, List[Buffer]]],
        options: Optional[PutOptions] = None,
        *,
        groups: Optional[Sequence[Key]] = None,
    ) -> Operation[None]:
        """put_batch as an operation. Leave the buffers alone until it is done."""
        keys = listed(keys)
        results, at = batch.codes(len(keys))
        arguments, kept = self._put_arguments(keys, buffers, options, groups)
        handle = _pointer()
        self._check(_lib.mooncake_store_batch_put_async(self._handle, *arguments, at, _byref(handle)))

        def finish(code: int) -> None:
            self._check(code)
            batch.done(results, keys, late=True)

        return Operation(handle.value or 0, finish, (self, arguments, kept, results))

    @alone(writable=True)
    def get_batch_into_async(
        self, keys: Sequence[Key], buffers: Sequence[Union[Buffer, List[Buffer]]], *, verify: Optional[bool] = None
    ) -> Operation[List[Optional[int]]]:
        """get_batch_into as an operation. Leave the buffers alone until it is done."""
        keys, buffers = listed(keys), list(buffers)
        results, at = batch.sizes(len(keys))
        batch.same_length(keys, buffers)
        addresses, sizes, counts, kept = buffer.gather(buffers, writable=True)
        arguments = (*pack(keys), addresses, sizes, counts, _VERIFY[verify])
        handle = _pointer()
        self._check(_lib.mooncake_store_batch_get_async(self._handle, *arguments, at, _byref(handle)))

        def finish(code: int) -> List[Optional[int]]:
            self._check(code)
            return batch.numbers(results, keys, late=True)

        return Operation(handle.value or 0, finish, (self, arguments, kept, results))

    def _put_arguments(
        self,
        keys: Sequence[Key],
        buffers: Sequence[Any],
        options: Optional[PutOptions],
        groups: Optional[Sequence[Key]],
    ) -> Tuple[Tuple[Any, ...], object]:
        """The arguments of a batch put from keys to options, and what must live as long as they do."""
        buffers = list(buffers)
        batch.same_length(keys, buffers)
        if groups is not None:
            groups = listed(groups)
            batch.same_length(keys, groups)
            options = (options or DEFAULT).grouped(groups)
        addresses, sizes, counts, kept = buffer.gather(buffers, writable=False)
        return (*pack(keys), addresses, sizes, counts, options and options.reference), (kept, options)

    # ---- sessions

    def get_session(self, keys: Sequence[Key]) -> GetSession:
        """Hold objects for reading them in pieces."""
        return GetSession(self, keys)

    def put_session(
        self, keys: Sequence[Key], sizes: Sequence[int], options: Optional[PutOptions] = None
    ) -> PutSession:
        """Begin objects of these sizes that are written in pieces."""
        return PutSession(self, keys, sizes, options)

    # ---- what the store holds and does

    def list(self, prefix: Key = b"") -> Listing:
        """The objects whose key starts with prefix, in no order. Grants no leases."""
        prefix = encode(prefix)
        handle = _pointer()
        self._check(_lib.mooncake_store_list(self._handle, prefix, len(prefix), _byref(handle)))
        return Listing(handle.value or 0)

    def events(self, buffer: int = 65536) -> Events:
        """Subscribe to what happens to the objects of all tenants. buffer is how many events wait for a slow program
        before the rest is dropped and counted."""
        handle = _pointer()
        self._check(_lib.mooncake_store_events(self._handle, unsigned("buffer", buffer), _byref(handle)))
        return Events(self, handle.value or 0)

    def usage(self) -> Usage:
        """What the pool holds, of all tenants."""
        native = _native.Usage()
        self._check(_lib.mooncake_store_usage(self._handle, _byref(native)))
        return usage(native)

    def counters(self) -> Counters:
        """What happened since the pool was opened."""
        native = _native.Counters()
        self._check(_lib.mooncake_store_counters(self._handle, _byref(native)))
        return counters(native)

    def room(self, *, ssd: bool = False) -> Room:
        """How many bytes memory, or the SSD tier, could take now."""
        free, evictable = ctypes.c_int64(), ctypes.c_int64()
        self._check(_lib.mooncake_store_room(self._handle, int(ssd), _byref(free), _byref(evictable)))
        return Room(free.value, evictable.value)

    def explain(self, key: Key) -> List[Decision]:
        """What the store did to a key by itself, oldest first."""
        key = encode(key)
        text = _pointer()
        self._check(_lib.mooncake_store_explain(self._handle, key, len(key), _byref(text)))
        return decisions(taken(text).decode("utf-8", "surrogateescape"))

    def sync(self) -> None:
        """Return when every object that was there is on stable storage. ModeError without a dir."""
        self._check(_lib.mooncake_store_sync(self._handle))

    def wait_ready(self, timeout: Optional[float] = None) -> bool:
        """Wait until the whole memory budget was taken from the machine, at most timeout seconds. Returns whether it
        was. NoSpaceError if the machine refused the rest; the store goes on with what it has."""
        left = None if timeout is None else max(0, int(timeout * 1000))
        while True:  # in slices, so that signals are handled
            slice_ms = 100 if left is None else min(100, left)
            if self._check(_lib.mooncake_store_wait_ready(self._handle, slice_ms)) == 1:
                return True
            if left is not None:
                left -= slice_ms
                if left <= 0:
                    return False

    def healthy(self) -> bool:
        """Whether the store answers."""
        return self._handle is not None and _lib.mooncake_store_health_check(self._handle) == 0


def _one(call: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """A batch of one, whose error is that of its item."""
    try:
        return call(*arguments, **options)
    except MooncakeError as error:
        results = getattr(error, "results", ())
        raise next((item for item in results if isinstance(item, MooncakeError)), error) from None


def _closed() -> UnavailableError:
    return UnavailableError(_native.EUNAVAILABLE, "the store is closed")


def _string(text: Optional[str]) -> Optional[bytes]:
    if text is None:
        return None
    encoded = encode(text)
    if b"\0" in encoded:
        raise ValueError(f"{text!r} has a NUL in it")
    return encoded


def _path(path: Optional[Path]) -> Optional[bytes]:
    return None if path is None else os.fsencode(path)


def _pins(hard_pin: Optional[bool], soft_pin_ms: Optional[int]) -> Tuple[int, int]:
    soft = -1 if soft_pin_ms is None else unsigned("soft_pin_ms", soft_pin_ms, bits=63)
    return -1 if hard_pin is None else int(hard_pin), soft
