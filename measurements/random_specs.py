"""Random specs, compiled and verified: PYTHONPATH=tests python measurements/random_specs.py --count 10000 --seed 22 --jobs 2.

Each spec is a shipped one with a few fields changed, and its number decides which: every mechanism of a family is as likely as any other,
one spec in four has a drawn formula as its epilogue, three in four have small tiles. Kernels for GPUs run on the emulator, those for
processors natively. The smallest of a spec's cases with elements comes first, then the others by chance, as many as --seconds of
processor time allow; after the first, cases of more than 2^24 steps are left out. --assembled 4 has ptxas assemble every fourth one only;
the others are compiled to PTX. A journal, build/random_specs.jsonl by default, has a line for each spec; the same command continues where
it was stopped, --hours ends it in time, and --first begins elsewhere, for parts on several machines, whose journals --merge puts
together, with the figures of each version of the program. The result is written beside this file: how many were accepted, verified, refused
for their size, or cut off, and every failure with its spec; under "before", runs whose journals are gone. With --backend gpu every kernel
is planned for that device, assembled and run there; --compile fills the cache of binaries for such a run. --again runs the failures of the
result on all their cases, and writes the outcome of each under "again".
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import multiprocessing
import os
import platform
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from robustness.random_specs import SpecMaker, mechanism, sources_digest  # noqa: E402

import gemmgen  # noqa: E402
from gemmgen.core.errors import CompileError, GemmgenError, PlanError  # noqa: E402
from gemmgen.core.files import write_atomically  # noqa: E402
from gemmgen.hardware.cpu import CpuArchitecture, runs_here  # noqa: E402
from gemmgen.kernels.family import Case, InstancePlan, KernelPlan  # noqa: E402
from gemmgen.runtime.backend import Backend  # noqa: E402
from gemmgen.runtime.emulation import EmulatorBackend  # noqa: E402
from gemmgen.runtime.native import NativeBackend  # noqa: E402
from gemmgen.toolchain.compilation import COMPILE_OPTIONS, compile_host_plan, compile_plan  # noqa: E402
from gemmgen.toolchain.nvrtc import Binary, compile_file, nvrtc_version  # noqa: E402
from gemmgen.verification.oracle import oracle_of  # noqa: E402
from gemmgen.verification.runner import verify_case  # noqa: E402

RESULT = Path(__file__).with_suffix(".json")
SECONDS = 30
"""Processor time for one spec; longer ones count as cut off, unless a case of it had been verified by then."""
CASE_SECONDS = 1.0
"""Default processor time for the cases of a spec; a new case begins as long as there is time."""

MAX_WORK = 1 << 24
"""Limits a case that is not the smallest of its spec."""

GPU_SECONDS = 10.0
"""For one run on a GPU."""

Entry = dict[str, Any]


class CutOffError(BaseException):
    """A spec took too long; nothing on the way takes it for an error of the spec."""


@cache
def version_digest() -> str:
    """Identity of the program that is tried: its code, its templates and its specs."""
    found = hashlib.sha256()
    for folder in ("gemmgen", "templates", "specs"):
        for path in sorted(path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts):
            found.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def by_version(entries: list[Entry]) -> dict[str, Entry]:
    """The outcomes of each version of the program, journals of several runs together."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.get("version", "not recorded"), []).append(entry)
    return {
        version: {
            "specs_made": len(own),
            "specs_verified": sum(entry["outcome"] == "verified" for entry in own),
            "specs_failed": sum(entry["outcome"].isupper() for entry in own),
        }
        for version, own in found.items()
    }


def work(case: Case) -> int:
    """An estimate of a case's steps: the product of its extents."""
    return math.prod(max(extent, 1) for name, extent in case.dimensions.items() if not name.startswith(("ld", "stride", "sums_at")))


def empty(case: Case) -> bool:
    """True if a product has no rows, columns or terms, so that hardly any code of its kernel runs."""
    return any(case.dimensions.get(name) == 0 for name in ("m", "n", "k", "outer", "reduced", "inner", "elements"))


def ordered(cases: list[Case], number: int) -> list[Case]:
    """The smallest case that is not empty, and the others as the spec's number has it, without those that run for long."""
    smallest = min(cases, key=lambda case: (empty(case), work(case)))
    others = [case for case in cases if case is not smallest and work(case) <= MAX_WORK]
    random.Random(number).shuffle(others)
    return [smallest, *others]


def on_emulator(plan: KernelPlan, assemble: bool) -> Binary:
    """The binary of a plan; unless ``assemble``, compiled to PTX only, which the emulator runs."""
    if assemble:
        return compile_plan(plan)
    source, options = gemmgen.render(plan), COMPILE_OPTIONS
    code = compile_file(source.text, path=f"/{source.file_name}", architecture=plan.architecture.name, options=options)
    return Binary(code.ptx, b"", plan.architecture.name, options, nvrtc_version(), "", "", {})


