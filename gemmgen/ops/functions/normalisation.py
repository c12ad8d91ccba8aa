"""Operations on rows along one axis: ``softmax``, ``log_softmax``, ``rms_norm``, ``layer_norm``, their gradients, running sums, ``topk``.

Each is one kernel, which reads a row once where it fits into the registers of a threadblock, and computes in float32. Tensors of torch
that require gradients have derivatives.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import LaunchError
from gemmgen.kernels.calls import flag, integer, number
from gemmgen.ops import torch_state
from gemmgen.ops.arrays import WIDER, contiguous, converted, given, is_torch, narrowed, readable, view_of, widened
from gemmgen.ops.engine import Operator
from gemmgen.runtime.arrays.protocols import Array, ArrayT

TYPES = ("f32", "f16", "bf16")
VECTOR_BYTES = 16
"""Rows that begin and end at multiples of these are added up in an order that follows from their length and type alone."""
MAX_SUMMED_COLUMNS = 8192
"""Length of rows that a gradient adds up over rows beside its own result; for longer ones it takes several launches."""


@cache
def _operator(name: str, operands: tuple[str, ...], results: tuple[str, ...], numbers: tuple[str, ...] = ()) -> Operator:
    return Operator(name, operands, results, numbers, ("operation", "bias"))


_SELECTION = Operator("topk", ("x",), ("values", "indices"), (), ("operation", "k", "smallest"))


class _Rows:
    """Arrays of one shape, viewed as matrices whose rows run along one axis."""

    def __init__(self, operation: str, x: object, axis: object) -> None:
        if not hasattr(x, "shape") or not hasattr(x, "reshape"):
            raise LaunchError(f"{operation}: x is {type(x).__name__}, need an array of NumPy, CuPy or torch")
        array: Any = readable(x)
        rank, self.operation = len(array.shape), operation
        self.axis = integer(operation, "axis", axis)
        if not -rank <= self.axis < rank:
            raise LaunchError(f"{operation}: axis is {self.axis}, need one of the {rank} of x")
        self.axis %= rank
        self.given = tuple(array.shape)
        self.last = self.axis == rank - 1
        self.shape = (*self.given[: self.axis], *self.given[self.axis + 1 :], self.given[self.axis])
        self.kind = view_of(array, "x", None).type
        if self.kind not in TYPES:
            raise LaunchError(f"{operation}: x has elements {_word(self.kind)}, need float32, float16 or bfloat16")
        self.x = self.matrix("x", array)

    def matrix(self, name: str, array: Any) -> Any:
        """An array of x's shape and type as a matrix; strided rows are not copied."""
        array = given(self.operation, name, array)
        if tuple(array.shape) != self.given or view_of(array, name, None).type != self.kind:
            got = f"shape {tuple(array.shape)} and elements {_word(view_of(array, name, None).type)}"
            raise LaunchError(f"{self.operation}: {name} has {got}, need {self.given} and {ELEMENTS[self.kind].word} as x has")
        moved = array if self.last else _moved(array, self.axis, len(self.given) - 1)
        if is_torch(moved):
            apart = moved.dim() == 2 and moved.stride(1) == 1 and moved.stride(0) >= moved.shape[1]
            moved = moved if apart else moved.contiguous()
        else:
            moved = contiguous(moved)
        count = 1
        for extent in self.shape[:-1]:
            count *= extent
        return moved.reshape(count, self.shape[-1])

    def require_batch_invariance(self) -> None:
        """Raises ``LaunchError`` if the first vector of a row begins before the row: the order of its sums would depend on its address."""
        view, size = view_of(self.x, "x", None), ELEMENTS[self.kind].bytes
        row, apart = self.shape[-1] * size, view.strides[0] * size
        if row % VECTOR_BYTES or (view.shape[0] > 1 and apart % VECTOR_BYTES) or view.pointer % VECTOR_BYTES:
            place = f"x has rows of {row} bytes, {apart} apart, from byte {view.pointer % VECTOR_BYTES} of {VECTOR_BYTES}"
            need = f"rows that begin and end at multiples of {VECTOR_BYTES} bytes"
            raise LaunchError(f"{self.operation}: batch_invariant holds for {need}: {place}; pad them")

    def vector(self, name: str, values: Any) -> Any:
        """Values for each column, float32 or of x's type; others become float32."""
        if values is None:
            return None
        values = given(self.operation, name, values)
        if tuple(values.shape) != self.shape[-1:]:
            raise LaunchError(f"{self.operation}: {name} has shape {tuple(values.shape)}, need {self.shape[-1:]}")
        kind = view_of(values, name, None).type
        if kind not in ELEMENTS and kind not in WIDER:
            raise LaunchError(f"{self.operation}: {name} has elements {_word(kind)}, need real numbers, float32 or {_word(self.kind)}")
        if kind not in ("f32", self.kind):
            values = widened(values)
        return contiguous(values)

    def finished(self, y: Any) -> Any:
        """A result in x's shape."""
        y = y.reshape(*self.shape[:-1], y.shape[1])
        return y if self.last else _moved(y, len(self.shape) - 1, self.axis)


