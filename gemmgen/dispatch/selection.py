"""The choice: every candidate is fitted to a request, its time estimated, and the least taken."""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

from gemmgen.core.errors import LaunchError, PlanError
from gemmgen.dispatch.candidates import Candidate, candidates, reserves
from gemmgen.dispatch.choice_cache import MAX_OPTIONS, CachedOption, choice_key, load_choice, store_choice
from gemmgen.dispatch.matcher import adapted, matcher_of, numeric_class_of, settings_of, space_of
from gemmgen.dispatch.model import model_seconds
from gemmgen.dispatch.outlook import Outlook
from gemmgen.dispatch.space import SHOWN, Point, bounded_seconds, fastest_points, least_seconds
from gemmgen.dispatch.table import Near, Row, RowModel, Source, Table, table_for
from gemmgen.hardware.target import ARCHITECTURES, Architecture, Device, occupancy
from gemmgen.hardware.target import device as find_device
from gemmgen.kernels import family
from gemmgen.kernels.family import KernelPlan, KernelSpec
from gemmgen.kernels.launch import MAX_WORKSPACE
from gemmgen.kernels.requests import Fit, Layout, NoClass, Request, changed_fields
from gemmgen.perf.cost_model import cost_model_of
from gemmgen.runtime.arrays.binding import bind_dimensions
from gemmgen.runtime.arrays.views import ArrayView

MAX_EARLY = 12e-6
"""Estimated time up to which kernels start while the work before them still runs. That hides most of a launch, a third of the time of the
smallest products; but blocks of the next launch that wait on some SMs can leave the later ones unevenly to the others. Of 119 products on
an H100, those of up to 12 us take 8% longer without it, on average; of 62 beyond 20 us, ten take 3 to 15% less without it and four 3 to
7% more, and 333 x 4096 x 11008 in bfloat16 by tiles of 128 x 128 takes 83 us with it, 56 without."""
MAX_EARLY_CONSTANT = 60e-6
"""Estimated time up to which kernels with constant operands start early, if they are one block to an SM and fill nearly all SMs, or at most
half of them. They copy tiles of the constant operands before they wait: chains of three layers with 1 to 64 rows then take 0 to 13% less
time on an H200. Other grids settle unevenly beside the launch before: three layers of 9216 x 9216 with 16 rows, 72 blocks each, take 43%
longer, and blocks that share SMs up to 41%."""
NEARLY_ALL, HALF = 0.9, 0.5
"""Parts of the SMs for that."""
FILLED_BY_POINT = 0.55
"""Part of the SMs from which on points copy tiles of a constant operand early: 1 x 2560 x 9216 by 40 blocks takes 14.4 us if it starts
early, 16.0 us if it then copies such tiles. 1 x 4096 x 4096 by 64 blocks takes 10.2 us if it starts early, 11.3 us if not; 16 x 2560 x 3072
by 80 blocks among three layers 1.5 us less if it copies them, too."""


POINT_MARGIN = 0.97
"""A point of no file is taken where the best listed instance is expected to take this many times as long: those that are like a point are
expected to take as long, others are expected to run as on other problems, an estimate with an error of a tenth. If that one was timed on
this problem, it must be expected to take ``MEASURED_MARGIN`` times as long."""
MEASURED_MARGIN = 1.05
SAME = 1e-6
"""Distance of coordinates below which two kernels are one point."""
PLANNED = 1
"""Points that are planned where alternatives are not asked for: a plan takes a tenth of the time of a choice."""
BOUNDED = 8
"""Listed instances, the fastest, whose times are bounded as those of points are."""
TUNED_ROWS, TUNED_DISTANCE, TUNED_POINTS = 3, 0.75, 2
"""Tabulated problems whose fastest timed points are looked at, how far from this one they may be, and so many points of each."""
HOPELESS = 2.0
"""An instance that needs this many times as long as the best point even at its unit's peak is not planned."""


