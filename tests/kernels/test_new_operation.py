"""The operation that CONTRIBUTING.md adds as an example, added as written to a copy of gemmgen: every family computes with it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE

from gemmgen.kernels.shipped import shipped_specs
from gemmgen.kernels.spec_files import spec_fields
from kernels.cpu_gemm.specs import HERE

ROOT = Path(__file__).resolve().parents[2]
SECTION = (ROOT / "CONTRIBUTING.md").read_text().split("### An operation on elements")[1].split("\n### ")[0]
REGISTRY = re.findall(r"`(gemmgen/[^`]+)`", SECTION)[0]
PLACE_IN_REGISTRY = "\n\nOPERATIONS: "
OPERATION = {"op": "threshold", "limit": 2.5}

VERIFY = """
import json, sys
import gemmgen
from gemmgen.verification.oracle import oracle_of

plan = gemmgen.plan(json.loads(sys.argv[1]))
cases = sorted(oracle_of(plan.spec.kind).cases(plan), key=lambda case: sum(case.dimensions.values()))
few = [case for data in {case.data for case in cases} for case in [case for case in cases if case.data == data][:5]]
report = gemmgen.verify(plan, "emulator", cases=few)
print(json.dumps({"source": gemmgen.render(plan).text, "failures": [r.failure for r in report.results if r.failure], "cases": len(few)}))
"""

KERNELS: dict[str, dict[str, Any]] = {
    "gemm/v0_naive": {"epilogue": [OPERATION]},
    "gemm/v3_double_buffer": {"epilogue": [OPERATION, {"op": "bias", "per": "column"}]},
    "gemm/simt/split_k_parallel": {"epilogue": [OPERATION]},
    "gemm/gemv/rows/two": {"epilogue": [OPERATION]},
    "gemm/mma_sync/f16/64x64": {"epilogue": [OPERATION]},
    "gemm/wgmma/tour/f16_64x64": {"epilogue": [OPERATION]},
    "reduction/rows/128": {"prologue": [OPERATION], "epilogue": [OPERATION]},
    "conv2d/mma_sync/turing/one_stage": {"epilogue": [OPERATION]},
    "conv2d/wgmma/int8/64x32": {"epilogue": [OPERATION]},
    "elementwise/relu": {"operations": [OPERATION]},
    "cpu/c0_naive": {"epilogue": [OPERATION]},
}


def spec(name: str) -> str:
    """A shipped spec with the operation in place of its own, as JSON."""
    fields = spec_fields(shipped_specs()[name])
    fields.pop("activation", None)
    return json.dumps({**fields, **KERNELS[name]})


def example(language: str) -> str:
    """The block of the guide in a language."""
    (text,) = re.findall(rf"```{language}\n(.*?)```", SECTION, re.DOTALL)
    return text


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of gemmgen with the guide's class."""
    root = tmp_path_factory.mktemp("extended")
    for folder in ("gemmgen", "templates", "specs"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    before, after = (root / REGISTRY).read_text().split(PLACE_IN_REGISTRY)
    (root / REGISTRY).write_text(f"{before}\n\n\n{example('python').rstrip()}\n{PLACE_IN_REGISTRY}{after}")
    return root


def run(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=root, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def verified(root: Path, name: str) -> dict[str, Any]:
    """The kernel's source and the failures of a few of its smallest cases."""
    done = run(root, "-c", VERIFY, spec(name))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", [name for name in KERNELS if HERE or not name.startswith("cpu/")])
def test_every_family_computes_with_a_new_operation(extended: Path, name: str) -> None:
    found = verified(extended, name)
    assert "<= 2.5f ? 0.0f :" in found["source"]
    assert found["cases"] >= 4
    assert found["failures"] == []


def test_the_schema_knows_a_new_operation(extended: Path) -> None:
    assert '"threshold"' in run(extended, "-m", "gemmgen", "schema").stdout


def test_the_command_of_the_guide_verifies_it(extended: Path) -> None:
    arguments = ["verify", "gemm/v0_naive", "--backend", "emulator", "--set", "epilogue=[{op: threshold, limit: 2.5}]"]
    assert run(extended, "-m", "gemmgen", *arguments).returncode == 0
