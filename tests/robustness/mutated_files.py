"""Mutants of files of strangers, each given to a command in a process with limits: python mutated_files.py --count 2000.

The files are the CUDA programs of the tests, PTX, specs, sweeps, launch files, tasks, profiles, lists of problems and tables of measured
times; with --ways run, a program with host code, fenced. A mutant has one slip that a compiler may
take, or one to four changes: tokens dropped, doubled, swapped, replaced by hostile ones, or the rest cut off. Kernels run for at most
100,000 steps, unless --whole is given. Prints a line of JSON for each mutant that ended in anything but a verdict or a message within its
limits of memory and processor time, then the counts. With --journal, a line for each is kept, and the same command goes on after them.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import re
import resource
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
sys.path.insert(0, str(TESTS))
sys.path.insert(0, str(ROOT))

from gemmgen.emulator import launch  # noqa: E402

MEMORY = 6 << 30
SECONDS = 20
"""Of processor time."""
WALL_SECONDS = 300
"""For one that waits for something, on a machine that is busy."""
STEPS = 100_000
"""Of a wave of a kernel; the emulator's own limit bounds its time too, but at a hundred times as much."""
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
NESTED = """
arrays:
  x: "f32[256]=random"
  y: "f32[256]=zeros"
  map: "tensormap[f32, 16x16, box 8x8, swizzle 32B]=random"
launches:
- entry: k
  grid: 2
  block: 64
  args: [{x: x, y: y, n: 256}, [x, y], map]
- {entry: k, grid: 1, block: 64, args: ["{x=f32[256]=random, y=f32[256]=zeros, n=7}", [y, x], map]}
"""
STRUCTURES = """
struct Given { const float* x; float* y; int n; };
struct alignas(64) Map { char bytes[128]; };
__global__ void k(Given given, const float* const* pair, const __grid_constant__ Map map)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < given.n) given.y[i] = given.x[i] + pair[0][i] + (map.bytes[0] & 0);
}
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
    way = rng.randrange(4)
    places = list(re.finditer({2: r"\b\d+\b", 3: r"[-+*/<>%&=:,]=?"}.get(way, r"\Z"), text))
    if way > 1 and places:
        found = rng.choice(places)
        return text[: found.start()] + rng.choice(NUMBERS if way == 2 else OPERATORS) + text[found.end() :]
    if way == 1:
        lines.insert(at, lines[at])
    else:
        del lines[at]
    return "\n".join(lines)


def mutant(text: str, rng: random.Random) -> str:
    """The text with a few changes."""
    if rng.random() < 0.75:
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


def changed(text: str, rng: random.Random) -> str:
    """A mutant of a text; half of those of data are changed in one or two values of theirs, so that they can be read."""
    if rng.random() < 0.5:
        return mutant(text, rng)
    data = json.loads(text) if text.startswith("{") else yaml.safe_load(text)
    for _ in range(rng.randint(1, 2)):
        places = list(_places(data))
        here, key = rng.choice(places)
        match rng.randrange(5):
            case 0:
                del here[key]
            case 1:
                here[key] = rng.choice((None, True, 1e308, float("nan"), float("inf"), [], {}, [[]], "", "x" * 3000, {"": None}))
            case 2:
                here[key] = rng.choice((HOSTILE, NUMBERS)[rng.randrange(2)])
            case 3:
                here[key] = int(rng.choice((*NUMBERS, "9" * 25)))
            case _:
                other, name = rng.choice(places)
                here[key] = json.loads(json.dumps(other[name]))
    return json.dumps(data, indent=1)


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Every value inside of data, as its container and its key or index."""
    for key in list(data) if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ():
        yield data, key
        yield from _places(data[key])


