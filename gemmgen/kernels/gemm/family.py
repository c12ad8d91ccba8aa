"""SGEMM as a kernel family: its cases, its reference and its costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from gemmgen.core.elements import to_numbers
from gemmgen.core.formulas import round_up
from gemmgen.hardware.target import Architecture
from gemmgen.kernels.accuracy import UNIT_ROUNDOFF, rounded, stored
from gemmgen.kernels.epilogue.numbers import Tracked
from gemmgen.kernels.epilogue.steps import Access, apply_steps
from gemmgen.kernels.family import Case, Cost, Expected, Family, KernelPlan, KernelSpec, Section
from gemmgen.kernels.gemm.loop import TiledLoop
from gemmgen.kernels.gemm.plan import GemmPlan, plan_gemm
from gemmgen.kernels.gemm.spec import GemmSpec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gemmgen.kernels.pictures import Picture
    from gemmgen.kernels.requests import Fit, Interpretation, Layout, Request
    from gemmgen.kernels.work import Work

LARGEST_INTEGER = 4
"""Entries of A and B in integer cases lie in [-4, 4], so that sums of a million products stay exact in float32."""


class GemmFamily(Family):
    """C = epilogue(alpha * op(A) * op(B) + beta * C)."""

    kind: ClassVar[str] = "gemm"
    operator: ClassVar[str] = "matmul"
    spec: ClassVar[type[KernelSpec]] = GemmSpec
    size_names: ClassVar[tuple[str, ...]] = ("m", "n", "k")
    typical_sizes: ClassVar[tuple[int, ...]] = (4096, 4096, 4096)

    def plan(self, spec: GemmSpec, architecture: Architecture) -> KernelPlan:
        return plan_gemm(spec, architecture)

    def problem(self, plan: GemmPlan, sizes: Sequence[int]) -> dict[str, int]:
        from gemmgen.kernels.gemm.cases import packed

        return packed(plan, sizes[:3], *sizes[3:])

    def instance_sizes(self, plan: GemmPlan) -> dict[str, int]:
        typical = super().instance_sizes(plan)
        return {"m": 512, "n": 512, "k": 512, "batch": 64} if plan.batched else typical

    def cases(self, plan: GemmPlan) -> list[Case]:
        from gemmgen.kernels.gemm.cases import gemm_cases

        return gemm_cases(plan)

    def fill(self, plan: GemmPlan, case: Case, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
        import numpy as np

        unread = (name in "AB" and case.scalars.get("alpha", 1.0) == 0) or (name == "C" and case.scalars.get("beta", 0.0) == 0)
        if unread:
            return np.full(shape, np.nan)
        if case.data == "reals":
            # Sums around 1 where an operation bends there and is flat further out, or where C would overflow.
            low, high = (-2.0, 0.3) if plan.approximate or plan.matrix_c.type == "f16" else (-3.0, 3.0)
            return rng.choice([-1.0, 1.0], shape) * 10.0 ** rng.uniform(low, high, shape)
        values = rng.integers(-LARGEST_INTEGER, LARGEST_INTEGER + 1, shape).astype(np.float64)
        if case.data == "nonfinite":
            special = rng.choice([np.nan, np.inf, -np.inf], shape)
            values = np.where(rng.random(shape) < 0.02, special, values)
        return values

    def reference(self, plan: GemmPlan, case: Case, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Expected]:
        import numpy as np

        k = case.dimensions["k"]
        alpha, beta = (float(np.float32(case.scalars.get(name, default))) for name, default in (("alpha", 1.0), ("beta", 0.0)))
        shape = arrays["C"].shape
        value, bound = np.zeros(shape), np.zeros(shape)
        arrays = {array.name: to_numbers(array.type, arrays[array.name]) for array in plan.sequence.arrays if array.name in arrays}
        with np.errstate(invalid="ignore", over="ignore"):
            if alpha != 0:
                a, b = arrays["A"].astype(np.float64), arrays["B"].astype(np.float64)
                product = a @ b
                if case.data == "reals":
                    # Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1: each of the k terms
                    # takes part in at most k roundings, whatever the order of the sum; fma rounds once a term.
                    gamma = k * UNIT_ROUNDOFF / (1 - k * UNIT_ROUNDOFF)
                    bound = gamma * (np.abs(a) @ np.abs(b))
                value, bound = rounded(alpha * product, abs(alpha) * bound)
            if beta != 0:
                scaled, scaled_bound = rounded(beta * arrays["C"].astype(np.float64), np.zeros(shape))
                value, bound = rounded(value + scaled, bound + scaled_bound)
            given = {name: float(np.float32(scalar)) for name, scalar in case.scalars.items()} | dict(arrays)

            def read(access: Access) -> npt.NDArray[Any]:
                array = np.asarray(given[access.name], np.float64)
                return array[:, None] if access.operand.per == "row" else array

            finished = apply_steps(plan.epilogue, Tracked(value, bound, "f32"), read)
        return {"C": Expected(*stored(plan.matrix_c.type, finished.value, finished.bound))}

    def cost(self, plan: GemmPlan, problem: Mapping[str, int]) -> Cost:
        m, n, k = (problem[name] for name in self.size_names)
        reads_c = plan.spec.beta == "argument"
        factors = m * k * plan.matrix_a.element_bytes + k * n * plan.matrix_b.element_bytes
        results = m * n * plan.matrix_c.element_bytes * (1 + reads_c + len(plan.residuals))
        batch = problem.get("batch", 1)
        return Cost(2.0 * batch * m * n * k, float(batch * (factors + results)), "fp32")

    def executed_operations(self, plan: GemmPlan, problem: Mapping[str, int]) -> float:
        tile_k = plan.loop.tile_k if isinstance(plan.loop, TiledLoop) else 1
        tiles = {"m": plan.tile_m, "n": plan.tile_n, "k": tile_k}
        return self.cost(plan, {**problem, **{name: round_up(problem[name], tile) for name, tile in tiles.items()}}).operations

    def summary(self, plan: GemmPlan) -> list[str]:
        from gemmgen.kernels.gemm.explain import formula_lines

        return formula_lines(plan)

    def explain(self, plan: GemmPlan) -> list[Section]:
        from gemmgen.kernels.gemm.explain import explain_gemm

        return explain_gemm(plan)

    def pictures(self, plan: GemmPlan) -> list[Picture]:
        from gemmgen.kernels.gemm.pictures import gemm_pictures

        return gemm_pictures(plan)

    def peer(self, plan: GemmPlan, arrays: Mapping[str, Any], scalars: Mapping[str, float]) -> tuple[str, Any] | None:
        """cuBLAS through torch: the product and beta * C; the epilogue follows as separate operations."""
        from gemmgen.kernels.gemm.peer import cublas

        return cublas(plan, arrays, scalars)

    def interpret(self, operands: Mapping[str, Layout], options: Mapping[str, Any]) -> Interpretation:
        from gemmgen.kernels.gemm.operator import interpret_matmul

        return interpret_matmul(operands, options)

    def parse_request(self, sizes: Sequence[int], options: Sequence[str]) -> Request:
        from gemmgen.kernels.gemm.request import packed_request

        return packed_request(sizes, options)

    def fit(self, spec: GemmSpec, request: Any) -> Fit | str:
        from gemmgen.kernels.gemm.request import fit_gemm

        return fit_gemm(spec, request)

    def problem_grid(self, fine: bool) -> list[str]:
        from gemmgen.kernels.gemm.grid import problem_grid

        return problem_grid(fine)

    def work(self, plan: GemmPlan, problem: Mapping[str, int]) -> tuple[Work, ...]:
        from gemmgen.kernels.gemm.work import gemm_work

        return gemm_work(plan, problem)


family = GemmFamily()
