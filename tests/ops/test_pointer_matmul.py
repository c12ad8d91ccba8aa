"""Lists of matrices that lie anywhere: products of each, in every type and storage order; lists that do not fit are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gemmgen import ops
from gemmgen.core.errors import LaunchError
from gemmgen.ops.functions.pointer_matmul import _check_addresses

RNG = np.random.default_rng(5)
SHAPES = ((5, 7, 9), (70, 33, 65), (1, 1, 1), (3, 4, 0), (0, 5, 6), (40, 130, 17))
"""m, n and k."""
Array = npt.NDArray[Any]


def lists(type: Any) -> tuple[list[Array], list[Array]]:
    """Factors of which every other b is stored in columns."""
    a = [RNG.integers(-2, 3, (m, k)).astype(type) for m, _, k in SHAPES]
    b = [RNG.integers(-2, 3, (k, n)).astype(type) for _, n, k in SHAPES]
    return a, [np.asfortranarray(one) if index % 2 else one for index, one in enumerate(b)]


@pytest.mark.parametrize("type", ["float32", "float16", "bfloat16", "int8", "float64", "float8_e4m3fn"])
def test_products_of_lists(type: str) -> None:
    extended = pytest.importorskip("ml_dtypes") if "bfloat" in type or "float8" in type else None
    a, b = lists(getattr(extended, type) if extended is not None else type)
    results = ops.pointer_matmul(a, b, output="float32" if type == "float8_e4m3fn" else None)
    for one, other, result in zip(a, b, results, strict=True):
        product = one.astype(np.float64) @ other.astype(np.float64)
        want = product.astype(a[0].dtype if type == "bfloat16" else result.dtype)
        got = result.view(a[0].dtype) if type == "bfloat16" else result
        np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


def test_results_are_added_to_views() -> None:
    """alpha and beta; out within a larger array, of which the rest stays as it is."""
    a, b = lists(np.float32)
    memory = RNG.integers(-3, 4, (200, 300)).astype(np.float32)
    before = memory.copy()
    out = [memory[:5, 3:10], memory[10:80, 20:53]]
    found = ops.pointer_matmul(a[:2], b[:2], out, alpha=2.0, beta=-1.0)
    assert found[0] is out[0]
    for index, place in enumerate(((slice(5), slice(3, 10)), (slice(10, 80), slice(20, 53)))):
        before[place] = 2 * (a[index] @ b[index]) - before[place]
    np.testing.assert_array_equal(memory, before)


@pytest.mark.parametrize("type", ["float32", "float64", "float16"])
def test_each_product_has_alpha_and_beta(type: str) -> None:
    """A product of NaN with alpha 0, and an out of NaN with beta 0, are not read."""
    a, b = (one[:3] for one in lists(type))
    a[2][:] = np.nan
    out = [RNG.integers(-3, 4, (m, n)).astype(type) for m, n, _ in SHAPES[:3]]
    want = [2 * (a[0] @ b[0]) - out[0], -3 * (a[1] @ b[1]), 4 * out[2]]
    out[1][:] = np.nan
    ops.pointer_matmul(a, b, out, alpha=[2.0, -3.0, 0.0], beta=[-1.0, 0.0, 4.0])
    for got, expected in zip(out, want, strict=True):
        np.testing.assert_array_equal(got, expected.astype(type))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alpha": [1.0, 2.0, 3.0]}, "alpha has 3 factors, need one for each of 2 products"),
        ({"alpha": np.ones(2)}, r"alpha is f64 of shape \(2,\), need float32"),
        ({"b": 1}, "b has 1 matrices, need as many as a, 2"),
        ({"b": "types"}, "a has elements f32, b f16, need one type for both"),
        ({"a": "mixed"}, r"a\[1\] has elements f16, need those of a\[0\], f32"),
        ({"a": "shapes"}, r"a\[1\] of shape \(70, 64\) and b\[1\] of shape \(65, 33\) cannot be multiplied"),
        ({"a": "vector"}, r"a\[1\] has shape \(70,\), need a matrix"),
        ({"a": "empty"}, "a has 0 matrices, need from 1"),
        ({"out": "overlap"}, "matrices of out overlap"),
        ({"out": "columns"}, r"out\[1\] has shape \(70, 33\) and strides"),
        ({"out": "array"}, "out is ndarray, need a list of matrices like a"),
        ({"beta": 1.0}, "beta is not 0, but there is no out"),
        ({"alpha": 10**400}, "alpha must be a number that a float holds"),
        ({"alpha": [1.0, "2"]}, "alpha must be a number, got str"),
        ({"alpha": [1.0, 1e39]}, "more than float32 holds"),
        ({"output": ["float32"]}, r"results are \['float32'\], need"),
        ({"output": "int8"}, "results are int8, need float32, float16, bfloat16"),
        ({"sizes": np.zeros((2, 6), np.int32)}, "sizes, most and factors are for arrays of addresses"),
    ],
    ids=lambda value: f"{next(iter(value))}-{next(iter(value.values()))}"[:12] if isinstance(value, dict) else "",
)
def test_lists_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    a, b = (one[:2] for one in lists(np.float32))
    memory = np.zeros((80, 33), np.float32)
    given: dict[Any, Any] = {
        1: b[:1],
        "types": [one.astype(np.float16) for one in b],
        "mixed": [a[0], a[1].astype(np.float16)],
        "shapes": [a[0], a[1][:, :64]],
        "vector": [a[0], a[1][:, 0]],
        "empty": [],
        "overlap": [memory[:5, :7], memory[:70]],
        "columns": [memory[:5, :7], np.zeros((70, 33), np.float32, order="F")],
        "array": memory,
    }
    changed: dict[str, Any] = {name: given[value] if name in ("a", "b", "out") else value for name, value in changes.items()}
    with pytest.raises(LaunchError, match=message):
        ops.pointer_matmul(changed.pop("a", a), changed.pop("b", b), **changed)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sizes": None}, "arrays of addresses need out, sizes, most and factors"),
        ({"factors": "int4"}, "factors is 'int4', need float32"),
        ({"factors": ["float16"]}, r"factors is \['float16'\], need float32"),
        ({"alignment": 3}, "alignment is 3"),
        ({"alignment": np.array([1, 2])}, r"alignment is array\(\[1, 2\]\)"),
        ({"transpose": "n"}, "transpose 'n'"),
        ({"b": np.zeros(2, np.int64)}, r"b is s64 of shape \(2,\), need int64 addresses"),
        ({"b": np.zeros(3, np.int32)}, "b is s32"),
        ({"sizes": np.zeros((3, 5), np.int32)}, r"sizes is s32 of shape \(3, 5\), need int32 of shape \(3, 6\)"),
        ({}, "lie in host memory"),
    ],
    ids=["no-sizes", "type", "types", "alignment", "alignments", "letters", "count", "addresses", "six", "host"],
)
def test_addresses_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    at = np.zeros(3, np.int64)
    given: dict[str, Any] = {"b": at, "out": at, "sizes": np.zeros((3, 6), np.int32), "most": (8, 8, 8), "factors": "float16", **changes}
    with pytest.raises(LaunchError, match=message):
        ops.pointer_matmul(at, given.pop("b"), **given)


@pytest.mark.parametrize(
    ("row", "at", "message"),
    [
        ((9, 8, 8, 8, 8, 8), 64, r"sizes\[1\] has m, n and k \(9, 8, 8\), need 0 to \(8, 8, 8\)"),
        ((8, 8, -1, 8, 8, 8), 64, "need 0 to"),
        ((8, 8, 8, 7, 8, 8), 64, r"sizes\[1\] has lda 7, need at least 8 and a multiple of 8"),
        ((8, 8, 8, 8, 12, 8), 64, "ldb 12, need at least 8 and a multiple of 8"),
        ((8, 8, 8, 8, 8, 8), 0, r"a\[1\] is address 0x0, need a multiple of 16 that is not null"),
        ((8, 8, 8, 8, 8, 8), 8, r"a\[1\] is address 0x8, need a multiple of 16"),
        ((8, 0, 8, 8, 8, 8), 0, ""),
    ],
    ids=["too-large", "negative", "overlapping-rows", "unaligned-rows", "null", "misaligned", "null-without-size"],
)
def test_checks_find_what_kernels_leave_out(row: tuple[int, ...], at: int, message: str) -> None:
    addresses = np.array([64, at], np.int64)
    arguments = ((addresses,) * 3, np.array([(8,) * 6, row], np.int32), (8, 8, 8), ("f16", "f16"), "nn", (8, 8, 8))
    if not message:
        _check_addresses(*arguments)
        return
    with pytest.raises(LaunchError, match=message):
        _check_addresses(*arguments)
