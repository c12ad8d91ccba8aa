"""Clocks and power of products on tensor cores: what the rate of large products is bound by.

    python -m measurements.tensor_power              on a machine with an H100 or H200, and torch

Every product is launched without a pause for a while, by ``ops`` and by torch, on random numbers and on zeros, which switch no transistor;
the SM clock and the power are read meanwhile, through NVML. *Of the peak*: the part of what the tensor cores do at the clock that was
read. Writes tensor_power.json and tensor_power.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gemmgen import ops
from gemmgen.core.errors import GemmgenError
from gemmgen.perf.contestants import torch_contestant, trial_seconds
from gemmgen.perf.timing import replay_seconds
from gemmgen.runtime.cuda.driver import current_device

HERE = Path(__file__).resolve().parent
SECONDS = 0.7
SETTLED = 0.3
"""Part of the time after which clocks and power have settled, and are read."""
LAUNCHES = 8
"""Launches of a graph, which is replayed."""
PER_CLOCK = {"bfloat16": 4096, "float16": 4096, "float32": 2048, "float8_e4m3fn": 8192, "int8": 8192}
"""Operations of one SM's tensor cores in a clock."""
CASES = (
    ("bfloat16", 4096, 4096, 4096),
    ("bfloat16", 8192, 8192, 8192),
    ("bfloat16", 2048, 4096, 11008),
    ("float16", 4096, 4096, 4096),
    ("float16", 8192, 8192, 8192),
    ("float32", 4096, 4096, 4096),
    ("float8_e4m3fn", 4096, 4096, 4096),
    ("float8_e4m3fn", 8192, 8192, 8192),
    ("int8", 8192, 8192, 8192),
)
GROUPED = (("bfloat16", 8, 8192, 4096, 4096), ("bfloat16", 128, 65536, 2048, 2048), ("float8_e4m3fn", 128, 65536, 2048, 2048))


class Meter:
    """Clock in MHz and power in W, read beside what runs."""

    def __init__(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._nvml, self._handle = pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)
        self.limit = pynvml.nvmlDeviceGetEnforcedPowerLimit(self._handle) / 1000

    def read(self) -> tuple[int, float, int]:
        """Clock, power at this moment, and the reasons why the clock is no higher."""
        nvml, handle = self._nvml, self._handle
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        # What nvmlDeviceGetPowerUsage tells is an average over the last second, which begins before the launches.
        (power,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_POWER_INSTANT])
        return nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM), power.value.uiVal / 1000, reasons

    def during(self, torch: Any, launch: Callable[[], Any]) -> dict[str, Any]:
        """Microseconds of a launch, and medians of what was read while launches followed each other."""
        stream = torch.cuda.Stream()
        samples: list[tuple[int, float, int]] = []
        with current_device(0), ExitStack() as cleanup:
            one = torch_contestant(cleanup, torch, stream, "product", lambda _: launch())
            one.enqueue(0)
            torch.cuda.synchronize()
            (seconds,) = trial_seconds(int(stream.cuda_stream), [one], 1)
            rounds = math.ceil(SECONDS / (LAUNCHES * seconds))
            (taken,) = replay_seconds(int(stream.cuda_stream), [one.graph(LAUNCHES, 1)], rounds, lambda: samples.append(self.read()))
        taken, samples = taken[int(SETTLED * rounds) :], samples[int(SETTLED * len(samples)) :]
        clocks, watts, reasons = zip(*samples, strict=True)
        return {
            "us": round(sum(taken) / len(taken) / LAUNCHES * 1e6, 2),
            "mhz": statistics.median(clocks),
            "watts": round(statistics.median(watts)),
            "power_capped": round(sum(bool(reason & 0x84) for reason in reasons) / len(reasons), 2),
        }


def factors(torch: Any, kind: str, m: int, n: int, k: int, zeros: bool) -> tuple[Any, Any]:
    """Both, the second stored in columns."""

    def made(rows: int) -> Any:
        if zeros:
            return torch.zeros(rows, k, device="cuda", dtype=getattr(torch, kind))
        if kind == "int8":
            return torch.randint(-128, 128, (rows, k), device="cuda", dtype=torch.int8)
        return torch.randn(rows, k, device="cuda").to(getattr(torch, kind))

    return made(m), made(n).T


