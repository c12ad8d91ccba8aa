"""The order of the multiply-adds of two fragments: it decides which registers the assembler can reuse."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.kernels.gemm.spec import TiledMainloop

SWIRL_MAJOR = (0, 4, 5, 1, 2, 6, 7, 3)
SWIRL_MINOR = (1, 0, 2, 3, 5, 4, 6, 7)
"""The order in which maxas lists the 64 products of its 8 x 8 tile, so that 47% of the operands are still in the reuse caches of
Maxwell's register file: rows as in ``SWIRL_MAJOR``, of which the second and third of every four take the columns of
``SWIRL_MINOR`` from the middle. Source: the maxas SGEMM documentation."""


@dataclass(frozen=True)
class FmaOrder:
    """The order in which the outer product of two fragments is listed."""

    major_first: bool
    """Whether the outer loop walks the major fragment."""
    serpentine: bool
    """Whether every other inner loop runs backwards."""
    table: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """For an irregular order: the major indices as they come, each with its order of minor indices."""


def fma_order(mainloop: TiledMainloop) -> FmaOrder:
    """The order that the spec asks for."""
    if mainloop.order == "swirl":
        turned = SWIRL_MINOR[4:] + SWIRL_MINOR[:4]
        table = tuple((row, turned if at % 4 in (2, 3) else SWIRL_MINOR) for at, row in enumerate(SWIRL_MAJOR))
        return FmaOrder(True, False, table)
    return FmaOrder("rows" in mainloop.order, mainloop.order.startswith("serpentine"))
