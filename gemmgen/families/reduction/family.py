"""Reductions as a kernel family: their cases, references and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from gemmgen.families.base import Case, Cost, Expected, Family, KernelPlan, KernelSpec, Section
from gemmgen.families.reduction.plan import ReductionPlan, plan_reduction
from gemmgen.families.reduction.spec import ReductionSpec
from gemmgen.launch import BYTES
from gemmgen.target import Architecture

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class ReductionFamily(Family):
    """Y = epilogue(reduce(prologue(X)))."""

    kind: ClassVar[str] = "reduction"
    spec: ClassVar[type[KernelSpec]] = ReductionSpec
    size_names: ClassVar[tuple[str, ...]] = ("outer", "reduced", "inner")
    typical_sizes: ClassVar[tuple[int, ...]] = (1, 1 << 24, 1)

    def plan(self, spec: ReductionSpec, architecture: Architecture) -> KernelPlan:
        return plan_reduction(spec, architecture)

    def problem(self, plan: ReductionPlan, sizes: Sequence[int]) -> dict[str, int]:
        """The dimensions of a packed problem; extents that the shape does not have are passed over."""
        given = dict(zip(self.size_names, sizes, strict=True))
        problem = {d.name: given[d.name] for d in plan.sequence.dimensions if d.name in given}
        missing = [d for d in plan.sequence.dimensions if d.default is not None]
        for dimension in reversed(missing):
            assert dimension.default is not None
            problem[dimension.name] = dimension.default.evaluate(problem)
        return problem

    def cases(self, plan: ReductionPlan) -> list[Case]:
        from gemmgen.families.reduction.cases import reduction_cases

        return reduction_cases(plan, self.problem)

    def fill(
        self, plan: ReductionPlan, case: Case, name: str, shape: tuple[int, ...], rng: np.random.Generator
    ) -> npt.NDArray[Any]:
        from gemmgen.families.reduction.cases import fill_array

        return fill_array(plan, case, name, shape, rng)

    def reference(
        self, plan: ReductionPlan, case: Case, arrays: Mapping[str, npt.NDArray[Any]]
    ) -> dict[str, Expected]:
        from gemmgen.families.reduction.reference import reduction_reference

        return reduction_reference(plan, case, arrays)

    def cost(self, plan: ReductionPlan, problem: Mapping[str, int]) -> Cost:
        """One operation and one read for each element, one write for each result."""
        results = problem.get("outer", 1) * problem.get("inner", 1)
        elements = problem["reduced"] * results
        stored = sum(BYTES[array.type] for array in plan.sequence.arrays if array.role == "output")
        read = BYTES[plan.arithmetic.stored] * elements
        return Cost(float(elements), float(read + stored * results), "fp32")

    def summary(self, plan: ReductionPlan) -> list[str]:
        from gemmgen.families.reduction.explain import summary_lines

        return summary_lines(plan)

    def explain(self, plan: ReductionPlan) -> list[Section]:
        from gemmgen.families.reduction.explain import explain_reduction

        return explain_reduction(plan)

    def peer(
        self, plan: ReductionPlan, arrays: Mapping[str, Any], scalars: Mapping[str, float]
    ) -> tuple[str, Any] | None:
        """The same reduction in torch, where torch has it as one operation."""
        from gemmgen.families.reduction.peer import torch_reduction

        return torch_reduction(plan, arrays, scalars)


family = ReductionFamily()
