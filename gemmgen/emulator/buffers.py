"""Arguments of a launch become bytes in emulated device memory, and come back."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gemmgen.emulator.call_graph import function_address
from gemmgen.emulator.engines.boxes import PlacedMap
from gemmgen.emulator.errors import BadLaunch
from gemmgen.emulator.memory import GLOBAL_BASE, GUARD_BYTES, UNIT_BYTES, Heap, Region
from gemmgen.emulator.pages import zeros
from gemmgen.emulator.program import Placed, Program
from gemmgen.emulator.ptx.syntax import Float, Integer, Operand, Symbol, Variable
from gemmgen.emulator.registers import DTYPES
from gemmgen.emulator.textures import HANDLE_BASE, PlacedTexture, Texture, placed_texture
from gemmgen.hardware.tensor_map import MAP_BYTES, TensorMap, problems

HEAP_BYTES = 8 << 20
"""Bytes that kernels can allocate in all, as CUDA's default has it."""
_GRID_WORKSPACE_BYTES = 16
PAGE = 256
"""Allocations begin at multiples of this, like those of cudaMalloc."""


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """An array as a kernel's pointer argument, with its address under control.

    The kernel sees the array's first byte at an address that is `offset_bytes` modulo `alignment` (a power of two, at least 16); by
    default, at the array's own offset from the start of the array that owns its memory. `name` appears in messages; `writable=False` makes
    stores to it an error. `written` has one flag per byte, False where nothing has been written yet; a launch with hazard checks updates
    it. None: all of the array holds data. `pointers` are places in the array, in bytes, that hold the addresses of other buffers, or tensor
    maps. `origin` is the byte of the array that the kernel's pointer leads to: with negative strides not the first."""

    array: np.ndarray
    offset_bytes: int | None = None
    name: str | None = None
    writable: bool = True
    alignment: int = PAGE
    written: np.ndarray | None = None
    pointers: tuple[tuple[int, Buffer | TensorMap], ...] = ()
    origin: int = 0
    parts: tuple[tuple[int, int], ...] = ()
    """The bytes (first, past the last) of the array that hold elements, if not all do. Only these are copied, so that the cost
    follows the memory that is touched, not the distance between its parts."""

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The bytes that hold elements."""
        return self.parts or ((0, self.array.nbytes),)


@dataclass(frozen=True, slots=True, eq=False)
class Struct:
    """A structure by value: its bytes, and the places in them that hold the addresses of buffers, or tensor maps."""

    content: bytes
    pointers: tuple[tuple[int, Buffer | TensorMap], ...] = ()


@dataclass(slots=True)
class _Mapped:
    """Memory of one or more overlapping arrays."""

    start: int
    stop: int
    names: list[str]
    writable: bool
    offset: int
    alignment: int
    base: int = 0


class LaunchMemory(Protocol):
    """Memory as a launch sees it: bytes, allocations, and flags of written bytes."""

    data: np.ndarray
    regions: list[Region]
    heap: Heap
    maps: list[PlacedMap]
    textures: list[PlacedTexture]
    grid_workspace: int

    def unwritten(self) -> Iterator[tuple[int, np.ndarray]]:
        """Starts of regions, and for each byte from there whether nothing has written it."""

    def extents(self) -> Iterator[tuple[int, int, int]]:
        """Addresses of arrays on the host, their places in emulated memory, and their bytes."""

    def regions_behind(self, names: Collection[str]) -> list[Region]:
        """The regions that parameters and module variables of these names lead to."""

    def note_written(self, written: Callable[[int, int], np.ndarray]) -> None:
        """Keeps the flags that `written(start, stop)` returns for the bytes in between."""


class DeviceMemory:
    """All memory of a launch in one array: parameters, module variables, buffers."""

    def __init__(self, program: Program, args: Sequence[object], symbols: Mapping[str, np.ndarray] | None = None) -> None:
        self.program = program
        self._check_count(args)
        names = [parameter.name for parameter in program.entry.parameters]
        variables = {placed.variable.name: placed for placed in _module_variables(program)} if symbols else {}
        self._symbols = {name: _symbol(variables, name, array) for name, array in (symbols or {}).items()}
        self.maps: list[PlacedMap] = []
        """The tensor maps of all arguments, by number."""
        self.textures: list[PlacedTexture] = []
        """The textures of all arguments, by number."""
        self._given: list[Buffer | None] = []
        self._bases: list[list[Buffer | None]] = []
        self.buffers: list[Buffer] = []
        self._behind: dict[str, list[Buffer]] = {}
        """The buffers that each parameter leads to."""
        for index, (arg, name) in enumerate(zip(args, names, strict=True)):
            maps = maps_of(arg)
            bases = [_as_buffer(each.base, f"{name}, a tensor map", index) for each in maps]
            if isinstance(arg, Texture):
                bases = [_as_buffer(arg.array, f"{name}, a texture", index)]
            own = _as_buffer(_room_for_maps(maps) if maps and self._is_pointer(index) else arg, name, index)
            self._given.append(own)
            self._bases.append(bases)
            pointers = arg.pointers if isinstance(arg, Struct) else own.pointers if own is not None else ()
            behind = [buffer for buffer in (*bases, own) if buffer is not None] + _nested(pointers, name, index)
            self._behind[name] = behind
            self.buffers += behind
        self._mapped = _merge(self.buffers)
        self.addresses: list[int] = []
        self.regions: list[Region] = []
        size = self._place()
        self.grid_workspace = 0
        if program.meets_grid:
            start = -(-(size + GUARD_BYTES) // PAGE) * PAGE
            self.regions.append(Region("the workspace of grid barriers", start, start + _GRID_WORKSPACE_BYTES, True))
            self.grid_workspace, size = start + GLOBAL_BASE, start + _GRID_WORKSPACE_BYTES
        self.heap = Heap(0, 0)
        if program.allocates:
            self.heap = Heap(size + GUARD_BYTES, size + GUARD_BYTES + HEAP_BYTES)
            size = self.heap.stop
        size = -(-(size + GUARD_BYTES) // UNIT_BYTES) * UNIT_BYTES
        self.data = zeros(size // 8, np.uint64).view(np.uint8)
        self._fill(args)

    def _check_count(self, args: Sequence[object]) -> None:
        parameters = self.program.entry.parameters
        if len(args) != len(parameters):
            raise BadLaunch(f"{self.program.entry.name} takes {len(parameters)} argument{'s' * (len(parameters) != 1)}, got {len(args)}")

    def _is_pointer(self, index: int) -> bool:
        parameter = self.program.entry.parameters[index]
        return parameter.size == 8

    def _place(self) -> int:
        program = self.program
        self.regions.append(Region("the kernel's parameters", 0, program.parameter_bytes, False))
        for placed in sorted(_module_variables(program), key=lambda p: p.offset):
            variable = placed.variable
            self.regions.append(Region(variable.name, placed.offset, placed.offset + variable.size, variable.space == "global"))
        end = max(program.static_bytes, program.parameter_bytes)
        for mapped in self._mapped:
            start = end + GUARD_BYTES
            start = -(-start // mapped.alignment) * mapped.alignment + mapped.offset
            mapped.base = start
            end = start + mapped.stop - mapped.start
            name = "/".join(dict.fromkeys(mapped.names))
            self.regions.append(Region(name, start, end, mapped.writable))
        return end

    def address(self, buffer: Buffer) -> int:
        """Start of a buffer."""
        start, stop = _extent(buffer.array)
        for mapped in self._mapped:
            if mapped.start <= start and stop <= mapped.stop and buffer.name in mapped.names:
                return GLOBAL_BASE + mapped.base + start - mapped.start
        raise AssertionError("a buffer that was not placed")

    def _fill(self, args: Sequence[object]) -> None:
        data, program = self.data, self.program
        data[: program.parameter_bytes] = 0
        if self.grid_workspace:
            start = self.grid_workspace - GLOBAL_BASE
            data[start : start + _GRID_WORKSPACE_BYTES] = 0
            data[start : start + 4] = np.frombuffer(struct.pack("<I", _GRID_WORKSPACE_BYTES), np.uint8)
        for placed in _module_variables(program):
            initial = np.frombuffer(initial_bytes(program, placed.variable), np.uint8)
            data[placed.offset : placed.offset + len(initial)] = initial
        for placed, array in self._symbols.values():
            data[placed.offset : placed.offset + array.nbytes] = _bytes_of(array)
        for buffer in self.buffers:
            if buffer.array.nbytes:
                start = self.address(buffer) - GLOBAL_BASE
                if buffer.pointers:
                    content_bytes = np.array(_bytes_of(buffer.array))
                    self._point(content_bytes, buffer.pointers)
                    data[start : start + buffer.array.nbytes] = content_bytes
                    continue
                for first, end in buffer.ranges:
                    data[start + first : start + end] = _bytes_of(buffer.array)[first:end]
        for arg, given, bases, parameter in zip(args, self._given, self._bases, program.entry.parameters, strict=True):
            offset = program.symbols[parameter.name].offset
            maps = maps_of(arg)
            encoded = b"".join([self._placed(each, base, parameter.name) for each, base in zip(maps, bases[: len(maps)], strict=True)])
            if isinstance(arg, Texture):
                content = scalar_bytes(parameter, np.uint64(self._textured(arg, bases[0], parameter.name)))
            elif maps:
                if given is None:
                    content = scalar_bytes(parameter, encoded)
                else:
                    start = self.address(given) - GLOBAL_BASE
                    data[start : start + len(encoded)] = np.frombuffer(encoded, np.uint8)
                    content = struct.pack("<Q", self.address(given))
            elif given is not None:
                if parameter.size != 8 or parameter.type[0] == "f":
                    raise BadLaunch(f"{parameter.name} is no pointer (.{parameter.type}), got an array")
                content = struct.pack("<Q", self.address(given) + given.origin)
            elif isinstance(arg, Struct):
                filled = np.frombuffer(scalar_bytes(parameter, arg.content), np.uint8).copy()
                self._point(filled, arg.pointers)
                content = filled.tobytes()
            else:
                content = scalar_bytes(parameter, arg)
            data[offset : offset + len(content)] = np.frombuffer(content, np.uint8)

    def _textured(self, texture: Texture, buffer: Buffer | None, name: str) -> int:
        """The handle of a texture from here on. Raises BadLaunch for a launch that CUDA would reject."""
        if buffer is None:
            raise BadLaunch(f"{name}: a texture is over an array or a Buffer, got {type(texture.array).__name__}")
        try:
            self.textures.append(placed_texture(texture, buffer.array, self.address(buffer) - GLOBAL_BASE))
        except ValueError as error:
            raise BadLaunch(f"{name}: {error}") from None
        return HANDLE_BASE + len(self.textures) - 1

    def _placed(self, tensor_map: TensorMap, buffer: Buffer | None, name: str) -> bytes:
        """The bytes of a tensor map, which has its number from here on. Raises BadLaunch for a request that CUDA does not allow."""
        if buffer is None:
            raise BadLaunch(f"{name}: the base of a tensor map has to be an array or a Buffer, got {type(tensor_map.base).__name__}")
        base = self.address(buffer) - GLOBAL_BASE
        wrong = problems(tensor_map, base + GLOBAL_BASE)
        if wrong:
            raise BadLaunch("\n  ".join([f"{name}: a tensor map that CUDA does not allow", *wrong]))
        if tensor_map.array_bytes > buffer.array.nbytes:
            raise BadLaunch(
                f"{name}: a tensor map over {tensor_map.array_bytes} bytes, from the first to the last element, of an array of "
                f"{buffer.array.nbytes} bytes"
            )
        placed = PlacedMap(tensor_map, base, len(self.maps))
        self.maps.append(placed)
        return placed.encode()

    def _point(self, content: np.ndarray, pointers: Sequence[tuple[int, Buffer | TensorMap]]) -> None:
        """Puts the addresses of buffers, and tensor maps, into bytes."""
        for offset, buffer in pointers:
            if isinstance(buffer, TensorMap):
                base = _as_buffer(buffer.base, "a tensor map in memory", 0)
                assert base is not None
                encoded = self._placed(buffer, _find(self.buffers, base), "a tensor map in memory")
                content[offset : offset + MAP_BYTES] = np.frombuffer(encoded, np.uint8)
                continue
            address = struct.pack("<Q", self.address(_find(self.buffers, buffer)))
            content[offset : offset + 8] = np.frombuffer(address, np.uint8)

    def unwritten(self) -> Iterator[tuple[int, np.ndarray]]:
        """Start of a buffer, and for each byte from there whether nothing has written it; fully written ones left out."""
        for mapped in self._mapped:
            alone = [buffer for buffer in self.buffers if buffer.name in mapped.names]
            if len(alone) == 1 and alone[0].parts:
                written = alone[0].written
                if written is not None:
                    yield from ((mapped.base + first, ~written[first:end]) for first, end in alone[0].parts)
                continue
            flags = np.ones(mapped.stop - mapped.start, np.bool_)
            for buffer in self.buffers:
                if buffer.name in mapped.names and buffer.array.nbytes:
                    begin = _extent(buffer.array)[0] - mapped.start
                    if 0 <= begin < len(flags):
                        flags[begin : begin + buffer.array.nbytes] &= np.False_ if buffer.written is None else ~buffer.written
            if flags.any():
                yield mapped.base, flags

    def regions_behind(self, names: Collection[str]) -> list[Region]:
        """The regions that these parameters lead to, and those of module variables with such names."""
        starts = {self.address(buffer) - GLOBAL_BASE for name in names for buffer in self._behind.get(name, ())}
        starts |= {placed.offset for placed in _module_variables(self.program) if placed.variable.name in names}
        return [region for region in self.regions if any(region.start <= start <= region.stop for start in starts)]

    def extents(self) -> Iterator[tuple[int, int, int]]:
        """Arrays' addresses on the host, their places in emulated memory, and their bytes; arrays that overlap as one."""
        for mapped in self._mapped:
            yield mapped.start, mapped.base, mapped.stop - mapped.start

    def note_written(self, written: Callable[[int, int], np.ndarray]) -> None:
        """Adds the flags that `written(start, stop)` returns for the bytes in between to those of the buffers."""
        for buffer in self.buffers:
            if buffer.written is not None and buffer.array.nbytes:
                start = self.address(buffer) - GLOBAL_BASE
                for first, end in buffer.ranges:
                    flags = buffer.written[first:end]
                    np.logical_or(flags, written(start + first, start + end), out=flags)

    def copy_back(self) -> None:
        """Copies the kernel's results into the arrays."""
        for buffer in self.buffers:
            if buffer.writable and buffer.array.flags.writeable and buffer.array.nbytes and not buffer.pointers:
                start = self.address(buffer) - GLOBAL_BASE
                for first, end in buffer.ranges:
                    _bytes_of(buffer.array)[first:end] = self.data[start + first : start + end]
        for placed, array in self._symbols.values():
            if placed.variable.space == "global" and array.flags.writeable:
                _bytes_of(array)[:] = self.data[placed.offset : placed.offset + array.nbytes]


