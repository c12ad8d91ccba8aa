"""Breaks kernels one way at a time and counts the breaks that verification catches: PYTHONPATH=tests python measurements/mutants.py --help.

Every mutant of the kernels in tests/mutants is tried, and of every other kernel for GPUs as many as --each says, drawn by chance from a
seed. Each verdict is a line of a journal, build/mutants.jsonl by default; the same command continues where it was stopped, and trials
that a changed kernel or other cases make outdated are made again; --hours 0 tries nothing and only collects. At the end the scores are
written beside this file, for each kernel with the digest of its code, its mutants and its cases. A kernel whose score stands there
with the same digest and nothing unexplained keeps it and is not tried again; one that a run has not ended keeps it too, or is named as not
run. Runs before there were digests stand under "before".
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import platform
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from mutants.harmless import rule_for  # noqa: E402
from mutants.operators import Mutant, all_mutants  # noqa: E402
from mutants.survivors import explanation  # noqa: E402
from mutants.trials import WHOLE, Subject, Verdict, code_of, digest_of_cases, drawn, try_mutant  # noqa: E402

from gemmgen.core.errors import GemmgenError  # noqa: E402
from gemmgen.core.files import write_atomically  # noqa: E402
from gemmgen.kernels.shipped import shipped_specs  # noqa: E402

SCORE = Path(__file__).with_suffix(".json")
MUTANTS_OF_A_TASK = 12
SECONDS = 120
"""Default limit of processor time for one mutant, in seconds; a mutant that takes longer counts as cut off, neither caught nor survived."""

Entry = dict[str, Any]
Task = tuple[str, "int | None", int, int]
"""A kernel, how many of its mutants (None: all), and which part of them of how many."""


class CutOffError(BaseException):
    """A mutant took too long; nothing on the way takes it for an error of the kernel."""


def kernels_for_gpus() -> list[str]:
    """Every spec that comes with gemmgen, but those of processors."""
    return [name for name in shipped_specs() if not name.startswith("cpu/")]


@lru_cache(maxsize=2)
def subject_of(name: str) -> tuple[Subject, list[Mutant], str]:
    """A kernel with all its mutants and the digest of its cases."""
    subject = Subject.of(name)
    return subject, all_mutants(subject.source), digest_of_cases(subject.plan)


def tried(subject: Subject, mutant: Mutant, seconds: int) -> Verdict:
    """The verdict on a mutant, or that it was cut off."""

    def cut_off(*_: Any) -> None:
        raise CutOffError

    signal.signal(signal.SIGPROF, cut_off)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return try_mutant(subject, mutant)
    except CutOffError:
        return Verdict(subject.name, mutant, "cut off")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


@dataclass(frozen=True)
class Part:
    """Verdicts on the mutants of a task, and the digest of their kernel."""

    digest: str
    wanted: int
    entries: list[Entry]


class Trials:
    """Tries the mutants of a task in a separate process, and writes each verdict down at once."""

    def __init__(self, journal: Path, known: dict[str, Entry], scored: dict[str, dict[str, Entry]], given: argparse.Namespace) -> None:
        """`scored`: the existing scores of kernels, "whole" and "sampled"."""
        self.journal, self.known, self.scored, self.seed, self.seconds = journal, known, scored, given.seed, given.seconds
        self.end = time.time() + given.hours * 3600

    def __call__(self, task: Task) -> Part | None:
        name, count, part, parts = task
        try:
            subject, mutants, cases = subject_of(name)
        except GemmgenError as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            return None
        wanted = mutants if count is None else drawn(name, mutants, count, self.seed)
        score = self.scored["whole" if count is None else "sampled"].get(name)
        stands = score is not None and score["digest"] == subject.digest and score["mutants"] == len(wanted) and not score["unexplained"]
        entries = []
        for mutant in wanted[part::parts]:
            digest = hashlib.sha256(f"{name}\0{cases}\0{code_of(mutant.text)}".encode()).hexdigest()[:24]
            entry = self.known.get(digest)
            if entry is None:
                if stands or time.time() > self.end:
                    continue
                entry = self._new(digest, subject, mutant)
            entries.append({**entry, "why": explanation(name, mutant) or rule_for(subject.plan, subject.source, mutant) or ""})
        return Part(subject.digest, len(wanted[part::parts]), entries)

    def _new(self, digest: str, subject: Subject, mutant: Mutant) -> Entry:
        started = time.process_time()
        verdict = tried(subject, mutant, self.seconds)
        entry = {
            "digest": digest,
            "spec": subject.name,
            "kind": mutant.kind,
            "line": mutant.line,
            "previous": mutant.previous,
            "before": mutant.before,
            "after": mutant.after,
            "outcome": verdict.outcome,
            "how": verdict.how[:200],
            "seconds": round(time.process_time() - started, 2),
        }
        with self.journal.open("ab", buffering=0) as journal:  # one write, which others do not come between
            journal.write(json.dumps(entry).encode() + b"\n")
        return entry


def read(journal: Path) -> dict[str, Entry]:
    """The verdicts so far, by digest; a line that a kill cut off does not count, nor a trial that took too long."""
    found = {}
    for line in journal.read_text().splitlines() if journal.exists() else ():
        try:
            entry = json.loads(line)
            if entry["outcome"] != "cut off":
                found[entry["digest"]] = entry
        except ValueError:
            continue
    return found


def of_kernel(digest: str, entries: list[Entry], where: dict[str, str]) -> Entry:
    """Numbers of mutants of one kernel by outcome."""
    return {
        "digest": digest,
        **where,
        "mutants": len(entries),
        "outcomes": dict(sorted(Counter(entry["outcome"] for entry in entries).items())),
        "explained": sum(entry["outcome"] == "survived" and bool(entry["why"]) for entry in entries),
        "unexplained": [
            {name: entry[name] for name in ("kind", "previous", "before", "after")}
            for entry in entries
            if entry["outcome"] == "survived" and not entry["why"]
        ],
        "core_seconds": round(sum(entry["seconds"] for entry in entries)),
    }


def score(by_kernel: dict[str, Entry], named: list[str]) -> dict[str, Any]:
    """All kernels together; the score is the share of caught mutants among those that change the kernel and are not explained."""
    outcomes: Counter[str] = Counter()
    for entry in by_kernel.values():
        outcomes.update(entry["outcomes"])
    unexplained = sum(len(entry["unexplained"]) for entry in by_kernel.values())
    decided = outcomes["caught"] + unexplained
    return {
        "kernels": len(by_kernel),
        "not_run": sorted(set(named) - set(by_kernel)),
        "mutants": outcomes.total(),
        "outcomes": dict(sorted(outcomes.items())),
        "explained": sum(entry["explained"] for entry in by_kernel.values()),
        "unexplained": unexplained,
        "score": round(outcomes["caught"] / decided, 4) if decided else None,
        "core_seconds": sum(entry["core_seconds"] for entry in by_kernel.values()),
        "by_kernel": dict(sorted(by_kernel.items())),
    }


def earlier(file: Path, part: str) -> dict[str, Entry]:
    """Statements of an existing result on each kernel."""
    found: dict[str, Entry] = json.loads(file.read_text())[part]["by_kernel"] if file.exists() else {}
    return {name: entry for name, entry in found.items() if "digest" in entry}


def collected(tasks: list[Task], results: list[Part | None], before: dict[str, Entry]) -> dict[str, Entry]:
    """The figures of each kernel of which every wanted mutant was tried, now or, at the same digest, before."""
    where = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "commit": commit()}
    parts: dict[str, list[Part]] = defaultdict(list)
    for (name, *_), part in zip(tasks, results, strict=True):
        if part is not None:
            parts[name].append(part)
    by_kernel = {}
    for name, found in parts.items():
        entries = [entry for part in found for entry in part.entries]
        if len(entries) == sum(part.wanted for part in found):
            by_kernel[name] = of_kernel(found[0].digest, entries, where)
        elif name in before and before[name]["digest"] == found[0].digest:
            by_kernel[name] = before[name]
    return by_kernel


def commit() -> str:
    """The commit of the working tree; empty outside of a repository."""
    return subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def tasks_of(names: list[str], count: int | None) -> list[Task]:
    """Work for one process at a time, a kernel in as many parts as its mutants suggest."""
    if count is not None:
        return [(name, count, 0, 1) for name in names]
    found = []
    for name in names:
        parts = -(-len(subject_of(name)[1]) // MUTANTS_OF_A_TASK)
        found += [(name, None, part, parts) for part in range(parts)]
    return found


def main() -> None:
    """Tries the requested mutants and writes the scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--whole", nargs="*", default=list(WHOLE), help="kernels of which all mutants are tried; those of tests/mutants")
    parser.add_argument("--sampled", nargs="*", default=None, help="kernels of which some are tried; all that come with gemmgen")
    parser.add_argument("--each", type=int, default=3, help="mutants of each sampled kernel")
    parser.add_argument("--seed", type=int, default=22)
    parser.add_argument("--seconds", type=int, default=SECONDS, help="for one mutant")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--journal", type=Path, default=ROOT / "build" / "mutants.jsonl")
    parser.add_argument("--hours", type=float, default=1e6, help="when to stop trying")
    parser.add_argument("--score", type=Path, default=SCORE)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    given.journal.parent.mkdir(parents=True, exist_ok=True)
    sampled = kernels_for_gpus() if given.sampled is None else given.sampled
    scored = {part: earlier(given.score, part) for part in ("whole", "sampled")}
    run = Trials(given.journal, read(given.journal), scored, given)
    tasks = tasks_of(given.whole, None)
    whole = len(tasks)
    tasks += tasks_of(sampled, given.each)
    subject_of.cache_clear()
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        results = pool.map(run, tasks, chunksize=1)
    parts = {}
    for part, names, chosen in (("whole", given.whole, slice(0, whole)), ("sampled", sampled, slice(whole, None))):
        parts[part] = score(collected(tasks[chosen], results[chosen], scored[part]), names)
    result = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "whole": parts["whole"],
        "sampled": {"each": given.each, "seed": given.seed, **parts["sampled"]},
        "before": json.loads(given.score.read_text()).get("before", []) if given.score.exists() else [],
    }
    write_atomically(given.score, json.dumps(result, indent=1) + "\n")
    for part in ("whole", "sampled"):
        unexplained = [{"spec": name, **mutant} for name, entry in parts[part]["by_kernel"].items() for mutant in entry["unexplained"]]
        result[part] = {name: value for name, value in parts[part].items() if name != "by_kernel"} | {"unexplained": unexplained}
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
