"""The tables of docs/operations.md: calls made from them return the stated types."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemmgen import ops
from gemmgen.core.errors import LaunchError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
SAMPLE = 10
"""Cells of a table that are called; all of them where GEMMGEN_WHOLE is set."""
REFUSED = "–"
RNG = np.random.default_rng(41)


def table(heading: str) -> list[dict[str, str]]:
    """The rows of the first table under a heading, by the names of its columns."""
    lines = PAGE.read_text().split(f"# {heading}\n", 1)[1].splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("|"))
    rows: list[list[str]] = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


def cells(heading: str) -> list[tuple[str, str, str]]:
    """Some of (row, column, cell) of a table whose first column names its rows."""
    found = []
    for row in table(heading):
        name, *columns = row
        found += [(row[name], column, row[column]) for column in columns]
    return found if os.environ.get("GEMMGEN_WHOLE") else random.Random(heading).sample(found, SAMPLE)


def array(word: str, *shape: int) -> np.ndarray:
    if word == "bfloat16":
        return (RNG.standard_normal(shape).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if word.startswith("float"):
        return RNG.standard_normal(shape).astype(word)
    low, high = (0, 2) if word == "bool" else (0, 9) if word.startswith("u") else (-9, 9)
    return RNG.integers(low, high, shape).astype(word)


def numbers(values: np.ndarray, word: str) -> np.ndarray:
    """Values as float64."""
    if word == "bfloat16":
        return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return values.astype(np.float64)


def check_type(call: Callable[[], Any], want: str) -> np.ndarray | None:
    if want == REFUSED:
        with pytest.raises(LaunchError):
            call()
        return None
    result = np.asarray(call())
    assert result.dtype == ("uint16" if want == "bfloat16" else want)
    return result


REDUCED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sum": lambda x: x.sum(1),
    "product": lambda x: x.prod(1),
    "sum_of_squares": lambda x: (x * x).sum(1),
    "l1_norm": lambda x: np.abs(x).sum(1),
    "mean": lambda x: x.mean(1),
    "l2_norm": lambda x: np.sqrt((x * x).sum(1)),
    "var": lambda x: x.var(1),
    "std": lambda x: x.std(1),
    "logsumexp": lambda x: np.log(np.exp(x).sum(1)),
    "min": lambda x: x.min(1),
    "max": lambda x: x.max(1),
    "argmin": lambda x: x.argmin(1),
    "argmax": lambda x: x.argmax(1),
    "any": lambda x: x.any(1),
    "all": lambda x: x.all(1),
}


@pytest.mark.parametrize(("op", "word", "want"), cells("reduce"))
def test_reductions_have_the_types_of_the_table(op: str, word: str, want: str) -> None:
    x = array(word, 3, 11)
    result = check_type(lambda: ops.reduce(x, op, 1), want)
    assert result is not None
    np.testing.assert_allclose(result.astype(np.float64), REDUCED[op](numbers(x, word)), rtol=1e-5, atol=1e-5)


def operations(text: str) -> list[Any]:
    return [{"op": "cast", "type": name.split()[1]} if name.startswith("cast") else name for name in text.split(", ")]


@pytest.mark.parametrize(("names", "word", "want"), cells("elementwise"))
def test_elementwise_results_have_the_types_of_the_table(names: str, word: str, want: str) -> None:
    x = array(word, 3, 11)
    named = {"bias": 2} if names == "bias" else {}
    result = check_type(lambda: ops.elementwise(x, operations(names), **named), want)
    if result is not None and names in ("relu", "abs", "bias") and not word.startswith("u"):
        function = {"relu": lambda v: np.maximum(v, 0), "abs": np.abs, "bias": lambda v: v + 2}[names]
        np.testing.assert_allclose(numbers(result, want), function(numbers(x, word)), rtol=1e-2)


@pytest.mark.parametrize("row", table("matmul"), ids=str)
def test_products_have_the_types_of_the_table(row: dict[str, str]) -> None:
    word = row["a and b"]
    a, b = array(word, 4, 16), array(word, 16, 8)
    result = check_type(lambda: ops.matmul(a, b), row["result"])
    if result is not None:
        np.testing.assert_allclose(numbers(result, row["result"]), numbers(a, word) @ numbers(b, word), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("row", table("conv2d"), ids=str)
def test_convolutions_have_the_types_of_the_table(row: dict[str, str]) -> None:
    x = array(row["x"], 1, 4, 4, 16).transpose(0, 3, 1, 2)
    result = check_type(lambda: ops.conv2d(x, array(row["x"] if row["w"] == REFUSED else row["w"], 8, 16, 1, 1)), row["result"])
    assert result is None or result.shape == (1, 8, 4, 4)


def laid_out(name: str) -> np.ndarray:
    """(2, 16, 6, 4) float16 in one of the layouts."""
    shape = (2, 16, 6, 4)
    plain = RNG.integers(-3, 4, shape).astype(np.float16)
    if name == "channels last":
        return np.ascontiguousarray(plain.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    if name == "transposed":
        return np.ascontiguousarray(plain.swapaxes(2, 3)).swapaxes(2, 3)
    if name == "every second row":
        return np.repeat(plain, 2, axis=2)[:, :, ::2]
    if name == "reversed":
        return plain[..., ::-1]
    if name == "broadcast":
        return np.broadcast_to(plain[:, :, :, :1], shape)
    if name == "at an odd address":
        raw = np.zeros(plain.nbytes + 1, np.uint8)[1:].view(np.float16).reshape(shape)
        raw[...] = plain
        return raw
    return plain[:0] if name == "empty" else plain


CALLS: dict[str, tuple[Callable[[np.ndarray], Any], Callable[[np.ndarray], np.ndarray]]] = {
    "reduce": (lambda x: ops.reduce(x, "sum", 3), lambda x: x.astype(np.float32).sum(3)),
    "elementwise": (lambda x: ops.elementwise(x, "relu"), lambda x: np.maximum(x, 0)),
    "matmul": (lambda x: ops.matmul(x, np.ones((4, 8), np.float16)), lambda x: x @ np.ones((4, 8), np.float16)),
    "conv2d": (lambda x: ops.conv2d(x, np.ones((8, 16, 1, 1), np.float16)), lambda x: np.repeat(x.sum(1, keepdims=True), 8, axis=1)),
}


@pytest.mark.parametrize("row", table("Layouts"), ids=lambda row: next(iter(row.values())))
def test_layouts_are_read_or_refused_as_the_table_says(row: dict[str, str]) -> None:
    name, *_ = row.values()
    x = laid_out(name)
    for operation, (call, reference) in CALLS.items():
        if row[operation] == REFUSED:
            with pytest.raises(LaunchError):
                call(x)
        else:
            np.testing.assert_array_equal(call(x), reference(x))
