"""Seconds of a first call by phase and by kind of operation, from the import of gemmgen to the result, with nothing compiled before.

    python -m measurements.first_call               on a machine with a GPU and torch; writes first_call.json and first_call.md
    python -m measurements.first_call --report      writes the table again from its data

Each kind is called in new processes, which have imported torch and made a CUDA context: with an empty cache of choices and binaries, with
the cache that this fills, and with ``ops.compile_in_background`` and an empty cache; and once in a process that has called other kinds
before. The functions that choose, render, compile and load report their own time; the rest of a call reads its arguments, prepares the
launch, and waits for the result. Modules of Python are compiled before, as those of an installed package are.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PHASES = ("import", "choice", "source", "compiler", "load", "rest")


def calls(torch: Any) -> dict[str, Callable[[Any], Any]]:
    """A call of each kind, which gets the module of operations."""

    def factors(m: int, n: int, k: int, kind: Any) -> tuple[Any, Any]:
        return torch.ones(m, k, device="cuda").to(kind), torch.ones(n, k, device="cuda").to(kind).T

    def matmul(m: int, n: int, k: int, kind: Any, **extra: Any) -> Callable[[Any], Any]:
        a, b = factors(m, n, k, kind)
        if "bias" in extra:
            extra["bias"] = torch.ones(n, device="cuda", dtype=kind)
        return lambda ops: ops.matmul(a, b, **extra)

    def grouped(groups: int, rows: int, n: int, k: int) -> Callable[[Any], Any]:
        a, many = (torch.ones(*shape, device="cuda", dtype=torch.bfloat16) for shape in ((groups * rows, k), (groups, n, k)))
        ends = torch.arange(rows, groups * rows + 1, rows, dtype=torch.int32, device="cuda")
        return lambda ops: ops.grouped_matmul(a, many.transpose(1, 2), ends)

    def convolution() -> Callable[[Any], Any]:
        shapes = (8, 256, 56, 56), (256, 256, 3, 3)
        x, w = (torch.ones(*shape, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last) for shape in shapes)
        return lambda ops: ops.conv2d(x, w, padding=1)

    def softmax() -> Callable[[Any], Any]:
        x = torch.ones(4096, 4096, device="cuda", dtype=torch.bfloat16)
        return lambda ops: ops.softmax(x)

    side = 4096, 4096, 4096
    return {
        "bfloat16, 4096 x 4096 x 4096": matmul(*side, torch.bfloat16),
        "bfloat16, bias and GELU, 4096 x 4096 x 4096": matmul(*side, torch.bfloat16, bias=True, activation="gelu"),
        "bfloat16, 1 x 4096 x 4096": matmul(1, 4096, 4096, torch.bfloat16),
        "float32 by GEMV, 4096 x 1 x 4096": matmul(4096, 1, 4096, torch.float32),
        "e4m3, 4096 x 4096 x 4096": matmul(*side, torch.float8_e4m3fn),
        "int8, 4096 x 4096 x 4096": matmul(*side, torch.int8),
        "float32, 4096 x 4096 x 4096": matmul(*side, torch.float32),
        "bfloat16, 16 groups of 256 rows, 4096 x 4096": grouped(16, 256, 4096, 4096),
        "float16 convolution, 3 x 3, 256 channels": convolution(),
        "softmax of rows, bfloat16, 4096 x 4096": softmax(),
    }


class Clock:
    """Seconds that functions take, by phase, of calls that may come from several threads."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)

    def wrap(self, owner: Any, name: str, phase: str) -> None:
        """Has a function report its time."""
        inner = getattr(owner, name)

        def timed(*given: Any, **named: Any) -> Any:
            begun = time.perf_counter()
            try:
                return inner(*given, **named)
            finally:
                self.seconds[phase] += time.perf_counter() - begun

        setattr(owner, name, timed)


def timed_calls(torch: Any, names: list[str], background: bool) -> list[dict[str, Any]]:
    """Calls of some kinds in this process, one after the other; the import of gemmgen counts to the first."""
    made = {name: call for name, call in calls(torch).items() if name in names}
    torch.cuda.synchronize()
    clock, begun = Clock(), time.perf_counter()
    from gemmgen import ops
    from gemmgen.ops import engine
    from gemmgen.runtime.cuda import driver
    from gemmgen.toolchain import compilation

    clock.seconds["import"] = time.perf_counter() - begun
    clock.wrap(engine, "choose", "choice")
    clock.wrap(compilation, "render", "source")
    clock.wrap(compilation, "compile_source", "compiler")
    clock.wrap(driver.LoadedBinary, "__init__", "load")
    ops.compile_in_background(background)
    rows = []
    for name, call in made.items():
        begun = time.perf_counter()
        call(ops)
        torch.cuda.synchronize()
        passed = time.perf_counter() - begun
        row: dict[str, Any] = {"call": name, "seconds": passed + clock.seconds["import"]}
        if background:
            while any(thread.name == "gemmgen-compiler" for thread in threading.enumerate()):
                time.sleep(0.002)
            row["best"] = time.perf_counter() - begun + clock.seconds["import"]
        else:
            clock.seconds["rest"] = row["seconds"] - sum(clock.seconds.values())
            row |= clock.seconds
        begun = time.perf_counter()
        call(ops)
        torch.cuda.synchronize()
        row["again"] = time.perf_counter() - begun
        rows.append({key: value if isinstance(value, str) else round(value, 6) for key, value in row.items()})
        clock.seconds.update(dict.fromkeys(PHASES, 0.0))
    return rows


