"""All that can be said about one instance without running it on a GPU, put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gemmgen.core.errors import EnvironmentMissing, GemmgenError
from gemmgen.hardware.target import Device
from gemmgen.kernels import family_of
from gemmgen.kernels.family import KernelPlan
from gemmgen.perf.analysis.machine_code import KernelCode, machine_code
from gemmgen.perf.analysis.quantisation import Waves, waves_of
from gemmgen.perf.analysis.residency import MoreBlocks, Residency, one_more_block, residencies
from gemmgen.perf.analysis.roofline import Roofline, roofline
from gemmgen.perf.cost_model import cost_model_of
from gemmgen.toolchain.nvrtc import Binary, KernelResources
from gemmgen.verification.baked_cases import counted_case_of
from gemmgen.verification.counters import CaseCounters, count_case

NOT_COUNTED = "not requested"
"""Reason for an analysis without traffic where the caller did not request it."""


@dataclass(frozen=True)
class Measured:
    """A measured time against a problem's roofs: achieved rates, and the part of the device's that they are."""

    seconds: float
    operations_per_second: float
    bytes_per_second: float
    compute_utilisation: float | None
    """operations / (time * rate); None where the device's rate is not known."""
    memory_utilisation: float | None
    """bytes / (time * bandwidth), each array counted once; None where the bandwidth is not known."""
    of_least_time: float
    """The least time that the roofs allow, over the measured one."""

    def to_json(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "operations_per_second": self.operations_per_second,
            "bytes_per_second": self.bytes_per_second,
            "compute_utilisation": self.compute_utilisation,
            "memory_utilisation": self.memory_utilisation,
            "fraction_of_roof": self.of_least_time,
        }


def measured(roofs: Roofline, seconds: float) -> Measured:
    """The utilisations of ``roofs`` by a kernel that takes ``seconds``."""
    return Measured(
        seconds=seconds,
        operations_per_second=roofs.cost.operations / seconds,
        bytes_per_second=roofs.cost.bytes / seconds,
        compute_utilisation=roofs.compute_utilisation(seconds) if roofs.compute_roof else None,
        memory_utilisation=roofs.memory_utilisation(seconds) if roofs.memory_roof else None,
        of_least_time=roofs.fraction(seconds),
    )


@dataclass(frozen=True)
class Analysis:
    """One instance, compiled for one architecture, on one problem and device."""

    plan: KernelPlan
    architecture: str
    device: Device
    problem: Mapping[str, int]
    kernels: tuple[Residency, ...]
    more_blocks: Mapping[str, MoreBlocks]
    """By entry."""
    code: Mapping[str, KernelCode] | None
    """By entry; None where there is no disassembler."""
    code_missing: str
    """Reason that there is no code, if there is none."""
    traffic: CaseCounters | None
    """Counters of one case; None if not requested, or if the emulator cannot run the kernel."""
    traffic_missing: str
    roofs: Roofline
    waves: tuple[Waves, ...]
    """Waves of every launch of the problem, in order."""
    executed_operations: float
    """Operations of the problem with those on padding: tiles that reach beyond it are computed whole."""
    timing: Measured | None

    @property
    def resources(self) -> Mapping[str, KernelResources]:
        """Resources of the compiled kernels, by entry."""
        return {kernel.entry: kernel.resources for kernel in self.kernels}

    @property
    def runs_on_device(self) -> bool:
        """True if the device loads the binary that was analysed."""
        return _runs(self.device, self.plan)

    @property
    def tile_efficiency(self) -> float:
        """The part of the operations that is not on padding."""
        return self.roofs.cost.operations / self.executed_operations if self.executed_operations else 1.0

    @property
    def main_kernel(self) -> Residency:
        """The kernel with most multiply-adds in its main loop; the first where that decides nothing."""
        if self.code is None:
            return self.kernels[0]
        code = self.code

        def work(kernel: Residency) -> int:
            main = code[kernel.entry].main_loop
            return main.mix.classes.get("fma float32", 0) + 64 * main.mix.classes.get("mma", 0) if main else 0

        return max(self.kernels, key=work)

    def to_json(self) -> dict[str, Any]:
        roofs = self.roofs
        return {
            "name": self.plan.name,
            "architecture": self.architecture,
            "device": self.device.name,
            "runs_on_device": self.runs_on_device,
            "kernels": [self._kernel_json(kernel) for kernel in self.kernels],
            "machine_code_missing": self.code_missing or None,
            "traffic": self.traffic.to_json() if self.traffic else None,
            "traffic_missing": self.traffic_missing or None,
            "problem": dict(self.problem),
            "roofline": {
                "operations": roofs.cost.operations,
                "bytes": roofs.cost.bytes,
                "unit": roofs.cost.unit,
                "intensity": roofs.cost.intensity,
                "ridge": roofs.ridge,
                "compute_roof": roofs.compute_roof.value if roofs.compute_roof else None,
                "memory_roof": roofs.memory_roof.value if roofs.memory_roof else None,
                "compute_seconds": roofs.compute_seconds,
                "memory_seconds": roofs.memory_seconds,
                "least_seconds": roofs.least_seconds,
                "binding": roofs.binding,
            },
            "quantisation": {
                "executed_operations": self.executed_operations,
                "tile_efficiency": round(self.tile_efficiency, 4),
                "launches": [waves.to_json() for waves in self.waves],
            },
            "measured": self.timing.to_json() if self.timing else None,
        }

    def _kernel_json(self, kernel: Residency) -> dict[str, object]:
        more = self.more_blocks[kernel.entry]
        return {
            **kernel.to_json(),
            "one_more_block": {
                "blocks_per_sm": more.blocks_per_sm,
                "needs": [{"resource": need.resource, "now": need.now, "most": need.most} for need in more.needs],
            },
            "machine_code": self.code[kernel.entry].to_json() if self.code else None,
        }


