"""Convolution on tensor memory: combinations of types, layouts and stores on the emulator, refusals, and mutants that must not pass."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st

import gemmgen
from gemmgen.core.errors import PlanError
from gemmgen.kernels.conv2d.explain import explain
from gemmgen.kernels.conv2d.pictures import pictures
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import COMPILE_OPTIONS, compile_plan
from gemmgen.toolchain.nvrtc import compile_source
from gemmgen.verification.oracle import oracle_of
from gemmgen.verification.runner import verify_binary
from kernels.random_batches import try_random_specs

EVERY = 12
"""So manyth case runs, beginning at a different one for each combination."""
MAINLOOP = {"strategy": "tcgen05", "tile": {"channels": 128, "pixels": 64, "k": 64}, "stages": 3, "persistent_blocks": 2}
SPEC: dict[str, Any] = {
    "kind": "conv2d",
    "architecture": "sm_100a",
    "mainloop": MAINLOOP,
    "input": {"type": "f16", "layout": "nhwc"},
    "bias": "f32",
    "activation": {"op": "relu"},
    "output": {"type": "f16", "layout": "nhwc"},
    "store": "tma",
}
POINTWISE = {"r": 1, "s": 1, "stride_h": 1, "stride_w": 1, "padding_h": 0, "padding_w": 0}
INT8 = {**SPEC, "input": {"type": "s8", "layout": "nhwc"}, "output": {"type": "s8", "layout": "nhwc"}}


def with_mainloop(spec: dict[str, Any], pixels: int, k: int, **more: Any) -> dict[str, Any]:
    return {**spec, "mainloop": {**MAINLOOP, "tile": {"channels": 128, "pixels": pixels, "k": k}, **more}}


COMBINATIONS: dict[str, dict[str, Any]] = {
    "float16 by TMA": SPEC,
    "bfloat16 through shared memory": {**SPEC, "input": {"type": "bf16", "layout": "nhwc"}, "store": "shared"},
    "float32 one by one": with_mainloop({**SPEC, "output": {"type": "f32", "layout": "nhwc"}, "store": "direct"}, 32, 32),
    "rows of pixels": with_mainloop({**SPEC, "convolution": POINTWISE, "residual": True}, 96, 64, activations="rows"),
    "bytes by TMA": with_mainloop(INT8, 64, 128),
    "bytes through shared memory": with_mainloop({**INT8, "store": "shared", "early_launch": True}, 128, 64),
    "blocks of 32 channels": with_mainloop(
        {**INT8, "input": {"type": "s8", "layout": "nchw32"}, "output": {"type": "s8", "layout": "nchw32"}, "store": "shared"}, 64, 128
    ),
    "a zero point": with_mainloop({**INT8, "input": {"type": "u8", "layout": "nhwc"}, "zero_point": "argument"}, 64, 128),
    "pairs of blocks": with_mainloop(SPEC, 64, 64, pair=True),
    "rows of pixels by pairs": with_mainloop({**SPEC, "convolution": POINTWISE, "residual": True}, 96, 64, activations="rows", pair=True),
    "bytes through shared memory by pairs": with_mainloop({**INT8, "store": "shared"}, 128, 64, pair=True),
    "int32": {
        **with_mainloop(INT8, 64, 128),
        "output": {"type": "s32", "layout": "nhwc"},
        "bias": "s32",
        "alpha": "one",
        "gamma": "one",
        "store": "direct",
    },
}
MUTANTS = {
    "sums that nobody waits for": ("mbarrier_wait(done + kBarrierBytes * set, set_phase);", ""),
    "sums that are overwritten": ("mbarrier_wait(drained + kBarrierBytes * set, set_phase ^ 1);", ""),
    "tiles that nobody waits for": ("mbarrier_wait(full + kBarrierBytes * stage, phase);", ""),
    "a stage given back at once": ("commit_products(empty + kBarrierBytes * stage);", "mbarrier_arrive(empty + kBarrierBytes * stage);"),
    "results read before they are loaded": ("wait_for_tensor_loads();\n", ""),
    "no fence behind the barrier": (
        "mbarrier_wait(done + kBarrierBytes * set, set_phase);\n            tensor_memory_after_sync();",
        "mbarrier_wait(done + kBarrierBytes * set, set_phase);",
    ),
    "sums that begin anew": ("step > 0 || part > 0", "part > 0"),
    "sums of the other set": ("sums + set * kTilePixels + first", "sums + first"),
    "tensor memory that is kept": ("free_tensor_memory<kTensorColumns>(sums);", ";"),
    "a filter tap left out": ("++tap;", "tap += 2;"),
    "channels of another warp": ("+ warp * kWarpRows + lane / 4", "+ lane / 4"),
    "results before the last ones are out": ("store_boxes_wait<1>();", ";"),
    "boxes of other channels": ("block * kBlockChannels", "0"),
}


PAIR_MUTANTS = {
    "bytes of one block": ("kClusterBlocks * (kBytesA + kBytesB)", "(kBytesA + kBytesB)"),
    "pixels of the first block": ("work.pixel + rank * kOwnPixels", "work.pixel"),
    "channels of the first block": ("(channel_tile * kClusterBlocks + rank)", "(channel_tile * kClusterBlocks)"),
    "sums read by one block": ("kClusterBlocks * kEpilogueWarps", "kEpilogueWarps"),
    "a barrier of the own block": ("address_in_block(full + kBarrierBytes * stage, kLeader)", "full + kBarrierBytes * stage"),
    "products of both blocks": ("lane == 0 && rank == kLeader", "lane == 0"),
    "a stage given back to the leader alone": ("kBothBlocks = 3", "kBothBlocks = 1"),
}


@pytest.mark.parametrize("name", COMBINATIONS)
def test_a_combination_verifies(name: str) -> None:
    plan = gemmgen.plan(COMBINATIONS[name])
    binary = compile_plan(plan)
    assert all(used.spill_loads == used.spill_stores == used.local_bytes == 0 for used in binary.resources.values())
    cases = oracle_of("conv2d").cases(plan)[list(COMBINATIONS).index(name) :: EVERY]
    assert cases and verify_binary(plan, binary, EmulatorBackend(), cases=cases).passed


@pytest.mark.parametrize(("pair", "mutant"), [*((False, name) for name in MUTANTS), *((True, name) for name in PAIR_MUTANTS)])
def test_a_broken_kernel_is_found_out(pair: bool, mutant: str) -> None:
    plan = gemmgen.plan(with_mainloop(SPEC, 64, 64, pair=pair))
    source = gemmgen.render(plan).text
    before, after = (MUTANTS | PAIR_MUTANTS)[mutant]
    assert before in source, f"{before!r} is not in the source any more"
    binary = compile_source(source.replace(before, after), architecture="sm_100a", options=COMPILE_OPTIONS)
    wanted = ("3 x 3, padding 1", "tiles of many steps", "channels above a tile", "more tiles than blocks")
    cases = [case for case in oracle_of("conv2d").cases(plan) if case.name in wanted]
    assert len(cases) == len(wanted) and not verify_binary(plan, binary, EmulatorBackend(), cases=cases).passed


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({**SPEC, "architecture": "sm_90a"}, "tcgen05"),
        ({**INT8, "architecture": "sm_103a"}, "tcgen05"),
        ({**SPEC, "mainloop": {**MAINLOOP, "tile": {"channels": 64, "pixels": 64, "k": 64}}}, "tile_channels"),
        (with_mainloop(SPEC, 40, 64), "tile_pixels"),
        (with_mainloop(SPEC, 48, 64, pair=True), "tile_pixels"),
        (with_mainloop(SPEC, 64, 64, pair=True, persistent_blocks=3), "persistent_blocks"),
        (with_mainloop({**INT8, "input": {"type": "s8", "layout": "nchw32"}, "store": "shared"}, 64, 128, pair=True), "layout"),
        (with_mainloop(SPEC, 64, 24), "tile_k"),
        (with_mainloop(SPEC, 256, 64, stages=8), "shared_memory"),
        (with_mainloop(SPEC, 64, 64, activations="rows"), "rows"),
        ({**SPEC, "convolution": {"groups": 2}}, "groups"),
        ({**SPEC, "output": {"type": "f32", "layout": "nhwc"}}, "store"),
        ({**SPEC, "split_k": 2}, "mainloop"),
    ],
)
def test_a_spec_that_cannot_work_says_why(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(PlanError) as raised:
        gemmgen.plan(fields)
    assert reason in [each.code for each in raised.value.reasons]


def test_sums_of_two_tiles_fill_tensor_memory() -> None:
    loops = [gemmgen.plan(with_mainloop(SPEC, pixels, 64)).loop for pixels in (32, 96, 256)]
    assert [loop.tensor_columns for loop in loops] == [64, 256, 512]


def test_tensor_memory_is_explained_and_drawn() -> None:
    plan = gemmgen.plan(SPEC)
    titles = [section.title for section in explain(plan)]
    drawn = [picture.name for picture in pictures(plan)]
    assert "Tensor memory" in titles and "tensor_memory" in drawn


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """Specs that mostly work; tiles are small, so that they run quickly."""
    x = draw(st.sampled_from(("f16", "bf16", "s8", "u8")))
    size = 2 if x in ("f16", "bf16") else 1
    blocks = size == 1 and draw(st.integers(0, 3)) == 0
    y = draw(st.sampled_from(("f16", "bf16", "f32") if size == 2 else ("s8", "u8", "s32", "f32", "f16")))
    exact = y == "s32"
    layout = "nchw32" if blocks and y in ("s8", "u8") else "nhwc"
    stores = ("direct",) if y in ("s32", "f32") else ("direct", "shared") if layout == "nchw32" else ("direct", "shared", "tma")
    rows = not blocks and draw(st.integers(0, 3)) == 0
    return {
        "kind": "conv2d",
        "architecture": "sm_100a",
        "mainloop": {
            "strategy": "tcgen05",
            "tile": {
                "channels": 128,
                "pixels": draw(st.sampled_from((32, 64, 96))),
                "k": draw(st.sampled_from((32, 64, 128))) // size,
            },
            "stages": draw(st.integers(2, 4)),
            "activations": "rows" if rows else "im2col",
            "persistent_blocks": draw(st.sampled_from((0, 2, 3))),
            "pair": draw(st.booleans()),
        },
        "convolution": POINTWISE if rows else draw(st.sampled_from(({}, {"r": 3, "s": 3}, {"c": 64, "stride_h": 2, "stride_w": 2}))),
        "input": {"type": x, "layout": "nchw32" if blocks else "nhwc"},
        "output": {"type": y, "layout": layout},
        "store": draw(st.sampled_from(stores)),
        "bias": draw(st.sampled_from(("none", "s32") if exact else ("none", "f32"))),
        "alpha": "one" if exact else draw(st.sampled_from(("one", "argument", "channel"))),
        "beta": "one" if exact else draw(st.sampled_from(("one", "argument"))),
        "gamma": "one",
        "residual": draw(st.booleans()),
        "zero_point": draw(st.sampled_from(("none", "argument"))) if size == 1 else "none",
        "activation": {"op": draw(st.sampled_from(("none", "relu")))},
    }


def test_a_random_spec_is_rejected_or_verifies() -> None:
    outcomes = try_random_specs(specs(), 7, examples=8, every=18)
    assert outcomes["verified"] >= 4
