"""Runs the library on a GPU: verifies every instance, times it beside its peer, and has it watched by the sanitizer.

One instance that fails never stops the others. All work on the device happens in separate processes, so that a fault ends only its cause.
The result is a file of evidence."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmgen.codegen.summary import summary
from gemmgen.core.errors import EnvironmentMissing, GemmgenError
from gemmgen.core.semaphores import has_semaphores
from gemmgen.library.building import compile_facts, compiler_fits, how_to_get_compiler
from gemmgen.library.digests import options_digest
from gemmgen.library.emulator_run import today, verification_fields
from gemmgen.library.evidence import evidence_text
from gemmgen.library.json_text import rounded
from gemmgen.library.listing import Instance, Listing
from gemmgen.library.sanitizing import TOOLS, find_sanitizer, sanitize
from gemmgen.library.workers import cpus, run_tasks

if TYPE_CHECKING:
    from gemmgen.kernels.family import KernelPlan
    from gemmgen.perf.benchmark import BenchmarkReport, Timing
    from gemmgen.runtime.cuda import GpuBackend
    from gemmgen.runtime.cuda.driver import GpuDevice

MAX_VERIFIERS = 8
"""Processes that verify at a time; each has its own CUDA context."""
ROUNDS = 15

Progress = Callable[[str, int, int], None]


@dataclass
class Measurement:
    """Evidence in the making."""

    run: dict[str, Any]
    """Fields that all records share: device, driver, compiler, date."""
    records: dict[str, dict[str, Any]]
    """By the name of the instance."""
    failures: list[str] = field(default_factory=list)

    def text(self) -> str:
        """The file of evidence, as far as it has come."""
        useful = (record for record in self.records.values() if {"verification", "sanitizer", "benchmarks"} & record.keys())
        return evidence_text(self.run, useful)


def fitting_architectures(listing: Listing, device: GpuDevice) -> list[str]:
    """The list's architectures whose binaries the device runs, the newest first, those of its very chip before those of all of its
    generation. Raises ``EnvironmentMissing`` if there is none."""
    from gemmgen.hardware.target import architecture

    runs = device.architecture
    fitting = [name for name in listing.architectures if runs is not None and runs.runs_cubins_of(architecture(name))]
    if not fitting:
        raise EnvironmentMissing(f"{device} runs none of the library's architectures: {', '.join(listing.architectures)}")
    return sorted(fitting, key=lambda name: (architecture(name).compute_capability, name.endswith("a")), reverse=True)


def start(listing: Listing, *, only: Collection[str] | None, jobs: int | None, progress: Progress) -> Measurement:
    """Compiles the instances for the GPU of this machine. Raises ``EnvironmentMissing`` without one, or without the compiler."""
    from gemmgen.perf.clocks import ClockReader
    from gemmgen.runtime.cuda.driver import gpu

    device = gpu()
    order = fitting_architectures(listing, device)
    if not compiler_fits(listing):
        raise EnvironmentMissing(f"evidence is about the binaries of one compiler: install {how_to_get_compiler(listing)}")
    targets = [
        (instance, name, plan)
        for instance in listing.instances
        if only is None or instance.name in only
        for name, plan in newest(instance, order)
    ]
    facts = compile_facts(listing, targets, jobs or cpus(), progress)
    options = options_digest()
    records = {
        instance.name: {
            "instance": instance.name,
            "architecture": name,
            "program": facts[instance.name, name].program,
            "code": facts[instance.name, name].code,
            "source": instance.source.digest,
            "options": options,
        }
        for instance, name, _ in targets
    }
    run = {
        "backend": "gpu",
        "device": device.name,
        "driver": ClockReader(device.pci_bus_id).driver_version,
        "cuda": ".".join(map(str, device.cuda_version)),
        "compiler": listing.release,
        "date": today(),
    }
    return Measurement(run, records)


def newest(instance: Instance, order: Sequence[str]) -> list[tuple[str, KernelPlan]]:
    """The first of an instance's architectures in ``order``, with its plan; empty if it has none of them."""
    return [(name, instance.plans[name]) for name in order if name in instance.plans][:1]


def verify_all(listing: Listing, measurement: Measurement, *, jobs: int | None, progress: Progress) -> None:
    """Runs every case of every instance on the GPU."""
    instances = _instances(listing, measurement)
    tasks = [(instance.path, measurement.records[instance.name]["architecture"]) for instance in instances]
    for done, (index, result) in enumerate(run_tasks(_verify, tasks, min(jobs or cpus(), MAX_VERIFIERS))):
        name = instances[index].name
        if isinstance(result, Exception):
            measurement.failures.append(f"{name}: not verified: {result}")
        else:
            measurement.records[name]["verification"] = result
            if not result["passed"]:
                measurement.failures.append(f"{name}: wrong: {result['failure']}")
        progress("verifying", done + 1, len(tasks))


