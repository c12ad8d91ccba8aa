"""From a convolution spec to every number that its kernel contains, or to all the reasons why there can be none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import indent
from typing import Literal

from gemmgen.core.errors import PlanError, Reason
from gemmgen.core.formulas import round_up
from gemmgen.hardware.target import WARP_THREADS, Architecture
from gemmgen.kernels.conv2d.checks import resource_reasons, shape_reasons, tile_reasons
from gemmgen.kernels.conv2d.epilogue import INT8_HIGH, plan_operations, saturation_of
from gemmgen.kernels.conv2d.layouts import FilterOrder
from gemmgen.kernels.conv2d.problem import fixed_parameters
from gemmgen.kernels.conv2d.results import CONSTANT_NAMES, FinishingPlan, LayerConstant
from gemmgen.kernels.conv2d.sequence import COLUMN_BIT, TapTable, build_sequence
from gemmgen.kernels.conv2d.spec import Conv2dSpec
from gemmgen.kernels.conv2d.tiles import CHANNELS, EXCHANGE_BYTES, OCTETS, PAIRS, QUADS, LaneOutput, OperandTile, exchange_swizzle
from gemmgen.kernels.family import SharedRegion
from gemmgen.kernels.launch import Argument
from gemmgen.kernels.naming import architecture_reasons, instance_name, launch_reasons, spec_digest
from gemmgen.kernels.source import times
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
        """An estimate of registers beyond what a thread may have."""
        resident = ResidentBlocks(self.architecture, self.spec.min_blocks_per_sm, self.threads)
        return resident.few_registers(self.registers, resident.registers, "tile.warp")

    @property
    def operands(self) -> dict[str, OperandTile]:
        """The tiles by the names that the source has for them."""
        return {"Pixel": self.pixel_tile, "Filter": self.filter_tile}

    @property
    def instruction(self) -> str:
        return str(self.spec.tile.instruction)

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
    def walk_parameters(self) -> str:
        """Parameters of the function that copies x beside the iterator."""
        return {"counters": "const Window& window", "table": "const Taps& taps, int period", "single": "int next_block"}[self.walk]

    @property
    def group_channels(self) -> str:
        """Output channels that blocks divide, all of them or those of a group: an expression of the kernel."""
        return "group_channels" if self.grouped else self.v["k"]

    @property
    def group_blocks(self) -> str:
        """Blocks of input channels that a sum runs over: an expression of the kernel."""
        return "group_blocks" if self.grouped else self.v["c_blocks"]

    @property
    def walk_arguments(self) -> str:
        """Arguments of copying x beside the iterator."""
        return {"counters": "window", "table": "taps, period", "single": "next_block"}[self.walk]

    @property
    def split_k(self) -> int:
        return int(self.spec.split_k)

    @property
    def finish_threads(self) -> int:
        return FINISH_THREADS

    @property
    def finish_pixels(self) -> int:
        """Pixels of a block that adds up parts."""
        return FINISH_THREADS // self.output_lane.lanes_per_pixel

    @property
    def exchange_swizzle(self) -> str:
        """Permutation of groups of channels in the exchange, as a C expression over ``pixel``."""
        return exchange_swizzle(self.channels_are_rows, self.lane)

    # -- Pieces of the source that depend on the spec

    @property
    def copy_word(self) -> str:
        """The first word of the functions that bring tiles: whether these go past registers."""
        return "copy" if self.asynchronous else "load"

    @property
    def copy_verb(self) -> str:
        """The work of these functions, in words."""
        return "Copies" if self.asynchronous else "Reads"

    def copy_target(self, operand: str) -> str:
        """The parameter that says where a thread's vectors of a tile go."""
        if self.asynchronous:
            return "unsigned target"
        return f"uint4 (&staged)[k{operand}ThreadPlanes][k{operand}Passes]"

    def planes_step(self, operand: str) -> str:
        """Planes from one that a thread copies to the next, as the source writes it."""
        return f"k{operand}PlanesApart" if self.operands[operand].planes_apart > 1 else "1"

    def planes_loop(self, operand: str) -> str:
        """The head of the loop over a thread's planes of a tile."""
        step = self.planes_step(operand)
        return f"for (int plane = 0; plane < kPlanes; {'++plane' if step == '1' else f'plane += {step}'}) {{"

    def copy_vector(self, operand: str, source: str, available: str) -> str:
        """The statement that copies a vector, in the background or into registers."""
        if not self.asynchronous:
            plane = "plane" if self.planes_step(operand) == "1" else f"plane / {self.planes_step(operand)}"
            return f"staged[{plane}][pass] = load_vector({source}, {available});"
        function = "copy_async_cached" if operand == "Pixel" and self.spec.input_cache == "l1" else "copy_async<kVectorBytes>"
        target = f"target + plane * k{operand}PlaneBytes + pass * k{operand}RowsPerPass * kRowBytes"
        return f"{function}(\n    {target},\n    {source}, {available} ? kVectorBytes : 0);"

    @property
    def vector_constant(self) -> str:
        """The definition of how many bytes an asynchronous copy brings; empty where copies pass through registers."""
        return "constexpr int kVectorBytes = kRowBytes / 2;" if self.asynchronous else ""

    @property
    def body_constants(self) -> str:
        """Definitions of numbers of the kernel's body that some kernels have."""
        found = [
            (f"k{operand}PlaneThreads", tile.threads_per_plane, "that copy a plane")
            for operand, tile in self.operands.items()
            if tile.planes_apart > 1
        ]
        found += [("kSplits", self.split_k, "parts of the sum, each of blocks of its own")] if self.split_k > 1 else []
        found += [("kPlaneChannels", self.image_channels, "of y, that lie side by side")] if self.planar and self.split_k == 1 else []
        if self.bounded and self.walk == "table":
            found.append(("kColumnBit", COLUMN_BIT, "of PixelIterator::bounds: the first that stands for a column of the filter"))
        return "\n".join(f"constexpr int {name} = {value};  // {meaning}" for name, value, meaning in found)

    @property
    def pixel_fields(self) -> str:
        """The fields of a thread's position in x, behind its sources."""
        if self.walk == "counters":
            found = ["int top[kPixelPasses], left[kPixelPasses];  // row and column in the image of that tap"]
            found += ["int tap_top, tap_left;  // the current tap: rows below and columns right of the first"]
        elif self.bounded and self.walk == "table":
            found = ["unsigned bounds[kPixelPasses];  // bit i: row i of the filter lies within the image; bit 16 + j: column j does"]
        else:
            found = ["bool inside[kPixelPasses];  // whether there is such a pixel"]
        found += ["int tap;  // the current one in the table"] if self.walk == "table" else []
        found += ["int offset;  // bytes from the first tap to the current one"]
        found += ["int entries_left;  // filter taps of 32 channels from the current one on"] if self.tail else []
        return "\n".join(found)

    @property
    def filter_fields(self) -> str:
        """The fields of a thread's position in the filter, behind its source."""
        found = ["bool inside[kFilterPasses];  // whether there is such a channel"] if not self.whole_channels else []
        return "\n".join([*found, *(["int entries_left;"] if self.tail else [])])

    @property
    def needed_bounds(self) -> str:
        """The bits that a pixel needs for the current tap: the statement, where there is a table of them."""
        return "const unsigned needed = taps.bounds[pixels.tap];" if self.walk == "table" and self.bounded else ""

    @property
    def copy_pixels(self) -> str:
        """The loop over a thread's pixels of a plane."""
        inside = "pixels.inside[pass]"
        if self.walk == "counters":
            inside = "row_inside && static_cast<unsigned>(pixels.left[pass] + pixels.tap_left) < window.w"
        elif self.needed_bounds:
            inside = "(pixels.bounds[pass] & needed) == needed"
        available = inside + (" && pixels.entries_left > 0" if self.tail else "")
        statement = indent(self.copy_vector("Pixel", "pixels.source[pass] + pixels.offset", available), "    ")
        head = "for (int pass = 0; pass < kPixelPasses; ++pass)"
        if self.walk != "counters":
            return f"{head}\n{statement}"
        row = "const bool row_inside = static_cast<unsigned>(pixels.top[pass] + pixels.tap_top) < window.h;"
        return f"{head} {{\n    {row}\n{statement}\n}}"

    @property
    def copy_filters(self) -> str:
        """The loop over a thread's output channels of a plane."""
        conditions = ["filters.inside[pass]"] if not self.whole_channels else []
        conditions += ["filters.entries_left > 0"] if self.tail else []
        source = "filters.source + pass * kFilterRowsPerPass * kRowBytes"
        statement = indent(self.copy_vector("Filter", source, " && ".join(conditions) or "true"), "    ")
        return f"for (int pass = 0; pass < kFilterPasses; ++pass)\n{statement}"

    @property
    def next_pixel_tap(self) -> str:
        """Statements that move on to the next filter tap of a thread's pixels."""
        step = self.planes_step("Pixel")
        if self.walk == "single":
            return "pixels.offset += next_block;"
        if self.walk == "table":
            return "\n".join(
                (
                    "pixels.offset += taps.increment[pixels.tap];",
                    f"pixels.tap += {step};",
                    "if (pixels.tap >= period)",
                    "    pixels.tap -= period;",
                )
            )
        if step == "1":
            return "next_tap(pixels, window);"
        return f"#pragma unroll\nfor (int i = 0; i < {step}; ++i)\n    next_tap(pixels, window);"

    def fewer_entries(self, operand: str) -> str:
        """The statement that counts the entries that are left, where the last step can have fewer."""
        return f"{operand.lower()}s.entries_left -= {self.planes_step(operand)};" if self.tail else ""

    @property
    def planar(self) -> bool:
        """True if a lane's groups of four channels lie in planes of their own."""
        return bool(self.output.layout == "nchw4")

    @property
    def plane(self) -> str:
        """Elements of y from a lane's group of four channels to the next, in planes; empty if groups lie in no planes."""
        return f"plane{times(self.output_lane.quad_step)}" if self.planar else ""

    @property
    def at_quad(self) -> str:
        """Where in y a lane's group of four channels lies, as a C expression over ``quad``."""
        return f"quad * {self.plane or self.output_lane.quads_apart}"

    @property
    def paired(self) -> bool:
        """True if a lane stores eight channels at once."""
        lane = self.output_lane
        return self.output.type == "s8" and not self.planar and lane.quads == 2 and lane.quad_step == 1

    @property
    def channel_grouping(self) -> str:
        """A remark on a lane's channels that do not lie side by side."""
        return ", four by four" if self.output_lane.quads_apart != 4 else ""

    @property
    def shift_text(self) -> str:
        """The terms that are added to a lane's channels, in words."""
        return ("beta * " if self.bias_scaled else "") + "bias" + (", on the scale" if self.unit else "")

    @property
    def shift_parameters(self) -> str:
        """Parameters of the function that loads what is added to a lane's channels."""
        bias = "int" if self.spec.bias == "s32" else "float"
        return f"{self.number} (&shift)[kLaneChannels], const {bias}* bias" + (", float beta" if self.bias_scaled else "")

    @property
    def load_shift(self) -> str:
        """Statements that load four channels of the bias."""
        bias = "int4" if self.spec.bias == "s32" else "float4"
        at = f"i{times(self.output_lane.quad_step)}"
        lines = [f"const {bias} four = *reinterpret_cast<const {bias}*>(bias + {at});"]
        for index, component in enumerate("xyzw"):
            converted = self.spec.bias == "s32" and not self.exact
            term = f"__int2float_rn(four.{component})" if converted else f"four.{component}"
            before, behind = "beta * " if self.bias_scaled else "", " * kUnit" if self.unit else ""
            lines.append(f"shift[i{f' + {index}' if index else ''}] = {before}{term}{behind};")
        return "\n".join(lines)

    @property
    def store_text(self) -> str:
        """The places that the pointers of the function that stores results point at, in words."""
        return f"`y`{' and `z` point' if self.spec.residual else ' points'} at the first" + (
            ", and the next four lie a plane further" if self.planar else ""
        )

    @property
    def store_parameters(self) -> str:
        """Parameters of the function that finishes a lane's channels and stores them."""
        found = [f"{self.output_c_type}* y"]
        found += [f"const {self.output_c_type}* z"] if self.spec.residual else []
        found += ["const int (&sums)[kLaneChannels]"]
        found += [f"const {self.number} (&shift)[kLaneChannels]"] if self.shifted else []
        found += ["int plane"] if self.planar else []
        return ", ".join([*found, "bool exists"]) + self.stored_terms

    @property
    def finish_arguments_of_lane(self) -> str:
        """Arguments of finishing the i-th channel of a lane."""
        found = ["sums[i]"]
        found += ["shift[i]"] if self.shifted else []
        found += ["residual[i]"] if self.spec.residual else []
        found += [read.element(self.output_lane.quads_apart, self.plane) for read in self.reads]
        return ", ".join([*found, *self.factors, *(number.name for number in self.step_numbers)])

    def offset(self, pixel: str, image: str, position: str, channel: str) -> str:
        """Where a channel of a pixel lies in y, as a C expression."""
        if self.output.layout == "nhwc":
            return f"output_offset({pixel}, {channel}, {self.v['k']})"
        return f"output_offset({image}, {position}, {channel}, image_pixels, {self.v['k']})"

    def store_arguments(self, offset: str, shift: str, channel: str, exists: str) -> str:
        """Arguments of finishing and storing ``sums`` of one pixel."""
        found = [f"y + {offset}"]
        found += [f"z + {offset}"] if self.spec.residual else []
        found += ["sums"]
        found += [shift] if self.shifted else []
        found += ["image_pixels * kPlaneChannels"] if self.planar else []
        return ", ".join([*found, exists]) + self.passed_terms(channel, offset)

    def shift_arguments(self, target: str, channel: str) -> str:
        """Arguments of loading what is added to a lane's channels."""
        return f"{target}, bias + {channel}" + (", beta" if self.bias_scaled else "")

    @property
    def channel_begin(self) -> str:
        """Where a lane's channels begin in y."""
        return "group_begin + first_channel" if self.grouped else "first_channel"

    @property
    def block_channel(self) -> str:
        """Where a lane's channels of one block of 32 begin in y."""
        return ("group_begin + " if self.grouped else "") + "first_channel + kLayoutChannels * block"

    @property
    def adds_shift(self) -> bool:
        """True if the kernel of the products adds the bias."""
        return self.shifted and self.split_k == 1

    @property
    def channel_guard(self) -> str:
        """The condition that a lane's channels of a block exist; empty if they always do."""
        return "" if self.whole_channels else f"first_channel + kLayoutChannels * block < {self.group_channels}"

    @property
    def result_guard(self) -> str:
        """The condition that a lane's results of a pixel and a block of channels exist."""
        return " && ".join(part for part in ("pixel < total_pixels", self.channel_guard) if part)

    @property
    def load_block_shift(self) -> str:
        """The statement that loads what is added to a lane's channels of a block."""
        statement = f"load_shift({self.shift_arguments('shift[block]', self.block_channel)});"
        return f"if ({self.channel_guard})\n    {statement}" if self.channel_guard else statement

    @property
    def store_block(self) -> str:
        """The statement that finishes and stores a lane's channels of a block."""
        channel = f"{self.channel_begin} + kLayoutChannels * block"
        return f"store_output({self.store_arguments('offset + block * next_channels', 'shift[block]', channel, self.result_guard)});"

    @property
    def epilogue_comment(self) -> str:
        """The epilogue in words."""
        if self.split_k > 1:
            return "// Epilogue: the sums of this part go to the workspace (part, k / 32, pixel, 32)."
        exchanged = " change lanes through shared memory" if self.exchange else ""
        return f"// Epilogue: 8 pixels x 32 channels at a time{exchanged}; then every lane finishes and stores its channels of a pixel."

    def first_pixel(self, element: str) -> str:
        """The first pixel of a lane, as a C expression."""
        return f"block_pixel + warp_pixel + {self.lane.pixel_text}" + (f" + {element}" if element else "")

    @property
    def first_result(self) -> str:
        """Where the first result of a lane goes: the statement."""
        if self.split_k == 1:
            return f"long long offset = {self.offset('pixel', 'image', 'position', self.channel_begin)};"
        block = f"static_cast<long long>(blockIdx.z * ({self.v['k']} / kLayoutChannels) + {self.channel_begin} / kLayoutChannels)"
        return f"int* target = partial + ({block} * total_pixels + pixel) * kLayoutChannels + {self.channel_begin} % kLayoutChannels;"

    @property
    def next_result(self) -> str:
        """The way from eight pixels to the next: the statement."""
        if self.split_k > 1:
            return "target += kBlock * kLayoutChannels"
        channels = {"nchw32": "kLayoutChannels", "nchw4": "kPlaneChannels", "nhwc": self.v["k"]}[self.output.layout]
        return f"offset += kBlock * {channels}"

    @property
    def decodes(self) -> bool:
        """True if a pixel's image and its position there are needed to store it."""
        return bool(self.split_k == 1 and self.output.layout != "nhwc")

    @property
    def image_channels_text(self) -> str:
        """``image_channels`` as the source writes it."""
        return "kPlaneChannels" if self.planar else "kLayoutChannels"

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
