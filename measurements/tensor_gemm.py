"""Times the GEMM instances for Hopper's tensor cores beside cuBLAS through torch, type by type and shape by shape, in one run.

    python -m measurements.tensor_gemm --kinds bf16,tf32            on a machine with an H100 or H200, and torch

Writes tensor_gemm.json and tensor_gemm.md beside this file; problems that are not measured keep what was there.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from gemmgen.core.errors import GemmgenError
from gemmgen.dispatch.candidates import Candidate
from gemmgen.dispatch.devices import as_device
from gemmgen.dispatch.model import model_seconds
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import choose, fitted, set_best
from gemmgen.dispatch.table import read_table, write_table
from gemmgen.hardware.target import device as find_device
from gemmgen.kernels.family import KernelSpec
from gemmgen.kernels.gemm.request import GemmRequest
from gemmgen.kernels.gemm.spec import GemmSpec, TensorCoreMainloop
from gemmgen.kernels.spec_files import load_spec
from gemmgen.perf.clocks import ClockReader
from gemmgen.perf.cost_model import cost_model_of
from gemmgen.runtime.cuda.driver import gpu
from gemmgen.toolchain.compilation import compile_plan
from measurements.tensor_gemm_report import markdown, specs_of, with_rows

HERE = Path(__file__).resolve().parent
SPECS = HERE.parent / "specs" / "gemm"
CUBES = (256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
ROWS = (1, 16, 64, 128, 512, 2048, 8192)
LAYERS = ((4096, 4096), (11008, 4096), (4096, 11008), (6144, 4096))
OTHERS = ((8192, 8192, 64), (4096, 4096, 256), (128, 128, 65536), (50257, 1024, 768))
ODD = ((1023, 1023, 1023), (2047, 2047, 2047), (777, 3001, 333))
SHAPES = [(n, n, n) for n in CUBES] + [(m, n, k) for n, k in LAYERS for m in ROWS] + list(OTHERS)
BATCHES = ((512, 512, 64, 64), (128, 128, 64, 96))
CHAIN_ROWS = (128, 512, 2048, 8192)


def _texts(words: str, shapes: Iterable[Sequence[int]]) -> list[str]:
    return [",".join([*map(str, shape), words]) for shape in shapes]


def _half(kind: str) -> list[str]:
    """All shapes with the second factor transposed, the other storage orders, batches, and extents that no copy engine takes."""
    found = _texts(f"nt,{kind}", SHAPES)
    for layout in ("nn", "tn", "tt"):
        found += _texts(f"{layout},{kind}", [(n, n, n) for n in (1024, 4096)])
    found += [text for *shape, batch in BATCHES for text in _texts(f"nt,{kind},batch={batch}", [shape])]
    return found + _texts(f"nt,{kind},unaligned", ODD)


PROBLEMS: dict[str, list[str]] = {
    "bf16": _half("bf16"),
    "f16": _half("f16"),
    "int8": _texts("nt,s8", SHAPES),
    "int8_scaled": _texts("nt,s8_s8_s8,scale_row,scale_column", SHAPES),
    "fp8": _texts("nt,e4m3", SHAPES),
    "tf32": _texts("nt,tf32", SHAPES) + _texts("nt,tf32,unaligned", ODD),
    "bias_gelu": _texts("nt,bf16,bias,gelu", [(m, n, k) for n, k in LAYERS for m in CHAIN_ROWS]),
    "bias_residual_relu": _texts("nt,bf16,bias,residual,relu", [(m, n, k) for n, k in LAYERS for m in CHAIN_ROWS]),
}
HELD_OUT_SHAPES = (
    [(n, n, n) for n in (640, 1280, 1792, 2560, 5120)]
    + [(8, 5120, 5120), (32, 14336, 4096), (48, 3072, 8192), (96, 5120, 5120), (192, 14336, 4096), (256, 4096, 14336)]
    + [(384, 3072, 8192), (1024, 5120, 5120), (4096, 3072, 8192), (2304, 768, 32768)]
)
HELD_OUT: dict[str, list[str]] = {
    kind: _texts(words, HELD_OUT_SHAPES)
    for kind, words in {"bf16": "nt,bf16", "int8": "nt,s8", "fp8": "nt,e4m3", "tf32": "nt,tf32"}.items()
}
"""Problems that nothing was tuned on, and that are in no table."""
LARGEST_TURNED = 256
"""Rows up to which instances that compute the transpose of C, for few rows, are timed."""
RULED_OUT = 2.2
"""Instances that the model says take so many times as long as the best are not timed."""
FACTORS = {
    "bf16": "bf16",
    "f16": "bf16",
    "int8": "s8",
    "int8_scaled": "s8",
    "fp8": "e4m3",
    "tf32": "tf32",
    "bias_gelu": "bf16",
    "bias_residual_relu": "bf16",
}
"""The type of A in instances that are timed on a kind of problem."""


def instances(kind: str, folders: Sequence[Path]) -> list[Candidate]:
    """The instances on tensor cores that multiply a kind's type."""
    found: dict[str, Candidate] = {}
    for path in sorted(path for folder in folders for path in folder.rglob("*.yaml")):
        spec = load_spec(path)
        if not isinstance(spec, GemmSpec) or not isinstance(spec.mainloop, TensorCoreMainloop) or spec.mainloop.arithmetic.f32_by:
            continue
        if spec.storage.a == FACTORS[kind]:
            found.setdefault(path.stem, Candidate(path.stem, spec))
    return list(found.values())


