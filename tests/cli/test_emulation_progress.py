"""An estimate for launches of a verification that take long."""

import numpy as np
import pytest

import gemmgen
from gemmgen.cli import emulation_progress, output
from gemmgen.cli.emulation_progress import LaunchProgress
from gemmgen.runtime.backends import find_backend
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.verification.baked_cases import cases_of
from gemmgen.verification.runner import verify_binary


def test_the_estimate_counts_from_the_first_blocks_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(emulation_progress.time, "perf_counter", lambda: now[0])
    shown: list[str] = []
    progress = LaunchProgress(shown.append)
    for seconds, done in ((0.0, 10), (1.0, 20), (3.0, 40), (9.0, 100)):
        now[0] = 100.0 + seconds
        progress(done, 100)
    assert shown == ["emulated 40 of 100 blocks (40%), about 6 s left"]
    now[0] = 200.0
    progress(10, 100)
    assert len(shown) == 1, "the next launch is timed separately"


def test_a_task_is_reported_every_ten_seconds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = [100.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: now[0])
    with output.progress_bar() as progress:
        task = progress.add_task("verifying", total=40)
        for seconds in range(1, 25):
            now[0] = 100.0 + seconds
            progress.update(task, description=f"kernel {seconds // 12}")
            progress.advance(task)
    assert capsys.readouterr().err.splitlines() == ["kernel 0: 9 of 40, 10 s", "kernel 1: 19 of 40, 20 s"]


def test_a_verification_counts_the_blocks_of_each_launch() -> None:
    plan = gemmgen.plan("gemm/v0_naive")
    calls: list[tuple[int, int]] = []
    backend = find_backend("emulator", progress=lambda done, total: calls.append((done, total)))
    first = next(case for case in cases_of(plan) if case.dimensions["m"] > 8)
    assert verify_binary(plan, compile_plan(plan), backend, cases=[first]).passed
    assert calls and all(0 < done <= total for done, total in calls)
    assert np.prod(plan.sequence.resolve(first.dimensions)[0].grid) in {total for _, total in calls}
