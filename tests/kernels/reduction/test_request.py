"""Calls of ``ops.reduce`` that are understood, or refused for what is wrong with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gemmgen import ops
from gemmgen.core.errors import LaunchError

X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("axis", [np.int64(1), np.int8(-1), (np.int64(1),)])
def test_an_axis_may_be_an_integer_of_numpy(axis: Any) -> None:
    assert (ops.reduce(X, "sum", axis=axis) == X.sum(1)).all()


@pytest.mark.parametrize("axis", [True, 1.0, (0, 1.5), "0", np.bool_(True)])
def test_an_axis_is_an_integer(axis: Any) -> None:
    of_its_own = np.ones((2, 5), np.float32)
    with pytest.raises(LaunchError, match="need integers"):
        ops.reduce(of_its_own, "sum", axis=axis)


def test_a_single_number_has_no_axis() -> None:
    assert ops.reduce(np.array(3, np.float32), "sum") == 3
    with pytest.raises(LaunchError, match="axis is 0, need None for an array without axes"):
        ops.reduce(np.array(3, np.float32), "sum", axis=0)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (np.empty(3, bool), "out has elements bool, need another type: only any and all"),
        (np.empty(3, ">f4"), "out has elements float32 in foreign byte order, which no reduction stores"),
        (np.empty(3, "c8"), "out has elements complex64, which no reduction stores"),
        (np.empty(6, "f")[::2], r"out has strides \(2,\); results are stored without gaps"),
    ],
)
def test_a_result_of_the_wrong_kind_is_refused_for_it(out: Any, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        ops.reduce(X, "sum", axis=1, out=out)


def test_moments_of_integers_are_no_integers() -> None:
    with pytest.raises(LaunchError, match="out has elements int32, need a floating-point type for mean and variance"):
        ops.reduce(X, "mean_variance", axis=1, out=(np.empty(3, np.int32), np.empty(3, np.int32)))


def test_negative_strides_are_named() -> None:
    with pytest.raises(LaunchError, match=r"strides that are not negative; reduce a contiguous copy$"):
        ops.reduce(X[::-1], "sum", axis=1)
    assert (ops.reduce(X[:1][::-1], "sum", axis=1) == X[:1].sum(1)).all()
