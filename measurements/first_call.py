"""Time from the first call of an operation on tensor cores to its result, with nothing compiled before, type by type.

    python -m measurements.first_call               on a machine with a GPU, and torch; with and without compilation in the background
    python -m measurements.first_call processor     the processor's part of it, on any machine
    python -m measurements.first_call processor --column before      the same for another column, of another version of gemmgen

Each call is of another type or shape, in a process whose CUDA context exists; binaries go to a new, empty cache. Writes first_call.json and
first_call.md.

The second form needs no GPU: it imports gemmgen, chooses, renders and compiles as the first call does, and counts seconds of all processors
(``process_time``), the least of several new processes, so that other work on the machine counts little. It does the same for the instance
that ``ops.compile_in_background`` has serve meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROBLEMS = (
    "gemm:4096,4096,4096,nt,f16",
    "gemm:4096,4096,4096,nt,bf16",
    "gemm:4096,4096,4096,nt,bf16,bias,gelu",
    "gemm:4096,4096,4096,nt,s8",
    "gemm:4096,4096,4096,nt,e4m3",
    "gemm:4096,4096,4096,nt",
    "gemm:1023,1023,1023,unaligned",
    "gemm:128,11008,4096,nt",
    "gemm:16,4096,4096,nt",
    "gemm:4096,1,4096",
    "reduction:8192,50257,1",
)
PHASES = ("import", "choice", "source", "compiler")
LOAD, WALL = "load", "wall"
"""The binary's way to a GPU, where there is one; and a phase's time that passes, beside the processor's."""
SUBSTITUTE = "substitute"
"""Source and compiler for the instance that serves in the place of the best, where that is another."""
BAR = 0.5
"""Seconds that a first call may take."""
RUNS = 5
SHAPES = ((4096, 4096, 4096), (16, 4096, 4096), (128, 11008, 4096), (1023, 1023, 1023))


