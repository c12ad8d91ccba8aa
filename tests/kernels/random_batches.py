"""A batch of random specs, each of which must be rejected with reasons, or compile and verify."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

import gemmgen
from gemmgen.core.errors import PlanError
from gemmgen.verification.oracle import oracle_of


def try_random_specs(specs: SearchStrategy[dict[str, Any]], batch: int, *, examples: int, every: int) -> Counter[str]:
    """Numbers of ``examples`` specs that were ``verified`` and ``rejected``; fails at the first that is neither.

    Of each spec's cases one in ``every`` is run, from a start that differs between specs: all are covered over the examples.
    """
    outcomes: Counter[str] = Counter()

    @seed(batch)
    @settings(max_examples=examples, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(specs)
    def check(fields: dict[str, Any]) -> None:
        try:
            plan = gemmgen.plan(fields)
        except PlanError as error:
            outcomes["rejected"] += 1
            assert error.reasons and all(reason.need for reason in error.reasons)
            return
        cases = oracle_of(plan.spec.kind).cases(plan)
        cases = cases[int(plan.spec_digest, 16) % min(every, len(cases)) :: every]  # there is always one
        report = gemmgen.verify(plan, "emulator", cases=cases)
        outcomes["verified"] += 1
        assert report.passed, (fields, [(result.case.name, result.failure) for result in report.failures])

    check()
    return outcomes
