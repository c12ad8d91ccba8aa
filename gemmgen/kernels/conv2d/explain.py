"""A convolution plan in words."""

from __future__ import annotations

from gemmgen.core.elements import ELEMENTS
from gemmgen.hardware.shared_memory import copy_source_degree
from gemmgen.kernels.conv2d.direct import DirectPlan
from gemmgen.kernels.conv2d.explain_warpgroup import EARLY_LAUNCH, warpgroup_sections
from gemmgen.kernels.conv2d.few_channels import FewChannelsPlan
from gemmgen.kernels.conv2d.grouped import GroupedPlan, GroupedTile
from gemmgen.kernels.conv2d.plan import Conv2dPlan
from gemmgen.kernels.conv2d.problem import fixed_parameters, is_depthwise
from gemmgen.kernels.conv2d.results import FinishingPlan
from gemmgen.kernels.conv2d.spec import DirectMainloop
from gemmgen.kernels.conv2d.tiles import OperandTile, exchange_costs, fragment_cost
from gemmgen.kernels.conv2d.warpgroup import WarpgroupPlan
from gemmgen.kernels.family import Section
from gemmgen.kernels.tiles.unrolling import unrolling_text

_WALKS = {
    "single": "one tap: each step goes to the next 32 channels",
    "table": "read from a table with period r s, which the host computes and passes in the kernel's parameters",
    "counters": "counted in the kernel: along a row of the filter, then its rows, then blocks of 32 channels",
}


def summary(plan: FinishingPlan) -> list[str]:
    """The kernel's computation and the storage of its tensors."""
    spec = plan.spec
    types = {array.name: _WORDS[array.type] for array in plan.sequence.arrays}
    lines = [
        f"y = {plan.formula.replace('sum', 'convolution(x, filter)')}{_ROUNDINGS[spec.output.type]}.",
        f"x is {_LAYOUTS_X[spec.input.layout]}, {types['x']}.",
        f"filter is {_shape_of(plan)}, {types['filter']}{_ORDERS[plan.filter_order]}.",
        f"y is {_LAYOUTS[spec.output.layout]}.",
    ]
    fixed = {name: value for name, value in fixed_parameters(spec).items() if (name, value) != ("groups", 1)}
    if fixed:
        lines.append("Made for " + ", ".join(f"{name} = {value}" for name, value in fixed.items()) + ".")
    return lines


def _shape_of(plan: FinishingPlan) -> str:
    named = {
        "fragments": "(k / 16, r, s, input channels / 16, lane, 8)",
        "group_fragments": "(k / 16, r, s, input channels of a group / 16, lane, 8)",
        "tap_rows": "(k / 16, r, sixteens of a row, lane, 8)",
        "rows": "(k, r, s, c)",
        "neighbours": "(k rounded up to a multiple of 16, r, s, c)",
        "filled_rows": "(k, r s c rounded up to a multiple of 128)",
        "filled_neighbours": "(k rounded up to a multiple of 16, r s c to one of 128)",
        "taps": "(r, s, c / groups, k)",
    }
    return named.get(plan.filter_order, "(c / groups / 32, r, s, k, 32)")


_ROUNDINGS = {
    "s8": ", rounded to nearest even and saturated to int8",
    "u8": ", rounded to nearest even and saturated to uint8",
    "s32": ", saturated to int32",
    "f32": " in float32",
    "f16": ", rounded to float16",
    "bf16": ", rounded to bfloat16",
}
_WORDS = {name: element.word for name, element in ELEMENTS.items()}
_LAYOUTS_X = {"nchw32": "(n, c / 32, h, w, 32)", "nhwc": "(n, h, w, c)"}
_ORDERS = {
    "plain": ", output channels in their own order",
    "octets": ', output channels in the order "octets"',
    "quads": ', output channels in the order "quads"',
    "pairs": ', output channels in the order "pairs"',
    "rows": "",
    "taps": "",
    "fragments": ", with zeros between its groups",
    "group_fragments": ", input channels of a group filled up with zeros",
    "tap_rows": ", the taps of a row side by side",
    "neighbours": ', output channels in the order "neighbours"',
    "filled_rows": "",
    "filled_neighbours": ', output channels in the order "neighbours"',
}
_LAYOUTS = {"nchw32": "(n, k / 32, p, q, 32)", "nchw4": "(n, k / 4, p, q, 4)", "nhwc": "(n, p, q, k)"}


