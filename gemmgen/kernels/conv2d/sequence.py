"""A convolution's launch sequence: arguments, the table of filter taps, and one or two launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gemmgen.core.elements import DataType
from gemmgen.core.formulas import Formula
from gemmgen.kernels.conv2d.epilogue import arguments_of, output_layout, packed_strides
from gemmgen.kernels.conv2d.layouts import FilterOrder
from gemmgen.kernels.conv2d.problem import constraints, dimensions, integer
from gemmgen.kernels.conv2d.spec import Conv2dSpec
from gemmgen.kernels.epilogue.operations import argument_name
from gemmgen.kernels.epilogue.steps import Step
from gemmgen.kernels.epilogue.sums import stores_of
from gemmgen.kernels.launch import (
    Argument,
    ArrayArgument,
    ArrayRole,
    HostArgument,
    HostField,
    KernelLaunch,
    LaunchSequence,
    ScalarArgument,
    grid_in_turn,
)
from gemmgen.kernels.tiles.division import divisors_argument

VECTOR_ALIGNMENT = 16
COLUMN_BIT = 16
"""First bit of a filter tap's or a pixel's bounds that stands for a column of the filter, after those of its rows."""


@dataclass(frozen=True)
class TapTable:
    """The table of steps between filter taps."""

    entries: int
    advance: int
    """Entries that a thread moves on by at a time."""
    bounded: bool
    """True if it also says which rows and columns must lie within the image."""


def build_sequence(
    spec: Conv2dSpec,
    name: str,
    table: TapTable | None,
    filter_order: FilterOrder,
    passed: Sequence[str],
    divisors: Mapping[str, str],
    steps: Sequence[Step],
    *,
    threads: int,
    tile: tuple[int, int],
    shared_bytes: int,
    finish_pixels: int,
    finish_threads: int,
) -> LaunchSequence:
    """The sequence.

    ``passed``: parameters of the layer that are kernel arguments; ``divisors``: formulas of the numbers that the kernel
    divides by, by name; ``tile``: pixels and channels of a block.
    """
    known = {dimension.name: dimension for dimension in dimensions(spec)}
    read = arguments_of(steps)
    factors = [*factor_scalars(spec), *(argument for argument in read if isinstance(argument, ScalarArgument))]
    bias, residual = bias_array(spec), _residual(spec)
    inputs: list[Argument] = [_input(), _filter(filter_order)]
    arrays = [argument for argument in read if isinstance(argument, ArrayArgument)]
    extra: list[Argument] = [*bias, *residual, *arrays, output_array(spec, "y", "output", "the result")]
    partial: list[Argument] = [_partial(spec)] if spec.split_k > 1 else []
    integers = [integer(known[dim]) for dim in ("n", "h", "w", "p", "q")] + [integer(known[dim]) for dim in passed]
    host: list[Argument] = [divisors_argument(divisors, bool(stores_of(steps)))] if divisors else []
    host += [_taps(table)] if table else []
    parts = spec.split_k
    tiles = f"ceil_div(n * p * q, {tile[0]}) * ceil_div(k // groups, {tile[1]})"
    main = [*inputs, *(partial or extra), *integers, *([] if partial else factors), *host]
    blocks, blocks_of_device = grid_in_turn(tiles, spec.persistent_blocks or 0)
    launches = [
        KernelLaunch(
            entry=name,
            grid=(blocks, Formula("groups"), Formula(str(parts))),
            block=(threads, 1, 1),
            arguments=tuple(argument.name for argument in main),
            dynamic_shared_bytes=Formula(str(shared_bytes)),
            programmatic=spec.early_launch,
            blocks_of_device=blocks_of_device,
        )
    ]
    if partial:
        shape = [integer(known[dim]) for dim in ("n", "p", "q")] + [integer(known[dim]) for dim in passed if dim == "k"]
        launches.append(
            KernelLaunch(
                entry=f"{name}_finish",
                grid=(Formula(f"ceil_div(n * p * q, {finish_pixels})"), Formula("k // 32"), Formula("1")),
                block=(finish_threads, 1, 1),
                arguments=tuple(argument.name for argument in [*partial, *extra, *shape, *factors, *host[: len(divisors) and 1]]),
                programmatic=spec.early_launch,
            )
        )
    return LaunchSequence(
        name,
        tuple(known.values()),
        tuple([*inputs, *extra, *partial, *integers, *factors, *host]),
        tuple(launches),
        constraints(spec, table is not None),
        workspace_bytes=Formula(f"{4 * parts} * k * n * p * q" if partial else "0"),
    )


def packed(name: str, kind: DataType, role: ArrayRole, extents: tuple[str, ...], meaning: str) -> ArrayArgument:
    """An array without gaps."""
    return ArrayArgument(
        name=name,
        type=kind,
        role=role,
        shape=tuple(Formula(extent) for extent in extents),
        strides=tuple(Formula(stride) for stride in packed_strides(extents)),
        alignment=VECTOR_ALIGNMENT,
        meaning=meaning,
    )


def _input() -> ArrayArgument:
    return packed("x", "s8", "input", ("n", "c_blocks", "h", "w", "32"), "the images in NCHW32")


def _filter(order: FilterOrder) -> ArrayArgument:
    meaning = f'the filter, reordered by gemmgen.layouts.reorder_filter(w, "{order}")'
    return packed("filter", "s8", "input", ("c_blocks // groups", "r", "s", "k", "32"), meaning)


def output_array(spec: Conv2dSpec, name: str, role: ArrayRole, meaning: str) -> ArrayArgument:
    """An array like y."""
    array = packed(name, spec.output.type, role, output_layout(spec), f"{meaning} in {spec.output.layout.upper()}")
    in_place = [argument_name(operand.name) for operation in spec.epilogue for operand in operation.operands() if operand.in_place]
    return replace(array, shares=in_place[0]) if name == "y" and in_place else array


def alpha_array(spec: Conv2dSpec) -> list[Argument]:
    """The factors of output channels, if each has its own."""
    if spec.alpha != "channel":
        return []
    return [packed("alpha", "f32", "input", ("k",), "factor of the convolution for each output channel")]


def bias_array(spec: Conv2dSpec) -> list[Argument]:
    """The bias, if there is one."""
    if spec.bias == "none":
        return []
    return [packed("bias", spec.bias, "input", ("k",), "one value for each output channel")]


def _residual(spec: Conv2dSpec) -> list[Argument]:
    return [output_array(spec, "z", "input", "added to the result")] if spec.residual else []


def _partial(spec: Conv2dSpec) -> ArrayArgument:
    return packed("partial", "s32", "workspace", (str(spec.split_k), "k // 32", "n * p * q", "32"), "the sums of each part")


def factor_scalars(spec: Conv2dSpec) -> list[Argument]:
    """The numbers that results are composed with."""
    if spec.output.type == "s32":
        return []
    scalars: list[Argument] = []
    if spec.alpha == "argument":
        scalars.append(ScalarArgument("alpha", "f32", "factor of the convolution", default=1.0))
    if spec.bias != "none" and spec.beta == "argument":
        scalars.append(ScalarArgument("beta", "f32", "factor of the bias", default=1.0))
    if spec.residual and spec.gamma == "argument":
        scalars.append(ScalarArgument("gamma", "f32", "factor of z", default=1.0))
    return scalars


def _taps(table: TapTable) -> HostArgument:
    def offset(entry: str) -> str:
        block = f"{entry} // (r * s) * h * w"
        row = f"{entry} % (r * s) // s * dilation_h * w"
        return f"({block} + {row} + {entry} % s * dilation_w) * 32"

    count = Formula(f"round_up({table.advance}, r * s)")  # a period that is no shorter than a thread's increment
    increment = HostField(
        "increment",
        "s32",
        table.entries,
        count,
        Formula(f"{offset(f'(i + {table.advance})')} - {offset('i')}"),
        "bytes from tap i to the next that a thread copies",
    )
    bounds = HostField(
        "bounds",
        "u32",
        table.entries,
        count,
        Formula(f"(1 << (i % (r * s) // s)) + (1 << ({COLUMN_BIT} + i % s))"),
        "bits of the filter row and the filter column of tap i",
    )
    fields = (increment, bounds) if table.bounded else (increment,)
    return HostArgument("taps", "Taps", fields, "the steps from each filter tap to the next")
