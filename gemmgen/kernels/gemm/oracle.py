"""The problems that a GEMM instance is verified on, derived from its tile."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import lcm
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmgen.core.elements import ELEMENTS, to_numbers
from gemmgen.core.formulas import Formula, ceil_div, round_up
from gemmgen.kernels.accuracy import rounded, stored
from gemmgen.kernels.blas_cases import case_of, corner_cases, scalar_values
from gemmgen.kernels.epilogue.numbers import Tracked, extremum, spread, stored_value, summed
from gemmgen.kernels.epilogue.steps import Access, Store, apply_steps
from gemmgen.kernels.family import Case, Expected
from gemmgen.kernels.gemm.cost_model import cost
from gemmgen.kernels.gemm.grouping import ENDS, SIZES, depths, gathered_rows, group_rows, within_depths
from gemmgen.kernels.gemm.plan import GemmPlan, packed
from gemmgen.kernels.gemm.scaling import ScaleArray, as_tiles
from gemmgen.kernels.gemm.sparsity import random_metadata
from gemmgen.kernels.gemm.spec import SplitKCluster, StreamK
from gemmgen.kernels.matrix import Matrix

MAX_INTEGER = 4
"""Entries of A and B in integer cases lie in [-4, 4], so that sums of a million products stay exact in float32."""

_DEEP_SLICES = 70
_STAGES_OF_USUAL_CASES = 3
"""Kernels with more stages copy the few tiles of the case of padded leading dimensions ahead of their loop."""
_WIDEST_BAND = 16
"""In tiles; a problem with a wider band than this takes too long."""
_CROWD = 64
"""Lines that are no fewer than those of a tile which the repair of planes computes whole."""
GROUPS = 5
"""Groups of rows, in most cases of grouped products."""
OUTSIDE = "offsets that fall and lie outside"
OUTSIDE_SIZES = "sizes and addresses that lie outside"
OFFSETS = ("empty groups", "groups of whole tiles", "rows behind the last group", OUTSIDE)
"""Cases for the ends of groups."""
INFINITE_LINES = "lines of one infinity and zeros"
"""A case of lines that planes hold by their range of exponents, but for the infinity."""
FEW_LINES = "few lines of one infinity"
"""A case of lines that planes cannot hold among others that they can."""
_FEW = 37
"""One line in so many: no multiple of the rows and columns of an instruction."""
TINY_LINES = "every second line one number too small for planes"
"""A case of lines that planes cannot hold for one number, which another part of the block has read than the zeros around it."""
ONLY_BIAS = "a bias that the last column's products outweigh"
"""A case for the largest result, which an activation makes smaller than the bias alone: columns beyond the last one must not count."""
UNEQUAL_LINES = "crowds of lines too wide for planes, each of another size"
"""A case of whole tiles that the repair of planes computes: the rounding error that it keeps of one sum is far larger than another sum."""

PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 53, 67, 79, 97, 131, 163, 197, 263, 331, 397, 521, 659, 797, 1031, 1301)


def cases(plan: GemmPlan, only: Collection[str] = ()) -> list[Case]:
    """Edges of the tile in every direction, packed and padded strides, odd pointers, nothing at all, and BLAS's corners. ``only``: names of
    packed problems that are wanted, beside those with padded strides, and no others."""
    tile_m, tile_n = plan.tile_m, plan.tile_n
    tile_k, stages = plan.step_k, plan.stages
    # The least k that is made of tiles: one, or as many as products by planes have.
    least_k = round_up(plan.least_depth, tile_k) if plan.least_depth else tile_k
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
    if plan.least_depth:
        sizes["k one below two tiles"] = (tile_m // 2 + 1, tile_n // 2 + 1, least_k + tile_k - 1)
        sizes["too few steps for planes"] = (tile_m + 3, tile_n // 2 + 1, plan.least_depth // 2 + 1)
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
        for data in ("integers", second) if not only or name in only else ():
            cases.append(case_of(name, packed(plan, size, batch=GROUPS if plan.grouped else 2), scalars[data], data))
    uneven = packed(plan, promised(plan, (tile_m + 3, tile_n // 2 + 1, least_k + tile_k + 1)), batch=3)
    padded = padded_problem(plan, uneven)
    matrices = _matrices(plan)
    offsets = {matrix.name: matrix.alignment for matrix in matrices}
    others = [array for array in plan.sequence.arrays if array.name not in offsets]
    offsets |= {array.name: max(1, array.alignment // ELEMENTS[array.type].bytes) for array in others if array.role != "workspace"}
    for data in ("integers", second):
        cases.append(case_of("padded leading dimensions", padded, scalars[data], data))
        cases.append(case_of("least aligned pointers", uneven, scalars[data], data, offsets=offsets))
    if only:
        return cases
    if not integral or plan.factor_scales:
        cases.append(case_of("not-a-numbers and infinities", uneven, scalars["integers"], "nonfinite"))
    if plan.least_depth:
        few = packed(plan, promised(plan, sizes["too few steps for planes"]), batch=3)
        cases.append(case_of("not-a-numbers and infinities in few steps", few, scalars["integers"], "nonfinite"))
    for name, empty in {"m of 0": (0, 5, 3), "n of 0": (5, 0, 3), "k of 0": (tile_m + 1, 5, 0), "all of 0": (0, 0, 0)}.items():
        cases.append(case_of(name, packed(plan, promised(plan, empty), batch=2), scalars["integers"], "integers"))
    if "slices" in uneven:
        for slices in (2, 5, 70):  # of those, slices of one step, and slices without any
            cases.append(case_of(f"k in {slices} slices", _cut(plan, uneven, slices), scalars["integers"], "integers"))
        cases.append(case_of("k in 3 slices", _cut(plan, uneven, 3), scalars[second], second))
    if plan.lie_anywhere:
        sized = packed(plan, promised(plan, (tile_m + 3, 2 * tile_n + 1, tile_k + 1)), batch=7)
        cases += [case_of(name, padded_problem(plan, sized), scalars["integers"], "integers") for name in ("sizes", OUTSIDE_SIZES)]
        cases += [case_of(f"batch of {n}", packed(plan, (3, 4, 5), batch=n), scalars["integers"], "integers") for n in (0, 1)]
    elif plan.batched:
        cases += _batch_cases(plan, uneven, scalars)
    if plan.grouped:
        cases += _group_cases(plan, scalars)
    if plan.depths_differ:
        deep = packed(plan, promised(plan, (tile_m + 3, tile_n + 1, 5 * tile_k + 7)), batch=GROUPS)
        cases += [case_of(name, deep, scalars["integers"], "integers") for name in OFFSETS]
    return cases + corner_cases(uneven, scalars["integers"])


def deep_cases(plan: GemmPlan) -> list[Case]:
    """Cases of a size that not every verification takes the time for: more tiles than a band is wide; gaps between lines that copies
    within the loop have to step over, with every stage filled again in each block of a cluster along k; more steps of one tile than the
    blocks of stream-K, so that some take two of them; more slices than a block adds up at a time, none of them empty. For products by
    planes, lines along k that hold nothing but zeros and an infinity, whose exponents alone do not tell that planes cannot hold them, and
    crowds of such lines of very different size, and few such lines among others. For the largest result, a bias beside which the last
    column's products are far below 0."""
    decomposition, raster = plan.spec.decomposition, plan.spec.rasterization
    scalars = scalar_values(plan.sequence)["integers"]
    cases = []
    if plan.least_depth:
        size = promised(plan, (plan.tile_m + 3, plan.tile_n // 2 + 1, plan.least_depth + plan.step_k))
        cases.append(case_of(INFINITE_LINES, packed(plan, size, batch=2), scalars, "nonfinite"))
        cases.append(case_of(UNEQUAL_LINES, packed(plan, size, batch=1), scalars, "reals"))
        cases.append(case_of(FEW_LINES, packed(plan, size, batch=1), scalars, "nonfinite"))
        alone = {name: 0.0 if name == "beta" else value for name, value in scalars.items()}  # nothing is added that hides tiny results
        cases.append(case_of(TINY_LINES, packed(plan, size, batch=1), alone, "reals"))
    if plan.spec.amax != "none" and any(argument.name == "bias" for argument in plan.sequence.arrays):
        size = promised(plan, (plan.tile_m + 3, plan.tile_n // 2 + 1, plan.step_k))
        cases.append(case_of(ONLY_BIAS, packed(plan, size, batch=GROUPS if plan.grouped else 1), scalars, "integers"))
    if 1 < raster.group <= _WIDEST_BAND:
        across_m = (plan.major if raster.along == "minor" else plan.minor) == "m"
        tiles = (raster.group, 1) if across_m else (1, raster.group)  # and one tile more, which the last band has alone
        size = promised(plan, (tiles[0] * plan.tile_m + 1, tiles[1] * plan.tile_n + 1, plan.step_k))
        cases.append(case_of("more tiles than a band", packed(plan, size, batch=1), scalars, "integers"))
    blocks_along_k = decomposition.slices if isinstance(decomposition, SplitKCluster) else 1
    if plan.stages > _STAGES_OF_USUAL_CASES or blocks_along_k > 1:
        depth = plan.step_k * (2 * plan.stages + 2) * blocks_along_k + 1
        problem = packed(plan, promised(plan, (plan.tile_m // 2 + 3, plan.tile_n // 2 + 1, depth)), batch=2)
        cases.append(case_of("padded leading dimensions, many steps", padded_problem(plan, problem), scalars, "integers"))
    if isinstance(decomposition, StreamK):
        name, depth, slices = "more steps than blocks", plan.step_k * (decomposition.blocks + 5) + 1, 0
    elif any(dimension.name == "slices" for dimension in plan.sequence.dimensions):
        slices = max(_DEEP_SLICES, plan.slices_of_a_turn + 6)
        name, depth = f"{slices} whole slices", plan.slice_k * (slices - 1) + 1
    else:
        return cases
    sizes = packed(plan, promised(plan, (plan.tile_m // 2 + 1, plan.tile_n // 2 + 1, depth)))
    return [*cases, case_of(name, _cut(plan, sizes, slices) if slices else sizes, scalars, "integers")]


def _cut(plan: GemmPlan, sizes: dict[str, int], slices: int) -> dict[str, int]:
    """The sizes with another number of slices, and the dimensions that depend on it."""
    problem = {**sizes, "slices": slices}
    dependent = {d.name: d.default for d in plan.sequence.dimensions if d.default is not None and "slices" in d.default.names}
    return problem | {name: formula.evaluate(problem) for name, formula in dependent.items()}


def _matrices(plan: GemmPlan) -> tuple[Matrix, ...]:
    return (plan.matrix_a, *plan.factors_b, plan.matrix_c, *plan.like_output, *plan.factor_scales)


def padded_problem(plan: GemmPlan, packed_one: dict[str, int]) -> dict[str, int]:
    """A packed problem with gaps between the lines of every matrix, each its own, so that one in place of another shows."""
    padded = dict(packed_one)
    for index, matrix in enumerate(matrix for matrix in _matrices(plan) if matrix.dimensions):
        if plan.lie_anywhere:
            padded[matrix.dimensions[0].name] += padded["batch"] * (3 + 2 * index) * 16 * matrix.alignment
            continue
        padded[matrix.leading_dimension] += (3 + 2 * index) * matrix.alignment
        if matrix.batch_stride is not None:
            extent = Formula(matrix.rows if matrix.row_major else matrix.columns).evaluate(padded)
            padded[matrix.batch_stride] = extent * padded[matrix.leading_dimension] + 5 * matrix.alignment
    return padded


def cases_of_several_tiles(plan: GemmPlan) -> list[Case]:
    """Cases for a block that takes several tiles: each ends with the last stage, or is over sooner than the next is handed out."""
    batch = GROUPS if plan.grouped else 1
    scalars = scalar_values(plan.sequence)["integers"]
    cases = []
    for name, (tiles_m, tiles_n, k) in plan.tiles_in_turn.items():
        size = promised(plan, (tiles_m * plan.tile_m, tiles_n * plan.tile_n, k))
        cases.append(case_of(name, packed(plan, size, batch=batch), scalars, "integers"))
    return cases


def _group_cases(plan: GemmPlan, scalars: dict[str, dict[str, float]]) -> list[Case]:
    """Groups without rows, of whole tiles, with rows behind them, with offsets that fall; one B for all; one group, and none."""
    size = promised(plan, (3 * plan.tile_m + 5, plan.tile_n + 1, 2 * plan.step_k))
    problem = packed(plan, size, batch=GROUPS)
    cases = [case_of(name, problem, scalars["integers"], "integers") for name in OFFSETS]
    cases.append(case_of("one B for all groups", problem | {"stride_b": 0}, scalars["integers"], "integers"))
    cases += [case_of(f"{count} groups", packed(plan, size, batch=count), scalars["integers"], "integers") for count in (0, 1, 40)]
    own_rows = [name for name in ("rows_a", "rows_c") if name in problem]
    if own_rows:
        for name, rows in {"more rows than those of groups": 2 * size[0] + 3, "fewer rows than those of groups": size[0] // 2 + 1}.items():
            cases.append(case_of(name, problem | dict.fromkeys(own_rows, rows), scalars["integers"], "integers"))
    return cases


def _moved_rows(case: Case, name: str, rng: np.random.Generator) -> npt.NDArray[Any]:
    """Rows of A in any order, some several times, some that there are none of; rows of C, each once, and some that there are none of."""
    m = case.dimensions["m"]
    if name == "gather":
        return rng.integers(-1, case.dimensions["rows_a"] + 1, m)
    rows = case.dimensions["rows_c"]
    targets = rng.permutation(max(rows, m) + 3) - 2
    return targets[:m]


def _offsets(plan: GemmPlan, case: Case, groups: int, rng: np.random.Generator) -> npt.NDArray[Any]:
    """The ends of groups, as the case's name wants them; else anywhere, so that some are empty, and all rows belong to one."""
    m = case.dimensions["k" if plan.depths_differ else "m"]
    if case.name == OUTSIDE:
        return rng.integers(-5, 2 * m + 5, groups)
    if plan.spec.grouping.rows == "masked":
        size = m // max(groups, 1)
        counts = rng.integers(0, size + 1, groups)
        if case.name == "empty groups":
            counts = rng.choice([0, size // 2, size], groups)
        if case.name == "groups of whole tiles":
            counts = np.minimum(counts // plan.tile_m * plan.tile_m, size)
        if groups and case.name in ("one tile", "benchmark"):
            counts[:] = size
        return counts
    cuts = np.sort(rng.integers(0, m + 1, groups))
    if case.name == "empty groups":
        cuts = np.sort(rng.choice([0, m // 2, m], groups))
    if plan.depths_differ and plan.depth_unit > 1:
        cuts = np.minimum((cuts + plan.depth_unit - 1) // plan.depth_unit * plan.depth_unit, m)
    if case.name == "groups of whole tiles":
        cuts = np.minimum((cuts + plan.tile_m - 1) // plan.tile_m * plan.tile_m, m)
    if groups:
        cuts[-1] = 2 * m // 3 if case.name == "rows behind the last group" else m
    return np.minimum(cuts, cuts[-1:]) if groups else cuts


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
    if plan.spec.triangles.c == "mirrored":
        m = n = round_up(max(m, n), lcm(multiples.m, multiples.n)) if m and n else 0
    if plan.largest_depth is not None:
        k = min(k, plan.largest_depth // multiples.k * multiples.k)
    return m, n, k


def _within_depths(plan: GemmPlan, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """The arrays with factors of 0, and scales of 1, for values of k that are not their product's."""
    own, ends = dict(arrays), arrays["offsets"]
    for name, axis in (("A", 2), ("B", 1)):
        own[name] = within_depths(arrays[name], ends, axis, plan.depth_unit)
    for scale in plan.scales:
        held, axis = np.ones_like(arrays[scale.name]), 2 if scale.operand == "a" else 1
        for product, values in enumerate(depths(ends, arrays["A"].shape[2], plan.depth_unit)):
            blocks = slice(values.start // scale.block.k, ceil_div(values.stop, scale.block.k))
            place = (product, blocks) if axis == 1 else (product, slice(None), blocks)
            held[place] = arrays[scale.name][place]
        own[scale.name] = held
    return own


def _within_triangle(plan: GemmPlan, product: Expected, stored: npt.NDArray[Any]) -> Expected:
    """The contents of a C of which only a triangle is stored, or one and its mirror image."""
    part = plan.spec.triangles.c
    if part == "all":
        return product
    within = plan.spec.triangles.holds("c", stored.shape)
    before = to_numbers(plan.matrix_c.type, stored)
    bound = np.zeros(stored.shape) if product.bound is None else product.bound
    if part == "mirrored":
        value, bound = (np.where(within, one, one.swapaxes(-1, -2)) for one in (product.value, bound))
        return Expected(value, bound)
    return Expected(np.where(within, product.value, before).astype(product.value.dtype), np.where(within, bound, 0.0))


def _prime(near: int) -> int:
    return min(PRIMES, key=lambda prime: abs(prime - 1.3 * near))


def fill(plan: GemmPlan, case: Case, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
    """Values of an array before the launch; NaN in operands that BLAS does not read; zeros outside of the triangles of A and B."""
    values = _fill(plan, case, name, shape, rng)
    if name not in ("A", "B"):
        return values
    own, other = (plan.spec.triangles.a, plan.spec.triangles.b)[:: 1 if name == "A" else -1]
    if other != "all" and case.data == "nonfinite" and case.scalars.get("alpha", 1.0) != 0:
        values = np.where(np.isfinite(values), values, 1.0)  # beside zeros that are not multiplied they need not count
    if own != "all":
        values = np.where(plan.spec.triangles.holds("a" if name == "A" else "b", shape), values, 0.0)
    return values


def _fill(plan: GemmPlan, case: Case, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
    if plan.kept_factor is not None and name == f"planes_{plan.kept_factor.lower()}":
        return _kept_array(plan, plan.kept_factor, case)
    if plan.weight_bits < 8 * plan.matrix_b.element_bytes and name in ("B", "scales", "zeros"):
        return _narrow_weights(plan, case, name, shape, rng)
    unread = (name in "AB" and case.scalars.get("alpha", 1.0) == 0) or (
        name == "C" and case.scalars.get("beta", 0.0) == 0 and not plan.own_scalars
    )
    kind = plan.sequence_type(name)
    if name in ("gather", "scatter"):
        return _moved_rows(case, name, rng)
    if name in ENDS.values():
        return _offsets(plan, case, shape[0], rng)
    if plan.lie_anywhere and name in ("at_a", "at_b", "at_c", "sizes"):
        return placed_arrays(plan, case)[name]
    if name in ("alphas", "betas") and plan.own_scalars:
        factors = np.resize(rng.permutation([0.0, 1.0, -2.0, 3.0] if case.data != "reals" else [0.0, 1.25, -0.7]), shape)
        factors[: case.data == "nonfinite"] = 0.0  # beside NaN that is not read
        return factors
    if case.name == ONLY_BIAS and name in ("A", "B", "bias", "amax"):
        values = np.full(shape, 1.0 if name == "A" else 0.0)
        if name in ("B", "bias"):
            values[..., -1] = -1.0 if name == "B" else 4.0
        return values
    if name == "amax":
        return rng.choice([0.0, 0.0, 1e6], shape)
    if any(store.argument.name == name and store.output.reduce for step in plan.epilogue for store in step.stores):
        return rng.choice([-1e6, -3.0, 0.0, 2.0, 1e6], shape)
    for scale in plan.scales:
        if scale.name == name:
            values = _scales(kind, case, shape, rng)
            return np.where(_filled(scale, case).reshape(shape), values, np.nan) if scale.tiled else values
    if name == "metadata":
        words = random_metadata(shape, rng)
        return words | random_metadata(shape, rng) << 16 if kind == "u32" else words
    if plan.packed_factors and name in "AB":
        return rng.integers(0, 256, shape)
    if unread:
        return np.full(shape, np.nan if ELEMENTS[kind].is_float else ELEMENTS[kind].limits[1])
    if case.data == "extremes" and kind in ("s8", "u8"):
        least, most = ELEMENTS[kind].limits
        return rng.integers(int(least), int(most) + 1, shape)
    if case.data in ("reals", "extremes"):
        # Sums around 1 where an operation bends there and is flat further out, or where C would overflow.
        narrow = plan.approximate or plan.matrix_c.type in ("f16", "s8", "u8", "e4m3", "e5m2")
        low, high = (-2.0, 0.3) if narrow else (-3.0, 3.0)
        values = rng.choice([-1.0, 1.0], shape) * 10.0 ** rng.uniform(low, high, shape)
        if case.name == TINY_LINES and name in "AB":
            _make_tiny(values if name == "A" else values.swapaxes(-1, -2), 0 if name == "A" else 1)
        if case.name == UNEQUAL_LINES and name in "AB":
            _make_unequal(values if name == "A" else values.swapaxes(-1, -2), _CROWD if name == "A" else 0, rng)
        return values
    values = rng.integers(0 if kind == "u8" else -MAX_INTEGER, MAX_INTEGER + 1, shape).astype(np.float64)
    if case.name == FEW_LINES and name in "AB":
        lines = values if name == "A" else values.swapaxes(-1, -2)
        lines[..., 1::_FEW, 0] = np.inf
        return values
    if case.data == "nonfinite" and ELEMENTS[kind].is_float:
        # 8-bit floats stop at their largest number, beside which small ones are lost.
        special = rng.choice([np.nan] if kind in ("e4m3", "e5m2") else [np.nan, np.inf, -np.inf], shape)
        special_at = rng.random(shape) < 0.02
        if plan.least_depth and name in "AB":
            _leave_few_lines(
                values if name == "A" else values.swapaxes(-1, -2),
                special_at if name == "A" else special_at.swapaxes(-1, -2),
                _CROWD if name == "A" else 0,
            )
            if case.name == INFINITE_LINES:
                line, at = (np.s_[..., -3, :], np.s_[..., -3, 5]) if name == "A" else (np.s_[..., :, -3], np.s_[..., 5, -3])
                values[line], special_at[line], values[at] = 0.0, False, np.inf
        values = np.where(special_at, special, values)
    return values


def _narrow_weights(plan: GemmPlan, case: Case, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
    """Packed weights of any codes; zero points, the least and the largest among them; scales as block scales have them."""
    if name == "B":
        return rng.integers(0, 2**32, shape)
    if name == "scales":
        return _scales("f32", replace(case, data="reals") if case.data == "extremes" else case, shape, rng)
    largest = 2**plan.weight_bits
    return rng.choice([0, 1, largest // 2, largest - 1, largest], shape).astype(np.float64)


def _scales(kind: str, case: Case, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
    """Block scales: powers of two, beside which sums of integers stay exact; over several magnitudes; infinities among them, and NaN
    where there are none; NaN alone where they are not read."""
    if case.scalars.get("alpha", 1.0) == 0:
        return np.full(shape, np.nan)
    if case.data == "reals":
        return 10.0 ** rng.uniform(-2.0, 0.3, shape)
    scales = rng.choice([0.5, 1.0, 2.0], shape)
    special = np.inf if kind == "f32" else np.nan
    return np.where(rng.random(shape) < 0.1, special, scales) if case.data == "nonfinite" else scales


def _filled(scale: ScaleArray, case: Case) -> npt.NDArray[np.bool_]:
    """True where an array of tiles holds a scale, False where a tile is larger than the matrix: nothing may count there."""
    rows, columns = (Formula(extent).evaluate(case.dimensions) for extent in (scale.matrix.rows, scale.matrix.columns))
    lines, blocks = (rows, columns) if scale.operand == "a" else (columns, rows)
    return as_tiles(np.ones((lines, blocks), np.bool_))


def _make_tiny(lines: npt.NDArray[Any], first: int) -> None:
    """Every second line has ones at k of `first` plus an even number, and at one other k, another one in each, a number near 2^-121. The
    others are zero where the other matrix has ones, and else so large that the part of a tiny number that planes lose counts."""
    half = lines.shape[-1] // 2
    lines[..., ::2, first::2] *= 2.0**40
    lines[..., ::2, 1 - first :: 2] = 0.0
    lines[..., 1::2, :] = 0.0
    lines[..., 1::2, first::2] = 1.0
    for line in range(1, lines.shape[-2], 2):
        lines[..., line, line * 5 % half * 2 + 1 - first] = (1 + (line % 6 + 1) / 7) * 2.0**-121


def _make_unequal(values: npt.NDArray[Any], crowded: int, rng: np.random.Generator) -> None:
    """Lines along k of two sizes, by chance; the first ``crowded`` with a number that planes cannot hold beside the others."""
    values *= rng.choice([1.0, 2.0**20], (*values.shape[:-1], 1))
    values[..., :crowded, 3] = 2.0**-120


def _leave_few_lines(values: npt.NDArray[Any], special_at: npt.NDArray[np.bool_], crowded: int) -> None:
    """Special values in the first ``crowded`` lines along k and in the last; in the line before that, numbers too far apart for planes,
    whose sums are exact. The repair of planes computes crowded tiles whole, and few lines one by one."""
    special_at[..., crowded:, :] = False
    special_at[..., -1:, values.shape[-1] // 2] = True
    values[..., -2:-1, :] = 0.0
    special_at[..., -2:-1, :] = False
    values[..., -2:-1, :1] = 2.0**40
    values[..., -2:-1, 1:2] = 2.0**-40


def _kept_array(plan: GemmPlan, factor: str, case: Case) -> npt.NDArray[np.uint8]:
    """The argument that an operand is kept in, made of the values that ``fill`` gives the operand."""
    passed = [array for array in plan.sequence.arrays if array.role != "workspace"]
    index = [array.name for array in passed].index(factor)
    shape = tuple(extent.evaluate(case.dimensions) for extent in passed[index].shape)
    return plan.kept_array(fill(plan, case, factor, shape, case.generator(index)).astype(np.float32))


def reference(plan: GemmPlan, case: Case, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Expected]:
    """Expected contents of C, with the forward error bound of its sums; rows of no group stay as they are."""
    extra = partial(_extra, plan, arrays, extents=(case.dimensions["m"], case.dimensions["n"]))
    if plan.lie_anywhere:
        return {"C": _placed_results(plan, case, arrays)}
    if not plan.grouped:
        if plan.depths_differ:
            arrays = _within_depths(plan, arrays)
        products = [_of_each(plan, case, arrays) if plan.own_scalars else _reference(plan, case, arrays)]
        return (
            {"C": _within_triangle(plan, products[0].expected, arrays["C"])}
            | _largest(arrays, [products[0].inner])
            | extra(products, [np.s_[:]])
        )
    before = to_numbers(plan.matrix_c.type, arrays["C"])
    value = before.astype(np.int64 if plan.matrix_c.type == "s32" else np.float64)
    bound = np.zeros(value.shape)
    grouping, m = plan.spec.grouping, case.dimensions["m"]
    products, present, places = [], list[Tracked](), group_rows(grouping, arrays[plan.ends_of_groups], m)
    a = gathered_rows(arrays["A"], arrays["gather"]) if grouping.gathered else arrays["A"]
    c = np.zeros((m, *arrays["C"].shape[1:]), arrays["C"].dtype) if grouping.scattered else arrays["C"]
    for index, rows in enumerate(places):
        own = dict(arrays) | {"A": a[rows], "C": c[rows]} | {factor.name: arrays[factor.name][index] for factor in plan.factors_b}
        own |= {matrix.name: arrays[matrix.name][rows] for matrix in plan.like_output}
        own |= {scale.name: _scales_of_group(scale, arrays[scale.name], rows, index) for scale in plan.scales}
        for access in (access for step in plan.epilogue for access in step.accesses):
            if access.operand.per in ("row", "column", "group"):
                part: dict[str, Any] = {"row": rows, "column": index, "group": np.s_[index : index + 1]}
                own[access.name] = arrays[access.name][part[access.operand.per]]
        products.append(_reference(plan, case, own, rows.start))
        expected = products[-1].expected
        exists: Any = np.s_[:]
        to: Any = rows
        if grouping.scattered:
            targets = arrays["scatter"][rows].astype(np.int64)
            exists = (targets >= 0) & (targets < len(value))
            to = targets[exists]
            inner = products[-1].inner  # rows that go nowhere are no results
            present.append(replace(inner, value=inner.value[exists], bound=inner.bound[exists]))
        value[to], bound[to] = expected.value[exists], 0.0 if expected.bound is None else expected.bound[exists]
    largest = _largest(arrays, present if grouping.scattered else [product.inner for product in products])
    return {"C": Expected(value, bound)} | largest | extra(products, places)


def placed_arrays(plan: GemmPlan, case: Case) -> dict[str, npt.NDArray[np.int64]]:
    """Sizes of the products of a case, and where their matrices lie: each in a part of the memory, in any order. The first has the sizes of
    the launch; in one case, sizes lie outside, and addresses break the promise of alignment."""
    rng, batch = np.random.default_rng(case.seed), case.dimensions["batch"]
    most = [case.dimensions[name] for name in ("m", "n", "k")]
    sizes = np.zeros((batch, len(SIZES)), np.int64)
    for product in range(batch):
        whole = product == 0 or case.name != "sizes"
        sizes[product, :3] = most if whole else [rng.choice([0, 1, extent // 2, extent]) if extent else 0 for extent in most]
    if case.name == OUTSIDE_SIZES:
        for product, number in enumerate((most[0] + 9, -5, most[1] + 1, -(2**31), most[2] + 7, -1)):
            sizes[product + 1, product // 2] = number
    arrays = {"sizes": sizes}
    for index, matrix in enumerate(plan.matrices):
        room = case.dimensions[matrix.dimensions[0].name] // max(batch, 1) // matrix.alignment * matrix.alignment
        starts = rng.permutation(batch) * room
        for product in range(batch):
            extents = _own_extents(case, sizes[product])
            rows, columns = extents[matrix.rows], extents[matrix.columns]
            slow, fast = (rows, columns) if matrix.row_major else (columns, rows)
            pitch = round_up(max(fast, 1), matrix.alignment)
            spare = (room // max(slow, 1) - pitch) // matrix.alignment
            sizes[product, 3 + index] = pitch + matrix.alignment * int(rng.integers(0, min(max(spare, 0), 3) + 1))
        arrays[f"at_{matrix.name.lower()}"] = starts * matrix.element_bytes
    if case.name == OUTSIDE_SIZES and plan.matrix_c.alignment > 1:
        arrays["at_c"][0] += plan.matrix_c.element_bytes
    return arrays


def _own_extents(case: Case, numbers: npt.NDArray[np.int64]) -> dict[str, int]:
    """m, n and k of a product, within those of the launch."""
    return {name: int(min(max(number, 0), case.dimensions[name])) for name, number in zip(("m", "n", "k"), numbers, strict=False)}


def _with_scalars(case: Case, arrays: Mapping[str, npt.NDArray[Any]], product: int) -> Case:
    """The case with the factors of one product."""
    own = {name: float(arrays[f"{name}s"][product]) for name in ("alpha", "beta") if f"{name}s" in arrays}
    return replace(case, scalars={**case.scalars, **own})


def _of_each(plan: GemmPlan, case: Case, arrays: Mapping[str, npt.NDArray[Any]]) -> _Product:
    """The results of a batch whose products have separate alpha and beta, product by product."""
    names = [matrix.name for matrix in plan.batched]
    products = [
        _reference(plan, _with_scalars(case, arrays, product), dict(arrays) | {name: arrays[name][product] for name in names})
        for product in range(len(arrays["C"]))
    ]
    if not products:
        return _reference(plan, case, arrays)
    value = np.stack([one.expected.value for one in products])
    bounds = [np.zeros(value.shape[1:]) if one.expected.bound is None else one.expected.bound for one in products]
    inner = replace(
        products[0].inner, value=np.stack([one.inner.value for one in products]), bound=np.stack([one.inner.bound for one in products])
    )
    return _Product(Expected(value, np.stack(bounds)), inner, {})


def _placed_results(plan: GemmPlan, case: Case, arrays: Mapping[str, npt.NDArray[Any]]) -> Expected:
    """The memory in which results lie: those of every product, and the rest as it was."""
    before = to_numbers(plan.matrix_c.type, arrays["C"])
    value = before.astype(np.int64 if plan.matrix_c.type == "s32" else np.float64)
    bound = np.zeros(value.shape)
    for product, numbers in enumerate(arrays["sizes"].astype(np.int64)):
        extents = _own_extents(case, numbers)
        start = {name: int(arrays[f"at_{name.lower()}"][product]) for name in "ABC"}
        aligned = all(start[one.name] % (one.alignment * one.element_bytes) == 0 for one in plan.matrices)
        if not aligned or 0 in (extents["m"], extents["n"]):
            continue
        places = {}
        for index, matrix in enumerate(plan.matrices):
            row, column = np.ogrid[: extents[matrix.rows], : extents[matrix.columns]]
            slow, fast = (row, column) if matrix.row_major else (column, row)
            places[matrix.name] = start[matrix.name] // matrix.element_bytes + slow * int(numbers[3 + index]) + fast
        given = dict(arrays) | {name: arrays[name][place] for name, place in places.items()}
        for access in (access for step in plan.epilogue for access in step.accesses):
            if access.operand.per in ("row", "column"):
                given[access.name] = arrays[access.name][: extents["m" if access.operand.per == "row" else "n"]]
        result = _reference(plan, _with_scalars(case, arrays, product) if plan.own_scalars else case, given).expected
        value[places["C"]] = result.value
        bound[places["C"]] = 0.0 if result.bound is None else result.bound
    return Expected(value, bound)


def _scales_of_group(scale: ScaleArray, elements: npt.NDArray[Any], rows: slice, index: int) -> npt.NDArray[Any]:
    """Block scales of a group: those of its rows of A, one for each; or its own of B."""
    if scale.operand == "b":
        group: npt.NDArray[Any] = elements[index]
        return group
    own: npt.NDArray[Any] = np.repeat(elements, scale.block.lines, axis=0)[rows]
    return own


@dataclass(frozen=True)
class _Product:
    """Results of one product, or of a batch of products."""

    expected: Expected
    """The product's part of C."""
    inner: Tracked
    """The results that the largest absolute value is of."""
    outputs: Mapping[str, Tracked]
    """Values of the epilogue's further outputs."""


def _extra(
    plan: GemmPlan,
    arrays: Mapping[str, npt.NDArray[Any]],
    products: Sequence[_Product],
    places: Sequence[slice],
    extents: tuple[int, int],
) -> dict[str, Expected]:
    """The further outputs of the epilogue, from those of the products whose rows lie at ``places``; ``extents``: all rows and columns."""
    outputs: dict[str, Expected] = {}
    for store in (store for step in plan.epilogue for store in step.stores):
        name, output = store.name, store.output
        if store.is_term:
            parts = [one.outputs[name] for one in products]
            outputs[name] = Expected(*_sum_of_terms(store, parts, places, extents, arrays[name].shape))
            continue
        before = to_numbers(store.type, arrays[name])
        value, bound = before.astype(np.float64), np.zeros(before.shape)
        for product, rows in zip(products, places, strict=True):
            result = product.outputs[name]
            if output.reduce is None:
                value[rows], bound[rows] = stored_value(result, store.type)
                continue
            axes = {"row": (-1,), "column": (-2,)}.get(output.per or "all", tuple(range(result.value.ndim)))
            place = rows if output.per == "row" else np.s_[:]
            value[place], more = extremum(output.reduce, result, axes, value[place])
            bound[place] = np.maximum(bound[place], more)
        outputs[name] = Expected(value, bound)
    return outputs


def _sum_of_terms(
    store: Store, parts: Sequence[Tracked], places: Sequence[slice], extents: tuple[int, int], result: tuple[int, ...]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """A sum of the epilogue with its bound, of the products whose rows lie at ``places`` among all; rows of no group have no terms.
    ``result``: the shape of the sums."""
    if len(places) == 1 and places[0] == np.s_[:]:
        terms = parts[0]
    else:
        terms = Tracked(np.zeros(extents), np.zeros(extents), "f32")
        for part, rows in zip(parts, places, strict=True):
            terms.value[rows], terms.bound[rows] = part.value, part.bound
    every = tuple(range(terms.value.ndim))
    axes = {"row": every[-1:], "column": every[-2:-1]}.get(store.output.per or "all", every)
    return summed(terms, axes, store.output.reduce == "sum_of_squares", result)


def _largest(arrays: Mapping[str, npt.NDArray[Any]], tracked: list[Tracked]) -> dict[str, Expected]:
    """The largest absolute value of all results, where it is an output."""
    if "amax" not in arrays:
        return {}
    value = np.concatenate([np.abs(results.value).ravel() for results in tracked] + [arrays["amax"].astype(np.float64)])
    bound = np.concatenate([results.bound.ravel() for results in tracked] + [np.zeros(1)])
    largest = np.nan if np.isnan(value).any() else value.max()
    if not np.isfinite(largest):
        return {"amax": Expected(np.array([largest]))}
    # A result that errs by its bound may be the largest where another is expected to be.
    high, low = (value + bound).max(), (value - bound).max()
    return {"amax": Expected(np.array([largest]), np.array([max(high - largest, largest - low)]))}


def _reference_of_doubles(plan: GemmPlan, case: Case, arrays: Mapping[str, npt.NDArray[Any]], first_row: int) -> _Product:
    """The expected results of one product of float64, or of a batch of them, in extended precision."""
    from gemmgen.kernels.gemm.mma_sync.doubles import double_product, rounded_double

    alpha, beta = case.scalars.get("alpha", 1.0), case.scalars.get("beta", 0.0)
    shape = arrays["C"].shape
    value, bound = np.zeros(shape, np.longdouble), np.zeros(shape)
    with np.errstate(invalid="ignore", over="ignore"):
        if alpha != 0:
            product, bound = double_product(arrays["A"], arrays["B"], exact=case.data != "reals")
            value, bound = rounded_double(np.longdouble(alpha) * product, abs(alpha) * bound)
        if beta != 0:
            scaled, scaled_bound = rounded_double(np.longdouble(beta) * arrays["C"].astype(np.longdouble), np.zeros(shape))
            value, bound = rounded_double(value + scaled, bound + scaled_bound)
        value, bound = rounded_double(value, bound)
    if not plan.epilogue:
        expected = value.astype(np.float64)
        return _Product(Expected(expected, bound), Tracked(expected, bound, "f64"), {})
    arrays = {array.name: to_numbers(array.type, arrays[array.name]) for array in plan.sequence.arrays if array.name in arrays}
    finished, inner, outputs = _finished(plan, case, arrays, Tracked(value, bound, "f64"), None, first_row)
    return _Product(Expected(*stored("f64", finished.value, finished.bound)), inner, outputs)


def _finished(
    plan: GemmPlan, case: Case, arrays: Mapping[str, npt.NDArray[Any]], product: Tracked, second: Tracked | None, first_row: int
) -> tuple[Tracked, Tracked, dict[str, Tracked]]:
    """Results after the epilogue, those before its factor behind amax, and the further outputs; ``arrays``: as numbers."""
    doubles = product.kind == "f64"
    scalars = {name: one if doubles or isinstance(one, int) else float(np.float32(one)) for name, one in case.scalars.items()}
    given = scalars | dict(arrays)

    def read(access: Access) -> npt.NDArray[Any]:
        array = np.asarray(given[access.name], np.int64 if access.stored == "s64" else np.float64)
        return array[:, None] if access.operand.per == "row" else array

    shape = arrays["C"].shape
    coordinates = {"row": np.arange(shape[-2])[:, None] + first_row, "column": np.arange(shape[-1])[None, :]}
    outputs: dict[str, Tracked] = {}
    inner = apply_steps(plan.inner_epilogue, product, read, coordinates, outputs, second)
    finished = apply_steps(plan.epilogue[len(plan.inner_epilogue) :], inner, read)
    return spread(finished, shape), inner, {name: spread(result, shape) for name, result in outputs.items()}


def _reference(plan: GemmPlan, case: Case, arrays: Mapping[str, npt.NDArray[Any]], first_row: int = 0) -> _Product:
    """The expected results of one product, or of a batch of products; ``first_row``: of a group."""
    if plan.matrix_c.type == "f64":
        return _reference_of_doubles(plan, case, arrays, first_row)
    alpha, beta = (float(np.float32(case.scalars.get(name, default))) for name, default in (("alpha", 1.0), ("beta", 0.0)))
    shape = arrays["C"].shape
    value, bound = np.zeros(shape), np.zeros(shape)
    arrays = {array.name: to_numbers(array.type, arrays[array.name]) for array in plan.sequence.arrays if array.name in arrays}
    with np.errstate(invalid="ignore", over="ignore"):
        if alpha != 0:
            product, bound = plan.product(arrays, case.dimensions.get("slices", plan.slices), exact=case.data != "reals")
            exact = plan.matrix_c.type == "s32"
            value, bound = (product, bound) if exact else rounded(alpha * product, abs(alpha) * bound)
        if beta != 0:
            scaled, scaled_bound = rounded(beta * arrays["C"].astype(np.float64), np.zeros(shape))
            value, bound = rounded(value + scaled, bound + scaled_bound)
        second: Tracked | None = None
        if plan.second_b is not None:
            others = {**arrays, plan.matrix_b.name: arrays[plan.second_b.name]}
            second = Tracked(*plan.product(others, plan.slices, exact=case.data != "reals"), "f32")
        finished, inner, outputs = _finished(plan, case, arrays, Tracked(value, bound, "f32"), second, first_row)
    return _Product(Expected(*stored(plan.matrix_c.type, finished.value, finished.bound)), inner, outputs)


def counted_case(plan: GemmPlan) -> Case:
    """The case with most operations: its traffic and instructions stand for the instance."""
    return max(cases(plan), key=lambda case: cost(plan, case.dimensions).weight)
