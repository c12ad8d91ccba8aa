"""Results for odd values, called as a user calls them; and that they are always the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import gemmgen
from gemmgen import emulator
from gemmgen.core.errors import LaunchError
from gemmgen.emulator.schedule import RandomWarps

NAN, INF = float("nan"), float("inf")
OUTPUTS = {"any": np.uint8, "all": np.uint8, "argmin": np.int64, "argmax": np.int64}


def reduced(operation: str, values: Any, dtype: Any = np.float32, **fields: Any) -> Any:
    """The result of a block of 64 threads on ``values``."""
    x = np.array(values, dtype)
    names = {np.float32: "float32", np.float64: "float64", np.int8: "int8", np.int32: "int32", np.int64: "int64"}
    strategy = {"name": "streaming", "threads": 64, "unroll": 2, "multiprocessors": 3}
    kernel = gemmgen.compile({"kind": "reduction", "operation": operation, "input": names[dtype], "strategy": strategy, **fields})
    output = next(array for array in kernel.sequence.arrays if array.role == "output")
    y = np.zeros(1, {"f32": np.float32, "f64": np.float64, "s64": np.int64, "s32": np.int32, "u8": np.uint8, "s8": np.int8}[output.type])
    if operation == "mean_variance":
        other = np.zeros_like(y)
        kernel(X=x, mean=y, variance=other)
        return y[0], other[0]
    kernel(X=x, Y=y)
    return y[0]


def test_extrema_know_nan_and_the_sign_of_zero() -> None:
    assert np.isnan(reduced("min", [1, NAN, -INF]))
    assert np.isnan(reduced("max", [NAN, 1]))
    assert np.signbit(reduced("min", [0.0, -0.0, 0.0])) and not np.signbit(reduced("max", [-0.0, 0.0, -0.0]))
    assert reduced("min", [INF, INF]) == INF and reduced("max", [-INF]) == -INF


def test_the_first_extremum_wins() -> None:
    assert reduced("argmin", [3, 1, 2, 1, 1]) == 1
    assert reduced("argmax", [0.0, -0.0, 0.0]) == 0
    assert reduced("argmax", [5, INF, NAN, NAN, INF]) == 2
    assert reduced("argmin", [INF] * 300) == 0
    assert reduced("argmax", [np.iinfo(np.int64).min] * 3, np.int64) == 0


def test_ties_are_broken_across_blocks() -> None:
    values = np.zeros(1000)
    values[[130, 131, 999]] = 7
    assert reduced("argmax", values) == 130


def test_sums_of_infinities_and_zeros() -> None:
    assert np.isnan(reduced("sum", [INF, 1, -INF])) and reduced("sum", [INF, 1]) == INF
    assert not np.signbit(reduced("sum", [-0.0, -0.0]))
    assert reduced("product", [-0.0, 3]) == 0 and np.signbit(reduced("product", [-0.0, 3]))
    assert np.isnan(reduced("product", [0, INF]))


def test_integers_wrap_around() -> None:
    largest = np.iinfo(np.int64).max
    assert reduced("sum", [largest, 1], np.int64) == -largest - 1
    assert reduced("sum", [2**31 - 1, 1], np.int32) == 2**31
    assert reduced("sum", [2**31 - 1, 1], np.int32, accumulator="int32") == -(2**31)
    assert reduced("product", [2**33, 2**33], np.int64) == 0
    assert reduced("l1_norm", [-(2**63)], np.int64) == -(2**63)
    assert reduced("l1_norm", [-128, -128], np.int8) == 256


def test_sums_of_integers_are_exact_beyond_the_floats() -> None:
    assert reduced("sum", [2**53, 1, 2**60, 1], np.int64) == 2**53 + 2**60 + 2


def test_nan_is_true_and_minus_zero_is_not() -> None:
    assert reduced("any", [0.0, NAN]) == 1 and reduced("any", [-0.0, 0.0]) == 0
    assert reduced("all", [1, NAN]) == 1 and reduced("all", [1, -0.0]) == 0


def test_of_nothing() -> None:
    assert [reduced(name, []) for name in ("sum", "product", "any", "all")] == [0, 1, 0, 1]
    assert reduced("logsumexp", []) == -INF and np.isnan(reduced("mean", []))
    assert np.isnan(reduced("mean_variance", [])).all()
    for name in ("min", "max", "argmin", "argmax"):
        with pytest.raises(LaunchError, match="reduced must be 1"):
            reduced(name, [])


def test_logsumexp_does_not_overflow() -> None:
    assert reduced("logsumexp", [1000, 1000]) == pytest.approx(1000 + np.log(2), rel=1e-7)
    assert reduced("logsumexp", [-INF, -INF]) == -INF and reduced("logsumexp", [INF, 3, INF]) == INF
    assert np.isnan(reduced("logsumexp", [INF, NAN]))


def test_the_variance_of_a_large_offset_survives() -> None:
    values = 1e4 + np.tile([-1.0, 1.0], 500)
    mean, variance = reduced("mean_variance", values)
    assert mean == pytest.approx(1e4, rel=1e-6) and variance == pytest.approx(1.0, rel=1e-2)
    assert reduced("mean_variance", [3.0], correction=1)[0] == 3 and np.isnan(reduced("mean_variance", [3.0], correction=1)[1])


@pytest.mark.parametrize("where", [0, 500, 999])
def test_an_infinity_is_the_mean_and_has_no_variance(where: int) -> None:
    values = np.ones(1000)
    values[where] = INF
    mean, variance = reduced("mean_variance", values)
    assert mean == INF and np.isnan(variance)


def test_floats_become_integers_by_dropping_fraction() -> None:
    def cast(value: float, kind: str) -> Any:
        return reduced("sum", [value], epilogue=[{"op": "cast", "type": kind}])

    assert [cast(-2.7, kind) for kind in ("int8", "int32", "int64")] == [-2, -2, -2]
    assert [cast(NAN, kind) for kind in ("int8", "int32", "int64")] == [0, 0, 0]
    assert [cast(INF, kind) for kind in ("int8", "int32", "int64")] == [127, 2**31 - 1, 2**63 - 1]
    assert cast(-1e30, "int64") == -(2**63)


def test_the_exponential_is_within_one_unit_of_the_last_place() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-104, 89, 60_000), rng.uniform(-1, 1, 20_000), [-INF, INF, NAN, 0.0, -0.0, 88.72284, -103.97]])
    x = x.astype(np.float32).reshape(-1, 1)
    strategy = {"name": "row_lanes", "threads": 256, "lanes": 1, "rows": 1, "unroll": 1}
    fields = {"kind": "reduction", "operation": "max", "shape": "rows", "prologue": [{"op": "exp"}], "strategy": strategy}
    y = np.zeros(len(x), np.float32)
    gemmgen.compile(fields)(X=x, Y=y)
    with np.errstate(over="ignore"):
        exact = np.exp(x[:, 0].astype(np.float64))
        finite = np.isfinite(exact.astype(np.float32))
    unit = np.spacing(np.maximum(exact[finite], 2.0**-126).astype(np.float32)).astype(np.float64)
    assert (np.abs(y[finite] - exact[finite]) / unit).max() < 1
    assert y[np.isposinf(x[:, 0])] == INF and np.isnan(y[np.isnan(x[:, 0])]).all() and y[np.isneginf(x[:, 0])] == 0


@pytest.mark.parametrize("finish", ["two_pass", "last_block", "first_block"])
def test_the_order_in_which_blocks_run_changes_no_bit(finish: str) -> None:
    strategy = {"name": "streaming", "threads": 64, "unroll": 1, "multiprocessors": 5, "finish": finish}
    kernel = gemmgen.compile({"kind": "reduction", "operation": "sum", "strategy": strategy})
    x = np.random.default_rng(1).standard_normal(1500).astype(np.float32)
    results = {run_shuffled(kernel, x, seed).tobytes() for seed in range(6)}
    y = np.zeros(1, np.float32)
    kernel(X=x, Y=y)
    assert results == {y.tobytes()}


def run_shuffled(kernel: Any, x: npt.NDArray[Any], seed: int) -> npt.NDArray[Any]:
    """The result when warps and blocks run in another order."""
    problem = {"reduced": len(x)}
    y = np.zeros(1, np.float32)
    workspace = np.full(kernel.sequence.workspace_bytes.evaluate(problem), 0xF5, np.uint8)
    workspace[: kernel.sequence.workspace_zero_bytes.evaluate(problem)] = 0
    given = {"reduced": np.int32(len(x)), "X": x, "Y": y, "workspace": workspace}
    for launch in kernel.sequence.resolve(problem):
        args = [given[name] for name, _ in launch.parameters]
        emulator.launch(kernel.binary.ptx, launch.entry, grid=launch.grid, block=launch.block, args=args, schedule=RandomWarps(seed))
    return y
