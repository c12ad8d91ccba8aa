"""The problems that a reduction is verified on, derived from its layout, and the data in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gemmgen.core.elements import FLOATS, float_format, numpy_type
from gemmgen.kernels.family import Case
from gemmgen.kernels.reduction.arithmetic import EXTREMA
from gemmgen.kernels.reduction.cost_model import cost
from gemmgen.kernels.reduction.plan import BlockLayout, ColumnLayout, LaneLayout, ReductionPlan, packed_problem
from gemmgen.kernels.reduction.reference import reference
from gemmgen.kernels.reduction.tensor import TensorLayout

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Size = tuple[int, int, int]

__all__ = ["cases", "counted_case", "fill", "reference"]

MAX_INTEGER = 4
"""Elements of integer cases lie in [-4, 4]: their sums stay exact in float32, and in a float16 that stores the result."""
MAX_ELEMENTS = 1 << 20
"""No case but one is larger, so that the emulator gets through it."""
MAX_ELEMENTS_OF_ONE_CASE = 9 << 20
SEVERAL = 8
"""Length of a line from which on the order of its additions matters."""
SECOND_TURN = "a second turn of some blocks"
"""The case in which blocks come round again; with integers only, for it may be large."""
CROWD = "more blocks than threads"
"""The case in which the threads that combine the blocks' results need a second pass; with integers only, since it may be large."""
EXTREMUM = "the extremum comes"
"""Begins the names of cases in which a single element of a line decides the result."""
EXTREMUM_PLACES = ("first", "in the middle", "in the last tile", "in the last vector", "last")
"""Places of that element: kernels treat whole tiles, whole vectors and the remainder in different places."""

ADVERSE = ("a constant plus noise", "alternating signs", "one huge element", "huge elements", "denormals")
"""Names of cases with data on which sums lose most: cancellation, and both ends of the type's range."""


def cases(plan: ReductionPlan) -> list[Case]:
    """Edges of vectors, tiles and groups, one block and many, strides, odd pointers, nothing, and the corners of the types."""

    if isinstance(plan.layout, TensorLayout):
        return _tensor_cases(plan, plan.layout)

    def problem(size: Size) -> dict[str, int]:
        return packed_problem(plan, dict(zip(("outer", "reduced", "inner"), size, strict=True)))

    floats = plan.arithmetic.stored in FLOATS
    sizes = _sizes(plan)
    scalars = {scalar.name: 3 if scalar.type == "s64" else 3.0 for scalar in plan.sequence.scalars}
    cases = []
    for name, size in sizes.items():
        for data in ("integers",) if name in (SECOND_TURN, CROWD) else ("integers", "reals"):
            cases.append(_case(name, problem(size), scalars, data))
    middle = sizes["several blocks and a rest"]
    cases.append(_case("extremes of the type", problem(middle), scalars, "extremes"))
    cases.append(_case("extremes in one element", problem(sizes["one element"]), scalars, "extremes"))
    if plan.arithmetic.operation in EXTREMA and not plan.arithmetic.prologue:
        for name in ("one less than a tile", "several blocks and a rest", CROWD, SECOND_TURN):
            for place in EXTREMUM_PLACES if name not in (CROWD, SECOND_TURN) else ("last", "in the last tile"):
                if name in sizes:
                    cases.append(_case(f"{EXTREMUM} {place}, {name}", problem(sizes[name]), scalars, "integers"))
    if floats:
        cases.append(_case("not-a-numbers and infinities", problem(middle), scalars, "nonfinite"))
        cases += _adverse_cases(plan, [problem(size) for size in sizes.values()], scalars)
    padded = problem(middle)
    strides = [name for name in padded if name.startswith("stride_")]
    if strides:
        for stride in strides:
            padded[stride] = padded[stride] * (3 if stride == "stride_inner" else 1) + 3 * plan.spec.alignment
        cases.append(_case("padded strides", padded, scalars, "reals"))
    offsets = {array.name: plan.spec.alignment if array.name == "X" else 1 for array in plan.sequence.arrays if array.role != "workspace"}
    for data in ("integers", "reals"):
        cases.append(_case("least aligned pointers", problem(middle), scalars, data, offsets=offsets))
    empty = {"no lines": (0, middle[1], middle[2]), "no columns": (middle[0], middle[1], 0)}
    if not plan.arithmetic.rejects_nothing:
        empty["nothing to reduce"] = (middle[0], 0, middle[2])
    for name, size in empty.items():
        if (size[0] or plan.has_outer) and (size[2] or plan.has_inner):
            cases.append(_case(name, problem(size), scalars, "integers"))
    return cases


