"""Compares lifted accesses with the emulator's trace on drawn problems of many kernels, access for access, and counts them.

python -m measurements.agreement --problems 2000 --jobs 15 --seconds 440 --out measurements
"""

from __future__ import annotations

import datetime
import json
import time
from pathlib import Path
from typing import Any, TypedDict

import click

import gemmgen
from gemmgen.emulator.ptx.parser import parse
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.shipped import shipped_specs
from gemmgen.library.workers import cpus, run_tasks
from gemmgen.proof.rings import uses_rings
from gemmgen.toolchain.compilation import compile_plan
from tests.proof.agreement import TooManyTurns, Unknown
from tests.proof.test_agreement import disagreement_on, formulas_of, problems

FAMILIES = ("gemm/simt/", "gemm/v", "gemm/mma_sync/", "gemm/gemv/", "reduction/", "elementwise/")


class Compared(TypedDict):
    """Problems of one kernel."""

    kernel: str
    problems: int
    accesses: int
    seconds: float
    disagreements: list[str]
    reason: str
    """Why a kernel has fewer problems than were asked for."""


def compare(name: str, wanted: int, seconds: float, end: float) -> Compared:
    """Compares one kernel on so many distinct problems, within so many seconds of its process, before a time of the clock."""
    found = Compared(kernel=name, problems=0, accesses=0, seconds=0.0, disagreements=[], reason="")
    began = time.process_time()
    try:
        plan = gemmgen.plan(shipped_specs()[name])
        if not isinstance(plan, KernelPlan) or time.time() >= end:
            return found | {"reason": "no time is left" if isinstance(plan, KernelPlan) else "a plan of several kernels"}
        binary = compile_plan(plan)
        if any(uses_rings(function) for function in parse(binary.ptx).functions.values() if function.is_entry):
            return found | {"reason": "a kernel with mbarriers"}
        formulas = formulas_of(plan, binary)
        seen: set[tuple[tuple[str, int], ...]] = set()
        for case in problems(plan, f"{name} {wanted}"):
            if found["problems"] >= wanted:
                break
            if time.process_time() - began > seconds or time.time() >= end:
                found["reason"] = "no time is left"
                break
            sizes = tuple(sorted(case.dimensions.items()))
            if sizes in seen:
                continue
            seen.add(sizes)
            try:
                difference, accesses = disagreement_on(plan, binary, formulas, case)
            except TooManyTurns:
                continue
            found["problems"] += 1
            found["accesses"] += accesses
            found["disagreements"] += [difference] if difference else []
    except Unknown:
        found["reason"] = "addresses of forgotten registers"
    except Exception as error:  # a statement without a meaning, a launch without formulas
        found["reason"] = f"{type(error).__name__}: {error}"[:200]
    return found | {"seconds": round(time.process_time() - began, 1)}


@click.command()
@click.option("--problems", "wanted", type=int, default=2000, help="Problems of all kernels together.")
@click.option("--each", type=int, default=30, help="Problems of one kernel at most.")
@click.option("--jobs", type=int, default=None)
@click.option("--seconds", type=float, default=440.0, help="Seconds of the clock.")
@click.option("--out", type=Path, default=Path("measurements"))
@click.option("--kernels", default="", help="Only kernels whose name contains this.")
def main(wanted: int, each: int, jobs: int | None, seconds: float, out: Path, kernels: str) -> None:
    """Writes agreement.json; kernels that it has from an earlier run, and that are not compared now, stay in it."""
    names = [name for name in sorted(shipped_specs()) if name.startswith(FAMILIES) and kernels in name]
    end = time.time() + seconds
    before = json.loads((out / "agreement.json").read_text())["kernels"] if (out / "agreement.json").exists() else []
    records: list[dict[str, Any]] = [record for record in before if record["kernel"] not in names]
    tasks = [(name, each, seconds / 3, end) for name in names]
    for index, result in run_tasks(compare, tasks, jobs or cpus()):
        if isinstance(result, Exception):
            reason = f"{type(result).__name__}: {result}"[:200]
            result = Compared(kernel=names[index], problems=0, accesses=0, seconds=0.0, disagreements=[], reason=reason)
        records.append(dict(result))
        totals = {
            "kernels": sum(record["problems"] > 0 for record in records),
            "problems": sum(record["problems"] for record in records),
            "accesses": sum(record["accesses"] for record in records),
            "disagreements": sum(len(record["disagreements"]) for record in records),
        }
        run = {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), **totals}
        text = ",\n".join(json.dumps(record) for record in sorted(records, key=lambda record: str(record["kernel"])))
        (out / "agreement.json").write_text(f'{{"run": {json.dumps(run)}, "kernels": [\n{text}\n]}}\n')
    found = json.loads((out / "agreement.json").read_text())["run"]
    click.echo(f"{found}, of {wanted} wanted")
    if found["disagreements"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
