"""Kernels of no file beside those of the library and the fastest of cuBLASLt's algorithms: how good the choice among all points is.

    python -m measurements.points --seed 7 --out points.jsonl     on a machine with a GPU and torch
    python -m measurements.points --survey 60 --list kernels.jsonl             chooses kernels for many products, on any machine
    python -m measurements.points --kernels kernels.jsonl --out points.jsonl   times them, compiling while it goes
    python -m measurements.points --published      the products that gave rise to the choice among points; writes published_products.md

For each product: the choice among the library's instances, the choice among all points, the points that the model expects to be the
fastest, and a sample of others, by which the model can be fitted. Results are compared with the peer's first. All are captured in CUDA
graphs that rotate among enough arrays to exceed the L2, and replayed in turns. One JSON line for each product.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gemmgen.core.errors import GemmgenError
from gemmgen.dispatch.candidates import Candidate
from gemmgen.dispatch.model import seconds_of_many
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import MAX_EARLY, choose_by, fitted, set_best
from gemmgen.dispatch.space import bounded_seconds, least_seconds
from gemmgen.dispatch.table import table_for
from gemmgen.hardware.target import device as find_device
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.gemm import space
from gemmgen.kernels.gemm.spec import GemmSpec
from gemmgen.kernels.gemm.wgmma.space import SHALLOW
from gemmgen.kernels.requests import Fit

SETS_BYTES = 160 << 20
MAX_SETS = 24
POOL_BYTES = 640 << 20
GRAPH_SECONDS = 1e-3
ROUNDS = 7
AGREEMENT = 2e-2
"""Largest difference allowed, as a part of the largest result."""
BEST = 6
STRATA = ((1.0, 1.08, 6), (1.08, 1.2, 7), (1.2, 1.45, 6), (1.45, 2.2, 4))
"""Points by the model's time over that of its best: from, to, and how many of them are timed."""
PUBLISHED = (
    "192,2560,9216,nt,bf16",
    "128,3584,4096,nt,bf16",
    "48,5120,3072,nt,bf16",
    "96,7168,2560,nt,bf16",
    "64,18432,3584,nt,bf16",
    "384,3584,2560,nt,bf16",
    "256,14336,7168,nt,bf16",
    "640,2560,7168,nt,bf16",
    "3000,7168,2560,nt,bf16",
    "7680,7680,7680,nt,bf16",
    "192,2560,9216,nt,e4m3_e4m3_bf16",
    "32,6144,4096,nt,s8_s8_s32",
)
"""Products on which the choice among the library's instances was known to lose."""
WIDTHS = (2560, 3072, 3584, 4096, 5120, 5632, 6144, 7168, 8192, 9216, 11008, 12288, 14336)
ROWS = (16, 24, 48, 64, 96, 128, 192, 256, 320, 384, 512, 640, 1024, 1536, 3000, 5000)
TYPES = ("bf16", "bf16", "f16", "e4m3_e4m3_bf16", "s8_s8_s32")
SURVEY_ROWS = (
    16,
    24,
    32,
    40,
    48,
    64,
    80,
    96,
    112,
    128,
    160,
    192,
    224,
    256,
    320,
    384,
    448,
    512,
    640,
    768,
    896,
    1024,
    1280,
    1536,
    2048,
    3000,
    4096,
    5000,
    8192,
)
SURVEY_WEIGHTS = (3, 2, 3, 1, 3, 4, 2, 4, 2, 5, 2, 4, 2, 5, 3, 4, 2, 4, 3, 2, 2, 3, 1, 2, 2, 2, 1, 1, 1)
SURVEY_N = (1536, 2048, 2560, 3072, 3584, 4096, 5120, 5632, 6144, 7168, 8192, 9216, 11008, 12288, 14336, 18432, 28672)
SURVEY_TYPES = ("bf16", "bf16", "bf16", "e4m3_e4m3_bf16", "e4m3_e4m3_bf16")
APART = 0.15
"""Square of the distance of two kernels that are different enough to be timed both."""
NEARLY_BEST = 1.15
"""Times of the best expected, up to which random points are drawn."""
MAX_LIKELY, RANDOM = 4, 3
TORCH = {"bf16": "bfloat16", "f16": "float16", "e4m3": "float8_e4m3fn", "s8": "int8", "s32": "int32"}


