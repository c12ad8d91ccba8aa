"""Products of float64 matrices by those of 8-bit integers, which callers ask for by name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gemmgen.core.errors import LaunchError
from gemmgen.core.formulas import ceil_div
from gemmgen.dispatch.devices import gpu_device, host_device
from gemmgen.hardware.target import Architecture
from gemmgen.kernels.gemm.family import plan_gemm
from gemmgen.kernels.gemm.plan import GemmPlan, packed
from gemmgen.kernels.gemm.remainders.scheme import MAX_K, SCHEMES
from gemmgen.kernels.gemm.request import DOUBLE, alignment_elements, is_stored
from gemmgen.kernels.gemm.spec import GemmSpec
from gemmgen.kernels.launch import MAX_WORKSPACE
from gemmgen.kernels.requests import Copy
from gemmgen.ops.arrays import copied, layout_of, new_array, stored, type_word, view_of
from gemmgen.runtime.arrays.protocols import Stream
from gemmgen.runtime.kernel import Kernel
from gemmgen.toolchain.compilation import compile_plan

BY_INTEGERS = tuple(SCHEMES)
"""Words of ``precision``."""
KERNELS = 64
"""Kernels that are kept."""
CALLS = 1024
"""Calls whose memory is remembered."""


@dataclass(frozen=True)
class Call:
    """The properties of a call that determine its kernel."""

    precision: str
    rows: tuple[bool, bool]
    """True for each factor that is stored in rows."""
    aligned: tuple[int, int, int]
    tile: tuple[int, int]
    consumers: int
    blocks: int
    architecture: Architecture


def is_deep(a: Any) -> bool:
    """True if k is too large for the kernels' sums. Callers then multiply in float64."""
    return getattr(a, "ndim", 0) >= 2 and a.shape[-1] > MAX_K


def multiply_scaled(a: Any, b: Any, precision: str, out: Any, scalars: tuple[float, float], stream: Stream | None) -> Any:
    """The array alpha a b + beta out of matrices or batches, product by product. Each product is rounded before it is scaled and added.
    Raises ``LaunchError``."""
    import numpy as np

    alpha, beta = scalars
    for name, factor in (("a", a), ("b", b)):
        if getattr(factor, "ndim", 0) < 2:
            shape = tuple(getattr(factor, "shape", ()))
            raise LaunchError(f"matmul: {name} has shape {shape}, need a matrix, or a batch of them, with precision {precision}")
    if (alpha, beta) == (1, 0) and a.ndim == b.ndim == 2:
        return multiply(a, b, precision, out, stream)
    if stream is not None and (alpha, beta) != (1, 0):
        raise LaunchError(f"matmul: alpha and beta with precision {precision} are multiplied on the current stream; pass no stream")
    if out is None and beta != 0:
        raise LaunchError("matmul: beta is not 0, but there is no out that it would multiply; pass out=")
    try:
        batch = np.broadcast_shapes(tuple(a.shape[:-2]), tuple(b.shape[:-2]))
    except ValueError:
        raise LaunchError(f"matmul: a of shape {tuple(a.shape)} and b of shape {tuple(b.shape)} have batches of different shapes") from None
    shape = (*batch, a.shape[-2], b.shape[-1])
    if out is not None and (tuple(out.shape) != shape or layout_of(view_of(out, "out", None, written=True)).type != DOUBLE):
        raise LaunchError(f"matmul: out has shape {tuple(out.shape)} and elements {type_word(out)}, need {shape} and float64")
    product = new_array(a, shape, DOUBLE) if out is None or (alpha, beta) != (1, 0) else out
    if alpha == 0:
        product[...] = 0
    else:
        for place in np.ndindex(*batch):
            left, right = (factor[broadcast_place(place, factor.ndim - 2, factor.shape)] for factor in (a, b))
            multiply(left, right, precision, product[place] if place else product, stream)
    return stored(product, alpha, beta, out)


