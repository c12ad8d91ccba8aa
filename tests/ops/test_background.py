"""Calls that something else serves while the best is compiled."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gemmgen.dispatch.selection import Choice
from gemmgen.ops import engine
from gemmgen.ops.engine import Call, Operator


class Stage:
    """An operation with two instances, and a compiler that works when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ready: set[str]) -> None:
        self.jobs: list[Callable[[], None]] = []
        self.kernels: dict[Any, Any] = {(name, "sm_90"): name for name in ready}
        best, second = (
            SimpleNamespace(plan=SimpleNamespace(name=name, architecture=SimpleNamespace(name="sm_90"))) for name in ("best", "second")
        )
        self.choice = Choice(None, None, (best, second), best, {}, None)  # type: ignore[arg-type]
        self.operator = Operator("matmul", ("a", "b"), ("out",), (), ())
        monkeypatch.setattr(engine, "_kernels", self.kernels)
        monkeypatch.setattr(engine, "is_compiled", lambda plan: (plan.name, "sm_90") in self.kernels)
        monkeypatch.setattr(engine, "compiled", lambda plan: self.kernels.setdefault((plan.name, "sm_90"), plan.name))
        monkeypatch.setattr(engine, "compilers", lambda: SimpleNamespace(submit=self.jobs.append))

    def served(self) -> str:
        """Name of the instance that a call takes now."""
        return self.operator._meanwhile(self.choice).chosen.plan.name

    def call(self) -> Call:
        """A call that the second instance serves."""
        found = Call(self.choice, None, None, (), ())  # type: ignore[arg-type]
        found.best = self.choice.chosen.plan
        return found


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch, {"second"})


def test_what_is_compiled_serves_meanwhile(stage: Stage) -> None:
    assert (stage.served(), len(stage.jobs)) == ("second", 1)


def test_the_best_serves_once_it_is_compiled(stage: Stage) -> None:
    stage.served()
    stage.jobs.pop()()
    assert (stage.served(), stage.jobs) == ("best", [])


def test_nothing_is_compiled_in_background_without_a_substitute(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, set())
    assert (stage.served(), stage.jobs) == ("best", [])


def test_calls_are_forgotten_when_the_best_is_compiled(stage: Stage) -> None:
    stage.served()
    stage.operator._remember("key", stage.call())
    assert stage.operator._known("key") is not None
    stage.jobs.pop()()
    assert stage.operator._known("key") is None


def test_a_call_that_was_outdated_before_its_end_is_not_kept(stage: Stage) -> None:
    stage.served()
    prepared = stage.call()
    stage.jobs.pop()()
    stage.operator._remember("key", prepared)
    assert stage.operator._known("key") is None