@dataclass
class Entry:
    """One kernel for one product."""

    role: str
    label: str
    fit: Fit
    plan: KernelPlan
    dimensions: Mapping[str, int]
    expected: float
    modelled: float


def drawn(seed: int) -> list[str]:
    """Products of the kinds of layers of language models, by a seed."""
    rng = random.Random(seed)
    found = []
    for rows in ROWS:
        kind = rng.choice(TYPES)
        letters = "nt" if kind[0] in "es" else rng.choice(("nt", "nt", "nt", "nn"))
        found.append(f"{rows},{rng.choice(WIDTHS)},{rng.choice(WIDTHS[:10])},{letters},{kind}")
    return found


def entries(text: str, device_name: str, sample: bool, seed: int) -> list[Entry]:
    """The kernels that are timed for a product."""
    target = find_device(device_name)
    request = parse_problem(f"gemm:{text}")
    found: dict[str, Entry] = {}

    def add(role: str, candidate: Candidate, expected: float) -> None:
        option = fitted(candidate, request, target.architecture)
        if isinstance(option, str):
            print(f"# {text}: {candidate.label}: {option}", file=sys.stderr)
            return
        dimensions, modelled = set_best(option[1], option[2], target)
        found.setdefault(option[1].name, Entry(role, candidate.label, option[0], option[1], dimensions, expected or modelled, modelled))

    table = table_for(target)
    old, new = (choose_by(table, request, target, points=points) for points in (False, True))
    for role, choice in (("old", old), ("new", new)):
        option = choice.chosen
        modelled = set_best(option.plan, option.dimensions, target)[1]
        found.setdefault(
            option.plan.name, Entry(role, option.candidate.label, option.fit, option.plan, option.dimensions, option.seconds, modelled)
        )
    behind = [option for option in new.options if option.candidate.label.startswith("point/")]
    for option in behind[:BEST]:
        add("best", option.candidate, option.seconds)
    for option in old.options[1:3]:
        add("listed", option.candidate, option.seconds)
    if sample:
        for candidate in sampled(request, target, seed):
            add("sample", candidate, 0.0)
    return list(found.values())


def sampled(request: Any, target: Any, seed: int) -> Iterator[Candidate]:
    """Points whose expected times are spread over a range."""
    rng = random.Random(f"{request.text} {seed}")
    groups = space.points(request, target)
    timed = sorted(
        (float(seconds), number, place)
        for number, points in enumerate(groups)
        for place, seconds in enumerate(seconds_of_many(points.works, target))
    )
    for least, most, count in STRATA:
        inside = [one for one in timed if least <= one[0] / timed[0][0] < most]
        # Of each kind of kernel as many, so that none fills the sample.
        for number in range(count):
            kind = number % len(groups)
            alike = [one for one in inside if one[1] == kind] or inside
            if alike:
                seconds, group, place = rng.choice(alike)
                spec = groups[group].spec(place, seconds < MAX_EARLY)
                yield Candidate(space.label(spec), spec)
    plain = groups[0].features if groups else []
    for place, row in enumerate(plain):  # the tile that won a sweep of its own
        if (row[0], row[1]) == (6, 6) and not row[6:11].any() and request.a.element_bytes == 2:
            spec = groups[0].spec(place, True)
            yield Candidate(space.label(spec), spec)


def surveyed(count: int, seed: int) -> list[str]:
    """Products for a survey, by a seed: more of medium sizes, where choices are hard."""
    rng = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        rows = rng.choices(SURVEY_ROWS, SURVEY_WEIGHTS)[0]
        found[f"{rows},{rng.choice(SURVEY_N)},{rng.choice(SURVEY_N[2:12])},nt,{rng.choice(SURVEY_TYPES)}"] = None
    return list(found)


