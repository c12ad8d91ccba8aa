"""Epilogues of products of doubles: operations, operands and outputs in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gemmgen
from gemmgen import ops
from gemmgen.core.errors import GemmgenError

from .test_formulas import verified

DOUBLES: dict[str, Any] = {
    "kind": "gemm",
    "architecture": "sm_80",
    "mainloop": {"strategy": "mma_sync", "tile": {"threadblock": {"m": 32, "n": 32, "k": 16}, "warp": {"m": 16, "n": 16}}, "stages": 3},
    "storage": {"a": "f64", "b": "f64", "c": "f64"},
}
FORMULA: dict[str, Any] = {
    "inputs": {
        "bias": {"per": "column", "type": "f64"},
        "slope": {"per": "row", "type": "f32"},
        "gate": {"per": "element", "type": "f64"},
        "narrow": {"per": "element", "type": "bf16"},
        "level": {"scalar": "f64"},
        "shift": {"scalar": "f32"},
        "divisor": {"pointer": "f64"},
    },
    "let": {"z": "(acc + bias) * slope * level + shift"},
    "outputs": {
        "C": "max(z * gate + narrow, 0) / divisor if row >= column else exp(min(z, 2))",
        "kept": {"value": "z", "type": "bf16"},
        "wide": {"value": "z - 1", "type": "f64"},
        "positive": {"value": "z > 0", "type": "bool"},
        "largest": {"reduce": "absmax", "per": "row", "of": "float32(z)"},
        "added": {"reduce": "sum", "per": "column", "of": "float32(z)"},
    },
}
LISTED = [{"op": "bias", "per": "column"}, {"op": "residual"}, {"op": "leaky_relu"}, {"op": "scale", "factor": 0.3}]


@pytest.mark.parametrize(
    "more", [{}, {"batch": "strided"}, {"alpha": "one", "beta": "zero", "alignment": {"a": 2, "b": 2, "c": 2}}], ids=str
)
@pytest.mark.parametrize("epilogue", [FORMULA, LISTED], ids=["formula", "list"])
def test_epilogues_of_doubles_are_right(epilogue: Any, more: dict[str, Any]) -> None:
    assert verified({**DOUBLES, **more, "epilogue": epilogue}) == []


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ({"value": "gelu(acc)"}, "gelu of a value of type float64 at character 1 of 'gelu\\(acc\\)', need a float32 value"),
        ({"outputs": {"C": "acc", "top": {"reduce": "max", "of": "acc"}}}, "a reduction of float64 values at the output 'top'"),
        ({"outputs": {"C": "acc", "code": {"value": "acc", "type": "s8"}}}, "a float64 value as s8 at the output 'code'"),
    ],
)
def test_what_doubles_have_not_is_one_message(formula: dict[str, Any], message: str) -> None:
    with pytest.raises(GemmgenError, match=message):
        gemmgen.plan({**DOUBLES, "epilogue": formula})


@pytest.mark.parametrize("shape", [(40, 24, 56), (37, 19, 53)])
def test_calls_take_doubles_for_all_operands(shape: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(3)
    m, k, n = shape
    a, b, z, bias = (rng.standard_normal(size) for size in ((m, k), (k, n), (m, n), (n,)))
    gated = {"inputs": {"z": {"per": "element", "type": "f64"}}, "value": "acc * z + 1 / 3"}
    calls = [
        (ops.matmul(a, b, bias=bias, residual=z, backend="emulator"), a @ b + bias + z),
        (ops.matmul(a, b, activation="relu", bias=0.1, backend="emulator"), np.maximum(a @ b + 0.1, 0)),
        (ops.matmul(a, b, epilogue=gated, operands={"z": z}, backend="emulator"), a @ b * z + 1 / 3),
    ]
    for found, expected in calls:
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
