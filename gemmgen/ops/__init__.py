"""Operations on arrays of any library, by the instance that fits: ``matmul``, ``gated_matmul``, ``grouped_matmul``,
``reduce``, ``conv2d``, ``elementwise``.

torch, CuPy and NumPy arrays, and arrays with DLPack or ``__cuda_array_interface__``. Arrays on a GPU are worked on there, on
the caller's stream; arrays in host memory by kernels for the processor where there are any (``matmul`` of float32), else on the
emulator, which is slow and exact. The first call with new layouts chooses an
instance (``gemmgen explain --problem`` shows it with the reason), compiles it if it is not in the cache, and remembers it;
later calls only launch. A layout that no kernel reads is copied by ``matmul``, and an error elsewhere. ``matmul``, ``grouped_matmul``,
``reduce`` and ``elementwise`` of torch tensors have derivatives, and ``conv2d`` of 16-bit floats.

Where torch was imported first, the operations are registered with it as ``torch.ops.gemmgen.matmul``, ``.grouped_matmul``,
``.reduce``, ``.conv2d`` and ``.elementwise``; else ``gemmgen.ops.register_torch()`` does that.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from gemmgen.kernels import OPERATIONS, ROW_OPERATIONS, WITHOUT_TORCH_OPERATOR

if TYPE_CHECKING:
    from gemmgen.ops.block_formats import quantize_blocks
    from gemmgen.ops.constant import Constant
    from gemmgen.ops.engine import compile_in_background
    from gemmgen.ops.filters import Filter
    from gemmgen.ops.functions.conv2d import conv2d
    from gemmgen.ops.functions.convolution_gradients import conv2d_filter_gradient, conv2d_input_gradient, conv_transpose2d
    from gemmgen.ops.functions.elementwise import elementwise
    from gemmgen.ops.functions.gated_matmul import gated_matmul
    from gemmgen.ops.functions.grouped_matmul import grouped_matmul
    from gemmgen.ops.functions.matmul import matmul
    from gemmgen.ops.functions.normalisation import (
        cumsum,
        layer_norm,
        layer_norm_gradient,
        log_softmax,
        log_softmax_gradient,
        logcumsumexp,
        rms_norm,
        rms_norm_gradient,
        softmax,
        softmax_gradient,
        topk,
    )
    from gemmgen.ops.functions.pointer_matmul import pointer_matmul
    from gemmgen.ops.functions.reduce import reduce
    from gemmgen.ops.group_ends import synchronize
    from gemmgen.ops.planes import Planes
    from gemmgen.ops.quantising import quantize
    from gemmgen.ops.sparse import SparseWeight, compress_2_4
    from gemmgen.ops.warming import warm
    from gemmgen.ops.weights import Weight

__all__ = [
    "Constant",
    "Filter",
    "Planes",
    "SparseWeight",
    "Weight",
    "compile_in_background",
    "compress_2_4",
    "conv2d",
    "conv2d_filter_gradient",
    "conv2d_input_gradient",
    "conv_transpose2d",
    "cumsum",
    "elementwise",
    "gated_matmul",
    "grouped_matmul",
    "layer_norm",
    "layer_norm_gradient",
    "log_softmax",
    "log_softmax_gradient",
    "logcumsumexp",
    "matmul",
    "pointer_matmul",
    "quantize",
    "quantize_blocks",
    "reduce",
    "register_torch",
    "rms_norm",
    "rms_norm_gradient",
    "softmax",
    "softmax_gradient",
    "synchronize",
    "topk",
    "warm",
]
__all__ += [name for name in OPERATIONS if name not in __all__]

_MODULES = {
    "Constant": "constant",
    "Filter": "filters",
    "Planes": "planes",
    "SparseWeight": "sparse",
    "Weight": "weights",
    "compile_in_background": "engine",
    "compress_2_4": "sparse",
    "pointer_matmul": "functions.pointer_matmul",
    "quantize": "quantising",
    "quantize_blocks": "block_formats",
    "synchronize": "group_ends",
    "warm": "warming",
    **dict.fromkeys(("conv2d_filter_gradient", "conv2d_input_gradient", "conv_transpose2d"), "functions.convolution_gradients"),
    **dict.fromkeys(ROW_OPERATIONS, "functions.normalisation"),
    **{name: f"functions.{name}" for name in (*OPERATIONS, *WITHOUT_TORCH_OPERATOR)},
}
"""The module of each name, imported when the name is first used."""


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "matmul":
        from gemmgen.ops.first_products import compile_soon

        compile_soon()
    member = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return member


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def register_torch() -> None:
    """Registers the operations as ``torch.ops.gemmgen.matmul``, ``.grouped_matmul``, ``.reduce``, ``.conv2d``, ``.elementwise``, and those
    on rows by their names.

    Imports torch. A second call has no effect.

    Raises
    ------
    EnvironmentMissing
        If torch is not installed.
    """
    from gemmgen.ops import torch_state
    from gemmgen.ops.torch_operators import register
    from gemmgen.ops.torch_operators.rows import FUNCTIONS

    functions = {name: name for name in OPERATIONS} | FUNCTIONS
    torch_state.compiling = register({name: getattr(sys.modules[__name__], function) for name, function in functions.items()})


if "torch" in sys.modules:
    register_torch()
