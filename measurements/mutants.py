"""Breaks kernels one way at a time and counts what verification catches: PYTHONPATH=tests python measurements/mutants.py --help.

Each verdict is a line of a journal, build/mutants.jsonl unless told; the same command goes on where it was stopped, and trials that
a changed kernel or other cases make outdated are made again. At the end the score is written beside this file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from mutants.operators import Mutant, all_mutants  # noqa: E402
from mutants.survivors import explanation  # noqa: E402
from mutants.trials import Subject, spread, try_mutant  # noqa: E402

from gemmgen.core.errors import GemmgenError  # noqa: E402
from gemmgen.core.files import write_atomically  # noqa: E402
from gemmgen.library.digests import cases_digest  # noqa: E402

SCORE = Path(__file__).with_suffix(".json")
KINDS = ("gemm", "reduction", "conv2d")


def all_names() -> list[str]:
    """Every spec of a GPU kernel that comes with gemmgen."""
    from gemmgen.cli.selection import shipped_specs

    return [name for name in shipped_specs() if name.split("/")[0] in KINDS]


def trials(name: str, count: int | None) -> Iterator[tuple[str, Subject, Mutant]]:
    """The mutants of a kernel to try, each with a digest of all that its verdict depends on."""
    subject = Subject.of(name)
    mutants = all_mutants(subject.source)
    cases = cases_digest(subject.plan)
    for mutant in mutants if count is None else spread(mutants, count):
        yield hashlib.sha256(f"{name}\0{cases}\0{mutant.text}".encode()).hexdigest()[:24], subject, mutant


def read(journal: Path) -> dict[str, dict[str, Any]]:
    """The verdicts so far, by digest; a line that a kill cut off does not count."""
    found = {}
    for line in journal.read_text().splitlines() if journal.exists() else ():
        try:
            entry = json.loads(line)
            found[entry["digest"]] = entry
        except ValueError:
            continue
    return found


def score(entries: list[dict[str, Any]], named: int) -> dict[str, Any]:
    """How many mutants ended how; the score is what was caught of what changes the kernel and is not explained."""
    outcomes = Counter(entry["outcome"] for entry in entries)
    unexplained = [entry for entry in entries if entry["outcome"] == "survived" and not entry["why"]]
    decided = outcomes["caught"] + len(unexplained)
    by_kernel: dict[str, Counter[str]] = {}
    for entry in entries:
        by_kernel.setdefault(entry["spec"], Counter())[entry["outcome"]] += 1
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "kernels": len(by_kernel),
        "kernels_named": named,
        "mutants": len(entries),
        "outcomes": dict(sorted(outcomes.items())),
        "explained": outcomes["survived"] - len(unexplained),
        "unexplained": [{name: entry[name] for name in ("spec", "kind", "line", "before", "after")} for entry in unexplained],
        "score": round(outcomes["caught"] / decided, 4) if decided else None,
        "by_kernel": {name: dict(sorted(counts.items())) for name, counts in sorted(by_kernel.items())},
    }


def main() -> None:
    """Tries what is asked for and writes the score."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("specs", nargs="*", help="gemm/v3_double_buffer, ...; all that come with gemmgen if none is named")
    parser.add_argument("--each", type=int, help="mutants of every kind on every kernel; all if not given")
    parser.add_argument("--journal", type=Path, default=ROOT / "build" / "mutants.jsonl")
    parser.add_argument("--hours", type=float, default=1e6, help="when to stop trying")
    parser.add_argument("--score", type=Path, default=SCORE)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    given.journal.parent.mkdir(parents=True, exist_ok=True)
    known, entries, end = read(given.journal), [], time.monotonic() + given.hours * 3600
    names = given.specs or all_names()
    with given.journal.open("a") as journal:
        for name in names:
            try:
                wanted = list(trials(name, given.each))
            except GemmgenError as error:
                print(f"{name}: {error}", file=sys.stderr)
                continue
            for digest, subject, mutant in wanted:
                entry = known.get(digest)
                if entry is None:
                    if time.monotonic() > end:
                        break
                    verdict = try_mutant(subject, mutant)
                    entry = {
                        "digest": digest, "spec": name, "kind": mutant.kind, "line": mutant.line, "previous": mutant.previous,
                        "before": mutant.before, "after": mutant.after, "outcome": verdict.outcome, "how": verdict.how[:200],
                    }  # fmt: skip
                    journal.write(json.dumps(entry) + "\n")
                    journal.flush()
                entries.append({**entry, "why": explanation(name, mutant) or ""})
    result = score(entries, len(names))
    write_atomically(given.score, json.dumps(result, indent=1) + "\n")
    print(json.dumps({name: value for name, value in result.items() if name not in ("by_kernel",)}, indent=1))


if __name__ == "__main__":
    main()