def broadcast_place(place: tuple[int, ...], axes: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index of a product's factor, whose batch may have fewer axes, or axes of 1."""
    own = place[len(place) - axes :] if axes else ()
    return tuple(0 if extent == 1 else index for index, extent in zip(own, shape, strict=False))


def multiply(a: Any, b: Any, precision: str, out: Any = None, stream: Stream | None = None) -> Any:
    """``a @ b`` of matrices of float64 in ``out``, or a new array of a's library. Raises ``LaunchError``."""
    for name, factor in (("a", a), ("b", b)):
        if getattr(factor, "ndim", 0) != 2:
            shape = tuple(getattr(factor, "shape", ()))
            raise LaunchError(f"matmul: {name} has shape {shape}, need a matrix with precision {precision}")
    if a.shape[1] != b.shape[0]:
        raise LaunchError(f"matmul: a has shape {tuple(a.shape)} and b {tuple(b.shape)}, need as many columns of a as rows of b")
    shape = a.shape[0], b.shape[1]
    factors, layouts = [], []
    for name, factor in (("a", a), ("b", b)):
        view = view_of(factor, name, None)
        layout = layout_of(view)
        if layout.type != DOUBLE:
            raise LaunchError(f"matmul: {name} has elements {layout.type}, need float64 with precision {precision}")
        if not (is_stored(layout, True) or is_stored(layout, False)):
            factor = copied(factor, Copy(name, tuple(factor.shape), False))
            layout = layout_of(view_of(factor, name, None))
        factors.append(factor)
        layouts.append(layout)
    c = new_array(a, shape, DOUBLE) if out is None else out
    result = layout_of(view := view_of(c, "out", None, written=True))
    if result.shape != shape or result.type != DOUBLE:
        raise LaunchError(f"matmul: out has shape {result.shape} and elements {result.type}, need {shape} and float64")
    if not is_stored(result, True):
        if not is_stored(result, False):
            raise LaunchError(f"matmul: out has strides {result.strides}, need rows or columns side by side")
        multiply(factors[1].T, factors[0].T, precision, c.T, stream)
        return c
    if result.is_empty:
        return c
    device = host_device() if isinstance(view.device, str) else gpu_device(view.device[1])
    if not device.architecture.supports("wgmma"):
        raise LaunchError(f"matmul: precision {precision} needs sm_90a, this is {device.architecture.name}")
    tile, consumers = tile_of(*shape, device.sm_count)
    stored = is_stored(layouts[0], True), is_stored(layouts[1], True)
    both = zip((*layouts, result), (*stored, True), strict=True)
    aligned = tuple(alignment_elements(2, layout, in_rows) for layout, in_rows in both)
    call = Call(precision, stored, (aligned[0], aligned[1], aligned[2]), tile, consumers, device.sm_count, device.architecture)
    if not fits(call, *shape, a.shape[1]):
        _in_halves(factors[0], factors[1], precision, c, stream)
        return c
    _, kernel = kernel_of(call)
    kernel(A=factors[0], B=factors[1], C=c, stream=stream)
    return c


def _in_halves(a: Any, b: Any, precision: str, c: Any, stream: Stream | None) -> None:
    """The product in two parts along the longer side of the result, where the planes of remainders need too much memory."""
    m, n = c.shape
    if m >= n:
        half = ceil_div(m, 512) * 256
        parts = [(a[:half], b, c[:half]), (a[half:], b, c[half:])]
    else:
        half = ceil_div(n, 512) * 256
        parts = [(a, b[:, :half], c[:, :half]), (a, b[:, half:], c[:, half:])]
    for part in parts:
        multiply(part[0], part[1], precision, part[2], stream)


def tile_of(m: int, n: int, sms: int) -> tuple[tuple[int, int], int]:
    """A tile of the products, and the groups of warps that share it: the largest that gives every multiprocessor work."""
    for tile, consumers in (((128, 256), 2), ((128, 128), 2)):
        if ceil_div(m, tile[0]) * ceil_div(n, tile[1]) * 14 >= sms:
            return tile, consumers
    return (64, 64), 1


def spec_of(call: Call) -> GemmSpec:
    """The checked spec of a kernel."""
    letters = "".join("n" if in_rows else "t" for in_rows in call.rows)
    tile = {"m": call.tile[0], "n": call.tile[1], "k": 128}
    return GemmSpec.model_validate(
        {
            "kind": "gemm",
            "label": "float64_by_int8",
            "architecture": "sm_90a",
            "transpose": letters,
            "alpha": "one",
            "beta": "zero",
            "storage": {"a": "f64", "b": "f64", "c": "f64"},
            "alignment": dict(zip("abc", call.aligned, strict=True)),
            "rasterization": {"group": 8},
            "mainloop": {
                "strategy": "wgmma",
                "arithmetic": {"f64_by": call.precision},
                "tile": tile,
                "stages": 4,
                "consumers": call.consumers,
                "persistent_blocks": call.blocks,
            },
        }
    )


@lru_cache(maxsize=CALLS)
def fits(call: Call, m: int, n: int, k: int) -> bool:
    """True if the planes of remainders have room in a workspace."""
    plan, _ = kernel_of(call)
    return plan.sequence.workspace_bytes.evaluate(packed(plan, (m, n, k))) <= MAX_WORKSPACE


@lru_cache(maxsize=KERNELS)
def kernel_of(call: Call) -> tuple[GemmPlan, Kernel]:
    """The plan and the kernel, made once for all calls that have them in common."""
    plan = plan_gemm(spec_of(call), call.architecture)
    return plan, Kernel(plan.sequence, compile_plan(plan))
