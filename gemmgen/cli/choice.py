"""Shows which instance a problem gets, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from gemmgen.cli.analysis import binding_roof, foreign_device
from gemmgen.cli.output import Column, counted, duration, operation_unit, print_json, print_table, rate
from gemmgen.core.text import printable

if TYPE_CHECKING:
    from gemmgen.dispatch.selection import Choice, Option
    from gemmgen.hardware.target import Architecture, Device

RUNNERS_UP = 5
_SOURCES = {
    "measured": "measured: the table has this exact problem",
    "interpolated": "the model, corrected by the table's times of this instance on the nearest problems",
    "model": "the model alone",
}
_CORRECTED = "the model, corrected by the table's times of other instances on the nearest problems"


def explain_choice(text: str, device: Device, as_json: bool, architecture: Architecture | None = None) -> None:
    """Prints the choice for a problem such as ``gemm:512,512,512,nt``. Raises ``SpecError`` and ``LaunchError``."""
    from gemmgen.dispatch.chosen import choose_kernel
    from gemmgen.dispatch.problems import read_problem

    problem = read_problem(text)
    choice = choose_kernel(problem, device, architecture).choice
    assert choice is not None
    asked = problem.text
    if as_json:
        print_json(choice_json(choice, asked))
    else:
        _print(choice, asked, [] if architecture is None else foreign_device(architecture, device))


def choice_json(choice: Choice, asked: str) -> dict[str, object]:
    """The choice for the problem ``asked`` as plain data."""
    from gemmgen.dispatch.model import binding_limit
    from gemmgen.perf.analysis.roofline import roofline
    from gemmgen.perf.cost_model import cost_model_of
    from gemmgen.present.explanation import accuracy_of

    option, model = choice.chosen, cost_model_of(choice.request.kind)
    roofs = roofline(model.cost(option.plan, option.dimensions), choice.device)
    return {
        "problem": asked,
        "device": choice.device.name,
        "table": None
        if choice.table is None
        else {"device": choice.table.device, "problems": len(choice.table.rows), "date": choice.table.origin.get("date")},
        "chosen": _option_json(option),
        "why": _why(choice),
        "binding_roof": roofs.binding,
        "least_seconds": roofs.least_seconds,
        "error": accuracy_of(choice.request.kind, option.plan, option.dimensions),
        "fraction_of_roof": roofs.fraction(option.seconds),
        "takes_most_time": binding_limit(model.work(option.plan, option.dimensions), choice.device),
        "runners_up": [_option_json(other) for other in _runners_up(choice)],
        "rejected": dict(choice.rejected),
    }


def _option_json(option: Option) -> dict[str, object]:
    return {
        "spec": option.candidate.label,
        "name": option.plan.name,
        "seconds": option.seconds,
        "estimate": option.source,
        "derived": list(option.fit.derived),
        "certified": option.certified,
        "dimensions": dict(option.dimensions),
    }


def estimate_source(choice: Choice) -> str:
    """Source of the estimate for the chosen kernel."""
    corrected = choice.table is not None and choice.table.near(choice.request)
    return _CORRECTED if choice.chosen.source == "model" and corrected else _SOURCES[choice.chosen.source]


def _runners_up(choice: Choice) -> list[Option]:
    return [option for option in choice.options if option is not choice.chosen][:RUNNERS_UP]


def _print(choice: Choice, asked: str, notes: Sequence[tuple[str, str]]) -> None:
    from gemmgen.dispatch.model import binding_limit, resident_blocks
    from gemmgen.perf.analysis.roofline import roofline
    from gemmgen.perf.cost_model import cost_model_of
    from gemmgen.present.explanation import accuracy_of

    option, device, model = choice.chosen, choice.device, cost_model_of(choice.request.kind)
    cost = model.cost(option.plan, option.dimensions)
    roofs, unit = roofline(cost, device), operation_unit(cost.unit)
    works = model.work(option.plan, option.dimensions)
    lines = [
        ("problem", f"{asked} on the {device.name}"),
        *notes,
        ("takes", f"{option.candidate.label} ({option.plan.name})"),
        ("why", _why(choice)),
        ("certified", _standing(option)),
        ("predicted", f"{duration(option.seconds)}, {rate(cost.operations / option.seconds, f'{unit}/s')}: {estimate_source(choice)}"),
        ("table", _table_text(choice)),
    ]
    error = accuracy_of(choice.request.kind, option.plan, option.dimensions)
    if error is not None:
        lines.append(("error", error))
    if works:  # kernels that run before the product, for example to split its factors, have their own blocks
        work = max(works, key=lambda one: one.blocks * one.steps * one.operations)
        resident = max(1, resident_blocks(work, device))
        waves = work.blocks / (resident * device.sm_count)
        text = f"{counted(round(work.blocks), 'block')}, {resident} at a time on each of {device.sm_count} SMs: {waves:.2f} waves"
        lines.append(("waves", text))
    bound, known = binding_roof(roofs, unit)
    at = f" at {known}" if known else ""
    lines.append(("roof", f"{bound}: {duration(roofs.least_seconds)}{at}, of which it reaches {roofs.fraction(option.seconds):.0%}"))
    lines.append(("most time", f"{binding_limit(works, device)}, by the model"))
    for label, text in lines:
        click.echo(printable(f"{label:<10} {text}"))
    rows = [
        [
            other.candidate.label,
            duration(other.seconds),
            f"{other.seconds / option.seconds:.2f}",
            other.source,
            ", ".join(other.fit.derived),
        ]
        for other in _runners_up(choice)
    ]
    if rows:
        click.echo("")
        columns = [
            Column("runner-up", folds=True),
            Column("time", "right"),
            Column("x chosen", "right"),
            Column("estimate"),
            Column("derived", folds=True),
        ]
        print_table(columns, rows)
    click.echo(f"\n{counted(len(choice.options), 'instance')} can serve the problem, {len(choice.rejected)} cannot.")


def _why(choice: Choice) -> str:
    """Reason for the chosen instance, in words."""
    option = choice.chosen
    if len(choice.options) == 1:
        return "no other instance can serve the problem"
    if option.source == "measured":
        return f"the least time of {counted(len(choice.options), 'instance')}, and it was measured"
    margin = next((other.fit.margin for other in choice.options if other.seconds < option.seconds and other.fit.margin > 1), None)
    unless = "" if margin is None else f"; others are chosen only if they are expected to be {margin - 1:.0%} faster"
    return f"the least estimated time of {counted(len(choice.options), 'instance')}{unless}"


def _standing(option: Option) -> str:
    if option.certified:
        return f"yes, for {option.plan.architecture.name}"
    if option.fit.derived:
        return f"no: derived from it for this problem, with other values of {', '.join(option.fit.derived)}"
    return f"no: the library holds no certificate for {option.plan.architecture.name}"


def _table_text(choice: Choice) -> str:
    table: Any = choice.table
    if table is None:
        return "none for this device; gemmgen tune makes one"
    near = table.near(choice.request)
    nearest: Sequence[str] = [row.problem for _, row in near[:2]]
    beside = "; ".join(nearest) or "none of this kind"
    rows = f"{counted(len(table.rows), 'problem')}, {table.origin.get('date', 'undated')}"
    if table.borrowed:
        rows = f"none for this device, gemmgen tune makes one; that of the {table.device} corrects the model: {rows}"
    return f"{rows}; nearest: {beside}"
