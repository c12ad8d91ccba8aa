"""``gemmgen.ops.softmax``, ``log_softmax``, ``rms_norm``, ``layer_norm``: over one axis, from reductions and formulas in float32.

Each is a few launches: reductions of the rows, and maps that read a value for each row and for each column. Intermediate values are
float32, so that results have the accuracy of float32 rounded once to their type.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import LaunchError
from gemmgen.kernels.calls import integer, number
from gemmgen.kernels.planning import plan as plan_of
from gemmgen.kernels.spec_files import load_spec
from gemmgen.ops.arrays import converted, is_torch, new_array, view_of
from gemmgen.ops.functions.reduce import reduce
from gemmgen.runtime.arrays.protocols import Array, ArrayT
from gemmgen.runtime.kernel import Kernel
from gemmgen.toolchain.compilation import compile_plan

TYPES = ("f32", "f16", "bf16")
VECTOR = {"per": "column", "type": "f32"}
LINE = {"per": "row", "type": "f32"}


@lru_cache(maxsize=256)
def _map(value: str, inputs: tuple[tuple[str, str], ...], source: str, result: str, architecture: str | None) -> Any:
    """The kernel of an elementwise formula on rows; ``inputs``: names and the axis that they run along."""
    forms: Mapping[str, Mapping[str, str]] = {
        "row": LINE,
        "column": VECTOR,
        "all": {"scalar": "f32"},
        "element": {"per": "element", "type": source},
    }
    words = {kind: ELEMENTS[kind].word for kind in (source, result)}
    formula: dict[str, Any] = {"op": "formula", "value": value, "inputs": {name: forms[per] for name, per in inputs}}
    operations = [*([{"op": "cast", "type": "float32"}] if source != "f32" else []), formula]
    spec = {"kind": "elementwise", "rank": 2, "input": words[source], "output": words[result], "operations": operations}
    plan: Any = plan_of(load_spec(spec), architecture)
    return Kernel(plan.sequence, compile_plan(plan))


class _Rows:
    """An array as rows along one axis."""

    def __init__(self, operation: str, x: Any, axis: Any) -> None:
        if not hasattr(x, "shape") or not hasattr(x, "reshape"):
            raise LaunchError(f"{operation}: x is {type(x).__name__}, need an array of NumPy, CuPy or torch")
        if getattr(x, "requires_grad", False) and _records(x):
            raise LaunchError(f"{operation}: no derivative is known; pass a detached tensor")
        rank, self.operation = len(x.shape), operation
        self.axis = integer(operation, "axis", axis)
        if not -rank <= self.axis < rank:
            raise LaunchError(f"{operation}: axis is {self.axis}, need one of the {rank} of x")
        self.axis %= rank
        self.last = self.axis == rank - 1
        moved = x if self.last else _moved(x, self.axis, rank - 1)
        self.shape = tuple(moved.shape)
        moved = moved.contiguous() if is_torch(moved) else moved.copy() if not moved.flags.c_contiguous else moved
        count = 1
        for extent in self.shape[:-1]:
            count *= extent
        self.x = moved.reshape(count, self.shape[-1])
        view = view_of(self.x, "x", None)
        self.kind = view.type
        if self.kind not in TYPES:
            raise LaunchError(f"{operation}: x has elements {ELEMENTS[self.kind].word}, need float32, float16 or bfloat16")
        self.architecture = _architecture(view.device[1]) if isinstance(view.device, tuple) else None

    def new(self, kind: str) -> Any:
        return new_array(self.x, self.x.shape, kind)

    def vector(self, name: str, values: Any) -> Any:
        """Values for each column, as float32."""
        if tuple(values.shape) != self.shape[-1:]:
            raise LaunchError(f"{self.operation}: {name} has shape {tuple(values.shape)}, need {self.shape[-1:]}")
        if view_of(values, name, None).type == "bf16" and not is_torch(values):
            raise LaunchError(f"{self.operation}: {name} has elements bfloat16, need float32 or float16")
        values = converted(values, "float32")
        return values.contiguous() if is_torch(values) else values.copy() if not values.flags.c_contiguous else values

    def mapped(self, x: Any, value: str, result: str, **given: tuple[str, Any]) -> Any:
        """A formula of ``x`` and of what is ``given``: the axis that each operand runs along, and its values."""
        y = self.new(result)
        source = view_of(x, "x", None).type
        kernel = _map(value, tuple((name, per) for name, (per, _) in given.items()), source, result, self.architecture)
        if 0 not in y.shape:
            kernel(x=x, y=y, **{name: values for name, (_, values) in given.items()})
        return y

    def finished(self, y: Any) -> Any:
        """The result, in x's shape."""
        y = y.reshape(self.shape)
        return y if self.last else _moved(y, len(self.shape) - 1, self.axis)


def _records(x: Any) -> bool:
    import torch

    return bool(torch.is_grad_enabled() and x.requires_grad)


def _moved(x: Any, axis: int, to: int) -> Any:
    axes = [one for one in range(len(x.shape)) if one != axis]
    axes.insert(to, axis)
    return x.permute(axes) if is_torch(x) else x.transpose(axes)


