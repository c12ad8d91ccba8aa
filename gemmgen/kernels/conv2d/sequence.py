"""A convolution's launch sequence: arguments, the table of filter taps, and one or two launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gemmgen.core.elements import DataType
from gemmgen.core.formulas import Formula
from gemmgen.kernels.conv2d.epilogue import arguments_of, output_layout, packed_strides
from gemmgen.kernels.conv2d.layouts import FilterOrder
from gemmgen.kernels.conv2d.problem import PARAMETERS, constraints, dimensions, explained, fixed_parameters, integer, specialised
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
    layer = layer_arguments(spec, steps)
    factors = layer.numbers
    filters = filter_array(spec, ("c_blocks // groups", "r", "s", "k", "32"), filter_order)
    inputs: list[Argument] = [packed("x", "s8", "input", ("n", "c_blocks", "h", "w", "32"), "the images in NCHW32"), filters]
    extra: list[Argument] = [*layer.inputs, layer.output]
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


def filter_array(spec: Conv2dSpec, extents: tuple[str, ...], order: FilterOrder) -> ArrayArgument:
    """The filter, whose numbers have the sign that those of x may lack."""
    meaning = f'the filter, reordered by gemmgen.layouts.reorder_filter(w, "{order}")'
    return packed("filter", "s8" if spec.input.type == "u8" else spec.input.type, "input", extents, meaning)


def _output_array(spec: Conv2dSpec, name: str, role: ArrayRole, meaning: str) -> ArrayArgument:
    """An array like y."""
    array = packed(name, spec.output.type, role, output_layout(spec), f"{meaning} in {spec.output.layout.upper()}")
    in_place = [argument_name(operand.name) for operation in spec.epilogue for operand in operation.operands() if operand.in_place]
    return replace(array, shares=in_place[0]) if name == "y" and in_place else array


@dataclass(frozen=True)
class LayerArguments:
    """The arguments of a layer beside x, the filter and its integers."""

    inputs: list[Argument]
    """Factors of output channels, bias, z, and what the epilogue reads and writes beside y."""
    output: ArrayArgument
    numbers: list[Argument]
    """The numbers that results are composed with."""


def layer_arguments(spec: Conv2dSpec, steps: Sequence[Step], *added: Argument) -> LayerArguments:
    """The arguments of a layer with the epilogue ``steps``; ``added``: arrays of a strategy, after z."""
    read = arguments_of(steps)
    inputs: list[Argument] = []
    if spec.alpha == "channel":
        inputs.append(packed("alpha", "f32", "input", ("k",), "factor of the convolution for each output channel"))
    if spec.bias != "none":
        inputs.append(packed("bias", spec.bias, "input", ("k",), "one value for each output channel"))
    if spec.residual:
        inputs.append(_output_array(spec, "z", "input", "added to the result"))
    inputs += [*added, *(argument for argument in read if isinstance(argument, ArrayArgument))]
    numbers = [*_factors(spec), *(argument for argument in read if isinstance(argument, ScalarArgument))]
    return LayerArguments(inputs, _output_array(spec, "y", "output", "the result"), numbers)


def single_launch(
    spec: Conv2dSpec,
    name: str,
    x: ArrayArgument,
    filters: ArrayArgument,
    steps: Sequence[Step],
    divisors: Mapping[str, str],
    limits: Sequence[tuple[str, str]],
    *,
    blocks: str,
    threads: int,
    shared_bytes: int = 0,
) -> LaunchSequence:
    """The sequence of a kernel that computes all of y in one launch of ``blocks``; ``limits``: conditions and their explanations."""
    known, fixed = {dimension.name: dimension for dimension in dimensions(spec)}, fixed_parameters(spec)
    layer = layer_arguments(spec, steps)
    integers = [integer(known[dim]) for dim in ("n", "h", "w", "p", "q", *(dim for dim in PARAMETERS if dim not in fixed))]
    divided = divisors_argument(divisors, bool(stores_of(steps)))
    arguments: list[Argument] = [x, filters, *layer.inputs, layer.output, *integers, *layer.numbers, divided]
    launch = KernelLaunch(
        entry=name,
        grid=(Formula(blocks), Formula("1"), Formula("1")),
        block=(threads, 1, 1),
        arguments=tuple(argument.name for argument in arguments),
        dynamic_shared_bytes=Formula(str(shared_bytes)),
        programmatic=spec.early_launch,
    )
    return LaunchSequence(name, tuple(known.values()), tuple(arguments), (launch,), explained([*limits, *specialised(fixed)]))


def _partial(spec: Conv2dSpec) -> ArrayArgument:
    return packed("partial", "s32", "workspace", (str(spec.split_k), "k // 32", "n * p * q", "32"), "the sums of each part")


def _factors(spec: Conv2dSpec) -> list[Argument]:
    scalars: list[Argument] = []
    scaled = spec.output.type != "s32"
    if scaled and spec.alpha == "argument":
        scalars.append(ScalarArgument("alpha", "f32", "factor of the convolution", default=1.0))
    if scaled and spec.bias != "none" and spec.beta == "argument":
        scalars.append(ScalarArgument("beta", "f32", "factor of the bias", default=1.0))
    if scaled and spec.residual and spec.gamma == "argument":
        scalars.append(ScalarArgument("gamma", "f32", "factor of z", default=1.0))
    if spec.zero_point != "none":
        scalars.append(ScalarArgument("zero_point", "f32", "the integer in x that stands for zero", default=0.0))
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
