"""Products by 2:4 sparse weights on an NVIDIA GPU: ``ops.matmul`` with the result of ``ops.compress_2_4``, beside dense products and
torch's.

    python -m measurements.sparse                    on a machine with an NVIDIA GPU from sm_90 on, and torch
    python -m measurements.sparse --seconds 100
    python -m measurements.sparse --report           writes the table again from its data

Peers: ``ops.matmul`` of the dense weight, torch's dense product, and torch's semi-structured product (cuSPARSELt, by the algorithm that it
takes by default, and by the fastest that ``torch._cslt_sparse_mm_search`` finds). Results are compared first. Calls are captured in CUDA
graphs and replayed in turns on random data; operands of the smaller products rotate beyond the L2.
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gemmgen import ops
from gemmgen.core.files import write_atomically
from gemmgen.perf.contestants import median_seconds

HERE = Path(__file__).resolve().parent
SHAPES = (
    (4096, 4096, 4096, "bf16"),
    (8192, 8192, 8192, "bf16"),
    (4096, 4096, 4096, "int8"),
    (8192, 8192, 8192, "int8"),
    (16, 4096, 4096, "bf16"),
    (64, 4096, 4096, "bf16"),
    (512, 4096, 4096, "bf16"),
    (512, 11008, 4096, "bf16"),
    (2048, 11008, 4096, "bf16"),
    (2048, 4096, 14336, "bf16"),
    (2048, 11008, 4096, "int8"),
    (4096, 14336, 4096, "bf16"),
)
"""Rows of activations, columns and depth of the weight, and type."""
SETS_BYTES = 200 << 20
ROUNDS = 9
GRAPH_SECONDS = 3e-3
AGREEMENT = 1e-2
"""Largest difference of bfloat16 results allowed, as a part of the largest result."""


def pruned(k: int, n: int, kind: str) -> Any:
    """A random weight (k, n), stored along k, of which two of every four neighbours along k are 0."""
    import torch

    rows = torch.randn(n, k, device="cuda").bfloat16() if kind == "bf16" else torch.randint(-127, 128, (n, k), device="cuda").to(torch.int8)
    fours = rows.view(n, k // 4, 4)
    fours.scatter_(2, torch.rand(n, k // 4, 4, device="cuda").topk(2, 2).indices, 0)
    return rows.T


def row_of(m: int, n: int, k: int, kind: str) -> dict[str, Any]:
    """Times of one product, after its results have been compared."""
    import torch

    sets = max(1, min(8, SETS_BYTES // (n * k * (2 if kind == "bf16" else 1)) + 1))
    dense = [pruned(k, n, kind) for _ in range(sets)]
    sparse = [ops.compress_2_4(weight) for weight in dense]
    x = torch.randn(m, k, device="cuda").bfloat16() if kind == "bf16" else torch.randint(-127, 128, (m, k), device="cuda").to(torch.int8)
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16 if kind == "bf16" else torch.int32)
    want = x.double() @ dense[0].double()
    error = float((ops.matmul(x, sparse[0], out=out).double() - want).abs().max() / want.abs().max())
    found: dict[str, Any] = {
        "m": m,
        "n": n,
        "k": k,
        "type": kind,
        "error": error,
        "passed": error < (AGREEMENT if kind == "bf16" else 1e-12),
    }
    calls: dict[str, Callable[[int], Any]] = {
        "sparse": lambda i: ops.matmul(x, sparse[i], out=out),
        "dense": lambda i: ops.matmul(x, dense[i], out=out),
        "torch": (lambda i: torch.matmul(x, dense[i], out=out)) if kind == "bf16" else (lambda i: torch._int_mm(x, dense[i])),
    }
    try:
        kept = [torch._cslt_compress(weight.T.contiguous()) for weight in dense]
        result = None if kind == "bf16" else torch.int32
        best = torch._cslt_sparse_mm_search(kept[0], x.T, out_dtype=result)
        calls["torch sparse"] = lambda i: torch._cslt_sparse_mm(kept[i], x.T, out_dtype=result)
        calls["torch sparse, searched"] = lambda i: torch._cslt_sparse_mm(kept[i], x.T, out_dtype=result, alg_id=best)
        for call in list(calls.values())[-2:]:
            call(0)
    except Exception as error_of_peer:  # any failure of the peer is a line of the table
        found["torch sparse refused"] = str(error_of_peer).splitlines()[0][:200]
        calls = {name: call for name, call in calls.items() if not name.startswith("torch sparse")}
    times = median_seconds(torch, calls, sets=sets, rounds=ROUNDS, graph_seconds=GRAPH_SECONDS)
    return found | {"microseconds": {name: round(1e6 * seconds, 2) for name, seconds in times.items()}}


def measured(seconds: float, data_file: Path) -> dict[str, Any]:
    """Rows of the shapes that there is time for, written as they come."""
    import torch

    until = time.monotonic() + seconds
    data: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "torch": torch.__version__,
        "rows": [],
    }
    for shape in SHAPES:
        if time.monotonic() > until:
            break
        data["rows"].append(row_of(*shape))
        print(json.dumps(data["rows"][-1]), flush=True)
        write_atomically(data_file, json.dumps(data, indent=1) + "\n")
    return data


def report(data: dict[str, Any]) -> str:
    """The table."""
    lines = [
        "# 2:4 sparse weights, on an H200",
        "",
        f"{data['device']}, {data['date']}, torch {data['torch']}. Device time by CUDA-graph replay, all ways in turns, on random data;",
        "results were compared first. The data is in [sparse.json](sparse.json), written by `python -m measurements.sparse`.",
        "",
        "*torch sparse*: cuSPARSELt by its default algorithm, and by the fastest that its search finds.",
        "",
        "| m × n × k | type | ops sparse, µs | ops dense, µs | dense / sparse | torch dense, µs | torch sparse, µs | torch sparse / ours |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in data["rows"]:
        times = row["microseconds"]
        peer = [times[name] for name in ("torch sparse", "torch sparse, searched") if name in times]
        theirs = " and ".join(f"{time:.1f}" for time in peer) or "refused"
        ratio = f"{min(peer) / times['sparse']:.2f}" if peer else ""
        lines.append(
            f"| {row['m']} × {row['n']} × {row['k']} | {row['type']} | {times['sparse']:.1f} | {times['dense']:.1f} "
            f"| {times['dense'] / times['sparse']:.2f} | {times['torch']:.1f} | {theirs} | {ratio} |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="no measurement begins after this")
    parser.add_argument("--out", type=Path, default=HERE, help="folder of sparse.json and sparse.md")
    parser.add_argument("--report", action="store_true")
    args = parser.parse_args()
    data_file = args.out / "sparse.json"
    data = json.loads(data_file.read_text()) if args.report else measured(args.seconds, data_file)
    write_atomically(args.out / "sparse.md", report(data))


if __name__ == "__main__":
    main()
