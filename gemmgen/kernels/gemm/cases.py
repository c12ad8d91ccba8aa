"""The problems that a GEMM instance is verified on, derived from its tile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gemmgen.core.formulas import round_up
from gemmgen.kernels.family import Case
from gemmgen.kernels.gemm.loop import TiledLoop
from gemmgen.kernels.gemm.plan import GemmPlan

PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 53, 67, 79, 97, 131, 163, 197, 263, 331, 397, 521, 659, 797, 1031, 1301)


def packed(plan: GemmPlan, sizes: Sequence[int], batch: int = 1) -> dict[str, int]:
    """All dimensions of a problem of m, n, k without gaps between rows, columns or matrices."""
    problem = dict(zip(("m", "n", "k"), sizes, strict=True))
    for dimension in plan.sequence.dimensions:
        if dimension.name == "batch":
            problem["batch"] = batch
        elif dimension.default is not None:
            problem[dimension.name] = dimension.default.evaluate(problem)
    return problem


def gemm_cases(plan: GemmPlan) -> list[Case]:
    """Edges of the tile in every direction, packed and padded strides, odd pointers, nothing at all, and BLAS's corners."""
    tile_m, tile_n = plan.tile_m, plan.tile_n
    loop = plan.loop
    tile_k, stages = (loop.tile_k, loop.stages) if isinstance(loop, TiledLoop) else (8, 1)
    sizes: dict[str, tuple[int, int, int]] = {
        "one element": (1, 1, 1),
        "one tile": (tile_m, tile_n, tile_k),
        "m one below a tile": (tile_m - 1, tile_n, tile_k),
        "m one above a tile": (tile_m + 1, tile_n, tile_k),
        "n one below a tile": (tile_m, tile_n - 1, tile_k),
        "n one above a tile": (tile_m, tile_n + 1, tile_k),
        "k one below a tile": (tile_m, tile_n, tile_k - 1),
        "k one above a tile": (tile_m, tile_n, tile_k + 1),
        "a row": (1, tile_n + 2, tile_k + 3),
        "a column": (tile_m + 2, 1, tile_k + 3),
        "k of 1": (5, 3, 1),
        "primes": (_prime(tile_m), _prime(tile_n), _prime(2 * tile_k)),
        "many steps": (tile_m // 2 + 1, tile_n // 2 + 1, tile_k * (2 * stages + 3) + 1),
        "2 x 3 tiles": (2 * tile_m, 3 * tile_n, 3 * tile_k),
    }
    scalars = _scalars(plan)
    cases = []
    seen = set()
    for name, wanted in sizes.items():
        size = _promised(plan, wanted)
        if size in seen:
            continue
        seen.add(size)
        for data in ("integers", "reals"):
            cases.append(_case(plan, name, packed(plan, size, batch=2), scalars[data], data))
    uneven = packed(plan, _promised(plan, (tile_m + 3, tile_n // 2 + 1, 2 * tile_k + 1)), batch=3)
    padded = dict(uneven)
    matrices = (plan.matrix_a, plan.matrix_b, plan.matrix_c, *plan.residuals)
    for index, matrix in enumerate(matrices):
        # Each its own, so that one in place of another shows.
        padded[matrix.leading_dimension] += (3 + 2 * index) * matrix.alignment
        if matrix.batch_stride is not None:
            extent = padded[matrix.rows if matrix.row_major else matrix.columns]
            padded[matrix.batch_stride] = extent * padded[matrix.leading_dimension] + 5 * matrix.alignment
    offsets = {matrix.name: matrix.alignment for matrix in matrices}
    offsets |= {array.name: 1 for array in plan.sequence.arrays if array.name not in offsets}
    for data in ("integers", "reals"):
        cases.append(_case(plan, "padded leading dimensions", padded, scalars[data], data))
        cases.append(_case(plan, "least aligned pointers", uneven, scalars[data], data, offsets=offsets))
    cases.append(_case(plan, "not-a-numbers and infinities", uneven, scalars["integers"], "nonfinite"))
    for name, empty in {"m of 0": (0, 5, 3), "n of 0": (5, 0, 3), "k of 0": (tile_m + 1, 5, 0), "all of 0": (0, 0, 0)}.items():
        cases.append(_case(plan, name, packed(plan, _promised(plan, empty), batch=2), scalars["integers"], "integers"))
    if plan.batched:
        cases += _batch_cases(plan, uneven, scalars)
    corners: list[dict[str, float]] = []
    if "alpha" in scalars["integers"]:
        corners.append({"alpha": 0.0})
    if "beta" in scalars["integers"]:
        corners.append({"beta": 0.0})
    if len(corners) == 2:
        corners += [{"alpha": 0.0, "beta": 0.0}, {"alpha": 1.0, "beta": 1.0}]
    for corner in corners:
        name = " and ".join(f"{scalar} of {value:g}" for scalar, value in corner.items())
        cases.append(_case(plan, name, uneven, {**scalars["integers"], **corner}, "integers"))
    return cases


def _batch_cases(plan: GemmPlan, uneven: dict[str, int], scalars: dict[str, dict[str, float]]) -> list[Case]:
    """Operands that the whole batch shares, matrices that lie among each other, and batches of one and of none."""
    problems = {
        "one A for the whole batch": {"stride_a": 0},
        "one B for the whole batch": {"stride_b": 0},
        "one A and one B for the whole batch": {"stride_a": 0, "stride_b": 0},
        "batch of 1": {"batch": 1, "stride_a": 0, "stride_b": 0, "stride_c": 0},
        "batch of 0": {"batch": 0},
    }
    cases = [_case(plan, name, uneven | changes, scalars["integers"], "integers") for name, changes in problems.items()]
    among = dict(uneven)
    for matrix in plan.batched:
        among[str(matrix.batch_stride)] = uneven[matrix.leading_dimension]
        among[matrix.leading_dimension] *= uneven["batch"]
    return [*cases, _case(plan, "rows of all products in turn", among, scalars["integers"], "integers")]


def _promised(plan: GemmPlan, size: tuple[int, int, int]) -> tuple[int, int, int]:
    """The next larger size that keeps the spec's promises about multiples; 0 stays 0."""
    multiples = plan.spec.multiple_of
    m, n, k = (round_up(extent, multiple) for extent, multiple in zip(size, (multiples.m, multiples.n, multiples.k), strict=True))
    return m, n, k


def _case(plan: GemmPlan, name: str, dimensions: dict[str, int], scalars: dict[str, float], data: Any, **more: Any) -> Case:
    return Case(name, dimensions, scalars, data, seed=sum(dimensions.values()), **more)


def _scalars(plan: GemmPlan) -> dict[str, dict[str, float]]:
    """Values for alpha, beta and scalar biases, for integer and for real data."""
    found: dict[str, dict[str, float]] = {"integers": {}, "reals": {}}
    for scalar in plan.sequence.scalars:
        whole, real = {"alpha": (3.0, 1.25), "beta": (-2.0, -0.7)}.get(scalar.name, (-5.0, 0.3))
        found["integers"][scalar.name], found["reals"][scalar.name] = whole, real
    return found


def _prime(near: int) -> int:
    return min(PRIMES, key=lambda prime: abs(prime - 1.3 * near))
