"""Sums of an epilogue's values over rows, columns or all elements: the kernels behind the product that add up the terms which it keeps.

The product's kernel leaves the terms of each sum in the workspace, behind all other data there, as a packed array stored like C. The
order of the additions depends on the extents alone, so that every run gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

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
class Terms:
    """The matrix that the terms of a sum form, stored by rows."""

    rows: str
    """Its number of rows, as a CUDA expression and a formula."""
    columns: str
    across: str
    """The reduction (``per``) that adds up each of its rows."""
    down: str
    """The reduction that adds up each of its columns."""
    arguments: tuple[str, ...]
    """Kernel arguments that the expressions name: the extents whose product, times ``constant``, is the number of terms."""
    constant: tuple[str, ...] = ()


BY_ROWS = Terms("m", "n", "row", "column", ("m", "n"))
"""Terms of a product that is stored by rows."""
BY_COLUMNS = Terms("n", "m", "column", "row", ("m", "n"))


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
    arguments: tuple[str, ...] = ()
    """Kernel arguments that these expressions name."""


def stores_of(steps: Sequence[Step]) -> tuple[Store, ...]:
    """The stores of terms among those of an epilogue."""
    return tuple(store for step in steps for store in step.stores if store.is_term)


def place_of(index: int, shape: Terms) -> str:
    """CUDA expression of the first term of the sum with this number: elements from the start of the terms."""
    count = f"static_cast<long long>({shape.arguments[0]}) * " + " * ".join((*shape.arguments[1:], *shape.constant))
    return "" if index == 0 else f"{count} * {index}" if index > 1 else count


def passed(argument: str, index: int, shape: Terms) -> str:
    """CUDA expression of the pointer to the terms of a sum."""
    place = place_of(index, shape)
    return f"{argument} + {UNIT_FLOATS}LL * {START.name}" + (f" + {place}" if place else "")


class Summing(Protocol):
    """A plan whose epilogue may have sums."""

    @property
    def name(self) -> str:
        """The instance's name."""

    @property
    def sequence(self) -> LaunchSequence: ...

    @property
    def finishing(self) -> Sequence[Step]:
        """The epilogue's steps."""

    @property
    def terms(self) -> Terms:
        """The matrix that the terms of a sum form."""


class SummingPlan:
    """The kernels behind a product or a convolution that add up the terms of sums, for templates."""

    @property
    def sum_kernels(self: Summing) -> tuple[SumKernel, ...]:
        """These kernels, in their order."""
        return kernels_of(self.name, self.finishing, self.terms)

    @property
    def sum_unit(self) -> int:
        """Elements that the start of the terms is counted in."""
        return UNIT_FLOATS

    def sum_launch(self: Summing, kernel: SumKernel) -> KernelLaunch:
        """The launch of one of these kernels."""
        return next(launch for launch in self.sequence.launches if launch.entry == kernel.entry)

    def sum_parameters(self: Summing, kernel: SumKernel) -> tuple[Argument, ...]:
        """The parameters of one of these kernels."""
        launch = next(launch for launch in self.sequence.launches if launch.entry == kernel.entry)
        return tuple(self.sequence.argument(name) for name in launch.arguments)


def kernels_of(name: str, epilogue: Sequence[Step], shape: Terms) -> tuple[SumKernel, ...]:
    """The kernels that add up the terms of the instance ``name``, in their order."""
    found: list[SumKernel] = []
    stores = stores_of(epilogue)
    partials = place_of(len(stores), shape)
    for index, store in enumerate(stores):
        per, squares = store.output.per or "all", store.output.reduce == "sum_of_squares"
        terms, offset, entry = store.argument.name, place_of(index, shape), f"{name}_{store.name}"
        if per == "all":
            found.append(
                SumKernel(
                    f"{entry}_lines", store.name, terms, "", offset, shape.rows, shape.columns, True, squares, partials, shape.arguments
                )
            )
            found.append(SumKernel(entry, store.name, terms, store.name, partials, "1", shape.rows, True, False, "", shape.arguments))
        else:
            along = per == shape.across
            line, length = (shape.rows, shape.columns) if along else (shape.columns, shape.rows)
            found.append(SumKernel(entry, store.name, terms, store.name, offset, line, length, along, squares, "", shape.arguments))
    return tuple(found)


def with_sums(sequence: LaunchSequence, name: str, epilogue: Sequence[Step], shape: Terms) -> LaunchSequence:
    """The sequence of the instance ``name`` with the kernels that the epilogue's sums take, with results and part of the workspace."""
    stores = stores_of(epilogue)
    if not stores:
        return sequence
    results: list[Argument] = [result_of(store, shape) for store in stores]
    before = sequence.workspace_bytes
    start = Dimension(
        START.name, START.meaning, maximum=2**31 - 1, default=before if before.text == "0" else Formula(f"ceil_div({before}, {UNIT_BYTES})")
    )
    launches = tuple(_launch(kernel) for kernel in kernels_of(name, epilogue, shape))
    count = " * ".join((*shape.arguments, *shape.constant))
    size = Formula(f"{UNIT_BYTES} * {START.name} + {4 * len(stores)} * {count} + 4 * {shape.rows}")
    return replace(
        sequence,
        dimensions=(*sequence.dimensions, start),
        arguments=(*sequence.arguments, *results),
        launches=(*sequence.launches, *launches),
        workspace_bytes=size,
    )


def result_of(store: Store, shape: Terms) -> ArrayArgument:
    """The array of a sum's results."""
    per = store.output.per or "all"
    extent = {shape.across: shape.rows, shape.down: shape.columns}.get(per, "1")
    meaning = "of all elements" if per == "all" else f"of each {per}"
    words = "sum of squares" if store.output.reduce == "sum_of_squares" else "sum"
    return ArrayArgument(store.name, "f32", "output", (Formula(extent),), (Formula("1"),), 4, f"{words} {meaning}")


def _launch(kernel: SumKernel) -> KernelLaunch:
    blocks = kernel.lines if kernel.contiguous else f"ceil_div({kernel.lines}, {COLUMNS})"
    names = (*kernel.arguments, kernel.terms, START.name, *((kernel.result,) if not kernel.keeps else ()))
    return KernelLaunch(kernel.entry, (Formula(blocks), Formula("1"), Formula("1")), (THREADS, 1, 1), names)