PROBLEMS = """# problems of a model
gemm:512,512,512,tn,bf16 # count=24 us=120.5
gemm:1,4096,4096,bias # count=3
reduction:64,4096,1,max # count=7 us=0.25
elementwise:1,1,1,65536,relu # count=12
"""
TIMES = """{
 "schema_version": 1, "device": "H200", "clock_mhz": 1980, "model": "",
 "problems": [
  {"kind": "gemm", "problem": "512,512,512,nt,bf16", "peer": 5.5,
   "times": {"point/wgmma/64x64x128_s6_c1": 4.2, "gemm/wgmma/bf16/64x64": 4.9},
   "models": {"gemm/wgmma/bf16/64x64": 5.1},
   "points": {"point/wgmma/64x64x128_s6_c1":
    {"kind": "gemm", "architecture": "sm_90a", "transpose": "nt", "alpha": "one", "beta": "zero",
     "storage": {"a": "bf16", "b": "bf16", "c": "bf16"},
     "alignment": {"a": 8, "b": 8, "c": 8}, "multiple_of": {"n": 8}, "rasterization": {"group": 8}, "early_launch": true, "store": "tma",
     "mainloop": {"strategy": "wgmma", "tile": {"m": 64, "n": 64, "k": 64}, "stages": 6, "persistent_blocks": 264, "consumers": 1}}}},
  {"kind": "reduction", "problem": "64,4096,1,max", "times": {"reduction/max": 3.25}}
 ]
}"""
PROFILE = """{"traceEvents": [
{"ph": "X", "name": "aten::mm", "dur": 12.5, "args": {"Input Dims": [[64, 32], [32, 16]], "Input type": ["float", "float"], "Input Strides": [[32, 1], [1, 32]]}},
{"ph": "X", "name": "aten::sum", "dur": 3, "args": {"Input Dims": [[64, 32], []], "Input type": ["c10::Half", ""], "Concrete Inputs": ["", "[1]"]}},
{"ph": "X", "name": "aten::relu", "dur": 1, "args": {"Input Dims": [[7, 5, 3]], "Input type": ["c10::BFloat16"]}}
]}"""  # noqa: E501


@cache
def kernels() -> list[tuple[str, list[str]]]:
    """CUDA sources, and arguments of a launch: of the tests' programs their own if a command line can give them, else some."""
    from sanitizer.more_programs import add  # noqa: F401  (adds its programs to the others)
    from sanitizer.programs import PROGRAMS

    found = [(SUM, list(ARGUMENTS)), (PRINTS, list(ARGUMENTS))]
    found += [(path.read_text(), list(ARGUMENTS)) for path in sorted(TESTS.rglob("*.cu"))]
    for program in PROGRAMS:
        try:
            given = [_argument(one) for one in program.given(np.random.default_rng(1))]
        except (TypeError, ValueError):
            found.append((program.source, list(ARGUMENTS)))
            continue
        size = [("--grid", program.grid), ("--block", program.block), ("--shared", program.shared or None), ("--cluster", program.cluster)]
        size += [("--arch", program.architecture)]
        words = [(name, ",".join(map(str, value)) if isinstance(value, tuple) else str(value)) for name, value in size if value]
        found.append((program.source, [word for pair in [*words, *[("--arg", text) for text in given]] for word in pair]))
    return found


def _argument(value: Any) -> str:
    """An argument of a program as ``--arg`` takes one. Raises ``TypeError`` for other kinds."""
    names = {"f": "f", "i": "i", "u": "u"}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in names:
        name = f"{names[value.dtype.kind]}{8 * value.dtype.itemsize}"
        return f"{name}[{max(value.size, 1)}]=range" if isinstance(value, np.ndarray) else f"{name}={value}"
    if isinstance(value, int | float):
        return f"i32={value}" if isinstance(value, int) else f"f32={value}"
    raise TypeError(type(value).__name__)


def _judge(rng: random.Random, folder: Path) -> list[str]:
    from judge.corpus import exploits, honest

    candidate = rng.choice([*exploits(), *honest()])
    task = yaml.safe_dump(candidate.task)
    in_task = rng.random() < 0.3
    (folder / "a.cu").write_text(candidate.source if in_task else mutant(candidate.source, rng))
    (folder / "task.yaml").write_text(changed(task, rng) if in_task else task)
    reference = f"{TESTS / 'judge' / 'references.py'}:{candidate.function}"
    return ["judge", "a.cu", "--task", "task.yaml", "--reference", reference, "--shapes", candidate.shape]


