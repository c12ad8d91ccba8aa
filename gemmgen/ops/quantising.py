"""Quantisation of matrices to 8-bit floats with scales of blocks, rows or the whole: by a kernel on a GPU, else by the array's library."""

from __future__ import annotations

import sys
from typing import Any, Literal

from gemmgen.core.elements import BY_WORD, ELEMENTS, float_format, to_numbers
from gemmgen.core.errors import EnvironmentMissing, LaunchError
from gemmgen.core.formulas import round_up
from gemmgen.dispatch.devices import gpu_device
from gemmgen.kernels.calls import word
from gemmgen.kernels.quantise.matcher import shape_of_scales
from gemmgen.ops.arrays import given, is_torch, type_word
from gemmgen.ops.engine import Operator
from gemmgen.runtime.arrays.protocols import ArrayT, Stream

BLOCKS: dict[Any, str] = {(1, 128): "1x128", (128, 128): "128x128", "row": "row", "tensor": "tensor"}
"""Elements that share a scale, as calls and as specs name them."""
ALIGNED_SCALES = 4
"""Float32 scales in 16 bytes, which columns of scales are padded to: other tools load them by TMA, which requires such strides."""
FLOATS = ("float32", "float16", "bfloat16")

_QUANTIZE = Operator("quantize", ("x",), ("out", "scales"), (), ("block", "output", "scales"))


def quantize(
    x: ArrayT,
    *,
    block: tuple[int, int] | Literal["row", "tensor"] = (1, 128),
    output: str = "float8_e4m3fn",
    scales: Literal["float32", "float8_e8m0fnu"] = "float32",
    layout: Literal["k_major", "mn_major"] = "k_major",
    stream: Stream | None = None,
) -> tuple[ArrayT, ArrayT]:
    """Quantises a matrix to 8-bit floats with a scale for each block of elements.

    A block's largest magnitude becomes the largest number of ``output``, but no more than that where ``scales`` are powers of two. Blocks
    of zeros have a scale of 1; infinities and NaN do not count towards a scale. A block at an edge may have fewer elements.
    ``matmul(a, w.T, scale_a=scale_of_a, scale_b=scale_of_w.T)`` multiplies the results. Tensors on a GPU from sm_89 on are quantised by
    one kernel (two for ``tensor``), other arrays by operations of their library, to the same bits.

    Parameters
    ----------
    x
        Matrix (lines, k), float32, float16 or bfloat16, NumPy or torch: rows of a left factor, or of a transposed right one.
    block
        Lines and values of k that share a scale: (1, 128) or (128, 128); ``row``, whose scales are (lines, 1); ``tensor``, (1, 1).
    output
        ``float8_e4m3fn`` or ``float8_e5m2``. NumPy has these types where ml_dtypes is installed.
    scales
        Type of the scales; float8_e8m0fnu are powers of two.
    layout
        ``mn_major`` has the scales of neighbouring lines side by side, in columns that begin at multiples of 16 bytes.
    stream
        As for ``Kernel``, of the kernel on a GPU.

    Returns
    -------
    tuple of ArrayT
        The elements (lines, k), and the scale by which each block is to be multiplied.

    Raises
    ------
    LaunchError
        If the arguments are invalid or do not fit each other.
    EnvironmentMissing
        For a NumPy array without ml_dtypes.
    """
    quantised: tuple[ArrayT, ArrayT] = _quantised(x, block, output, scales, layout, stream)
    return quantised


def _quantised(x: Any, block: Any, output: str, scales: str, layout: str, stream: Any) -> tuple[Any, Any]:
    extents = isinstance(block, list | tuple) and all(isinstance(one, int) for one in block)
    chosen = BLOCKS.get(tuple(block) if extents else block) if extents or isinstance(block, str) else None
    if chosen is None:
        raise LaunchError(f"quantize: block is {block!r}, need (1, 128), (128, 128), 'row' or 'tensor'")
    kind = BY_WORD[word("quantize", "output", output, ("float8_e4m3fn", "float8_e5m2"))]
    scale_kind = BY_WORD[word("quantize", "scales", scales, ("float32", "float8_e8m0fnu"))]
    word("quantize", "layout", layout, ("k_major", "mn_major"))
    x = given("quantize", "x", x)
    if type_word(x) not in FLOATS or len(x.shape) != 2:
        raise LaunchError(
            f"quantize: x has elements {type_word(x) or '?'} and shape {tuple(x.shape)}, need two axes of {', '.join(FLOATS)}"
        )
    if not is_torch(x):
        return _by_numpy(x, chosen, kind, scale_kind, layout)
    if x.is_cuda and gpu_device(x.get_device()).architecture.supports("fp8_mma"):
        return _by_kernel(x, chosen, kind, scale_kind, layout, stream)
    return _by_torch(x, chosen, kind, scale_kind, layout)


