"""The launch sequence of a GEMM: what a host passes to its kernels, and in which grids they run."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.core.elements import DataType
from gemmgen.core.formulas import Formula, round_up
from gemmgen.kernels.epilogue.steps import Step
from gemmgen.kernels.family import SharedRegion
from gemmgen.kernels.gemm.matrices import FLOAT_BYTES
from gemmgen.kernels.gemm.spec import GemmSpec, SplitKParallel, SplitKSerial, StreamK
from gemmgen.kernels.launch import (
    GRID_LIMITS,
    Argument,
    ArrayArgument,
    Constraint,
    Dimension,
    KernelLaunch,
    LaunchSequence,
    ScalarArgument,
)
from gemmgen.kernels.matrix import Matrix

MAXIMUM_EXTENT = 2**31 - 1 - 1024
"""Largest m, n and k: coordinates of a tile that reaches past the edge still fit into an int."""
LARGEST_GROUPS = 65536
MOST_SLICES = 4096
"""Largest number of slices that a launch may cut k into."""
MAXIMUM_REDUCTION_GROUPS = 16
"""Groups of threads, at most, among which a block shares the slices that it adds up."""
SLICE_OF_A_CALL = 8192
"""Depth of a slice where nobody says how many there are."""
WORKSPACE_ALIGNMENT = 256
"""Bytes that the workspace, and what follows the flags in it, are multiples of."""


SLICES = ScalarArgument("slices", "s32", "parts that k is cut into")


@dataclass(frozen=True)
class Geometry:
    """The numbers of the kernels' geometry that the launches state."""

    tile_m: int
    tile_n: int
    tile_k: int
    threads: int
    regions: tuple[SharedRegion, ...]
    static_shared: bool
    reduction_threads: int
    """Threads of a block of the kernel that sums up the slices of a parallel split of k."""
    reduction_elements: int
    """Elements of C that such a block finishes."""


@dataclass(frozen=True)
class Problem:
    """The integers of a GEMM, what holds for them, and its arguments, in the order in which kernels take them."""

    dimensions: tuple[Dimension, ...]
    constraints: tuple[Constraint, ...]
    extents: tuple[ScalarArgument, ...]
    """m, n and k."""
    alphas: tuple[ScalarArgument, ...]
    betas: tuple[ScalarArgument, ...]
    a: ArrayArgument
    b: ArrayArgument
    c: ArrayArgument
    epilogue: tuple[Argument, ...]


def gemm_problem(
    spec: GemmSpec, matrices: tuple[Matrix, Matrix, Matrix], epilogue: tuple[Step, ...], largest_k: int, largest_batch: int
) -> Problem:
    """Arguments that a host passes, whichever kernel computes it."""
    extents = {"m": "rows of A and C", "n": "columns of B and C", "k": "columns of A and rows of B"}
    dimensions = [Dimension(dim, meaning, maximum=largest_k if dim == "k" else MAXIMUM_EXTENT) for dim, meaning in extents.items()]
    constraints: list[Constraint] = []
    for dim in extents:
        multiple = getattr(spec.multiple_of, dim)
        if multiple > 1:
            text = f"{dim} is a multiple of {multiple}, as the spec's multiple_of.{dim} promises"
            constraints.append(Constraint(Formula(f"{dim} % {multiple} == 0"), text))
    if spec.batch == "strided":
        meaning = "problems in the batch; they run along y of the grid, which has no more room"
        if largest_batch > GRID_LIMITS[1]:
            meaning = "problems in the batch"
        dimensions.append(Dimension("batch", meaning, maximum=largest_batch, default=Formula("1")))
    if spec.batch == "grouped":
        dimensions.append(Dimension("groups", "groups of rows, each with a B of its own", maximum=LARGEST_GROUPS))
    for matrix in matrices:
        dimensions += matrix.dimensions
        constraints += matrix.constraints
    for step in epilogue:
        dimensions += step.dimensions
        constraints += step.constraints
    layout_a, layout_b, layout_c = matrices
    reads_c = spec.beta == "argument"
    alpha = ScalarArgument("alpha", "f32", "factor of A B; with 0, A and B are not read", default=1.0)
    beta = ScalarArgument("beta", "f32", "factor of C; with 0, C is not read", default=0.0)
    return Problem(
        dimensions=tuple(dimensions),
        constraints=tuple(constraints),
        extents=tuple(ScalarArgument(name, "s32", meaning) for name, meaning in extents.items()),
        alphas=(alpha,) if spec.alpha == "argument" else (),
        betas=(beta,) if reads_c else (),
        a=layout_a.argument("input"),
        b=layout_b.argument("input"),
        c=layout_c.argument("inout", needed="beta") if reads_c else layout_c.argument("output"),
        epilogue=(*(parameter for step in epilogue for parameter in step.parameters), *_amax(spec)),
    )


