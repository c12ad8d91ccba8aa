"""Convolutions in groups of few channels by ``mma.sync`` on 16-bit floats: plan and launch sequence.

Where 16 output channels are of one group, a warp multiplies them with the input channels of that group. Else neighbouring groups fill the
16 channels of an instruction: the filter of such a block of channels is block-diagonal, with zeros between its groups. Products of these
zeros with infinities and NaN would be NaN: such sums are made again from the channels of the group alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil, lcm
from typing import Protocol

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import PlanError, Reason
from gemmgen.core.formulas import ceil_div, round_up
from gemmgen.hardware.target import WARP_THREADS, Architecture
from gemmgen.kernels.conv2d.checks import exact_reasons, mainloop_reasons
from gemmgen.kernels.conv2d.epilogue import plan_operations
from gemmgen.kernels.conv2d.layouts import FilterOrder
from gemmgen.kernels.conv2d.problem import COORDINATES, MAX_EXTENT, OUTPUT_EXTENTS, fixed_parameters
from gemmgen.kernels.conv2d.results import CONSTANT_NAMES, FinishingPlan, LayerConstant
from gemmgen.kernels.conv2d.sequence import filter_array, packed, single_launch
from gemmgen.kernels.conv2d.spec import Conv2dSpec, GroupedMainloop
from gemmgen.kernels.epilogue.steps import Step
from gemmgen.kernels.family import SharedRegion
from gemmgen.kernels.launch import LaunchSequence
from gemmgen.kernels.naming import architecture_reasons, instance_name, launch_reasons, spec_digest
from gemmgen.kernels.tiles.resources import ResidentBlocks
from gemmgen.kernels.tiles.unrolling import unroll_argument

SLICE = 16
"""Channels of an instruction, input and output."""
CHUNK = 64
"""Channels of a block's tile, if blocks of channels are no larger: 128 bytes of a pixel."""
VECTOR = 8
"""Channels that are copied at once."""
BANKS = 8
"""Vectors of 16 bytes that shared memory reads at once."""
MAX_SUMS = 96
"""Accumulators of a thread."""
MAX_UNROLLED = 400
"""Fragments of x that a warp reads in its unrolled loops."""
MAX_COLUMNS = 64
MOST_COLUMNS, PIXELS = 28, 128
"""Columns and pixels of a tile that is chosen for a layer, at most."""
MAX_BYTES = 72 << 10
"""Size of a tile of x in shared memory, at most, so that three blocks share a multiprocessor."""
FRAGMENTS, MAX_WARPS = 4, 16
"""Sixteens of pixels of a warp and warps of a block that are aimed at."""
WIDE = 48
"""Channels of a group from which a warp multiplies a tile alone, as many of its pixels as its loops can be unrolled for, or else many warps
share one with four times as many sums each: 0.80 and 0.83 of the time of two warps on an H200."""
ALONE, TOGETHER = (96, 6), (256, 4)
"""Pixels of such a tile at most, and sixteens of them for each warp."""
MIN_PIXELS = 14
"""Pixels of a tile at least: those of an instruction are 16."""
MANY_BLOCKS, MANY_WIDE_BLOCKS = 7, 4
"""Blocks to a multiprocessor from which on their number decides nothing; the same for groups of WIDE channels. 64 images of 512 channels of
14 x 14 in 32 groups take 16.7 us by 1024 blocks, 20.1 by the tile that the model prefers; 32 images of 224 channels of 28 x 28 in four
groups 50.2 by 640 blocks, 75.3."""
MULTIPROCESSORS, WARP_SLOTS, REGISTERS = 132, 64, 1 << 16
SHARED_BYTES = 227 << 10
"""Shared memory of a multiprocessor of an H200."""
START, TAP, FRAGMENT = 1335, 29.8, 25.3
"""Clock cycles in which a block copies its tile of x, and in which a warp multiplies a tap's 16 channels: for the filter, and for each
sixteen of pixels. Fitted to 17 layers on an H200 with 20 tiles each: the chosen tile takes 1.07 times as long as the best, those chosen
by size alone 1.47 times."""
PRODUCT, COPIED_BYTE = 8.0, 0.025
"""Cycles in which a multiprocessor multiplies a sixteen of pixels by 16 channels of both kinds, and copies a byte."""
KNOWN = ("c", "k", "r", "s", "stride_h", "stride_w", "dilation_h", "dilation_w", "groups")
"""Parameters that the kernel is specialised for."""


