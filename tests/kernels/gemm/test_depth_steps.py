"""Products of a batch whose values of k end with a step: kernels with block scales against their reference, mistakes, refusals, calls."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gemmgen
from gemmgen import ops
from gemmgen.core.errors import LaunchError, PlanError, SpecError
from gemmgen.kernels.gemm.matcher import parse_request
from gemmgen.kernels.gemm.oracle import OUTSIDE
from tests.kernels.verifying import passes

SPEC: dict[str, Any] = {
    "kind": "gemm",
    "architecture": "sm_90a",
    "transpose": "nt",
    "alpha": "one",
    "batch": "strided",
    "grouping": {"depth": "steps"},
    "storage": {"a": "e4m3", "b": "e4m3", "c": "f32"},
    "alignment": {"a": 16, "b": 16, "c": 4},
    "scales": {"a": {"lines": 1, "k": 128}, "b": {"lines": 1, "k": 128}},
    "mainloop": {"strategy": "wgmma", "tile": {"m": 64, "n": 16, "k": 128}, "stages": 2, "consumers": 1, "persistent_blocks": 3},
}


@pytest.mark.parametrize(
    "names", [("empty groups", "k of 0"), (OUTSIDE,), ("not-a-numbers and infinities",)], ids=["ends", "outside", "nan"]
)
def test_products_of_steps_give_the_reference(names: tuple[str, ...]) -> None:
    """Offsets that fall, lie outside of k, or are no multiples of a step."""
    assert passes(SPEC, names)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("offsets[work.product - 1]", "offsets[work.product]"), ("end_k >= k ? steps : ", "")],
    ids=["begin", "last-step"],
)
def test_mistakes_of_steps_are_found(right: str, wrong: str) -> None:
    assert not passes(SPEC, ("empty groups", "rows behind the last group"), (right, wrong))


@pytest.mark.parametrize(
    "changes",
    [
        {"batch": "none"},
        {"mainloop": {**SPEC["mainloop"], "cluster": {"m": 2}}},
        {"decomposition": {"scheme": "split_k_parallel", "slices": 2}},
        {"grouping": {"depth": "offsets"}},
    ],
    ids=["one-product", "cluster", "slices", "offsets"],
)
def test_specs_that_exclude_steps_say_why(changes: dict[str, Any]) -> None:
    with pytest.raises(PlanError) as error:
        gemmgen.plan({**SPEC, **changes})
    assert "grouping.depth" in {reason.field for reason in error.value.reasons}


RNG = np.random.default_rng(2)
E4M3 = ml_dtypes.float8_e4m3fn
X, Y = RNG.standard_normal((40, 300)).astype(E4M3), RNG.standard_normal((24, 300)).astype(E4M3)
SX, SY = RNG.uniform(0.5, 2, (40, 3)).astype(np.float32), RNG.uniform(0.5, 2, (3, 24)).astype(np.float32)
ENDS = np.array([128, 128, 300], np.int32)


def test_groups_of_scaled_values_of_k_are_multiplied() -> None:
    result = ops.grouped_matmul(X, Y.T, ENDS, scale_a=SX, scale_b=SY, output="float32")
    x, y = X.astype(np.float64) * np.repeat(SX, 128, 1)[:, :300], Y.T.astype(np.float64) * np.repeat(SY, 128, 0)[:300]
    for group, (begin, end) in enumerate(((0, 128), (128, 128), (128, 300))):
        assert abs(result[group] - x[:, begin:end] @ y[begin:end]).max() < 0.2


def test_calls_that_exclude_steps_say_why() -> None:
    with pytest.raises(LaunchError, match="scale_a, need"):
        ops.grouped_matmul(X, Y.T, ENDS, scale_a=SX)
    with pytest.raises(LaunchError, match="scales of 128 values of k, of both"):
        ops.grouped_matmul(X, Y.T, ENDS, scale_a=SX[:, :1], scale_b=SY)
    with pytest.raises(LaunchError, match="8-bit floats lie along k"):
        ops.grouped_matmul(X, np.ascontiguousarray(Y.T), ENDS, scale_a=SX, scale_b=SY)


def test_problems_name_steps() -> None:
    words = ("e4m3_e4m3_f32", "nt", "batch=3", "depth_steps", "scales_a=1x128", "scales_b=1x128")
    request = parse_request((64, 64, 512), words)
    assert request.grouping.depth == "steps"
    assert "depth_steps" in request.text
    with pytest.raises(SpecError, match="scales of both"):
        parse_request((64, 64, 512), words[:-1])
