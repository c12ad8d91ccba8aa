"""Numeric classes: which instances give the same bits for all data, as a function of their plans and of k.

Rounding depends on the order in which products are added up. Two instances of one class add them up in the same order for every element of
C, regardless of their tiles, stages, warps or clusters, so a row keeps its bits when one replaces the other. The class depends on the
types, the depth of an instruction, the interval at which sums leave the tensor core, and the boundaries of slices of k."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from gemmgen.core.formulas import ceil_div
from gemmgen.kernels.gemm.plan import GemmPlan, epilogue_accuracy
from gemmgen.kernels.gemm.spec import SplitKCluster, SplitKLast, SplitKParallel, SplitKSerial, StreamK

_SHOWN_SLICES = 4


@dataclass(frozen=True)
class NumericClass:
    """An order of additions for one element of C."""

    types: tuple[str, str]
    """Types of the factors, as they are multiplied."""
    steps: str
    """The unit that adds up products: ``fma``, or a tensor core's instruction by its depth, with the way in which it cuts terms."""
    promoted: int
    """Values of k after which sums leave the tensor core; 0: never."""
    slices: tuple[int, ...]
    """Ends of the slices of k, each added up separately and then in order; a single one if k is not divided."""
    joined: str = ""
    """The order in which slices are added up, if it is not one after the other."""
    functions: str = ""
    """The form of the epilogue's approximate functions, if it is not the usual one."""

    @property
    def divided(self) -> bool:
        """True if k is divided."""
        return len(self.slices) > 1

    @property
    def text(self) -> str:
        """Name of the class: equal for equal classes at one k."""
        types = self.types[0] if self.types[0] == self.types[1] else "_".join(self.types)
        parts = [types, self.steps]
        if self.promoted:
            parts.append(f"promoted every {self.promoted}")
        if self.divided:
            ends = "-".join(map(str, self.slices))
            if len(self.slices) > _SHOWN_SLICES:
                ends = hashlib.sha256(ends.encode()).hexdigest()[:8]
            parts.append(f"{len(self.slices)} slices {ends}" + (f" {self.joined}" if self.joined else ""))
        return ", ".join([*parts, self.functions] if self.functions else parts)


def numeric_class(plan: GemmPlan, k: int) -> NumericClass | str:
    """The class of an instance for products of a depth, or why it has none: the order of its additions depends on m, n or the launch."""
    spec = plan.spec
    if isinstance(spec.decomposition, StreamK):
        return "stream-K divides k by the number of tiles, so by m and n"
    if plan.cut_at_launch or isinstance(spec.decomposition, SplitKLast):
        return "the launch says into how many slices k is cut"
    functions = "functions in turn" if plan.approximate and epilogue_accuracy(spec) == "in_turn" else ""
    types = ("e2m1", "e2m1") if plan.packed_factors else (plan.matrix_a.type, plan.matrix_b.type)
    if types[0] in ("s8", "u8"):
        return NumericClass(types, "exact", 0, (k,), functions=functions)
    slices, joined = _slices(plan, k)
    steps, promoted = plan.additions(k)
    return NumericClass(types, steps, promoted, slices, joined, functions)


def without_tree(plan: GemmPlan) -> str:
    """The reason why no run on the emulator shows the order of an instance's additions; empty for most."""
    if plan.matrix_a.type == "f64":
        return "float64"
    if getattr(plan.spec.mainloop, "accumulators", "f32") == "f16":
        return "sums in float16"
    # The launches that split compute with real numbers, and their planes decide which products are added up.
    return "products by planes" if hasattr(plan, "planes") else ""


def _slices(plan: GemmPlan, k: int) -> tuple[tuple[int, ...], str]:
    """Ends of the slices of k, and the way they are joined."""
    match plan.spec.decomposition:
        case SplitKSerial(slices=count) | SplitKParallel(slices=int(count)) | SplitKCluster(slices=count):
            steps = ceil_div(max(k, 1), plan.step_k)
            each = ceil_div(steps, count) * plan.step_k
            ends = tuple(min(each * (number + 1), k) for number in range(ceil_div(k, each)))
            groups = plan.reduction_groups if isinstance(plan.spec.decomposition, SplitKParallel) else 1
            return ends or (k,), f"in {groups} groups" if groups > 1 else ""
    return (k,), ""
