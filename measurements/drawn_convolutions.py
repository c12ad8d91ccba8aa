"""Convolutions of drawn layers beside cuDNN's best: every engine of its graph API, its older call, and torch with ``cudnn.benchmark``.

    python -m measurements.drawn_convolutions --seed 24 --types int8 --seconds 120 --jobs 12 --out measurements
    python -m measurements.drawn_convolutions --seed 24 --kind depthwise --types float16 --list

24 layers at batch 1, 7 and 64, in NHWC on both sides. Integers: relu(alpha * sum + bias), rounded to int8; floats: the sums alone. A ratio
is the fastest peer's time over ours: above 1, ours is faster. Several processes prepare plans and kernels at once; one at a time measures.
Launches are captured in CUDA graphs, which take turns, on arrays beyond the L2 or on up to 16 sets of them. Results are compared with
torch's in float32 or float64 before. ``--list`` needs no GPU.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import exp, log
from pathlib import Path
from typing import Any

from measurements.preparation import in_processes
from measurements.row_reductions import ROTATED_BYTES, geometric

BATCHES = (1, 7, 64)
LAYERS = 24
TURNS = 9
TRIALS = 5
"""Launches of a contestant by which it becomes a finalist."""
HOPELESS = 4.0
"""So many times the fastest's time rules a plan out after a launch."""
FINALISTS = 5
"""So many of cuDNN's plans take turns with ours: the fastest of a first trial of all."""
MAX_OPERATIONS = 6e11
MAX_BYTES = 1 << 28
ALLOWED = {"float16": 4e-3, "bfloat16": 3e-2}
"""Largest difference from torch's result in float32, over the largest value: both types round the result once."""


@dataclass(frozen=True)
class Case:
    """One layer: n images of c channels, h x w; k filters of r x s."""

    kind: str
    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride: int
    padding: int
    groups: int
    type: str


@dataclass(frozen=True)
class Row:
    """Times of one case in microseconds. ``peers``: the finalists'."""

    case: Case
    kernel: str
    off: float
    ours: float
    peers: dict[str, float]
    tried: int
    """Plans of cuDNN that were tried."""

    @property
    def ratio(self) -> float:
        """The fastest peer's time over ours."""
        return min(self.peers.values()) / self.ours


