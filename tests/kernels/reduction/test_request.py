"""Calls of ``ops.reduce`` that are understood, or refused with the reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gemmgen import ops
from gemmgen.core.errors import LaunchError
from gemmgen.dispatch.selection import choose
from gemmgen.hardware.target import device
from gemmgen.kernels.reduction.matcher import parse_request
from gemmgen.kernels.reduction.plan import ReductionPlan

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
        (np.empty(3, bool), "out has elements bool or uint8, need another type: only any and all"),
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


CUBE = np.random.default_rng(5).integers(-9, 10, (4, 3, 5, 6)).astype(np.float32)
TENSORS = {
    "kept axis between": (CUBE, (0, 2, 3)),
    "reversed rows": (CUBE[::-1, :, ::-2], (1, 2)),
    "reversed kept axes": (CUBE[:, ::-1, :, ::-1], (0, 2)),
    "another order": (CUBE.transpose(2, 0, 3, 1), (0, 2)),
    "broadcast": (np.broadcast_to(CUBE[:, :, None], (4, 3, 7, 5, 6)), (1, 2, 4)),
    "an axis of length 1": (CUBE[..., :1], (3,)),
    "eight axes": (np.arange(256, dtype=np.float32).reshape((2,) * 8).transpose(7, 5, 3, 1, 0, 2, 4, 6)[::-1], (0, 2, 5)),
    "short rows": (CUBE.reshape(-1, 6)[:, :5].copy(), (1,)),
    "few columns": (np.tile(CUBE.reshape(-1, 3), (20, 1)), (0,)),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_is_reduced_where_it_lies(name: str) -> None:
    x, axes = TENSORS[name]
    assert (ops.reduce(x, "sum", axis=axes) == x.sum(axes)).all()
    assert (ops.reduce(x, "max", axis=axes, keepdims=True) == x.max(axes, keepdims=True)).all()


def test_positions_in_reversed_rows_are_those_of_the_view() -> None:
    assert (ops.reduce(CUBE[::-1, :, ::-1], "argmax", axis=2) == CUBE[::-1, :, ::-1].argmax(2)).all()


def test_rows_keep_their_bits_where_they_have_to() -> None:
    x = np.random.default_rng(3).normal(size=(9, 70001)).astype(np.float32)
    whole = ops.reduce(x, "sum", -1, batch_invariant=True)
    for rows in (slice(0, 1), slice(7, 9)):
        assert (ops.reduce(np.ascontiguousarray(x[rows]), "sum", -1, batch_invariant=True) == whole[rows]).all()
    assert (ops.reduce(x[:4], "sum", -1) != whole[:4]).any()  # few rows are divided among several blocks otherwise


@pytest.mark.parametrize(
    ("op", "axis", "x"), [("sum", 0, X), ("sum", -1, np.asfortranarray(X)), (["max", "argmax"], -1, X), (["max", "min"], -1, X)]
)
def test_bits_of_rows_are_promised_for_one_operation_on_rows(op: Any, axis: int, x: Any) -> None:
    with pytest.raises(LaunchError, match="batch_invariant"):
        ops.reduce(x, op, axis, batch_invariant=True)


@pytest.mark.parametrize("columns", [1001, 4096, 65536])
@pytest.mark.parametrize("operation", ["sum", "logsumexp"])
def test_rows_that_keep_their_bits_get_instances_by_length(operation: str, columns: int) -> None:
    chosen = set()
    for rows in (1, 3, 20_000):
        request = replace(parse_request((rows, columns, 1), [operation]), invariant=True)
        option = choose(request, device("H200")).chosen
        assert option.plan.spec.shape == "rows"
        chosen.add(option.plan.name)
    assert len(chosen) == 1


@pytest.mark.parametrize(("gpu", "columns", "early"), [("H200", 500, True), ("H200", 5000, False), ("A100", 500, False)])
def test_rows_that_are_read_soon_come_early_where_the_gpu_can(gpu: str, columns: int, early: bool) -> None:
    chosen = choose(parse_request((2048, columns, 1), []), device(gpu)).chosen.plan
    assert isinstance(chosen, ReductionPlan)
    assert chosen.early_launch == early
