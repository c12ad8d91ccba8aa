"""The launch sequence of a convolution on ``wgmma``: tensor maps of x, the filter and y, and one launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.formulas import Formula, ceil_div
from gemmgen.hardware import tensor_map as tma
from gemmgen.kernels.conv2d.layouts import FILLED_ELEMENTS, NEIGHBOURS, FilterOrder
from gemmgen.kernels.conv2d.problem import (
    MAX_EXTENT,
    OUTPUT_EXTENTS,
    channel_units,
    dimensions,
    explained,
    fixed_parameters,
    integer,
    most_products,
    specialised,
)
from gemmgen.kernels.conv2d.sequence import filter_array, layer_arguments, packed
from gemmgen.kernels.conv2d.spec import Conv2dSpec
from gemmgen.kernels.conv2d.warpgroup import BLOCKS_OF_A_MAP, PixelLoop, StagedOutput, StagedRows
from gemmgen.kernels.epilogue.steps import Step
from gemmgen.kernels.epilogue.sums import stores_of
from gemmgen.kernels.launch import (
    Argument,
    ArrayArgument,
    Constraint,
    Im2colWalk,
    KernelLaunch,
    LaunchSequence,
    TensorMapArgument,
    grid_in_turn,
)
from gemmgen.kernels.tiles.division import divisors_argument

SWIZZLES: dict[int, tma.Swizzle] = {32: "32B", 64: "64B", 128: "128B"}
MAX_STRIDE = 8
"""Steps of TMA's walk through images."""
FARTHEST = {"nhwc": (128, 255), "nchw32": (16, 31)}
"""Reach of its walk: corners, and filter taps, where blocks of channels are a third dimension or not."""
MAX_MAPS = 4
"""Tensor maps of x that a kernel takes."""


def warpgroup_sequence(
    spec: Conv2dSpec,
    name: str,
    loop: PixelLoop,
    staged: StagedOutput | StagedRows | None,
    order: FilterOrder,
    passed: Sequence[str],
    divisors: Mapping[str, str],
    steps: Sequence[Step],
    taps: int,
    maps_of_x: int,
    walks: bool,
    shared_bytes: int,
) -> LaunchSequence:
    """The sequence. ``passed``: parameters of the layer that are kernel arguments; ``divisors``: formulas of the numbers that the
    kernel divides by, by name; ``taps``: filter taps that share pixels; ``maps_of_x``: tensor maps that it takes; ``walks``: copies walk
    through images."""
    known = {dimension.name: dimension for dimension in dimensions(spec)}
    blocked = spec.input.layout == "nchw32"
    depth = _filled_depth(spec)
    extents = ("n", "c_blocks", "h", "w", "32") if blocked else ("n", "h", "w", "c")
    x = packed("x", spec.input.type, "input", extents, f"the images in {spec.input.layout.upper()}")
    rows = f"round_up(k, {NEIGHBOURS})" if order in ("neighbours", "filled_neighbours") else "k"
    filters = filter_array(spec, (rows, *((depth,) if loop.vectors else ("r", "s", _inputs(spec)))), order)
    layer = layer_arguments(spec, steps, *_tap_sums(spec))
    extra, y, numbers = layer.inputs, layer.output, layer.numbers
    of_x = [_block_map(loop, index) for index in range(maps_of_x)] if blocked else [_pixel_map(loop, walks, taps)]
    if loop.vectors:
        of_x = []
    maps: list[TensorMapArgument] = [_filter_map(loop, filters, _inputs(spec), depth), *of_x]
    boxes = spec.store == "tma"
    if isinstance(staged, StagedOutput) and boxes:
        maps.append(_output_map(spec, staged, y))
    integers = [integer(known[dim]) for dim in ("n", "p", "q", *passed)]
    divided = divisors_argument(divisors, bool(stores_of(steps)))
    main: list[Argument] = [*maps, *([x] if loop.vectors else []), *extra, *([] if boxes else [y]), *integers, *numbers, divided]
    columns = f"(q + {taps - 1})" if taps > 1 else "q"
    clusters = f"ceil_div(k, {loop.tile_m * loop.cluster_m}) * ceil_div(n * p * {columns}, {loop.tile_pixels * loop.cluster_n})"
    blocks = loop.cluster_blocks
    at_once, blocks_of_device = grid_in_turn(clusters, loop.persistent_blocks, blocks)
    launch = KernelLaunch(
        entry=name,
        grid=(at_once, Formula("1"), Formula("1")),
        block=(loop.threads, 1, 1),
        arguments=tuple(argument.name for argument in main),
        dynamic_shared_bytes=Formula(str(shared_bytes)),
        cluster=(blocks, 1, 1),
        programmatic=spec.early_launch,
        blocks_of_device=blocks_of_device,
    )
    return LaunchSequence(
        name,
        tuple(known.values()),
        tuple([x, filters, *extra, y, *integers, *numbers, divided, *maps]),
        (launch,),
        _constraints(spec, clusters, walks and not loop.vectors, columns) + (_reach(spec) if loop.vectors else ()),
    )


