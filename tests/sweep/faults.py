"""Stage functions for workers with behaviour that must not harm a sweep. A point's label names its behaviour."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gemmgen.codegen.rendering import render
from gemmgen.kernels.family import KernelPlan
from gemmgen.sweep.evaluation import Conditions, Ending, Enter, Prepared, prepare
from gemmgen.sweep.evaluation import execute as really_execute
from gemmgen.sweep.records import Stage, Status
from gemmgen.sweep.space import Point
from gemmgen.toolchain import compilation
from gemmgen.toolchain.nvrtc import Binary, compile_source

MODULE = "sweep.faults"
NOTES = "SWEEP_TEST_NOTES"
"""A folder where workers leave a file for each stage of each point that they begin."""

Job = tuple[Prepared, Conditions, tuple[Stage, ...]]


def execute(job: Job, enter: Enter) -> Ending:
    """Ends well at once, unless the label says otherwise."""
    prepared, _, stages = job
    label = prepared.spec["label"]
    for stage in stages:
        enter(stage)
        note(f"{prepared.instance}-{'x'.join(map(str, prepared.problem.values()))}-{stage}-{time.monotonic_ns()}", str(os.getpid()))
        if stage is stages[-1]:
            DEEDS.get(label, lambda: None)()
    stage = stages[-1]
    lost = label == "lost" and stage is Stage.VERIFY
    metrics = {"median_us": 1.0} if stage is Stage.BENCH else {f"{stage}_ran": 1.0}
    return Ending(stage, Status.RUNTIME if lost else Status.CORRECT, "the context is gone" if lost else "", "", metrics, context_lost=lost)


def execute_wrong(job: Job, enter: Enter) -> Ending:
    """The real stages, on kernels in which the label's bug is planted; ``bench_fault`` shows it only when it is timed."""
    compile_plan = compilation.compile_plan

    def compile_wrongly(plan: KernelPlan) -> Binary:
        bug = BUGS.get(plan.spec.label)
        if bug is None or (plan.spec.label == "bench_fault" and Stage.BENCH not in job[2]):
            return compile_plan(plan)
        text = render(plan).text
        planted = re.sub(bug[0], bug[1], text)
        assert planted != text
        return compile_source(planted, architecture=plan.architecture.name, options=compilation.COMPILE_OPTIONS)

    compilation.compile_plan = compile_wrongly
    try:
        return really_execute(job, enter)
    finally:
        compilation.compile_plan = compile_plan


_BODY = r"(__global__[^{]*\{)"
_FAULT = r"\1 if (threadIdx.x == 0) *reinterpret_cast<volatile int*>(16) = 1;"
BUGS = {
    "wrong": (r"fmaf\(", "-fmaf("),
    "fault": (_BODY, _FAULT),
    "bench_fault": (_BODY, _FAULT),
    "spin": (_BODY, r"\1 for (volatile int spin = 1; spin; spin = 1) {}"),
}
"""Label -> the text that is replaced in the source, and its replacement."""


def prepare_badly(job: Any, enter: Enter) -> Prepared:
    """Checks that hang."""
    enter(Stage.CHECK)
    time.sleep(600)
    raise AssertionError


def note(name: str, text: str) -> None:
    if folder := os.environ.get(NOTES):
        (Path(folder) / name).write_text(text)


def hang() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    note("child", str(child.pid))
    time.sleep(600)


def segfault() -> None:
    print("something odd happened here", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def leak() -> None:
    keep = []
    for _ in range(1 << 20):
        keep.append(bytearray(64 << 20))


def leave() -> None:
    os._exit(3)


def stumble() -> None:
    raise ValueError("this stage has a bug")


def wait() -> None:
    while not (Path(os.environ[NOTES]) / "go").exists():
        time.sleep(0.01)


DEEDS = {
    "hang": hang,
    "segfault": segfault,
    "leak": leak,
    "leave": leave,
    "stumble": stumble,
    "slow": lambda: time.sleep(0.2),
    "wait": wait,
}


def prepare_once_badly(job: tuple[Point, Conditions], enter: Enter) -> Prepared:
    """Checks of which some fail the first time: a label such as ``check_kill`` names the stage and the deed."""
    stumble_once(job[0].fields["label"], Stage.CHECK, enter)
    return prepare(job, enter)


def execute_once_badly(job: Job, enter: Enter) -> Ending:
    """Stages of which some fail the first time."""
    prepared, _, stages = job
    for stage in stages:
        stumble_once(prepared.spec["label"], stage, enter)
    return Ending(stages[-1], Status.CORRECT, metrics={f"{stages[-1]}_ran": 1.0})


def stumble_once(label: str, stage: Stage, enter: Enter) -> None:
    """Enters ``stage``; dies there if the label says so and no process did before."""
    enter(stage)
    named, _, deed = label.partition("_")
    flag = Path(os.environ[NOTES]) / label
    if named == stage and deed in ONCE and not flag.exists():
        flag.touch()
        ONCE[deed]()


def run_out_of_memory() -> None:
    raise MemoryError


ONCE = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "timeout": lambda: time.sleep(600),
    "memory": run_out_of_memory,
}


def execute_slowly(job: Job, enter: Enter) -> Ending:
    """Stages that take a while, so that a kill may come in each."""
    stages = job[2]
    for stage in stages:
        enter(stage)
        time.sleep(0.03)
    return Ending(stages[-1], Status.CORRECT, metrics={f"{stages[-1]}_ran": 1.0})


def prepare_slowly(job: tuple[Point, Conditions], enter: Enter) -> Prepared:
    """Checks that take as long as stages."""
    enter(Stage.CHECK)
    time.sleep(0.02)
    found = prepare(job, enter)
    time.sleep(0.02)
    return found
