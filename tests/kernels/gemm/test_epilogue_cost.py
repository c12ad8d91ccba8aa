"""Predicted times count the instructions of epilogues."""

from __future__ import annotations

from typing import Any

import pytest

import gemmgen
from gemmgen.dispatch.model import model_seconds
from gemmgen.hardware.target import device
from gemmgen.kernels.gemm.cost_model import work

WGMMA: dict[str, Any] = {
    "kind": "gemm",
    "architecture": "sm_90a",
    "transpose": "nt",
    "alpha": "one",
    "beta": "zero",
    "storage": {"a": "bf16", "b": "bf16", "c": "bf16"},
    "alignment": {"a": 8, "b": 8, "c": 8},
    "multiple_of": {"n": 8},
    "store": "tma",
}


def seconds(schedule: str, epilogue: list[dict[str, str]], accuracy: str = "result") -> float:
    mainloop = {"strategy": "wgmma", "tile": {"m": 128, "n": 128, "k": 64}, "stages": 4}
    if schedule == "ping_pong":
        mainloop |= {"tile": {"m": 64, "n": 128, "k": 64}, "consumers": 2, "schedule": schedule}
    plan: Any = gemmgen.plan({**WGMMA, "mainloop": mainloop, "epilogue": epilogue, "accuracy": accuracy})
    return model_seconds(work(plan, {"m": 4096, "n": 11008, "k": 4096}), device("H200"))


@pytest.mark.parametrize("schedule", ["cooperative", "ping_pong"])
def test_functions_take_time(schedule: str) -> None:
    plain, silu = seconds(schedule, []), seconds(schedule, [{"op": "silu"}])
    accurate = seconds(schedule, [{"op": "silu"}], "full")
    assert plain < silu < accurate < 1.5 * plain
