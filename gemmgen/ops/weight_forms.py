"""Forms of kernels for few rows times narrow weights, chosen by a fitted model. A form is a tile, a division of k and a count of stages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product as combinations
from math import exp, inf, log2
from pathlib import Path
from typing import Literal

from gemmgen.core.formulas import ceil_div
from gemmgen.hardware.target import WARP_THREADS, Architecture
from gemmgen.kernels.gemm.narrow_weights.warpgroups import rows_at_a_time
from gemmgen.kernels.gemm.packed_weights import PANEL
from gemmgen.kernels.gemm.wgmma.cost import usable

Method = Literal["tiles", "streams", "warpgroups"]
STEP_K = 128
"""Values of k in a step of a warp that streams weights, and in most stages of warpgroups."""
DEPTHS = {2: (1024, 4096), 8: (512, 1024, 2048, 4096), 16: (512, 1024, 2048)}
"""Values of k of a chunk of A, by the rows of a tile."""
THREAD_BYTES = 128
"""Most bytes of a chunk of A that a thread copies."""
MAX_STAGES = 12
JOINED_PANELS = (2, 3, 4, 6, 7, 8, 10, 12, 14, 16)
"""Panels of a block whose sums are added to those of others by the last one to arrive."""
MAX_JOINED = 32
"""Most blocks that divide k then."""
GROUPS_EVEN = 0.86
"""Least balance of warpgroups whose last block adds up sums: with 0.85, 14336 columns, an H200 takes no less time than by clusters."""
EVEN = 0.8
"""Least balance of forms that are tried."""
NEARLY = 0.9
"""Least balance, as a part of the greatest, of forms that are tried where none is suited."""
WARPS = (4, 16)
"""Fewest and most warps of a block that streams weights."""
FEW_ROWS = 64
"""Most rows of a product that one tile holds."""
BARRIER_BYTES = 256
"""Bytes of shared memory for barriers, including their alignment."""
RESERVED_BYTES = 1024
"""Bytes of an SM's shared memory that the system reserves for each block."""
COSTS = Path(__file__).with_name("weight_costs.json")
READ_RATE = 4.55e12
"""Bytes per second of an H200's memory. It scales the model's times, which are only compared with each other."""
REACH = 0.3
"""Length scale of the likeness of layers, as a base-2 logarithm of the ratio of their n or k."""
DOUBT = 0.1
"""Weight of an error of 0 in the mean of the errors of similar layers."""
SHARPNESS = 4.0
"""Exponent of the norm that combines times which overlap; the longest dominates."""


@dataclass(frozen=True)
class Numbers:
    """The format of a weight."""

    kind: str
    """Type of scales, and of activations of 16 bits."""
    bits: int
    group: int
    """Values of k that share a scale; 0: all of k."""
    zeros: bool
    activations: str = ""
    """Type of activations, where it is not that of scales."""
    floats: bool = False
    """True if codes are floats: e2m1 of 4 bits, e4m3 of 8 bits."""

    @property
    def by_bytes(self) -> bool:
        """True beside activations of 8 bits."""
        return self.activations not in ("", self.kind)

    @property
    def groups(self) -> int:
        """Groups in a step along k; 0 if a scale holds for all of k."""
        return STEP_K // self.group if self.group else 0

    @property
    def numbers(self) -> int:
        """Scales and zero points of a column in a group: 1, or 2 with zero points."""
        return 2 if self.zeros else 1


@dataclass(frozen=True)
class Form:
    """A mainloop and its division of k, without the format of the weights."""

    method: Method
    tile: tuple[int, int, int]
    """Rows, columns and depth of a block's tile."""
    warp: tuple[int, int]
    stages: int
    k_warps: int = 1
    slices: int = 1
    """Blocks of a cluster that divide k, or, ``joined``, of the grid; 0: the launch decides the number of slices."""
    blocks_per_sm: int = 1
    persistent: int = 0
    """Blocks that take tiles in turn; 0: one for each tile."""
    chunks: int = 2
    """Chunks of A in shared memory, where warps stream weights."""
    late: bool = False
    """True if the next launch begins once all weights were asked for, where warps stream weights."""
    joined: bool = False
    """True if the last of the blocks that divide k to arrive adds up their sums, where warps stream weights."""


