"""A fixture for pytest: ``judge(candidate, task, reference, shapes)`` fails the test if the referee refuses the kernel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gemmgen.judge.referee import Verdict


@pytest.fixture
def judge() -> Callable[..., Verdict]:
    """A function that judges a kernel file, and fails the test with the kinds of failures if it is refused."""

    def run(
        candidate: Path | str, task: Path | str, reference: str, *shapes: str, run_native: bool = False, seed: int | None = None
    ) -> Verdict:
        from gemmgen.judge.api import judge as judged
        from gemmgen.judge.api import parse_reference

        verdict = judged(Path(candidate), Path(task), parse_reference(reference), shapes, run_native=run_native, seed=seed)
        if not verdict.accepted:
            failures = "; ".join(f"{failure.kind}: {failure.message}" for failure in verdict.failures)
            pytest.fail(f"{failures} (seed {verdict.seed})", pytrace=False)
        return verdict

    return run
