"""Mistakes that only the cases beyond a family's list show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.verification.runner import verify_case

from .operators import all_mutants
from .trials import CASE_OF_ORDERS, Subject, try_mutant

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
    "a second round of many slices is left out": (
        "gemm/gemv/rows/one",
        "for (int first = threadIdx.x / kSpan; first < slices; first += kAtOnce * kSummers) {",
        "for (int first = threadIdx.x / kSpan; first < slices; first += 2 * (kAtOnce * kSummers)) {",
        "262 whole slices",
    ),
    "a pair's set of sums is given back too early": (
        "gemm/tcgen05/f16_256x256",
        "if (lane == 0)",
        "if (true)",
        "more tiles than sets of sums, few blocks",
    ),
    "what a repaired sum has lost is added to its neighbour": (
        "gemm/split_precision/mma_sync/f16x3",
        "lost[i][j] += add_compensated(sums[i][j], products[i][j]);",
        "lost[i][j + 1] += add_compensated(sums[i][j], products[i][j]);",
        "crowds of lines too wide for planes, each of another size",
    ),
    "a largest element beyond the row": (
        "rows/rows/softmax",
        "const int first = origin + held * kStride;",
        "const int first = origin - held * kStride;",
        "rows far below zero, and one element far above the others",
    ),
    "the largest element of half of the warps": (
        "rows/rows/log_softmax",
        "for (int distance = kWarps / 2; distance > 0; distance /= 2) {",
        "for (int distance = kWarps / 2; distance > 1; distance /= 2) {",
        "rows far below zero, and one element far above the others",
    ),
    "rows are left to the repair for another row's sake": (
        "gemm/tcgen05/f32_tf32x3_128x64",
        "k > 0 ? exponents_a[min(first_row + block * kInstructionM + half * kMatrix, m - 1)] : 0;",
        "k > 0 ? exponents_a[min(first_row + block + half * kMatrix, m - 1)] : 0;",
        "few lines of one infinity",
    ),
    "what a group of warps has seen of the least numbers is lost": (
        "gemm/split_precision/bf16x6_decode/wide_16_turns",
        "least[block][0] = min(least[block][0], found.y);",
        ";",
        "every second line one number too small for planes",
    ),
    "columns beyond the last count for the largest result": (
        "gemm/wgmma/quantised/fp8_amax",
        "const int column = first_column + j * kMatrix;",
        "const int column = first_column + j;",
        "a bias that the last column's products outweigh",
    ),
    "all elements that equal the k-th": (
        "rows/rows/topk_long",
        "return elements.count(whole_row, [&](unsigned order, int) { return order >= bound; });",
        "return elements.count(whole_row, [&](unsigned order, int) { return order > bound; });",
        "equal elements of few lanes, 18 of 8192",
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


def test_each_vector_of_a_long_row_may_have_the_largest() -> None:
    subject = Subject.of("quantise/quantise/rows")
    ((plan, case),) = [(plan, case) for plan, case in subject.cases if "largest number" in case.name]
    assert verify_case(plan, subject.binary, EmulatorBackend(), case).failure == ""
    mutants = [m for m in all_mutants(subject.source) if m.after == "largest = larger_finite(largest, words[i + 1]);"]
    outcomes = [try_mutant(replace(subject, cases=((plan, case),)), mutant).outcome for mutant in mutants]
    assert outcomes == ["caught", "caught"]


def test_a_block_that_ends_early_disturbs_no_other() -> None:
    """Its last arrivals go to a barrier that counts bytes: in some orders of the blocks, under which the unchanged kernel passes, those
    bytes are still under way."""
    subject = Subject.of("gemm/wgmma/bf16_decode/80_wide_pair")
    wrong = "mbarrier_arrive_remote(address_in_block(empty - kBarrierBytes * previous, lane));"
    mutant = [m for m in all_mutants(subject.source) if m.after == wrong][-1]
    ((plan, case),) = [(plan, case) for plan, case in subject.cases if case.name == CASE_OF_ORDERS]
    assert try_mutant(replace(subject, cases=((plan, case),)), mutant).outcome == "caught"
