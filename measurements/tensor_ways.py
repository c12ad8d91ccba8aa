"""Ways to copy, multiply and divide a product on tensor cores, beside cuBLAS: copies by threads or by TMA, wgmma or mma.sync, A
from shared memory or from registers, whole tiles or stream-K.

    python -m measurements.tensor_ways               on a machine with an H100 or H200, and torch

Every result is compared with torch's, and with that of a second launch, bit for bit, before CUDA graphs of all are replayed in turns.
Writes tensor_ways.json and tensor_ways.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gemmgen
from gemmgen.perf.contestants import median_seconds

HERE = Path(__file__).resolve().parent
SHAPES = (
    (4096, 4096, 4096),
    (1536, 1536, 1536),
    (8192, 8192, 8192),
    (2048, 6144, 4096),
    (2048, 2048, 2048),
    (512, 512, 16384),
    (1024, 1024, 4096),
)
ROUNDS = 5
BLOCKS = 132
COMMON = {
    "kind": "gemm",
    "transpose": "nt",
    "alpha": "one",
    "beta": "zero",
    "storage": {"a": "bf16", "b": "bf16", "c": "bf16"},
    "alignment": {"a": 8, "b": 8, "c": 8},
    "rasterization": {"group": 8},
}


def by_wgmma(m: int, n: int, stages: int, streamed: bool = False, **more: Any) -> dict[str, Any]:
    """A spec with ``wgmma`` and tiles of m x n x 64."""
    mainloop = {"strategy": "wgmma", "tile": {"m": m, "n": n, "k": 64}, "stages": stages, **more}
    division: dict[str, Any] = {"decomposition": {"scheme": "stream_k", "blocks": BLOCKS}} if streamed else {}
    mainloop |= {} if streamed else {"persistent_blocks": BLOCKS}
    return {**COMMON, "architecture": "sm_90a", "multiple_of": {"n": 8}, "store": "tma", "mainloop": mainloop, **division}


def by_mma(
    tile: tuple[int, int, int], warp: tuple[int, int], stages: int, blocks: int, streamed: bool = False, **more: Any
) -> dict[str, Any]:
    """A spec with ``mma.sync``; ``blocks``: on each multiprocessor."""
    tiles = {"threadblock": dict(zip("mnk", tile, strict=True)), "warp": dict(zip("mn", warp, strict=True))}
    mainloop = {"strategy": "mma_sync", "tile": tiles, "stages": stages, "min_blocks_per_sm": blocks, **more}
    division: dict[str, Any] = {"decomposition": {"scheme": "stream_k", "blocks": BLOCKS * blocks}} if streamed else {}
    return {**COMMON, "architecture": "sm_90" if more.get("copies") == "tma" else "sm_80", "mainloop": mainloop, **division}


WAYS: dict[str, dict[str, Any]] = {
    "128x256 persistent": by_wgmma(128, 256, 4),
    "128x256 stream-k": by_wgmma(128, 256, 4, True),
    "128x128 persistent": by_wgmma(128, 128, 6),
    "128x128 stream-k": by_wgmma(128, 128, 6, True),
    "128x192 persistent": by_wgmma(128, 192, 4),
    "128x192 stream-k": by_wgmma(128, 192, 4, True),
    "256x128 persistent": by_wgmma(256, 128, 4),
    "128x256 A in registers": by_wgmma(128, 256, 4, a_from="registers"),
    "128x64 A in shared": by_wgmma(128, 64, 6),
    "128x64 A in registers": by_wgmma(128, 64, 6, a_from="registers"),
    "mma tma 128x128x64 f2": by_mma((128, 128, 64), (64, 64), 3, 2, copies="tma", fragment_buffers=2),
    "mma tma 128x128x64 f2 stream-k": by_mma((128, 128, 64), (64, 64), 3, 2, True, copies="tma", fragment_buffers=2),
    "mma cp 128x128x64 w64x64 f1": by_mma((128, 128, 64), (64, 64), 3, 2),
    "mma cp 128x128x64 w64x64 f2": by_mma((128, 128, 64), (64, 64), 3, 2, fragment_buffers=2),
    "mma cp 128x256x64 w64x64 s3 f1": by_mma((128, 256, 64), (64, 64), 3, 1),
    "mma cp 128x256x64 w64x64 s3 f2": by_mma((128, 256, 64), (64, 64), 3, 1, fragment_buffers=2),
    "mma cp 128x256x64 w64x64 s4 f2": by_mma((128, 256, 64), (64, 64), 4, 1, fragment_buffers=2),
    "mma cp 256x128x64 w64x64 s3 f2": by_mma((256, 128, 64), (64, 64), 3, 1, fragment_buffers=2),
    "mma cp 128x128x32 w64x64 s4 f1": by_mma((128, 128, 32), (64, 64), 4, 2),
    "mma cp 128x128x32 w64x64 s4 f2": by_mma((128, 128, 32), (64, 64), 4, 2, fragment_buffers=2),
    "mma cp 128x256x32 w64x64 s4 f1 (shipped)": by_mma((128, 256, 32), (64, 64), 4, 1),
    "mma cp 128x128x32 w64x32 s4 f1 (shipped)": by_mma((128, 128, 32), (64, 32), 4, 2),
}
"""Specs by name: ``cp``: cp.async; ``w``: tile of a warp; ``s``: stages; ``f``: sets of fragments."""


def measured(shape: tuple[int, int, int], kernels: dict[str, Any]) -> dict[str, Any]:
    """Medians of one shape, in microseconds; raises ``AssertionError`` for a wrong result, or one that changes."""
    import torch

    m, n, k = shape
    a, b = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(n, k, device="cuda").bfloat16()
    want = a.float() @ b.float().T
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    calls: dict[str, Callable[[], Any]] = {"torch": lambda: torch.matmul(a, b.T, out=out)}
    for name, kernel in kernels.items():
        calls[name] = lambda kernel=kernel: kernel(A=a, B=b.T, C=out)
        out.fill_(float("nan"))
        calls[name]()
        first = out.clone()
        calls[name]()
        assert torch.equal(first, out), f"{name} is not repeatable for {shape}"
        torch.testing.assert_close(out.float(), want, rtol=1e-2, atol=1e-2 * float(want.abs().max()))
    ways = {name: lambda index, call=call: call() for name, call in calls.items()}
    times = median_seconds(torch, ways, rounds=ROUNDS)
    return {"shape": shape, "times": {name: seconds * 1e6 for name, seconds in times.items()}}


def table(data: dict[str, Any]) -> str:
    """Ratios to cuBLAS, a line for each way."""
    shapes = [" x ".join(map(str, row["shape"])) for row in data["rows"]]
    lines = [
        "# Ways to copy, multiply and divide a product on tensor cores",
        "",
        f"{data['device']}, {data['date']}, bfloat16, NT: cuBLAS's time over that of each, graphs in turns, operands in the L2 where",
        "they fit. `cp`: `cp.async`, `tma`: TMA, both with `mma.sync`; w: tile of a warp, s: stages, f: sets of fragments.",
        "The others are `wgmma`. `python -m measurements.tensor_ways` makes this file.",
        "",
        "| way | " + " | ".join(shapes) + " |",
        "|---|" + "---:|" * len(shapes),
    ]
    names = [name for name in data["rows"][0]["times"] if name != "torch"]
    for name in names:
        ratios = " | ".join(f"{row['times']['torch'] / row['times'][name]:.2f}" for row in data["rows"])
        lines.append(f"| {name} | {ratios} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures and writes ``tensor_ways.json`` and ``tensor_ways.md``."""
    import torch

    with ThreadPoolExecutor() as pool:
        made = pool.map(lambda spec: gemmgen.compile(spec, "sm_90a" if spec["architecture"] == "sm_90a" else "sm_90"), WAYS.values())
        kernels = dict(zip(WAYS, made, strict=True))
    rows = [measured(shape, kernels) for shape in SHAPES]
    data = {"device": torch.cuda.get_device_name(), "date": datetime.now(UTC).date().isoformat(), "rows": rows}
    (HERE / "tensor_ways.json").write_text(json.dumps(data, indent=1) + "\n")
    (HERE / "tensor_ways.md").write_text(table(data))


if __name__ == "__main__":
    main()
