"""The fields of a quantising kernel's spec."""

from __future__ import annotations

from typing import Literal

from gemmgen.kernels.family import KernelSpec

Block = Literal["1x128", "128x128", "row", "tensor"]
ScaleType = Literal["f32", "ue8m0"]


class QuantiseSpec(KernelSpec):
    """y = x / scale as 8-bit floats, and the scale of each block of x, which brings its largest magnitude to the largest number of y."""

    kind: Literal["quantise"]
    input: Literal["f32", "f16", "bf16"] = "bf16"
    """Type of x."""
    output: Literal["e4m3", "e5m2"] = "e4m3"
    """Type of y."""
    block: Block = "1x128"
    """Rows and columns of x that share a scale: 128 columns of one row or of 128 rows, a row, or all of x."""
    scales: ScaleType = "f32"
    """Type of scales: float32, or powers of two that are no smaller, held as their exponents."""
    layout: Literal["k_major", "mn_major"] = "k_major"
    """Order of scales: those along a row are adjacent, or those of neighbouring rows."""
    vector: Literal[1, 8] = 8
    """Elements that a lane reads at a time; addresses of rows of x and y are multiples of as many."""
    early_launch: bool = False
    """The kernel overlaps the one before it in the stream; needs sm_90."""
