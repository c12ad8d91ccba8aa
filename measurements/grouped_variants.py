"""Ways to compute grouped products, each checked and timed: instances, how tiles are dealt out, and their order.

    python -m measurements.grouped_variants --seconds 150          on a machine with an H100 or H200, and torch

Writes grouped_variants.json and grouped_variants.md; cases that there is no time for are named.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gemmgen.core.errors import GemmgenError, PlanError
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import choose, planned
from gemmgen.hardware.target import Device
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.gemm.spec import GemmSpec, Rasterization, TensorCoreMainloop
from gemmgen.kernels.requests import Fit
from gemmgen.toolchain.compilation import compile_plan
from measurements.grouped_bounds import uneven_ends

HERE = Path(__file__).resolve().parent
CASES = ((16, 8192, 4096, 4096), (64, 32768, 2048, 4096), (8, 4096, 7168, 2048), (64, 8192, 4096, 2048), (128, 8192, 2048, 4096))
"""(groups, m, n, k)."""
Variant = tuple[str, Fit, KernelPlan, dict[str, int]]
"""Name, fit, plan and dimensions."""
TYPES = ("bf16", "e4m3_e4m3_bf16")
INSTANCES = 8
"""Those of the least estimated time that are tried for a case."""
LEAD = 2
"""Those of which every way to deal tiles out is tried."""
LOW_TILE = 64
"""Rows of tiles that are tried, whatever their estimated time."""
ROUNDS = 7
GRAPH_SECONDS = 2e-3


def ways(spec: GemmSpec) -> Iterator[tuple[str, GemmSpec]]:
    """A spec, and the same with tiles dealt out and ordered otherwise."""
    yield "", spec
    mainloop = spec.mainloop
    if not isinstance(mainloop, TensorCoreMainloop):
        return
    if mainloop.tiles == "dynamic":
        yield "round-robin", spec.model_copy(update={"mainloop": mainloop.model_copy(update={"tiles": "static"})})
    for along, group in (("minor", 1), ("major", 4), ("major", 8)):
        yield (
            f"{along} in {group}",
            spec.model_copy(update={"rasterization": Rasterization.model_validate({"along": along, "group": group})}),
        )


def variants(case: tuple[int, ...], kind: str, device: Device) -> list[Variant]:
    """Names, fits, plans and dimensions of what is tried for a case: the choice of ``ops`` first."""
    groups, m, n, k = case
    options = choose(parse_problem(f"gemm:{m},{n},{k},{kind},nt,groups={groups}"), device).options
    found: dict[str, Variant] = {}
    low = [option for option in options[INSTANCES:] if getattr(option.plan, "tile_m", 0) == LOW_TILE]
    for place, option in enumerate([*options[:INSTANCES], *low[:LEAD]]):
        spec = option.fit.spec
        assert isinstance(spec, GemmSpec)
        for words, changed in ways(spec) if place < LEAD else [("", spec)]:
            try:
                plan = planned(changed, device.architecture) if words else option.plan
            except PlanError:
                continue
            name = " ".join(filter(None, (option.candidate.label.rpartition("/")[2], words)))
            found.setdefault(plan.name, (name, replace(option.fit, spec=changed), plan, dict(option.dimensions)))
    return list(found.values())


def compiled(plan: KernelPlan) -> Any:
    """The binary; None if there is none."""
    try:
        return compile_plan(plan)
    except GemmgenError as error:
        print(f"{plan.name}: {str(error)[:200]}", flush=True)
        return None


def launched(launcher: Any, stream: int, values: Any, index: int) -> None:
    """A launch, on the only set of operands."""
    assert index == 0
    launcher.launch(stream, *values)


def measured(case: tuple[int, ...], kind: str, tried: list[Variant], binaries: list[Any]) -> dict[str, Any]:
    """Microseconds of the variants that give what float32 does on small integers, and the names of those that do not."""
    import torch

    from gemmgen.perf.contestants import Contestant, measure_in_turns
    from gemmgen.perf.timing import capture
    from gemmgen.runtime.cuda.driver import LoadedBinary
    from gemmgen.runtime.cuda.launcher import Launcher

    groups, m, n, k = case
    made = torch.bfloat16 if kind == "bf16" else torch.float8_e4m3fn
    generator = torch.Generator(device="cuda").manual_seed(groups)
    ends = uneven_ends(groups, m)
    offsets = torch.from_numpy(ends).cuda()
    out = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")

    def drawn(*shape: int, integers: bool) -> Any:
        kept = torch.empty(shape, dtype=made, device="cuda")
        for part in kept.view(-1, shape[-2], k) if len(shape) > 2 else [kept]:
            values = torch.randint(-1, 2, part.shape, generator=generator, device="cuda").float() if integers else None
            part.copy_(torch.randn(part.shape, generator=generator, device="cuda") if values is None else values)
        return kept

    a, b = drawn(m, k, integers=True), drawn(groups, n, k, integers=True)
    expected, start = torch.empty_like(out), 0
    for index, end in enumerate(ends.tolist()):
        expected[start:end] = (a[start:end].float() @ b[index].float().T).to(out.dtype)
        start = end
    launches: dict[str, Callable[[int], None]] = {}
    wrong = []
    with ExitStack() as cleanup:
        stream = torch.cuda.Stream()
        handle = int(stream.cuda_stream)
        for (name, fit, plan, dimensions), binary in zip(tried, binaries, strict=True):
            if binary is None:
                continue
            loaded = LoadedBinary(binary.cubin, binary.architecture, 0)
            cleanup.callback(loaded.unload)
            sequence = plan.sequence
            launcher = Launcher(loaded, sequence.resolve(dimensions), dimensions)
            memory = torch.zeros(max(16, sequence.workspace_bytes.evaluate(dimensions)), dtype=torch.uint8, device="cuda")
            cleanup.callback(memory.untyped_storage)  # the stack keeps it alive as long as the graphs
            tensors = {"a": a, "b": b, "out": out, "offsets": offsets}
            pointers = {array: int(tensors[operand].data_ptr()) for array, (operand, _) in fit.arrays.items()}
            pointers |= dict.fromkeys(sequence.workspace_names, int(memory.data_ptr()))
            values = launcher.values(pointers, {"alpha": 1.0, "beta": 0.0} | sequence.default_scalars)
            out.fill_(float("nan"))
            torch.cuda.synchronize()
            launcher.launch(handle, *values)
            torch.cuda.synchronize()
            if torch.equal(out, expected):
                launches[name] = partial(launched, launcher, handle, values)
            else:
                wrong.append(name)
        a.copy_(drawn(m, k, integers=False))
        b.copy_(drawn(groups, n, k, integers=False))
        torch.cuda.synchronize()
        contestants = [Contestant(name, "candidate", launch, partial(capture, cleanup, handle)) for name, launch in launches.items()]
        samples, counts = measure_in_turns(handle, contestants, 1, ROUNDS, lambda: None, GRAPH_SECONDS)
        torch.cuda.synchronize()
    times = {
        one.name: round(float(np.median(values)) / count * 1e6, 2) for one, values, count in zip(contestants, samples, counts, strict=True)
    }
    return {"type": kind, "groups": groups, "m": m, "n": n, "k": k, "microseconds": times, "wrong": wrong}


def table(rows: list[dict[str, Any]], header: str) -> str:
    """The rows as a page."""
    lines = ["# Ways to compute grouped products", "", header, ""]
    lines += [
        "Microseconds, the choice of `ops.grouped_matmul` first. Without a word: tiles by a counter, along the rows of a group first.",
        "Results were compared on small integers, for equality, before anything was timed.",
        "",
    ]
    for row in rows:
        shape = f"{row['type']}, {row['groups']} groups, m = {row['m']}, n = {row['n']}, k = {row['k']}"
        times = row["microseconds"]
        best = min(times.values(), default=0.0)
        lines += [f"## {shape}", "", "| way | µs | of the best |", "|---|---:|---:|"]
        lines += [f"| {name} | {value:.1f} | {value / best:.2f} |" for name, value in times.items()]
        lines += ["", *([f"Wrong: {', '.join(row['wrong'])}.", ""] if row["wrong"] else [])]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no case after so long")
    parser.add_argument("--out", type=Path, default=HERE)
    arguments = parser.parse_args()
    until = time.monotonic() + arguments.seconds
    from gemmgen.dispatch.devices import as_device
    from gemmgen.runtime.cuda.driver import gpu

    device = as_device(gpu(0))
    wanted = [(case, kind) for kind in TYPES for case in CASES]
    tried = {each: variants(*each, device) for each in wanted}
    plans = {plan.name: plan for entries in tried.values() for _, _, plan, _ in entries}
    with ThreadPoolExecutor() as pool:
        binaries = dict(zip(plans, pool.map(compiled, plans.values()), strict=True))
    rows = []
    for case, kind in wanted:
        if time.monotonic() > until:
            print(f"no time for {kind} {case}", flush=True)
            continue
        rows.append(measured(case, kind, tried[case, kind], [binaries[plan.name] for _, _, plan, _ in tried[case, kind]]))
        print(json.dumps(rows[-1]), flush=True)
        about = {"device": str(gpu(0)), "date": datetime.now(UTC).date().isoformat(), "rows": rows}
        (arguments.out / "grouped_variants.json").write_text(json.dumps(about, indent=1) + "\n")
        (arguments.out / "grouped_variants.md").write_text(
            table(rows, f"{about['device']}, {about['date']}; medians of {ROUNDS} graphs in turns.")
        )


if __name__ == "__main__":
    main()