@dataclass(frozen=True)
class Option:
    """One instance, fitted to a request."""

    candidate: Candidate
    fit: Fit
    plan: KernelPlan
    dimensions: Mapping[str, int]
    seconds: float
    """Estimated device time."""
    source: Source
    """Source of the estimate: this very problem in the table, others in it, or the model alone."""
    device: Device

    @property
    def early(self) -> bool:
        """True if kernels that can start while the work before them still runs are to do so."""
        point, constant = self.candidate.is_point, bool(getattr(self.plan.spec, "constant", ()))
        starts = bool(getattr(self.candidate.spec, "early_launch", False))
        if point and not (starts and constant):
            return starts
        if self.seconds < MAX_EARLY and not point:
            return True
        if not point and (self.seconds >= MAX_EARLY_CONSTANT or not constant):
            return False
        works = cost_model_of(self.plan.spec.kind).work(self.plan, self.dimensions)
        main = max(works, key=lambda work: work.blocks * work.steps)
        filled = main.blocks / self.device.sm_count
        if point:
            # Tiles of constant operands that a grid copies before it waits take time from the launch before, unless its blocks are few.
            return filled >= FILLED_BY_POINT
        resident = occupancy(self.plan.architecture, main.threads, main.registers, main.shared_bytes)
        return resident.blocks_per_sm == 1 and (filled >= NEARLY_ALL or filled <= HALF)

    @property
    def certified(self) -> bool:
        """True if the library holds a certificate for this kernel on this architecture."""
        return not self.fit.derived and self.plan.architecture.name in self.candidate.certified


@dataclass(frozen=True)
class Choice:
    """Choice for a request, and the alternatives, fastest first."""

    request: Request
    device: Device
    options: tuple[Option, ...]
    chosen: Option
    rejected: Mapping[str, str]
    """Labels of candidates that cannot do it, each with the reason."""
    table: Table | None


REMEMBERED = 1024
"""Choices that are kept by their problems."""
_CHOICES: dict[tuple[Any, ...], Choice] = {}


def choose(request: Request, device: Device, architecture: Architecture | None = None, *, complete: bool = False) -> Choice:
    """The instance to take for ``request`` on ``device``, remembered by the problem, here and in the user's cache. Raises ``LaunchError``
    if none can do it. ``complete``: with all alternatives, and the reasons against the others, also if the choice was made before."""
    table = table_for(device)
    key = (id(table), request, device, architecture, complete)
    choice = _CHOICES.get(key)
    if choice is None or choice.table is not table:
        if len(_CHOICES) >= REMEMBERED:
            _CHOICES.clear()
        plain = request.unpromised
        # A collection of garbage looks at all objects of the process, which takes longer than a choice: it waits for the caller's next one.
        collecting = gc.isenabled()
        gc.disable()
        try:
            if plain is request:
                choice = (choose_by if complete else _chosen_before)(table, request, device, architecture)
            else:
                choice = _promised(choose(plain, device, architecture, complete=complete), request, architecture or device.architecture)
            _CHOICES[key] = choice
        finally:
            if collecting:
                gc.enable()
    return choice


def _chosen_before(table: Table | None, request: Request, device: Device, architecture: Architecture | None) -> Choice:
    """The choice for a request as the user's cache has it; else one that is made, and kept there."""
    key = choice_key(table, request, device, architecture)
    options = [option for one in load_choice(key) if (option := _cached_option(one, request, device, architecture)) is not None]
    if options:
        return Choice(request, device, tuple(options), options[0], {}, table)
    made = choose_by(table, request, device, architecture, complete=False)
    store_choice(key, [CachedOption(one.candidate, one.seconds, one.source, one.fit.margin) for one in made.options[:MAX_OPTIONS]])
    return made


def _cached_option(kept: CachedOption, request: Request, device: Device, architecture: Architecture | None) -> Option | None:
    """A kept option with its plan; None if its kernel cannot serve the request any more."""
    request = request.on(device)
    fitting = fitted(kept.candidate, request, architecture or device.architecture, device)
    if isinstance(fitting, str):
        return None
    fit, plan, dimensions = fitting
    dimensions, _ = set_best(plan, dimensions, device)
    return Option(kept.candidate, replace(fit, margin=kept.margin), plan, dimensions, kept.seconds, kept.source, device)


