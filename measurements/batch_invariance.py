"""Time of the batch-invariant choice beside the free one: python measurements/batch_invariance.py [SECONDS [PARTS PART]]

For bfloat16 and e4m3, n and k from 4096 to 14336 and m from 1 to 8192, both choices run on the same arrays as CUDA graphs of several
launches, in turns. The launches rotate among enough sets of arrays to exceed the L2, as the layers of a model do. Prints JSON with each
point, geometric means and the worst, and stops drawing points after SECONDS (70 by default). Of PARTS of the points, PART is measured, from
0 on. ``python measurements/batch_invariance.py rows`` compares the bits of rows alone and among 4096, and ``merge FILE ...`` joins results.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from gemmgen.perf.contestants import median_seconds

ROWS = (1, 8, 16, 32, 64, 96, 128, 256, 512, 1024, 2048, 4096, 8192)
EXTENTS = ((4096, 4096), (6144, 4096), (11008, 4096), (4096, 11008), (14336, 4096), (4096, 14336))
TURNS = 7
SETS_BYTES = 160 << 20
"""Bytes that the sets of arrays of a point take together, of which there are at most MAX_SETS."""
MAX_SETS = 24
GRAPH_SECONDS = 2e-3


def measure(kind: str, m: int, n: int, k: int, torch: Any, ops: Any) -> dict[str, Any]:
    """The times of both choices, and whether row 0 alone has the same bits as in the batch."""
    dtype = torch.bfloat16 if kind == "bf16" else torch.float8_e4m3fn
    size = (m + n) * k * dtype.itemsize
    sets = max(1, min(MAX_SETS, SETS_BYTES // size + 1))
    a, b = ([torch.randn(shape, device="cuda").to(dtype) for _ in range(sets)] for shape in ((m, k), (n, k)))
    out = torch.empty((m, n), device="cuda", dtype=torch.bfloat16)
    calls = {
        "free": lambda index: ops.matmul(a[index], b[index].T, out=out),
        "bound": lambda index: ops.matmul(a[index], b[index].T, out=out, batch_invariant=True),
    }
    times = median_seconds(torch, calls, sets=sets, rounds=TURNS, graph_seconds=GRAPH_SECONDS)
    calls["bound"](0)
    alone = ops.matmul(a[0][:1], b[0].T, batch_invariant=True, output="bfloat16" if kind != "bf16" else None)
    same = bool((alone.view(torch.int16) == out[:1].view(torch.int16)).all())
    ratio = times["bound"] / times["free"]
    return {"type": kind, "m": m, "n": n, "k": k, "free_us": times["free"] * 1e6, "ratio": ratio, "same_bits": same}


def rows_alone(torch: Any, ops: Any) -> list[dict[str, Any]]:
    """For a transformer's block and reductions: whether the first and the last rows of a batch of 4096 have the same bits alone."""
    width, inner, batch = 4096, 11008, 4096

    def draw(*shape: int) -> Any:
        return torch.randn(shape, device="cuda").bfloat16() * shape[-1] ** -0.5

    x, norm = draw(batch, width) * 64, torch.randn(width, device="cuda").bfloat16()
    shift, bias = draw(width), draw(inner)
    queries, projection, up, down = draw(width, width), draw(width, width), draw(inner, width), draw(width, inner)

    def block(rows: Any) -> dict[str, Any]:
        kept: dict[str, Any] = {"rms_norm": ops.rms_norm(rows, norm, batch_invariant=True)}
        kept["queries"] = ops.matmul(kept["rms_norm"], queries.T, batch_invariant=True)
        kept["softmax"] = ops.softmax(kept["queries"], batch_invariant=True)
        kept["projection"] = ops.matmul(kept["softmax"], projection.T, residual=rows, batch_invariant=True)
        kept["layer_norm"] = ops.layer_norm(kept["projection"], norm, shift, batch_invariant=True)
        kept["up"] = ops.matmul(kept["layer_norm"], up.T, bias=bias, activation="gelu", batch_invariant=True)
        kept["down"] = ops.matmul(kept["up"], down.T, residual=kept["projection"], batch_invariant=True)
        return kept

    def equal(one: Any, other: Any) -> bool:
        word = {2: torch.int16, 4: torch.int32}[one.element_size()]
        return bool((one.contiguous().view(word) == other.contiguous().view(word)).all())

    whole, found = block(x), []
    for rows in (1, 3, 48, 100, 700):
        for first in (0, batch - rows):
            alone = block(x[first : first + rows])
            stages = {name: equal(values, whole[name][first : first + rows]) for name, values in alone.items()}
            finite = bool(torch.isfinite(alone["down"].float()).all())
            found.append({"check": "block", "rows": rows, "first": first, "same": all(stages.values()), "finite": finite, "stages": stages})
    for columns in (1001, 65536):
        values = torch.randn((batch, columns), device="cuda")
        for op in ("sum", "logsumexp"):
            many = ops.reduce(values, op, axis=-1, batch_invariant=True)
            alone = ops.reduce(values[:1], op, axis=-1, batch_invariant=True)
            found.append({"check": f"reduce {op}", "columns": columns, "rows": 1, "same": equal(alone, many[:1])})
    return found


def summary_of(points: list[dict[str, Any]]) -> dict[str, Any]:
    """The geometric mean and the worst ratio of each type."""
    summary = {}
    for kind in ("bf16", "e4m3"):
        ratios = [point["ratio"] for point in points if point["type"] == kind]
        if ratios:
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            summary[kind] = {"points": len(ratios), "geometric_mean": round(mean, 4), "worst": round(max(ratios), 4)}
    return summary


def result(device: str, points: list[dict[str, Any]], checks: list[dict[str, Any]]) -> dict[str, Any]:
    """Everything that one or several runs have found."""
    kept = all(point["same_bits"] for point in points) and all(check["same"] for check in checks)
    return {"device": device, "rows_keep_their_bits": kept, "summary": summary_of(points), "checks": checks, "points": points}


def merged(files: list[Path]) -> dict[str, Any]:
    """The results of several runs as one."""
    runs = [json.loads(file.read_text()) for file in files]
    points = [point for run in runs for point in run["points"]]
    return result(runs[0]["device"], points, [check for run in runs for check in run["checks"]])


def main(limit: float, parts: int = 1, part: int = 0) -> dict[str, Any]:
    """Draws points until the time is over."""
    import torch

    from gemmgen import ops

    started = time.perf_counter()
    points: list[dict[str, Any]] = []
    for n, k in EXTENTS[part::parts]:
        for m in ROWS:
            for kind in ("bf16", "e4m3"):
                if time.perf_counter() - started < limit:
                    points.append(measure(kind, m, n, k, torch, ops))
    return result(torch.cuda.get_device_name(), points, [])


def checked() -> dict[str, Any]:
    """The comparison of rows alone and in a batch."""
    import torch

    from gemmgen import ops

    return result(torch.cuda.get_device_name(), [], rows_alone(torch, ops))


if __name__ == "__main__":
    if sys.argv[1:2] == ["merge"]:
        found = merged([Path(name) for name in sys.argv[2:]])
    elif sys.argv[1:2] == ["rows"]:
        found = checked()
    else:
        found = main(float(sys.argv[1]) if len(sys.argv) > 1 else 70.0, *map(int, sys.argv[2:4]))
    print(json.dumps(found, indent=1))
