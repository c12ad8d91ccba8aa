"""A GEMM plan in words."""

from __future__ import annotations

from gemmgen.families.base import Section
from gemmgen.families.gemm.exchange import exchange_accesses
from gemmgen.families.gemm.operand import Operand
from gemmgen.families.gemm.plan import GemmPlan, NaiveLoop, TiledLoop
from gemmgen.families.matrix import Matrix

STORAGE = {"f32": "", "f16": " in float16", "bf16": " in bfloat16"}
"""How a matrix of each type is described."""


def formula_lines(plan: GemmPlan) -> list[str]:
    """What the kernel computes and how the matrices are stored."""
    spec = plan.spec
    product = "alpha A B" if spec.alpha == "argument" else "A B"
    if spec.beta == "argument":
        product += " + beta C"
    operations = ", then ".join(stage.operation.describe() for stage in plan.epilogue)
    lines = [f"C = {product} in float32" + (f", then {operations}." if operations else ".")]
    for matrix in (plan.matrix_a, plan.matrix_b, plan.matrix_c):
        lines.append(f"{matrix.name} is {_layout(matrix)}.")
    return lines


def _layout(matrix: Matrix) -> str:
    order = "row" if matrix.row_major else "column"
    text = f"{matrix.rows} x {matrix.columns}{STORAGE[matrix.type]}, {order}-major with leading dimension {matrix.leading_dimension}"
    if matrix.alignment > 1:
        text += f"; pointer and {matrix.leading_dimension} are multiples of {matrix.alignment} elements"
    if matrix.batch_stride is not None:
        text += f"; {matrix.batch_stride} elements from one to the next of the batch"
    return text


def explain_gemm(plan: GemmPlan) -> list[Section]:
    """Tile hierarchy, copies, shared memory, and launch."""
    sections = [Section("What it computes", tuple(("", line) for line in formula_lines(plan)))]
    loop = plan.loop
    if isinstance(loop, NaiveLoop):
        sections.append(
            Section(
                "Tile hierarchy",
                (
                    ("threadblock", f"{plan.tile_m} x {plan.tile_n} of C by {plan.threads} threads"),
                    ("thread", "1 x 1 of C; reads 2 k elements from global memory for k multiply-adds"),
                ),
            )
        )
        return sections
    sections.append(_hierarchy(plan, loop))
    sections.append(
        Section("Copies of one tile along k", tuple((o.name, _copy(o)) for o in (loop.a, loop.b)))
    )
    sections.append(Section("Mainloop", _mainloop(plan, loop)))
    shared = []
    for region in plan.shared_memory:
        extents = "".join(f"[{extent}]" for extent in region.shape)
        last = region.offset + region.bytes - 1
        shared.append((region.name, f"bytes {region.offset} to {last}: {region.type}{extents}, {region.meaning}"))
    for access in loop.accesses:
        text = f"{access.per_step} x {access.width_bytes} bytes a lane: {access.wavefronts} wavefronts, {access.conflicts} conflicts"
        shared.append((access.what, f"{text} (one warp, one step along k)"))
    if plan.exchange is not None:
        positions = tuple(zip(loop.major.lane_positions, loop.minor.lane_positions, strict=True))
        for access in exchange_accesses(plan.exchange, positions):
            text = f"{access.per_step} x {access.width_bytes} bytes a lane: {access.wavefronts} wavefronts, {access.conflicts} conflicts"
            shared.append((access.what, f"{text} (one warp, one of {loop.major.fragment.extent} slabs of results)"))
    sections.append(Section("Shared memory", tuple(shared)))
    return sections


def _hierarchy(plan: GemmPlan, loop: TiledLoop) -> Section:
    a, b = loop.a, loop.b
    warps = plan.threads // 32
    return Section(
        "Tile hierarchy",
        (
            ("threadblock", f"{plan.tile_m} x {plan.tile_n} of C, {loop.tile_k} of k at a time, by {plan.threads} threads"),
            ("warp", f"{plan.tile_m // a.fragment.warps} x {plan.tile_n // b.fragment.warps} of C; {warps} warps"),
            ("thread", f"{a.fragment.extent} x {b.fragment.extent} of C; {a.fragment.lanes} x {b.fragment.lanes} lanes in a warp"),
            ("rows of a thread", _fragment(a)),
            ("columns of a thread", _fragment(b)),
        ),
    )


def _fragment(operand: Operand) -> str:
    fragment = operand.fragment
    if fragment.pieces == 1 or fragment.piece_stride == fragment.vector:
        return f"{fragment.extent} side by side"
    return f"{fragment.pieces} groups of {fragment.vector}, {fragment.piece_stride} apart"


def _copy(operand: Operand) -> str:
    copy = operand.copy
    along = "k" if operand.contiguous_along_k else operand.axis
    into = f"[k][{operand.axis}]" if operand.mn_major else f"[{operand.axis}][k]"
    padding = f", {operand.padding} padding" if operand.padding else ""
    read, written = operand.element_bytes * copy.vector, operand.shared_bytes * operand.store_width
    return (
        f"every thread reads {copy.passes} x {read} bytes along {along} and writes {written} bytes at a time"
        f" into {into}{', transposed' if operand.transposes else ''}{padding}"
    )


def _mainloop(plan: GemmPlan, loop: TiledLoop) -> tuple[tuple[str, str], ...]:
    a, b = loop.a.fragment.extent, loop.b.fragment.extent
    stages = (
        "1: load, barrier, multiply, barrier"
        if loop.stages == 1
        else f"{loop.stages}: the next tile is loaded while this one is multiplied; one barrier a step"
    )
    loads = sum(o.fragment.extent // o.load_width for o in (loop.a, loop.b))
    return (
        ("stages", stages),
        ("for one k", f"{a} x {b} = {a * b} multiply-adds from {loads} reads of shared memory a thread"),
        ("registers", f"about {loop.estimated_registers} a thread: {a * b} accumulators, fragments, staged tiles, addresses"),
        ("global traffic", f"{1 / plan.tile_m + 1 / plan.tile_n:.5f} elements for a multiply-add: 1/{plan.tile_m} + 1/{plan.tile_n}"),
    )