def _promised(choice: Choice, request: Request, architecture: Architecture) -> Choice:
    """The choice for ``request``, which is that of its ``choice`` without the caller's promises: the kernel that they allow takes its place
    where it may start early, or that of the point that saves the most by it."""
    chosen, device = choice.chosen, choice.device
    fastest = _early(chosen.candidate, chosen, request, architecture)
    points = [] if request.companions else fastest_points(choice.request.on(device), device, MAX_EARLY, early_copies=True)
    space = space_of(request.kind)
    if points and space is not None:
        place = space.coordinates(chosen.candidate.spec) if chosen.source != "measured" else None
        alike = None if place is None else next((one for one in points if math.dist(one.coordinates, place) < SAME), None)
        own = alike.saved if alike is not None and fastest is not None else 0.0
        seconds = chosen.seconds if alike is None else alike.seconds
        margin = MEASURED_MARGIN if chosen.source == "measured" else 1.0 if chosen.candidate.is_point else POINT_MARGIN
        for point in points:
            if not point.saved or margin * (point.seconds - point.saved) >= seconds - own:
                break
            made = replace(chosen, seconds=point.seconds - point.saved, source="model")
            early = _early(Candidate(space.label(point.spec), point.spec), made, request, architecture)
            if early is not None:
                fastest = early
                break
    if fastest is None:
        return replace(choice, request=request)
    return replace(choice, request=request, options=(fastest, *choice.options[1:]), chosen=fastest)


def _early(candidate: Candidate, like: Option, request: Request, architecture: Architecture) -> Option | None:
    """A candidate that uses the caller's promises and is otherwise like the option ``like``; None if an early start does not pay."""
    option = fitted(candidate, request, architecture, like.device)
    if isinstance(option, str):
        return None
    fit, plan, dimensions = option
    made = replace(like, candidate=candidate, fit=replace(fit, margin=like.fit.margin), plan=plan, dimensions=dimensions)
    return made if made.early else None


def choose_by(
    table: Table | None,
    request: Request,
    device: Device,
    architecture: Architecture | None = None,
    *,
    without: Row | None = None,
    among: Collection[str] | None = None,
    points: bool = True,
    complete: bool = True,
) -> Choice:
    """The choice by a given table; None: by the model alone. ``without``: a row of the table to ignore; ``among``: the only instances to
    choose from, by their names in tables; ``points``: False to choose among instances of files alone; ``complete``: False to leave out
    alternatives that are expected to be slow."""
    target = architecture or device.architecture
    request = request.on(device)
    near = table.near(request, without) if table is not None else Near()
    by_label: dict[str, Option] = {}
    rejected: dict[str, str] = {}
    common = _common_class(table, request.companions, device, target) if request.companions else None
    best_points = fastest_points(request, device, MAX_EARLY) if among is None and points else []
    free = _planned_points(best_points, request, device, target, common, SHOWN if complete or common else PLANNED)
    limit = HOPELESS * min((option.seconds for option in free), default=math.inf)
    whole = bool(free) and len(free[0].plan.sequence.launches) == 1
    outlook = Outlook(request, best_points, table, near, target, whole) if free and common is None else None
    others: dict[str, Option] = {}
    for candidate, (fit, plan, dimensions) in all_fitted(request, target, rejected, device, limit, outlook, complete):
        if common is not None and numeric_class_of(plan, dimensions) != common:
            rejected[candidate.label] = f"rows have the same bits in all sizes of the batch by the class {common}"
            continue
        name = table_name(candidate, target)
        if among is not None and name not in among:
            continue
        dimensions, model = set_best(plan, dimensions, device)
        source: Source
        seconds, source = model, "model"
        if table is not None:
            seconds, source = table.estimate(near, name, model, row_model(table, device, target))
        if outlook is not None and source != "measured" and (predicted := outlook.seconds(candidate)) is not None:
            seconds = predicted
        made = Option(candidate, fit, plan, dimensions, seconds, source, device)
        among_these = by_label if outlook is None or outlook.is_promising(candidate) else others
        other = among_these.get(plan.name)
        if other is None or (bool(fit.derived), seconds) < (bool(other.fit.derived), other.seconds):
            among_these[plan.name] = made
    for made in _tuned_points(table, near, request, device, target, common) if among is None and points else ():
        by_label.setdefault(made.plan.name, made)
    if free:
        by_label |= {option.plan.name: _bounded(option, device) for option in sorted(by_label.values(), key=_rank)[:BOUNDED]}
    best = min(by_label.values(), key=lambda option: option.seconds, default=None)
    margin = MEASURED_MARGIN if best is not None and best.source == "measured" else POINT_MARGIN
    for made in free:
        by_label.setdefault(made.plan.name, replace(made, fit=replace(made.fit, margin=margin)))
    if not by_label:
        raise LaunchError(_nothing_fits(request, rejected))
    slow = (option for name, option in others.items() if name not in by_label)
    options = (*sorted(by_label.values(), key=_rank), *sorted(slow, key=_rank))
    return Choice(request, device, options, options[0], rejected, table)


