"""Milliseconds that the choice of a kernel takes, on drawn products.

    python -m measurements.choosing --seed 5          on any machine; needs no GPU

A process chooses for each product once, with an empty cache of choices; a second process chooses for the same products, which the cache of
the user then holds. The modules are compiled before, as those of an installed package are. The first choice of a process, which reads
tables and specs, is reported separately. Prints percentiles as JSON: of the time that passes; of the processor's time, which other
processes disturb less; and of the latter without Python's collections of garbage, one of which looks at all objects of the process.
"""

from __future__ import annotations

import argparse
import gc
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


def timed(texts: list[str]) -> list[tuple[float, float, float]]:
    """Milliseconds of each choice in this process, of the processor for it, and of the latter without collections of garbage."""
    from gemmgen.dispatch.problems import parse_problem
    from gemmgen.dispatch.selection import choose
    from gemmgen.hardware.target import device

    target, times, collections = device("H200"), list[tuple[float, float, float]](), list[float]()

    def collecting(phase: str, _: dict[str, int]) -> None:
        collections.append(time.process_time() if phase == "stop" else -time.process_time())

    gc.callbacks.append(collecting)
    for request in map(parse_problem, texts):
        collections.clear()
        began, processor = time.perf_counter(), time.process_time()
        choose(request, target)
        passed, processor = time.perf_counter() - began, time.process_time() - processor
        times.append((passed * 1e3, processor * 1e3, (processor - sum(collections)) * 1e3))
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
    with tempfile.TemporaryDirectory() as folder:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = f"{folder}/modules"
        for name in ("compiling", "new", "known"):
            environment["GEMMGEN_CACHE_DIR"] = f"{folder}/{'first' if name == 'compiling' else 'choices'}"
            command = [sys.executable, "-m", "measurements.choosing", "--here", "--seed", str(given.seed), "--count", str(given.count)]
            told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            if name == "compiling":
                continue
            columns = dict(zip(("ms", "processor ms", "without collections"), zip(*json.loads(told.stdout), strict=True), strict=True))
            print(json.dumps({"products": name, **{column: summary(times) for column, times in columns.items()}}), flush=True)


if __name__ == "__main__":
    main()
