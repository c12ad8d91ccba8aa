"""A plan of a convolution on ``wgmma`` or ``tcgen05`` in words."""

from __future__ import annotations

from gemmgen.kernels.conv2d.spec import WarpgroupMainloop
from gemmgen.kernels.conv2d.tensor_memory import TensorPixelLoop
from gemmgen.kernels.conv2d.warpgroup import WarpgroupPlan
from gemmgen.kernels.family import Section
from gemmgen.kernels.math.tensor_memory import BUFFERS, COLUMNS, EPILOGUE_WARPS, ROWS, TENSOR_COLUMNS
from gemmgen.kernels.tiles.unrolling import unrolling_text

Lines = tuple[tuple[str, str], ...]
_PRODUCER = "a warp, of which one thread keeps the stages full by TMA"
_VECTORS = "four warps that copy x, of which one thread has filters copied by TMA"
EARLY_LAUNCH = "early: blocks come to the SMs while the work before them in the stream still runs, and wait for it there"


def warpgroup_sections(plan: WarpgroupPlan) -> list[Section]:
    """Roles of the warps, tiles, copies, the mainloop, shared memory and stores."""
    return [
        Section("As a matrix product", _implicit_gemm(plan)),
        Section("Roles", _roles(plan)),
        Section("Work", _work(plan)),
        Section("Copies of one step", _copies(plan)),
        Section("Mainloop", _mainloop(plan)),
        *_tensor_memory(plan),
        Section("Shared memory", _shared(plan)),
        Section("Results", _results(plan)),
    ]


def _implicit_gemm(plan: WarpgroupPlan) -> Lines:
    walk = "along the columns, then down the rows of the filter" if plan.walks else "one"
    if plan.loop.vectors:
        walk = "along the columns, then down the rows of the filter; steps go over their ends"
    if plan.windows:
        walk = f"down the rows of the filter; the {plan.taps} of a row find their pixels in one copy, each one further"
    filling = "copies that read nothing" if plan.loop.vectors else "TMA, as are channels beyond the last"
    outside = f"filled with zeros by {filling}" if plan.walks else "cannot happen: there is no padding"
    overflow = f"at most {plan.spec.maximum_depth} products of at most 2^14 in a sum fit into int32"
    return (
        ("rows", "k output channels"),
        ("columns", f"n p (q + {plan.taps - 1}) pixels, of which those at the ends of rows are none" if plan.windows else "n p q pixels"),
        ("sum over", f"r rows, s columns, c channels, {plan.loop.tile_k} at a time"),
        ("filter taps", walk),
        ("outside of the image", outside),
        *([("overflow", overflow)] if plan.accumulator == "int" else []),
    )


def _roles(plan: WarpgroupPlan) -> Lines:
    loop = plan.loop
    if isinstance(loop, TensorPixelLoop):
        return (
            ("producer", _PRODUCER),
            ("multiplier", "a warp, of which one thread issues the instructions (tcgen05.mma)"),
            ("epilogue", f"{EPILOGUE_WARPS} warps, each for {ROWS // EPILOGUE_WARPS} channels, while the next tile is multiplied"),
        )
    groups = f"{loop.consumers} warpgroup{'s' if loop.consumers > 1 else ''}"
    lines = [
        ("producer", _VECTORS if loop.vectors else _PRODUCER),
        ("consumers", f"{groups}, {loop.blocks_m * 64} channels of {loop.tile_n} pixels each"),
    ]
    lines.append(("sums", f"{loop.blocks_m * loop.tile_n // 2} of a thread's registers hold sums"))
    return tuple(lines)