def explain(plan: FinishingPlan) -> list[Section]:
    """Implicit GEMM, tile hierarchy, copies, shared memory, epilogue."""
    computed = Section("Computation", tuple(("", line) for line in summary(plan)))
    if isinstance(plan, WarpgroupPlan):
        return [computed, *warpgroup_sections(plan)]
    if isinstance(plan, DirectPlan):
        return [computed, Section("Work", _direct(plan))]
    if isinstance(plan, GroupedPlan):
        return [computed, Section("Work", _grouped(plan))]
    if isinstance(plan, FewChannelsPlan):
        return [computed, Section("Work", _few_channels(plan))]
    assert isinstance(plan, Conv2dPlan)
    return [
        computed,
        Section("As a matrix product", _implicit_gemm(plan)),
        Section("Tile hierarchy", _hierarchy(plan)),
        Section("Copies of one step", _copies(plan)),
        Section("Mainloop", _mainloop(plan)),
        Section("Shared memory", _shared(plan)),
        Section("Epilogue", _epilogue(plan)),
    ]


def _direct(plan: DirectPlan) -> tuple[tuple[str, str], ...]:
    if is_depthwise(plan.spec):
        return _depthwise(plan)
    results = f"{plan.pixels} consecutive pixel{'s' if plan.pixels > 1 else ''} of one output channel"
    lines = [
        ("a thread", f"{results}, summed up tap by tap, channel by channel"),
        ("threads", f"{plan.threads} in a block; neighbours have neighbouring output channels"),
        ("filter", "read once for all pixels of a thread; side by side for neighbours"),
        ("x", "read where a tap lies within the image; side by side for neighbours that are groups of one channel"),
    ]
    assert isinstance(plan.spec.mainloop, DirectMainloop)
    lines.append(("unrolling", f"the loop over the input channels of a tap, {unrolling_text(plan.spec.mainloop.unroll)}"))
    if plan.spec.early_launch:
        lines.append(("launch", EARLY_LAUNCH))
    return tuple(lines)


def _depthwise(plan: DirectPlan) -> tuple[tuple[str, str], ...]:
    rows = f"{plan.rows} rows of " if plan.rows > 1 else ""
    lines = [
        ("a thread", f"{rows}{plan.pixels} consecutive pixels of {plan.channels} neighbouring channels, summed up in registers"),
        ("threads", f"{plan.threads} in a block, {plan.lanes} side by side along the channels; the others have further pixels, then rows"),
        ("filter", f"vectors of {plan.channels} channels, read once for all pixels of a thread"),
        ("x", f"vectors of {plan.channels} channels, read once for all taps of a row of the filter; zeros outside of the image"),
        ("unrolling", "all loops, over the taps of the filter and the pixels of a thread"),
    ]
    if plan.spec.early_launch:
        lines.append(("launch", EARLY_LAUNCH))
    return tuple(lines)


def _grouped(plan: GroupedPlan) -> tuple[tuple[str, str], ...]:
    tile = plan.tile
    lines = [
        ("a block", f"{tile.rows} rows of {tile.columns} pixels, {tile.chunk} channels, by {tile.threads} threads"),
        ("x", f"{tile.rows_x} rows of {tile.columns_x} pixels to shared memory, {tile.bytes:,} bytes, zeros outside of the image"),
        ("groups", _groups(tile)),
        ("instruction", f"mma.sync m16n8k16, {plan.spec.input.type} with float32 sums"),
        ("a warp", f"16 channels of up to {16 * tile.fragments} pixels; {tile.parts} share the pixels"),
        ("filter", "fragments as lanes hold them, read by each warp for all its pixels"),
    ]
    if plan.spec.early_launch:
        lines.append(("launch", EARLY_LAUNCH))
    return tuple(lines)


