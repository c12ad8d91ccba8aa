"""Launches that cost the host as little as possible: everything but addresses, numbers and the stream is laid out beforehand.

A call packs its values into a block of memory that the driver's parameter arrays point into, and hands the driver addresses.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import LaunchError
from gemmgen.hardware.tensor_map import MAP_ALIGNMENT, MAP_BYTES, TensorMap
from gemmgen.kernels.launch import LaunchSequence, ResolvedLaunch, ResolvedMap
from gemmgen.runtime.cuda import abi
from gemmgen.runtime.cuda.driver import (
    CudaError,
    LoadedBinary,
    RawFunctions,
    bindings,
    call,
    check,
    current_device,
    primary_context,
    raw_functions,
    release,
)
from gemmgen.runtime.cuda.workspaces import Allocate, driver_allocation, workspaces

_CODES: dict[str, str] = {"pointer": "Q"} | {name: getattr(ctypes, element.ctypes_name)._type_ for name, element in ELEMENTS.items()}
"""Format character of each type in the struct module."""
_ALIGNMENT = 16

Slot = tuple[str, str]
"""A value of a call: its name, and its type as in ``ResolvedLaunch.parameters``."""


def slots_of(launches: Sequence[ResolvedLaunch], dimensions: Collection[str]) -> list[Slot]:
    """The values that launches need besides the problem: scalars, arrays (workspaces among them) and arrays under tensor maps."""
    slots: dict[str, str] = {}
    for launch in launches:
        slots |= {name: kind for name, kind in launch.parameters if kind in _CODES and name not in dimensions}
        slots |= {described.array: "pointer" for described in launch.tensor_maps}
    return list(slots.items())


class Launcher:
    """Launches of one problem on one device, called with a stream and the values of their slots.

    May be used by several threads: each call takes a separate block of memory from a pool.
    """

    def __init__(
        self,
        loaded: LoadedBinary,
        launches: Sequence[ResolvedLaunch],
        dimensions: Mapping[str, int],
        slots: Sequence[Slot] | None = None,
        sources: Mapping[str, str] | None = None,
    ) -> None:
        """``slots``: by default all that are needed. ``sources``: the slot that an argument takes its value from; by default the one
        of its name. Raises ``LaunchError`` if the device cannot launch one of the kernels.
        """
        self.ordinal = loaded.device.ordinal
        self.workspace_bytes = 0
        self.workspace_zero_bytes = 0
        self._context = int(primary_context(self.ordinal))
        self._launches = tuple(launches)
        self._functions = [loaded.function(launch) for launch in launches]
        self._dimensions = dict(dimensions)
        self._slots = tuple(slots_of(launches, dimensions) if slots is None else slots)
        self._sources = {name: name for name, _ in self._slots} if sources is None else dict(sources)
        self._spaces: frozenset[str] = frozenset()
        self._workspaces: Any = None
        self._allocate = self._capture_allocate = driver_allocation(self.ordinal)
        self._raw = raw_functions()
        self._launch = self._raw.launch
        self._current_context = self._raw.current_context
        self._free: list[_Block] = []

    @classmethod
    def of_sequence(
        cls,
        loaded: LoadedBinary,
        sequence: LaunchSequence,
        dimensions: Mapping[str, int],
        slots: Sequence[Slot],
        sources: Mapping[str, str] | None = None,
        allocate: Allocate | None = None,
        capture_allocate: Allocate | None = None,
        early: bool = True,
    ) -> Launcher:
        """A launcher that provides the workspace itself.

        ``allocate`` makes workspaces, ``capture_allocate`` those of sequences that a graph captures; without them, the driver does.
        ``early``: kernels may start while the work before them still runs, if they are made for that; they wait for nothing otherwise.
        """
        launches = sequence.resolve(dimensions)
        if not early:
            launches = tuple(replace(launch, programmatic=False) for launch in launches)
        launcher = cls(loaded, launches, dimensions, slots, sources)
        launcher._spaces = sequence.workspace_names
        if launcher._spaces and launcher._launches:
            launcher.workspace_bytes = sequence.workspace_bytes.evaluate(dimensions)
            launcher.workspace_zero_bytes = sequence.workspace_zero_bytes.evaluate(dimensions)
        launcher._workspaces = workspaces(launcher.ordinal) if launcher.workspace_bytes else None
        launcher._allocate = allocate or launcher._allocate
        launcher._capture_allocate = capture_allocate or launcher._capture_allocate
        if launcher._launches:
            launcher._free.append(launcher._block())  # its errors show now
        return launcher

    @property
    def is_empty(self) -> bool:
        """True if the problem needs no launch at all."""
        return not self._launches

    def values(self, pointers: Mapping[str, int], scalars: Mapping[str, float]) -> tuple[Any, ...]:
        """The values of all slots, in their order; an array that is not among ``pointers`` is a null pointer."""
        given: list[Any] = []
        for name, kind in self._slots:
            if kind == "pointer":
                given.append(int(pointers.get(name, 0)))
            elif name not in scalars:
                raise LaunchError(f"the scalar argument {name} has no value")
            else:
                given.append(float(scalars[name]) if ELEMENTS[kind].is_float else int(scalars[name]))
        return tuple(given)

    def launch(self, stream: int, *values: object) -> None:
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
                # The common case without a further function call, each of which takes a fiftieth of the total time.
                code = self._launch(*block.single)
                if code:
                    self._fail(code, block.single[1])
            else:
                self._enqueue(block, stream)
        except (struct.error, OverflowError, TypeError) as error:
            given = dict(zip((name for name, _ in self._slots), values, strict=False))
            raise LaunchError(f"{self._launches[0].entry} cannot be launched with {given}: {error}") from None
        finally:
            self._free.append(block)

    def _enqueue(self, block: _Block, stream: int) -> None:
        if self._workspaces is None:
            self._enqueue_all(block)
            return
        workspace = self._workspaces.of(stream)
        if workspace is None:
            sizes = self.workspace_bytes, self.workspace_zero_bytes
            address = self._workspaces.of_graph(*sizes, stream) if self.workspace_zero_bytes else None
            if address is not None:
                block.workspace.value = address
                self._enqueue_all(block)
                return
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
        for encoded in block.maps:
            encoded.refresh()
        for config, function, parameters in block.calls:
            code = self._launch(config, function, parameters, None)
            if code:
                self._fail(code, function)

    def _fail(self, code: int, function: int) -> None:
        entry = next(launch.entry for launch, known in zip(self._launches, self._functions, strict=True) if int(known) == function)
        _raise(code, f"{entry} cannot be launched")

    def _block(self) -> _Block:
        functions = [int(function) for function in self._functions]
        return _Block(self._raw, self._launches, functions, self._slots, self._sources, self._dimensions, self._spaces)


def _raise(code: int, what: str) -> None:
    driver = bindings()
    try:
        check(driver, (driver.CUresult(code),))
    except CudaError as error:
        raise CudaError(error.code, f"{what}: {error}") from None


class _Layout:
    """Places in a block of memory, given out one after another."""

    def __init__(self) -> None:
        self.size = 0

    def place(self, size: int, alignment: int = _ALIGNMENT) -> int:
        """The offset of a number of bytes, reserved."""
        at = -(-self.size // alignment) * alignment
        self.size = at + size
        return at


class _Block:
    """The memory that one call at a time writes to: values, the driver's arguments, and their addresses."""

    __slots__ = (
        "calls",
        "configs",
        "context",
        "context_address",
        "maps",
        "memory",
        "pack",
        "single",
        "slots_offset",
        "stream",
        "workspace",
    )

    def __init__(
        self,
        raw: RawFunctions,
        launches: Sequence[ResolvedLaunch],
        functions: Sequence[int],
        slots: Sequence[Slot],
        sources: Mapping[str, str],
        dimensions: Mapping[str, int],
        spaces: Collection[str],
    ) -> None:
        packed = struct.Struct("@" + "".join(_CODES[kind] for _, kind in slots))
        layout = _Layout()
        layout.place(packed.size)  # at 0, where the offsets of the slots count from
        offsets = dict(_slot_offsets(slots))
        workspace_at, context_at = layout.place(8), layout.place(8)
        places = {name: offsets[slot] for name, slot in sources.items()} | {name: workspace_at for name in spaces if name not in sources}
        constants: list[tuple[int, bytes]] = []
        maps: dict[str, tuple[int, ResolvedMap]] = {}
        for launch in launches:
            structs, described = dict(launch.structs), {each.name: each for each in launch.tensor_maps}
            for name, kind in launch.parameters:
                if name in places:
                    continue
                if name in described:
                    places[name] = layout.place(MAP_BYTES, MAP_ALIGNMENT)
                    maps[name] = places[name], described[name]
                    continue
                if name in structs:
                    data = structs[name]
                elif name in dimensions:
                    data = struct.pack(_CODES[kind], dimensions[name])
                else:
                    raise LaunchError(f"{launch.entry}: the argument {name} has no value")
                places[name] = layout.place(len(data))
                constants.append((places[name], data))
        configs = [layout.place(ctypes.sizeof(abi.LaunchConfig)) for _ in launches]
        attributes = [layout.place(2 * ctypes.sizeof(abi.LaunchAttribute)) for _ in launches]
        tables = [layout.place(8 * len(launch.parameters)) for launch in launches]

        self.memory = ctypes.create_string_buffer(layout.size + MAP_ALIGNMENT)
        base = -(-ctypes.addressof(self.memory) // MAP_ALIGNMENT) * MAP_ALIGNMENT
        start = base - ctypes.addressof(self.memory)
        for at, data in constants:
            ctypes.memmove(base + at, data, len(data))
        self.configs = [abi.LaunchConfig.from_buffer(self.memory, start + at) for at in configs]
        for launch, config, at, table in zip(launches, self.configs, attributes, tables, strict=True):
            _fill_config(config, launch, self.memory, start + at)
            addresses = (ctypes.c_uint64 * len(launch.parameters)).from_buffer(self.memory, start + table)
            addresses[:] = [base + places[name] for name, _ in launch.parameters]
        triples = zip(configs, functions, tables, strict=True)
        self.calls = tuple((base + config, function, base + table) for config, function, table in triples)
        self.single = (*self.calls[0], None) if len(self.calls) == 1 and not maps else None
        """The driver's arguments where there is but one kernel and no tensor map."""
        self.pack: Callable[..., None] = packed.pack_into
        self.slots_offset = start
        self.workspace = ctypes.c_uint64.from_buffer(self.memory, start + workspace_at)
        self.context = ctypes.c_uint64.from_buffer(self.memory, start + context_at)
        self.context_address = base + context_at
        self.maps = tuple(
            _EncodedMap(raw, described, base + at, ctypes.c_uint64.from_buffer(self.memory, start + places[described.array]))
            for at, described in maps.values()
        )
        self.stream = 0

    def set_stream(self, stream: int) -> None:
        """Makes ``stream`` the one that the launches go to."""
        for config in self.configs:
            config.hStream = stream
        self.stream = stream


def _slot_offsets(slots: Sequence[Slot]) -> Iterator[tuple[str, int]]:
    """Offset of each slot in the packed values."""
    before = "@"
    for name, kind in slots:
        yield name, struct.calcsize(f"{before}0{_CODES[kind]}")
        before += _CODES[kind]


def _fill_config(config: abi.LaunchConfig, launch: ResolvedLaunch, memory: Any, attributes_at: int) -> None:
    """Everything of a launch but its stream."""
    config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
    config.sharedMemBytes = launch.shared_bytes
    attributes = (abi.LaunchAttribute * 2).from_buffer(memory, attributes_at)
    count = 0
    if launch.cluster_blocks > 1:
        attributes[count].id = abi.CLUSTER_DIMENSION
        attributes[count].value.clusterDim = abi.ClusterDimension(*launch.cluster)
        count += 1
    if launch.programmatic:
        attributes[count].id = abi.PROGRAMMATIC_STREAM_SERIALIZATION
        attributes[count].value.programmaticStreamSerializationAllowed = 1
        count += 1
    config.attrs = ctypes.addressof(attributes) if count else 0
    config.numAttrs = count


class _EncodedMap:
    """The 128 bytes of a tensor map, encoded anew where its array lies somewhere else than before."""

    __slots__ = ("_address", "_array", "_described", "_encode", "_pointer")

    def __init__(self, raw: RawFunctions, described: ResolvedMap, address: int, array: ctypes.c_uint64) -> None:
        """``address``: where the map lies; ``array``: the pointer that it depends on."""
        self._described = described
        self._address = address
        self._array = array
        self._pointer = 0  # for which zeros are right
        self._encode = None if described.tensor_map is None else map_encoder(raw, described.tensor_map, address)

    def refresh(self) -> None:
        """Makes the bytes right for the array's pointer."""
        pointer = self._array.value
        if pointer == self._pointer or self._encode is None:
            return
        self._pointer = 0
        ctypes.memset(self._address, 0, MAP_BYTES)
        if pointer:
            at = pointer + self._described.offset_bytes
            code = self._encode(at)
            if code:
                _raise(code, f"{self._described.name} cannot be encoded as a tensor map of {self._described.array} at {at:#x}")
            self._pointer = pointer


def map_encoder(raw: RawFunctions, described: TensorMap, target: int) -> Callable[[int], int]:
    """Encodes a map at the address ``target``, given where its array lies; returns the driver's code."""
    function = raw.encode_tiled if described.im2col is None else raw.encode_im2col
    if function is None:
        raise LaunchError("tensor maps need a driver for CUDA 12 or later")
    rank = described.rank
    extents = (ctypes.c_uint64 * rank)(*described.extents)
    strides = (ctypes.c_uint64 * max(rank - 1, 1))(*described.strides)
    steps = (ctypes.c_uint * rank)(*(described.element_strides or (1,) * rank))
    middle: tuple[Any, ...]
    if described.im2col is None:
        middle = ((ctypes.c_uint * rank)(*described.box), steps)
    else:
        walk = described.im2col
        corners = [(ctypes.c_int * (rank - 2))(*corner) for corner in (walk.lower, walk.upper)]
        middle = (*corners, walk.channels_per_pixel, walk.pixels_per_column, steps)
    modes = (
        abi.INTERLEAVE_NUMBERS[described.interleave],
        abi.SWIZZLE_NUMBERS[described.swizzle],
        abi.L2_PROMOTION_NUMBERS[described.l2_promotion],
        abi.FILL_NUMBERS[described.fill],
    )
    element = abi.ELEMENT_NUMBERS[described.element]

    def encode(address: int) -> int:
        code: int = function(target, element, rank, address, extents, strides, *middle, *modes)
        return code

    return encode


def wait_on_host(ordinal: int, stream: int) -> None:
    """The host waits until all work of a stream is done."""
    with current_device(ordinal):
        call("cuStreamSynchronize", stream)


def wait_for(ordinal: int, stream: int, producers: Collection[int]) -> None:
    """Makes later work on ``stream`` wait, on the device, for the work that is now on other streams."""
    with current_device(ordinal):
        for producer in producers:
            event = call("cuEventCreate", bindings().CUevent_flags.CU_EVENT_DISABLE_TIMING.value)
            try:
                call("cuEventRecord", event, producer)
                call("cuStreamWaitEvent", stream, event, 0)
            finally:
                release("cuEventDestroy", event)