def maps_of(arg: object) -> tuple[TensorMap, ...]:
    """The tensor maps that an argument consists of; none if it is something else."""
    if isinstance(arg, TensorMap):
        return (arg,)
    if isinstance(arg, list | tuple) and arg and all(isinstance(each, TensorMap) for each in arg):
        return tuple(arg)
    return ()


def _room_for_maps(maps: tuple[TensorMap, ...]) -> Buffer:
    """Global memory for an array of tensor maps."""
    return Buffer(np.zeros(MAP_BYTES * len(maps), np.uint8), alignment=PAGE)


def _symbol(variables: Mapping[str, Placed], name: str, array: np.ndarray) -> tuple[Placed, np.ndarray]:
    """A variable of the module by its name in PTX, and the array that it is filled from."""
    placed = variables.get(name)
    if placed is None:
        raise BadLaunch(f"the module has no variable {name}; it has {', '.join(variables) or 'none'}")
    if array.nbytes != placed.variable.size or not array.flags.c_contiguous:
        raise BadLaunch(f"the variable {name} has {placed.variable.size} bytes, the array {array.nbytes}")
    return placed, array


def _module_variables(program: Program) -> list[Placed]:
    module = program.module.variables
    return [placed for name, placed in program.symbols.items() if name in module and module[name].space != "shared"]


