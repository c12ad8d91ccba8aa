"""Every spec that ships with gemmgen keeps its word: on the emulator, with every hazard looked for.

A sample of each spec's cases keeps the suite fast; ``GEMMGEN_ALL_CASES=1`` runs all of them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import SHIPPED, SPECS

import gemmgen
from gemmgen.hardware.cpu import CpuArchitecture, runs_here
from gemmgen.verification.oracle import oracle_of

EVERY = 1 if os.environ.get("GEMMGEN_ALL_CASES") else 6
PATHS = SHIPPED


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.relative_to(SPECS).with_suffix("").as_posix())
def test_a_shipped_spec_verifies(path: Path) -> None:
    plan = gemmgen.plan(path)
    if isinstance(plan.architecture, CpuArchitecture) and not runs_here(plan.architecture):
        pytest.skip(f"this machine does not run code for {plan.architecture.name}")
    cases = oracle_of(plan.spec.kind).cases(plan)
    report = gemmgen.verify(plan, "emulator", cases=cases[int(plan.spec_digest, 16) % EVERY :: EVERY])
    assert report.passed, [(result.case.name, result.failure) for result in report.failures]


def test_no_two_shipped_specs_share_a_name() -> None:
    names = [gemmgen.plan(path).name for path in PATHS]
    assert len(set(names)) == len(names) > 40
