"""Tensors: the axes that a kernel walks along, its parameters for them, and its grid and memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gemmgen.core.elements import ELEMENTS, DataType
from gemmgen.core.formulas import Formula
from gemmgen.kernels.launch import Argument, ArrayArgument, Constraint, Dimension, ScalarArgument
from gemmgen.kernels.reduction.choice import MULTIPROCESSORS, WalkChoice
from gemmgen.kernels.tiles.division import divisors_argument

MAX_COUNTED = 2**31 - 1 - (1 << 27)
"""Most results, and most loads for a result, that kernels count in 31 bits: indices of a grid beyond the last one fit, too."""
MAX_WIDE = 2**62
STRIDES = 2**62
"""Strides go up to this, in both directions."""
MAX_PARTS = 1 << 12
BLOCKS = 4 * MULTIPROCESSORS
"""Blocks of a grid about, where nobody says how many share a result."""


@dataclass(frozen=True)
class TensorLayout:
    """Walk of a kernel through a tensor. The axes ``k0``, ``k1`` ... are kept, ``r0``, ``r1`` ... are reduced."""

    choice: WalkChoice
    alignment: int
    """Elements that the address of X, the strides, and the innermost extent where it is kept, are multiples of."""

    @property
    def name(self) -> str:
        return self.choice.name

    @property
    def kept(self) -> tuple[str, ...]:
        return tuple(f"k{axis}" for axis in range(self.choice.kept))

    @property
    def reduced(self) -> tuple[str, ...]:
        return tuple(f"r{axis}" for axis in range(self.choice.reduced))

    @property
    def keeps_inner(self) -> bool:
        """True if threads stand side by side along an axis of the results."""
        return self.choice.name in ("tensor_columns", "flat_columns", "flat_tiles")

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of X as its array has them: the one that threads walk along comes last."""
        if self.keeps_inner:
            return (*self.kept[:-1], *self.reduced, self.kept[-1])
        return (*self.kept, *self.reduced)

    @property
    def inner(self) -> str:
        """The last axis of X."""
        return self.axes[-1]

    @property
    def outer_kept(self) -> tuple[str, ...]:
        """The axes of the results among whose places blocks or groups of lanes choose."""
        return (self.kept[:-1] if self.keeps_inner else self.kept)[1 if self.repeated else 0 :]

    @property
    def repeated(self) -> bool:
        """True if the results are the same along the first kept axis."""
        return self.choice.repeated

    @property
    def outer_reduced(self) -> tuple[str, ...]:
        """The reduced axes but for the one that threads walk along."""
        return self.reduced if self.keeps_inner else self.reduced[:-1]

    @property
    def flat(self) -> bool:
        """True if the last two axes of X lie without gaps."""
        return self.choice.name.startswith("flat")

    @property
    def contiguous(self) -> bool:
        """True if neighbours along the last axis lie side by side."""
        return self.flat or self.choice.vector > 1

    @property
    def skewed(self) -> bool:
        """True if a row may begin anywhere within a vector."""
        return self.choice.vector > 1 and (self.flat or (self.name == "tensor_rows" and self.alignment < self.choice.vector))

    @property
    def lanes(self) -> int:
        return self.choice.lanes

    @property
    def groups(self) -> int:
        """Results that a block makes at a time, or threads that take different places of the same results."""
        return max(1, self.choice.threads // self.choice.lanes)

    @property
    def tile_columns(self) -> int:
        """Neighbouring results of a block of ``tensor_columns`` or ``flat_tiles``."""
        if self.name == "flat_tiles" and self.choice.vector > 1:  # a row may begin anywhere in a vector
            return (self.choice.lanes - 1) * self.choice.vector
        return self.choice.lanes * self.choice.vector * self.choice.columns

    @property
    def staged_elements(self) -> int:
        """Elements in shared memory, of ``flat_rows``: those of the rows, and of vectors that reach beyond both ends."""
        return self.choice.threads * self.choice.longest + 2 * self.choice.vector

    @property
    def index_c(self) -> str:
        """C type of indices and extents."""
        return "long long" if self.choice.wide else "int"

    @property
    def in_parts(self) -> bool:
        return self.choice.in_parts

    @property
    def lane(self) -> str:
        """The number of a thread among those that share a result, as a C expression."""
        if self.in_parts:
            return "threadIdx.x"
        return "threadIdx.x % kLanes" if self.lanes > 1 else "0"

    @property
    def divisors(self) -> tuple[str, ...]:
        """Divisors of the kernel, an index of several axes for each but the slowest of them."""
        if self.choice.wide:
            return ()
        units = ("units",) if self.name == "tensor_rows" and self.outer_reduced else ()
        between = self.outer_reduced[1:] if not self.flat else ()
        return (*self.outer_kept[1:], *units, *between)

    @property
    def divisor_formulas(self) -> dict[str, str]:
        formulas = {name: f"max({name}, 1)" for name in self.divisors}
        return formulas | ({"units": f"max({self.units}, 1)"} if "units" in formulas else {})

    @property
    def units(self) -> str:
        """Loads that a row of ``tensor_rows`` takes, as a formula."""
        vector = self.choice.vector
        if vector == 1:
            return self.inner
        return f"ceil_div({self.inner}{f' + {vector - 1}' if self.skewed else ''}, {vector})"

    @property
    def results(self) -> str:
        """Number of results that are made, as a formula."""
        return " * ".join(self.kept[1:] if self.repeated else self.kept) or "1"

    @property
    def count(self) -> str:
        """Number of elements that make one result, as a formula."""
        return " * ".join(self.reduced)

    @property
    def groups_of_parts(self) -> str:
        """Number of meetings of blocks, as a formula: for each result, tile of results, or place along the outer axes."""
        outer = " * ".join(self.outer_kept) or "1"
        if self.name in ("tensor_columns", "flat_tiles"):
            tiles = f"ceil_div({self.inner}, {self.tile_columns})"
            return tiles if outer == "1" else f"{outer} * {tiles}"
        return outer

    @property
    def grid(self) -> Formula:
        if self.name == "flat_rows":
            return Formula(f"ceil_div(k0, {self.choice.threads * self.choice.longest} // max(r0, 1))")
        some = " * min(k0, 1)" if self.repeated else ""
        if self.name == "flat_columns":  # without columns, nothing is launched
            outer = "" if self.groups_of_parts == "1" else f"{self.groups_of_parts} * "
            return Formula(f"{outer}min({self.inner}, 1){some} * parts")
        if self.in_parts:
            return Formula(f"{self.groups_of_parts}{some} * parts")
        return Formula(f"ceil_div({self.results}, {self.groups}){some}")

    def work_bytes(self, state_bytes: int) -> tuple[Formula, Formula]:
        """Bytes of tickets, and of partial results."""
        if not self.in_parts:
            return Formula("0"), Formula("0")
        tickets = "4" if self.groups_of_parts == "1" else f"4 * {self.groups_of_parts}"
        signs = f"select(parts > 1, {tickets}, 0)"
        return Formula(signs), Formula(f"select(parts > 1, {state_bytes} * {self.results} * parts, 0)")

    def extents(self, problem: Mapping[str, int]) -> tuple[int, int, int]:
        """Extents (outer, reduced, inner) of X with its axes in its order."""

        def product(names: tuple[str, ...]) -> int:
            total = 1
            for name in names:
                total *= problem[name]
            return total

        outer = self.kept[:-1] if self.keeps_inner else self.kept
        return product(outer), product(self.reduced), problem[self.inner] if self.keeps_inner else 1

    @property
    def typical_extents(self) -> dict[str, int]:
        """Extents of a tensor of some million elements, if none are given."""
        extents = dict.fromkeys(self.axes, 4)
        if self.name == "flat_rows":
            return {"k0": 1 << 20, "r0": self.choice.longest - 1}
        if self.name == "flat_columns":
            return extents | {"r0": 1 << 20, self.inner: 7}
        between = self.axes[-2:-1]
        return extents | dict.fromkeys(between, 1 << 10) | {self.inner: 1 << 12}

    def dimensions(self, rejects_nothing: bool, counts: bool) -> tuple[tuple[Dimension, ...], tuple[Constraint, ...]]:
        """Extents and strides of X, strides of the results, and their constraints.

        ``counts``: the number of elements that make one result must fit into 31 bits.
        """
        most = MAX_WIDE if self.choice.wide else MAX_COUNTED
        extents = [Dimension(name, f"extent of the kept axis {name[1:]}", maximum=most) for name in self.kept]
        if self.name == "flat_rows":
            most = min(most, self.choice.longest)
        least = 1 if rejects_nothing else 0
        extents += [Dimension(name, f"extent of the reduced axis {name[1:]}", minimum=least, maximum=most) for name in self.reduced]
        strides, width = [], self.alignment
        known = 2 if self.flat else 1 if self.contiguous else 0
        for place, name in enumerate(self.axes[: len(self.axes) - known]):
            if name == "k0" and self.repeated:
                continue
            after = self.axes[place + 1] if place + 1 < len(self.axes) else None
            if after is None:
                default = "1"
            else:
                step = self.stride_of(after)
                default = f"max({after}, 1)" + ("" if step == "1" else f" * {step}")
                default = f"round_up({default}, {width})" if width > 1 and step == "1" else default
            meaning = f"elements of X from one index along {name} to the next"
            strides.append(Dimension(f"{name}_stride", meaning, -STRIDES, STRIDES, Formula(default)))
        results = []
        for place, name in enumerate(self.kept):
            step = f"max({self.kept[place + 1]}, 1) * {self.kept[place + 1]}_y" if place + 1 < len(self.kept) else "1"
            results.append(Dimension(f"{name}_y", f"elements from one result to the next along {name}", -STRIDES, STRIDES, Formula(step)))
        constraints = [
            Constraint(Formula(f"({name} <= 1) + ({name}_y != 0) > 0"), f"{name}_y must not be 0; otherwise results would overlap")
            for name in self.kept
        ]
        if width > 1:
            promised = [f"{name}_stride" for name in self.axes[1 if self.repeated else 0 : -1]]
            promised += [self.inner] if self.keeps_inner and not self.choice.ragged else []
            for name in promised if not self.flat else ():
                text = f"{name} must be a multiple of {width}, as the spec's alignment promises"
                constraints.append(Constraint(Formula(f"{name} % {width} == 0"), text))
        if not self.choice.wide:
            if len(self.kept) > 1:
                constraints.append(
                    Constraint(
                        Formula(f"{self.results} <= {MAX_COUNTED}"),
                        f"{self.results} must be at most {MAX_COUNTED}; an int counts the results",
                    )
                )
            loads = " * ".join((*self.outer_reduced, *(() if self.keeps_inner else (self.units,))))
            if len(self.reduced) > 1:
                constraints.append(
                    Constraint(
                        Formula(f"{loads} <= {MAX_COUNTED}"),
                        f"{loads} must be at most {MAX_COUNTED}; an int counts the loads of a result",
                    )
                )
            if counts and len(self.reduced) > 1:
                constraints.append(
                    Constraint(
                        Formula(f"{self.count} <= {MAX_COUNTED}"),
                        f"{self.count} must be at most {MAX_COUNTED}; an int counts the elements of a result",
                    )
                )
            if self.name == "flat_columns":
                elements = f"r0 * {self.inner}"
                constraints.append(
                    Constraint(
                        Formula(f"{elements} <= {MAX_COUNTED}"), f"{elements} must be at most {MAX_COUNTED}; an int counts the elements"
                    )
                )
        if self.name == "flat_columns":
            constraints.append(
                Constraint(
                    Formula(f"{self.inner} <= {self.choice.threads}"),
                    f"{self.inner} must be at most {self.choice.threads}; a block has a thread for each column",
                )
            )
        return (*extents, *strides, *results, *((self.parts,) if self.in_parts else ())), tuple(constraints)

    @property
    def parts(self) -> Dimension:
        """Blocks that share a result: where it is not said, enough to fill a large GPU, each with a few loads at least."""
        a_few = 2 * self.choice.threads * self.choice.unroll * (1 if self.name == "tensor_columns" else self.choice.vector)
        if self.name == "flat_tiles":
            a_few = 2 * self.groups * self.choice.unroll
        most = f"min({MAX_PARTS}, {self.count} // {a_few})"
        default = f"max(min(ceil_div({BLOCKS}, max({self.groups_of_parts}, 1)), {most}), 1)"
        return Dimension("parts", "blocks that share a result", minimum=1, maximum=MAX_PARTS, default=Formula(default))

    def stride_of(self, axis: str) -> str:
        """The stride of X along an axis, as a formula."""
        if axis == "k0" and self.repeated:
            return "0"
        if axis == self.inner and self.contiguous:
            return "1"
        if self.flat and axis == self.axes[-2]:
            return self.inner
        return f"{axis}_stride"

    def scalars(self, dimensions: tuple[Dimension, ...]) -> list[Argument]:
        """The dimensions as kernel arguments: strides of 64 bits, extents of as many as indices have."""

        def kind(name: str) -> DataType:
            return "s64" if name.endswith(("_stride", "_y")) or (self.choice.wide and name != "parts") else "s32"

        return [ScalarArgument(dimension.name, kind(dimension.name), dimension.meaning) for dimension in dimensions]

    def host_arguments(self) -> list[Argument]:
        """The numbers to divide by, if there are any."""
        return [divisors_argument(self.divisor_formulas)] if self.divisors else []

    def source(self, stored: DataType) -> ArrayArgument:
        """X."""
        shape, strides = tuple(map(Formula, self.axes)), tuple(Formula(self.stride_of(axis)) for axis in self.axes)
        alignment = self.alignment * ELEMENTS[stored].bytes
        return ArrayArgument("X", stored, "input", shape, strides, alignment, "the elements to reduce")

    @property
    def result_layout(self) -> tuple[tuple[Formula, ...], tuple[Formula, ...]]:
        """Shape and strides of the results."""
        if not self.kept:
            return (Formula("1"),), (Formula("1"),)
        return tuple(map(Formula, self.kept)), tuple(Formula(f"{name}_y") for name in self.kept)

    def unit_count(self, problem: Mapping[str, int]) -> int:
        """Loads that a result of ``tensor_rows`` takes."""
        return Formula(" * ".join((*self.outer_reduced, self.units))).evaluate(problem)