def _as_buffer(arg: object, name: str, index: int) -> Buffer | None:
    if isinstance(arg, np.ndarray):
        arg = Buffer(arg)
    if not isinstance(arg, Buffer):
        return None
    array = arg.array
    label = arg.name or f"argument {index} ({name})"
    if not isinstance(array, np.ndarray):
        raise BadLaunch(f"{label}: a Buffer holds a NumPy array, got {type(array).__name__}")
    if array.dtype.hasobject:
        raise BadLaunch(f"{label}: an array of Python objects has no bytes")
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise BadLaunch(f"{label}: the array is not contiguous (shape {array.shape}, strides {array.strides})")
    if arg.alignment < UNIT_BYTES or arg.alignment & (arg.alignment - 1):
        raise BadLaunch(f"{label}: alignment {arg.alignment} is no power of two of at least {UNIT_BYTES}")
    offset = arg.offset_bytes
    if offset is None:
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        offset = int(array.__array_interface__["data"][0] - owner.__array_interface__["data"][0])
    writable = arg.writable and bool(array.flags.writeable)
    if arg.written is not None and (arg.written.dtype != np.bool_ or arg.written.shape != (array.nbytes,)):
        raise BadLaunch(f"{label}: `written` needs one bool for each of the array's {array.nbytes} bytes")
    return Buffer(array, offset % arg.alignment, label, writable, arg.alignment, arg.written, arg.pointers, arg.origin, arg.parts)


