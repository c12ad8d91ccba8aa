"""A GEMM on tensor memory in words."""

from __future__ import annotations

from dataclasses import replace

from gemmgen.kernels.family import Section
from gemmgen.kernels.gemm.tcgen05.loop import TensorMemoryLoop
from gemmgen.kernels.gemm.tcgen05.plan import TensorMemoryPlan
from gemmgen.kernels.gemm.tensor_cores.explain import Wording, regions, results, work_lines
from gemmgen.kernels.gemm.wording import Lines
from gemmgen.kernels.math.tensor_memory import BUFFERS, COLUMNS, EPILOGUE_WARPS, ROWS
from gemmgen.kernels.math.warpgroup import SPAN_BYTES, WarpgroupOperand


def sections(plan: TensorMemoryPlan, of_product: Wording | None = None) -> list[Section]:
    """Roles of the warps, tiles, copies, the mainloop, both memories and stores; ``of_product``: words for products of planes."""
    loop = plan.loop
    pair = "two blocks of a cluster multiply together; each has its rows of A and of the sums, and half of the columns of B"
    wording = replace(of_product or Wording(), filler="by TMA, ", pair=pair if loop.pair else "")
    return [
        Section("Roles", _roles(loop)),
        Section("Work", work_lines(plan, wording)),
        Section("Copies of one stage", tuple((operand.name, _copied(operand)) for operand in (loop.a, loop.b))),
        Section("Mainloop", _mainloop(loop, wording.products)),
        *wording.sections,
        Section("Tensor memory", _tensor_memory(loop)),
        Section("Shared memory", (*regions(plan), ("layout", f"rows of {SPAN_BYTES} bytes, swizzled as TMA writes them"))),
        Section("Results", results(plan, wording, _boxes(loop))),
    ]


def _roles(loop: TensorMemoryLoop) -> Lines:
    warp = "a warp of the first block" if loop.pair else "a warp"
    multiplier = f"{warp}, of which one thread issues the instructions (tcgen05.mma)"
    scheduler = (
        f"{warp}, of which one thread asks for the tile of a {'cluster' if loop.pair else 'block'} that waits (clusterlaunchcontrol)"
    )
    next_product = "steps are" if loop.by_planes else "tile is"
    return (
        ("producer", "a warp, of which one thread keeps the stages full by TMA"),
        ("multiplier", multiplier),
        ("epilogue", f"{EPILOGUE_WARPS} warps, each for {ROWS // EPILOGUE_WARPS} rows, while the next {next_product} multiplied"),
        *((("scheduler", scheduler),) if loop.dynamic else ()),
    )


def _copied(operand: WarpgroupOperand) -> str:
    along = "k" if operand.k_major else operand.axis
    count = f"{operand.boxes} boxes" if operand.boxes > 1 else "a box"
    return f"{count} of {operand.box[1]} rows of {operand.box[0]} elements along {along}: {operand.tile_bytes} bytes a stage"


def _mainloop(loop: TensorMemoryLoop, products: int) -> Lines:
    return (
        ("instruction", f"tcgen05.mma, kind {loop.kind}: {loop.tile_m * loop.blocks} x {loop.tile_n} of C, {loop.instruction_depth} of k"),
        ("one stage", f"{products * loop.tile_k // loop.instruction_k} instructions; a commit gives the stage back"),
        ("stages", f"{loop.stages}: filled while others are multiplied; two barriers each, full and empty"),
    )


def _tensor_memory(loop: TensorMemoryLoop) -> Lines:
    return (
        ("allocated", f"{loop.tensor_columns} of 512 columns; {loop.blocks_per_sm} such blocks fit on an SM"),
        ("sums", f"{BUFFERS} sets of {loop.tile_n} columns, a row of C in each of the {ROWS} lanes"),
        *_kept_sums(loop),
        *_scales(loop),
        ("loads", f"{COLUMNS} columns of 16 lanes at a time (16x256b), two of a warp"),
    )


def _boxes(loop: TensorMemoryLoop) -> str | None:
    """Results that TMA stores; None where warps store them."""
    if not loop.box_columns:
        return None
    columns, rows = loop.box
    return f"boxes of {rows} rows of {columns} columns by TMA; each warp has {loop.store_buffers} in shared memory"


def _kept_sums(loop: TensorMemoryLoop) -> Lines:
    if not loop.kept_sums:
        return ()
    return (("smaller products", f"{loop.kept_sums} sets of {loop.tile_n} columns, one for each tile, which is read once"),)


def _scales(loop: TensorMemoryLoop) -> Lines:
    if loop.scaled is None:
        return ()
    words = f"{2 * loop.scale_words} tiles of 128 x 4 scales of a stage, four columns each (tcgen05.cp)"
    return (("scales", words),)
