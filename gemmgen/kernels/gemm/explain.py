"""A GEMM plan in words."""

from __future__ import annotations

from collections.abc import Mapping

from gemmgen.kernels.epilogue.operations import SECOND
from gemmgen.kernels.family import Section
from gemmgen.kernels.gemm.grouping import PlacedMatrix
from gemmgen.kernels.gemm.plan import GemmPlan
from gemmgen.kernels.gemm.strategies import part_of
from gemmgen.kernels.matrix import Matrix

STORAGE = {
    "f32": "",
    "f64": " in float64",
    "f16": " in float16",
    "bf16": " in bfloat16",
    "tf32": " in float32, read as tf32",
    "s8": " in int8",
    "u8": " in uint8",
    "e4m3": " in 8-bit floats (e4m3)",
    "e5m2": " in 8-bit floats (e5m2)",
    "s32": " in int32",
    "u32": " of packed weights",
}
"""Words for a matrix of each type."""
SCALES = {"f32": "float32", "ue8m0": "powers of two (ue8m0)", "e4m3": "8-bit floats (e4m3)"}
"""Words for the types of block scales."""


def summary(plan: GemmPlan) -> list[str]:
    """The kernel's computation and the storage of its matrices."""
    spec = plan.spec
    product = "alpha A B" if spec.alpha == "argument" else "A B"
    product += f", beside {SECOND} = A B2," if spec.dual else ""
    if spec.beta == "argument":
        product += " + beta C"
    operations = ", then ".join(step.operation.describe() for step in plan.epilogue)
    lines = [f"C = {product} {plan.arithmetic_text}" + (f", then {operations}." if operations else ".")]
    matrices = (plan.matrix_a, *plan.factors_b, plan.matrix_c)
    lines += [f"{matrix.name} is {_layout(matrix)}." for matrix in matrices]
    for scale in plan.scales:
        text = f"{scale.operand.upper()} has a scale for each {scale.block.lines} x {scale.block.k} of its elements"
        order = f"adjacent along {'k' if scale.along_k else 'its lines'}" if not scale.tiled else "in tiles of 128 lines by 4 blocks of k"
        lines.append(f"{text}, {SCALES[scale.block.type]}, {order}.")
    return lines


def _layout(matrix: Matrix) -> str:
    order = "row" if matrix.row_major else "column"
    text = f"{matrix.rows} x {matrix.columns}{STORAGE[matrix.type]}, {order}-major with leading dimension {matrix.leading_dimension}"
    if matrix.alignment > 1:
        text += f"; pointer and {matrix.leading_dimension} are multiples of {matrix.alignment} elements"
    if matrix.batch_stride is not None:
        text += f"; {matrix.batch_stride} elements from one to the next of the {matrix.count}"
    if isinstance(matrix, PlacedMatrix):
        text += f"; at_{matrix.name.lower()} holds where each of the batch lies, sizes its extents and leading dimension"
    return text


def accuracy(plan: GemmPlan, problem: Mapping[str, int]) -> str | None:
    """Bound of the errors of float32 products, beside that of multiply-adds; None for factors of other types."""
    if (plan.matrix_a.type, plan.matrix_b.type) != ("f32", "f32"):
        return None
    fma = f"{problem['k']:,} u |A||B|"
    if not plan.least_depth:
        return f"at most {fma}, u = 2^-24: multiply-adds"
    return f"{part_of(plan, 'explain').accuracy(plan, problem['k'])}; multiply-adds: {fma}"


def explain(plan: GemmPlan) -> list[Section]:
    """The computation, then the strategy's description of tiles, copies, the mainloop, shared memory and stores."""
    return [Section("Computation", tuple(("", line) for line in summary(plan))), *part_of(plan, "explain").sections(plan)]
