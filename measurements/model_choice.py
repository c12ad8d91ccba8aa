"""The instance that the model picks for a product on tensor cores, without a table, beside the best of all that were timed.

    python -m measurements.tensor_gemm --held-out --output measurements/tensor_gemm_held_out     on a machine with an H200, and torch
    python -m measurements.model_choice                                                          anywhere

A device that has no table is served by the model alone, which knows it by its datasheet's figures: this says how good that is, on the
shapes of ``tensor_gemm.json``, of which every other one calibrated the model, and on others that nothing was tuned on. Writes
model_choice.md.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmgen.core.errors import LaunchError
from gemmgen.dispatch.candidates import candidates
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import choose_by
from gemmgen.hardware.target import Device
from gemmgen.hardware.target import device as find_device
from gemmgen.kernels.family import KernelSpec
from measurements.tensor_gemm_report import fitted_option

HERE = Path(__file__).resolve().parent
ALLOWED = 0.1
"""Extra time of a choice that counts as good."""
SHOWN = 3


@dataclass(frozen=True)
class Pick:
    """One problem: the model's instance, and how much longer it takes than the best, as a fraction of that."""

    kind: str
    problem: str
    instance: str
    best: str
    regret: float


def pick(row: Mapping[str, Any], device: Device, specs: Mapping[str, KernelSpec]) -> Pick | None:
    """The model's pick among the kernels that were timed; None if there is no choice. ``specs``: by names of files."""
    times = {name: samples[0] for name, samples in row["times_us"].items()}
    times = {**row["trials_us"], **times}
    if len(times) < 2:
        return None
    request = parse_problem(f"gemm:{row['problem']}")
    try:
        choice = choose_by(None, request, device)
    except LaunchError:
        return None
    # Several specs may become the same kernel when they are fitted to a problem, of which one was timed.
    plans = {name: fitted_option(specs, name, request, device) for name in times}
    timed = {plan[0].name: name for name, plan in plans.items() if plan is not None}
    for option in choice.options:
        name = timed.get(option.plan.name)
        if name is not None:
            best = min(times, key=lambda key: times[key])
            return Pick(row["kind"], row["problem"], name, best, times[name] / times[best] - 1)
    return None


def picks(path: Path, device: Device) -> list[Pick]:
    """Those of all problems in a file."""
    specs = {Path(candidate.label).name: candidate.spec for candidate in candidates("gemm")}
    rows: Sequence[Mapping[str, Any]] = json.loads(path.read_text())["rows"]
    return [found for row in rows if (found := pick(row, device, specs)) is not None]


def table(title: str, found: Sequence[Pick]) -> list[str]:
    """A line for each kind of problem, and the worst picks."""
    lines = [f"## {title}", "", "| kind | problems | mean | median | within 10% | worst |", "|---|---|---|---|---|---|"]
    for kind in dict.fromkeys(each.kind for each in found):
        own = [each for each in found if each.kind == kind]
        regrets = [each.regret for each in own]
        worst = max(own, key=lambda each: each.regret)
        good = sum(regret <= ALLOWED for regret in regrets)
        lines.append(
            f"| {kind} | {len(own)} | {statistics.mean(regrets):.1%} | {statistics.median(regrets):.1%} | {good} | "
            f"{worst.regret:.0%}: {worst.problem}, `{worst.instance}` for `{worst.best}` |"
        )
    return [*lines, ""]


def main() -> None:
    """Writes ``model_choice.md``."""
    device = find_device("H200")
    lines = [
        "# Choices without a table",
        "",
        "Extra time of the instance that the model picks over the best of all that were timed on an H200, the table ignored: what a device",
        "gets that has no table. Few rows are where the model errs: it takes tiles of 64 rows that are mostly empty to be as fast as their",
        "loads, and they take twice as long. `python -m measurements.model_choice` makes this file.",
        "",
    ]
    for title, name in (("Shapes of the table", "tensor_gemm"), ("Shapes that nothing was tuned on", "tensor_gemm_held_out")):
        path = HERE / f"{name}.json"
        if path.exists():
            lines += table(title, picks(path, device))
    (HERE / "model_choice.md").write_text("\n".join(lines).rstrip() + "\n")


if __name__ == "__main__":
    main()
