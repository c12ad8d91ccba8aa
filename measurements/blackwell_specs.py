"""Random specs of products and convolutions for sm_100a and sm_120a, verified on the emulator.

    PYTHONPATH=tests python measurements/blackwell_specs.py --draw 600 --seed 1 --jobs 2    draws specs that have a plan (needs hypothesis)
    PYTHONPATH=tests python measurements/blackwell_specs.py --jobs 2 --hours 0.1   verifies specs that are drawn and not yet verified
    PYTHONPATH=tests python measurements/blackwell_specs.py --result               writes the result beside this file

Specs come from the strategies of the tests: products on tensor memory, plain and with block scales, and of warps on sm_120a, likewise; and
convolutions on tensor memory.
Each has its smallest case verified, and others by chance within a few seconds of processor time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import gemmgen  # noqa: E402
from gemmgen.core.errors import GemmgenError  # noqa: E402
from gemmgen.core.files import write_atomically  # noqa: E402
from measurements.random_specs import Trials, Way, commit, read, tried  # noqa: E402

RESULT = Path(__file__).with_suffix(".json")
DRAWN = Path(__file__).with_suffix(".drawn.journal")
JOURNAL = Path(__file__).with_suffix(".journal")
CASE_SECONDS = 1.0
SECONDS = 60
SHARES = (0.3, 0.2, 0.2, 0.15, 0.15)
"""Kinds of drawn specs: products on tensor memory, the same with block scales, products of warps, convolutions on tensor memory, float32
products there."""


def draw(count: int, seed: int, jobs: int) -> None:
    """Appends specs that have a plan to the file of drawn ones, as many of each strategy; each job draws its part with another seed."""
    tasks = [(part, int(count * share / jobs) + 1, seed * 1000 + job) for part, share in enumerate(SHARES) for job in range(jobs)]
    with multiprocessing.get_context("spawn").Pool(jobs) as pool, DRAWN.open("a") as drawn:
        known: set[str] = set()
        for found in pool.starmap(_drawn, tasks):
            new = {digest: fields for digest, fields in found.items() if digest not in known}
            known |= set(new)
            drawn.writelines(json.dumps(fields) + "\n" for fields in new.values())
    print(f"{len(known)} drawn")


def _drawn(part: int, wanted: int, seed: int) -> dict[str, dict[str, Any]]:
    """Specs of one strategy that have a plan, by their digests."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded
    from hypothesis import strategies as st
    from kernels.conv2d import test_tensor_memory
    from kernels.gemm import planes_specs, test_block_scaled_mma, test_mma_sync, test_tcgen05

    of_warps = st.one_of(test_mma_sync.specs(), test_block_scaled_mma.specs())
    for_sm_120a = of_warps.map(lambda fields: {**fields, "architecture": "sm_120a"})
    on_tensor_memory = test_tcgen05.specs(), test_tcgen05.scaled_specs()
    strategy = (*on_tensor_memory, for_sm_120a, test_tensor_memory.specs(), planes_specs.tensor_memory_specs())[part]
    found: dict[str, dict[str, Any]] = {}
    options = settings(
        max_examples=8 * wanted, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    seeded(seed)(options(given(strategy)(lambda fields: _keep(found, wanted, fields))))()
    return found


def _keep(found: dict[str, dict[str, Any]], wanted: int, fields: dict[str, Any]) -> None:
    if len(found) >= wanted:
        return
    try:
        found[gemmgen.plan(fields).spec_digest] = fields
    except GemmgenError:
        return


class Verified(Trials):
    """Verifies a drawn spec in a separate process, and writes its outcome at once."""

    def __init__(self, journal: Path, way: Way, end: float, specs: list[dict[str, Any]]) -> None:
        super().__init__(journal, way, end)
        self.specs = specs

    def __call__(self, number: int) -> dict[str, Any] | None:
        if time.time() > self.end:
            return None
        entry = tried(self.specs[number], number, self.way)
        with self.journal.open("ab", buffering=0) as journal:
            journal.write(json.dumps(entry).encode() + b"\n")
        return entry


def drawn_specs() -> list[dict[str, Any]]:
    """The drawn specs, one a line."""
    return [json.loads(line) for line in DRAWN.read_text().splitlines()]


def verify(journals: list[Path], to: Path, jobs: int, end: float) -> None:
    """Verifies the drawn specs that no journal names, until ``end``."""
    known: set[int] = set()
    for journal in journals:
        known |= {number for _, number in read(journal)}
    specs = drawn_specs()
    numbers = [number for number in range(len(specs)) if number not in known]
    numbers.sort(key=lambda number: number * 7919 % len(specs))  # all strategies from the start
    run = Verified(to, Way(0, CASE_SECONDS, assembled=8, seconds=SECONDS), end, specs)
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=100) as pool:
        outcomes = Counter(entry["outcome"] for entry in pool.imap_unordered(run, numbers) if entry is not None)
    print(json.dumps({"outcomes": outcomes, "drawn": len(specs), "known before": len(known)}))


def write_result(journals: list[Path]) -> None:
    """The figures and every failure, beside this file."""
    entries: dict[int, dict[str, Any]] = {}
    for journal in journals:
        entries |= {number: entry for (_, number), entry in read(journal).items()}
    verified = [entry for entry in entries.values() if entry["outcome"] == "verified"]
    specs = drawn_specs()
    scaled = sum(bool(specs[entry["number"]].get("scales")) for entry in verified)
    result = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "drawn": len(specs),
        "outcomes": dict(sorted(Counter(entry["outcome"] for entry in entries.values()).items())),
        "verified_by_architecture": dict(sorted(Counter(entry["architecture"] for entry in verified).items())),
        "verified_by_mechanism": dict(sorted(Counter(entry["mechanism"] for entry in verified).items())),
        "verified_with_block_scales": scaled,
        "verified_by_version_of_the_sources": dict(Counter(entry["sources"] for entry in verified)),
        "cases": sum(entry.get("cases", 0) for entry in verified),
        "elements": sum(entry.get("elements", 0) for entry in verified),
        "core_hours": round(sum(entry["seconds"] for entry in entries.values()) / 3600, 3),
        "failures": [entry for entry in entries.values() if entry["outcome"].isupper()],
    }
    write_atomically(RESULT, json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def main() -> None:
    """Draws, verifies, or writes the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draw", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--journal", type=Path, nargs="*", default=[JOURNAL], help="the first is written to")
    parser.add_argument("--result", action="store_true")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if given.draw:
        draw(given.draw, given.seed, given.jobs)
    elif given.result:
        write_result(given.journal)
    else:
        verify([JOURNAL, *given.journal], given.journal[0], given.jobs, time.time() + given.hours * 3600)


if __name__ == "__main__":
    main()
