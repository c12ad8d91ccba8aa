"""A quantising kernel's plan in words."""

from __future__ import annotations

from gemmgen.core.elements import ELEMENTS
from gemmgen.kernels.family import Section
from gemmgen.kernels.quantise.plan import BLOCKS_OF_A_WARP, PARTIALS, WARPS, QuantisePlan

BLOCKS = {
    "1x128": "128 columns of a row of x",
    "128x128": "128 rows and columns of x",
    "row": "a row of x",
    "tensor": "all of x",
}
WORKERS = {
    "1x128": f"a warp has {BLOCKS_OF_A_WARP} blocks; eight lanes share one, and find the largest magnitude of their elements",
    "128x128": f"{WARPS} warps have a block, whose elements stay in registers until its scale is known",
    "row": "a threadblock reads its row twice: for the largest magnitude, and to quantise it",
    "tensor": f"up to {PARTIALS} threadblocks find the largest magnitudes of their rows; the second kernel reads these, then x again",
}


def summary(plan: QuantisePlan) -> list[str]:
    """The kernel's computation, in a few lines."""
    spec = plan.spec
    kind = "float32" if spec.scales == "f32" else "a power of two, held as its exponent"
    return [
        f"y = x / scale, a scale for {BLOCKS[spec.block]}: its largest finite magnitude over {plan.largest.removesuffix('f')}.",
        f"Elements {ELEMENTS[plan.x.type].word}, stored as {ELEMENTS[plan.y.type].word}, which saturates; a scale is {kind}.",
    ]


def explain(plan: QuantisePlan) -> list[Section]:
    """Work of warps and blocks, and bytes."""
    sizes = plan.x.element_bytes, plan.y.element_bytes
    lane = ("lane", f"{plan.spec.vector} element{'s' if plan.spec.vector > 1 else ''} at a time")
    return [
        Section("Computation", tuple(("", line) for line in summary(plan))),
        Section("Division of work", (("work", WORKERS[plan.spec.block]), lane, ("grid", str(plan.sequence.launches[-1].grid[0])))),
        Section(
            "Cost of an element",
            (("bytes", f"{sizes[0]} read, {sizes[1]} written"), ("operations", "a maximum, a division, a conversion")),
        ),
    ]