def _amax(spec: GemmSpec) -> tuple[ArrayArgument, ...]:
    """The largest absolute value of the results, if it is wanted."""
    if spec.amax == "none":
        return ()
    before = ", before the last factor" if spec.amax == "unscaled" else ""
    meaning = f"raised to the largest absolute value of the results{before}; 0 or more beforehand"
    return (ArrayArgument("amax", "f32", "inout", (Formula("1"),), (Formula("1"),), FLOAT_BYTES, meaning),)


def reduction_launch(
    name: str,
    spec: GemmSpec,
    problem: Problem,
    matrices: tuple[Matrix, Matrix, Matrix],
    workspace: ArrayArgument,
    elements: int,
    threads: int,
) -> KernelLaunch:
    """The kernel that adds up the slices of a parallel split of k; a block finishes ``elements`` of C."""
    m, n, _ = problem.extents
    major, minor = ("m", "n") if matrices[2].row_major else ("n", "m")
    result: list[Argument] = [*problem.betas, problem.c, *matrices[2].scalars, *problem.epilogue]
    own = (SLICES,) if getattr(spec.decomposition, "slices", 1) == "launch" else ()
    return KernelLaunch(
        entry=f"{name}_reduce",
        grid=(Formula(f"ceil_div({major} * round_up({minor}, 4), {elements})"), products(spec), Formula("1")),
        block=(threads, 1, 1),
        arguments=tuple(argument.name for argument in [m, n, *problem.alphas, *result, workspace, *own]),
        programmatic=spec.early_launch,
    )


def slices_dimension() -> Dimension:
    """The number of slices of k where the launch chooses it."""
    default = Formula(f"max(1, min(64, k // {SLICE_OF_A_CALL}))")
    return Dimension("slices", "parts that k is cut into, a block for each of every tile", minimum=1, maximum=MOST_SLICES, default=default)


def partials_bytes(spec: GemmSpec, matrices: tuple[Matrix, Matrix, Matrix], slices: int | str) -> Formula:
    """Workspace for the partial products of all slices, a number or the name of a dimension."""
    major, minor = ("m", "n") if matrices[2].row_major else ("n", "m")
    times_batch = " * batch" if spec.batch == "strided" else ""
    times = f"{FLOAT_BYTES} * {slices}" if isinstance(slices, str) else f"{slices * FLOAT_BYTES}"
    return Formula(f"{times} * {major} * round_up({minor}, 4){times_batch}")


def products(spec: GemmSpec) -> Formula:
    """Products in a batch."""
    return Formula("batch" if spec.batch == "strided" else "1")


