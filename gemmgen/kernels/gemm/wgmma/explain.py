"""A GEMM by warpgroups in words."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from gemmgen.kernels.family import Section
from gemmgen.kernels.gemm.spec import WgmmaMainloop
from gemmgen.kernels.gemm.tensor_cores.explain import Wording, regions, results, work_lines
from gemmgen.kernels.gemm.wgmma.plan import WgmmaPlan
from gemmgen.kernels.gemm.wording import Lines
from gemmgen.kernels.math.warpgroup import BLOCK_ROWS, SPAN_BYTES, WarpgroupLoop, WarpgroupOperand
from gemmgen.kernels.tiles.unrolling import unrolling_text

SPARSE = "A holds two of every four values of k; metadata say which: a register of a lane for 64 of k"


def sections(plan: WgmmaPlan, wording: Wording | None = None) -> list[Section]:
    """Roles of the warps, tiles, copies, the mainloop, shared memory and stores."""
    loop, wording = plan.loop, replace(wording or Wording(), filler="by TMA, ")
    return [
        Section("Roles", _roles(loop)),
        Section("Work", work_lines(plan, wording, _copied_first(plan))),
        Section("Copies of one stage", _copies(loop)),
        Section("Mainloop", _mainloop(plan, loop, wording)),
        Section("Shared memory", _shared(plan, loop)),
        *wording.sections,
        Section("Results", _results(plan, loop, wording)),
    ]


def _roles(loop: WarpgroupLoop) -> Lines:
    rows = loop.blocks_m * BLOCK_ROWS
    consumers = f"{loop.consumers} warpgroup{'s' if loop.consumers > 1 else ''}, {rows} x {loop.tile_n} of C each"
    if loop.ping_pong:
        consumers += ", on different tiles: one multiplies while the other stores"
    if loop.k_groups > 1:
        consumers += ", the same: they take parts of k in turns"
    lines = [
        ("producer", "a warpgroup, of which one thread keeps the stages full by TMA"),
        ("consumers", consumers),
    ]
    if loop.registers:
        lines.append(("registers", f"redistributed: {loop.registers[0]} a thread for the producer, {loop.registers[1]} for consumers"))
    lines.append(("sums", f"{loop.sums} of a thread's registers hold sums"))
    return tuple(lines)


def _copied_first(plan: WgmmaPlan) -> Lines:
    if plan.copied is None:
        return ()
    names = " and ".join(factor.matrix.name for factor in plan.copied.factors)
    return (("copied first", f"{names}, by a separate kernel, to rows along k in the workspace that TMA can read"),)


def _copies(loop: WarpgroupLoop) -> Lines:
    def said(operand: WarpgroupOperand) -> str:
        along = "k" if operand.k_major else operand.axis
        boxes = operand.spans if operand.k_major else operand.parts
        count = f"{boxes} boxes" if boxes > 1 else "a box"
        return f"{count} of {operand.box[1]} rows of {operand.box[0]} elements along {along}: {operand.tile_bytes} bytes a stage"

    words, blocks = loop.metadata_box
    metadata = (
        f"a box of {blocks} row{'s' if blocks > 1 else ''} of {words} words, in the order of lanes: {loop.metadata_bytes} bytes a stage"
    )
    lines = tuple((operand.name, said(operand)) for operand in (loop.a, loop.b))
    return (*lines, ("metadata", metadata)) if loop.sparse else lines


def _mainloop(plan: WgmmaPlan, loop: WarpgroupLoop, wording: Wording) -> Lines:
    steps = loop.tile_k // loop.instruction_depth
    count = steps * loop.blocks_m * loop.blocks_n
    lines = [
        ("instruction", f"{loop.instruction}: {BLOCK_ROWS} x {loop.instruction_n} of C, {loop.instruction_depth} of k"),
        *([("sparse", SPARSE)] if loop.sparse else []),
        ("one stage", f"{count} instruction{'s' if count > 1 else ''} of each group, issued before those of the stage before are done"),
        ("stages", f"{loop.stages}: filled while others are multiplied; two barriers each, full and empty"),
        *_operand(plan, loop),
        (
            "unrolling",
            f"the loop over a stage's instructions along k, {unrolling_text(cast('WgmmaMainloop', plan.spec.mainloop).unroll)}",
        ),
    ]
    if loop.a_in_registers:
        lines[1] = (
            "one stage",
            f"{count * wording.products // loop.k_groups} instructions of each group; their rows of A {wording.rows} first",
        )
    if loop.promote_steps:
        parts = f", {loop.instruction_n} columns at a time" if loop.blocks_n > 1 else ""
        text = f"every {loop.promote_steps * loop.tile_k} of k, sums go from the tensor core, which keeps 14 bits, to float32{parts}"
        text += ", times the scales of their row and column" if plan.scales else ""
        lines[1] = ("one stage", f"{count} instructions of each group")
        lines.append(("promotion", text))
    return tuple(lines)


def _operand(plan: WgmmaPlan, loop: WarpgroupLoop) -> Lines:
    access = plan.operand_in_stages
    if loop.last_operand_boxes:
        last, size = plan.last_operand, f"{loop.tile_m} rows of {SPAN_BYTES} bytes"
        name = plan.residuals[0].name if last is None else last.name
        if last is None:
            size = f"64 rows of {loop.tile_n // loop.last_operand_boxes * plan.residuals[0].element_bytes} bytes"
        return (("operand", f"{name} of a block's last tile comes to the stages behind its factors, in boxes of {size}"),)
    if access is None:
        return ()
    count = f"{loop.operand_stages} more bring" if loop.operand_stages > 1 else "one more brings"
    return (("operand", f"{count} {access.name}, in boxes of {loop.tile_m} rows of {SPAN_BYTES} bytes in place of tiles of A and B"),)


def _shared(plan: WgmmaPlan, loop: WarpgroupLoop) -> Lines:
    lines = list(regions(plan))
    sizes, by = f"{SPAN_BYTES}", "the row's last 3 bits"
    if loop.a.row_bytes < SPAN_BYTES:
        sizes, by = f"{loop.a.row_bytes} or {SPAN_BYTES}", "bits of the row's number"
    permuted = f"rows of {sizes} bytes, whose 16-byte pieces are permuted by an exclusive or with {by}"
    lines.append(("layout", f"{permuted}, as TMA writes them and matrix instructions read them: no bank conflicts"))
    blocks = loop.min_blocks_per_sm
    lines.append(("occupancy", f"{blocks} block{'s' if blocks > 1 else ''} of {loop.threads} threads on an SM"))
    return tuple(lines)


def _results(plan: WgmmaPlan, loop: WarpgroupLoop, wording: Wording) -> Lines:
    if loop.staging is None:
        return results(plan, wording)
    size = loop.staging.columns * plan.matrix_c.element_bytes
    stored = f"through shared memory, from where TMA takes boxes of 64 rows of {size} bytes"
    beyond = (("last rows", "64 rows that reach into the next group leave row by row, in units of 16 bytes"),) if plan.grouped else ()
    return results(plan, wording, stored, beyond)
