"""Mistakes that only the cases beyond a family's list show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.verification.runner import verify_case

from .operators import all_mutants
from .trials import Subject, try_mutant

MISTAKES = {
    "the last stage of a tile is never freed": (
        "gemm/wgmma/quantised/uint8",
        "const int previous = stage == 0 ? kStages - 1 : stage - 1;",
        "const int previous = stage == 0 ? kStages - 2 : stage - 1;",
        "tiles of as many steps as stages, few blocks",
    ),
    "a stage is freed in the place of another": (
        "conv2d/wgmma/quantised/bf16",
        "mbarrier_arrive(empty + kBarrierBytes * previous);",
        "mbarrier_arrive(empty - kBarrierBytes * previous);",
        "tiles of whole turns, few blocks",
    ),
    "a ticket's place is taken before it has been read": (
        "gemm/wgmma/dynamic",
        "mbarrier_wait(barriers + kBarrierBytes * (kTickets + place), (count / kTickets & 1) ^ 1);",
        "mbarrier_wait(barriers + kBarrierBytes * (kTickets + place), (count / kTickets & 0) ^ 1);",
        "many tiles of one step, few blocks",
    ),
    "infinities are taken for large numbers": (
        "gemm/split_precision/f16x3/128x64",
        "constexpr int kNotFinite = 255;",
        "constexpr int kNotFinite = 256;",
        "lines of one infinity and zeros",
    ),
    "the second band begins one tile after the first": (
        "gemm/wgmma/bf16/128x168",
        "const int tile_m = band * kBand + within % band_tiles;",
        "const int tile_m = band + within % band_tiles;",
        "more tiles than a band",
    ),
    "the last band is as wide as the others": (
        "gemm/mma_sync/fp8/tma",
        "const int band_tiles = min(kBand, across - band * kBand);",
        "const int band_tiles = min(kBand, across + band * kBand);",
        "more tiles than a band",
    ),
    "copies within the loop take the lines of A for those of B": (
        "gemm/mma_sync/swiglu",
        "copy_tile<TileA, kThreads>(tiles_a + filled * kBytesA, base_a, lda, work.row, at_k, m, end_k);",
        "copy_tile<TileA, kThreads>(tiles_a + filled * kBytesA, base_a, ldb, work.row, at_k, m, end_k);",
        "padded leading dimensions, many steps",
    ),
    "a second round of slices is left out": (
        "gemm/simt/split_k/deep_128x128",
        "for (int slice = group; slice < slices; slice += kReductionGroups) {",
        "for (int slice = group; slice < slices; slice += 2 * (kReductionGroups)) {",
        "70 whole slices",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_only_a_further_case_shows(mistake: str) -> None:
    name, before, after, wanted = MISTAKES[mistake]
    subject = Subject.of(name)
    mutant = [m for m in all_mutants(subject.source) if (m.before, m.after) == (before, after)][-1]
    ((plan, case),) = [(plan, case) for plan, case in subject.cases if case.name == wanted]
    assert verify_case(plan, subject.binary, EmulatorBackend(), case).failure == ""
    verdict = try_mutant(replace(subject, cases=((plan, case),)), mutant)
    assert verdict.outcome == "caught"