def _groups(tile: GroupedTile) -> str:
    """The part that a warp multiplies."""
    if tile.diagonal:
        return f"those of {tile.block} neighbouring channels are one product with a block-diagonal filter"
    return f"a block has output channels of one; {tile.depth} of its {tile.group_c} input channels are in shared memory at a time"


def _few_channels(plan: FewChannelsPlan) -> tuple[tuple[str, str], ...]:
    tile = plan.tile
    lines = [
        ("a block", f"{tile.rows} rows of {tile.columns} pixels, {tile.chunk} channels, by {tile.threads} threads"),
        ("x", f"{tile.rows_x} rows of {tile.columns_x} pixels to shared memory, {tile.bytes:,} bytes, zeros outside of the image"),
        ("sum over", f"rows of the filter: {tile.taken} channels of its taps lie side by side, in {tile.steps} instructions"),
        ("instruction", f"mma.sync m16n8k16, {plan.spec.input.type} with float32 sums"),
        ("a warp", f"{16 * tile.slices} channels of up to {16 * tile.fragments} pixels; {tile.parts} share the channels"),
        ("filter", "fragments as lanes hold them, read by each warp for all its pixels"),
    ]
    if plan.spec.early_launch:
        lines.append(("launch", EARLY_LAUNCH))
    return tuple(lines)


def _implicit_gemm(plan: Conv2dPlan) -> tuple[tuple[str, str], ...]:
    channels, pixels = "k / groups output channels", "n p q pixels"
    rows, columns = (channels, pixels) if plan.channels_are_rows else (pixels, channels)
    if plan.walk == "table" and plan.bounded:
        outside = "a bit for each row and column of the filter says whether it lies within"
    else:
        outside = "compared with the image's extents" if plan.bounded else "cannot happen: there is no padding"
    return (
        ("rows", rows),
        ("columns", columns),
        ("sum over", "c / groups / 32 blocks of channels, r rows, s columns, 32 channels, in this order"),
        ("filter taps", _WALKS[plan.walk]),
        ("outside of the image", outside),
        ("overflow", f"at most {plan.spec.maximum_depth} products of at most 2^14 in a sum fit into int32"),
    )


def _hierarchy(plan: Conv2dPlan) -> tuple[tuple[str, str], ...]:
    warps = plan.threads // 32
    tile = f"{plan.pixel_tile.rows} pixels x {plan.filter_tile.rows} channels of y"
    shared = "pixels" if plan.spec.rasterization == "channels_first" else "filters"
    return (
        ("threadblock", f"{tile}, {32 * plan.planes} of the sum at a time, by {plan.threads} threads"),
        ("unrolling", f"the loop over {plan.planes} plane{'s' if plan.planes > 1 else ''}, {unrolling_text(plan.spec.unroll)}"),
        ("warp", f"{plan.warp_pixels} pixels x {plan.warp_channels} channels; {warps} warps, {plan.warps_pixels} along the pixels"),
        ("instruction", f"mma.sync {plan.instruction}, s8 x s8 + s32"),
        ("thread", f"{plan.warp_pixels * plan.warp_channels // 32} sums; about {plan.registers} registers, estimated"),
        ("blocks", f"consecutive ones share their {shared}"),
        *([("tiles of a block", _persistent(plan))] if plan.persistent else []),
        *([("sum in parts", f"{plan.split_k}, added up by {plan.finish_entry}")] if plan.split_k > 1 else []),
    )


def _copies(plan: Conv2dPlan) -> tuple[tuple[str, str], ...]:
    way = "cp.async, in the background" if plan.asynchronous else "registers"
    return (
        ("through", way),
        ("x", _copy(plan.pixel_tile, "pixels, consecutive ones of a row of y next to each other in memory at stride 1")),
        ("filter", _copy(plan.filter_tile, "output channels, consecutive in memory")),
        *([("warning", _source_banks())] if plan.asynchronous else []),
    )