def sanitize_all(listing: Listing, measurement: Measurement, *, jobs: int | None, progress: Progress) -> None:
    """Lets compute-sanitizer watch every instance. Raises ``EnvironmentMissing`` if it is not there."""
    program = find_sanitizer()
    instances = _instances(listing, measurement)
    tasks = [(program, tool, instance.path, measurement.records[instance.name]["architecture"]) for instance in instances for tool in TOOLS]
    for done, (index, result) in enumerate(run_tasks(sanitize, tasks, min(jobs or cpus(), MAX_VERIFIERS))):
        instance, tool = instances[index // len(TOOLS)], tasks[index][1]
        if isinstance(result, Exception):
            measurement.failures.append(f"{instance.name}: {tool} was not run: {result}")
        else:
            measurement.records[instance.name].setdefault("sanitizer", []).append(result)
            if not result["passed"]:
                measurement.failures.append(f"{instance.name}: {tool}: {result['failure']}")
        progress("sanitizing", done + 1, len(tasks))
    for record in measurement.records.values():
        if "sanitizer" in record:
            record["sanitizer"].sort(key=lambda item: str(item["tool"]))


def time_all(listing: Listing, measurement: Measurement, *, rounds: int = ROUNDS, progress: Progress) -> None:
    """Times every instance that was not found wrong on its problems, beside its peer and those that take the same arrays."""
    records = measurement.records
    sound = [
        instance for instance in _instances(listing, measurement) if records[instance.name].get("verification", {}).get("passed", True)
    ]
    contests = group_contests(sound)
    done, total = 0, len(contests)
    with _Timer() as timer:
        while contests:
            problem, members = contests.pop(0)
            specs = [(instance.path, records[instance.name]["architecture"]) for instance in members]
            try:
                report = timer.time(specs, problem, rounds)
            except GemmgenError as error:
                if len(members) > 1:  # one of them spoils it for the others
                    contests[:0] = [(problem, [member]) for member in members]
                    total += len(members)
                else:
                    measurement.failures.append(f"{members[0].name}: not timed on {_shown(problem)}: {error}")
            else:
                for instance in members:
                    records[instance.name].setdefault("benchmarks", []).append(benchmark_item(report, instance.name))
            done += 1
            progress("timing", done, total)


def group_contests(instances: Sequence[Instance]) -> list[tuple[dict[str, int], list[Instance]]]:
    """Problems, each with the instances that compute the same on the same arrays, which can be timed together."""
    groups: dict[Any, tuple[dict[str, int], list[Instance]]] = {}
    for instance in instances:
        plan = instance.plan
        arrays = tuple(
            (array.name, array.type, array.role, array.shape, array.strides, array.meaning)
            for array in plan.sequence.arrays
            if array.role != "workspace"
        )
        for problem in instance.problems():
            key = (plan.spec.kind, summary(plan)[0], arrays, tuple(problem.items()))
            groups.setdefault(key, (problem, []))[1].append(instance)
    return list(groups.values())


def benchmark_item(report: BenchmarkReport, name: str) -> dict[str, object]:
    """Benchmark results of one instance, as an item of a record's ``benchmarks``. Times in microseconds."""
    own = next(timing for timing in report.timings if timing.name == name)
    peer = next((timing for timing in report.timings if timing.kind == "peer"), None)
    clocks = report.clocks
    item: dict[str, Any] = {
        "problem": report.problem,
        "scalars": report.scalars,
        **_times(own),
        "operations_per_second": rounded(own.operations_per_second),
        "bytes_per_second": rounded(own.bytes_per_second),
        "rounds": report.rounds,
        "inputs": report.inputs,
        "checked": own.checked,
        "sm_mhz": [clocks.sm_lowest, clocks.sm_median, clocks.sm_highest],
        "memory_mhz": clocks.memory_median,
        "peer": None,
    }
    if peer is not None:
        verdict = next(comparison.verdict for comparison in report.comparisons if (comparison.name, comparison.other) == (name, peer.name))
        item["peer"] = {"name": peer.name, **_times(peer), "speedup": rounded(peer.median_us / own.median_us), "verdict": verdict}
    return item


def _times(timing: Timing) -> dict[str, float]:
    return {name: rounded(getattr(timing, name)) for name in ("median_us", "p10_us", "p90_us")}


def _instances(listing: Listing, measurement: Measurement) -> list[Instance]:
    return [instance for instance in listing.instances if instance.name in measurement.records]


def _shown(problem: dict[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in problem.items())


def _verify(path: Path, architecture: str) -> dict[str, Any]:
    """In a worker: the verification of an instance on the GPU."""
    from gemmgen.kernels.planning import plan
    from gemmgen.toolchain.compilation import compile_plan
    from gemmgen.verification.runner import verify_binary

    planned = plan(path, architecture)
    report = verify_binary(planned, compile_plan(planned), _backend())
    return verification_fields(report)


@cache
def _backend() -> GpuBackend:
    from gemmgen.runtime.cuda import GpuBackend

    return GpuBackend()


class _Timer:
    """A process that runs one benchmark after another, and is replaced after one that failed: it may have left a broken context."""

    def __init__(self) -> None:
        self._pool: Any = None

    def __enter__(self) -> _Timer:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def time(self, specs: Sequence[tuple[Path, str]], problem: dict[str, int], rounds: int) -> BenchmarkReport:
        """Raises ``GemmgenError`` if the benchmark fails in any way."""
        from concurrent.futures import ProcessPoolExecutor
        from concurrent.futures.process import BrokenProcessPool
        from multiprocessing import get_context

        if self._pool is None:
            if not has_semaphores():
                raise GemmgenError("processes cannot share locks on this system: is /dev/shm missing, or may it not be written?")
            self._pool = ProcessPoolExecutor(1, get_context("spawn"))
        try:
            report: BenchmarkReport = self._pool.submit(_benchmark, specs, problem, rounds).result()
            return report
        except BrokenProcessPool:
            self._stop()
            raise GemmgenError("the process that timed it ended") from None
        except Exception as error:
            self._stop()
            raise GemmgenError(f"{type(error).__name__}: {error}") from None

    def _stop(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


def _benchmark(specs: Sequence[tuple[Path, str]], problem: dict[str, int], rounds: int) -> BenchmarkReport:
    """In a worker: one benchmark."""
    from gemmgen.kernels.planning import plan
    from gemmgen.perf.benchmark import Candidate, benchmark
    from gemmgen.toolchain.compilation import compile_plan

    plans = [plan(path, architecture) for path, architecture in specs]
    return benchmark([Candidate(planned, compile_plan(planned)) for planned in plans], problem, rounds=rounds)
