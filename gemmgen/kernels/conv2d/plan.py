"""From a convolution spec to every number that its kernel contains, or to all the reasons why there can be none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from gemmgen.core.errors import PlanError, Reason
from gemmgen.core.formulas import round_up
from gemmgen.hardware.target import WARP_THREADS, Architecture
from gemmgen.kernels.conv2d.checks import resource_reasons, shape_reasons, tile_reasons
from gemmgen.kernels.conv2d.epilogue import INT8_HIGH, plan_operations, saturation_of
from gemmgen.kernels.conv2d.layouts import FilterOrder
from gemmgen.kernels.conv2d.problem import fixed_parameters
from gemmgen.kernels.conv2d.results import CONSTANT_NAMES, FinishingPlan, LayerConstant
from gemmgen.kernels.conv2d.sequence import COLUMN_BIT, TapTable, build_sequence
from gemmgen.kernels.conv2d.spec import Conv2dSpec, Tile
from gemmgen.kernels.conv2d.tiles import CHANNELS, EXCHANGE_BYTES, OCTETS, PAIRS, QUADS, LaneOutput, OperandTile, exchange_swizzle
from gemmgen.kernels.epilogue.sums import stores_of
from gemmgen.kernels.family import SharedRegion
from gemmgen.kernels.launch import Argument
from gemmgen.kernels.naming import architecture_reasons, instance_name, launch_reasons, spec_digest
from gemmgen.kernels.tiles.resources import ResidentBlocks

OTHER_REGISTERS = 28
"""Registers for addresses, counters and predicates that an instance takes beside that if it may; an estimate."""
FINISH_THREADS = 256
"""Threads of a block that adds up the parts of a split sum."""

Walk = Literal["single", "table", "counters"]

_CONSTANTS = {"c_blocks": "kInputBlocks"} | CONSTANT_NAMES | {"groups": "kGroups"}


_FILTER_ORDERS: dict[LaneOutput, FilterOrder] = {OCTETS: "octets", PAIRS: "pairs", QUADS: "quads"}


@dataclass(frozen=True)
class Conv2dPlan(FinishingPlan):
    """A convolution instance."""

    threads: int
    pixel_tile: OperandTile
    filter_tile: OperandTile
    warp_pixels: int
    warp_channels: int
    warps_pixels: int
    """Warps side by side along the pixels; warps are counted along them first."""
    planes: int
    """Planes in a step: 32 input channels of one filter tap each."""
    stages: int
    channels_are_rows: bool
    """True if output channels are the rows of the GEMM, and pixels its columns."""
    walk: Walk
    """A thread's way from one filter tap to the next: there is only one; by the host's table; by counting."""
    bounded: bool
    """True if a tap of a pixel can lie outside of its image."""
    pointwise: bool
    """True if each output pixel depends on the input pixel of the same position, so that neither needs coordinates."""
    grouped: bool
    tail: bool
    """True if the last step can have fewer planes."""
    whole_channels: bool
    """True if every tile has all its output channels."""
    exchange: bool
    lane: LaneOutput
    """Part of the accumulators that a lane takes."""
    output_lane: LaneOutput
    """Part of the results that a lane finishes; something else where another kernel does that."""
    table_entries: int
    """Elements of the table; 0 if there is none."""
    finish_entry: str
    finish_arguments: tuple[Argument, ...]
    registers: int
    """For a thread, an estimate."""

    @property
    def warnings(self) -> tuple[Reason, ...]:
        """An estimate of registers that exceeds the limit per thread."""
        resident = ResidentBlocks(self.architecture, self.spec.min_blocks_per_sm, self.threads)
        return resident.few_registers(self.registers, resident.registers, "tile.warp")

    @property
    def operands(self) -> dict[str, OperandTile]:
        """The tiles by the names that the source has for them."""
        return {"Pixel": self.pixel_tile, "Filter": self.filter_tile}

    @property
    def warp_tile(self) -> Tile:
        """The tile of threadblocks and warps, which every spec of these kernels has."""
        return cast("Tile", self.spec.tile)

    @property
    def instruction(self) -> str:
        return str(self.warp_tile.instruction)

    @property
    def asynchronous(self) -> bool:
        """True if copies bypass the registers."""
        return bool(self.spec.copy_through == "cp_async")

    @property
    def double_buffered(self) -> bool:
        """True if there are two sets of fragments; which one is in use must be known at each point of the unrolled loop."""
        return self.stages > 1 and self.planes % 2 == 0 and not self.persistent

    @property
    def persistent(self) -> bool:
        """True if a block takes several tiles."""
        return self.spec.persistent_blocks is not None

    @property
    def group_channels(self) -> str:
        """Output channels that blocks divide, all of them or those of a group: an expression of the kernel."""
        return "group_channels" if self.grouped else self.v["k"]

    @property
    def column_bit(self) -> int:
        """The first bit of a pixel's bounds that stands for a column of the filter."""
        return COLUMN_BIT

    @property
    def split_k(self) -> int:
        return int(self.spec.split_k)

    @property
    def finish_threads(self) -> int:
        return FINISH_THREADS

    @property
    def exchange_swizzle(self) -> str:
        """Permutation of groups of channels in the exchange, as a C expression over ``pixel``."""
        return exchange_swizzle(self.channels_are_rows, self.lane)

    @property
    def planar(self) -> bool:
        """True if a lane's groups of four channels lie in separate planes."""
        return bool(self.output.layout == "nchw4")

    @property
    def paired(self) -> bool:
        """True if a lane stores eight channels at once."""
        lane = self.output_lane
        return self.output.type == "s8" and not self.planar and lane.quads == 2 and lane.quad_step == 1

    @property
    def adds_shift(self) -> bool:
        """True if the kernel of the products adds the bias."""
        return self.shifted and self.split_k == 1

    @property
    def decodes(self) -> bool:
        """True if a pixel's image and its position there are needed to store it."""
        return bool(self.split_k == 1 and self.output.layout != "nhwc")

    @property
    def image_channels(self) -> int:
        """Channels of y that lie together in a plane of an image."""
        return CHANNELS if self.output.layout == "nchw32" else 4


