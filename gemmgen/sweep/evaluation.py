"""Processing of one point: checked, compiled, verified, timed. It runs in a process that may crash."""

from __future__ import annotations

import json
import math
import random
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from gemmgen.core.cache import cache_key
from gemmgen.core.errors import CompileError, EnvironmentMissing, GemmgenError, LaunchError, PlanError, SpecError, VerificationError
from gemmgen.core.version import __version__
from gemmgen.runtime.targets import PROCESSOR, target_of
from gemmgen.sweep.expression import Expression, ExpressionError, UnknownName
from gemmgen.sweep.records import Stage, Status, SweepError
from gemmgen.sweep.space import Point

if TYPE_CHECKING:
    from gemmgen.kernels.family import Case, KernelPlan
    from gemmgen.kernels.launch import LaunchSequence
    from gemmgen.runtime.backend import Backend, HostBuffer
    from gemmgen.toolchain.nvrtc import Binary

MAX_REASON = 2000
"""Characters of a reason that are kept."""

Enter = Callable[[Stage], None]
"""Called when a stage begins, so that its time limit runs from there."""


@dataclass(frozen=True)
class Conditions:
    """All that decides a result besides the point. Plain data, the same for a whole sweep."""

    stage: Stage
    """The last stage."""
    constraints: tuple[Expression, ...] = ()
    compiler: str = ""
    backend: str = ""
    """``emulator`` or ``gpu``; "" if nothing runs."""
    device: str = ""
    """Name of the device."""
    driver: str = ""
    """Version of a GPU's driver, with the architecture."""
    architecture: str | None = None
    """The GPU's; None: the spec's own."""
    cases: int | None = None
    rounds: int = 20
    peer: bool = True
    predicted_sizes: tuple[tuple[int, ...], ...] = ()
    """The sweep's problems, where none is timed: times are predicted for them."""


@dataclass(frozen=True)
class Ending:
    """Progress of a point in some stages, and its end there."""

    stage: Stage
    status: Status
    reason: str = ""
    reason_code: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    cases: tuple[str, ...] = ()
    context_lost: bool = False
    """True if the process cannot use its GPU any more."""


@dataclass(frozen=True)
class Prepared:
    """A checked point, or the reason why it cannot work."""

    digest: str
    kernel_digest: str
    """Digest of a verification's inputs, equal for all problems that one kernel is timed on."""
    kind: str
    instance: str
    spec: dict[str, Any]
    problem: dict[str, int]
    architecture: str
    ending: Ending
    """Outcome of the stage ``check``."""


def prepare(job: tuple[Point, Conditions], enter: Enter) -> Prepared:
    """Reads the spec, plans it for its architecture, applies the constraints, and returns the inputs of the result."""
    point, conditions = job
    enter(Stage.CHECK)
    started = time.perf_counter()
    checked = _Checked(point, conditions)
    reason_code, reason = checked.rejection
    on_processor = target_of(checked.kind) is PROCESSOR
    if not reason_code and conditions.backend and on_processor != (conditions.backend == PROCESSOR.name):
        here, others = ("the processor", f"the {conditions.backend}") if on_processor else ("GPUs", "the processor")
        reason_code, reason = "spec", f"kind: {checked.kind} runs on {here}, and other points on {others}; sweep them apart"
    seconds = {str(Stage.CHECK): time.perf_counter() - started}
    status = Status.INVALID if reason_code == "spec" else Status.CONSTRAINTS if reason_code else Status.CORRECT
    metrics: dict[str, float] = {}
    if checked.plan is not None and not on_processor:
        threads = max(launch.threads for launch in checked.plan.sequence.launches)
        metrics = {"shared_bytes": float(checked.plan.shared_bytes), "threads": float(threads)}
        if not reason_code:
            metrics |= _predicted(checked.plan, tuple(checked.problem.values()), conditions)
    return Prepared(
        digest=checked.digest(conditions.stage),
        kernel_digest=checked.digest(Stage.VERIFY),
        kind=checked.kind,
        instance=checked.plan.name if checked.plan is not None else "",
        spec=checked.spec,
        problem=checked.problem,
        architecture=checked.architecture,
        ending=Ending(Stage.CHECK, status, _short(reason), reason_code, metrics, seconds),
    )


