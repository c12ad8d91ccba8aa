"""Kernels for few rows times weights of 4 and 8 bits: every form that may be good, timed, and the model that chooses among them.

    python -m measurements.weight_forms --seconds 150 --out weight_forms.jsonl        on a machine with a GPU and torch
    python -m measurements.weight_forms --fit measurements/weight_forms_h200.jsonl    regret, each layer by the fit to all others
    python -m measurements.weight_forms --fit FILES --write                           also writes gemmgen/ops/weight_costs.json

Calls are captured in CUDA graphs that rotate among weights larger than the L2, and replayed in turns. The logarithm of a form's time over
the best one's of its product is a linear function of the form's traits (``gemmgen.ops.weight_forms.traits``), fitted by ridge regression,
and the errors that this has on the timed layers.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from gemmgen.core.errors import GemmgenError
from gemmgen.core.files import write_atomically
from gemmgen.core.formulas import ceil_div
from gemmgen.hardware.target import Architecture
from gemmgen.hardware.target import architecture as find_architecture
from gemmgen.hardware.target import device as find_device
from gemmgen.kernels.gemm.family import plan_gemm
from gemmgen.kernels.gemm.plan import GemmPlan
from gemmgen.ops.weight_forms import (
    COSTS,
    Costs,
    Form,
    Numbers,
    Timed,
    fastest,
    joined_streams,
    joined_warpgroups,
    kind_of,
    label,
    modelled,
    streamed_rows,
    streams,
    suited,
    traits,
    warpgroups,
)
from gemmgen.ops.weight_kernels import Call, Product, call_of, spec_of
from gemmgen.perf.contestants import median_seconds
from gemmgen.runtime.kernel import Kernel
from gemmgen.toolchain.compilation import compile_plan
from measurements.formats import GROUP, numbers_of, random_weight, sets_of

DEVICE, OLDER = find_device("H200"), find_architecture("sm_80")
FEW_ROWS = 16
"""Rows up to which warps stream weights, on the newest architecture beside warpgroups where there are so many."""
LAYERS = (
    *((4096, 4096), (14336, 4096), (4096, 14336), (11008, 4096), (8192, 8192), (14336, 14336)),
    *((5120, 5120), (28672, 8192), (7168, 18432), (2560, 10240), (6144, 5120)),
)
"""Columns and depth of weights."""
ROWS = (1, 8, 16, 32, 64)
TILE_ROWS = (16, 32, 64)
"""Rows of tiles of warpgroups."""
KINDS = ("streams", "alone", "warpgroups", "joined", "joined_warpgroups")
WIDTHS = (4, 8)
ROUNDS, GRAPH_SECONDS = 4, 4e-4
TOGETHER = 24
"""Kernels that are timed in turns."""
AGREEMENT = 1e-2
SLOW = 2.0
"""Forms that take this many times as long as the best of their product are left out of the fit."""
FADING = 3.0
RIDGE = 0.3
LISTED = 1.6
"""Forms that take no more than this many times as long as the best of their kind are listed with their errors."""


def ways(rows: int) -> list[tuple[Architecture, str]]:
    """Architectures and methods whose forms are timed for a product of so many rows."""
    groups = [(DEVICE.architecture, "warpgroups"), (DEVICE.architecture, "joined_warpgroups")]
    if rows > FEW_ROWS:
        return groups
    streamed = [(DEVICE.architecture, "streams"), (OLDER, "streams"), (OLDER, "joined")]
    return [*streamed, *groups] if rows == FEW_ROWS else streamed


def forms_of(rows: int, n: int, k: int, numbers: Numbers, architecture: Architecture, method: str) -> list[Form]:
    """The forms for a product of so many rows that may be good."""
    grouped = next(held for held in TILE_ROWS if rows <= held)
    if method == "joined":
        return joined_streams(streamed_rows(rows), n, k, numbers, architecture, DEVICE.sm_count)
    if method == "joined_warpgroups":
        return joined_warpgroups(grouped, n, k, numbers, architecture, DEVICE.sm_count)
    forms = streams(streamed_rows(rows), numbers, architecture) if method == "streams" else warpgroups(grouped, numbers, architecture)
    return [form for form in forms if likely(form, n, k)]


def kernel_form(form: Form) -> Form:
    """The form that stands for a kernel, which a launch tells into how many slices k is cut."""
    return replace(form, slices=2) if form.joined else form


def plan_of(form: Form, bits: int, architecture: Architecture) -> GemmPlan:
    """The plan of a form with the features of an architecture, for the device."""
    aligned_c = 8 if form.method == "warpgroups" else 2
    call = Call(form, numbers_of(bits), 8, aligned_c, GROUP, "bf16", False, None, architecture)
    return plan_gemm(spec_of(call), DEVICE.architecture)


def made(form: Form, bits: int, architecture: Architecture) -> bool:
    """Compiles a form; False if its plan or the compiler refuses it."""
    try:
        compile_plan(plan_of(form, bits, architecture))
    except GemmgenError:
        return False
    return True


def likely(form: Form, n: int, k: int) -> bool:
    """True if the form's blocks occupy the device without too many rounds, and evenly where warps stream weights."""
    blocks = ceil_div(n, form.tile[1]) * form.slices
    if form.method == "streams":
        return suited(form, n, k, DEVICE.sm_count)
    return DEVICE.sm_count // 3 <= blocks <= 4 * DEVICE.sm_count