class PixelTile(Protocol):
    """The numbers of a tile of y that decide how many blocks there are."""

    @property
    def chunk(self) -> int:
        """Output channels of a block."""

    @property
    def rows(self) -> int:
        """Rows of pixels."""

    @property
    def columns(self) -> int:
        """Pixels of a row."""

    @property
    def threads(self) -> int:
        """Threads of a block."""

    @property
    def bytes(self) -> int:
        """Shared memory of a block."""


@dataclass(frozen=True)
class GroupedTile:
    """The tile of y that a block computes, and that of x which it needs."""

    diagonal: bool
    """True if groups share instructions."""
    group_c: int
    group_k: int
    """Input and output channels of a group."""
    block: int
    """Input channels of an output channel's sum, with those of other groups or with zeros up to a multiple of ``SLICE``."""
    chunk: int
    """Output channels of the tile: whole groups that share instructions, or channels of one group."""
    depth: int
    """Input channels in shared memory at a time."""
    rows: int
    columns: int
    """Pixels of y."""
    rows_x: int
    columns_x: int
    """Pixels of x."""
    parts: int
    """Warps that share the pixels of the same channels."""
    stride_h: int
    parts_columns: bool
    """True if even columns of a row of x lie before the odd ones: pixels of y are an even number of them apart, which would share banks."""

    @property
    def slices(self) -> int:
        """Warps side by side along the channels."""
        return self.chunk // SLICE

    @property
    def steps(self) -> int:
        """Instructions for a tap of a warp's channels and 16 pixels, twice."""
        return self.block // SLICE

    @property
    def turns(self) -> int:
        """Times that input channels are copied to shared memory and multiplied."""
        return 1 if self.diagonal else self.block // self.depth

    @property
    def turn_steps(self) -> int:
        """Steps of a turn."""
        return self.steps // self.turns

    @property
    def shares_instructions(self) -> bool:
        """True if products of other groups' channels with zeros are parts of a sum."""
        return self.diagonal and self.group_c % SLICE != 0

    @property
    def fragments(self) -> int:
        """Sixteens of pixels of a warp."""
        return ceil_div(self.rows * self.columns, SLICE * self.parts)

    @property
    def threads(self) -> int:
        return WARP_THREADS * self.slices * self.parts

    @property
    def pitch(self) -> int:
        """Bytes from a pixel of x to the next in shared memory: an odd number of vectors, so that eight pixels are in separate banks."""
        return self.depth * 2 + 2 * VECTOR

    @property
    def row_pitch(self) -> int:
        """Bytes from a row of x to the next in shared memory: fragments go on from one row of the tile to the next in the banks that
        follow, where strides are odd or columns even."""
        width, apart = self.pitch // (2 * VECTOR), self.columns // self.stride_h
        return (self.columns_x * width + (apart - self.columns_x) * width % BANKS) * 2 * VECTOR

    @property
    def bytes(self) -> int:
        """Shared memory of the tile of x."""
        return self.rows_x * self.row_pitch


