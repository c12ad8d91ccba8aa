"""The plan of float32 products on tensor cores by those of smaller types, for all instructions."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar, cast

from gemmgen.kernels.gemm.sequence import MAX_SLICES, partials_bytes
from gemmgen.kernels.gemm.spec import Arithmetic, GemmSpec, SplitKParallel
from gemmgen.kernels.gemm.split_precision.planes import SETS_OF_SUMS, PlanesPlan, is_compensated, plane_scheme
from gemmgen.kernels.gemm.split_precision.sequence import keeping_sequence
from gemmgen.kernels.gemm.tensor_cores.operands import Multiplied
from gemmgen.kernels.gemm.tensor_cores.plan import TensorPlan
from gemmgen.kernels.launch import LaunchSequence
from gemmgen.kernels.matrix import Matrix

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gemmgen.kernels.gemm.plan import Array
    from gemmgen.kernels.gemm.split_precision.kept import PlanesMainloop


@dataclass(frozen=True, kw_only=True)
class SplitPrecisionPlan(TensorPlan):
    """A float32 GEMM whose operands are split into planes of a smaller type. The plans that it is made with say by which instructions these
    are multiplied."""

    instructions: ClassVar[str]
    """Matrix instructions of the product, as rates of devices name them."""
    planes: PlanesPlan

    @property
    def cost_kind(self) -> str:
        """The product's kind of kernel in the table of costs."""
        return f"planes by {self.instructions}"

    @property
    def store_kind(self) -> str:
        """Kind of its stores there."""
        return f"planes by {self.instructions}"

    @property
    def staggered(self) -> bool:
        """True if groups of warps take turns to multiply and to add up."""
        return False

    @property
    def unit(self) -> str:
        return f"f32_by_{self.planes.scheme.name}_{self.instructions}"

    @property
    def main_launch(self) -> int:
        return len(self.planes.kernels)

    @property
    def reduction_form(self) -> str:
        return "reduction_by_planes"

    @property
    def keeping(self) -> LaunchSequence | None:
        return keeping_sequence(self.planes) if self.planes.kept_operand is not None else None

    @property
    def kept_factor(self) -> str | None:
        kept = self.planes.kept_operand
        return None if kept is None else kept.name

    def kept_array(self, factor: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
        from gemmgen.kernels.gemm.split_precision.numbers import stored_planes

        kept = self.planes.kept_operand
        assert kept is not None
        return stored_planes(kept, factor if kept.name == "A" else factor.T)

    @property
    def staged_store(self) -> str:
        return "scaled"

    @property
    def least_depth(self) -> int:
        return self.planes.least_depth

    def additions(self, k: int) -> tuple[str, int]:
        # Planes of one scheme add up their products by pairs of planes, which only the whole loop tells.
        mainloop = cast("PlanesMainloop", self.spec.mainloop)
        name = f"{mainloop.arithmetic.f32_by} by {mainloop.strategy} of {self.loop.tile_k}, {self.mainloop_digest}"
        return name, self.loop.promote_steps

    def product_bound(self, a: Array, b: Array, slices: int) -> Array:
        from gemmgen.kernels.gemm.split_precision.numbers import planes_bound

        return planes_bound(self.planes, a, b)


def product_part(plan: SplitPrecisionPlan, name: str) -> ModuleType:
    """A module of the strategy whose instructions multiply the planes: of the package of the plan's second base."""
    return import_module(f"{type(plan).__bases__[1].__module__.rpartition('.')[0]}.{name}")


def split_factors(arithmetic: Arithmetic, a: Matrix) -> Multiplied:
    """Both factors as planes; or B alone, where the warps that multiply A split it."""
    scheme = plane_scheme(arithmetic)
    if arithmetic.split == "kernel":
        return Multiplied(
            types=(scheme.type, scheme.type),
            element_bytes=(scheme.element_bytes, scheme.element_bytes),
            planes=(scheme.planes, scheme.planes),
            kept_sums=SETS_OF_SUMS,
            staggered=is_compensated(arithmetic),
        )
    return Multiplied((scheme.type, scheme.type), (a.element_bytes, scheme.element_bytes), (1, scheme.planes), kept_sums=1)


def partial_sums(spec: GemmSpec, matrices: tuple[Matrix, Matrix, Matrix]) -> tuple[int, str]:
    """Slices of k, at most, whose sums a kernel adds up, and their size in the workspace; 1 and nothing without such a kernel."""
    if not isinstance(spec.decomposition, SplitKParallel):
        return 1, ""
    slices = spec.decomposition.slices
    if slices == "launch":
        return MAX_SLICES, str(partials_bytes(spec, matrices, "slices"))
    return slices, str(partials_bytes(spec, matrices, slices))
