"""Two kernels held against each other: spec, plan, source, machine code, counters, predicted time. As data; text and HTML show it.

A side is an instance of gemmgen's, or any file of kernels, of which less is known.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gemmgen.codegen.rendering import render
from gemmgen.emulator.counters import Counters
from gemmgen.hardware.target import Occupancy
from gemmgen.kernels.family import KernelPlan
from gemmgen.perf.analysis.machine_code import KernelCode
from gemmgen.perf.analysis.report import Analysis
from gemmgen.present.explanation import explanation_of
from gemmgen.toolchain.nvrtc import KernelResources

ABSENT = "–"


@dataclass(frozen=True)
class Change:
    """One thing that differs."""

    name: str
    before: str
    after: str
    difference: float | None = None
    """``after - before``, where both are numbers."""


@dataclass(frozen=True)
class Side:
    """All that is known of one of two kernels. Numbers and texts are by name; values that the other side lacks are shown as absent."""

    label: str
    name: str
    """Name of the instance or of the kernel."""
    source: str
    resources: Mapping[str, float]
    mix: Mapping[str, int]
    """Instructions of the machine code, by class."""
    counters: Mapping[str, float]
    case: str
    """Problem of the counters."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    """Fields by path."""
    explained: Mapping[str, str] = field(default_factory=dict)
    """The plan in words."""
    plan: KernelPlan | None = None
    """The plan, which pictures are drawn of; None of a file that is not gemmgen's."""
    missing: str = ""
    """Reason that there is no machine code, if there is none."""
    compiled: Mapping[str, KernelResources] | None = None
    """Resources of the compiled kernels, by entry, where there is a plan."""


@dataclass(frozen=True)
class Comparison:
    """All that differs between two kernels."""

    sides: tuple[Side, Side]
    device: str
    spec: tuple[Change, ...]
    plan: tuple[Change, ...]
    resources: tuple[Change, ...]
    mix: tuple[Change, ...]
    counters: tuple[Change, ...]
    source: tuple[str, ...]
    """Unified diff of the sources."""

    @property
    def names(self) -> tuple[str, str]:
        """Labels of the two."""
        return self.sides[0].label, self.sides[1].label

    @property
    def instances(self) -> tuple[str, str]:
        return self.sides[0].name, self.sides[1].name

    @property
    def case(self) -> tuple[str, str]:
        """Problem of the counters on each side."""
        return self.sides[0].case, self.sides[1].case

    @property
    def missing(self) -> str:
        """Reason that machine code is not compared, if it is not."""
        return self.sides[0].missing or self.sides[1].missing

    @property
    def same(self) -> bool:
        """True if the two are one kernel."""
        return not (self.spec or self.plan or self.source)

    def to_json(self) -> dict[str, Any]:
        groups = {name: getattr(self, name) for name in ("spec", "plan", "resources", "mix", "counters")}
        return {
            "names": list(self.names),
            "instances": list(self.instances),
            "device": self.device,
            **{name: [vars_of(change) for change in changes] for name, changes in groups.items()},
            "counted_cases": list(self.case),
            "source": list(self.source),
            "machine_code_missing": self.missing or None,
        }


def vars_of(change: Change) -> dict[str, object]:
    """A change as plain data."""
    return {"name": change.name, "before": change.before, "after": change.after, "difference": change.difference}


def instance_side(label: str, analysis: Analysis, seconds: float | None = None, source: str | None = None) -> Side:
    """The side of an analysed instance. ``seconds``: its time by the model. ``source``: its text, if that is not the rendered one."""
    plan, traffic = analysis.plan, analysis.traffic
    sections = explanation_of(plan.spec.kind).explain(plan)
    return Side(
        label=label,
        name=plan.name,
        source=render(plan).text if source is None else source,
        resources=_resources(analysis, seconds),
        mix=mix_of(analysis.code or {}),
        counters=counters_of(traffic.counters) if traffic else {},
        case=" ".join(f"{name}={value}" for name, value in traffic.case.dimensions.items()) if traffic else "not counted",
        spec=dict(_flat(plan.spec.model_dump(mode="json"))),
        explained={f"{one.title}: {label}" if label else one.title: text for one in sections for label, text in one.lines},
        plan=plan,
        missing=analysis.code_missing,
        compiled=analysis.resources,
    )


