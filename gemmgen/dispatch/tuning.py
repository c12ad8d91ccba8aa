"""Makes tables: times the instances that fit, problem by problem, on the GPU of this machine."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmgen.core.errors import GemmgenError, LaunchError, SpecError, VerificationError
from gemmgen.core.files import MAX_BYTES, read_plain
from gemmgen.dispatch.candidates import Candidate
from gemmgen.dispatch.devices import as_device
from gemmgen.dispatch.matcher import matcher_of, space_of
from gemmgen.dispatch.model import PARAMETERS
from gemmgen.dispatch.problems import parse_problem
from gemmgen.dispatch.selection import MAX_EARLY, Option, all_fitted, base_name, fitted, row_model, set_best
from gemmgen.dispatch.space import fastest_points
from gemmgen.dispatch.table import Row, Table, read_table, write_table
from gemmgen.hardware.target import Architecture, Device
from gemmgen.kernels import GPU_KINDS
from gemmgen.kernels.requests import Request

if TYPE_CHECKING:
    from gemmgen.perf.benchmark import BenchmarkReport

MODEL_CHOICES = 12
"""Instances that are timed on a problem because the model likes them most."""
RANDOM_CHOICES = 3
"""Instances that are timed beside them, in case the model is wrong."""
POINT_CHOICES = 12
"""Points of a space that are timed beside them: those that are expected to be the fastest, each apart from the others."""
APART = 0.05
"""Square of the distance of two points, in coordinates of the space, from which on both are timed."""
ROUNDS = 10


@dataclass
class Outcome:
    """Outcome of the problems."""

    timed: int = 0
    known: int = 0
    """Problems that the table already had."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Problems that could not be timed, with the reason."""
    wrong: dict[str, str] = field(default_factory=dict)
    """Problems on which an instance computed something else than the peer."""
    left: int = 0
    """Problems for which there was no time."""


def grid(kinds: Sequence[str], fine: bool) -> list[Request]:
    """The problems of a grid, each once."""
    texts = [f"{kind}:{text}" for kind in kinds for text in matcher_of(kind).problem_grid(fine)]
    return list({(request.kind, request.text): request for request in map(parse_problem, texts)}.values())


def read_problems(path: Path, kinds: Sequence[str]) -> list[Request]:
    """The problems that a file lists, one a line, ``gemm:512,512,512,nt``; ``#`` begins a comment. Raises ``SpecError``."""
    try:
        lines = read_plain(path, MAX_BYTES).decode().splitlines()
    except (OSError, ValueError) as error:
        raise SpecError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    requests: dict[tuple[str, str], Request] = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            request = parse_problem(text)
        except SpecError as error:
            raise SpecError(f"{path}, line {number}: {error}") from None
        if request.kind in kinds:
            requests[request.kind, request.text] = request
            if request.is_empty:
                raise SpecError(f"{path}, line {number}: {request.kind}:{request.text} has an empty result, so no kernel is launched")
    if not requests:
        raise SpecError(f"{path}: lists no problem of the kinds {', '.join(kinds)}; a line is for example gemm:512,512,512,nt")
    return list(requests.values())


def contenders(
    request: Request, device: Device, architecture: Architecture, most: int = MODEL_CHOICES, extra: int = RANDOM_CHOICES
) -> list[Option]:
    """The instances worth timing: those that the model likes most, and a few others, the same every time. A kernel comes once."""
    options: dict[str, Option] = {}
    for candidate, (fit, plan, dimensions) in all_fitted(request, architecture, {}, device):
        dimensions, seconds = set_best(plan, dimensions, device)
        made = Option(candidate, fit, plan, dimensions, seconds, "model", device)
        other = options.get(plan.name)
        if other is None or (other.fit.derived and not fit.derived):
            options[plan.name] = made
    ranked = sorted(options.values(), key=lambda option: (option.seconds, option.plan.name))
    rest = [option for option in ranked[most:] if option.seconds < 10 * ranked[0].seconds]
    chosen = random.Random(f"{request.kind}:{request.text}").sample(rest, min(extra, len(rest)))
    return [
        *ranked[:most],
        *chosen,
        *(option for option in points_worth_timing(request, device, architecture) if option.plan.name not in options),
    ]


