"""Calls that something else serves while the best is compiled."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import PATIENCE, eventually

from gemmgen.core.errors import CompileError
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import Choice, choose
from gemmgen.hardware.target import device
from gemmgen.ops import background, engine
from gemmgen.ops.background import CALLS, Compilers, compile_seconds, soonest
from gemmgen.ops.engine import Call, Operator


def plan_named(name: str) -> Any:
    return SimpleNamespace(name=name, architecture=SimpleNamespace(name="sm_90"))


class Stage:
    """An operation with two instances, of which the second is four times as slow and quick to compile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ready: set[str]) -> None:
        self.kernels: dict[Any, Any] = {(name, "sm_90"): name for name in ready}
        best, second = (SimpleNamespace(plan=plan_named(name), seconds=seconds) for name, seconds in (("best", 1e-3), ("second", 4e-3)))
        self.choice = Choice(None, None, (best, second), best, {}, None)  # type: ignore[arg-type]
        self.operator = Operator("matmul", ("a", "b"), ("out",), (), ())
        monkeypatch.setattr(engine, "_kernels", self.kernels)
        monkeypatch.setattr(engine, "is_compiled", engine.is_held)
        monkeypatch.setattr(background, "compile_seconds", lambda option: {"best": 1.0, "second": 0.2}[option.plan.name])

    def compile(self, name: str) -> None:
        self.kernels[name, "sm_90"] = name

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
    return Stage(monkeypatch, set())


@pytest.mark.parametrize("ready", [set(), {"second"}])
def test_what_is_soon_compiled_serves_meanwhile(monkeypatch: pytest.MonkeyPatch, ready: set[str]) -> None:
    assert Stage(monkeypatch, ready).served() == "second"


def test_the_best_serves_once_it_is_compiled(stage: Stage) -> None:
    stage.compile("best")
    assert stage.served() == "best"


def test_what_would_serve_too_slowly_does_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, {"second"})
    stage.choice.options[1].seconds = 2.0 / CALLS  # type: ignore[misc]
    assert stage.served() == "best"


def test_only_calls_that_are_outdated_are_forgotten(stage: Stage) -> None:
    other = stage.call()
    other.best = None
    stage.operator._remember("key", stage.call())
    stage.operator._remember("other", other)
    stage.compile("best")
    stage.operator._forget_outdated()
    assert (stage.operator._known("key"), stage.operator._known("other")) == (None, other)


def test_a_call_that_was_outdated_before_its_end_is_not_kept(stage: Stage) -> None:
    prepared = stage.call()
    stage.compile("best")
    stage.operator._remember("key", prepared)
    assert stage.operator._known("key") is None


@pytest.mark.parametrize("problem", ["gemm:4096,4096,4096,nt", "gemm:1023,1023,1023,unaligned", "gemm:4096,4096,4096,nt,bf16,bias,gelu"])
def test_slow_compilations_have_quick_substitutes(problem: str) -> None:
    options = choose(parse_problem(problem), device("H200")).options
    taken = soonest(options, lambda plan: False)
    assert compile_seconds(taken) < 0.4 < compile_seconds(options[0])


class Compiling:
    """A compiler whose work waits to be released, and its requests."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.released = threading.Event()
        self.errors: dict[str, Exception] = {}
        self.compilers = Compilers(self._compile, threads=1)

    def _compile(self, plan: Any) -> None:
        self.names.append(plan.name)
        assert self.released.wait(PATIENCE)
        if plan.name in self.errors:
            raise self.errors[plan.name]

    def finish(self) -> None:
        self.released.set()
        assert eventually(lambda: self.compilers._running == 0)


def test_a_plan_that_several_wait_for_is_compiled_once() -> None:
    compiling, told = Compiling(), []
    for name in ("one", "two"):
        compiling.compilers.submit(plan_named("best"), lambda name=name: told.append(name))  # type: ignore[misc]
    compiling.finish()
    assert (compiling.names, told) == (["best"], ["one", "two"])


@pytest.mark.parametrize("error", [CompileError("no registers"), ValueError("odd")])
def test_a_failed_compilation_is_told_and_not_tried_again(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    compiling, told, warned = Compiling(), [], []
    monkeypatch.setattr("warnings.warn", lambda text, *rest, **more: warned.append(text))
    compiling.errors["best"] = error
    compiling.compilers.submit(plan_named("best"), lambda: told.append("best"))
    compiling.finish()
    compiling.compilers.submit(plan_named("best"), lambda: told.append("best"))
    compiling.finish()
    assert (compiling.names, told) == (["best"], [])
    assert len(warned) == 1 and str(error) in warned[0]


def test_a_failure_does_not_stop_what_comes_after() -> None:
    compiling, told = Compiling(), []
    compiling.errors["bad"] = RuntimeError("bad")
    submit: Callable[..., None] = compiling.compilers.submit
    submit(plan_named("bad"), lambda: None)
    submit(plan_named("good"), lambda: told.append("good"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *rest, **more: None)
        compiling.finish()
    assert told == ["good"]


ENDING = """
import threading, time
from types import SimpleNamespace
from gemmgen.ops.background import Compilers
begun = threading.Event()
def compile(plan):
    print(plan.name, flush=True)
    begun.set()
    time.sleep(0.2)
compilers = Compilers(compile, threads=1)
for name in ("first", "second"):
    compilers.submit(SimpleNamespace(name=name, architecture=SimpleNamespace(name="sm_90")), lambda: None)
begun.wait()
"""


def test_a_program_ends_after_the_compilation_at_hand() -> None:
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["first"], "")