def _tuned_points(
    table: Table | None, near: Near, request: Request, device: Device, architecture: Architecture, common: str | None
) -> list[Option]:
    """Points that were timed on this problem or on those nearest to it, as options."""
    options: list[Option] = []
    space = space_of(request.kind)
    if table is None or space is None:
        return options
    rows = [row for distance, row in near[:TUNED_ROWS] if distance < TUNED_DISTANCE]
    named = {name: spec for row in rows for name, spec in row.fastest_points[:TUNED_POINTS]}
    for name, spec in named.items():
        option = _modelled(Candidate(space.label(spec), spec), request, device, architecture, common)
        if option is not None:
            seconds, source = table.estimate(near, name, option.seconds, row_model(table, device, architecture))
            options.append(replace(option, seconds=seconds, source=source))
    return options


def _modelled(candidate: Candidate, request: Request, device: Device, architecture: Architecture, common: str | None) -> Option | None:
    """A candidate with the model's time; None if it cannot serve the request, or is not of the numeric class ``common``."""
    option = fitted(candidate, request, architecture, device)
    if isinstance(option, str):
        return None
    fit, plan, dimensions = option
    if common is not None and numeric_class_of(plan, dimensions) != common:
        return None
    dimensions, model = set_best(plan, dimensions, device)
    return Option(candidate, fit, plan, dimensions, model, "model", device)


def _bounded(option: Option, device: Device) -> Option:
    """An option whose time, if it was not measured, is no less than its tiles allow: tables of other problems lead to expect less."""
    if option.source == "measured":
        return option
    works = cost_model_of(option.plan.spec.kind).work(option.plan, option.dimensions)
    least = max((float(least_seconds(work, device)) for work in works if work.unit != "fp32" and work.blocks), default=0.0)
    return replace(option, seconds=float(bounded_seconds(option.seconds, least)))


def _planned_points(
    points: Sequence[Point], request: Request, device: Device, architecture: Architecture, common: str | None, most: int
) -> list[Option]:
    """The fastest points, as options; ``common``: the numeric class that they must have."""
    space = space_of(request.kind)
    options: list[Option] = []
    if space is None:
        return options
    for point in points:
        if len(options) == most:
            break
        option = _modelled(Candidate(space.label(point.spec), point.spec), request, device, architecture, common)
        if option is not None:
            # The plan may have more launches, which copy factors.
            options.append(replace(option, seconds=point.seconds + option.seconds - point.modelled))
    return options


def _common_class(table: Table | None, requests: Sequence[Request], device: Device, architecture: Architecture) -> str:
    """Name of the numeric class that serves all the requests with the least geometric mean of its best times, which does not depend on
    the request that they accompany. Raises ``LaunchError`` if no class can."""
    logarithms: dict[str, list[float]] = {}
    rejected: dict[str, str] = {}
    for request in (each.on(device) for each in requests):
        near = table.near(request) if table is not None else Near()
        best: dict[str, float] = {}
        for candidate, (_, plan, dimensions) in all_fitted(request, architecture, rejected, device):
            numeric_class = numeric_class_of(plan, dimensions)
            if isinstance(numeric_class, NoClass):
                rejected[candidate.label] = f"a row's bits depend on how many rows there are: {numeric_class.reason}"
                continue
            _, seconds = set_best(plan, dimensions, device)
            if table is not None:
                seconds, _ = table.estimate(near, table_name(candidate, architecture), seconds, row_model(table, device, architecture))
            best[numeric_class] = min(seconds, best.get(numeric_class, math.inf))
        for numeric_class, seconds in best.items():
            logarithms.setdefault(numeric_class, []).append(math.log(seconds))
    complete = {numeric_class: sum(values) for numeric_class, values in logarithms.items() if len(values) == len(requests)}
    if not complete:
        raise LaunchError(_nothing_fits(requests[0], rejected))
    return min(complete, key=lambda numeric_class: (complete[numeric_class], numeric_class))


