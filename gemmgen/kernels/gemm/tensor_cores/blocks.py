"""Products whose blocks of k are scaled and added up in float32: reference and error bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gemmgen.core.formulas import ceil_div
from gemmgen.kernels.accuracy import SMALLEST, UNIT_ROUNDOFF, accumulated
from gemmgen.kernels.math.tensor_accuracy import Mainloop, magnitude, sum_error

if TYPE_CHECKING:
    from gemmgen.kernels.gemm.plan import Array


@dataclass(frozen=True)
class Blocks:
    """Blocks of k, and the scales of each as numbers of shape (..., lines, blocks); None: 1."""

    depth: int
    rows: Array | None
    columns: Array | None


def product_of_blocks(loop: Mainloop, a: Array, b: Array, blocks: Blocks, slices: int, joined: int, exact: bool) -> tuple[Array, Array]:
    """The sum over blocks of s_A s_B A B, and its largest error, 0 if ``exact``: a block's sum errs as without scales, the product of two
    scales is rounded once, and blocks are added up in float32 by multiply-adds. Blocks are kept apart, since an infinite scale times a sum
    of 0 is NaN. ``slices`` and ``joined`` as in ``sum_error``."""
    import numpy as np

    k = a.shape[-1]
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    product, size = np.zeros(shape), np.zeros(shape)
    count = ceil_div(k, blocks.depth)
    for block in range(count):
        part = np.s_[block * blocks.depth : (block + 1) * blocks.depth]
        rows = blocks.rows[..., :, block, None] if blocks.rows is not None else 1.0
        columns = blocks.columns[..., None, :, block] if blocks.columns is not None else 1.0
        scale = rows * columns
        product = product + scale * (a[..., part] @ b[..., part, :])
        if not exact:
            size += np.abs(scale) * (magnitude(loop.type_a, a[..., part]) @ magnitude(loop.type_b, b[..., part, :]))
    if exact:
        return product, size
    error = sum_error(loop, slices, k, joined)
    return product, (error + UNIT_ROUNDOFF * (1 + error)) * size + (1 + count) * SMALLEST


def product_of_integers(a: Array, b: Array, blocks: Blocks, slices: int, exact: bool) -> tuple[Array, Array]:
    """The sum over blocks of s_B A B of integers, and its largest error: a block's sum is exact in int32; it is rounded to float32 where it
    is larger than 2^24, multiplied by its scale, and added to those of other blocks, or of ``slices`` of k, in float32. 0 if ``exact`` and
    all scales are powers of two."""
    import numpy as np

    assert blocks.columns is not None
    k, scales = a.shape[-1], blocks.columns
    product = np.zeros((a.shape[0], b.shape[1]))
    size = np.zeros(product.shape)
    count = ceil_div(k, blocks.depth)
    for block in range(count):
        part = np.s_[block * blocks.depth : (block + 1) * blocks.depth]
        terms = scales[:, block] * (a[:, part] @ b[part])
        product += terms
        # Slices of one block may cancel each other.
        size += np.abs(terms) if slices == 1 or count > 1 else np.abs(scales[:, block]) * (np.abs(a[:, part]) @ np.abs(b[part]))
    finite = scales[np.isfinite(scales)]
    if exact and (np.abs(np.frexp(finite)[0]) == 0.5).all():
        return product, np.zeros(product.shape)
    return product, accumulated(count + slices + 1) * size + (count + slices + 1) * SMALLEST
