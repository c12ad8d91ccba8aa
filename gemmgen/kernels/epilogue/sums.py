"""Sums of an epilogue's values over rows, columns or all elements: the kernels behind the product that add up the terms which it keeps.

The product's kernel leaves the terms of each sum in the workspace, behind all other data there, as a packed array stored like C. The
order of the additions depends on the extents alone, so that every run gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

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

BATCH = ScalarArgument("batch", "s32", "problems in the batch")
START = ScalarArgument("sums_at", "s32", f"start of the terms of sums in the workspace, in {UNIT_BYTES} bytes")


@dataclass(frozen=True)
class Terms:
    """The matrix that the terms of a sum form, stored by rows."""

    rows: str
    """Number of rows, as a CUDA expression and a formula."""
    columns: str
    across: str
    """The reduction (``per``) that adds up each of its rows."""
    down: str
    """The reduction that adds up each of its columns."""
    arguments: tuple[str, ...]
    """Kernel arguments that the expressions name: the extents whose product, times ``constant``, is the number of terms."""
    constant: tuple[str, ...] = ()
    products: str = ""
    """The kernel argument with the number of matrices, of a batch: each product keeps the terms of all sums side by side."""
    ends: Literal["", "offsets", "counts"] = ""
    """For rows of groups: the kernel argument that says how many rows groups have. Rows of no group have no terms."""

    @property
    def count(self) -> str:
        """CUDA expression of the terms of one sum of one product."""
        return f"static_cast<long long>({self.arguments[0]}) * " + " * ".join((*self.arguments[1:], *self.constant))

    @property
    def every(self) -> tuple[str, ...]:
        """All arguments that expressions name."""
        return (*self.arguments, *((self.products,) if self.products else ()))


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
    product_terms: str = ""
    """CUDA expression of the terms of all sums of one product of a batch; empty where the lines are those of one matrix."""
    row: str = ""
    """CUDA expression of the row of the term `at` of the line `line`, where rows may belong to no group."""


def stores_of(steps: Sequence[Step]) -> tuple[Store, ...]:
    """The stores of terms among those of an epilogue."""
    return tuple(store for step in steps for store in step.stores if store.is_term)


def place_of(index: int, shape: Terms) -> str:
    """CUDA expression of the first term of the sum with this number: elements from the start of the terms of a product."""
    return "" if index == 0 else f"{shape.count} * {index}" if index > 1 else shape.count


def of_all_products(stores: int, shape: Terms) -> str:
    """CUDA expression of the terms of all sums."""
    return " * ".join((shape.count, *((str(stores),) if stores > 1 else ()), *((shape.products,) if shape.products else ())))


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
    kernels: list[SumKernel] = []
    stores = stores_of(epilogue)
    partials = of_all_products(len(stores), shape)
    product_terms = place_of(len(stores), shape) if shape.products else ""
    groups = ("groups", shape.ends) if shape.ends else ()
    arguments = tuple(dict.fromkeys((*shape.every, *groups)))
    for index, store in enumerate(stores):
        per, squares = store.output.per or "all", store.output.reduce == "sum_of_squares"
        terms, offset, entry = store.argument.name, place_of(index, shape), f"{name}_{store.name}"
        along = per in ("all", shape.across)
        line, length = (shape.rows, shape.columns) if along else (shape.columns, shape.rows)
        row = ("line" if (shape.across == "row") == along else "at") if shape.ends else ""
        first = SumKernel(
            f"{entry}_lines" if per == "all" else entry,
            store.name,
            terms,
            "" if per == "all" else store.name,
            offset,
            line,
            length,
            along,
            squares,
            partials if per == "all" else "",
            arguments,
            product_terms,
            row,
        )
        kernels.append(first)
        if per == "all":
            count = f"{shape.rows} * {shape.products}" if shape.products else shape.rows
            kernels.append(SumKernel(entry, store.name, terms, store.name, partials, "1", count, True, False, "", shape.every))
    return tuple(kernels)


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
    launches = tuple(_launch(kernel, shape) for kernel in kernels_of(name, epilogue, shape))
    count = " * ".join((*shape.every, *shape.constant))
    lines = f"{shape.rows} * {shape.products}" if shape.products else shape.rows
    size = Formula(f"{UNIT_BYTES} * {START.name} + {4 * len(stores)} * {count} + 4 * {lines}")
    known = {argument.name for argument in sequence.arguments}
    more = [BATCH] if shape.products and shape.products not in known else []
    return replace(
        sequence,
        dimensions=(*sequence.dimensions, start),
        arguments=(*sequence.arguments, *more, *results),
        launches=(*sequence.launches, *launches),
        workspace_bytes=size,
    )


def result_of(store: Store, shape: Terms) -> ArrayArgument:
    """The array of a sum's results."""
    per = store.output.per or "all"
    extent = {shape.across: shape.rows, shape.down: shape.columns}.get(per, "1")
    meaning = "of all elements" if per == "all" else f"of each {per}"
    words = "sum of squares" if store.output.reduce == "sum_of_squares" else "sum"
    several = shape.products if per != "all" else ""
    extents = (Formula(several), Formula(extent)) if several else (Formula(extent),)
    strides = (Formula(extent), Formula("1")) if several else (Formula("1"),)
    return ArrayArgument(store.name, "f32", "output", extents, strides, 4, f"{words} {meaning}{' of each product' if several else ''}")


def _launch(kernel: SumKernel, shape: Terms) -> KernelLaunch:
    blocks = kernel.lines if kernel.contiguous else f"ceil_div({kernel.lines}, {COLUMNS})"
    blocks += f" * {shape.products}" if kernel.product_terms else ""
    names = (*kernel.arguments, kernel.terms, START.name, *((kernel.result,) if not kernel.keeps else ()))
    return KernelLaunch(kernel.entry, (Formula(blocks), Formula("1"), Formula("1")), (THREADS, 1, 1), names)
