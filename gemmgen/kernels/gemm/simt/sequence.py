"""The launch sequence of a GEMM by tiles in shared memory: a grid of tiles, and the workspaces of every division of k."""

from __future__ import annotations

from gemmgen.core.formulas import Formula
from gemmgen.kernels.epilogue.steps import Step
from gemmgen.kernels.gemm.grouping import place_arguments
from gemmgen.kernels.gemm.matrices import FLOAT_BYTES
from gemmgen.kernels.gemm.sequence import (
    MAX_EXTENT,
    MAX_SLICES,
    SLICES,
    WORKSPACE_ALIGNMENT,
    gemm_problem,
    partials_bytes,
    products,
    reduction_launch,
    slices_dimension,
    workspace_argument,
)
from gemmgen.kernels.gemm.spec import GemmSpec, SplitKParallel, SplitKSerial, StreamK, Tile
from gemmgen.kernels.launch import GRID_LIMITS, Argument, Constraint, KernelLaunch, LaunchSequence
from gemmgen.kernels.matrix import Matrix


def simt_sequence(
    name: str,
    spec: GemmSpec,
    matrices: tuple[Matrix, Matrix, Matrix],
    tile: Tile,
    threads: int,
    dynamic_shared_bytes: int,
    epilogue: tuple[Step, ...],
) -> LaunchSequence:
    """Dimensions, arguments, constraints, workspace and launches of the instance ``name``."""
    block = tile.threadblock
    slices = getattr(spec.decomposition, "slices", 1)
    at_launch = slices == "launch"
    parts_of_k = (MAX_SLICES if at_launch else slices) * getattr(spec.mainloop, "k_groups", 1)
    problem = gemm_problem(spec, matrices, epilogue, MAX_EXTENT - parts_of_k * block.k, GRID_LIMITS[1])
    constraints = list(problem.constraints)
    layout_a, layout_b, layout_c = matrices
    places = place_arguments() if spec.grouping.places == "addresses" else ()
    factors: list[Argument] = [*problem.extents, *places, *problem.alphas, problem.a, *layout_a.scalars, problem.b, *layout_b.scalars]
    result: list[Argument] = [*problem.betas, problem.c, *layout_c.scalars, *problem.epilogue]
    tiles = f"ceil_div(m, {block.m}) * ceil_div(n, {block.n})"

    def main_launch(arguments: list[Argument], depth: int | str = 1, blocks: str = tiles) -> KernelLaunch:
        return KernelLaunch(
            entry=name,
            grid=(Formula(blocks), products(spec), Formula(str(depth))),
            block=(threads, 1, 1),
            arguments=tuple(argument.name for argument in arguments),
            dynamic_shared_bytes=Formula(str(dynamic_shared_bytes)),
            programmatic=spec.early_launch,
        )

    # A batch multiplies the workspace: each of its products has a part.
    times_batch = " * batch" if spec.batch == "strided" else ""
    workspace_bytes, zero_bytes = Formula("0"), Formula("0")
    launches: tuple[KernelLaunch, ...]
    if isinstance(spec.decomposition, SplitKParallel):
        workspace_bytes = partials_bytes(spec, matrices, "slices" if at_launch else slices)
        workspace = workspace_argument("f32", workspace_bytes, FLOAT_BYTES, "the partial products of all slices, one after the other")
        reduction = reduction_launch(name, spec, problem, matrices, workspace)
        launches = (main_launch([*factors, workspace], "slices" if at_launch else slices), reduction)
        arguments = [*factors, *result, workspace, *((SLICES,) if at_launch else ())]
    elif isinstance(spec.decomposition, SplitKSerial):
        turns = f"4 * {tiles}{times_batch}"
        sums = f"{block.m * block.n * FLOAT_BYTES} * {tiles}{times_batch}"
        workspace_bytes = Formula(f"round_up({turns}, {WORKSPACE_ALIGNMENT}) + {sums}")
        zero_bytes = Formula(turns)
        workspace = workspace_argument("u8", workspace_bytes, 1, "for each tile of C whose turn it is, then the tile's sum so far")
        arguments = [*factors, *result, workspace]
        launches = (main_launch(arguments, slices),)
    elif isinstance(spec.decomposition, StreamK):
        blocks = spec.decomposition.blocks
        left = block.m * block.n * FLOAT_BYTES * blocks
        if times_batch:
            workspace_bytes = Formula(f"round_up({4 * blocks}{times_batch}, {WORKSPACE_ALIGNMENT}) + {left}{times_batch}")
        else:
            workspace_bytes = Formula(f"{-(-4 * blocks // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT} + {left}")
        zero_bytes = Formula(f"{4 * blocks}{times_batch}")
        workspace = workspace_argument("u8", workspace_bytes, 1, "for each block whether it left a sum, then the sums")
        arguments = [*factors, *result, workspace]
        launches = (main_launch(arguments, blocks=f"select({tiles} > 0, {blocks}, 0)"),)
        steps = f"{tiles} * max(1, ceil_div(k, {block.k}))"
        constraints.append(
            Constraint(
                Formula(f"{steps} < {2**31 - 1024}"),
                f"{steps} must be less than {2**31 - 1024}; an int counts the steps along k of all tiles",
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
