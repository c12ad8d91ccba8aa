"""Specs that random trials on a GPU found wrong once (measurements/random_specs.py), each with the case that showed it."""

from __future__ import annotations

from typing import Any

import pytest

import gemmgen
from gemmgen.core.errors import PlanError
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.verification.oracle import oracle_of
from gemmgen.verification.runner import verify_binary

SUMS = {"outputs": {"y": "acc", "total": {"reduce": "sum_of_squares", "per": "all", "of": "acc"}}}
DIRECT: dict[str, Any] = {
    "input": {"type": "f16", "layout": "nhwc"},
    "bias": "none",
    "alpha": "one",
    "output": {"type": "f16", "layout": "nhwc"},
    "store": "direct",
    "epilogue": SUMS,
}

FOUND: dict[str, tuple[str, dict[str, Any]]] = {
    "parts of grouped convolutions": (
        "channels one block above a tile",
        {
            "kind": "conv2d",
            "architecture": "sm_80",
            "gemm_m": "output_channels",
            "tile": {"threadblock": {"m": 64, "n": 64, "k": 64}, "warp": {"m": 32, "n": 16}, "instruction": "m16n8k32"},
            "stages": 3,
            "increments": "computed",
            "convolution": {"r": 3, "s": 3, "dilation_h": 2, "dilation_w": 2, "groups": 2},
            "bias": "f32",
            "activation": {"op": "h_swish", "scale": 4.0},
            "output": {"layout": "nhwc"},
            "store": "direct",
            "split_k": 3,
        },
    ),
    "sums of first layers without pixels": (
        "filter larger than the padded image",
        {
            "kind": "conv2d",
            "architecture": "sm_80",
            "mainloop": {"strategy": "few_channels", "rows": 1, "columns": 28, "slices": 2, "warps_k": 1, "parts": 8},
            "input": {"type": "f16", "layout": "nhwc"},
            "convolution": {"c": 3, "k": 32, "r": 7, "s": 7, "stride_h": 2, "stride_w": 2, "dilation_h": 1, "dilation_w": 1},
            "bias": "none",
            "alpha": "one",
            "output": {"type": "f16", "layout": "nhwc"},
            "store": "direct",
            "epilogue": SUMS,
        },
    ),
    "sums of direct convolutions without pixels": (
        "filter larger than the padded image",
        {"kind": "conv2d", **DIRECT, "mainloop": {"strategy": "direct"}},
    ),
    "sums of depthwise convolutions without pixels": (
        "filter larger than the padded image",
        {
            "kind": "conv2d",
            **DIRECT,
            "mainloop": {"strategy": "direct", "channels": 8, "pixels": 2, "rows": 2, "threads": 128},
            "convolution": {
                "groups": "argument",
                "r": 3,
                "s": 3,
                "stride_h": 1,
                "stride_w": 1,
                "dilation_h": 1,
                "dilation_w": 1,
            },
        },
    ),
    "sums of float64 that overflow and are scaled": (
        "huge elements",
        {
            "kind": "reduction",
            "operation": "l1_norm",
            "input": "float64",
            "shape": "rows",
            "alignment": 4,
            "strategy": {"name": "row_lanes", "threads": 32, "lanes": 1, "rows": 1, "unroll": 1},
            "epilogue": [{"op": "cast", "type": "float64"}, {"op": "scale", "factor": 0.001}],
            "typical": None,
            "prologue": [],
        },
    ),
    "the larger of two doubles": (
        "one tile",
        {
            "kind": "elementwise",
            "alignment": 16,
            "rank": 2,
            "operations": {
                "inputs": {"given0": {"per": "column", "type": "f32"}, "given1": {"per": "row", "type": "f32"}},
                "let": {"t0": "max(hard_swish((acc)), given1)", "t1": "-(given0) - given0"},
                "outputs": {"value": "t0 + t1"},
            },
            "input": "float64",
        },
    ),
    "broadcasts of a kernel with two results": (
        "broadcast along axis 0",
        {
            "kind": "elementwise",
            "alignment": 4,
            "rank": 2,
            "inner": "contiguous",
            "operations": {"outputs": {"saved": {"value": "2 * acc", "type": "f32"}, "value": "acc if row >= column else 0"}},
        },
    ),
    "limits of int64": (
        "one element",
        {
            "kind": "elementwise",
            "alignment": 4,
            "output": "int8",
            "operations": [{"op": "scale", "factor": 16.0}, {"op": "clamp", "low": -128.0, "high": 127.0}],
            "inner": "contiguous",
            "input": "int64",
        },
    ),
    "sums of convolutions by tensor cores without pixels": (
        "one pixel",
        {
            "kind": "conv2d",
            "architecture": "sm_80",
            "gemm_m": "output_channels",
            "tile": {
                "threadblock": {"m": 64, "n": 64, "k": 64},
                "warp": {"m": 32, "n": 32},
                "instruction": "m16n8k32",
            },
            "stages": 3,
            "increments": "computed",
            "convolution": {"r": 3, "s": 3, "dilation_h": 2, "dilation_w": 2},
            "bias": "f32",
            "output": {"layout": "nhwc"},
            "store": "direct",
            "epilogue": {"outputs": {"added": {"reduce": "sum", "per": "all", "of": "acc"}, "value": "acc"}},
        },
    ),
    "the least of a column that begins as NaN": (
        "not-a-numbers and infinities",
        {
            "kind": "elementwise",
            "alignment": 4,
            "operations": {
                "inputs": {"other": {"per": "element", "type": "s8"}},
                "outputs": {"reach": {"reduce": "min", "per": "column", "of": "acc * other"}, "value": "acc"},
            },
        },
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_a_spec_that_was_wrong_is_verified(name: str) -> None:
    case, spec = FOUND[name]
    plan = gemmgen.plan(spec)
    cases = [one for one in oracle_of(plan.spec.kind).cases(plan) if one.name == case]
    assert cases
    report = verify_binary(plan, compile_plan(plan), EmulatorBackend(), cases=cases)
    assert report.passed, report.failures


@pytest.mark.parametrize(("element", "accumulator"), [("int64", "float64"), ("int32", "float32"), ("float64", "float32")])
def test_an_index_is_found_among_exact_values_only(element: str, accumulator: str) -> None:
    spec = {"kind": "reduction", "operation": "argmax", "input": element, "shape": "rows", "strategy": {"name": "row_lanes"}}
    gemmgen.plan(spec)
    with pytest.raises(PlanError, match="elements that differ would become equal"):
        gemmgen.plan({**spec, "accumulator": accumulator})


def test_an_index_is_not_found_among_rounded_values() -> None:
    spec = {"kind": "reduction", "operation": "argmax", "input": "bfloat16", "shape": "rows", "strategy": {"name": "row_lanes"}}
    gemmgen.plan({**spec, "prologue": [{"op": "abs"}]})
    with pytest.raises(PlanError, match="argmax after tanh"):
        gemmgen.plan({**spec, "prologue": [{"op": "tanh"}]})


def test_the_largest_elements_are_found_from_sm_80_on() -> None:
    spec = {"kind": "rows", "operation": "topk", "lanes": 128, "vector": 4, "held": 1}
    gemmgen.plan({**spec, "architecture": "sm_80"})
    with pytest.raises(PlanError, match="sm_80 or newer with topk"):
        gemmgen.plan({**spec, "architecture": "sm_75"})
