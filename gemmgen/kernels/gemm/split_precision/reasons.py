"""Reasons against float32 products by those of smaller types."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import Reason
from gemmgen.kernels.gemm.spec import Arithmetic, GemmSpec, MmaSyncMainloop, SplitKParallel, TensorMemoryMainloop, WgmmaMainloop
from gemmgen.kernels.gemm.split_precision.planes import Scheme
from gemmgen.kernels.gemm.tensor_cores.reasons import COPY_ALIGNMENT
from gemmgen.kernels.gemm.wgmma.reasons import a_from_reason
from gemmgen.kernels.matrix import Matrix

TENSOR_MEMORY_COLUMNS = 64
"""Columns of a tile on tensor memory, at most: a thread has a sum and a rounding error of each."""


def plane_reasons(spec: GemmSpec, arithmetic: Arithmetic, matrices: tuple[Matrix, Matrix, Matrix], scheme: Scheme) -> Iterator[Reason]:
    """Reasons against float32 products by planes, for all instructions, besides the reasons of all products on tensor cores."""
    types = [matrix.type for matrix in matrices]
    if types != ["f32"] * 3:
        need = "f32 for A, B and C where arithmetic.f32_by is given"
        yield Reason("storage", "storage", ", ".join(types), need)
    if arithmetic.kept != "none" and spec.batch != "none":
        yield Reason("kept", "mainloop.arithmetic.kept", arithmetic.kept, "none for a batch")
    if spec.batch == "grouped":
        yield Reason("batch", "batch", "grouped", "none or strided where float32 is computed by planes")
    if spec.store != "direct":
        need = "direct: results that are computed in float32 are left out, element by element"
        yield Reason("store", "store", spec.store, need)
    if spec.scales.given:
        yield Reason("scales", "scales", "given", "none where float32 is computed by planes")
    for matrix in matrices[:2]:
        if matrix.contiguous != "k" and scheme.element_bytes != 2:
            stored = f"{matrix.name} stored along {matrix.contiguous}"
            need, hint = f"along k for {scheme.name}", "f16x3 and bf16x6 take both orders"
            yield Reason("major", "transpose", stored, need, hint)


def warpgroup_reasons(spec: GemmSpec, mainloop: WgmmaMainloop, matrices: tuple[Matrix, Matrix, Matrix], scheme: Scheme) -> Iterator[Reason]:
    """Reasons against such products by warpgroups."""
    if spec.decomposition.scheme not in ("data_parallel", "split_k_parallel", "split_k_cluster"):
        need = "data_parallel, split_k_parallel or split_k_cluster where float32 is computed by planes"
        yield Reason("decomposition", "decomposition.scheme", spec.decomposition.scheme, need)
    every = mainloop.promote_every
    if every != "auto" and (every == "never" or every % scheme.instruction_k or mainloop.tile.k % every):
        need = f"auto, or a multiple of {scheme.instruction_k} that divides tile.k, {mainloop.tile.k}"
        yield Reason("promotion", "mainloop.promote_every", str(every), need)
    if mainloop.sparse != "none":
        yield Reason("sparse", "mainloop.sparse", mainloop.sparse, "none where float32 is computed by planes")
    if mainloop.instruction_n is not None:
        yield Reason("instruction_n", "mainloop.instruction_n", str(mainloop.instruction_n), "none where float32 is computed by planes")
    if mainloop.schedule == "ping_pong":
        yield Reason("schedule", "mainloop.schedule", "ping_pong", "cooperative where float32 is computed by planes")
    if mainloop.arithmetic.split == "mainloop":
        yield from _split_reasons(spec, mainloop, scheme)
    elif mainloop.a_from == "registers":
        yield a_from_reason(matrices[0], 0)
    if mainloop.unroll != "full":
        need, hint = "full where float32 is computed by planes", "mainloop.promote_every divides the loop instead"
        yield Reason("unroll", "mainloop.unroll", str(mainloop.unroll), need, hint)


def _split_reasons(spec: GemmSpec, mainloop: WgmmaMainloop, scheme: Scheme) -> Iterator[Reason]:
    """Reasons against rows of A that are split by the warps that multiply them."""
    field = "mainloop.arithmetic.split"
    if scheme.type != "bf16":
        need = "kernel" + (": scales are known when a row has been read" if scheme.scaled else ", or another scheme")
        yield Reason("split", field, f"mainloop for {scheme.name}", need, "f32_by: bf16x6, whose planes need no scales")
    if spec.batch != "none" or mainloop.arithmetic.kept != "none":
        got = f"mainloop with batch: {spec.batch}, kept: {mainloop.arithmetic.kept}"
        yield Reason("split", field, got, "kernel for batches, and where planes are kept")
    if isinstance(spec.decomposition, SplitKParallel):
        need = "kernel for split_k_parallel: whether planes hold a row is known where all of it has been read"
        yield Reason("split", field, "mainloop with split_k_parallel", need, "scheme: split_k_cluster")
    if spec.alignment.a * ELEMENTS[spec.storage.a].bytes < COPY_ALIGNMENT:
        got = f"mainloop with alignment.a: {spec.alignment.a}"
        yield Reason("split", field, got, "alignment.a: 4, which TMA requires", "split: kernel")
    if mainloop.cluster.m * mainloop.cluster.n > 1:
        got = f"mainloop with clusters of {mainloop.cluster.m} x {mainloop.cluster.n}"
        yield Reason("split", field, got, "blocks that share no tiles")
    every = mainloop.promote_every if isinstance(mainloop.promote_every, int) else scheme.promote_every
    pair = 2 * every * (mainloop.consumers if mainloop.schedule == "alternating" else 1)
    if mainloop.tile.k % pair:
        need = f"a multiple of {pair}: of each group, rows of {every} steps are split while those before are multiplied, in pairs"
        yield Reason("tile_k", "mainloop.tile.k", str(mainloop.tile.k), need)


def tensor_memory_reasons(spec: GemmSpec, mainloop: TensorMemoryMainloop, scheme: Scheme) -> Iterator[Reason]:
    """Reasons against such products on tensor memory."""
    arithmetic, every = mainloop.arithmetic, mainloop.promote_every
    if mainloop.tile.n > TENSOR_MEMORY_COLUMNS:
        need = f"at most {TENSOR_MEMORY_COLUMNS} where float32 is computed by planes: four warps hold the sums and their rounding errors"
        yield Reason("tile_n", "mainloop.tile.n", str(mainloop.tile.n), need)
    if every != "auto" and (every % scheme.instruction_k or mainloop.tile.k % every):
        need = f"auto, or a multiple of {scheme.instruction_k} that divides tile.k, {mainloop.tile.k}"
        yield Reason("promotion", "mainloop.promote_every", str(every), need)
    if arithmetic.sums == "plain":
        yield Reason("sums", "mainloop.arithmetic.sums", "plain", "auto or compensated for tcgen05")
    if arithmetic.split == "mainloop":
        need = "kernel for tcgen05, which reads both factors from shared memory"
        yield Reason("split", "mainloop.arithmetic.split", "mainloop", need)
    if mainloop.multiplied != "stored":
        yield Reason("multiplied", "mainloop.multiplied", mainloop.multiplied, "stored where float32 is computed by planes")


def fragment_reasons(spec: GemmSpec, mainloop: MmaSyncMainloop) -> Iterator[Reason]:
    """Reasons against such products by warps that multiply fragments."""
    if spec.decomposition.scheme != "data_parallel":
        need = "data_parallel where float32 is computed by planes with mma_sync"
        yield Reason("decomposition", "decomposition.scheme", spec.decomposition.scheme, need)
    if mainloop.copies == "tma" or mainloop.fragment_buffers == 2:
        got = f"copies: {mainloop.copies}, fragment_buffers: {mainloop.fragment_buffers}"
        yield Reason("planes", "mainloop.copies", got, "cp_async or registers, and 1, where float32 is computed by planes")
    if mainloop.unroll != "full":
        need, hint = (
            "full where float32 is computed by planes",
            "the loop over k is divided into the steps between promotions",
        )
        yield Reason("unroll", "mainloop.unroll", str(mainloop.unroll), need, hint)
