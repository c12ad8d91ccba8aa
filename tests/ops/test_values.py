"""Values and conventions off the beaten track: the ends of the types' ranges, casts, integers, scalars, aliases and empty views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gemmgen import ops
from gemmgen.core.errors import LaunchError

RNG = np.random.default_rng(41)
HUGE = np.float32(3e38)


# -- reductions over the whole range


@pytest.mark.parametrize("shape", [(4, 3000), (3000, 4), (3, 257)], ids=str)
def test_variance_around_a_large_mean_is_that_of_float64(shape: tuple[int, int]) -> None:
    x = (1e7 + RNG.standard_normal(shape)).astype(np.float32)
    axis = int(np.argmax(shape))
    mean, variance = ops.reduce(x, "mean_variance", axis)
    np.testing.assert_allclose(variance, x.astype(np.float64).var(axis), rtol=1e-5)
    np.testing.assert_allclose(mean, x.astype(np.float64).mean(axis), rtol=1e-7)


def test_variance_is_found_where_an_outlier_comes_first() -> None:
    x = RNG.standard_normal(1000).astype(np.float32)
    x[0] = 1e6
    np.testing.assert_allclose(ops.reduce(x, "var"), x.astype(np.float64).var(), rtol=1e-5)


def test_moments_of_infinities_are_those_of_numpy() -> None:
    x = np.array([[1, np.inf, 2, 3], [np.inf, 1, 2, 3], [1, 2, np.inf, -np.inf], [1, np.nan, 2, 3], [5, 5, 5, 5]], np.float32)
    mean, variance = ops.reduce(x, "mean_variance", 1)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(mean, x.mean(1))
        np.testing.assert_array_equal(variance, x.var(1))


@pytest.mark.parametrize("values", [[HUGE, HUGE], [HUGE, HUGE, -HUGE], [HUGE] * 1000, [-HUGE] * 100 + [HUGE] * 99], ids=len)
@pytest.mark.parametrize("op", ["mean", "mean_variance"])
def test_the_mean_of_values_near_the_largest_is_finite(op: str, values: list[np.float32]) -> None:
    x = np.array(values, np.float32)
    mean = ops.reduce(x, op) if op == "mean" else ops.reduce(x, op)[0]
    np.testing.assert_allclose(mean, x.astype(np.float64).mean(), rtol=1e-5)


@pytest.mark.parametrize("op", ["mean", "sum"])
def test_means_and_sums_of_denormals_keep_their_bits(op: str) -> None:
    x = np.full(64, 3e-45, np.float32)
    np.testing.assert_array_equal(ops.reduce(x, op), getattr(x.astype(np.float64), op)().astype(np.float32))


@pytest.mark.parametrize("scale", [1e-45, 1e-40, 1e-25, 1.0, 1e18, 1e25, 1e35])
@pytest.mark.parametrize("axis", [0, 1])
def test_norms_reach_over_the_whole_range(scale: float, axis: int) -> None:
    x = (np.arange(1, 301).reshape(20, 15) * scale).astype(np.float32)
    want = np.sqrt((x.astype(np.longdouble) ** 2).sum(axis)).astype(np.float32)
    np.testing.assert_allclose(ops.reduce(x, "l2_norm", axis), want, rtol=1e-5)


def test_a_norm_of_both_ends_of_the_range_is_the_larger_end() -> None:
    x = np.array([1e-40, 3e30, 4e30, 1.0, 0.0], np.float32)
    np.testing.assert_allclose(ops.reduce(x, "norm"), 5e30, rtol=1e-6)
    assert np.isnan(ops.reduce(np.array([1, np.nan], np.float32), "norm"))
    assert np.isinf(ops.reduce(np.array([1, -np.inf], np.float32), "norm"))


@pytest.mark.parametrize("word", ["float16", "float32", "int8"])
def test_the_first_of_equal_extrema_is_found_in_any_vector(word: str) -> None:
    for length in (7, 64, 511, 2048):
        x = RNG.integers(-3, 4, (5, length)).astype(word)
        np.testing.assert_array_equal(ops.reduce(x, "argmax", 1), x.argmax(1))
        np.testing.assert_array_equal(ops.reduce(x, "argmin", 1), x.argmin(1))


def test_the_first_nan_is_the_extremum() -> None:
    x = np.arange(600, dtype=np.float32).reshape(2, 300)
    x[0, [100, 99, 203]] = np.nan
    x[1, :] = -np.inf
    np.testing.assert_array_equal(ops.reduce(x, "argmax", 1), [99, 0])
    np.testing.assert_array_equal(ops.reduce(-x, "argmin", 1), [99, 0])


# -- names, and types that are converted first


@pytest.mark.parametrize(("name", "full"), [("prod", "product"), ("norm", "l2_norm"), ("amin", "min"), ("amax", "max")])
def test_reductions_have_the_names_of_numpy_and_torch(name: str, full: str) -> None:
    x = RNG.standard_normal((3, 20)).astype(np.float32)
    np.testing.assert_array_equal(ops.reduce(x, name, 1), ops.reduce(x, full, 1))


def test_deviations_are_written_where_they_are_wanted() -> None:
    x = RNG.standard_normal((3, 20)).astype(np.float32)
    out = np.empty((3, 1), np.float32)
    assert ops.reduce(x, "std", 1, keepdims=True, out=out, correction=1) is out
    np.testing.assert_allclose(out, x.std(1, ddof=1, keepdims=True), rtol=1e-5)


def test_extrema_of_short_integers_keep_their_type() -> None:
    x = RNG.integers(0, 256, (3, 20)).astype(np.uint8)
    out = np.empty(3, np.uint8)
    assert ops.reduce(x, "max", 1, out=out) is out
    np.testing.assert_array_equal(out, x.max(1))
    with pytest.raises(LaunchError, match="out is int16"):
        ops.reduce(x, "max", 1, out=np.empty(3, np.int16))
    largest, place = ops.reduce(x, ["amax", "argmax"], 1)
    np.testing.assert_array_equal(largest, x.max(1))
    np.testing.assert_array_equal(place, x.argmax(1))


# -- elementwise


def test_a_cast_decides_the_type_of_what_follows() -> None:
    wide = ops.elementwise(np.array([300, 1.5], np.float16), [{"op": "cast", "type": "float32"}, "square"])
    assert wide.dtype == np.float32 and wide.tolist() == [90000, 2.25]
    whole = ops.elementwise(np.array([100, -7], np.int8), [{"op": "cast", "type": "int32"}, "square"])
    assert whole.dtype == np.int32 and whole.tolist() == [10000, 49]
    narrow = ops.elementwise(np.array([1.5, 300.7], np.float32), {"op": "cast", "type": "int8"})
    assert narrow.dtype == np.int8 and narrow.tolist() == [1, 127]


def test_integers_beside_integers_lose_no_bits() -> None:
    big = 2**53 + 1
    assert ops.elementwise(np.array([0, 1], np.int64), "bias", bias=big).tolist() == [big, big + 1]
    assert ops.elementwise(np.array([0, 1], np.int64), "bias", bias=np.int64(-big)).tolist() == [-big, 1 - big]
    with pytest.raises(LaunchError, match="not an integer"):
        ops.elementwise(np.array([0, 1], np.int32), "bias", bias=1.5)
    with pytest.raises(LaunchError, match="64 bits"):
        ops.elementwise(np.array([0, 1], np.int64), "bias", bias=2**63)


def test_float64_takes_numbers_beyond_float32() -> None:
    assert ops.elementwise(np.array([0.0, 1e300]), "bias", bias=1e300).tolist() == [1e300, 2e300]


def test_results_may_be_written_over_any_operand() -> None:
    x, f = np.array([-1, 2, -3], np.float32), np.array([2, 3, 4], np.float32)
    assert ops.elementwise(x, "multiply", f=f, out=f) is f and f.tolist() == [-2, 6, -12]
    ops.elementwise(x, "relu", out=x)
    assert x.tolist() == [0, 2, 0]
    with pytest.raises(LaunchError, match="overlaps"):
        ops.elementwise(f[:2], "relu", out=f[1:])


@pytest.mark.parametrize("view", [np.ones((4, 7))[:, :0], np.ones((4, 7))[:0, :3], np.ones((3, 5, 2), np.int8)[:, :, :0]], ids=str)
def test_empty_views_give_empty_results(view: np.ndarray) -> None:
    result = ops.elementwise(view, "relu")
    assert result.shape == view.shape and result.dtype == view.dtype


def test_arrays_with_many_axes_and_negative_strides_are_read() -> None:
    x = RNG.integers(-4, 5, (2, 4, 2, 4, 2, 4)).astype(np.float32)[:, ::2, :, ::-2, :, ::2]
    np.testing.assert_array_equal(ops.elementwise(x, "relu"), np.maximum(x, 0))


# -- products and convolutions


@pytest.mark.parametrize(
    "bias", [np.array(2, np.float32), np.array([2], np.float32), np.full((1, 1), 2, np.float32), np.float32(2)], ids=str
)
def test_a_bias_of_one_value_is_added_to_all(bias: Any) -> None:
    assert (ops.matmul(np.ones((3, 4), np.float32), np.ones((4, 5), np.float32), bias=bias) == 6).all()


def test_a_residual_that_is_the_result_is_read_first() -> None:
    out = np.full((8, 8), 2, np.float32)
    a, b = np.ones((8, 4), np.float32), np.ones((4, 8), np.float32)
    ops.matmul(a, b, residual=out[:], out=out, gamma=3.0, activation="relu")
    assert (out == 10).all()


@pytest.mark.parametrize("name", ["alpha", "beta", "gamma"])
def test_factors_beyond_float32_are_refused(name: str) -> None:
    a = np.ones((2, 2), np.float32)
    with pytest.raises(LaunchError, match="more than float32 holds"):
        ops.matmul(a, a, out=np.ones((2, 2), np.float32), residual=a.copy(), **{name: 1e39})
    assert np.isinf(ops.matmul(a, a, alpha=np.inf)).all()


def test_arrays_without_axes_are_numbers() -> None:
    a = np.ones((2, 2), np.float32)
    assert (ops.matmul(a, a, alpha=np.array(2.0)) == 4).all()


def image(*shape: int) -> np.ndarray:
    n, c, h, w = shape
    return RNG.integers(-3, 4, (n, h, w, c)).astype(np.float16).transpose(0, 3, 1, 2)


def test_convolutions_take_the_integers_of_numpy() -> None:
    x, w = image(1, 16, 5, 5), np.ones((8, 16, 3, 3), np.float16)
    given = ops.conv2d(x, w, stride=np.int64(2), padding=(np.int32(1), 1), groups=np.int64(1))
    np.testing.assert_array_equal(given, ops.conv2d(x, w, stride=2, padding=1))


def test_images_without_channels_last_are_told_so() -> None:
    with pytest.raises(LaunchError, match="channels side by side"):
        ops.conv2d(np.ones((2, 16, 7, 9), np.float16), np.ones((8, 16, 3, 3), np.float16))


def test_filters_that_do_not_fit_are_refused() -> None:
    with pytest.raises(LaunchError, match="reaches over 7"):
        ops.conv2d(image(1, 16, 5, 5), np.ones((8, 16, 7, 7), np.float16))


@pytest.mark.parametrize(("c", "k", "taps"), [(16, 0, 3), (0, 16, 3), (16, 16, 0)])
def test_filters_without_elements_are_refused(c: int, k: int, taps: int) -> None:
    x, w = np.zeros((2, 9, 9, c), np.float16).transpose(0, 3, 1, 2), np.zeros((k, c, taps, 3), np.float16)
    with pytest.raises(LaunchError, match="the filter has shape"):
        ops.conv2d(x, w)


@pytest.mark.parametrize("name", ["stride", "padding", "dilation"])
def test_steps_beyond_those_of_kernels_are_refused(name: str) -> None:
    x, w = np.zeros((1, 9, 9, 16), np.float16).transpose(0, 3, 1, 2), np.zeros((16, 16, 1, 1), np.float16)
    with pytest.raises(LaunchError, match=f"{name} is {2**40}, need at most {2**20}"):
        ops.conv2d(x, w, **{name: 2**40})


def test_more_channels_than_a_kernel_is_compiled_for() -> None:
    c = 2**20 + 8
    x = np.ones((1, 1, 1, c), np.float16).transpose(0, 3, 1, 2)
    y = ops.conv2d(x, np.full((c, 1, 1, 1), 2, np.float16), groups=c)
    assert y.shape == (1, c, 1, 1) and (y == 2).all()


@pytest.mark.parametrize("op", [None, 3, {"op": "sum"}, np.array("sum")], ids=str)
def test_a_reduction_is_named_by_a_word(op: Any) -> None:
    with pytest.raises(LaunchError, match=r"reduce: op is .* need the name of an operation"):
        ops.reduce(np.ones(3, np.float32), op)


@pytest.mark.parametrize("operands", [[1.0], np.ones(3), "x", 2], ids=repr)
def test_operands_of_a_formula_are_a_mapping(operands: Any) -> None:
    a, h = np.ones((3, 3), np.float32), np.ones((3, 3), np.float16)
    for call in (
        lambda: ops.matmul(a, a, epilogue="acc + s", operands=operands),
        lambda: ops.gated_matmul(h, h, h, operands=operands),
        lambda: ops.grouped_matmul(h, h[None], np.array([3], np.int32), epilogue="acc + s", operands=operands),
        lambda: ops.elementwise(a, "value + s", operands=operands),
    ):
        with pytest.raises(LaunchError, match=r"operands is .*, need a mapping of names"):
            call()


def test_a_correction_belongs_to_a_variance() -> None:
    with pytest.raises(LaunchError, match="correction is 1, need 0: sum divides by no count"):
        ops.reduce(np.ones(3, np.float32), "sum", correction=1)


def test_bytes_for_a_sum_are_refused_by_their_name() -> None:
    with pytest.raises(LaunchError, match="out has elements bool or uint8"):
        ops.reduce(np.ones(3, np.float32), "sum", out=np.zeros((), np.uint8))


# -- the processor
def test_rows_have_the_same_bits_whatever_is_beside_them() -> None:
    a, b = (RNG.standard_normal(shape).astype(np.float32) for shape in ((80, 700), (700, 100)))
    whole = ops.matmul(a, b)
    for rows in (1, 2, 17, 33):
        np.testing.assert_array_equal(ops.matmul(a[:rows], b, batch_invariant=True), whole[:rows])
    np.testing.assert_array_equal(ops.matmul(a, np.asfortranarray(b), batch_invariant=True), whole)
    np.testing.assert_array_equal(ops.matmul(a, b, batch_invariant=True, out=np.empty((100, 80), np.float32).T), whole)


MATRIX = np.zeros((4, 8), np.float32)
HALF = np.zeros((8, 8), np.float16)
IMAGE = np.ones((1, 5, 4, 16), np.float16).transpose(0, 3, 1, 2)
TAPS = np.ones((16, 16, 3, 3), np.float16)
REFUSED: dict[str, Callable[[Any], object]] = {
    "precision": lambda odd: ops.matmul(MATRIX, MATRIX.T, precision=odd),
    "backend": lambda odd: ops.matmul(MATRIX, MATRIX.T, backend=odd),
    "triangles": lambda odd: ops.matmul(MATRIX, MATRIX.T, triangles={"c": odd}),
    "gate": lambda odd: ops.gated_matmul(HALF, odd, HALF),
    "gated activation": lambda odd: ops.gated_matmul(HALF, HALF, HALF, activation=odd),
    "gated backend": lambda odd: ops.gated_matmul(HALF, HALF, HALF, backend=odd),
    "layout": lambda odd: ops.conv2d(IMAGE, TAPS, layout=odd),
    "invariant convolution": lambda odd: ops.conv2d(IMAGE, TAPS, batch_invariant=odd),
    "invariant softmax": lambda odd: ops.softmax(MATRIX, batch_invariant=odd),
    "weight": lambda odd: ops.layer_norm(MATRIX, weight=odd),
    "residual": lambda odd: ops.rms_norm(MATRIX, residual=odd),
    "gradient": lambda odd: ops.softmax_gradient(odd, MATRIX),
    "block": lambda odd: ops.quantize(MATRIX, block=odd),
    "output": lambda odd: ops.quantize(MATRIX, output=odd),
    "quantised layout": lambda odd: ops.quantize(MATRIX, layout=odd),
    "quantised": lambda odd: ops.quantize(odd),
    "format": lambda odd: ops.quantize_blocks(MATRIX, odd),
    "blocks": lambda odd: ops.quantize_blocks(odd, "mxfp8"),
    "stride": lambda odd: ops.conv_transpose2d(IMAGE, TAPS, stride=odd),
}


@pytest.mark.parametrize("odd", [np.zeros(2), np.array(["a"]), [{}], {"a": 1}, 2**70], ids=repr)
@pytest.mark.parametrize("name", REFUSED)
def test_odd_arguments_get_an_error_in_words(name: str, odd: Any) -> None:
    if "invariant" in name:
        odd = np.zeros(2)  # anything else is true or false
    with pytest.raises(LaunchError):
        REFUSED[name](odd)
