"""Launches that cost the host as little as it can be: everything but addresses, numbers and the stream is laid out beforehand.

A call packs its values into a block of memory that the driver's parameter arrays point into, and hands the driver addresses.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gemmgen.core.errors import LaunchError
from gemmgen.kernels.launch import LaunchSequence, ResolvedLaunch
from gemmgen.runtime.cuda.driver import CudaError, LoadedBinary, bindings, check, current_device, primary_context, raw_functions
from gemmgen.runtime.cuda.workspaces import Allocate, driver_allocation, workspaces

_CODES = {"pointer": "Q", "s8": "b", "u8": "B", "s32": "i", "s64": "q", "f32": "f", "f64": "d"}
_CONFIG = struct.Struct("<7I4xQQI4x")
"""CUlaunchConfig: grid, block, shared bytes, stream, attributes and their number."""
_STREAM_OFFSET = 32
_ATTRIBUTE_BYTES = 72
_CLUSTER, _PROGRAMMATIC = 4, 6
"""CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION and CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION."""
_ALIGNMENT = 16

Slot = tuple[str, str]
"""A value of a call: its name, and its type as in ``ResolvedLaunch.parameters``."""


class QuickCall:
    """A launch sequence for one problem on one device, called with a stream and the values of its slots.

    May be used by several threads: each call takes a block of memory of its own from a pool.
    """

    def __init__(
        self,
        loaded: LoadedBinary,
        sequence: LaunchSequence,
        dimensions: Mapping[str, int],
        slots: Sequence[Slot],
        sources: Mapping[str, str],
        allocate: Allocate | None = None,
        capture_allocate: Allocate | None = None,
    ) -> None:
        """``sources``: the slot that each parameter of the kernels takes its value from, for those that are no dimension,
        struct or workspace. ``allocate`` makes workspaces, ``capture_allocate`` those of sequences that a graph captures;
        without them, the driver does. Raises ``LaunchError`` if the device cannot launch one of the kernels.
        """
        self.ordinal = loaded.device.ordinal
        self._context = int(primary_context(self.ordinal))
        self._launches = sequence.resolve(dimensions)
        self._functions = [loaded.function(launch) for launch in self._launches]
        self._dimensions = dict(dimensions)
        self._slots = tuple(slots)
        self._sources = dict(sources)
        self._names = tuple(name for name, _ in slots)
        spaces = {array.name for array in sequence.arrays if array.role == "workspace"}
        self._spaces = spaces
        self.workspace_bytes = sequence.workspace_bytes.evaluate(dimensions) if spaces and self._launches else 0
        self.workspace_zero_bytes = sequence.workspace_zero_bytes.evaluate(dimensions) if self.workspace_bytes else 0
        self._workspaces = workspaces(self.ordinal) if self.workspace_bytes else None
        self._allocate = allocate or driver_allocation(self.ordinal)
        self._capture_allocate = capture_allocate or driver_allocation(self.ordinal)
        self._raw = raw_functions()
        self._launch = self._raw.launch
        self._current_context = self._raw.current_context
        self._free: list[_Block] = [self._block()] if self._launches else []

    @property
    def is_empty(self) -> bool:
        """Whether the problem needs no launch at all."""
        return not self._launches

    def launch(self, stream: int, *values: Any) -> None:
        """Enqueues every kernel on ``stream``. Raises ``LaunchError``; errors inside a kernel show in a later call."""
        if not self._launches:
            return
        try:
            block = self._free.pop()
        except IndexError:
            block = self._block()
        try:
            block.pack(block.memory, block.slots_offset, *values)
            if block.stream != stream:
                block.set_stream(stream)
            self._current_context(block.context_address)
            if block.context.value != self._context:
                with current_device(self.ordinal):
                    self._enqueue(block, stream)
            elif self._workspaces is None and block.single is not None:
                # What most calls do, without a further call: each costs a fiftieth of all that they cost.
                code = self._launch(*block.single)
                if code:
                    self._fail(code, block.single[1])
            else:
                self._enqueue(block, stream)
        except (struct.error, OverflowError, TypeError) as error:
            given = dict(zip(self._names, values, strict=False))
            raise LaunchError(f"{self._launches[0].entry} cannot be launched with {given}: {error}") from None
        finally:
            self._free.append(block)

    def _enqueue(self, block: _Block, stream: int) -> None:
        if self._workspaces is None:
            self._enqueue_all(block)
            return
        workspace = self._workspaces.of(stream)
        if workspace is None:
            owner, address = self._capture_allocate(self.workspace_bytes, stream)
            if self.workspace_zero_bytes:
                driver = bindings()
                check(driver, driver.cuMemsetD8Async(address, 0, self.workspace_zero_bytes, stream))
            block.workspace.value = address
            self._enqueue_all(block)
            del owner
            return
        with workspace.lock:
            needed = self.workspace_bytes, self.workspace_zero_bytes
            block.workspace.value = workspace.require(*needed, stream, self._allocate)
            self._enqueue_all(block)

    def _enqueue_all(self, block: _Block) -> None:
        for config, function, parameters in block.calls:
            code = self._launch(config, function, parameters, None)
            if code:
                self._fail(code, function)

    def _fail(self, code: int, function: int) -> None:
        driver = bindings()
        entry = next(launch.entry for launch, known in zip(self._launches, self._functions, strict=True) if int(known) == function)
        try:
            check(driver, (driver.CUresult(code),))
        except CudaError as error:
            raise CudaError(error.code, f"{entry} cannot be launched: {error}") from None

    def _block(self) -> _Block:
        functions = [int(function) for function in self._functions]
        return _Block(self._launches, functions, self._slots, self._sources, self._dimensions, self._spaces)


class _Block:
    """The memory that one call at a time writes to: values, what the driver reads, and where that is."""

    __slots__ = (
        "calls", "context", "context_address", "memory", "pack", "single", "slots_offset", "stream", "streams", "workspace",
    )  # fmt: skip

    def __init__(
        self,
        launches: Sequence[ResolvedLaunch],
        functions: Sequence[int],
        slots: Sequence[Slot],
        sources: Mapping[str, str],
        dimensions: Mapping[str, int],
        workspaces: set[str],
    ) -> None:
        layout = struct.Struct("@" + "".join(_CODES[kind] for _, kind in slots))
        offsets = {name: struct.calcsize("@" + "".join(_CODES[k] for _, k in slots[:index]) + f"0{_CODES[kind]}")
                   for index, (name, kind) in enumerate(slots)}  # fmt: skip
        size = -(-layout.size // _ALIGNMENT) * _ALIGNMENT
        workspace_at, context_at = size, size + 8
        size += 16
        constants: list[tuple[int, bytes]] = []
        places: list[list[int]] = []
        for launch in launches:
            structs = dict(launch.structs)
            here = []
            for name, kind in launch.parameters:
                if name in sources:
                    here.append(offsets[sources[name]])
                    continue
                if name in workspaces:
                    here.append(workspace_at)
                    continue
                if kind == "struct":
                    data = structs[name]
                elif name in dimensions:
                    data = struct.pack(_CODES[kind], dimensions[name])
                else:
                    raise LaunchError(f"{launch.entry}: the argument {name} has no value")
                constants.append((size, data))
                here.append(size)
                size += -(-len(data) // _ALIGNMENT) * _ALIGNMENT
            places.append(here)
        configs = []
        for _ in launches:
            configs.append(size)
            size += -(-_CONFIG.size // _ALIGNMENT) * _ALIGNMENT + 2 * -(-_ATTRIBUTE_BYTES // _ALIGNMENT) * _ALIGNMENT
        tables = []
        for here in places:
            tables.append(size)
            size += -(-8 * max(len(here), 1) // _ALIGNMENT) * _ALIGNMENT
        self.memory = ctypes.create_string_buffer(size + _ALIGNMENT)
        base = -(-ctypes.addressof(self.memory) // _ALIGNMENT) * _ALIGNMENT
        start = base - ctypes.addressof(self.memory)
        for at, data in constants:
            ctypes.memmove(base + at, data, len(data))
        for launch, at in zip(launches, configs, strict=True):
            attributes = at + -(-_CONFIG.size // _ALIGNMENT) * _ALIGNMENT
            count = _write_attributes(launch, base + attributes)
            packed = _CONFIG.pack(*launch.grid, *launch.block, launch.shared_bytes, 0, base + attributes if count else 0, count)
            ctypes.memmove(base + at, packed, len(packed))
        for here, at in zip(places, tables, strict=True):
            packed = struct.pack(f"{len(here)}Q", *(base + place for place in here))
            ctypes.memmove(base + at, packed, len(packed))
        triples = zip(configs, functions, tables, strict=True)
        self.calls = tuple((base + config, function, base + table) for config, function, table in triples)
        self.single = (*self.calls[0], None) if len(self.calls) == 1 else None
        """The driver's arguments where there is but one kernel."""
        self.pack: Callable[..., None] = layout.pack_into
        self.slots_offset = start
        self.workspace = ctypes.c_uint64.from_buffer(self.memory, start + workspace_at)
        self.context = ctypes.c_uint64.from_buffer(self.memory, start + context_at)
        self.context_address = base + context_at
        self.streams = [ctypes.c_uint64.from_buffer(self.memory, start + config + _STREAM_OFFSET) for config in configs]
        self.stream = 0

    def set_stream(self, stream: int) -> None:
        """Makes ``stream`` the one that the launches go to."""
        for place in self.streams:
            place.value = stream
        self.stream = stream


def _write_attributes(launch: ResolvedLaunch, address: int) -> int:
    """Writes an array of CUlaunchAttribute; how many there are."""
    values = []
    if launch.cluster != (1, 1, 1):
        values.append(struct.pack("<I4x3I", _CLUSTER, *launch.cluster))
    if launch.programmatic:
        values.append(struct.pack("<I4xi", _PROGRAMMATIC, 1))
    for index, value in enumerate(values):
        ctypes.memmove(address + index * _ATTRIBUTE_BYTES, value.ljust(_ATTRIBUTE_BYTES, b"\0"), _ATTRIBUTE_BYTES)
    return len(values)
