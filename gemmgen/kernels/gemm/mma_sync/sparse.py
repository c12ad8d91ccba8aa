"""Products of a 2:4 sparse A by warps (``mma.sp`` of sm_80 and later): reasons against them, metadata and the reference.

Source: PTX ISA, "Matrix multiply-accumulate operation using mma.sp instruction with sparse matrix A".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from gemmgen.core.errors import Reason
from gemmgen.kernels.accuracy import SMALLEST
from gemmgen.kernels.gemm.sparsity import CHUNK_K, WORD_K, places
from gemmgen.kernels.gemm.spec import GemmSpec, MmaSyncMainloop
from gemmgen.kernels.math.tensor_accuracy import Mainloop, magnitude, sum_error
from gemmgen.kernels.matrix import Matrix

if TYPE_CHECKING:
    from gemmgen.kernels.gemm.plan import Array

TYPES = ("f16", "bf16", "s8", "u8")
METADATA_BITS = 1
"""Of each value of k, those that are left out among them."""
METADATA_ALIGNMENT = CHUNK_K // WORD_K
"""Words that rows of metadata are aligned to: 8 bytes."""


def is_sparse(spec: GemmSpec) -> bool:
    """True if A is 2:4 sparse."""
    return isinstance(spec.mainloop, MmaSyncMainloop) and spec.mainloop.sparse == "a"


def metadata_matrix() -> Matrix:
    """Words that say which values of k the kept ones are."""
    return Matrix("metadata", "m", f"ceil_div(k, {WORD_K})", "ld_metadata", True, METADATA_ALIGNMENT, "u16")


def sparse_reasons(spec: GemmSpec, mainloop: MmaSyncMainloop) -> Iterator[Reason]:
    """Types, layouts and parts of the mainloop that do not go with a sparse A."""
    if mainloop.sparse == "none":
        return
    field = "mainloop.sparse"
    if {spec.storage.a, spec.storage.b} - set(TYPES):
        yield Reason("sparse", "storage", f"{spec.storage.a} and {spec.storage.b}", "f16, bf16, s8 or u8 with a sparse A")
    if (spec.transpose[0] == "n") != (spec.order == "row_major"):
        need = "A along k, in which neighbours are left out: n where row_major, t where column_major"
        yield Reason("sparse", "transpose", spec.transpose, need)
    if spec.multiple_of.k % CHUNK_K:
        need = f"a multiple of {CHUNK_K}: metadata are copied in units of 8 bytes"
        yield Reason("multiple_of", "multiple_of.k", str(spec.multiple_of.k), need, f"multiple_of: {{k: {CHUNK_K}}}")
    if mainloop.tile.threadblock.k % CHUNK_K:
        yield Reason("tile_k", "mainloop.tile.threadblock.k", str(mainloop.tile.threadblock.k), f"a multiple of {CHUNK_K} with a sparse A")
    if spec.batch != "none" or spec.dual or spec.scales.given:
        yield Reason("sparse", field, "a with a batch, a second B or block scales", "one product without block scales")
    if mainloop.copies != "cp_async" or mainloop.fragment_buffers != 1 or mainloop.multiplied != "stored" or mainloop.unroll != "full":
        got = f"a with copies: {mainloop.copies}, fragment_buffers: {mainloop.fragment_buffers}, unroll: {mainloop.unroll}"
        yield Reason("sparse", field, got, "copies: cp_async, fragment_buffers: 1 and unroll: full with a sparse A")
    if mainloop.arithmetic.f32_by is not None:
        yield Reason("sparse", field, f"a with {mainloop.arithmetic.f32_by}", "products of the types as stored")


def sparse_product(loop: Mainloop, arrays: Mapping[str, Array], slices: int, joined: int, exact: bool) -> tuple[Array, Array]:
    """A B of the kept values, and its largest error, 0 if ``exact``. Values of B beside those that are left out take no part, not even
    as infinities. The error allows for an instruction that adds its products at once, and for one that adds them in two parts."""
    import numpy as np

    a, b, at = arrays["A"].astype(np.float64), arrays["B"].astype(np.float64), places(arrays["metadata"])
    shape = a.shape[0], b.shape[1]
    product = np.stack([row @ b[kept] for row, kept in zip(a, at, strict=True)]) if len(a) else np.zeros(shape)
    if exact:
        return product, np.zeros(shape)
    sizes_a, sizes_b = magnitude(loop.type_a, a), magnitude(loop.type_b, b)
    size = np.stack([row @ sizes_b[kept] for row, kept in zip(sizes_a, at, strict=True)]) if len(a) else np.zeros(shape)
    return product, 2 * sum_error(loop, slices, a.shape[1], joined) * size + SMALLEST
