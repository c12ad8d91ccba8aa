"""Launches of a kernel under one schedule or many, on separate memory, with all findings."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any

from gemmgen.core.errors import GemmgenError
from gemmgen.core.semaphores import has_semaphores
from gemmgen.emulator.demangling import demangled
from gemmgen.emulator.printing import Output
from gemmgen.sanitizer.arguments import MAX_TOTAL_BYTES, KernelArgument
from gemmgen.sanitizer.findings import Finding, findings_of, findings_of_launches
from gemmgen.sanitizer.source import Entry, KernelCode, UnusableInput

if TYPE_CHECKING:
    import numpy.typing as npt

    from gemmgen.emulator import EmulatorError, LaunchResult, Observer, Schedule
    from gemmgen.emulator.arithmetic import Arithmetic
    from gemmgen.emulator.counters import Counters

Dimensions = tuple[int, ...]
MAX_LAUNCH_THREADS = 2**40
"""Limit of the threads of a launch."""
_GARBAGE_BYTES = 256 << 20
"""Bytes of ended launches that may stay in memory before a garbage collection: their records form reference cycles."""
_LAUNCH_COPIES = 4
"""Bytes that a launch keeps for each byte of its arrays, about."""


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel: geometry, dynamic shared memory, and the names of its arguments among the run's."""

    entry: Entry
    grid: Dimensions
    block: Dimensions
    shared_bytes: int
    arguments: tuple[str, ...]
    cluster: Dimensions | None = None
    early: bool = False
    """True if the launch may begin before the one in front of it has ended (programmatic dependent launch)."""


