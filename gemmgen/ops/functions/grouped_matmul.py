"""``gemmgen.ops.grouped_matmul``."""

from __future__ import annotations

from collections.abc import Mapping

from gemmgen.core.errors import LaunchError
from gemmgen.kernels.calls import Operations, by_name, is_plain_number, number
from gemmgen.kernels.epilogue.options import hashable
from gemmgen.ops import torch_state
from gemmgen.ops.engine import Operator, with_kernel
from gemmgen.ops.factors import numbers_as_factors, refuse_beside_epilogue
from gemmgen.runtime.arrays.protocols import Array, ArrayT, Stream

OPERATOR = Operator(
    "grouped_matmul",
    ("a", "b", "offsets", "bias", "scale_a", "scale_b", "scale_out", "amax", "gather", "scatter"),
    ("out",),
    ("alpha", "beta"),
    ("scaled", "activation", "output", "batch_invariant", "masked"),
    ("amax",),
    3,
)


@with_kernel
def grouped_matmul(
    a: ArrayT,
    b: Array,
    offsets: Array | None = None,
    *,
    counts: Array | None = None,
    gather: Array | None = None,
    scatter: Array | None = None,
    out: Array | None = None,
    alpha: float = 1.0,
    bias: Array | None = None,
    activation: Operations | None = None,
    epilogue: Operations | None = None,
    operands: Mapping[str, Array | float] | None = None,
    scale_a: Array | float | None = None,
    scale_b: Array | float | None = None,
    scale_out: Array | None = None,
    amax: Array | None = None,
    output: str | None = None,
    batch_invariant: bool = False,
    stream: Stream | None = None,
) -> ArrayT:
    """Products of groups of rows, each with a separate matrix, in one launch, as for a mixture of experts.

    Derivatives exist for float16 and bfloat16 without scales, counts, gather and scatter.

    Parameters
    ----------
    a
        The rows of all groups, (m, k): float16, bfloat16, 8-bit integers or 8-bit floats, which tensor cores multiply. With ``counts``,
        (groups, rows, k).
    b
        A matrix for each group, (groups, k, n). With one matrix (k, n), ``offsets`` divide k into groups: each result of (groups, m, n) is
        the product of a's columns and b's rows of one group. This form takes float16 and bfloat16, and only alpha, out and output.
    offsets
        Int32 (groups,), the end of each group of rows, read on the device. Group g has the rows from ``offsets[g - 1]``, or 0, to
        ``offsets[g]`` and may be empty. Rows beyond the last offset are not written. Offsets that fall, or lie outside of 0 to m, are
        reported by the next call with offsets, or by ``ops.synchronize()``; for arrays in host memory, by the call itself.
    counts
        Int32 (groups,), instead of ``offsets``: group g has its first ``counts[g]`` rows; the others are neither computed nor written.
    gather
        Int32 (m,), with ``offsets``: row r of the groups is ``a[gather[r]]``, or zeros if a lacks that row.
    scatter
        Int32 (m,), with ``offsets``: row r is stored to ``out[scatter[r]]`` if out has that row. Other rows of out are not written.
    out
        Array that receives the result; by default a new one.
    alpha
        Factor of the product.
    bias
        Values (groups, n), added to the columns of each group.
    activation, amax, output, batch_invariant, stream
        As for ``matmul``.
    epilogue
        As for ``matmul``; its operands per column have shape (groups, n), those per group (groups,).
    operands
        The operands and further outputs of ``epilogue`` by name.
    scale_a
        Float32 of (m,) or (m, 1), or for each 128 values of k as for ``matmul``; or a number.
    scale_b
        Float32 of (groups, n) or (groups, 1, n), or for each 128 values of k as for ``matmul`` with a first axis of groups; or a number.
    scale_out
        Float32 of one element.

    Returns
    -------
    ArrayT
        ``out``, or a new array (m, n) of a's library; (groups, rows, n) with ``counts``.

    Raises
    ------
    LaunchError
        If the arguments are invalid or do not fit each other, or if offsets of an earlier call were wrong.
    """
    if (offsets is None) == (counts is None):
        raise LaunchError("grouped_matmul: need offsets, where groups end, or counts, the rows of each; one of them")
    masked, ends = counts is not None, offsets if counts is None else counts
    moved = {name: rows for name, rows in (("gather", gather), ("scatter", scatter)) if rows is not None}
    if epilogue is not None:
        refuse_beside_epilogue(
            "grouped_matmul",
            {"bias": bias, "activation": activation, "scale_a": scale_a, "scale_b": scale_b, "scale_out": scale_out, "amax": amax},
        )
        from gemmgen.ops.formulas import finished

        given = {"a": a, "b": b, "offsets": ends} | moved
        factors = number("grouped_matmul", "alpha", alpha), 0.0
        choices = {"output": output, "batch_invariant": batch_invariant, "masked": masked}
        return finished("grouped_matmul", given, hashable(epilogue), by_name("grouped_matmul", operands), out, factors, choices, stream)
    if operands is not None:
        raise LaunchError("grouped_matmul: operands without epilogue, need the formula that reads them")
    if torch_state.compiling is not None and (torch_state.compiling() or torch_state.recording(a, b, bias)):
        output, alpha, scale_a, scale_b = numbers_as_factors(a, alpha, scale_a, scale_b, output)
        return torch_state.by_operator(
            "grouped_matmul",
            (a, b, ends, bias, alpha, activation or "", scale_a, scale_b, scale_out, output or ""),
            out is None
            and amax is None
            and stream is None
            and not (batch_invariant or masked or moved)
            and (activation is None or isinstance(activation, str)),
        )
    if activation.__class__ is not str and activation is not None:
        activation = hashable(activation)
    alpha = number("grouped_matmul", "alpha", alpha)
    scaled = alpha != 1
    if scale_a is not None and is_plain_number(scale_a):
        scale_a, alpha, scaled = None, alpha * number("grouped_matmul", "scale_a", scale_a), True
    if scale_b is not None and is_plain_number(scale_b):
        scale_b, alpha, scaled = None, alpha * number("grouped_matmul", "scale_b", scale_b), True
    arrays = (a, b, ends, bias, scale_a, scale_b, scale_out, amax, gather, scatter, out)
    return OPERATOR.call(arrays, (scaled, activation, output, batch_invariant, masked), (alpha, 0.0), stream)[0]
