"""Kernels for products by weights of 4 and 8 bits: the one for a shape, planned and compiled once for all weights of a format."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from gemmgen.core.errors import LaunchError
from gemmgen.core.formulas import ceil_div
from gemmgen.hardware.target import Architecture, Device
from gemmgen.kernels.calls import Operations
from gemmgen.kernels.epilogue.activations import activations
from gemmgen.kernels.epilogue.options import written_out
from gemmgen.kernels.gemm.family import plan_gemm
from gemmgen.kernels.gemm.matcher import ACTIVATIONS
from gemmgen.kernels.gemm.plan import GemmPlan
from gemmgen.kernels.gemm.spec import GemmSpec
from gemmgen.kernels.gemm.wgmma.cost import usable
from gemmgen.ops.weight_forms import (
    FEW_ROWS,
    STEP_K,
    Form,
    Numbers,
    expected_time,
    joined_streams,
    joined_warpgroups,
    room,
    shared_bytes,
    streamed_rows,
    streams,
    suited_forms,
    warpgroups,
)
from gemmgen.runtime.kernel import Kernel
from gemmgen.toolchain.compilation import compile_plan

STREAMED_ROWS = 16
"""Rows up to which warps may stream weights."""
MIN_JOINED_ROWS = 3
"""Rows from which on the last of the blocks that divide k may add up their sums: reading fewer rows in every block takes no longer."""
FEWEST_GROUPED = 8
"""Rows up to which they do."""
GROUPED_ROWS = (16, 32, 64)
"""Rows of tiles of warpgroups, for few rows."""
TILE_COLUMNS, TILE_ROWS = 128, tuple(range(256, 56, -8))
"""Columns of tiles of many rows, and the rows that they may have."""
MAX_DIVIDED = 128
"""Most rows of a tile if blocks of a cluster divide k, because they keep its sums in shared memory."""
TILE_OVERHEAD = 75
"""Constant part of a tile's time, in rows: for k = 4096, an H200 takes 48.4 us for a tile of 256 rows on each of its SMs, 35.2 for 176
and 29.8 for 128."""
DEPTH = 4096
"""Values of k of the tile that these times are for."""
EXCHANGE_OVERHEAD = 40
"""Time in which blocks of a cluster exchange their sums, in rows of such a tile: about 5 us."""
MIN_PART = 1024
"""Values of k of a block of a cluster, at least."""
LAUNCH_OVERHEAD = 110_000
"""Time of a second launch, in rows times values of k: about 4 us."""
FEW_SUMS, SUMMED_COLUMNS = 32, 64
"""Rows up to which, and columns of tiles of warpgroups for which, sums by weights of 4 bits are scaled, not weights."""
FORMS = 4096
"""Products whose forms are remembered: the model takes some milliseconds for each."""
KERNELS = 512
"""Kernels that are kept."""


@dataclass(frozen=True)
class Product:
    """The properties of a product by a weight that determine its kernel."""

    rows: int
    n: int
    k: int
    aligned_a: int
    """Elements, up to 16 bytes, that rows of activations are aligned to."""
    aligned_c: int
    """Elements, up to 8, that rows of the result are aligned to."""


@lru_cache(maxsize=FORMS)
def form_of(product: Product, numbers: Numbers, architecture: Architecture, sms: int) -> Form:
    """The form for a product, the fastest of those that were tried on an H200."""
    if numbers.by_bytes:
        return _byte_tiles(product, numbers, architecture)
    pairs = product.aligned_c > 1 and product.n % 2 == 0
    n, k = max(1, product.n), max(1, product.k)
    kinds: list[Iterable[Form]] = []
    if pairs and product.rows <= STREAMED_ROWS and product.k % product.aligned_a == 0:
        forms = list(streams(streamed_rows(product.rows), numbers, architecture))
        kinds.append(suited_forms(forms, n, k, sms))
        if product.rows >= MIN_JOINED_ROWS and not architecture.supports("clusters"):
            kinds.append(joined_streams(streamed_rows(product.rows), n, k, numbers, architecture, sms))
    if pairs and product.aligned_a == 8 and architecture.supports("wgmma") and (product.rows > FEWEST_GROUPED or not kinds):
        if product.rows > FEW_ROWS:
            return _many_rows(product, numbers, architecture, sms)
        rows = next(rows for rows in GROUPED_ROWS if product.rows <= rows)
        kinds.append(warpgroups(rows, numbers, architecture))
        kinds.append(joined_warpgroups(rows, n, k, numbers, architecture, sms))
    expected = [expected_time(forms, n, k, numbers, sms) for forms in kinds]
    form = min(expected, key=lambda one: one[0])[1] if expected else None
    return form or _tiles(product, numbers, architecture)


def _tiles(product: Product, numbers: Numbers, architecture: Architecture) -> Form:
    if product.rows <= 16:
        return Form("tiles", (16, 128, 128), (16, 32), 4, slices=0)
    few = product.rows <= FEW_ROWS
    columns = 256 if few and numbers.bits == 8 else 128
    stage = 64 * 256 + columns * 128 * numbers.bits // 8
    blocks = 1 if few or room(architecture, 2) < 2 * stage else 2
    stages = min(4 if few and numbers.bits == 4 else 3, room(architecture, blocks) // stage)
    return Form("tiles", (64, columns, 128), (64, 32), stages, slices=0 if few else 1, blocks_per_sm=blocks)


def _byte_tiles(product: Product, numbers: Numbers, architecture: Architecture) -> Form:
    """Tiles beside activations of 8 bits, whose stages have half of the bytes."""
    if product.rows <= FEW_ROWS:
        rows = 16 if product.rows <= 16 else 32 if product.rows <= 32 else 64
        return Form("tiles", (rows, 128, 128), (rows, 32), 4, slices=0)
    stage = 128 * STEP_K + 128 * STEP_K // 2
    return Form("tiles", (128, 128, STEP_K), (64, 32), min(4, room(architecture, 1) // stage))


def _many_rows(product: Product, numbers: Numbers, architecture: Architecture, sms: int) -> Form:
    """Tiles of 128 columns on blocks that take them in turn; where there are few tiles, blocks of a cluster divide k."""
    divisions = [
        (rows, count) for rows in TILE_ROWS for count in (1, 2, 4) if count == 1 or (rows <= MAX_DIVIDED and product.k >= MIN_PART * count)
    ]
    rows, slices = min(divisions, key=lambda one: _divided_clocks(product, one[0], one[1], sms))
    # On an H200, 1024 x 8192 x 8192 by weights of 8 bits takes 193 us with five stages of 64 values of k, 209 with two of 128.
    depth = STEP_K if numbers.bits == 4 else STEP_K // 2
    form = Form("warpgroups", (rows, TILE_COLUMNS, depth), (rows, 16), 8, slices=slices, persistent=sms if slices == 1 else 0)
    while shared_bytes(form, numbers) > room(architecture, 1):
        form = replace(form, stages=form.stages - 1)
    return form


def _clocks(product: Product, rows: int, sms: int) -> int:
    """The time of a product by tiles of ``rows`` rows, in rows of one tile. Larger tiles cost less per row, unless the last round fills few
    SMs."""
    return ceil_div(ceil_div(product.rows, rows) * ceil_div(product.n, TILE_COLUMNS), sms) * (rows + TILE_OVERHEAD)


def _divided_clocks(product: Product, rows: int, slices: int, sms: int) -> float:
    """The time of a product by tiles whose k is divided among blocks of a cluster, in rows of one tile of ``DEPTH`` values of k."""
    tiles = ceil_div(product.rows, rows) * ceil_div(product.n, TILE_COLUMNS)
    part = (rows + TILE_OVERHEAD) * product.k / slices / DEPTH
    return ceil_div(tiles * slices, usable(sms, slices)) * (part + (EXCHANGE_OVERHEAD if slices > 1 else 0))


@lru_cache(maxsize=FORMS)
def parts_of(product: Product, numbers: Numbers, architecture: Architecture, sms: int) -> tuple[Product, ...]:
    """The launches of a product, each for some of its columns: one, or two if smaller tiles in a second launch are faster than a last round
    that fills few SMs."""
    form = form_of(product, numbers, architecture, sms)
    if form.method != "warpgroups" or product.rows <= FEW_ROWS or form.slices > 1:
        return (product,)
    tiles = ceil_div(product.n, TILE_COLUMNS)
    best = _clocks(product, form.tile[0], sms)
    chosen: tuple[Product, ...] = (product,)
    for rows in TILE_ROWS:
        bands = ceil_div(product.rows, rows)
        columns = tiles * bands // sms * sms // bands
        if 0 < columns < tiles:
            parts = replace(product, n=columns * TILE_COLUMNS), replace(product, n=product.n - columns * TILE_COLUMNS)
            clocks = sum(min(_clocks(part, rows, sms) for rows in TILE_ROWS) for part in parts) + LAUNCH_OVERHEAD // product.k
            if clocks < best:
                best, chosen = clocks, parts
    return chosen


@dataclass(frozen=True)
class Call:
    """The properties of a call that determine its kernel."""

    form: Form
    numbers: Numbers
    aligned_a: int
    aligned_c: int
    multiple_of_k: int
    result: str
    bias: bool
    activation: Operations | None
    architecture: Architecture
    scaled: Literal["row", "memory"] | None = None
    """Elements of the result that share a scale of activations."""


def call_of(
    product: Product,
    numbers: Numbers,
    device: Device,
    result: str = "bf16",
    bias: bool = False,
    activation: Operations | None = None,
    architecture: Architecture | None = None,
    scaled: Literal["row", "memory"] | None = None,
) -> Call:
    """The kernel for a product on a device.

    Parameters
    ----------
    product, numbers
        Shape, alignments and format.
    device
        The device.
    result
        Type of the result.
    bias
        True with a bias for each column.
    activation
        As for ``ops.matmul``.
    architecture
        An older architecture than the device's, whose features alone are used.
    scaled
        Elements of the result that share a scale of activations.

    Returns
    -------
    Call
        Equal for products that one kernel serves.

    Raises
    ------
    LaunchError
        For an architecture without such kernels.
    """
    architecture = architecture or device.architecture
    if not architecture.supports("cp_async"):
        raise LaunchError(f"matmul: a Weight needs an architecture from sm_80 on, this is {architecture.name}")
    if numbers.activations in ("e4m3", "e5m2") and not architecture.supports("fp8_mma"):
        raise LaunchError(f"matmul: activations of 8-bit floats need an architecture from sm_89 on, this is {architecture.name}")
    form = form_of(product, numbers, architecture, device.sm_count)
    multiple = math.lcm(numbers.group or 1, product.aligned_a if form.method == "streams" else 1)
    aligned_c = product.aligned_c if form.method == "warpgroups" else min(2, product.aligned_c)
    return Call(form, numbers, product.aligned_a, aligned_c, multiple, result, bias, activation, architecture, scaled)


def scales_weights(form: Form, numbers: Numbers) -> bool:
    """True if weights are scaled before they are multiplied. Sums of few rows, or of groups of warps that are alone in their blocks, are
    scaled in less time: on an H200, 32 x 11008 x 4096 takes 11.0 us instead of 12.3, and 64 x 8192 x 8192 19.1 instead of 20.3. Floats in
    tiles of up to 64 rows are not scaled: their sums are."""
    if form.method != "warpgroups" or not numbers.group or (numbers.floats and form.tile[0] <= FEW_ROWS and form.tile[2] == STEP_K):
        return False
    few = form.tile[0] <= FEW_SUMS or form.tile[1] == SUMMED_COLUMNS
    return numbers.bits == 8 or not few


def spec_of(call: Call) -> GemmSpec:
    """The checked spec of a kernel. Where its architecture allows it, it comes early and copies weights before it waits for earlier work.
    Raises ``LaunchError`` for an activation that is not known."""
    form, numbers = call.form, call.numbers
    epilogue = [] if call.scaled is None else [{"op": "factor", "per": call.scaled}]
    epilogue += [{"op": "bias", "per": "column"}] if call.bias else []
    epilogue += [step.model_dump(mode="json") for step in activations("matmul", call.activation, ACTIVATIONS)]
    oldest = "sm_89" if numbers.activations in ("e4m3", "e5m2") else "sm_80"
    early = call.architecture.supports("programmatic_launch")
    loop: dict[str, Any] = {"strategy": "narrow_weights", "method": form.method, "stages": form.stages, "k_warps": form.k_warps}
    loop |= {"tile": {"threadblock": dict(zip("mnk", form.tile, strict=True)), "warp": dict(zip("mn", form.warp, strict=True))}}
    loop |= {"bits": numbers.bits, "group": numbers.group or "column", "zeros": numbers.zeros}
    loop |= {"min_blocks_per_sm": form.blocks_per_sm, "persistent_blocks": form.persistent}
    loop |= {"chunks": form.chunks, "next_launch": "late" if form.late else "early"}
    loop |= {"scaled": "weights" if scales_weights(form, numbers) else "sums"}
    codes = "integers" if not numbers.floats else "e2m1" if numbers.bits == 4 else "e4m3"
    loop |= {"codes": codes, "scale_type": numbers.kind if numbers.by_bytes else None}
    divisions: dict[int, dict[str, Any]] = {0: {"scheme": "split_k_parallel", "slices": "launch"}, 1: {"scheme": "data_parallel"}}
    cluster = {"scheme": "split_k_cluster", "slices": form.slices}
    return GemmSpec.model_validate(
        {
            "kind": "gemm",
            "label": "weights",
            "architecture": "sm_90a" if form.method == "warpgroups" else "sm_90" if early else oldest,
            "alpha": "one",
            "beta": "zero",
            "storage": {"a": numbers.activations or numbers.kind, "b": "u8", "c": call.result},
            "alignment": {"a": call.aligned_a, "c": call.aligned_c},
            "multiple_of": {"k": call.multiple_of_k},
            "mainloop": loop,
            "decomposition": {"scheme": "split_k_last"} if form.joined else divisions.get(form.slices, cluster),
            "epilogue": written_out(epilogue),
            "early_launch": early,
            "constant": ("b",) if early and form.method != "tiles" else (),
        }
    )


@lru_cache(maxsize=KERNELS)
def kernel_of(call: Call) -> tuple[GemmPlan, Kernel]:
    """The plan and the kernel, made once for all weights and calls that have them in common. Raises ``LaunchError`` as ``spec_of``."""
    plan = plan_gemm(spec_of(call), call.architecture)
    return plan, Kernel(plan.sequence, compile_plan(plan))


def slices_of(call: Call, plan: GemmPlan, product: Product, device: Device) -> dict[str, int]:
    """The number of slices of k, where the launch says how many there are: that of the form, or as many as give every SM two blocks."""
    if call.form.joined:
        return {"slices": call.form.slices}
    if not plan.cut_at_launch:
        return {}
    tiles = ceil_div(product.rows, plan.tile_m) * ceil_div(product.n, plan.tile_n)
    return {"slices": max(1, min(ceil_div(2 * device.sm_count, tiles), product.k // plan.slice_k))}
