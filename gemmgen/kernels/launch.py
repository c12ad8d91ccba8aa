"""Description for a host that calls an instance: problem, arguments, workspace and launches, free of any kernel family.

An instance is a *launch sequence*: one or more kernels in order. Every size in it is a ``Formula`` over the problem's
integers, so the same description serves Python, C++ and the certificate.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gemmgen.core.elements import DataType
from gemmgen.core.errors import LaunchError
from gemmgen.core.formulas import Formula
from gemmgen.hardware import tensor_map as tma

ArrayRole = Literal["input", "output", "inout", "workspace"]


@dataclass(frozen=True)
class Dimension:
    """An integer of the problem, passed to the kernel as a 32-bit int if an argument of that name exists."""

    name: str
    meaning: str
    minimum: int = 0
    maximum: int = 2**31 - 1
    default: Formula | None = None
    """Value where no array fixes it, for example a leading dimension of a matrix with one row; None: it must be known."""


@dataclass(frozen=True)
class ScalarArgument:
    """A value passed by copy: a dimension of the problem (``s32``) or a number such as alpha."""

    name: str
    type: DataType
    meaning: str
    default: float | int | None = None
    """Value where the caller gives none; None: the caller must give it, or it is a dimension of the problem."""


@dataclass(frozen=True)
class ArrayArgument:
    """A pointer to device memory, and the array that the caller shows for it.

    ``shape`` and ``strides`` (elements, not bytes) are formulas. One that is a single name binds that dimension from the
    caller's array; any other is checked once all names are bound. The stride along an extent of 0 or 1 is not looked at.
    """

    name: str
    type: DataType
    role: ArrayRole
    shape: tuple[Formula, ...]
    strides: tuple[Formula, ...]
    alignment: int
    """Bytes that the pointer must be a multiple of."""
    meaning: str
    needed: str | None = None
    """For an inout array, the scalar that decides whether it is read at all (``beta`` for C); None: always."""
    shares: str = ""
    """Another array whose memory it may be: exactly, since each element is read before it is written. Empty: none."""

    @property
    def reads(self) -> bool:
        return self.role in ("input", "inout")

    @property
    def writes(self) -> bool:
        return self.role in ("output", "inout", "workspace")


@dataclass(frozen=True)
class HostField:
    """An array of integers within a ``HostArgument``."""

    name: str
    type: Literal["s32", "u32"]
    capacity: int
    """Elements that the struct has room for."""
    count: Formula
    """Elements that are filled; the rest are 0."""
    value: Formula
    """Element ``i``, over the problem's names and ``i``."""
    meaning: str


@dataclass(frozen=True)
class HostArgument:
    """A struct of integers that the host computes from the problem and passes by value: it then lies in constant memory,
    where all lanes of a warp read one element at no cost. Its fields follow one another without padding."""

    name: str
    struct: str
    """The name of the C type, which the source declares."""
    fields: tuple[HostField, ...]
    meaning: str

    @property
    def size_bytes(self) -> int:
        """Size of the struct; every element has four bytes."""
        return sum(4 * field.capacity for field in self.fields)

    def pack(self, dimensions: Mapping[str, int]) -> bytes:
        """The struct for one problem, as little-endian bytes. ``LaunchError`` if a field has no room for it."""
        packed = bytearray()
        for part in self.fields:
            count = part.count.evaluate(dimensions)
            values = [part.value.evaluate({**dimensions, "i": i}) for i in range(min(count, part.capacity))]
            low, high = (-(2**31), 2**31 - 1) if part.type == "s32" else (0, 2**32 - 1)
            if count > part.capacity or any(not low <= value <= high for value in values):
                raise LaunchError(
                    f"{self.name}.{part.name} ({part.meaning}) holds {part.capacity} {part.type} values, "
                    f"the problem needs {count}, from {min(values, default=0)} to {max(values, default=0)}"
                )
            values += [0] * (part.capacity - count)
            packed += struct.pack(f"<{part.capacity}{'i' if part.type == 's32' else 'I'}", *values)
        return bytes(packed)


