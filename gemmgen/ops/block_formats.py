"""Quantisation of matrices to the block-scaled formats of sm_120a: MXFP8, MXFP4 and NVFP4, with scales in tiles of 128 x 4."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Literal

from gemmgen.core.elements import ELEMENTS, to_elements
from gemmgen.core.errors import LaunchError
from gemmgen.kernels.calls import word
from gemmgen.kernels.gemm.scaling import BlockScale, as_tiles, numbers_of, scales_of
from gemmgen.ops.arrays import given, is_torch, type_word
from gemmgen.runtime.arrays.protocols import ArrayT

Format = Literal["mxfp8", "mxfp4", "nvfp4"]
FLOATS = ("float32", "float16", "bfloat16")
LARGEST = {"mxfp8": 448.0, "mxfp4": 6.0, "nvfp4": 6.0}
"""The largest number of e4m3 and of e2m1."""
MAX_SCALE = 448.0
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The numbers of the codes 0 to 7 of e2m1."""


def quantize_blocks(x: ArrayT, format: Format = "nvfp4") -> tuple[ArrayT, ArrayT, float]:
    """Quantises a matrix to a block-scaled format: an element is code x scale x factor.

    A block's largest magnitude fits its type: no code saturates, but those of infinities. NaN becomes 0 in e2m1, which has none.

    Parameters
    ----------
    x
        Matrix (lines, k), float32, float16 or bfloat16, NumPy or torch: rows of a left factor, or of a transposed right one. For
        ``mxfp4`` and ``nvfp4``, k is even.
    format
        ``mxfp8``, ``mxfp4`` or ``nvfp4``.

    Returns
    -------
    codes : ArrayT
        Bytes: of ``mxfp8`` the e4m3 of each element, of the others two e2m1 each, the first in the lower half.
    scales : ArrayT
        Scales in cuBLASLt's tiles, (ceil(lines / 128), ceil(blocks / 4), 512): ue8m0 for each 32 elements along k, or e4m3 for
        each 16 (``nvfp4``).
    factor : float
        Factor of the whole matrix, to be multiplied into alpha; 1 except for ``nvfp4``.

    Raises
    ------
    LaunchError
        If the arguments are invalid or do not fit each other.
    """
    return _quantized(x, format)


def _quantized(x: Any, format: Format) -> tuple[Any, Any, float]:
    import numpy as np

    word("quantize_blocks", "format", format, LARGEST)
    x = given("quantize_blocks", "x", x)
    if type_word(x) not in FLOATS or len(x.shape) != 2:
        need = f"two axes of {', '.join(FLOATS)}"
        raise LaunchError(f"quantize_blocks: x has elements {type_word(x) or '?'} and shape {tuple(x.shape)}, need {need}")
    if not is_torch(x) and type(x).__module__.split(".")[0] != "numpy":
        raise LaunchError(f"quantize_blocks: arrays of {type(x).__module__} are not quantised here: pass NumPy or torch")
    if format != "mxfp8" and x.shape[1] % 2:
        raise LaunchError(f"quantize_blocks: x has {x.shape[1]} columns, need an even number: two are a byte")
    values = np.asarray(x.detach().float().cpu().numpy() if is_torch(x) else x, np.float32)
    factor = np.float32(1)
    block = BlockScale(k=32, type="ue8m0", layout="tiles_128x4")
    if format == "nvfp4":
        largest = np.max(np.where(np.isfinite(values), np.abs(values), 0), initial=0.0)
        factor = np.float32(largest / (LARGEST[format] * MAX_SCALE)) if largest > 0 else np.float32(1)
        block = BlockScale(k=16, type="e4m3", layout="tiles_128x4")
    # The scales of blocks of zeros are 1 before they are rounded, for any factor.
    scaled = values / factor
    scales = scales_of(scaled, block, LARGEST[format])
    each = np.repeat(numbers_of(block, scales), block.k, axis=1)[:, : values.shape[1]]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        numbers = np.where(scaled == 0, 0, scaled / each)
    codes = to_elements("e4m3", numbers) if format == "mxfp8" else _pairs(numbers)
    code_type = ELEMENTS["e4m3" if format == "mxfp8" else "u8"].word
    return _typed(x, codes, code_type), _typed(x, as_tiles(scales), ELEMENTS[block.type].word), float(factor)


def _typed(like: Any, codes: Any, word: str) -> Any:
    """Bytes as elements of a type, in the library of ``like``; NumPy without ml_dtypes has them as bytes."""
    if is_torch(like):
        torch = sys.modules["torch"]
        return torch.from_numpy(codes).to(like.device).view(getattr(torch, word))
    if word == "uint8":
        return codes
    try:
        ml_dtypes = import_module("ml_dtypes")
    except ImportError:
        return codes
    return codes.view(getattr(ml_dtypes, word))


def _pairs(numbers: Any) -> Any:
    """Numbers as e2m1, rounded to nearest even, two a byte."""
    import numpy as np

    known = np.array(MAGNITUDES)
    middles, size = (known[1:] + known[:-1]) / 2, np.abs(np.nan_to_num(numbers, nan=0.0))
    low, high = np.searchsorted(middles, size, "left"), np.searchsorted(middles, size, "right")
    codes = np.where(low % 2 == 0, low, high) | np.where(np.signbit(numbers), 8, 0)
    return (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)
