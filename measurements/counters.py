"""Holds the emulator's counters against Nsight Compute's, for the counted case of every spec.

    python -m measurements.counters                                on a machine with a GPU and ncu
    python -m measurements.counters --predict-only --arch sm_90a   anywhere: the predictions alone
    python -m measurements.counters --measure-only                 on a machine with a GPU: --predict-only completes the table later
    python -m measurements.counters --dry-run                      anywhere: the specs that --measure-only would run, in their order
    python -m measurements.counters --list-metrics                 the metrics of this GPU that concern memory

Runs in the repository's root. Writes counters.json and counters.md beside this file. Measurements of the same PTX are kept;
--again measures everything. A run that ends early loses nothing: every batch is written to counters.journal as it is read, and the
next run takes the results for the same PTX from there. Cheap cases of every folder come first, so that a short run is a sample of all.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from math import prod
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from gemmgen.api import plan
from gemmgen.cli.selection import SpecFile, find_specs
from gemmgen.core.errors import GemmgenError
from gemmgen.emulator.counters import Tally
from gemmgen.hardware.shared_memory import BANK_BYTES, BANKS
from gemmgen.hardware.target import architecture as find_architecture
from gemmgen.runtime.cuda import gpu_available
from gemmgen.runtime.cuda.driver import gpu
from gemmgen.toolchain.compilation import compile_plan
from gemmgen.toolchain.nvrtc import nvrtc_version
from gemmgen.verification.counters import count_case
from gemmgen.verification.oracle import oracle_of
from measurements.copy_sites import CopySites
from measurements.counters_report import markdown

HERE = Path(__file__).resolve().parent
_INTERESTING = ("mem_shared", "mem_global", "ldsm", "ldgsts", "tma", "gmma", "ublk", "bulk", "pipe_tensor")
SECONDS = 240
"""Seconds that ncu may take for all specs together."""
_BATCH = 16
"""Specs a process of ncu: starting one takes longer than some kernels, and one that is stopped loses its results."""


@dataclass(frozen=True)
class Quantity:
    """Something that both count. Each alternative is a set of metrics whose values are added; the first that exists counts."""

    name: str
    predict: Callable[[Tally], int]
    alternatives: tuple[tuple[str, ...], ...]
    must_agree: bool = True


def _shared(field: str, *kinds: str) -> Callable[[Tally], int]:
    return lambda tally: sum(getattr(tally.shared_memory[kind], field) for kind in kinds if kind in tally.shared_memory)


def _global(field: str, *kinds: str) -> Callable[[Tally], int]:
    return lambda tally: sum(getattr(tally.global_memory[kind], field) for kind in kinds if kind in tally.global_memory)


def _instructions(*classes: str) -> Callable[[Tally], int]:
    return lambda tally: sum(tally.instructions.get(name, 0) for name in classes)


def _tensor_wavefronts(tally: Tally) -> int:
    """Reads of wgmma from shared memory, in rows of all banks."""
    return sum(work.shared_bytes for work in tally.tensor.values()) // (BANKS * BANK_BYTES)


def _tensor_operations(tally: Tally) -> int:
    """Warps' instructions, four for each of a warpgroup."""
    return 4 * sum(work.operations for work in tally.tensor.values())


_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_"
_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_"
_SASS = "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_"
_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_"
_READ, _WRITTEN = "l1tex__m_xbar2l1tex_", "l1tex__m_l1tex2xbar_"
_REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_"

