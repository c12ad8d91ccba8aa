"""CPU SGEMM as a kernel family: its cases, its reference and its costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from gemmgen.core.formulas import ceil_div
from gemmgen.hardware.cpu import CpuArchitecture
from gemmgen.kernels.accuracy import SMALLEST, UNIT_ROUNDOFF, rounded
from gemmgen.kernels.cpu_gemm.plan import CpuGemmPlan, plan_cpu_gemm
from gemmgen.kernels.cpu_gemm.spec import CpuGemmSpec
from gemmgen.kernels.epilogue.numbers import Tracked
from gemmgen.kernels.epilogue.steps import Access, apply_steps
from gemmgen.kernels.family import Case, Cost, Expected, Section

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

LARGEST_INTEGER = 4
"""Entries of A and B in integer cases lie in [-4, 4], so that sums of a million products stay exact in float32."""


class CpuGemmFamily:
    """C = epilogue(alpha * op(A) * op(B) + beta * C), on a CPU."""

    kind: ClassVar[str] = "cpu_gemm"
    operator: ClassVar[str] = "matmul"
    spec: ClassVar[type[CpuGemmSpec]] = CpuGemmSpec
    size_names: ClassVar[tuple[str, ...]] = ("m", "n", "k")
    typical_sizes: ClassVar[tuple[int, ...]] = (1024, 1024, 1024)

    def plan(self, spec: CpuGemmSpec, architecture: CpuArchitecture) -> CpuGemmPlan:
        """Every number of the instance; raises ``PlanError`` with all reasons if the spec cannot work there."""
        return plan_cpu_gemm(spec, architecture)

    def problem(self, plan: CpuGemmPlan, sizes: Sequence[int]) -> dict[str, int]:
        """All dimensions of a packed problem of ``sizes``."""
        from gemmgen.kernels.cpu_gemm.cases import packed

        return packed(plan, sizes)

    def instance_sizes(self, plan: CpuGemmPlan) -> dict[str, int]:
        """The dimensions that ``--size`` sets, with typical values."""
        return dict(zip(self.size_names, self.typical_sizes, strict=True))

    def cases(self, plan: CpuGemmPlan) -> list[Case]:
        """The problems that a verification runs."""
        from gemmgen.kernels.cpu_gemm.cases import cpu_gemm_cases

        return cpu_gemm_cases(plan)

    def fill(self, plan: CpuGemmPlan, case: Case, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
        """Values for the array argument ``name``; NaN where the case must not read it."""
        import numpy as np

        unread = (name in "AB" and case.scalars.get("alpha", 1.0) == 0) or (name == "C" and case.scalars.get("beta", 0.0) == 0)
        if unread:
            return np.full(shape, np.nan)
        if case.data == "reals":
            low, high = (-2.0, 0.3) if plan.approximate else (-3.0, 3.0)
            return rng.choice([-1.0, 1.0], shape) * 10.0 ** rng.uniform(low, high, shape)
        values = rng.integers(-LARGEST_INTEGER, LARGEST_INTEGER + 1, shape).astype(np.float64)
        if case.data == "nonfinite":
            special = rng.choice([np.nan, np.inf, -np.inf], shape)
            values = np.where(rng.random(shape) < 0.02, special, values)
        return values

    def reference(self, plan: CpuGemmPlan, case: Case, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Expected]:
        """What C must hold afterwards.

        The terms of an element are k products and beta C. Each takes part in a rounding for every product (Higham, Accuracy and
        Stability of Numerical Algorithms, 2nd ed., section 3.1), in one for its factor, and in one for every slice of k, whose sums
        are added to C one after the other.
        """
        import numpy as np

        k = case.dimensions["k"]
        alpha, beta = (float(np.float32(case.scalars.get(name, default))) for name, default in (("alpha", 1.0), ("beta", 0.0)))
        shape = arrays["C"].shape
        value, terms = np.zeros(shape), np.zeros(shape)
        slices = ceil_div(k, plan.blocked.block_depth) if plan.blocked is not None else 1
        roundings = k + slices + 3
        with np.errstate(invalid="ignore", over="ignore"):
            if alpha != 0 and k:
                a, b = arrays["A"].astype(np.float64), arrays["B"].astype(np.float64)
                value = alpha * (a @ b)
                if case.data == "reals":
                    terms = abs(alpha) * (np.abs(a) @ np.abs(b))
            if beta != 0:
                scaled = beta * arrays["C"].astype(np.float64)
                value = value + scaled
                if case.data == "reals":
                    terms = terms + np.abs(scaled)
            bound = np.zeros(shape)
            if case.data == "reals":
                bound = roundings * UNIT_ROUNDOFF / (1 - roundings * UNIT_ROUNDOFF) * terms + roundings * SMALLEST
            else:
                value, bound = rounded(value, bound)
            given = {name: float(np.float32(scalar)) for name, scalar in case.scalars.items()} | dict(arrays)

            def read(access: Access) -> npt.NDArray[Any]:
                array = np.asarray(given[access.name], np.float64)
                return array[:, None] if access.operand.per == "row" else array

            finished = apply_steps(plan.epilogue, Tracked(value, bound, "f32"), read)
        return {"C": Expected(finished.value, finished.bound)}

    def cost(self, plan: CpuGemmPlan, problem: Mapping[str, int]) -> Cost:
        """Least operations and bytes of one problem."""
        m, n, k = (problem[name] for name in self.size_names)
        reads_c = plan.spec.beta == "argument"
        elements = m * k + k * n + m * n * (1 + reads_c + len(plan.residuals))
        return Cost(2.0 * m * n * k, 4.0 * elements, "fp32")

    def summary(self, plan: CpuGemmPlan) -> list[str]:
        """What the instance computes, in a few lines for the top of its source."""
        from gemmgen.kernels.cpu_gemm.explain import formula_lines

        return formula_lines(plan)

    def explain(self, plan: CpuGemmPlan) -> list[Section]:
        """The plan in words."""
        from gemmgen.kernels.cpu_gemm.explain import explain_cpu_gemm

        return explain_cpu_gemm(plan)
