"""The problems that a GEMM instance is verified on, derived from its tile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmgen.core.elements import ELEMENTS, to_numbers
from gemmgen.core.formulas import ceil_div, round_up
from gemmgen.kernels.accuracy import UNIT_ROUNDOFF, rounded, stored
from gemmgen.kernels.blas_cases import case_of, corner_cases, scalar_values
from gemmgen.kernels.epilogue.numbers import Tracked
from gemmgen.kernels.epilogue.steps import Access, apply_steps
from gemmgen.kernels.family import Case, Expected
from gemmgen.kernels.gemm.cost_model import cost
from gemmgen.kernels.gemm.gemv.loop import VectorLoop
from gemmgen.kernels.gemm.mma_sync.loop import WarpLoop
from gemmgen.kernels.gemm.plan import GemmPlan, packed
from gemmgen.kernels.gemm.simt.loop import NaiveLoop
from gemmgen.kernels.gemm.spec import SplitKLast, StreamK
from gemmgen.kernels.gemm.split_precision.numbers import planes_bound, stored_planes
from gemmgen.kernels.gemm.split_precision.planes import PlaneOperand
from gemmgen.kernels.math.tensor_accuracy import factors, product_bound
from gemmgen.kernels.math.warpgroup import WarpgroupLoop

LARGEST_INTEGER = 4
"""Entries of A and B in integer cases lie in [-4, 4], so that sums of a million products stay exact in float32."""

_DEEP_SLICES = 70
GROUPS = 5
"""Groups of rows, in most cases of grouped products."""
OFFSETS = ("empty groups", "groups of whole tiles", "rows behind the last group", "offsets that fall and lie outside")
"""Cases for the ends of groups."""
INFINITE_LINES = "lines of one infinity and zeros"
"""A case of lines that planes hold by their range of exponents, but for the infinity."""

PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 53, 67, 79, 97, 131, 163, 197, 263, 331, 397, 521, 659, 797, 1031, 1301)


def cases(plan: GemmPlan) -> list[Case]:
    """Edges of the tile in every direction, packed and padded strides, odd pointers, nothing at all, and BLAS's corners."""
    tile_m, tile_n = plan.tile_m, plan.tile_n
    loop = plan.loop
    tile_k, stages = 8, 1
    if isinstance(loop, VectorLoop):
        tile_k = loop.step * loop.unroll
    elif not isinstance(loop, NaiveLoop):
        tile_k, stages = loop.tile_k, loop.stages
    # The least k that is made of tiles: one, or as many as products by planes have.
    least_k = tile_k if plan.planes is None else round_up(plan.planes.least_depth, tile_k)
    # So many steps that every stage is filled again, in each slice; the last one ends within a tile.
    many = least_k + tile_k * (2 * stages + 2) + 1 if plan.slices == 1 else tile_k * (stages + 2) * plan.slices - tile_k // 2
    sizes: dict[str, tuple[int, int, int]] = {
        "one element": (1, 1, 1),
        "one tile": (tile_m, tile_n, least_k),
        "m one below a tile": (tile_m - 1, tile_n, least_k),
        "m one above a tile": (tile_m + 1, tile_n, least_k),
        "n one below a tile": (tile_m, tile_n - 1, least_k),
        "n one above a tile": (tile_m, tile_n + 1, least_k),
        "k one below a tile": (tile_m, tile_n, least_k - 1),
        "k one above a tile": (tile_m, tile_n, least_k + 1),
        "a row": (1, tile_n + 2, least_k + 3),
        "a column": (tile_m + 2, 1, least_k + 3),
        "k of 1": (5, 3, 1),
        "primes": (_prime(tile_m), _prime(tile_n), _prime(max(2 * tile_k, least_k))),
        "many steps": (tile_m // 2 + 1, tile_n // 2 + 1, many),
        "2 x 3 tiles": (2 * tile_m, 3 * tile_n, least_k + 2 * tile_k),
    }
    if plan.planes is not None:
        sizes["k one below two tiles"] = (tile_m // 2 + 1, tile_n // 2 + 1, least_k + tile_k - 1)
        sizes["too few steps for planes"] = (tile_m + 3, tile_n // 2 + 1, plan.planes.least_depth // 2 + 1)
    scalars = scalar_values(plan.sequence)
    integral = plan.matrix_a.type in ("s8", "u8")
    second = "extremes" if integral else "reals"
    scalars["extremes"] = scalars["reals"]
    cases = []
    seen = set()
    for name, wanted in sizes.items():
        size = promised(plan, wanted)
        if size in seen:
            continue
        seen.add(size)
        for data in ("integers", second):
            cases.append(case_of(name, packed(plan, size, batch=GROUPS if plan.grouped else 2), scalars[data], data))
    uneven = packed(plan, promised(plan, (tile_m + 3, tile_n // 2 + 1, least_k + tile_k + 1)), batch=3)
    padded = dict(uneven)
    matrices = (plan.matrix_a, plan.matrix_b, plan.matrix_c, *plan.residuals)
    for index, matrix in enumerate(matrices):
        # Each its own, so that one in place of another shows.
        padded[matrix.leading_dimension] += (3 + 2 * index) * matrix.alignment
        if matrix.batch_stride is not None:
            extent = padded[matrix.rows if matrix.row_major else matrix.columns]
            padded[matrix.batch_stride] = extent * padded[matrix.leading_dimension] + 5 * matrix.alignment
    offsets = {matrix.name: matrix.alignment for matrix in matrices}
    others = [array for array in plan.sequence.arrays if array.name not in offsets]
    offsets |= {array.name: max(1, array.alignment // ELEMENTS[array.type].bytes) for array in others if array.role != "workspace"}
    for data in ("integers", second):
        cases.append(case_of("padded leading dimensions", padded, scalars[data], data))
        cases.append(case_of("least aligned pointers", uneven, scalars[data], data, offsets=offsets))
    if not integral:
        cases.append(case_of("not-a-numbers and infinities", uneven, scalars["integers"], "nonfinite"))
    if plan.planes is not None:
        few = packed(plan, promised(plan, sizes["too few steps for planes"]), batch=3)
        cases.append(case_of("not-a-numbers and infinities in few steps", few, scalars["integers"], "nonfinite"))
    for name, empty in {"m of 0": (0, 5, 3), "n of 0": (5, 0, 3), "k of 0": (tile_m + 1, 5, 0), "all of 0": (0, 0, 0)}.items():
        cases.append(case_of(name, packed(plan, promised(plan, empty), batch=2), scalars["integers"], "integers"))
    if "slices" in uneven:
        for slices in (2, 5, 70):  # of those, slices of one step, and slices without any
            cut = {**uneven, "slices": slices}
            cases.append(case_of(f"k in {slices} slices", cut, scalars["integers"], "integers"))
        cases.append(case_of("k in 3 slices", {**uneven, "slices": 3}, scalars[second], second))
    if plan.batched:
        cases += _batch_cases(plan, uneven, scalars)
    if plan.grouped:
        cases += _group_cases(plan, scalars)
    return cases + corner_cases(uneven, scalars["integers"])


def deep_cases(plan: GemmPlan) -> list[Case]:
    """Cases of a depth that not every verification takes the time for: more steps of one tile than the blocks of stream-K, so that some
    take two of them; more slices than a block adds up at a time, none of them empty. For products by planes, lines along k that hold
    nothing but zeros and an infinity, whose exponents alone do not tell that planes cannot hold them."""
    loop, decomposition = plan.loop, plan.spec.decomposition
    scalars = scalar_values(plan.sequence)["integers"]
    found = []
    if plan.planes is not None:
        size = promised(plan, (plan.tile_m + 3, plan.tile_n // 2 + 1, plan.planes.least_depth + loop.tile_k))  # type: ignore[union-attr]
        found.append(case_of(INFINITE_LINES, packed(plan, size, batch=2), scalars, "nonfinite"))
    if isinstance(decomposition, StreamK):
        name, depth, further = "more steps than blocks", loop.tile_k * (decomposition.blocks + 5) + 1, {}  # type: ignore[union-attr]
    elif isinstance(decomposition, SplitKLast) and isinstance(loop, VectorLoop):
        name, depth, further = f"{_DEEP_SLICES} whole slices", loop.step * (_DEEP_SLICES - 1) + 1, {"slices": _DEEP_SLICES}
    else:
        return found
    size = promised(plan, (plan.tile_m // 2 + 1, plan.tile_n // 2 + 1, depth))
    return [*found, case_of(name, packed(plan, size) | further, scalars, "integers")]


def cases_of_several_tiles(plan: GemmPlan) -> list[Case]:
    """Cases for a block that takes several tiles: each ends with the last stage, or is over sooner than the next is handed out."""
    loop = plan.loop
    if not isinstance(loop, WarpLoop | WarpgroupLoop):
        return []
    least_k = loop.tile_k if plan.planes is None else plan.planes.least_depth
    sizes = {"tiles of as many steps as stages": (2, 3, round_up(least_k, loop.tile_k * loop.stages))}
    if isinstance(loop, WarpLoop) and loop.vectors is not None:
        # More rows of tiles than the warps of few blocks have, each of which goes on with the same columns, or with others.
        sizes = {"many rows of a tile": (5 * loop.own_tiles, 1, least_k), "many tiles of a row": (3, 2 * loop.own_tiles + 1, least_k)}
    if loop.dynamic:
        sizes["many tiles of one step"] = (4, 6, loop.tile_k)
    batch = GROUPS if plan.grouped else 1
    scalars = scalar_values(plan.sequence)["integers"]
    found = []
    for name, (tiles_m, tiles_n, k) in sizes.items():
        size = promised(plan, (tiles_m * plan.tile_m, tiles_n * plan.tile_n, k))
        found.append(case_of(name, packed(plan, size, batch=batch), scalars, "integers"))
    return found


def _group_cases(plan: GemmPlan, scalars: dict[str, dict[str, float]]) -> list[Case]:
    """Groups without rows, of whole tiles, with rows behind them, with offsets that fall; one B for all; one group, and none."""
    size = promised(plan, (3 * plan.tile_m + 5, plan.tile_n + 1, 2 * plan.loop.tile_k))  # type: ignore[union-attr]
    problem = packed(plan, size, batch=GROUPS)
    cases = [case_of(name, problem, scalars["integers"], "integers") for name in OFFSETS]
    cases.append(case_of("one B for all groups", problem | {"stride_b": 0}, scalars["integers"], "integers"))
    cases += [case_of(f"{count} groups", problem | {"groups": count}, scalars["integers"], "integers") for count in (0, 1, 40)]
    return cases


def _offsets(plan: GemmPlan, case: Case, groups: int, rng: np.random.Generator) -> npt.NDArray[Any]:
    """The ends of groups, as the case's name wants them; else anywhere, so that some are empty, and all rows belong to one."""
    m = case.dimensions["m"]
    if case.name == "offsets that fall and lie outside":
        return rng.integers(-5, 2 * m + 5, groups)
    cuts = np.sort(rng.integers(0, m + 1, groups))
    if case.name == "empty groups":
        cuts = np.sort(rng.choice([0, m // 2, m], groups))
    if case.name == "groups of whole tiles":
        cuts = np.minimum((cuts + plan.tile_m - 1) // plan.tile_m * plan.tile_m, m)
    if groups:
        cuts[-1] = 2 * m // 3 if case.name == "rows behind the last group" else m
    return np.minimum(cuts, cuts[-1:]) if groups else cuts


def group_rows(offsets: npt.NDArray[Any], m: int) -> list[slice]:
    """The rows of each group; offsets that fall or lie outside are moved to the nearest that makes sense."""
    ends = np.minimum(np.maximum.accumulate(np.maximum(offsets.astype(np.int64), 0)), m)
    return [slice(int(start), int(end)) for start, end in zip(np.concatenate(([0], ends)), ends, strict=False)]


def _batch_cases(plan: GemmPlan, uneven: dict[str, int], scalars: dict[str, dict[str, float]]) -> list[Case]:
    """Operands that the whole batch shares, matrices that lie among each other, and batches of one and of none."""
    problems = {
        "one A for the whole batch": {"stride_a": 0},
        "one B for the whole batch": {"stride_b": 0},
        "one A and one B for the whole batch": {"stride_a": 0, "stride_b": 0},
        "batch of 1": {"batch": 1, "stride_a": 0, "stride_b": 0, "stride_c": 0},
        "batch of 0": {"batch": 0},
    }
    cases = [case_of(name, uneven | changes, scalars["integers"], "integers") for name, changes in problems.items()]
    among = dict(uneven)
    for matrix in plan.batched:
        among[str(matrix.batch_stride)] = uneven[matrix.leading_dimension]
        among[matrix.leading_dimension] *= uneven["batch"]
    return [*cases, case_of("rows of all products in turn", among, scalars["integers"], "integers")]


def promised(plan: GemmPlan, size: tuple[int, int, int]) -> tuple[int, int, int]:
    """The next larger size that keeps the spec's promises about multiples, no deeper than the instance may be; 0 stays 0."""
    multiples = plan.spec.multiple_of
    m, n, k = (round_up(extent, multiple) for extent, multiple in zip(size, (multiples.m, multiples.n, multiples.k), strict=True))
    if isinstance(plan.loop, WarpLoop) and plan.loop.vectors is not None:
        k = min(k, plan.loop.tile_k // multiples.k * multiples.k)
    return m, n, k


def _prime(near: int) -> int:
    return min(PRIMES, key=lambda prime: abs(prime - 1.3 * near))


def fill(plan: GemmPlan, case: Case, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
    """Values of an array before the launch; NaN in what BLAS does not read."""
    if plan.planes is not None and plan.planes.kept_operand is not None and name == plan.planes.kept_operand.kept_name:
        return _kept_planes(plan, plan.planes.kept_operand, case)
    unread = (name in "AB" and case.scalars.get("alpha", 1.0) == 0) or (name == "C" and case.scalars.get("beta", 0.0) == 0)
    kind = plan.sequence_type(name)
    if name == "offsets":
        return _offsets(plan, case, shape[0], rng)
    if name == "amax":
        return rng.choice([0.0, 0.0, 1e6], shape)
    if unread:
        return np.full(shape, np.nan if ELEMENTS[kind].is_float else ELEMENTS[kind].limits[1])
    if case.data == "extremes" and kind in ("s8", "u8"):
        least, most = ELEMENTS[kind].limits
        return rng.integers(int(least), int(most) + 1, shape)
    if case.data in ("reals", "extremes"):
        # Sums around 1 where an operation bends there and is flat further out, or where C would overflow.
        narrow = plan.approximate or plan.matrix_c.type in ("f16", "s8", "e4m3", "e5m2")
        low, high = (-2.0, 0.3) if narrow else (-3.0, 3.0)
        return rng.choice([-1.0, 1.0], shape) * 10.0 ** rng.uniform(low, high, shape)
    values = rng.integers(0 if kind == "u8" else -LARGEST_INTEGER, LARGEST_INTEGER + 1, shape).astype(np.float64)
    if case.data == "nonfinite":
        # 8-bit floats stop at their largest number, beside which small ones are lost.
        special = rng.choice([np.nan] if kind in ("e4m3", "e5m2") else [np.nan, np.inf, -np.inf], shape)
        special_at = rng.random(shape) < 0.02
        if plan.planes is not None and name in "AB":
            _leave_few_lines(
                values if name == "A" else values.swapaxes(-1, -2),
                special_at if name == "A" else special_at.swapaxes(-1, -2),
                64 if name == "A" else 0,
            )
            if case.name == INFINITE_LINES:
                line, at = (np.s_[..., -3, :], np.s_[..., -3, 5]) if name == "A" else (np.s_[..., :, -3], np.s_[..., 5, -3])
                values[line], special_at[line], values[at] = 0.0, False, np.inf
        values = np.where(special_at, special, values)
    return values


def _leave_few_lines(values: npt.NDArray[Any], special_at: npt.NDArray[np.bool_], crowded: int) -> None:
    """Special values in the first ``crowded`` lines along k and in the last; in the line before that, numbers too far apart for planes,
    whose sums are exact. The repair of planes computes crowded tiles whole, and few lines one by one."""
    special_at[..., crowded:, :] = False
    special_at[..., -1:, values.shape[-1] // 2] = True
    values[..., -2:-1, :] = 0.0
    special_at[..., -2:-1, :] = False
    values[..., -2:-1, :1] = 2.0**40
    values[..., -2:-1, 1:2] = 2.0**-40


def _kept_planes(plan: GemmPlan, operand: PlaneOperand, case: Case) -> npt.NDArray[np.uint8]:
    """The planes of an operand, made of the values that ``fill`` gives it."""
    passed = [array for array in plan.sequence.arrays if array.role != "workspace"]
    index = [array.name for array in passed].index(operand.name)
    shape = tuple(extent.evaluate(case.dimensions) for extent in passed[index].shape)
    values = fill(plan, case, operand.name, shape, case.generator(index)).astype(np.float32)
    return stored_planes(operand, values if operand.name == "A" else values.T)


def reference(plan: GemmPlan, case: Case, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Expected]:
    """Expected contents of C, with the forward error bound of its sums; rows of no group stay as they are."""
    if not plan.grouped:
        expected, largest = _reference(plan, case, arrays)
        return {"C": expected} | _largest(arrays, [largest])
    largests = []
    before = to_numbers(plan.matrix_c.type, arrays["C"])
    value = before.astype(np.int64 if plan.matrix_c.type == "s32" else np.float64)
    bound = np.zeros(value.shape)
    for index, rows in enumerate(group_rows(arrays["offsets"], case.dimensions["m"])):
        own = dict(arrays) | {"A": arrays["A"][rows], "B": arrays["B"][index]}
        own |= {matrix.name: arrays[matrix.name][rows] for matrix in (plan.matrix_c, *plan.residuals)}
        for access in (access for step in plan.epilogue for access in step.accesses):
            if access.operand.per in ("row", "column"):
                own[access.name] = arrays[access.name][rows if access.operand.per == "row" else index]
        expected, largest = _reference(plan, case, own)
        largests.append(largest)
        value[rows], bound[rows] = expected.value, 0.0 if expected.bound is None else expected.bound
    return {"C": Expected(value, bound)} | _largest(arrays, largests)


def _largest(arrays: Mapping[str, npt.NDArray[Any]], found: list[Tracked]) -> dict[str, Expected]:
    """The largest absolute value of all results, where it is an output."""
    if "amax" not in arrays:
        return {}
    value = np.concatenate([np.abs(results.value).ravel() for results in found] + [arrays["amax"].astype(np.float64)])
    bound = np.concatenate([results.bound.ravel() for results in found] + [np.zeros(1)])
    largest = np.nan if np.isnan(value).any() else value.max()
    if not np.isfinite(largest):
        return {"amax": Expected(np.array([largest]))}
    # A result that errs by its bound may be the largest where another is expected to be.
    high, low = (value + bound).max(), (value - bound).max()
    return {"amax": Expected(np.array([largest]), np.array([max(high - largest, largest - low)]))}


def _reference(plan: GemmPlan, case: Case, arrays: Mapping[str, npt.NDArray[Any]]) -> tuple[Expected, Tracked]:
    """The expected result of one product, or of a batch of them, and what the largest absolute value is of."""
    k = case.dimensions["k"]
    alpha, beta = (float(np.float32(case.scalars.get(name, default))) for name, default in (("alpha", 1.0), ("beta", 0.0)))
    shape = arrays["C"].shape
    value, bound = np.zeros(shape), np.zeros(shape)
    arrays = {array.name: to_numbers(array.type, arrays[array.name]) for array in plan.sequence.arrays if array.name in arrays}
    with np.errstate(invalid="ignore", over="ignore"):
        if alpha != 0:
            a, b = factors(plan.matrix_a.type, arrays["A"]), factors(plan.matrix_b.type, arrays["B"])
            product = a @ b
            if plan.planes is not None:
                if case.data == "reals":
                    bound = planes_bound(plan.planes, a, b)
            elif isinstance(plan.loop, WarpgroupLoop | WarpLoop):
                if case.data == "reals":
                    slices = max(case.dimensions.get("slices", plan.slices), plan.loop.cluster_k)
                    bound = product_bound(plan.loop, slices, a, b, _joined_sums(plan, k))
            elif case.data == "reals":
                # Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1: each of the k terms
                # takes part in at most k roundings, whatever the order of the sum; fma rounds once a term.
                gamma = k * UNIT_ROUNDOFF / (1 - k * UNIT_ROUNDOFF)
                bound = gamma * (np.abs(a) @ np.abs(b))
            exact = plan.matrix_c.type == "s32"
            value, bound = (product, bound) if exact else rounded(alpha * product, abs(alpha) * bound)
        if beta != 0:
            scaled, scaled_bound = rounded(beta * arrays["C"].astype(np.float64), np.zeros(shape))
            value, bound = rounded(value + scaled, bound + scaled_bound)
        given = {name: float(np.float32(scalar)) for name, scalar in case.scalars.items()} | dict(arrays)

        def read(access: Access) -> npt.NDArray[Any]:
            array = np.asarray(given[access.name], np.float64)
            return array[:, None] if access.operand.per == "row" else array

        inner = apply_steps(plan.inner_epilogue, Tracked(value, bound, "f32"), read)
        finished = apply_steps(plan.epilogue[len(plan.inner_epilogue) :], inner, read)
    return Expected(*stored(plan.matrix_c.type, finished.value, finished.bound)), inner


def _joined_sums(plan: GemmPlan, k: int) -> int:
    """Most blocks whose sums make up a tile where steps along k are distributed among blocks: all of them, or as many as it has steps."""
    division = plan.spec.decomposition
    assert isinstance(plan.loop, WarpgroupLoop | WarpLoop)
    return min(division.blocks, ceil_div(k, plan.loop.tile_k)) if isinstance(division, StreamK) else 0


def counted_case(plan: GemmPlan) -> Case:
    """The case with most operations: its traffic and instructions stand for the instance."""
    return max(cases(plan), key=lambda case: cost(plan, case.dimensions).weight)
