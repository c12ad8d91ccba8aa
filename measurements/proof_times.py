"""Proves the library's kernels again, each in a process for itself, and notes the processor time and the largest memory of each.

python -m measurements.proof_times --jobs 14 --within 470 --out measurements

writes proof_times.json, and with --proofs FILE the proofs themselves as evidence.
"""

from __future__ import annotations

import datetime
import json
import multiprocessing
import re
import resource
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TypedDict

import click

from gemmgen.library.evidence import Record, evidence_text, read_evidence
from gemmgen.library.listing import read_listing
from gemmgen.library.proving import Subject, prove_subject
from gemmgen.library.workers import cpus

PRELOADED = ["gemmgen.proof.prover", "gemmgen.proof.protocols", "gemmgen.proof.coverage", "gemmgen.proof.handover", "numpy", "z3"]
SIMT = re.compile(r"gemm/(simt/|v\d)")
FIVE = frozenset(("memory", "initialised", "once", "complete", "progress"))
AT_LEAST = frozenset(("handover", "coverage"))
"""Kernels with one of these properties, or with most of the five, come first."""
SPARE = 1.3
"""A proof is begun if so many times its earlier seconds are left."""


class Row(TypedDict):
    """One kernel."""

    kernel: str
    seconds: float
    """Processor time of the proof, without the compiler."""
    megabytes: int
    """Largest memory of the process, with the compiler."""
    proved: list[str]
    lost: list[str]
    """Properties that are recorded and were not proved again."""


def measured(subject: Subject, seconds: float, expected: float, end: float) -> tuple[tuple[str, str], Record, int] | None:
    """The proof of one kernel and the megabytes that it took; None where it would end too late."""
    if time.time() + SPARE * expected > end:
        return None
    found = prove_subject(subject, frozenset(), seconds, None, runs=False)
    assert found is not None
    key, record = found
    assert record is not None
    return key, record, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def summary(rows: list[Row], jobs: int, left: int) -> dict[str, object]:
    """Counts of rows."""
    simt = [row for row in rows if SIMT.match(row["kernel"]) and FIVE - {"complete"} <= {*row["proved"]}]
    five = [row for row in rows if {*row["proved"]} >= FIVE]
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "processor": processor(),
        "processes": jobs,
        "kernels": len(rows),
        "not repeated": left,
        "memory, initialised, once, complete, progress": len(five),
        "these within 60 s": sum(row["seconds"] <= 60 for row in five),
        "SIMT products, memory, initialised, once, progress": len(simt),
        "these within 10 s": sum(row["seconds"] <= 10 for row in simt),
        "slowest of these": max((row["seconds"] for row in simt), default=0.0),
        "within 60 s": sum(row["seconds"] <= 60 for row in rows),
        "within 4 GB": sum(row["megabytes"] <= 4096 for row in rows),
        "most megabytes": max((row["megabytes"] for row in rows), default=0),
        "kernels that lost a property": sum(bool(row["lost"]) for row in rows),
    }


def processor() -> str:
    """The name of the processor."""
    found = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else "unknown"


@click.command()
@click.option("--jobs", type=int, default=None)
@click.option("--seconds", type=float, default=60.0, help="Processor time for each kernel of a launch.")
@click.option("--within", type=float, default=470.0, help="Seconds of the clock.")
@click.option("--kernels", default="", help="Only kernels whose name contains this.")
@click.option("--unrecorded", is_flag=True, help="Kernels without a proof as well, after the others.")
@click.option("--after", type=Path, help="Kernels that another proof_times.json has come last.")
@click.option("--out", type=Path, default=Path("measurements"))
@click.option("--proofs", type=Path, help="File for the proofs.")
def main(
    jobs: int | None, seconds: float, within: float, kernels: str, unrecorded: bool, after: Path | None, out: Path, proofs: Path | None
) -> None:
    """Writes proof_times.json."""
    end, jobs = time.time() + within, jobs or cpus()
    recorded: dict[str, Record] = {}
    for record in read_evidence(Path("generated/evidence")).proofs.values():
        recorded[record["instance"]] = record
    chosen = [each for each in read_listing().instances if kernels in each.label and (unrecorded or each.name in recorded)]
    labels = {each.name: each.label for each in chosen}
    expected = {name: min(float(record["seconds"]), seconds * len(record["kernels"])) for name, record in recorded.items()}
    whole = {name for name, record in recorded.items() if FIVE - {"complete"} <= {*record["proved"]} or {*record["proved"]} & AT_LEAST}
    earlier = {row["kernel"] for row in json.loads(after.read_text())["kernels"]} if after else set[str]()
    # The slowest of those that hold come first, so that all processes end at about the same time; then the quickest of the others.
    chosen.sort(
        key=lambda each: (
            each.label in earlier,
            each.name not in whole,
            expected.get(each.name, seconds) * (-1 if each.name in whole else 1),
        )
    )
    rows: list[Row] = []
    found: dict[tuple[str, str], Record] = {}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with ProcessPoolExecutor(jobs, context, max_tasks_per_child=1) as pool:
        tasks = [pool.submit(measured, Subject.of(each), seconds, expected.get(each.name, seconds), end) for each in chosen]
        for task in as_completed(tasks):
            if (error := task.exception()) is not None:
                click.echo(f"{type(error).__name__}: {error}", err=True)
                continue
            result = task.result()
            if result is None:
                continue
            key, record, megabytes = result
            found[key] = record
            before = recorded.get(record["instance"], {"proved": []})["proved"]
            lost = [name for name in before if name not in record["proved"]]
            label = labels[record["instance"]]
            rows.append(Row(kernel=label, seconds=record["seconds"], megabytes=megabytes, proved=record["proved"], lost=lost))
            rows.sort(key=lambda row: (-row["seconds"], row["kernel"]))
            lines = ",\n".join(json.dumps(row) for row in rows)
            run = json.dumps(summary(rows, jobs, len(chosen) - len(rows)), indent=1)
            (out / "proof_times.json").write_text(f'{{"run": {run}, "kernels": [\n{lines}\n]}}\n')
            if proofs is not None:
                proofs.write_text(evidence_text({"backend": "proof"}, list(found.values())))
    click.echo(json.dumps(summary(rows, jobs, len(chosen) - len(rows)), indent=1))


if __name__ == "__main__":
    main()