def _word(kind: str) -> str:
    """Name of a type of elements, of those that kernels do not read as well."""
    return ELEMENTS[kind].word if kind in ELEMENTS else kind


def _moved(x: Any, axis: int, to: int) -> Any:
    axes = [one for one in range(len(x.shape)) if one != axis]
    axes.insert(to, axis)
    return x.permute(axes) if is_torch(x) else x.transpose(axes)


def _by_torch(*arrays: object) -> bool:
    """True if torch compiles the call or records it for derivatives, so that the torch operator has to be called."""
    if torch_state.compiling is not None and torch_state.compiling():
        return True
    if not any(getattr(array, "requires_grad", False) is True for array in arrays) or not torch_state.recording(*arrays):
        return False
    if torch_state.compiling is None:
        raise LaunchError("tensors require gradients: call gemmgen.ops.register_torch() first, as torch was imported after gemmgen.ops")
    return True


def _require_batch_invariance(operation: str, x: object, axis: object) -> None:
    if torch_state.compiling is not None and torch_state.compiling():
        raise LaunchError(f"{operation}: batch_invariant checks addresses, which calls that torch compiles do not have yet")
    _Rows(operation, x, axis).require_batch_invariance()


def _simple(operation: str, x: object, axis: object) -> Any:
    rows = _Rows(operation, x, axis)
    return rows.finished(_operator(operation, ("x",), ("y",)).call((rows.x, None), (operation, False), (), None)[0])


def _gradient(operation: str, dy: object, y: object, axis: object) -> Any:
    if torch_state.compiling is not None and torch_state.compiling():
        return torch_state.by_operator(operation, (dy, y, axis), True)
    rows = _Rows(operation, y, axis)
    arrays = (rows.matrix("dy", dy), rows.x, None)
    return rows.finished(_operator(operation, ("dy", "y"), ("dx",)).call(arrays, (operation, False), (), None)[0])


def softmax(x: ArrayT, axis: int = -1, *, batch_invariant: bool = False) -> ArrayT:
    """e^(x - max) over its sum along ``axis``.

    One launch, on torch's current stream or the default one.

    Parameters
    ----------
    x
        Float32, float16 or bfloat16; computed in float32.
    axis
        The axis.
    batch_invariant
        Refuses rows whose bits could depend on their place among others: those that do not begin and end at multiples of 16 bytes.

    Returns
    -------
    ArrayT
        A new array of x's library, shape and type.

    Raises
    ------
    LaunchError
        If the arguments are invalid or do not fit each other.
    """
    if flag("softmax", "batch_invariant", batch_invariant):
        _require_batch_invariance("softmax", x, axis)
    if _by_torch(x):
        return cast("ArrayT", torch_state.by_operator("softmax", (x, axis), True))
    y: ArrayT = _simple("softmax", x, axis)
    return y


def log_softmax(x: ArrayT, axis: int = -1, *, batch_invariant: bool = False) -> ArrayT:
    """x - max minus the logarithm of the sum of e^(x - max) along ``axis``.

    One launch, on torch's current stream or the default one.

    Parameters
    ----------
    x
        Float32, float16 or bfloat16; computed in float32.
    axis
        The axis.
    batch_invariant
        Refuses rows whose bits could depend on their place among others: those that do not begin and end at multiples of 16 bytes.

    Returns
    -------
    ArrayT
        A new array of x's library, shape and type.

    Raises
    ------
    LaunchError
        If the arguments are invalid or do not fit each other.
    """
    if flag("log_softmax", "batch_invariant", batch_invariant):
        _require_batch_invariance("log_softmax", x, axis)
    if _by_torch(x):
        return cast("ArrayT", torch_state.by_operator("log_softmax", (x, axis), True))
    y: ArrayT = _simple("log_softmax", x, axis)
    return y


