"""Every command on ten problems of each kind, as a user would type them, with or without a GPU.

    python -m measurements.problems_cold --jobs 2                    anywhere: verified on the emulator
    python -m measurements.problems_cold --jobs 8 --gpu              on a machine with a GPU: verified and timed there as well
    python -m measurements.problems_cold --gpu --without verify bench --journal FILE         first the commands that need no GPU

Each problem has a new process, in an empty folder, and runs explain, render (with the spec that it writes, rendered again to the same
bytes), compile, verify, analyze, view, draw, diff with a second problem, and exports as a header, a Python module and launch data; the
header is compiled with a C compiler. On a GPU and for processors also bench. Kernels for processors have no compile, view, draw and diff.
A journal keeps the outcomes, and a later run with the same journal runs only the commands that are missing from it. Writes problems_cold.md
beside this file, and exits with 1 if a command failed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

HERE = Path(__file__).resolve().parent
PROBLEMS = {
    "gemm": (
        "gemm:64,64,64",
        "gemm:512,768,256,nt,bfloat16,bias,gelu",
        "gemm:1,4096,4096,nt,fp16",
        "gemm:127,129,131,unaligned",
        "gemm:256,512,512,nt,int8",
        "gemm:256,512,512,nt,fp8",
        "gemm:64,96,128,batch=8,fp16,residual",
        "gemm:300,200,100,tn,alpha,beta",
        "gemm:m=192,n=2560,k=1024,nt,bf16",
        "gemm:256,512,256,nt,bf16,swiglu",
    ),
    "grouped": (
        "grouped:512,256,256,bf16,groups=4",
        "grouped:512,256,256,fp16,nt,groups=8",
        "grouped:1000,320,128,bf16,nt,groups=5,silu",
        "grouped:512,256,256,nt,fp8,groups=4",
        "grouped:256,256,256,fp16,groups=2",
        "grouped:777,512,256,bf16,groups=64",
        "grouped:64,256,512,nt,bf16,groups=8",
        "grouped:512,256,256,nt,bf16,groups=4,swiglu",
        "grouped:512,256,256,nt,bf16,groups=4,masked",
        "grouped:128,128,128,nt,half,groups=3,relu",
    ),
    "conv2d": (
        "conv2d:4,64,14,14,64,3,3,1,1",
        "conv2d:2,64,14,14,128,1,1,1,0,relu",
        "conv2d:2,128,14,14,128,3,3,2,1",
        "conv2d:1,32,9,11,64,3,3,1,1,int32",
        "conv2d:2,64,8,8,64,3,3,1,1,groups=2",
        "conv2d:2,64,8,8,64,3,3,1,2,dilation=2",
        "conv2d:2,64,8,8,64,3,3,1,1,of_f16,f16,nhwc,from_nhwc",
        "conv2d:2,64,8,8,64,3,3,1,1,residual,relu",
        "conv2d:2,32,8,8,32,5,3,1,1,of_uint8",
        "conv2d:2,64,8,8,64,1,1,1,0,h_swish",
    ),
    "reduction": (
        "reduction:1,1000000,1",
        "reduction:64,512,1,max,bf16",
        "reduction:31,742,37,mean",
        "reduction:100,1000,1,argmax,fp16",
        "reduction:64,512,1,logsumexp",
        "reduction:64,512,1,mean_variance,float32",
        "reduction:7,513,1,l2_norm,unaligned",
        "reduction:64,333,1,max+argmax",
        "reduction:64,512,8,sum,int8",
        "reduction:16,100,3,min,strided",
    ),
    "elementwise": (
        "elementwise:1,1,1,100000,silu",
        "elementwise:1,1,128,96,gelu,bf16",
        "elementwise:1,1,128,96,silu,padded",
        "elementwise:2,3,40,50,abs,sqrt,strided",
        "elementwise:1,1,64,64,relu,fp16",
        "elementwise:1,1,77,99,tanh,unaligned",
        "elementwise:1,1,64,64,exp",
        "elementwise:1,1,64,64,square,relu",
        "elementwise:1,1,64,64,h_swish,half",
        "elementwise:1,4,64,64,leaky_relu,bfloat16",
    ),
    "cpu": (
        "cpu:64,64,64",
        "cpu:1,512,512",
        "cpu:512,1,512",
        "cpu:333,222,111,nt",
        "cpu:256,256,256,tn",
        "cpu:128,128,128,tt,alpha,beta",
        "cpu:128,96,64,bias,relu",
        "cpu:96,96,96,gelu",
        "cpu:100,100,100,residual",
        "cpu:2000,16,64,nt,silu",
    ),
}


def command(*arguments: object) -> Result:
    """Gemmgen's command line, in this process."""
    from gemmgen.cli import cli

    return CliRunner().invoke(cli, [str(argument) for argument in arguments], prog_name="gemmgen")


