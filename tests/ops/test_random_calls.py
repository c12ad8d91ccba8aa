"""A few random calls of each operation, beside NumPy. ``measurements/random_calls.py`` makes as many as are wanted."""

from __future__ import annotations

import numpy as np
import pytest

from measurements.random_calls import Calls, outcome, run
from measurements.random_kinds import KINDS, Call

CALLS = {"reduce": 1, "elementwise": 3, "matmul": 1, "topk": 1, "conv2d": 1, "softmax": 1, "layer_norm": 1}


@pytest.mark.parametrize(("kind", "count"), CALLS.items())
def test_random_calls_are_right(kind: str, count: int) -> None:
    found, reports = run(Calls(kind, 41, 0, count))
    assert found == {"right": count}, reports


def test_wrong_value_of_a_call_is_reported() -> None:
    calls = Calls("cumsum", 41, 0, 1)
    right = KINDS["cumsum"](calls.draw(0))
    assert outcome(right) == ("right", "")
    assert outcome(Call("a call", lambda: "1 of 2", False)) == ("wrong", "a call: 1 of 2")
    assert outcome(Call("a call", right.make, True)) == ("wrong", "a call: not refused")


def test_calls_alike_share_types_and_differ_in_values() -> None:
    first, second = (Calls("reduce", 41, 0, 2, alike=2).draw(number) for number in range(2))
    assert first.one_of(*range(1000)) == second.one_of(*range(1000))
    assert not np.array_equal(first.values("float32", (50,)), second.values("float32", (50,)))
