"""float64 products by 8-bit integers beside torch's (cuBLAS): errors first, then times.

    python -m measurements.doubles                     on a machine with a Hopper GPU and torch; writes doubles.json and doubles.md
    python -m measurements.doubles --ways              also times other tiles and clusters of the products, and each kernel
    python -m measurements.doubles --report            writes the table again from its data

An error is the largest of |C - AB| / (|A| |B|) over all elements, in units of 2^-53. The reference is a sum of products of parts: A and B
are cut into three parts of 18 bits, relative to their row or column, whose products float64 sums up exactly.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gemmgen import ops
from gemmgen.core.files import write_atomically

HERE = Path(__file__).resolve().parent
PRECISIONS = ("int8x14", "int8x15")
SIZES = ((4096, 4096, 4096), (8192, 8192, 8192), (2048, 2048, 2048), (1024, 1024, 1024), (4096, 4096, 16384), (16384, 2048, 4096))
CHECKED = (2048, 2048, 4096)
ROUNDS = 5
SECONDS = 0.15
UNIT = 2.0**-53
PART_BITS = 18
PARTS = 3


def drawn(kind: str, shape: tuple[int, int], lines: int, generator: Any) -> Any:
    """A factor of random numbers; ``lines``: the axis of its rows of A or columns of B."""
    import torch

    x = torch.randn(shape, device="cuda", dtype=torch.float64, generator=generator)
    if kind == "uniform":
        return torch.rand(shape, device="cuda", dtype=torch.float64, generator=generator)
    if kind == "exponents":  # e^x times a normal number, in each element
        return x * torch.randn(shape, device="cuda", dtype=torch.float64, generator=generator).exp()
    if kind == "lines":  # rows, or columns, of any magnitude
        sizes = [1, 1]
        sizes[lines] = shape[lines]
        return x * torch.exp2(torch.randint(-300, 300, sizes, device="cuda", generator=generator).double())
    if kind == "sparse":
        return x * (torch.rand(shape, device="cuda", generator=generator) < 0.1)
    return x


def parts_of(x: Any, axis: int) -> list[Any]:
    """Parts of few bits, relative to the largest of a line along ``axis``, whose sum is x but for 2^-54 of that largest."""
    import torch

    found = []
    _, exponent = torch.frexp(x.abs().amax(axis, keepdim=True).clamp(min=2.0**-1000))
    for part in range(1, PARTS + 1):
        unit = torch.exp2((exponent - part * PART_BITS).double())
        piece = torch.round(x / unit) * unit
        found.append(piece)
        x = x - piece
    return [*found, x]


def reference(a: Any, b: Any) -> Any:
    """A B as two matrices, whose sum it is: sums of products of 18 by 18 bits are exact for k up to 2^17."""
    import torch

    high = torch.zeros(a.shape[0], b.shape[1], device="cuda", dtype=torch.float64)
    low = torch.zeros_like(high)
    parts_a, parts_b = parts_of(a, 1), parts_of(b, 0)
    pairs = sorted(((i, j) for i in range(PARTS + 1) for j in range(PARTS + 1) if i + j <= PARTS + 1), key=lambda pair: -sum(pair))
    for i, j in pairs:
        term = parts_a[i] @ parts_b[j]
        total = high + term
        back = total - high
        low = low + ((high - (total - back)) + (term - back))
        high = total
    return high, low


def error(c: Any, exact: tuple[Any, Any], size: Any) -> float:
    """The largest error in units."""
    difference = ((c - exact[0]) - exact[1]).abs() / size.clamp(min=2.0**-1000)
    return float(difference.max()) / UNIT


def errors() -> Iterator[dict[str, Any]]:
    """Errors beside torch's on several kinds of data, and whether infinities and NaN are where torch has them."""
    import torch

    generator = torch.Generator("cuda").manual_seed(7)
    m, n, k = CHECKED
    for kind in ("normal", "uniform", "exponents", "lines", "sparse"):
        a, b = drawn(kind, (m, k), 0, generator), drawn(kind, (k, n), 1, generator)
        exact, size = reference(a, b), a.abs() @ b.abs()
        row: dict[str, Any] = {"kind": kind, "sizes": CHECKED, "torch": error(a @ b, exact, size)}
        for precision in PRECISIONS:
            row[precision] = error(ops.matmul(a, b, precision=precision), exact, size)
        yield row
    a, b = drawn("normal", (m, k), 0, generator), drawn("normal", (k, n), 1, generator)
    a[5, 7], b[11, 3], a[9] = float("inf"), float("nan"), 0.0
    wanted = a @ b
    for precision in PRECISIONS:
        got = ops.matmul(a, b, precision=precision)
        same = bool(((got.isnan() == wanted.isnan()) & (got.isinf() == wanted.isinf())).all())
        yield {"kind": "infinities and NaN", "precision": precision, "as torch": same}


