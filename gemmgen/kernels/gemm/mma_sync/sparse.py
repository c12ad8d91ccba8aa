"""Products of a 2:4 sparse A by warps (``mma.sp`` of sm_80 and later): reasons against them, and metadata.

Source: PTX ISA, "Matrix multiply-accumulate operation using mma.sp instruction with sparse matrix A".
"""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.core.errors import Reason
from gemmgen.kernels.gemm.sparsity import CHUNK_K, WORD_K
from gemmgen.kernels.gemm.spec import GemmSpec, MmaSyncMainloop
from gemmgen.kernels.gemm.tensor_cores.sparse import sparse_form_reasons
from gemmgen.kernels.matrix import Matrix

TYPES = ("f16", "bf16", "s8", "u8")
METADATA_ALIGNMENT = CHUNK_K // WORD_K
"""Words that rows of metadata are aligned to: 8 bytes."""


def metadata_matrix() -> Matrix:
    """Words that say which values of k the kept ones are."""
    return Matrix("metadata", "m", f"ceil_div(k, {WORD_K})", "ld_metadata", True, METADATA_ALIGNMENT, "u16")


def sparse_reasons(spec: GemmSpec, mainloop: MmaSyncMainloop) -> Iterator[Reason]:
    """Parts of the mainloop that do not go with a sparse A."""
    if mainloop.sparse == "none":
        return
    field = "mainloop.sparse"
    yield from sparse_form_reasons(spec, TYPES)
    if mainloop.tile.threadblock.k % CHUNK_K:
        yield Reason("tile_k", "mainloop.tile.threadblock.k", str(mainloop.tile.threadblock.k), f"a multiple of {CHUNK_K} with a sparse A")
    if mainloop.copies != "cp_async" or mainloop.fragment_buffers != 1 or mainloop.multiplied != "stored" or mainloop.unroll != "full":
        got = f"a with copies: {mainloop.copies}, fragment_buffers: {mainloop.fragment_buffers}, unroll: {mainloop.unroll}"
        yield Reason("sparse", field, got, "copies: cp_async, fragment_buffers: 1 and unroll: full with a sparse A")
    if mainloop.arithmetic.f32_by is not None:
        yield Reason("sparse", field, f"a with {mainloop.arithmetic.f32_by}", "products of the types as stored")
