"""A GEMM with a thread for each element of C, in words."""

from __future__ import annotations

from typing import cast

from gemmgen.kernels.family import Section
from gemmgen.kernels.gemm.naive.plan import NaivePlan
from gemmgen.kernels.gemm.spec import NaiveMainloop
from gemmgen.kernels.gemm.wording import blocks
from gemmgen.kernels.tiles.unrolling import unrolling_text


def sections(plan: NaivePlan) -> list[Section]:
    """Tiles and blocks."""
    hierarchy = (
        ("threadblock", f"{plan.tile_m} x {plan.tile_n} of C by {plan.threads} threads"),
        ("thread", "1 x 1 of C; reads 2 k elements from global memory for k multiply-adds"),
        ("unrolling", f"the loop over k, {unrolling_text(cast('NaiveMainloop', plan.spec.mainloop).unroll)}"),
    )
    return [Section("Tile hierarchy", hierarchy), Section("Blocks", blocks(plan))]