def _by_numpy(x: object, block: str, kind: str, scale_kind: str, layout: str) -> tuple[Any, Any]:
    import numpy as np

    from gemmgen.kernels.quantise.oracle import quantised, scales_of_blocks

    if type(x).__module__.split(".")[0] != "numpy":
        raise LaunchError(f"quantize: arrays of {type(x).__module__} are not quantised here: pass NumPy or torch")
    try:
        import ml_dtypes
    except ImportError:
        raise EnvironmentMissing("quantize: NumPy has 8-bit floats with the package ml_dtypes alone, which is not installed") from None
    values = np.asarray(x, np.float32)
    made = scales_of_blocks(values, block, scale_kind, kind)
    clipped = quantised(values, to_numbers(scale_kind, made), block, kind)
    if scale_kind == "ue8m0":
        made = made.view(ml_dtypes.float8_e8m0fnu)
    if layout == "mn_major":
        columns = np.zeros((made.shape[1], round_up(made.shape[0], ALIGNED_SCALES)), made.dtype)
        columns[:, : made.shape[0]] = made.T
        made = columns[:, : made.shape[0]].T
    return clipped.astype(getattr(ml_dtypes, ELEMENTS[kind].word)), made


def _by_kernel(x: Any, block: str, kind: str, scale_kind: str, layout: str, stream: Any) -> tuple[Any, Any]:
    torch = sys.modules["torch"]
    x = x.detach() if x.stride(1) == 1 and x.stride(0) >= x.shape[1] else x.detach().contiguous()
    quantised = torch.empty(x.shape, dtype=getattr(torch, ELEMENTS[kind].word), device=x.device)
    shape = shape_of_scales(block, *x.shape)
    stored = getattr(torch, ELEMENTS[scale_kind].word)
    if layout == "mn_major":
        scales = torch.empty((shape[1], round_up(shape[0], ALIGNED_SCALES)), dtype=stored, device=x.device)[:, : shape[0]].T
    else:
        scales = torch.empty(shape, dtype=stored, device=x.device)
    _QUANTIZE.call((x, quantised, scales), (block, kind, scale_kind), (), stream)
    return quantised, scales


def _by_torch(x: Any, block: str, kind: str, scale_kind: str, layout: str) -> tuple[Any, Any]:
    torch = sys.modules["torch"]
    lines, k = x.shape
    rows, columns = shape_of_scales(block, lines, k)
    tall = {"1x128": 1, "128x128": 128, "row": 1}.get(block, max(lines, 1))
    wide = 128 if block in ("1x128", "128x128") else max(k, 1)
    largest = float_format(kind).largest
    values = x.float()
    sizes = torch.where(torch.isfinite(values), values.abs(), 0.0)
    full = torch.nn.functional.pad(sizes, (0, columns * wide - k, 0, rows * tall - lines))
    amax = full.view(rows, tall, columns, wide).amax(dim=(1, 3))
    scales = torch.where(amax > 0, amax / largest, 1.0).clamp(min=torch.finfo(torch.float32).tiny)
    if scale_kind == "ue8m0":
        scales = torch.exp2(torch.ceil(torch.log2(scales.double()))).float()
    each = scales.repeat_interleave(tall, 0)[:lines].repeat_interleave(wide, 1)[:, :k]
    quantised = (values / each).clamp(-largest, largest).to(getattr(torch, ELEMENTS[kind].word))
    stored = getattr(torch, ELEMENTS[scale_kind].word)
    if layout == "mn_major":
        room = torch.nn.functional.pad(scales.T, (0, round_up(rows, ALIGNED_SCALES) - rows))
        return quantised, room.contiguous().to(stored)[:, :rows].T
    return quantised, scales.to(stored)
