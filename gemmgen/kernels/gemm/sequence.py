"""Arguments, constraints and launches that the launch sequences of all GEMMs have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gemmgen.core.elements import ELEMENTS, DataType
from gemmgen.core.formulas import Formula
from gemmgen.kernels.epilogue.steps import Step
from gemmgen.kernels.epilogue.sums import START, stores_of
from gemmgen.kernels.gemm.grouping import GroupRows
from gemmgen.kernels.gemm.matrices import FLOAT_BYTES, scale_layouts, second_factor
from gemmgen.kernels.gemm.spec import Arithmetic, GemmSpec
from gemmgen.kernels.launch import (
    GRID_LIMITS,
    Argument,
    ArrayArgument,
    Constraint,
    Dimension,
    KernelLaunch,
    ScalarArgument,
)
from gemmgen.kernels.matrix import Matrix

MAX_EXTENT = 2**31 - 1 - 1024
"""Largest m, n and k: coordinates of a tile that reaches past the edge still fit into an int."""
MAX_GROUPS = 65536
MAX_SLICES = 4096
"""Largest number of slices that a launch may cut k into."""
MAX_REDUCTION_GROUPS = 16
"""Groups of threads, at most, among which a block shares the slices that it adds up."""
REDUCTION_GROUPS_OF_ANY = 8
"""Groups where the launch says how many slices there are."""
REDUCTION_THREADS = 256
REDUCTION_VECTOR = 4
"""Elements of C that a thread of the kernel that sums up slices works on."""
SLICE_OF_A_CALL = 8192
"""Depth of a slice where nobody says how many there are."""
WORKSPACE_ALIGNMENT = 256
"""Alignment in bytes of the workspace's size, and of the part behind its flags."""


SLICES = ScalarArgument("slices", "s32", "parts that k is cut into")


@dataclass(frozen=True)
class Problem:
    """The integers of a GEMM, their constraints, and its arguments, in the order in which kernels take them."""

    dimensions: tuple[Dimension, ...]
    constraints: tuple[Constraint, ...]
    extents: tuple[ScalarArgument, ...]
    """m, n and k."""
    alphas: tuple[ScalarArgument | ArrayArgument, ...]
    betas: tuple[ScalarArgument | ArrayArgument, ...]
    a: ArrayArgument
    b: ArrayArgument
    second: tuple[Argument, ...]
    """The second matrix that A is multiplied by, and its integers, if there is one."""
    c: ArrayArgument
    epilogue: tuple[Argument, ...]
    scales: tuple[Argument, ...]
    """Block scales of A and B."""


