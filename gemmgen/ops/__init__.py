"""Operations on arrays of any library, by the instance that fits: ``matmul``, ``grouped_matmul``, ``reduce``, ``conv2d``,
``elementwise``.

torch, CuPy and NumPy arrays, and arrays with DLPack or ``__cuda_array_interface__``. Arrays on a GPU are worked on there, on
the caller's stream; arrays in host memory by kernels for the processor where there are any (``matmul`` of float32), else on the
emulator, which is slow and exact. The first call with new layouts chooses an
instance (``gemmgen explain --problem`` shows it with the reason), compiles it if it is not in the cache, and remembers it;
later calls only launch. A layout that no kernel reads is copied by ``matmul``, and an error elsewhere. ``matmul``, ``grouped_matmul``,
``reduce`` and ``elementwise`` of torch tensors have derivatives; ``conv2d`` has none, and refuses tensors that require gradients.

Where torch was imported first, the operations are registered with it as ``torch.ops.gemmgen.matmul``, ``.grouped_matmul``,
``.reduce``, ``.conv2d`` and ``.elementwise``; else ``gemmgen.ops.register_torch()`` does that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from math import isfinite
from numbers import Integral, Real
from typing import Any, Literal

from gemmgen.core.errors import LaunchError
from gemmgen.kernels.calls import FLOAT32_OVERFLOW, hashable, integer, is_number, number
from gemmgen.ops.arrays import assigned, converted, empty_like, is_truth, same_place, type_word, wider_type
from gemmgen.ops.block_formats import quantize_blocks
from gemmgen.ops.constant import Constant
from gemmgen.ops.engine import ASKED, LaunchedKernel, Operator, compile_in_background
from gemmgen.ops.filters import Filter
from gemmgen.ops.operators import FamilyCall, family_calls
from gemmgen.ops.planes import Planes
from gemmgen.ops.quantising import quantize
from gemmgen.ops.warming import warm
from gemmgen.ops.weights import Weight

__all__ = [
    "Constant",
    "Filter",
    "Planes",
    "Weight",
    "compile_in_background",
    "conv2d",
    "grouped_matmul",
    "layer_norm",
    "log_softmax",
    "matmul",
    "quantize",
    "quantize_blocks",
    "reduce",
    "register_torch",
    "rms_norm",
    "softmax",
    "warm",
]

_MATMUL = Operator(
    "matmul",
    ("a", "b", "bias", "residual", "scale_a", "scale_b", "scale_out", "planes", "amax"),
    ("out",),
    ("alpha", "beta", "gamma", "bias"),
    ("scaled", "accumulates", "bias_number", "activation", "precision", "backend", "output", "batch_invariant", "constant"),
    ("amax",),
    2,
)
_GROUPED = Operator(
    "grouped_matmul",
    ("a", "b", "offsets", "bias", "scale_a", "scale_b", "scale_out", "amax"),
    ("out",),
    ("alpha", "beta"),
    ("scaled", "activation", "output", "batch_invariant"),
    ("amax",),
    3,
)
WITHOUT_GRADIENTS = ("argmin", "argmax", "any", "all")
"""Reductions whose results change by steps only."""
ALIASES = {"prod": "product", "norm": "l2_norm", "amin": "min", "amax": "max"}
"""Other names of reductions, as NumPy and torch have them."""
EXTREMA = ("min", "max")
_OF_REDUCE = ("op", "axis", "keepdims", "correction")
_REDUCE = Operator("reduce", ("x",), ("out",), (), _OF_REDUCE)
_MOMENTS = Operator("reduce", ("x",), ("mean", "variance"), (), _OF_REDUCE)
_PAIR = Operator("reduce", ("x",), ("first", "second"), (), _OF_REDUCE)


def matmul(
    a: Any,
    b: Any,
    *,
    out: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    bias: Any = None,
    residual: Any = None,
    gamma: float = 1.0,
    activation: str | Mapping[str, Any] | Sequence[Any] | None = None,
    epilogue: Mapping[str, Any] | Sequence[Any] | None = None,
    operands: Mapping[str, Any] | None = None,
    saved: Literal["auto", "store", "recompute"] = "auto",
    scale_a: Any = None,
    scale_b: Any = None,
    scale_out: Any = None,
    amax: Any = None,
    output: str | None = None,
    precision: Literal["f32", "ffma", "tf32"] = "f32",
    batch_invariant: bool = False,
    stream: Any = None,
    backend: Literal["auto", "emulator"] = "auto",
) -> Any:
    """scale_out activation(alpha scale_a scale_b a b + beta out + bias + gamma residual), computed in float32, shaped by NumPy's rules
    for ``matmul``.

    ``b`` may be a ``Weight`` of 4 or 8 bits, beside which ``a`` (m, k) is float16 or bfloat16, and ``out``, ``bias``, ``activation``,
    ``output`` and ``stream`` may be given. Else ``a`` (..., m, k) and ``b`` (..., k, n), or ``Planes`` of it, are float32, float16 or
    bfloat16, stored in rows or in columns (views that are transposed, sliced or broadcast along the batch are read where they are, others
    are copied first); also both 8-bit integers, from sm_80 on, or both 8-bit floats, from sm_89 on. Tensor cores multiply all but float32
    from sm_80 on, fastest on Hopper GPUs where a and b are aligned to 16 bytes and, if of 8 bits, a is stored in rows and b in columns. A
    vector is a row on the left and a column on the right. ``b`` may be a ``Constant``, a matrix that no earlier work may still
    be writing, such as weights: on Hopper GPUs, its first tiles are copied before the product waits for the work before it.
    ``out``: where to write; else a new array of a's library, of the type of ``a`` and ``b``, or float32 if they differ; of 8-bit
    integers int32, or float32 with anything added, and of 8-bit floats bfloat16. ``bias``: a number, or n values (one for each
    column), or (m, 1) values (one for each row), of the result's type, float32 where that is an integer or of 8 bits.
    ``residual``: of the result's shape and type. ``activation``: ``relu``, ``leaky_relu``, ``gelu``, ``gelu_tanh``,
    ``silu``, ``sigmoid``, ``tanh``, or a mapping as in a spec's epilogue, ``{"op": "clamp", "high": 6.0}``, or several of them.
    ``epilogue``: a formula as in a spec, or what ``gemmgen.epilogue`` made of a function, or several operations, in place of bias,
    residual, activation and scales, for matrices or batches of them; ``operands``: its operands and further outputs by name, arrays or
    numbers. Where torch records gradients, they are those of the result by a, b and the operands, and ``saved`` says whether the
    product before the epilogue is stored for the backward pass, if that reads it, or computed again; by default, the depth decides.
    ``scale_a``, ``scale_b``, ``scale_out``: float32 of one element, where they lie on a GPU read there; ``scale_a`` also of (m, 1), one for
    each row, ``scale_b`` of (1, n), one for each column; ``scale_a`` and ``scale_b`` may be numbers, which are multiplied into ``alpha``.
    Of 8-bit floats on Hopper GPUs also a scale for each 128 values of k, float32 or float8_e8m0fnu: ``scale_a`` of (m, ceil(k / 128)) or
    (ceil(m / 128), ceil(k / 128)), ``scale_b`` of (ceil(k / 128), n) or (ceil(k / 128), ceil(n / 128)), as ``quantize`` makes them.
    ``amax``: float32 of one element, 0 or more, which is raised to the largest absolute value of the result before ``scale_out`` and before
    it is rounded; on tensor cores. ``output``: the type of a new result, ``"int8"`` or ``"bfloat16"`` say.
    ``precision``, of float32 factors: ``f32`` takes multiply-adds, or products by planes on tensor cores, whose error bound is no
    larger, whichever is faster; ``ffma`` keeps to multiply-adds; ``tf32`` also allows factors cut to 11 bits, as
    ``torch.set_float32_matmul_precision("high")`` does. ``batch_invariant``: a row of the result has the same bits however many rows
    there are: the fastest instance of one numeric class is taken, which adds up products in one order (docs/classes.md). ``stream``: as for
    ``Kernel``. ``backend``: arrays in host memory are multiplied by a kernel for the processor, if they are float32 and there is a C
    compiler; else, and for ``emulator``, by the emulator, which is slow. With ``alpha`` 0, a and b are not read; with ``beta`` 0, out is
    not.

    Raises ``LaunchError`` for arguments that do not go together.
    """
    constant = b.__class__ is Constant
    if constant:
        b = b.source
    if b.__class__ is Weight:
        beside = (residual, epilogue, operands, scale_a, scale_b, scale_out, amax)
        if any(one is not None for one in beside) or (alpha, beta, precision, batch_invariant, backend) != (1, 0, "f32", False, "auto"):
            raise LaunchError("matmul: a Weight goes with out, bias, activation, output and stream alone")
        return b.multiply(a, out=out, bias=bias, activation=activation and hashable(activation), output=output, stream=stream)
    if epilogue is not None:
        others = {"bias": bias, "residual": residual, "activation": activation, "scale_a": scale_a, "scale_b": scale_b, "amax": amax}
        _refuse_beside_epilogue("matmul", others | {"scale_out": scale_out})
        if batch_invariant or Planes in (a.__class__, b.__class__):
            raise LaunchError("matmul: epilogue with batch_invariant or Planes, need arrays and neither")
        from gemmgen.ops.formulas import finished

        factors = number("matmul", "alpha", alpha), number("matmul", "beta", beta)
        choices = {"precision": precision, "backend": backend, "output": output, "constant": constant}
        if saved not in ("auto", "store", "recompute"):
            raise LaunchError(f"matmul: saved is {saved!r}, need auto, store or recompute")
        if _recording is not None and _recording(a, b, *(operands or {}).values()):
            if out is not None or factors[1] != 0 or stream is not None:
                raise LaunchError("matmul: where torch records gradients, an epilogue makes its result: no out, beta or stream")
            from gemmgen.ops.torch_formulas import recorded

            return recorded("matmul", a, b, hashable(epilogue), operands or {}, factors[0], choices, saved)
        return finished("matmul", {"a": a, "b": b}, hashable(epilogue), operands or {}, out, factors, choices, stream)
    if operands is not None:
        raise LaunchError("matmul: operands without epilogue, need the formula that reads them")
    if _compiling is not None and (_compiling() or _recording(a, b, bias, residual)):
        b = b.source if b.__class__ is Planes else b
        output, alpha, scale_a, scale_b = _numbers_as_factors(a, alpha, scale_a, scale_b, output)
        return _traced(
            "matmul",
            (a, b, bias, residual, alpha, gamma, activation or "", scale_a, scale_b, scale_out, output or "", precision),
            beta == 0
            and out is None
            and amax is None
            and stream is None
            and not batch_invariant
            and (activation is None or isinstance(activation, str))  # the tracer does not see through the class of a text
            and backend == "auto"
            and not isinstance(bias, Real),
        )
    alpha = alpha if alpha.__class__ is float else number("matmul", "alpha", alpha)
    scaled = alpha != 1
    if scale_a is not None and is_number(scale_a.__class__):
        scale_a, alpha, scaled = None, number("matmul", "alpha", alpha) * number("matmul", "scale_a", scale_a), True
    if scale_b is not None and is_number(scale_b.__class__):
        scale_b, alpha, scaled = None, number("matmul", "alpha", alpha) * number("matmul", "scale_b", scale_b), True
    added = 0.0
    bias_number = bias is not None and is_number(bias.__class__)
    if bias_number:
        bias, added = None, number("matmul", "bias", bias)
    if activation.__class__ is not str and activation is not None:
        activation = hashable(activation)
    if backend not in ("auto", "emulator"):
        raise LaunchError(f"matmul: backend is {backend!r}, need 'auto' or 'emulator'")
    if residual is not None and out is not None and scale_a is scale_b is scale_out is None and same_place(residual, out):
        # Read before it is written, as beta times out is.
        residual, beta = None, number("matmul", "beta", beta) + number("matmul", "gamma", gamma)
    planes = None
    if a.__class__ is Planes:
        raise LaunchError("matmul: a is Planes, which are of a right factor; give the array itself, or the transposed product")
    if b.__class__ is Planes:
        planes = None if precision == "ffma" else b.array(backend == "emulator", stream)
        b = b.source
    beta = beta if beta.__class__ is float else number("matmul", "beta", beta)
    options = (scaled, beta != 0, bias_number, activation, precision, backend, output, batch_invariant, constant)
    if not _are_floats(alpha, beta, gamma):
        alpha, beta, gamma = number("matmul", "alpha", alpha), number("matmul", "beta", beta), number("matmul", "gamma", gamma)
    arrays = (a, b, bias, residual, scale_a, scale_b, scale_out, planes, amax, out)
    return _MATMUL.call(arrays, options, (alpha, beta, gamma, added), stream)[0]


def grouped_matmul(
    a: Any,
    b: Any,
    offsets: Any,
    *,
    out: Any = None,
    alpha: float = 1.0,
    bias: Any = None,
    activation: str | Mapping[str, Any] | Sequence[Any] | None = None,
    epilogue: Mapping[str, Any] | Sequence[Any] | None = None,
    operands: Mapping[str, Any] | None = None,
    scale_a: Any = None,
    scale_b: Any = None,
    scale_out: Any = None,
    amax: Any = None,
    output: str | None = None,
    batch_invariant: bool = False,
    stream: Any = None,
) -> Any:
    """As ``matmul`` for groups of rows, each with its own matrix, in one launch: the experts of a mixture.

    ``a`` is (m, k), ``b`` (groups, k, n). ``offsets``, int32 and read where it lies, says where each group of rows ends: group g has the
    rows from ``offsets[g - 1]``, or 0, to ``offsets[g]``, which may be none. Rows beyond the last offset are not written. ``bias`` is
    (groups, n), ``scale_a`` (m,) or (m, 1), ``scale_b`` (groups, n) or (groups, 1, n), or for each 128 values of k as for ``matmul``,
    those of ``b`` with a first axis of groups; ``amax``, types and all else as for ``matmul``, on tensor cores: float16, bfloat16, 8-bit
    integers and 8-bit floats. Operands of an ``epilogue`` per column have shape (groups, n), those per group (groups,).

    Derivatives are of float16 and bfloat16 without scales; that of ``b`` is one product a group, for which ``offsets`` is read on the host.

    Raises ``LaunchError`` for arguments that do not go together.
    """
    if epilogue is not None:
        _refuse_beside_epilogue(
            "grouped_matmul",
            {"bias": bias, "activation": activation, "scale_a": scale_a, "scale_b": scale_b, "scale_out": scale_out, "amax": amax},
        )
        from gemmgen.ops.formulas import finished

        given = {"a": a, "b": b, "offsets": offsets}
        factors = number("grouped_matmul", "alpha", alpha), 0.0
        choices = {"output": output, "batch_invariant": batch_invariant}
        return finished("grouped_matmul", given, hashable(epilogue), operands or {}, out, factors, choices, stream)
    if operands is not None:
        raise LaunchError("grouped_matmul: operands without epilogue, need the formula that reads them")
    if _compiling is not None and (_compiling() or _recording(a, b, bias)):
        output, alpha, scale_a, scale_b = _numbers_as_factors(a, alpha, scale_a, scale_b, output)
        return _traced(
            "grouped_matmul",
            (a, b, offsets, bias, alpha, activation or "", scale_a, scale_b, scale_out, output or ""),
            out is None and amax is None and stream is None and not batch_invariant and (activation is None or isinstance(activation, str)),
        )
    if activation.__class__ is not str and activation is not None:
        activation = hashable(activation)
    alpha = number("grouped_matmul", "alpha", alpha)
    scaled = alpha != 1
    if scale_a is not None and is_number(scale_a.__class__):
        scale_a, alpha, scaled = None, alpha * number("grouped_matmul", "scale_a", scale_a), True
    if scale_b is not None and is_number(scale_b.__class__):
        scale_b, alpha, scaled = None, alpha * number("grouped_matmul", "scale_b", scale_b), True
    arrays = (a, b, offsets, bias, scale_a, scale_b, scale_out, amax, out)
    return _GROUPED.call(arrays, (scaled, activation, output, batch_invariant), (alpha, 0.0), stream)[0]


def reduce(
    x: Any,
    op: str | Sequence[str] = "sum",
    axis: int | tuple[int, ...] | None = None,
    *,
    keepdims: bool = False,
    out: Any = None,
    correction: Literal[0, 1] = 0,
    stream: Any = None,
) -> Any:
    """``op`` of the elements along ``axis``, one or several axes, or of all of them.

    ``op``: sum, product (or prod), min, max (amin, amax), mean, sum_of_squares, l1_norm, l2_norm (norm), any, all, argmin, argmax,
    logsumexp, var, std, or mean_variance, which returns two arrays (``correction`` 1: of a sample); or a list of two,
    ``["max", "argmax"]``, which one pass over ``x`` makes: two arrays. ``x``: float32, float64, float16, bfloat16, int8, int32, int64 or
    truth values, or uint8, int16 and uint32, which are converted first, of any strides, negative ones and 0 too, and any axes; where more
    than eight are left when neighbouring ones that lie alike count as one, it is copied first. ``out``: where to write,
    without gaps; it decides the type of the result (a pair for mean_variance, and for a list, with the types that these have by
    themselves). Else sums, products and means of
    floats are float32, or float64 for float64; sums of integers int64; extrema have the elements' type, but float32 for 16-bit
    floats and int32 for int8; indices are int64. NumPy and CuPy hold the bits of bfloat16 as uint16.

    Raises ``LaunchError`` for arguments that do not go together.
    """
    if op.__class__ is list or op.__class__ is tuple:
        return _pair_of_reductions(x, op, axis, keepdims, out, stream)
    if op in ALIASES:
        op = ALIASES[op]
    if wider_type(x):
        return _reduced_widely(x, op, axis, keepdims, out, correction, stream)
    if op == "var" or op == "std":
        return _spread(x, op, axis, keepdims, out, correction, stream)
    if _compiling is not None and (_compiling() or (_recording(x) and op not in WITHOUT_GRADIENTS)):
        axes = [axis] if isinstance(axis, int) else axis
        return _traced("reduce", (x, op, axes, keepdims, correction), out is None and stream is None)
    if _recording is not None and op in WITHOUT_GRADIENTS and _recording(x):
        x = x.detach()
    options = (op, axis if axis is None or axis.__class__ is int else _axes(axis), keepdims, correction)
    if op == "mean_variance":
        pair = (None, None) if out is None else tuple(out)
        if len(pair) != 2:
            raise LaunchError(f"reduce: mean_variance writes two arrays, out has {len(pair)}")
        return _MOMENTS.call((x, *pair), options, (), stream)
    result = _REDUCE.call((x, out), options, (), stream)[0]
    return converted(result, "bool") if out is None and op in EXTREMA and is_truth(x) and stream is not ASKED else result


def _spread(x: Any, op: str, axis: Any, keepdims: bool, out: Any, correction: Literal[0, 1], stream: Any) -> Any:
    """The variance or the standard deviation alone."""
    if _compiling is not None and (_compiling() or _recording(x)):
        raise LaunchError(f"reduce: {op} has no derivative, and no operator of torch's; use mean and sum_of_squares, or detach x")
    pair = None if out is None else (empty_like(out), out)
    found = reduce(x, "mean_variance", axis, keepdims=keepdims, out=pair, correction=correction, stream=stream)
    if stream is ASKED:
        return found
    variance = found[1]
    return variance if op == "var" else _OF_FAMILIES["elementwise"](variance, "sqrt", out=variance, stream=stream)


def _reduced_widely(x: Any, op: Any, axis: Any, keepdims: bool, out: Any, correction: Literal[0, 1], stream: Any) -> Any:
    """A reduction of elements that are converted to a wider type first; extrema have the elements' own type again."""
    found = reduce(converted(x, wider_type(x)), op, axis, keepdims=keepdims, correction=correction, stream=stream)
    if stream is ASKED:
        return found
    names = list(map(_full_name, op)) if isinstance(op, list | tuple) else [op]
    results = list(found) if isinstance(found, tuple) else [found]
    if len(names) == len(results):
        results = [converted(result, type_word(x)) if name in EXTREMA else result for name, result in zip(names, results, strict=True)]
    if out is not None:
        given = list(out) if isinstance(found, tuple) else [out]
        if len(given) != len(results):
            raise LaunchError(f"reduce: {op!r} writes {len(results)} arrays, out has {len(given)}")
        results = [assigned("reduce", one, result) for one, result in zip(given, results, strict=True)]
    return tuple(results) if isinstance(found, tuple) else results[0]