def failure(done: Result) -> str:
    """Why a command failed, or nothing."""
    if done.exit_code == 0 and "Traceback" not in done.stderr:
        return ""
    lines = (done.stderr or done.stdout or repr(done.exception)).strip().splitlines()
    return f"exit {done.exit_code}: {lines[-1][:300] if lines else ''}"


def steps(text: str, other: str, gpu: bool, device: str) -> dict[str, Callable[[], str]]:
    """The commands on a problem, in the current folder: by name, functions that return why they failed."""
    processor = text.startswith("cpu:")
    problem = ("--problem", text, *(() if processor or gpu else ("--device", device)))
    backend = () if processor else ("--backend", "gpu" if gpu else "emulator")

    def said(*arguments: object, needs: str = "") -> Callable[[], str]:
        def step() -> str:
            done = command(*arguments)
            missing = needs and needs not in done.stdout + done.stderr
            return failure(done) or (f"says nothing of {needs!r}" if missing else "")

        return step

    def rendered_again() -> str:
        done = command("render", *problem, "--spec", "kernel.yaml")
        if reason := failure(done):
            return reason
        if ": takes " not in done.stderr:
            return "does not name the chosen kernel"
        source = done.stdout
        done = command("render", "kernel.yaml")
        return failure(done) or ("" if done.stdout == source else "other bytes from its spec")

    def header() -> str:
        done = command("export", *problem, "--format", "header", "-o", "kernel.h")
        if reason := failure(done):
            return reason
        Path("host.c").write_text('#include "kernel.h"\nint main(void) { return 0; }\n')
        found = subprocess.run(["gcc", "-std=c99", "-fsyntax-only", "-isystem", cuda_include(), "host.c"], capture_output=True, text=True)
        return found.stderr.strip()[:300]

    made: dict[str, Callable[[], str]] = {
        "explain": said("explain", *problem),
        "render": rendered_again,
        "verify": said("verify", *problem, *backend, needs="verified"),
        "analyze": said("analyze", *problem),
    }
    if not processor:
        made |= {
            "compile": said("compile", *problem, "-o", "compiled/"),
            "diff": said("diff", *problem, "--problem", other),
            "view": said("view", *problem, "-o", "view.html"),
            "draw": said("draw", *problem, "-o", "drawing.svg"),
            "python": said("export", *problem, "--format", "python", "-o", "module.py"),
            "launch": said("export", *problem, "--format", "launch", "-o", "launch/"),
        }
    made["header"] = header
    if processor:
        made["shared"] = said("export", *problem, "--format", "shared", "-o", "kernel.so")
    if processor or gpu:
        made["bench"] = said("bench", *problem, *(() if processor else ("--rounds", "10")))
    return made


def cuda_include() -> str:
    """The folder of cuda.h, or of nothing."""
    folders = [found.parent for entry in sys.path for found in Path(entry or ".").glob("nvidia/*/include/cuda.h")]
    return str(next(iter([*folders, *(path.parent for path in Path("/usr/local").glob("cuda*/include/cuda.h"))]), "."))


def run_one(text: str, other: str, gpu: bool, device: str, names: Sequence[str]) -> None:
    """One problem, in this process's folder; prints a line of JSON."""
    outcome: dict[str, Any] = {}
    for name, step in steps(text, other, gpu, device).items():
        if name not in names:
            continue
        began = time.monotonic()
        try:
            reason = step()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"[:300]
        outcome[name] = {"failed": reason, "seconds": round(time.monotonic() - began, 1)}
    print(json.dumps({"problem": text, "commands": outcome}), flush=True)


def journal_rows(journal: Path | None) -> dict[str, dict[str, Any]]:
    """The outcomes in a journal, by problem: a line for each run of a problem, which may have run some of the commands."""
    known: dict[str, dict[str, Any]] = {}
    if journal is not None and journal.exists():
        for row in map(json.loads, journal.read_text().splitlines()):
            known.setdefault(row["problem"], {}).update(row["commands"])
    return known