def measure(
    rows: Sequence[int], widths: Sequence[int], methods: Sequence[str], end: float, jobs: int | None = None
) -> Iterator[dict[str, Any]]:
    """Microseconds of forms, a record for each product and way."""
    wanted = [
        (kernel_form(form), bits, architecture)
        for bits in widths
        for m in rows
        for architecture, method in ways(m)
        if method in methods
        for layer in LAYERS
        for form in forms_of(m, *layer, numbers_of(bits), architecture, method)
    ]
    wanted = list(dict.fromkeys(wanted))
    with ProcessPoolExecutor(jobs) as pool:
        ready = {one for one, fine in zip(wanted, pool.map(made, *zip(*wanted, strict=True), chunksize=2), strict=True) if fine}
    if time.monotonic() > end:
        return
    import torch

    kernels: dict[tuple[Form, int, Architecture], Kernel] = {}
    for (n, k), bits in ((layer, bits) for layer in LAYERS for bits in widths):
        weights = [dict(random_weight(n, k, bits)._arrays) for _ in range(sets_of(n * k * bits // 8))]
        for m, architecture, method in [(few, *one) for few in rows for one in ways(few) if one[1] in methods]:
            if time.monotonic() > end:
                return
            a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
            numbers = numbers_of(bits)
            chosen = call_of(Product(m, n, k, 8, 8), numbers, DEVICE, architecture=architecture).form
            forms = [one for one in forms_of(m, n, k, numbers, architecture, method) if (kernel_form(one), bits, architecture) in ready]
            forms = forms if chosen in forms else [chosen, *forms]
            found: list[tuple[float, Form]] = []
            want = None
            for first in range(0, len(forms), TOGETHER):
                calls = {}
                for place, form in enumerate(forms[first : first + TOGETHER], first):
                    key = kernel_form(form), bits, architecture
                    slices = {"slices": form.slices} if form.joined else {}
                    if key not in kernels:
                        plan = plan_of(*key)
                        kernels[key] = Kernel(plan.sequence, compile_plan(plan))
                    kernel, out = kernels[key], torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
                    kernel(A=a, C=out, **weights[0], **slices)
                    want = out.float() if want is None else want
                    error = float((out.float() - want).abs().max() / want.abs().max())
                    assert error < AGREEMENT, (form, bits, m, n, k, error)
                    arrays = {"A": a, "C": out, **slices}
                    calls[str(place)] = lambda i, kernel=kernel, arrays=arrays, weights=weights: kernel(**arrays, **weights[i])
                times = median_seconds(torch, calls, sets=len(weights), rounds=ROUNDS, graph_seconds=GRAPH_SECONDS)
                found += [(round(seconds * 1e6, 2), forms[int(place)]) for place, seconds in times.items()]
            if not found:
                continue
            found.sort(key=lambda one: one[0])
            mine = next(one for one, form in found if form == chosen)
            own = [(one, asdict(form)) for one, form in found if way_of(form) == method]
            yield {"m": m, "n": n, "k": k, "bits": bits, "chosen": mine, "best": found[0][0], "times": own}


def way_of(form: Form) -> str:
    """The method of a form, as ``ways`` names it."""
    return ("joined_warpgroups" if form.method == "warpgroups" else "joined") if form.joined else form.method


def form(fields: dict[str, Any]) -> Form:
    """A form as it was written."""
    return Form(**{**fields, "tile": tuple(fields["tile"]), "warp": tuple(fields["warp"])})


def best_of(one: dict[str, Any]) -> float:
    """The shortest time of a product: of its own forms, or of another method's that were timed beside them."""
    return float(one.get("best", one["times"][0][0]))


def joined(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records in which ways that were timed before others of the same product have the shortest time of all: each was timed beside the
    form that was chosen then."""
    best: dict[tuple[Any, ...], float] = {}
    found = []
    for one in sorted(records, key=lambda one: KINDS.index(kind_of([form(fields) for _, fields in one["times"]])), reverse=True):
        kind = kind_of([form(fields) for _, fields in one["times"]])
        key = (*(one[name] for name in ("m", "n", "k", "bits")), kind in ("alone", "joined"))
        faster = best.get(key, 1.0)
        found.append({**one, "best": one.get("best", one["times"][0][0]) * faster})
        best[key] = faster * one.get("best", 1.0) / (one["chosen"] if "best" in one else 1.0)
    return found


def fitted(records: Sequence[dict[str, Any]]) -> list[float]:
    """Weights of traits."""
    factors, values = [], []
    for one in records:
        best = best_of(one)
        for microseconds, fields in one["times"]:
            if microseconds <= SLOW * best:
                weight = math.exp(-FADING * (microseconds / best - 1) / 2)
                row = traits(form(fields), one["n"], one["k"], numbers_of(one["bits"]), DEVICE.sm_count)
                factors.append([weight * trait for trait in row])
                values.append(weight * math.log(microseconds / best))
    matrix = np.array(factors)
    found = np.linalg.solve(matrix.T @ matrix + RIDGE * np.eye(matrix.shape[1]), matrix.T @ np.array(values))
    return [round(float(one), 5) for one in found]


def timed(records: Sequence[dict[str, Any]], weights: Sequence[float]) -> list[dict[str, Any]]:
    """Errors of the model for the forms of each product."""
    found = []
    for one in records:
        best, errors = best_of(one), {}
        for microseconds, fields in one["times"]:
            if microseconds <= LISTED * one["times"][0][0]:
                expected = modelled(form(fields), one["n"], one["k"], numbers_of(one["bits"]), DEVICE.sm_count, weights)
                errors[label(form(fields))] = round(math.log(microseconds / best) - expected, 3)
        forms = [form(fields) for _, fields in one["times"]]
        kept = {name: one[name] for name in ("bits", "n", "k")}
        found.append({"kind": kind_of(forms), "rows": forms[0].tile[0], **kept, "errors": errors})
    return found


def regret(one: dict[str, Any], model: Costs) -> float:
    """Time of the form that the model chooses, over that of the best."""
    times = {form(fields): microseconds for microseconds, fields in one["times"]}
    chosen = fastest(times, one["n"], one["k"], numbers_of(one["bits"]), DEVICE.sm_count, model)
    assert chosen is not None
    return float(times[chosen] / one["times"][0][0])


def fit(records: Sequence[dict[str, Any]]) -> Costs:
    """The model, from records of all kinds."""
    weights, errors = {}, []
    for kind in KINDS:
        own = [one for one in records if kind_of([form(fields) for _, fields in one["times"]]) == kind]
        weights[kind] = fitted(own)
        errors += timed(own, weights[kind])
    return Costs(weights, tuple(Timed(**one) for one in errors))


def report_fit(files: Sequence[Path], write: bool) -> None:
    """Prints the regret, each layer by the fit to all others and by that to all, and writes the latter if asked to."""
    records = joined([json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()])
    layers = sorted({(one["n"], one["k"]) for one in records})
    whole = fit(records)
    for name in ("layers that the fit has not seen", "all"):
        values: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for layer in layers:
            model = fit([one for one in records if (one["n"], one["k"]) != layer]) if name != "all" else whole
            for one in records:
                if (one["n"], one["k"]) == layer:
                    values[kind_of([form(fields) for _, fields in one["times"]])].append(regret(one, model))
        for kind, found in values.items():
            print(f"{kind}, {len(found)} products, {name}: regret {np.mean(found) - 1:.1%} as a mean, {max(found) - 1:.1%} at worst")
    if write:
        write_atomically(COSTS, json.dumps(asdict(whole)) + "\n")


def main() -> None:
    """Times or fits."""
    parser = argparse.ArgumentParser(description="times forms of kernels for narrow weights")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="rows of activations")
    parser.add_argument("--bits", type=int, nargs="+", default=WIDTHS, help="bits of weights")
    parser.add_argument("--methods", nargs="+", default=("streams", "warpgroups", "joined", "joined_warpgroups"))
    parser.add_argument("--jobs", type=int, help="processes that compile")
    parser.add_argument("--seconds", type=float, default=600.0, help="no product is begun after this time")
    parser.add_argument("--out", type=Path, help="file of records, a line for each product")
    parser.add_argument("--fit", type=Path, nargs="+", help="files of records")
    parser.add_argument("--write", action="store_true", help="writes the fit")
    given = parser.parse_args()
    if given.fit:
        report_fit(given.fit, given.write)
        return
    with open(given.out, "w", encoding="utf-8") as file:
        for one in measure(given.rows, given.bits, given.methods, time.monotonic() + given.seconds, given.jobs):
            file.write(json.dumps(one) + "\n")
            file.flush()
            print(*(one[name] for name in ("m", "n", "k", "bits", "chosen")), *one["times"][:2], flush=True)


if __name__ == "__main__":
    main()
