"""Convolutions of few input channels by ``mma.sync`` on 16-bit floats, such as the first layer of a network: plan and launch sequence.

Channels of the pixels under a row of the filter lie side by side in shared memory, and are one sum: an instruction takes 16 of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gemmgen.core.errors import PlanError, Reason
from gemmgen.core.formulas import ceil_div
from gemmgen.hardware.target import WARP_THREADS, Architecture
from gemmgen.kernels.conv2d.checks import exact_reasons, mainloop_reasons
from gemmgen.kernels.conv2d.epilogue import plan_operations
from gemmgen.kernels.conv2d.grouped import MAX_SUMS, MAX_UNROLLED, SLICE, VECTOR, FragmentsPlan, layer_reasons, tiled_sequence
from gemmgen.kernels.conv2d.layouts import even
from gemmgen.kernels.conv2d.problem import fixed_parameters
from gemmgen.kernels.conv2d.results import CONSTANT_NAMES, LayerConstant
from gemmgen.kernels.conv2d.spec import Conv2dSpec, FewChannelsMainloop
from gemmgen.kernels.family import SharedRegion
from gemmgen.kernels.naming import architecture_reasons, instance_name, launch_reasons, spec_digest
from gemmgen.kernels.tiles.resources import ResidentBlocks
from gemmgen.kernels.tiles.unrolling import unroll_argument

MOST_COLUMNS, PIXELS = 16, 128
"""Columns and pixels of a tile that is chosen for a layer, at most: blocks of such tiles take 0.81 to 0.92 of the time of larger ones."""
MAX_BYTES = 64 << 10
"""Size of a tile of x in shared memory, at most, so that three blocks share a multiprocessor."""
PARTS = 4
"""Warps that share the pixels of a tile that is chosen for a layer."""


@dataclass(frozen=True)
class PixelRows:
    """The tile of y that a block computes, and that of x which it needs."""

    channels: int
    """Channels of a pixel in shared memory: an even number."""
    rows: int
    columns: int
    """Pixels of y."""
    rows_x: int
    columns_x: int
    """Pixels of x."""
    taken: int
    """Channels of the pixels under a row of the filter."""
    slices: int
    """Sixteens of output channels of a warp."""
    warps_k: int
    """Warps side by side along the output channels."""
    parts: int
    """Warps that share the pixels of the same channels."""

    @property
    def steps(self) -> int:
        """Instructions for a row of the filter, 16 pixels and 8 output channels."""
        return ceil_div(self.taken, SLICE)

    @property
    def chunk(self) -> int:
        """Output channels of a block."""
        return SLICE * self.slices * self.warps_k

    @property
    def fragments(self) -> int:
        """Sixteens of pixels of a warp."""
        return ceil_div(self.rows * self.columns, SLICE * self.parts)

    @property
    def threads(self) -> int:
        return WARP_THREADS * self.warps_k * self.parts

    @property
    def bytes(self) -> int:
        """Shared memory of the tile of x, with the pixels behind it that the last instruction of a row takes."""
        return (self.rows_x * self.columns_x * self.channels + self.steps * SLICE) * 2


def pixel_rows(known: Mapping[str, int], loop: FewChannelsMainloop) -> PixelRows:
    """The tile for a layer, all of whose ``KNOWN`` parameters are given."""
    channels = even(known["c"])
    return PixelRows(
        channels=channels,
        rows=loop.rows,
        columns=loop.columns,
        rows_x=(loop.rows - 1) * known["stride_h"] + (known["r"] - 1) * known["dilation_h"] + 1,
        columns_x=(loop.columns - 1) * known["stride_w"] + known["s"],
        taken=known["s"] * channels,
        slices=loop.slices,
        warps_k=loop.warps_k,
        parts=loop.parts,
    )


def chosen_rows(known: Mapping[str, int]) -> FewChannelsMainloop:
    """The mainloop for a layer: tiles as even as can be, a tile of x that leaves room for other blocks, warps with many output channels."""
    sixteens = ceil_div(known["k"], SLICE)
    slices = next(width for width in (4, 3, 2, 1) if sixteens % width == 0)
    warps_k = 2 if sixteens // slices % 2 == 0 else 1
    tiles = max(1, ceil_div(known["q"], MOST_COLUMNS))
    pixels = min(PIXELS, PARTS * SLICE * max(1, MAX_SUMS // (VECTOR * slices)))
    while True:
        columns = max(1, ceil_div(known["q"], tiles))
        most = max(1, min(known["p"], pixels // columns))
        rows = ceil_div(known["p"], ceil_div(known["p"], most)) if known["p"] else 1
        loop = FewChannelsMainloop(strategy="few_channels", rows=rows, columns=columns, slices=slices, warps_k=warps_k, parts=PARTS)
        while loop.rows > 1 and pixel_rows(known, loop).bytes > MAX_BYTES:
            loop = loop.model_copy(update={"rows": loop.rows - 1})
        if pixel_rows(known, loop).bytes <= MAX_BYTES or columns == 1:
            return loop
        tiles += 1


@dataclass(frozen=True)
class FewChannelsPlan(FragmentsPlan):
    """A convolution instance for few input channels."""

    tile: PixelRows
    unroll: str
    """Argument of the pragma before the loop over the instructions of a row of the filter."""

    @property
    def whole_lanes(self) -> bool:
        """True if the four neighbouring channels of a lane exist all or none."""
        return fixed_parameters(self.spec)["k"] % 4 == 0

    @property
    def least_blocks(self) -> int:
        """Blocks that share a multiprocessor at least, which bounds the registers."""
        return 2 if self.tile.threads <= 256 else 1

    @property
    def depth(self) -> int:
        """Products of a sum, with those by zeros."""
        return fixed_parameters(self.spec)["r"] * self.tile.steps * SLICE


def plan_few_channels(spec: Conv2dSpec, mainloop: FewChannelsMainloop, architecture: Architecture) -> FewChannelsPlan:
    """The plan of ``spec`` for ``architecture``; raises ``PlanError`` with every reason why there is none."""
    message = f"no kernel for this spec on {architecture.name}:"
    reasons = architecture_reasons(spec, architecture) + launch_reasons(spec.early_launch, spec)
    reasons += [*mainloop_reasons(spec), *exact_reasons(spec), *layer_reasons(spec, "few_channels"), *_reasons(spec)]
    if reasons:
        raise PlanError(message, reasons)
    fixed = fixed_parameters(spec)
    tile = pixel_rows(fixed, mainloop)
    reasons += [*_tile_reasons(tile, fixed, architecture)]
    steps = plan_operations(spec, reasons)
    if reasons:
        raise PlanError(message, reasons)
    parts = ["few", spec.input.type, f"{tile.rows}x{tile.columns}x{tile.chunk}", f"c{fixed['c']}", f"p{tile.parts}"]
    name = instance_name("conv2d", [*parts, f"{spec.output.type}_{spec.output.layout}"], spec)
    filters = (f"ceil_div(k, {SLICE})", "r", str(tile.steps), str(WARP_THREADS), str(VECTOR))
    sequence = tiled_sequence(spec, tile, name, steps, filters, "tap_rows")
    region = SharedRegion("tile_x", "unsigned char", (tile.bytes,), 0, tile.bytes, "the tile of x, [row][column][channel]")
    return FewChannelsPlan(
        name=name,
        spec_digest=spec_digest(spec),
        architecture=architecture,
        sequence=sequence,
        template="conv2d/few_channels.cu.j2",
        shared_memory=(region,),
        dynamic_shared_bytes=tile.bytes,
        spec=spec,
        filter_order="tap_rows",
        v={name: written if name in fixed else name for name, written in CONSTANT_NAMES.items()},
        constants=tuple(LayerConstant(CONSTANT_NAMES[name], fixed[name]) for name in CONSTANT_NAMES if name in fixed and name in _WRITTEN),
        divisors=("chunks", "tiles_q", "tiles_p"),
        saturation=None,
        unit=False,
        biased=False,
        steps=steps,
        kernel_arguments=sequence.parameters_of(0),
        tile=tile,
        unroll=unroll_argument(mainloop.unroll),
    )


_WRITTEN = ("c", "k", "r", "stride_h", "stride_w", "padding_h", "padding_w", "dilation_h")
"""Parameters that the source reads."""


def _reasons(spec: Conv2dSpec) -> Iterator[Reason]:
    fixed = fixed_parameters(spec)
    for name in ("groups", "dilation_w"):
        if fixed.get(name, 1) != 1:
            yield Reason("few_channels", f"convolution.{name}", str(fixed[name]), "1 with strategy: few_channels", "strategy: direct")


def _tile_reasons(tile: PixelRows, fixed: Mapping[str, int], architecture: Architecture) -> Iterator[Reason]:
    yield from ResidentBlocks(architecture, 1, tile.threads).too_much_per_block(tile.bytes)
    if tile.threads > architecture.threads_per_block:
        yield Reason(
            "threads", "mainloop.parts", f"{tile.threads} threads", f"at most {architecture.threads_per_block} a block", "fewer parts"
        )
    sums = VECTOR * tile.fragments * tile.slices
    if sums > MAX_SUMS:
        yield Reason("tile", "mainloop", f"{sums} sums of a thread", f"at most {MAX_SUMS}", "fewer rows or slices, or more parts")
    unrolled = tile.steps * tile.fragments
    if unrolled > MAX_UNROLLED:
        yield Reason("tile", "mainloop", f"{unrolled} fragments of x", f"at most {MAX_UNROLLED}", "fewer rows or more parts")