def gemm_sequence(
    name: str,
    spec: GemmSpec,
    matrices: tuple[Matrix, Matrix, Matrix],
    geometry: Geometry,
    epilogue: tuple[Step, ...],
) -> LaunchSequence:
    """Dimensions, arguments, constraints, workspace and launches of the instance ``name``."""
    slices = getattr(spec.decomposition, "slices", 1)
    at_launch = slices == "launch"
    parts_of_k = (MOST_SLICES if at_launch else slices) * getattr(spec.mainloop, "k_groups", 1)
    problem = gemm_problem(spec, matrices, epilogue, MAXIMUM_EXTENT - parts_of_k * geometry.tile_k, GRID_LIMITS[1])
    constraints = list(problem.constraints)
    layout_a, layout_b, layout_c = matrices
    factors: list[Argument] = [*problem.extents, *problem.alphas, problem.a, *layout_a.scalars, problem.b, *layout_b.scalars]
    result: list[Argument] = [*problem.betas, problem.c, *layout_c.scalars, *problem.epilogue]
    shared = max((region.offset + region.bytes for region in geometry.regions), default=0)
    tiles = f"ceil_div(m, {geometry.tile_m}) * ceil_div(n, {geometry.tile_n})"

    def main_launch(arguments: list[Argument], depth: int | str = 1, blocks: str = tiles) -> KernelLaunch:
        return KernelLaunch(
            entry=name,
            grid=(Formula(blocks), products(spec), Formula(str(depth))),
            block=(geometry.threads, 1, 1),
            arguments=tuple(argument.name for argument in arguments),
            dynamic_shared_bytes=Formula("0" if geometry.static_shared else str(shared)),
            programmatic=spec.early_launch,
        )

    # What a batch multiplies: each of its products has a part of the workspace.
    times_batch = " * batch" if spec.batch == "strided" else ""
    workspace_bytes, zero_bytes = Formula("0"), Formula("0")
    launches: tuple[KernelLaunch, ...]
    if isinstance(spec.decomposition, SplitKParallel):
        workspace_bytes = partials_bytes(spec, matrices, "slices" if at_launch else slices)
        workspace = workspace_argument("f32", workspace_bytes, FLOAT_BYTES, "the partial products of all slices, one after the other")
        reduction = reduction_launch(name, spec, problem, matrices, workspace, geometry.reduction_elements, geometry.reduction_threads)
        launches = (main_launch([*factors, workspace], "slices" if at_launch else slices), reduction)
        arguments = [*factors, *result, workspace, *((SLICES,) if at_launch else ())]
    elif isinstance(spec.decomposition, SplitKSerial):
        turns = f"4 * {tiles}{times_batch}"
        sums = f"{geometry.tile_m * geometry.tile_n * FLOAT_BYTES} * {tiles}{times_batch}"
        workspace_bytes = Formula(f"round_up({turns}, {WORKSPACE_ALIGNMENT}) + {sums}")
        zero_bytes = Formula(turns)
        workspace = workspace_argument("u8", workspace_bytes, 1, "for each tile of C whose turn it is, then the tile's sum so far")
        arguments = [*factors, *result, workspace]
        launches = (main_launch(arguments, slices),)
    elif isinstance(spec.decomposition, StreamK):
        blocks = spec.decomposition.blocks
        left = geometry.tile_m * geometry.tile_n * FLOAT_BYTES * blocks
        if times_batch:
            workspace_bytes = Formula(f"round_up({4 * blocks}{times_batch}, {WORKSPACE_ALIGNMENT}) + {left}{times_batch}")
        else:
            workspace_bytes = Formula(f"{-(-4 * blocks // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT} + {left}")
        zero_bytes = Formula(f"{4 * blocks}{times_batch}")
        workspace = workspace_argument("u8", workspace_bytes, 1, "for each block whether it left a sum, then the sums")
        arguments = [*factors, *result, workspace]
        launches = (main_launch(arguments, blocks=f"select({tiles} > 0, {blocks}, 0)"),)
        steps = f"{tiles} * max(1, ceil_div(k, {geometry.tile_k}))"
        constraints.append(
            Constraint(
                Formula(f"{steps} < {2**31 - 1024}"), f"{steps} is less than {2**31 - 1024}: an int counts the steps along k of all tiles"
            )
        )
    else:
        arguments = [*factors, *result]
        launches = (main_launch(arguments),)
    return LaunchSequence(
        name=name,
        dimensions=(*problem.dimensions, *((slices_dimension(),) if at_launch else ())),
        arguments=tuple(arguments),
        launches=launches,
        constraints=tuple(constraints),
        workspace_bytes=workspace_bytes,
        workspace_zero_bytes=zero_bytes,
    )


def flag_bytes(blocks: int, groups: int) -> int:
    """Bytes at the start of the workspace of stream-K on tensor cores: a flag for each group of threads of each block that leaves a sum."""
    return round_up(4 * blocks * groups, WORKSPACE_ALIGNMENT)


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
