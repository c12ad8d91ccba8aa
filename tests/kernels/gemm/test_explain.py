"""An explanation has a line for whatever a spec asks for."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import spec_id

import gemmgen
from gemmgen.kernels.gemm.explain import explain
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.present.explanation import explanation_of

BASE = {
    "kind": "gemm",
    "architecture": "sm_90",
    "alignment": {"a": 4, "b": 4, "c": 4},
    "mainloop": {
        "strategy": "tiled",
        "tile": {"threadblock": {"m": 128, "n": 128, "k": 16}, "warp": {"m": 64, "n": 32}, "thread": {"m": 8, "n": 8}},
    },
}


def explained(overrides: list[str]) -> dict[tuple[str, str], str]:
    plan = gemmgen.plan(BASE, overrides=overrides)
    lines: dict[tuple[str, str], str] = {}
    for section in explain(plan):  # type: ignore[arg-type]
        for label, text in section.lines:
            lines[section.title, label] = lines.get((section.title, label), "") + text
    return lines


@pytest.mark.parametrize(
    ("overrides", "section", "label", "words"),
    [
        (["mainloop.lanes=z_order"], "Tile hierarchy", "thread", "zig-zag"),
        (["mainloop.k_groups=2"], "Shared memory", "load sums", "64 x 4 bytes a lane: 64 wavefronts, 0 conflicts: the fewest possible"),
        (["mainloop.shared_a.order=k_major"], "Shared memory", "counted", "reads of A, as in the source; the compiler may merge"),
        (["mainloop.fragment=interleaved"], "Tile hierarchy", "rows of a thread", "every 8th"),
        (["rasterization.along=major", "rasterization.group=4"], "Blocks", "order of tiles", "bands of 4 tiles along n, traversed along m"),
        (["multiple_of.k=64"], "Blocks", "edges", "k is a multiple of 64: nothing is checked there; m, n may end"),
        (["batch=strided"], "Blocks", "batch", "y of the grid"),
        (["decomposition={scheme: split_k_serial, slices: 3}"], "Blocks", "division of k", "3 slices"),
        (["decomposition={scheme: split_k_parallel, slices: 3}"], "Blocks", "sum", "a second kernel adds the slices up"),
        (["mainloop.k_groups=2"], "Tile hierarchy", "warp", "in each of 2 groups, which split k"),
        (["early_launch=true", "architecture=sm_90"], "Blocks", "launch", "while the work before them"),
        (["decomposition={scheme: stream_k, blocks: 132}"], "Blocks", "workspace", "768 + 8650752 bytes, of which the first 528 are 0"),
        (["mainloop.copies=cp_async", "cache.l1_b=keep"], "Copies of one tile along k", "B", "the L1 keeps them"),
        (["mainloop.copies=cp_async", "cache.l2_policy_b=evict_first"], "Copies of one tile along k", "B", "for them is evict_first"),
        (["mainloop.copies=cp_async", "cache.l2_prefetch_b=128"], "Copies of one tile along k", "B", "the L2 fetches 128 bytes around"),
        (["mainloop.copies=cp_async"], "Copies of one tile along k", "path", "cp.async"),
        (["mainloop.loaders=halves", "transpose=tn"], "Copies of one tile along k", "loaders", "half of the threads copy A"),
        (["storage.a=f16"], "Copies of one tile along k", "A", "converted to float32"),
        (["mainloop.copies=cp_async", "mainloop.stages=4"], "Mainloop", "stages", "the next 3 tiles are in flight"),
        (["mainloop.order=serpentine_columns"], "Mainloop", "order of products", "column by column of the thread's tile, every other one"),
        (["mainloop.order=swirl"], "Mainloop", "order of products", "swirl"),
        (["mainloop.fragment_buffers=2"], "Mainloop", "fragments", "two buffers"),
        (["mainloop.unroll=4"], "Mainloop", "unrolling", "4 at a time"),
        (["mainloop.min_blocks_per_sm=2"], "Mainloop", "occupancy", "at most 128 registers"),
        (["mainloop.shared_a.swizzle=xor"], "Shared memory", "layout of A", "XOR swizzle: bits 2 to 3 of the row"),
        (["mainloop.shared_a.padding=8"], "Shared memory", "layout of A", "8 elements of padding"),
        (["store=through_shared"], "Results", "stored", "through shared memory"),
        (["cache.streaming_stores=true"], "Results", "cache", "leave A and B in the L2"),
    ],
)
def test_a_field_of_the_spec_has_its_line(overrides: list[str], section: str, label: str, words: str) -> None:
    assert words in explained(overrides)[section, label]
    assert words not in explained([]).get((section, label), "")


def test_predictions_stand_beside_the_fewest_wavefronts() -> None:
    lines = explained(["mainloop.shared_a.padding=0"])
    assert lines["Shared memory", "store tile of A"].endswith("32 wavefronts, 24 conflicts; 8 at the fewest")
    assert lines["Shared memory", "store tile of B"].endswith("8 wavefronts, 0 conflicts: the fewest possible")
    assert lines["Shared memory", "beside arithmetic"].endswith("shared-memory time is 91% of arithmetic time")


@pytest.mark.parametrize("path", [path for name, path in shipped_specs().items() if name.startswith("gemm/")], ids=spec_id)
def test_explanations_are_whole_lines_of_text(path: Any) -> None:
    plan = gemmgen.plan(path)
    for section in explanation_of(plan.spec.kind).explain(plan):
        assert section.title and section.lines
        assert all(text and text == text.strip() and "None" not in text for _, text in section.lines)


def test_copies_whose_sources_meet_are_warned_of() -> None:
    narrow = gemmgen.plan("specs/gemm/simt/swizzled_cp_async.yaml", "sm_80")
    wide = gemmgen.plan("specs/gemm/simt/half_storage.yaml/bf16_cp_async", "sm_80")
    told = [text for section in explain(narrow) for label, text in section.lines if label == "warning"]  # type: ignore[arg-type]
    assert len(told) == 1 and told[0].startswith("copies of A take 2 wavefronts where 1 would do")
    assert not [text for section in explain(wide) for label, text in section.lines if label == "warning"]  # type: ignore[arg-type]