def _full_name(name: Any) -> Any:
    return ALIASES.get(name, name) if isinstance(name, str) else name


def _pair_of_reductions(x: Any, op: Sequence[str], axis: Any, keepdims: bool, out: Any, stream: Any) -> tuple[Any, ...]:
    names = tuple(map(_full_name, op))
    if wider_type(x):
        found: tuple[Any, ...] = _reduced_widely(x, names, axis, keepdims, out, 0, stream)
        return found
    if len(names) != 2 or not all(isinstance(name, str) for name in names):
        raise LaunchError(f"reduce: op is {op!r}, need a name, or two in a list")
    if _compiling is not None and _compiling():
        raise LaunchError("reduce: under torch.compile, the operator makes one result: no list of two operations")
    pair = (None, None) if out is None else tuple(out)
    if len(pair) != 2:
        raise LaunchError(f"reduce: {' and '.join(names)} write two arrays, out has {len(pair)}")
    results = _PAIR.call((x, *pair), (names, None if axis is None else _axes(axis), keepdims, 0), (), stream)
    if out is None and is_truth(x) and stream is not ASKED:
        return tuple(converted(result, "bool") if name in EXTREMA else result for name, result in zip(names, results, strict=True))
    return results


_CONV2D = Operator(
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
    ),
)


