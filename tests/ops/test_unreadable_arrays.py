"""NumPy arrays that kernels cannot read in place are copied; elements without a number are refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gemmgen import ops
from gemmgen.core.errors import LaunchError

RNG = np.random.default_rng(7)
X = RNG.integers(-4, 5, (4, 16)).astype(np.float32)
W = RNG.integers(-4, 5, (16, 8)).astype(np.float32)
CONSTANT = np.full((3, 16), 2, np.float32)


def foreign(x: np.ndarray) -> np.ndarray:
    """The elements with their bytes in the other order."""
    return x.astype(x.dtype.newbyteorder())


def packed(x: np.ndarray) -> np.ndarray:
    """A field of records whose size is not a multiple of the element's."""
    records = np.zeros(x.shape, [("tag", "i1"), ("x", x.dtype)])
    records["x"] = x
    return records["x"]


def at_odd_address(x: np.ndarray) -> np.ndarray:
    raw = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    raw[...] = x
    return raw


FORMS = {"foreign": foreign, "packed": packed, "odd address": at_odd_address}
CALLS: dict[str, tuple[Callable[[Callable[[np.ndarray], np.ndarray]], object], object]] = {
    "reduce": (lambda form: ops.reduce(form(X), "sum", 1), X.sum(1)),
    "int16": (lambda form: ops.reduce(form(X.astype(np.int16)), "max", 0), X.max(0).astype(np.int16)),
    "elementwise": (lambda form: ops.elementwise(form(X), "bias", bias=form(X[0])), X + X[0]),
    "matmul": (lambda form: ops.matmul(form(X), form(W), bias=form(W[0])), X @ W + W[0]),
    "complex": (lambda form: ops.matmul(form(X * (1 + 1j)).astype(np.complex64), form(W)), (X * (1 + 1j)) @ W),
    "softmax": (lambda form: ops.softmax(form(CONSTANT)), np.full((3, 16), 1 / 16)),
    "rms_norm": (lambda form: ops.rms_norm(CONSTANT, form(X[0]), eps=0.0), np.tile(X[0], (3, 1))),
    "conv2d": (
        lambda form: ops.conv2d(
            form(X.reshape(1, 2, 2, 16).astype(np.float16)).transpose(0, 3, 1, 2), form(np.ones((8, 16, 1, 1), np.float16))
        ),
        np.repeat(X.sum(1).reshape(1, 1, 2, 2), 8, axis=1),
    ),
    "input gradient": (
        lambda form: ops.conv2d_input_gradient(form(np.ones((1, 8, 2, 2), np.float16)), form(np.ones((8, 16, 1, 1), np.float16)), (2, 2)),
        np.full((1, 16, 2, 2), 8),
    ),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("form", FORMS)
def test_arrays_that_kernels_cannot_read_are_copied(form: str, call: str) -> None:
    make, want = CALLS[call]
    np.testing.assert_array_equal(np.asarray(make(FORMS[form])), want)


@pytest.mark.parametrize("number", [np.float32(3), np.int16(-3), np.bool_(True)], ids=repr)
def test_scalars_of_numpy_are_arrays_without_axes(number: np.generic) -> None:
    assert ops.reduce(number, "max") == number
    assert ops.elementwise(number, "square") == np.int64(number) ** 2


def test_axes_are_integers_of_numpy_too() -> None:
    for axis in (np.int8(1), np.array(1), (np.array(0), np.int64(-1))):
        np.testing.assert_array_equal(ops.reduce(X, "sum", axis), X.sum(axis if axis.__class__ is tuple else int(axis)))


def test_results_are_not_stored_in_foreign_byte_order() -> None:
    with pytest.raises(LaunchError, match="foreign byte order"):
        ops.matmul(X, W, out=foreign(np.zeros((4, 8), np.float32)))


@pytest.mark.parametrize("word", ["complex64", "object", "datetime64[s]", "U1", "V4"])
def test_weights_of_norms_are_real_numbers(word: str) -> None:
    with pytest.raises(LaunchError, match="weight has elements"):
        ops.rms_norm(X, np.zeros(16, word))
    with pytest.raises(LaunchError, match="x has elements"):
        ops.softmax(np.zeros((2, 4), word))
