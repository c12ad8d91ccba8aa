"""The roads of the architecture page are those that control takes: modules are entered in the order in which the page names them."""

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()

FOLLOW = """
import json, sys, threading
import numpy as np
import gemmgen
from gemmgen.kernels.gemm.oracle import cases
from gemmgen.kernels.spec_files import load_spec

def spec(name):
    a, c = np.ones((4, 4), "f"), np.zeros((4, 4), "f")
    gemmgen.compile(f"specs/gemm/{name}.yaml", "sm_80")(A=a, B=a, C=c)
    assert (c == 4).all()

entered = {}

def record(frame, event, argument):
    if event == "call" and frame.f_code not in entered:
        entered[frame.f_code] = frame.f_globals.get("__name__", ""), frame.f_code.co_name
    if event == "return" and frame.f_code is load_spec.__code__:  # models are checked by Pydantic, within which no function of theirs runs
        entered.setdefault("spec", (type(argument).__module__, type(argument).__name__))

def follow():
    threading.setprofile(record)
    sys.setprofile(record)

road = sys.argv[1]
if road == "spec":
    spec("v1_tiled")  # imports all modules, whose own statements are no road
    follow()
    spec("v3_double_buffer")
else:
    from gemmgen.runtime.emulation import EmulatorBackend
    from gemmgen.toolchain.compilation import compile_plan
    from gemmgen.verification.runner import verify_binary
    small = gemmgen.plan("specs/gemm/v0_naive.yaml", "sm_80")
    verify_binary(small, compile_plan(small), EmulatorBackend(), cases=cases(small)[:1])
    plan = gemmgen.plan("specs/gemm/v3_double_buffer.yaml", "sm_80")
    binary = compile_plan(plan)
    backend = EmulatorBackend()
    follow()
    assert verify_binary(plan, binary, backend).passed
sys.setprofile(None)
print(json.dumps([step for step in entered.values() if step[0].startswith("gemmgen.") and step[1] != "<module>"]))
"""

ON_A_GPU = {"spec": {"gemmgen.runtime.cuda.launcher"}, "case": {"gemmgen.runtime.cuda.backend", "gemmgen.runtime.cuda.worker"}}
"""Modules that control enters on a GPU only."""


TITLES = {"spec": "From a spec to a launch", "case": "Verification of a case"}


def named(road: str) -> list[str]:
    """Modules in the numbered paragraphs of a road, in their order, each where it comes first."""
    section = PAGE.split(f"## {TITLES[road]}\n")[1].split("\n## ")[0]
    steps = section[section.index("\n1. ") :]
    return list(dict.fromkeys(re.findall(r"`(gemmgen(?:\.\w+)+)`", steps)))


@pytest.fixture(scope="module")
def followed() -> dict[str, list[tuple[str, str]]]:
    """Modules and functions that control enters on each road, in order."""
    found = {}
    for road in ON_A_GPU:
        done = subprocess.run(
            [sys.executable, "-c", FOLLOW, road],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found[road] = [(module, function) for module, function in json.loads(done.stdout)]
    return found


@pytest.mark.parametrize("road", ON_A_GPU)
def test_modules_are_entered_in_the_order_of_the_page(followed: dict[str, list[tuple[str, str]]], road: str) -> None:
    entered = list(dict.fromkeys(module for module, _ in followed[road]))
    expected = [module for module in named(road) if module not in ON_A_GPU[road]]
    assert [module for module in entered if module in expected] == expected


def test_a_case_has_its_steps_in_the_order_of_the_page(followed: dict[str, list[tuple[str, str]]]) -> None:
    order = [
        ("gemmgen.verification.runner", "verify_binary"),
        ("gemmgen.kernels.gemm.oracle", "cases"),
        ("gemmgen.verification.case_arrays", "prepare_case"),
        ("gemmgen.kernels.gemm.oracle", "fill"),
        ("gemmgen.kernels.gemm.oracle", "reference"),
        ("gemmgen.emulator.launch", "launch"),
        ("gemmgen.verification.runner", "compare_elements"),
    ]
    assert [step for step in followed["case"] if step in order] == order


def mentioned(module: str) -> set[str]:
    """Modules that a module imports anywhere, or names in the statement that another process runs."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    found: set[str] = set()
    for node in ast.walk(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("from "):
            found |= set(re.findall(r"from (\S+) import", node.value))
    return found


@pytest.mark.parametrize(
    ("before", "module"),
    [
        ("gemmgen.runtime.kernel", "gemmgen.runtime.cuda.launcher"),
        ("gemmgen.runtime.backends", "gemmgen.runtime.cuda"),
        ("gemmgen.runtime.cuda", "gemmgen.runtime.cuda.backend"),
        ("gemmgen.runtime.cuda.backend", "gemmgen.runtime.cuda.worker"),
    ],
)
def test_the_road_on_a_gpu_is_reached_from_the_module_before(before: str, module: str) -> None:
    assert module in mentioned(before)


def test_roads_name_what_runs_on_a_gpu() -> None:
    assert all(modules <= set(named(road)) for road, modules in ON_A_GPU.items())
