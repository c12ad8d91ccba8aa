"""``gemmgen.ops.conv2d``."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any, Literal, cast

from gemmgen.core.errors import LaunchError
from gemmgen.kernels.calls import Operations, are_floats, by_name, flag, integer, is_plain_number, number, pair, word
from gemmgen.kernels.epilogue.options import hashable
from gemmgen.ops import torch_state
from gemmgen.ops.arrays import on_stream, type_word, widened
from gemmgen.ops.engine import ASKED, Operator, handle_of, with_kernel
from gemmgen.ops.filters import Filter
from gemmgen.runtime.arrays.protocols import Array, ArrayT, Stream

OPERATOR = Operator(
    "conv2d",
    ("x", "w", "bias", "residual", "alpha", "tap_sums"),
    ("out",),
    ("alpha", "beta", "gamma", "zero_point"),
    (
        "filter_shape",
        "stride",
        "padding",
        "dilation",
        "groups",
        "activation",
        "output",
        "layout",
        "scaled",
        "bias_scaled",
        "residual_scaled",
        "batch_invariant",
    ),
)

NARROW = ("float16", "bfloat16", "uint16")
"""Types of a bias that become float32; NumPy and CuPy hold the bits of bfloat16 as uint16."""


@with_kernel
def conv2d(
    x: ArrayT,
    w: Array | Filter,
    *,
    bias: Array | None = None,
    residual: Array | None = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    alpha: Array | float = 1.0,
    bias_scale: float = 1.0,
    gamma: float = 1.0,
    zero_point: int = 0,
    activation: str | Mapping[str, object] | None = None,
    epilogue: Operations | None = None,
    operands: Mapping[str, Array | float] | None = None,
    output: str | None = None,
    layout: Literal["nchw32", "nhwc", "nchw4"] | None = None,
    batch_invariant: bool = False,
    out: Array | None = None,
    stream: Stream | None = None,
) -> ArrayT:
    """Convolution of images, activation(alpha conv(x, w) + bias_scale bias + gamma residual), rounded and, for integers, saturated.

    Hopper GPUs use tensor cores for one group of channels, or groups of multiples of 64 (of int8 128), strides up to 8 and filters
    whose taps the Tensor Memory Accelerator reaches, if pixels are multiples of 16 bytes or integers are in NCHW32. Other GPUs use them
    for int8 in NCHW32, with one alpha and no zero point, to int8, int32 or float32. From sm_80 on, 16-bit floats in NHWC use tensor
    cores, too: groups with a multiple of 16 output and 8 input channels each, groups of up to 128 channels with as many output as input
    channels, in multiples of 8 channels and two or more to a group, and one group with any number of channels. Depthwise layers with an
    even number of channels use threads with vectors of channels. A slow kernel without tensor cores computes any other layer. Kernels
    of the last three kinds are compiled for the layer at its first call.

    Parameters
    ----------
    x
        Images (n, c, h, w) with the channels contiguous in memory, torch's channels_last, or NCHW32, (n, c / 32, h, w, 32), see
        ``gemmgen.layouts``; of int8, uint8, float16 or bfloat16.
    w
        Filter (k, c / groups, r, s), int8 for integers. A ``Filter`` made of it is reordered for the kernels once instead of at every
        call.
    bias
        k values, int32, float32 or a 16-bit float.
    residual
        An array of the result's shape, in ``layout``.
    stride, padding, dilation
        An integer, or one for rows and one for columns.
    groups
        Number of groups of channels.
    alpha, bias_scale, gamma
        Factors of the sum, of ``bias`` and of ``residual``; ``alpha`` may be k values, float32.
    zero_point
        The integer that stands for zero in ``x`` and its padding.
    activation
        ``relu``, ``leaky_relu``, ``h_swish``, or a mapping as in a spec.
    epilogue
        A formula of the result after ``activation``, as in a spec, or a function that ``gemmgen.epilogue`` has traced.
    operands
        Operands of ``epilogue`` by name: numbers, arrays of k values (per channel) and arrays like the result (per element).
    output
        Type of the result; by default that of ``x``.
    layout
        Layout of ``residual`` and of the result, by default that of ``x``; for an ``x`` of four extents, ``nhwc`` is (n, k, p, q) again,
        channels last.
    batch_invariant
        True: an image gives the same bits in a batch of any size, because one kernel, chosen for the layer, serves all batches.
    out
        Array that receives the result; by default a new one.
    stream
        The CUDA stream, as for ``Kernel``.

    Returns
    -------
    ArrayT
        ``out``, or a new array of x's library.

    Raises
    ------
    LaunchError
        If the arguments are invalid or do not fit each other.
    """
    source = w.source if isinstance(w, Filter) else w
    if torch_state.compiling is not None and (torch_state.compiling() or torch_state.recording(x, source, bias, residual)):
        layer = (_twice(stride), _twice(padding), _twice(dilation), groups, alpha, bias_scale, gamma)
        plain = out is None and stream is None and isinstance(alpha, Real) and not zero_point and epilogue is None and not batch_invariant
        return torch_state.by_operator("conv2d", (x, source, bias, residual, *layer, activation or "", output or "", layout or ""), plain)
    for name, array in (("x", x), ("w", w), ("residual", residual), ("out", out)):
        if (array is not None or name in "xw") and not (_is_array(array) or (name == "w" and isinstance(array, Filter))):
            raise LaunchError(f"conv2d: {name} is {array.__class__.__name__}, need an array")
    zero = 0 if zero_point.__class__ is int and not zero_point else _zero_point(x, zero_point)
    weights = w if isinstance(w, Filter) else Filter(w)
    alphas = None
    if alpha.__class__ is not float and not is_plain_number(alpha) and getattr(alpha, "shape", None) != ():
        alphas, alpha = alpha, 1.0
    elif alpha.__class__ is not float:
        alpha = number("conv2d", "alpha", alpha)
    if activation.__class__ is not str and activation is not None:
        activation = hashable(activation)
    if layout is not None:
        word("conv2d", "layout", layout, ("nchw32", "nhwc", "nchw4"))
    options = (
        weights.shape,
        stride if stride.__class__ is int else pair("conv2d", "stride", stride),
        padding if padding.__class__ is int else pair("conv2d", "padding", padding),
        dilation if dilation.__class__ is int else pair("conv2d", "dilation", dilation),
        groups if groups.__class__ is int else integer("conv2d", "groups", groups),
        activation,
        output,
        layout,
        alphas is None and alpha != 1,
        bias_scale != 1,
        gamma != 1,
        flag("conv2d", "batch_invariant", batch_invariant),
    )
    if not are_floats(alpha, bias_scale, gamma):
        alpha, gamma = number("conv2d", "alpha", alpha), number("conv2d", "gamma", gamma)
        bias_scale = number("conv2d", "bias_scale", bias_scale)
    sums = weights.tap_sums() if zero else None
    last = len(cast("Any", x).shape) == 4
    if last:
        x, same = _channels_last(x), layout in (None, "nhwc")
        if same:
            residual, out = (None if array is None else _channels_last(array) for array in (residual, out))
    if bias is not None and type_word(bias) in NARROW:
        with on_stream(bias, handle_of(stream)):
            bias = widened(bias)
    given = (x, weights, bias, residual, alphas, sums)
    numbers = (alpha, bias_scale, gamma, zero)
    if epilogue is None:
        if operands is not None:
            raise LaunchError("conv2d: operands without epilogue, need the formula that reads them")
        result = OPERATOR.call((*given, out), options, numbers, stream)[0]
    else:
        from gemmgen.ops.formulas import given_operands, in_place_of, operator_with, parsed

        operations, operands = parsed("conv2d", hashable(epilogue)), by_name("conv2d", operands)
        named = given_operands("conv2d", operations, operands, (*OPERATOR.operands, *OPERATOR.numbers))
        arrays: dict[str, Any] = {name: operands[name] for name in (*named.arrays, *named.written)}
        if last and same:
            arrays = {name: _channels_last(array) for name, array in arrays.items()}
        operations, arrays, in_place = in_place_of(out, operations, arrays, True)
        operator = operator_with(OPERATOR, named.arrays, named.written, named.numbers, 1, in_place)
        result = operator.call((*given, *arrays.values(), out), (*options, operations), (*numbers, *named.values), stream)[0]
    return axes_moved(result, (0, 3, 1, 2)) if last and same and stream is not ASKED else result


def _is_array(value: object) -> bool:
    """True for arrays that have extents and whose axes can be moved."""
    return hasattr(value, "transpose") and isinstance(getattr(value, "shape", None), tuple)


def _zero_point(x: object, value: object) -> float:
    """A zero point that elements of x can have. Raises ``LaunchError`` for others."""
    zero = number("conv2d", "zero_point", value)
    if not zero:
        return 0
    kind = str(getattr(x, "dtype", "elements without a dtype")).removeprefix("torch.")
    least = {"int8": -128, "uint8": 0}.get(kind)
    if least is None:
        raise LaunchError(f"conv2d: zero_point is for x of int8 or uint8, not of {kind}")
    if not least <= zero < least + 256 or zero != int(zero):
        raise LaunchError(f"conv2d: zero_point is {value!r}, need an integer from {least} to {least + 255}, as {kind} has")
    return zero


def _channels_last(array: Any) -> Any:
    """(n, c, h, w) as it lies in memory, (n, h, w, c)."""
    return axes_moved(array, (0, 2, 3, 1)) if len(array.shape) == 4 else array


def axes_moved(array: Any, axes: tuple[int, ...]) -> Any:
    """The array with its axes in another order."""
    return array.permute(axes) if hasattr(array, "permute") else array.transpose(axes)


def _twice(value: Any) -> Any:
    return [value, value] if isinstance(value, int) else list(value)