def streams(rows: int, numbers: Numbers, architecture: Architecture) -> Iterator[Form]:
    """Forms whose warps stream weights, for tiles of 2, 8 or 16 rows; rings are as deep as one to four blocks on an SM allow."""
    clusters = (1, 2, 4) if architecture.supports("clusters") else (1,)
    starts = (False, True) if architecture.supports("programmatic_launch") else (False,)
    for panels, k_warps, slices in combinations(range(1, WARPS[1] + 1), (1, 2, 4, 8), clusters):
        if not WARPS[0] <= panels * k_warps <= WARPS[1] or panels * 4 % slices:
            continue
        for depth, chunks in combinations(DEPTHS[rows], (1, 2)):
            if depth < STEP_K * k_warps or 2 * rows * depth > THREAD_BYTES * WARP_THREADS * panels * k_warps:
                continue
            deepest = 2
            for blocks in (4, 3, 2, 1):
                form = Form("streams", (rows, PANEL * panels, depth), (rows, PANEL), 1, k_warps, slices, blocks, chunks=chunks)
                free = room(architecture, blocks) - shared_bytes(replace(form, stages=0), numbers)
                stages = min(MAX_STAGES, free // (panels * k_warps * stage_bytes(numbers)))
                if stages > deepest:
                    deepest = stages
                    yield from (replace(form, stages=stages, late=late) for late in starts)


def divided_depth(steps: int, tiles: int, places: int) -> int:
    """Blocks that divide the steps of a tile, where so many places hold the blocks of all tiles at once: the fewest with the least steps.
    Below 2 if k is not divided."""
    most = min(places // tiles, steps, MAX_JOINED)
    return min(range(ceil_div(most, 2), most + 1), key=lambda count: (ceil_div(steps, count), count)) if most > 1 else most


def joined_streams(rows: int, n: int, k: int, numbers: Numbers, architecture: Architecture, sms: int) -> list[Form]:
    """Forms whose warps stream weights and whose blocks divide k of a layer so that each SM has about as much to do; the last block of a
    tile adds up the sums. Rows of A are then read by few blocks each."""
    forms = []
    for panels, k_warps, blocks in combinations(JOINED_PANELS, (1, 2, 4, 8), (1, 2, 3)):
        warps, steps, tiles = panels * k_warps, ceil_div(k, STEP_K * k_warps), ceil_div(n, PANEL * panels)
        slices = divided_depth(steps, tiles, sms * blocks)
        fitting = [depth for depth in DEPTHS[rows] if depth >= STEP_K * k_warps and 2 * rows * depth <= THREAD_BYTES * WARP_THREADS * warps]
        if not WARPS[0] <= warps <= WARPS[1] or slices < 2 or not fitting:
            continue
        part = ceil_div(steps, slices) * STEP_K * k_warps
        depth = next((depth for depth in fitting if depth >= part), fitting[-1])
        chunks = 1 if depth >= part else 2
        form = Form("streams", (rows, PANEL * panels, depth), (rows, PANEL), 1, k_warps, slices, blocks, chunks=chunks, joined=True)
        free = room(architecture, blocks) - shared_bytes(replace(form, stages=0), numbers)
        stages = min(MAX_STAGES, free // (warps * stage_bytes(numbers)))
        if stages > 2:
            forms.append(replace(form, stages=stages))
    return even(forms, n, k, sms)


def joined_warpgroups(rows: int, n: int, k: int, numbers: Numbers, architecture: Architecture, sms: int) -> list[Form]:
    """Forms whose warpgroups divide k like that, for one tile of up to 64 rows; none where SMs would get uneven shares."""
    forms = []
    for columns, own, blocks in combinations((64, 128, 192, 256), (16, 32), (1, 2)):
        tiles, steps = ceil_div(n, columns), ceil_div(k, STEP_K)
        slices = divided_depth(steps, tiles, sms * blocks)
        if slices < 2 or not _has_registers(rows, columns, own, blocks, numbers):
            continue
        form = Form("warpgroups", (rows, columns, STEP_K), (rows, own), 1, 1, slices, blocks, joined=True)
        fitting = [stages for stages in (8, 6, 4, 3) if shared_bytes(replace(form, stages=stages), numbers) <= room(architecture, blocks)]
        if fitting:
            forms.append(replace(form, stages=fitting[0]))
    return even([form for form in forms if balance(form, n, k, sms) >= GROUPS_EVEN], n, k, sms)


def even(forms: Sequence[Form], n: int, k: int, sms: int) -> list[Form]:
    """Those of the forms that have about the best balance."""
    balances = {form: balance(form, n, k, sms) for form in forms}
    return [form for form, value in balances.items() if value >= NEARLY * max(balances.values())]


def streamed_rows(rows: int) -> int:
    """Rows of the tiles that stream weights for a product of so many."""
    return next(held for held in DEPTHS if rows <= held)


def balance(form: Form, n: int, k: int, sms: int) -> float:
    """The steps of all panels along k, as a part of those that the SMs could take in the time of the one with the most."""
    panels, steps = ceil_div(n, PANEL), ceil_div(k, STEP_K)
    blocks = ceil_div(n, form.tile[1]) * form.slices
    own = ceil_div(steps, form.slices * form.k_warps) * form.k_warps * form.tile[1] // PANEL
    return panels * steps / (sms * ceil_div(blocks, usable_by(form, sms)) * own)


def usable_by(form: Form, sms: int) -> int:
    """SMs that the form's blocks may have: clusters leave some out."""
    return usable(sms, 1 if form.joined else form.slices)


def suited_forms(forms: Sequence[Form], n: int, k: int, sms: int) -> list[Form]:
    """Those of the forms that are suited to a layer, or, if none is, those with about the best balance."""
    suited_ones = [form for form in forms if suited(form, n, k, sms)]
    if suited_ones:
        return suited_ones
    return even(forms, n, k, sms)


def suited(form: Form, n: int, k: int, sms: int) -> bool:
    """True if blocks that stream weights occupy the SMs in one round, evenly, their rings are about as deep as that allows, and a chunk of
    A is no deeper than it need be: one alone holds all of k, or as much as any does, while one of two holds less."""
    rounds = ceil_div(ceil_div(n, form.tile[1]) * form.slices, usable(sms, form.slices))
    if not rounds <= form.blocks_per_sm <= rounds + 2 or balance(form, n, k, sms) < EVEN:
        return False
    rows, columns, depth = form.tile
    deeper = [other for other in DEPTHS[rows] if 2 * rows * other <= THREAD_BYTES * WARP_THREADS * columns // PANEL * form.k_warps]
    whole = depth * form.slices >= k
    less = any(STEP_K * form.k_warps <= other < depth and other * form.slices >= k for other in deeper)
    return not whole if form.chunks > 1 else not less and (whole or depth in (1024, deeper[-1]))


def warpgroups(rows: int, numbers: Numbers, architecture: Architecture) -> Iterator[Form]:
    """Forms of warpgroups, for one tile of up to 64 rows."""
    for columns, slices, blocks, stages, own in combinations((64, 128, 192, 256), (1, 2, 3, 4, 8), (1, 2), (3, 4, 6), (16, 32)):
        form = Form("warpgroups", (rows, columns, STEP_K), (rows, own), stages, 1, slices, blocks)
        fits = columns // own % slices == 0 and _has_registers(rows, columns, own, blocks, numbers)
        if fits and shared_bytes(form, numbers) <= room(architecture, blocks):
            yield form


def _has_registers(rows: int, columns: int, own: int, blocks: int, numbers: Numbers) -> bool:
    """True if there are groups of warps with ``own`` columns a warp, and they have registers for their sums."""
    groups = columns // (4 * own)
    fits = columns % (4 * own) == 0 and (blocks == 1 or groups <= 2) and groups <= 4
    # Threads of four groups have too few registers for the sums of a group beside those of all.
    fits &= groups < 4 or rows <= 32 or not (numbers.floats and numbers.group)
    return fits and (own == 16 or (blocks == 1 and numbers.bits == 4))


def room(architecture: Architecture, blocks: int) -> int:
    """Shared memory of a block, in bytes, if so many are on an SM."""
    shared = architecture.shared_bytes_per_sm // blocks - architecture.reserved_shared_bytes_per_block
    return min(architecture.shared_bytes_per_block, shared)


def shared_bytes(form: Form, numbers: Numbers) -> int:
    """Bytes of shared memory per block."""
    rows, columns, depth = form.tile
    sums = form.k_warps * rows * columns * 4 if form.slices > 1 and not form.joined else 0
    if form.method == "streams":
        ring = columns // PANEL * form.k_warps * form.stages * stage_bytes(numbers)
        return ring + form.chunks * rows * (2 * depth + 16) + sums + BARRIER_BYTES
    groups = max(1, depth // numbers.group) if numbers.group else 0
    stage = rows * depth * 2 + columns * depth * numbers.bits // 8 + groups * columns * 2 * numbers.numbers
    return form.stages * stage + (sums or rows_at_a_time(rows) * (columns + columns // form.warp[1]) * 4) + BARRIER_BYTES


def stage_bytes(numbers: Numbers) -> int:
    """Bytes of a panel's packed weights in one step along k, with their scales and zero points."""
    return PANEL * STEP_K * numbers.bits // 8 + numbers.groups * numbers.numbers * PANEL * 2


def traits(form: Form, n: int, k: int, numbers: Numbers, sms: int) -> list[float]:
    """Features of a form on a product of n columns and depth k; their weighted sum is the logarithm of the form's time, up to a constant of
    the product."""
    rows, columns, depth = form.tile
    panels = columns // PANEL
    blocks = ceil_div(n, columns) * form.slices
    usable_sms = usable_by(form, sms)
    fullest = ceil_div(blocks, usable_sms)
    steps = ceil_div(ceil_div(k, STEP_K), form.k_warps * form.slices)
    resident = max(1, min(228 * 1024 // (shared_bytes(form, numbers) + RESERVED_BYTES), 64 // (panels * form.k_warps)))
    waves = ceil_div(blocks, usable_sms * resident)
    stage = stage_bytes(numbers)
    # Microseconds of the memory, of the fullest SM, of waiting for copies, and of reading rows of A, roughly.
    rate = READ_RATE / 1e6
    moved = ceil_div(n, PANEL) * ceil_div(k, STEP_K) * stage / rate
    busiest = fullest * panels * form.k_warps * steps * stage * sms / (1.1 * rate)
    waiting = 0.3 * steps / (form.stages - 1) * waves
    read = fullest * rows * (k / form.slices) * 2 * sms / (2.4 * rate)
    body: float = (moved**SHARPNESS + busiest**SHARPNESS + waiting**SHARPNESS) ** (1 / SHARPNESS)
    chunks = max(1.0, k / form.slices / depth)  # of A
    in_flight = min(resident, fullest) * panels * form.k_warps * (form.stages - 1)
    traits_of_form = [
        log2(1.3 + body + read),
        log2(1.3 + body),
        log2(fullest * panels * form.k_warps * steps),
        log2(blocks / usable_sms / fullest),
    ]
    traits_of_form += [log2(min(blocks, usable_sms) / sms), log2(depth / STEP_K), log2(waves), float(form.blocks_per_sm == 2)]
    traits_of_form += [log2(chunks), float(form.chunks == 1), float(form.late), form.late * log2(steps)]
    for value in (in_flight, steps, panels, form.k_warps, form.slices, fullest, form.stages):
        traits_of_form += [log2(value), log2(value) ** 2]
    traits_of_form.append(float(form.method == "warpgroups" and form.warp[1] > 16))
    few = rows <= 8 if form.method == "streams" else rows <= 32
    return [*traits_of_form, *(value * (not few) for value in traits_of_form), *(value * (numbers.bits > 4) for value in traits_of_form)]


def label(form: Form) -> str:
    """The key of a form in ``weight_costs.json``: all its numbers except the rows."""
    kind = f",{form.chunks}{'L' if form.late else ''}" if form.method == "streams" else f",{form.warp[1]}" if form.warp[1] > 16 else ""
    joined = ",J" if form.joined else ""
    return f"{form.tile[1]}x{form.tile[2]},{form.k_warps},{form.slices},{form.stages},{form.blocks_per_sm}{kind}{joined}"


@dataclass(frozen=True)
class Timed:
    """Timed forms on one layer."""

    kind: str
    """Kind of the forms, as ``kind_of`` returns it."""
    rows: int
    """Rows of the forms' tiles."""
    bits: int
    n: int
    k: int
    errors: dict[str, float]
    """Logarithms of measured over modelled times, by label."""

    def likeness(self, n: int, k: int) -> float:
        """Likeness to a layer of n columns and depth k: 1 for the same layer, down to 0."""
        return exp(-(log2(n / self.n) ** 2 + log2(k / self.k) ** 2) / (2 * REACH**2))


@dataclass(frozen=True)
class Costs:
    """The fitted model."""

    weights: dict[str, list[float]]
    """Weights of traits, by the kind of forms."""
    timed: tuple[Timed, ...]


@cache
def costs() -> Costs:
    """The model in ``weight_costs.json``."""
    data = json.loads(COSTS.read_text(encoding="utf-8"))
    return Costs(data["weights"], tuple(Timed(**one) for one in data["timed"]))


def kind_of(forms: Sequence[Form]) -> str:
    """The kind of forms that share a fit: their method, or ``alone`` for streams of weights in blocks without clusters, whose best forms
    differ; ``joined`` or ``joined_warpgroups`` for those whose last block adds up sums."""
    method = forms[0].method
    if any(form.joined for form in forms):
        return "joined_warpgroups" if method == "warpgroups" else "joined"
    return "alone" if method == "streams" and all(form.slices == 1 for form in forms) else method


def modelled(form: Form, n: int, k: int, numbers: Numbers, sms: int, weights: Sequence[float]) -> float:
    """The logarithm of a form's modelled time, up to a constant of the product."""
    return sum(weight * trait for weight, trait in zip(weights, traits(form, n, k, numbers, sms), strict=True))


def fastest(forms: Iterable[Form], n: int, k: int, numbers: Numbers, sms: int, model: Costs | None = None) -> Form | None:
    """The form with the least expected time, as ``expected_time`` has it; None if ``forms`` is empty."""
    return expected_time(forms, n, k, numbers, sms, model)[1]


def expected_time(
    forms: Iterable[Form], n: int, k: int, numbers: Numbers, sms: int, model: Costs | None = None
) -> tuple[float, Form | None]:
    """The form with the least expected time, by the model and its errors on similar layers, and the logarithm of that time over the
    shortest one of its product; an infinity and None if ``forms``, which are of one kind, is empty. The default ``model`` is the one that
    ships with gemmgen."""
    forms, model = list(forms), model or costs()
    if not forms:
        return inf, None
    kind = kind_of(forms)
    like = [(one.likeness(n, k), one) for one in model.timed if (one.kind, one.rows, one.bits) == (kind, forms[0].tile[0], numbers.bits)]

    def expected(form: Form) -> float:
        known = [(likeness, one.errors[label(form)]) for likeness, one in like if label(form) in one.errors]
        error = sum(likeness * error for likeness, error in known) / (DOUBT + sum(likeness for likeness, _ in known))
        return modelled(form, n, k, numbers, sms, model.weights[kind]) + error

    form = min(forms, key=expected)
    return expected(form), form
