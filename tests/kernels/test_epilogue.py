"""Each epilogue operation by itself: its reference against the definition, its bound against wrong kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

import gemmgen
from gemmgen.core.errors import PlanError
from gemmgen.kernels.epilogue.numbers import Tracked
from gemmgen.kernels.epilogue.operations import OPERATIONS, AnyOperation
from gemmgen.kernels.epilogue.steps import apply_steps, plan_steps
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.toolchain.nvrtc import compile_source
from gemmgen.verification.oracle import oracle_of
from gemmgen.verification.runner import verify_binary

OPERATION: TypeAdapter[Any] = TypeAdapter(AnyOperation)
NAIVE = {"strategy": "naive", "threadblock": {"m": 8, "n": 32}}


def reference(fields: dict[str, Any], values: np.ndarray[Any, Any], bound: np.ndarray[Any, Any]) -> Tracked:
    steps, _ = plan_steps([OPERATION.validate_python(fields)], "f32", "epilogue", [], None)
    return apply_steps(steps, Tracked(values, bound, "f32"), lambda access: np.zeros(1))


def applied(value: float, **fields: Any) -> float:
    return float(reference(fields, np.array([value]), np.zeros(1)).value[0])


@pytest.mark.parametrize(
    ("fields", "value", "result"),
    [
        ({"op": "leaky_relu", "slope": 0.5}, -3.0, -1.5),
        ({"op": "leaky_relu", "slope": 0.5}, 3.0, 3.0),
        ({"op": "clamp", "low": -1, "high": 6}, -2.0, -1.0),
        ({"op": "clamp", "low": -1, "high": 6}, 7.0, 6.0),
        ({"op": "gelu"}, 1.0, 0.8413447460685429),
        ({"op": "gelu"}, -10.0, -7.61985302416e-23),
        ({"op": "gelu", "form": "tanh"}, 1.0, 0.841191990608276),
        ({"op": "silu"}, -2.0, -0.2384058440442351),
        ({"op": "sigmoid"}, 0.0, 0.5),
        ({"op": "tanh"}, 0.5, 0.46211715726000976),
    ],
)
def test_the_reference_is_the_function_of_the_name(fields: dict[str, Any], value: float, result: float) -> None:
    assert applied(value, **fields) == pytest.approx(result, rel=1e-11)


@pytest.mark.parametrize("op", ["leaky_relu", "clamp", "gelu", "silu", "sigmoid", "tanh", "relu"])
def test_not_a_number_stays_one(op: str) -> None:
    fields = {"low": -1.0, "high": 1.0} if op == "clamp" else {}
    with np.errstate(invalid="ignore"):
        assert np.isnan(applied(np.nan, op=op, **fields))


@pytest.mark.parametrize("op", ["gelu", "silu", "sigmoid", "tanh"])
def test_the_slopes_in_the_bounds_are_the_largest_ones(op: str) -> None:
    points = np.linspace(-12, 12, 240_001)
    forms: list[dict[str, Any]] = [{"form": "erf"}, {"form": "tanh"}] if op == "gelu" else [{}]
    for form in forms:
        exact = reference({"op": op, **form}, points, np.zeros(points.shape))
        wide = reference({"op": op, **form}, points, np.full(points.shape, 1e3))
        slope = np.abs(np.diff(exact.value) / np.diff(points)).max()
        assert slope <= ((wide.bound - exact.bound) / 1e3).min()


@pytest.mark.parametrize("fields", [{"op": "clamp"}, {"op": "clamp", "low": 2, "high": 1}, {"op": "gelu", "form": "sigmoid"}])
def test_fields_that_make_no_sense_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        OPERATION.validate_python(fields)


@pytest.mark.parametrize(
    ("operation", "right", "wrong"),
    [
        ({"op": "residual"}, "fmaf(gamma, z, value)", "fmaf(gamma, value, z)"),
        ({"op": "leaky_relu"}, "value > 0.0f ?", "value < 0.0f ?"),
        ({"op": "clamp", "high": 3}, "? 3.0f", "? 2.0f"),
        ({"op": "gelu"}, "0.70710678f", "0.7071f"),
        ({"op": "gelu", "form": "tanh"}, "0.044715f", "0.04471f"),
        ({"op": "silu"}, "expf(-fabsf(x))", "expf(-fabsf(x)) * 1.00001f"),
        ({"op": "sigmoid"}, "1.0f + expf", "1.00001f + expf"),
        ({"op": "tanh"}, "tanhf(value)", "tanhf(value) * 1.00001f"),
    ],
)
def test_a_wrong_kernel_exceeds_the_bound(operation: dict[str, Any], right: str, wrong: str) -> None:
    plan = gemmgen.plan({"kind": "gemm", "mainloop": NAIVE, "epilogue": [operation]})
    assert verify_binary(plan, compile_plan(plan), EmulatorBackend()).passed
    source = gemmgen.render(plan).text
    assert right in source
    broken = compile_source(source.replace(right, wrong), architecture="sm_75")
    assert not verify_binary(plan, broken, EmulatorBackend()).passed


FIELDS: dict[str, dict[str, Any]] = {"scale": {"factor": 0.75}, "clamp": {"low": -2.0, "high": 30.0}, "cast": {"type": "float16"}}
CONVOLUTION = {
    "kind": "conv2d",
    "architecture": "sm_75",
    "copy_through": "registers",
    "tile": {"threadblock": {"m": 32, "n": 32, "k": 32}, "warp": {"m": 32, "n": 32}, "instruction": "m8n8k16"},
    "convolution": {"r": 1, "s": 1, "stride_h": 1, "stride_w": 1, "padding_h": 0, "padding_w": 0},
}
FAMILIES: dict[str, dict[str, Any]] = {
    "gemm": {"kind": "gemm", "mainloop": NAIVE},
    "gemm of halves": {"kind": "gemm", "mainloop": NAIVE, "storage": {"c": "f16"}},
    "reduction": {"kind": "reduction", "operation": "sum", "shape": "rows", "typical": {"outer": 8, "reduced": 64}},
    "elementwise": {"kind": "elementwise", "rank": 2, "threads": 32, "alignment": 2},
    "conv2d to int8": CONVOLUTION,
    "conv2d to float": {**CONVOLUTION, "output": {"type": "f32", "layout": "nhwc"}, "store": "direct"},
    "conv2d, divided": {**CONVOLUTION, "output": {"type": "f32", "layout": "nchw4"}, "split_k": 2},
}


def with_operations(family: str, *operations: dict[str, Any]) -> Any:
    field = "operations" if family == "elementwise" else "epilogue"
    return gemmgen.plan({**FAMILIES[family], field: list(operations)})


def verified(plan: Any) -> bool:
    """True if a few cases pass: some of integers, some of reals."""
    cases = oracle_of(plan.spec.kind).cases(plan)
    few = [case for data in ("integers", "reals") for case in [case for case in cases if case.data == data][-2:]]
    return verify_binary(plan, compile_plan(plan), EmulatorBackend(), cases=few).passed


@pytest.mark.parametrize("family", ["gemm", "reduction", "elementwise", "conv2d to int8"])
@pytest.mark.parametrize("op", [operation.model_fields["op"].annotation.__args__[0] for operation in OPERATIONS])
def test_every_family_takes_every_operation(op: str, family: str) -> None:
    plan = with_operations(family, {"op": op, **FIELDS.get(op, {})})
    assert verified(plan)


@pytest.mark.parametrize(
    ("family", "per"), [("gemm of halves", "row"), ("gemm", "memory"), ("conv2d to int8", "channel"), ("elementwise", "row")]
)
def test_a_factor_goes_along_the_axes_of_the_output(family: str, per: str) -> None:
    assert verified(with_operations(family, {"op": "factor", "per": per}, {"op": "relu"}, {"op": "factor", "per": per}))


@pytest.mark.parametrize(
    ("family", "per"),
    [
        ("gemm of halves", "row"),
        ("gemm", "column"),
        ("reduction", "result"),
        ("elementwise", "row"),
        ("conv2d to int8", "channel"),
        ("conv2d, divided", "channel"),
    ],
)
def test_a_bias_goes_along_the_axes_of_the_output(family: str, per: str) -> None:
    plan = with_operations(family, {"op": "bias", "per": per}, {"op": "residual"}, {"op": "bias", "per": per})
    assert verified(plan)


@pytest.mark.parametrize(("family", "per"), [("gemm", "channel"), ("reduction", "row"), ("conv2d to int8", "column")])
def test_an_axis_that_the_output_has_not_is_refused(family: str, per: str) -> None:
    with pytest.raises(PlanError, match=f"per {per}"):
        with_operations(family, {"op": "bias", "per": per})