def points_worth_timing(request: Request, device: Device, architecture: Architecture, most: int = POINT_CHOICES) -> list[Option]:
    """Points of the family's space that no file lists, the fastest by the fitted model, none of them close to a faster one."""
    space = space_of(request.kind)
    options: list[Option] = []
    taken: list[Sequence[float]] = []
    for point in fastest_points(request, device, MAX_EARLY, most=most * POINT_CHOICES) if space is not None else ():
        if len(options) == most:
            break
        if any(sum((a - b) ** 2 for a, b in zip(point.coordinates, other, strict=True)) < APART for other in taken):
            continue
        assert space is not None
        option = fitted(Candidate(space.label(point.spec), point.spec), request, architecture, device)
        if isinstance(option, str):
            continue
        fit, plan, dimensions = option
        dimensions, seconds = set_best(plan, dimensions, device)
        options.append(Option(Candidate(space.label(point.spec), point.spec), fit, plan, dimensions, seconds, "model", device))
        taken.append(point.coordinates)
    return options


def compile_all(options: Iterable[Option], advance: Callable[[], None]) -> dict[str, object]:
    """The binaries of all kernels, by name, in parallel and through the user's cache; the error where there is none."""
    from gemmgen.toolchain.compilation import compile_plan

    plans = {option.plan.name: option.plan for option in options}

    def one(name: str) -> tuple[str, Any]:
        try:
            return name, compile_plan(plans[name])
        except GemmgenError as error:
            return name, error
        finally:
            advance()

    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        return dict(pool.map(one, plans))