def _architecture(ordinal: int) -> str | None:
    from gemmgen.runtime.cuda.driver import gpu

    found = gpu(ordinal).architecture
    return None if found is None else found.name


def softmax(x: ArrayT, axis: int = -1) -> ArrayT:
    """e^(x - max) over its sum along ``axis``.

    Four launches, on torch's current stream or the default one; no derivative.

    Parameters
    ----------
    x
        Float32, float16 or bfloat16; computed in float32.
    axis
        The axis.

    Returns
    -------
    ArrayT
        A new array of x's library, shape and type.

    Raises
    ------
    LaunchError
        For arguments that do not go together.
    """
    rows = _Rows("softmax", x, axis)
    if 0 in rows.x.shape:
        return rows.finished(rows.new(rows.kind))
    powers = _powers(rows)
    return rows.finished(rows.mapped(powers, "value / sum_of_line", rows.kind, sum_of_line=("row", reduce(powers, "sum", 1))))


def log_softmax(x: ArrayT, axis: int = -1) -> ArrayT:
    """x - max less the logarithm of the sum of e^(x - max) along ``axis``.

    Four launches, on torch's current stream or the default one; no derivative.

    Parameters
    ----------
    x
        Float32, float16 or bfloat16; computed in float32.
    axis
        The axis.

    Returns
    -------
    ArrayT
        A new array of x's library, shape and type.

    Raises
    ------
    LaunchError
        For arguments that do not go together.
    """
    rows = _Rows("log_softmax", x, axis)
    if 0 in rows.x.shape:
        return rows.finished(rows.new(rows.kind))
    whole = reduce(_powers(rows), "sum", 1)
    most = converted(reduce(rows.x, "max", 1), "float32")
    return rows.finished(
        rows.mapped(rows.x, "value - most_of_line - log(sum_of_line)", rows.kind, most_of_line=("row", most), sum_of_line=("row", whole))
    )


def _powers(rows: _Rows) -> Any:
    """e^(x - max) of each row, in float32."""
    most = converted(reduce(rows.x, "max", 1), "float32")
    return rows.mapped(rows.x, "exp(value - most_of_line)", "f32", most_of_line=("row", most))


def rms_norm(x: ArrayT, weight: Array | None = None, *, eps: float = 1e-6, axis: int = -1) -> ArrayT:
    """x / sqrt(mean of x^2 + eps) along ``axis``, times ``weight``.

    Two launches, on torch's current stream or the default one; no derivative. The mean of x^2 has to be a float32.

    Parameters
    ----------
    x
        Float32, float16 or bfloat16; computed in float32.
    weight
        One value for each place along ``axis``, float32 or of x's type.
    eps
        Added to the mean.
    axis
        The axis.

    Returns
    -------
    ArrayT
        A new array of x's library, shape and type.

    Raises
    ------
    LaunchError
        For arguments that do not go together.
    """
    rows = _Rows("rms_norm", x, axis)
    if 0 in rows.x.shape:
        return rows.finished(rows.new(rows.kind))
    squares = reduce(rows.x, "sum_of_squares", 1)
    given: dict[str, tuple[str, Any]] = {"squares_of_line": ("row", squares), "columns_of_line": ("all", float(rows.x.shape[1]))}
    given["added_margin"] = ("all", number("rms_norm", "eps", eps))
    value = "value / sqrt(squares_of_line / columns_of_line + added_margin)"
    if weight is not None:
        value, given["weight_of_column"] = f"{value} * weight_of_column", ("column", rows.vector("weight", weight))
    return rows.finished(rows.mapped(rows.x, value, rows.kind, **given))


def layer_norm(x: ArrayT, weight: Array | None = None, bias: Array | None = None, *, eps: float = 1e-5, axis: int = -1) -> ArrayT:
    """(x - mean) / sqrt(variance + eps) along ``axis``, times ``weight``, plus ``bias``.

    Two launches, on torch's current stream or the default one; no derivative.

    Parameters
    ----------
    x
        Float32, float16 or bfloat16; computed in float32.
    weight, bias
        One value for each place along ``axis``, float32 or of x's type.
    eps
        Added to the variance.
    axis
        The axis.

    Returns
    -------
    ArrayT
        A new array of x's library, shape and type.

    Raises
    ------
    LaunchError
        For arguments that do not go together.
    """
    rows = _Rows("layer_norm", x, axis)
    if 0 in rows.x.shape:
        return rows.finished(rows.new(rows.kind))
    middle, spread = reduce(rows.x, "mean_variance", 1)
    given: dict[str, tuple[str, Any]] = {
        "mean_of_line": ("row", converted(middle, "float32")),
        "variance_of_line": ("row", converted(spread, "float32")),
    }
    given["added_margin"] = ("all", number("layer_norm", "eps", eps))
    value = "(value - mean_of_line) / sqrt(variance_of_line + added_margin)"
    if weight is not None:
        value, given["weight_of_column"] = f"{value} * weight_of_column", ("column", rows.vector("weight", weight))
    if bias is not None:
        value, given["shift_of_column"] = f"{value} + shift_of_column", ("column", rows.vector("bias", bias))
    return rows.finished(rows.mapped(rows.x, value, rows.kind, **given))
