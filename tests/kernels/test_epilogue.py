"""Each epilogue operation by itself: its reference against the definition, its bound against wrong kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

import gemmgen
from gemmgen.kernels.epilogue.operations import AnyEpilogueOperation
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.toolchain.nvrtc import compile_source
from gemmgen.verification.runner import verify_binary

OPERATION: TypeAdapter[Any] = TypeAdapter(AnyEpilogueOperation)
NAIVE = {"strategy": "naive", "threadblock": {"m": 8, "n": 32}}


def applied(value: float, **fields: Any) -> float:
    result, _ = OPERATION.validate_python(fields).reference(np.array([value]), np.zeros(1), [])
    return float(result[0])


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
        operation = OPERATION.validate_python({"op": op, **form})
        value, exact = operation.reference(points, np.zeros(points.shape), [])
        _, wide = operation.reference(points, np.full(points.shape, 1e3), [])
        slope = np.abs(np.diff(value) / np.diff(points)).max()
        assert slope <= ((wide - exact) / 1e3).min()


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
        ({"op": "silu"}, "expf(-value)", "__expf(-value) * 1.00001f"),
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