def _prove(rng: random.Random, folder: Path) -> list[str]:
    from proof.kernels import SAMPLES

    if rng.random() < 0.3:
        (folder / "a.cu").write_text(mutant(SUM, rng))
        return ["prove", "a.cu", *PROVE]
    sample = rng.choice(list(SAMPLES.values()))
    (folder / "a.cu").write_text(mutant(sample.source, rng))
    words = ["--seconds", "5", "--block", str(sample.threads), "--grid", sample.grid]
    for array in sample.arrays:
        role = "in" if str(array.role) == "input" else "out"
        shape = ", ".join(extent.text for extent in array.shape)
        words += ["--array", f"{array.name}={role} f32[{shape}{': ' + ', '.join(one.text for one in array.strides)}]"]
    return ["prove", "a.cu", *words, *[word for text in sample.constraints for word in ("--expects", text)]]


def _program(rng: random.Random, folder: Path) -> list[str]:
    """A mutated candidate or task with host code, none of which may run: there is no --run-native."""
    from judge.test_inputs import EXTENSION, PROGRAM, REFERENCES, TRITON, extension_task, program_task

    triton = {"grid": ["ceil_div(n, 64)"], "entry": "scale_add", "constants": {"B": 64}, "arguments": program_task("right")["arguments"]}
    name, source, task = rng.choice(
        (("a.cu", PROGRAM.read_text(), program_task("right")), ("a.cu", EXTENSION.read_text(), extension_task(0)), ("a.py", TRITON, triton))
    )
    in_task = rng.random() < 0.6
    text = yaml.safe_dump(task)
    (folder / name).write_text(source if in_task else mutant(source, rng))
    (folder / "task.yaml").write_text(changed(text, rng) if in_task else text)
    return ["judge", name, "--task", "task.yaml", "--reference", f"{REFERENCES}:scale_add", "--shapes", "n=64"]


def _spec(rng: random.Random, folder: Path) -> list[str]:
    from gemmgen.kernels.shipped import shipped_specs
    from gemmgen.kernels.spec_files import spec_fields

    text = yaml.safe_dump(spec_fields(rng.choice(sorted(shipped_specs().items()))[1]))
    (folder / "a.yaml").write_text(changed(text, rng))
    return [rng.choice(("check", "explain", "render")), "a.yaml"]


def _times(rng: random.Random, folder: Path) -> list[str]:
    """A table of measured times in the place where choices look for it, with the specs of points."""
    (folder / "gemmgen" / "tuned").mkdir(parents=True)
    (folder / "gemmgen" / "tuned" / "h200.json").write_text(changed(TIMES, rng))
    (folder / "problems.txt").write_text("gemm:512,512,512,nt,bf16\n")
    return ["plan-model", "problems.txt", "--device", "H200"]


@cache
def _ptx() -> str:
    """PTX of the first program."""
    from emulator.helpers import compile_ptx

    return compile_ptx(SUM)


LISTED = ("gemm/v0_naive", "reduction/s7_shuffle")
LIST = """schema_version: 1
compiler: "13.0"
architectures: [sm_75, sm_90a]
groups:
- {title: first, specs: [gemm/v0_*], sizes: [[64, 64, 64]], for_readers: true}
- {title: second, specs: [reduction/s7_shuffle]}
"""


@cache
def copy_of_the_library() -> dict[str, str]:
    """The files of a small copy of the library, evidence included."""
    manifest = json.loads((ROOT / "generated" / "manifest.json").read_text())
    manifest["instances"] = [entry for entry in manifest["instances"] if entry["spec_name"] in LISTED]
    names = [entry["name"] for entry in manifest["instances"]]
    files = {"manifest.json": json.dumps(manifest)}
    for entry in manifest["instances"]:
        files |= {entry[part]: (ROOT / "generated" / entry[part]).read_text() for part in ("source", "certificate")}
    for path in sorted((ROOT / "generated" / "evidence").glob("*.json")):
        evidence = json.loads(path.read_text())
        evidence["records"] = [record for record in evidence["records"] if record["instance"] in names]
        if evidence["records"]:
            files[f"evidence/{path.name}"] = json.dumps(evidence)
    return files


