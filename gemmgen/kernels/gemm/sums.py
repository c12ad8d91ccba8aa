"""Sums of an epilogue's values over rows, columns or all elements: the kernels behind the product that add up the terms which it keeps.

The product's kernel leaves the terms of each sum in the workspace, behind all other data there, as a packed array stored like C. The
order of the additions depends on the extents alone, so that every run gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gemmgen.core.formulas import Formula
from gemmgen.kernels.epilogue.steps import Step, Store
from gemmgen.kernels.launch import Argument, ArrayArgument, Dimension, KernelLaunch, LaunchSequence, ScalarArgument

UNIT_BYTES = 256
"""Bytes that the start of the terms is counted in."""
UNIT_FLOATS = UNIT_BYTES // 4
THREADS = 256
"""Threads of a block that sums."""
COLUMNS = 32
"""Neighbouring sums of a block that adds up terms far apart."""

START = ScalarArgument("sums_at", "s32", f"start of the terms of sums in the workspace, in {UNIT_BYTES} bytes")


@dataclass(frozen=True)
class SumKernel:
    """A kernel that adds up lines of terms."""

    entry: str
    name: str
    """The sum, for comments."""
    terms: str
    """The argument that points to the workspace."""
    result: str
    """The argument or, for the first of two kernels, the pointer that sums are stored to."""
    offset: str
    """CUDA expression of the first term: elements from the start of the terms."""
    lines: str
    """CUDA expression of the number of sums."""
    length: str
    """CUDA expression of the number of terms of one."""
    contiguous: bool
    """True if the terms of a sum follow each other."""
    squares: bool
    keeps: str = ""
    """CUDA expression of where in the workspace the sums are stored, as an offset like ``offset``; empty: in ``result``."""


def stores_of(steps: Sequence[Step]) -> tuple[Store, ...]:
    """The stores of terms among those of an epilogue."""
    return tuple(store for step in steps for store in step.stores if store.is_term)


def place_of(index: int) -> str:
    """CUDA expression of the first term of the sum with this number: elements from the start of the terms."""
    return "" if index == 0 else f"static_cast<long long>(m) * n * {index}" if index > 1 else "static_cast<long long>(m) * n"


def passed(argument: str, index: int) -> str:
    """CUDA expression of the pointer to the terms of a sum."""
    place = place_of(index)
    return f"{argument} + {UNIT_FLOATS}LL * {START.name}" + (f" + {place}" if place else "")


def kernels_of(name: str, epilogue: Sequence[Step], major: Literal["m", "n"]) -> tuple[SumKernel, ...]:
    """The kernels behind the product of the instance ``name``, in their order; ``major``: the slow dimension of C in memory."""
    found: list[SumKernel] = []
    stores = stores_of(epilogue)
    minor = "n" if major == "m" else "m"
    partials = place_of(len(stores))
    for index, store in enumerate(stores):
        per, squares = store.output.per or "all", store.output.reduce == "sum_of_squares"
        terms, offset, entry = store.argument.name, place_of(index), f"{name}_{store.name}"
        line = {"row": "m", "column": "n"}.get(per, major)
        if per == "all":
            found.append(SumKernel(f"{entry}_lines", store.name, terms, "", offset, major, minor, True, squares, partials))
            found.append(SumKernel(entry, store.name, terms, store.name, partials, "1", major, True, False))
        else:
            length = "n" if line == "m" else "m"
            found.append(SumKernel(entry, store.name, terms, store.name, offset, line, length, line == major, squares))
    return tuple(found)


def with_sums(sequence: LaunchSequence, epilogue: Sequence[Step], major: Literal["m", "n"]) -> LaunchSequence:
    """The sequence with the kernels that the epilogue's sums take, with their results and their part of the workspace."""
    stores = stores_of(epilogue)
    if not stores:
        return sequence
    results: list[Argument] = [_result(store) for store in stores]
    before = sequence.workspace_bytes
    start = Dimension(
        START.name, START.meaning, maximum=2**31 - 1, default=before if before.text == "0" else Formula(f"ceil_div({before}, {UNIT_BYTES})")
    )
    launches = tuple(_launch(kernel) for kernel in kernels_of(sequence.name, epilogue, major))
    size = Formula(f"{UNIT_BYTES} * {START.name} + {4 * len(stores)} * m * n + 4 * {major}")
    return replace(
        sequence,
        dimensions=(*sequence.dimensions, start),
        arguments=(*sequence.arguments, *results),
        launches=(*sequence.launches, *launches),
        workspace_bytes=size,
    )


def _result(store: Store) -> ArrayArgument:
    """The array of a sum's results."""
    extent = {"row": "m", "column": "n"}.get(store.output.per or "all", "1")
    meaning = {"m": "of each row", "n": "of each column"}.get(extent, "of all elements")
    words = "sum of squares" if store.output.reduce == "sum_of_squares" else "sum"
    return ArrayArgument(store.name, "f32", "output", (Formula(extent),), (Formula("1"),), 4, f"{words} {meaning}")


def _launch(kernel: SumKernel) -> KernelLaunch:
    blocks = kernel.lines if kernel.contiguous else f"ceil_div({kernel.lines}, {COLUMNS})"
    names = ("m", "n", kernel.terms, START.name, *((kernel.result,) if not kernel.keeps else ()))
    return KernelLaunch(kernel.entry, (Formula(blocks), Formula("1"), Formula("1")), (THREADS, 1, 1), names)