def gemm_problem(
    spec: GemmSpec, matrices: tuple[Matrix, Matrix, Matrix], epilogue: tuple[Step, ...], largest_k: int, largest_batch: int
) -> Problem:
    """Arguments that a host passes, whichever kernel computes it."""
    extents = {"m": "rows of A and C", "n": "columns of B and C", "k": "columns of A and rows of B"}
    dimensions = [Dimension(dim, meaning, maximum=largest_k if dim == "k" else MAX_EXTENT) for dim, meaning in extents.items()]
    constraints: list[Constraint] = []
    for dim in extents:
        multiple = getattr(spec.multiple_of, dim)
        if multiple > 1:
            text = f"{dim} must be a multiple of {multiple}, as the spec's multiple_of.{dim} promises"
            constraints.append(Constraint(Formula(f"{dim} % {multiple} == 0"), text))
    if spec.triangles.c == "mirrored":
        constraints.append(Constraint(Formula("m == n"), "m must be equal to n: elements of C have mirror images"))
    if spec.batch == "strided":
        meaning = "problems in the batch; they run along y of the grid, which has no more room"
        if largest_batch > GRID_LIMITS[1]:
            meaning = "problems in the batch"
        dimensions.append(Dimension("batch", meaning, maximum=largest_batch, default=Formula("1")))
    if spec.batch == "grouped":
        dimensions.append(Dimension("groups", "groups of rows, each with a separate B", maximum=MAX_GROUPS))
        rows = GroupRows(spec.grouping)
        dimensions += rows.dimensions
        constraints += rows.constraints
    second = second_factor(spec)
    for matrix in (*matrices[:2], *((second,) if second is not None else ()), matrices[2]):
        dimensions += matrix.dimensions
        constraints += matrix.constraints
    scales = scale_layouts(spec)
    for scale in scales:
        dimensions += scale.dimensions
        constraints += scale.constraints
    for step in epilogue:
        dimensions += step.dimensions
        constraints += step.constraints
    layout_a, layout_b, layout_c = matrices
    reads_c = spec.beta == "argument"
    factor: DataType = "f64" if layout_c.type == "f64" else "f32"
    alpha: ScalarArgument | ArrayArgument = ScalarArgument("alpha", factor, "factor of A B; with 0, A and B are not read", default=1.0)
    beta: ScalarArgument | ArrayArgument = ScalarArgument("beta", factor, "factor of C; with 0, C is not read", default=0.0)
    if spec.scalars == "products":
        alpha, beta = (factors_of_products(name, factor) for name in ("alpha", "beta"))
    in_place = [matrix.name for step in epilogue for matrix in (*step.matrices, *step.placed) if matrix.shares]
    layout_c = replace(layout_c, shares=in_place[0]) if in_place else layout_c
    return Problem(
        dimensions=tuple(dimensions),
        constraints=tuple(constraints),
        extents=tuple(ScalarArgument(name, "s32", meaning) for name, meaning in extents.items()),
        alphas=(alpha,) if spec.alpha == "argument" else (),
        betas=(beta,) if reads_c else (),
        a=layout_a.argument("input"),
        b=layout_b.argument("input"),
        second=() if second is None else (second.argument("input"), *second.scalars),
        c=layout_c.argument("inout", needed="beta" if spec.scalars == "launch" else None) if reads_c else layout_c.argument("output"),
        epilogue=(
            *(parameter for step in epilogue for parameter in step.parameters),
            *((START,) if stores_of(epilogue) else ()),
            *_amax(spec),
        ),
        scales=tuple(argument for scale in scales for argument in scale.arguments),
    )


def factors_of_products(name: str, factor: DataType) -> ArrayArgument:
    """alpha or beta of each product of a batch."""
    what = "of A B; with 0, A and B are not read" if name == "alpha" else "of C; with 0, C is not read"
    meaning = f"factor of each product: {what}"
    return ArrayArgument(f"{name}s", factor, "input", (Formula("batch"),), (Formula("1"),), ELEMENTS[factor].bytes, meaning)


def _amax(spec: GemmSpec) -> tuple[ArrayArgument, ...]:
    """The largest absolute value of the results, if it is wanted."""
    if spec.amax == "none":
        return ()
    before = ", before the last factor" if spec.amax == "unscaled" else ""
    meaning = f"raised to the largest absolute value of the results{before}; 0 or more beforehand"
    return (ArrayArgument("amax", "f32", "inout", (Formula("1"),), (Formula("1"),), FLOAT_BYTES, meaning),)


def reduction_groups(spec: GemmSpec) -> int:
    """Groups of threads among which a reducing block shares the slices: about eight slices each, a power of two of groups. Several where
    float32 is computed by smaller types."""
    slices = getattr(spec.decomposition, "slices", 1)
    if slices == "launch":
        return REDUCTION_GROUPS_OF_ANY
    if getattr(spec.mainloop, "arithmetic", Arithmetic()).f32_by is not None:
        return min(REDUCTION_GROUPS_OF_ANY, 1 << (slices.bit_length() - 1))
    return int(min(MAX_REDUCTION_GROUPS, 1 << max(0, (slices - 1).bit_length() - 3)))


def main_launch(
    name: str,
    spec: GemmSpec,
    blocks: Formula,
    threads: int,
    arguments: Sequence[Argument],
    shared_bytes: int,
    cluster_blocks: int = 1,
    blocks_of_device: Formula | None = None,
) -> KernelLaunch:
    """The launch of a product whose grid has one axis."""
    return KernelLaunch(
        entry=name,
        grid=(blocks, Formula("1"), Formula("1")),
        block=(threads, 1, 1),
        arguments=tuple(argument.name for argument in arguments),
        dynamic_shared_bytes=Formula(str(shared_bytes)),
        cluster=(cluster_blocks, 1, 1),
        programmatic=spec.early_launch,
        blocks_of_device=blocks_of_device,
    )


