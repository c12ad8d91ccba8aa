"""Specs without certificates: every case verified on a GPU, by itself and under compute-sanitizer's memcheck and racecheck.

    python -m measurements.gpu_specs specs/gemm/wgmma/dynamic.yaml ...     on a machine with a GPU and compute-sanitizer
    python -m measurements.gpu_specs --report                               writes the page anew

Instances whose sources are in the library have certificates. Writes gpu_specs.json, where specs that are not run keep their entries, and
gpu_specs.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gemmgen.core.errors import SpecError
from gemmgen.kernels.spec_files import load_spec
from gemmgen.library.sanitizing import TOOLS, find_sanitizer

HERE = Path(__file__).resolve().parent
SECONDS = 300
ALONE = "verified"
_ROW = re.compile(r"^\S+\.yaml\S* +(\S+) +(\d+)/(\d+) +([\d,]+) +(\S+) +(sm_\w+)", re.MULTILINE)
_DEVICE = re.compile(r"Ran on: gpu \((.*)\)\. ")
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")


def command(spec: str, way: str, architecture: str) -> list[str]:
    """Command that verifies a spec, by itself or under a tool."""
    tool = [] if way == ALONE else [str(find_sanitizer()), "--tool", way]
    return [*tool, sys.executable, "-m", "gemmgen", "verify", "--backend", "gpu", "--arch", architecture, spec]


def run(spec: str, way: str, architecture: str) -> str:
    """Output of the command."""
    try:
        done = subprocess.run(command(spec, way, architecture), capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout + done.stderr


def verdict(spec: str, outputs: dict[str, str]) -> dict[str, Any]:
    """A row of the page."""
    found = {way: _ROW.search(text) for way, text in outputs.items()}
    alone, device = found[ALONE], _DEVICE.search(outputs[ALONE])
    row: dict[str, Any] = {"spec": spec, "date": datetime.datetime.now(datetime.UTC).date().isoformat()}
    row |= {"device": device[1] if device else None, "verdict": alone[1] if alone else "no result"}
    if alone:
        row |= {
            "cases": int(alone[3]),
            "elements": int(alone[4].replace(",", "")),
            "error_over_bound": float(alone[5]),
            "architecture": alone[6],
        }
    for tool in TOOLS:
        summary, same = _SUMMARY.search(outputs.get(tool, "")), found.get(tool)
        row[tool] = int(summary[1]) if summary and same and same[1] == ALONE else None
    return row


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The page."""
    lines = [
        "# Specs without certificates, on a GPU",
        "",
        "Every case of `gemmgen verify` on a GPU, every element compared, those with few blocks and deep sums among them; then all of",
        "it under compute-sanitizer. *Error / bound*: the largest error of an element over the bound proven for it. *Memcheck*,",
        "*racecheck*: findings. `python -m measurements.gpu_specs` makes this page.",
        "",
        "| spec | device | date | cases | elements | error / bound | memcheck | racecheck |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in sorted(rows, key=lambda row: str(row["spec"])):
        tools = " | ".join("not run" if row[tool] is None else str(row[tool]) for tool in TOOLS)
        name = row["spec"].removeprefix("specs/").removesuffix(".yaml")
        if row["verdict"] != ALONE:
            lines.append(f"| {name} | {row['device'] or ''} | {row['date']} | {row['verdict']} | | | {tools} |")
            continue
        device = row["device"].split(",")[0]
        lines.append(
            f"| {name} | {device} | {row['date']} | {row['cases']} | {row['elements']:,} | {row['error_over_bound']:g} | {tools} |"
        )
    notes = [f"- `{row['spec']}`: {row['note']}" for row in rows if row.get("note")]
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def exists(spec: str) -> bool:
    """True if there is a spec of this name."""
    try:
        load_spec(spec)
    except SpecError:
        return False
    return True


def main() -> None:
    """Runs and writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("specs", nargs="*", help="files of specs, by their paths from the root")
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--report", action="store_true", help="run nothing, write the page anew")
    parser.add_argument("--output", type=Path, default=HERE / "gpu_specs", help="where to write, without .json and .md")
    arguments = parser.parse_args()
    path = arguments.output.with_suffix(".json")
    rows = {row["spec"]: row for row in json.loads(path.read_text())} if path.exists() else {}
    if not arguments.report:
        with ThreadPoolExecutor(arguments.jobs) as pool:
            ways = (ALONE, *TOOLS)
            waiting = {spec: {way: pool.submit(run, spec, way, arguments.arch) for way in ways} for spec in arguments.specs}
            for spec, outputs in waiting.items():
                rows[spec] = verdict(spec, {way: output.result() for way, output in outputs.items()})
                print(rows[spec], flush=True)
                path.write_text(json.dumps(list(rows.values()), indent=1) + "\n")
    kept = [row for row in rows.values() if exists(row["spec"])]
    path.write_text(json.dumps(kept, indent=1) + "\n")
    path.with_suffix(".md").write_text(markdown(kept))


if __name__ == "__main__":
    main()
