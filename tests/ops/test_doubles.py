"""Products of float64 by those of 8-bit integers: errors beside chains of multiply-adds, lines that are repaired, refusals."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gemmgen import ops
from gemmgen.core.errors import LaunchError
from gemmgen.ops import doubles

Matrix = npt.NDArray[np.float64]
UNIT = Fraction(1, 2**53)


def chains(a: Matrix, b: Matrix) -> Matrix:
    """Chains of fused multiply-adds in the order of k; extended precision stands for the exact products of numbers of few bits."""
    total = np.zeros((a.shape[0], b.shape[1]))
    for i in range(a.shape[1]):
        total = (total.astype(np.longdouble) + np.outer(a[:, i].astype(np.longdouble), b[i].astype(np.longdouble))).astype(np.float64)
    return total


def largest_error(a: Matrix, b: Matrix, c: Matrix) -> Fraction:
    """The largest of |C - AB| / (|A| |B|), exactly, in units of 2^-53; elements of which |A| |B| is 0 must be 0."""
    left = [[Fraction(x) for x in row] for row in a.tolist()]
    right = [[Fraction(x) for x in column] for column in b.T.tolist()]
    found = Fraction(0)
    for i, row in enumerate(left):
        for j, column in enumerate(right):
            terms = [x * y for x, y in zip(row, column, strict=True)]
            size = sum(map(abs, terms), Fraction(0))
            difference = abs(Fraction(float(c[i, j])) - sum(terms, Fraction(0)))
            assert size or not difference
            found = max(found, difference / size / UNIT if size else Fraction(0))
    return found


def drawn(kind: str, shape: tuple[int, int], seed: int) -> Matrix:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    if kind == "exponents":
        x = x * np.exp2(rng.integers(-60, 60, shape))
    if kind == "cancelling":
        x[:, 1::2] = -x[:, ::2] if seed else x[:, ::2]
    if kind == "rows":
        x = x * np.exp2(rng.integers(-350, 350, (shape[0], 1)))
    if kind == "sparse":
        x = x * (rng.random(shape) < 0.2)
    return x


@pytest.mark.parametrize(
    ("kind", "precision", "transposed"),
    [
        ("normal", "int8x14", "nn"),
        ("normal", "int8x15", "tt"),
        ("exponents", "int8x14", "nt"),
        ("cancelling", "int8x15", "tn"),
        ("rows", "int8x14", "nt"),
        ("sparse", "int8x15", "nn"),
    ],
)
def test_errors_are_within_the_bound(kind: str, precision: Any, transposed: str) -> None:
    m, n, k = 9, 11, 70
    a, b = drawn(kind, (m, k), 0), drawn(kind, (n, k), 1).T
    left = np.ascontiguousarray(a) if transposed[0] == "n" else np.asfortranarray(a)
    right = np.ascontiguousarray(b) if transposed[1] == "n" else np.asfortranarray(b)
    c = ops.matmul(left, right, precision=precision)
    assert largest_error(a, b, c) <= k
    if kind in ("normal", "rows"):
        assert largest_error(a, b, c) < largest_error(a, b, chains(a, b))


def test_results_are_not_those_of_multiply_adds() -> None:
    """Tiles of ordinary numbers come from remainders: their errors are a fraction of a unit."""
    a, b = drawn("normal", (6, 200), 2), drawn("normal", (200, 10), 3)
    assert largest_error(a, b, ops.matmul(a, b, precision="int8x15")) < Fraction(3, 4)
    assert largest_error(a, b, chains(a, b)) > 1


def test_whole_numbers_are_exact() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.integers(-1000, 1001, (7, 96)).astype(float), rng.integers(-1000, 1001, (96, 5)).astype(float)
    b[:, 2] = 0
    a[3, 1::2], b[1::2, 4] = -a[3, ::2], b[::2, 4]
    assert np.array_equal(ops.matmul(a, b, precision="int8x14"), a @ b)


def test_lines_that_cannot_be_scaled_are_repaired() -> None:
    a, b = drawn("normal", (70, 40), 5), drawn("normal", (40, 67), 6)
    a[2, 3], a[65, 1], b[7, 66], a[5] = np.inf, np.nan, -np.inf, 0
    a[66], b[:, 1], b[:, 65] = a[66] * 2.0**600, b[:, 1] * 2.0**-900, b[:, 65] * 2.0**-1060
    c = ops.matmul(a, b, precision="int8x14")
    with np.errstate(invalid="ignore", over="ignore"):
        want = chains(a, b)
    np.testing.assert_allclose(c, want, rtol=1e-10, atol=1e-13)  # infinities and NaN included
    assert np.array_equal(c[:64, 65], want[:64, 65])  # below the smallest normal number
    assert not c[5, :66].any()


def test_results_go_where_the_caller_wants_them() -> None:
    a, b = drawn("normal", (5, 64), 7), drawn("normal", (64, 9), 8)
    out = np.full((9, 5), np.nan).T
    assert ops.matmul(a[:, ::-1], b[::-1], out=out, precision="int8x14") is out
    assert np.allclose(out, a @ b, rtol=0, atol=1e-13)
    assert ops.matmul(a[:0], b, precision="int8x14").shape == (0, 9)
    assert not ops.matmul(a[:, :0], b[:0], precision="int8x14").any()


@pytest.mark.parametrize(("m", "n"), [(300, 3), (3, 300)])
def test_large_products_are_made_in_parts(monkeypatch: pytest.MonkeyPatch, m: int, n: int) -> None:
    monkeypatch.setattr(doubles, "fits", lambda call, m, n, k: max(m, n) <= 256)
    a, b = drawn("normal", (m, 32), 11), drawn("normal", (32, n), 12)
    np.testing.assert_allclose(ops.matmul(a, b, precision="int8x14"), a @ b, rtol=0, atol=1e-13)


def test_a_deeper_product_than_sums_hold_is_of_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubles, "MAX_K", 19)
    a, b = drawn("normal", (2, 20), 9), drawn("normal", (20, 3), 10)
    assert np.array_equal(ops.matmul(a, b, precision="int8x14"), ops.matmul(a, b))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"beta": 2.0}, "beta is not 0, but there is no out"),
        ({"alpha": 2.0, "stream": 0}, "multiplied on the current stream; pass no stream"),
        ({"bias": np.zeros(4)}, "precision int8x14 allows only out, alpha, beta and stream"),
        ({"a": np.zeros((4, 4), np.float32)}, "a has elements f32, need float64"),
        ({"a": np.zeros(4)}, r"a has shape \(4,\), need a matrix, or a batch of them"),
        ({"a": np.zeros((2, 4, 4)), "b": np.zeros((3, 4, 4))}, "have batches of different shapes"),
        ({"b": np.zeros((5, 4))}, "need as many columns of a as rows of b"),
        ({"out": np.zeros((4, 5))}, r"out has shape \(4, 5\) and elements f64, need \(4, 4\) and float64"),
    ],
)
def test_refusals(arguments: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"a": np.zeros((4, 4)), "b": np.zeros((4, 4)), **arguments}
    with pytest.raises(LaunchError, match=message):
        ops.matmul(given.pop("a"), given.pop("b"), precision="int8x14", **given)


def test_alpha_beta_and_batches_of_doubles() -> None:
    """Integers, whose products and sums are exact: batches that are broadcast, out within a larger array, alpha of 0."""
    rng = np.random.default_rng(13)
    a, b = rng.integers(-9, 10, (2, 1, 20, 30)).astype(float), rng.integers(-9, 10, (3, 30, 10)).astype(float)
    np.testing.assert_array_equal(ops.matmul(a, b, precision="int8x14"), a @ b)
    memory = rng.integers(-9, 10, (20, 16)).astype(float)
    want = -2 * (a[0, 0] @ b[1]) + 3 * memory[:, 2:12]
    rest = memory[:, 12:].copy()
    found = ops.matmul(a[0, 0], b[1], out=memory[:, 2:12], alpha=-2.0, beta=3.0, precision="int8x14")
    np.testing.assert_array_equal(found, want)
    np.testing.assert_array_equal(memory[:, 12:], rest)
    assert not ops.matmul(np.full((4, 5), np.nan), b[0, :5], alpha=0.0, precision="int8x14").any()
