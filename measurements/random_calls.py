"""Random calls of each operation of ``gemmgen.ops`` beside NumPy in float64 or exact integers.

    python -m measurements.random_calls reduce --calls 200 --seed 3
    python -m measurements.random_calls elementwise --calls 5000 --jobs-nice 10 --journal calls.jsonl
    python -m measurements.random_calls softmax matmul --device cuda --alike 5 --jobs 8 --seconds 200 --journal calls

Prints wrong results, refusals and calls that raised anything but ``LaunchError``, and exits with 1 for any of these. Calls of a seed are
always the same; ``--first`` starts in the middle. With ``--alike``, so many calls have types, options and layouts in common and differ
in sizes and elements. With a journal, which has a line of JSON for each block of calls, a program that was ended continues behind the
last block; with several jobs it is a folder. Without a device, NumPy's arrays go to the processor and to the emulator; on a device,
tensors of torch and, where it is installed, arrays of CuPy.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from gemmgen.core.errors import LaunchError
from measurements.random_arrays import Draw
from measurements.random_kinds import KINDS, Call

BLOCK = 25
"""Calls of a line of the journal."""
PART = 4 * BLOCK
"""Calls that one of several processes makes before another kind's turn."""


@dataclass(frozen=True)
class Calls:
    """Calls of one kind and seed."""

    kind: str
    seed: int
    first: int
    last: int
    alike: int = 1
    device: str | None = None

    def draw(self, number: int) -> Draw:
        """The source of one call's choices."""
        form = np.random.default_rng([self.seed, number // self.alike])
        libraries = ("numpy",) if self.device is None else ("torch", "torch", "cupy") if find_spec("cupy") else ("torch",)
        library = libraries[int(form.integers(len(libraries)))]
        return Draw(form, np.random.default_rng([self.seed, number, 1]), library, self.device)


def outcome(call: Call) -> tuple[str, str]:
    """True if a call is right, and a report if not."""
    try:
        difference = call.make()
    except LaunchError as error:
        return ("right", "") if call.refused else ("refused", f"{call.said}: {error}")
    except Exception:
        return "traceback", f"{call.said}: {traceback.format_exc(limit=-4)}"
    if call.refused:
        return "wrong", f"{call.said}: not refused"
    return ("wrong", f"{call.said}: {difference}") if difference else ("right", "")


def run(calls: Calls) -> tuple[Counter[str], list[str]]:
    """Outcomes of calls, and their reports."""
    found: Counter[str] = Counter()
    reports: list[str] = []
    for number in range(calls.first, calls.last):
        what, report = outcome(KINDS[calls.kind](calls.draw(number)))
        found[what] += 1
        reports += [f"{what} {calls.kind} {number}: {report}"] if report else []
    return found, reports


def done_before(journal: Path | None, calls: Calls) -> tuple[Counter[str], int]:
    """Outcomes that a journal has, and the number of the next call. Lines that were cut off count for nothing."""
    found: Counter[str] = Counter()
    first = calls.first
    for line in journal.read_text().splitlines() if journal is not None and journal.exists() else ():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if (entry["kind"], entry["seed"], entry["first"]) == (calls.kind, calls.seed, first):
            found.update(entry["found"])
            first += entry["calls"]
    return found, first


def made(calls: Calls, until: float, journal: Path | None) -> Counter[str]:
    """Outcomes of calls in blocks, as far as the time allows; prints reports and a last line."""
    found, number = done_before(journal, calls)
    while number < calls.last and time.time() < until:
        count = min(BLOCK, calls.last - number)
        block, reports = run(Calls(calls.kind, calls.seed, number, number + count, calls.alike, calls.device))
        found.update(block)
        print("".join(f"{line}\n" for line in reports), end="", flush=True)
        if journal is not None:
            entry = {"kind": calls.kind, "seed": calls.seed, "first": number, "calls": count, "found": dict(block), "reports": reports}
            with journal.open("a") as file:
                file.write(json.dumps(entry) + "\n")
        number += count
    print(f"{calls.kind}, seed {calls.seed}, {calls.first} to {number}: {dict(found)}", flush=True)
    return found


def main() -> None:
    """Makes the calls and prints their outcomes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="+", metavar="kind", choices=(*KINDS, "all"), help=f"{', '.join(KINDS)}, or all")
    parser.add_argument("--calls", type=int, default=5000, help="calls of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--alike", type=int, default=1, help="calls that have types, options and layouts in common")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no more calls after this time")
    parser.add_argument("--journal", type=Path, help="file to which each block of calls is added; with several jobs a folder")
    parser.add_argument("--device", help="a device of torch that the arrays go to, cuda say")
    parser.add_argument("--jobs", type=int, default=1, help="processes, which take the kinds in turns")
    parser.add_argument("--jobs-nice", type=int, default=0, help="how much less urgent the processes are")
    options = parser.parse_args()
    os.nice(options.jobs_nice)
    until = time.time() + options.seconds
    kinds = list(KINDS) if "all" in options.kinds else options.kinds
    part = options.calls if options.jobs == 1 else PART
    work = [
        Calls(kind, options.seed, options.first + first, options.first + min(first + part, options.calls), options.alike, options.device)
        for first in range(0, options.calls, part)
        for kind in kinds
    ]
    total: Counter[str] = Counter()
    if options.jobs == 1:
        for calls in work:
            total += made(calls, until, options.journal)
    else:
        folder = options.journal
        if folder is not None:
            folder.mkdir(exist_ok=True)
        with get_context("spawn").Pool(options.jobs, maxtasksperchild=40) as pool:
            jobs = [(calls, until, None if folder is None else folder / f"{calls.kind}.{calls.first}.jsonl") for calls in work]
            for found in pool.starmap(made, jobs, chunksize=1):
                total += found
    print(f"in all: {dict(total)}")
    sys.exit(1 if set(total) - {"right"} else 0)


if __name__ == "__main__":
    main()
