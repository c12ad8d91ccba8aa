"""Workspaces that are kept: one for each stream, so that no two streams share one, grown as kernels need it.

A sequence leaves those bytes zero that it needs to be zero at the start of its workspace. So a workspace remembers how many of its first
bytes are zero, and only the others are set. For the same reason a graph's sequence with a small workspace gets memory that was zero once,
and stays its own: setting it again in every run would take as long as a small kernel. Larger ones, with as many zeros, are shared by the
sequences that one capture has of one stream, which run one after the other."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

from gemmgen.runtime.cuda.driver import (
    NON_BLOCKING,
    CudaError,
    bindings,
    call,
    check,
    current_device,
    raw_functions,
    release,
    while_captured,
)

MAX_WORKSPACES = 64
"""Workspaces of one device; the oldest is freed for a new one beyond that."""
GRANULARITY = 1 << 16
GRAPH_CHUNK, MAX_PART, MAX_CHUNKS = 1 << 20, 1 << 16, 32
"""Memory for the workspaces of captured sequences that is allocated at a time, what one of them gets of it at most, and such allocations
of a device at most. It is never freed: nothing tells when a graph is gone."""
PART_ALIGNMENT = 256
MAX_SHARED, SHARED_GRANULARITY = 1 << 28, 1 << 20
"""Bytes of the workspaces that captured sequences share, of a device at most, and what their sizes are multiples of. They are not freed
either."""

Allocate = Callable[[int, int], tuple[Any, int]]
"""Allocates bytes for use on a stream: an owner, whose end frees them no earlier than the stream is done, and the address."""


class Workspace:
    """The memory of one stream. To be used with its ``lock`` held, from the first kernel of a sequence to the last."""

    __slots__ = ("address", "bytes", "lock", "owner", "zero_bytes")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.owner: Any = None
        self.address = 0
        self.bytes = 0
        self.zero_bytes = 0

    def require(self, size: int, zero: int, stream: int, allocate: Allocate) -> int:
        """The address of ``size`` bytes, of which the first ``zero`` are zero by the time that the stream gets there.

        Afterwards the caller enqueues a sequence that leaves those zero, and the rest of its ``size`` as it likes.
        """
        if size > self.bytes:
            wanted = -(-size // GRANULARITY) * GRANULARITY
            owner, address = allocate(wanted, stream)
            self.owner, self.address, self.bytes, self.zero_bytes = owner, address, wanted, 0
        if zero > self.zero_bytes:
            call("cuMemsetD8Async", self.address, 0, zero, stream)
            self.zero_bytes = zero
        if size > zero:
            self.zero_bytes = zero
        return self.address


class _DriverMemory:
    """Memory in the order of a stream."""

    def __init__(self, ordinal: int, address: int, stream: int) -> None:
        self._freed = (ordinal, address, stream)

    def __del__(self) -> None:
        ordinal, address, stream = self._freed
        try:
            with current_device(ordinal):
                release("cuMemFreeAsync", address, stream)
        except Exception:  # the interpreter or the context is going down, and the memory with it
            pass


def driver_allocation(ordinal: int) -> Allocate:
    """Allocates from the driver, in the order of the stream."""

    def allocate(size: int, stream: int) -> tuple[Any, int]:
        address = int(call("cuMemAllocAsync", size, stream))
        return _DriverMemory(ordinal, address, stream), address

    return allocate


def _zeros(size: int) -> int:
    """Zeros in device memory, made while streams are captured: by a stream that none of them waits for."""
    with while_captured():
        address = int(call("cuMemAlloc", size))
        stream = call("cuStreamCreate", NON_BLOCKING)
        try:
            call("cuMemsetD8Async", address, 0, size, stream)
            call("cuStreamSynchronize", stream)
        finally:
            release("cuStreamDestroy", stream)
    return address


class Workspaces:
    """The workspaces of one device."""

    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal
        self._raw = raw_functions()
        self._lock = threading.Lock()
        self._by_stream: dict[int, Workspace] = {}
        self._chunks, self._place, self._end = 0, 0, 0
        self._shared: dict[tuple[int, int, int], tuple[int, int]] = {}
        self._shared_bytes = 0
        self._local = threading.local()

    def of(self, stream: int) -> Workspace | None:
        """The workspace of a stream; None while the stream is captured, because a graph outlives other objects of its capture."""
        try:
            cell = self._local.cell
        except AttributeError:
            cell = self._local.cell = ctypes.c_uint64()
        address = ctypes.addressof(cell)
        cell.value = 0
        code = self._raw.is_capturing(stream, address)
        if code:
            driver = bindings()
            check(driver, (driver.CUresult(code),))
        if cell.value & 0xFFFFFFFF:
            return None
        # A handle may come back for another stream while the first one's work still runs; an identifier does not.
        identifier = stream if self._raw.stream_id is None or self._raw.stream_id(stream, address) else cell.value
        workspace = self._by_stream.get(identifier)
        if workspace is None:
            with self._lock:
                workspace = self._by_stream.setdefault(identifier, Workspace())
                if len(self._by_stream) > MAX_WORKSPACES:
                    self._drop_oldest()
        return workspace

    def of_graph(self, size: int, zero: int, stream: int) -> int | None:
        """The address of ``size`` bytes, the first ``zero`` of which are zero, for a sequence that is being captured from a stream and
        leaves these as it found them. None when there are too many workspaces."""
        size = -(-size // PART_ALIGNMENT) * PART_ALIGNMENT
        if size > MAX_PART:
            return self._shared_with(size, zero, stream)
        with self._lock:
            if self._end - self._place < size:
                if self._chunks == MAX_CHUNKS:
                    return None
                self._place = _zeros(GRAPH_CHUNK)
                self._end = self._place + GRAPH_CHUNK
                self._chunks += 1
            address = self._place
            self._place += size
        return address

    def _shared_with(self, size: int, zero: int, stream: int) -> int | None:
        """A workspace that this capture's other sequences of the stream have, too."""
        driver = bindings()
        info = driver.cuStreamGetCaptureInfo(stream)
        check(driver, (info[0],))
        key = int(info[2]), stream, zero
        with self._lock:
            address, held = self._shared.get(key, (0, 0))
            if held < size:
                held = -(-size // SHARED_GRANULARITY) * SHARED_GRANULARITY
                if self._shared_bytes + held > MAX_SHARED:
                    return None
                address = _zeros(held)
                self._shared_bytes += held
                self._shared[key] = address, held
                if len(self._shared) > MAX_WORKSPACES:
                    del self._shared[next(iter(self._shared))]
        return address

    def _drop_oldest(self) -> None:
        oldest = next(iter(self._by_stream))
        try:
            call("cuCtxSynchronize")
        except CudaError:
            return  # another stream is being captured: next time, then
        del self._by_stream[oldest]


_kept: dict[int, Workspaces] = {}


def workspaces(ordinal: int) -> Workspaces:
    """The workspaces of a device, kept for the life of the process."""
    of_device = _kept.get(ordinal)
    return of_device if of_device is not None else _kept.setdefault(ordinal, Workspaces(ordinal))