def _work(plan: WarpgroupPlan) -> Lines:
    loop = plan.loop
    grid = f"at most {loop.persistent_blocks} blocks, which take tiles in turn" if loop.persistent_blocks else "one block for each tile"
    lines = [
        ("tile", f"{loop.tile_m} output channels x {loop.tile_pixels} pixels of y, {loop.tile_k} input channels at a time"),
        ("grid", grid),
        ("order of tiles", "those of all output channels for the same pixels one after the other"),
    ]
    if loop.cluster_k > 1:
        lines.append(
            ("cluster", f"{loop.cluster_k} blocks with a part of the taps and channels each; the first adds up the sums, in order")
        )
    elif loop.pair:
        lines.append(("pair", "two blocks of a cluster multiply together; each has its channels and their sums, and half of the pixels"))
    elif loop.cluster_blocks > 1:
        shared = "pixels" if loop.cluster_m > 1 else "filters"
        lines.append(("cluster", f"{loop.cluster_blocks} blocks with the same {shared} copy parts of their tile to all of them"))
    if plan.spec.early_launch:
        lines.append(("launch", EARLY_LAUNCH))
    return tuple(lines)


def _copies(plan: WarpgroupPlan) -> Lines:
    loop = plan.loop
    pixels = f"a column of {loop.b.box_rows} pixels, walked through the images" if plan.walks else f"a box of {loop.b.box_rows} pixels"
    if loop.vectors:
        pixels = f"{loop.b.box_rows} pixels, vectors of 16 bytes by cp.async"
    boxes = "a box" if plan.taps == 1 else f"{plan.taps} boxes"
    return (
        ("filter", f"{boxes} of {loop.a.box_rows} output channels, {loop.a.row_bytes} bytes of a filter tap each"),
        ("x", f"{pixels}, {loop.b.row_bytes} bytes of channels each"),
    )


def _mainloop(plan: WarpgroupPlan) -> Lines:
    loop = plan.loop
    stages = ("stages", f"{loop.stages}: filled while others are multiplied; two barriers each, full and empty")
    if isinstance(loop, TensorPixelLoop):
        size = f"{ROWS * loop.cluster_m} channels x {loop.tile_n} pixels, {loop.instruction_k} input channels"
        instruction = f"tcgen05.mma, kind {loop.kind}: {size}"
        issued = f"{loop.tile_k // loop.instruction_k} instructions; a commit gives the stage back"
        return ("instruction", instruction), ("one step", issued), stages
    assert isinstance(plan.spec.mainloop, WarpgroupMainloop)
    count = loop.tile_k // loop.instruction_k * loop.blocks_m * plan.taps
    return (
        ("instruction", f"{loop.instruction}: 64 channels x {loop.instruction_n} pixels, {loop.instruction_k} input channels"),
        ("one step", f"{count} instruction{'s' if count > 1 else ''} of each group, issued before those of the step before are done"),
        stages,
        ("unrolling", f"the loop over a step's instructions along k, {unrolling_text(plan.spec.mainloop.unroll)}"),
    )


def _tensor_memory(plan: WarpgroupPlan) -> list[Section]:
    loop = plan.loop
    if not isinstance(loop, TensorPixelLoop):
        return []
    lines = (
        ("allocated", f"{loop.tensor_columns} of {TENSOR_COLUMNS} columns"),
        ("sums", f"{BUFFERS} sets of {loop.tile_n} columns, a pixel each; an output channel in each of the {ROWS} lanes"),
        ("loads", f"{COLUMNS} columns of 16 lanes at a time (16x256b), two of a warp"),
    )
    return [Section("Tensor memory", lines)]


def _shared(plan: WarpgroupPlan) -> Lines:
    lines = [region.described for region in plan.shared_memory]
    blocks = plan.loop.min_blocks_per_sm
    lines.append(("occupancy", f"{blocks} block{'s' if blocks > 1 else ''} of {plan.loop.threads} threads on an SM"))
    return tuple(lines)


def _results(plan: WarpgroupPlan) -> Lines:
    stored = "one by one, straight from registers"
    if plan.staged:
        then = "from where TMA takes them" if plan.boxes else "then 16 bytes a thread"
        stored = f"through shared memory, transposed to rows of pixels, {then}"
    lines = [("stored", stored)]
    if plan.neighbours:
        lines.append(("channels", "the two of a thread are neighbours, by the order of the filter"))
    if plan.bordered:
        lines.append(("zero point", "by sums of the filter; near the edges of images, over the taps within"))
    if plan.arrays_read:
        lines.append(("read before", "the operands that are added or multiplied element by element, straight into registers"))
    return tuple(lines)
