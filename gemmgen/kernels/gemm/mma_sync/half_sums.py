"""Products of float16 whose sums are float16, too (``mma.sync`` with f16 accumulators): reasons against them, and the reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gemmgen.core.elements import float_format
from gemmgen.core.errors import Reason
from gemmgen.core.formulas import ceil_div
from gemmgen.hardware.target import Architecture
from gemmgen.kernels.accuracy import accumulated
from gemmgen.kernels.gemm.spec import GemmSpec, MmaSyncMainloop
from gemmgen.kernels.math.tensor_accuracy import WIDE, Mainloop

if TYPE_CHECKING:
    from gemmgen.kernels.gemm.plan import Array

SUMS = float_format("f16")


def half_sum_reasons(spec: GemmSpec, mainloop: MmaSyncMainloop, architecture: Architecture) -> Iterator[Reason]:
    """Types, and parts of the spec, that do not go with sums in float16."""
    if mainloop.accumulators == "f32":
        return
    field = "mainloop.accumulators"
    if (spec.storage.a, spec.storage.b) != ("f16", "f16") or spec.scales.given or mainloop.arithmetic.f32_by is not None:
        yield Reason("accumulators", field, f"f16 for {spec.storage.a} and {spec.storage.b}", "f16 for products of f16 as they are stored")
    if mainloop.copies == "none" or mainloop.sparse != "none" or spec.dual or not architecture.supports("cp_async"):
        got = f"f16 with copies: {mainloop.copies}, sparse: {mainloop.sparse}, dual: {str(spec.dual).lower()} on {architecture.name}"
        yield Reason("accumulators", field, got, "f16 for tiles in shared memory, a dense A and one product, on sm_80 or newer")
    if spec.decomposition.scheme not in ("data_parallel", "split_k_parallel"):
        yield Reason("accumulators", field, f"f16 with {spec.decomposition.scheme}", "data_parallel or split_k_parallel with f16")


def half_product(loop: Mainloop, a: Array, b: Array, slices: int, exact: bool) -> tuple[Array, Array]:
    """A B, and its largest error: 0 where ``exact`` numbers have sums that float16 holds, infinite where sums may overflow.

    An instruction aligns its products and the sum so far, as with sums in float32, and rounds their sum to float16. Slices are added up in
    float32.
    """
    import numpy as np

    with np.errstate(invalid="ignore", over="ignore"):
        product, size = a @ b, np.abs(a) @ np.abs(b)
        steps = ceil_div(min(ceil_div(a.shape[-1], slices) + loop.tile_k, a.shape[-1]), loop.instruction_k)
        lost = steps * ((loop.instruction_k + 1) * 2.0**-WIDE.fraction_bits + SUMS.roundoff)
        inside = lost / (1 - lost) if lost < 1 else np.inf
        bound = (inside + accumulated(slices) * (1 + inside)) * size + slices * steps * SUMS.smallest
        bound = np.where(size + bound >= SUMS.overflow, np.inf, bound)
        known = exact & (size <= 2.0**SUMS.digits) | ~np.isfinite(size)
    return product, np.where(known, 0.0, bound)
