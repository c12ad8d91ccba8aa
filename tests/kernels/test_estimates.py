"""Estimates of registers: they warn, because only the compiler decides; impossible specs are refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import SHIPPED, spec_id

from gemmgen.core.errors import PlanError
from gemmgen.kernels.family import InstancePlan
from gemmgen.kernels.planning import plan
from gemmgen.kernels.spec_files import load_spec
from gemmgen.toolchain.compilation import compile_plan

WARP_MMA = ("tile.threadblock.n=192", "tile.warp.m=64", "tile.warp.n=48", "min_blocks_per_sm=2", "stages=3")
TIGHT: dict[str, tuple[str, tuple[str, ...]]] = {
    "tiled": ("gemm/simt/maxas/64", ()),
    "mma": ("gemm/mma_sync/bf16/128x128", tuple(f"mainloop.{field}" for field in WARP_MMA)),
    "wgmma": ("gemm/wgmma/bf16/128x128", ("mainloop.tile.n=224", "mainloop.consumers=1", "mainloop.stages=3")),
    "convolution": ("conv2d/mma_sync/turing/128x128x32", ("min_blocks_per_sm=3",)),
    "reduction": ("reduction/open/rows", ("strategy.unroll=16",)),
    "processor": ("cpu/c4_avx2_16x6", ("loops.micro_kernel.columns=7", "loops.blocks.n=210")),
}
"""Specs, with changes, of which an estimate says that they need more registers than there are."""


def planned(spec: str, changes: Sequence[str]) -> InstancePlan:
    """The plan of a shipped spec with changes."""
    return plan(load_spec(spec, changes))


@pytest.mark.parametrize("case", TIGHT)
def test_an_estimate_warns_and_does_not_refuse(case: str) -> None:
    (warning,) = planned(*TIGHT[case]).warnings
    assert warning.code == "registers" and "estimate" in warning.got


@pytest.mark.parametrize(("case", "spilled"), [("tiled", False), ("wgmma", False), ("mma", True), ("reduction", True)])
def test_the_compiler_says_what_becomes_of_it(case: str, spilled: bool) -> None:
    tight = planned(*TIGHT[case])
    assert (compile_plan(tight).resources[tight.name].spill_stores > 0) == spilled


@pytest.mark.parametrize(
    ("spec", "changes", "need"),
    [
        ("gemm/simt/maxas/64", ("mainloop.min_blocks_per_sm=16",), "fewer than the 64 registers"),
        ("gemm/mma_sync/bf16/128x128", (*(f"mainloop.{field}" for field in WARP_MMA), "mainloop.min_blocks_per_sm=3"), "fewer than the 80"),
        ("gemm/wgmma/bf16/128x128", ("mainloop.tile.n=256", "mainloop.consumers=1", "mainloop.stages=2"), "fewer than the 248"),
        ("conv2d/mma_sync/turing/128x128x32", ("min_blocks_per_sm=4",), "fewer than the 128 registers"),
        ("cpu/c4_avx2_16x6", ("loops.micro_kernel.columns=8",), "fewer than the 16 vector registers"),
    ],
)
def test_sums_that_alone_are_too_many_are_refused(spec: str, changes: Sequence[str], need: str) -> None:
    with pytest.raises(PlanError) as raised:
        planned(spec, changes)
    assert any(reason.code == "registers" and need in reason.need for reason in raised.value.reasons)


@pytest.mark.parametrize("path", SHIPPED, ids=spec_id)
def test_of_shipped_specs_one_is_warned_of(path: Path) -> None:
    assert bool(plan(load_spec(path)).warnings) == (path.name == "64" and path.parent.stem == "maxas")
