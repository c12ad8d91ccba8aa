"""Any spec is either rejected with reasons, or its kernel compiles and computes what it should."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from families.conv2d.random_specs import SPECS
from gemmgen import api
from gemmgen.errors import PlanError
from gemmgen.families import family_of

BATCHES = 4
STRIDE = 8


@pytest.mark.parametrize("batch", range(BATCHES))
def test_a_random_spec_is_rejected_with_reasons_or_verifies(batch: int) -> None:
    outcomes = {"verified": 0, "rejected": 0}

    @seed(batch)
    @settings(max_examples=20, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(SPECS)
    def check(fields: dict[str, Any]) -> None:
        try:
            plan = api.plan(fields)
        except PlanError as error:
            outcomes["rejected"] += 1
            assert error.reasons and all(reason.need for reason in error.reasons)
            return
        cases = family_of(plan.spec).cases(plan)
        cases = cases[int(plan.spec_digest, 16) % min(STRIDE, len(cases)) :: STRIDE]  # there is always one
        report = api.verify(plan, "emulator", cases=cases)
        outcomes["verified"] += 1
        assert report.passed, [(result.case.name, result.failure) for result in report.failures]

    check()
    assert outcomes["verified"] >= 4 and outcomes["rejected"] >= 1
