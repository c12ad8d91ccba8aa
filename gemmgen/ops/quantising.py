"""Quantisation of matrices to 8-bit floats with block scales, in the library of the caller's array."""

from __future__ import annotations

import sys
from typing import Any, Literal, cast

from gemmgen.core.elements import BY_WORD, ELEMENTS, float_format
from gemmgen.core.errors import EnvironmentMissing, LaunchError
from gemmgen.core.formulas import ceil_div, round_up
from gemmgen.kernels.gemm.scaling import BlockScale, numbers_of, scales_of
from gemmgen.ops.arrays import is_torch, type_word
from gemmgen.runtime.arrays.protocols import ArrayT

BLOCKS = ((1, 128), (128, 128))
ALIGNED_SCALES = 4
"""Float32 scales in 16 bytes, which columns of scales are padded to: the copy engine of other tools wants such strides."""
FLOATS = ("float32", "float16", "bfloat16")


def quantize(
    x: ArrayT,
    *,
    block: tuple[int, int] = (1, 128),
    output: str = "float8_e4m3fn",
    scales: Literal["float32", "float8_e8m0fnu"] = "float32",
    layout: Literal["k_major", "mn_major"] = "k_major",
) -> tuple[ArrayT, ArrayT]:
    """Quantises a matrix to 8-bit floats with a scale for each block of elements.

    A block's largest magnitude becomes the largest number of ``output``, but no more than that where ``scales`` are powers of two. Blocks
    of zeros have a scale of 1; infinities and NaN do not count towards a scale. A block at an edge may have fewer elements.
    ``matmul(a, w.T, scale_a=scale_of_a, scale_b=scale_of_w.T)`` multiplies the results.

    Parameters
    ----------
    x
        Matrix (lines, k), float32, float16 or bfloat16, NumPy or torch: rows of a left factor, or of a transposed right one.
    block
        Lines and values of k that share a scale: (1, 128) or (128, 128).
    output
        ``float8_e4m3fn`` or ``float8_e5m2``. NumPy has these types where ml_dtypes is installed.
    scales
        Type of the scales; float8_e8m0fnu are powers of two.
    layout
        ``mn_major`` has the scales of neighbouring lines side by side, in columns that begin at multiples of 16 bytes.

    Returns
    -------
    tuple of ArrayT
        The elements (lines, k), and the scale by which each block is to be multiplied.

    Raises
    ------
    LaunchError
        For arguments that do not go together.
    EnvironmentMissing
        For a NumPy array without ml_dtypes.
    """
    if tuple(block) not in BLOCKS:
        raise LaunchError(f"quantize: block is {block!r}, need (1, 128) or (128, 128)")
    kind, scale_kind = BY_WORD.get(output), BY_WORD.get(scales)
    if kind not in ("e4m3", "e5m2"):
        raise LaunchError(f"quantize: output is {output!r}, need 'float8_e4m3fn' or 'float8_e5m2'")
    if scale_kind not in ("f32", "ue8m0"):
        raise LaunchError(f"quantize: scales is {scales!r}, need 'float32' or 'float8_e8m0fnu'")
    if layout not in ("k_major", "mn_major"):
        raise LaunchError(f"quantize: layout is {layout!r}, need 'k_major' or 'mn_major'")
    if type_word(x) not in FLOATS or len(cast("Any", x).shape) != 2:
        raise LaunchError(
            f"quantize: x has elements {type_word(x) or '?'} and shape {tuple(cast(Any, x).shape)}, need two axes of {', '.join(FLOATS)}"
        )
    made = BlockScale.model_validate({"lines": block[0], "k": block[1], "type": scale_kind, "layout": layout})
    return _by_torch(x, made, kind) if is_torch(x) else _by_numpy(x, made, kind)


def _by_numpy(x: Any, block: BlockScale, kind: str) -> tuple[Any, Any]:
    import numpy as np

    if type(x).__module__.split(".")[0] != "numpy":
        raise LaunchError(f"quantize: arrays of {type(x).__module__} are not quantised here: pass NumPy or torch")
    try:
        import ml_dtypes
    except ImportError:
        raise EnvironmentMissing("quantize: NumPy has 8-bit floats with the package ml_dtypes alone, which is not installed") from None
    values = np.asarray(x, np.float32)
    lines, k = values.shape
    made = scales_of(values, block, float_format(kind).largest)
    each = np.repeat(np.repeat(numbers_of(block, made), block.lines, axis=0)[:lines], block.k, axis=1)[:, :k]
    largest = np.float32(float_format(kind).largest)
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = values / each
        clipped = np.where(np.isnan(scaled), scaled, np.clip(scaled, -largest, largest))
    if block.type == "ue8m0":
        made = made.view(ml_dtypes.float8_e8m0fnu)
    if block.layout == "mn_major":
        columns = np.zeros((made.shape[1], round_up(made.shape[0], ALIGNED_SCALES)), made.dtype)
        columns[:, : made.shape[0]] = made.T
        made = columns[:, : made.shape[0]].T
    return clipped.astype(getattr(ml_dtypes, ELEMENTS[kind].word)), made


def _by_torch(x: Any, block: BlockScale, kind: str) -> tuple[Any, Any]:
    torch = sys.modules["torch"]
    lines, k = x.shape
    rows, columns = ceil_div(lines, block.lines), ceil_div(k, block.k)
    largest = float_format(kind).largest
    values = x.float()
    sizes = torch.where(torch.isfinite(values), values.abs(), 0.0)
    full = torch.nn.functional.pad(sizes, (0, columns * block.k - k, 0, rows * block.lines - lines))
    amax = full.view(rows, block.lines, columns, block.k).amax(dim=(1, 3))
    scales = torch.where(amax > 0, amax / largest, 1.0).clamp(min=torch.finfo(torch.float32).tiny)
    if block.type == "ue8m0":
        scales = torch.exp2(torch.ceil(torch.log2(scales.double()))).float()
    each = scales.repeat_interleave(block.lines, 0)[:lines].repeat_interleave(block.k, 1)[:, :k]
    quantised = (values / each).clamp(-largest, largest).to(getattr(torch, ELEMENTS[kind].word))
    stored = getattr(torch, ELEMENTS[block.type].word)
    if block.layout == "mn_major":
        room = torch.nn.functional.pad(scales.T, (0, round_up(rows, ALIGNED_SCALES) - rows))
        return quantised, room.contiguous().to(stored)[:, :rows].T
    return quantised, scales.to(stored)