def survey_entries(text: str, device_name: str, seed: int) -> list[Entry]:
    """Kernels for a product that tell most about the choice: those that are taken, and diverse points that may be as fast."""
    target = find_device(device_name)
    request = parse_problem(f"gemm:{text}")
    found: dict[str, Entry] = {}
    places: list[np.ndarray[Any, Any]] = []

    def add(role: str, candidate: Candidate, expected: float) -> None:
        option = fitted(candidate, request, target.architecture)
        if not isinstance(option, str):
            dimensions, modelled = set_best(option[1], option[2], target)
            found.setdefault(option[1].name, Entry(role, candidate.label, option[0], option[1], dimensions, expected or modelled, modelled))
            place = space.coordinates(candidate.spec)
            if place is not None:
                places.append(np.array(place))

    table = table_for(target)
    old, new = (choose_by(table, request, target, points=points, complete=not points) for points in (False, True))
    for role, choice in (("new", new), ("old", old)):
        add(role, choice.chosen.candidate, choice.chosen.seconds)
    if len(old.options) > 1:
        add("listed", old.options[1].candidate, old.options[1].seconds)
    groups = space.points(request, target)
    if not groups:
        return list(found.values())
    modelled = np.concatenate([seconds_of_many(one.works, target) for one in groups])
    least = np.concatenate([least_seconds(one.works, target) for one in groups])
    traits = np.concatenate([one.traits(np.arange(len(one))) for one in groups])
    times = bounded_seconds(modelled * np.exp(groups[0].errors(traits)), least) * np.exp(groups[0].corrections(traits))
    features = np.concatenate([one.features for one in groups])
    first = np.cumsum([0, *map(len, groups)])
    sharing, slices = features[:, 7:9].sum(axis=1), 2 ** (2 * features[:, 9] / SHALLOW)

    def take(role: str, wanted: Any, many: int, drawn: random.Random | None = None) -> None:
        """Adds points that ``wanted`` selects, the fastest first or drawn, each apart from all that are there."""
        order = [int(one) for one in np.argsort(times, kind="stable") if wanted[one]]
        if drawn is not None:
            drawn.shuffle(order)
        for one in order:
            if not many:
                return
            if all(((features[one] - place) ** 2).sum() > APART for place in places):
                group = int(np.searchsorted(first, one, side="right")) - 1
                spec = groups[group].spec(one - int(first[group]), times[one] < MAX_EARLY)
                add(role, Candidate(space.label(spec), spec), float(times[one]))
                many -= 1

    everything = np.ones(len(times), bool)
    take("best", everything, MAX_LIKELY)
    near = times < NEARLY_BEST * times.min()
    take("slices", (slices > 1) & near, 1)
    take("shared by 4", (sharing > 1.5) & near, 1)
    take("shared by 2", (sharing == 1) & near, 1)
    turned = features[:, 6] > 0
    take("other way round", turned != bool(turned[times.argmin()]), 1)
    take("near", near, RANDOM, random.Random(f"{text} {seed}"))
    return list(found.values())


def listed_row(text: str, found: list[Entry]) -> str:
    """One product's kernels as a line."""
    kernels = [
        {"role": one.role, "label": one.label, "expected": one.expected, "spec": one.plan.spec.model_dump(mode="json", exclude_unset=True)}
        for one in found
    ]
    return json.dumps({"problem": text, "kernels": kernels})


def read_list(path: Path, device_name: str) -> dict[str, list[Entry]]:
    """The kernels in a file of ``--list``."""
    target = find_device(device_name)
    found: dict[str, list[Entry]] = {}
    for row in map(json.loads, path.read_text().splitlines()):
        request = parse_problem(f"gemm:{row['problem']}")
        entries = []
        for one in row["kernels"]:
            option = fitted(Candidate(one["label"], GemmSpec.model_validate(one["spec"])), request, target.architecture)
            if isinstance(option, str):
                print(f"# {row['problem']}: {one['label']}: {option}", file=sys.stderr)
                continue
            dimensions, modelled = set_best(option[1], option[2], target)
            entries.append(Entry(one["role"], one["label"], option[0], option[1], dimensions, one["expected"], modelled))
        found[row["problem"]] = entries
    return found


def compile_one(plan: KernelPlan) -> str:
    """Compiles a plan into the user's cache; the compiler's words if it refuses it."""
    from gemmgen.toolchain.compilation import compile_plan

    try:
        compile_plan(plan)
    except GemmgenError as error:
        return str(error).splitlines()[0]
    return ""


