"""Results of points that nobody ran, for whatever shows or searches results."""

from __future__ import annotations

import hashlib
from typing import Any

from gemmgen.sweep.records import PointResult, Stage, Status

SPEC: dict[str, Any] = {
    "kind": "gemm",
    "alpha": "one",
    "beta": "zero",
    "alignment": {"a": 4, "b": 4, "c": 4},
    "mainloop": {
        "strategy": "tiled",
        "tile": {"threadblock": {"m": 64, "n": 64, "k": 16}, "warp": {"m": 32, "n": 32}, "thread": {"m": 8, "n": 4}},
        "stages": 2,
    },
}

STAGES = {Status.CONSTRAINTS: Stage.CHECK, Status.COMPILE: Stage.COMPILE, Status.CORRECT: Stage.BENCH}


def sample(number: int = 0, status: Status = Status.CORRECT, **fields: Any) -> PointResult:
    """One result; ``fields`` replace its own."""
    correct = status is Status.CORRECT
    operations, moved, time = 2.0 * 512**3, 4.0 * 3 * 512**2, 20.0 + number % 7
    metrics = {"registers": 96.0, "spill_bytes": 0.0, "shared_bytes": 16384.0, "blocks_per_sm": 2.0, "worst_ratio": 0.02, "elements": 1e5}
    metrics |= {
        "median_us": time,
        "p10_us": time - 1,
        "p90_us": time + 1,
        "operations_per_second": operations / time * 1e6,
        "bytes_per_second": moved / time * 1e6,
        "operations": operations,
        "bytes": moved,
        "peer_us": 25.0,
    }
    values: dict[str, Any] = {
        "digest": hashlib.sha256(str(number).encode()).hexdigest(),
        "sweep": "tiles",
        "kind": "gemm",
        "instance": f"sgemm_{number}",
        "spec": SPEC,
        "axes": {"mainloop.stages": 1 + number % 4, "mainloop.copies": "cp_async" if number % 2 else "registers"},
        "problem": {"m": 512, "n": 512, "k": 512},
        "architecture": "sm_90a",
        "device": "NVIDIA H200" if correct else "",
        "backend": "gpu" if correct else "",
        "compiler": "NVRTC 13.0",
        "stage": STAGES.get(status, Stage.VERIFY),
        "status": status,
        "reason": "" if correct else f"the point is {status}",
        "reason_code": "" if correct else f"{status}_code",
        "metrics": metrics if correct else {},
        "seconds": {"check": 0.01, "compile": 0.5, "verify": 2.0, "bench": 0.25} if correct else {"check": 0.01},
        "date": f"2026-01-02T03:{number // 60 % 60:02}:{number % 60:02}+00:00",
    }
    return PointResult(**(values | fields))


def one_of_each() -> list[PointResult]:
    """A result for each status."""
    return [sample(number, status) for number, status in enumerate(Status)]