def _nested(pointers: Sequence[tuple[int, Buffer | TensorMap]], name: str, index: int) -> list[Buffer]:
    """The buffers that pointers and tensor maps lead to, and those that pointers in these lead to."""
    inner = []
    for _, target in pointers:
        buffer = _as_buffer(target.base if isinstance(target, TensorMap) else target, name, index)
        if buffer is None:
            raise BadLaunch(f"{name}: the base of a tensor map has to be an array or a Buffer")
        inner += [buffer, *_nested(buffer.pointers, name, index)]
    return inner


def _find(buffers: Sequence[Buffer], wanted: Buffer) -> Buffer:
    return next(buffer for buffer in buffers if buffer.array is wanted.array)


def _extent(array: np.ndarray) -> tuple[int, int]:
    start = int(array.__array_interface__["data"][0])
    return start, start + array.nbytes


def _merge(buffers: list[Buffer]) -> list[_Mapped]:
    """Arrays that share memory share addresses; all others lie apart."""
    merged: list[_Mapped] = []
    for buffer in sorted(buffers, key=lambda b: _extent(b.array)):
        start, stop = _extent(buffer.array)
        assert buffer.name is not None and buffer.offset_bytes is not None
        last = merged[-1] if merged else None
        if last is not None and start < last.stop and stop > start:
            last.stop = max(last.stop, stop)
            last.names.append(buffer.name)
            last.writable |= buffer.writable
        else:
            merged.append(_Mapped(start, stop, [buffer.name], buffer.writable, buffer.offset_bytes, buffer.alignment))
    return merged


