"""A GEMM by warps that multiply fragments, in words."""

from __future__ import annotations

from typing import cast

from gemmgen.kernels.family import Section
from gemmgen.kernels.gemm.mma_sync.loop import FragmentVectors, WarpLoop, WarpOperand
from gemmgen.kernels.gemm.mma_sync.plan import MmaSyncPlan
from gemmgen.kernels.gemm.spec import MmaSyncMainloop
from gemmgen.kernels.gemm.tensor_cores.explain import Wording, regions, results, work_lines
from gemmgen.kernels.gemm.wording import Lines
from gemmgen.kernels.tiles.unrolling import unrolling_text


def sections(plan: MmaSyncPlan, wording: Wording | None = None) -> list[Section]:
    """Tiles, copies or reads, the mainloop, shared memory and stores."""
    loop, wording = plan.loop, wording or Wording()
    if loop.direct:
        return _direct_sections(plan, loop)
    warps = loop.threads // 32
    hierarchy = (
        ("threadblock", f"{loop.tile_m} x {loop.tile_n} of C by {warps} warp{'s' if warps > 1 else ''}, {loop.tile_k} of k at a time"),
        ("warp", f"{loop.warp_m} x {loop.warp_n} of C; {loop.sums} of a thread's registers hold sums"),
    )
    steps = loop.tile_k // loop.instruction_depth
    count = steps * loop.a.fragments * loop.b.fragments * wording.products
    reads = steps * (loop.a.planes * loop.a.fragments + (2 if loop.sparse else 1) * loop.b.planes * loop.b.fragments // 2)
    how = "reads of doubles one by one" if loop.double_depth else f"{reads} reads of four matrices (ldmatrix)"
    mainloop = (
        ("instruction", f"{loop.instruction}: 16 x 8 of C, {loop.instruction_depth} of k"),
        (
            "one stage",
            f"{count} instructions of each warp, {how}",
        ),
        ("stages", f"{loop.stages}: all but one are filled while one is multiplied, with one barrier a stage"),
        (
            "unrolling",
            f"the loop over a stage's instructions along k, {unrolling_text(cast('MmaSyncMainloop', plan.spec.mainloop).unroll)}",
        ),
        *([("sparse", "A holds two of every four values of k; metadata say which, a bit for each value of k")] if loop.sparse else []),
        *([("fragments", "those of the next instructions are read while these multiply")] if loop.fragment_buffers == 2 else []),
    )
    return [
        Section("Tile hierarchy", hierarchy),
        Section("Work", work_lines(plan, wording)),
        Section("Copies of one stage", tuple((o.name, _copied(o)) for o in (loop.a, loop.b))),
        Section("Mainloop", mainloop),
        Section(
            "Shared memory", (*regions(plan), ("layout", "16-byte pieces of a row are permuted by an exclusive or: no bank conflicts"))
        ),
        *wording.sections,
        Section("Results", _results(plan, wording)),
    ]


def _direct_sections(plan: MmaSyncPlan, loop: WarpLoop) -> list[Section]:
    """Tiles, reads, the mainloop and stores of a GEMM whose warps read fragments from global memory."""
    several = "s of as many tiles, of any products" if loop.own_tiles > 1 else ""
    hierarchy = (
        ("threadblock", f"{loop.own_tiles} warp{several}"),
        ("warp", f"{loop.tile_m} x {loop.tile_n} of C, {loop.tile_k} of k at a time; {loop.sums} of a thread's registers hold sums"),
    )
    pairs = {True: "two neighbours along k at once", False: "two neighbours along k one by one"}
    reads: Lines = tuple((o.name, f"straight from global memory, through the L1: {pairs[o.reads_words]}") for o in (loop.a, loop.b))
    count = loop.parts * loop.a.fragments * loop.b.fragments
    instruction = f"{loop.instruction}: 16 x 8 of C, {loop.instruction_k} of k"
    if loop.vectors is not None:
        hierarchy = (hierarchy[0], ("warp", f"{loop.tile_m} x {loop.tile_n} of C at a time, over all of k, which is at most {loop.tile_k}"))
        a, b = (f"straight from global memory: {_fragment_vector(loop.vectors, o)}" for o in (loop.a, loop.b))
        reads = (("A", a), ("B", f"{b}; again where a warp's next tile has other columns"))
        columns = loop.vectors.columns * 4
        work = f"{count} instructions of each warp; every {columns} columns are stored before the next are multiplied"
        mainloop: Lines = (("instruction", instruction), ("one tile", work))
    else:
        mainloop = (("instruction", instruction), ("one step", f"{count} instructions of each warp, after all reads for them"))
    return [
        Section("Tile hierarchy", hierarchy),
        Section("Work", work_lines(plan, Wording())),
        Section("Reads of one step" if loop.vectors is None else "Reads of one tile", reads),
        Section("Mainloop", mainloop),
        Section("Results", _results(plan, Wording())),
    ]


def _fragment_vector(vectors: FragmentVectors, operand: WarpOperand) -> str:
    """The vectors that lanes read of an operand."""
    if operand.k_major:
        return f"{vectors.along_k} neighbours along k at once"
    count = vectors.rows if operand.name == "A" else vectors.columns
    return f"{count} neighbours along {operand.axis} at once, of two lines, whose halves come together by a permutation of bytes"


def _copied(operand: WarpOperand) -> str:
    along = "k" if operand.k_major else operand.axis
    if operand.boxed:
        boxes = f"{operand.spans} boxes" if operand.spans > 1 else "a box"
        size = f"{operand.boxes.box[1]} rows of {operand.boxes.box[0]} elements along {along}"
        return f"{boxes} of {size} by TMA: {operand.tile_bytes} bytes a stage"
    count = f"{operand.planes * operand.passes} of {operand.vector_bytes} bytes a thread"
    if operand.is_async:
        return f"{count} along {along}, asynchronous: {operand.tile_bytes} bytes a stage"
    transposed = ", transposed so that rows run along k" if operand.transposed else ""
    return f"{count} along {along}, through registers{transposed}: {operand.tile_bytes} bytes a stage"


def _results(plan: MmaSyncPlan, wording: Wording) -> Lines:
    vectors = plan.loop.vectors
    if vectors is None:
        return results(plan, wording)
    return results(plan, wording, f"{vectors.columns} neighbours at a time, straight from registers")
