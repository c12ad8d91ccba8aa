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


class Derived(np.ndarray):
    """A class of the user's."""


def test_arrays_of_derived_classes_are_those_of_numpy() -> None:
    x = np.arange(6, dtype=np.int16).reshape(2, 3).view(Derived)
    assert (ops.elementwise(x, "square") == np.asarray(x) ** 2).all()
    assert (ops.reduce(x.astype("f4")[:, ::-1], "sum", 1) == [3, 12]).all()


def test_a_cast_decides_the_type_of_the_result() -> None:
    assert ops.elementwise(X, {"op": "cast", "type": "int32"}).dtype == np.int32


def test_an_empty_array_gives_an_empty_one() -> None:
    assert ops.elementwise(X[:0], "relu").shape == (0, 6, 7)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((X, "residual"), {}, "reads an array; pass z="),
        ((X, "relu"), {"z": X}, "no operation reads z"),
        ((X, "relu"), {"bias": 2.0}, "no operation reads bias"),
        ((X, ("bias", "relu")), {"bias": 2.0, "bias2": 1}, "no operation reads bias2"),
        ((X, "bias"), {}, "reads a number or an array; pass bias="),
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


MATRIX = np.arange(12, dtype=np.float32).reshape(3, 4)
FORMULA = {
    "inputs": {
        "gate": {"per": "element", "type": "f16"},
        "slope": {"per": "row"},
        "bias": {"per": "column", "type": "s8"},
        "keep": {"scalar": "f32"},
        "stage": {"pointer": "f32"},
    },
    "let": {"z": "value * slope + bias"},
    "outputs": {
        "y": "z * gate * keep + stage if row >= column else 0",
        "kept": {"value": "z", "type": "f16"},
        "mask": {"value": "z > 3", "type": "bool"},
        "top": {"reduce": "max", "per": "row", "of": "z"},
        "every": {"reduce": "absmax", "of": "z"},
    },
}


def named(**more: Any) -> dict[str, Any]:
    return {
        "gate": np.float16([-1, 0, 1, 2]),
        "slope": np.float32([1, 2, 3]),
        "bias": np.int8([0, 1, 2, 3]),
        "keep": 0.5,
        "stage": np.float32([7]),
        "kept": np.zeros((3, 4), np.float16),
        "mask": np.zeros((3, 4), np.bool_),
        "top": np.full(3, -np.inf, np.float32),
        "every": np.zeros(1, np.float32),
        **more,
    }


@pytest.mark.parametrize("order", ["C", "F"])
def test_formulas_have_operands_and_outputs_by_name(order: Any) -> None:
    given = named(kept=np.zeros((3, 4), np.float16, order=order))
    got = ops.elementwise(np.array(MATRIX, order=order), FORMULA, operands=given)
    z = MATRIX * given["slope"][:, None] + given["bias"]
    lower = np.arange(3)[:, None] >= np.arange(4)
    np.testing.assert_array_equal(got, np.where(lower, z * given["gate"].astype(np.float32) * 0.5 + 7, 0))
    np.testing.assert_array_equal(given["kept"], z.astype(np.float16))
    np.testing.assert_array_equal(given["mask"], z > 3)
    np.testing.assert_array_equal(given["top"], z.max(axis=1))
    assert given["every"] == np.abs(z).max()


def test_rows_and_columns_of_a_matrix_without_gaps_are_its_own() -> None:
    np.testing.assert_array_equal(ops.elementwise(MATRIX, "value + float32(column)"), MATRIX + np.arange(4))
    np.testing.assert_array_equal(ops.elementwise(MATRIX, "value if row >= column else -1"), np.where(np.tri(3, 4), MATRIX, -1))
    channels = np.float32([1, 2, 3, 4, 5, 6])
    images = np.stack([X, X])
    formula = {"inputs": {"gain": {"per": "channel"}}, "value": "value * gain + float32(column)"}
    wanted = images * channels[: images.shape[1], None, None] + np.arange(images.shape[-1])
    np.testing.assert_allclose(ops.elementwise(images, formula, operands={"gain": channels[: images.shape[1]]}), wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gate": np.float32([1, 2, 3, 4])}, "gate has elements float32, need float16, as the formula says"),
        ({"top": np.zeros(4, np.float32)}, r"top has shape \(4,\), need 3 values"),
        ({"gat": np.zeros(4)}, "no 'gat'; did you mean 'gate'"),
        ({"kept": np.zeros((3, 3), np.float16)}, r"kept has shape \(3, 3\), need \(3, 4\)"),
        ({"slope": None}, "the operand slope, pass operands="),
        ({"slope": np.zeros(5, np.float32)}, "slope of shape .5, 1. does not broadcast"),
        ({"kept": MATRIX.astype(np.float16), "gate": MATRIX.astype(np.float16)[::-1]}, ""),
    ],
)
def test_operands_that_do_not_fit_are_refused(given: dict[str, Any], message: str) -> None:
    if not message:
        assert ops.elementwise(MATRIX, FORMULA, operands=named(**given)).shape == (3, 4)
        return
    with pytest.raises(LaunchError, match=message):
        ops.elementwise(MATRIX, FORMULA, operands=named(**given))


def test_a_formula_without_its_operands_says_how_to_pass_them() -> None:
    with pytest.raises(LaunchError, match="operand or output gate, pass operands="):
        ops.elementwise(MATRIX, FORMULA)
    with pytest.raises(LaunchError, match="operands beside bias"):
        ops.elementwise(MATRIX, FORMULA, bias=1.0, operands=named())


def test_a_double_becomes_a_half_by_one_rounding() -> None:
    halves = np.arange(1, 0x7C00, 97, dtype="u2").view("f2").astype("f8")
    ties = (halves + np.nextafter(halves.astype("f2"), np.float16(np.inf)).astype("f8"))[:-1] / 2
    x = np.concatenate(
        [ties, ties * (1 + 2.0**-40), ties * (1 - 2.0**-40), [65519.99999999, 2.0**-25, -(2.0**-25) * (1 + 2.0**-50), np.inf, 1e-300]]
    )
    assert (ops.elementwise(x, [{"op": "cast", "type": "float16"}]) == x.astype("f2")).all()


@pytest.mark.parametrize("kind", ["u1", ">i2", "<i2", ">u4"])
def test_integers_of_any_byte_order_keep_their_type(kind: str) -> None:
    x = np.arange(7).astype(kind)
    plain = x.astype(x.dtype.newbyteorder("="))
    for result, wanted in ((ops.elementwise(x, "square"), x * x), (ops.elementwise(x, "bias", bias=plain), x + plain)):
        assert result.dtype == plain.dtype
        np.testing.assert_array_equal(result, wanted)