def _copied(rng: random.Random, folder: Path) -> list[str]:
    """A copy of the library of which one file is changed, or its list."""
    files = dict(copy_of_the_library())
    name = rng.choice(("list.yaml", "manifest.json", *sorted(files)))
    for file, text in files.items():
        (folder / "lib" / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / "lib" / file).write_text(
            mutant(text, rng) if file == name and name.endswith(".cu") else changed(text, rng) if file == name else text
        )
    for label in LISTED:
        (folder / label).parent.mkdir(exist_ok=True)
        (folder / f"{label}.yaml").write_text(_spec_text(label))
    (folder / "list.yaml").write_text(changed(LIST, rng) if name == "list.yaml" else LIST)
    given = ["--library", "lib", "--list", "list.yaml", "--jobs", "1"]
    prove = ["prove", "--again", "--seconds", "1", "--within", "1", *given]
    build = ["build", "-o", "lib", *given[2:]]
    wanted = (["check", "--sample", "0", *given], ["list", *given[:2]], ["show", *given[:2], rng.choice(LISTED)], prove, build)
    return ["library", *rng.choice(wanted if rng.random() < 0.5 else wanted[:3])]


@cache
def _spec_text(label: str) -> str:
    from gemmgen.kernels.shipped import shipped_specs
    from gemmgen.kernels.spec_files import spec_fields

    return yaml.safe_dump(spec_fields(shipped_specs()[label]))


def command_of(way: str, rng: random.Random, folder: Path) -> list[str]:
    """A command on a mutant, whose files lie in ``folder``."""
    match way:
        case "launch file":
            (folder / "a.cu").write_text(rng.choice((SUM, PRINTS)))
            (folder / "run.yaml").write_text(changed(LAUNCHES, rng))
            return ["emulate", "a.cu", "--jobs", "1", "--seconds", "15", "--launches", "run.yaml"]
        case "prove":
            return _prove(rng, folder)
        case "judge":
            return _judge(rng, folder)
        case "problems":
            (folder / "problems.txt").write_text(mutant(PROBLEMS, rng))
            return ["plan-model", "problems.txt", "--device", "H200"]
        case "trace":
            (folder / "trace.json").write_text(changed(PROFILE, rng))
            return ["trace", "trace.json"]
        case "structures":
            in_file = rng.random() < 0.7
            (folder / "a.cu").write_text(STRUCTURES if in_file else mutant(STRUCTURES, rng))
            (folder / "run.yaml").write_text(changed(NESTED, rng) if in_file else NESTED)
            return ["emulate", "a.cu", "--jobs", "1", "--seconds", "15", "--launches", "run.yaml"]
        case "program":
            return _program(rng, folder)
        case "spec":
            return _spec(rng, folder)
        case "sweep":
            (folder / "a.yaml").write_text(changed(rng.choice(sorted((ROOT / "specs" / "sweeps").glob("ci_*.yaml"))).read_text(), rng))
            return ["sweep", "a.yaml", "--dry-run"]
        case "library":
            return _copied(rng, folder)
        case "times":
            return _times(rng, folder)
        case "PTX":
            (folder / "a.ptx").write_text(mutant(_ptx(), rng))
            return ["emulate", "a.ptx", "--jobs", "1", "--seconds", "15", *ARGUMENTS]
        case "run":
            (folder / "a.cu").write_text(mutant((TESTS / "judge" / "program.cu").read_text(), rng))
            return ["run", "--sandbox", "--seconds", "10", "a.cu"]
    source, arguments = rng.choice(kernels())
    (folder / "a.cu").write_text(mutant(source, rng))
    return ["emulate", "a.cu", "--jobs", "1", "--seconds", "15", *arguments]