class Pool:
    """Random elements on the GPU, of which matrices are views: making them anew takes longer than timing them."""

    def __init__(self, torch: Any, nbytes: int) -> None:
        self._torch, self._bytes, self._elements, self._next = torch, nbytes, {}, 0

    def matrix(self, layout: Any, factor: Any) -> Any:
        """A matrix of a layout that no other of the same product overlaps, if there is room."""
        torch = self._torch
        if factor not in self._elements:
            count = self._bytes // factor.itemsize
            if factor == torch.int8:
                made = torch.randint(-100, 100, (count,), dtype=factor, device="cuda")
            else:
                made = torch.empty(count, dtype=factor, device="cuda")
                for first in range(0, count, 1 << 26):
                    part = made[first : first + (1 << 26)]
                    part.copy_((torch.randn(len(part), device="cuda") / 4).to(factor))
            self._elements[factor] = made
        elements = self._elements[factor]
        count = -(-layout.shape[0] * layout.shape[1] // 1024) * 1024
        if self._next + count > len(elements):
            self._next = 0
        found = elements[self._next : self._next + count]
        self._next += count
        return torch.as_strided(found, layout.shape, layout.strides)


def measure(
    torch: Any, text: str, found: list[Entry], pool: Pool, *, rounds: int = ROUNDS, graph_seconds: float = GRAPH_SECONDS
) -> dict[str, Any]:
    """Times the peer and all kernels for a product."""
    from gemmgen.kernels.gemm.cublaslt import Product
    from gemmgen.kernels.gemm.peer import fastest_product, operand
    from gemmgen.perf.contestants import median_seconds
    from gemmgen.runtime.kernel import Kernel
    from gemmgen.toolchain.compilation import compile_plan

    request = parse_problem(f"gemm:{text}")
    factor, result = (getattr(torch, TORCH[kind]) for kind in (request.a.type, request.c.type))
    m, n, k = request.sizes
    sets = max(1, min(MAX_SETS, SETS_BYTES // ((m * k + k * n) * factor.itemsize) + 1))

    a, b = ([pool.matrix(layout, factor) for _ in range(sets)] for layout in (request.a, request.b))
    out, theirs = (torch.zeros(m, n, dtype=result, device="cuda") for _ in range(2))
    product = Product(operand(a[0], request.a.type), operand(b[0], request.b.type), operand(out, request.c.type), "none")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        peers = [fastest_product(product, (a[index], b[index], theirs), None, 1.0, 0.0) for index in range(sets)]
    row: dict[str, Any] = {"problem": text, "kernels": []}
    calls: dict[str, Any] = {}
    if not isinstance(peers[0], str):
        row["peer_name"] = peers[0].name
        calls["peer"] = lambda index: peers[index].run()
        peers[0].run()
    else:
        row["note"] = peers[0]
        theirs = (a[0].float() @ b[0].float()).to(result)
    torch.cuda.synchronize()
    reference = theirs.double()
    largest = reference.abs().max().item()
    for number, entry in enumerate(found):
        try:
            kernel = Kernel(entry.plan.sequence, compile_plan(entry.plan))
        except GemmgenError as error:
            print(f"# {text}: {entry.label}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue

        def call(index: int, kernel: Any = kernel, entry: Entry = entry) -> None:
            arrays = {"a": a[index], "b": b[index], "out": out}
            views = {name: torch.as_strided(arrays[of], layout.shape, layout.strides) for name, (of, layout) in entry.fit.arrays.items()}
            known = {dimension.name for dimension in entry.plan.sequence.dimensions if dimension.default is not None}
            kernel(**views, **{name: value for name, value in entry.dimensions.items() if name in known and name == "slices"})

        out.zero_()
        try:
            call(0)
            torch.cuda.synchronize()
        except GemmgenError as error:
            print(f"# {text}: {entry.label}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        difference = (out.double() - reference).abs().max().item()
        told = {
            "role": entry.role,
            "label": entry.label,
            "name": entry.plan.name,
            "spec": numbers(entry.plan),
            "expected": entry.expected * 1e6,
            "modelled": entry.modelled * 1e6,
        }
        row["kernels"].append(told)
        if not difference <= AGREEMENT * largest:
            told["wrong"] = difference / max(largest, 1e-30)
            continue
        calls[str(number)] = call
        told["key"] = str(number)
    times = median_seconds(torch, calls, sets=sets, rounds=rounds, graph_seconds=graph_seconds)
    row["peer"] = times.get("peer", math.nan) * 1e6
    for told in row["kernels"]:
        if "key" in told:
            told["us"] = times[told.pop("key")] * 1e6
    return row


NUMBERS = ("order", "mainloop", "decomposition", "early_launch", "store", "rasterization")
"""Fields of a spec that a line of times holds."""


def numbers(plan: KernelPlan) -> dict[str, Any]:
    """The fields of a spec that make it a point."""
    fields = plan.spec.model_dump(mode="json", exclude_defaults=True)
    return {name: fields[name] for name in NUMBERS if name in fields}


def published_table(rows: list[dict[str, Any]], header: str) -> str:
    """The choice among listed instances and the choice among points, beside the peer, as Markdown."""
    lines = [
        "# Products on which the choice among listed kernels lost",
        "",
        f"{header}; `python -m measurements.points --published` makes this file. Microseconds, all in turns; ratios are cuBLASLt's time",
        "over gemmgen's. *Listed*: the choice among the specs that ship with gemmgen; *points*: the choice among all points.",
        "",
        "| m, n, k | cuBLASLt's best | listed | ratio | points | ratio | kernel |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        told = {kernel["role"]: kernel for kernel in reversed(row["kernels"]) if "us" in kernel}
        new = told["new"] if "new" in told else told["old"]
        times = [told["old"]["us"], new["us"]]
        cells = " | ".join(f"{us:.1f} | {row['peer'] / us:.3f}" for us in times)
        lines.append(f"| {row['problem']} | {row['peer']:.1f} | {cells} | `{new['label'].removeprefix('point/wgmma/')}` |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures the problems of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("problems", nargs="*", help="as behind gemm: of a problem; else the published ones and those that the seed draws")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=170.0, help="no product is begun after this time")
    parser.add_argument("--no-sample", action="store_true", help="times the choices and the best points alone")
    parser.add_argument("--device", default="H200", help="the device that kernels are chosen for")
    parser.add_argument("--dry", action="store_true", help="lists the kernels and times nothing")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--published", action="store_true", help="times the choices for the published products, and writes their table")
    parser.add_argument("--survey", type=int, metavar="COUNT", help="chooses kernels for so many products of a survey")
    parser.add_argument("--list", type=Path, help="writes the kernels of the survey to this file, and times nothing")
    parser.add_argument("--kernels", type=Path, help="times the kernels in a file of --list")
    arguments = parser.parse_args()
    began = time.monotonic()
    texts = arguments.problems or [*PUBLISHED, *([] if arguments.published else drawn(arguments.seed))]
    arguments.no_sample |= arguments.published
    if arguments.kernels:
        chosen = read_list(arguments.kernels, arguments.device)
    elif arguments.survey:
        texts = arguments.problems or surveyed(arguments.survey, arguments.seed)
        chosen = {text: survey_entries(text, arguments.device, arguments.seed) for text in texts}
    else:
        chosen = {text: entries(text, arguments.device, not arguments.no_sample, arguments.seed) for text in texts}
    if arguments.list:
        arguments.list.write_text("".join(listed_row(text, found) + "\n" for text, found in chosen.items()))
        return
    print(f"# {sum(map(len, chosen.values()))} kernels chosen after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    if arguments.dry:
        for text, found in chosen.items():
            print(text, json.dumps([(entry.role, entry.label, round(entry.expected * 1e6, 1)) for entry in found]))
        return
    plans = {entry.plan.name: entry.plan for found in chosen.values() for entry in found}
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        refused = [words for words in pool.map(compile_one, plans.values(), chunksize=2) if words]
    print(f"# {len(plans)} compiled after {time.monotonic() - began:.0f} s, refused: {refused[:3]}", file=sys.stderr, flush=True)
    import torch

    torch.manual_seed(arguments.seed)
    pool = Pool(torch, POOL_BYTES)
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "seed": arguments.seed}
    lines = [json.dumps(about)]
    print(lines[0], flush=True)
    for text, found in chosen.items():
        if time.monotonic() - began > arguments.seconds:
            break
        row = measure(torch, text, found, pool)
        lines.append(json.dumps(row))
        print(lines[-1], flush=True)
        times = {told["role"]: told["us"] for told in reversed(row["kernels"]) if "us" in told}
        best = min((told["us"] for told in row["kernels"] if "us" in told), default=math.nan)
        told = ", ".join(f"{role} {times[role]:.1f}" for role in ("old", "new") if role in times)
        print(f"# {text}: peer {row['peer']:.1f}, {told}, best {best:.1f}", file=sys.stderr, flush=True)
        if arguments.out:
            arguments.out.write_text("\n".join(lines) + "\n")
    if arguments.published:
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        header = f"{about['device']}, {today}, torch {about['torch']}"
        folder = arguments.out.parent if arguments.out else Path(__file__).parent
        (folder / "published_products.md").write_text(published_table([json.loads(line) for line in lines[1:]], header))


if __name__ == "__main__":
    main()
