"""Tensor maps in exports: names of the driver's enumerators, and maps as C that fills in and checks the driver's arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gemmgen.core.formulas import Formula
from gemmgen.export.arithmetic import Expression, Facts, to_c
from gemmgen.export.text import c_name
from gemmgen.kernels.launch import LaunchSequence, TensorMapArgument

_ELEMENTS = {
    "u8": "UINT8",
    "u16": "UINT16",
    "u32": "UINT32",
    "s32": "INT32",
    "u64": "UINT64",
    "s64": "INT64",
    "f16": "FLOAT16",
    "f32": "FLOAT32",
    "f64": "FLOAT64",
    "bf16": "BFLOAT16",
    "f32_ftz": "FLOAT32_FTZ",
    "tf32": "TFLOAT32",
    "tf32_ftz": "TFLOAT32_FTZ",
}
_FILLS = {"zeros": "NONE", "nan": "NAN_REQUEST_ZERO_FMA"}

_MAX_EXTENT = 1 << 32
_MAX_STRIDE = 1 << 40
_MAX_STEP = 8


@dataclass(frozen=True)
class Modes:
    """The enumerators of a map, as cuda.h and cuda-python spell them."""

    element: str
    interleave: str
    swizzle: str
    l2_promotion: str
    fill: str


def modes(argument: TensorMapArgument) -> Modes:
    """The enumerators of a map."""
    promotion = "NONE" if argument.l2_promotion == "none" else f"L2_{argument.l2_promotion}"
    return Modes(
        element=f"CU_TENSOR_MAP_DATA_TYPE_{_ELEMENTS[argument.element]}",
        interleave=f"CU_TENSOR_MAP_INTERLEAVE_{argument.interleave.upper()}",
        swizzle=f"CU_TENSOR_MAP_SWIZZLE_{argument.swizzle.upper()}",
        l2_promotion=f"CU_TENSOR_MAP_L2_PROMOTION_{promotion}",
        fill=f"CU_TENSOR_MAP_FLOAT_OOB_FILL_{_FILLS[argument.fill]}",
    )


@dataclass(frozen=True)
class Part:
    """A list of numbers of a map, computed in C, and the conditions under which the driver would refuse one of them."""

    name: str
    type: str
    values: tuple[Expression, ...]
    impossible: tuple[str, ...]
    """Over the local array ``values``; empty: none can be wrong."""
    meaning: str


@dataclass(frozen=True)
class Map:
    """A tensor map in C."""

    name: str
    meaning: str
    rank: int
    pointer: str
    """The array, or ``workspace``."""
    modes: Modes
    box: tuple[int, ...]
    walk: tuple[int, int] | None
    """Channels per pixel and pixels per column of an im2col map."""
    parts: tuple[Part, ...]

    @property
    def expressions(self) -> list[Expression]:
        return [value for part in self.parts for value in part.values]


def to_c_map(sequence: LaunchSequence, argument: TensorMapArgument, facts: Facts, names: Mapping[str, str]) -> Map:
    """A map in C; ``facts``: conditions that hold once the problem is known to have work."""
    unit = 32 if argument.interleave == "32B" else 16
    walk = argument.im2col

    def part(name: str, kind: str, formulas: Sequence[Formula], low: int, high: int, multiple: int, meaning: str) -> Part:
        values = tuple(to_c(formula, facts, names) for formula in formulas)
        impossible = []
        for index, value in enumerate(values):
            at = f"values[{index}]"
            impossible += [f"{at} < {low}"] if value.limits[0] < low else []
            impossible += [f"{at} > INT64_C({high})"] if value.limits[1] > high else []
            divides = multiple == 1 or (value.constant is not None and value.constant % multiple == 0)
            impossible += [] if divides else [f"{at} % {multiple} != 0"]
        return Part(name, kind, values, tuple(impossible), meaning)

    parts = [part("extents", "uint64_t", argument.extents, 0, _MAX_EXTENT, 1, "extents of 0 to 2^32")]
    if argument.strides:
        meaning = f"strides of whole multiples of {unit} bytes, below 2^40"
        parts.append(part("strides", "uint64_t", argument.strides, 0, _MAX_STRIDE - 1, unit, meaning))
    steps = argument.element_strides or (Formula("1"),) * len(argument.extents)
    parts.append(part("steps", "uint32_t", steps, 1, _MAX_STEP, 1, "element strides of 1 to 8"))
    parts.append(part("offset", "int64_t", (argument.offset_bytes,), 0, 2**63 - 1, unit, f"an offset of a multiple of {unit} bytes"))
    if walk is not None:
        limit = {3: 1 << 15, 4: 1 << 7, 5: 1 << 4}[len(argument.extents)]
        for name, corner in (("lower", walk.lower), ("upper", walk.upper)):
            parts.append(part(name, "int", corner, -limit, limit - 1, 1, f"corners of {-limit} to {limit - 1}"))
    is_workspace = argument.array in sequence.workspace_names
    return Map(
        name=c_name(argument.name),
        meaning=argument.meaning,
        rank=len(argument.extents),
        pointer="workspace" if is_workspace else c_name(argument.array),
        modes=modes(argument),
        box=argument.box,
        walk=None if walk is None else (walk.channels_per_pixel, walk.pixels_per_column),
        parts=tuple(parts),
    )