@dataclass(frozen=True)
class Im2colWalk:
    """The walk of an im2col map, over the problem: corners of the walked box an axis in space, innermost first."""

    lower: tuple[Formula, ...]
    upper: tuple[Formula, ...]
    channels_per_pixel: int
    pixels_per_column: int


@dataclass(frozen=True)
class TensorMapArgument:
    """A tensor map that the host encodes: an array as the Tensor Memory Accelerator sees it, passed by value as 128 bytes.

    Axes count from the innermost one. Over an array without elements, or a null pointer, there is no map: the kernel is passed
    zeros, which it must not use.
    """

    name: str
    array: str
    """The array argument that it is a map of."""
    element: tma.Element
    extents: tuple[Formula, ...]
    strides: tuple[Formula, ...]
    """Bytes from one index to the next of axis 1, 2, ...; axis 0 is contiguous."""
    meaning: str
    box: tuple[int, ...] = ()
    """Elements an axis that one copy traverses; an im2col map has none."""
    element_strides: tuple[Formula, ...] = ()
    """Empty: 1 along every axis."""
    offset_bytes: Formula = field(default_factory=lambda: Formula("0"))
    """Offset of the map from the start of its array: a plane of a workspace, say."""
    swizzle: tma.Swizzle = "none"
    interleave: tma.Interleave = "none"
    fill: tma.Fill = "zeros"
    l2_promotion: tma.L2Promotion = "none"
    im2col: Im2colWalk | None = None

    @property
    def formulas(self) -> tuple[Formula, ...]:
        """Every formula of the map."""
        corners = (*self.im2col.lower, *self.im2col.upper) if self.im2col is not None else ()
        return (*self.extents, *self.strides, *self.element_strides, self.offset_bytes, *corners)

    def resolve(self, dimensions: Mapping[str, int], alignment: int) -> ResolvedMap:
        """The map for one problem, over an array with a given alignment in bytes. ``LaunchError`` with all reasons if the driver would
        refuse it."""

        def numbers(formulas: tuple[Formula, ...]) -> tuple[int, ...]:
            return tuple(formula.evaluate(dimensions) for formula in formulas)

        extents, offset = numbers(self.extents), self.offset_bytes.evaluate(dimensions)
        if 0 in extents:
            return ResolvedMap(self.name, self.array, offset, None)
        walk = self.im2col
        resolved = tma.TensorMap(
            element=self.element,
            extents=extents,
            strides=numbers(self.strides),
            box=self.box,
            element_strides=numbers(self.element_strides),
            interleave=self.interleave,
            swizzle=self.swizzle,
            fill=self.fill,
            l2_promotion=self.l2_promotion,
            im2col=None
            if walk is None
            else tma.Im2col(numbers(walk.lower), numbers(walk.upper), walk.channels_per_pixel, walk.pixels_per_column),
        )
        reasons = tma.problems(resolved, alignment + offset)
        if reasons:
            raise LaunchError(f"{self.name} ({self.meaning}) cannot be a tensor map of {self.array}: {'; '.join(reasons)}")
        return ResolvedMap(self.name, self.array, offset, resolved)

    def to_json(self) -> dict[str, Any]:
        """The description as plain data."""
        walk = self.im2col
        return {
            "kind": "tensor_map",
            "name": self.name,
            "array": self.array,
            "bytes": tma.MAP_BYTES,
            "element": self.element,
            "extents": [str(extent) for extent in self.extents],
            "strides": [str(stride) for stride in self.strides],
            "box": list(self.box),
            "element_strides": [str(step) for step in self.element_strides],
            "offset_bytes": str(self.offset_bytes),
            "swizzle": self.swizzle,
            "interleave": self.interleave,
            "fill": self.fill,
            "l2_promotion": self.l2_promotion,
            "im2col": None
            if walk is None
            else {
                "lower": [str(corner) for corner in walk.lower],
                "upper": [str(corner) for corner in walk.upper],
                "channels_per_pixel": walk.channels_per_pixel,
                "pixels_per_column": walk.pixels_per_column,
            },
            "meaning": self.meaning,
        }


@dataclass(frozen=True)
class ResolvedMap:
    """A tensor map of one problem that only lacks the array's address."""

    name: str
    array: str
    offset_bytes: int
    tensor_map: tma.TensorMap | None
    """None: the array has no elements."""


