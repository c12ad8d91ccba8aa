"""Background compilation: the fallback that serves meanwhile, and the threads that compile."""

from __future__ import annotations

import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from gemmgen.core.errors import GemmgenError
from gemmgen.dispatch.selection import Option
from gemmgen.kernels.family import InstancePlan, KernelPlan
from gemmgen.perf.cost_model import cost_model_of

CALLS = 100
"""Calls that an instance is expected to serve before the best is compiled; its extra time in these calls counts against it."""
MIN_SECONDS = 0.04
SECONDS_OF_A_REGISTER = 0.004
FEW_REGISTERS = 30
MANY_REGISTERS = 168
"""Registers beyond these are a limit that kernels do not use up."""
FEW_KERNELS = 2
SECONDS_OF_A_KERNEL = 0.25


def compile_seconds(option: Option) -> float:
    """Seconds that the compiler takes, roughly: values that a thread keeps in registers mean unrolled code. The numbers are from 130
    kernels of all kinds, of which the estimate is within a factor of two for most."""
    work = cost_model_of(option.plan.spec.kind).work(option.plan, option.dimensions)
    registers = max((part.registers for part in work), default=0)
    extra = max(len(option.plan.sequence.launches) - FEW_KERNELS, 0)
    unrolled = min(registers, MANY_REGISTERS) - FEW_REGISTERS
    return max(MIN_SECONDS, SECONDS_OF_A_REGISTER * unrolled) + SECONDS_OF_A_KERNEL * extra


def soonest(options: Sequence[Option], is_held: Callable[[KernelPlan], bool]) -> Option:
    """The option by which the first CALLS calls are done first, its compilation included, where this process does not hold its kernel.

    ``options``: the best first.
    """

    def cost(option: Option) -> float:
        return (0.0 if is_held(option.plan) else compile_seconds(option)) + CALLS * option.seconds

    return min(options, key=cost)


class Compilers:
    """Threads that compile plans, each once. They end when nothing is left to do, or, with the program, after the plan at hand."""

    def __init__(self, compile: Callable[[Any], object], threads: int | None = None) -> None:
        """``compile`` makes the kernel of a plan, and keeps it."""
        self._compile = compile
        self._threads = threads or max(1, len(os.sched_getaffinity(0)) // 2)
        self._reset()
        os.register_at_fork(after_in_child=self._reset)  # a child has none of the threads

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[InstancePlan] = deque()
        self._waiting: dict[tuple[str, str], list[Callable[[], None]]] = {}
        self._failed: set[tuple[str, str]] = set()
        self._running = 0

    def submit(self, plan: InstancePlan, then: Callable[[], None]) -> None:
        """Has a thread compile a plan, unless that failed before, and call ``then``."""
        key = plan.name, plan.architecture.name
        with self._lock:
            if key in self._failed:
                return
            if key in self._waiting:
                self._waiting[key].append(then)
                return
            self._waiting[key] = [then]
            self._queue.append(plan)
            if self._running >= self._threads:
                return
            self._running += 1
        # No daemon: the interpreter must not go while the compiler runs.
        threading.Thread(target=self._work, name="gemmgen-compiler").start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._queue or not threading.main_thread().is_alive():
                    self._running -= 1
                    return
                plan = self._queue.popleft()
            key = plan.name, plan.architecture.name
            failure: Exception | None = None
            try:
                self._compile(plan)
            except Exception as error:
                failure = error
            with self._lock:
                callbacks = self._waiting.pop(key)
                if failure is not None:
                    self._failed.add(key)
            if failure is None:
                for then in callbacks:
                    then()
            else:
                _tell(plan, failure)


def _tell(plan: InstancePlan, failure: Exception) -> None:
    """Warns that the fallback kernel remains in use."""
    reason = str(failure) if isinstance(failure, GemmgenError) else f"{type(failure).__name__}: {failure}"
    text = f"{plan.name} could not be compiled; another instance remains in use: {reason}"
    with suppress(RuntimeWarning):  # where warnings are errors, nobody waits for one here
        warnings.warn(text, RuntimeWarning, stacklevel=2)