def _tensor_cases(plan: ReductionPlan, layout: TensorLayout) -> list[Case]:
    """Cases of tensors: strides of every sign and 0, and results in another order, by one block and in parts."""
    scalars = {scalar.name: 3 if scalar.type == "s64" else 3.0 for scalar in plan.sequence.scalars}
    sizes = {name: packed_problem(plan, extents) for name, extents in _tensor_sizes(plan, layout).items()}
    cases = [_case(name, problem, scalars, data) for name, problem in sizes.items() for data in ("integers", "reals")]
    middle = sizes["several tiles and a rest"]
    split = {**middle, "parts": 3} if layout.in_parts else middle
    if layout.in_parts:
        cases += [_case("in parts", split, scalars, data) for data in ("integers", "reals")]
        cases.append(_case("more parts than loads", {**sizes["one element"], "parts": 3}, scalars, "integers"))
    cases.append(_case("extremes of the type", split, scalars, "extremes"))
    if plan.arithmetic.operation in EXTREMA and not plan.arithmetic.prologue:
        cases += [_case(f"{EXTREMUM} {place}, several tiles", split, scalars, "integers") for place in EXTREMUM_PLACES]
    if plan.arithmetic.stored in FLOATS:
        cases.append(_case("not-a-numbers and infinities", split, scalars, "nonfinite"))
        cases += _adverse_cases(plan, list(sizes.values()), scalars)
    strides = [dimension.name for dimension in plan.sequence.dimensions if dimension.name.endswith("_stride")]
    if strides:
        cases.append(_case("padded strides", _spread(plan, layout, middle), scalars, "reals"))
        cases.append(_case("negative strides", {**middle, **{name: -middle[name] for name in strides}}, scalars, "reals"))
        for name in strides:
            cases.append(_case(f"broadcast along {name.removesuffix('_stride')}", {**middle, name: 0}, scalars, "integers"))
    if len(layout.kept) > 1:
        steps, step = {}, 1
        for name in layout.kept:
            steps[f"{name}_y"], step = step, step * middle[name]
        cases.append(_case("results in another order", {**split, **steps}, scalars, "reals"))
    offsets = {array.name: plan.spec.alignment if array.name == "X" else 1 for array in plan.sequence.arrays if array.role != "workspace"}
    cases.append(_case("least aligned pointers", split, scalars, "reals", offsets=offsets))
    if layout.name == "flat_tiles":
        cases.append(_case("all within a vector", sizes["one element"], scalars, "integers", offsets=offsets))
    for name in layout.kept[-1:] + (() if plan.arithmetic.rejects_nothing else layout.reduced[:1]):
        cases.append(_case(f"no element along {name}", {**split, name: 0}, scalars, "integers"))
    return cases


def _adverse_cases(plan: ReductionPlan, problems: list[dict[str, int]], scalars: dict[str, float]) -> list[Case]:
    """One for each kind of adverse data, on the smallest problem of more than a few elements."""
    a = plan.arithmetic
    if a.is_truth or a.is_extremum or a.operation == "product" or any(step.operation.op == "exp" for step in a.prologue):
        return []

    def elements(problem: dict[str, int]) -> int:
        outer, reduced, inner = plan.extents(problem)
        return outer * reduced * inner if reduced > SEVERAL else MAX_ELEMENTS_OF_ONE_CASE * 2

    least = min(problems, key=elements)
    return [_case(name, least, scalars, "reals") for name in ADVERSE]


def _spread(plan: ReductionPlan, layout: TensorLayout, problem: dict[str, int]) -> dict[str, int]:
    """The extents with gaps between all elements that need not be adjacent."""
    spread, step = dict(problem), 1
    for name in reversed(layout.axes):
        if f"{name}_stride" in problem:
            step = step * 2 if step == 1 else _multiple(step, plan.spec.alignment) + 3 * plan.spec.alignment
            spread[f"{name}_stride"] = step
        step *= max(1, problem[name])
    return spread