# The counters of the hardware for shared loads count ldmatrix as well, those for global loads the copies. A copy (LDGSTS) goes
# through the cache (.ca) or past it
# (.cg); the two have separate counters. The metrics with `sass` come from instrumented code and know nothing of arbitration.
QUANTITIES = (
    Quantity("shared load wavefronts", _shared("wavefronts", "load", "ldmatrix"), ((_WAVEFRONTS + "ld",),)),
    Quantity("shared load conflicts", _shared("conflicts", "load", "ldmatrix"), ((_CONFLICTS + "ld",),)),
    Quantity("shared store wavefronts", _shared("wavefronts", "store", "stmatrix"), ((_WAVEFRONTS + "st",),)),
    Quantity("shared store conflicts", _shared("conflicts", "store", "stmatrix"), ((_CONFLICTS + "st",),)),
    Quantity(
        "copy wavefronts",
        _shared("wavefronts", "cp.async"),
        (
            ("sm" + _SASS[4:] + "ldgsts_cache_access", "sm" + _SASS[4:] + "ldgsts_cache_bypass"),
            (_SASS + "ldgsts",),
            (_WAVEFRONTS + "ldgsts",),
        ),
    ),
    Quantity("global load sectors", _global("sectors", "load", "cp.async"), ((_SECTORS + "ld",),)),
    Quantity("global load requests", _global("requests", "load", "cp.async"), ((_REQUESTS + "ld",),)),
    Quantity("global store sectors", _global("sectors", "store"), ((_SECTORS + "st",),)),
    Quantity("global store requests", _global("requests", "store"), ((_REQUESTS + "st",),)),
    Quantity(
        "copy sectors",
        _global("sectors", "cp.async"),
        (
            (
                "sm__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_access",
                "sm__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_bypass",
            ),
            (_SECTORS + "ldgsts_cache_access", _SECTORS + "ldgsts_cache_bypass"),
            (_SECTORS + "ldgsts",),
        ),
    ),
    Quantity("global atomic sectors", _global("sectors", "atomic"), ((_SECTORS + "atom", _SECTORS + "red"),)),
    Quantity("shared load wavefronts by sass", _shared("wavefronts", "load"), ((_SASS + "ld",),)),
    Quantity("ldmatrix wavefronts by sass", _shared("wavefronts", "ldmatrix"), ((_SASS + "ldsm",),)),
    Quantity("shared store wavefronts by sass", _shared("wavefronts", "store"), ((_SASS + "st",),)),
    Quantity("TMA load sectors", _global("sectors", "bulk load"), ((_READ + "read_sectors_mem_global_op_tma_ld",),)),
    Quantity("TMA store sectors", _global("sectors", "bulk store"), ((_WRITTEN + "write_sectors_mem_global_op_tma_st",),)),
    Quantity("wgmma wavefronts", _tensor_wavefronts, (("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_gmma",),)),
    Quantity("TMA instructions", _global("requests", "bulk load", "bulk store"), (("sm__inst_executed_pipe_tma",),), False),
    Quantity("wgmma instructions", _tensor_operations, (("sm__inst_executed_pipe_tensor_op_gmma",),), False),
    Quantity("shared load instructions", _instructions("load shared"), (("smsp__sass_inst_executed_op_shared_ld",),), False),
    Quantity("shared store instructions", _instructions("store shared"), (("smsp__sass_inst_executed_op_shared_st",),), False),
    Quantity("global load instructions", _instructions("load global"), (("smsp__sass_inst_executed_op_global_ld",),), False),
    Quantity("global store instructions", _instructions("store global"), (("smsp__sass_inst_executed_op_global_st",),), False),
    Quantity("ldmatrix instructions", _instructions("ldmatrix"), (("smsp__inst_executed_op_ldsm",),), False),
    Quantity("copy instructions", _instructions("cp.async"), (("smsp__inst_executed_op_ldgsts",),), False),
    Quantity("local load sectors", lambda tally: 0, (("l1tex__t_sectors_pipe_lsu_mem_local_op_ld",),), False),
    Quantity("instructions", lambda tally: tally.total_instructions, (("smsp__inst_executed",),), False),
)


def predict(job: tuple[SpecFile, str, bool]) -> dict[str, Any]:
    """Counts of the emulator for a spec, or only its identity; the reason, if it cannot be planned, compiled or run."""
    file, architecture, counts = job
    started = time.perf_counter()
    try:
        planned = plan(file.path, find_architecture(architecture))
        binary = compile_plan(planned)
        case = oracle_of(planned.spec.kind).counted_case(planned)
        sites = CopySites()
        counted = count_case(planned, binary, case, sites) if counts else None
    except GemmgenError as error:
        return {"spec": file.label, "error": str(error)}
    row = {
        "spec": file.label,
        "kernel": planned.name,
        "ptx": hashlib.sha256(binary.ptx.encode()).hexdigest()[:16],
        "case": case.name,
        "dimensions": dict(case.dimensions),
    }
    if counted is not None:
        row["predicted"] = {quantity.name: quantity.predict(counted.counters.total) for quantity in QUANTITIES}
        row["profiled"] = sites.profiled(binary, row["predicted"])
    return row | {"seconds": round(time.perf_counter() - started, 2)}