def grouped_tile(known: Mapping[str, int], rows: int, columns: int, parts: int) -> GroupedTile:
    """The tile for a layer, all of whose ``KNOWN`` parameters are given."""
    group_c, group_k = known["c"] // known["groups"], known["k"] // known["groups"]
    diagonal = group_k % SLICE != 0 or (group_c == group_k and group_c <= CHUNK)
    block = lcm(group_c, SLICE) if diagonal else round_up(group_c, SLICE)
    chunk = (
        block * max(1, min(CHUNK // block, ceil_div(known["k"], block)))
        if diagonal
        else max(n for n in range(SLICE, CHUNK + 1, SLICE) if group_k % n == 0)
    )
    depth = chunk if diagonal else max(n for n in range(SLICE, CHUNK + 1, SLICE) if block % n == 0)
    return GroupedTile(
        diagonal=diagonal,
        group_c=group_c,
        group_k=group_k,
        block=block,
        chunk=chunk,
        depth=depth,
        rows=rows,
        columns=columns,
        rows_x=(rows - 1) * known["stride_h"] + (known["r"] - 1) * known["dilation_h"] + 1,
        columns_x=(columns - 1) * known["stride_w"] + (known["s"] - 1) * known["dilation_w"] + 1,
        parts=parts,
        stride_h=known["stride_h"],
        parts_columns=known["stride_w"] % 2 == 0,
    )


def pixels_of_tile(known: Mapping[str, int]) -> tuple[int, int, int]:
    """Rows and columns of pixels of a tile, and warps that share them, for a layer: by the model of their time where tiles are few."""
    usual = _few_rows(known) or _least_work(known) or _usual_pixels(known)
    tile = grouped_tile(known, *usual)
    many = MANY_WIDE_BLOCKS if tile.block >= WIDE else MANY_BLOCKS
    if _blocks(known, tile) >= many * MULTIPROCESSORS or not (known["p"] and known["q"]):
        return usual
    return min((usual, *_other_pixels(known)), key=lambda pixels: _clocks(known, grouped_tile(known, *pixels)))


def _blocks(known: Mapping[str, int], tile: GroupedTile) -> int:
    tiles = known["n"] * ceil_div(known["p"], tile.rows) * ceil_div(known["q"], tile.columns)
    return tiles * ceil_div(known["k"], tile.chunk)


def _other_pixels(known: Mapping[str, int]) -> Iterator[tuple[int, int, int]]:
    """Tiles that an instance may have."""
    p, q, taps = known["p"], known["q"], known["r"] * known["s"]
    widths = {min(q, one) for one in (8, 16, MOST_COLUMNS)} | {ceil_div(q, parts) for parts in (1, 2, 3, 4)}
    if known["stride_h"] % 2 == 0:
        widths = {width + width % 2 for width in widths}
    for columns in sorted(width for width in widths if width <= MAX_COLUMNS):
        for rows in sorted({ceil_div(p, ceil_div(p, most)) for most in range(1, MAX_COLUMNS // 4 + 1)}):
            for parts in (1, 2, 4, 8):
                tile = grouped_tile(known, rows, columns, parts)
                unrolled = taps * tile.turn_steps * tile.fragments
                enough = rows * columns >= min(MIN_PIXELS, p * q) and rows * columns > SLICE * (parts - 1)
                few = tile.fragments <= ALONE[1] and unrolled <= MAX_UNROLLED and tile.slices * parts <= MAX_WARPS
                if enough and few and tile.bytes <= MAX_BYTES:
                    yield rows, columns, parts


def _clocks(known: Mapping[str, int], tile: GroupedTile) -> float:
    """The model of a tile's time: the longer of what a warp waits for and what a multiprocessor does."""
    steps = known["r"] * known["s"] * tile.steps
    registers = min(255, 60 + 9 * tile.fragments) * tile.threads
    resident = max(1, min(SHARED_BYTES // (tile.bytes + 1024), WARP_SLOTS * WARP_THREADS // tile.threads, REGISTERS // registers))
    each = _blocks(known, tile) / MULTIPROCESSORS
    waiting = START + steps * (TAP + FRAGMENT * tile.fragments)
    turns = ceil(each) if each < MANY_BLOCKS else each
    return max(waiting * ceil(max(1.0, each / resident)), _working_clocks(known, tile) * turns)


def _working_clocks(known: Mapping[str, int], tile: GroupedTile) -> float:
    """Clock cycles of a multiprocessor for a block."""
    steps = known["r"] * known["s"] * tile.steps
    return PRODUCT * tile.fragments * tile.parts * tile.slices * steps + COPIED_BYTE * tile.bytes


FEW_COLUMNS = (8, 10, 6, 4)
"""Columns of tiles of 32 pixels under a stride, where tiles are many: 64 images of 256 channels of 76 x 76 in 32 groups take 75 us, 89 with
tiles of 5 x 20; eight of ten layers take 0.84 to 0.98 of their time before, two 1.02 and 1.0."""
HALF_CHUNK = 32
"""Channels of a block for which tiles are chosen by their work alone, if they are many: 64 images of 768 channels of 27 x 27 in 24 groups
take 102 us, 125 with tiles of 4 x 27."""


def _least_work(known: Mapping[str, int]) -> tuple[int, int, int] | None:
    """The tile of one or two warps for its pixels by which multiprocessors have least to do; None where other tiles are usual."""
    if grouped_tile(known, 1, 1, 1).block != HALF_CHUNK or not (known["p"] and known["q"]):
        return None
    tiles = [pixels for pixels in _other_pixels(known) if pixels[2] <= 2]
    least = min(tiles, key=lambda pixels: _work(known, grouped_tile(known, *pixels)), default=None)
    many = least is not None and _blocks(known, grouped_tile(known, *least)) >= MANY_BLOCKS * MULTIPROCESSORS
    return least if many else None


def _work(known: Mapping[str, int], tile: GroupedTile) -> float:
    """Clock cycles of multiprocessors for all blocks of a tile."""
    return _blocks(known, tile) * _working_clocks(known, tile)


def _few_rows(known: Mapping[str, int]) -> tuple[int, int, int] | None:
    """A tile of two sixteens of pixels with one warp for them, of many for a stride; None where other tiles are usual."""
    p, q = known["p"], known["q"]
    if known["stride_h"] == 1 or not (p and q):
        return None
    shapes = [(min(2 * SLICE // columns, p), columns) for columns in FEW_COLUMNS]
    rows, columns = min(shapes, key=lambda shape: ceil_div(p, shape[0]) * ceil_div(q, shape[1]))
    many = _blocks(known, grouped_tile(known, rows, columns, 1)) >= MANY_BLOCKS * MULTIPROCESSORS
    return (rows, columns, 1) if many else None


def _usual_pixels(known: Mapping[str, int]) -> tuple[int, int, int]:
    """Whole rows of y if they are short, tiles as even as can be, and a tile of x that leaves room for other blocks."""
    tiles = ceil_div(known["q"], MOST_COLUMNS) if known["q"] else 1
    one = grouped_tile(known, 1, 1, 1)
    pixels, fragments = PIXELS, FRAGMENTS
    if one.block >= WIDE:
        pixels, fragments = ALONE if ALONE[1] * one.steps * known["r"] * known["s"] <= MAX_UNROLLED else TOGETHER
    while True:
        columns = max(1, ceil_div(known["q"], tiles))
        columns += columns % 2 if known["stride_h"] % 2 == 0 else 0
        most = max(1, min(known["p"], pixels // columns))
        rows = ceil_div(known["p"], ceil_div(known["p"], most)) if known["p"] else 1
        while rows > 1 and grouped_tile(known, rows, columns, 1).bytes > MAX_BYTES:
            rows -= 1
        if grouped_tile(known, rows, columns, 1).bytes <= MAX_BYTES or columns == 1:
            break
        tiles += 1
    sixteens = ceil_div(rows * columns, SLICE)
    slices = grouped_tile(known, rows, columns, 1).slices
    parts = next(parts for parts in (1, 2, 4, 8) if ceil_div(sixteens, parts) <= fragments or parts == 8 or parts * slices >= MAX_WARPS)
    return rows, columns, parts


@dataclass(frozen=True)
class Sums:
    """A mainloop of one instruction a step, whose sums stay in the accumulators."""

    type_a: str
    type_b: str
    tile_k: int = SLICE
    instruction_k: int = SLICE
    promote_steps: int = 0


@dataclass(frozen=True)
class FragmentsPlan(FinishingPlan):
    """A convolution instance whose warps multiply fragments of 16-bit floats, and keep the sums in the accumulators."""

    @property
    def products(self) -> str:
        """The unit that multiplies."""
        return "f16_mma"

    @property
    def sums(self) -> Sums:
        """The way to a sum, which decides how far it is off."""
        return Sums(self.spec.input.type, self.spec.input.type)

    @property
    def accumulator(self) -> str:
        return "float"

    @property
    def result_bytes(self) -> int:
        """Bytes of a thread's four neighbouring results."""
        return 4 * ELEMENTS[self.output.type].bytes


@dataclass(frozen=True)
class GroupedPlan(FragmentsPlan):
    """A convolution instance for groups of few channels."""

    tile: GroupedTile
    unroll: str
    """Argument of the pragma before the loop over taps."""


def plan_grouped(spec: Conv2dSpec, mainloop: GroupedMainloop, architecture: Architecture) -> GroupedPlan:
    """The plan of ``spec`` for ``architecture``; raises ``PlanError`` with every reason why there is none."""
    message = f"no kernel for this spec on {architecture.name}:"
    reasons = architecture_reasons(spec, architecture) + launch_reasons(spec.early_launch, spec)
    reasons += [*mainloop_reasons(spec), *exact_reasons(spec), *layer_reasons(spec, "grouped"), *_reasons(spec)]
    if reasons:
        raise PlanError(message, reasons)
    fixed = fixed_parameters(spec)
    tile = grouped_tile(fixed, mainloop.rows, mainloop.columns, mainloop.parts)
    reasons += [*_tile_reasons(tile, fixed, architecture)]
    steps = plan_operations(spec, reasons)
    if reasons:
        raise PlanError(message, reasons)
    parts = ["grouped", spec.input.type, f"{tile.rows}x{tile.columns}x{tile.chunk}", f"g{fixed['c'] // fixed['groups']}"]
    name = instance_name("conv2d", [*parts, f"p{tile.parts}", f"{spec.output.type}_{spec.output.layout}"], spec)
    slices = f"ceil_div(k, {tile.block}) * {tile.steps}" if tile.diagonal else f"k // {SLICE}"
    order: FilterOrder = "fragments" if tile.diagonal else "group_fragments"
    sequence = tiled_sequence(spec, tile, name, steps, (slices, "r", "s", str(tile.steps), str(WARP_THREADS), str(VECTOR)), order)
    meaning = f"the tile of x, [row][column][channel], pixels {tile.pitch} bytes apart, rows {tile.row_pitch}"
    return GroupedPlan(
        name=name,
        spec_digest=spec_digest(spec),
        architecture=architecture,
        sequence=sequence,
        template="conv2d/grouped.cu.j2",
        shared_memory=(SharedRegion("tile_x", "unsigned char", (tile.rows_x, tile.row_pitch), 0, tile.bytes, meaning),),
        dynamic_shared_bytes=tile.bytes,
        spec=spec,
        filter_order=order,
        v={name: written if name in fixed else name for name, written in CONSTANT_NAMES.items()},
        constants=tuple(
            LayerConstant(written, fixed[name]) for name, written in CONSTANT_NAMES.items() if name in fixed and name != "groups"
        ),
        divisors=("chunks", "tiles_q", "tiles_p"),
        saturation=None,
        unit=False,
        biased=False,
        steps=steps,
        kernel_arguments=sequence.parameters_of(0),
        tile=tile,
        unroll=unroll_argument(mainloop.unroll),
    )


def layer_reasons(spec: Conv2dSpec, strategy: str) -> Iterator[Reason]:
    """Why kernels for 16-bit floats in NHWC that know all of the layer but the padding cannot be made of a spec."""
    fixed, named = fixed_parameters(spec), f"with strategy: {strategy}"
    for name in KNOWN:
        if name not in fixed:
            yield Reason(strategy, f"convolution.{name}", "argument", f"a number {named}")
    if not ELEMENTS[spec.input.type].is_float:
        yield Reason(strategy, "input.type", spec.input.type, f"f16 or bf16 {named}", "strategy: direct")
    if spec.output.type not in ("f16", "bf16", "f32"):
        yield Reason(strategy, "output.type", spec.output.type, f"f16, bf16 or f32 {named}")
    for field, layout in (("input", spec.input.layout), ("output", spec.output.layout)):
        if layout != "nhwc":
            yield Reason(strategy, f"{field}.layout", layout, f"nhwc {named}")
    if spec.store != "direct":
        yield Reason("store", "store", spec.store, f"direct {named}", "store: direct")
    if spec.zero_point != "none":
        yield Reason("zero_point", "zero_point", spec.zero_point, "none for floating-point types")


def _reasons(spec: Conv2dSpec) -> Iterator[Reason]:
    fixed = fixed_parameters(spec)
    if {"c", "k", "groups"} <= fixed.keys():
        if fixed["c"] != fixed["k"] and fixed["k"] % (fixed["groups"] * SLICE):
            need = f"c, {fixed['c']}, or a multiple of {SLICE} for each group with strategy: grouped"
            yield Reason("grouped", "convolution.k", str(fixed["k"]), need, "strategy: direct")
        if fixed["k"] % fixed["groups"]:
            yield Reason("channels", "convolution.k", str(fixed["k"]), f"a multiple of groups, {fixed['groups']}")
        if fixed["c"] // fixed["groups"] % VECTOR and fixed["c"] != fixed["k"]:
            got = f"{fixed['c'] // fixed['groups']} for each group"
            yield Reason("channels", "convolution.c", got, f"a multiple of {VECTOR}: groups that share no instruction begin at 16 bytes")
        for name, unit in (("groups", fixed["groups"]), ("8", VECTOR)):
            if fixed["c"] % unit:
                yield Reason("channels", "convolution.c", str(fixed["c"]), f"a multiple of {name}, {unit}")


def _tile_reasons(tile: GroupedTile, fixed: dict[str, int], architecture: Architecture) -> Iterator[Reason]:
    resident = ResidentBlocks(architecture, 1, tile.threads)
    yield from resident.too_much_per_block(tile.bytes)
    if tile.threads > architecture.threads_per_block:
        got = f"{tile.threads} threads"
        yield Reason("threads", "mainloop.parts", got, f"at most {architecture.threads_per_block} a block", "fewer parts")
    sums = VECTOR * tile.fragments
    if sums > MAX_SUMS:
        yield Reason("tile", "mainloop", f"{sums} sums of a thread", f"at most {MAX_SUMS}", "fewer rows or more parts")
    unrolled = fixed["r"] * fixed["s"] * tile.turn_steps * tile.fragments
    if unrolled > MAX_UNROLLED:
        yield Reason("tile", "mainloop", f"{unrolled} fragments of x", f"at most {MAX_UNROLLED}", "fewer rows or more parts")


def tiled_sequence(
    spec: Conv2dSpec, tile: PixelTile, name: str, steps: tuple[Step, ...], filter_extents: tuple[str, ...], order: FilterOrder
) -> LaunchSequence:
    """One launch, with a block for each tile of pixels and chunk of output channels."""
    x = packed("x", spec.input.type, "input", ("n", "h", "w", "c"), "the images in NHWC")
    divisors = {
        "chunks": f"ceil_div(k, {tile.chunk})",
        "tiles_q": f"max(ceil_div(q, {tile.columns}), 1)",
        "tiles_p": f"max(ceil_div(p, {tile.rows}), 1)",
    }
    return single_launch(
        spec,
        name,
        x,
        filter_array(spec, filter_extents, order),
        steps,
        divisors,
        [
            *OUTPUT_EXTENTS,
            (f"n * p * q <= {MAX_EXTENT}", f"n p q must be at most {MAX_EXTENT}; an int counts the pixels of y"),
            COORDINATES,
        ],
        blocks=f"n * {divisors['tiles_p']} * {divisors['tiles_q']} * {divisors['chunks']}",
        threads=tile.threads,
        shared_bytes=tile.bytes,
    )