def cumsum(x: ArrayT, axis: int = -1) -> ArrayT:
    """Running sums along ``axis``: each element of the result is the sum up to its index, added in the same order on every call.

    Parameters
    ----------
    x
        Float32, float16 or bfloat16; added up in float32.
    axis
        The axis.

    Returns
    -------
    ArrayT
        A new array of x's library, shape and type.

    Raises
    ------
    LaunchError
        If the arguments are invalid or do not fit each other.
    """
    if _by_torch(x):
        return cast("ArrayT", torch_state.by_operator("cumsum", (x, axis), True))
    y: ArrayT = _simple("cumsum", x, axis)
    return y


def logcumsumexp(x: ArrayT, axis: int = -1) -> ArrayT:
    """Logarithms of the running sums of e^x along ``axis``, added in the same order on every call.

    Parameters
    ----------
    x
        Float32, float16 or bfloat16; computed in float32. No derivative.
    axis
        The axis.

    Returns
    -------
    ArrayT
        A new array of x's library, shape and type.

    Raises
    ------
    LaunchError
        If the arguments are invalid or do not fit each other.
    """
    if torch_state.compiling is not None and torch_state.compiling():
        return cast("ArrayT", torch_state.by_operator("logcumsumexp", (x, axis), True))
    if _by_torch(x):
        raise LaunchError("logcumsumexp: no derivative is known; pass a detached tensor")
    y: ArrayT = _simple("logcumsumexp", x, axis)
    return y


def softmax_gradient(dy: Array, y: ArrayT, axis: int = -1) -> ArrayT:
    """The gradient of ``softmax``'s argument.

    Parameters
    ----------
    dy
        Gradient of the result, with y's shape and type.
    y
        The result of ``softmax``.
    axis
        The axis.

    Returns
    -------
    ArrayT
        (dy - sum of dy * y) * y, a new array.

    Raises
    ------
    LaunchError
        If the arguments are invalid or do not fit each other.
    """
    dx: ArrayT = _gradient("softmax_gradient", dy, y, axis)
    return dx


def log_softmax_gradient(dy: Array, y: ArrayT, axis: int = -1) -> ArrayT:
    """The gradient of ``log_softmax``'s argument.

    Parameters
    ----------
    dy
        Gradient of the result, with y's shape and type.
    y
        The result of ``log_softmax``.
    axis
        The axis.

    Returns
    -------
    ArrayT
        dy - e^y * sum of dy, a new array.

    Raises
    ------
    LaunchError
        If the arguments are invalid or do not fit each other.
    """
    dx: ArrayT = _gradient("log_softmax_gradient", dy, y, axis)
    return dx


def topk(x: ArrayT, k: int, axis: int = -1, *, largest: bool = True) -> tuple[ArrayT, ArrayT]:
    """The ``k`` largest elements along ``axis``, the largest first, and their indices; or the smallest, the smallest first.

    NaN is larger than every number, and +0 equals -0. Of equal elements, the one with the lower index comes first, on every call. One
    launch, on torch's current stream or the default one.

    Parameters
    ----------
    x
        Float32, float16 or bfloat16.
    k
        Number of elements to find, from 1 to 64, and at most the extent of ``axis``.
    axis
        The axis.
    largest
        False: the smallest elements.

    Returns
    -------
    tuple of ArrayT
        The elements, of x's type, and their indices along ``axis``, int64: new arrays of x's shape with k elements along ``axis``.

    Raises
    ------
    LaunchError
        If the arguments are invalid or do not fit each other.
    """
    if _by_torch(x):
        return cast("tuple[ArrayT, ArrayT]", torch_state.by_operator("topk", (x, k, axis, largest), True))
    rows = _Rows("topk", x, axis)
    if not isinstance(largest, bool):
        raise LaunchError(f"topk: largest is {largest!r}, need True or False")
    values, indices = _SELECTION.call((rows.x, None, None), ("topk", integer("topk", "k", k), not largest), (), None)
    return rows.finished(values), rows.finished(indices)


