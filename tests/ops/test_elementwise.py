"""``ops.elementwise`` on NumPy arrays: operations, operands, broadcasts, views and refusals."""

from typing import Any

import numpy as np
import pytest

from gemmgen import ops
from gemmgen.core.errors import LaunchError

RNG = np.random.default_rng(1)
X = RNG.integers(-4, 5, (5, 6, 7)).astype("f4")


def test_names_and_mappings_are_applied_in_order() -> None:
    assert (ops.elementwise(X, ["relu", {"op": "scale", "factor": 2.0}, "square"]) == (2 * np.maximum(X, 0)) ** 2).all()


def test_without_operations_it_copies_views() -> None:
    assert (ops.elementwise(X.transpose(2, 0, 1)) == X.transpose(2, 0, 1)).all()


@pytest.mark.parametrize("shape", [(7,), (6, 1), (5, 1, 1), (5, 6, 7), (1, 1, 1)])
def test_a_bias_broadcasts(shape: tuple[int, ...]) -> None:
    bias = RNG.integers(-4, 5, shape).astype("f4")
    assert (ops.elementwise(X, "bias", bias=bias) == X + bias).all()


def test_x_broadcasts_to_the_shape_of_the_others() -> None:
    gate = RNG.integers(-4, 5, (5, 6, 7)).astype("f4")
    assert (ops.elementwise(X[:, :1], "multiply", f=gate) == X[:, :1] * gate).all()


def test_numbers_and_two_operands_of_a_kind() -> None:
    got = ops.elementwise(X, ["bias", "residual", "residual", "bias"], bias=2.0, z=X, gamma=0.5, z2=X[::-1].copy(), bias2=X)
    assert (got == X + 2 + 0.5 * X + X[::-1] + X).all()


def test_halves_of_rows_are_read_where_they_are() -> None:
    both = RNG.normal(0, 1, (9, 16)).astype("f4")
    left, right = both[:, :8], both[:, 8:]
    assert np.allclose(ops.elementwise(left, ["silu", "multiply"], f=right), left / (1 + np.exp(-left)) * right, rtol=1e-5)


def test_out_decides_the_type_and_is_returned() -> None:
    out = np.empty(X.shape, "f2")
    assert ops.elementwise(X, "abs", out=out) is out and (out == np.abs(X)).all()


def test_a_cast_decides_the_type_of_the_result() -> None:
    assert ops.elementwise(X, {"op": "cast", "type": "int32"}).dtype == np.int32


def test_an_empty_array_gives_an_empty_one() -> None:
    assert ops.elementwise(X[:0], "relu").shape == (0, 6, 7)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((X, "residual"), {}, "reads an array; pass z="),
        ((X, "relu"), {"z": X}, "no operation reads z"),
        ((X, "bias"), {"bias": X[:, :3]}, "does not broadcast"),
        ((X, "bias"), {"bias": X.astype("f8")}, "bias has elements f64, need x's, f32"),
        ((X, "nothing"), {}, "operation is 'nothing', need one of"),
        ((X.astype("i4"), "gelu"), {}, "gelu of a value of type int32"),
        ((X, "relu"), {"out": np.empty((5, 6), "f4")}, "out has shape"),
        ((X, "residual"), {"z": X, "gamma": "2"}, "gamma must be a number"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: tuple[Any, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        ops.elementwise(*arguments, **options)
