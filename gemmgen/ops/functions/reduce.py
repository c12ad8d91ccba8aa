"""``gemmgen.ops.reduce``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast, overload

from gemmgen.core.errors import LaunchError
from gemmgen.kernels.calls import integer
from gemmgen.ops import torch_state
from gemmgen.ops.arrays import assigned, converted, empty_like, is_truth, type_word, wider_type
from gemmgen.ops.engine import ASKED, Operator, handle_of, with_kernel
from gemmgen.runtime.arrays.protocols import Array, ArrayT, Stream

WITHOUT_GRADIENTS = ("argmin", "argmax", "any", "all")
"""Reductions whose results change by steps only."""
ALIASES = {"prod": "product", "norm": "l2_norm", "amin": "min", "amax": "max"}
"""Other names of reductions, as NumPy and torch have them."""
EXTREMA = ("min", "max")
_OPTIONS = ("op", "axis", "keepdims", "correction", "batch_invariant")
OPERATOR = Operator("reduce", ("x",), ("out",), (), _OPTIONS)
MOMENTS = Operator("reduce", ("x",), ("mean", "variance"), (), _OPTIONS)
PAIR = Operator("reduce", ("x",), ("first", "second"), (), _OPTIONS)

Name = Literal[
    "sum", "product", "prod", "min", "max", "amin", "amax", "mean", "sum_of_squares", "l1_norm", "l2_norm", "norm", "any", "all", "argmin",
    "argmax", "logsumexp", "var", "std"
]  # fmt: skip
"""Reductions with one result."""


@overload
def reduce(
    x: ArrayT,
    op: Name = "sum",
    axis: int | tuple[int, ...] | None = None,
    *,
    keepdims: bool = False,
    out: Array | None = None,
    correction: Literal[0, 1] = 0,
    batch_invariant: bool = False,
    stream: Stream | None = None,
) -> ArrayT: ...


@overload
def reduce(
    x: ArrayT,
    op: Literal["mean_variance"] | list[str] | tuple[str, str],
    axis: int | tuple[int, ...] | None = None,
    *,
    keepdims: bool = False,
    out: Sequence[Array] | None = None,
    correction: Literal[0, 1] = 0,
    batch_invariant: bool = False,
    stream: Stream | None = None,
) -> tuple[ArrayT, ArrayT]: ...


@overload
def reduce(
    x: ArrayT,
    op: str | Sequence[str],
    axis: int | tuple[int, ...] | None = None,
    *,
    keepdims: bool = False,
    out: Array | Sequence[Array] | None = None,
    correction: Literal[0, 1] = 0,
    batch_invariant: bool = False,
    stream: Stream | None = None,
) -> ArrayT | tuple[ArrayT, ArrayT]: ...


@with_kernel
def reduce(
    x: ArrayT,
    op: str | Sequence[str] = "sum",
    axis: int | tuple[int, ...] | None = None,
    *,
    keepdims: bool = False,
    out: Array | Sequence[Array] | None = None,
    correction: Literal[0, 1] = 0,
    batch_invariant: bool = False,
    stream: Stream | None = None,
) -> ArrayT | tuple[ArrayT, ArrayT]:
    """Reduction of the elements along one axis, several axes or all axes.

    Parameters
    ----------
    x
        Float32, float64, float16, bfloat16, int8, int32, int64 or bool; uint8, int16 and uint32 are converted first. Strides may be
        negative or 0. Neighbouring axes with proportional strides are merged; if more than eight axes are left, x is copied first. NumPy
        and CuPy arrays hold the bits of bfloat16 as uint16.
    op
        sum, product (or prod), min, max (amin, amax), mean, sum_of_squares, l1_norm, l2_norm (norm), any, all, argmin, argmax, logsumexp,
        var, std, or mean_variance, which returns two arrays; or a list of two, such as ``["max", "argmax"]``, which one pass computes.
    axis
        One axis, several, or None for all.
    keepdims
        Keep the reduced axes with an extent of 1.
    out
        Contiguous array that receives the result and decides its type; two arrays for mean_variance and for a list. By default, sums,
        products and means of floats are float32, or float64 for float64; sums of integers are int64; extrema have the elements' type,
        but float32 for 16-bit floats and int32 for int8; indices are int64.
    correction
        Number subtracted from the count of elements in a variance: 0, or 1 for the variance of a sample.
    batch_invariant
        True: a row gives the same bits beside any number of other rows. Only for reductions of the last axes by one operation.
    stream
        The CUDA stream, as for ``Kernel``.

    Returns
    -------
    ArrayT or tuple of ArrayT
        ``out``, or a new array of x's library; two for mean_variance and for a list.

    Raises
    ------
    LaunchError
        If the arguments are invalid or do not fit each other.
    """
    if op.__class__ is list or op.__class__ is tuple:
        if batch_invariant:
            raise LaunchError("reduce: batch_invariant is for one operation, not for a list of two")
        return _pair_of_reductions(x, op, axis, keepdims, out, stream)
    if op.__class__ is not str and not isinstance(op, str):
        raise LaunchError(f"reduce: op is {op!r}, need the name of an operation, or a list of two")
    if op in ALIASES:
        op = ALIASES[op]
    if wider_type(x):
        return _reduced_widely(x, op, axis, keepdims, out, correction, stream, batch_invariant)
    if op == "var" or op == "std":
        return _spread(x, op, axis, keepdims, out, correction, stream, batch_invariant)
    if torch_state.compiling is not None and (torch_state.compiling() or (torch_state.recording(x) and op not in WITHOUT_GRADIENTS)):
        axes = [axis] if isinstance(axis, int) else axis
        return torch_state.by_operator(
            "reduce", (x, op, axes, keepdims, correction), out is None and stream is None and not batch_invariant
        )
    if torch_state.compiling is not None and op in WITHOUT_GRADIENTS and torch_state.recording(x):
        x = cast("Any", x).detach()
    options = (op, axis if axis is None or axis.__class__ is int else _axes(axis), keepdims, correction, batch_invariant)
    if op == "mean_variance":
        pair = (None, None) if out is None else tuple(cast("Sequence[Array]", out))
        if len(pair) != 2:
            raise LaunchError(f"reduce: mean_variance writes two arrays, out has {len(pair)}")
        return MOMENTS.call((x, *pair), options, (), stream)
    result = OPERATOR.call((x, out), options, (), stream)[0]
    if out is None and op in EXTREMA and is_truth(x) and stream is not ASKED:
        return converted(result, "bool", handle_of(stream))
    return result


def _spread(x: Any, op: str, axis: Any, keepdims: bool, out: Any, correction: Literal[0, 1], stream: Any, batch_invariant: bool) -> Any:
    """The variance or the standard deviation alone."""
    if torch_state.compiling is not None and (torch_state.compiling() or torch_state.recording(x)):
        raise LaunchError(f"reduce: {op} has no derivative, and no operator of torch's; use mean and sum_of_squares, or detach x")
    pair = None if out is None else (empty_like(out), out)
    reduced = reduce(
        x, "mean_variance", axis, keepdims=keepdims, out=pair, correction=correction, batch_invariant=batch_invariant, stream=stream
    )
    if stream is ASKED:
        return reduced
    variance = reduced[1]
    if op == "var":
        return variance
    from gemmgen.ops.functions.elementwise import elementwise

    return elementwise(variance, "sqrt", out=variance, stream=stream)


def _reduced_widely(
    x: object, op: Any, axis: Any, keepdims: bool, out: Any, correction: Literal[0, 1], stream: Any, batch_invariant: bool = False
) -> Any:
    """A reduction of elements that are converted to a wider type first; extrema are converted back to the elements' type."""
    handle = handle_of(stream)
    wide = converted(x, wider_type(x), handle)
    reduced = reduce(wide, op, axis, keepdims=keepdims, correction=correction, batch_invariant=batch_invariant, stream=stream)
    if stream is ASKED:
        return reduced
    names = list(map(_full_name, op)) if isinstance(op, list | tuple) else [op]
    results = list(reduced) if isinstance(reduced, tuple) else [reduced]
    if len(names) == len(results):
        word, pairs = type_word(x), zip(names, results, strict=True)
        results = [converted(result, word, handle) if name in EXTREMA else result for name, result in pairs]
    if out is not None:
        given = list(out) if isinstance(reduced, tuple) else [out]
        if len(given) != len(results):
            raise LaunchError(f"reduce: {op!r} writes {len(results)} arrays, out has {len(given)}")
        results = [assigned("reduce", one, result, handle) for one, result in zip(given, results, strict=True)]
    return tuple(results) if isinstance(reduced, tuple) else results[0]