def _predicted(planned: KernelPlan, sizes: tuple[int, ...], conditions: Conditions) -> dict[str, float]:
    """The time that the model expects, on the device of the sweep or else on one that runs the architecture: for the point's problem, the
    geometric mean over those of the sweep's that fit the instance, or for a typical one."""
    from gemmgen.dispatch.prediction import predicted_seconds
    from gemmgen.kernels import family_of
    from gemmgen.sweep.report.data import known_device

    device = known_device(conditions.device, planned.architecture.name)
    rank = len(family_of(planned.spec).instance_sizes(planned))
    times = []
    for problem in [sizes] if sizes else [one for one in conditions.predicted_sizes if len(one) == rank] or [()]:
        try:
            times.append(predicted_seconds(planned, device, problem))
        except GemmgenError:  # a problem that the instance is not for
            continue
    known = [seconds for seconds in times if seconds]
    return {"predicted_us": math.exp(math.fsum(map(math.log, known)) / len(known)) * 1e6} if known else {}


class _Checked:
    """A point with its spec, plan and problem, as far as they can be made, and why not further."""

    def __init__(self, point: Point, conditions: Conditions) -> None:
        from gemmgen.kernels.planning import plan
        from gemmgen.kernels.spec_files import load_spec

        self._conditions = conditions
        self._sizes = point.sizes
        self.spec: dict[str, Any] = point.fields
        kind = point.fields.get("kind")
        self.kind = kind if isinstance(kind, str) else ""
        self.plan: KernelPlan | None = None
        self.problem: dict[str, int] = {}
        named = point.architecture or conditions.architecture
        self.architecture = named or str(point.fields.get("architecture", ""))
        self.rejection = ("axes", point.mistake) if point.mistake else ("", "")
        self._axes, self._mistake = point.axes, point.mistake
        if point.mistake:
            return
        try:
            spec = load_spec(point.fields)
            self.spec = spec.model_dump(mode="json")
            self.architecture = named or spec.architecture
            if self._constrained(before_planning=True):
                return
            self.plan = plan(spec, named)
            if not self._constrained(before_planning=False):
                self._set_problem(point.sizes)
        except PlanError as error:
            code = error.reasons[0].code if error.reasons else "plan"
            self.rejection = (code, "; ".join(map(str, error.reasons)) or str(error))
        except SpecError as error:
            self.rejection = ("spec", " ".join(str(error).removeprefix("spec: ").split()))

    def _constrained(self, before_planning: bool) -> bool:
        """True if constraints reject the point: first those that need no plan."""
        chosen = [constraint for constraint in self._conditions.constraints if constraint.reads_plan is not before_planning]
        broken = [constraint for constraint in chosen if not self._holds(constraint)]
        if broken:
            self.rejection = (broken[0].name, "; ".join(f"constraint {one.name}: {one.text}" for one in broken))
        return bool(broken)

    def _holds(self, constraint: Expression) -> bool:
        try:
            return constraint.holds(self.spec, self.plan)
        except ExpressionError as error:
            where = ", ".join(f"{path}={value}" for path, value in self._axes.items())
            raise SweepError(f"{error}{f' (at {where})' if where else ''}") from None

    def _set_problem(self, sizes: Sequence[int]) -> None:
        from gemmgen.kernels import family_of

        if not sizes or self.plan is None:
            return
        family = family_of(self.plan.spec)
        names = tuple(family.instance_sizes(self.plan))
        if len(sizes) != len(names):
            self.rejection = ("sizes", f"the problem {list(sizes)} does not fit the instance, which has the sizes {', '.join(names)}")
            return
        self.problem = dict(zip(names, sizes, strict=True))
        try:
            broken = _broken_promises(self.plan.sequence, family.problem(self.plan, sizes))
        except GemmgenError as error:
            broken = [str(error)]
        if broken:
            self.rejection = ("problem", f"the instance is not for this problem: {'; '.join(broken)}")

    def digest(self, stage: Stage) -> str:
        """A digest of all inputs of the result."""
        from gemmgen.codegen.rendering import render
        from gemmgen.toolchain.compilation import COMPILE_OPTIONS

        conditions = self._conditions
        content = json.dumps(self.spec, sort_keys=True, default=str) if self.plan is None else render(self.plan).text
        parts: list[Any] = [__version__, content, self.architecture, str(stage), self.rejection]
        if self._mistake:
            parts += [self._axes]
        if stage.number >= Stage.COMPILE.number:
            parts += [COMPILE_OPTIONS, conditions.compiler]
        if stage.number >= Stage.VERIFY.number:
            parts += [conditions.backend, conditions.device, conditions.driver]
            if self.plan is not None and not self.rejection[0]:
                parts += [[_case_facts(case) for case in chosen_cases(self.plan, conditions.cases)[0]]]
        if stage is Stage.BENCH:
            parts += [self._sizes, conditions.rounds, conditions.peer]
        if conditions.predicted_sizes:
            parts += [conditions.predicted_sizes]
        return cache_key("sweep point", json.dumps(parts, default=str))