def _norm(operation: str, x: object, weight: object, bias: object, residual: object, eps: object, axis: object) -> Any:
    if _by_torch(x, weight, bias, residual):
        if residual is not None:
            return torch_state.by_operator(f"{operation}_of_sum", (x, residual, weight, bias, eps, axis), True)
        return torch_state.by_operator(operation, (x, weight, bias, eps, axis), True)
    margin = number(operation, "eps", eps)
    rows = _Rows(operation, x, axis)
    weight, bias = _with_weight(rows, rows.vector("weight", weight), rows.vector("bias", bias))
    options = operation, bias is not None
    if residual is None:
        operator = _operator(operation, ("x", "weight", "bias"), ("y",), ("eps",))
        return rows.finished(operator.call((rows.x, weight, bias, None), options, (margin,), None)[0])
    operator = _operator(operation, ("x", "residual", "weight", "bias"), ("y", "total"), ("eps",))
    results = operator.call((rows.x, rows.matrix("residual", residual), weight, bias, None, None), options, (margin,), None)
    return tuple(map(rows.finished, results))


def _with_weight(rows: _Rows, weight: object, bias: object) -> tuple[Any, Any]:
    """Weight and bias of one type; a bias alone has a weight of ones."""
    if bias is not None and weight is None:
        weight = narrowed(converted((bias == 0) | True, "float32"), bias)
    if bias is not None and view_of(weight, "weight", None).type != view_of(bias, "bias", None).type:
        weight, bias = widened(weight), widened(bias)
    return weight, bias


def rms_norm(
    x: ArrayT,
    weight: Array | None = None,
    *,
    residual: Array | None = None,
    eps: float = 1e-6,
    axis: int = -1,
    batch_invariant: bool = False,
) -> ArrayT | tuple[ArrayT, ArrayT]:
    """x / sqrt(mean of x^2 + eps) along ``axis``, times ``weight``; with ``residual``, of x + residual.

    One launch, on torch's current stream or the default one. The sum of x^2 must not exceed the range of float32.

    Parameters
    ----------
    x
        Float32, float16 or bfloat16; computed in float32.
    weight
        One value for each place along ``axis``, float32 or of x's type.
    residual
        Added to x first, of x's shape and type; the sum is rounded to x's type.
    eps
        Added to the mean.
    axis
        The axis.
    batch_invariant
        Refuses rows whose bits could depend on their place among others: those that do not begin and end at multiples of 16 bytes.

    Returns
    -------
    ArrayT or tuple of ArrayT
        A new array of x's library, shape and type; with ``residual``, the sum x + residual is a second one.

    Raises
    ------
    LaunchError
        If the arguments are invalid or do not fit each other.
    """
    if flag("rms_norm", "batch_invariant", batch_invariant):
        _require_batch_invariance("rms_norm", x, axis)
    results: ArrayT | tuple[ArrayT, ArrayT] = _norm("rms_norm", x, weight, None, residual, eps, axis)
    return results


def layer_norm(
    x: ArrayT,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    residual: Array | None = None,
    eps: float = 1e-5,
    axis: int = -1,
    batch_invariant: bool = False,
) -> ArrayT | tuple[ArrayT, ArrayT]:
    """(x - mean) / sqrt(variance + eps) along ``axis``, times ``weight``, plus ``bias``; with ``residual``, of x + residual.

    One launch, on torch's current stream or the default one.

    Parameters
    ----------
    x
        Float32, float16 or bfloat16; computed in float32.
    weight, bias
        One value for each place along ``axis``, float32 or of x's type.
    residual
        Added to x first, of x's shape and type; the sum is rounded to x's type.
    eps
        Added to the variance.
    axis
        The axis.
    batch_invariant
        Refuses rows whose bits could depend on their place among others: those that do not begin and end at multiples of 16 bytes.

    Returns
    -------
    ArrayT or tuple of ArrayT
        A new array of x's library, shape and type; with ``residual``, the sum x + residual is a second one.

    Raises
    ------
    LaunchError
        If the arguments are invalid or do not fit each other.
    """
    if flag("layer_norm", "batch_invariant", batch_invariant):
        _require_batch_invariance("layer_norm", x, axis)
    results: ArrayT | tuple[ArrayT, ArrayT] = _norm("layer_norm", x, weight, bias, residual, eps, axis)
    return results


