"""Complex matrices: products, views, factors of a result, and refused matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gemmgen import ops
from gemmgen.core.errors import LaunchError

RNG = np.random.default_rng(11)
Array = npt.NDArray[Any]


def integers(*shape: int, type: str = "complex64") -> Array:
    """Numbers whose products float32 holds."""
    real, imaginary = RNG.integers(-4, 5, (2, *shape))
    found: Array = (real + 1j * imaginary if type.startswith("complex") else real).astype(type)
    return found


@pytest.mark.parametrize(
    "types", [("complex64",) * 2, ("complex128",) * 2, ("float32", "complex64"), ("complex128", "float64")], ids="-".join
)
def test_complex_products_are_exact_on_integers(types: tuple[str, str]) -> None:
    a, b = integers(7, 33, type=types[0]), integers(33, 9, type=types[1])
    got = ops.matmul(a, b)
    assert got.dtype == (a @ b).dtype
    np.testing.assert_array_equal(got, a @ b)


def test_complex_products_by_8_bit_integers() -> None:
    a, b = integers(8, 20, type="complex128"), integers(20, 8, type="complex128")
    np.testing.assert_array_equal(ops.matmul(a, b, precision="int8x14"), a @ b)


def test_views_and_batches_are_multiplied() -> None:
    a, b = integers(2, 12, 5).swapaxes(1, 2), integers(12, 18)[:, ::2].conj()
    np.testing.assert_array_equal(ops.matmul(a, b), a @ b)


def test_results_are_added_to_out_times_complex_numbers() -> None:
    a, b, out = integers(6, 8), integers(8, 4), integers(6, 4)
    want = (2 - 1j) * (a @ b) + 3j * out
    found = ops.matmul(a, b, out=out, alpha=2 - 1j, beta=3j)
    assert found is out
    np.testing.assert_array_equal(out, want.astype(np.complex64))


def test_without_alpha_factors_do_not_count() -> None:
    a, out = np.full((3, 4), np.nan, np.complex64), integers(3, 2)
    want = 2j * out
    np.testing.assert_array_equal(ops.matmul(a, integers(4, 2), out=out, alpha=0.0, beta=np.complex64(2j)), want)


def test_errors_are_within_those_of_real_products() -> None:
    """Each part is a sum of two products, rounded once more than these."""
    real, other = RNG.standard_normal((2, 2, 40, 40))
    a, b = (real[0] + 1j * real[1]).astype(np.complex64), (other[0] + 1j * other[1]).astype(np.complex64)
    exact = a.astype(np.complex128) @ b.astype(np.complex128)
    sizes = np.abs(a.real).astype(float) @ np.abs(b.real) + np.abs(a.imag).astype(float) @ np.abs(b.imag)
    crossed = np.abs(a.real).astype(float) @ np.abs(b.imag) + np.abs(a.imag).astype(float) @ np.abs(b.real)
    error = ops.matmul(a, b) - exact
    assert (np.abs(error.real) <= 42 * 2.0**-24 * sizes).all() and (np.abs(error.imag) <= 42 * 2.0**-24 * crossed).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"b": "complex128"}, "a has elements complex64 and b complex128, need one precision"),
        ({"b": "float64"}, "a has elements complex64 and b float64, need one precision"),
        ({"out": "float32"}, "out has elements float32, need complex64"),
        ({"out": "shape"}, r"out has shape \(5, 5\), need \(4, 6\)"),
        ({"alpha": [1.0] * 6}, "alpha must be a number, got list"),
        ({"alpha": np.ones(6)}, "alpha must be a number, got ndarray"),
        ({"alpha": 10**400}, "alpha must be a number that a float holds"),
        ({"alpha": 1e39j}, "more than float32 holds"),
        ({"beta": "1"}, "beta must be a number, got str"),
        ({"beta": 1.0}, "beta is not 0, but there is no out"),
        ({"activation": "relu"}, "complex factors allow only out, alpha, beta, precision and backend"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_complex_calls_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    b = integers(5, 6, type=changes.pop("b", "complex64"))
    if "out" in changes:
        changes["out"] = np.zeros((5, 5), np.complex64) if changes["out"] == "shape" else np.zeros((4, 6), changes["out"])
    with pytest.raises(LaunchError, match=message):
        ops.matmul(integers(4, 5), b, **changes)
