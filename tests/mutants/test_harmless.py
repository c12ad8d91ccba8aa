"""The rules for changes that nothing can observe, and changes right beside them."""

from __future__ import annotations

import pytest

import gemmgen
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.verification.runner import verify_case

from .harmless import rule_for
from .operators import Mutant, all_mutants
from .trials import Subject, deep_cases, try_mutant

SHIFT = "return kLeadingBytes / kDescriptorUnit << 16 | (address & kAddressBits) / kDescriptorUnit;"
TILES = "__device__ __forceinline__ int tiles_n(int n) { return (n - 1) / kTileN + 1; }"
COLUMNS = "const int copy_column_a = threadIdx.x % kVectorsPerRowA * kVectorA;"
LOOP = "for (; index < works; index += gridDim.x / kClusterBlocks) {"
DIFFERENCE = "const int rows_left_b = n - block_n - copy_row_b;"
SECOND = "+ ((rank - 1) * (kBlocksM * kTileN / kMatrix) * kMultipliers + threadIdx.x - kGroupThreads)"
REMOTE = "address_in_block(extremes + (rank - 1) * kBlocksM * (kMultipliers / 4) * kExtremesBytes, 0);"
TURNS = "for (int first = 0; first < k; first += kRepairK) {"
COVERED = [
    ("gemm/wgmma/fp8/64x64", "a statement is missing", "prefetch_tensor_map(map_b);", "prefetch"),
    ("gemm/wgmma/fp8/64x64", "a condition never holds", "if (k > 0) {", "prefetch"),
    ("gemm/wgmma/fp8_decode/16", "stay in the loop", "break;", "counter rises"),
    ("gemm/wgmma/bf16/128x144", "a constant one too large", "constexpr int kBand = 8;", "order of the same tiles"),
    ("gemm/wgmma/tf32/64x32", "a constant halved", "constexpr int kStages = 8;", "Fewer stages"),
    ("gemm/wgmma/bf16_decode/8", "add becomes assign", "for (; index < works; index += gridDim.x / kClusterBlocks) {", "one tile"),
    ("conv2d/direct/depthwise/int8", "an index one too far", "int sums[kRows][kPixels][kChannels] = {};", "array of a lane"),
    ("conv2d/tcgen05/f16_128x256", "less becomes less or equal", "value = value < 0.0f ? 0.0f : value;", "either sign"),
    ("conv2d/mma_sync/output/int32", "drop a condition", "if (stage < steps) {", "past the last entry"),
    ("conv2d/mma_sync/turing/128x64x64", "plus becomes minus", "if (plane < kPlanes - 1 || step + 1 < steps) {", "read ahead"),
    ("gemm/wgmma/bf16_decode/8", "a loop takes steps of twice the size", LOOP, "one tile"),
    ("gemm/wgmma/stream_k", "a constant halved", "constexpr int kLeadingBytesA = 16;", "rows run along k"),
    ("gemm/wgmma/fp8/64x32", "another shift", SHIFT, "rows run along k"),
    ("gemm/wgmma/batched", "a constant doubled", "constexpr int kLeadingBytesB = 8192;", "a tile is one box"),
    ("gemm/wgmma/int8/64x32", "minus becomes plus", TILES, "behind the last"),
    ("gemm/simt/sgemm_tiny/nt", "a lane off by one", COLUMNS, "each another one"),
    (
        "gemm/simt/sgemm_small/tt",
        "a subtraction the wrong way round",
        "const int rows_left_b = n - block_n - copy_row_b;",
        "same difference",
    ),
    ("gemm/wgmma/batch_invariant", "a factor is missing", SECOND, "the distance is 0"),
    ("gemm/split_precision/bf16x6_decode/wide_64_k2", "plus becomes minus", REMOTE, "the distance is 0"),
    ("gemm/split_precision/bf16x6_decode/wide_96_k2", "a loop takes one turn more", TURNS, "has no products"),
    ("gemm/wgmma/tf32/128x160", "plus becomes minus", "constexpr int kThreads = 128 * (1 + kGroups);", "launch bound"),
    ("gemm/wgmma/fp8/128x64_k2", "plus becomes minus", "constexpr int kThreads = 128 * (1 + kGroups);", "launch bound"),
    ("quantise/quantise/exponents", "a constant one too large", "constexpr int kThreads = 256;", "launch bound"),
    ("gemm/simt/epilogues/clamped_residual", "a condition never holds", "if (available >= 2) {", "element by element"),
    ("elementwise/quantise", "plus becomes minus", "return a + b;", "is NaN"),
    ("reduction/sum/16k", "a statement is missing", "__nanosleep(pause);", "takes time alone"),
    ("gemm/wgmma/layouts/unaligned_a", "more than becomes at least", "if (work.steps > 0) {", "only with k of 0"),
    ("gemm/wgmma/grouped/int8", "a constant halved", "constexpr int kBoxElementsA = 128;", "one box"),
    ("reduction/rows/1m", "a constant doubled", "constexpr int kUnroll = 4;", "each element is added once"),
]
OBSERVED = [
    ("gemm/wgmma/fp8/64x64", "drop a condition", "if (k > 0) {"),
    ("gemm/wgmma/bf16/128x144", "plus becomes minus", "const int tile_m = band * kBand + within % band_tiles;"),
    ("gemm/wgmma/tf32/64x32", "a constant doubled", "constexpr int kStages = 8;"),
    ("gemm/wgmma/bf16/64x32", "a loop takes steps of twice the size", "for (; index < works; index += gridDim.x) {"),
    ("gemm/wgmma/bf16/64x32", "plus becomes minus", "mbarrier_arrive(empty + kBarrierBytes * previous);"),
    ("conv2d/mma_sync/output/int32", "a condition never holds", "if (stage < steps) {"),
    ("conv2d/mma_sync/turing/128x64x64", "a condition never holds", "if (plane < kPlanes - 1 || step + 1 < steps) {"),
    ("gemm/v3_double_buffer", "an index one too far", "float accumulators[kThreadM][kThreadN] = {};"),
    ("gemm/simt/epilogues/clamped_residual", "drop a condition", "if (available >= 2) {"),
    ("gemm/wgmma/int8/64x32", "plus becomes minus", TILES),
    ("quantise/quantise/exponents", "a constant halved", "constexpr int kThreads = 256;"),
    ("gemm/wgmma/stream_k", "drop a condition", "if (work.steps > 0) {"),
    ("gemm/split_precision/bf16x6_decode/wide_24_k3", "plus becomes minus", REMOTE),
    ("gemm/split_precision/bf16x6_decode/wide_96_k2", "a loop takes steps of twice the size", TURNS),
    ("gemm/wgmma/layouts/transposed", "a constant halved", "constexpr int kBoxElementsA = 64;"),
    ("reduction/sum/16k", "a constant halved", "constexpr int kVector = 4;"),
]


