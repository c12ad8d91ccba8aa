"""Convolution on wgmma: all the combinations that a spec may ask for, on the emulator, and mutants that must not pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gemmgen import api
from gemmgen.codegen.rendering import render
from gemmgen.core.errors import PlanError
from gemmgen.kernels.conv2d.warpgroup import WarpgroupPlan
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import COMPILE_OPTIONS, compile_plan
from gemmgen.toolchain.nvrtc import compile_source
from gemmgen.verification.oracle import oracle_of
from gemmgen.verification.runner import verify_case

EVERY = 12
"""So manyth case runs, beginning at a different one for each combination."""


def spec(tile: tuple[int, int, int] = (64, 64, 64), more: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    channels, pixels, k = tile
    loop = {"strategy": "warpgroup", "tile": {"channels": channels, "pixels": pixels, "k": k}, "stages": 3, "consumers": 1}
    return {
        "kind": "conv2d",
        "architecture": "sm_90a",
        "mainloop": loop | {"persistent_blocks": 6} | (more or {}),
        "input": {"layout": "nhwc"},
        "output": {"layout": "nhwc"},
        **fields,
    }


POINTWISE = {"r": 1, "s": 1, "stride_h": 1, "stride_w": 1, "padding_h": 0, "padding_w": 0}
ROW_OF_3 = {"s": 3, "stride_w": 1, "dilation_w": 1}
WINDOWS = {"activations": "windows"}
VECTORS = {"activations": "vectors"}
PIXEL_ROWS = {"rows": "pixels"}
FLOAT16: dict[str, Any] = {"input": {"type": "f16", "layout": "nhwc"}, "output": {"type": "f16", "layout": "nhwc"}}
BFLOAT16: dict[str, Any] = {"input": {"type": "bf16", "layout": "nhwc"}, "output": {"type": "bf16", "layout": "nhwc"}}
EXACT = {"alpha": "one", "gamma": "one", "output": {"type": "s32", "layout": "nhwc"}, "store": "direct"}
COMBINATIONS: dict[str, dict[str, Any]] = {
    "two groups, each with its channels": spec((128, 96, 128), {"consumers": 2}, bias="f32", activation={"op": "relu"}),
    "three groups of channels": spec(
        (64, 32, 32), {"consumers": 1}, convolution={"groups": 3, "c": 96, "k": 192, "r": 3, "s": 3, "padding_h": 1, "padding_w": 1}
    ),
    "two groups, each with its pixels": spec((64, 128, 32), {"consumers": 2, "division": "pixels"}),
    "two blocks of channels in a group": spec((128, 32, 64), {"unroll": 1}, alpha="channel", beta="argument"),
    "rows of pixels": spec((64, 96, 128), {"activations": "rows"}, convolution=POINTWISE),
    "a cluster that shares pixels": spec((64, 64, 64), {"cluster": {"blocks": 2, "share": "pixels"}}, bias="none"),
    "a cluster that shares filters": spec((64, 64, 128), {"cluster": {"blocks": 2, "share": "filter"}}),
    "four blocks that share rows of pixels": spec(
        (64, 96, 64), {"activations": "rows", "cluster": {"blocks": 4, "share": "pixels"}, "persistent_blocks": 8}, convolution=POINTWISE
    ),
    "a cluster that divides the sums": spec(
        (64, 64, 64), {"cluster": {"blocks": 4, "share": "tile"}, "persistent_blocks": 0}, bias="f32", store="tma", early_launch=True
    ),
    "a cluster that divides the sums of rows of pixels": spec(
        (128, 64, 64),
        {"activations": "rows", "cluster": {"blocks": 2, "share": "tile"}, "persistent_blocks": 0, "consumers": 2},
        convolution=POINTWISE,
        input={"type": "f16", "layout": "nhwc"},
        output={"type": "f16", "layout": "nhwc"},
        residual=True,
    ),
    "a cluster that divides the sums of taps that share pixels": spec(
        (64, 64, 64),
        WINDOWS | {"cluster": {"blocks": 8, "share": "tile"}, "persistent_blocks": 0, "consumers": 2, "division": "pixels"},
        convolution=ROW_OF_3,
    ),
    "results by TMA": spec((128, 64, 64), {"consumers": 2}, store="tma", activation={"op": "relu"}),
    "results by TMA, two tiles at a time": spec((64, 64, 64), {"store_buffers": 2}, store="tma", bias="f32"),
    "float16 by TMA": spec((64, 32, 128), output={"type": "f16", "layout": "nhwc"}, residual=True, store="tma"),
    "taps that share pixels": spec((64, 128, 64), WINDOWS | {"consumers": 2, "division": "pixels"}, convolution=ROW_OF_3, bias="f32"),
    "taps that share pixels, a cluster that shares filters": spec(
        (128, 64, 128),
        WINDOWS | {"consumers": 2, "stages": 2, "cluster": {"blocks": 2, "share": "filter"}},
        convolution=ROW_OF_3,
        residual=True,
        output={"type": "f16", "layout": "nhwc"},
    ),
    "taps that share pixels, float16": spec(
        (64, 64, 64),
        WINDOWS,
        convolution={"s": 5, "stride_w": 1, "dilation_w": 1},
        input={"type": "f16", "layout": "nhwc"},
        output={"type": "f16", "layout": "nhwc"},
    ),
    "vectors": spec((128, 64, 128), VECTORS | {"consumers": 2}, bias="f32", activation={"op": "relu"}, store="tma", early_launch=True),
    "vectors of float16": spec(
        (64, 96, 64),
        VECTORS | {"stages": 4},
        input={"type": "f16", "layout": "nhwc"},
        output={"type": "f16", "layout": "nhwc"},
        residual=True,
    ),
    "vectors, groups with separate pixels": spec(
        (64, 128, 64),
        VECTORS | {"consumers": 2, "division": "pixels"},
        input={"type": "bf16", "layout": "nhwc"},
        output={"type": "f32", "layout": "nhwc"},
        store="direct",
    ),
    "vectors, a cluster that divides the sums": spec(
        (64, 32, 64),
        VECTORS | {"cluster": {"blocks": 4, "share": "tile"}, "persistent_blocks": 0},
        input={"type": "f16", "layout": "nhwc"},
        output={"type": "f16", "layout": "nhwc"},
    ),
    "vectors of a layer that is known": spec(
        (64, 64, 128), VECTORS, convolution={"c": 48, "k": 80, "r": 3, "s": 3, "stride_h": 2, "padding_h": 1, "padding_w": 1}
    ),
    "rows of pixels as products' rows": spec(
        (72, 128, 64), PIXEL_ROWS | {"consumers": 2, "division": "pixels"}, **FLOAT16, bias="f32", residual=True, alpha="channel"
    ),
    "vectors, pixels as products' rows": spec(
        (40, 128, 64), PIXEL_ROWS | VECTORS | {"stages": 4}, **BFLOAT16, epilogue=[{"op": "bias", "per": "channel"}, {"op": "residual"}]
    ),
    "rows of pixels, a cluster that divides the sums": spec(
        (48, 64, 64), PIXEL_ROWS | {"cluster": {"blocks": 4, "share": "tile"}, "persistent_blocks": 0, "stages": 3}, **FLOAT16, bias="f32"
    ),
    "vectors, rows of pixels, a cluster that divides the sums": spec(
        (40, 128, 64),
        PIXEL_ROWS | VECTORS | {"consumers": 2, "division": "pixels", "cluster": {"blocks": 2, "share": "tile"}, "persistent_blocks": 0},
        **BFLOAT16,
    ),
    "vectors, a cluster that shares filters": spec(
        (64, 32, 64), VECTORS | {"cluster": {"blocks": 2, "share": "filter"}, "persistent_blocks": 4}, **FLOAT16
    ),
    "vectors, rows of pixels, a cluster that shares filters": spec(
        (48, 64, 64), PIXEL_ROWS | VECTORS | {"cluster": {"blocks": 2, "share": "filter"}, "persistent_blocks": 4}, **BFLOAT16
    ),
    "results in NCHW32": spec((128, 64, 64), {"consumers": 2}, output={"layout": "nchw32"}),
    "NCHW32 to NCHW32": spec((128, 96, 128), {"consumers": 2}, input={"layout": "nchw32"}, output={"layout": "nchw32"}, bias="f32"),
    "NCHW32 to NHWC in a cluster": spec((64, 64, 64), {"cluster": {"blocks": 2, "share": "pixels"}}, input={"layout": "nchw32"}),
    "NCHW32, channels that are known": spec((64, 64, 32), input={"layout": "nchw32"}, convolution={"c": 96}),
    "a residual in NCHW32": spec(output={"layout": "nchw32"}, residual=True, activation={"op": "relu"}),
    "a residual": spec(residual=True, bias="f32", activation={"op": "relu"}),
    "int32": spec(**EXACT, residual=True, activation={"op": "relu"}),
    "float32": spec(output={"type": "f32", "layout": "nhwc"}, store="direct", activation={"op": "h_swish"}),
    "float16": spec((64, 32, 128), output={"type": "f16", "layout": "nhwc"}, residual=True),
    "bfloat16": spec((64, 64, 32), output={"type": "bf16", "layout": "nhwc"}, alpha="channel"),
    "uint8": spec(output={"type": "u8", "layout": "nhwc"}, activation={"op": "clamp", "low": 3.0, "high": 200.0}),
    "uint8 of uint8": spec(input={"type": "u8", "layout": "nhwc"}, output={"type": "u8", "layout": "nhwc"}),
    "float16 of float16": spec(
        input={"type": "f16", "layout": "nhwc"}, output={"type": "f16", "layout": "nhwc"}, bias="f32", residual=True
    ),
    "float32 of bfloat16": spec(
        (128, 32, 32),
        {"consumers": 2},
        input={"type": "bf16", "layout": "nhwc"},
        output={"type": "f32", "layout": "nhwc"},
        store="direct",
        activation={"op": "relu"},
    ),
    "a zero point": spec(input={"type": "u8", "layout": "nhwc"}, zero_point="argument", bias="f32", activation={"op": "relu"}),
    "a zero point without padding": spec(
        (64, 96, 64), {"activations": "rows"}, convolution=POINTWISE, zero_point="argument", alpha="channel"
    ),
    "a zero point of exact sums": spec((64, 32, 64), input={"type": "u8", "layout": "nhwc"}, zero_point="argument", **EXACT),
    "bytes one by one": spec(store="direct", activation={"op": "relu"}),
    "an epilogue": spec(epilogue=[{"op": "bias", "per": "channel"}, {"op": "leaky_relu", "slope": 0.25}, {"op": "residual"}]),
    "a layer that is known": spec(
        convolution={"c": 48, "k": 80, "r": 3, "s": 3, "stride_h": 2, "stride_w": 1, "padding_h": 1, "padding_w": 1, "dilation_h": 1}
    ),
    "taps that share pixels, two groups of channels": spec(
        (64, 128, 32),
        WINDOWS | {"consumers": 2, "division": "pixels"},
        convolution=ROW_OF_3 | {"groups": 2, "c": 64, "k": 128, "r": 3, "padding_h": 1, "padding_w": 1},
        **FLOAT16,
    ),
    "taps that share pixels, groups of divided sums": spec(
        (64, 64, 32),
        WINDOWS | {"cluster": {"blocks": 2, "share": "tile"}, "persistent_blocks": 0},
        convolution=ROW_OF_3 | {"groups": 3, "c": 96, "k": 192, "r": 3, "padding_h": 1, "padding_w": 1},
        **FLOAT16,
    ),
}


DIVIDED = COMBINATIONS["a cluster that divides the sums"]


def failures(plan: WarpgroupPlan, begin: int, stride: int) -> list[tuple[str, Any]]:
    binary = compile_plan(plan)
    assert all(used.spill_loads == used.spill_stores == used.local_bytes == 0 for used in binary.resources.values())
    found = []
    for case in oracle_of("conv2d").cases(plan)[begin % stride :: stride]:
        result = verify_case(plan, binary, EmulatorBackend(), case)
        if not result.passed:
            found.append((case.name, result.failure))
    return found


@pytest.mark.parametrize("name", COMBINATIONS)
def test_a_combination_verifies(name: str) -> None:
    assert not failures(api.plan(COMBINATIONS[name]), list(COMBINATIONS).index(name), EVERY)


MUTANTS = {
    "a filter tap left out": ("++tap;", "tap += 2;"),
    "columns of the filter not undone": ("    dx = 0;\n", ""),
    "a step too few": (
        "++step) {\n                    mbarrier_wait(empty",
        "++step) {\n                    if (step == 1) { advance<kStages>(stage, phase); continue; }\n"
        "                    mbarrier_wait(empty",
    ),
    "padding on one side only": ("row * stride_h - padding_h", "row * stride_h"),
    "pixels of another group": (" + group * kGroupBytes)", ")"),
    "results before the last ones are out": ("store_boxes_wait<0>();\n            sync_group", "sync_group"),
    "no fence before TMA reads": ("            fence_async_proxy();\n", ""),
    "a group that does not wait for itself": (
        "fence_async_proxy();\n            sync_group<kGroupThreads>(group);",
        "fence_async_proxy();",
    ),
    "stages freed at once": (
        "wgmma_wait<1>();",
        "wgmma_wait<1>();\n                if (lane == 0) mbarrier_arrive(empty + kBarrierBytes * stage);",
    ),
    "rows of pixels unswizzled": ("warp ^ lane / kRowsAlike % kRowVectors", "warp"),
}


DIVIDED_MUTANTS = {
    "sums that nobody waits for": ("            sync_cluster();\n            if (rank > 0)", "            if (rank > 0)"),
    "sums of a block left out": ("other < kClusterBlocks - 1", "other < kClusterBlocks - 2"),
    "steps taken twice": ("(rank + 1) * steps / kClusterBlocks - ", "(rank + 2) * steps / kClusterBlocks - "),
    "channels that begin anew": ("(work.first_step - tap * channel_steps) * kTileK", "0"),
}


VECTOR_MUTANTS = {
    "vectors that nobody waits for": ("mbarrier_arrive_with_copies(full", "mbarrier_arrive(full"),
    "vectors that matrix instructions may not see": ("fence_async_proxy();  // threads have copied what matrix instructions read", ""),
    "stages that are not empty": ("mbarrier_wait(empty + kBarrierBytes * stage, phase ^ 1);", ""),
    "vectors unswizzled": ("vector ^ first_row % kPeriodRows", "vector"),
    "columns beyond the image": (" < static_cast<unsigned>(w)", " < static_cast<unsigned>(w + 1)"),
    "pixels beyond the last": ("pixel < total_pixels ? top : kNowhere", "top"),
    "taps of one row": ("tap_row * dilation_h", "0"),
}
ROW_MUTANTS = {
    "pixels of the other group": ("(group * kBlocksM + block) * kInstructionM", "block * kInstructionM"),
    "pixels of a group that multiplies others": (" + group * kGroupBytes)", ")"),
    "rows a warp does not wait for": (
        "    __syncwarp();\n                #pragma unroll\n                for (int i",
        "    #pragma unroll\n                for (int i",
    ),
    "results eight pixels below": ("place + half * kMatrix * kPitch", "place"),
    "filters of another part": ("min(first_channel + j * kMatrix + element,", "min(first_channel + element,"),
}
DIVIDED_ROW_MUTANTS = {
    "sums over tiles that are still read": ("sync_cluster();  // no tile is read any more: sums take their place", ""),
    "sums that nobody waits for": ("        sync_cluster();\n            if (rank > 0)", "        if (rank > 0)"),
    "sums of a block left out": ("other < kClusterBlocks - 1", "other < kClusterBlocks - 2"),
}
BROKEN = {
    "two groups, each with its pixels": MUTANTS,
    "a cluster that divides the sums": DIVIDED_MUTANTS,
    "vectors": VECTOR_MUTANTS,
    "rows of pixels as products' rows": ROW_MUTANTS,
    "rows of pixels, a cluster that divides the sums": DIVIDED_ROW_MUTANTS,
}


@pytest.mark.parametrize(("kind", "mutant"), [(kind, mutant) for kind, mutants in BROKEN.items() for mutant in mutants])
def test_a_broken_kernel_is_found_out(kind: str, mutant: str) -> None:
    plan = api.plan(COMBINATIONS[kind] | ({} if BROKEN[kind] in (ROW_MUTANTS, DIVIDED_ROW_MUTANTS) else {"store": "tma"}))
    source = render(plan).text
    before, after = BROKEN[kind][mutant]
    assert before in source
    binary = compile_source(source.replace(before, after), architecture="sm_90a", options=COMPILE_OPTIONS)
    wanted = ("3 x 3, uneven", "more tiles than blocks", "3 x 3, padding 3", "many steps")
    cases = sorted(oracle_of("conv2d").cases(plan), key=lambda case: case.name not in wanted)
    assert any(not verify_case(plan, binary, EmulatorBackend(), case).passed for case in cases)


def test_pixels_under_taps_beyond_the_last_count_nowhere() -> None:
    plan = api.plan(COMBINATIONS["vectors of float16"])
    [case] = oracle_of("conv2d").deep_cases(plan)
    assert verify_case(plan, compile_plan(plan), EmulatorBackend(), case).passed
    before = "tap_row < r ? h : 0"
    source = render(plan).text
    assert before in source
    binary = compile_source(source.replace(before, "h"), architecture="sm_90a", options=COMPILE_OPTIONS)
    assert not verify_case(plan, binary, EmulatorBackend(), case).passed


def test_a_launch_that_does_not_wait_is_found_out() -> None:
    plan = api.plan(DIVIDED)
    twice = replace(plan, sequence=replace(plan.sequence, launches=plan.sequence.launches * 2))
    source, wait = render(plan).text, '    asm volatile("griddepcontrol.wait;" ::: "memory");\n'
    assert wait in source
    hasty = compile_source(source.replace(wait, ""), architecture="sm_90a", options=COMPILE_OPTIONS)
    case = next(case for case in oracle_of("conv2d").cases(plan) if case.name == "1 x 1")
    assert verify_case(twice, compile_plan(plan), EmulatorBackend(), case).passed
    assert not verify_case(twice, hasty, EmulatorBackend(), case).passed


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (spec((96, 64, 64)), "tile_channels"),
        (spec((64, 40, 64)), "tile_pixels"),
        (spec((64, 64, 48)), "tile_k"),
        (spec(stages=3), "mainloop"),
        (spec((64, 64, 128), {"stages": 16}), "shared_memory"),
        (spec((128, 256, 64)), "registers"),
        (spec(more={"activations": "rows"}), "rows"),
        (spec(convolution={"groups": 2}), "groups"),
        (spec(output={"type": "s32", "layout": "nhwc"}), "exact_output"),
        (spec(output={"type": "f32", "layout": "nhwc"}), "store"),
        (spec(convolution={"c": 40}), "channels"),
        (spec(output={"layout": "nchw32"}, store="tma"), "store"),
        (spec(more={"store_buffers": 2}), "store"),
        (spec((64, 64, 64), VECTORS), "vectors"),
        (spec((64, 64, 128), VECTORS | {"cluster": {"blocks": 2, "share": "pixels"}}), "vectors"),
        (spec((72, 64, 64), PIXEL_ROWS | {"cluster": {"blocks": 2, "share": "filter"}}, **FLOAT16), "cluster"),
        (spec((64, 64, 128), VECTORS, input={"layout": "nchw32"}), "vectors"),
        (spec((64, 64, 128), VECTORS, zero_point="argument"), "zero_point"),
        (spec((64, 64, 128), PIXEL_ROWS), "rows"),
        (spec((68, 64, 64), PIXEL_ROWS, **FLOAT16), "tile_channels"),
        (spec((64, 96, 64), PIXEL_ROWS, **FLOAT16), "tile_pixels"),
        (spec((64, 64, 32), PIXEL_ROWS, **FLOAT16), "tile_k"),
        (spec((64, 64, 64), PIXEL_ROWS | {"cluster": {"blocks": 2, "share": "pixels"}}, **FLOAT16), "rows"),
        (spec((64, 64, 64), PIXEL_ROWS | {"cluster": {"blocks": 8, "share": "tile"}, "persistent_blocks": 0}, **FLOAT16), "rows"),
        (spec((64, 64, 64), PIXEL_ROWS, **FLOAT16, store="tma"), "rows"),
        (spec(more={"cluster": {"blocks": 2, "share": "filter"}, "persistent_blocks": 7}), "persistent_blocks"),
        (spec(more={"cluster": {"blocks": 4, "share": "tile"}, "persistent_blocks": 4}), "persistent_blocks"),
    ],
)
def test_a_spec_that_cannot_work_says_why(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(PlanError) as caught:
        api.plan(fields)
    assert reason in {found.code for found in caught.value.reasons}
