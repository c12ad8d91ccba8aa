"""Functions of epilogues against mpmath: references, the bounds of kernels that evaluate them, tails and special values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import mpmath
import numpy as np
import pytest

from gemmgen import ops
from gemmgen.codegen.device_code import with_device_code
from gemmgen.emulator.launch import launch
from gemmgen.hardware.target import architecture
from gemmgen.kernels.epilogue.functions import (
    COARSE_GELU,
    COARSE_GELU_ERROR,
    COARSE_GELU_SLOPE,
    COARSE_GELU_TANH,
    COARSE_GELU_TANH_ERROR,
    FUNCTIONS,
    GELU_POLYNOMIAL_ERROR,
    MACROS,
    SINGLE_GELU,
    SINGLE_GELU_ERROR,
    SINGLE_GELU_LIMIT,
    SINGLE_SILU,
    SINGLE_SILU_ERROR,
    SINGLE_SILU_SCALE,
)
from gemmgen.kernels.epilogue.graph import Accuracy, Writer, evaluate, typed
from gemmgen.kernels.epilogue.numbers import Tracked
from gemmgen.kernels.epilogue.steps import convert
from gemmgen.toolchain.nvrtc import compile_source

mpmath.mp.dps = 40


def normal(x: Any) -> Any:
    return mpmath.erfc(-x / mpmath.sqrt(2)) / 2


def logistic(x: Any) -> Any:
    return 1 / (1 + mpmath.exp(-x))


EXACT: dict[str, Callable[[Any], Any]] = {
    "exp": mpmath.exp,
    "log": mpmath.log,
    "sqrt": mpmath.sqrt,
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "tanh": mpmath.tanh,
    "erf": mpmath.erf,
    "erfc": mpmath.erfc,
    "sigmoid": logistic,
    "silu": lambda x: x * logistic(x),
    "gelu": lambda x: x * normal(x),
    "gelu_tanh": lambda x: x * logistic(2 * mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf("0.044715") * x**3)),
    "softplus": lambda x: mpmath.log1p(mpmath.exp(x)),
}
POSITIVE = ("log", "sqrt", "rsqrt")
EDGES = np.array([0.0, 1e-40, 1e-8, 0.5, 1.0, 3.0, 5.0, 6.0, 9.0, 13.0, 20.0, 60.0, 87.0, 88.0], np.float32)


def points(name: str) -> np.ndarray:
    rng = np.random.default_rng(7)
    sizes = np.concatenate([10.0 ** rng.uniform(-6, 1.0, 200), rng.uniform(0, 12, 300)]).astype(np.float32)
    found = np.concatenate([sizes, EDGES])
    if name in POSITIVE:
        return found[found > 1e-38]
    return np.concatenate([found, -found])


def computed(text: str, values: np.ndarray, accuracy: Accuracy = "full", name: str = "sm_80") -> np.ndarray:
    """The expression as a kernel for an architecture computes it on the emulator."""
    writer = Writer(accuracy, {"value": "values[at]"}, convert=convert)
    writer.assign("results[at]", typed(text, {"value": "f32"}, "f32"))
    source = (
        '//@device\n\nextern "C" __global__ void apply(const float* values, float* results, int count)\n{\n'
        "    const int at = blockIdx.x * blockDim.x + threadIdx.x;\n    if (at >= count)\n        return;\n    "
        + "\n    ".join(writer.lines)
        + "\n}\n"
    )
    binary = compile_source(with_device_code(source, architecture(name)), architecture=name)
    results = np.full(values.shape, 77.0, np.float32)
    launch(binary.ptx, "apply", grid=-(-values.size // 128), block=128, args=[values, results, values.size])
    return results


def reference(text: str, values: np.ndarray, accuracy: Accuracy = "full", bound: float = 0.0) -> Tracked:
    with np.errstate(all="ignore"):
        wide = values.astype(np.float64)
        return evaluate(typed(text, {"value": "f32"}, "f32"), {"value": Tracked(wide, np.full(wide.shape, bound), "f32")}, accuracy)


@pytest.mark.parametrize("name", EXACT)
def test_the_reference_is_exact_to_float64(name: str) -> None:
    values = points(name)
    exact = np.array([float(EXACT[name](mpmath.mpf(float(value)))) for value in values])
    found = reference(f"{name}(value)", values).value
    kept = np.abs(exact) > 1e-300
    if name in ("exp", "sqrt"):  # rounded to the float32 that the kernel gives where that is known
        np.testing.assert_allclose(found[kept], exact[kept], rtol=2.0**-23)
    else:
        np.testing.assert_allclose(found[kept], exact[kept], rtol=2e-13)


@pytest.mark.parametrize("accuracy", ["full", "halves", "bfloat16", "in_turn"])
@pytest.mark.parametrize("name", EXACT)
def test_a_kernel_is_within_the_bound(name: str, accuracy: Accuracy) -> None:
    if accuracy != "full" and typed(f"{name}(value)", {"value": "f32"}, "f32").approximation(accuracy) is None:
        pytest.skip("computed as with full accuracy")
    values = points(name)
    results = computed(f"{name}(value)", values, accuracy).astype(np.float64)
    expected = reference(f"{name}(value)", values, accuracy)
    exact = np.array([float(EXACT[name](mpmath.mpf(float(value)))) for value in values])
    assert (np.abs(results - exact) <= expected.bound * (1 + 1e-9) + np.abs(exact - expected.value)).all()


@pytest.mark.parametrize("name", ["gelu", "silu", "gelu_tanh", "sigmoid", "tanh"])
def test_approximations_err_less_than_the_rounding_of_results(name: str) -> None:
    values = np.linspace(-12, 12, 4001).astype(np.float32)
    for accuracy, roundoff in (("halves", 2.0**-11), ("bfloat16", 2.0**-8), ("in_turn", 2.0**-8)):
        found = reference(f"{name}(value)", values, accuracy)  # type: ignore[arg-type]
        assert (found.bound <= roundoff * np.abs(found.value) + 2.0**-121).all()


@pytest.mark.parametrize("accuracy", ["full", "bfloat16", "in_turn"])
def test_tails_do_not_cancel(accuracy: Accuracy) -> None:
    values = np.array([-3.0, -5.0, -6.0, -9.0, -12.0], np.float32)
    exact = np.array([float(EXACT["gelu"](mpmath.mpf(float(value)))) for value in values])
    np.testing.assert_allclose(computed("gelu(value)", values, accuracy), exact, rtol=2e-5 if accuracy == "full" else 1e-3)
    (small,) = computed("silu(value)", np.array([-89.0], np.float32), accuracy)
    assert small == pytest.approx(-89.0 * np.exp(-89.0), rel=1e-4)


@pytest.mark.parametrize("accuracy", ["full", "halves", "bfloat16", "in_turn"])
@pytest.mark.parametrize("name", [*EXACT, "relu", "abs", "square", "neg"])
def test_special_values_are_those_of_the_reference(name: str, accuracy: Accuracy) -> None:
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30, -1e30], np.float32)
    text = "-value" if name == "neg" else f"{name}(value)"
    expected = reference(text, values, accuracy)
    results = computed(text, values, accuracy)
    certain = np.isfinite(expected.bound)
    assert certain[:3].all()
    with np.errstate(invalid="ignore"):
        close = np.abs(results - expected.value) <= expected.bound
    same = (np.isnan(results) & np.isnan(expected.value)) | (results == expected.value) | close
    assert same[certain].all(), (results, expected.value)


@pytest.mark.parametrize("name", ["tanh", "erf", "erfc", "sigmoid", "silu", "gelu", "gelu_tanh", "softplus"])
def test_the_slope_in_a_bound_is_at_least_the_largest(name: str) -> None:
    at = np.linspace(-12, 12, 240_001).astype(np.float32)
    exact, wide = reference(f"{name}(value)", at), reference(f"{name}(value)", at, bound=1e3)
    inner = np.diff(at.astype(np.float64)) > 0
    slope = np.abs(np.diff(exact.value)[inner] / np.diff(at.astype(np.float64))[inner]).max()
    assert slope <= ((wide.bound - exact.bound) / 1e3).min()


@pytest.mark.parametrize("name", ["sm_75", "sm_80"])
@pytest.mark.parametrize("form", ["{0}(value, {1})", "{0}({1}, value)", "float32({0}(float64(value), {1}))"])
def test_extrema_are_those_of_ieee_754(form: str, name: str) -> None:
    """NaN passes, and -0 is smaller than +0."""
    values = np.array([-0.0, 0.0, np.nan, np.inf, -np.inf, 1.5, -1.5], np.float32)
    for other in (-0.0, 0.0, 1.5):
        for function, largest in (("max", True), ("min", False)):
            order = [(np.isnan(value), value if largest else -value, np.signbit(value) != largest) for value in values]
            second = (False, other if largest else -other, np.signbit(other) != largest)
            expected = np.array([value if one >= second else other for one, value in zip(order, values, strict=True)], np.float32)
            found = computed(form.format(function, repr(other)), values, name=name)
            np.testing.assert_array_equal(found, expected)
            np.testing.assert_array_equal(np.signbit(found[[0, 1]]), np.signbit(expected[[0, 1]]))


@pytest.mark.parametrize("backend", ["auto", "emulator"])
def test_products_end_in_the_zero_that_ieee_754_gives(backend: Literal["auto", "emulator"]) -> None:
    """On the processor and on the emulator."""
    a, b = np.zeros((8, 8), np.float32), np.ones((8, 8), np.float32)
    signs = [np.signbit(ops.matmul(a, b, epilogue={"value": text}, backend=backend)) for text in ("max(-acc, 0)", "min(acc, -acc)")]
    assert not signs[0].any() and signs[1].all()


def test_the_polynomial_of_gelu_is_as_close_as_it_says() -> None:
    z = np.linspace(0, 12, 3001)
    t = 1 / (1 + np.float64(np.float32(0.38183766)) * z * np.sqrt(2))
    tail = np.full(z.shape, -0.089395)
    for coefficient in (0.18425135, 0.09527471, 0.15782835, 0.15202129):
        tail = tail * t + coefficient
    exact = np.array([float(mpmath.erfc(one) * mpmath.exp(mpmath.mpf(one) ** 2)) for one in z])
    assert np.abs(2 * t * tail / exact - 1).max() <= GELU_POLYNOMIAL_ERROR


def test_the_polynomial_of_coarse_gelu_is_as_close_as_it_says() -> None:
    y = np.linspace(0, math.sqrt(2 * 126 * math.log(2)), 3001)
    t = 1 / (1 + float(np.float32(COARSE_GELU_SLOPE)) * y)
    polynomial = np.polynomial.Polynomial([float(np.float32(one)) for one in COARSE_GELU])(t)
    exact = np.array([float(mpmath.erfc(one / mpmath.sqrt(2)) * mpmath.exp(mpmath.mpf(one) ** 2 / 2) / 2) for one in y])
    assert np.abs(polynomial / exact - 1).max() <= COARSE_GELU_ERROR


def test_the_polynomial_of_single_gelu_is_as_close_as_it_says() -> None:
    y = np.linspace(0, SINGLE_GELU_LIMIT, 5001)
    coefficients = [float(np.float32(one)) for one in SINGLE_GELU]
    power = np.exp2(np.polynomial.polynomial.polyval(y, coefficients))
    exact = np.array([float(mpmath.erfc(mpmath.mpf(one) / mpmath.sqrt(2)) / 2) for one in y])
    assert np.abs(power / exact - 1).max() <= SINGLE_GELU_ERROR
    beyond = np.concatenate([np.linspace(SINGLE_GELU_LIMIT, 40, 2000), 10.0 ** np.linspace(1.6, 38, 500)])
    assert (np.polynomial.polynomial.polyval(beyond, coefficients) < -126).all()


def test_the_polynomial_of_single_silu_is_as_close_as_it_says() -> None:
    power = np.linspace(0, 1, 100_001)
    polynomial = np.polynomial.polynomial.polyval(power, [float(np.float32(one)) for one in SINGLE_SILU])
    assert np.abs(polynomial * (1 + power) - 1).max() <= SINGLE_SILU_ERROR


def test_the_polynomial_of_coarse_gelu_tanh_is_that_close() -> None:
    power = np.linspace(0, 1, 100_001)
    polynomial = np.polyval([float(np.float32(one)) for one in COARSE_GELU_TANH], power)
    assert np.abs(polynomial * (1 + power) - 1).max() <= COARSE_GELU_TANH_ERROR
    text = (Path(__file__).parents[3] / "templates" / "device" / "quick_activations.cuh").read_text()
    body = text.partition("float coarse_gelu_tanh(float x)")[2].partition("}")[0]
    numbers = [float(one) for one in re.findall(r"(?<![-\w.])-?\d[\d.e-]*(?=f\b)", body)]
    assert numbers == [0.10294324, 2.3022082, *COARSE_GELU_TANH, 20.0, 0.0]


def coefficients_of(function: str) -> list[float]:
    """The numbers in the text of an approximation."""
    text = (Path(__file__).parents[3] / "templates" / "device" / "quick_activations.cuh").read_text()
    body = text.partition(f"float {function}(float x)")[2].partition("}")[0]
    return [float(np.float32(one)) for one in re.findall(r"(?<![-\w.])-?\d[\d.e-]*(?=f\b)", body)]


def test_kernels_have_the_coefficients_that_are_tested() -> None:
    gelu = [*reversed(SINGLE_GELU), 20.0, 0.0]
    coarse = [20.0, COARSE_GELU_SLOPE, 1.0, *reversed(COARSE_GELU), -0.72134752, 0.0]
    silu = [-1.44269504, 8.0, *reversed([one * SINGLE_SILU_SCALE ** -(at + 1) for at, one in enumerate(SINGLE_SILU)]), 100.0, 0.0]
    for function, numbers in (("single_gelu", gelu), ("coarse_gelu", coarse), ("single_silu", silu)):
        np.testing.assert_allclose(coefficients_of(function), numbers, rtol=2.0**-24)


def test_every_function_of_one_argument_is_tested() -> None:
    single = {name for name, function in FUNCTIONS.items() if function.arity == 1}
    assert single - {*EXACT, "neg", "not", "abs", "square", "relu", "round", "hard_swish"} == set()


def test_the_page_lists_every_function_with_its_error() -> None:
    page = (Path(__file__).parents[3] / "docs" / "epilogues.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for name, function in FUNCTIONS.items():
        (row,) = (row for row in rows if re.search(rf"`{name}[`(]", row.split("|")[1]) and row.count("|") - row.count("\\|") == 5)
        figures = row.replace("\\|", "|").replace("²", "^2").replace("³", "^3")
        assert function.bound.split(",")[0] in figures, name
        forms = [function, *(one for one in (function.quick, function.coarse) if one is not None)]
        assert ", ".join(f"{one.cost:g}" for one in forms) in row, name
    for name in MACROS:
        assert f"`{name}(" in page