def _tap_sums(spec: Conv2dSpec) -> list[Argument]:
    """Sums over the filter, by which a zero point is taken into account."""
    if spec.zero_point == "none":
        return []
    meaning = "sums of the filter over all input channels, and over the taps above and left of each, by gemmgen.layouts.tap_sums(w)"
    return [packed("tap_sums", "s32", "input", ("r + 1", "s + 1", "k"), meaning)]


def _inputs(spec: Conv2dSpec) -> str:
    """Input channels of a sum, as a formula."""
    return "c" if fixed_parameters(spec)["groups"] == 1 else "(c // groups)"


def _filled_depth(spec: Conv2dSpec) -> str:
    """Input channels of all taps of a filter, filled up to whole rows of shared memory, as a formula."""
    return f"round_up(r * s * {_inputs(spec)}, {FILLED_ELEMENTS})"


def _reach(spec: Conv2dSpec) -> tuple[Constraint, ...]:
    """Constraints of kernels whose threads copy x: ints hold coordinates and products of a sum."""
    most = MAX_EXTENT
    limits = [(f"r * s * {_inputs(spec)} <= {most}", f"sums must have at most {most} products, which an int counts")]
    for extent, axis, taps in (("rows", "h", "r"), ("columns", "w", "s")):
        reach = f"{axis} + 2 * padding_{axis} + dilation_{axis} * {taps}"
        limits.append((f"{reach} <= {most}", f"{extent} of an image with its padding, and a filter beyond, must be at most {most}"))
    return explained(limits)


def _filter_map(loop: PixelLoop, filters: ArrayArgument, inputs: str, depth: str) -> TensorMapArgument:
    size = loop.a.element_bytes
    each = "products" if loop.vectors else "input channels of one tap"
    return TensorMapArgument(
        name="map_filter",
        array="filter",
        element=tma.copied_as(loop.type_a),
        extents=(Formula(depth if loop.vectors else inputs), Formula("1" if loop.vectors else "r * s"), filters.shape[0]),
        strides=(
            Formula(f"{size} * {depth if loop.vectors else inputs}"),
            Formula(f"{size} * {depth if loop.vectors else f'{inputs} * r * s'}"),
        ),
        meaning=f"the filter in boxes of {loop.a.box_rows} output channels, {loop.a.span_elements} {each} each",
        box=(loop.a.span_elements, 1, loop.a.box_rows),
        swizzle=SWIZZLES[loop.a.row_bytes],
        l2_promotion="256B",
    )


def _pixel_map(loop: PixelLoop, walks: bool, taps: int) -> TensorMapArgument:
    size = loop.b.element_bytes
    row = Formula(f"{size} * c")
    map_x = partial(
        TensorMapArgument,
        name="map_x",
        array="x",
        element=tma.copied_as(loop.type_b),
        swizzle=SWIZZLES[loop.b.row_bytes],
        l2_promotion="256B",
    )
    channels, pixels = loop.b.span_elements, loop.b.box_rows
    if not walks:
        return map_x(
            extents=(Formula("c"), Formula("n * h * w")),
            strides=(row,),
            meaning=f"x in boxes of {pixels} pixels of {channels} channels",
            box=(channels, pixels),
        )
    corners, ends = _corners()
    if taps > 1:
        ends = (Formula("padding_w"), ends[1])  # all pixels of a row, with those of the padding
    return map_x(
        extents=tuple(Formula(extent) for extent in ("c", "w", "h", "n")),
        strides=(row, Formula(f"{size} * c * w"), Formula(f"{size} * c * w * h")),
        meaning=f"x in columns of {pixels} pixels of {channels} channels, those under one filter tap of consecutive pixels of y",
        element_strides=tuple(Formula(step) for step in ("1", "stride_w", "stride_h", "1")),
        im2col=Im2colWalk(corners, ends, channels, pixels),
    )


def _corners() -> tuple[tuple[Formula, ...], tuple[Formula, ...]]:
    """The first place of a walk along each axis of an image, and the last, from the image's end."""
    first = tuple(Formula(f"0 - padding_{axis}") for axis in "wh")
    last = tuple(Formula(f"padding_{axis} - ({taps} - 1) * dilation_{axis}") for axis, taps in (("w", "s"), ("h", "r")))
    return first, last


def pixel_maps(c: int | None) -> int:
    """Tensor maps of an x in NCHW32 with ``c`` channels; as many as there may be, where that is open."""
    return MAX_MAPS if c is None else ceil_div(c, 32 * BLOCKS_OF_A_MAP)


