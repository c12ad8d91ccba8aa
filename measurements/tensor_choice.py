"""The kernels that ``ops.matmul`` chooses for 16-bit products and for tf32, beside multiply-adds and what else it could have chosen.

    python -m measurements.tensor_choice             on a machine with an H100 or H200, and torch

Shapes are those of ``odd_shapes``: many kinds, drawn by a seed. Beside the chosen instance, those of multiply-adds that the model likes
most are timed, and others on tensor cores; every result is first compared on small integers, for equality. Writes tensor_choice.json
and tensor_choice.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import multiprocessing
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from gemmgen.core.errors import GemmgenError
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import Option, choose
from gemmgen.dispatch.tuning import contenders
from gemmgen.hardware.target import DEVICES, Device
from gemmgen.hardware.target import device as find_device
from gemmgen.kernels.gemm.request import GemmRequest
from gemmgen.toolchain.compilation import compile_plan
from measurements.choice import add_to_table, fitted_instance
from measurements.odd_shapes import SEEN, shapes

HERE = Path(__file__).resolve().parent
SEED = 1401
TYPES = ("bf16", "f16", "tf32")
TENSOR_CORES = ("tensor_core", "mma_sync")
OF_FFMA = 3
"""Instances of multiply-adds that are timed on a problem."""
OF_EACH = 3
"""Instances of each way to use tensor cores that are timed beside the chosen one."""
SLOWER = 1.03
"""Times as long from which on a choice counts as slower: below, two runs of one kernel differ as much."""


def problems(seed: int, types: Sequence[str]) -> list[str]:
    """Products of every kind in each type, in an order in which any first part is a sample of all."""
    found = []
    for type in types:
        for shape in (*shapes(seed), *SEEN):
            if shape.gelu:
                continue
            words = [str(shape.m), str(shape.n), str(shape.k), shape.letters, type]
            words += [f"batch={shape.batch}"] if shape.batch > 1 else []
            found.append(",".join(words + (["unaligned"] if shape.offset else [])))
    random.Random(seed).shuffle(found)
    return found


def way(option: Option) -> str:
    """The unit that multiplies: ``wgmma``, ``mma.sync``, or ``ffma``."""
    strategy = option.plan.spec.mainloop.strategy  # type: ignore[attr-defined]
    return {"tensor_core": "wgmma", "mma_sync": "mma.sync"}.get(strategy, "ffma")


def tried(text: str, device: Device) -> list[Option]:
    """The chosen instance first, then others of every way."""
    request = parse_problem(f"gemm:{text}")
    chosen = choose(request, device).chosen
    found, counts = {chosen.plan.name: chosen}, dict.fromkeys(("wgmma", "mma.sync", "ffma"), 0)
    for option in contenders(request, device, device.architecture, most=1 << 20, extra=0):
        if counts[way(option)] < (OF_FFMA if way(option) == "ffma" else OF_EACH) and option.plan.name not in found:
            counts[way(option)] += 1
            found[option.plan.name] = option
    return list(found.values())


def compile_tried(text: str, device: str) -> str:
    """Compiles the instances of a problem into the user's cache; the problem again."""
    for option in tried(text, find_device(device)):
        try:
            compile_plan(option.plan)
        except GemmgenError as error:
            print(f"{text}: {option.candidate.label}: {str(error).splitlines()[0]}", flush=True)
    return text


def measured(text: str, device: Device, rounds: int) -> dict[str, Any]:
    """One problem's times in microseconds, by instance."""
    from gemmgen.runtime.cuda.driver import gpu
    from measurements.tensor_gemm_contest import Entry, measure

    request = parse_problem(f"gemm:{text}")
    assert isinstance(request, GemmRequest)
    options = tried(text, device)
    names = [f"{option.candidate.label}" if index else f"{option.candidate.label}*" for index, option in enumerate(options)]
    entries = [
        Entry(name, option.fit, option.plan, option.dimensions, compile_plan(option.plan))
        for name, option in zip(names, options, strict=True)
    ]
    outcome = measure(request, entries, gpu(0).l2_bytes, rounds, lambda: None, kept=math.inf)
    return {
        "problem": text,
        "chosen": names[0],
        "ways": {name: way(option) for name, option in zip(names, options, strict=True)},
        "torch_us": outcome.peer[0] if outcome.peer else None,
        "times_us": {name: round(values[0], 3) for name, values in outcome.times.items()},
        "wrong": outcome.wrong,
    }


def best(row: Mapping[str, Any], *ways: str) -> tuple[str, float] | None:
    """The fastest instance of some ways, and its time; None where none was timed."""
    found = {name: us for name, us in row["times_us"].items() if row["ways"][name] in ways}
    return min(found.items(), key=lambda item: item[1]) if found else None