def compare(one: Side, other: Side, device: str) -> Comparison:
    """Everything in which two kernels differ. ``device``: the GPU of roofs and predictions. Specs and plans, machine
    code, and counters are compared where both sides have them."""
    instances = one.plan is not None and other.plan is not None
    return Comparison(
        sides=(one, other),
        device=device,
        spec=_changes(one.spec, other.spec) if instances else (),
        plan=_changes(one.explained, other.explained) if instances else (),
        resources=_changes(one.resources, other.resources),
        mix=_changes(one.mix, other.mix) if one.mix and other.mix else (),
        counters=_changes(one.counters, other.counters) if one.counters and other.counters else (),
        source=source_diff(one.source, other.source, (one.label, other.label)),
    )


def source_diff(before: str, after: str, labels: tuple[str, str], context: int = 3) -> tuple[str, ...]:
    """Unified diff of two sources without their headers, which differ in digests and names always."""
    return tuple(difflib.unified_diff(_body(before), _body(after), labels[0], labels[1], n=context, lineterm=""))


def _body(source: str) -> list[str]:
    lines = source.splitlines()
    first = next((place for place, line in enumerate(lines) if line and not line.startswith("//")), 0)
    return lines[first:]


def _flat(value: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested data with its path; names and descriptions are left out, as they are of no kernel."""
    if isinstance(value, Mapping):
        for name, below in value.items():
            if path or name not in ("description", "label"):
                yield from _flat(below, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for place, below in enumerate(value):
            yield from _flat(below, f"{path}.{place}")
    else:
        yield path, value


def _changes(before: Mapping[str, object], after: Mapping[str, object]) -> tuple[Change, ...]:
    changes = []
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        if old != new:
            numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (old, new))
            changes.append(Change(name, _shown(old), _shown(new), new - old if numbers else None))  # type: ignore[operator]
    return tuple(changes)


def _shown(value: object) -> str:
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:,.6g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _resources(analysis: Analysis, seconds: float | None) -> dict[str, float]:
    main = analysis.main_kernel
    used = main.resources
    residency = residency_of(used.registers, used.spill_stores + used.spill_loads, main.shared_bytes, main.threads, main.occupancy)
    residency["least time by the roofs, µs"] = round(analysis.roofs.least_seconds * 1e6, 2)
    if seconds is not None:
        residency["predicted time, µs"] = round(seconds * 1e6, 2)
    return residency | loop_of(analysis.code[main.entry] if analysis.code else None)


def mix_of(code: Mapping[str, KernelCode]) -> dict[str, int]:
    """Instructions of all kernels by class."""
    total: dict[str, int] = {}
    for kernel in code.values():
        for name, number in kernel.mix.classes.items():
            total[name] = total.get(name, 0) + number
    return total


def loop_of(code: KernelCode | None) -> dict[str, float]:
    """Figures of a kernel's main loop; none without one."""
    loop = code.main_loop if code is not None else None
    if loop is None:
        return {}
    figures: dict[str, float] = {"instructions in the main loop": loop.mix.total}
    if loop.ffma_ceiling is not None:
        figures["FFMA ceiling of the main loop, %"] = round(loop.ffma_ceiling * 100, 1)
    return figures


def counters_of(counters: Counters) -> dict[str, float]:
    """Counters of the emulator, in total."""
    total = counters.total
    shared, traffic = total.shared_total, total.global_total
    return {
        "instructions of warps": total.total_instructions,
        "shared wavefronts": shared.wavefronts,
        "shared conflicts": shared.conflicts,
        "global sectors": traffic.sectors,
        "sectors' efficiency, %": round(traffic.efficiency * 100, 1),
        "barriers": counters.barriers,
    }


def residency_of(registers: int, spilled: int, shared: int, threads: int | None, occupancy: Occupancy | None) -> dict[str, float]:
    """Resources of a kernel under the names that all sides have them by."""
    figures: dict[str, float] = {
        "registers a thread": registers,
        "spilled bytes a thread": spilled,
        "shared memory a block, bytes": shared,
    }
    if threads is not None and occupancy is not None:
        figures |= {"threads a block": threads, "blocks on an SM": occupancy.blocks_per_sm, "warps on an SM": occupancy.warps}
    return figures
