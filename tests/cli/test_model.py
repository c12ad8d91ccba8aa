"""From a profile to the kernels of a model."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

from tests.cli.conftest import Run


def test_a_profile_is_planned_as_a_whole(run: Run) -> None:
    arguments = {"Input Dims": [[16, 64], [64, 32]], "Input type": ["float", "float"]}
    events = [{"name": "aten::mm", "dur": 90, "args": arguments}, {"name": "aten::relu", "dur": 10, "args": {"Input Dims": [[16, 32]]}}]
    Path("trace.json").write_text(json.dumps({"traceEvents": events}))
    listed = run("trace", "trace.json", "-o", "problems.txt")
    assert "2 problems of 2 calls" in listed.err
    assert Path("problems.txt").read_text().startswith("gemm:16,32,64  # count=1 us=90.000 share=90.0%\n")
    planned = run("plan-model", "problems.txt", "--device", "H200")
    assert "gemm:16,32,64" in planned.out and "times as fast" in planned.out
    data = run("plan-model", "problems.txt", "--device", "H200", "--json").json
    assert data["totals"]["recorded_us"] == 100 and data["problems"][0]["roof"] < data["problems"][0]["seconds"]


def test_what_no_kernel_serves_is_listed_with_the_rest(run: Run) -> None:
    Path("problems.txt").write_text("gemm:64,64,64,e4m3,nt\ngemm:64,64,64\n")
    planned = run("plan-model", "problems.txt", "--device", "T4")
    assert "not served" in planned.out and "Not served: gemm:64,64,64,e4m3,nt" in planned.err


def test_wrong_files_and_types_are_refused(run: Run) -> None:
    Path("none.txt").write_text("nothing:1\n")
    assert "none.txt, line 1" in run("plan-model", "none.txt", code=2).err
    assert "cannot be read" in run("trace", "missing.json", code=2).err
    assert "did you mean" in run("trace", "none.txt", "--type", "f61", code=2).err
    assert "a profile takes no arguments" in run("trace", "none.txt", "more", code=2).err


def test_a_script_needs_torch_or_is_traced(run: Run) -> None:
    Path("model.py").write_text("import torch\ntorch.relu(torch.ones(4, 4) @ torch.ones(4, 8))\n")
    if find_spec("torch") is None:
        assert "pip install torch" in run("trace", "model.py", code=2).err
    else:
        assert "gemm:4,8,4" in run("trace", "model.py").out
