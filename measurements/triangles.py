"""Triangular matrices beside whole products: ``ops.matmul`` with ``triangles``, without, and torch (cuBLAS), in turns.

    python -m measurements.triangles                   on a machine with a GPU and torch; writes triangles.json and triangles.md
    python -m measurements.triangles --report          writes the table again from its data

Every result is compared with float64 before it is timed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gemmgen import ops
from gemmgen.core.files import write_atomically
from measurements.doubles import microseconds, replayed

HERE = Path(__file__).resolve().parent
PROBLEMS = (
    ("bfloat16", 4096, 4096),
    ("bfloat16", 8192, 8192),
    ("bfloat16", 2048, 8192),
    ("bfloat16", 6000, 3000),
    ("bfloat16", 4096, 1024),
    ("float64", 4096, 4096),
    ("float32", 4096, 4096),
)
"""Type, rows of x and columns of x, of x times its transpose."""
ROUNDS = 5
TOLERANCES = {"bfloat16": 2.0**-8, "float32": 2.0**-18, "float64": 2.0**-46}
FORMS = ("mirrored", "lower", "whole", "torch", "lower a", "whole a", "torch a")


def calls(x: Any) -> dict[str, Callable[[], Any]]:
    """The contestants: four on x times its transpose, three on a triangular matrix times x."""
    import torch

    square = torch.zeros(x.shape[0], x.shape[0], device="cuda", dtype=x.dtype)
    lower = torch.tril(torch.randn_like(square, dtype=torch.float32).to(x.dtype))
    flat = torch.empty_like(x)
    return {
        "mirrored": lambda: ops.matmul(x, x.T, out=square, triangles={"c": "mirrored"}),
        "lower": lambda: ops.matmul(x, x.T, out=square, triangles={"c": "lower"}),
        "whole": lambda: ops.matmul(x, x.T, out=square),
        "torch": lambda: torch.matmul(x, x.T, out=square),
        "lower a": lambda: ops.matmul(lower, x, out=flat, triangles={"a": "lower"}),
        "whole a": lambda: ops.matmul(lower, x, out=flat),
        "torch a": lambda: torch.matmul(lower, x, out=flat),
    }


def check(name: str, result: Any, expected: Any, tolerance: float) -> None:
    """Raises ``AssertionError`` for a result that is off by more than the tolerance times the largest element."""
    off = float((result.double() - expected).abs().max() / expected.abs().max())
    assert off <= tolerance, f"{name} is off by {off:g} of the largest element"


def measured(kind: str, rows: int, columns: int) -> dict[str, Any]:
    """Medians of all contestants, in microseconds."""
    import torch

    x = torch.randn(rows, columns, device="cuda", generator=torch.Generator("cuda").manual_seed(rows)).to(getattr(torch, kind))
    contestants = calls(x)
    expected = x.double() @ x.double().T
    for name in ("mirrored", "whole", "torch"):
        check(name, contestants[name](), expected, TOLERANCES[kind])
    check("lower", contestants["lower"]().tril(), expected.tril(), TOLERANCES[kind])
    whole = contestants["torch a"]().double()
    for name in ("lower a", "whole a"):
        check(name, contestants[name](), whole, 4 * TOLERANCES[kind])
    graphs = {name: replayed(call) for name, call in contestants.items()}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(ROUNDS):
        for name, graph in graphs.items():
            times[name].append(microseconds(graph))
    return {"type": kind, "rows": rows, "columns": columns, **{name: round(statistics.median(some), 2) for name, some in times.items()}}


def report(data: dict[str, Any]) -> str:
    """The table."""
    lines = [
        "# Triangular matrices",
        "",
        f"`python -m measurements.triangles` on {data['device']}, {data['date']}. Microseconds, medians of CUDA graphs in turns.",
        "",
        "x has the given rows and columns. Four columns are x times its transpose: both triangles by half of the tiles",
        "(*mirrored*), the lower one, all tiles, and torch (cuBLAS). Three are a lower triangular matrix times x: with its",
        "zeros skipped, all of it, and torch.",
        "",
        "| type | x | mirrored | lower | whole | torch | lower a | whole a | torch a |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in data["rows"]:
        cells = " | ".join(f"{row[name]:.1f}" for name in FORMS)
        lines.append(f"| {row['type']} | {row['rows']} × {row['columns']} | {cells} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures, or writes the table again."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--out", type=Path, default=HERE)
    options = parser.parse_args()
    path = options.out / "triangles.json"
    if not options.report:
        import torch

        began, rows = time.monotonic(), []
        for problem in PROBLEMS:
            if time.monotonic() - began > options.seconds:
                break
            rows.append(measured(*problem))
            print(json.dumps(rows[-1]), flush=True)
        data = {"device": torch.cuda.get_device_name(), "date": time.strftime("%Y-%m-%d"), "torch": torch.__version__, "rows": rows}
        write_atomically(path, json.dumps(data, indent=1) + "\n")
    write_atomically(options.out / "triangles.md", report(json.loads(path.read_text())))


if __name__ == "__main__":
    main()
