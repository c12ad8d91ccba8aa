"""Softmax and norms beside float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gemmgen import ops
from gemmgen.core.errors import LaunchError

RNG = np.random.default_rng(4)
X = RNG.normal(size=(3, 4, 9)).astype(np.float32) * 5
WEIGHT, BIAS = (RNG.normal(size=9).astype(np.float32) for _ in range(2))


def exact_softmax(x: Any, axis: int) -> Any:
    powers = np.exp(x.astype(np.float64) - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


@pytest.mark.parametrize("axis", [-1, 1])
def test_softmax_of_any_axis(axis: int) -> None:
    got = ops.softmax(X, axis)
    np.testing.assert_allclose(got, exact_softmax(X, axis), rtol=3e-6, atol=1e-37)
    assert got.dtype == np.float32 and got.shape == X.shape


def test_softmax_of_large_values_does_not_overflow() -> None:
    large = np.array([[3e38, -3e38, 3e38], [1e4, 1e4 + 1, -1e4]], np.float32)
    np.testing.assert_allclose(ops.softmax(large), exact_softmax(large, -1), rtol=3e-6, atol=1e-37)
    assert np.isnan(ops.softmax(np.full((1, 3), -np.inf, np.float32))).all()


def test_log_softmax_of_halves() -> None:
    halves = X.astype(np.float16)
    got = ops.log_softmax(halves)
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, np.log(exact_softmax(halves.astype(np.float64), -1)), rtol=2**-11, atol=1e-6)


def test_norms_with_weights() -> None:
    exact = X.astype(np.float64)
    root = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(ops.rms_norm(X, WEIGHT), root * WEIGHT, rtol=3e-6, atol=1e-6)
    centred = (exact - exact.mean(-1, keepdims=True)) / np.sqrt(exact.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(ops.layer_norm(X, WEIGHT, BIAS), centred * WEIGHT + BIAS, rtol=3e-6, atol=4e-6)


def to_bits(x: Any) -> Any:
    """float32 whose lower halves are zero, as bits of bfloat16."""
    return (x.view(np.uint32) >> 16).astype(np.uint16)


def test_a_bias_alone_keeps_the_result_as_it_is() -> None:
    x = np.arange(24, dtype=np.float32).reshape(3, 8)
    exact = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    bias = np.array([np.inf, -1, 0, 2, 0, 0, 0, 0], np.float32)
    np.testing.assert_allclose(ops.layer_norm(x, bias=bias), exact + bias, rtol=3e-6, atol=1e-6)
    for given in (bias, to_bits(bias)):
        got = (ops.layer_norm(to_bits(x), bias=given).astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_allclose(got, exact + bias, rtol=2**-8)


def test_gradients_of_long_rows_of_bits() -> None:
    rows, ones = to_bits(np.repeat(np.float32([[1], [2]]), 8200, 1)), to_bits(np.ones(8200, np.float32))
    dx, dweight = ops.rms_norm_gradient(rows, rows, ones)
    assert dx.dtype == dweight.dtype == np.uint16 and dx.shape == rows.shape
    assert (dweight == to_bits(np.full(8200, 3, np.float32))).all()  # 1 + 2, as every row's norm is one
    assert (np.abs((dx.astype(np.uint32) << 16).view(np.float32)) < 1e-5).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.softmax(X, 3), "axis is 3, need one of the 3 of x"),
        (lambda: ops.softmax(X.astype(np.float64)), "x has elements float64, need float32"),
        (lambda: ops.softmax([1, 2]), "x is list, need an array"),
        (lambda: ops.rms_norm(X, WEIGHT[:4]), r"weight has shape \(4,\), need \(9,\)"),
    ],
)
def test_mistakes_are_said(call: Any, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        call()


def test_empty_arrays_stay_empty() -> None:
    assert ops.softmax(np.zeros((0, 5), np.float32)).shape == (0, 5)


NORMS = (ops.softmax, ops.log_softmax, ops.rms_norm, ops.layer_norm)


@pytest.mark.parametrize("function", NORMS, ids=lambda function: function.__name__)
def test_a_row_keeps_its_bits_among_any_others(function: Any) -> None:
    x = RNG.normal(size=(9, 40)).astype(np.float32)
    together = function(x, batch_invariant=True)
    assert (function(x[4:5].copy(), batch_invariant=True) == together[4:5]).all()
    assert (function(x[2:7].copy(), batch_invariant=True) == together[2:7]).all()


@pytest.mark.parametrize("function", NORMS, ids=lambda function: function.__name__)
def test_rows_of_parts_of_vectors_are_not_promised(function: Any) -> None:
    with pytest.raises(LaunchError, match="36 bytes"):
        function(X, batch_invariant=True)
