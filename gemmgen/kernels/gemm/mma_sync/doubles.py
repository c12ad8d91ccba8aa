"""Products of doubles by warps (``mma.sync`` on f64, of sm_80 and later): reasons against them, and the reference.

Source: PTX ISA, "Matrix Fragments for mma.m8n8k4 with .f64 floating point type", and the same for m16n8k4, m16n8k8 and m16n8k16.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gemmgen.core.elements import float_format
from gemmgen.core.errors import Reason
from gemmgen.hardware.target import Architecture
from gemmgen.kernels.gemm.spec import GemmSpec, MmaSyncMainloop

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]
    Wide = npt.NDArray[np.longdouble]

DOUBLE_BYTES = 8
PERIOD = 16
"""Values of k that lanes share in a fixed order: 128 bytes."""
DEPTH, HOPPER_DEPTH = 4, 16
"""Values of k of an instruction: of two of 8 rows, or of one of 16 rows, from sm_90 on."""


def is_double(spec: GemmSpec) -> bool:
    """True if factors are doubles."""
    return spec.storage.a == "f64"


def instruction_depth(architecture: Architecture) -> int:
    """Values of k that the instruction for 16 rows multiplies."""
    return HOPPER_DEPTH if architecture.compute_capability >= (9, 0) else DEPTH


def double_reasons(spec: GemmSpec, mainloop: MmaSyncMainloop) -> Iterator[Reason]:
    """Tiles, and parts of the spec, that do not go with doubles."""
    if not is_double(spec):
        return
    if mainloop.tile.threadblock.k % PERIOD:
        need = f"a multiple of {PERIOD} for f64: lanes share so many values of k"
        yield Reason("tile_k", "mainloop.tile.threadblock.k", str(mainloop.tile.threadblock.k), need)
    if mainloop.copies != "cp_async" or mainloop.unroll != "full":
        got = f"copies: {mainloop.copies}, unroll: {mainloop.unroll}"
        yield Reason("storage", "mainloop", got, "copies: cp_async and unroll: full for f64", "copies: cp_async")
    if spec.decomposition.scheme != "data_parallel" or spec.batch == "grouped" or spec.dual:
        got = f"{spec.decomposition.scheme}, batch: {spec.batch}, dual: {str(spec.dual).lower()}"
        need = "data_parallel, one product or a strided batch, for f64"
        yield Reason("storage", "decomposition", got, need, "decomposition: {scheme: data_parallel}")
    if spec.amax != "none":
        yield Reason("storage", "amax", f"{spec.amax} with f64", "none: it is a float32", "amax: none")
    if spec.store != "direct":
        yield Reason("store", "store", spec.store, "direct for f64", "store: direct")


def double_product(a: Array, b: Array, exact: bool) -> tuple[Wide, Array]:
    """A B in extended precision, and the largest error of chains of fused multiply-adds in float64, 0 if ``exact``.

    Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1: each of the k terms takes part in at most k roundings,
    one a term. The reference's own roundings, and one of each product below the smallest normal number, are added.
    """
    import numpy as np

    k = a.shape[-1]
    product: Wide = a.astype(np.longdouble) @ b.astype(np.longdouble)
    if exact:
        return product, np.zeros(product.shape)
    known = float_format("f64")
    roundings = k * (known.roundoff + float(np.finfo(np.longdouble).eps))
    return product, roundings / (1 - roundings) * (np.abs(a) @ np.abs(b)) + k * known.smallest


def rounded_double(value: Wide, bound: Array) -> tuple[Wide, Array]:
    """A value that float64 rounds once: as it would be without, with the bound that allows for it; exact where float64 holds it."""
    import numpy as np

    known = float_format("f64")
    with np.errstate(over="ignore", invalid="ignore"):
        inexact = (bound > 0) | (value.astype(np.float64) != value)
        grown = bound + known.roundoff * (np.abs(value).astype(np.float64) + bound) + known.smallest
    return value, np.where(inexact & np.isfinite(value), grown, bound)