def ways(torch: Any, kind: str, a: Any, b: Any) -> dict[str, Callable[[], Any]]:
    """The product by ``ops`` and by torch."""
    if kind == "float8_e4m3fn":
        one = torch.ones((), device="cuda")
        out = torch.empty(a.shape[0], b.shape[1], device="cuda", dtype=torch.bfloat16)
        theirs = lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, out=out)  # noqa: E731
    elif kind == "int8":
        out = torch.empty(a.shape[0], b.shape[1], device="cuda", dtype=torch.int32)
        theirs = lambda: torch._int_mm(a, b, out=out)  # noqa: E731
    else:
        out = torch.empty(a.shape[0], b.shape[1], device="cuda", dtype=a.dtype)
        theirs = lambda: torch.matmul(a, b, out=out)  # noqa: E731
    precision = {"precision": "tf32"} if kind == "float32" else {}
    return {"ours": lambda: ops.matmul(a, b, out=out, **precision), "torch": theirs}


def grouped_way(torch: Any, kind: str, groups: int, m: int, n: int, k: int) -> Callable[[], Any]:
    """A product of uneven groups of rows."""
    from measurements.grouped_bounds import uneven_ends

    a, _ = factors(torch, kind, m, 8, k, False)
    b = torch.empty(groups, n, k, device="cuda", dtype=a.dtype)
    for matrix in b:
        matrix.copy_(torch.randn(n, k, device="cuda"))
    ends, out = torch.from_numpy(uneven_ends(groups, m)).cuda(), torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    return lambda: ops.grouped_matmul(a, b.mT, ends, out=out)


def markdown(data: dict[str, Any]) -> str:
    """The page."""
    lines = [
        "# Clocks and power of products on tensor cores",
        "",
        f"{data['device']}, {data['date']}, torch {data['torch']}, limit of power {data['limit']:.0f} W. Launches without a pause for "
        f"{SECONDS} s; clock and power",
        "are medians of NVML's; *capped*: the part of the readings in which the driver names power as what holds the clock down;",
        "*of the peak*: the rate over that of the tensor cores at the clock that was read. Zeros switch next to nothing.",
        "`python -m measurements.tensor_power` makes this file.",
        "",
        "| product | data | by | µs | Top/s | MHz | W | capped | of the peak |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in data["rows"]:
        rate = row["operations"] / row["us"] / 1e6
        peak = PER_CLOCK[row["type"]] * data["sms"] * row["mhz"] / 1e6
        lines.append(
            f"| {row['product']} | {row['data']} | {row['by']} | {row['us']:.1f} | {rate:.0f} | {row['mhz']:.0f} | {row['watts']} | "
            f"{row['power_capped']:.0%} | {rate / peak:.0%} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures and writes."""
    import torch

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=HERE / "tensor_power", help="where to write, without .json and .md")
    parser.add_argument("--seconds", type=float, default=60.0, help="begin nothing after so long")
    arguments = parser.parse_args()
    started, meter = time.monotonic(), Meter()
    torch.backends.cuda.matmul.allow_tf32 = True
    data: dict[str, Any] = {
        "device": torch.cuda.get_device_name(0),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "torch": torch.__version__,
        "limit": meter.limit,
        "sms": torch.cuda.get_device_properties(0).multi_processor_count,
        "rows": [],
    }

    def run(product: str, kind: str, operations: float, about: str, by: str, launch: Callable[[], Any]) -> None:
        if time.monotonic() - started > arguments.seconds:
            return
        try:
            row = {"product": product, "type": kind, "operations": operations, "data": about, "by": by, **meter.during(torch, launch)}
        except (GemmgenError, RuntimeError) as error:
            print(product, by, str(error)[:300], flush=True)
            return
        data["rows"].append(row)
        print(row, flush=True)

    for kind, m, n, k in CASES:
        for zeros in (False, True):
            a, b = factors(torch, kind, m, n, k, zeros)
            for by, launch in ways(torch, kind, a, b).items():
                run(f"{kind} {m} x {n} x {k}", kind, 2.0 * m * n * k, "zeros" if zeros else "random", by, launch)
    for kind, groups, m, n, k in GROUPED:
        launch = grouped_way(torch, kind, groups, m, n, k)
        run(f"{kind}, {groups} groups, {m} x {n} x {k}", kind, 2.0 * m * n * k, "random", "ours", launch)
    arguments.output.with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n")
    arguments.output.with_suffix(".md").write_text(markdown(data))
    print(markdown(data))


if __name__ == "__main__":
    main()