def _source_banks() -> str:
    """Strides at which the pixels that lanes copy together meet in banks of the source."""
    degrees = {stride: copy_source_degree([lane // 2 * 32 * stride + lane % 2 * 16 for lane in range(32)], 16) for stride in (2, 3, 4)}
    conflicts = ", ".join(f"{degree} at stride {stride}" for stride, degree in degrees.items() if degree > 1)
    return f"pixels that lanes copy together meet in the same banks of x: {conflicts} along a row, as do rows of y that begin in one bank"


def _copy(tile: OperandTile, what: str) -> str:
    planes = "every plane" if tile.planes_apart == 1 else f"every {tile.planes_apart}th plane"
    vectors = "1 vector" if tile.passes == 1 else f"{tile.passes} vectors"
    return f"each thread {vectors} of 16 bytes in {planes}; two to a row: {what}"


def _mainloop(plan: Conv2dPlan) -> tuple[tuple[str, str], ...]:
    if plan.stages == 1:
        stages = "1: load, barrier, store, barrier, multiply"
    elif plan.asynchronous:
        stages = f"{plan.stages}: {plan.stages - 1} tiles are in flight; one barrier a step"
    else:
        stages = "2: the next tile passes through registers while this one is multiplied; one barrier a step"
    per_plane = (plan.warp_pixels + plan.warp_channels) // 16
    fragments = "two sets: one is read while the other is multiplied" if plan.double_buffered else "one set"
    instructions = plan.warp_pixels * plan.warp_channels // (128 if plan.instruction == "m16n8k32" else 32)
    return (
        ("stages", stages),
        ("fragments", f"{fragments}; {per_plane} ldmatrix.x4 for {instructions} mma in each plane of a warp"),
        (
            "global traffic",
            f"{1 / plan.pixel_tile.rows + 1 / plan.filter_tile.rows:.5f} bytes for a multiply-add: "
            f"1/{plan.pixel_tile.rows} + 1/{plan.filter_tile.rows}",
        ),
    )


def _shared(plan: Conv2dPlan) -> tuple[tuple[str, str], ...]:
    lines = [region.described for region in plan.shared_memory]
    store, fragment = plan.pixel_tile.store_cost(), fragment_cost(blocks_first=plan.instruction == "m16n8k32")
    lines.append(("copies", f"16 bytes a lane: {store.wavefronts} wavefronts, {store.conflicts} conflicts"))
    lines.append(("ldmatrix.x4", f"{fragment.wavefronts} wavefronts, {fragment.conflicts} conflicts"))
    if plan.exchange:
        writes, reads = exchange_costs(plan.channels_are_rows, plan.lane)
        text = f"{writes.wavefronts} + {reads.wavefronts} wavefronts, {writes.conflicts + reads.conflicts} conflicts"
        lines.append(("exchange", f"{text} for 8 pixels x 32 channels"))
    return tuple(lines)


def _epilogue(plan: Conv2dPlan) -> tuple[tuple[str, str], ...]:
    direct = "straight from the accumulators; the filter's order makes a lane's channels consecutive"
    way = "through shared memory" if plan.exchange else direct
    conversion = "a subtraction, since the sums are small and begin at a large float" if plan.biased else "a conversion"
    steps = [("results", way), ("a lane stores", _lane(plan))]
    if plan.output.type != "s32":
        steps.append(("to float", conversion))
    if plan.output.type == "s8":
        how = "the bounds of saturation" if plan.saturation is not None else "its own operations"
        how = "saturating multiply-adds to [0, 1], on a scale of 1/128" if plan.unit else how
        steps.append(("activation", f"{plan.spec.activation.describe() or 'none'}, by {how}"))
    return tuple(steps)


def _lane(plan: Conv2dPlan) -> str:
    lane = plan.output_lane
    if lane.quads_apart == 4:
        return f"{lane.channels} consecutive channels of a pixel"
    return f"4 consecutive channels of a pixel, and 4 that are {lane.quads_apart} further"


def _persistent(plan: Conv2dPlan) -> str:
    return f"every {plan.spec.persistent_blocks}th; copies for the next begin while one is finished"