def in_new_process(torch: Any, names: list[str], cache: str, background: bool = False) -> list[dict[str, Any]]:
    """The same in a fork of this process, which has imported torch, and neither gemmgen nor a CUDA context."""
    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.environ["GEMMGEN_CACHE_DIR"] = cache
            os.write(writable, json.dumps(timed_calls(torch, names, background)).encode())
        finally:
            os._exit(0)
    os.close(writable)
    with os.fdopen(readable) as told:
        text = told.read()
    os.waitpid(child, 0)
    if not text:
        raise SystemExit(f"{', '.join(names)}: the process ended without a result")
    rows: list[dict[str, Any]] = json.loads(text)
    return rows


def names_of_calls(torch: Any) -> list[str]:
    """Names of the kinds, without arrays on a GPU."""

    class Nothing:
        def __getattr__(self, _: str) -> Any:
            return self

        def __call__(self, *_: object, **__: object) -> Any:
            return self

        def __iter__(self) -> Any:
            return iter((self, self))

    return list(calls(Nothing()))


def measure() -> dict[str, Any]:
    """Times all kinds in each way."""
    import torch

    sys.dont_write_bytecode = False
    names, rows = names_of_calls(torch), []
    with tempfile.TemporaryDirectory() as folder:
        sys.pycache_prefix = f"{folder}/modules"
        in_new_process(torch, names, f"{folder}/compiled")  # compiles the modules of Python
        later = {row["call"]: row for row in in_new_process(torch, names, f"{folder}/later")}
        for number, name in enumerate(names):
            row = in_new_process(torch, [name], f"{folder}/{number}")[0]
            row["known"] = in_new_process(torch, [name], f"{folder}/{number}")[0]["seconds"]
            row["later"] = later[name]["seconds"]
            meanwhile = in_new_process(torch, [name], f"{folder}/{number}_background", background=True)[0]
            row |= {"meanwhile": meanwhile["seconds"], "best": meanwhile["best"]}
            rows.append(row)
            print(json.dumps(row), flush=True)
    about = {"device": torch.cuda.get_device_name(), "processors": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0]}
    about |= {"torch": torch.__version__}
    return {**about, "date": datetime.datetime.now(datetime.UTC).date().isoformat(), "rows": rows}


def report(data: dict[str, Any]) -> str:
    """The page."""
    rows = data["rows"]
    longest = max(rows, key=lambda row: row["seconds"])
    lines = [
        "# First calls",
        "",
        f"{data['device']}, {data['processors']} processors with a load of {data['load']:.0f}, {data['date']}, torch {data['torch']};",
        "`python -m measurements.first_call` makes this file. Milliseconds from the import of gemmgen to the result of the first call, in",
        "a new process that imported torch and made a CUDA context, with nothing compiled before. *Rest*: arguments are read, the launch",
        "is prepared, the kernel runs.",
        f"The longest: {longest['call']}, {longest['seconds']:.2f} s.",
        "",
        f"| call | {' | '.join(PHASES)} | all | second call |",
        f"|---|{'---:|' * (len(PHASES) + 2)}",
    ]
    for row in rows:
        cells = " | ".join(f"{row[phase] * 1e3:.0f}" for phase in PHASES)
        lines.append(f"| {row['call']} | {cells} | {row['seconds'] * 1e3:.0f} | {row['again'] * 1e3:.2f} |")
    lines += [
        "",
        "The same calls elsewhere, milliseconds. *Later*: in a process that has called other kinds before, with nothing compiled for this",
        "one; that of the first row is the process's first. *Known*: in a new process, where another has made the call before: the choice",
        "and the binary are in the user's cache. *Background*: with `ops.compile_in_background()`, in a new process with nothing compiled:",
        "until the first result, by a kernel that compiles quickly, and until calls take the best kernel, which a thread compiles: the",
        "same where nothing compiles sooner.",
        "",
        "| call | first | later | known | background | best from |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        cells = " | ".join(f"{row[name] * 1e3:.0f}" for name in ("seconds", "later", "known", "meanwhile", "best"))
        lines.append(f"| {row['call']} | {cells} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Times all calls, or writes the report alone."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--report", action="store_true", help="writes the table again from its data")
    parser.add_argument("--out", type=Path, default=HERE / "first_call.json", help="the data; the table goes beside them")
    given = parser.parse_args()
    if not given.report:
        given.out.write_text(json.dumps(measure(), indent=1) + "\n")
    given.out.with_suffix(".md").write_text(report(json.loads(given.out.read_text())))


if __name__ == "__main__":
    main()