def tabulate(path: Path) -> int:
    """Adds what was measured to the device's tuned table; the number of problems."""
    data = json.loads(path.read_text())
    device = find_device(next(name for name in DEVICES if name in data["device"]))
    found = []
    for row in data["rows"]:
        problem = f"gemm:{row['problem']}"
        times = {name.rstrip("*"): us for name, us in row["times_us"].items()}
        known = {label: us for label, us in times.items() if fitted_instance(label, parse_problem(problem), device) is not None}
        found.append((problem, known, row["torch_us"]))
    add_to_table(device, found)
    return len(found)


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def markdown(data: Mapping[str, Any]) -> str:
    """The page."""
    lines = [
        "# The choice on tensor cores beside multiply-adds",
        "",
        f"{data['device']}, {data['date']}, torch {data['torch']}. Device time by CUDA-graph replay, operands rotated beyond the L2,",
        "all in turns; every result was first compared on small integers. *FFMA*: the fastest of the instances of multiply-adds that were",
        "timed; *best*: the fastest of all that were timed. 8-bit products have no instance of multiply-adds.",
        "`python -m measurements.tensor_choice` makes this file.",
        "A choice counts as slower where it takes more than 3% longer than the best multiply-adds: where it is on tensor cores, these",
        "should have been taken; where it is not, others of them.",
        "",
        "| type | products | on tensor cores | FFMA / chosen, mean | least | slower, on tensor cores | slower, on FFMA "
        "| chosen / best, mean | most |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    sections: list[str] = []
    for type in data["types"]:
        rows = [row for row in data["rows"] if row["problem"].split(",")[4] == type and row["chosen"] in row["times_us"]]
        ratios: list[float] = []
        regrets: list[float] = []
        slower = {True: 0, False: 0}
        own = [
            "",
            f"## {type}",
            "",
            "| problem | torch µs | chosen µs | FFMA µs | best µs | chosen | best |",
            "|---|---:|---:|---:|---:|---|---|",
        ]
        for row in rows:
            time_chosen = row["times_us"][row["chosen"]]
            ffma, top = best(row, "ffma"), min(row["times_us"].items(), key=lambda item: item[1])
            if ffma:
                ratios.append(ffma[1] / time_chosen)
                slower[row["ways"][row["chosen"]] == "ffma"] += ratios[-1] * SLOWER < 1
            regrets.append(time_chosen / top[1])
            torch_us = f"{row['torch_us']:.1f}" if row["torch_us"] else "refuses"
            beside = f"{ffma[1]:.1f}" if ffma else ""
            names = f"{row['chosen'].rstrip('*')} | {top[0].rstrip('*')}"
            own.append(f"| {row['problem']} | {torch_us} | {time_chosen:.1f} | {beside} | {top[1]:.1f} | {names} |")
        on_tensor_cores = sum(row["ways"][row["chosen"]] != "ffma" for row in rows)
        lines.append(
            f"| {type} | {len(rows)} | {on_tensor_cores} | {_mean(ratios):.2f} | {min(ratios, default=math.nan):.2f} "
            f"| {slower[False]} | {slower[True]} "
            f"| {_mean(regrets):.3f} | {max(regrets, default=math.nan):.2f} |"
        )
        sections += own
    wrong = [f"{row['problem']}: {name}" for row in data["rows"] for name in row["wrong"]]
    return "\n".join([*lines, "", f"Wrong results: {', '.join(wrong) or 'none'}.", *sections]) + "\n"


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--types", nargs="+", choices=TYPES, default=list(TYPES))
    parser.add_argument("--seconds", type=float, default=120.0, help="begin no further problem after so long")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--plan", metavar="DEVICE", help="only say what would be timed on a device such as H200")
    parser.add_argument("--report", action="store_true", help="measure nothing, write the page anew")
    parser.add_argument("--tabulate", action="store_true", help="measure nothing, add what was measured to the tuned table of its device")
    parser.add_argument("--output", type=Path, default=HERE / "tensor_choice", help="where to write, without .json and .md")
    arguments = parser.parse_args()
    path = arguments.output.with_suffix(".json")
    texts = problems(arguments.seed, arguments.types)
    if arguments.tabulate:
        print(f"{tabulate(path)} problems")
        return
    if arguments.plan:
        for text in texts:
            print(text, *(f"{option.candidate.label} {option.seconds * 1e6:.1f}" for option in tried(text, find_device(arguments.plan))))
        return
    if not arguments.report:
        import torch

        from gemmgen.dispatch.devices import gpu_device

        started, device = time.monotonic(), gpu_device(0)
        torch.manual_seed(arguments.seed)
        data: dict[str, Any] = {
            "device": torch.cuda.get_device_name(0),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "torch": torch.__version__,
            "seed": arguments.seed,
            "types": list(arguments.types),
            "rows": [],
        }
        with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
            for text, ready in [(text, pool.submit(compile_tried, text, device.name)) for text in texts]:
                if time.monotonic() - started > arguments.seconds:
                    break
                try:
                    ready.result()
                    row = measured(text, device, arguments.rounds)
                except (GemmgenError, RuntimeError) as error:
                    print(f"{text}: {' '.join(str(error).split())[:300]}", flush=True)
                    continue
                data["rows"].append(row)
                times = ", ".join(f"{name} {us:.1f}" for name, us in sorted(row["times_us"].items(), key=lambda item: item[1]))
                print(f"{time.monotonic() - started:5.0f} {text}: torch {row['torch_us']}; {times}; wrong {row['wrong']}", flush=True)
                path.write_text(json.dumps(data, indent=1) + "\n")
            pool.shutdown(cancel_futures=True)
        print(f"{len(data['rows'])} of {len(texts)} problems in {time.monotonic() - started:.0f} s", flush=True)
    page = markdown(json.loads(path.read_text()))
    path.with_suffix(".md").write_text(page)
    print("\n".join(page.splitlines()[7:14]))


if __name__ == "__main__":
    main()
