"""Drawn epilogue formulas, verified on the emulator or a GPU: as many as asked for of each strategy and family, with a journal.

    python -m measurements.formulas --count 500 --journal formulas.jsonl
    python -m measurements.formulas --count 8 --journal formulas_gpu.jsonl --backend gpu --jobs 12        the same on this machine's GPU

The draws are those of ``tests/kernels/epilogue/test_formulas.py``. Each result is a line of the journal, and
formulas that have one are not run again, so that the command can be stopped and restarted. ``--seconds``: stop after so long.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from functools import partial
from pathlib import Path
from random import Random

from gemmgen.runtime.backends import BackendName
from tests.kernels.epilogue import test_formulas as drawing


def fields_of(kind: str, number: int) -> dict[str, object]:
    """The spec with the formula of this number."""
    rng = Random(f"{kind} {number}")
    if kind in drawing.STRATEGIES:
        return {"kind": "gemm", **drawing.STRATEGIES[kind], "epilogue": drawing.drawn(rng, drawing.AXES["gemm"], True)}
    formula = drawing.drawn(rng, drawing.AXES[kind], False)
    return {**drawing.FAMILIES[kind], ("operations" if kind == "elementwise" else "epilogue"): formula}


def outcome(entry: tuple[str, int], backend: BackendName) -> dict[str, object]:
    """One formula, verified: a line of the journal."""
    kind, number = entry
    before = time.monotonic()
    try:
        failures = drawing.verified(fields_of(kind, number), backend)
    except Exception as error:  # a formula that has no plan is a finding, too
        failures = [f"{type(error).__name__}: {error}"]
    return {"kind": kind, "number": number, "seconds": round(time.monotonic() - before, 2), "failures": failures}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--backend", default="emulator", choices=("emulator", "gpu"))
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    given = parser.parse_args()
    journal: Path = given.journal
    known = set()
    if journal.exists():
        known = {(one["kind"], one["number"]) for one in map(json.loads, journal.read_text(encoding="utf-8").splitlines())}
    start = time.monotonic()
    kinds = (*drawing.STRATEGIES, *drawing.FAMILIES)
    entries = [(kind, number) for number in range(given.count) for kind in kinds if (kind, number) not in known]
    one = partial(outcome, backend=given.backend)
    with journal.open("a", encoding="utf-8") as lines, multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        for found in pool.imap_unordered(one, entries):
            lines.write(json.dumps(found) + "\n")
            lines.flush()
            if time.monotonic() - start > given.seconds:
                pool.terminate()
                return


if __name__ == "__main__":
    main()