def in_order(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The specs that are still to be measured: those of all folders in turn, in each the cheapest case first."""
    waiting = [row for row in rows if "error" not in row and "measured" not in row]
    folders: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(waiting, key=lambda row: (prod(row["dimensions"].values()), row["spec"])):
        folders.setdefault(row["spec"].rpartition("/")[0], []).append(row)
    turns = [(place, folder) for folder, there in folders.items() for place in range(len(there))]
    return [str(folders[folder][place]["spec"]) for place, folder in sorted(turns)]


def read_journal(journal: Path, rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, float]]]:
    """Profiles of an earlier run, by spec, of the PTX that the rows have; a line that was cut off counts for nothing."""
    current = {row["spec"]: row.get("ptx") for row in rows}
    profiles = {}
    for line in journal.read_text().splitlines() if journal.exists() else []:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if entry["ptx"] == current.get(entry["spec"]):
            profiles[entry["spec"]] = entry["profiles"]
    return profiles


def available_metrics(ncu: str) -> set[str]:
    """The names of all metrics of this GPU, without `.sum`; empty if they cannot be listed."""
    listed = subprocess.run([ncu, "--query-metrics"], capture_output=True, text=True, timeout=120)
    return {line.split()[0] for line in listed.stdout.splitlines() if "__" in line.split(" ")[0]}


def choose_metrics(available: set[str]) -> dict[str, tuple[str, ...]]:
    """The metrics that count each quantity on this GPU."""
    chosen = {}
    for quantity in QUANTITIES:
        for alternative in quantity.alternatives:
            there = tuple(metric for metric in alternative if not available or metric in available)
            if there:
                chosen[quantity.name] = there
                break
    return chosen


def measure(
    ncu: str, specs: Sequence[str], metrics: Sequence[str], seconds: int, note: Callable[[str, list[dict[str, float]]], None]
) -> tuple[dict[str, list[dict[str, float]]], dict[str, str]]:
    """One profile for each kernel of each spec, and the errors of specs that could not be run.

    After a crash another process continues with the specs after the one that crashed. `note` receives each profile.
    """
    profiles: dict[str, list[dict[str, float]]] = {}
    errors: dict[str, str] = {}
    left = list(specs)
    deadline = time.monotonic() + seconds
    while left and time.monotonic() < deadline:
        with tempfile.TemporaryDirectory() as folder:
            report, log = Path(folder) / "report", Path(folder) / "log"
            command = [
                ncu,
                "--target-processes",
                "all",
                "--clock-control",
                "none",
                "--force-overwrite",
                "--export",
                str(report),
                "--metrics",
                ",".join(f"{metric}.sum" for metric in metrics),
                sys.executable,
                "-m",
                "measurements.run_one_case",
                *left[:_BATCH],
                "--log",
                str(log),
            ]
            try:
                timeout = max(deadline - time.monotonic(), 1)
                done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=HERE.parent)
                said = f"{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
            except subprocess.TimeoutExpired:
                said = f"ncu took more than {seconds} s in all"
            entries = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
            rows = read_report(ncu, report.with_suffix(".ncu-rep"), metrics)
        for entry in entries:
            left.remove(entry["spec"])
            if "error" in entry:
                errors[entry["spec"]] = entry["error"]
                continue
            own, rows = rows[: len(entry["kernels"])], rows[len(entry["kernels"]) :]
            if len(own) < len(entry["kernels"]) or any(name not in row["kernel"] for name, row in zip(entry["kernels"], own, strict=True)):
                errors[entry["spec"]] = f"the profile does not show its kernels: {said.strip()}"
                continue
            profiles[entry["spec"]] = [row["values"] for row in own]
            note(entry["spec"], profiles[entry["spec"]])
        if not entries and left:
            errors[left.pop(0)] = f"the process ended before this spec: {said.strip()}"
    return profiles, errors | dict.fromkeys(left, "not reached in time")


def read_report(ncu: str, report: Path, metrics: Sequence[str]) -> list[dict[str, Any]]:
    """The profiled kernels of a report, in order: name and values of the metrics."""
    if not report.exists():
        return []
    command = [ncu, "--import", str(report), "--csv", "--page", "raw", "--print-units", "base"]
    text = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    lines = text.splitlines()
    first = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        return []
    rows = []
    for row in csv.DictReader(io.StringIO("\n".join(lines[first:]))):
        if not row["ID"]:
            continue  # the line of units
        values = {}
        for metric in metrics:
            value = (row.get(f"{metric}.sum") or "").replace(",", "")
            values[metric] = float(value) if value.replace(".", "", 1).isdigit() else float("nan")
        rows.append({"kernel": row["Kernel Name"], "values": values})
    return rows


def add_measured(row: dict[str, Any], profiles: Sequence[Mapping[str, float]], chosen: Mapping[str, Sequence[str]]) -> None:
    """Puts measured counters, over all kernels of a spec, beside predicted ones."""
    row["kernels"] = len(profiles)
    measured = {name: sum(profile[metric] for profile in profiles for metric in metrics) for name, metrics in chosen.items()}
    row["measured"] = {name: int(value) if value == value else None for name, value in measured.items()}


def keep_measured(rows: Sequence[dict[str, Any]], before: Mapping[str, Any]) -> None:
    """Gives rows an earlier run's counters of the same PTX and case."""
    identity = ("ptx", "case", "dimensions")
    known = {row["spec"]: row for row in before.get("specs", ()) if "measured" in row}
    for row in rows:
        old = known.get(row["spec"])
        if old is not None and "error" not in row and all(old.get(key) == row[key] for key in identity):
            row |= {"kernels": old["kernels"], "measured": old["measured"]}


def main() -> None:
    """Predicts, measures and writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("specs", nargs="*", default=["specs"], help="specs; all that come with gemmgen, if none are named")
    parser.add_argument("--arch", help="architecture for --predict-only; else the GPU's")
    parser.add_argument("--predict-only", action="store_true")
    parser.add_argument("--measure-only", action="store_true")
    parser.add_argument("--dry-run", action="store_true", help="name the specs that would be measured; needs no GPU")
    parser.add_argument("--again", action="store_true", help="repeat earlier measurements")
    parser.add_argument("--list-metrics", action="store_true")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="how long ncu may take for all specs together")
    parser.add_argument("--output", type=Path, default=HERE / "counters", help="where to write, without .json and .md")
    arguments = parser.parse_args()
    ncu = shutil.which("ncu") or next(iter(sorted(map(str, Path("/opt/nvidia").glob("nsight-compute/*/ncu")), reverse=True)), "")
    arguments.predict_only |= arguments.dry_run
    if not ncu and not arguments.predict_only:
        parser.error("ncu was not found; with --predict-only it is not needed")
    if arguments.list_metrics:
        names = sorted(available_metrics(ncu))
        print("\n".join(name for name in names if any(word in name for word in _INTERESTING)))
        return
    if not arguments.predict_only and not gpu_available():
        parser.error("this machine has no GPU; with --predict-only none is needed")
    found = gpu(0).architecture if not arguments.predict_only else None
    architecture = arguments.arch or (found.name if found is not None else "sm_90a")
    files = [file for file in find_specs(arguments.specs) if file.label.split("/")[:2] != ["specs", "cpu"]]
    # Not forked: this process may have touched the driver.
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        counts = not (arguments.measure_only or arguments.dry_run)
        rows = list(pool.map(predict, [(file, architecture, counts) for file in files]))
    for row in rows if not arguments.dry_run else []:
        print(f"{row['spec']}: {row.get('error') or str(row['seconds']) + ' s'}", flush=True)
    written = arguments.output.with_suffix(".json")
    before = json.loads(written.read_text()) if written.exists() and not arguments.again else {}
    keep_measured(rows, before)
    journal = arguments.output.with_suffix(".journal")
    found_before = {} if arguments.again else read_journal(journal, rows)
    unknown = [spec for spec in in_order(rows) if spec not in found_before]
    if arguments.dry_run:
        print("\n".join(unknown))
        batches = -(-len(unknown) // _BATCH)
        print(f"{len(unknown)} specs in {batches} runs of ncu, {len(found_before)} in the journal; at most {arguments.seconds} s")
        return
    about: dict[str, Any] = {
        "architecture": architecture,
        "nvrtc": ".".join(map(str, nvrtc_version())),
        "date": datetime.date.today().isoformat(),
    }
    about |= {key: before[key] for key in ("date", "device", "ncu", "seconds", "metrics") if key in before}
    if not arguments.predict_only:
        chosen = choose_metrics(available_metrics(ncu))
        metrics = list(dict.fromkeys(metric for names in chosen.values() for metric in names))
        started = time.monotonic()
        ptx = {row["spec"]: row.get("ptx") for row in rows}

        def note(spec: str, profiles: list[dict[str, float]]) -> None:
            with journal.open("a") as out:
                out.write(json.dumps({"spec": spec, "ptx": ptx[spec], "profiles": profiles}) + "\n")

        profiles, errors = measure(ncu, unknown, metrics, arguments.seconds, note)
        profiles |= {spec: rows for spec, rows in found_before.items() if all(metric in row for row in rows for metric in metrics)}
        version = subprocess.run([ncu, "--version"], capture_output=True, text=True).stdout.strip().splitlines()
        about |= {"date": datetime.date.today().isoformat(), "device": str(gpu(0)), "ncu": version[-1] if version else ""}
        about["seconds"] = round(time.monotonic() - started, 1)
        about["metrics"] = {name: [f"{metric}.sum" for metric in names] for name, names in chosen.items()}
        for row in rows:
            if row["spec"] in profiles:
                add_measured(row, profiles[row["spec"]], chosen)
            elif row["spec"] in errors:
                row["error"] = errors[row["spec"]]
    must_agree = [quantity.name for quantity in QUANTITIES if quantity.must_agree]
    written.write_text(json.dumps({**about, "must_agree": must_agree, "specs": rows}, indent=1) + "\n")
    if arguments.measure_only:
        return
    text = markdown(about, rows, must_agree)
    arguments.output.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