@dataclass
class Way:
    """The work on each spec: time, kind and amount."""

    seed: int
    case_seconds: float = CASE_SECONDS
    assembled: int = 1
    """One spec in so many is assembled to machine code."""
    seconds: int = SECONDS
    gpu: Backend | None = None
    """Runs the kernels for GPUs; None for the emulator."""
    architecture: str | None = None
    """Instead of the specs' own, for kernels for GPUs."""
    compile_only: bool = False

    def plan(self, spec: dict[str, Any]) -> InstancePlan:
        """The plan of a spec. Raises ``GemmgenError`` if it is refused."""
        return gemmgen.plan(spec, None if spec["kind"] == "cpu_gemm" else self.architecture)

    def accepted(self, spec: dict[str, Any]) -> bool:
        """True if a spec becomes a plan."""
        try:
            self.plan(spec)
        except GemmgenError:
            return False
        return True

    def compiled(self, plan: InstancePlan, number: int) -> tuple[Any, Backend]:
        """The binary of a plan and its runner."""
        if not isinstance(plan, KernelPlan):
            return compile_host_plan(plan), NativeBackend()
        if self.architecture:
            return compile_plan(plan), self.gpu or EmulatorBackend()
        return on_emulator(plan, number % self.assembled == 0), EmulatorBackend()


def trial(number: int, way: Way) -> Entry:
    """Outcome of one spec; each has a separate seed, so that any of them can be made again."""
    return tried(SpecMaker(way.seed * 1_000_000 + number, hostility=0.0, moderate=True).spread(way.accepted), number, way)


def tried(spec: dict[str, Any], number: int, way: Way) -> Entry:
    """Outcome of a spec, in a word."""
    started, elements, done, cases = time.process_time(), 0, 0, []

    def ended(outcome: str, **more: Any) -> Entry:
        spent = round(time.process_time() - started, 2)
        about = {"kind": spec["kind"], "mechanism": mechanism(spec), "architecture": way.architecture or spec.get("architecture", "")}
        about["formula"] = isinstance(spec.get("operations", spec.get("epilogue")), dict)
        about["backend"] = "native" if spec["kind"] == "cpu_gemm" else way.gpu.name if way.gpu else "emulator"
        identity = {"number": number, "seed": way.seed, "sources": sources_digest(), "version": version_digest()}
        return {**identity, **about, "outcome": outcome, "seconds": spent, **more}

    def cut_off(*_: Any) -> None:
        raise CutOffError

    signal.signal(signal.SIGPROF, cut_off)
    signal.setitimer(signal.ITIMER_PROF, way.seconds)
    try:
        try:
            plan = way.plan(spec)
        except GemmgenError:
            return ended("rejected")
        cases = oracle_of(plan.spec.kind).cases(plan)
        if not cases:
            return ended("no case")
        if isinstance(plan.architecture, CpuArchitecture) and (way.architecture or not runs_here(plan.architecture)):
            return ended("for another processor")
        binary, backend = way.compiled(plan, number)
        if way.compile_only:
            return ended("compiled")
        begun = time.process_time()
        for case in ordered(cases, number):
            if done and time.process_time() - begun > way.case_seconds:
                break
            result = verify_case(plan, binary, backend, case)
            if not result.passed:
                return ended("WRONG", spec=spec, failure=result.failure[:500], case=case.name, dimensions=dict(case.dimensions))
            elements, done = elements + result.elements, done + 1
        return ended("verified", cases=done, of=len(cases), elements=elements, assembled=bool(getattr(binary, "cubin", b"")))
    except CutOffError:
        return ended("verified", cases=done, of=len(cases), elements=elements) if done else ended("cut off")
    except PlanError:
        return ended("too large")
    except CompileError as error:
        return ended("DOES NOT COMPILE", spec=spec, failure=str(error)[:500])
    except Exception as error:
        return ended("CRASH", spec=spec, failure=f"{type(error).__name__}: {error}"[:500])
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


class Trials:
    """Tries a spec in a separate process, and writes its outcome at once."""

    def __init__(self, journal: Path, way: Way, end: float, gpu: bool = False) -> None:
        self.journal, self.way, self.end, self.gpu = journal, way, end, gpu

    def __call__(self, number: int) -> Entry | None:
        if time.time() > self.end:
            return None
        if self.gpu and not self.way.gpu:
            self.way.gpu = _gpu()
        entry = trial(number, self.way)
        with self.journal.open("ab", buffering=0) as journal:  # one write, which others do not come between
            journal.write(json.dumps(entry).encode() + b"\n")
        return entry


@cache
def _gpu() -> Backend:
    """The GPU of this process."""
    from gemmgen.runtime.cuda.backend import GpuBackend

    return GpuBackend(time_limit=GPU_SECONDS)


def read(journal: Path) -> dict[tuple[int, int], Entry]:
    """The trials so far; a line that a kill cut off does not count."""
    found = {}
    for line in journal.read_text().splitlines() if journal.exists() else ():
        try:
            entry = json.loads(line)
            found[entry.get("seed", 0), entry["number"]] = entry
        except ValueError:
            continue
    return found