def _full_name(name: object) -> Any:
    return ALIASES.get(name, name) if isinstance(name, str) else name


def _pair_of_reductions(x: object, op: Sequence[str], axis: object, keepdims: bool, out: Any, stream: object) -> tuple[Any, ...]:
    names = tuple(map(_full_name, op))
    if wider_type(x):
        both: tuple[Any, ...] = _reduced_widely(x, names, axis, keepdims, out, 0, stream)
        return both
    if len(names) != 2 or not all(isinstance(name, str) for name in names):
        raise LaunchError(f"reduce: op is {op!r}, need a name, or two in a list")
    if torch_state.compiling is not None and torch_state.compiling():
        raise LaunchError("reduce: under torch.compile, the operator makes one result: no list of two operations")
    pair = (None, None) if out is None else tuple(out)
    if len(pair) != 2:
        raise LaunchError(f"reduce: {' and '.join(names)} write two arrays, out has {len(pair)}")
    results = PAIR.call((x, *pair), (names, None if axis is None else _axes(axis), keepdims, 0, False), (), stream)
    if out is None and is_truth(x) and stream is not ASKED:
        handle = handle_of(stream)
        return tuple(converted(result, "bool", handle) if name in EXTREMA else result for name, result in zip(names, results, strict=True))
    return results


def _axes(axis: object) -> Any:
    """Axes as plain integers; 1.0 and True are not axes, although they are equal to 1."""
    if isinstance(axis, tuple | list):
        return tuple(map(_axes, axis))
    try:
        return integer("reduce", "axis", axis)
    except LaunchError:
        raise LaunchError(f"reduce: axis is {axis!r}, need integers, or None for all") from None
