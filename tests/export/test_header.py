"""Exported headers do what gemmgen's own launches do: same work for every problem, same problems refused."""

from __future__ import annotations

import random

import pytest

from export.c_host import NotingHost, expected
from export.plans import DRAWS, draw_call, sampled_plans


@pytest.fixture(scope="module", params=["c", "c++"])
def host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> NotingHost:
    return NotingHost(sampled_plans(), tmp_path_factory.mktemp("host"), request.param)


def test_every_launch_is_the_one_that_gemmgen_makes(host: NotingHost) -> None:
    for prefix, plan in host.plans.items():
        rng = random.Random(plan.name)
        accepted = 0
        for _ in range(DRAWS):
            problem, pointers, scalars, workspace = draw_call(plan, rng)
            again = plan.sequence.workspace_zero_bytes.text != "0" and rng.random() < 0.3
            wanted = expected(plan.sequence, problem, pointers, scalars, workspace, again)
            got, reason = host.launch(prefix, problem, pointers, scalars, workspace, again)
            assert got == wanted, f"{plan.name}: {problem}: {reason}"
            accepted += not wanted.refused
        assert accepted >= DRAWS // 10, f"{plan.name}: too few problems that work were tried"
