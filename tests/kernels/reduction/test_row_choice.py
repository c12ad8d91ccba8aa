"""Choices for reductions along rows that a model of bytes alone gets wrong."""

from __future__ import annotations

import pytest

import gemmgen


@pytest.mark.parametrize(
    ("problem", "lanes"),
    [
        ("reduction:1503,258,1,l2_norm,bf16", 32),  # few short rows: 8 lanes of each would leave SMs without a block
        ("reduction:11997,1432,1,logsumexp,f16", 32),
        ("reduction:5014,670,1,mean_variance,bf16", 16),
    ],
)
def test_rows_are_read_in_whole_vectors_by_enough_lanes(problem: str, lanes: int) -> None:
    strategy = gemmgen.for_problem(problem, device="H200").spec.strategy
    assert (strategy.name, strategy.lanes, strategy.vector) == ("tensor_rows", lanes, 8)