def reduction_launch(
    name: str,
    spec: GemmSpec,
    problem: Problem,
    matrices: tuple[Matrix, Matrix, Matrix],
    workspace: ArrayArgument,
    factors: Sequence[Argument] = (),
) -> KernelLaunch:
    """The kernel that adds up the slices of a parallel split of k; ``factors``: arguments that it multiplies the sums by."""
    m, n, _ = problem.extents
    major, minor = ("m", "n") if matrices[2].row_major else ("n", "m")
    result: list[Argument] = [*problem.betas, problem.c, *matrices[2].scalars, *problem.epilogue]
    own = (SLICES,) if getattr(spec.decomposition, "slices", 1) == "launch" else ()
    elements = REDUCTION_THREADS // reduction_groups(spec) * REDUCTION_VECTOR
    return KernelLaunch(
        entry=f"{name}_reduce",
        grid=(Formula(f"ceil_div({major} * round_up({minor}, {REDUCTION_VECTOR}), {elements})"), products(spec), Formula("1")),
        block=(REDUCTION_THREADS, 1, 1),
        arguments=tuple(argument.name for argument in [m, n, *problem.alphas, *factors, *result, workspace, *own]),
        programmatic=spec.early_launch,
    )


def slices_of(spec: GemmSpec) -> tuple[tuple[ScalarArgument, ...], int | str]:
    """The argument for the number of slices of k where the launch chooses it, and that number or the name of its dimension."""
    slices = getattr(spec.decomposition, "slices", 1)
    return ((SLICES,), SLICES.name) if slices == "launch" else ((), slices)


def slices_dimension() -> Dimension:
    """The number of slices of k where the launch chooses it."""
    default = Formula(f"max(1, min(64, k // {SLICE_OF_A_CALL}))")
    return Dimension("slices", "parts that k is cut into, a block for each of every tile", minimum=1, maximum=MAX_SLICES, default=default)


def partials_bytes(spec: GemmSpec, matrices: tuple[Matrix, Matrix, Matrix], slices: int | str) -> Formula:
    """Workspace for the partial products of all slices, a number or the name of a dimension."""
    major, minor = ("m", "n") if matrices[2].row_major else ("n", "m")
    times_batch = " * batch" if spec.batch == "strided" else ""
    times = f"{FLOAT_BYTES} * {slices}" if isinstance(slices, str) else f"{slices * FLOAT_BYTES}"
    return Formula(f"{times} * {major} * round_up({minor}, 4){times_batch}")


def last_workspace(tiles: str, elements: int, multiple: int = WORKSPACE_ALIGNMENT) -> tuple[Formula, Formula]:
    """Bytes of the workspace of a division of k whose sums the last block of a tile to arrive adds up, and of its zeros, which are tickets;
    ``elements``: of a tile; ``multiple``: the bytes before the sums are a multiple of it, and zero if it is not the least."""
    tickets, sums = f"{FLOAT_BYTES} * {tiles}", f"{FLOAT_BYTES * elements} * slices * {tiles}"
    before = f"round_up({tickets}, {multiple})"
    zeros = tickets if multiple == WORKSPACE_ALIGNMENT else before
    return Formula(f"select(slices > 1, {before} + {sums}, 0)"), Formula(f"select(slices > 1, {zeros}, 0)")


def products(spec: GemmSpec) -> Formula:
    """Products in a batch."""
    return Formula("batch" if spec.batch == "strided" else "1")


def workspace_argument(element: DataType, size: Formula, width: int, meaning: str) -> ArrayArgument:
    """The workspace, in elements of the given size."""
    return ArrayArgument(
        name="workspace",
        type=element,
        role="workspace",
        shape=(Formula(f"({size}) // {width}") if width > 1 else size,),
        strides=(Formula("1"),),
        alignment=WORKSPACE_ALIGNMENT,
        meaning=meaning,
    )