Argument = ScalarArgument | ArrayArgument | HostArgument | TensorMapArgument


@dataclass(frozen=True)
class Constraint:
    """A condition over the problem that the instance was generated for, such as ``lda % 4 == 0``."""

    condition: Formula
    explanation: str


@dataclass(frozen=True)
class KernelLaunch:
    """One kernel of the sequence. A launch with an empty grid is skipped."""

    entry: str
    grid: tuple[Formula, Formula, Formula]
    block: tuple[int, int, int]
    arguments: tuple[str, ...]
    """Names from ``LaunchSequence.arguments``, in the order of the kernel's parameters."""
    dynamic_shared_bytes: Formula = field(default_factory=lambda: Formula("0"))
    cluster: tuple[int, int, int] = (1, 1, 1)
    programmatic: bool = False
    """True if the kernel may start while the work before it in the stream still runs, to hide the time that a launch takes
    (programmatic stream serialization): it waits for that work itself, before it touches memory."""
    blocks_of_device: Formula | None = None
    """Blocks in x of a grid whose blocks take pieces of work in turn, by a formula that also reads ``multiprocessors`` of the device,
    for programs that ask the driver at launch; ``grid`` has a number for one device. None: every device gets the same grid."""

    @property
    def grid_of_device(self) -> tuple[Formula, Formula, Formula]:
        """The grid by formulas that may also read ``multiprocessors``."""
        return self.grid if self.blocks_of_device is None else (self.blocks_of_device, *self.grid[1:])

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    def grid_of(self, problem: Mapping[str, int]) -> tuple[int, int, int]:
        """Blocks in x, y, z for one problem."""
        x, y, z = (formula.evaluate(problem) for formula in self.grid)
        return x, y, z


MULTIPROCESSORS = "multiprocessors"
"""Name in formulas of the number of multiprocessors of a device."""
MAX_MULTIPROCESSORS = 4096
CLUSTERED = {1: 132, 2: 132, 3: 117, 4: 120, 5: 110, 6: 102, 7: 105, 8: 120}
"""Multiprocessors of an H200 that clusters of so many blocks use at a time, one block on each (``cuOccupancyMaxActiveClusters``): a cluster
lies within one of the processor's parts, whose number of multiprocessors few sizes divide."""


def grid_in_turn(works: str, blocks: int, cluster: int = 1) -> tuple[Formula, Formula | None]:
    """Blocks in x of a grid that has as many clusters as pieces of work, or of which at most so many blocks take these in turn; 0: as many
    as there are. And the same for a device of ``multiprocessors``, where the number is that of an H200, or None."""
    if not blocks:
        return _in_clusters(works, cluster), None
    at_once = _in_clusters(f"min({works}, {blocks // cluster})", cluster)
    if blocks % CLUSTERED.get(cluster, CLUSTERED[1]):
        return at_once, None
    clusters = f"max({MULTIPROCESSORS} * {blocks} // {CLUSTERED[1] * cluster}, 1)"
    return at_once, _in_clusters(f"min({works}, {clusters})", cluster)


def _in_clusters(clusters: str, cluster: int) -> Formula:
    return Formula(f"{cluster} * ({clusters})" if cluster > 1 else clusters)


GRID_LIMITS = (2**31 - 1, 65535, 65535)
"""The most blocks in x, y, z on every architecture."""

MAX_WORKSPACE = 1 << 32
"""Bytes; an instance that would need more for a problem was made for another one."""

PORTABLE_CLUSTER = 8
"""The most blocks of a cluster that every architecture with clusters has; more must be asked for."""


@dataclass(frozen=True)
class ResolvedLaunch:
    """One launch of one problem: its formulas as numbers, its arguments with their types."""

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    shared_bytes: int
    """Dynamic shared memory."""
    parameters: tuple[tuple[str, str], ...]
    """(argument name, type) in the order of the kernel's parameters; the type of an array is ``pointer``, that of a host
    argument ``struct``, that of a tensor map ``tensor_map``."""
    structs: tuple[tuple[str, bytes], ...] = ()
    """(argument name, value) of the host arguments among the parameters."""
    tensor_maps: tuple[ResolvedMap, ...] = ()
    """The tensor maps among the parameters."""
    programmatic: bool = False

    @property
    def cluster_blocks(self) -> int:
        """Blocks of a cluster."""
        return self.cluster[0] * self.cluster[1] * self.cluster[2]


