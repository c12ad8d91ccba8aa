"""Reductions as a kernel family: their cases, references and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from gemmgen.core.elements import ELEMENTS
from gemmgen.hardware.target import Architecture
from gemmgen.kernels.family import Case, Cost, Expected, Family, KernelPlan, KernelSpec, Section
from gemmgen.kernels.reduction.plan import ReductionPlan, packed_problem, plan_reduction
from gemmgen.kernels.reduction.spec import ReductionSpec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gemmgen.kernels.pictures import Picture
    from gemmgen.kernels.requests import Fit, Interpretation, Layout, Request
    from gemmgen.kernels.work import Work

TYPICAL = {
    "all": (1, 1 << 24, 1),
    "rows": (1 << 14, 1 << 10, 1),
    "columns": (1, 1 << 14, 1 << 10),
    "middle": (1 << 4, 1 << 10, 1 << 10),
    "strided": (1 << 4, 1 << 10, 1 << 10),
}
"""Extents (outer, reduced, inner) for specs that name none."""


class ReductionFamily(Family):
    """Y = epilogue(reduce(prologue(X)))."""

    kind: ClassVar[str] = "reduction"
    operator: ClassVar[str] = "reduce"
    spec: ClassVar[type[KernelSpec]] = ReductionSpec
    size_names: ClassVar[tuple[str, ...]] = ("outer", "reduced", "inner")
    typical_sizes: ClassVar[tuple[int, ...]] = (1, 1 << 24, 1)

    def plan(self, spec: ReductionSpec, architecture: Architecture) -> KernelPlan:
        return plan_reduction(spec, architecture)

    def instance_sizes(self, plan: ReductionPlan) -> dict[str, int]:
        """The extents that the shape has, with the spec's typical ones."""
        typical = plan.spec.typical
        values = (typical.outer, typical.reduced, typical.inner) if typical else TYPICAL[plan.spec.shape]
        names = {dimension.name for dimension in plan.sequence.dimensions}
        return {name: value for name, value in zip(self.size_names, values, strict=True) if name in names}

    def problem(self, plan: ReductionPlan, sizes: Sequence[int]) -> dict[str, int]:
        return packed_problem(plan, dict(zip(self.instance_sizes(plan), sizes, strict=True)))

    def cases(self, plan: ReductionPlan) -> list[Case]:
        from gemmgen.kernels.reduction.cases import reduction_cases

        return reduction_cases(plan)

    def fill(self, plan: ReductionPlan, case: Case, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
        from gemmgen.kernels.reduction.cases import fill_array

        return fill_array(plan, case, name, shape, rng)

    def reference(self, plan: ReductionPlan, case: Case, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Expected]:
        from gemmgen.kernels.reduction.reference import reduction_reference

        return reduction_reference(plan, case, arrays)

    def cost(self, plan: ReductionPlan, problem: Mapping[str, int]) -> Cost:
        """One operation and one read for each element, one write for each result."""
        results = problem.get("outer", 1) * problem.get("inner", 1)
        elements = problem["reduced"] * results
        stored = sum(ELEMENTS[array.type].bytes for array in plan.sequence.arrays if array.role == "output")
        read = ELEMENTS[plan.arithmetic.stored].bytes * elements
        return Cost(float(elements), float(read + stored * results), "fp32")

    def summary(self, plan: ReductionPlan) -> list[str]:
        from gemmgen.kernels.reduction.explain import summary_lines

        return summary_lines(plan)

    def explain(self, plan: ReductionPlan) -> list[Section]:
        from gemmgen.kernels.reduction.explain import explain_reduction

        return explain_reduction(plan)

    def pictures(self, plan: ReductionPlan) -> list[Picture]:
        from gemmgen.kernels.reduction.pictures import reduction_pictures

        return reduction_pictures(plan)

    def peer(self, plan: ReductionPlan, arrays: Mapping[str, Any], scalars: Mapping[str, float]) -> tuple[str, Any] | None:
        """The same reduction in torch, where torch has it as one operation."""
        from gemmgen.kernels.reduction.peer import torch_reduction

        return torch_reduction(plan, arrays, scalars)

    def interpret(self, operands: Mapping[str, Layout], options: Mapping[str, Any]) -> Interpretation:
        from gemmgen.kernels.reduction.request import interpret_reduce

        return interpret_reduce(operands, options)

    def parse_request(self, sizes: Sequence[int], options: Sequence[str]) -> Request:
        from gemmgen.kernels.reduction.request import packed_request

        return packed_request(sizes, options)

    def fit(self, spec: ReductionSpec, request: Any) -> Fit | str:
        from gemmgen.kernels.reduction.request import fit_reduction

        return fit_reduction(spec, request)

    def problem_grid(self, fine: bool) -> list[str]:
        from gemmgen.kernels.reduction.grid import problem_grid

        return problem_grid(fine)

    def work(self, plan: ReductionPlan, problem: Mapping[str, int]) -> tuple[Work, ...]:
        from gemmgen.kernels.reduction.work import reduction_work

        return reduction_work(plan, problem)


family = ReductionFamily()