def analyse(
    plan: KernelPlan,
    binary: Binary,
    device: Device,
    sizes: Sequence[int] | Mapping[str, int] | None = None,
    *,
    seconds: float | None = None,
    traffic: bool = True,
) -> Analysis:
    """Analyses ``binary``, compiled from ``plan``, on a problem of ``sizes``: in the order of the family's ``instance_sizes``, or
    every dimension by name.

    Without ``sizes``, the problem is the instance's typical one, or the case that its traffic is counted on if it is not made for that.
    ``seconds``: a measured time for the problem. ``traffic``: count wavefronts and sectors of one case on the emulator. Values that cannot
    be determined are missing from the result, with the reason; raises ``LaunchError`` if the problem cannot be launched."""
    if isinstance(sizes, Mapping):
        problem: Mapping[str, int] = dict(sizes)
    else:
        problem = _typical_problem(plan) if sizes is None else family_of(plan.spec).problem(plan, sizes)
    model = cost_model_of(plan.spec.kind)
    kernels = residencies(plan, binary)
    by_entry = {kernel.entry: kernel for kernel in kernels}
    code, code_missing = _code(plan, binary)
    counted, traffic_missing = _traffic(plan, binary) if traffic else (None, NOT_COUNTED)
    roofs = roofline(model.cost(plan, problem), device)
    return Analysis(
        plan=plan,
        architecture=binary.architecture,
        device=device,
        problem=problem,
        kernels=tuple(kernels),
        more_blocks={kernel.entry: one_more_block(kernel, plan.architecture) for kernel in kernels},
        code=code,
        code_missing=code_missing,
        traffic=counted,
        traffic_missing=traffic_missing,
        roofs=roofs,
        waves=tuple(waves_of(launch, by_entry[launch.entry], device) for launch in plan.sequence.resolve(problem)),
        executed_operations=model.executed_operations(plan, problem),
        timing=measured(roofs, seconds) if seconds is not None else None,
    )


def on_one_case(one: tuple[Analysis, Binary], other: tuple[Analysis, Binary]) -> tuple[Analysis, Analysis]:
    """Two analyses with their traffic: counted on the same problem, the larger one of the two instances' own that both can run, or on
    each instance's own where these differ in their dimensions' names, or neither instance can run the other's."""
    sides = one, other
    cases = [counted_case_of(analysis.plan) for analysis, _ in sides]
    if cases[0].dimensions != cases[1].dimensions and set(cases[0].dimensions) == set(cases[1].dimensions):
        work = [
            cost_model_of(analysis.plan.spec.kind).cost(analysis.plan, case.dimensions).weight
            for (analysis, _), case in zip(sides, cases, strict=True)
        ]
        for chosen in sorted((0, 1), key=lambda side: work[side], reverse=True):
            (analysis, binary), case = sides[1 - chosen], replace(cases[1 - chosen], dimensions=cases[chosen].dimensions)
            try:
                again = replace(analysis, traffic=count_case(analysis.plan, binary, case, hazards=False))
            except GemmgenError:
                continue
            own = _with_traffic(*sides[chosen])
            return (own, again) if chosen == 0 else (again, own)
    return _with_traffic(*one), _with_traffic(*other)


def _with_traffic(analysis: Analysis, binary: Binary) -> Analysis:
    traffic, missing = _traffic(analysis.plan, binary)
    return replace(analysis, traffic=traffic, traffic_missing=missing)


def _typical_problem(plan: KernelPlan) -> Mapping[str, int]:
    family = family_of(plan.spec)
    try:
        return family.problem(plan, tuple(family.instance_sizes(plan).values()))
    except GemmgenError:
        return counted_case_of(plan).dimensions


def _runs(device: Device, plan: KernelPlan) -> bool:
    return device.architecture.runs_cubins_of(plan.architecture)


def _code(plan: KernelPlan, binary: Binary) -> tuple[dict[str, KernelCode] | None, str]:
    try:
        return machine_code(binary, plan.architecture), ""
    except EnvironmentMissing as error:
        return None, str(error)


def _traffic(plan: KernelPlan, binary: Binary) -> tuple[CaseCounters | None, str]:
    try:
        return count_case(plan, binary, hazards=False), ""
    except GemmgenError as error:
        return None, str(error).partition("\n")[0]
