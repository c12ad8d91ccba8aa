"""Orders of the multiply-adds of two fragments: they decide which operands the assembler can reuse."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

OrderName = Literal["rows", "columns", "serpentine_rows", "serpentine_columns", "swirl"]

SWIRL_REGISTERS = (
    *(1, 0, 2, 3, 5, 4, 6, 7, 33, 32, 34, 35, 37, 36, 38, 39),
    *(45, 44, 46, 47, 41, 40, 42, 43, 13, 12, 14, 15, 9, 8, 10, 11),
    *(17, 16, 18, 19, 21, 20, 22, 23, 49, 48, 50, 51, 53, 52, 54, 55),
    *(61, 60, 62, 63, 57, 56, 58, 59, 29, 28, 30, 31, 25, 24, 26, 27),
)
"""The FFMAs of maxas's 8 x 8 tile in their order, by the number of the register of C. Source: Gray, maxas wiki, SGEMM."""
_SWIRL_ROWS = (3, 7, 1, 5, 35, 39, 33, 37)
"""The register of the first element of each row of C in maxas's kernel; its registers continue 0, -1, 8, 7, 16, 15, 24, 23 from there,
so that no register of C shares a bank with the operands that it is computed from."""
_SWIRL_COLUMNS = (0, -1, 8, 7, 16, 15, 24, 23)
KEPT_OPERANDS = 2
"""Registers that a reuse cache keeps for each place of an operand: 8 bytes a lane on Maxwell."""


@dataclass(frozen=True)
class FmaOrder:
    """The order in which the outer product of two fragments is listed."""

    major_first: bool
    """True if the outer loop walks the major fragment."""
    serpentine: bool
    """True if every other inner loop runs backwards."""
    pairs: tuple[tuple[int, int], ...] = ()
    """An irregular order: the (major, minor) indices of every product."""

    @property
    def description(self) -> str:
        """End of a sentence about the outer product; empty where nothing is special about the order."""
        if self.pairs:
            return ", in maxas's order: circles of two rows and two columns"
        return f": {'rows' if self.major_first else 'columns'} back and forth" if self.serpentine else ""


def fma_order(name: OrderName) -> FmaOrder:
    """The order of that name."""
    if name == "swirl":
        return FmaOrder(True, False, swirl())
    return FmaOrder("rows" in name, name.startswith("serpentine"))


def swirl() -> tuple[tuple[int, int], ...]:
    """maxas's order as (row, column) of the 8 x 8 tile: two rows and two columns at a time, in circles."""
    place = {first + step: (row, column) for row, first in enumerate(_SWIRL_ROWS) for column, step in enumerate(_SWIRL_COLUMNS)}
    return tuple(place[register] for register in SWIRL_REGISTERS)


def product_pairs(order: FmaOrder, major: int, minor: int) -> tuple[tuple[int, int], ...]:
    """The (major, minor) indices of all products of two fragments, in their order."""
    if order.pairs:
        return order.pairs
    outer, inner = (major, minor) if order.major_first else (minor, major)
    pairs = []
    for i in range(outer):
        backwards = order.serpentine and i % 2 == 1
        pairs += [(i, inner - 1 - j if backwards else j) for j in range(inner)]
    return tuple(pairs if order.major_first else [(j, i) for i, j in pairs])


def reused_operands(pairs: Sequence[tuple[int, int]], kept: int = KEPT_OPERANDS) -> int:
    """Operands that need not be read from the register file, of the three of every product, where each place of an operand keeps
    the ``kept`` registers that were read there last. Sums are written at once, and never reused."""
    reused = 0
    for place in (0, 1):
        cache: OrderedDict[int, None] = OrderedDict()
        for pair in pairs:
            if pair[place] in cache:
                reused += 1
                cache.move_to_end(pair[place])
                continue
            cache[pair[place]] = None
            if len(cache) > kept:
                cache.popitem(last=False)
    return reused
