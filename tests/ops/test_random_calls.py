"""A few random calls of each operation, beside NumPy. ``measurements/random_calls.py`` makes as many as are wanted."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "measurements" / "random_calls.py"
CALLS = 6


@pytest.mark.parametrize("kind", ["reduce", "elementwise", "matmul", "rows", "conv2d"])
def test_random_calls_are_right(kind: str) -> None:
    spec = importlib.util.spec_from_file_location("random_calls", PROGRAM)
    assert spec is not None and spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    found, told = program.run(kind, CALLS, seed=41)
    assert found == {"right": CALLS}, told
