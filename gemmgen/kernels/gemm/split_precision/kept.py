"""Planes of weights that callers keep for many products."""

from __future__ import annotations

from typing import Literal

from gemmgen.kernels.gemm.request import alignment_elements, is_stored
from gemmgen.kernels.gemm.spec import GemmSpec, MmaSyncMainloop, TensorMemoryMainloop, WgmmaMainloop
from gemmgen.kernels.gemm.split_precision.planes import SCHEMES, PlaneOperand, memory_parts
from gemmgen.kernels.gemm.tensor_cores.factors import parts_bytes
from gemmgen.kernels.matrix import Matrix
from gemmgen.kernels.requests import Layout

PlanesMainloop = WgmmaMainloop | TensorMemoryMainloop | MmaSyncMainloop
"""A mainloop that may multiply planes."""
PLANES = "f16x3"
"""The scheme of planes that callers may keep."""


def with_kept_planes(mainloop: PlanesMainloop, operand: Literal["a", "b"]) -> PlanesMainloop:
    """The mainloop for an operand that comes with its planes."""
    return mainloop.model_copy(update={"arithmetic": mainloop.arithmetic.model_copy(update={"kept": operand})})


def planes_layout(b: Layout) -> Layout:
    """The array that keeps the planes of a matrix B, (k, n)."""
    row_major = is_stored(b, True)
    operand = PlaneOperand(Matrix("B", "k", "n", "ldb", row_major, 1), not row_major, 1, SCHEMES[PLANES], kept=True)
    return Layout.packed((parts_bytes(memory_parts((operand,))).evaluate({"k": b.shape[0], "n": b.shape[1]}),), "u8")


def keeping_spec(spec: GemmSpec, b: Layout) -> GemmSpec:
    """An instance like ``spec``, by planes, whose kernels make those of a matrix B."""
    row_major = is_stored(b, True)
    alignment = spec.alignment.model_copy(update={"b": alignment_elements(spec.alignment.b, b, row_major)})
    mainloop = spec.mainloop
    if mainloop.strategy == "wgmma" or mainloop.strategy == "tcgen05" or mainloop.strategy == "mma_sync":
        mainloop = with_kept_planes(mainloop, "b")
    return spec.model_copy(update={"transpose": "nn" if row_major else "nt", "alignment": alignment, "mainloop": mainloop})