def _bytes_of(array: np.ndarray) -> np.ndarray:
    flat = array.reshape(-1, order="A") if array.flags.c_contiguous else array.T.reshape(-1)
    return flat.view(np.uint8)


def scalar_bytes(parameter: Variable, arg: object) -> bytes:
    """An argument that is no array, as the bytes of its parameter."""
    if arg is None:
        if parameter.size != 8:
            raise BadLaunch(f"{parameter.name} is no pointer (.{parameter.type}), got None")
        return bytes(8)
    if isinstance(arg, bytes | bytearray | memoryview | np.void):
        content = arg.tobytes() if isinstance(arg, np.void | memoryview) else bytes(arg)
        if len(content) != parameter.size:
            raise BadLaunch(f"{parameter.name} takes {parameter.size} bytes, got {len(content)}")
        return content
    if parameter.type == "b8" and isinstance(arg, np.generic) and arg.dtype.itemsize == parameter.size:
        return arg.tobytes()  # a scalar that the compiler hands over as bytes: __grid_constant__
    if parameter.count != 1 or not isinstance(arg, bool | int | float | np.generic):
        wanted = f"{parameter.size} bytes" if parameter.type == "b8" else f".{parameter.type}"
        raise BadLaunch(f"{parameter.name} takes {wanted}, got {type(arg).__name__}")
    return _number_bytes(parameter, arg)