def conv2d(
    x: Any,
    w: Any,
    *,
    bias: Any = None,
    residual: Any = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    alpha: Any = 1.0,
    bias_scale: float = 1.0,
    gamma: float = 1.0,
    zero_point: int = 0,
    activation: str | Mapping[str, Any] | None = None,
    output: str | None = None,
    layout: Literal["nchw32", "nhwc", "nchw4"] | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """activation(alpha conv(x, w) + bias_scale bias + gamma residual), rounded and, for integers, saturated to ``output``.

    ``x``: (n, c, h, w) with the channels side by side in memory, torch's channels_last, or NCHW32, (n, c / 32, h, w, 32), see
    ``gemmgen.layouts``; of int8, uint8, float16 or bfloat16. Hopper GPUs take tensor cores for one group of channels, strides up to 8 and
    taps that the copy engine reaches, where pixels are whole 16 bytes or integers are in NCHW32; others for int8 in NCHW32, with one alpha
    and no zero point, to int8, int32 or float32. Else each thread sums up by itself, which takes anything and is slow but for groups of
    few channels. ``w``: (k, c / groups, r, s), int8 for integers, or a ``Filter`` of it, which is brought
    into the order that kernels read once instead of at every call. ``alpha``: a number, or k values, float32. ``zero_point``: the integer
    that stands for zero in ``x`` and its padding. ``bias``: k values, int32 or float32.
    ``residual`` and the result lie as ``layout`` says, by default as x does; for an x of four extents, ``nhwc`` is (n, k, p, q) again,
    channels last. ``output``: by default the type of x. ``activation``: ``relu``, ``leaky_relu``, ``h_swish``, or a mapping as in a spec.

    Raises ``LaunchError`` for arguments that do not go together.
    """
    if _compiling is not None and _compiling():
        layer = (_twice(stride), _twice(padding), _twice(dilation), groups, alpha, bias_scale, gamma)
        plain = out is None and stream is None and isinstance(alpha, Real) and not zero_point
        return _traced("conv2d", (x, w, bias, residual, *layer, activation or "", output or "", layout or ""), plain)
    for name, array in (("x", x), ("w", w), ("residual", residual), ("out", out)):
        if (array is not None or name in "xw") and not (_is_array(array) or (name == "w" and isinstance(array, Filter))):
            raise LaunchError(f"conv2d: {name} is {array.__class__.__name__}, need an array")
    zero = 0 if zero_point.__class__ is int and not zero_point else _zero_point(x, zero_point)
    weights = w if isinstance(w, Filter) else Filter(w)
    alphas = None
    if alpha.__class__ is not float and not is_number(alpha.__class__) and getattr(alpha, "shape", None) != ():
        alphas, alpha = alpha, 1.0
    elif alpha.__class__ is not float:
        alpha = number("conv2d", "alpha", alpha)
    if activation.__class__ is not str and activation is not None:
        activation = hashable(activation)
    options = (
        weights.shape,
        stride if stride.__class__ is int else _pair("stride", stride),
        padding if padding.__class__ is int else _pair("padding", padding),
        dilation if dilation.__class__ is int else _pair("dilation", dilation),
        groups if groups.__class__ is int else integer("conv2d", "groups", groups),
        activation,
        output,
        layout,
        alphas is None and alpha != 1,
        bias_scale != 1,
        gamma != 1,
    )
    if not _are_floats(alpha, bias_scale, gamma):
        alpha, gamma = number("conv2d", "alpha", alpha), number("conv2d", "gamma", gamma)
        bias_scale = number("conv2d", "bias_scale", bias_scale)
    sums = weights.tap_sums() if zero else None
    last = len(x.shape) == 4
    if last:
        x, same = _channels_last(x), layout in (None, "nhwc")
        if same:
            residual, out = (None if array is None else _channels_last(array) for array in (residual, out))
    result = _CONV2D.call((x, weights, bias, residual, alphas, sums, out), options, (alpha, bias_scale, gamma, zero), stream)[0]
    return _axes_moved(result, (0, 3, 1, 2)) if last and same and stream is not ASKED else result


def softmax(x: Any, axis: int = -1) -> Any:
    """e^(x - max) over its sum along ``axis``, of x's type: float32, float16 or bfloat16, computed in float32.

    Four launches, on torch's current stream or the default one; no derivative. Raises ``LaunchError``.
    """
    from gemmgen.ops import normalisation

    return normalisation.softmax(reduce, x, axis)


def log_softmax(x: Any, axis: int = -1) -> Any:
    """x - max less the logarithm of the sum of e^(x - max) along ``axis``; types and launches as for ``softmax``.

    Raises ``LaunchError``.
    """
    from gemmgen.ops import normalisation

    return normalisation.log_softmax(reduce, x, axis)


def rms_norm(x: Any, weight: Any = None, *, eps: float = 1e-6, axis: int = -1) -> Any:
    """x / sqrt(mean of x^2 + eps) along ``axis``, times ``weight``, one value for each place along it; of x's type, computed in float32.

    Two launches; no derivative. ``mean of x^2`` has to be a float32. Raises ``LaunchError``.
    """
    from gemmgen.ops import normalisation

    return normalisation.rms_norm(reduce, x, weight, eps, axis)


def layer_norm(x: Any, weight: Any = None, bias: Any = None, *, eps: float = 1e-5, axis: int = -1) -> Any:
    """(x - mean) / sqrt(variance + eps) along ``axis``, times ``weight``, plus ``bias``; types and launches as for ``rms_norm``.

    Raises ``LaunchError``.
    """
    from gemmgen.ops import normalisation

    return normalisation.layer_norm(reduce, x, weight, bias, eps, axis)


def _is_array(value: Any) -> bool:
    """True for arrays that have extents and whose axes can be moved."""
    return hasattr(value, "transpose") and isinstance(getattr(value, "shape", None), tuple)


def _zero_point(x: Any, value: Any) -> float:
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
    return _axes_moved(array, (0, 2, 3, 1)) if len(array.shape) == 4 else array


def _axes_moved(array: Any, axes: tuple[int, ...]) -> Any:
    return array.permute(axes) if hasattr(array, "permute") else array.transpose(axes)


_compiling: Any = None
"""Once torch is known: whether a call is being traced by ``torch.compile``, which then sees the operator instead."""
_recording: Any = None
"""Once torch is known: whether it records an operation on some arrays for derivatives."""


def register_torch() -> None:
    """Registers ``torch.ops.gemmgen.matmul``, ``.grouped_matmul``, ``.reduce``, ``.conv2d`` and ``.elementwise``; does nothing the second
    time. Imports torch.

    Raises ``EnvironmentMissing`` without torch.
    """
    global _compiling, _recording
    from gemmgen.ops.torch_operators import needs_gradients, register

    _recording = needs_gradients
    _compiling = register(matmul, grouped_matmul, reduce, conv2d, *_OF_FAMILIES.values())


def _function(call: FamilyCall) -> Callable[..., Any]:
    """The function that a family offers by itself."""
    operator = Operator(call.NAME, call.OPERANDS, call.RESULTS, call.NUMBERS, call.OPTIONS, in_place=call.IN_PLACE)

    @wraps(call.arguments)
    def function(*given: Any, **named: Any) -> Any:
        if _compiling is not None and (_compiling() or _recording(*given, *named.values())):
            return _traced(call.NAME, *call.traced(*given, **named))
        arrays, options, numbers, stream = call.arguments(*given, **named)
        if wider_type(arrays[0]):
            return _computed_widely(operator, arrays, options, numbers, stream, call.keeps_type(options))
        return operator.call(arrays, options, numbers, stream)[0]

    function.__name__ = function.__qualname__ = call.NAME
    function.__module__ = __name__
    return function


def _computed_widely(
    operator: Operator, arrays: tuple[Any, ...], options: tuple[Any, ...], numbers: tuple[float, ...], stream: Any, keeps_type: bool
) -> Any:
    """The result of an operation whose operands are converted to a wider type first; converted back if it ``keeps_type``."""
    *operands, out = arrays
    word, own = wider_type(operands[0]), type_word(operands[0])
    for name, operand in zip(operator.operands, operands, strict=True):
        if operand is not None and type_word(operand) != own:
            raise LaunchError(f"{operator.name}: {name} has elements {type_word(operand)}, need x's, {own}")
    operands = [converted(operand, word) for operand in operands]
    if out is not None and type_word(out) not in (own, word):
        return operator.call((*operands, out), options, numbers, stream)[0]
    result = operator.call((*operands, None), options, numbers, stream)[0]
    if stream is ASKED:
        return result
    result = converted(result, own) if keeps_type else result
    return result if out is None else assigned(operator.name, out, result)


def _with_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with an attribute ``kernel``: of the same arguments, the kernel that a call would launch, without launching it."""

    def kernel(*given: Any, **named: Any) -> LaunchedKernel:
        found = function(*given, **{**named, "stream": ASKED})
        answer: LaunchedKernel = found[0] if isinstance(found, tuple) else found
        return answer

    kernel.__doc__ = f"The kernel that ``{function.__name__}`` would launch for these arguments: its plan, its spec, the choice."
    function.kernel = kernel  # type: ignore[attr-defined]
    return function


for _operation in (matmul, grouped_matmul, reduce, conv2d):
    _with_kernel(_operation)
_OF_FAMILIES = {name: _with_kernel(_function(call)) for name, call in family_calls().items()}
globals().update(_OF_FAMILIES)
__all__ += list(_OF_FAMILIES)


def __getattr__(name: str) -> Any:
    """For type checkers, which cannot see the families' functions."""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _numbers_as_factors(a: Any, alpha: Any, scale_a: Any, scale_b: Any, output: str | None) -> tuple[str | None, Any, Any, Any]:
    """``output``, ``alpha`` with the scales that are numbers, and those that are none."""
    numbers = isinstance(scale_a, Real) or isinstance(scale_b, Real)
    if numbers and output is None and not a.dtype.is_floating_point:
        output = "float32"
    if isinstance(scale_a, Real):
        scale_a, alpha = None, alpha * scale_a
    if isinstance(scale_b, Real):
        scale_b, alpha = None, alpha * scale_b
    return output, alpha, scale_a, scale_b


def _traced(name: str, arguments: tuple[Any, ...], possible: bool) -> Any:
    if not possible:
        raise LaunchError(
            f"{name}: where torch compiles or records gradients, the operator makes its result and takes tensors and names of "
            "operations: no out, beta, amax, stream, backend, batch_invariant, numbers as bias or "
            "mappings"
        )
    import torch  # not from sys.modules: the tracer would go through all of it, while other threads import

    return getattr(torch.ops.gemmgen, name)(*arguments)


def _refuse_beside_epilogue(operation: str, others: Mapping[str, Any]) -> None:
    for name, value in others.items():
        if value is not None:
            raise LaunchError(f"{operation}: {name} beside epilogue, need all of it in the formula")


def _twice(value: Any) -> Any:
    return [value, value] if isinstance(value, int) else list(value)


def _axes(axis: Any) -> Any:
    """Axes as plain integers: 1.0 and True are none, though a dictionary takes them for 1."""
    if isinstance(axis, tuple | list):
        return tuple(map(_axes, axis))
    if isinstance(axis, bool) or not isinstance(axis, Integral):
        raise LaunchError(f"reduce: axis is {axis!r}, need integers, or None for all")
    return int(axis)


def _pair(name: str, value: Any) -> Any:
    """An extent, or two, as plain integers."""
    if isinstance(value, list | tuple):
        return tuple(integer("conv2d", name, part) for part in value)
    return integer("conv2d", name, value)


def _are_floats(*numbers: Any) -> bool:
    """True if the numbers are Python's floats, finite ones within the range of float32."""
    for value in numbers:
        if value.__class__ is not float or (not -FLOAT32_OVERFLOW < value < FLOAT32_OVERFLOW and isfinite(value)):
            return False
    return True


if "torch" in sys.modules:
    register_torch()
