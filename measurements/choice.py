"""The choice among instances, held against everything that it could have taken, on shapes that a seeded generator draws.

    python -m measurements.choice --collect                on a machine with a GPU and torch: times the candidates of every shape
    python -m measurements.choice --collect --seed 5 -o choice_of_5
    python -m measurements.choice                          anywhere: regrets of today's choice, by the times that were collected
    python -m measurements.choice --tabulate               adds these times to the device's tuned table

Shapes are those of ``odd_shapes`` and, in float32, some near the border between multiply-adds and products by planes. Of every shape, the
instances that the model likes most, those that it likes most of each kind of mainloop, and a few others are compiled and compared with
torch on small integers, for equality; then CUDA graphs of all of them are replayed in turns, with every setting that a launch may choose.
Writes NAME.json and NAME.md; choice_fit holds what was collected for the seeds 101, 103 and 107, on which the model is calibrated.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import multiprocessing
import random
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from gemmgen.core.errors import GemmgenError, LaunchError
from gemmgen.dispatch.candidates import Candidate, candidates, reserves
from gemmgen.dispatch.matcher import settings_of
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import Option, base_name, choose_by, fitted, set_best
from gemmgen.dispatch.table import Row, Table, default_path, read_table, table_for, write_table
from gemmgen.dispatch.tuning import contenders, remodelled
from gemmgen.hardware.target import Device
from gemmgen.hardware.target import device as find_device
from gemmgen.perf.contestants import median_seconds
from gemmgen.toolchain.compilation import compile_plan
from measurements.odd_shapes import LETTERS, Shape, arrays, shapes, spread, theirs

HERE = Path(__file__).resolve().parent
SEED = 101
FAVOURITES = 14
"""Candidates that are timed because the model likes them most."""
OF_EACH_KIND = 3
"""Of each kind of mainloop, candidates that are timed beside them."""
OTHERS = 4
"""Candidates that are timed in case that the model is wrong."""
MOST_OFF = 8.0
"""Estimated time over the least beyond which a candidate is not timed."""
GRAPH_SECONDS = 3e-4
ROUNDS = 5
COUNT_OF_BORDER = 12
UNITS = ("ffma", "planes", "mma")
"""Units that multiply."""
SLOWER = 1.03
"""Times as long from which on a choice counts as slower: below, two runs of one kernel differ as much."""
NUMBERS = {"alpha": 1.0, "beta": 0.0, "gamma": 1.0, "bias": 0.0}
"""Scalars of a product, and the values of those that an instance takes at its launch."""


@dataclass
class Timed:
    """One candidate on one problem."""

    label: str
    derived: bool
    arithmetic: str
    """``ffma``, ``planes`` or ``mma``."""
    slices: int
    """That the launch chose; 0 where it has nothing to choose."""
    us: float


@dataclass
class Problem:
    """One problem with its candidates' times."""

    kind: str
    problem: str
    torch_us: float = math.nan
    times: list[Timed] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def border(seed: int) -> list[Shape]:
    """Shapes near the border between multiply-adds and products by planes: small, deep, or of few rows."""
    rng = random.Random(f"{seed}:border")
    found = []
    for _ in range(COUNT_OF_BORDER // 3):
        side = spread(rng, 128, 768, 32)
        found.append(Shape("border of planes", side, side, spread(rng, 128, 16384, 32), rng.choice(LETTERS)))
        width = rng.choice([768, 1024, 2048, 4096])
        found.append(Shape("border of planes", spread(rng, 16, 384), width, rng.choice([width, 4 * width]), "nt"))
        found.append(Shape("border of planes", *(spread(rng, 192, 1536, 16) for _ in range(3)), rng.choice(LETTERS)))
    return found


def drawn(seed: int, types: Sequence[str]) -> list[tuple[Shape, str]]:
    """Shapes with types, in an order in which any first part is a sample of all."""
    found = [(shape, type) for type in types for shape in shapes(seed)]
    found += [(shape, "f32") for shape in border(seed) if "f32" in types]
    random.Random(seed).shuffle(found)
    return found


def arithmetic(option: Option) -> str:
    """The unit that multiplies, and how."""
    mainloop: Any = option.plan.spec.mainloop  # type: ignore[attr-defined]
    if getattr(getattr(mainloop, "arithmetic", None), "f32_by", None) is not None:
        return "planes"
    return "mma" if mainloop.strategy in ("tensor_core", "mma_sync") else "ffma"


def tried(problem: str, device: Device) -> list[Option]:
    """The candidates that are timed on a problem."""
    ranked = contenders(parse_problem(problem), device, device.architecture, most=1 << 20, extra=0)
    ranked = [option for option in ranked if option.seconds < MOST_OFF * ranked[0].seconds]
    chosen = ranked[:FAVOURITES]
    kinds: dict[tuple[str, str], int] = {}
    for option in ranked:
        kind = option.plan.spec.mainloop.strategy, arithmetic(option)  # type: ignore[attr-defined]
        kinds[kind] = kinds.get(kind, 0) + 1
        if kinds[kind] <= OF_EACH_KIND and option not in chosen:
            chosen.append(option)
    rest = [option for option in ranked if option not in chosen]
    return chosen + random.Random(problem).sample(rest, min(OTHERS, len(rest)))


def compile_tried(problem: str, device: str) -> str:
    """Compiles the candidates of a problem into the user's cache; the problem again."""
    for option in tried(problem, find_device(device)):
        try:
            compile_plan(option.plan)
        except GemmgenError as error:
            print(f"{problem}: {option.candidate.label}: {str(error).splitlines()[0]}", flush=True)
    return problem


def settings(option: Option, device: Device) -> list[Option]:
    """The option with every setting that its launch may choose."""
    found = settings_of(option.plan.spec.kind)
    chosen = [{}] if found is None else found(option.plan, option.dimensions, device)
    return [replace(option, dimensions={**option.dimensions, **one}) for one in chosen]


def launcher_of(torch: Any, option: Option, early: bool) -> Any:
    """A launcher of an option on the first GPU, for ``launch``; ``early``: its kernels may start while the work before them still runs."""
    from gemmgen.ops.engine import loaded
    from gemmgen.ops.torch_memory import captured_memory, kept_memory
    from gemmgen.runtime.cuda.launcher import Launcher

    sequence = option.plan.sequence
    known = {scalar.name for scalar in sequence.scalars}
    sources = {name: f"{operand}[]" for name, (operand, _) in option.fit.arrays.items()}
    sources |= {name: source for name, source in option.fit.scalars.items() if name in known}
    slots: Any = [(f"{name}[]", "pointer") for name in ("a", "b", "bias", "out")] + [(name, "f32") for name in NUMBERS]
    memory = kept_memory(torch, 0), captured_memory(torch, 0)
    return Launcher.of_sequence(loaded(option.plan, 0), sequence, option.dimensions, slots, sources, *memory, early)


def launch(torch: Any, launcher: Any, given: Sequence[Any]) -> None:
    """Launches a product on ``given`` arrays: A, B, the bias (or None) and the result."""
    pointers = (0 if array is None else array.data_ptr() for array in given)
    launcher.launch(torch.cuda.current_stream().cuda_stream, *pointers, *NUMBERS.values())


def collect(torch: Any, shape: Shape, type: str, device: Device) -> Problem:
    """Times all candidates of one problem beside torch."""
    found = Problem(shape.kind, shape.problem(type))
    kind = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[type]
    size = torch.empty(0, dtype=kind).element_size()
    beyond = 2 * torch.cuda.get_device_properties(0).L2_cache_size
    count = max(1, min(64, math.ceil(beyond / shape.bytes(size))))
    sets = [arrays(torch, shape, kind, integers=False) for _ in range(count)]
    integers = arrays(torch, shape, kind, integers=True)
    wanted = theirs(torch, *integers[:3], torch.empty_like(integers[3]))
    if kind != torch.float32 and not shape.gelu:
        wanted = torch.matmul(integers[0].float(), integers[1].float()).to(kind)
    ways: dict[str, Any] = {"torch": lambda index: theirs(torch, *sets[index])}
    entries: dict[str, Timed] = {}
    for option in (one for each in tried(found.problem, device) for one in settings(each, device)):
        timed = Timed(option.candidate.label, bool(option.fit.derived), arithmetic(option), option.dimensions.get("slices", 0), math.nan)
        try:
            launcher = launcher_of(torch, option, option.early)
            integers[3].fill_(math.nan)
            launch(torch, launcher, integers)
            torch.cuda.synchronize()
            close = torch.allclose(integers[3].float(), wanted.float(), rtol=2e-2 if size == 2 else 1e-5, atol=1e-2)
            if not (close if shape.gelu else torch.equal(integers[3], wanted)):
                found.failures.append(f"{timed.label}: wrong result")
                continue
        except GemmgenError as error:
            found.failures.append(f"{timed.label}: {str(error).splitlines()[0]}"[:200])
            continue
        name = f"{len(ways)}: {timed.label}"
        entries[name], ways[name] = timed, lambda index, launcher=launcher: launch(torch, launcher, sets[index])
    times = median_seconds(torch, ways, sets=count, rounds=ROUNDS, graph_seconds=GRAPH_SECONDS)
    found.torch_us = round(times["torch"] * 1e6, 3)
    found.times += [replace(timed, us=round(times[name] * 1e6, 3)) for name, timed in entries.items()]
    return found


def collect_all(seed: int, types: Sequence[str], seconds: float, output: Path) -> None:
    """Times all shapes while their kernels are compiled by other processes, and writes what was found after each."""
    import torch

    from gemmgen.dispatch.devices import gpu_device

    started = time.monotonic()
    jobs = drawn(seed, types)
    device = gpu_device(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(seed)
    about = {
        "device": device.name,
        "gpu": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "seed": seed,
    }
    problems: list[Problem] = []
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        compiled = [pool.submit(compile_tried, shape.problem(type), device.name) for shape, type in jobs]
        for (shape, type), ready in zip(jobs, compiled, strict=True):
            if time.monotonic() - started > seconds:
                break
            ready.result()
            try:
                problem = collect(torch, shape, type, device)
            except (GemmgenError, RuntimeError) as error:
                print(f"{shape.problem(type)}: {' '.join(str(error).split())[:300]}", flush=True)
                continue
            torch.cuda.empty_cache()
            if not problem.times:
                print(f"{problem.problem}: {problem.failures}", flush=True)
                continue
            problems.append(problem)
            best = min(problem.times, key=lambda timed: timed.us)
            text = f"torch {problem.torch_us:9.1f}  best {best.us:9.1f}  of {len(problem.times)}, {len(problem.failures)} failed"
            print(f"{time.monotonic() - started:5.0f} {problem.problem:44s} {text}  {best.label}", flush=True)
            output.with_suffix(".json").write_text(json.dumps({**about, "problems": [asdict(one) for one in problems]}) + "\n")
        pool.shutdown(cancel_futures=True)
    print(f"{len(problems)} of {len(jobs)} problems in {time.monotonic() - started:.0f} s", flush=True)


@dataclass(frozen=True)
class Regret:
    """Pick of the choice, and its loss against the best."""

    problem: Problem
    picked: Timed
    best: Timed
    expected_us: float

    @property
    def value(self) -> float:
        """The picked instance's time over the best one's, less 1."""
        return self.picked.us / self.best.us - 1

    @property
    def best_of_others(self) -> float:
        """The least time of multiply-adds, in microseconds."""
        return min((timed.us for timed in self.problem.times if timed.arithmetic == "ffma"), default=math.nan)


def regret(problem: Problem, device: Device, table: Table | None, arithmetic: Sequence[str] = UNITS) -> Regret | None:
    """Pick of today's choice among the candidates that were timed, or those of some arithmetic, by a table without this
    problem; None if it knows none of them."""
    by_label = {label: times for label, times in grouped(problem).items() if times[0].arithmetic in arithmetic}
    names = {name for label in by_label for name in [_instance(label, device)] if name}
    request = parse_problem(problem.problem)
    texts = (problem.problem.partition(":")[2], request.text)
    own = None if table is None else next((row for row in table.rows if row.kind == request.kind and row.problem in texts), None)
    try:
        chosen = choose_by(table, request, device, without=own, among=names).chosen
    except LaunchError:
        return None
    picked = nearest(by_label[chosen.candidate.label], chosen.dimensions.get("slices", 0))
    return Regret(problem, picked, min(problem.times, key=lambda timed: timed.us), chosen.seconds * 1e6)


def beside_multiply_adds(problems: Sequence[Problem], device: Device, table: Table | None) -> list[str]:
    """For products of 16 bits: the choice among all instances beside the choice among multiply-adds."""
    ratios = {}
    for problem in problems:
        if ",bf16" in problem.problem or ",f16" in problem.problem:
            both = regret(problem, device, table), regret(problem, device, table, ("ffma",))
            if both[0] is not None and both[1] is not None:
                ratios[problem.problem] = both[1].picked.us / both[0].picked.us
    if not ratios:
        return []
    slower = sorted((ratio, text) for text, ratio in ratios.items() if ratio * SLOWER < 1)
    named = ", ".join(f"`{text}` {ratio:.2f}" for ratio, text in slower)
    return [
        "",
        f"Products of 16 bits beside what the choice among multiply-adds alone would take: {len(ratios)} of which such were timed, "
        f"{statistics.geometric_mean(ratios.values()):.2f} times as fast on average; {len(slower)} are more than "
        f"{SLOWER - 1:.0%} slower{': ' + named if slower else ''}.",
    ]


@cache
def _names(device: Device) -> dict[str, str]:
    return {label: base_name(one.spec, device.architecture) for label, one in _by_label().items()}


def _instance(label: str, device: Device) -> str | None:
    return _names(device).get(label)


def read(path: Path) -> tuple[dict[str, Any], list[Problem]]:
    """Collected times, with what they are of."""
    data = json.loads(path.read_text())
    problems = [Problem(**{**one, "times": [Timed(**timed) for timed in one["times"]]}) for one in data.pop("problems")]
    return data, [problem for problem in problems if problem.times]


def markdown(about: dict[str, Any], problems: Sequence[Problem], device: Device) -> str:
    """Regrets with and without a table."""
    tables = {"the model alone": None, "the model and the tuned table": table_for(device)}
    found = {name: [one for one in (regret(problem, device, table) for problem in problems) if one] for name, table in tables.items()}
    lines = [
        "# The choice against everything that it could have taken",
        "",
        f"{about['gpu']}, {about['date']}, seed {about['seed']}: {len(problems)} products, "
        f"{sum(len(problem.times) for problem in problems)} times of candidates. Device time by CUDA-graph replay, operands rotated",
        "beyond the L2; every result was first compared with torch's on small integers. `python -m measurements.choice` makes this file",
        "from the times; the choice is made among the instances that were timed, and looks at none of these times.",
        "",
        "| choice by | type | shapes | longer than the best, on average | at most | beyond 10% | torch / ours, mean | least |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, regrets in found.items():
        for type in ("f32", "bf16"):
            own = [one for one in regrets if (",bf16" in one.problem.problem) == (type == "bf16")]
            if own:
                values = [one.value for one in own]
                ratios = [one.problem.torch_us / one.picked.us for one in own]
                lines.append(
                    f"| {name} | {type} | {len(own)} | {statistics.mean(values):.1%} | {max(values):.0%} | {sum(v > 0.1 for v in values)} "
                    f"| {statistics.geometric_mean(ratios):.2f} | {min(ratios):.2f} |"
                )
    lines += ["", "Products by planes that were chosen, beside the best multiply-adds that were timed:", ""]
    for name, regrets in found.items():
        own = [one.best_of_others / one.picked.us for one in regrets if one.picked.arithmetic == "planes" and one.best_of_others > 0]
        if own:
            lines.append(f"- by {name}: {len(own)} products, multiply-adds take {min(own):.2f} times as long at least.")
    lines += beside_multiply_adds(problems, device, tables["the model and the tuned table"])
    lines += ["", "| problem | torch µs | best µs | of | chosen µs by the model | lost | with the table | lost |"]
    lines += ["|---|---:|---:|---|---:|---:|---:|---:|"]
    second = {one.problem.problem: one for one in found["the model and the tuned table"]}
    for one in sorted(found["the model alone"], key=lambda one: -one.value):
        other = second[one.problem.problem]
        lines.append(
            f"| `{one.problem.problem}` | {one.problem.torch_us:.1f} | {one.best.us:.1f} | {one.best.label} "
            f"| {one.picked.us:.1f} | {one.value:.0%} | {other.picked.us:.1f} | {other.value:.0%} |"
        )
    return "\n".join(lines) + "\n"


def tabulate(path: Path) -> int:
    """Adds what was collected to the device's tuned table: of instances whose launch has a choice, the time of what it chooses today.
    The number of problems."""
    about, problems = read(path)
    device = find_device(about["device"])
    found = []
    for problem in problems:
        request = parse_problem(problem.problem)
        times: dict[str, float] = {}
        for label, timed in grouped(problem).items():
            option = fitted_instance(label, request, device)
            if option is not None:
                slices = set_best(option[1], option[2], device)[0].get("slices", 0)
                times[label] = nearest(timed, slices).us
        found.append((problem.problem, times, problem.torch_us))
    add_to_table(device, found)
    return len(problems)


def add_to_table(device: Device, timed: Sequence[tuple[str, Mapping[str, float], float | None]], keep: bool = False) -> None:
    """Adds problems to the device's tuned table, each with microseconds by label of an instance and torch's, in place of what the table
    has of them; ``keep``: beside what it has of other instances."""
    target = default_path(device.name)
    table = remodelled(read_table(target), device)
    rows = {(row.kind, row.problem): row for row in table.rows}
    for problem, times, peer in timed:
        request = parse_problem(problem)
        # The words that were timed: those of a request tell that addresses or strides are no multiples of 16 bytes, not of which number.
        text = problem.partition(":")[2]
        if text != request.text:
            rows.pop((request.kind, request.text), None)
        old = rows.get((request.kind, text)) if keep else None
        new = {_names(device)[label]: us for label, us in times.items()}
        rows[request.kind, text] = Row(text, request.kind, {**(old.times if old else {}), **new}, peer=peer)
    write_table(remodelled(replace(table, rows=tuple(rows.values()), origin={**table.origin, "model": ""}), device), target)


def fitted_instance(label: str, request: Any, device: Device) -> Any:
    """The fit, plan and dimensions of an instance; None where there is none of that label, or it cannot do what is requested."""
    candidate = _by_label().get(label)
    option = "" if candidate is None else fitted(candidate, request.on(device), device.architecture)
    return None if isinstance(option, str) else option


@cache
def _by_label() -> dict[str, Candidate]:
    return {one.label: one for one in (*candidates("gemm"), *reserves("gemm"))}


def grouped(problem: Problem) -> dict[str, list[Timed]]:
    """Times by label."""
    found: dict[str, list[Timed]] = {}
    for timed in problem.times:
        found.setdefault(timed.label, []).append(timed)
    return found


def nearest(times: Sequence[Timed], slices: int) -> Timed:
    """The time of the number of slices that is nearest to one."""
    return min(times, key=lambda timed: abs(math.log((timed.slices or 1) / (slices or 1))))


def report(paths: Iterable[Path]) -> None:
    """Writes the page of each collection beside it."""
    for path in paths:
        about, problems = read(path)
        text = markdown(about, problems, find_device(about["device"]))
        path.with_suffix(".md").write_text(text)
        print("\n".join(text.splitlines()[7:20]))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collect", action="store_true", help="time the candidates on the GPU of this machine")
    parser.add_argument("--tabulate", action="store_true", help="add what was collected to the tuned table of its device")
    parser.add_argument("--compile", metavar="DEVICE", help="only fill the compile cache, for a device such as H200")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--types", nargs="+", choices=["f32", "f16", "bf16"], default=["f32", "bf16"])
    parser.add_argument("--seconds", type=float, default=120.0, help="begin no further shape after so long")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "choice_fit", help="where to write, without .json and .md")
    arguments = parser.parse_args()
    if arguments.compile:
        with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
            texts = [shape.problem(type) for shape, type in drawn(arguments.seed, arguments.types)]
            for text in pool.map(compile_tried, texts, [arguments.compile] * len(texts)):
                print(text, flush=True)
        return
    if arguments.tabulate:
        print(f"{tabulate(arguments.output.with_suffix('.json'))} problems")
        return
    if arguments.collect:
        collect_all(arguments.seed, arguments.types, arguments.seconds, arguments.output)
    report([arguments.output.with_suffix(".json")])


if __name__ == "__main__":
    main()
