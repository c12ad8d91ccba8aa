"""Reasons against a GEMM by warps that multiply fragments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gemmgen.core.errors import Reason
from gemmgen.hardware.target import WARP_THREADS, Architecture
from gemmgen.kernels.gemm.reasons import thread_reasons
from gemmgen.kernels.gemm.spec import CacheHints, GemmSpec, MmaSyncMainloop, Rasterization, StreamK
from gemmgen.kernels.gemm.tensor_cores.reasons import BYTE_FLOATS, computes_f32, result_reasons, turning_reasons
from gemmgen.kernels.matrix import Matrix

CHUNK_BYTES = 16
"""Bytes that one lane points at for ``ldmatrix``: a row of a matrix."""
BANKS_BYTES = 128
STEP_BYTES = 32
"""Bytes along k that one instruction multiplies."""
BLOCK_ROWS = 16
"""Rows of the result of one instruction."""
TURING_TYPES = ("f16", "s8", "u8")
"""Types of factors on sm_75."""
MAX_BOX = 256
"""Rows of a box of TMA, at most."""


def mma_sync_reasons(spec: GemmSpec, architecture: Architecture) -> Iterator[Reason]:
    """An architecture without these instructions, or without some of their types."""
    yield from turing_reasons(spec, architecture)
    if {spec.storage.a, spec.storage.b, spec.storage.c} & set(BYTE_FLOATS) and not architecture.supports("fp8_mma"):
        yield Reason("storage", "storage", f"8-bit floats on {architecture.name}", "sm_89 or newer", "architecture: sm_89")


def turing_reasons(spec: GemmSpec, architecture: Architecture) -> Iterator[Reason]:
    """Types, copies and results that sm_75 does not have."""
    if architecture.supports("cp_async"):
        return
    mainloop = spec.mainloop
    if {spec.storage.a, spec.storage.b} - set(TURING_TYPES):
        got = f"{spec.storage.a} and {spec.storage.b} on {architecture.name}"
        yield Reason("storage", "storage", got, f"{', '.join(TURING_TYPES)}, or sm_80 or newer", "architecture: sm_80")
    if isinstance(mainloop, MmaSyncMainloop) and (mainloop.copies not in ("registers", "none") or mainloop.sparse != "none"):
        got = f"copies: {mainloop.copies}, sparse: {mainloop.sparse} on {architecture.name}"
        need = "copies: registers or none, and no sparse A, or sm_80 or newer"
        yield Reason("mma_sync", "mainloop.copies", got, need, "copies: registers")
    if spec.decomposition.scheme not in ("data_parallel", "split_k_parallel") or spec.amax != "none":
        got = f"{spec.decomposition.scheme}, amax: {spec.amax} on {architecture.name}"
        yield Reason("mma_sync", "decomposition", got, "data_parallel or split_k_parallel without amax, or sm_80 or newer")


def shape_reasons(
    mainloop: MmaSyncMainloop, matrices: tuple[Matrix, Matrix, Matrix], element_bytes: Sequence[int], architecture: Architecture
) -> Iterator[Reason]:
    """Tiles and instructions that do not fit one another."""
    block, warp = mainloop.tile.threadblock, mainloop.tile.warp
    for axis in ("m", "n"):
        whole, own = getattr(block, axis), getattr(warp, axis)
        if own % BLOCK_ROWS or whole % own:
            need = f"a multiple of {BLOCK_ROWS} that divides {whole}"
            yield Reason("warp_tile", f"mainloop.tile.warp.{axis}", str(own), need)
    yield from thread_reasons(WARP_THREADS * (block.m // warp.m) * (block.n // warp.n), architecture, "mainloop.tile")
    instruction = STEP_BYTES // element_bytes[0]
    if mainloop.copies == "none":
        if block.k % instruction:
            yield Reason("tile_k", "mainloop.tile.threadblock.k", str(block.k), f"a multiple of {instruction}, of an instruction")
        return
    if mainloop.fragment_buffers == 2 and block.k % (2 * instruction):
        need = f"a multiple of {2 * instruction}, two instructions, for fragments that are read ahead"
        yield Reason("fragment_buffers", "mainloop.tile.threadblock.k", str(block.k), need, "fragment_buffers: 1")
    for matrix, axis, extent, size in ((matrices[0], "m", block.m, element_bytes[0]), (matrices[1], "n", block.n, element_bytes[1])):
        along_k = matrix.contiguous != axis or size not in (2, 8)
        for field, length, used in (("k", block.k, along_k), (axis, extent, not along_k)):
            row = length * size
            if field == "k" and row % STEP_BYTES:
                yield Reason("tile_k", "mainloop.tile.threadblock.k", str(length), f"a multiple of {STEP_BYTES // size} for {matrix.type}")
            elif used and row not in (32, 64) and row % BANKS_BYTES:
                need = (
                    f"{32 // size}, {64 // size} or a multiple of {BANKS_BYTES // size}: rows of a tile of {matrix.name} in shared memory"
                )
                yield Reason("tile", f"mainloop.tile.threadblock.{field}", str(length), need)


def direct_reasons(spec: GemmSpec, mainloop: MmaSyncMainloop) -> Iterator[Reason]:
    """Reasons against warps that read fragments from global memory."""
    if computes_f32(spec) or {spec.storage.a, spec.storage.b} - {"f16", "bf16"}:
        got = f"{spec.storage.a} and {spec.storage.b}"
        yield Reason("copies", "mainloop.copies", f"none with {got}", "factors of f16 or bf16", "copies: cp_async")
    if spec.decomposition.scheme != "data_parallel" or spec.batch == "grouped":
        need = "data_parallel without groups for copies: none: every warp has a separate tile"
        yield Reason("copies", "mainloop.copies", "none", need, "copies: cp_async")
    if mainloop.persistent_blocks and mainloop.fragment_reads == "pairs":
        need = "no persistent blocks for copies: none with fragment_reads: pairs: every warp has one tile"
        yield Reason("copies", "mainloop.copies", "none", need, "copies: cp_async")
    if mainloop.stages != MmaSyncMainloop.model_fields["stages"].default or mainloop.fragment_buffers == 2 or mainloop.unroll != "full":
        got = f"stages {mainloop.stages}, fragment_buffers {mainloop.fragment_buffers}, unroll {mainloop.unroll}"
        yield Reason("copies", "mainloop", got, "none of them given with copies: none, which has no stages")


def vector_reasons(spec: GemmSpec, mainloop: MmaSyncMainloop, matrices: tuple[Matrix, Matrix, Matrix]) -> Iterator[Reason]:
    """Reasons against lanes that read and store vectors of fragments."""
    field, got = "mainloop.fragment_reads", "vectors"
    if mainloop.copies != "none":
        yield Reason("fragment_reads", field, f"vectors with copies: {mainloop.copies}", "copies: none for vectors of fragments")
    if spec.storage.c not in ("f16", "bf16"):
        yield Reason("fragment_reads", field, f"vectors with C of {spec.storage.c}", "results of f16 or bf16", "fragment_reads: pairs")
    if not mainloop.persistent_blocks:
        need = "1 or more for vectors of fragments: warps take tiles in turn"
        yield Reason("persistent_blocks", "mainloop.persistent_blocks", "0", need, "mainloop.persistent_blocks: 528")
    if spec.rasterization != Rasterization():
        yield Reason("fragment_reads", "rasterization", str(spec.rasterization), "none for vectors of fragments: tiles come row by row")
    if not matrices[2].row_major or spec.store != "direct":
        need = "row-major results with store: direct for vectors of fragments"
        yield Reason("fragment_reads", field, got, need, "fragment_reads: pairs")
    for matrix in matrices:
        if matrix.alignment < 2:
            need = "at least 2: no vector is narrower than a pair of neighbours"
            yield Reason("alignment", f"alignment.{matrix.name.lower()}", str(matrix.alignment), need, "fragment_reads: pairs")


def box_reasons(mainloop: MmaSyncMainloop, matrices: tuple[Matrix, Matrix, Matrix], architecture: Architecture) -> Iterator[Reason]:
    """Tiles that TMA cannot bring."""
    block = mainloop.tile.threadblock
    if not architecture.supports("tma"):
        yield Reason("copies", "mainloop.copies", f"tma on {architecture.name}", "sm_90 or newer", "architecture: sm_90")
    for matrix, axis, extent in ((matrices[0], "m", block.m), (matrices[1], "n", block.n)):
        name, along_k = matrix.name.lower(), matrix.contiguous != axis
        if not along_k and matrix.element_bytes != 2:
            stored = f"{matrix.name} of {matrix.type} stored along {matrix.contiguous}"
            need, hint = "along k for copies: tma: ldmatrix transposes elements of 16 bits only", "copies: cp_async"
            yield Reason("major", "transpose", stored, need, hint)
        if matrix.alignment * matrix.element_bytes != CHUNK_BYTES:
            need = f"{CHUNK_BYTES // matrix.element_bytes}: TMA requires multiples of {CHUNK_BYTES} bytes"
            yield Reason("alignment", f"alignment.{name}", str(matrix.alignment), need, "copies: cp_async")
        rows, field = (extent, axis) if along_k else (block.k, "k")
        if rows > MAX_BOX:
            yield Reason("box", f"mainloop.tile.threadblock.{field}", str(rows), f"at most {MAX_BOX} rows in a TMA box")


def combination_reasons(spec: GemmSpec, mainloop: MmaSyncMainloop) -> Iterator[Reason]:
    """Parts of the mainloop that exclude one another, or other fields of the spec."""
    decomposition = spec.decomposition
    if decomposition.scheme not in ("data_parallel", "split_k_parallel", "stream_k") and not computes_f32(spec):
        need = "data_parallel, split_k_parallel or stream_k for mma_sync"
        yield Reason("decomposition", "decomposition.scheme", decomposition.scheme, need)
    if mainloop.arithmetic.split == "mainloop":
        need = "kernel for mma_sync: its warps share tiles, and each warp would split them again"
        yield Reason("split", "mainloop.arithmetic.split", "mainloop", need, "strategy: wgmma")
    if mainloop.unroll != "full" and mainloop.fragment_buffers == 2 and not computes_f32(spec):
        need, hint = "full where fragments are read ahead", "the unrolled index selects the buffer"
        yield Reason("unroll", "mainloop.unroll", str(mainloop.unroll), need, hint)
    if isinstance(decomposition, StreamK) and mainloop.persistent_blocks:
        need = "0 for stream_k: decomposition.blocks says how many there are"
        yield Reason("persistent_blocks", "mainloop.persistent_blocks", str(mainloop.persistent_blocks), need)
    yield from result_reasons(spec, in_boxes=mainloop.copies == "tma")
    if spec.grouping.depth == "offsets":
        if mainloop.copies != "cp_async" or decomposition.scheme != "data_parallel" or computes_f32(spec) or spec.scales.given:
            got = f"copies: {mainloop.copies}, {decomposition.scheme}"
            need = "cp_async, data_parallel, and neither block scales nor float32 by planes for values of k that differ"
            yield Reason("depth", "grouping.depth", got, need, "copies: cp_async")
        if spec.transpose != "tn" or spec.order != "row_major":
            need = "tn, row_major: values of k begin anywhere, so that rows of A and B in memory run across them"
            yield Reason("depth", "transpose", f"{spec.transpose}, {spec.order}", need)
    if spec.grouping.gathered and mainloop.copies != "cp_async":
        need = "cp_async for gathered rows: a TMA box has neighbouring rows"
        yield Reason("gather", "mainloop.copies", mainloop.copies, need, "copies: cp_async")
    if spec.store == "tma":
        yield Reason("store", "store", spec.store, "direct or through_shared for mma_sync")
    if spec.store == "through_shared":
        yield from transposing_reasons(spec, mainloop)
    if spec.cache != CacheHints():
        yield Reason("cache", "cache", "hints", "none for mma_sync")


def transposing_reasons(spec: GemmSpec, mainloop: MmaSyncMainloop) -> Iterator[Reason]:
    """Reasons against warps that transpose their results in shared memory."""
    if isinstance(spec.decomposition, StreamK) or mainloop.copies == "tma":
        got = f"through_shared with {spec.decomposition.scheme}, copies: {mainloop.copies}"
        need = "direct for mma_sync with stream_k or tensor maps: results would take the place of tiles on their way"
        yield Reason("store", "store", got, need)
    yield from turning_reasons(spec)