def run_all(arguments: argparse.Namespace, entries: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """All problems, so many processes at a time; outcomes by problem, of the journal and of this run."""
    known, began = journal_rows(arguments.journal), time.monotonic()

    def one(entry: tuple[str, str]) -> dict[str, Any]:
        text, other = entry
        before = known.get(text, {})
        every = steps(text, other, arguments.gpu, arguments.device)
        wanted = [name for name in every if (not arguments.only or name in arguments.only) and name not in arguments.without]
        missing = [name for name in wanted if name not in before]
        if not missing or time.monotonic() - began > arguments.seconds:
            return {"problem": text, "commands": {name: before[name] for name in every if name in before}}
        with tempfile.TemporaryDirectory() as folder:
            line = [sys.executable, "-m", "measurements.problems_cold", "--one", text, other, "--device", arguments.device]
            line += [*(["--gpu"] if arguments.gpu else []), "--only", *missing]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])}
            done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True)
        try:
            commands: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])["commands"]
        except (IndexError, ValueError):
            commands = {"start": {"failed": done.stderr.strip()[-300:], "seconds": 0.0}}
        failed = {name: outcome["failed"] for name, outcome in commands.items() if outcome["failed"]}
        print(text, failed or "all right", flush=True)
        if arguments.journal is not None:
            with arguments.journal.open("a") as file:
                file.write(json.dumps({"problem": text, "commands": commands}) + "\n")
        merged = before | commands
        return {"problem": text, "commands": {name: merged[name] for name in [*every, "start"] if name in merged}}

    with ThreadPoolExecutor(arguments.jobs) as pool:
        return [row for row in pool.map(one, entries) if row["commands"]]


def report(rows: Sequence[dict[str, Any]], where: str) -> str:
    """The page."""
    names = list(dict.fromkeys(name for row in sorted(rows, key=lambda row: -len(row["commands"])) for name in row["commands"]))
    failed = sum(bool(outcome["failed"]) for row in rows for outcome in row["commands"].values())
    commands = sum(len(row["commands"]) for row in rows)
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    lines = [
        "# Ten problems of each kind, used cold",
        "",
        f"{where}, {date}. Seconds of each command, each problem in a new process: {len(rows)} problems, {commands} commands,",
        f"{failed} failed.",
        "`python -m measurements.problems_cold` makes this file.",
        "",
        f"| problem | {' | '.join(names)} |",
        f"|---|{'---:|' * len(names)}",
    ]
    for row in rows:
        found = [row["commands"].get(name) for name in names]
        cells = ["" if one is None else one["failed"] or f"{one['seconds']:.1f}" for one in found]
        lines.append(f"| `{row['problem']}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Runs one problem, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", choices=[*PROBLEMS, []], help="kinds of problems; all by default")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--gpu", action="store_true", help="verify and time on this machine's GPU")
    parser.add_argument("--device", default="H200", help="without --gpu: the device to choose for")
    parser.add_argument("--only", nargs="*", default=[], metavar="COMMAND", help="these commands alone, such as render verify header")
    parser.add_argument("--without", nargs="*", default=[], metavar="COMMAND", help="all commands but these")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further problem after so long")
    parser.add_argument("--journal", type=Path, help="a file that keeps outcomes: commands in it are not run again")
    parser.add_argument("--one", nargs=2, metavar=("PROBLEM", "OTHER"), help="run one problem in this folder")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    if arguments.one:
        text, other = arguments.one
        run_one(text, other, arguments.gpu, arguments.device, arguments.only or list(steps(text, other, arguments.gpu, arguments.device)))
        return
    assert shutil.which("gcc"), "this needs gcc"
    kinds = arguments.kinds or list(PROBLEMS)
    entries = [(text, PROBLEMS[kind][place - 1]) for place in range(10) for kind in kinds for text in PROBLEMS[kind][place : place + 1]]
    rows = run_all(arguments, entries)
    where = "On this machine's GPU" if arguments.gpu else f"Without a GPU, for the {arguments.device}, on {platform.machine()}"
    default = HERE / ("problems_cold_gpu.md" if arguments.gpu else "problems_cold.md")
    (arguments.output or default).write_text(report(rows, where))
    raise SystemExit(any(outcome["failed"] for row in rows for outcome in row["commands"].values()))


if __name__ == "__main__":
    main()
