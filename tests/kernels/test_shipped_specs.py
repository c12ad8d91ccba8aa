"""Specs that ship with gemmgen keep their word: on the emulator, with every hazard looked for.

One spec in eight, at least one of every template, folder and architecture, and a sample of their cases keep the suite fast;
``GEMMGEN_ALL_CASES=1`` runs all of them.
"""

from __future__ import annotations

import pytest
from sampling import ALL, planned, sampled

import gemmgen
from gemmgen.hardware.cpu import CpuArchitecture, runs_here
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.verification.oracle import oracle_of

SPECS = shipped_specs()
ONE_SPEC_IN = 8
ONE_CASE_IN = 1 if ALL else 16


def form(name: str) -> object:
    return name.rpartition("/")[0], planned(name).template, planned(name).architecture.name


@pytest.mark.parametrize("name", sampled(SPECS, ONE_SPEC_IN, str, form))
def test_a_shipped_spec_verifies(name: str) -> None:
    plan = planned(name)
    if isinstance(plan.architecture, CpuArchitecture) and not runs_here(plan.architecture):
        pytest.skip(f"this machine does not run code for {plan.architecture.name}")
    cases = oracle_of(plan.spec.kind).cases(plan)
    report = gemmgen.verify(plan, "emulator", cases=cases[int(plan.spec_digest, 16) % min(ONE_CASE_IN, len(cases)) :: ONE_CASE_IN])
    assert report.passed, [(result.case.name, result.failure) for result in report.failures]


def test_no_two_shipped_specs_share_a_name() -> None:
    names = [planned(name).name for name in SPECS]
    assert len(set(names)) == len(names) > 40


def test_a_sample_has_every_form_and_stays_the_same() -> None:
    numbers = [str(number) for number in range(300)]
    chosen = sampled(numbers, 10, str, lambda number: number[-1])
    assert {number[-1] for number in chosen} == set("0123456789")
    assert len(chosen) < 60 or ALL
    more = sampled([*numbers, "one more", "another"], 10, str, lambda number: number[-1])
    assert [number for number in more if number in numbers] == chosen
