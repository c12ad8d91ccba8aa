"""Quantisation to 8-bit floats with block scales, and products of its results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gemmgen import ops
from gemmgen.core.errors import LaunchError

ml_dtypes = pytest.importorskip("ml_dtypes", reason="NumPy has 8-bit floats with ml_dtypes alone")
RNG = np.random.default_rng(8)


def each(scales: Any, block: tuple[int, int], shape: tuple[int, int]) -> Any:
    """A scale for each element."""
    return np.repeat(np.repeat(scales.astype(np.float64), block[0], 0)[: shape[0]], block[1], 1)[:, : shape[1]]


@pytest.mark.parametrize("block", [(1, 128), (128, 128)], ids=str)
@pytest.mark.parametrize("scales", ["float32", "float8_e8m0fnu"])
@pytest.mark.parametrize("layout", ["k_major", "mn_major"])
def test_values_times_scales_are_close_to_the_matrix(block: tuple[int, int], scales: Any, layout: Any) -> None:
    x = (RNG.standard_normal((130, 300)) * 10.0 ** RNG.integers(-3, 3, (130, 1))).astype(np.float32)
    values, found = ops.quantize(x, block=block, scales=scales, layout=layout)
    assert values.dtype.name == "float8_e4m3fn" and found.dtype.name == scales
    assert found.strides[0 if layout == "mn_major" else 1] == found.itemsize
    if layout == "mn_major":
        assert found.strides[1] % (4 * found.itemsize) == 0
    restored = values.astype(np.float64) * each(found, block, x.shape)
    largest = each(found, block, x.shape) * 448
    assert (np.abs(restored - x) <= np.maximum(np.abs(x) * 2**-4, largest * 2**-17)).all()


@pytest.mark.parametrize(("block", "shape"), [("row", (130, 1)), ("tensor", (1, 1))])
def test_rows_and_whole_matrices_have_scales_that_products_take(block: Any, shape: tuple[int, int]) -> None:
    x = (RNG.standard_normal((130, 48)) * 10.0 ** RNG.integers(-2, 2, (130, 1))).astype(np.float32)
    values, found = ops.quantize(x, block=block)
    largest = np.abs(x).max(axis=1 if block == "row" else None, keepdims=True)
    assert found.shape == shape and (found == largest / np.float32(448)).all()
    got = ops.matmul(values, values.T, scale_a=found if block == "row" else float(found[0, 0]), output="float32")
    want = (values.astype(np.float64) * found) @ values.astype(np.float64).T
    np.testing.assert_allclose(got, want, atol=np.abs(want).max() * 2**-10)


def test_corners_of_a_block_keep_their_meaning() -> None:
    """Zeros, an infinity, which saturates, and NaN."""
    x = np.zeros((2, 256), np.float32)
    x[0, :3] = np.inf, np.nan, 3.0
    values, scales = ops.quantize(x)
    assert scales[0, 1] == 1 and scales[1, 0] == 1 and scales[0, 0] == np.float32(3) / np.float32(448)
    assert values[0, 0] == 448 and np.isnan(values[0, 1].astype(np.float32)) and values[0, 2] == 448


def test_products_take_what_quantize_returns() -> None:
    a, w = RNG.standard_normal((7, 200)).astype(np.float32), RNG.standard_normal((40, 200)).astype(np.float32)
    (qa, sa), (qw, sw) = ops.quantize(a, layout="mn_major"), ops.quantize(w, block=(128, 128))
    got = ops.matmul(qa, qw.T, scale_a=sa, scale_b=sw.T, output="float32")
    want = (qa.astype(np.float64) * each(sa, (1, 128), a.shape)) @ (qw.astype(np.float64) * each(sw, (128, 128), w.shape)).T
    np.testing.assert_allclose(got, want, atol=np.abs(want).max() * 2**-10)


@pytest.mark.parametrize(
    ("scales", "message"),
    [(((7, 3), (2, 1)), r"scale_a has shape \(7, 3\), need \(7, 2\) or \(1, 2\)"), (((7, 2), (3, 1)), r"scale_b has shape \(3, 1\)")],
    ids=["a", "b"],
)
def test_scales_of_the_wrong_shape_are_refused(scales: tuple[tuple[int, int], tuple[int, int]], message: str) -> None:
    a = np.ones((7, 200), ml_dtypes.float8_e4m3fn)
    b = np.ones((40, 200), ml_dtypes.float8_e4m3fn).T
    with pytest.raises(LaunchError, match=message):
        ops.matmul(a, b, scale_a=np.ones(scales[0], np.float32), scale_b=np.ones(scales[1], np.float32))


def test_block_scales_of_other_types_are_refused() -> None:
    a = np.ones((7, 200), np.float16)
    with pytest.raises(LaunchError, match="scale_a"):
        ops.matmul(a, a.T, scale_a=np.ones((7, 2), np.float32))


@pytest.mark.parametrize(
    "wrong", [{"block": (1, 64)}, {"output": "int8"}, {"scales": "float16"}, {"layout": "tiled"}], ids=lambda wrong: next(iter(wrong))
)
def test_what_no_product_reads_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(LaunchError, match=f"quantize: {next(iter(wrong))} is"):
        ops.quantize(np.ones((2, 128), np.float32), **wrong)
    with pytest.raises(LaunchError, match="two axes"):
        ops.quantize(np.ones(128, np.float32))