def _tensor_sizes(plan: ReductionPlan, layout: TensorLayout) -> dict[str, dict[str, int]]:
    """Extents of every axis by name."""
    vector, threads, unroll = plan.vector, plan.threads, plan.unroll
    outer = {name: 3 if place == 0 else 2 for axes in (layout.kept, layout.reduced) for place, name in enumerate(axes)}
    ones = dict.fromkeys(outer, 1)
    width = plan.spec.alignment if layout.keeps_inner and not (layout.flat or layout.choice.ragged) else 1
    ones[layout.inner] = width

    def shaped(inner: int, reduced: int = 0) -> dict[str, int]:
        """``reduced``: approximate number of elements for a result, along the last axis but one."""
        extents = {**outer, layout.inner: _multiple(max(1, inner), width)}
        if reduced:
            extents[layout.reduced[-1]] = max(1, reduced // (3 * 2 ** (len(layout.reduced) - 2)) if len(layout.reduced) > 1 else reduced)
        return extents

    if layout.name == "tensor_rows":
        step = layout.lanes * vector
        many = step * unroll * 2 // max(1, 3 * 2 ** (len(layout.reduced) - 2) if len(layout.reduced) > 1 else 1)
        return {
            "one element": ones,
            "less than a vector": shaped(vector - 1),
            "one step": shaped(step),
            "one more than a step": shaped(step + 1),
            "several tiles and a rest": shaped(many + step + vector + 1),
        }
    if layout.name == "tensor_columns":
        tile, step = layout.tile_columns, layout.groups
        return {
            "one element": ones,
            "one tile": shaped(tile, step),
            "fewer columns than a tile": shaped(tile - 1, 2 * step + 1),
            "fewer rows than threads": shaped(width, step - 1),
            "several tiles and a rest": shaped(tile + tile // 2, 3 * step * unroll + step // 2 + 3),
        }
    if layout.name == "flat_tiles":
        tile, step = layout.tile_columns, layout.groups
        return {
            "one element": ones,
            "one tile": shaped(tile, step),
            "fewer columns than a vector": shaped(max(1, vector - 1), 2 * step * unroll + 3),
            "one column more than tiles": shaped(2 * tile + 1, step + 1),
            "fewer rows than groups": shaped(tile + 1, max(1, step - 1)),
            "several tiles and a rest": shaped(tile + tile // 2 + 1 - tile // 2 % 2, 3 * step * unroll + step // 2 + 3),
        }
    if layout.name == "flat_columns":
        several = 2 * threads * vector * unroll
        return {
            "one element": ones,
            "few columns": shaped(3, threads // 3),
            "a column for each thread": shaped(threads, 3 * vector * unroll + 1),
            "columns of an even number": shaped(6, several // 6 - 1),
            "several tiles and a rest": shaped(7, several // 7 + 5),
        }
    rows = layout.choice.longest
    return {
        "one element": ones,
        "one less than a block": {"k0": threads - 1, "r0": rows},
        "rows of one element": {"k0": threads * rows, "r0": 1},
        "one more than a block": {"k0": threads * rows // (rows - 1) + 1, "r0": rows - 1},
        "several tiles and a rest": {"k0": 2 * (threads * rows // (rows // 2 + 1)) + 5, "r0": rows // 2 + 1},
    }


def _case(name: str, dimensions: dict[str, int], scalars: dict[str, float], data: Any, **more: Any) -> Case:
    return Case(name, dimensions, scalars, data, seed=sum(map(abs, dimensions.values())), **more)


def _sizes(plan: ReductionPlan) -> dict[str, Size]:
    """Extents (outer, reduced, inner) by name; extents that a shape does not have are 1."""
    layout, vector = plan.layout, plan.vector
    outer = 3 if plan.has_outer else 1
    inner = 5 * plan.spec.alignment if plan.has_inner else 1
    sizes: dict[str, Size] = {"one element": (1, 1, 1)}
    if isinstance(layout, BlockLayout):
        tile = max(plan.threads * layout.items_per_thread, plan.tile)
        blocks = layout.blocks_per_row or 3
        sizes |= {
            "one less than a tile": (1, tile - 1, 1),
            "one tile": (outer, tile, 1),
            "one more than a tile": (outer, tile + 1, 1),
            "less than a warp": (outer, 29, 1),
            "several blocks and a rest": (outer, min(blocks * tile + tile // 2 + 3, MAX_ELEMENTS // outer), 1),
        }
        if layout.blocks_per_row and 3 * blocks * tile < MAX_ELEMENTS:
            sizes["several tiles for each block"] = (1, (2 * blocks + 1) * tile - 5, 1)
        crowd = tile * plan.threads + tile // 2 + 3
        if plan.finish and not layout.blocks_per_row and (layout.most_blocks or crowd) > plan.threads and crowd <= MAX_ELEMENTS:
            sizes[CROWD] = (1, crowd, 1)
        turns = tile * (layout.most_blocks or 0) + tile + plan.threads + 1
        if layout.most_blocks and turns <= MAX_ELEMENTS_OF_ONE_CASE:
            sizes[SECOND_TURN] = (1, turns, 1)
    elif isinstance(layout, LaneLayout):
        step = layout.lanes * vector
        rows = layout.rows_per_block
        lines = inner if plan.has_inner else 1
        outers = max(1, rows // lines)
        sizes |= {
            "one less than a step": (outers, max(1, step - 1), inner),
            "one step": (outers + 1, step, inner),
            "one more than a step": (max(1, outers - 1), step + 1, inner),
            "several blocks and a rest": (2 * outers + 3, step * plan.unroll + 3 * vector + 1, inner),
            "a long row": (1, 3 * step * plan.unroll + step + 2, 1),
        }
    else:
        assert isinstance(layout, ColumnLayout)
        step = layout.row_threads * layout.splits
        tile, width = layout.tile_columns, plan.spec.alignment
        sizes |= {
            "one tile": (outer, step, _multiple(tile, width)),
            "fewer columns than a tile": (1, 2 * step + 1, _multiple(max(1, tile - 1), width)),
            "more columns than a tile": (outer, step + 1, _multiple(tile + 1, width)),
            "fewer rows than threads": (1, max(1, step - 1), width),
            "several blocks and a rest": (outer, step * plan.unroll + step // 2 + 3, _multiple(tile + tile // 2, width)),
        }
    if not plan.has_outer:
        sizes = {name: (1, size[1], size[2]) for name, size in sizes.items()}
    width = plan.spec.alignment if plan.spec.shape in ("columns", "middle") else 1
    return {name: (size[0], size[1], _multiple(size[2], width) if plan.has_inner else 1) for name, size in sizes.items()}


def _multiple(value: int, width: int) -> int:
    return -(-value // width) * width


def fill(plan: ReductionPlan, case: Case, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
    """Values for one input."""
    import numpy as np

    a = plan.arithmetic
    if name != "X":
        return rng.integers(-MAX_INTEGER, MAX_INTEGER + 1, shape).astype(np.float64)
    if case.name.startswith(EXTREMUM):
        # Of one sign, so that a zero in place of an element would be the extremum.
        usual, single = (2, 1) if a.operation in ("min", "argmin") else (-2, -1)
        outer, reduced, inner = plan.extents(case.dimensions)
        values = np.full((outer, reduced, inner), usual)
        values[:, _extremum_at(plan, case)] = single
        return values.reshape(shape)
    if a.operation == "product" and (a.prologue or (a.is_float and a.stored not in FLOATS)):
        return _factors(plan, shape, rng)
    if a.stored not in FLOATS:
        return _integers(plan, case.data, shape, rng)
    if case.name in ADVERSE:
        return _adverse(a.stored, case.name, shape, rng)
    if case.data == "extremes":
        return _float_extremes(plan, shape, rng)
    if case.data == "reals":
        return _reals(plan, case, shape, rng)
    values = _small(plan, case, shape, rng).astype(np.float64)
    if case.data == "nonfinite":
        special = rng.choice([np.nan, np.inf, -np.inf, -0.0], shape)
        lines = max(1, values.size // max(1, plan.extents(case.dimensions)[1]))
        values = np.where(rng.random(shape) < 2.0 * lines / max(1, values.size), special, values)
    return values


def _extremum_at(plan: ReductionPlan, case: Case) -> int:
    """Position of the extremum along the reduced axis."""
    reduced = plan.extents(case.dimensions)[1]
    place = case.name.removeprefix(f"{EXTREMUM} ").split(",")[0]
    whole = {"in the last tile": plan.tile, "in the last vector": plan.vector}.get(place, 1)
    if place in ("first", "in the middle"):
        return 0 if place == "first" else reduced // 2
    return max(reduced // whole * whole, 1) - 1


def _factors(plan: ReductionPlan, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
    """Factors whose products in floating point stay within its range on every way, before or after a prologue.

    An exponential turns 0 into 1 and 1 into e; everything else turns 1 and -1 into numbers of one size.
    """
    import numpy as np

    if any("exp" in step.calls for step in plan.arithmetic.prologue):
        return np.where(rng.random(shape) < 0.01, rng.choice([-1, 1], shape), 0)
    return rng.choice([-1, 1], shape)


def _small(plan: ReductionPlan, case: Case, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
    """Small integers with which the operation's result is exact."""
    import numpy as np

    operation, reduced = plan.arithmetic.operation, max(1, plan.extents(case.dimensions)[1])
    if operation == "product":
        return np.where(rng.random(shape) < 4.0 / reduced, 2, rng.choice([-1, 1], shape))
    if operation in ("any", "all"):
        rare = rng.random(shape) < 0.7 / reduced
        return np.where(rare, *((3, 0) if operation == "any" else (0, 3)))
    return rng.integers(-MAX_INTEGER, MAX_INTEGER + 1, shape)


def _integers(plan: ReductionPlan, data: str, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
    import numpy as np

    limits = np.iinfo(numpy_type(plan.arithmetic.stored))
    if data == "integers" and plan.arithmetic.operation in ("any", "all", "product"):
        return rng.choice([-1, 0, 1, 2] if plan.arithmetic.operation == "any" else [-1, 1, 3], shape)
    if data == "integers":
        return rng.integers(-MAX_INTEGER, MAX_INTEGER + 1, shape)
    if data == "extremes":
        return rng.choice(np.array([limits.min, limits.max, 0, -1, limits.max - 1]), shape)
    return rng.integers(limits.min, limits.max, shape, np.int64, endpoint=True)


def _reals(plan: ReductionPlan, case: Case, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
    """Numbers over several magnitudes, as many as the operation can stand."""
    import numpy as np

    a, reduced = plan.arithmetic, max(1, plan.extents(case.dimensions)[1])
    signs = rng.choice([-1.0, 1.0], shape)
    if a.operation == "product":
        return np.asarray(signs * np.exp(rng.normal(0, 1 / np.sqrt(reduced), shape)))
    if a.operation == "logsumexp" or any("exp" in step.calls for step in a.prologue):
        return rng.normal(0, 3, shape)
    if a.operation == "mean_variance":
        return 100 + rng.normal(0, 3, shape)
    largest = 0.0 if "f16" in (a.stored, a.output) else 3.0
    return np.asarray(signs * 10.0 ** rng.uniform(-3, largest, shape))


def _adverse(stored: str, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
    """Data on which sums lose most, in the range of the type."""

    form, noise = float_format(stored), rng.normal(0, 1, shape)
    huge, large = form.largest / 4, 2.0 ** (form.digits - 2)
    if name == "a constant plus noise":
        return large + noise
    if name == "alternating signs":
        return large * rng.choice([-1.0, 1.0], shape) + noise
    if name == "one huge element":
        noise.flat[rng.integers(0, max(1, noise.size))] = huge
        return noise
    if name == "huge elements":
        return huge * rng.choice([-1.0, 1.0, 2.0, 3.0], shape)
    return form.smallest * rng.integers(-1000, 1000, shape)


def _float_extremes(plan: ReductionPlan, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
    """Signed zeros and subnormal numbers; for exponentials, arguments that overflow."""
    import numpy as np

    a = plan.arithmetic
    if a.operation == "logsumexp":
        largest = {"f16": 6e4, "f64": 1e6}.get(a.stored, 1e30)
        return rng.choice([largest, largest / 2, -largest, 800.0, -np.inf], shape)
    if a.operation == "mean_variance":
        return np.full(shape, 12345.0)
    least = float_format(a.stored).smallest
    zeros = rng.choice([0.0, -0.0], shape)
    if a.is_extremum or a.is_truth or a.operation == "product":
        return np.where(rng.random(shape) < 0.01, rng.choice([-least, least], shape), zeros)
    return np.where(rng.random(shape) < 0.5, rng.choice([-least, least, 3 * least], shape), zeros)


def counted_case(plan: ReductionPlan) -> Case:
    """The case with most operations: its traffic and instructions stand for the instance."""
    return max(cases(plan), key=lambda case: cost(plan, case.dimensions).weight)
