"""Costs of one case of an instance: memory traffic and instructions, counted by the emulator from the instance's PTX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gemmgen.codegen.rendering import render
from gemmgen.emulator.counters import CounterObserver, Counters
from gemmgen.kernels.family import Case, KernelPlan
from gemmgen.runtime.emulation import EmulatorBackend
from gemmgen.toolchain.nvrtc import Binary
from gemmgen.verification.baked_cases import counted_case_of
from gemmgen.verification.case_arrays import prepare_case


@dataclass(frozen=True)
class CaseCounters:
    """The costs of all launches of one case."""

    case: Case
    architecture: str
    counters: Counters

    def to_json(self) -> dict[str, Any]:
        return {
            "case": self.case.name,
            "dimensions": dict(self.case.dimensions),
            "scalars": dict(self.case.scalars),
            "architecture": self.architecture,
            **self.counters.to_json(),
        }


def count_case(
    plan: KernelPlan, binary: Binary, case: Case | None = None, observer: CounterObserver | None = None, *, hazards: bool = True
) -> CaseCounters:
    """Counts the cost of ``case`` (the one that the family names, if None), without a GPU.

    ``observer`` does the counting, for callers that need more from it. Without ``hazards``, none is looked for, which takes half the time.

    Raises ``LaunchError`` if the emulator finds an error in the kernel.
    """
    chosen = counted_case_of(plan) if case is None else case
    observer = CounterObserver() if observer is None else observer
    buffers = {name: piece.buffer for name, piece in prepare_case(plan, chosen).items()}
    EmulatorBackend([observer], hazards=hazards).run(binary, plan.sequence, chosen.dimensions, chosen.scalars, buffers)
    return CaseCounters(chosen, binary.architecture, observer.counters(render(plan).text))