def _norm_gradient(operation: str, dy: object, x: object, weight: object, eps: object, axis: object) -> Any:
    if torch_state.compiling is not None and torch_state.compiling():
        if weight is None:
            return torch_state.by_operator(operation, (dy, x, eps, axis), True)
        return torch_state.by_operator(f"{operation}s", (dy, x, weight, eps, axis), True)
    margin = number(operation, "eps", eps)
    rows = _Rows(operation, x, axis)
    down, weight = rows.matrix("dy", dy), rows.vector("weight", weight)
    layer = operation == "layer_norm_gradient"
    if weight is None:
        operator = _operator(operation, ("dy", "x"), ("dx",), ("eps",))
        return rows.finished(operator.call((down, rows.x, None), (operation, False), (margin,), None)[0])
    if rows.shape[-1] > MAX_SUMMED_COLUMNS:
        return _long_gradient(operation, rows, down, weight, margin)
    sums = ("dweight", "dbias") if layer else ("dweight",)
    operator = _operator(operation, ("dy", "x", "weight"), ("dx", *sums), ("eps",))
    arrays = (down, rows.x, weight, *(None,) * (1 + len(sums)))
    dx, *vectors = operator.call(arrays, (operation, layer), (margin,), None)
    return (rows.finished(dx), *vectors)


def _long_gradient(operation: str, rows: _Rows, dy: object, weight: object, margin: float) -> Any:
    """The gradients where the sums over rows are operations of the arrays' library."""
    x, down, factors = (widened(one) for one in (rows.x, dy, weight))
    forward = operation.removesuffix("_gradient")
    dx = _norm_gradient(operation, down * factors, x, None, margin, -1)
    normal = _norm(forward, x, None, None, None, margin, -1)
    sums = [(down * normal).sum(0), *([down.sum(0)] if forward == "layer_norm" else [])]
    return (rows.finished(narrowed(dx, rows.x)), *(narrowed(one, weight) for one in sums))


def rms_norm_gradient(
    dy: Array, x: ArrayT, weight: Array | None = None, *, eps: float = 1e-6, axis: int = -1
) -> ArrayT | tuple[ArrayT, ArrayT]:
    """The gradients of ``rms_norm``'s x and weight; sums over rows are added in the same order on every call.

    Parameters
    ----------
    dy
        Gradient of the result, with x's shape and type.
    x
        The argument: x + residual where there was a residual.
    weight
        As for ``rms_norm``.
    eps
        As for ``rms_norm``.
    axis
        The axis.

    Returns
    -------
    ArrayT or tuple of ArrayT
        The gradient of x; with ``weight``, that of the weight is a second array.

    Raises
    ------
    LaunchError
        If the arguments are invalid or do not fit each other.
    """
    gradients: ArrayT | tuple[ArrayT, ArrayT] = _norm_gradient("rms_norm_gradient", dy, x, weight, eps, axis)
    return gradients


def layer_norm_gradient(
    dy: Array, x: ArrayT, weight: Array | None = None, *, eps: float = 1e-5, axis: int = -1
) -> ArrayT | tuple[ArrayT, ArrayT, ArrayT]:
    """The gradients of ``layer_norm``'s x, weight and bias; sums over rows are added in the same order on every call.

    Parameters
    ----------
    dy
        Gradient of the result, with x's shape and type.
    x
        The argument: x + residual where there was a residual.
    weight
        As for ``layer_norm``.
    eps
        As for ``layer_norm``.
    axis
        The axis.

    Returns
    -------
    ArrayT or tuple of ArrayT
        The gradient of x; with ``weight``, those of weight and bias are further arrays.

    Raises
    ------
    LaunchError
        If the arguments are invalid or do not fit each other.
    """
    gradients: ArrayT | tuple[ArrayT, ArrayT, ArrayT] = _norm_gradient("layer_norm_gradient", dy, x, weight, eps, axis)
    return gradients
