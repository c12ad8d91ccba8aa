"""Mutants of CUDA and launch files, each given to a command in a process with limits: python mutated_files.py --count 2000.

A mutant has one slip that a compiler may take, or one to four changes: tokens dropped, doubled, swapped, replaced by hostile ones, or the
rest cut off. Prints a line of JSON
for each mutant that ended in anything but a message within its limits of memory and processor time, then the counts.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

MEMORY = 6 << 30
SECONDS = 20
"""Of processor time."""
SUM = """
__global__ void k(const float* x, float* y, int n)
{
    __shared__ float part[64];
    float sum = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        sum += x[i];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int s = 32; s > 0; s /= 2) {
        if (threadIdx.x < s)
            part[threadIdx.x] += part[threadIdx.x + s];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        atomicAdd(y, part[0]);
}
"""
PRINTS = """
#include <cstdio>
template <int N> __device__ int power(int x) { return N == 0 ? 1 : x * power<N - 1>(x); }
template <> __device__ int power<0>(int x) { return 1; }
__constant__ int table[16];
__global__ void k(const float* x, float* y, int n)
{
    volatile char local[256];
    local[n & 255] = 1;
    for (int i = 0; i < 4; ++i)
        printf("%d %s %*.3f\\n", power<3>(i), "text", 8, double(x[i]));
    y[threadIdx.x] = __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 1) + table[3] + local[0];
}
int main() { k<<<1, 64>>>(nullptr, nullptr, 4); return 0; }
"""
LAUNCHES = """
arrays: {x: "f32[256]=random", y: "f32[256]=zeros"}
launches:
- {entry: k, grid: 2, block: 64, args: [x, y, "i32=256"]}
- {entry: k, grid: [1, 1, 1], block: [64], args: [x, y, "i32=100"]}
"""
HOSTILE = (
    *("0", "-1", "2147483648", "9" * 40, "1e999", "0x7fffffffffffffff", "<<<", ">>>", "while (1)", 'asm("trap;");'),
    *('asm volatile("bra 0;");', "__syncthreads();", "return;", "(" * 200, "}" * 50, "{" * 200, '#include "/dev/zero"'),
    *('#include "/etc/passwd"', '#line 1 "/dev/tty"', "\\", "'", '"', "/*", "//", "\x00", "\x1b[2J", "é", "template <", "power<1000>"),
    *("float s[1 << 28];", "x[n * 1000000000]", "goto k;", "#define k k k", "__global__", "extern", "[[", "f32[99999999999]"),
    *("random", "@/dev/zero", "*a", "&a", "!!python/object", "null", "[]"),
)
NUMBERS = ("0", "1", "3", "33", "63", "65", "255", "4096", "100000", "2147483647", "-1")
OPERATORS = ("<", "<=", ">", "+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>", "+=", "-=", "/=", "*=")
ARGUMENTS = ("--grid", "2", "--block", "64", "--arg", "f32[256]=random", "--arg", "f32[256]=zeros", "--arg", "i32=256")
PROVE = (
    *("--seconds", "5", "--block", "64", "--grid", "ceil_div(n, 64)", "--expects", "n >= 1"),
    *("--array", "x=in f32[n]", "--array", "y=inout f32[n]"),
)


def slipped(text: str, rng: random.Random) -> str:
    """The text with one slip that a compiler may take: a line left out or doubled, another number, another operator."""
    lines = text.splitlines()
    at = rng.randrange(len(lines))
    match rng.randrange(4):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, lines[at])
        case 2:
            numbers = list(re.finditer(r"\b\d+\b", text))
            found = rng.choice(numbers)
            return text[: found.start()] + rng.choice(NUMBERS) + text[found.end() :]
        case _:
            found = rng.choice(list(re.finditer(r"[-+*/<>%&]=?", text)))
            return text[: found.start()] + rng.choice(OPERATORS) + text[found.end() :]
    return "\n".join(lines)


def mutant(text: str, rng: random.Random) -> str:
    """The text with a few changes."""
    if rng.random() < 0.6:
        return slipped(text, rng)
    pieces = re.findall(r"\w+|\s+|[^\w\s]", text)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(pieces))
        match rng.randrange(6):
            case 0:
                del pieces[at]
            case 1:
                pieces.insert(at, pieces[at])
            case 2:
                other = rng.randrange(len(pieces))
                pieces[at], pieces[other] = pieces[other], pieces[at]
            case 3 | 4:
                pieces[at] = f" {rng.choice(HOSTILE)} "
            case _:
                del pieces[max(at, len(pieces) // 2) :]
        if not pieces:
            break
    return "".join(pieces)


def command_of(way: str, rng: random.Random, folder: Path) -> list[str]:
    """A command on a mutant, whose files lie in ``folder``."""
    source = rng.choice((SUM, PRINTS))
    if way == "launch file":
        (folder / "a.cu").write_text(source)
        (folder / "run.yaml").write_text(mutant(LAUNCHES, rng))
        return ["emulate", "a.cu", "--launches", "run.yaml"]
    (folder / "a.cu").write_text(mutant(source, rng))
    return ["emulate", "a.cu", *ARGUMENTS] if way == "emulate" else ["prove", "a.cu", *PROVE]


def ended(command: list[str], folder: Path) -> tuple[str, float, str]:
    """The outcome of a command, the processor time that it took, and the end of what it wrote to its errors."""
    output = folder / "output"
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 26, 1 << 26))
        written = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(written, 1)
        os.dup2(written, 2)
        os.setsid()
        sys.argv = ["gemmgen", *command]
        from gemmgen.__main__ import main

        try:
            main()
            code: object = 0
        except SystemExit as end:
            code = end.code
        except BaseException:
            import traceback

            traceback.print_exc()
            code = 99
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 98)
    _, status, usage = os.wait4(child, 0)
    spent = usage.ru_utime + usage.ru_stime
    text = output.read_bytes().decode(errors="replace") if output.exists() else ""
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return ("out of time" if name in ("SIGXCPU", "SIGKILL") else f"killed by {name}"), spent, text[-500:]
    code = os.WEXITSTATUS(status)
    if "Traceback (most recent call last)" in text or code not in (0, 1, 2):
        return "traceback", spent, text[-1500:]
    if "\x1b[2J" in text:
        return "raw text", spent, text[-500:]
    return f"exit {code}", spent, ""


def main() -> None:
    """Tries mutants."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=46)
    parser.add_argument("--ways", nargs="*", default=["emulate", "launch file", "prove"])
    given = parser.parse_args()
    import gemmgen.cli  # noqa: F401  (imported once, before the children)

    counts: Counter[str] = Counter()
    slowest = (0.0, "")
    for number in range(given.first, given.first + given.count):
        rng = random.Random(given.seed * 1_000_000 + number)
        way = given.ways[number % len(given.ways)]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            command = command_of(way, rng, folder)
            outcome, seconds, text = ended(command, folder)
            counts[f"{way}: {outcome}"] += 1
            slowest = max(slowest, (round(seconds, 2), f"{way} {number}"))
            if not outcome.startswith("exit"):
                files = {path.name: path.read_text(errors="replace")[:3000] for path in folder.iterdir() if path.suffix in (".cu", ".yaml")}
                about = {"number": number, "way": way, "outcome": outcome, "seconds": seconds}
                print(json.dumps({**about, "text": text, "files": files}), flush=True)
    print(json.dumps({"counts": dict(sorted(counts.items())), "slowest": slowest}), flush=True)


if __name__ == "__main__":
    main()
