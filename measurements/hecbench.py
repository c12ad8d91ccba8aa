"""HeCBench's programs under `gemmgen run`, unmodified and with small arguments: a sample that is fixed beforehand.

The sample is the first 200 names in the alphabet among the CUDA programs that need no library besides the CUDA runtime, Thrust and CUB, and
whose data lie in the repository. hecbench.json holds their arguments. Run on a checkout of github.com/zjin-lcf/HeCBench (f27000a5):

    python measurements/hecbench.py CHECKOUT results.jsonl --jobs 8 --limit 260

A program has ended if it exits with 0 before the limit and no call was refused. Programs that are in the results already are not run again.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SAMPLE = 200
ARGUMENTS = Path(__file__).with_name("hecbench.json")
MAKE = {"dslash": "EXTRA_CFLAGS=-DITERATIONS=1", "hexciton": "EXTRA_CFLAGS='-DNUM_ITERATIONS=2 -DNUM=256'"}
"""Sizes that a program takes from the compiler's command line."""
FILES = {
    "log2": (
        "small.config",
        "ceilingVal 1000\nnumRepeats 1\nprecisions_count 19\nbits_of_precision 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 18 20 23\n",
    )
}
"""Input files by which a program takes its sizes."""
NO_DATA = frozenset(["bitcracker", "bmf", "cm", "daphne", "easyWave", "gd", "haversine", "heartwall", "kmeans", "logic-resim", "lr"])
"""Programs whose command line or source names files that the repository lacks."""
_SOURCES = (".cu", ".cpp", ".c", ".cc", ".h", ".hpp", ".cuh", ".inl")
_LIBRARIES = re.compile(
    r"#\s*include\s*[<\"](cublas|cufft|cusparse|cusolver|curand|cudnn|nvjpeg|npp|mpi\.h|nccl|GL/|boost/|nvml|cutensor|cuda_gl_interop|gsl/|opencv"
    r"|cutlass/|hdf5|netcdf|fftw3|nvshmem|torch/|cufile)"
)
_LINKED = re.compile(
    r"-l(cu(blas|fft|sparse|solver|rand|dnn)\w*|npp\w*|nccl|mpi|GL|gsl|boost\w*|opencv\w*|z|png|jpeg|crypto|ssl)\b|mpicc|mpicxx|nvc\+\+"
)


def qualifies(folder: Path) -> bool:
    """True if a program needs no other library, and has its data."""
    name = folder.name.removesuffix("-cuda")
    files = [path for path in folder.rglob("*") if path.is_file()]
    makefiles = [path.read_text(errors="replace") for path in files if path.name.startswith("Makefile")]
    if name in NO_DATA or not makefiles or any(_LINKED.search(text) for text in makefiles):
        return False
    others = {(folder / found).resolve() for text in makefiles for found in re.findall(r"\.\./(?:data/)?[\w.+-]+", text)}
    if any(path.suffix == ".dvc" for place in (folder, *others) if place.is_dir() for path in place.rglob("*")):
        return False
    return not any(path.suffix in _SOURCES and _LIBRARIES.search(path.read_text(errors="replace")) for path in files)


def sample(root: Path) -> list[str]:
    """The names of the sample."""
    return sorted(folder.name.removesuffix("-cuda") for folder in root.glob("*-cuda") if qualifies(folder))[:SAMPLE]


def executable(folder: Path) -> str:
    """The program that a Makefile builds."""
    if folder.name == "ans-cuda":
        return "bin/main"
    makefile = folder / "Makefile"
    found = re.search(r"^program\s*=\s*(\S+)", makefile.read_text(errors="replace"), re.MULTILINE) if makefile.exists() else None
    return found.group(1) if found else "main"


def run(root: Path, name: str, arguments: str, limit: int) -> dict[str, object]:
    """Builds and runs one program."""
    folder = root / f"{name}-cuda"
    build = f"timeout {limit} make -k ARCH=sm_80 {MAKE.get(name, '')} >build.log 2>&1"
    if name in FILES:
        file, content = FILES[name]
        (folder / file).write_text(content)
    options = ["--json", "--repeats", "1", "--memory", "16", "--seconds", str(limit), "--build", build]
    command = ["gemmgen", "run", *options, f"./{executable(folder)}", "--"]
    command += shlex.split(arguments)
    record: dict[str, object] = {"name": name, "arguments": arguments, "ended": False}
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=3 * limit
        )
    except subprocess.TimeoutExpired:
        return record
    start = 0 if done.stdout.startswith('{\n  "status"') else done.stdout.rfind('\n{\n  "status"') + 1
    try:
        report, _ = json.JSONDecoder().raw_decode(done.stdout[start:])
    except ValueError:
        return {**record, "problem": done.stderr[-500:]}
    findings = sorted({finding["code"] for finding in report["findings"] if finding["severity"] == "error"})
    ended = report["status"] == 0 and not report.get("ended_early") and not report.get("refused")
    return {**record, "ended": ended, "status": report["status"], "seconds": report["seconds"], "findings": findings}


def main() -> None:
    """Runs the sample and prints how many programs have ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=int, default=260)
    given = parser.parse_args()
    root, arguments = given.checkout / "src", json.loads(ARGUMENTS.read_text())
    names = sample(root)
    known = [json.loads(line) for line in given.results.read_text().splitlines()] if given.results.exists() else []
    lock = threading.Lock()

    def one(name: str) -> dict[str, object]:
        record = run(root, name, arguments.get(name, ""), given.limit)
        with lock, given.results.open("a") as file:
            file.write(json.dumps(record) + "\n")
        return record

    with ThreadPoolExecutor(given.jobs) as pool:
        records = known + list(pool.map(one, [name for name in names if name not in {each["name"] for each in known}]))
    counts = Counter(bool(record["ended"]) for record in records if record["name"] in names)
    print(f"{counts[True]} of {len(names)} have ended")


if __name__ == "__main__":
    main()
