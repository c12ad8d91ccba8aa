"""The programs that need a GPU, one after the other within a budget of seconds, the most needed first.

    python -m measurements.gpu_round --list
    python -m measurements.gpu_round --seconds 1500 --copy-to DIR

Every step is a command of its own with a limit of its own, after which it is ended with all that it started. A journal, one line of JSON
for each step that ran, says how each ended and how long it took: steps that succeeded at this commit are not run again, so that a round
that was interrupted goes on. A step is not begun where less of the budget is left than it needs to be of use. With ``--copy-to``, files
that a step changed are copied to a folder, with what it printed, before the next begins.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
JOURNAL = ROOT / "measurements" / "gpu_round.jsonl"
RESULTS = ("measurements", "generated")
"""Folders that steps write to."""
EVIDENCE = "generated/evidence"
KEPT_OUTPUT = 20_000
"""Characters of a step's output that are kept, its last."""


@dataclass(frozen=True)
class Step:
    """One command, which runs in the repository's root."""

    name: str
    command: tuple[str, ...]
    limit: int
    """Seconds after which it is ended."""
    least: int
    """Seconds of the budget without which it is not begun."""


def program(name: str, *arguments: str) -> tuple[str, ...]:
    """A command that runs a module of this folder."""
    return sys.executable, "-m", f"measurements.{name}", *arguments


def gemmgen(*arguments: str) -> tuple[str, ...]:
    """A command of gemmgen's."""
    return sys.executable, "-m", "gemmgen", *arguments


def specs(*patterns: str) -> tuple[str, ...]:
    """The specs of these patterns, by their paths from the root."""
    return tuple(sorted(path.relative_to(ROOT).as_posix() for pattern in patterns for path in ROOT.glob(f"specs/{pattern}.yaml")))


def steps() -> tuple[Step, ...]:
    """All steps, the most needed first."""
    return (
        Step("verify convolutions", gemmgen("verify", "--backend", "gpu", *specs("conv2d/wgmma/quantised", "conv2d/direct/int8")), 240, 30),
        Step("verify mma_sync", gemmgen("verify", "--backend", "gpu", *specs("gemm/mma_sync/*")), 240, 30),
        Step("verify planes", gemmgen("verify", "--backend", "gpu", *specs("gemm/split_precision/*")), 240, 30),
        Step("library", gemmgen("library", "measure", "--output", f"{EVIDENCE}/h200.json"), 420, 120),
        Step("f32_ops", program("f32_ops"), 240, 60),
        Step("f32_planes", program("f32_planes", "--seconds", "150"), 240, 60),
        Step("conv2d_hopper", program("conv2d_hopper", "--seconds", "150"), 240, 60),
        Step("grouped", program("grouped"), 120, 30),
        Step("odd_shapes 17", program("odd_shapes", "--contenders", "12", "--seconds", "150"), 240, 90),
        Step("first calls", program("first_call"), 120, 40),
        Step("tensor_choice", program("tensor_choice", "--seconds", "100"), 150, 40),
        Step("tensor_ways", program("tensor_ways"), 120, 30),
        Step("tensor_gemm", program("tensor_gemm", "--seconds", "200"), 300, 90),
        Step("odd_reductions", program("odd_reductions"), 120, 40),
        Step("counters", program("counters", "--measure-only", "--seconds", "200"), 300, 60),
        Step(
            "sanitizer",
            gemmgen("library", "measure", "--no-bench", "--sanitize", "--output", f"{EVIDENCE}/h200-sanitizer.json"),
            420,
            120,
        ),
    )


def succeeded(journal: Path, commit: str) -> set[str]:
    """Names of the steps that the journal has as successful at a commit. Lines that were cut off count for nothing."""
    found = set()
    for line in journal.read_text().splitlines() if journal.exists() else ():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if entry.get("commit") == commit and entry.get("rc") == 0:
            found.add(str(entry["step"]))
    return found


def run(step: Step, limit: float) -> tuple[int, str]:
    """Exit status of a step, 124 where it was ended, and the end of what it printed."""
    with subprocess.Popen(
        step.command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            text, _ = process.communicate(timeout=limit)
            return process.returncode, text[-KEPT_OUTPUT:]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            text, _ = process.communicate()
            return 124, text[-KEPT_OUTPUT:]


def run_all(
    chosen: Sequence[Step],
    seconds: float,
    journal: Path,
    commit: str,
    finished: Callable[[Step, str, float], None] = lambda step, text, since: None,
) -> int:
    """Runs the steps that the budget allows and the journal does not have; returns how many of them failed."""
    begun, failed = time.monotonic(), 0
    done = succeeded(journal, commit)
    for step in chosen:
        left = seconds - (time.monotonic() - begun)
        if step.name in done or left < step.least:
            print(
                f"{step.name}: {'done before' if step.name in done else f'needs {step.least} s, {max(left, 0):.0f} are left'}", flush=True
            )
            continue
        started, wall = time.monotonic(), time.time()
        rc, text = run(step, min(step.limit, left))
        taken = round(time.monotonic() - started, 1)
        failed += rc != 0
        entry = {"step": step.name, "commit": commit, "rc": rc, "seconds": taken, "date": datetime.now(UTC).isoformat(timespec="seconds")}
        with journal.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        print(f"{step.name}: {'ok' if rc == 0 else f'exit status {rc}'}, {taken} s", flush=True)
        finished(step, text, wall)
    return failed


def copier(target: Path) -> Callable[[Step, str, float], None]:
    """Copies what a step printed, and the files that it changed, to a folder."""

    def copy(step: Step, text: str, since: float) -> None:
        target.mkdir(parents=True, exist_ok=True)
        (target / f"{step.name.replace(' ', '_')}.txt").write_text(text)
        for folder in RESULTS:
            for path in (ROOT / folder).rglob("*"):
                if path.is_file() and path.stat().st_mtime >= since and path.suffix != ".pyc":
                    copied = target / path.relative_to(ROOT)
                    copied.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(path, copied)

    return copy


def main() -> None:
    """Lists the steps, or runs them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="say what would run, and run nothing")
    parser.add_argument("--seconds", type=float, default=1500.0, help="budget for all steps together")
    parser.add_argument("--only", action="append", help="run only the steps with this in their name; repeatable")
    parser.add_argument("--journal", type=Path, default=JOURNAL)
    parser.add_argument("--copy-to", type=Path, help="copy what changed to this folder after each step")
    arguments = parser.parse_args()
    chosen = [step for step in steps() if not arguments.only or any(part in step.name for part in arguments.only)]
    if not chosen:
        parser.error(f"no step has {' or '.join(arguments.only)} in its name; they are: {', '.join(step.name for step in steps())}")
    if arguments.list:
        for step in chosen:
            print(f"{step.name} (at most {step.limit} s, not with less than {step.least} s): {' '.join(step.command[1:])}")
        return
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    finished = copier(arguments.copy_to) if arguments.copy_to else lambda step, text, since: None
    sys.exit(1 if run_all(chosen, arguments.seconds, arguments.journal, commit, finished) else 0)


if __name__ == "__main__":
    main()