def drawn(seed: int, kind: str, words: Sequence[str]) -> list[Case]:
    """24 layers, each at three batch sizes; types take turns."""
    generator = random.Random(seed)

    def between(low: float, high: float) -> float:
        return exp(generator.uniform(log(low), log(high)))

    found: list[Case] = []
    while len(found) < LAYERS * len(BATCHES):
        word = words[len(found) // len(BATCHES) % len(words)]
        step = 16 if word == "int8" else 8
        h = round(between(7, 80))
        w = h if generator.random() < 0.5 else max(7, h + generator.randint(-h // 4, h // 4))
        stride = generator.choice((1, 1, 1, 2))
        groups = 1
        if kind == "plain":
            c, k = (max(2, round(between(32, 1024) / step)) * step for _ in range(2))
            taps = generator.choice((1, 1, 3, 3, 3, 5))
        elif kind == "depthwise":
            c = k = groups = max(2, round(between(16, 1024) / 8)) * 8
            taps = generator.choice((3, 3, 5, 7))
        else:
            groups = generator.choice((2, 4, 8, 16, 32))
            c = k = groups * generator.choice((4, 8, 16, 24, 32, 48, 64))
            taps = generator.choice((3, 3, 5))
        padding = taps // 2 if generator.random() < 0.8 else 0
        cases = [Case(kind, n, c, h, w, k, taps, taps, stride, padding, groups, word) for n in BATCHES]
        last = cases[-1]
        if h < taps or w < taps or operations(last) > MAX_OPERATIONS or last.n * h * w * max(c, k) * 2 > MAX_BYTES:
            continue
        found += cases
    return found


def result_shape(case: Case) -> tuple[int, int, int, int]:
    """Extents (n, k, p, q) of the result."""
    p, q = ((extent + 2 * case.padding - case.r) // case.stride + 1 for extent in (case.h, case.w))
    return case.n, case.k, p, q


def operations(case: Case) -> float:
    """Multiplications and additions."""
    n, k, p, q = result_shape(case)
    return 2.0 * n * k * p * q * (case.c // case.groups) * case.r * case.s


def made(torch: Any, case: Case) -> tuple[Any, Any, Any]:
    """Random images and a filter, channels last, and a bias in float32."""
    last = torch.channels_last
    shapes = (case.n, case.c, case.h, case.w), (case.k, case.c // case.groups, case.r, case.s)
    bias = torch.randint(-160, 160, (case.k,), device="cuda").float() / 8
    if case.type == "int8":
        widths = (128, 16)
        x, w = (
            torch.randint(-width, width, shape, device="cuda", dtype=torch.int8).to(memory_format=last)
            for shape, width in zip(shapes, widths, strict=True)
        )
        return x, w, bias
    kind, depth = getattr(torch, case.type), case.c // case.groups * case.r * case.s
    x, w = (torch.randn(shape, device="cuda", dtype=kind).to(memory_format=last) for shape in shapes)
    return x, w / depth**0.5, bias


def window(case: Case) -> dict[str, int]:
    """The arguments of both functions beside the arrays."""
    return {"stride": case.stride, "padding": case.padding, "groups": case.groups}


def difference(torch: Any, case: Case, arrays: tuple[Any, Any, Any], y: Any) -> float:
    """Largest difference of the first and the last image's results: of integers in units, else over the largest value."""
    from measurements.cudnn_graph import ALPHA

    x, w, bias = arrays
    found = 0.0
    torch.backends.cudnn.benchmark = False  # a search of the fastest reference takes longer than the rest
    for part in (slice(0, 1), slice(-1, None)):
        wide = torch.float64 if case.type == "int8" else torch.float32
        sums = torch.nn.functional.conv2d(x[part].to(wide).contiguous(), w.to(wide).contiguous(), **window(case))
        if case.type == "int8":
            wanted = (sums * ALPHA + bias[None, :, None, None]).clamp(min=0).round().clamp(max=127)
            found = max(found, float((y[part].to(wide) - wanted).abs().max()))
        else:
            found = max(found, float((y[part].float() - sums).abs().max() / sums.abs().max().clamp(min=1e-30)))
    torch.backends.cudnn.benchmark = True
    return found


def ours_of(case: Case, weights: Any, bias: Any) -> Callable[[Any], Any]:
    """Our call on images."""
    from gemmgen import ops
    from measurements.cudnn_graph import ALPHA

    conv2d: Any = ops.conv2d
    if case.type == "int8":
        return lambda x: conv2d(x, weights, bias=bias, alpha=ALPHA, activation="relu", **window(case))
    return lambda x: conv2d(x, weights, **window(case))


@contextmanager
def alone(path: str) -> Iterator[None]:
    """No other process measures meanwhile."""
    with open(path, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Peers:
    """Ways of cuDNN to compute a case on several sets of images."""

    def __init__(self, torch: Any, api: Any, case: Case, sets: Sequence[Any], w: Any, bias: Any, y: Any) -> None:
        self.torch, self.api, self.case, self.sets, self.w, self.bias, self.y = torch, api, case, sets, w, bias, y
        self._held: list[Any] = []

    def _memory(self, size: int) -> int:
        if not size:
            return 0
        self._held.append(self.torch.empty(size, dtype=self.torch.uint8, device="cuda"))
        return int(self._held[-1].data_ptr())

    def by_graph(self, made_plans: Sequence[tuple[str, int, int]]) -> dict[str, Callable[[int], None]]:
        """Plans of the graph API."""
        from measurements.cudnn_graph import ALPHA

        alpha = self.torch.full((1,), ALPHA, device="cuda")
        self._held.append(alpha)
        found: dict[str, Callable[[int], None]] = {}
        shared = self._memory(max((size for _, _, size in made_plans if size <= MAX_BYTES), default=0))
        for name, plan, size in made_plans:
            if size > MAX_BYTES:
                continue
            runs = []
            for x in self.sets:
                tensors = {1: x.data_ptr(), 2: self.w.data_ptr(), 3: self.y.data_ptr()}
                if not name.startswith("plain"):
                    tensors[4] = self.bias.data_ptr()
                    if not name.startswith("inside"):
                        tensors[5] = alpha.data_ptr()
                runs.append(self.api.launch(plan, tensors, shared))
            found[name] = self._on_current_stream(runs)
        return found

    def _on_current_stream(self, runs: Sequence[Callable[[int], None]]) -> Callable[[int], None]:
        """One of several calls, by its index, on torch's current stream."""
        return lambda index: runs[index](self.torch.cuda.current_stream().cuda_stream)

    def by_torch(self) -> dict[str, Callable[[int], Any]]:
        """torch's convolution of floats."""
        if self.case.type == "int8":
            return {}
        function = self.torch.nn.functional.conv2d
        plain, w = [one.contiguous() for one in self.sets], self.w.contiguous()
        return {
            "torch channels_last": lambda index: function(self.sets[index], self.w, **window(self.case)),
            "torch contiguous": lambda index: function(plain[index], w, **window(self.case)),
        }

    def by_call(self) -> dict[str, Callable[[int], None]]:
        """The older call with bias and ReLU, for integers, in NHWC and in blocks of 32 channels."""
        from gemmgen.kernels.conv2d.cudnn import ALGORITHMS, CudnnError
        from measurements.cudnn_graph import ALPHA

        if self.case.type != "int8":
            return {}
        case, (_, _, p, q) = self.case, result_shape(self.case)
        problem = {name: getattr(case, name) for name in ("n", "c", "h", "w", "k", "r", "s", "groups")} | {"p": p, "q": q}
        for name, value in (("padding", case.padding), ("stride", case.stride), ("dilation", 1)):
            problem |= {f"{name}_h": value, f"{name}_w": value}
        found: dict[str, Callable[[int], None]] = {}
        for vectorised in (False, True):
            if vectorised and (case.c % 32 or case.k % 32 or case.groups > 1):
                continue
            for algorithm in ALGORITHMS:
                try:
                    launch = self.api.cudnn.convolution(
                        problem, algorithm=algorithm, allocate=self._memory, alpha=ALPHA, vectorised=vectorised
                    )
                except CudnnError:
                    continue

                def run(index: int, launch: Callable[..., None] = launch) -> None:
                    self.api.cudnn.use(self.torch.cuda.current_stream().cuda_stream)
                    launch(*(one.data_ptr() for one in (self.sets[index], self.w, self.bias, self.y)))

                found[f"call/{'NCHW32' if vectorised else 'NHWC'}/{algorithm}"] = run
        return found


def trial(torch: Any, peers: dict[str, Callable[[int], Any]], right: Callable[[str], bool]) -> dict[str, float]:
    """Seconds of a launch of each that works and is right, roughly."""
    found: dict[str, float] = {}
    for name, call in peers.items():
        try:
            call(0)
            torch.cuda.synchronize()
            begin = time.perf_counter()
            call(0)
            torch.cuda.synchronize()
            if time.perf_counter() - begin > HOPELESS * min(found.values(), default=1.0) + 1e-4 or not right(name):
                continue
            begin = time.perf_counter()
            for _ in range(TRIALS):
                call(0)
            torch.cuda.synchronize()
            found[name] = (time.perf_counter() - begin) / TRIALS
        except Exception:
            continue
    return found


def measured(torch: Any, api: Any, case: Case, lock: str, until: float) -> Row:
    """Checks and times one case."""
    from gemmgen import ops
    from gemmgen.perf.contestants import median_seconds
    from measurements.cudnn_graph import BFLOAT16, FLOAT16, INT8, Layer, plans

    arrays = made(torch, case)
    x, w, bias = arrays
    weights: Any = ops.Filter(w)
    ours = ours_of(case, weights, bias)
    y = ours(x)
    element = {"int8": INT8, "float16": FLOAT16, "bfloat16": BFLOAT16}[case.type]
    layer = Layer(case.n, case.c, case.h, case.w, case.k, case.r, case.s, case.stride, case.padding, case.groups, element)
    made_plans = list(plans(api, layer, lambda: time.time() > until))
    with alone(lock):
        off = difference(torch, case, arrays, y)
        if off > ALLOWED.get(case.type, 0.0):
            raise ValueError(f"{off:.3g} off")
        moved = sum(array.numel() * array.element_size() for array in (x, w, y))
        sets = [x, *(made(torch, case)[0] for _ in range(max(0, min(15, ROTATED_BYTES // (2 * moved)))))]
        result = torch.empty_like(y, memory_format=torch.channels_last)
        cudnn = Peers(torch, api, case, sets, w, bias, result)
        peers: dict[str, Callable[[int], Any]] = {**cudnn.by_graph(made_plans), **cudnn.by_call(), **cudnn.by_torch()}

        def right(name: str) -> bool:
            """True if the result agrees; a result in blocks of 32 channels is not compared."""
            if name.startswith("torch") or "NCHW32" in name:
                return True
            gap = (result.float() - y.float()).abs().max() / (1 if case.type == "int8" else y.float().abs().max().clamp(min=1e-30))
            result.zero_()
            return float(gap) <= (1.0 if case.type == "int8" else 2 * ALLOWED[case.type])

        tried = trial(torch, peers, right)
        best = sorted(tried, key=lambda name: tried[name])[:FINALISTS]
        best += [name for name in tried if name.startswith(("torch", "call")) and name not in best and tried[name] < 1.5 * tried[best[0]]]
        turns: dict[str, Callable[[int], Any]] = {"ours": lambda index: ours(sets[index])} | {name: peers[name] for name in best}
        times = median_seconds(torch, turns, sets=len(sets), rounds=TURNS, graph_seconds=6e-4)
    options: dict[str, Any] = {"bias": bias, "alpha": 0.5, "activation": "relu"} if case.type == "int8" else {}
    conv2d: Any = ops.conv2d
    kernel = str(conv2d.kernel(x, weights, **options, **window(case)).plan.name)
    micros = {name: 1e6 * one for name, one in times.items()}
    return Row(case, kernel, off, micros.pop("ours"), micros, len(tried))


def measure_some(chosen: Sequence[Case], until: float, folder: str) -> None:
    """Measures cases and appends a line for each to a file of the process."""
    import torch

    from measurements.cudnn_graph import GraphApi

    torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit = True, 0
    torch.backends.cudnn.allow_tf32 = False
    api = GraphApi(torch.cuda.current_stream().cuda_stream)
    for case in chosen:
        if time.time() > until - 2:
            return
        since = time.monotonic()
        try:
            row = measured(torch, api, case, f"{folder}/lock", until)
            line = asdict(row) | {"ratio": round(row.ratio, 3), "seconds": round(time.monotonic() - since, 1)}
        except Exception as error:
            line = {"failed": asdict(case), "why": f"{type(error).__name__}: {error}"[:400]}
        with open(f"{folder}/{os.getpid()}.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        torch.cuda.empty_cache()


KINDS = {"plain": "Layers of one group", "depthwise": "Depthwise layers", "grouped": "Layers of several groups"}


def report(folder: Path, device: str, date: str) -> str:
    """The tables of all files of results in a folder as Markdown."""
    lines = [
        "# Drawn convolutions beside cuDNN's best",
        "",
        f"24 layers of each kind, drawn by `measurements.drawn_convolutions`, at batch 1, 7 and 64, on {device}, {date}, as far as",
        "the time went. Peer: the fastest of cuDNN's plans by its graph API (eight proposals of each mode of its heuristics, and every",
        "engine), of its older call for integers, and of `torch` with `cudnn.benchmark`. Microseconds of device time in CUDA graphs, in",
        "turns; integers with a factor, bias, ReLU and rounding to int8, floats alone. The ratio is the fastest peer's time over ours:",
        "above 1, ours is faster. Results were compared before. Channels are multiples of 8 or 16: rows of many layers fill no 128 bytes.",
    ]
    for kind, title in KINDS.items():
        for path in sorted(folder.glob(f"drawn_convolutions_{kind}_*.json")):
            rows = sorted(json.loads(path.read_text("utf-8")), key=lambda row: row["ratio"])
            for word in dict.fromkeys(row["case"]["type"] for row in rows):
                some = [row for row in rows if row["case"]["type"] == word]
                ratios = [row["ratio"] for row in some]
                lines += ["", f"## {title}, {word}, seed {path.stem.split('_')[-1]}", ""]
                of = [f"batch {n}: {geometric(r):.2f}, least {min(r):.2f}" for n in BATCHES if (r := _of_batch(some, n))]
                lines += [f"Geometric mean {geometric(ratios):.2f} of {len(ratios)}, least {min(ratios):.2f}; {'; '.join(of)}.", ""]
                lines += ["| layer | kernel | ours | cuDNN | plan | ratio |", "|---|---|---:|---:|---|---:|"]
                for row in some:
                    best = min(row["peers"], key=row["peers"].get)
                    figures = f"{row['ours']:.1f} | {row['peers'][best]:.1f} | {best} | {row['ratio']:.2f}"
                    lines.append(f"| {_layer(Case(**row['case']))} | `{_short(row['kernel'])}` | {figures} |")
    return "\n".join([*lines, ""])


def _of_batch(rows: Sequence[dict[str, Any]], n: int) -> list[float]:
    return [row["ratio"] for row in rows if row["case"]["n"] == n]


def _layer(case: Case) -> str:
    """Extents as n, c, h x w, k, r x s, and what differs from the usual."""
    more = [f"stride {case.stride}"] if case.stride > 1 else []
    more += [f"padding {case.padding}"] if case.padding else []
    more += [f"{case.groups} groups"] if case.groups > 1 else []
    return ", ".join([f"{case.n}, {case.c}, {case.h} x {case.w}, {case.k}, {case.r} x {case.s}", *more])


def _short(kernel: str) -> str:
    """A kernel's name up to its tile."""
    return "_".join(kernel.removeprefix("hopper_conv_").removeprefix("conv2d_").split("_")[:3])


def main() -> None:
    """Lists or measures the cases, or writes the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=24)
    parser.add_argument("--kind", choices=("plain", "depthwise", "grouped"), default="plain")
    parser.add_argument("--types", default="int8", help="int8, float16, bfloat16, separated by commas")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--jobs", type=int, default=8, help="processes")
    parser.add_argument("--out", type=Path, help="folder of drawn_convolutions_KIND_SEED.json")
    parser.add_argument("--list", action="store_true", help="print the cases")
    parser.add_argument("--report", metavar="DEVICE", help="write drawn_convolutions.md from the results in --out")
    options = parser.parse_args()
    if options.report:
        (options.out / "drawn_convolutions.md").write_text(report(options.out, options.report, time.strftime("%Y-%m-%d")), "utf-8")
        return
    chosen = drawn(options.seed, options.kind, options.types.split(","))
    if options.list:
        for case in chosen:
            print(json.dumps(asdict(case)))
        return
    random.Random(options.seed).shuffle(chosen)  # the processes have small and large cases alike
    with tempfile.TemporaryDirectory() as folder:
        in_processes(measure_some, chosen, options.jobs, options.seconds, folder)
        lines = [json.loads(line) for path in Path(folder).glob("*.jsonl") for line in path.read_text("utf-8").splitlines()]
    rows = sorted((line for line in lines if "ratio" in line), key=lambda line: line["ratio"])
    for line in [*rows, *(line for line in lines if "failed" in line)]:
        print(json.dumps(line), flush=True)
    for word in (None, *dict.fromkeys(line["case"]["type"] for line in rows)):
        for n in (None, *BATCHES):
            ratios = [line["ratio"] for line in rows if word in (None, line["case"]["type"]) and n in (None, line["case"]["n"])]
            if ratios:
                found = {"type": word or "all", "batch": n or "all", "mean": geometric(ratios), "least": min(ratios), "cases": len(ratios)}
                print(json.dumps({"kind": options.kind, "seed": options.seed, **found}), flush=True)
    if options.out:
        name = f"drawn_convolutions_{options.kind}_{options.seed}.json"
        (options.out / name).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