def _rank(option: Option) -> tuple[float, bool, int, float, str]:
    """Order of options: the time, and where estimates of instances agree in three digits, those as the library has them first, then by how
    many parameters the kernel receives only at launch. The model does not include the savings of sizes that are known at compile time."""
    seconds = option.seconds if option.source == "measured" else option.seconds * option.fit.margin
    if option.source != "measured" and not option.candidate.is_point:
        seconds = float(f"{seconds:.3g}")
    arguments = sum(len(launch.arguments) for launch in option.plan.sequence.launches)
    return seconds, bool(option.fit.derived), arguments, option.seconds, option.plan.name


def set_best(plan: KernelPlan, dimensions: Mapping[str, int], device: Device) -> tuple[dict[str, int], float]:
    """The dimensions of a launch with the values for which the model gives the least time where the instance leaves them open, such
    as a number of slices of k; and that time in seconds."""
    work = cost_model_of(plan.spec.kind).work
    settings = settings_of(plan.spec.kind)
    tried = [{**dimensions, **chosen} for chosen in (settings(plan, dimensions, device) if settings is not None else [{}])]
    timed = [(model_seconds(work(plan, one), device), place) for place, one in enumerate(tried)]
    seconds, best = min(timed)
    return tried[best], seconds


def all_fitted(
    request: Request,
    architecture: Architecture,
    rejected: dict[str, str],
    device: Device | None = None,
    limit: float = math.inf,
    outlook: Outlook | None = None,
    complete: bool = True,
) -> list[tuple[Candidate, tuple[Fit, KernelPlan, dict[str, int]]]]:
    """All candidates that can serve the request; ``rejected`` gets the reasons of the others. The reserves are looked at only
    if no instance of the library can, nor a point. Those that take longer than ``limit`` seconds in any case are left out, and unless the
    list is to be ``complete``, those that ``outlook`` expects to be slow."""
    fitting = []
    space = space_of(request.kind) if math.isfinite(limit) else None
    for group in (candidates, reserves):
        for candidate in group(request.kind) if complete or outlook is None else outlook.promising:
            if space is not None and device is not None and space.least_seconds(candidate.spec, request, device) > limit:
                rejected[candidate.label] = f"it takes more than {limit * 1e6:.1f} us at the peak of its unit, twice as long as others"
                continue
            option = fitted(candidate, request, architecture, device)
            if isinstance(option, str):
                rejected[candidate.label] = option
            else:
                fitting.append((candidate, option))
        if fitting or outlook is not None:
            break
    return fitting