def mutants_of(subject: Subject, kind: str, before: str) -> list[Mutant]:
    """The changes of a kind to a line."""
    found = [mutant for mutant in all_mutants(subject.source) if (mutant.kind, mutant.before) == (kind, before)]
    assert found
    return found


@pytest.mark.parametrize(("name", "kind", "before", "why"), COVERED)
def test_a_rule_covers(name: str, kind: str, before: str, why: str) -> None:
    subject = Subject.of(name)
    reasons = [rule_for(subject.plan, subject.source, mutant) for mutant in mutants_of(subject, kind, before)]
    assert any(why in (reason or "") for reason in reasons)


@pytest.mark.parametrize(("name", "kind", "before"), OBSERVED)
def test_no_rule_covers_what_lies_beside(name: str, kind: str, before: str) -> None:
    subject = Subject.of(name)
    assert [rule_for(subject.plan, subject.source, mutant) for mutant in mutants_of(subject, kind, before)].count(None) >= 1


def test_shared_steps_take_several_turns() -> None:
    """The spec's 264 blocks would take as many steps; with five, the kernel is the same but for that number."""
    spec = gemmgen.plan(shipped_specs()["gemm/simt/stream_k"]).spec.model_dump(mode="json", exclude_unset=True)
    plan = gemmgen.plan(spec | {"decomposition": {"scheme": "stream_k", "blocks": 5}})
    (case,) = deep_cases(plan)
    subject = Subject("stream-K of few blocks", plan, gemmgen.render(plan).text, ((plan, case),))
    assert verify_case(plan, subject.binary, EmulatorBackend(), case).failure == ""
    first = mutants_of(subject, "a statement is missing", "load_fragment_a(fragment_a, &shared_a[stage][kk][first_m]);")[0]
    assert try_mutant(subject, first).outcome == "caught"


def test_the_sums_of_all_slices_count() -> None:
    subject = Subject.of("gemm/gemv/rows/four_by_eight")
    deep = tuple(item for item in subject.cases if item[1].name == "70 whole slices")
    ((plan, case),) = deep
    assert verify_case(plan, subject.binary, EmulatorBackend(), case).failure == ""
    (mutant,) = mutants_of(subject, "a loop ends one early", "for (int group = 0; group < kSummers; ++group)")
    assert try_mutant(Subject(subject.name, subject.plan, subject.source, deep), mutant).outcome == "caught"


def test_deep_cases_of_few_kernels_only() -> None:
    assert deep_cases(gemmgen.plan(shipped_specs()["gemm/v0_naive"])) == []
    assert deep_cases(gemmgen.plan(shipped_specs()["reduction/rows/32"])) == []