@dataclass(frozen=True)
class Settings:
    """Observers of launches."""

    strict: bool = False
    hazards: bool = True
    counters: bool = False
    step_limit: int | None = None
    jobs: int = 1
    """Processes that may share the blocks of a launch."""
    progress: Callable[[int, int], None] | None = field(default=None, compare=False)
    """`progress(done, total)` counts the blocks of each launch."""
    arithmetic: Arithmetic | None = None
    """Meaning of floating-point instructions; None: real numbers."""
    observers: tuple[Observer, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Run:
    """Outcome of launches, one after another under one schedule. `results` are those of the launches that came to their end."""

    arguments: dict[str, KernelArgument]
    symbols: dict[str, npt.NDArray[Any]]
    results: tuple[LaunchResult, ...]
    findings: tuple[Finding, ...]
    counters: Counters | None
    output: str = ""
    """Text that the kernels printed."""
    error: EmulatorError | None = field(default=None, repr=False)

    @property
    def failed(self) -> bool:
        """True if there is an error among the findings."""
        return any(finding.severity == "error" for finding in self.findings)

    @property
    def instructions(self) -> int:
        """Instructions of threads, over all launches."""
        return sum(result.total_instructions for result in self.results)

    def arrays(self) -> dict[str, KernelArgument]:
        """All arrays by name, those inside structures and arrays of pointers too."""
        return {name: array for label, argument in self.arguments.items() for name, array in argument.arrays(label)}


def run_launches(
    code: KernelCode,
    launches: Sequence[Launch],
    given: Mapping[str, KernelArgument],
    symbols: Mapping[str, npt.NDArray[Any]],
    schedule: Schedule | None = None,
    settings: Settings = Settings(),
) -> Run:
    """Runs launches in order on the same memory, a copy of the arguments. Raises ``GemmgenError`` if a launch is impossible."""
    from gemmgen import emulator
    from gemmgen.emulator.arithmetic import REAL
    from gemmgen.emulator.launch import SHARED_LIMIT, STEP_LIMIT
    from gemmgen.hardware.target import ARCHITECTURES

    for launch in launches:
        threads = prod(launch.grid) * prod(launch.block)
        if threads > MAX_LAUNCH_THREADS:
            raise UnusableInput(
                f"{launch.entry.name}: {threads:,} threads, need at most {MAX_LAUNCH_THREADS:,}: the emulator would take months"
            )
    copies: dict[int, npt.NDArray[Any]] = {}
    written: dict[int, npt.NDArray[Any]] = {}
    arguments = {name: argument.fresh(copies) for name, argument in given.items()}
    buffers = {name: argument.launched(name, written) for name, argument in arguments.items()}
    try:
        variables = module_variables(code, launches, symbols)
    except emulator.EmulatorError as impossible:
        raise GemmgenError(f"{code.name}: {impossible}") from None
    observer = None
    if settings.counters:
        from gemmgen.emulator.counters import CounterObserver

        observer = CounterObserver()
    known = ARCHITECTURES.get(code.architecture)
    results: list[LaunchResult] = []
    findings: list[tuple[Finding, ...]] = []
    error, printed = None, Output()
    behind = 0
    for number, launch in enumerate(launches):
        if behind > _GARBAGE_BYTES:
            gc.collect()
            behind = 0
        behind += _LAUNCH_COPIES * sum(arguments[name].array_bytes for name in set(launch.arguments))
        followed = settings.hazards and number + 1 < len(launches) and launches[number + 1].early
        try:
            result = emulator.launch(
                code.ptx,
                launch.entry.symbol,
                grid=launch.grid,
                block=launch.block,
                shared_bytes=launch.shared_bytes,
                args=[buffers[name] for name in launch.arguments],
                source=code.text_of,
                observers=[*settings.observers, *([observer] if observer is not None else [])],
                schedule=schedule,
                shared_limit=known.shared_bytes_per_block if known is not None else SHARED_LIMIT,
                step_limit=settings.step_limit or STEP_LIMIT,
                hazards=settings.hazards,
                strict=settings.strict,
                symbols=variables,
                cluster=launch.cluster,
                overlaps=results[-1] if launch.early and settings.hazards and results else None,
                overlapped=followed,
                jobs=settings.jobs,
                progress=settings.progress,
                arithmetic=settings.arithmetic or REAL,
            )
        except (emulator.BadLaunch, emulator.ParseError, emulator.UnknownInstruction) as impossible:
            reason = str(impossible)
            for parameter, own_name in zip(launch.entry.parameters, launch.entry.parameter_names, strict=False):
                reason = re.sub(rf"\b{re.escape(parameter.name)}\b", own_name, reason)
            reason = reason.replace(launch.entry.symbol, launch.entry.name)
            kind = UnusableInput if isinstance(impossible, emulator.BadLaunch) else GemmgenError
            raise kind(f"{code.name}: {reason}") from None
        except emulator.EmulatorError as caught:
            error = error or caught
            findings.append(findings_of(caught, (), code.text_of))
            printed.extend([caught.printed])
            # A GPU continues after a race; only errors that would end the kernel there end the sequence.
            if not isinstance(caught, emulator.HazardError) or caught.ending is not None or followed:
                break
            continue
        results.append(result)
        printed.extend([result.printed])
        findings.append(findings_of(None, result.findings, code.text_of))
    counters = observer.counters(code.text_of) if observer is not None else None
    return Run(arguments, variables, tuple(results), findings_of_launches(findings), counters, printed.text, error)


def module_variables(code: KernelCode, launches: Sequence[Launch], given: Mapping[str, object]) -> dict[str, Any]:
    """The module's variables by their names in PTX: those that are given, and, if there are several launches, all that a launch may
    write, so that the next one finds it. Raises ``UnusableInput``."""
    import numpy as np

    from gemmgen.emulator.buffers import initial_bytes
    from gemmgen.emulator.program import link

    program = link(code.ptx, launches[0].entry.symbol)
    there = {
        name: variable for name, variable in program.module.variables.items() if variable.space in ("global", "const") and variable.size
    }
    size = sum(variable.size for variable in there.values())
    if size > MAX_TOTAL_BYTES:
        raise UnusableInput(
            f"the variables of {code.name} take {size / 2**30:.3g} GiB, need at most {MAX_TOTAL_BYTES >> 30} GiB: the emulator keeps "
            "several bytes for each"
        )
    variables = {}
    for name, value in given.items():
        matching = [symbol for symbol in there if name in (symbol, demangled(symbol), demangled(symbol).split("::")[-1])]
        if len(matching) != 1:
            names = ", ".join(demangled(symbol) for symbol in there) or "none"
            raise UnusableInput(f"{code.name} has {len(matching) or 'no'} variables called {name}; it has {names}")
        variable = there[matching[0]]
        filling = np.asarray(value)
        if filling.dtype.hasobject:
            raise UnusableInput(f"the variable {name} takes numbers, got {type(value).__name__}")
        if filling.nbytes > variable.size:
            raise UnusableInput(f"the variable {name} has {variable.size} bytes, the value {filling.nbytes}")
        content = np.frombuffer(filling.tobytes(), np.uint8)
        whole = np.frombuffer(initial_bytes(program, variable), np.uint8).copy()
        whole[: content.size] = content
        variables[matching[0]] = whole
    if len(launches) > 1:
        for symbol, variable in there.items():
            if variable.space == "global" and symbol not in variables:
                variables[symbol] = np.frombuffer(initial_bytes(program, variable), np.uint8).copy()
    return variables


def difference(first: Run, other: Run, schedule: str) -> str:
    """Difference of a run under another schedule; empty if it does not."""
    import numpy as np

    if other.failed:
        worst = next(finding for finding in other.findings if finding.severity == "error")
        return f"under {schedule}: {worst}"
    theirs = other.arrays()
    for name, left in first.arrays().items():
        right = theirs[name]
        one, two = (array.value.reshape(-1).view(np.uint8).reshape(-1, array.value.itemsize) for array in (left, right))
        differs = np.flatnonzero((one != two).any(axis=1))
        if len(differs):
            at = int(differs[0])
            before, after = left.numbers().reshape(-1)[at], right.numbers().reshape(-1)[at]
            return (
                f"the result depends on the order of warps: {name}[{at}] is {before} in program order and {after} under {schedule}; "
                f"{len(differs)} of {left.value.size} elements differ"
            )
    return ""


def schedule_difference(
    code: KernelCode,
    launches: Sequence[Launch],
    given: Mapping[str, KernelArgument],
    symbols: Mapping[str, Any],
    settings: Settings,
    first: Run,
    seeds: Sequence[int],
    jobs: int = 1,
) -> str:
    """The first way in which a run under a random schedule differs from the usual one; empty if none does."""
    from gemmgen.emulator import RandomWarps

    plain = replace(settings, counters=False, jobs=1, progress=None)
    if jobs <= 1 or len(seeds) == 1 or not has_semaphores():
        for seed in seeds:
            other = run_launches(code, launches, given, symbols, RandomWarps(seed), plain)
            if text := difference(first, other, f"schedule {seed}"):
                return text
        return ""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(min(jobs, len(seeds)), mp_context=get_context("spawn")) as pool:
        runs = [pool.submit(_run_seed, code, launches, dict(given), dict(symbols), plain, seed) for seed in seeds]
        for seed, future in zip(seeds, runs, strict=True):
            if text := difference(first, future.result(), f"schedule {seed}"):
                pool.shutdown(cancel_futures=True)
                return text
    return ""


def _run_seed(
    code: KernelCode, launches: Sequence[Launch], given: dict[str, KernelArgument], symbols: dict[str, Any], settings: Settings, seed: int
) -> Run:
    from gemmgen.emulator import RandomWarps

    # Errors hold instructions and functions, which do not travel between processes; the findings do.
    return replace(run_launches(code, launches, given, symbols, RandomWarps(seed), settings), error=None)
