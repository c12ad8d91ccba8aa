"""A family that is added to a copy of gemmgen with its folders, its operation and two lines of the registry: every station finds it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
LIKE, KIND = "elementwise", "pointwise"
LINES = ('    "elementwise": "gemmgen.kernels.elementwise",\n', '    "elementwise": "elementwise",\n')
"""Those of the registry: the family, and its operation."""
MODULES = ("gemmgen/ops/functions", "gemmgen/ops/torch_operators")
"""Folders with a module for each operation."""

CALL = """
import inspect, numpy as np
from gemmgen import ops
x = np.arange(-6, 6, dtype="f4").reshape(3, 4)
assert (ops.pointwise(x, ["relu", "bias"], bias=1.0) == np.maximum(x, 0) + 1).all()
assert (ops.elementwise(x, "abs") == np.abs(x)).all()
assert "pointwise" in ops.__all__ and "operations" in inspect.signature(ops.pointwise).parameters
"""
TORCH = """
import torch
from gemmgen import ops
ops.register_torch()
x = torch.randn(3, 4).requires_grad_()
(got,) = torch.autograd.grad(ops.pointwise(x, "silu").sum(), x)
(expected,) = torch.autograd.grad(torch.nn.functional.silu(x).sum(), x)
assert torch.allclose(got, expected, rtol=1e-4, atol=1e-5)
assert set(torch.library.opcheck(torch.ops.gemmgen.pointwise.default, (x.detach(), "relu")).values()) == {"SUCCESS"}
"""


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of gemmgen with a fifth family for GPUs, like another but by its kind."""
    root = tmp_path_factory.mktemp("extended")
    for folder in ("gemmgen", "templates", "specs"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("gemmgen/kernels", "templates", "specs"):
        new = root / folder / KIND
        shutil.copytree(root / folder / LIKE, new)
        for path in (path for path in new.rglob("*") if path.is_file()):
            path.write_text(path.read_text().replace(LIKE, KIND).replace(LIKE.capitalize(), KIND.capitalize()))
    for folder in MODULES:
        text = (root / folder / f"{LIKE}.py").read_text()
        (root / folder / f"{KIND}.py").write_text(text.replace(LIKE, KIND))
    registry = root / "gemmgen" / "kernels" / "__init__.py"
    for line in LINES:
        before, after = registry.read_text().split(line)
        registry.write_text(before + line + line.replace(LIKE, KIND) + after)
    return root


def run(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=root, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def test_ops_have_the_function_of_a_new_family(extended: Path) -> None:
    done = run(extended, "-c", CALL)
    assert done.returncode == 0, done.stderr


def test_torch_has_the_operator_of_a_new_family(extended: Path) -> None:
    pytest.importorskip("torch")
    done = run(extended, "-c", TORCH)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("render", "pointwise/relu", "-o", "relu.cu"),
        ("explain", "pointwise/relu"),
        ("verify", "pointwise/relu", "--backend", "emulator"),
        ("draw", "pointwise/relu", "-o", "picture.svg"),
        ("export", "pointwise/relu", "--format", "header", "--arch", "sm_80", "-o", "pointwise.h"),
    ],
    ids=lambda command: command[0],
)
def test_commands_know_a_new_family(extended: Path, command: tuple[str, ...]) -> None:
    done = run(extended, "-m", "gemmgen", *command)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_schema_knows_a_new_family(extended: Path) -> None:
    assert '"pointwise"' in run(extended, "-m", "gemmgen", "schema").stdout
