"""ops.reduce on NumPy arrays."""

import numpy as np
import pytest

from gemmgen import ops
from gemmgen.core.errors import LaunchError

X = np.random.default_rng(3).integers(-9, 10, (6, 7, 8)).astype("f")


@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 1), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("op", ["sum", "max"])
def test_every_axis_gives_what_numpy_gives(op, axis):
    expected = getattr(X, op)(axis=axis, keepdims=True)
    got = ops.reduce(X, op, axis, keepdims=True)
    assert got.shape == expected.shape
    assert (got == expected).all()
    assert (ops.reduce(X, op, axis) == getattr(X, op)(axis=axis)).all()


@pytest.mark.parametrize("view", [X[:, ::2], X.transpose(2, 0, 1), X[1:, :, 3:7], X[..., 0]], ids=["step", "transposed", "slice", "plane"])
def test_views_are_reduced_where_they_are(view):
    for axis in range(view.ndim):
        assert (ops.reduce(view, "sum", axis) == view.sum(axis)).all()


@pytest.mark.parametrize("axis", [None, 0, 2])
def test_positions_are_those_of_the_first(axis):
    assert (ops.reduce(X, "argmax", axis) == X.argmax(axis)).all()


def test_truth_values_go_in_and_come_out():
    got = ops.reduce(X > 8, "any", 1)
    assert got.dtype == bool
    assert (got == (X > 8).any(1)).all()


def test_truth_values_that_only_dlpack_can_read():
    class Exported:
        def __dlpack__(self, **options):
            return (X > 3).__dlpack__(**options)

        def __dlpack_device__(self):
            return X.__dlpack_device__()

    out = np.empty(X.shape[1:], bool)
    ops.reduce(Exported(), "any", 0, out=out)
    assert (out == (X > 3).any(0)).all()


def test_sums_of_integers_are_wide():
    assert ops.reduce(X.astype("i1"), "sum", 0).dtype == np.int64
    out = np.empty((6, 7), "f2")
    assert ops.reduce(X, "mean", 2, out=out) is out
    assert np.allclose(out, X.mean(2), rtol=1e-3)


def test_mean_and_variance_come_as_a_pair():
    mean, variance = ops.reduce(X, "mean_variance", 0, correction=1)
    assert np.allclose(mean, X.mean(0), rtol=1e-5, atol=1e-6)
    assert np.allclose(variance, X.var(0, ddof=1), rtol=1e-5)


def test_axes_are_integers_whatever_was_called_before():
    assert (ops.reduce(X, "sum", 1) == ops.reduce(X, "sum", np.int64(1))).all()
    for axis in (1.0, True, (1.0,), np.bool_(True)):
        with pytest.raises(LaunchError, match="axis is"):
            ops.reduce(X, "sum", axis)


def test_the_sum_of_nothing_is_zero():
    assert (ops.reduce(X[:, :0], "sum", 1) == 0).all()


@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        (X, {"op": "median"}, "op is 'median', need one of sum"),
        (X, {"axis": 3}, "axis is 3, need integers from -3 to 2"),
        (X, {"axis": (0, 0)}, "names an axis twice"),
        (X, {"axis": 1.5}, "axis is 1.5"),
        (np.zeros((3,) * 10, "f")[(slice(2),) * 10], {"axis": (0, 2, 4, 6, 8)}, "kept and reduced axes in turn, more than the 8"),
        (X[:0], {"op": "max", "axis": 0}, "max of nothing has no value"),
        (X, {"op": "argmin", "axis": (0, 1)}, "argmin takes one axis"),
        (X.astype("c8"), {}, "x has elements complex64"),
        (X, {"axis": 0, "out": np.empty((8, 7), "f")}, r"out has shape \(8, 7\), need \(7, 8\)"),
        (X, {"axis": 0, "out": np.empty((8, 7), "f").T}, "stored without gaps"),
        (X, {"axis": 0, "out": np.lib.stride_tricks.as_strided(np.empty(1, "f"), (7, 8), (0, 0))}, "stored without gaps"),
        (X, {"op": "mean_variance", "out": (X, X, X)}, "writes two arrays"),
    ],
)
def test_what_does_not_go_together_is_refused_in_words(x, options, message):
    with pytest.raises(LaunchError, match=message):
        ops.reduce(x, **options)


@pytest.mark.parametrize("axis", [None, 0, (0, 2)])
def test_one_pass_makes_two_reductions(axis):
    total, squares = ops.reduce(X, ["sum", "sum_of_squares"], axis)
    assert (total == X.sum(axis)).all() and (squares == (X * X).sum(axis)).all()
    low, high = ops.reduce(X, ["min", "max"], axis, keepdims=True)
    assert (low == X.min(axis, keepdims=True)).all() and (high == X.max(axis, keepdims=True)).all()


def test_one_pass_makes_the_largest_and_its_place():
    largest, place = ops.reduce(X, ("max", "argmax"), 1)
    assert (largest == X.max(1)).all() and (place == X.argmax(1)).all() and place.dtype == np.int64
    given = np.empty((6, 8), "f"), np.empty((6, 8), np.int64)
    assert ops.reduce(X, ("max", "argmax"), 1, out=given)[1] is given[1] and (given[1] == place).all()


@pytest.mark.parametrize("op", [["sum"], ["sum", "product"], ["sum", 3], ["sum", "median"]])
def test_other_lists_of_operations_are_refused(op):
    with pytest.raises(LaunchError, match=r"need a name, or two in a list|one pass makes two of"):
        ops.reduce(X, op)


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("columns", [15, 467])
def test_extrema_of_bytes_are_right_at_both_ends(op: str, columns: int) -> None:
    for low, high in ((-128, 128), (-128, -120), (120, 128)):
        x = np.random.default_rng(41).integers(low, high, (9, columns)).astype(np.int8)
        for view in (x, x[:, 1:]):
            np.testing.assert_array_equal(ops.reduce(view, op, 1), getattr(view, op)(1))


@pytest.mark.parametrize("op", ["min", "sum"])
def test_invariant_rows_may_begin_anywhere(op: str) -> None:
    memory = np.random.default_rng(41).standard_normal(601)
    for start in (0, 1):
        x = memory[start : start + 600].reshape(2, 300)
        whole = ops.reduce(x, op, 1, batch_invariant=True)
        np.testing.assert_allclose(whole, getattr(np, op)(x, 1), rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(ops.reduce(x[1:], op, 1, batch_invariant=True), whole[1:])


@pytest.mark.parametrize("word", ["int32", "int64"])
def test_means_and_norms_of_integers_that_64_bits_do_not_sum(word: str) -> None:
    x = np.full(6, np.iinfo(word).min, word)
    assert ops.reduce(x, "mean") == float(x[0])
    np.testing.assert_allclose(ops.reduce(x, "l2_norm"), np.linalg.norm(x.astype(np.float64)), rtol=1e-12)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_invariant_rows_between_vectors_are_copied(library):
    values = np.arange(-7, 9, dtype="i8")
    x = values[1:15] if library == "numpy" else pytest.importorskip("torch").from_numpy(values)[1:15]
    assert int(ops.reduce(x, "sum", 0, batch_invariant=True)) == values[1:15].sum()
