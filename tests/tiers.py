"""Tiers of the tests: ``--tier fast`` for the edit loop, ``usual`` before a change is taken, ``all`` for the nightly run.

In the usual tier every test function stays, with a sample of its parameters that their names decide, so that no kind of fault is lost;
documents, planted mistakes and other slow files are left to ``all`` but for a sample of their functions. The fast tier has one case of each
function, of the few folders that ``make test-fast`` names. Without ``--tier`` everything runs that the command line names.

Cases of specs whose files differ from those of the main branch are always kept.

``tests/costs.json`` holds the CPU time of expensive cases; ``pytest --record-costs tests/costs.json`` measures it anew. The usual tier has
a case of each function for up to ``BUDGET_SECONDS``, and more while all of them cost at most ``BUDGET_OF_MORE``; of functions whose every
case costs more than the budget, it has a sample.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import tempfile
import warnings
from collections import defaultdict
from functools import lru_cache
from pathlib import Path

import pytest

from gemmgen.core.errors import GemmgenError
from gemmgen.kernels.spec_files import load_spec
from gemmgen.kernels.variants import expanded

ROOT = Path(__file__).resolve().parents[1]
TIERS = ("fast", "usual", "all")
SLOW = (
    "docs/test_commands.py",
    "docs/test_distribution.py",
    "docs/test_gallery.py",
    "docs/test_roads.py",
    "mutants",
    "kernels/test_new_family.py",
    "export/test_header.py",
)
"""Folders and files of which the usual tier has one function in ``SLOW_ONE_IN``."""
SLOW_ONE_IN = 6
WHOLE_UP_TO = 2
"""Cases of a function that all belong to the usual tier; of more it has one in ``ONE_IN``, but at least as many."""
ONE_IN = 10
COSTS = Path(__file__).with_name("costs.json")
"""CPU seconds, child processes included, of the cases that take at least ``MIN_COST``; a function stands for its cases."""
MIN_COST = 0.5
BUDGET_SECONDS = 2.5
"""CPU time that the usual tier spends on one case of a function."""
BUDGET_OF_MORE = 1.0
"""CPU time that it spends on the cases of a function of which it has more than one."""
EXPENSIVE_ONE_IN = 4
"""Of functions whose cheapest case costs more than that, sweeps in processes that are killed say, the usual tier has one in so many."""


def chosen(items: list[pytest.Item], tier: str) -> set[str]:
    """Identifiers of the tests of a tier."""
    if tier == "all":
        return {item.nodeid for item in items}
    functions: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        functions[item.nodeid.partition("[")[0]].append(item)
    kept: set[str] = set()
    costs: dict[str, float] = json.loads(COSTS.read_text())["seconds"]
    for name, cases in functions.items():
        path = name.partition("::")[0].removeprefix("tests/")
        ordered = sorted(cases, key=lambda case: _ticket(case.nodeid))
        if tier == "fast":
            taken = ordered[:1]
        elif _within(path, SLOW) and _ticket(name) % SLOW_ONE_IN:
            taken = []
        else:
            taken = _affordable(ordered, costs)[: max(WHOLE_UP_TO, -(-len(ordered) // ONE_IN))]
        kept |= {case.nodeid for case in taken}
    if tier == "usual" and (changed := changed_specs()):
        kept |= {item.nodeid for item in items if any(spec in item.nodeid for spec in changed)}
    return kept


def _affordable(cases: list[pytest.Item], costs: dict[str, float]) -> list[pytest.Item]:
    """The first of these cases that the budget of a function pays for. If it pays for none, the cheapest one of one function in
    ``EXPENSIVE_ONE_IN``."""

    def cost(case: pytest.Item) -> float:
        return costs.get(case.nodeid, costs.get(case.nodeid.partition("[")[0], 0.0))

    spent, taken = 0.0, list[pytest.Item]()
    for case in cases:
        if spent + cost(case) <= (BUDGET_OF_MORE if taken else BUDGET_SECONDS):
            spent += cost(case)
            taken.append(case)
    if not taken and _ticket(cases[0].nodeid.partition("[")[0]) % EXPENSIVE_ONE_IN == 0:
        taken = [min(cases, key=cost)]
    return taken


class CostRecorder:
    """A plugin of pytest that measures the CPU time of every test and writes that of expensive functions to ``file``."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.begun = 0.0
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        self.begun = _cpu_seconds()

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        item.user_properties.append(("cpu_seconds", _cpu_seconds() - self.begun))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self.seconds.update((report.nodeid, value) for name, value in report.user_properties if name == "cpu_seconds")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            return
        costs = {case: round(seconds, 1) for case, seconds in sorted(self.seconds.items()) if seconds >= MIN_COST}
        provenance = {"command": "pytest --record-costs", "machine": f"{platform.machine()}, {os.cpu_count()} cores"}
        self.file.write_text(json.dumps({"provenance": provenance, "seconds": costs}, indent=1) + "\n")


def _cpu_seconds() -> float:
    return sum(os.times()[:4])


@lru_cache(maxsize=1)
def changed_specs() -> tuple[str, ...]:
    """Names of spec files whose kernels differ from those of the main branch, ``gemm/wgmma/bf16``; none without git or that branch."""
    for main in ("origin/main", "main"):
        base = _git("merge-base", main, "HEAD").strip()
        if not base:
            continue
        files = _git("diff", "--name-only", base, "--", "specs").split()
        names = {file.removeprefix("specs/").removesuffix(".yaml"): file for file in files if file.endswith(".yaml")}
        wanted = {name: file for name, file in names.items() if not name.startswith("sweeps/") and name != "library"}
        return tuple(sorted(name for name, file in wanted.items() if _kernels_differ(file, base)))
    return ()


def _git(*words: str) -> str:
    """Output of a git command, nothing if it fails."""
    found = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout if found.returncode == 0 else ""


def _kernels_differ(file: str, base: str) -> bool:
    """True if a spec file has another kernel than at a commit: comments, descriptions and former names of fields make no difference."""
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder) / Path(file).name
        before.write_text(_git("show", f"{base}:{file}"))
        return _kernels(before) != _kernels(ROOT / file)


def _kernels(file: Path) -> dict[str, object] | None:
    """Identities of the kernels of a file by variant; None if the file cannot be read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        try:
            return {path.name: load_spec(path).identity() for path in expanded(file)}
        except GemmgenError:
            return None


def _within(path: str, places: tuple[str, ...]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)


def _ticket(name: str) -> int:
    return int(hashlib.sha256(name.encode()).hexdigest(), 16)
