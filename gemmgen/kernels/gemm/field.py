"""GEMM over a finite field: the plain kernel that every instance is held against, and the problem that both compute."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmgen.core.formulas import ceil_div, round_up
from gemmgen.emulator import residues
from gemmgen.emulator.residue_words import MAX_CUT_WORDS, PACKED_ELEMENTS, WORD_BYTES, whole_words
from gemmgen.kernels.epilogue.degree import degree_of_steps
from gemmgen.kernels.family import Case, FieldPart
from gemmgen.kernels.gemm.grouping import group_rows
from gemmgen.kernels.gemm.oracle import cases, padded_problem, promised
from gemmgen.kernels.gemm.plan import GemmPlan, epilogue_accuracy, packed
from gemmgen.kernels.gemm.scaling import from_tiles
from gemmgen.kernels.gemm.sparsity import places
from gemmgen.kernels.gemm.spec import DataParallel, GemmSpec
from gemmgen.kernels.gemm.split_precision.field import PlanesOverField
from gemmgen.kernels.gemm.split_precision.product import SplitPrecisionPlan
from gemmgen.kernels.gemm.triangles import Triangles

_CASES = ("2 x 3 tiles", "padded leading dimensions")
_REFERENCE = {
    "mainloop": {"strategy": "naive", "threadblock": {"m": 8, "n": 32}},
    "storage": {"a": "f32", "b": "f32", "c": "f32"},
}
_SHARED_FIELDS = ("kind", "order", "epilogue")


def reference_spec(plan: GemmPlan) -> dict[str, Any]:
    """The naive kernel in float32 with the same epilogue."""
    fields = plan.spec.model_dump(mode="json", exclude_unset=True)
    shared = {name: fields[name] for name in _SHARED_FIELDS if name in fields}
    batch = "strided" if plan.spec.batch == "strided" else "none"
    shared["accuracy"] = epilogue_accuracy(plan.spec)
    return {**shared, **_REFERENCE, "alpha": "argument", "beta": "argument", "batch": batch, "label": "field_reference"}


def field_cases(plan: GemmPlan) -> list[Case]:
    """A problem of two tiles in each direction, the last cut by a few lines, and of several steps, the last cut in half, or to one value of
    k without tensor cores, with gaps of different lengths between the rows of each matrix: equal leading dimensions would hide the error of
    using one for another; and a small one of whole tiles and steps, as some loops end in code of their own for the last step. There are
    fewer tiles or steps where the elements of small types would be more than codes of 16 bits. Products by planes, which need many steps,
    of vectors and of fragments that warps read from memory, which have no such loops, of groups, and of halves without tensor cores run on
    one problem."""
    named = _named_cases(plan)
    if len(named) < len(_CASES):
        return list(named.values())
    by_words = (*in_words(plan), *scales_in_words(plan))
    kinds = [_cut_problems(plan, by_words, *(named[name] for name in _CASES))]
    mainloop = plan.spec.mainloop
    in_halves = mainloop.strategy == "tiled" and plan.matrix_a.is_half
    in_one_loop = mainloop.strategy == "gemv" or (mainloop.strategy == "mma_sync" and mainloop.copies == "none")
    if not (plan.least_depth or in_halves or plan.grouped or in_one_loop):
        kinds.append(_whole_problems(plan, named[_CASES[0]]))
    return [_first_that_fits(plan, problems, by_words) for problems in kinds]


def _named_cases(plan: GemmPlan) -> dict[str, Case]:
    """The ordinary cases that problems are made from."""
    return {case.name: case for case in reversed(cases(plan, _CASES)) if case.name in _CASES}


def _first_that_fits(plan: GemmPlan, problems: Iterator[Case], by_words: tuple[str, ...]) -> Case:
    """The first problem for whose elements there are codes, or the last."""
    problem = next(problems)
    while not _fits(plan, problem, by_words) and (smaller := next(problems, None)) is not None:
        problem = smaller
    return problem


def _fits(plan: GemmPlan, problem: Case, by_words: tuple[str, ...]) -> bool:
    """True if there are codes for all elements. Those of the matrices ``by_words`` count by words."""
    return _elements(plan, problem, by_words) < residues.POISONED and _words_of_scaled(plan, problem) < MAX_CUT_WORDS


def _cut_problems(plan: GemmPlan, by_words: tuple[str, ...], whole: Case, padded: Case) -> Iterator[Case]:
    """Problems of several tiles, the last cut, the largest first."""
    unit, step = _unit(plan, by_words), plan.step_k
    rows, columns = (max(2 * size - round_up(less, unit), size + unit) for size, less in ((plan.tile_m, 3), (plan.tile_n, 5)))
    rest = step // 2 + 1 if _on_tensor_cores(plan) else 1
    depths = [round_up(whole.dimensions["k"] + less + rest, unit) for less in (0, -step)]
    sizes: list[tuple[int, int]] = [(rows, columns)]
    if not plan.least_depth:
        fewer = (plan.tile_m + 3 * plan.tile_m // 4, plan.tile_m + plan.tile_m // 2 + 3, plan.tile_m + 3)
        few = (round_up(fewer[-1], unit), plan.tile_n + round_up(1, unit))
        sizes += [*((round_up(each, unit), columns) for each in fewer), (rows, few[1]), few]
    for m, n in sizes:
        for depth in depths[: 1 if plan.least_depth or not isinstance(plan.spec.decomposition, DataParallel) else 2]:
            yield _padded(plan, padded, (m, n, depth))


def _whole_problems(plan: GemmPlan, case: Case) -> Iterator[Case]:
    """Problems of whole tiles: one tile on tensor cores, else two in each direction, if they fit."""
    depth = 2 * plan.step_k if isinstance(plan.spec.decomposition, DataParallel) else case.dimensions["k"]
    for tiles in (1,) if _on_tensor_cores(plan) else (2, 1):
        sizes = promised(plan, (tiles * plan.tile_m, tiles * plan.tile_n, depth))
        yield replace(case, dimensions={**case.dimensions, **packed(plan, sizes, batch=_batch(plan, case))})


def _on_tensor_cores(plan: GemmPlan) -> bool:
    return plan.spec.mainloop.strategy in ("mma_sync", "wgmma", "tcgen05")


def _unit(plan: GemmPlan, by_words: tuple[str, ...]) -> int:
    """Rows are whole words, where elements may be parts of words."""
    return WORD_BYTES if by_words else 2 if isinstance(plan, SplitPrecisionPlan) else 1


def _elements(plan: GemmPlan, case: Case, by_words: tuple[str, ...]) -> int:
    """Elements of 16 bits and less of a problem, but for those that count by words."""
    arrays = [array for array in plan.sequence.arrays if array.role != "workspace" and residues.CODE_BITS.get(array.type, 32) <= 16]
    arrays = [array for array in arrays if array.name not in by_words]
    return sum(math.prod(extent.evaluate(case.dimensions) for extent in array.shape) * (array.reads + array.writes) for array in arrays)


def _words_of_scaled(plan: GemmPlan, case: Case) -> int:
    """Words of elements with scales and of their scales, of which kernels cut the last ones."""
    names = (*in_words(plan), *scales_in_words(plan)) if plan.scales else ()
    arrays = [array for array in plan.sequence.arrays if array.name in names]
    return sum(math.prod(extent.evaluate(case.dimensions) for extent in array.shape) for array in arrays) // WORD_BYTES


def _padded(plan: GemmPlan, case: Case, wanted: tuple[int, int, int]) -> Case:
    problem = padded_problem(plan, packed(plan, promised(plan, wanted), batch=_batch(plan, case)))
    return replace(case, dimensions={**case.dimensions, **problem})


def _batch(plan: GemmPlan, case: Case) -> int:
    """Groups, or two problems of a batch."""
    return case.dimensions["groups"] if plan.grouped else min(case.dimensions.get("batch", 1), 2)


def excluded(plan: GemmPlan) -> str:
    """The reason why products of this instance are no polynomials over the field; empty for most instances."""
    spec: GemmSpec = plan.spec
    if {accuracy for step in plan.epilogue for accuracy in step.accuracies.values()} - {epilogue_accuracy(spec)}:
        return "the plain kernel that instances are held against computes the functions of all outputs equally accurately"
    if any(not scale.tiled for scale in plan.scales) or plan.weight_bits < 8 * plan.matrix_b.element_bytes:
        return "the plain kernel that instances are held against has neither scales of float32 nor packed weights"
    if plan.spec.triangles != Triangles.ALL:
        return "the plain kernel that instances are held against computes all of C"
    if plan.lie_anywhere or plan.own_scalars:
        return "the plain kernel that instances are held against has one alpha, one beta, and matrices at strides"
    if getattr(plan.spec.mainloop, "accumulators", "f32") == "f16":
        return "sums in float16 have no meaning over the field"
    if plan.matrix_a.type == "f64":
        return "products of doubles have no meaning over the field"
    if plan.second_b is not None:
        return "the plain kernel that instances are held against has one product"
    if isinstance(plan, SplitPrecisionPlan) and plan.planes.in_mainloop:
        return "the kernel that multiplies splits A, and control flow depends on data: on whether planes hold a row"
    if isinstance(plan, SplitPrecisionPlan) and (plan.batched or plan.planes.kept_operand is not None):
        return "planes of a batch, or planes that are kept, are split elsewhere"
    if spec.storage.c == "s32" and (spec.alpha == "argument" or spec.beta == "argument" or spec.epilogue):
        return "results are integers that are computed by way of real numbers"
    return ""


def stages(plan: GemmPlan, case: Case) -> PlanesOverField | None:
    """The splitting and the product of an instance with planes."""
    return PlanesOverField(plan, case.dimensions) if isinstance(plan, SplitPrecisionPlan) else None


def degree(plan: GemmPlan) -> int:
    """Degree of an element of C, or of what the epilogue makes of it, as a polynomial of all that is drawn."""
    return degree_of_steps(plan.epilogue, 2 + len(plan.scales) + int(plan.spec.alpha == "argument"))


def chance_of_zero(plan: GemmPlan) -> float | None:
    """The probability that a polynomial of this degree is zero by chance, where its factors are drawn from sets of different sizes; None
    where the smallest set says enough."""
    if not plan.packed_factors:
        return None
    others = degree(plan) - 2 - len(plan.scales)
    return 2 * 2.0 ** -residues.CODE_BITS["e2m1"] + len(plan.scales) * 2.0**-8 + others * 2.0**-16


def parts(plan: GemmPlan, case: Case, arrays: Mapping[str, npt.NDArray[Any]], scalars: Mapping[str, int]) -> Iterator[FieldPart]:
    """The epilogues of alpha A B + beta C, one for each group of rows. The plain kernel is given that matrix as its C, with alpha of 0."""
    sizes = {name: case.dimensions[name] for name in ("m", "n")} | {"k": 1}
    if not plan.grouped:
        batch = {"batch": case.dimensions["batch"]} if plan.batched else {}
        yield _finishing({**sizes, **batch}, {}, _product(plan, arrays, scalars))
        return
    for index, rows in enumerate(group_rows(plan.spec.grouping, arrays[plan.ends_of_groups], case.dimensions["m"])):
        chosen: dict[str, Any] = {"A": np.s_[rows], "B": np.s_[index], "C": np.s_[rows]}
        chosen |= {matrix.name: np.s_[rows] for matrix in plan.residuals}
        for access in (access for step in plan.epilogue for access in step.accesses):
            if access.operand.per in ("row", "column"):
                chosen[access.name] = np.s_[rows] if access.operand.per == "row" else np.s_[index]
        if rows.stop > rows.start:
            own = {name: arrays[name][chosen[name]] for name in "ABC"}
            yield _finishing(sizes | {"m": rows.stop - rows.start}, chosen, _product(plan, own, scalars))


def _finishing(sizes: dict[str, int], chosen: dict[str, object], product: npt.NDArray[Any]) -> FieldPart:
    m, n, batch = sizes["m"], sizes["n"], product.shape[:-2]
    zeros = {"A": np.zeros((*batch, m, 1), np.uint32), "B": np.zeros((*batch, 1, n), np.uint32)}
    return FieldPart(sizes, chosen, {**zeros, "C": residues.words(product)}, {"alpha": 0, "beta": 1})


def _factors(plan: GemmPlan, arrays: Mapping[str, npt.NDArray[Any]]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """A (..., m, k) and B (..., k, n) as canonical residues, each times the scales of its blocks."""
    lines = {"a": arrays["A"], "b": arrays["B"].swapaxes(-1, -2)}
    if "metadata" in arrays:
        lines["a"] = np.zeros((lines["a"].shape[0], lines["b"].shape[1]), arrays["A"].dtype)
        np.put_along_axis(lines["a"], places(plan.metadata_by_rows(arrays)), arrays["A"], axis=1)
    for name, values in lines.items():
        if plan.packed_factors and whole_words.get() is None:
            halves = np.stack([values & np.uint32(15), values >> np.uint32(4)], -1).reshape(*values.shape[:-1], -1)
            lines[name] = residues.of_codes(halves, "e2m1")
        lines[name] = residues.canonical(lines[name]).reshape(lines[name].shape)
    for scale in plan.scales:
        values = lines[scale.operand]
        blocks = from_tiles(arrays[scale.name], values.shape[0], ceil_div(values.shape[1], scale.block.k))
        each = np.repeat(blocks, scale.block.k, axis=1)[:, : values.shape[1]]
        lines[scale.operand] = residues.canonical(residues.multiplied(values, each))
    return lines["a"], lines["b"].swapaxes(-1, -2)


def _product(plan: GemmPlan, arrays: Mapping[str, npt.NDArray[Any]], scalars: Mapping[str, int]) -> npt.NDArray[Any]:
    """alpha A B + beta C as canonical residues."""
    product = arrays.get("product")
    if product is None:
        product = residues.matrix_product(*_factors(plan, arrays))
    if "alpha" in scalars:
        product = residues.canonical(residues.multiplied(product, np.uint64(scalars["alpha"])))
    if "beta" in scalars:
        product = residues.canonical(product + residues.multiplied(arrays["C"], np.uint64(scalars["beta"])))
    return product


def types(plan: GemmPlan) -> dict[str, str]:
    """Operands of tensor cores that read the upper 19 bits of float32 alone."""
    return {matrix.name: matrix.type for matrix in (plan.matrix_a, plan.matrix_b) if matrix.type == "tf32"}


def polynomial(
    plan: GemmPlan, case: Case, arrays: Mapping[str, npt.NDArray[Any]], scalars: Mapping[str, int]
) -> dict[str, npt.NDArray[Any]] | None:
    """alpha A B + beta C, where there is neither an epilogue nor groups."""
    if plan.epilogue or plan.grouped:
        return None
    product = _product(plan, arrays, scalars)
    return {"C": residues.centred(product) if plan.matrix_c.type == "s32" else product}


def in_words(plan: GemmPlan) -> tuple[str, ...]:
    """Matrices of elements of 8 bits of which each counts by itself, or of pairs of 4 bits; of 16 bits where tiles are so large that there
    are too few codes for a problem of several."""
    alone = "metadata" not in {array.name for array in plan.sequence.arrays} and all(scale.tiled for scale in plan.scales)
    if not alone or isinstance(plan, SplitPrecisionPlan):
        return ()
    sizes = {plan.matrix_a.element_bytes, plan.matrix_b.element_bytes}
    return ("A", "B") if sizes == {1} or (sizes == {2} and _need_words(plan)) else ()


def _need_words(plan: GemmPlan) -> bool:
    """True for tensor cores' factors of 16 bits that lie along k, and of which there are more than codes."""
    if not (_on_tensor_cores(plan) and plan.matrix_a.along_k and plan.matrix_b.along_k):
        return False
    steps = 2 if isinstance(plan.spec.decomposition, DataParallel) else 3
    m, n, k = plan.tile_m + 3, plan.tile_n + 1, steps * plan.step_k + plan.step_k // 2 + 1
    results = 1 + (plan.spec.beta != "zero") + len(plan.residuals) if plan.matrix_c.element_bytes <= 2 else 0
    return (m + n) * k + m * n * results >= residues.POISONED


def scales_in_words(plan: GemmPlan) -> tuple[str, ...]:
    """Scales of blocks, of which four along k lie in a word."""
    return tuple(scale.name for scale in plan.scales)


def elements_in_word(plan: GemmPlan) -> int:
    """Elements of A and B in a word of 32 bits."""
    return PACKED_ELEMENTS if plan.packed_factors else WORD_BYTES // plan.matrix_a.element_bytes


def unclaimed(plan: GemmPlan) -> tuple[str, ...]:
    """Outputs that the plain kernel does not have."""
    return ("amax",) if plan.spec.amax != "none" else ()