@dataclass(frozen=True)
class LaunchSequence:
    """The data that a caller needs to run an instance."""

    name: str
    dimensions: tuple[Dimension, ...]
    arguments: tuple[Argument, ...]
    launches: tuple[KernelLaunch, ...]
    constraints: tuple[Constraint, ...] = ()
    workspace_bytes: Formula = field(default_factory=lambda: Formula("0"))
    """Size of the workspace, the memory that every workspace argument points to; it is the sequence's alone while it runs."""
    workspace_zero_bytes: Formula = field(default_factory=lambda: Formula("0"))
    """Number of bytes at the start of the workspace, for tickets and flags, that the host sets to zero before it is first used.
    Every run of the sequence leaves them zero, so that the next run with the same workspace finds them so; the rest of
    the workspace holds anything."""

    def completed(self, known: Mapping[str, int]) -> dict[str, int]:
        """A problem with its other dimensions at their defaults, which may depend on dimensions after them, as strides on later axes."""
        problem = dict(known)
        defaults = {each.name: each.default for each in self.dimensions if each.name not in known and each.default is not None}
        while defaults:
            name = next((name for name, default in defaults.items() if default.names <= problem.keys()), next(iter(defaults)))
            problem[name] = defaults.pop(name).evaluate(problem)
        return problem

    def argument(self, name: str) -> Argument:
        """The argument called ``name``; ``KeyError`` if there is none."""
        for argument in self.arguments:
            if argument.name == name:
                return argument
        raise KeyError(name)

    def parameters_of(self, launch: int) -> tuple[Argument, ...]:
        """The arguments of one of the launches, in the order of its kernel's parameters."""
        return tuple(self.argument(name) for name in self.launches[launch].arguments)

    @property
    def arrays(self) -> tuple[ArrayArgument, ...]:
        return tuple(argument for argument in self.arguments if isinstance(argument, ArrayArgument))

    @property
    def workspace_names(self) -> frozenset[str]:
        """The arguments that point to the workspace."""
        return frozenset(argument.name for argument in self.arrays if argument.role == "workspace")

    @property
    def host_arguments(self) -> tuple[HostArgument, ...]:
        """Values that the host computes from the problem."""
        return tuple(argument for argument in self.arguments if isinstance(argument, HostArgument))

    @property
    def tensor_maps(self) -> tuple[TensorMapArgument, ...]:
        """The tensor maps among the arguments."""
        return tuple(argument for argument in self.arguments if isinstance(argument, TensorMapArgument))

    @property
    def scalars(self) -> tuple[ScalarArgument, ...]:
        """Scalars that are no dimension of the problem, such as alpha."""
        dimensions = {dimension.name for dimension in self.dimensions}
        return tuple(a for a in self.arguments if isinstance(a, ScalarArgument) and a.name not in dimensions)

    @property
    def default_scalars(self) -> dict[str, float]:
        """The values of the scalars that a caller may leave out."""
        return {scalar.name: scalar.default for scalar in self.scalars if scalar.default is not None}

    def resolve(self, dimensions: Mapping[str, int]) -> tuple[ResolvedLaunch, ...]:
        """The launches of one problem in order, without those whose grid is empty.

        Raises ``LaunchError`` if a grid is larger than a GPU can have or does not consist of whole clusters, and if a host argument
        or a tensor map is impossible; ``FormulaError`` if a dimension is missing.
        """
        types = {argument.name: _parameter_type(argument) for argument in self.arguments}
        structs: dict[str, bytes] = {}
        maps: dict[str, ResolvedMap] = {}
        resolved: list[ResolvedLaunch] = []
        for launch in self.launches:
            grid = launch.grid_of(dimensions)
            if min(grid) < 0 or any(blocks > limit for blocks, limit in zip(grid, GRID_LIMITS, strict=True)):
                raise LaunchError(
                    f"{launch.entry} would need a grid of {grid} blocks; a GPU has at most {GRID_LIMITS}: "
                    "make the problem smaller or the threadblock tile larger"
                )
            if 0 in grid:
                continue
            if any(blocks % size for blocks, size in zip(grid, launch.cluster, strict=True)):
                raise LaunchError(
                    f"{launch.entry} would need a grid of {grid} blocks, which does not consist of clusters of {launch.cluster}"
                )
            taken = set(launch.arguments)
            structs |= {one.name: one.pack(dimensions) for one in self.host_arguments if one.name in taken - structs.keys()}
            maps |= {one.name: self._resolve_map(one, dimensions) for one in self.tensor_maps if one.name in taken - maps.keys()}
            resolved.append(
                ResolvedLaunch(
                    entry=launch.entry,
                    grid=grid,
                    block=launch.block,
                    cluster=launch.cluster,
                    shared_bytes=launch.dynamic_shared_bytes.evaluate(dimensions),
                    parameters=tuple((name, types[name]) for name in launch.arguments),
                    structs=tuple((name, structs[name]) for name in launch.arguments if name in structs),
                    tensor_maps=tuple(maps[name] for name in launch.arguments if name in maps),
                    programmatic=launch.programmatic,
                )
            )
        return tuple(resolved)

    def _resolve_map(self, tensor_map: TensorMapArgument, dimensions: Mapping[str, int]) -> ResolvedMap:
        array = self.argument(tensor_map.array)
        assert isinstance(array, ArrayArgument), f"{tensor_map.name} is a map of {tensor_map.array}, which is no array"
        return tensor_map.resolve(dimensions, array.alignment)

    def to_json(self) -> dict[str, Any]:
        """The description as plain data, for certificates and hosts in other languages."""
        arguments: list[dict[str, Any]] = []
        for argument in self.arguments:
            if isinstance(argument, ScalarArgument):
                arguments.append(
                    {
                        "kind": "scalar",
                        "name": argument.name,
                        "type": argument.type,
                        "default": argument.default,
                        "meaning": argument.meaning,
                    }
                )
            elif isinstance(argument, HostArgument):
                arguments.append(
                    {
                        "kind": "host",
                        "name": argument.name,
                        "struct": argument.struct,
                        "bytes": argument.size_bytes,
                        "fields": [
                            {
                                "name": part.name,
                                "type": part.type,
                                "capacity": part.capacity,
                                "count": str(part.count),
                                "value": str(part.value),
                                "meaning": part.meaning,
                            }
                            for part in argument.fields
                        ],
                        "meaning": argument.meaning,
                    }
                )
            elif isinstance(argument, TensorMapArgument):
                arguments.append(argument.to_json())
            else:
                arguments.append(
                    {
                        "kind": "array",
                        "name": argument.name,
                        "type": argument.type,
                        "role": argument.role,
                        "shape": [str(extent) for extent in argument.shape],
                        "strides": [str(stride) for stride in argument.strides],
                        "alignment": argument.alignment,
                        "needed": argument.needed,
                        "meaning": argument.meaning,
                    }
                )
        return {
            "name": self.name,
            "dimensions": [
                {
                    "name": d.name,
                    "minimum": d.minimum,
                    "maximum": d.maximum,
                    "default": None if d.default is None else str(d.default),
                    "meaning": d.meaning,
                }
                for d in self.dimensions
            ],
            "arguments": arguments,
            "constraints": [{"condition": str(c.condition), "explanation": c.explanation} for c in self.constraints],
            "workspace_bytes": str(self.workspace_bytes),
            "workspace_zero_bytes": str(self.workspace_zero_bytes),
            "launches": [
                {
                    "entry": launch.entry,
                    "grid": [str(extent) for extent in launch.grid],
                    "block": list(launch.block),
                    "cluster": list(launch.cluster),
                    "programmatic": launch.programmatic,
                    "dynamic_shared_bytes": str(launch.dynamic_shared_bytes),
                    "arguments": list(launch.arguments),
                }
                for launch in self.launches
            ],
        }


def _parameter_type(argument: Argument) -> str:
    match argument:
        case ScalarArgument():
            return argument.type
        case ArrayArgument():
            return "pointer"
        case HostArgument():
            return "struct"
        case TensorMapArgument():
            return "tensor_map"