def calls() -> list[tuple[str, Callable[[], Any]]]:
    """Calls by their names."""
    import torch

    from gemmgen import ops

    def factors(m: int, n: int, k: int, kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        if kind == torch.int8:
            return torch.ones(m, k, dtype=kind, device="cuda"), torch.ones(n, k, dtype=kind, device="cuda").T
        return torch.ones(m, k, device="cuda").to(kind), torch.ones(n, k, device="cuda").to(kind).T

    found: list[tuple[str, Callable[[], Any]]] = []
    for shape in SHAPES:
        text = " x ".join(map(str, shape))
        for name in ("float16", "bfloat16", "int8", "float8_e4m3fn", "float32"):
            a, b = factors(*shape, getattr(torch, name))
            found.append((f"{name}, {text}", lambda a=a, b=b: ops.matmul(a, b)))
        a, b = factors(*shape, torch.float32)
        found.append((f"tf32, {text}", lambda a=a, b=b: ops.matmul(a, b, precision="tf32")))
    m, n, k = SHAPES[0]
    a, b = factors(m, n, k, torch.bfloat16)
    bias, residual = torch.ones(n, device="cuda", dtype=a.dtype), torch.ones(m, n, device="cuda", dtype=a.dtype)
    found.append(("bfloat16, bias, GELU", lambda: ops.matmul(a, b, bias=bias, activation="gelu")))
    found.append(("bfloat16, bias, residual, ReLU", lambda: ops.matmul(a, b, bias=bias, residual=residual, activation="relu")))
    s, t = factors(m, n, k, torch.int8)
    rows, columns = torch.ones(m, 1, device="cuda"), torch.ones(1, n, device="cuda")
    found.append(("int8 to int8, scaled", lambda: ops.matmul(s, t, scale_a=rows, scale_b=columns, output="int8")))
    many = torch.ones(16, n, k, device="cuda", dtype=a.dtype).transpose(1, 2)
    ends = torch.arange(256, m + 1, 256, dtype=torch.int32, device="cuda")
    found.append(("bfloat16, 16 groups of rows", lambda: ops.grouped_matmul(a, many, ends)))
    return found


def seconds_of_phases() -> list[dict[str, Any]]:
    """Seconds of all processors that each problem takes in this process, phase by phase, and under ``wall`` the time that passes; the first
    also loads specs and templates."""
    clock = Clock()
    from gemmgen import ops  # noqa: F401  the import is timed
    from gemmgen.codegen.rendering import render
    from gemmgen.dispatch.problems import parse_problem
    from gemmgen.dispatch.selection import choose
    from gemmgen.hardware.target import device
    from gemmgen.toolchain.compilation import COMPILE_OPTIONS
    from gemmgen.toolchain.nvrtc import compile_source

    clock.read("import")
    rows = []
    for problem in PROBLEMS:
        choice = choose(parse_problem(problem), device("H200"))
        clock.read("choice")
        plan = choice.chosen.plan
        source = render(plan)
        clock.read("source")
        binary = compile_source(source.text, architecture=plan.architecture.name, options=COMPILE_OPTIONS, name=source.file_name)
        clock.read("compiler")
        if _loaded(binary):
            clock.read(LOAD)
        row = {"problem": problem, **clock.taken()}
        substitute = _substitute(choice)
        if substitute is not None:
            begun = time.process_time()
            source = render(substitute.plan)
            compile_source(source.text, architecture=substitute.plan.architecture.name, options=COMPILE_OPTIONS, name=source.file_name)
            row |= {SUBSTITUTE: round(time.process_time() - begun, 3), "slower": round(substitute.seconds / choice.chosen.seconds, 2)}
        rows.append(row)
        clock = Clock()
    return rows


class Clock:
    """Seconds of this process's processors, and those that pass, by phase."""

    def __init__(self) -> None:
        self._last = time.process_time(), time.perf_counter()
        self._taken: dict[str, tuple[float, float]] = {}

    def read(self, phase: str) -> None:
        """Ends a phase."""
        now = time.process_time(), time.perf_counter()
        self._taken[phase] = round(now[0] - self._last[0], 4), round(now[1] - self._last[1], 4)
        self._last = now

    def taken(self) -> dict[str, Any]:
        """The phases, as a row has them."""
        return {**{name: pair[0] for name, pair in self._taken.items()}, WALL: {name: pair[1] for name, pair in self._taken.items()}}


def _loaded(binary: Any) -> bool:
    """True if a GPU of this machine has the binary now; its context is made before the first is loaded."""
    from gemmgen.core.errors import GemmgenError
    from gemmgen.runtime.cuda.driver import LoadedBinary

    try:
        LoadedBinary(binary.cubin, binary.architecture, 0)
    except (GemmgenError, ImportError):
        return False
    return True


def _substitute(choice: Any) -> Any:
    """The option that serves while the best is compiled; None if that is waited for, or in a version of gemmgen that has no such choice."""
    try:
        from gemmgen.ops.background import soonest
    except ImportError:
        return None
    found = soonest(choice.options, lambda plan: False)
    return None if found is choice.chosen else found


def time_processor(column: str) -> None:
    """Times the processor's part in new processes, and enters the least of each phase in ``first_call_processor.json``."""
    runs = []
    for _ in range(RUNS):
        done = subprocess.run([sys.executable, __file__, "phases"], capture_output=True, text=True, check=True)
        runs.append(json.loads(done.stdout))
    rows = []
    for alike in zip(*runs, strict=True):
        least = {phase: min(row[phase] for row in alike) for phase in PHASES if phase in alike[0]}
        found = {"problem": alike[0]["problem"], **least, "all": round(sum(least.values()), 3)}
        found[WALL] = {phase: min(row[WALL][phase] for row in alike) for phase in alike[0][WALL]}
        if SUBSTITUTE in alike[0]:
            found |= {SUBSTITUTE: min(row[SUBSTITUTE] for row in alike), "slower": alike[0]["slower"]}
        rows.append(found)
    path = HERE / "first_call_processor.json"
    columns = json.loads(path.read_text()) if path.exists() else {}
    processor = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "")
    load = round(os.getloadavg()[0], 1)
    columns[column] = {"processor": processor, "load": load, "date": datetime.now(UTC).date().isoformat(), "rows": rows}
    path.write_text(json.dumps(columns, indent=1) + "\n")


def processor_lines() -> list[str]:
    """The report's section on the processor's part; empty before it was timed."""
    path = HERE / "first_call_processor.json"
    if not path.exists():
        return []
    columns = json.loads(path.read_text())
    names = [name for name in ("before", "now") if name in columns]
    last = columns[names[-1]]
    slow = [row["problem"] for row in last["rows"] if row["all"] > BAR]
    lines = [
        "",
        "## The processor's part",
        "",
        f"{last['processor']}, {last['date']}, load {last['load']}; seconds of all processors, the least of {RUNS} new processes:",
        "Python's part (import, choice, source) + the compiler. Kernels of one program are optimized at the same time, so that",
        "on an idle machine a call waits for less than this where there are several. The first row also imports gemmgen and loads",
        "specs and templates. Meanwhile: the same with `ops.compile_in_background()` and nothing compiled, and how many times as",
        "long the instance takes that serves until the best is compiled; empty: the best is waited for.",
        "",
        f"Above {BAR} s: {', '.join(f'`{problem}`' for problem in slow) or 'none'}.",
        "",
        f"| problem | {' | '.join(names)} | meanwhile |",
        f"|---|{'---|' * (len(names) + 1)}",
    ]
    for place, problem in enumerate(PROBLEMS):
        cells = []
        for name in names:
            row = columns[name]["rows"][place]
            cells.append(f"{row['all'] - row['compiler']:.2f} + {row['compiler']:.2f} = {row['all']:.2f}")
        row = last["rows"][place]
        until = f"{row['all'] - row['compiler'] + row[SUBSTITUTE]:.2f}, {row['slower']:.1f} times" if SUBSTITUTE in row else ""
        lines.append(f"| `{problem}` | {' | '.join(cells)} | {until} |")
    return lines + wall_lines(last["rows"])


