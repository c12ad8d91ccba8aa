"""Two instances held against each other: spec, plan, source, machine code, counters, predicted time. As data; text and HTML show it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gemmgen.codegen.rendering import render
from gemmgen.perf.analysis.report import Analysis
from gemmgen.present.explanation import explanation_of

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
class Comparison:
    """All that differs between two instances."""

    names: tuple[str, str]
    """Labels of the two."""
    instances: tuple[str, str]
    device: str
    spec: tuple[Change, ...]
    plan: tuple[Change, ...]
    resources: tuple[Change, ...]
    mix: tuple[Change, ...]
    """Instructions of the machine code, by class."""
    counters: tuple[Change, ...]
    case: tuple[str, str]
    """Problem of the counters on each side."""
    source: tuple[str, ...]
    """Unified diff of the rendered sources."""
    missing: str
    """Reason that machine code is not compared, if it is not."""

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


def vars_of(change: Change) -> dict[str, Any]:
    """A change as plain data."""
    return {"name": change.name, "before": change.before, "after": change.after, "difference": change.difference}


def compare(
    labels: tuple[str, str], one: Analysis, other: Analysis, predicted: tuple[float | None, float | None] = (None, None)
) -> Comparison:
    """Everything in which two analysed instances differ. ``predicted``: their times by the model, in seconds."""
    plans = (one.plan, other.plan)
    fields = [dict(_flat(plan.spec.model_dump(mode="json"))) for plan in plans]
    explained = [
        {
            f"{section.title}: {label}" if label else section.title: text
            for section in explanation_of(plan.spec.kind).explain(plan)
            for label, text in section.lines
        }
        for plan in plans
    ]
    cases = tuple(
        " ".join(f"{name}={value}" for name, value in side.traffic.case.dimensions.items()) if side.traffic else "not counted"
        for side in (one, other)
    )
    return Comparison(
        names=labels,
        instances=(one.plan.name, other.plan.name),
        device=one.device.name,
        spec=_changes(*fields),
        plan=_changes(*explained),
        resources=_changes(_resources(one, predicted[0]), _resources(other, predicted[1])),
        mix=_changes(_mix(one), _mix(other)),
        counters=_changes(_counters(one), _counters(other)),
        case=(cases[0], cases[1]),
        source=source_diff(render(one.plan).text, render(other.plan).text, labels),
        missing=one.code_missing or other.code_missing,
    )


def source_diff(before: str, after: str, labels: tuple[str, str], context: int = 3) -> tuple[str, ...]:
    """Unified diff of two sources without their headers, which differ in digests and names always."""
    return tuple(difflib.unified_diff(_body(before), _body(after), labels[0], labels[1], n=context, lineterm=""))


def _body(source: str) -> list[str]:
    lines = source.splitlines()
    first = next((place for place, line in enumerate(lines) if line and not line.startswith("//")), 0)
    return lines[first:]


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
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


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Change, ...]:
    changes = []
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        if old != new:
            numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (old, new))
            changes.append(Change(name, _shown(old), _shown(new), new - old if numbers else None))  # type: ignore[operator]
    return tuple(changes)


def _shown(value: Any) -> str:
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:,.6g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _resources(analysis: Analysis, seconds: float | None) -> dict[str, float]:
    main = analysis.main_kernel
    found: dict[str, float] = {
        "registers a thread": main.resources.registers,
        "spilled bytes a thread": main.resources.spill_stores + main.resources.spill_loads,
        "shared memory a block, bytes": main.shared_bytes,
        "threads a block": main.threads,
        "blocks on an SM": main.occupancy.blocks_per_sm,
        "warps on an SM": main.occupancy.warps,
        "least time by the roofs, µs": round(analysis.roofs.least_seconds * 1e6, 2),
    }
    if seconds is not None:
        found["predicted time, µs"] = round(seconds * 1e6, 2)
    loop = analysis.code[main.entry].main_loop if analysis.code else None
    if loop is not None:
        found["instructions in the main loop"] = loop.mix.total
        if loop.ffma_ceiling is not None:
            found["FFMA ceiling of the main loop, %"] = round(loop.ffma_ceiling * 100, 1)
    return found


def _mix(analysis: Analysis) -> dict[str, int]:
    total: dict[str, int] = {}
    for code in (analysis.code or {}).values():
        for name, number in code.mix.classes.items():
            total[name] = total.get(name, 0) + number
    return total


def _counters(analysis: Analysis) -> dict[str, float]:
    if analysis.traffic is None:
        return {}
    total = analysis.traffic.counters.total
    shared, traffic = total.shared_total, total.global_total
    return {
        "instructions of warps": total.total_instructions,
        "shared wavefronts": shared.wavefronts,
        "shared conflicts": shared.conflicts,
        "global sectors": traffic.sectors,
        "sectors' efficiency, %": round(traffic.efficiency * 100, 1),
        "barriers": analysis.traffic.counters.barriers,
    }
