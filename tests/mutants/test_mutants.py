"""Breaks the kernels of every family one way at a time: verification must catch each mutant that changes the result.

By default one mutant of every kind is tried. GEMMGEN_MUTANTS=full tries all of them, GEMMGEN_MUTANTS=4 four of every kind on
every kernel. `pytest -s` shows the table.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from functools import lru_cache
from pathlib import Path

import pytest

import gemmgen
from gemmgen.kernels.shipped import shipped_specs

from .operators import OPERATORS, Mutant, all_mutants
from .survivors import explanation, key_of, reasons
from .trials import WHOLE, Subject, Verdict, spread, try_mutant

SCORE = Path(__file__).parents[2] / "measurements" / "mutants.json"
WANTED = os.environ.get("GEMMGEN_MUTANTS", "sample")
KINDS = list(dict.fromkeys(operator.kind for operator in OPERATORS))

existing = [name for name in WHOLE if name in shipped_specs()]
subject_of = lru_cache(maxsize=None)(Subject.of)


@lru_cache(maxsize=1)
def sample() -> dict[str, list[Mutant]]:
    """One mutant of every kind that nothing explains, spread over the kernels, and over the places of each kernel."""
    chosen: dict[str, list[Mutant]] = defaultdict(list)
    places = {name: [m for m in all_mutants(subject_of(name).source) if explanation(name, m) is None] for name in existing}
    for index, kind in enumerate(KINDS):
        candidates = [(name, [m for m in places[name] if m.kind == kind]) for name in existing]
        possible = [(name, mutants) for name, mutants in candidates if mutants]
        if possible:
            name, mutants = possible[index % len(possible)]
            chosen[name].append(mutants[index % len(mutants)])
    return chosen


def chosen_mutants(name: str) -> list[Mutant]:
    if WANTED == "sample":
        return sample()[name]
    mutants = all_mutants(subject_of(name).source)
    return mutants if WANTED == "full" else spread(mutants, int(WANTED))


def print_table(name: str, verdicts: list[Verdict]) -> None:
    rows = Counter((verdict.mutant.kind, verdict.outcome) for verdict in verdicts)
    outcomes = ("caught", "survived", "same code", "same machine code", "does not compile")
    print(f"\n{name:44}" + "".join(f"{outcome:>18}" for outcome in outcomes))
    for kind in KINDS:
        if any(rows[kind, outcome] for outcome in outcomes):
            print(f"  {kind:42}" + "".join(f"{rows[kind, outcome] or '':>18}" for outcome in outcomes))


@pytest.mark.parametrize("name", existing)
def test_every_mutant_is_caught_or_explained(name: str) -> None:
    verdicts = [try_mutant(subject_of(name), mutant) for mutant in chosen_mutants(name)]
    print_table(name, verdicts)
    unexplained = [str(v.mutant) for v in verdicts if v.outcome == "survived" and explanation(name, v.mutant) is None]
    assert not unexplained, "\n".join(["nothing catches:", *unexplained])


def test_there_are_enough_kinds_of_mutants() -> None:
    applicable = {mutant.kind for name in existing for mutant in all_mutants(subject_of(name).source)}
    assert len(applicable) >= 40


def test_unchanged_kernels_pass() -> None:
    subject = subject_of(existing[0])
    verdict = try_mutant(subject, Mutant("nothing", 1, "", "", subject.source))
    assert verdict.outcome == "same code"


def test_explanations_are_about_kinds_that_exist() -> None:
    assert {kind for _, kind, *_ in reasons()} <= set(KINDS)


def test_every_explained_survivor_still_exists() -> None:
    sources = {name: gemmgen.render(gemmgen.plan(shipped_specs()[name])).text for name in {name for name, *_ in reasons()}}
    existing_keys = {key_of(name, mutant) for name, source in sources.items() for mutant in all_mutants(source)}
    gone = [key for key in reasons() if key not in existing_keys]
    assert not gone, f"{len(gone)} of survivors.json are no mutants any more, {gone[0]} for example"


def test_the_committed_score_is_of_these_kernels() -> None:
    """`python measurements/mutants.py --hours 0` tries nothing, and reports kernels that changed since their trial as not run."""
    whole = json.loads(SCORE.read_text())["whole"]
    digests = {name: entry["digest"] for name, entry in whole["by_kernel"].items()}
    assert digests == {name: subject_of(name).digest for name in existing if name not in whole["not_run"]}


def test_the_committed_score_has_every_mutant_explained() -> None:
    by_kernel = json.loads(SCORE.read_text())["whole"]["by_kernel"]
    unexplained = {name: entry["unexplained"] for name, entry in by_kernel.items() if entry["unexplained"]}
    assert unexplained == {}