@dataclass
class Tuner:
    """One run on the GPU of this machine."""

    requests: Sequence[Request]
    path: Path
    seconds: float | None = None
    """After so long, no further problem is begun."""
    report: Callable[[str], None] = lambda text: None
    progress: Callable[[str, int, int], None] = lambda what, done, total: None
    most: int = MODEL_CHOICES

    def run(self) -> tuple[Table, Outcome]:
        """Times every problem that the table at ``path`` lacks, and writes the table after each. Raises ``GemmgenError``."""
        from gemmgen.runtime.cuda.driver import CudaError, gpu

        started = time.monotonic()
        hardware = gpu()
        device = as_device(hardware)
        architecture = device.architecture
        table = self._existing(device)
        outcome = Outcome()
        jobs: list[tuple[Request, list[Option]]] = []
        rows = {(row.kind, row.problem): row for row in table.rows}
        for request in self.requests:
            options = contenders(request, device, architecture, self.most)
            known = rows.get((request.kind, request.text))
            if not options:
                outcome.skipped[f"{request.kind}:{request.text}"] = "no instance fits"
            elif known is not None and all(base_name(option.candidate.spec, architecture) in known.times for option in options):
                outcome.known += 1
            else:
                jobs.append((request, options))
        total = len({option.plan.name for _, options in jobs for option in options})
        done = iter(range(1, total + 1))
        binaries = compile_all((o for _, options in jobs for o in options), lambda: self.progress("compiling", next(done, total), total))
        for index, (request, options) in enumerate(jobs):
            text = f"{request.kind}:{request.text}"
            if self.seconds is not None and time.monotonic() - started > self.seconds:
                outcome.left = len(jobs) - index
                break
            self.progress(text, index, len(jobs))
            usable = [option for option in options if not isinstance(binaries[option.plan.name], GemmgenError)]
            for option in options:
                if option not in usable:
                    self.report(f"{text}: {option.candidate.label} does not compile: {str(binaries[option.plan.name]).splitlines()[0]}")
            try:
                row, latest = self._time(request, usable, binaries, architecture)
            except CudaError as error:
                if "OUT_OF_MEMORY" not in error.code:
                    labels = ", ".join(option.candidate.label for option in usable)
                    raise LaunchError(f"{text}: {error}; one of these broke the GPU's context: {labels}") from None
                outcome.skipped[text] = str(error)
                continue
            except VerificationError as error:
                outcome.wrong[text] = str(error)
                continue
            except LaunchError as error:
                outcome.skipped[text] = str(error)
                continue
            rows[request.kind, request.text] = row
            outcome.timed += 1
            table = replace(table, rows=tuple(rows.values()), origin=self._origin(latest, binaries))
            write_table(table, self.path)
        return table, outcome

    def _existing(self, device: Device) -> Table:
        """The table that is continued, with the values of the model brought up to date."""
        if not self.path.exists():
            return Table(device.name, ())
        table = read_table(self.path)
        if table.device != device.name:
            raise SpecError(f"{self.path}: is the table of {table.device}, this machine has {device.name}; choose another file with -o")
        return remodelled(table, device)

    @staticmethod
    def _time(request: Request, options: list[Option], binaries: dict[str, Any], architecture: Architecture) -> tuple[Row, BenchmarkReport]:
        """One problem. Instances that take different arrays are timed in several runs."""
        from gemmgen.perf.benchmark import Candidate as Contestant
        from gemmgen.perf.benchmark import benchmark

        matcher = matcher_of(request.kind)
        groups: dict[Any, list[Option]] = {}
        for option in options:
            arrays = [array for array in option.plan.sequence.arrays if array.role != "workspace"]
            layout = tuple((a.name, a.type, a.role, a.shape, a.strides) for a in arrays)
            chosen_at_launch = tuple(sorted(option.dimensions.items()))
            groups.setdefault((layout, tuple(matcher.operand_orders(option.plan).items()), chosen_at_launch), []).append(option)
        times: dict[str, float] = {}
        models: dict[str, float] = {}
        peers: list[float] = []
        for members in groups.values():
            chosen = [Contestant(option.plan, binaries[option.plan.name]) for option in members]
            latest = benchmark(chosen, members[0].dimensions, rounds=ROUNDS)
            measured = {timing.name: timing.median_us for timing in latest.timings}
            for option in members:
                name = base_name(option.candidate.spec, architecture)
                times[name] = round(measured[option.plan.name], 3)
                models[name] = round(option.seconds * 1e6, 3)
            peers += [timing.median_us for timing in latest.timings if timing.kind == "peer"]
        points = {
            base_name(option.candidate.spec, architecture): option.candidate.spec.model_dump(mode="json", exclude_unset=True)
            for option in options
            if option.candidate.is_point
        }
        return Row(request.text, request.kind, times, models, round(min(peers), 3) if peers else None, points), latest

    @staticmethod
    def _origin(latest: BenchmarkReport, binaries: dict[str, object]) -> dict[str, Any]:
        from gemmgen.toolchain.nvrtc import nvrtc_version

        return {
            "gpu": latest.device,
            "driver": latest.driver,
            "cuda": ".".join(map(str, latest.cuda)),
            "compiler": "NVRTC " + ".".join(map(str, nvrtc_version())),
            "clocks": {"sm_mhz": latest.clocks.sm_median, "note": "median over the last problem"},
            "date": latest.date,
            "model": PARAMETERS.digest,
            "unit": "microseconds, device time of one launch, inputs rotated beyond the L2",
        }


def remodelled(table: Table, device: Device) -> Table:
    """The table with the times that today's model gives."""
    if table.current:
        return table
    model = row_model(table, device, device.architecture)
    rows = []
    for row in table.rows:
        seconds = {name: model(row, name) for name in row.times}
        rows.append(replace(row, models={name: round(value * 1e6, 3) for name, value in seconds.items() if value is not None}))
    return replace(table, rows=tuple(rows), origin={**table.origin, "model": PARAMETERS.digest})


def kinds_of(names: Sequence[str]) -> list[str]:
    """The families that are meant; all of them where none is named. Raises ``SpecError``."""
    unknown = [name for name in names if name not in GPU_KINDS]
    if unknown:
        raise SpecError(f"--kind {unknown[0]}: no such kind; there are {', '.join(GPU_KINDS)}")
    return list(dict.fromkeys(names)) or list(GPU_KINDS)
