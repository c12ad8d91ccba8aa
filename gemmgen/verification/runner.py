"""Proving an instance right: every case of its family, run on a backend and held against a reference."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmgen.codegen.rendering import render
from gemmgen.core.elements import to_numbers
from gemmgen.core.errors import EnvironmentMissing, GemmgenError
from gemmgen.kernels.family import Case, Expected, InstancePlan, KernelPlan
from gemmgen.runtime.backend import Backend
from gemmgen.runtime.emulation import KernelFault
from gemmgen.toolchain.host import HostBinary
from gemmgen.toolchain.nvrtc import Binary
from gemmgen.verification.baked_cases import cases_of
from gemmgen.verification.case_arrays import prepare_case, require_memory
from gemmgen.verification.counters import CaseCounters, count_case
from gemmgen.verification.extra_cases import extra_cases
from gemmgen.verification.oracle import oracle_of


@dataclass(frozen=True)
class CaseResult:
    """Outcome of one case."""

    case: Case
    passed: bool
    worst_ratio: float
    """Largest error over its bound, where there is a bound; at most 1 in a case that passed."""
    elements: int
    """Elements compared."""
    seconds: float
    failure: str = ""
    """Reason of failure: the first wrong element, or the backend's report."""

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.case.name,
            "data": self.case.data,
            "dimensions": dict(self.case.dimensions),
            "scalars": dict(self.case.scalars),
            "passed": self.passed,
            "worst_ratio": self.worst_ratio,
            "elements": self.elements,
            "failure": self.failure,
        }


@dataclass(frozen=True)
class VerificationReport:
    """The evidence that a verification leaves behind."""

    name: str
    architecture: str
    backend: str
    device: str
    results: tuple[CaseResult, ...] = field(default=())
    seconds: float = 0.0
    counters: CaseCounters | None = None
    """Costs of one case, if that was asked for and all cases passed."""

    @property
    def passed(self) -> bool:
        """True if there were cases and all of them passed."""
        return bool(self.results) and all(result.passed for result in self.results)

    @property
    def failures(self) -> tuple[CaseResult, ...]:
        return tuple(result for result in self.results if not result.passed)

    @property
    def worst_ratio(self) -> float:
        """Largest error over its bound in any case."""
        return max((result.worst_ratio for result in self.results), default=0.0)

    @property
    def elements(self) -> int:
        """Elements compared in all cases."""
        return sum(result.elements for result in self.results)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "architecture": self.architecture,
            "backend": self.backend,
            "device": self.device,
            "passed": self.passed,
            "cases": [result.to_json() for result in self.results],
            "worst_ratio": self.worst_ratio,
            "elements": self.elements,
            "seconds": round(self.seconds, 3),
            "counters": self.counters.to_json() if self.counters is not None else None,
        }


def verify_binary(
    plan: InstancePlan,
    binary: Binary | HostBinary,
    backend: Backend,
    *,
    cases: Sequence[Case] | None = None,
    progress: Callable[[CaseResult], None] | None = None,
    counters: bool = False,
    extra: bool = False,
) -> VerificationReport:
    """Runs ``cases`` (the family's own if None) of ``plan`` on ``backend``; a failing case never stops the others.

    ``extra``: also those of ``gemmgen.verification.extra_cases``.

    ``counters``: if all pass, also counts the cost of one case, on the emulator regardless of the backend. Raises ``PlanError``, before
    anything is run, if a case needs too much memory.
    """
    started = time.perf_counter()
    results = []
    chosen = cases_of(plan) if cases is None else cases
    require_memory(plan, chosen)
    for launched, case in (*((plan, case) for case in chosen), *(extra_cases(plan) if extra else ())):
        result = verify_case(launched, binary, backend, case)
        results.append(result)
        if progress is not None:
            progress(result)
    return VerificationReport(
        name=plan.name,
        architecture=binary.architecture,
        backend=backend.name,
        device=backend.description,
        results=tuple(results),
        seconds=time.perf_counter() - started,
        counters=_counters(plan, binary) if counters and results and all(result.passed for result in results) else None,
    )


def _counters(plan: InstancePlan, binary: Binary | HostBinary) -> CaseCounters | None:
    """Costs of one case on the emulator; None for kernels that do not run there."""
    if isinstance(plan, KernelPlan) and isinstance(binary, Binary):
        return count_case(plan, binary)
    return None


def verify_case(plan: InstancePlan, binary: Binary | HostBinary, backend: Backend, case: Case) -> CaseResult:
    """Runs one case and compares all that it may and may not have written."""
    started = time.perf_counter()
    memory = prepare_case(plan, case)
    before = {name: piece.buffer.storage.copy() for name, piece in memory.items()}
    inputs = {name: piece.view.copy() for name, piece in memory.items()}
    expected = oracle_of(plan.spec.kind).reference(plan, case, inputs)

    def result(passed: bool, ratio: float = 0.0, elements: int = 0, failure: str = "") -> CaseResult:
        return CaseResult(case, passed, ratio, elements, time.perf_counter() - started, failure)

    try:
        buffers = {name: piece.buffer for name, piece in memory.items()}
        backend.run(binary, plan.sequence, case.dimensions, case.scalars, buffers)
    except KernelFault as fault:
        return result(False, failure=fault.told_with(render(plan).text))
    except EnvironmentMissing:  # nothing was learnt of the kernel
        raise
    except GemmgenError as error:
        return result(False, failure=str(error))
    worst, elements = 0.0, 0
    for name, piece in memory.items():
        if name in expected:
            ratio, failure = compare_elements(name, to_numbers(piece.array.type, piece.view), expected[name])
            elements += piece.view.size - undetermined(expected[name])
            worst = max(worst, ratio)
            if failure:
                return result(False, worst, elements, failure)
        failure = piece.stray_write(before[name], written=name in expected)
        if failure:
            return result(False, worst, elements, failure)
    return result(True, worst, elements)


def undetermined(expected: Expected) -> int:
    """Number of elements that may be anything, because they come too close to the largest number to say whether they overflow."""
    return 0 if expected.bound is None else int(np.isposinf(expected.bound).sum())


def compare_elements(name: str, got: npt.NDArray[Any], expected: Expected) -> tuple[float, str]:
    """Largest error over its bound, and a message about the first wrong element if there is one."""
    value = expected.value
    exact_integers = value.dtype.kind in "iu"
    actual = got if exact_integers else got.astype(np.float64)
    bound = np.zeros(value.shape) if expected.bound is None else expected.bound
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        same = (actual == value) | (np.isnan(actual) & np.isnan(value))
        if expected.signed_zeros:
            same &= (actual != 0) | (np.signbit(actual) == np.signbit(value))
        error = np.where(same, 0.0, np.abs(actual.astype(np.float64) - value))
        within = same | (np.isfinite(value) & np.isfinite(bound) & (bound > 0) & (error <= bound)) | np.isposinf(bound)
        ratios = np.where(same | np.isposinf(bound), 0.0, error / bound)
    if within.all():
        return float(ratios.max(initial=0.0)), ""
    wrong = np.argwhere(~within)
    where = tuple(int(index) for index in wrong[0])
    allowed = float(bound[where])
    digits = "d" if exact_integers else ".9g"
    need = f"{value[where]:{digits}} exactly" if allowed == 0 else f"{value[where]:{digits}} within {allowed:.3g}"
    place = ", ".join(map(str, where))
    ratio = float(ratios[where]) if np.isfinite(ratios[where]) else float("inf")
    return ratio, f"{name}[{place}] is {actual[where]:{digits}}, expected {need}; {len(wrong)} of {value.size} elements are wrong"