def ended(command: list[str], folder: Path, whole: bool) -> tuple[str, float, str]:
    """The outcome of a command, the processor time that it took, and the end of its standard error."""
    output = folder / "output"
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        os.environ["XDG_DATA_HOME"] = str(folder)
        memory = MEMORY + int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()  # beside the mapped memory
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 26, 1 << 26))
        written = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(written, 1)
        os.dup2(written, 2)
        os.setsid()
        signal.alarm(WALL_SECONDS)
        if not whole:
            launch.STEP_LIMIT = STEPS
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
        ends = {"SIGXCPU": "out of time", "SIGKILL": "out of time", "SIGALRM": "waits"}
        return ends.get(name, f"killed by {name}"), spent, text[-500:]
    code = os.WEXITSTATUS(status)
    if "Traceback (most recent call last)" in text or code not in (0, 1, 2):
        return "traceback", spent, text[-1500:]
    if "\x1b[2J" in text:
        return "raw text", spent, text[-500:]
    return f"exit {code}", spent, text[:100] if code == 2 else ""


IMPORTED = (
    *("gemmgen.cli", "gemmgen.cli.commands.emulate", "gemmgen.cli.commands.prove", "gemmgen.cli.commands.judge", "gemmgen.judge.referee"),
    *("gemmgen.cli.commands.plan_model", "gemmgen.cli.commands.trace", "gemmgen.sanitizer.launches", "gemmgen.sanitizer.front_end"),
    *("gemmgen.dispatch.selection", "gemmgen.proof.prover", "gemmgen.emulator.machine", "gemmgen.emulator.hazards", "cuda.bindings.nvrtc"),
    *("rich.table", "pygments", "z3"),
)
"""Imported once, before the children."""
WAYS = (
    *("emulate", "launch file", "emulate", "prove", "emulate", "judge", "problems", "trace"),
    *("spec", "structures", "emulate", "sweep", "PTX", "program", "times", "structures", "library"),
)


def tried(number: int, seed: int, ways: Sequence[str], whole: bool) -> dict[str, Any]:
    """The outcome of one mutant; with its files if it did not end as it should."""
    rng = random.Random(seed * 1_000_000 + number)
    way = ways[number % len(ways)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = command_of(way, rng, folder)
        outcome, seconds, text = ended(command, folder, whole)
        about = {"number": number, "way": way, "outcome": outcome, "seconds": round(seconds, 2)}
        if outcome.startswith("exit"):
            return {**about, "text": text}
        files = {
            path.name: path.read_text(errors="replace")[:4000] for path in folder.iterdir() if path.is_file() and path.name != "output"
        }
        return {**about, "text": text, "command": command, "files": files}


def main() -> None:
    """Tries mutants."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=46)
    parser.add_argument("--ways", nargs="*", default=WAYS)
    parser.add_argument("--whole", action="store_true", help="kernels run as long as the emulator lets them")
    parser.add_argument("--journal", type=Path)
    given = parser.parse_args()
    for module in IMPORTED:
        with contextlib.suppress(ImportError):  # the solver is optional, and its absence a message
            importlib.import_module(module)
    known = {}
    if given.journal and given.journal.exists():
        known = {entry["number"]: entry for entry in map(json.loads, given.journal.read_text().splitlines())}
    for number in range(given.first, given.first + given.count):
        if number in known:
            continue
        entry = known[number] = tried(number, given.seed, given.ways, given.whole)
        if given.journal:
            with given.journal.open("a") as journal:
                journal.write(json.dumps(entry) + "\n")
        if not entry["outcome"].startswith("exit"):
            print(json.dumps(entry), flush=True)
    counts = Counter(f"{entry['way']}: {entry['outcome']}" for entry in known.values())
    slowest = max(((entry["seconds"], f"{entry['way']} {entry['number']}") for entry in known.values()), default=None)
    print(json.dumps({"counts": dict(sorted(counts.items())), "slowest": slowest}), flush=True)


if __name__ == "__main__":
    main()
