"""Waiting for values that other blocks write to global memory: always with pauses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gemmgen.codegen.rendering import render
from gemmgen.kernels.planning import plan
from gemmgen.toolchain.compilation import compile_plan

TEMPLATES = Path(__file__).resolve().parents[2] / "templates"
POLLING = re.compile(r"while \((?!!mbarrier_try_wait)[^;{}]*\)\s*(?:\{\s*\}|[^{};]*(?:atomic_load|load_acquire)[^;]*;)")


@pytest.mark.parametrize("path", sorted(TEMPLATES.rglob("*.cu*")), ids=lambda path: path.relative_to(TEMPLATES).as_posix())
def test_no_template_polls_by_itself(path: Path) -> None:
    assert not POLLING.findall(path.read_text())


@pytest.mark.parametrize(
    "loop", ["while (load_acquire(flag) == 0) {\n}", "while (result == 0)\n    result = __nv_atomic_load_n(&p, 0, 1);"]
)
def test_polling_would_be_seen(loop: str) -> None:
    assert POLLING.findall(loop)


@pytest.mark.parametrize("name", ["gemm/simt/split_k_serial", "gemm/simt/stream_k", "reduction/s8_streaming"])
def test_a_wait_has_pauses(name: str) -> None:
    planned = plan(f"specs/{name}.yaml", "sm_80")
    assert "wait_until" in render(planned).text
    pauses = re.findall(r"nanosleep\.u32\s+(\S+);", compile_plan(planned).ptx)
    assert pauses and all(pause.startswith("%") for pause in pauses), "the pause grows"
