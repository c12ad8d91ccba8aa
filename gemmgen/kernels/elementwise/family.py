"""Elementwise operations as a kernel family: their cases, references and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from gemmgen.core.elements import ELEMENTS
from gemmgen.hardware.target import Architecture
from gemmgen.kernels.elementwise.access import AXES
from gemmgen.kernels.elementwise.plan import ElementwisePlan, packed_problem, plan_elementwise
from gemmgen.kernels.elementwise.spec import ElementwiseSpec
from gemmgen.kernels.family import Case, Cost, Expected, Family, KernelPlan, KernelSpec, Section

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gemmgen.kernels.pictures import Picture
    from gemmgen.kernels.requests import Fit, Interpretation, Layout, Request
    from gemmgen.kernels.work import Work

TYPICAL = {1: (1 << 24,), 2: (4096, 4096), 3: (64, 512, 512), 4: (32, 64, 128, 128)}
"""Extents for which an instance of each rank is explained."""


class ElementwiseFamily(Family):
    """y = operations(x, z, ...)."""

    kind: ClassVar[str] = "elementwise"
    operator: ClassVar[str] = "elementwise"
    spec: ClassVar[type[KernelSpec]] = ElementwiseSpec
    size_names: ClassVar[tuple[str, ...]] = AXES
    typical_sizes: ClassVar[tuple[int, ...]] = (1, 1, 1, 1 << 24)

    def plan(self, spec: ElementwiseSpec, architecture: Architecture) -> KernelPlan:
        return plan_elementwise(spec, architecture)

    def instance_sizes(self, plan: ElementwisePlan) -> dict[str, int]:
        """The extents of as many axes as the spec has."""
        return dict(zip(AXES, TYPICAL[plan.rank], strict=False))

    def problem(self, plan: ElementwisePlan, sizes: Sequence[int]) -> dict[str, int]:
        return packed_problem(plan, dict(zip(self.instance_sizes(plan), sizes, strict=True)))

    def cases(self, plan: ElementwisePlan) -> list[Case]:
        from gemmgen.kernels.elementwise.cases import elementwise_cases

        return elementwise_cases(plan)

    def fill(self, plan: ElementwisePlan, case: Case, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
        from gemmgen.kernels.elementwise.cases import fill_array

        return fill_array(plan, case, name, shape, rng)

    def reference(self, plan: ElementwisePlan, case: Case, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Expected]:
        from gemmgen.kernels.elementwise.reference import elementwise_reference

        return elementwise_reference(plan, case, arrays)

    def cost(self, plan: ElementwisePlan, problem: Mapping[str, int]) -> Cost:
        """N operations for each of the kernel's operations, and the bytes of each array once: 3 N elements for a binary one.
        Utilisation follows from these: operations / (time x rate), bytes / (time x bandwidth)."""
        from gemmgen.kernels.elementwise.work import bytes_read, elements_of

        elements = elements_of(plan, problem)
        written = elements * ELEMENTS[plan.output].bytes
        return Cost(float(elements * plan.operation_count), float(bytes_read(plan, problem) + written), "fp32")

    def summary(self, plan: ElementwisePlan) -> list[str]:
        from gemmgen.kernels.elementwise.explain import summary_lines

        return summary_lines(plan)

    def explain(self, plan: ElementwisePlan) -> list[Section]:
        from gemmgen.kernels.elementwise.explain import explain_elementwise

        return explain_elementwise(plan)

    def pictures(self, plan: ElementwisePlan) -> list[Picture]:
        from gemmgen.kernels.elementwise.pictures import elementwise_pictures

        return elementwise_pictures(plan)

    def peer(self, plan: ElementwisePlan, arrays: Mapping[str, Any], scalars: Mapping[str, float]) -> tuple[str, Any] | None:
        """The same operations in torch, one after the other."""
        from gemmgen.kernels.elementwise.peer import torch_operations

        return torch_operations(plan, arrays, scalars)

    def interpret(self, operands: Mapping[str, Layout], options: Mapping[str, Any]) -> Interpretation:
        from gemmgen.kernels.elementwise.request import interpret_elementwise

        return interpret_elementwise(operands, options)

    def parse_request(self, sizes: Sequence[int], options: Sequence[str]) -> Request:
        from gemmgen.kernels.elementwise.request import packed_request

        return packed_request(sizes, options)

    def fit(self, spec: ElementwiseSpec, request: Any) -> Fit | str:
        from gemmgen.kernels.elementwise.request import fit_elementwise

        return fit_elementwise(spec, request)

    def problem_grid(self, fine: bool) -> list[str]:
        from gemmgen.kernels.elementwise.grid import problem_grid

        return problem_grid(fine)

    def work(self, plan: ElementwisePlan, problem: Mapping[str, int]) -> tuple[Work, ...]:
        from gemmgen.kernels.elementwise.work import elementwise_work

        return elementwise_work(plan, problem)


family = ElementwiseFamily()
