"""Tasks in processes of their own, and without them where processes cannot share locks."""

from __future__ import annotations

import os
from multiprocessing import synchronize
from typing import Any

import pytest

from gemmgen.core.semaphores import has_semaphores
from gemmgen.library.workers import run_tasks


def process_of(number: int) -> tuple[int, int]:
    if number == 2:
        raise ValueError("two")
    return number, os.getpid()


@pytest.fixture
def no_semaphores(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(synchronize.Lock, "__init__", refused)


@pytest.mark.usefixtures("no_semaphores")
def test_tasks_run_here_where_there_are_no_semaphores() -> None:
    assert not has_semaphores()
    results = dict(run_tasks(process_of, [(1,), (2,), (3,)], jobs=2))
    assert results[0] == (1, os.getpid()) and results[2] == (3, os.getpid())
    assert str(results[1]) == "two"


def test_tasks_run_elsewhere_where_there_are_semaphores() -> None:
    assert has_semaphores()
    results = dict(run_tasks(process_of, [(1,), (3,)], jobs=2))
    assert {number for number, process in results.values() if process != os.getpid()} == {1, 3}  # type: ignore[misc]


def test_each_task_may_have_a_process_for_itself() -> None:
    results = dict(run_tasks(process_of, [(number,) for number in (1, 3, 4, 5)], jobs=2, each=1))
    assert len({process for _, process in results.values()}) == 4  # type: ignore[misc]
