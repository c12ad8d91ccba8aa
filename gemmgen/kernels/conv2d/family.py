"""int8 convolution as a kernel family: its cases, its reference and its costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.formulas import round_up
from gemmgen.hardware.target import Architecture
from gemmgen.kernels.conv2d.plan import Conv2dPlan, plan_conv2d
from gemmgen.kernels.conv2d.problem import SIZE_NAMES, sizes
from gemmgen.kernels.conv2d.spec import Conv2dSpec
from gemmgen.kernels.family import Case, Cost, Expected, Family, KernelPlan, KernelSpec, Section

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gemmgen.kernels.pictures import Picture
    from gemmgen.kernels.requests import Fit, Interpretation, Layout, Request
    from gemmgen.kernels.work import Work


class Conv2dFamily(Family):
    """y = activation(alpha * convolution(x, filter) + beta * bias + gamma * z)."""

    kind: ClassVar[str] = "conv2d"
    operator: ClassVar[str] = "conv2d"
    spec: ClassVar[type[KernelSpec]] = Conv2dSpec
    size_names: ClassVar[tuple[str, ...]] = SIZE_NAMES
    typical_sizes: ClassVar[tuple[int, ...]] = (128, 128, 28, 28, 128, 3, 3, 1, 1)

    def plan(self, spec: Conv2dSpec, architecture: Architecture) -> KernelPlan:
        return plan_conv2d(spec, architecture)

    def problem(self, plan: Conv2dPlan, sizes_given: Sequence[int]) -> dict[str, int]:
        return sizes(plan.spec, sizes_given)

    def cases(self, plan: Conv2dPlan) -> list[Case]:
        from gemmgen.kernels.conv2d.cases import conv2d_cases

        return conv2d_cases(plan)

    def fill(self, plan: Conv2dPlan, case: Case, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
        from gemmgen.kernels.conv2d.cases import fill

        return fill(plan, case, name, shape, rng)

    def reference(self, plan: Conv2dPlan, case: Case, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Expected]:
        from gemmgen.kernels.conv2d.reference import reference

        return {"y": reference(plan.spec, plan.filter_order, case.dimensions, case.scalars, arrays)}

    def cost(self, plan: Conv2dPlan, problem: Mapping[str, int]) -> Cost:
        n, c, h, w, k, r, s, p, q = (problem[name] for name in ("n", "c", "h", "w", "k", "r", "s", "p", "q"))
        depth = c // problem["groups"] * r * s
        outputs = n * p * q * k
        size = ELEMENTS[plan.output.type].bytes * outputs
        total = n * c * h * w + depth * k + size + size * plan.arrays_like_output + (4 * k if plan.shifted else 0)
        return Cost(2.0 * outputs * depth, float(total), "int8")

    def executed_operations(self, plan: Conv2dPlan, problem: Mapping[str, int]) -> float:
        """Tiles of pixels by output channels of a group, over whole steps of the implicit GEMM's k."""
        tile, groups = plan.spec.tile.threadblock, problem["groups"]
        pixels, channels = (tile.n, tile.m) if plan.channels_are_rows else (tile.m, tile.n)
        depth = problem["c"] // groups * problem["r"] * problem["s"]
        rows = round_up(problem["n"] * problem["p"] * problem["q"], pixels)
        return 2.0 * rows * round_up(problem["k"] // groups, channels) * groups * round_up(depth, tile.k)

    def summary(self, plan: Conv2dPlan) -> list[str]:
        from gemmgen.kernels.conv2d.explain import formula_lines

        return formula_lines(plan)

    def explain(self, plan: Conv2dPlan) -> list[Section]:
        from gemmgen.kernels.conv2d.explain import explain_conv2d

        return explain_conv2d(plan)

    def pictures(self, plan: Conv2dPlan) -> list[Picture]:
        from gemmgen.kernels.conv2d.pictures import conv2d_pictures

        return conv2d_pictures(plan)

    def interpret(self, operands: Mapping[str, Layout], options: Mapping[str, Any]) -> Interpretation:
        from gemmgen.kernels.conv2d.request import interpret_conv2d

        return interpret_conv2d(operands, options)

    def parse_request(self, sizes: Sequence[int], options: Sequence[str]) -> Request:
        from gemmgen.kernels.conv2d.request import packed_request

        return packed_request(sizes, options)

    def fit(self, spec: Conv2dSpec, request: Any) -> Fit | str:
        from gemmgen.kernels.conv2d.request import fit_conv2d

        return fit_conv2d(spec, request)

    def problem_grid(self, fine: bool) -> list[str]:
        from gemmgen.kernels.conv2d.grid import problem_grid

        return problem_grid(fine)

    def work(self, plan: Conv2dPlan, problem: Mapping[str, int]) -> tuple[Work, ...]:
        from gemmgen.kernels.conv2d.work import conv2d_work

        return conv2d_work(plan, problem)

    def operand_orders(self, plan: Conv2dPlan) -> Mapping[str, str]:
        """The filter's output channels, by ``reorder_filter``."""
        return {"w": plan.filter_order}


family = Conv2dFamily()
