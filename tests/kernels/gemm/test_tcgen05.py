"""GEMMs on tensor memory: specs that cannot work say why, those that can compute the right result, and mistakes are caught."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import strategies as st

import gemmgen
from gemmgen.core.errors import PlanError
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import choose
from gemmgen.hardware.target import device
from gemmgen.kernels.gemm.oracle import cases_of_several_tiles
from gemmgen.kernels.gemm.strategies import part_of
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import COMPILE_OPTIONS
from gemmgen.toolchain.nvrtc import compile_source
from gemmgen.verification.oracle import oracle_of
from gemmgen.verification.runner import VerificationReport, verify_binary
from kernels.gemm.tensor_core_specs import ELEMENT_BYTES, OTHERS, RESULTS
from kernels.random_batches import try_random_specs

MAINLOOP = {"strategy": "tcgen05", "tile": {"n": 32, "k": 64}, "stages": 2, "persistent_blocks": 1}
SPEC = {
    "kind": "gemm",
    "architecture": "sm_100a",
    "transpose": "nt",
    "alpha": "one",
    "beta": "zero",
    "storage": {"a": "bf16", "b": "bf16", "c": "bf16"},
    "alignment": {"a": 8, "b": 8, "c": 8},
    "mainloop": MAINLOOP,
}
PAIR = {**SPEC, "mainloop": {**MAINLOOP, "persistent_blocks": 2, "pair": True}}
DYNAMIC = {**SPEC, "mainloop": {**MAINLOOP, "persistent_blocks": 0, "pair": True, "tiles": "dynamic"}}
NVFP4 = {
    **SPEC,
    "storage": {"a": "u8", "b": "u8", "c": "bf16"},
    "scales": {name: {"k": 16, "type": "e4m3", "layout": "tiles_128x4"} for name in "ab"},
    "alignment": {"a": 16, "b": 16, "c": 8},
    "multiple_of": {"k": 32},
    "mainloop": {**MAINLOOP, "tile": {"n": 128, "k": 128}, "multiplied": "e2m1"},
}
MXFP8 = {
    **NVFP4,
    "storage": {"a": "e4m3", "b": "e4m3", "c": "bf16"},
    "scales": {name: {"k": 32, "type": "ue8m0", "layout": "tiles_128x4"} for name in "ab"},
    "multiple_of": {},
    "mainloop": {**MAINLOOP, "tile": {"n": 128, "k": 128}},
}
DEEP = {**NVFP4, "architecture": "sm_103a", "mainloop": {**NVFP4["mainloop"], "tile": {"n": 128, "k": 384}, "instruction_k": 96}}
"""Instructions of 96 values of k."""
DEEP_MXFP4 = {**DEEP, "scales": {name: {"k": 32, "type": "ue8m0", "layout": "tiles_128x4"} for name in "ab"}}
DEEP_PAIR = {**DEEP, "mainloop": {**DEEP["mainloop"], "pair": True, "persistent_blocks": 2}}
NVFP4_PAIR = {**NVFP4, "mainloop": {**NVFP4["mainloop"], "pair": True, "persistent_blocks": 2}}
BOXES = {**SPEC, "store": "tma", "multiple_of": {"n": 8}, "mainloop": {**MAINLOOP, "tile": {"n": 64, "k": 64}}}
DONE = "mbarrier_wait(done + kBarrierBytes * set, set_phase);\n            tensor_memory_after_sync();"
NAMES = ("alone", "pair", "dynamic", "nvfp4", "mxfp8", "nvfp4_pair", "boxes", "deep", "deep_mxfp4", "deep_pair")
BYTES = {**SPEC, "storage": {"a": "s8", "b": "s8", "c": "s32"}, "alignment": {"a": 16, "b": 16, "c": 4}}


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({**SPEC, "architecture": "sm_90a"}, "tcgen05"),
        ({**SPEC, "storage": {"a": "f32", "b": "f32", "c": "f32"}}, "storage"),
        ({**BYTES, "transpose": "nn", "mainloop": {**MAINLOOP, "tile": {"n": 64, "k": 128}}}, "major"),
        ({**SPEC, "transpose": "nn"}, "tile"),
        ({**SPEC, "alignment": {"a": 4, "b": 8, "c": 8}}, "alignment"),
        ({**SPEC, "mainloop": {**MAINLOOP, "tile": {"n": 32, "k": 32}}}, "tile_k"),
        ({**SPEC, "mainloop": {**MAINLOOP, "tile": {"n": 256, "k": 64}, "stages": 8}}, "shared_memory"),
        ({**SPEC, "decomposition": {"scheme": "stream_k", "blocks": 4}}, "decomposition"),
        ({**SPEC, "batch": "grouped"}, "batch"),
        ({**SPEC, "store": "through_shared"}, "store"),
        ({**SPEC, "cache": {"streaming_stores": True}}, "cache"),
        ({**PAIR, "mainloop": {**PAIR["mainloop"], "persistent_blocks": 3}}, "persistent_blocks"),
        ({**PAIR, "mainloop": {**PAIR["mainloop"], "tiles": "dynamic"}}, "persistent_blocks"),
        ({**SPEC, "mainloop": {**MAINLOOP, "arithmetic": {"kept": "a"}}}, "arithmetic"),
        ({**SPEC, "mainloop": {**MAINLOOP, "promote_every": 64}}, "promotion"),
        ({**NVFP4, "scales": {}}, "scales"),
        ({**NVFP4, "scales": {name: {"k": 128, "type": "f32"} for name in "ab"}}, "scales"),
        ({**NVFP4, "mainloop": {**NVFP4["mainloop"], "tile": {"n": 64, "k": 128}}}, "scales"),
        ({**DEEP, "architecture": "sm_100a"}, "instruction_k"),
        ({**DEEP, "mainloop": {**DEEP["mainloop"], "tile": {"n": 128, "k": 256}}}, "tile_k"),
        ({**MXFP8, "architecture": "sm_103a", "mainloop": {**DEEP["mainloop"], "multiplied": "stored"}}, "instruction_k"),
        ({**BOXES, "multiple_of": {}}, "multiple_of"),
        ({**BOXES, "alignment": {"a": 8, "b": 8, "c": 4}}, "alignment"),
        ({**BOXES, "order": "column_major"}, "store"),
        ({**BOXES, "mainloop": MAINLOOP}, "tile_n"),
        ({**NVFP4, "transpose": "nn"}, "transpose"),
        ({**PAIR, "transpose": "nn", "mainloop": {**PAIR["mainloop"], "tile": {"n": 64, "k": 64}}}, "tile"),
    ],
)
def test_a_spec_that_cannot_work_says_why(spec: dict[str, Any], code: str) -> None:
    with pytest.raises(PlanError) as raised:
        gemmgen.plan(spec)
    assert code in [reason.code for reason in raised.value.reasons]


@pytest.mark.parametrize(("columns", "allocated"), [(32, 64), (96, 256), (128, 256), (256, 512)])
def test_two_sets_of_sums_are_allocated_in_powers_of_two(columns: int, allocated: int) -> None:
    loop = gemmgen.plan({**SPEC, "mainloop": {**MAINLOOP, "tile": {"n": columns, "k": 64}}}).loop
    assert loop.tensor_columns == allocated and loop.blocks_per_sm * allocated == 512


def test_the_instruction_descriptor_has_types_and_sizes() -> None:
    form = gemmgen.plan(SPEC).loop.form
    assert (form >> 4 & 3, form >> 7 & 7, form >> 10 & 7, (form >> 17 & 63) * 8, (form >> 24 & 31) * 16) == (1, 1, 1, 32, 128)


def test_kernels_are_made_for_all_chips_with_tensor_memory() -> None:
    for name in ("sm_103a", "sm_110a"):
        assert gemmgen.plan({**NVFP4_PAIR, "architecture": name}).architecture.name == name
    fitting = {**BYTES, "mainloop": {**MAINLOOP, "tile": {"n": 32, "k": 128}}}
    assert gemmgen.plan({**fitting, "architecture": "sm_110a"}).loop.kind == "i8"
    with pytest.raises(PlanError, match="types other than 8-bit integers"):
        gemmgen.plan({**fitting, "architecture": "sm_103a"})


@pytest.mark.parametrize("problem", ["gemm:4096,4096,4096,nt,bf16", "gemm:4096,4096,4096,nt", "conv2d:128,128,28,28,128,3,3,1,1,f16"])
def test_a_device_with_the_same_instructions_gets_these_kernels(problem: str) -> None:
    chosen = [choose(parse_problem(problem), device(name)).chosen for name in ("B200", "B300")]
    assert [option.plan.architecture.name for option in chosen] == ["sm_100a", "sm_103a"]
    assert len({option.candidate.label for option in chosen}) == 1 and "/tcgen05/" in chosen[0].candidate.label


def test_the_warp_that_asks_for_tiles_is_explained() -> None:
    roles = [dict(part_of(gemmgen.plan(spec), "explain").sections(gemmgen.plan(spec))[0].lines) for spec in (PAIR, DYNAMIC)]
    assert ["scheduler" in each for each in roles] == [False, True]


def test_products_that_no_model_covers_are_named() -> None:
    named = [gemmgen.plan(spec).bits_not_confirmed for spec in (SPEC, NVFP4, PAIR, NVFP4_PAIR)]
    assert named == [(), (), ("products of pairs of blocks",), ("products of pairs of blocks",)]


def test_uses_of_tensor_memory_are_drawn() -> None:
    drawn = part_of(gemmgen.plan(NVFP4), "pictures").pictures(gemmgen.plan(NVFP4))
    (picture,) = [each for each in drawn if each.name == "tensor_memory"]
    columns = [(share.rectangles[0][1], share.rectangles[0][3]) for share in picture.c.shares]
    assert columns == [(0, 128), (128, 128), (256, 16), (272, 16)]


@pytest.mark.parametrize("spec", [SPEC, NVFP4], ids=["plain", "scaled"])
def test_no_columns_have_two_holders_at_a_time(spec: dict[str, Any]) -> None:
    plan = gemmgen.plan(spec)
    (picture,) = [each for each in part_of(plan, "pictures").pictures(plan) if each.name == "tensor_memory_times"]
    assert len(picture.rows) == (3 if spec is NVFP4 else 2)
    for row in range(len(picture.rows)):
        spans = sorted((span.start, span.start + span.length, span.text) for span in picture.spans if span.row == row)
        assert all(later[0] >= sooner[1] - 1e-9 for sooner, later in itertools.pairwise(spans))
    of_tile = {span.text: span for span in picture.spans if span.row < 2}
    for tile in range(6):
        assert of_tile[f"epilogue {tile}"].start >= of_tile[f"products {tile}"].start + of_tile[f"products {tile}"].length


def test_pairs_and_scales_are_drawn() -> None:
    plan = gemmgen.plan(NVFP4_PAIR)
    drawn = {each.name: each for each in part_of(plan, "pictures").pictures(plan)}
    pair, scales = drawn["tiles"].levels[0], drawn["scales"].c
    assert [share.rectangles for share in pair.shares] == [((0, 0, 128, 128),), ((128, 0, 128, 128),)]
    assert scales.shares[5].rectangles == ((5, 0, 1, 4), (37, 0, 1, 4), (69, 0, 1, 4), (101, 0, 1, 4))


def verify_with(spec: dict[str, Any], old: str, new: str) -> VerificationReport:
    plan = gemmgen.plan(spec)
    text = gemmgen.render(plan).text
    assert old in text, f"{old!r} is not in the source any more"
    binary = compile_source(text.replace(old, new), architecture=spec["architecture"], options=COMPILE_OPTIONS)
    cases = [case for case in oracle_of("gemm").cases(plan) if case.name in ("many steps", "2 x 3 tiles") and case.data == "integers"]
    return verify_binary(plan, binary, EmulatorBackend(), cases=cases)


@pytest.mark.parametrize("spec", [SPEC, PAIR, DYNAMIC, NVFP4, MXFP8, NVFP4_PAIR, BOXES, DEEP, DEEP_MXFP4, DEEP_PAIR], ids=NAMES)
def test_an_unchanged_kernel_passes(spec: dict[str, Any]) -> None:
    assert verify_with(spec, "kStages", "kStages").passed


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("mbarrier_wait(full + kBarrierBytes * stage, phase);", ""),
        ("mbarrier_wait(drained + kBarrierBytes * set, set_phase ^ 1);", ""),
        (DONE, "tensor_memory_after_sync();"),
        (DONE, "mbarrier_wait(done + kBarrierBytes * set, set_phase);"),
        ("commit_products(empty + kBarrierBytes * stage);", "mbarrier_arrive(empty + kBarrierBytes * stage);"),
        ("wait_for_tensor_loads();\n", ""),
        ("step > 0 || part > 0", "part > 0"),
        ("kVersion << 14", "0 << 14"),
        ("sums + set * kTileN + first", "sums + first"),
        ("free_tensor_memory<kTensorColumns>(sums);", ";"),
    ],
)
def test_a_changed_kernel_is_caught(old: str, new: str) -> None:
    assert not verify_with(SPEC, old, new).passed


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("kClusterBlocks * (kBytesA + kBytesB)", "(kBytesA + kBytesB)"),
        ("kBothBlocks = 3", "kBothBlocks = 1"),
        ("kClusterBlocks * kEpilogueWarps", "kEpilogueWarps"),
        ("address_in_block(drained + kBarrierBytes * set, kLeader)", "address_in_block(drained + kBarrierBytes * set, rank)"),
        ("work.column + rank * (kTileN / kClusterBlocks)", "work.column"),
        ("tensor_memory_before_sync();\n    sync_cluster();\n    tensor_memory_after_sync();\n    const", "__syncthreads();\n    const"),
        ("tensor_memory_before_sync();\n    sync_cluster();\n    tensor_memory_after_sync();\n    if", "__syncthreads();\n    if"),
        ("    if (warp == 0)\n        allocate_", "    if (warp == 0 && rank == kLeader)\n        allocate_"),
        ("address_in_block(full + kBarrierBytes * stage, kLeader)", "full + kBarrierBytes * stage"),
        ("lane == 0 && rank == kLeader", "lane == 0"),
    ],
)  # fmt: skip
def test_a_changed_pair_is_caught(old: str, new: str) -> None:
    assert not verify_with(PAIR, old, new).passed


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("block < 0 ? -1 : block / kClusterBlocks", "block < 0 ? -1 : 0"),
        ("kClusterBlocks * (kEpilogueWarps + 1) + 2", "kClusterBlocks * (kEpilogueWarps + 1)"),
        ("mbarrier_wait(answers.read", "if (asked < 0) mbarrier_wait(answers.read"),
        ("block < kClusterBlocks; ++block", "block < 1; ++block"),
        ("index = __shfl_sync(0xffffffff, index, 0);", ""),
    ],
)
def test_a_changed_scheduler_is_caught(old: str, new: str) -> None:
    """Answers are read before they have come, by too few threads, or by one lane only; a place is used again too early."""
    assert not verify_with(DYNAMIC, old, new).passed


@pytest.mark.parametrize(
    ("spec", "old", "new"),
    [
        (NVFP4, "sums + kScalesB + word * kScaleColumns, part", "sums + kScalesB, part"),
        (NVFP4, "if (step == work.steps - 1 && blocks % kTileBlocks != 0)", "if (false)"),
        (NVFP4, "scale_tile(scales_b, work.column, step, scale_tiles)", "scale_tile(scales_b, work.row, step, scale_tiles)"),
        (NVFP4, "2 * words * kScaleTileBytes", "words * kScaleTileBytes"),
        (NVFP4, "fence_async_proxy();\n", ""),
        (MXFP8, "first << 29 | first << 4", "first << 29"),
        (MXFP8, "part % kParts, step", "0, step"),
        (MXFP8, "constexpr unsigned kStrideBytes = 128;  // from eight rows", "constexpr unsigned kStrideBytes = 256;  // from eight rows"),
        (DEEP, "erase_scales(tiles + (operand * kWords + word) * kScaleTileBytes, lane);", ";"),
        (DEEP, "clear_scales(tile, left % kTileBlocks, lane);", ";"),
        (DEEP, "if (left < words * kTileBlocks)", "if (false)"),
        (DEEP, "fence_async_proxy();\n", ""),
        (DEEP, "(row + 1) * kSpanBytes", "row * kSpanBytes"),
        (DEEP, " | kContinues;", ";"),
        (DEEP, "first % kTileBlocks, step", "0, step"),
        (DEEP, "const int word = first / kTileBlocks;", "const int word = part;"),
        (DEEP, "const int words = (parts * kBlocks - 1) / kTileBlocks + 1;", "const int words = (left - 1) / kTileBlocks + 1;"),
        (DEEP, "(left - 1) / kBlocks + 1);", "left / kBlocks);"),
        (DEEP, "if (part < parts)", "if (true)"),
        (DEEP, "2 * words * kScaleTileBytes", "words * kScaleTileBytes"),
        (DEEP_MXFP4, "constexpr int kBlocks = 3", "constexpr int kBlocks = 2"),
    ],
)  # fmt: skip
def test_changed_block_scales_are_caught(spec: dict[str, Any], old: str, new: str) -> None:
    """Scales of another word, line, block or byte, padding that is read, and bytes that are not announced."""
    plan = gemmgen.plan(spec)
    text = gemmgen.render(plan).text
    assert old in text, f"{old!r} is not in the source any more"
    binary = compile_source(text.replace(old, new), architecture=spec["architecture"], options=COMPILE_OPTIONS)
    names = (
        ("a row", "a last tile of scales that does not exist")
        if "instruction_k" in spec["mainloop"]
        else ("many steps", "2 x 3 tiles", "primes")
    )
    cases = [case for case in oracle_of("gemm").cases(plan) if case.name in names]
    assert cases and not verify_binary(plan, binary, EmulatorBackend(), cases=cases).passed


@pytest.mark.parametrize("erases", [True, False])
def test_scales_of_a_tile_that_was_not_copied_are_zeros(erases: bool) -> None:
    plan = gemmgen.plan(DEEP_MXFP4)
    text = gemmgen.render(plan).text
    statement = "erase_scales(tiles + (operand * kWords + word) * kScaleTileBytes, lane);"
    assert statement in text
    source = text if erases else text.replace(statement, ";")
    binary = compile_source(source, architecture="sm_103a", options=COMPILE_OPTIONS)
    (case,) = [case for case in cases_of_several_tiles(plan) if case.name == "a last tile of scales that does not exist"]
    assert verify_binary(plan, binary, EmulatorBackend(), cases=[case]).passed is erases


@pytest.mark.parametrize(
    ("spec", "old", "new"),
    [
        (NVFP4_PAIR, "        mbarrier_wait(scaled + kBarrierBytes * stage, phase);", "        ;"),
        (NVFP4_PAIR, "mbarrier_arrive_remote(address_in_block(scaled", "mbarrier_arrive_remote(address_in_block(empty"),
        (NVFP4_PAIR, "scale_tile(scales_a, min(work.row, m - 1)", "scale_tile(scales_a, work.row - rank * kTileM"),
        (NVFP4_PAIR, "scale_tile(scales_a, min(work.row, m - 1)", "scale_tile(scales_a, work.row"),
        (BOXES, "fence_async_proxy();\n", ""),
        (BOXES, "store_boxes_wait<kBoxBuffers - 1>();", ";"),
        (BOXES, "store_boxes_wait<0>();", ";"),
        (BOXES, "^ lane / 4", "^ lane / 8"),
        (BOXES, "work.column - part", "work.column"),
    ],
)
def test_changed_scales_of_pairs_and_boxes_are_caught(spec: dict[str, Any], old: str, new: str) -> None:
    """Scales of the other block that nothing waits for, or of other rows; boxes that are read or left too early, or misplaced."""
    assert not verify_with(spec, old, new).passed


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """Specs that mostly work; tiles are small, so that they run quickly."""
    a = draw(st.sampled_from(("f16", "bf16", "tf32", "s8", "e4m3")))
    b = draw(st.sampled_from((a, a, OTHERS.get(a, a))))
    c = draw(st.sampled_from(RESULTS.get(a, ("f32", "f16", "bf16"))))
    size, plain = ELEMENT_BYTES[a], c == "s32"
    column_major = draw(st.integers(0, 3)) == 0
    along_k = "tn" if column_major else "nt"
    operations = [{"op": "bias", "per": draw(st.sampled_from(("row", "column", "all")))}, {"op": "relu"}]
    operations += [{"op": "residual"}] if c in ("f32", "f16", "bf16") else []
    reads = c in ("f32", "f16", "bf16")
    unit = 16 // ELEMENT_BYTES[c]
    boxes = not column_major and draw(st.booleans())
    return {
        "kind": "gemm",
        "architecture": "sm_100a",
        "order": "column_major" if column_major else "row_major",
        "transpose": draw(st.sampled_from(("nn", "nt", "tn", "tt"))) if size == 2 else along_k,
        "alpha": "one" if plain else draw(st.sampled_from(("one", "argument"))),
        "beta": draw(st.sampled_from(("zero", "argument"))) if reads else "zero",
        "storage": {"a": a, "b": b, "c": c},
        "alignment": {"a": 16 // size, "b": 16 // size, "c": unit if boxes else draw(st.sampled_from((1, 2, 4)))},
        "multiple_of": {"n": unit} if boxes else {},
        "store": "tma" if boxes else "direct",
        "batch": draw(st.sampled_from(("none", "none", "strided"))),
        "epilogue": [] if plain else draw(st.lists(st.sampled_from(operations), max_size=2, unique_by=lambda each: each["op"])),
        "mainloop": {
            "strategy": "tcgen05",
            "tile": {
                "n": draw(st.sampled_from((32, 64, 96) if size != 2 and not boxes else (64, 128))),
                "k": 128 // size * draw(st.sampled_from((1, 1, 2))),
            },
            "stages": draw(st.integers(2, 3)),
            "persistent_blocks": draw(st.sampled_from((0, 2, 3))),
            "pair": draw(st.booleans()),
            "tiles": draw(st.sampled_from(("static", "dynamic"))),
        },
    }


@st.composite
def scaled_specs(draw: st.DrawFn) -> dict[str, Any]:
    """Specs with block scales."""
    name, block, scale = draw(st.sampled_from((("e2m1", 16, "e4m3"), ("e2m1", 32, "ue8m0"), ("stored", 32, "ue8m0"))))
    types = st.sampled_from(("e4m3", "e5m2"))
    a, b = ("u8", "u8") if name == "e2m1" else (draw(types), draw(types))
    dynamic = draw(st.booleans())
    boxes = draw(st.booleans())
    c = draw(st.sampled_from(("f32", "f16", "bf16")))
    deep = name == "e2m1" and draw(st.integers(0, 2)) == 0
    of_k = {"k": draw(st.sampled_from((2, 32)))} if name == "e2m1" else {}
    operations = st.sampled_from(({"op": "bias", "per": "column"}, {"op": "relu"}))
    return {
        **(DEEP if deep else NVFP4),
        "alpha": draw(st.sampled_from(("one", "argument"))),
        "beta": draw(st.sampled_from(("zero", "argument"))),
        "storage": {"a": a, "b": b, "c": c},
        "alignment": {"a": 16, "b": 16, "c": 16 // ELEMENT_BYTES[c] if boxes else draw(st.sampled_from((1, 2, 4)))},
        "store": "tma" if boxes else "direct",
        "scales": {operand: {"k": block, "type": scale, "layout": "tiles_128x4"} for operand in "ab"},
        "multiple_of": of_k | ({"n": 16 // ELEMENT_BYTES[c]} if boxes else {}),
        "epilogue": draw(st.lists(operations, max_size=2, unique_by=lambda each: each["op"])),
        "mainloop": {
            "strategy": "tcgen05",
            "tile": {"n": 128, "k": 384 if deep else draw(st.sampled_from((128, 256)))},
            "stages": 2 if deep else draw(st.integers(2, 3)),
            "instruction_k": 96 if deep else "auto",
            "persistent_blocks": 0 if dynamic else draw(st.sampled_from((0, 2))),
            "tiles": "dynamic" if dynamic else "static",
            "pair": draw(st.booleans()),
            "multiplied": name,
        },
    }


@pytest.mark.parametrize("drawn", [specs(), scaled_specs()], ids=["plain", "scaled"])
def test_a_random_spec_is_rejected_or_verifies(drawn: st.SearchStrategy[dict[str, Any]]) -> None:
    outcomes = try_random_specs(drawn, 7, examples=8, every=18)
    assert outcomes["verified"] >= 4
