"""Time of the batch-invariant choice beside the free one: python measurements/batch_invariance.py [SECONDS]

For bfloat16 and e4m3, n and k from 4096 to 14336 and m from 1 to 8192, both choices run on the same arrays as CUDA graphs of several
launches, in turns. The launches rotate among enough sets of arrays to exceed the L2, as the layers of a model do. Prints JSON with each
point, geometric means and the worst, and stops drawing points after SECONDS (70 by default).
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
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


def main(limit: float) -> None:
    """Draws points until the time is over, and prints the result."""
    import torch

    from gemmgen import ops

    started, points = time.perf_counter(), []
    for n, k in EXTENTS:
        for m in ROWS:
            for kind in ("bf16", "e4m3"):
                if time.perf_counter() - started < limit:
                    points.append(measure(kind, m, n, k, torch, ops))
    summary = {}
    for kind in ("bf16", "e4m3"):
        ratios = [point["ratio"] for point in points if point["type"] == kind]
        if ratios:
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            summary[kind] = {"points": len(ratios), "geometric_mean": round(mean, 4), "worst": round(max(ratios), 4)}
    kept = all(point["same_bits"] for point in points)
    print(
        json.dumps({"device": torch.cuda.get_device_name(), "rows_keep_their_bits": kept, "summary": summary, "points": points}, indent=1)
    )


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 70.0)
