"""Convolutions whose threads sum up by themselves: the fields of specs, on the emulator, and mutants that must not pass."""

from __future__ import annotations

from typing import Any

import pytest

from gemmgen import api
from gemmgen.codegen.rendering import render
from gemmgen.core.errors import PlanError
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import COMPILE_OPTIONS, compile_plan
from gemmgen.toolchain.nvrtc import compile_source
from gemmgen.verification.oracle import oracle_of
from gemmgen.verification.runner import verify_case

EVERY = 4
"""Every so many case runs, beginning at a different one for each combination."""
GROUPS = {"groups": "argument"}


def spec(of: str = "s8", to: str = "s8", loop: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    layers = {"input": {"type": of, "layout": "nhwc"}, "output": {"type": to, "layout": "nhwc"}}
    mainloop = {"strategy": "direct", "threads": 64} | (loop or {})
    return {"kind": "conv2d", "architecture": "sm_80", "mainloop": mainloop, "store": "direct", "convolution": GROUPS, **layers, **fields}


EXACT = {"alpha": "one", "gamma": "one"}
COMBINATIONS = {
    "one pixel a thread": spec(loop={"pixels": 1, "unroll": 4}, alpha="channel", activation={"op": "relu"}),
    "eight pixels a thread": spec(loop={"pixels": 8}, bias="f32", residual=True),
    "float16": spec("f16", "f16", bias="f32", residual=True, activation={"op": "relu"}),
    "float32 of bfloat16": spec("bf16", "f32", activation={"op": "h_swish"}),
    "uint8 with a zero point": spec("u8", "u8", zero_point="argument", bias="f32"),
    "exact sums from a zero point": spec("s8", "s32", zero_point="argument", residual=True, **EXACT),
    "an epilogue": spec(epilogue=[{"op": "bias", "per": "channel"}, {"op": "leaky_relu", "slope": 0.25}, {"op": "residual"}]),
    "blocks of 32 channels": spec("u8", "u8", input={"type": "u8"}, output={"type": "u8"}, zero_point="argument", alpha="channel"),
    "float16 in blocks of 32 channels": spec(input={"type": "f16"}, output={"type": "f16"}, residual=True, bias="f32"),
    "blocks of 32 channels to blocks of 4": spec(input={}, output={"type": "s32", "layout": "nchw4"}, residual=True, **EXACT),
    "channels side by side to blocks of 32": spec("bf16", output={"type": "f32"}, activation={"op": "relu"}),
    "channels one by one, launched early": spec(
        convolution={"c": 24, "k": 24, "groups": 24, "r": 3, "s": 3}, architecture="sm_90", early_launch=True, beta="argument"
    ),
}


@pytest.mark.parametrize("name", COMBINATIONS)
def test_a_combination_verifies(name: str) -> None:
    plan = api.plan(COMBINATIONS[name])
    binary = compile_plan(plan)
    cases = oracle_of("conv2d").cases(plan)[list(COMBINATIONS).index(name) % EVERY :: EVERY]
    results = [verify_case(plan, binary, EmulatorBackend(), case) for case in cases]
    assert len(results) > 5
    assert [(result.case.name, result.failure) for result in results if not result.passed] == []


MUTANTS = {
    "a tap outside of the image": ("x_at < w", "x_at <= w"),
    "the input channels of another group": ("divisors.group_channels) * depth", "divisors.group_channels)"),
    "a pixel too many": ("if (first_pixel + i >= total_pixels)", "if (first_pixel + i > total_pixels)"),
    "a dilation for a stride": ("tap_row * dilation_h", "tap_row * stride_h"),
    "the filter of the next channel": ("weights += k;", "weights += k + 1;"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_kernel_is_found_out(mutant: str) -> None:
    plan = api.plan(spec())
    source = render(plan).text
    before, after = MUTANTS[mutant]
    assert before in source
    binary = compile_source(source.replace(before, after), architecture="sm_80", options=COMPILE_OPTIONS)
    assert any(not verify_case(plan, binary, EmulatorBackend(), case).passed for case in oracle_of("conv2d").cases(plan))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (spec(input={"layout": "nchw32"}, convolution={"c": 48}), "channels"),
        (spec(output={"layout": "nchw4"}, convolution={"k": 6}), "channels"),
        (spec(store="shared"), "store"),
        (spec(stages=3), "mainloop"),
        (spec("f16", "s32", **EXACT), "output"),
        (spec("f16", "f16", zero_point="argument"), "zero_point"),
        (spec(to="s32"), "exact_output"),
        (spec(early_launch=True), "early_launch"),
    ],
)
def test_a_spec_that_cannot_work_says_why(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(PlanError) as caught:
        api.plan(fields)
    assert reason in {found.code for found in caught.value.reasons}


def test_a_sequence_has_the_name_of_its_kernel() -> None:
    plan = api.plan("conv2d/direct/int8", "sm_80")
    assert plan.sequence.name == plan.sequence.launches[0].entry == plan.name