def fitting(request: GemmRequest, candidates: Sequence[Candidate], most: int, before: Sequence[str]) -> dict[str, Any]:
    """Fits, plans and dimensions of the instances that can serve a request and that the model does not rule out, each kernel once:
    as many as the model likes most, the one that is chosen, and those that were fastest before."""
    device = as_device(gpu(0))
    architecture = device.architecture
    found: dict[str, Any] = {}
    for candidate in candidates:
        assert isinstance(candidate.spec, GemmSpec) and isinstance(candidate.spec.mainloop, TensorCoreMainloop)
        if candidate.spec.order == "column_major" and request.m > LARGEST_TURNED:
            continue
        option = fitted(candidate, request, architecture)
        if not isinstance(option, str):
            fit, planned, dimensions = option
            found.setdefault(planned.name, (candidate.label, fit, planned, set_best(planned, dimensions, device)[0]))
    work = cost_model_of("gemm").work
    seconds = {name: model_seconds(work(plan, dimensions), device) for name, (_, _, plan, dimensions) in found.items()}
    limit = RULED_OUT * min(seconds.values(), default=0.0)
    wanted = set(sorted(seconds, key=lambda name: seconds[name])[:most])
    wanted |= {choose(request, device).chosen.plan.name, *(name for name, (label, *_) in found.items() if label in before)}
    return {label: entry for name, (label, *entry) in found.items() if seconds[name] <= limit and name in wanted}


def compiled(plan: Any) -> Any:
    """The binary of a plan; None, with a line, if it does not compile."""
    try:
        return compile_plan(plan)
    except GemmgenError as error:
        print(f"{plan.name}: {str(error)[:300]}", flush=True)
        return None


def compile_all(plans: Mapping[str, Any], pool: ProcessPoolExecutor) -> dict[str, Any]:
    """Binaries by the names of kernels; without those that do not compile."""
    return {name: binary for name, binary in zip(plans, pool.map(compiled, plans.values()), strict=True) if binary is not None}


def described(text: str, peer: Sequence[float] | None, times: Mapping[str, Sequence[float]], wrong: Sequence[str]) -> str:
    """One problem's result in a line."""
    best = sorted(times, key=lambda name: times[name][0])
    beside = f"torch {peer[0]:.2f}" if peer else "torch refuses"
    ratio = f"{peer[0] / times[best[0]][0]:.2f}" if peer and best else "-"
    mistakes = f" WRONG: {', '.join(wrong)}" if wrong else ""
    return f"{text}: {ratio} ({beside}: {', '.join(f'{name} {times[name][0]:.2f}' for name in best[:4])}){mistakes}"


