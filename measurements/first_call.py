"""Time from the first call of an operation on tensor cores to its result, with nothing compiled before, type by type.

    python -m measurements.first_call               on a machine with a GPU, and torch

Each call is of another type or shape, in a process whose CUDA context exists; binaries go to a new, empty cache. Writes first_call.json and
first_call.md.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SHAPES = ((4096, 4096, 4096), (16, 4096, 4096), (128, 11008, 4096), (1023, 1023, 1023))


def calls() -> list[tuple[str, Callable[[], Any]]]:
    """What is called, by what it is called."""
    import torch

    from gemmgen import ops

    def factors(m: int, n: int, k: int, kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        if kind == torch.int8:
            return torch.ones(m, k, dtype=kind, device="cuda"), torch.ones(n, k, dtype=kind, device="cuda").T
        return torch.ones(m, k, device="cuda").to(kind), torch.ones(n, k, device="cuda").to(kind).T

    found: list[tuple[str, Callable[[], Any]]] = []
    for shape in SHAPES:
        text = " x ".join(map(str, shape))
        for name in ("float16", "bfloat16", "int8", "float8_e4m3fn", "float32"):
            a, b = factors(*shape, getattr(torch, name))
            found.append((f"{name}, {text}", lambda a=a, b=b: ops.matmul(a, b)))
        a, b = factors(*shape, torch.float32)
        found.append((f"tf32, {text}", lambda a=a, b=b: ops.matmul(a, b, precision="tf32")))
    m, n, k = SHAPES[0]
    a, b = factors(m, n, k, torch.bfloat16)
    bias, residual = torch.ones(n, device="cuda", dtype=a.dtype), torch.ones(m, n, device="cuda", dtype=a.dtype)
    found.append(("bfloat16, bias, GELU", lambda: ops.matmul(a, b, bias=bias, activation="gelu")))
    found.append(("bfloat16, bias, residual, ReLU", lambda: ops.matmul(a, b, bias=bias, residual=residual, activation="relu")))
    s, t = factors(m, n, k, torch.int8)
    rows, columns = torch.ones(m, 1, device="cuda"), torch.ones(1, n, device="cuda")
    found.append(("int8 to int8, scaled", lambda: ops.matmul(s, t, scale_a=rows, scale_b=columns, output="int8")))
    many = torch.ones(16, n, k, device="cuda", dtype=a.dtype).transpose(1, 2)
    ends = torch.arange(256, m + 1, 256, dtype=torch.int32, device="cuda")
    found.append(("bfloat16, 16 groups of rows", lambda: ops.grouped_matmul(a, many, ends)))
    return found


def main() -> None:
    """Times every call once and writes ``first_call.json`` and ``first_call.md``."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GEMMGEN_CACHE_DIR"] = folder
        import torch

        rows = []
        for name, call in calls():
            torch.cuda.synchronize()
            started = time.perf_counter()
            call()
            torch.cuda.synchronize()
            seconds = time.perf_counter() - started
            started = time.perf_counter()
            call()
            torch.cuda.synchronize()
            rows.append({"call": name, "seconds": round(seconds, 3), "again": round(time.perf_counter() - started, 6)})
            print(json.dumps(rows[-1]), flush=True)
        about = {"device": torch.cuda.get_device_name(), "processors": os.cpu_count(), "date": datetime.now(UTC).date().isoformat()}
    (HERE / "first_call.json").write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    worst = max(rows, key=lambda row: row["seconds"])
    lines = [
        "# First calls",
        "",
        f"{about['device']}, {about['processors']} processors, {about['date']}. Seconds from the first call of `ops.matmul` or",
        "`ops.grouped_matmul` to its result, with nothing compiled before: choice of an instance, rendering, NVRTC, loading, launch.",
        f"The longest: {worst['call']}, {worst['seconds']:.2f} s. The very first row also loads the library's specs.",
        "",
        "| call | first, s | second, ms |",
        "|---|---|---|",
        *(f"| {row['call']} | {row['seconds']:.2f} | {row['again'] * 1e3:.2f} |" for row in rows),
    ]
    (HERE / "first_call.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