def ranges(numbers: list[int]) -> list[list[int]]:
    """First and last of each run of numbers without a gap."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


def commit() -> str:
    """The commit of the working tree; empty outside of a repository."""
    return subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def summary(entries: list[Entry], wanted: int, where: dict[str, str]) -> dict[str, Any]:
    """The figures, and every failure; ``where`` says on which machine and at which commit."""
    accepted = [entry for entry in entries if entry["outcome"] != "rejected"]
    verified = [entry for entry in entries if entry["outcome"] == "verified"]
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        **where,
        "numbers_by_seed": {
            str(seed): ranges([entry["number"] for entry in entries if entry["seed"] == seed])
            for seed in sorted({entry["seed"] for entry in entries})
        },
        "sources": dict(Counter(entry["sources"] for entry in entries)),
        "by_version": by_version(entries),
        "specs_wanted": wanted,
        "specs_made": len(entries),
        "specs_accepted": len(accepted),
        "specs_verified": len(verified),
        "specs_assembled": sum(entry.get("assembled", True) for entry in verified if entry["kind"] != "cpu_gemm"),
        "outcomes": dict(sorted(Counter(entry["outcome"] for entry in entries).items())),
        "by_kind": dict(sorted(Counter(f"{entry['kind']} {entry['outcome']}" for entry in entries).items())),
        "verified_by_mechanism": dict(sorted(Counter(entry["mechanism"] for entry in verified).items())),
        "verified_by_architecture": dict(sorted(Counter(entry["architecture"] for entry in verified).items())),
        "verified_with_a_formula": sum(entry["formula"] for entry in verified),
        "cases": sum(entry.get("cases", 0) for entry in entries),
        "cases_of_these_specs": sum(entry.get("of", 0) for entry in entries),
        "elements": sum(entry.get("elements", 0) for entry in entries),
        "verified_by_backend": dict(sorted(Counter(entry.get("backend", "emulator") for entry in verified).items())),
        "core_hours": round(sum(entry["seconds"] for entry in entries) / 3600, 3),
        "failures": [entry for entry in entries if entry["outcome"].isupper()],
    }


def run_failures_again(result: Path) -> None:
    """Runs every failure of a result on all its cases, and writes the outcomes."""
    found = json.loads(result.read_text())
    for failure in found["failures"]:
        again = tried(failure["spec"], failure["number"], Way(failure["seed"], math.inf, seconds=600))
        kept = ("outcome", "cases", "of", "elements", "sources", "failure")
        failure["again"] = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "commit": commit()}
        failure["again"] |= {name: again[name] for name in kept if name in again}
        print(failure["number"], failure["kind"], failure["again"])
    write_atomically(result, json.dumps(found, indent=1) + "\n")


def main() -> None:
    """Goes through the specs that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="number of the first spec")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=22)
    parser.add_argument("--seconds", type=float, default=CASE_SECONDS, help="of processor time for the cases of a spec")
    parser.add_argument("--assembled", type=int, default=1, help="one spec in so many is assembled to machine code")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--backend", choices=("emulator", "gpu"), default="emulator", help="runs the kernels for GPUs")
    parser.add_argument("--arch", default="sm_90a", help="of the GPU")
    parser.add_argument("--compile", action="store_true", help="run nothing, fill the cache of binaries for a run on a GPU")
    parser.add_argument("--hours", type=float, default=1e6)
    parser.add_argument("--journal", type=Path, default=ROOT / "build" / "random_specs.jsonl")
    parser.add_argument("--merge", type=Path, nargs="*", help="journals that are put together; nothing is run")
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--again", action="store_true", help="run the failures of the result again; nothing else is run")
    given = parser.parse_args()
    if given.again:
        run_failures_again(given.result)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    given.journal.parent.mkdir(parents=True, exist_ok=True)
    known: dict[tuple[int, int], Entry] = {}
    for journal in [given.journal] if given.merge is None else given.merge:
        known |= read(journal)
    if given.merge is None:
        numbers = [number for number in range(given.first, given.first + given.count) if (given.seed, number) not in known]
        on_gpu = given.backend == "gpu"
        way = Way(given.seed, given.seconds, given.assembled, architecture=given.arch if on_gpu else None, compile_only=given.compile)
        run = Trials(given.journal, way, time.time() + given.hours * 3600, on_gpu and not given.compile)
        with multiprocessing.get_context("spawn").Pool(given.jobs, maxtasksperchild=200) as pool:
            for entry in pool.imap_unordered(run, numbers):
                if entry is not None:
                    known[given.seed, entry["number"]] = entry
    where = {"commit": commit(), "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"}
    if given.merge is not None:  # of several runs, each with a machine and a commit of its own
        where = {"journals": str(len(given.merge))}
    result = summary([known[key] for key in sorted(known)], given.count, where)
    earlier = json.loads(given.result.read_text()) if given.result.exists() else {}
    again = {(failure["seed"], failure["number"]): failure["again"] for failure in earlier.get("failures", []) if "again" in failure}
    for failure in result["failures"]:
        if (key := (failure["seed"], failure["number"])) in again:
            failure["again"] = again[key]
    result["before"] = earlier.get("before", [])
    write_atomically(given.result, json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
