"""Random specs, compiled and verified on the emulator: PYTHONPATH=tests python measurements/random_specs.py --count 10000 --seed 22.

Each spec is a shipped one with a few fields changed. Of its cases as many are run as --seconds allow, in an order that its number
decides. A journal, build/random_specs.jsonl unless told, has a line for each spec; the same command goes on where it was stopped, and
--hours ends it in time. The result is written beside this file: how many were accepted, verified, refused for their size, or cut off
for their time, and every failure with its spec. Two cores are two commands, with --part 0/2 and --part 1/2 and journals of their
own; --merge puts journals together.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from attack.random_specs import SpecMaker  # noqa: E402

import gemmgen  # noqa: E402
from gemmgen.core.errors import CompileError, GemmgenError, PlanError  # noqa: E402
from gemmgen.core.files import write_atomically  # noqa: E402
from gemmgen.runtime.emulation import EmulatorBackend  # noqa: E402
from gemmgen.toolchain.compilation import compile_plan  # noqa: E402
from gemmgen.verification.oracle import oracle_of  # noqa: E402
from gemmgen.verification.runner import verify_case  # noqa: E402

RESULT = Path(__file__).with_suffix(".json")
SECONDS = 60
"""For one spec; what takes longer is counted as cut off, not as a failure."""
CASE_SECONDS = 3.0
"""For the cases of a spec, unless told otherwise: a new one begins as long as there is time."""


class CutOffError(Exception):
    """A spec took too long."""


def trial(number: int, seed: int, case_seconds: float = CASE_SECONDS) -> dict[str, Any]:
    """What became of one spec; each has a seed of its own, so that any of them can be made again."""
    spec = SpecMaker(seed * 1_000_000 + number, hostility=0.0).varied()
    started = time.perf_counter()

    def ended(outcome: str, **more: Any) -> dict[str, Any]:
        return {"number": number, "kind": spec["kind"], "outcome": outcome, "seconds": round(time.perf_counter() - started, 2), **more}

    def cut_off(*_: Any) -> None:
        raise CutOffError

    signal.signal(signal.SIGALRM, cut_off)
    signal.alarm(SECONDS)
    try:
        try:
            plan = gemmgen.plan(spec)
        except GemmgenError:
            return ended("rejected")
        cases = oracle_of(plan.spec.kind).cases(plan)
        if not cases:
            return ended("no case")
        binary, backend = compile_plan(plan), EmulatorBackend()
        random.Random(number).shuffle(cases)
        begun, elements, done = time.perf_counter(), 0, 0
        for case in cases:
            if done and time.perf_counter() - begun > case_seconds:
                break
            result = verify_case(plan, binary, backend, case)
            if not result.passed:
                return ended("WRONG", spec=spec, failure=result.failure[:500], case=case.name)
            elements, done = elements + result.elements, done + 1
        return ended("verified", cases=done, of=len(cases), elements=elements)
    except CutOffError:
        return ended("cut off")
    except PlanError:
        return ended("too large")
    except CompileError as error:
        return ended("DOES NOT COMPILE", spec=spec, failure=str(error)[:500])
    except Exception as error:
        return ended("CRASH", spec=spec, failure=f"{type(error).__name__}: {error}"[:500])
    finally:
        signal.alarm(0)


def read(journal: Path) -> dict[int, dict[str, Any]]:
    """The trials so far; a line that a kill cut off does not count."""
    found = {}
    for line in journal.read_text().splitlines() if journal.exists() else ():
        try:
            entry = json.loads(line)
            found[entry["number"]] = entry
        except ValueError:
            continue
    return found


def summary(entries: list[dict[str, Any]], seed: int, wanted: int) -> dict[str, Any]:
    """The figures, and every failure."""
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "seed": seed,
        "specs_wanted": wanted,
        "specs_done": len(entries),
        "outcomes": dict(sorted(Counter(entry["outcome"] for entry in entries).items())),
        "by_kind": dict(sorted(Counter(f"{entry['kind']} {entry['outcome']}" for entry in entries).items())),
        "cases": sum(entry.get("cases", 0) for entry in entries),
        "cases_of_these_specs": sum(entry.get("of", entry.get("cases", 0)) for entry in entries),
        "elements": sum(entry.get("elements", 0) for entry in entries),
        "core_hours": round(sum(entry["seconds"] for entry in entries) / 3600, 3),
        "failures": [entry for entry in entries if entry["outcome"].isupper()],
    }


def main() -> None:
    """Goes through the specs that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=22)
    parser.add_argument("--seconds", type=float, default=CASE_SECONDS, help="for the cases of a spec")
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--hours", type=float, default=1e6)
    parser.add_argument("--journal", type=Path, default=ROOT / "build" / "random_specs.jsonl")
    parser.add_argument("--merge", type=Path, nargs="*", default=[])
    parser.add_argument("--result", type=Path, default=RESULT)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    part, parts = map(int, given.part.split("/"))
    given.journal.parent.mkdir(parents=True, exist_ok=True)
    known, end = read(given.journal), time.monotonic() + given.hours * 3600
    with given.journal.open("a") as journal:
        for number in range(part, 0 if given.merge else given.count, parts):
            if time.monotonic() > end:
                break
            if number not in known:
                known[number] = trial(number, given.seed, given.seconds)
                journal.write(json.dumps(known[number]) + "\n")
                journal.flush()
    for other in given.merge:
        known |= read(other)
    result = summary([known[number] for number in sorted(known)], given.seed, given.count)
    write_atomically(given.result, json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