def _number_bytes(parameter: Variable, arg: Any) -> bytes:
    dtype = np.dtype(DTYPES[parameter.type])
    is_float = isinstance(arg, float | np.floating)
    if isinstance(arg, np.generic) and parameter.type[0] == "b":
        if arg.dtype.itemsize != parameter.size:
            raise BadLaunch(f"{parameter.name} takes {parameter.size} bytes, got {arg.dtype}")
        return arg.tobytes()
    if parameter.type[0] == "b" and is_float:
        # Newer compilers declare every 32-bit parameter .b32: the Python value decides.
        return struct.pack({4: "<f", 8: "<d", 2: "<e"}[parameter.size], float(arg))
    if dtype.kind == "f":
        if isinstance(arg, np.generic) and arg.dtype.itemsize != parameter.size and arg.dtype.kind == "f":
            raise BadLaunch(f"{parameter.name} is .{parameter.type}, got {arg.dtype}")
        return bytes(dtype.type(arg).tobytes())
    if is_float:
        raise BadLaunch(f"{parameter.name} is .{parameter.type}, got the float {arg}")
    if isinstance(arg, np.generic) and arg.dtype.itemsize != parameter.size and arg.dtype.kind in "iu":
        raise BadLaunch(f"{parameter.name} is .{parameter.type}, got {arg.dtype}")
    bits = parameter.size * 8
    value = int(arg)
    if not -(1 << (bits - 1)) <= value < 1 << bits:
        raise BadLaunch(f"{parameter.name} is .{parameter.type}; {value} does not fit")
    return (value & ((1 << bits) - 1)).to_bytes(parameter.size, "little")


def initial_bytes(program: Program, variable: Variable) -> bytes:
    """A module variable's initial content; parts without an initialiser are zero."""
    content = bytearray(variable.size)
    size = variable.element_bytes
    for index, value in enumerate(variable.initial):
        content[index * size : (index + 1) * size] = _initial_element(program, variable, value)
    return bytes(content[: variable.size])


def _initial_element(program: Program, variable: Variable, value: Operand) -> bytes:
    size = variable.element_bytes
    match value:
        case Integer(number):
            if variable.type[0] == "f":
                return bytes(np.dtype(DTYPES[variable.type]).type(number).tobytes())
            return (number & ((1 << 8 * size) - 1)).to_bytes(size, "little")
        case Float(bits, width) if width == 8 * size:
            return bits.to_bytes(size, "little")
        case Float(bits, 64) if variable.type == "f32":
            return struct.pack("<f", struct.unpack("<d", bits.to_bytes(8, "little"))[0])
        case Symbol(name) if name in program.module.functions and size == 8:
            return struct.pack("<Q", function_address(program.module, name) or 0)
        case Symbol(name, offset) if name in program.symbols and size == 8:
            return struct.pack("<Q", GLOBAL_BASE + program.symbols[name].offset + offset)
        case _:
            raise BadLaunch(f"initialiser of {variable.name} is not understood (PTX line {variable.line})")
