"""Tiers of the tests: ``--tier fast`` for the edit loop, ``usual`` before a change is taken, ``all`` for the nightly run.

In the usual tier every test function stays, with a sample of its parameters that their names decide, so that no kind of fault is lost;
documents, planted mistakes and other slow files are left to ``all`` but for a sample of their functions. The fast tier has one case of each
function, of the few folders that ``make test-fast`` names. Without ``--tier`` everything runs that the command line names.

Cases of specs whose files differ from those of the main branch are always kept.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections import defaultdict
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TIERS = ("fast", "usual", "all")
SLOW = (
    "docs/test_commands.py",
    "docs/test_gallery.py",
    "docs/test_roads.py",
    "mutants",
    "kernels/test_new_family.py",
    "export/test_header.py",
)
"""Folders and files of which the usual tier has one function in ``SLOW_ONE_IN``."""
SLOW_ONE_IN = 6
WHOLE_UP_TO = 4
"""Cases of a function that all belong to the usual tier; of more it has one in ``ONE_IN``, but at least as many."""
ONE_IN = 4


def chosen(items: list[pytest.Item], tier: str) -> set[str]:
    """Identifiers of the tests of a tier."""
    if tier == "all":
        return {item.nodeid for item in items}
    functions: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        functions[item.nodeid.partition("[")[0]].append(item)
    kept: set[str] = set()
    for name, cases in functions.items():
        path = name.partition("::")[0].removeprefix("tests/")
        ordered = sorted(cases, key=lambda case: _ticket(case.nodeid))
        if tier == "fast":
            taken = ordered[:1]
        elif _within(path, SLOW) and _ticket(name) % SLOW_ONE_IN:
            taken = []
        else:
            taken = ordered[: max(WHOLE_UP_TO, -(-len(ordered) // ONE_IN))]
        kept |= {case.nodeid for case in taken}
    if tier == "usual" and (changed := changed_specs()):
        kept |= {item.nodeid for item in items if any(spec in item.nodeid for spec in changed)}
    return kept


@lru_cache(maxsize=1)
def changed_specs() -> tuple[str, ...]:
    """Names of spec files that differ from those of the main branch, ``gemm/wgmma/bf16``; none without git or without that branch."""
    for main in ("origin/main", "main"):
        committed = _changed_files(f"{main}...HEAD")
        if committed is not None:
            files = {*committed, *(_changed_files("HEAD") or ())}
            names = (file.removeprefix("specs/").removesuffix(".yaml") for file in files if file.endswith(".yaml"))
            return tuple(sorted(name for name in names if not name.startswith("sweeps/") and name != "library"))
    return ()


def _changed_files(since: str) -> list[str] | None:
    command = ["git", "diff", "--name-only", since, "--", "specs"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.split() if found.returncode == 0 else None


def _within(path: str, places: tuple[str, ...]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)


def _ticket(name: str) -> int:
    return int(hashlib.sha256(name.encode()).hexdigest(), 16)