def fitted(
    candidate: Candidate, request: Request, architecture: Architecture, device: Device | None = None
) -> tuple[Fit, KernelPlan, dict[str, int]] | str:
    """A candidate's fit to a request on an architecture, its plan and all dimensions; or why it cannot. ``device``: the one that it is
    launched on, if that is known."""
    fit = matcher_of(request.kind).fit(candidate.spec, request)
    if isinstance(fit, str):
        return fit
    spec = adapted(fit.spec, architecture, device)
    if spec is not fit.spec:
        fit = replace(fit, spec=spec, derived=changed_fields(candidate.spec, spec))
    plan = _plan_or_error(fit.spec, general(fit.spec, architecture))
    if isinstance(plan, PlanError):
        return str(plan.reasons[0]) if plan.reasons else str(plan)
    problems: list[str] = []
    sequence = plan.sequence
    arrays = {array.name: array for array in sequence.arrays if array.role != "workspace"}
    views = {name: _view(layout) for name, (_, layout) in fit.arrays.items() if name in arrays}
    if missing := arrays.keys() - views.keys():
        return f"it needs {', '.join(sorted(missing))}"
    given = {name: value for name, value in fit.dimensions.items() if any(d.name == name for d in sequence.dimensions)}
    dimensions = bind_dimensions(sequence, views, given, problems)
    problems += [
        f"{name} starts at a multiple of {fit.arrays[name][1].alignment} bytes, need {array.alignment}"
        for name, array in arrays.items()
        if fit.arrays[name][1].alignment % min(array.alignment, 16) and not fit.arrays[name][1].is_empty
    ]
    if problems:
        return problems[0]
    try:
        sequence.resolve(dimensions)
    except LaunchError as error:
        return str(error)
    if sequence.workspace_bytes.evaluate(dimensions) > MAX_WORKSPACE:
        return f"it would need a workspace of {sequence.workspace_bytes.evaluate(dimensions)} bytes"
    return fit, plan, dimensions


def general(spec: KernelSpec, architecture: Architecture) -> Architecture:
    """The architecture to compile for: the one that libraries are built for, without features of a single chip that are not asked for."""
    return architecture if spec.architecture.endswith("a") else ARCHITECTURES.get(architecture.name.removesuffix("a"), architecture)


def planned(spec: KernelSpec, architecture: Architecture) -> KernelPlan:
    """The plan of a spec, remembered. Raises ``PlanError``."""
    plan = _plan_or_error(spec, architecture)
    if isinstance(plan, PlanError):
        raise plan.with_traceback(None)
    return plan


@lru_cache(maxsize=4096)
def _plan_or_error(spec: KernelSpec, architecture: Architecture) -> KernelPlan | PlanError:
    """The plan of a spec, or why it has none: both are remembered."""
    try:
        plan: KernelPlan = family(spec.kind).plan(spec, architecture)
    except PlanError as error:
        return error.with_traceback(None)
    return plan


@lru_cache(maxsize=4096)
def base_name(spec: KernelSpec, architecture: Architecture) -> str:
    """Name of an instance in tables; its label if it has no plan for the architecture as it is."""
    try:
        return planned(spec, architecture).name
    except PlanError:
        return spec.label or ""


def table_name(candidate: Candidate, architecture: Architecture) -> str:
    """Name of a candidate's instance in tables, from the library's manifest if it is there: a plan takes longer."""
    return candidate.name or base_name(candidate.spec, architecture)


def row_model(table: Table, device: Device, architecture: Architecture) -> RowModel:
    """The model's seconds for instances on tabulated problems, on the device that timed them."""
    timed_on = find_device(table.device) if table.borrowed else device

    def seconds(row: Row, instance: str) -> float | None:
        return _row_seconds(timed_on, architecture, row.request, instance)

    return seconds


@lru_cache(maxsize=65536)
def _row_seconds(device: Device, architecture: Architecture, request: Request, instance: str) -> float | None:
    candidate = _by_name(request.kind, architecture).get(instance)
    option = fitted(candidate, request, architecture, device) if candidate is not None else ""
    return None if isinstance(option, str) else set_best(option[1], option[2], device)[1]


@cache
def _by_name(kind: str, architecture: Architecture) -> dict[str, Candidate]:
    return {table_name(candidate, architecture): candidate for candidate in (*candidates(kind), *reserves(kind))}


def _view(layout: Layout) -> ArrayView:
    return ArrayView(layout.alignment, layout.shape, layout.strides, layout.type, "cpu")


def _nothing_fits(request: Request, rejected: Mapping[str, str]) -> str:
    # A formula that is wrong is so for all instances, but those that other fields rule out say that first.
    counted = sorted(Counter(rejected.values()).items(), key=lambda pair: (not pair[0].startswith("epilogue."), -pair[1]))[:3]
    reasons: Any = "; ".join(f"{reason} ({count} of {len(rejected)})" for reason, count in counted)
    return f"no instance can do {request.kind}:{request.text}: {reasons or 'there are none of this family'}"