def execute(job: tuple[Prepared, Conditions, tuple[Stage, ...]], enter: Enter) -> Ending:
    """Takes a point that was accepted through ``stages``; ends with the first that fails.

    Raises ``EnvironmentMissing`` if this machine cannot do it.
    """
    from gemmgen.kernels.planning import plan

    prepared, conditions, stages = job
    target = target_of(prepared.kind)
    planned = plan(prepared.spec, prepared.architecture)
    work: dict[Stage, Callable[[], Ending]] = {
        Stage.COMPILE: lambda: _compile(planned, target.compile(planned)),
        Stage.VERIFY: lambda: _verify(planned, target.compile(planned), conditions),
        Stage.BENCH: lambda: _bench(planned, target.compile(planned), prepared.problem, conditions),
    }
    ending = Ending(Stage.CHECK, Status.CORRECT)
    for stage in stages:
        enter(stage)
        started = time.perf_counter()
        try:
            step = work[stage]()
        except EnvironmentMissing:
            raise
        except PlanError as error:
            step = Ending(stage, Status.CONSTRAINTS, str(error), error.reasons[0].code if error.reasons else "plan")
        except CompileError as error:
            step = Ending(stage, Status.COMPILE, str(error), "compile_error")
        except MemoryError:
            step = Ending(stage, Status.RUNTIME, "the process ran out of memory", "out_of_memory")
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
            step = Ending(stage, Status.RUNTIME, text, "exception", context_lost=stage is Stage.BENCH)
        seconds = {str(stage): time.perf_counter() - started}
        ending = Ending(
            stage,
            step.status,
            _short(step.reason),
            step.reason_code,
            ending.metrics | step.metrics,
            ending.seconds | seconds,
            ending.cases + step.cases,
            step.context_lost,
        )
        if ending.status is not Status.CORRECT:
            break
    return ending


def chosen_cases(plan: KernelPlan, count: int | None) -> tuple[list[Case], int]:
    """The cases that a point is verified on, and how many its family has: ``count`` of them, drawn by the spec's digest."""
    from gemmgen.verification.baked_cases import cases_of

    cases = cases_of(plan)
    if count is None or count >= len(cases):
        return cases, len(cases)
    places = sorted(random.Random(plan.spec_digest).sample(range(len(cases)), count))
    return [cases[place] for place in places], len(cases)


def _compile(planned: KernelPlan, binary: Any) -> Ending:
    if target_of(planned.spec.kind) is PROCESSOR:
        return Ending(Stage.COMPILE, Status.CORRECT, metrics={"library_bytes": float(len(binary.library))})
    from gemmgen.perf.analysis.residency import residencies

    kernels = residencies(planned, binary)
    metrics = {
        "registers": float(max(kernel.resources.registers for kernel in kernels)),
        "spill_bytes": float(max(kernel.resources.spill_stores + kernel.resources.spill_loads for kernel in kernels)),
        "shared_bytes": float(max(kernel.shared_bytes for kernel in kernels)),
        "threads": float(max(kernel.threads for kernel in kernels)),
        "blocks_per_sm": float(min(kernel.occupancy.blocks_per_sm for kernel in kernels)),
    }
    if metrics["blocks_per_sm"] == 0:
        worst = min(kernels, key=lambda kernel: kernel.occupancy.blocks_per_sm)
        limits = ", ".join(worst.occupancy.limited_by)
        return Ending(Stage.COMPILE, Status.COMPILE, f"no block of {worst.entry} fits on an SM: {limits}", "occupancy", metrics)
    return Ending(Stage.COMPILE, Status.CORRECT, metrics=metrics)


class _Watched:
    """A backend that remembers whether the last run was stopped by it: then the kernel faulted, rather than computed wrongly."""

    def __init__(self, backend: Backend) -> None:
        self.name, self.description, self.architecture = backend.name, backend.description, backend.architecture
        self.faulted = False
        self._backend = backend

    def run(
        self,
        binary: Binary,
        sequence: LaunchSequence,
        dimensions: Mapping[str, int],
        scalars: Mapping[str, float],
        buffers: Mapping[str, HostBuffer],
    ) -> None:
        self.faulted = True
        self._backend.run(binary, sequence, dimensions, scalars, buffers)
        self.faulted = False


@cache
def _backend(name: str) -> Backend:
    """One backend for all points that this process runs. Time is limited from outside, not by the backend."""
    if name == "gpu":
        from gemmgen.runtime.cuda import GpuBackend

        return GpuBackend(time_limit=1e6)
    if name == PROCESSOR.name:
        return PROCESSOR.backend()
    from gemmgen.runtime.emulation import EmulatorBackend

    return EmulatorBackend()


