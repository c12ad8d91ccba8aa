"""Milliseconds that the choice of a kernel takes, on drawn products.

    python -m measurements.choosing --seed 5          on any machine; needs no GPU

A process chooses for each product once, with an empty cache of choices; a second process chooses for the same products, which the cache of
the user then holds. The first choice of a process, which reads tables and specs, is reported separately. Prints percentiles as JSON: of the
time that passes, and of the processor's time, which other processes disturb less.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

COUNT = 200
ROWS = (1, 16, 100, 512, 2000, 4096)
TYPES = ("bf16", "f16", "s8_s8_s32", "e4m3_e4m3_bf16")


def drawn(seed: int, count: int) -> list[str]:
    """Products as problems."""
    rng = random.Random(seed)
    made = ((rng.choice(ROWS), 8 * rng.randrange(200, 1000), 16 * rng.randrange(100, 600), rng.choice(TYPES)) for _ in range(count))
    return [f"gemm:{m},{n},{k},nt,{types}" for m, n, k, types in made]


def timed(texts: list[str]) -> list[tuple[float, float]]:
    """Milliseconds of each choice in this process, and of the processor for it."""
    from gemmgen.dispatch.problems import parse_problem
    from gemmgen.dispatch.selection import choose
    from gemmgen.hardware.target import device

    target, times = device("H200"), []
    for request in map(parse_problem, texts):
        began, processor = time.perf_counter(), time.process_time()
        choose(request, target)
        times.append(((time.perf_counter() - began) * 1e3, (time.process_time() - processor) * 1e3))
    return times


def summary(times: Sequence[float]) -> dict[str, float]:
    """Percentiles of all but the first, and the first."""
    later = sorted(times[1:])
    places = {"median": 0.5, "90%": 0.9, "99%": 0.99, "most": 1.0}
    found = {name: later[min(int(part * len(later)), len(later) - 1)] for name, part in places.items()}
    return {name: round(one, 1) for name, one in {"first": times[0], **found}.items()}


def main() -> None:
    """Times two processes, one after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--here", action="store_true", help="times this process and prints the times")
    given = parser.parse_args()
    if given.here:
        print(json.dumps(timed(drawn(given.seed, given.count))))
        return
    with tempfile.TemporaryDirectory() as cache:
        for name in ("new", "known"):
            command = [sys.executable, "-m", "measurements.choosing", "--here", "--seed", str(given.seed), "--count", str(given.count)]
            told = subprocess.run(command, env={**os.environ, "GEMMGEN_CACHE_DIR": cache}, capture_output=True, text=True, check=True)
            passed, processor = zip(*json.loads(told.stdout), strict=True)
            print(json.dumps({"products": name, "ms": summary(passed), "processor ms": summary(processor)}), flush=True)


if __name__ == "__main__":
    main()
