"""Any spec is either rejected with reasons, or its kernels compile and compute what they should."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

import gemmgen
from families.reduction.random_specs import reductions
from gemmgen.errors import PlanError
from gemmgen.families import family_of

BATCHES = 4


@pytest.mark.parametrize("batch", range(BATCHES))
def test_a_random_spec_is_rejected_with_reasons_or_verifies(batch: int) -> None:
    outcomes = {"verified": 0, "rejected": 0}

    @seed(batch)
    @settings(max_examples=25, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(reductions())
    def check(fields: dict[str, Any]) -> None:
        try:
            plan = gemmgen.plan(fields)
        except PlanError as error:
            outcomes["rejected"] += 1
            assert error.reasons and all(reason.need for reason in error.reasons)
            return
        # Every third case, starting at a different one for each spec: all of them are covered over the examples.
        cases = family_of(plan.spec).cases(plan)[int(plan.spec_digest, 16) % 3 :: 3]
        report = gemmgen.verify(plan, "emulator", cases=cases)
        outcomes["verified"] += 1
        assert report.passed, (fields, [(result.case.name, result.failure) for result in report.failures])

    check()
    assert outcomes["verified"] >= 5 and outcomes["rejected"] >= 1
