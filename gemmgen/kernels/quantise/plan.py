"""The plan of a quantising kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gemmgen.core.elements import ELEMENTS, float_format
from gemmgen.core.errors import PlanError, Reason
from gemmgen.core.formulas import Formula
from gemmgen.hardware.target import Architecture
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.launch import Argument, ArrayArgument, Constraint, Dimension, KernelLaunch, LaunchSequence, ScalarArgument
from gemmgen.kernels.matrix import Matrix
from gemmgen.kernels.naming import architecture_reasons, instance_name, launch_reasons, spec_digest
from gemmgen.kernels.quantise.spec import QuantiseSpec

WARPS = 8
THREADS = 32 * WARPS
BLOCK_LINES, BLOCK_COLUMNS = 128, 128
"""Rows and columns of a block with a scale."""
LANE_COLUMNS = 8
"""Neighbouring columns that a lane has: 16 bytes of 16-bit elements."""
READ_BYTES = 16
"""Bytes that a lane reads at a time."""
BLOCK_LANES = 8
"""Lanes that share a block of 1 x 128, of which each has two times as many columns."""
GROUPS = 2
"""Times that a warp has such blocks for all of its lanes, whose loads are in flight together."""
BLOCKS_OF_A_WARP = GROUPS * 32 // BLOCK_LANES
HELD = {2: 4, 4: 2}
"""Vectors of a row that a thread reads before it uses the first, by the bytes of an element."""
PARTIALS = 1024
"""Blocks, at most, among which all of x is divided to find its largest magnitude."""
MAX_EXTENT = 2**31 - 1 - 1024

SHAPES: Mapping[str, tuple[str, str]] = {
    "1x128": ("m", f"ceil_div(k, {BLOCK_COLUMNS})"),
    "128x128": (f"ceil_div(m, {BLOCK_LINES})", f"ceil_div(k, {BLOCK_COLUMNS})"),
    "row": ("m", "1"),
    "tensor": ("1", "1"),
}
"""Blocks along rows and columns of x, as formulas."""


@dataclass(frozen=True, kw_only=True)
class QuantisePlan(KernelPlan):
    """A quantising kernel."""

    spec: QuantiseSpec
    x: Matrix
    y: Matrix
    scales: Matrix
    threads: int = THREADS

    @property
    def by_tensor(self) -> bool:
        """True if a kernel finds the largest magnitude of all of x before another quantises."""
        return bool(self.spec.block == "tensor")

    @property
    def main_launch(self) -> int:
        """The place in the sequence of the kernel that quantises."""
        return int(self.by_tensor)

    @property
    def largest(self) -> str:
        """The largest number of y, in CUDA."""
        return f"{float_format(self.y.type).largest:.1f}f"

    @property
    def lane_columns(self) -> int:
        """Neighbouring columns of a lane."""
        return LANE_COLUMNS

    @property
    def block_columns(self) -> int:
        """Columns of a block with a scale."""
        return BLOCK_COLUMNS

    @property
    def block_lanes(self) -> int:
        """Lanes that share a block of 1 x 128."""
        return BLOCK_LANES

    @property
    def groups(self) -> int:
        """Blocks of 1 x 128 of a lane."""
        return GROUPS

    @property
    def held(self) -> int:
        """Vectors of a row that a thread reads before it uses the first."""
        return HELD[self.x.element_bytes]


def plan_quantise(spec: QuantiseSpec, architecture: Architecture) -> QuantisePlan:
    """The plan of ``spec`` for ``architecture``. Raises ``PlanError`` with every reason against it."""
    reasons = [*architecture_reasons(spec, architecture), *launch_reasons(spec.early_launch, spec)]
    if not architecture.supports("fp8_mma"):
        reasons.append(Reason("storage", "output", f"{spec.output} on {architecture.name}", "sm_89 or newer", "architecture: sm_89"))
    if reasons:
        raise PlanError(f"no kernel for this spec on {architecture.name}:", reasons)
    rows, columns = SHAPES[spec.block]
    x = Matrix("x", "m", "k", "ldx", True, min(spec.vector, READ_BYTES // ELEMENTS[spec.input].bytes), spec.input)
    y = Matrix("y", "m", "k", "ldy", True, spec.vector, spec.output)
    scales = Matrix("scales", rows, columns, "ld_scales", spec.layout == "k_major", 1, spec.scales)
    parts = [spec.block, spec.scales, *(["mn"] if spec.layout == "mn_major" else []), f"v{spec.vector}", f"{spec.input}_{spec.output}"]
    name = instance_name("quantise", parts, spec)
    return QuantisePlan(
        name=name,
        spec_digest=spec_digest(spec),
        architecture=architecture,
        sequence=_sequence(name, spec, x, y, scales),
        template="quantise/quantise.cu.j2",
        shared_memory=(),
        dynamic_shared_bytes=0,
        spec=spec,
        x=x,
        y=y,
        scales=scales,
    )


def _sequence(name: str, spec: QuantiseSpec, x: Matrix, y: Matrix, scales: Matrix) -> LaunchSequence:
    dimensions = [
        Dimension("m", "rows of x", maximum=MAX_EXTENT),
        Dimension("k", "columns of x", maximum=MAX_EXTENT),
        *(dimension for matrix in (x, y, scales) for dimension in matrix.dimensions),
    ]
    extents = [ScalarArgument("m", "s32", "rows of x"), ScalarArgument("k", "s32", "columns of x")]
    read: list[Argument] = [*extents, x.argument("input"), *x.scalars]
    meaning = f"the scale of each block, {SHAPES[spec.block][0]} x {SHAPES[spec.block][1]}"
    shape = scales.argument("output")
    written: list[Argument] = [
        y.argument("output"),
        *y.scalars,
        ArrayArgument("scales", shape.type, "output", shape.shape, shape.strides, shape.alignment, meaning),
        *scales.scalars,
    ]
    blocks = " * ".join(SHAPES[spec.block])
    most = 2**31 - 1024
    constraints = [constraint for matrix in (x, y, scales) for constraint in matrix.constraints]
    constraints.append(Constraint(Formula(f"{blocks} < {most}"), f"{blocks} is less than {most}: an int counts the blocks with a scale"))
    per_block = WARPS * BLOCKS_OF_A_WARP if spec.block == "1x128" else 1
    arguments: list[Argument] = [*read, *written]
    workspace: list[Argument] = []
    launches: list[KernelLaunch] = []
    workspace_bytes, grid = Formula("0"), f"ceil_div({blocks}, {per_block})" if per_block > 1 else blocks
    if spec.block == "tensor":
        workspace_bytes = Formula(str(8 * PARTIALS))
        workspace = [
            ArrayArgument(
                "workspace",
                "u32",
                "workspace",
                (Formula(str(2 * PARTIALS)),),
                (Formula("1"),),
                256,
                "the largest magnitudes that each block found, without infinities and with them",
            )
        ]
        grid = f"min(max(m, 1), {PARTIALS})"
        launches.append(
            KernelLaunch(
                entry=f"{name}_amax",
                grid=(Formula(grid), Formula("1"), Formula("1")),
                block=(THREADS, 1, 1),
                arguments=tuple(argument.name for argument in [*read, *workspace]),
                programmatic=spec.early_launch,
            )
        )
    launches.append(
        KernelLaunch(
            entry=name,
            grid=(Formula(grid), Formula("1"), Formula("1")),
            block=(THREADS, 1, 1),
            arguments=tuple(argument.name for argument in [*arguments, *workspace]),
            programmatic=spec.early_launch,
        )
    )
    return LaunchSequence(
        name=name,
        dimensions=tuple(dimensions),
        arguments=(*arguments, *workspace),
        launches=tuple(launches),
        constraints=tuple(constraints),
        workspace_bytes=workspace_bytes,
    )


def packed_problem(plan: QuantisePlan, sizes: Sequence[int]) -> dict[str, int]:
    """All dimensions of a problem without gaps."""
    return plan.sequence.completed(dict(zip(("m", "k"), sizes, strict=True)))


def moved_bytes(plan: QuantisePlan, problem: Mapping[str, int]) -> int:
    """Bytes of x, y and the scales, each once."""
    elements = problem["m"] * problem["k"]
    blocks = Formula(plan.scales.rows).evaluate(problem) * Formula(plan.scales.columns).evaluate(problem)
    return elements * (plan.x.element_bytes + plan.y.element_bytes) + blocks * ELEMENTS[plan.scales.type].bytes
