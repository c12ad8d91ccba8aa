"""The reference itself: exact sums against nested loops, float32 operations against rational arithmetic."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from gemmgen import layouts
from gemmgen.kernels.conv2d.problem import complete
from gemmgen.kernels.conv2d.reference import convolution, from_nchw, reference, to_nchw
from gemmgen.kernels.conv2d.spec import Conv2dSpec
from gemmgen.kernels.epilogue.numbers import fused_multiply_add

TILE = {"threadblock": {"m": 64, "n": 64, "k": 64}, "warp": {"m": 32, "n": 32}, "instruction": "m16n8k32"}


def spec(**fields: Any) -> Conv2dSpec:
    return Conv2dSpec.model_validate({"kind": "conv2d", "architecture": "sm_80", "tile": TILE, **fields})


def nested_loops(x: Any, w: Any, problem: dict[str, int]) -> Any:
    n, k, p, q = (problem[name] for name in ("n", "k", "p", "q"))
    depth = w.shape[1]
    y = np.zeros((n, k, p, q), np.int64)
    for image, channel, row, column in np.ndindex(y.shape):
        first = channel // (k // problem["groups"]) * depth
        for r in range(problem["r"]):
            for s in range(problem["s"]):
                at_h = row * problem["stride_h"] - problem["padding_h"] + r * problem["dilation_h"]
                at_w = column * problem["stride_w"] - problem["padding_w"] + s * problem["dilation_w"]
                if 0 <= at_h < problem["h"] and 0 <= at_w < problem["w"]:
                    y[image, channel, row, column] += x[image, first : first + depth, at_h, at_w] @ w[channel, :, r, s]
    return y


@pytest.mark.parametrize(
    "sizes",
    [
        {"r": 3, "s": 3, "padding_h": 1, "padding_w": 1},
        {"r": 1, "s": 1, "stride_h": 2, "stride_w": 3},
        {"r": 2, "s": 3, "padding_h": 2, "padding_w": 0, "dilation_h": 2, "dilation_w": 1},
        {"r": 3, "s": 1, "padding_h": 1, "padding_w": 1, "groups": 2, "c": 64, "k": 64},
    ],
)
def test_sums_equal_nested_loops(sizes: dict[str, int]) -> None:
    problem = complete(spec(convolution={"groups": "argument"}), {"n": 2, "c": 32, "h": 5, "w": 4, "k": 32, **sizes})
    rng = np.random.default_rng(0)
    x = rng.integers(-128, 128, (2, problem["c"], 5, 4))
    w = rng.integers(-128, 128, (problem["k"], problem["c"] // problem["groups"], problem["r"], problem["s"]))
    assert np.array_equal(convolution(x, w, problem), nested_loops(x, w, problem))


def test_the_deepest_sum_is_exact() -> None:
    depth = 131071 // 32 * 32
    problem = complete(spec(), {"n": 1, "c": depth, "h": 1, "w": 1, "k": 32, "r": 1, "s": 1})
    sums = convolution(np.full((1, depth, 1, 1), -128), np.full((32, depth, 1, 1), -128), problem)
    assert (sums == depth * 2**14).all() and depth * 2**14 < 2**31


def test_fused_multiply_add_rounds_once() -> None:
    rng = np.random.default_rng(1)
    a = (rng.normal(size=4000) * 2.0 ** rng.integers(-20, 20, 4000)).astype(np.float32)
    b = rng.integers(-(2**24), 2**24, 4000).astype(np.float32)
    # Sums near the midpoint of two floats: rounding twice gets these wrong.
    c = (-(a.astype(np.float64) * b) * (1 + rng.integers(-3, 4, 4000) * 2.0**-24)).astype(np.float32)
    got = fused_multiply_add(a, b, c).astype(np.float32)
    for index in range(len(a)):
        exact = Fraction(float(a[index])) * Fraction(float(b[index])) + Fraction(float(c[index]))
        below, above = np.nextafter(got[index], -np.inf), np.nextafter(got[index], np.inf)
        error = abs(Fraction(float(got[index])) - exact)
        assert error <= abs(Fraction(float(below)) - exact) and error <= abs(Fraction(float(above)) - exact)


def finished(sums: list[int], scalars: dict[str, float], **fields: Any) -> list[float]:
    """y for a convolution whose channels' sums are given: x is one pixel whose only value is 1 or 127."""
    k = 32
    x = np.zeros((1, 1, 1, 1, 32), np.int8)
    x[..., 0], x[..., 1] = 1, 127
    w = np.zeros((k, 32, 1, 1), np.int8)
    for channel, total in enumerate(sums):
        w[channel, 1, 0, 0], w[channel, 0, 0, 0] = divmod(total, 127)
    arrays = {"x": x, "filter": layouts.reorder_filter(w, "plain"), "bias": np.zeros(k, np.int32)}
    given = spec(**fields)
    problem = complete(given, {"n": 1, "c": 32, "h": 1, "w": 1, "k": k, "r": 1, "s": 1})
    y = reference(given, "plain", problem, scalars, arrays)["y"].value
    return [float(value) for value in y.reshape(-1)[: len(sums)]]


def test_ties_go_to_the_even_neighbour() -> None:
    assert finished([1, 3, 5, -1, -3, -5], {"alpha": 0.5}) == [0, 2, 2, 0, -2, -2]


def test_both_ends_saturate() -> None:
    assert finished([126, 127, 128, 1000, -128, -129, -1000], {"alpha": 1.0}) == [126, 127, 127, 127, -128, -128, -128]


def test_activations_come_before_rounding() -> None:
    assert finished([-5, 5], {"alpha": 0.5}, activation={"op": "relu"}) == [0, 2]
    assert finished([-5, 500], {"alpha": 0.5}, activation={"op": "clamp", "low": -1.0, "high": 6.0}) == [-1, 6]
    assert finished([-8, 8], {"alpha": 1.0}, activation={"op": "leaky_relu", "slope": 0.25}) == [-2, 8]
    assert finished([-4, 0, 1, 5], {"alpha": 1.0}, activation={"op": "h_swish", "scale": 6.0}) == [0, 0, 4, 30]


@pytest.mark.parametrize("layout", ["nchw32", "nhwc", "nchw4"])
def test_output_layouts_are_inverses(layout: str) -> None:
    y = np.random.default_rng(2).integers(0, 100, (2, 64, 3, 5))
    assert np.array_equal(to_nchw(from_nchw(y, layout), layout), y)
