"""Results in T4, the JSON format in which auto-tuners exchange results, so that their tools can read a sweep.

T4 was agreed at the Lorentz Center workshop on auto-tuning in 2022; the version followed here is 1.1.0, of the Autotuning
Association's methodology package (autotuning_methodology/schemas/T4.json).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gemmgen.core.version import __version__
from gemmgen.sweep.encoding import encodable, plain
from gemmgen.sweep.records import PointResult, Stage, Status

VERSION = "1.1.0"

_MILLISECONDS = 1e3
_UNITS = (
    ("_us", "microseconds"),
    ("_mhz", "MHz"),
    ("_bytes", "bytes"),
    ("bytes_per_second", "bytes/s"),
    ("operations_per_second", "operations/s"),
)


def t4(results: Sequence[PointResult]) -> dict[str, object]:
    """The document, times in milliseconds. Numbers that JSON lacks are left out of measurements.

    ``metadata.device`` is there if all results that ran are of one device; every result names its own besides.
    """
    devices = sorted({result.device for result in results if result.device})
    metadata: dict[str, Any] = {"compute_api": "CUDA", "platform": "NVIDIA CUDA"}
    if len(devices) == 1:
        metadata["device"] = devices[0]
    metadata |= {"autotuner": "gemmgen", "autotuner_version": __version__}
    if results:
        metadata["timestamp"] = min(result.date for result in results)
    metadata["timeunit"] = "milliseconds"
    return {"schema_version": VERSION, "metadata": plain(metadata), "results": [_result(result) for result in results]}


def _result(result: PointResult) -> dict[str, object]:
    timed = _number(result.metrics.get("median_us"))
    times: dict[str, Any] = {
        "compilation_time": _stage_time(result, Stage.COMPILE),
        "runtimes": [] if timed is None else [timed * 1e-6 * _MILLISECONDS],
        "framework": _stage_time(result, Stage.CHECK) + _stage_time(result, Stage.BENCH),
        "search_algorithm": 0.0,
        "validation": _stage_time(result, Stage.VERIFY),
    }
    measurements = [] if timed is None else [{"name": "time", "value": timed * 1e-6 * _MILLISECONDS, "unit": "milliseconds"}]
    for name, value in result.metrics.items():
        number = _number(value)
        if number is not None:
            measurements.append({"name": encodable(name), "value": number, "unit": _unit(name)})
    described = {"architecture": result.architecture, "device": result.device, "instance": result.instance, "reason": result.reason}
    measurements += [{"name": name, "value": encodable(text), "unit": ""} for name, text in described.items() if text]
    sizes = {f"problem.{name}": size for name, size in result.problem.items()}
    return {
        "timestamp": encodable(result.date),
        "configuration": plain({**result.axes, **sizes}),
        "objectives": ["time"] if timed is not None else [],
        "times": times,
        "invalidity": str(Status.CONSTRAINTS if result.status is Status.INVALID else result.status),
        "correctness": 1 if result.status is Status.CORRECT else 0,
        "measurements": measurements,
    }


def _stage_time(result: PointResult, stage: Stage) -> float:
    return (_number(result.seconds.get(stage)) or 0.0) * _MILLISECONDS


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _unit(name: str) -> str:
    return next((unit for ending, unit in reversed(_UNITS) if name.endswith(ending)), "")
