"""Operations of ``gemmgen.ops`` on rows: from the arrays of a call to the request that it makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gemmgen.core.errors import LaunchError
from gemmgen.kernels.requests import Interpretation, Layout, Result
from gemmgen.kernels.rows.matcher import INPUTS, packed_request
from gemmgen.kernels.rows.plan import MAX_SELECTED


def interpret(operands: Mapping[str, Layout], options: Mapping[str, Any]) -> Interpretation:
    """The request of a call. ``options``: ``operation``, and ``bias``, true if a layer norm's gradient has that of a bias; for topk, ``k``
    and ``smallest``. Raises ``LaunchError``."""
    operation, weight = options["operation"], operands.get("weight")
    first = next(iter(operands.values()))
    if first.type not in INPUTS or len(first.shape) != 2:
        raise LaunchError(f"{operation}: a matrix has elements {first.type} and shape {first.shape}, need two axes of {', '.join(INPUTS)}")
    bias = "bias" in operands or bool(options.get("bias"))
    kind = None if weight is None else weight.type
    shape = (first.shape[0], first.shape[1])
    if "k" in options and not 1 <= options["k"] <= min(MAX_SELECTED, shape[1]):
        raise LaunchError(f"topk: k is {options['k']}, need 1 to {MAX_SELECTED}, and at most the {shape[1]} elements along the axis")
    packed = packed_request(operation, shape, first.type, kind, bias, "residual" in operands, **_selection(options))
    arrays = {name: operands.get(name, layout) for name, layout in packed.arrays.items()}
    for name, layout in arrays.items():
        wanted = packed.arrays[name]
        rows = len(layout.shape) < 2 or layout.shape[0] <= 1 or layout.strides[0] >= layout.shape[1]
        packed_rows = layout.is_empty or layout.shape[-1] <= 1 or layout.strides[-1] == 1
        if (layout.shape, layout.type) != (wanted.shape, wanted.type) or not rows or not packed_rows:
            got = f"shape {layout.shape}, strides {layout.strides} and elements {layout.type}"
            raise LaunchError(f"{operation}: {name} has {got}, need shape {wanted.shape} without gaps within rows, elements {wanted.type}")
    made = packed.program
    results = tuple(Result(name, arrays[name].shape, arrays[name].type) for name in (*made.outputs, *made.column_sums))
    return Interpretation(replace(packed, layouts=tuple(arrays.items())), results)


def _selection(options: Mapping[str, object]) -> dict[str, Any]:
    """The arguments of topk alone."""
    return {"selected": options["k"], "smallest": options["smallest"]} if "k" in options else {}
