"""Depthwise convolutions, groups of few channels and first layers: combinations on the emulator, broken kernels, choices, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gemmgen import api, ops
from gemmgen.codegen.rendering import render
from gemmgen.core.errors import PlanError
from gemmgen.kernels.conv2d.layouts import reorder_filter, restore_filter, within_groups, within_rows
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import COMPILE_OPTIONS, compile_plan
from gemmgen.toolchain.nvrtc import compile_source
from gemmgen.verification.oracle import oracle_of
from gemmgen.verification.runner import verify_case

EVERY = 5
"""Every so many case runs, beginning at a different one for each combination."""


def window(r: int = 3, s: int = 3, stride: int = 1, dilation: int = 1, **more: Any) -> dict[str, Any]:
    steps = {"stride_h": stride, "stride_w": stride, "dilation_h": dilation, "dilation_w": dilation}
    return {"r": r, "s": s, **steps, "groups": "argument"} | more


def depthwise(of: str, to: str, loop: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    mainloop = {"strategy": "direct", "threads": 64, "pixels": 4, "channels": 8} | (loop or {})
    return _spec(of, to, mainloop, {"convolution": window(), **fields})


def grouped(of: str, to: str, channels: int, groups: int, loop: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    mainloop = {"strategy": "grouped", "rows": 4, "columns": 7} | (loop or {})
    convolution = window(**{"c": channels, "k": channels, **fields.pop("window", {})}) | {"groups": groups}
    return _spec(of, to, mainloop, {"convolution": convolution, **fields})


def few(of: str, to: str, c: int, k: int, loop: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    mainloop = {"strategy": "few_channels", "rows": 3, "columns": 9, "parts": 2} | (loop or {})
    convolution = window(c=c, k=k, **fields.pop("window", {})) | {"groups": 1}
    return _spec(of, to, mainloop, {"convolution": convolution, **fields})


def _spec(of: str, to: str, mainloop: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    layers = {"input": {"type": of, "layout": "nhwc"}, "output": {"type": to, "layout": "nhwc"}}
    return {"kind": "conv2d", "architecture": "sm_80", "mainloop": mainloop, "store": "direct", **layers, **fields}


COMBINATIONS = {
    "float16 with residual": depthwise("f16", "f16", bias="f32", residual=True, activation={"op": "relu"}),
    "bfloat16 to float32, stride 2": depthwise("bf16", "f32", {"rows": 2, "pixels": 2}, convolution=window(stride=2)),
    "two channels, 5 x 5, dilation 2": depthwise("f16", "f16", {"channels": 2}, convolution=window(5, 5, dilation=2)),
    "uint8 with a zero point": depthwise("u8", "u8", zero_point="argument", bias="f32"),
    "exact sums": depthwise("s8", "s32", {"channels": 4, "rows": 4}, alpha="one", gamma="one", residual=True),
    "a factor for each channel": depthwise("s8", "s8", alpha="channel", epilogue=[{"op": "bias", "per": "channel"}]),
    "launched early": depthwise("f16", "f16", architecture="sm_90", early_launch=True, convolution=window(c=24, k=24)),
    "eight rows, stride 2": depthwise("f16", "f16", {"rows": 8, "channels": 2}, convolution=window(stride=2), bias="f32"),
    "groups of 4": grouped("f16", "f16", 72, 18, bias="f32", activation={"op": "relu"}),
    "groups of 32 with residual": grouped("bf16", "bf16", 64, 2, residual=True, alpha="one"),
    "groups of 24, stride 2": grouped("f16", "f32", 48, 2, {"parts": 1}, window={"stride": 2}),
    "groups of 16 launched early": grouped("f16", "f16", 32, 2, architecture="sm_90", early_launch=True, beta="argument", bias="f32"),
    "groups of 24 to 48, stride 2": grouped("f16", "f16", 48, 2, {"parts": 1}, window={"k": 96, "stride": 2}, bias="f32"),
    "groups of 96 to 16 with residual": grouped("bf16", "bf16", 192, 2, {"rows": 2}, window={"k": 32}, residual=True),
    "groups of 8 to 32, launched early": grouped("f16", "f32", 24, 3, window={"k": 96}, architecture="sm_90", early_launch=True),
    "groups of 8, 1 x 5, dilation 2": grouped("bf16", "f16", 40, 5, window={"r": 1, "s": 5, "dilation": 2}, alpha="channel"),
    "3 channels, 7 x 7, stride 2": few("f16", "f16", 3, 48, {"slices": 3}, window={"r": 7, "s": 7, "stride": 2}, bias="f32"),
    "odd channels both ways": few("bf16", "bf16", 5, 7, {"slices": 1}, residual=True, alpha="channel", bias="f32"),
    "4 channels to float32, launched early": few(
        "f16", "f32", 4, 40, {"warps_k": 2}, architecture="sm_90", early_launch=True, activation={"op": "relu"}
    ),
    "27 channels, dilation along columns": few("f16", "f16", 27, 16, window={"dilation": 2, "dilation_w": 1}),
}


@pytest.mark.parametrize("name", COMBINATIONS)
def test_a_combination_verifies(name: str) -> None:
    plan = api.plan(COMBINATIONS[name])
    binary = compile_plan(plan)
    cases = oracle_of("conv2d").cases(plan)[list(COMBINATIONS).index(name) % EVERY :: EVERY]
    results = [verify_case(plan, binary, EmulatorBackend(), case) for case in cases]
    assert len(results) > 2
    assert [(result.case.name, result.failure) for result in results if not result.passed] == []


MUTANTS = {
    "a column outside of the image": (
        "float16 with residual",
        "(left + u) < static_cast<unsigned>(w)",
        "(left + u) <= static_cast<unsigned>(w)",
    ),
    "a row outside of the image": ("float16 with residual", "(y_at) < static_cast", "(y_at) <= static_cast"),
    "a row too many": ("bfloat16 to float32, stride 2", "row + a >= p", "row + a > p"),
    "a stride for a dilation": ("two channels, 5 x 5, dilation 2", "reach % kDilationH", "reach % kStrideH"),
    "a pixel of the next tile": ("groups of 4", "column >= q", "column > q"),
    "channels of the next group": ("groups of 24 to 48, stride 2", "(group + 1) * kGroupInputs", "(group + 2) * kGroupInputs"),
    "one turn": ("groups of 96 to 16 with residual", "turn < kTurns", "turn < 1"),
    "a group's first channel": ("groups of 24 to 48, stride 2", "group * kGroupInputs +", "0 * kGroupInputs +"),
    "channels that do not exist": ("groups of 4", "channel < kInputChannels;", "channel <= kInputChannels;"),
    "another block's channels": ("groups of 24, stride 2", "/ kBlock * kBlock * 2", "* 2"),
    "a channel of the next pixel": ("odd channels both ways", "channel + 1 < kInputChannels", "channel < kInputChannels"),
    "a row of taps too low": ("3 channels, 7 x 7, stride 2", "row * kDilationH", "(row + 1) * kDilationH"),
    "a channel too many": ("odd channels both ways", "if (channel >= kOutputChannels)", "if (channel > kOutputChannels)"),
    "the sums of a neighbour": ("groups of 32 with residual", "half * 2 + j % 2", "half * 2 + j / 2"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_kernel_is_found_out(mutant: str) -> None:
    name, before, after = MUTANTS[mutant]
    plan = api.plan(COMBINATIONS[name])
    source = render(plan).text
    assert before in source
    binary = compile_source(source.replace(before, after), architecture="sm_80", options=COMPILE_OPTIONS)
    assert any(not verify_case(plan, binary, EmulatorBackend(), case).passed for case in oracle_of("conv2d").cases(plan))


@pytest.mark.parametrize(("k", "c"), [(64, 4), (40, 8), (48, 24), (32, 16), (24, 12)])
def test_fragments_of_a_filter_come_back(k: int, c: int) -> None:
    filter = np.random.default_rng(k).normal(size=(k, c, 3, 2)).astype(np.float32)
    restored = restore_filter(reorder_filter(filter, "fragments"), "fragments")
    np.testing.assert_array_equal(within_groups(restored, c)[:k], filter)
    assert np.count_nonzero(restored) == np.count_nonzero(filter)


@pytest.mark.parametrize(("k", "c", "s"), [(64, 3, 7), (7, 5, 3), (40, 4, 3), (16, 27, 2)])
def test_rows_of_taps_of_a_filter_come_back(k: int, c: int, s: int) -> None:
    filter = np.random.default_rng(k).normal(size=(k, c, 3, s)).astype(np.float32)
    restored = restore_filter(reorder_filter(filter, "tap_rows"), "tap_rows")
    np.testing.assert_array_equal(within_rows(restored, c, s)[:k], filter)
    assert np.count_nonzero(restored) == np.count_nonzero(filter)


@pytest.mark.parametrize(("channels", "groups"), [(32, 8), (16, 8), (48, 2)])
def test_infinities_stay_in_their_group(channels: int, groups: int) -> None:
    made = np.random.default_rng(channels)
    x = made.integers(-4, 5, (2, channels, 5, 6)).astype(np.float16)
    x[0, 1, 2, 2], x[1, channels - 1, 4, 5] = np.inf, np.nan
    w = made.integers(1, 4, (channels, channels // groups, 3, 3)).astype(np.float16)
    last = x.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)
    assert str(ops.conv2d.kernel(last, w, padding=1, groups=groups).plan.name).startswith("conv2d_grouped_")  # type: ignore[attr-defined]
    y = ops.conv2d(last, w, padding=1, groups=groups)
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    places = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    depth = channels // groups
    for group in range(groups):
        own = slice(group * depth, (group + 1) * depth)
        wanted = np.einsum("ncpqrs,kcrs->nkpq", places[:, own], w[own].astype(np.float64))
        np.testing.assert_array_equal(y[:, own], wanted.astype(np.float16))


def test_infinite_pixels_beside_a_row_of_taps_are_no_part_of_it() -> None:
    x = np.ones((1, 3, 5, 9), np.float16)
    x[0, :, :, 5] = np.inf
    w = np.ones((8, 3, 3, 3), np.float16)
    y = ops.conv2d(x.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2), w)
    np.testing.assert_array_equal(np.isfinite(y[0, 0]), [[True, True, True, False, False, False, True]] * 3)


@pytest.mark.parametrize(
    ("channels", "groups", "taps", "stride", "kernel"),
    [
        (20, 20, 5, 2, "depthwise"),
        (48, 48, 3, 1, "depthwise"),
        (40, 10, 3, 1, "grouped"),
        (64, 2, 3, 2, "grouped"),
        (192, 2, 3, 1, "grouped"),
        (30, 10, 3, 1, "direct"),
        (27, 27, 3, 1, "direct"),
        (3, 1, 7, 2, "few"),
        (30, 1, 3, 1, "few"),
    ],
)
def test_ops_take_the_kernel_of_the_layer(channels: int, groups: int, taps: int, stride: int, kernel: str) -> None:
    made = np.random.default_rng(channels)
    x = made.normal(size=(1, 6, 7, channels)).astype(np.float16).transpose(0, 3, 1, 2)
    w = (made.normal(size=(channels, channels // groups, taps, taps)) / taps).astype(np.float16)
    layer = {"stride": stride, "padding": taps // 2, "groups": groups}
    assert str(ops.conv2d.kernel(x, w, **layer).plan.name).startswith(f"conv2d_{kernel}_")  # type: ignore[attr-defined]
    y = ops.conv2d(x, w, **layer)
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), *[(taps // 2, taps // 2)] * 2))
    places = np.lib.stride_tricks.sliding_window_view(padded, (taps, taps), (2, 3))[:, :, ::stride, ::stride]
    depth = channels // groups
    for channel in range(channels):
        inputs = places[0, channel // depth * depth : (channel // depth + 1) * depth]
        np.testing.assert_allclose(y[0, channel], np.einsum("cpqrs,crs->pq", inputs, w[channel].astype(np.float64)), rtol=2e-3, atol=1e-2)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (depthwise("f16", "f16", convolution={"groups": "argument"}), "depthwise"),
        (depthwise("f16", "f16", convolution=window(c=16, k=32)), "depthwise"),
        (depthwise("f16", "f16", convolution=window(15, 15)), "depthwise"),
        (depthwise("f16", "f16", convolution=window(c=20)), "channels"),
        (depthwise("s8", "s8", input={}), "depthwise"),
        (depthwise("f16", "f16", {"channels": 1, "rows": 2}), "rows"),
        (depthwise("f16", "f16", {"unroll": 2}), "unroll"),
        (grouped("s8", "s8", 64, 4), "grouped"),
        (grouped("f16", "f16", 64, 4, convolution=window()), "grouped"),
        (grouped("f16", "f16", 36, 9), "channels"),
        (grouped("f16", "f16", 64, 4, {"rows": 64, "columns": 64}), "tile"),
        (few("s8", "s8", 3, 16), "few_channels"),
        (few("f16", "f16", 3, 16, window={"dilation": 2}), "few_channels"),
        (few("f16", "f16", 3, 64, {"slices": 8, "rows": 64}), "tile"),
        (few("f16", "f16", 3, 64, {"warps_k": 8, "parts": 16}), "threads"),
    ],
)
def test_a_spec_that_cannot_work_says_why(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(PlanError) as caught:
        api.plan(fields)
    assert reason in {found.code for found in caught.value.reasons}
