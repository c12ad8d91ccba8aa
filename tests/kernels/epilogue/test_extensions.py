"""Functions and epilogues of other packages, by entry points of a made-up distribution."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import gemmgen
from gemmgen import ops, symbols
from gemmgen.core.errors import GemmgenError, LaunchError
from gemmgen.kernels.epilogue import extensions
from gemmgen.kernels.spec_files import validated
from gemmgen.sweep.evaluation import Conditions, execute, prepare
from gemmgen.sweep.file import SweepFile
from gemmgen.sweep.records import Stage, Status
from gemmgen.sweep.space import Space

MODULE = """
import gemmgen
from gemmgen import symbols

def squared_relu(x):
    return symbols.square(symbols.max(x, 0))

def between(x, low):
    return symbols.select(x < low, low, x)

def broken(x):
    raise KeyError("x")

@gemmgen.epilogue(bias={"per": "column"})
def biased(acc, bias):
    return symbols.max(acc + bias, 0)

number = 3
"""
POINTS = ("squared_relu", "between", "broken", "biased", "number", "missing")


@pytest.fixture(autouse=True)
def _package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "made_up_epilogues.py").write_text(MODULE)
    metadata = tmp_path / "made_up-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: made-up\nVersion: 1.0\n")
    lines = "".join(f"{name} = made_up_epilogues:{name}\n" for name in POINTS)
    (metadata / "entry_points.txt").write_text(f"[gemmgen.epilogues]\n{lines}")
    monkeypatch.syspath_prepend(str(tmp_path))

    def forget() -> None:
        for function in (extensions._found, extensions._loaded, extensions.macro_of):
            function.cache_clear()
        sys.modules.pop("made_up_epilogues", None)

    forget()
    yield
    forget()


A = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)
B = np.ones((4, 2), np.float32)


def test_a_function_of_another_package_is_one_of_expressions() -> None:
    got = ops.matmul(A, B, epilogue={"value": "squared_relu(acc) + between(acc, 1)"}, backend="emulator")
    product = A @ B
    np.testing.assert_array_equal(got, np.maximum(product, 0) ** 2 + np.maximum(product, 1))
    assert repr(symbols.squared_relu(3)) == "squared_relu(3)"


def test_a_function_or_formula_is_an_operation() -> None:
    naive = {"strategy": "naive", "threadblock": {"m": 4, "n": 32}}
    plan = gemmgen.plan({"kind": "gemm", "mainloop": naive, "epilogue": [{"op": "biased"}, {"op": "squared_relu"}]})
    assert "bias" in {argument.name for argument in plan.sequence.arguments}
    assert "bias[column]" in gemmgen.render(plan).text


def test_an_operation_of_another_package_is_an_activation() -> None:
    got = ops.matmul(A, B, activation=[{"op": "squared_relu"}, {"op": "clamp", "high": 9.0}, "squared_relu"], backend="emulator")
    np.testing.assert_array_equal(got, np.minimum(np.maximum(A @ B, 0) ** 2, 9) ** 2)
    with pytest.raises(LaunchError, match="no operation 'squared_rel', need one of"):
        ops.matmul(A, B, activation={"op": "squared_rel"}, backend="emulator")


def test_an_operation_of_another_package_is_swept() -> None:
    base = {
        "kind": "gemm",
        "mainloop": {"strategy": "naive", "threadblock": {"m": 4, "n": 32}},
        "epilogue": [{"op": "biased"}, {"op": "formula", "value": "squared_relu(value) - 1"}],
    }
    axes = {"mainloop.threadblock.m": [4, 8]}
    swept = Space(validated(SweepFile, {"name": "trial", "base": base, "axes": axes}, "trial", "not a valid sweep"), Stage.VERIFY)
    conditions = Conditions(Stage.VERIFY, compiler="NVRTC", backend="emulator", cases=4)
    for number in range(swept.size):
        prepared = prepare((swept[number], conditions), lambda stage: None)
        assert prepared.ending.status is Status.CORRECT, prepared.ending.reason
        ending = execute((prepared, conditions, (Stage.COMPILE, Stage.VERIFY)), lambda stage: None)
        assert (ending.stage, ending.status) == (Stage.VERIFY, Status.CORRECT), ending.reason
    assert swept.size == 2


@pytest.mark.parametrize(
    ("epilogue", "message"),
    [
        ({"value": "broken(acc)"}, "broken of made_up_epilogues:broken fails on symbols: KeyError"),
        ({"value": "missing(acc)"}, "missing of made_up_epilogues:missing cannot be loaded"),
        ([{"op": "number"}], "number of made_up_epilogues:number is no operation"),
        ({"value": "squared_rel(acc)"}, "did you mean 'squared_relu'"),
    ],
)
def test_what_a_package_gets_wrong_is_one_message(epilogue: object, message: str) -> None:
    with pytest.raises(GemmgenError, match=message):
        gemmgen.plan({"kind": "gemm", "mainloop": {"strategy": "naive", "threadblock": {"m": 4, "n": 32}}, "epilogue": epilogue})