def run(
    kind: str,
    folders: Sequence[Path],
    rounds: int,
    texts: Sequence[str],
    until: float,
    clocks: ClockReader,
    most: int,
    before: Mapping[str, Sequence[str]],
) -> list[dict[str, Any]]:
    """Measures one kind's problems until a time. ``before``: instances that were fastest before, by problem."""
    from measurements.tensor_gemm_contest import Entry, measure

    device = gpu(0)
    candidates = instances(kind, folders)
    requests = [request for request in (parse_problem(f"gemm:{text}") for text in texts) if isinstance(request, GemmRequest)]
    served = {request.text: fitting(request, candidates, most, before.get(text, ())) for text, request in zip(texts, requests, strict=True)}
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        binaries = compile_all({plan.name: plan for fits in served.values() for _, plan, _ in fits.values()}, pool)
    rows = []
    for text, request in zip(texts, requests, strict=True):
        if time.monotonic() > until:
            print(f"{kind}: no time for {text} and what follows", flush=True)
            break
        entries = [
            Entry(label, fit, plan, dimensions, binaries[plan.name])
            for label, (fit, plan, dimensions) in served[request.text].items()
            if plan.name in binaries
        ]
        try:
            outcome = measure(request, entries, device.l2_bytes, rounds, clocks.sample)
        except GemmgenError as error:
            print(f"{text}: {str(error)[:300]}", flush=True)
            continue
        print(described(text, outcome.peer, outcome.times, outcome.wrong), flush=True)
        rows.append(
            {
                "kind": kind,
                "problem": text,
                "shape": request.sizes,
                "batch": request.c.shape[0] if request.batched else 1,
                "peer_us": outcome.peer,
                "fused_us": outcome.fused,
                "times_us": outcome.times,
                "trials_us": outcome.trials,
                "wrong": outcome.wrong,
            }
        )
    return rows


def all_specs(folders: Sequence[Path]) -> dict[str, KernelSpec]:
    """The instances on tensor cores by the names of their files."""
    found: dict[str, KernelSpec] = {}
    for path in (path for folder in folders for path in sorted(folder.rglob("*.yaml"))):
        for name, spec in specs_of({path.stem: load_spec(path)}).items():  # other kernels may have the same name
            found.setdefault(name, spec)
    return found


def wanted_problems(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """Problems by kind."""
    if arguments.problems is None:
        known = HELD_OUT if arguments.held_out else PROBLEMS
        return {kind: known[kind] for kind in arguments.kinds.split(",") if kind in known}
    found: dict[str, list[str]] = {}
    for line in arguments.problems.read_text().splitlines():
        kind, _, text = line.strip().partition(" ")
        if kind:
            found.setdefault(kind, []).append(text)
    return found


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kinds", default=",".join(PROBLEMS), help="types, with commas")
    parser.add_argument("--problems", type=Path, help="a file of problems to measure instead, a kind and a problem's words on a line")
    parser.add_argument("--held-out", action="store_true", help="measure problems that nothing was tuned on instead")
    parser.add_argument("--specs", type=Path, action="append", help="folders of instances to time; default: specs/gemm")
    parser.add_argument(
        "--contenders", type=int, default=1 << 20, help="instances that the model likes most to time on a problem; default: all"
    )
    parser.add_argument("--rounds", type=int, default=7, help="replays of each instance for a problem")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no problem after so long")
    parser.add_argument("--output", type=Path, default=HERE / "tensor_gemm", help="where to write, without .json and .md")
    parser.add_argument("--report", action="store_true", help="measure nothing, write the tables anew")
    parser.add_argument("--table", type=Path, help="a table of tuned instances that takes over what was measured")
    arguments = parser.parse_args()
    until = time.monotonic() + arguments.seconds
    folders = arguments.specs or [SPECS]
    data_path = arguments.output.with_suffix(".json")
    data: dict[str, Any] = json.loads(data_path.read_text()) if data_path.exists() else {"rows": []}
    if not arguments.report:
        device = gpu(0)
        clocks = ClockReader(device.pci_bus_id)
        for kind, texts in wanted_problems(arguments).items():
            before = {row["problem"]: list(row["times_us"]) for row in data["rows"] if row["kind"] == kind}
            rows = run(kind, folders, arguments.rounds, texts, until, clocks, arguments.contenders, before)
            measured = {row["problem"] for row in rows}
            kept = [row for row in data["rows"] if row["kind"] != kind or row["problem"] not in measured]
            about = {"device": str(device), "date": datetime.date.today().isoformat(), "clocks": clocks.summary().sm_median}
            data = {**about, "rows": [*kept, *rows]}
            data_path.write_text(json.dumps(data, indent=1) + "\n")
    specs, described_device = all_specs(folders), find_device("H200")
    arguments.output.with_suffix(".md").write_text(markdown(data, data["rows"], specs, described_device))
    if arguments.table:
        write_table(with_rows(read_table(arguments.table), data["rows"], specs, described_device), arguments.table)


if __name__ == "__main__":
    main()