def _block_map(loop: PixelLoop, index: int) -> TensorMapArgument:
    """Some blocks of 32 channels of an x in NCHW32: a depth, at which the walk stays where it begins while an offset chooses the block.
    Where there are none of them, there is no map."""
    corners, ends = _corners()
    blocks = f"max(0, min({BLOCKS_OF_A_MAP}, c_blocks - {BLOCKS_OF_A_MAP * index}))"
    return TensorMapArgument(
        name="map_x" if index == 0 else f"map_x{index}",
        array="x",
        element="u8",
        extents=tuple(Formula(extent) for extent in ("32", "w", "h", blocks, "n")),
        strides=tuple(Formula(stride) for stride in ("32", "32 * w", "32 * w * h", "32 * w * h * c_blocks")),
        meaning=f"x from block {BLOCKS_OF_A_MAP * index} on, in columns of {loop.b.box_rows} pixels of 32 channels",
        element_strides=tuple(Formula(step) for step in ("1", "stride_w", "stride_h", "1", "1")),
        offset_bytes=Formula(f"{32 * BLOCKS_OF_A_MAP * index} * w * h"),
        swizzle="32B",
        l2_promotion="256B",
        im2col=Im2colWalk((*corners, Formula("0")), (*ends, Formula(f"1 - {blocks}")), 32, loop.b.box_rows),
    )


def _output_map(spec: Conv2dSpec, staged: StagedOutput, y: ArrayArgument) -> TensorMapArgument:
    size = ELEMENTS[spec.output.type].bytes
    return TensorMapArgument(
        name="map_y",
        array="y",
        element="u8" if size == 1 else "bf16" if spec.output.type == "bf16" else "f16",
        extents=(Formula("k"), Formula("n * p * q")),
        strides=(Formula(f"{size} * k"),),
        meaning=f"y in boxes of {staged.pixels} pixels of {staged.row_channels} channels",
        box=staged.box,
        swizzle=SWIZZLES[staged.row_bytes],
    )


def _constraints(spec: Conv2dSpec, clusters: str, walks: bool, columns: str) -> tuple[Constraint, ...]:
    fixed = fixed_parameters(spec)
    unit_c, unit_k = channel_units(spec)
    groups = fixed["groups"]
    constraints = []
    if unit_c > 1:
        why = (
            "x holds blocks of 32 channels"
            if spec.input.layout == "nchw32"
            else "TMA requires pixel strides that are multiples of 16 bytes"
        )
        constraints.append((f"c % {unit_c} == 0", f"c must be a multiple of {unit_c}; {why}"))
    if spec.input.layout == "nchw32":
        constraints.append(("c == 32 * c_blocks", "x has all channels"))
        most = BLOCKS_OF_A_MAP * MAX_MAPS
        constraints.append((f"c_blocks <= {most}", f"tensor maps reach {32 * most} channels"))
    if unit_k > 1:
        why = (
            "y holds blocks of 32 channels"
            if spec.output.layout == "nchw32"
            else "TMA requires pixel strides of y that are multiples of 16 bytes"
        )
        constraints.append((f"k % {unit_k} == 0", f"k must be a multiple of {unit_k}; {why}"))
    constraints += [
        *OUTPUT_EXTENTS,
        (f"groups == {groups}", f"groups must be {groups}"),
        (
            f"n * p * {columns} <= {MAX_EXTENT - 1024}",
            f"n p {columns} must be at most {MAX_EXTENT - 1024}; an int counts the pixels of y",
        ),
        (f"{clusters} <= {MAX_EXTENT}", f"y must have at most {MAX_EXTENT} tiles; an int counts them"),
    ]
    if spec.input.type in ("s8", "u8"):
        constraints.append(
            (
                f"{_inputs(spec)} * r * s <= {most_products(spec)}",
                f"sums must have at most {most_products(spec)} products each, so that they fit into int32",
            )
        )
    constraints += specialised({name: value for name, value in fixed.items() if name != "groups"})
    if walks:
        corner, offset = FARTHEST[spec.input.layout]
        for axis, taps in (("h", "r"), ("w", "s")):
            constraints += [
                (f"stride_{axis} <= {MAX_STRIDE}", f"stride_{axis} must be at most {MAX_STRIDE}, TMA's largest"),
                (
                    f"padding_{axis} <= {corner}",
                    f"padding_{axis} must be at most {corner}; TMA begins no farther before an image",
                ),
                (
                    f"({taps} - 1) * dilation_{axis} <= {corner} + min(padding_{axis}, {offset - corner})",
                    f"({taps} - 1) dilation_{axis} must be at most {corner} + min(padding_{axis}, {offset - corner}), "
                    "the limit of TMA's offsets",
                ),
            ]
    return explained(constraints)
