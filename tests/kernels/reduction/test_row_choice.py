"""Choices for reductions along rows that a model of bytes alone gets wrong."""

from __future__ import annotations

import pytest

import gemmgen
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import choose
from gemmgen.hardware.target import device


@pytest.mark.parametrize(
    ("problem", "threads", "vector", "unroll"),
    [
        ("reduction:1503,258,1,l2_norm,bf16", 32, 2, 8),  # small: rows begin at vectors of two
        ("reduction:5014,670,1,mean_variance,bf16", 16, 8, 8),
        ("reduction:4304,4994,1,l2_norm,f16", 32, 8, 4),  # eight loads would leave half of the last turn empty
        ("reduction:5880,7024,1,max,bf16", 128, 8, 8),  # all of a row in one turn
        ("reduction:2871,6793,1,l2_norm,f32", 256, 4, 8),
        ("reduction:1200,5000,1,sum,bf16", 128, 8, 8),
        ("reduction:2048,1000,1,mean_variance,f32", 32, 4, 4),
        ("reduction:2048,1000,1,sum,f32", 32, 4, 8),
        ("reduction:700,2500,1,min,f32", 128, 4, 8),  # a warp for each row would leave the memory idle
        ("reduction:116,72336,1,mean,f16", 512, 8, 8),  # one block with much in flight, no blocks that meet
        ("reduction:64,100000,1,l2_norm,bf16", 1024, 8, 8),
        ("reduction:10008,38880,1,any,f32", 512, 4, 4),
    ],
)
def test_enough_threads_share_a_row(problem: str, threads: int, vector: int, unroll: int) -> None:
    chosen = gemmgen.for_problem(problem, device="H200")
    strategy = chosen.spec.strategy
    assert (strategy.name, strategy.lanes or strategy.threads, strategy.vector, strategy.unroll) == ("tensor_rows", threads, vector, unroll)


def test_blocks_meet_where_rows_are_few_and_long() -> None:
    choice = choose(parse_problem("reduction:8,4000000,1,sum,f16"), device("H200"))
    assert choice.chosen.dimensions["parts"] > 8
