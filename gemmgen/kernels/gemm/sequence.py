"""The launch sequence of a GEMM: what a host passes to its kernels, and in which grids they run."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.core.formulas import Formula
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
WORKSPACE_ALIGNMENT = 256
"""Bytes that the workspace, and what follows the flags in it, are multiples of."""


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


def gemm_sequence(
    name: str,
    spec: GemmSpec,
    matrices: tuple[Matrix, Matrix, Matrix],
    geometry: Geometry,
    epilogue: tuple[Step, ...],
) -> LaunchSequence:
    """Dimensions, arguments, constraints, workspace and launches of the instance ``name``."""
    slices = getattr(spec.decomposition, "slices", 1)
    extents = {"m": "rows of A and C", "n": "columns of B and C", "k": "columns of A and rows of B"}
    parts_of_k = slices * getattr(spec.mainloop, "k_groups", 1)
    largest = {"k": MAXIMUM_EXTENT - parts_of_k * geometry.tile_k}
    dimensions = [Dimension(dim, meaning, maximum=largest.get(dim, MAXIMUM_EXTENT)) for dim, meaning in extents.items()]
    constraints: list[Constraint] = []
    for dim in extents:
        multiple = getattr(spec.multiple_of, dim)
        if multiple > 1:
            text = f"{dim} is a multiple of {multiple}, as the spec's multiple_of.{dim} promises"
            constraints.append(Constraint(Formula(f"{dim} % {multiple} == 0"), text))
    if spec.batch == "strided":
        meaning = "problems in the batch; they run along y of the grid, which has no more room"
        dimensions.append(Dimension("batch", meaning, maximum=GRID_LIMITS[1], default=Formula("1")))
    for matrix in matrices:
        dimensions += matrix.dimensions
        constraints += matrix.constraints
    m, n, k = (ScalarArgument(name, "s32", meaning) for name, meaning in extents.items())
    for step in epilogue:
        dimensions += step.dimensions
        constraints += step.constraints
    layout_a, layout_b, layout_c = matrices
    reads_c = spec.beta == "argument"
    a, b = layout_a.argument("input"), layout_b.argument("input")
    c = layout_c.argument("inout", needed="beta") if reads_c else layout_c.argument("output")
    alpha = ScalarArgument("alpha", "f32", "factor of A B; with 0, A and B are not read", default=1.0)
    beta = ScalarArgument("beta", "f32", "factor of C; with 0, C is not read", default=0.0)
    alphas = [alpha] if spec.alpha == "argument" else []
    betas = [beta] if reads_c else []
    factors: list[Argument] = [m, n, k, *alphas, a, *layout_a.scalars, b, *layout_b.scalars]
    result: list[Argument] = [*betas, c, *layout_c.scalars, *(parameter for step in epilogue for parameter in step.parameters)]
    shared = max((region.offset + region.bytes for region in geometry.regions), default=0)
    tiles = f"ceil_div(m, {geometry.tile_m}) * ceil_div(n, {geometry.tile_n})"

    products = Formula("batch" if spec.batch == "strided" else "1")

    def main_launch(arguments: list[Argument], depth: int = 1, blocks: str = tiles) -> KernelLaunch:
        return KernelLaunch(
            entry=name,
            grid=(Formula(blocks), products, Formula(str(depth))),
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
        major, minor = ("m", "n") if matrices[2].row_major else ("n", "m")
        pitch = f"round_up({minor}, 4)"
        workspace_bytes = Formula(f"{slices * FLOAT_BYTES} * {major} * {pitch}{times_batch}")
        workspace = _workspace("f32", workspace_bytes, FLOAT_BYTES, "the partial products of all slices, one after the other")
        reduction = KernelLaunch(
            entry=f"{name}_reduce",
            grid=(Formula(f"ceil_div({major} * {pitch}, {geometry.reduction_elements})"), products, Formula("1")),
            block=(geometry.reduction_threads, 1, 1),
            arguments=tuple(argument.name for argument in [m, n, *alphas, *result, workspace]),
            programmatic=spec.early_launch,
        )
        launches = (main_launch([*factors, workspace], slices), reduction)
        arguments = [*factors, *result, workspace]
    elif isinstance(spec.decomposition, SplitKSerial):
        turns = f"4 * {tiles}{times_batch}"
        sums = f"{geometry.tile_m * geometry.tile_n * FLOAT_BYTES} * {tiles}{times_batch}"
        workspace_bytes = Formula(f"round_up({turns}, {WORKSPACE_ALIGNMENT}) + {sums}")
        zero_bytes = Formula(turns)
        workspace = _workspace("u8", workspace_bytes, 1, "for each tile of C whose turn it is, then the tile's sum so far")
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
        workspace = _workspace("u8", workspace_bytes, 1, "for each block whether it left a sum, then the sums")
        arguments = [*factors, *result, workspace]
        launches = (main_launch(arguments, blocks=f"select({tiles} > 0, {blocks}, 0)"),)
        steps = f"{tiles} * max(1, ceil_div(k, {geometry.tile_k}))"
        constraints.append(Constraint(Formula(f"{steps} < {2**31 - 1024}"), "the steps along k of all tiles fit into an int"))
    else:
        arguments = [*factors, *result]
        launches = (main_launch(arguments),)
    return LaunchSequence(
        name=name,
        dimensions=tuple(dimensions),
        arguments=tuple(arguments),
        launches=launches,
        constraints=tuple(constraints),
        workspace_bytes=workspace_bytes,
        workspace_zero_bytes=zero_bytes,
    )


def _workspace(element: str, size: Formula, width: int, meaning: str) -> ArrayArgument:
    return ArrayArgument(
        name="workspace",
        type="u8" if element == "u8" else "f32",
        role="workspace",
        shape=(Formula(f"({size}) // {width}"),),
        strides=(Formula("1"),),
        alignment=WORKSPACE_ALIGNMENT,
        meaning=meaning,
    )