def wall_lines(rows: list[dict[str, Any]]) -> list[str]:
    """The report's section on the time that passes, by phase."""
    if WALL not in rows[0]:
        return []
    phases = [phase for phase in (*PHASES, LOAD) if phase in rows[0][WALL]]
    lines = [
        "",
        "## By phase",
        "",
        "The same runs: milliseconds that pass, and in brackets those of all processors. The first choice also loads specs and tables,",
        "and the first load makes the CUDA context.",
        "",
        f"| problem | {' | '.join(phases)} |",
        f"|---|{'---:|' * len(phases)}",
    ]
    for row in rows:
        cells = [
            "" if phase not in row[WALL] else f"{row[WALL][phase] * 1e3:.1f}" + (f" ({row[phase] * 1e3:.1f})" if phase in row else "")
            for phase in phases
        ]
        lines.append(f"| `{row['problem']}` | {' | '.join(cells)} |")
    return lines


def time_calls() -> None:
    """Times every call once, on the GPU, in a process that waits for the best and in one that compiles it in the background; writes
    ``first_call.json``."""
    import torch

    columns = []
    for how in ("waiting", "background"):
        done = subprocess.run([sys.executable, "-m", "measurements.first_call", how], stdout=subprocess.PIPE, text=True, check=True)
        columns.append([json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")])
    rows = [{**row, "meanwhile": other["seconds"]} for row, other in zip(*columns, strict=True)]
    about = {"device": torch.cuda.get_device_name(), "processors": os.cpu_count(), "date": datetime.now(UTC).date().isoformat()}
    (HERE / "first_call.json").write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


def print_calls(background: bool) -> None:
    """Prints a line of JSON for each call, timed once in this process, with an empty cache."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GEMMGEN_CACHE_DIR"] = folder
        import torch

        from gemmgen import ops

        ops.compile_in_background(background)
        for name, call in calls():
            torch.cuda.synchronize()
            started = time.perf_counter()
            call()
            torch.cuda.synchronize()
            seconds = time.perf_counter() - started
            started = time.perf_counter()
            call()
            torch.cuda.synchronize()
            print(json.dumps({"call": name, "seconds": round(seconds, 3), "again": round(time.perf_counter() - started, 6)}), flush=True)
            while any(thread.name == "gemmgen-compiler" for thread in threading.enumerate()):
                time.sleep(0.01)  # a call alone is timed, not one beside the compilation for the last


def report() -> None:
    """Writes ``first_call.md`` from the times."""
    about = json.loads((HERE / "first_call.json").read_text())
    rows = about["rows"]
    worst = max(rows, key=lambda row: row["seconds"])
    lines = [
        "# First calls",
        "",
        f"{about['device']}, {about['processors']} processors, {about['date']}. Seconds from the first call of `ops.matmul` or",
        "`ops.grouped_matmul` to its result, with nothing compiled before: choice of an instance, rendering, NVRTC, loading, launch.",
        f"The longest: {worst['call']}, {worst['seconds']:.2f} s. The very first row also loads the library's specs.",
        "",
        "Meanwhile: the same with `ops.compile_in_background()`.",
        "",
        "| call | first, s | second, ms | meanwhile, s |",
        "|---|---|---|---|",
        *(
            f"| {row['call']} | {row['seconds']:.2f} | {row['again'] * 1e3:.2f} | {row['meanwhile']:.2f} |"
            if "meanwhile" in row
            else f"| {row['call']} | {row['seconds']:.2f} | {row['again'] * 1e3:.2f} | |"
            for row in rows
        ),
    ]
    (HERE / "first_call.md").write_text("\n".join([*lines, *processor_lines()]) + "\n")


def main() -> None:
    """Times the requested calls, and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("calls", "waiting", "background", "processor", "phases", "report"), default="calls")
    parser.add_argument("--column", choices=("before", "now"), default="now")
    chosen = parser.parse_args()
    if chosen.what == "phases":
        print(json.dumps(seconds_of_phases()))
        return
    if chosen.what in ("waiting", "background"):
        print_calls(chosen.what == "background")
        return
    if chosen.what == "calls":
        time_calls()
    elif chosen.what == "processor":
        time_processor(chosen.column)
    report()


if __name__ == "__main__":
    main()