def replayed(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call as a CUDA graph."""
    import torch

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def microseconds(call: Callable[[], Any]) -> float:
    """Time of a call on the device."""
    import torch

    call()
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    count = max(1, int(SECONDS * 1e3 / max(begin.elapsed_time(end), 1e-3)))
    begin.record()
    for _ in range(count):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end) * 1e3 / count)


def in_turns(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Medians of the times of calls that take turns."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            found[name].append(microseconds(call))
    return {name: sorted(times)[ROUNDS // 2] for name, times in found.items()}


def times() -> Iterator[dict[str, Any]]:
    """Times beside torch's of normal numbers, stored in rows, and as ``a @ b.T``."""
    import torch

    for m, n, k in SIZES:
        a = torch.randn(m, k, device="cuda", dtype=torch.float64)
        b = torch.randn(k, n, device="cuda", dtype=torch.float64)
        turned = b.T.contiguous()
        out = torch.empty(m, n, device="cuda", dtype=torch.float64)
        calls: dict[str, Callable[[], Any]] = {"torch": lambda a=a, b=b, out=out: torch.matmul(a, b, out=out)}
        for precision in PRECISIONS:
            calls[precision] = lambda a=a, b=b, out=out, p=precision: ops.matmul(a, b, out=out, precision=p)
            calls[f"{precision} nt"] = lambda a=a, b=turned.T, out=out, p=precision: ops.matmul(a, b, out=out, precision=p)
        yield {"sizes": (m, n, k), "microseconds": in_turns({name: replayed(call) for name, call in calls.items()})}


def ways() -> Iterator[dict[str, Any]]:
    """Other tiles of the products, and the time of each kernel."""
    import torch

    from gemmgen.hardware.target import architecture
    from gemmgen.kernels.gemm.family import plan_gemm
    from gemmgen.kernels.gemm.spec import Cluster, WgmmaTile
    from gemmgen.ops.doubles import Call, spec_of
    from gemmgen.runtime.kernel import Kernel
    from gemmgen.toolchain.compilation import compile_plan

    sm_90a = architecture("sm_90a")
    spec = spec_of(Call("int8x14", (True, True), (2, 2, 2), (128, 256), 2, 132, sm_90a))
    assert spec.mainloop.strategy == "wgmma"
    changes: dict[str, dict[str, Any]] = {
        "128x256": {},
        "128x256, clusters of 2 rows": {"cluster": Cluster(m=2)},
        "256x128": {"tile": WgmmaTile(m=256, n=128, k=128)},
        "192x192, 3 groups": {"tile": WgmmaTile(m=192, n=192, k=128), "consumers": 3},
    }
    m = n = k = 4096
    a = torch.randn(m, k, device="cuda", dtype=torch.float64)
    b = torch.randn(k, n, device="cuda", dtype=torch.float64)
    c = torch.empty(m, n, device="cuda", dtype=torch.float64)
    for name, change in changes.items():
        try:
            plan = plan_gemm(spec.model_copy(update={"mainloop": spec.mainloop.model_copy(update=change)}), sm_90a)
            kernel = Kernel(plan.sequence, compile_plan(plan))
            taken = microseconds(lambda kernel=kernel: kernel(A=a, B=b, C=c))
            from torch.profiler import ProfilerActivity, profile

            with profile(activities=[ProfilerActivity.CUDA]) as profiled:
                kernel(A=a, B=b, C=c)
                torch.cuda.synchronize()
            events = [event for event in profiled.key_averages() if event.device_time_total > 0]
            parts = {event.key.removeprefix(plan.name): round(event.device_time_total, 1) for event in events}
            yield {"way": name, "microseconds": taken, "kernels": parts}
        except Exception as failure:
            yield {"way": name, "failed": str(failure)[:300]}


def report(found: dict[str, Any]) -> str:
    """The tables in Markdown."""
    lines = ["# float64 by 8-bit integers", "", f"`python -m measurements.doubles` on {found['device']}, {found['date']}.", ""]
    lines += [
        "Largest |C − AB| / (|A||B|) in units of 2⁻⁵³:",
        "",
        "| data | " + " | ".join(("torch", *PRECISIONS)) + " |",
        "|---|" + "--:|" * 3,
    ]
    for row in found["errors"]:
        if "torch" in row:
            lines.append(f"| {row['kind']} | " + " | ".join(f"{row[name]:.2f}" for name in ("torch", *PRECISIONS)) + " |")
    lines += ["", "*exponents*: normal numbers times e^x, x normal too; *lines*: rows, or columns, up to 2^600 apart; *sparse*: one in ten"]
    lines += ["numbers is not 0.", ""]
    lines += [
        "Microseconds, medians of CUDA graphs that take turns; in brackets the time of torch over it. *nt*: b is stored in columns.",
        "",
    ]
    names = [f"{precision}{suffix}" for precision in PRECISIONS for suffix in ("", " nt")]
    lines += ["| m, n, k | torch | " + " | ".join(names) + " |", "|---|" + "--:|" * (1 + len(names))]
    for row in found["times"]:
        taken = row["microseconds"]
        cells = [f"{taken[name]:,.0f} ({taken['torch'] / taken[name]:.2f})" for name in names]
        lines.append(f"| {' × '.join(map(str, row['sizes']))} | {taken['torch']:,.0f} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures, and writes each part as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", action="store_true", help="time other tiles too")
    parser.add_argument("--report", action="store_true", help="only write the table again")
    parser.add_argument("--out", type=Path, default=HERE, help="folder of the results")
    options = parser.parse_args()
    path = options.out / "doubles.json"
    if options.report:
        found = json.loads(path.read_text())
    else:
        import torch

        found = {"device": torch.cuda.get_device_name(), "date": time.strftime("%Y-%m-%d"), "errors": [], "times": [], "ways": []}
        sources: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {"errors": errors, "times": times}
        sources |= {"ways": ways} if options.ways else {}
        for name, source in sources.items():
            for row in source():
                print(json.dumps(row), flush=True)
                found[name].append(row)
                write_atomically(path, json.dumps(found, indent=1) + "\n")
    write_atomically(options.out / "doubles.md", report(found))


if __name__ == "__main__":
    main()