def _verify(planned: KernelPlan, binary: Any, conditions: Conditions) -> Ending:
    """Runs the cases until one fails."""
    from gemmgen.verification.runner import verify_case

    backend = _Watched(_backend(conditions.backend))
    cases, total = chosen_cases(planned, conditions.cases)
    worst, elements, names = 0.0, 0, []
    status, reason, code = Status.CORRECT, "", ""
    for case in cases:
        result = verify_case(planned, binary, backend, case)
        names.append(f"{case.name}, {case.data}")
        worst, elements = max(worst, result.worst_ratio), elements + result.elements
        if not result.passed:
            status, code = (Status.RUNTIME, "fault") if backend.faulted else (Status.CORRECTNESS, "wrong_result")
            sizes = " ".join(f"{name}={value}" for name, value in case.dimensions.items())
            reason = f"case {case.name}, {case.data} ({sizes}): {result.failure}"
            break
    metrics = {"worst_ratio": worst, "elements": float(elements), "cases": float(len(names)), "cases_total": float(total)}
    return Ending(Stage.VERIFY, status, reason, code, metrics, cases=tuple(names))


def _bench(planned: KernelPlan, binary: Any, problem: Mapping[str, int], conditions: Conditions) -> Ending:
    """Times the kernel on one problem, beside its peers; the fastest of them counts."""
    from gemmgen.kernels import family_of
    from gemmgen.perf.cost_model import cost_model_of
    from gemmgen.perf.measuring import TimingOptions, time_instances

    dimensions = family_of(planned.spec).problem(planned, tuple(problem.values()))
    try:
        options = TimingOptions(conditions.rounds, conditions.peer)
        report = time_instances(target_of(planned.spec.kind), [(planned, binary)], dimensions, options)
    except VerificationError as error:
        return Ending(Stage.BENCH, Status.CORRECTNESS, str(error), "wrong_result")
    except LaunchError as error:
        return Ending(Stage.BENCH, Status.RUNTIME, str(error), "fault", context_lost=True)
    cost = cost_model_of(planned.spec.kind).cost(planned, dimensions)
    metrics: dict[str, float | None] = {"operations": cost.operations, "bytes": cost.bytes}
    for timing in report.timings:
        if timing.kind == "peer":
            metrics["peer_us"] = min(timing.us, metrics.get("peer_us") or math.inf)
        else:
            metrics |= {
                "median_us": timing.us,
                "p10_us": timing.range_us[0],
                "p90_us": timing.range_us[1],
                "operations_per_second": timing.operations_per_second,
                "bytes_per_second": cost.bytes / (timing.us * 1e-6),
            }
    metrics |= report.clock_rates
    return Ending(Stage.BENCH, Status.CORRECT, metrics={name: float(value) for name, value in metrics.items() if value is not None})


def _broken_promises(sequence: LaunchSequence, dimensions: Mapping[str, int]) -> list[str]:
    """Obstacle to launching a problem. Raises ``GemmgenError`` for a grid that no GPU has."""
    broken = [
        f"{dimension.name} is {dimensions[dimension.name]}, need {dimension.minimum} to {dimension.maximum}"
        for dimension in sequence.dimensions
        if dimension.name in dimensions and not dimension.minimum <= dimensions[dimension.name] <= dimension.maximum
    ]
    broken += [one.explanation for one in sequence.constraints if not one.condition.evaluate(dimensions)]
    if not broken and not sequence.resolve(dimensions):
        broken.append("there is nothing to do")
    return broken


def _case_facts(case: Case) -> list[object]:
    return [case.name, sorted(case.dimensions.items()), sorted(case.scalars.items()), case.data, sorted(case.offsets.items()), case.seed]


def _short(text: str) -> str:
    return text if len(text) <= MAX_REASON else f"{text[: MAX_REASON - 4]} ..."


def selects(point: Point, where: Expression, conditions: Conditions) -> bool:
    """True if ``where`` holds for a point; it does not for one without the plan or the fields that it asks about."""
    try:
        checked = _Checked(point, Conditions(Stage.CHECK, architecture=conditions.architecture))
    except Exception:  # a point that breaks its planning is run, and ends with the reason
        return True
    if checked.plan is None and where.reads_plan:
        return False
    try:
        return where.holds(checked.spec, checked.plan)
    except UnknownName:
        if checked.rejection[0] in ("spec", "axes"):
            return False
        raise