def plan_warp_tiles(spec: Conv2dSpec, architecture: Architecture) -> Conv2dPlan:
    """The plan of ``spec`` for ``architecture``; raises ``PlanError`` with every reason why there is none."""
    reasons = architecture_reasons(spec, architecture)
    reasons += launch_reasons(spec.early_launch, spec)
    reasons += shape_reasons(spec, architecture)
    wrong_tiles = tile_reasons(spec, architecture)
    reasons += wrong_tiles
    message = f"no kernel for this spec on {architecture.name}:"
    if wrong_tiles:
        raise PlanError(message, reasons)

    tile = spec.warp_tiles
    channels_are_rows = spec.gemm_m == "output_channels"
    planes = tile.threadblock.k // CHANNELS
    threads = WARP_THREADS * (tile.threadblock.m // tile.warp.m) * (tile.threadblock.n // tile.warp.n)
    rows = OperandTile(tile.threadblock.m, planes, threads)
    columns = OperandTile(tile.threadblock.n, planes, threads)
    pixel_tile, filter_tile = (columns, rows) if channels_are_rows else (rows, columns)
    warp_pixels, warp_channels = (tile.warp.n, tile.warp.m) if channels_are_rows else (tile.warp.m, tile.warp.n)
    exchange = spec.store == "shared"
    output_lane = QUADS if channels_are_rows and not exchange else OCTETS if spec.output.type == "s8" else PAIRS
    lane = PAIRS if spec.split_k > 1 and output_lane is OCTETS else output_lane
    filter_order = _FILTER_ORDERS[lane] if not exchange else "plain"

    fixed = fixed_parameters(spec)
    walk = _walk(spec, fixed)
    bounded = fixed.get("padding_h") != 0 or fixed.get("padding_w") != 0
    pointwise = walk == "single" and not bounded and fixed.get("stride_h") == fixed.get("stride_w") == 1
    grouped = fixed.get("groups") != 1
    regions = _regions(spec, pixel_tile, filter_tile, threads, exchange)
    reasons += resource_reasons(spec, regions, threads, warp_pixels * warp_channels // WARP_THREADS, architecture)
    saturation = saturation_of(spec)
    computed = spec.output.type != "s32" and saturation is None
    steps = plan_operations(spec, reasons) if computed else ()
    if reasons:
        raise PlanError(message, reasons)

    anywhere = spec.split_k > 1 or pixel_tile.planes_apart > 1
    used = ["c_blocks", "k"]
    used += ["r", "s"] if walk != "single" else []
    used += [] if pointwise else ["stride_h", "stride_w", "padding_h", "padding_w"]
    used += ["dilation_h", "dilation_w"] if walk == "counters" or (walk == "table" and (bounded or anywhere)) else []
    used += ["groups"] if grouped else []
    known = {**fixed, **({"c_blocks": fixed["c"] // CHANNELS} if "c" in fixed else {})}
    constants = tuple(
        LayerConstant(_CONSTANTS[name], known[name])
        for name in used
        if name in known and not (name.startswith("padding") and known[name] == 0)
    )
    written = {name: _CONSTANTS[name] if name in known else name for name in used}
    written |= {name: "0" for name in used if name.startswith("padding") and known.get(name) == 0}

    divisors = {"image_pixels": "(p * q)"} | ({} if pointwise else {"q": "q"})
    if spec.rasterization == "pixels_first":
        divisors["tiles"] = f"ceil_div(n * p * q, {pixel_tile.rows})"
    elif not ("k" in fixed and "groups" in fixed):
        divisors["tiles"] = f"ceil_div(k // groups, {filter_tile.rows})"
    if stores_of(steps):  # sums are written of a layer without pixels, too
        divisors = {name: f"max({count}, 1)" for name, count in divisors.items()}
    table = _table(spec, fixed, pixel_tile.planes_apart, bounded) if walk == "table" else None
    name = _name(spec)
    sequence = build_sequence(
        spec,
        name,
        table,
        filter_order,
        [n for n in used if n not in known],
        divisors,
        steps,
        threads=threads,
        tile=(pixel_tile.rows, filter_tile.rows),
        shared_bytes=_dynamic_bytes(regions, architecture),
        finish_pixels=FINISH_THREADS // output_lane.lanes_per_pixel,
        finish_threads=FINISH_THREADS,
    )
    launches = [tuple(sequence.argument(argument) for argument in launch.arguments) for launch in sequence.launches]
    return Conv2dPlan(
        name=name,
        spec_digest=spec_digest(spec),
        architecture=architecture,
        sequence=sequence,
        template="conv2d/implicit_gemm.cu.j2",
        shared_memory=regions,
        dynamic_shared_bytes=_dynamic_bytes(regions, architecture),
        spec=spec,
        threads=threads,
        pixel_tile=pixel_tile,
        filter_tile=filter_tile,
        warp_pixels=warp_pixels,
        warp_channels=warp_channels,
        warps_pixels=pixel_tile.rows // warp_pixels,
        planes=planes,
        stages=spec.stages,
        channels_are_rows=channels_are_rows,
        walk=walk,
        bounded=bounded,
        pointwise=pointwise,
        grouped=grouped,
        tail=_has_tail(fixed, planes),
        whole_channels=_whole_channels(fixed, filter_tile.rows),
        biased=spec.float_conversion == "addition",
        saturation=saturation,
        unit=saturation == (0.0, INT8_HIGH),
        steps=steps,
        exchange=exchange,
        lane=lane,
        output_lane=output_lane,
        filter_order=filter_order,
        v=written,
        constants=constants,
        table_entries=table.entries if table else 0,
        divisors=tuple(divisors),
        kernel_arguments=launches[0],
        finish_entry=sequence.launches[-1].entry,
        finish_arguments=launches[-1],
        registers=_registers(spec, pixel_tile, filter_tile, warp_pixels, warp_channels),
    )


def _walk(spec: Conv2dSpec, fixed: Mapping[str, int]) -> Walk:
    if fixed.get("r") == fixed.get("s") == 1:
        return "single"
    return "table" if spec.increments == "precomputed" else "counters"


def _table(spec: Conv2dSpec, fixed: Mapping[str, int], advance: int, bounded: bool) -> TapTable:
    """The table covers at least one whole period, and at least as far as a thread advances."""
    taps = fixed["r"] * fixed["s"] if "r" in fixed and "s" in fixed else None
    entries = round_up(advance, taps) if taps else max(spec.maximum_taps, 2 * advance)
    return TapTable(entries, advance, bounded)


def _whole_channels(fixed: Mapping[str, int], tile: int) -> bool:
    return "k" in fixed and "groups" in fixed and fixed["k"] // fixed["groups"] % tile == 0


def _has_tail(fixed: Mapping[str, int], planes: int) -> bool:
    """True if the number of 32-channel filter taps is not known to be a multiple of a step's planes."""
    known = 1
    if "r" in fixed and "s" in fixed:
        known *= fixed["r"] * fixed["s"]
    if "c" in fixed and "groups" in fixed:
        known *= fixed["c"] // (CHANNELS * fixed["groups"])
    return known % planes != 0


def _registers(spec: Conv2dSpec, pixels: OperandTile, filters: OperandTile, warp_pixels: int, warp_channels: int) -> int:
    """An estimate of a thread's registers: results, two sets of fragments, tiles in flight, pixels, all else."""
    results = warp_pixels * warp_channels // WARP_THREADS
    staged = 0
    if spec.copy_through == "registers":
        staged = 4 * (pixels.passes * pixels.thread_planes + filters.passes * filters.thread_planes)
    fragments = (warp_pixels + warp_channels) // 8 * 2
    return results + 2 * fragments + staged + 3 * pixels.passes + OTHER_REGISTERS


def _regions(spec: Conv2dSpec, pixels: OperandTile, filters: OperandTile, threads: int, exchange: bool) -> tuple[SharedRegion, ...]:
    stage = pixels.bytes + filters.bytes
    meaning = "tiles of x and of the filter, [stage][plane][row][32], the halves of a row permuted"
    regions = [SharedRegion("stages", "signed char", (spec.stages, stage), 0, spec.stages * stage, meaning)]
    if exchange:
        warps = threads // WARP_THREADS
        meaning = "where each warp exchanges 8 pixels x 32 channels of its results, permuted"
        shape = (warps, EXCHANGE_BYTES // 4)
        regions.append(SharedRegion("exchange", "int", shape, spec.stages * stage, warps * EXCHANGE_BYTES, meaning))
    return tuple(regions)


def _dynamic_bytes(regions: tuple[SharedRegion, ...], architecture: Architecture) -> int:
    total = sum(region.bytes for region in regions)
    return total if total > architecture.static_shared_bytes_per_block else 0


def _name(spec: Conv2dSpec) -> str:
    block, warp = spec.warp_tiles.threadblock, spec.warp_tiles.warp
    fixed = fixed_parameters(spec)
    parts = [
        f"{block.m}x{block.n}x{block.k}",
        f"w{warp.m}x{warp.n}",
        spec.warp_tiles.instruction,
        f"s{spec.stages}",
        "mk" if spec.gemm_m == "output_channels" else "mpq",
    ]
    if "r" in fixed and "s" in fixed:
        parts.append(f"f{fixed['r']}x{fixed['s']}")
    if spec.split_k > 1:
        parts.append(f"split{spec.split_k}")
    if spec.persistent_blocks is not None:
        parts.append(f"p{spec.persistent_blocks}")
    parts.append(f"{spec.output.type}_{spec.output.layout}")
    return instance_name("conv2d", parts, spec)
