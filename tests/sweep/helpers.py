from __future__ import annotations

from typing import Any

from gemmgen.kernels.spec_files import validated
from gemmgen.sweep.engine import Settings
from gemmgen.sweep.evaluation import Conditions
from gemmgen.sweep.file import Limits, SweepFile
from gemmgen.sweep.records import PointResult, Stage, Status
from gemmgen.sweep.space import Point, Space

SPEC: dict[str, Any] = {
    "kind": "gemm",
    "alpha": "one",
    "beta": "zero",
    "mainloop": {
        "strategy": "tiled",
        "stages": 2,
        "tile": {"threadblock": {"m": 32, "n": 32, "k": 8}, "warp": {"m": 32, "n": 32}, "thread": {"m": 8, "n": 4}},
    },
}


def space(stage: str = "verify", **more: Any) -> Space:
    return Space(validated(SweepFile, {"name": "trial", "base": SPEC} | more, "trial", "not a valid sweep"), Stage(stage))


def points(*labels: str, stage: str = "verify", **more: Any) -> list[Point]:
    """One point for each label."""
    spanned = space(stage, axes={"label": list(labels)}, **more)
    return [spanned[number] for number in range(spanned.size)]


def conditions(stage: str = "verify", backend: str = "emulator", **more: Any) -> Conditions:
    return Conditions(Stage(stage), compiler="NVRTC", backend=backend, device="nothing", **more)


def settings(stage: str = "verify", execute: str = "sweep.faults:execute", jobs: int = 2, **more: Any) -> Settings:
    backend = more.pop("backend", "emulator")
    limits = Limits(**more.pop("limits", {}))
    return Settings(conditions(stage, backend), limits, jobs, execute=execute, **more)


def result(digest: str = "d", sweep: str = "trial", **more: Any) -> PointResult:
    fields: dict[str, Any] = {
        "digest": digest,
        "sweep": sweep,
        "kind": "gemm",
        "instance": "sgemm",
        "spec": SPEC,
        "axes": {"mainloop.stages": 2},
        "problem": {},
        "architecture": "sm_80",
        "device": "",
        "backend": "",
        "compiler": "NVRTC 13.0",
        "stage": Stage.COMPILE,
        "status": Status.CORRECT,
        "reason": "",
        "reason_code": "",
        "metrics": {"registers": 40.0},
        "seconds": {"compile": 0.5},
        "date": "2026-01-01T00:00:00+00:00",
    }
    return PointResult(**fields | more)
