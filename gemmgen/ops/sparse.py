"""Right factors that are 2:4 sparse, compressed once for products that skip their zeros."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gemmgen.core.elements import ELEMENTS, to_numbers
from gemmgen.core.errors import LaunchError
from gemmgen.core.formulas import ceil_div
from gemmgen.dispatch.devices import gpu_device, host_device
from gemmgen.hardware.target import Architecture, Feature
from gemmgen.kernels.calls import Operations
from gemmgen.kernels.epilogue.activations import activations
from gemmgen.kernels.epilogue.options import written_out
from gemmgen.kernels.gemm.family import plan_gemm
from gemmgen.kernels.gemm.matcher import ACTIVATIONS
from gemmgen.kernels.gemm.plan import GemmPlan
from gemmgen.kernels.gemm.request import alignment_elements, is_stored
from gemmgen.kernels.gemm.sparsity import CHUNK_K, compress, lane_words
from gemmgen.kernels.gemm.spec import GemmSpec
from gemmgen.ops.arrays import is_torch, layout_of, new_array, view_of
from gemmgen.ops.weights import moved
from gemmgen.runtime.arrays.protocols import Array, ArrayT, Stream
from gemmgen.runtime.kernel import Kernel
from gemmgen.toolchain.compilation import compile_plan

KINDS = {"float16": "f16", "bfloat16": "bf16", "uint16": "bf16", "int8": "s8", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}
"""Element types by their words; NumPy holds bfloat16 as bits."""
RESULTS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int32": "s32"}
WARPGROUP_KINDS = ("e4m3", "e5m2")
"""Types that warpgroups alone multiply."""
FEW_ROWS, SOME_ROWS = 16, 64
"""Rows of activations up to which k is divided among blocks."""
MIN_DEPTH = 512
"""Values of k of a slice, at least."""
TILES = ((128, 256, 1.0), (256, 176, 1.05))
"""Columns of the weight and rows of activations of a tile, and the time for an element of its result. On an H200, 2048 x 11008 x 4096 of
int8 took 106 us by the second, in fewer rounds, and 110 by the first; 4096 x 4096 x 4096 took 81 and 76."""
KERNELS = 256
"""Kernels that are kept."""


class SparseWeight:
    """A right factor (k, n) whose columns hold at most two values other than 0 in every four neighbours along k: ``ops.compress_2_4``
    makes it, ``ops.matmul(a, weight)`` multiplies by it and skips the removed elements.

    Parameters
    ----------
    kind
        Type of its elements, and of activations.
    shape
        (k, n).
    kept
        The kept values, (n, k / 2).
    metadata
        Positions of the kept values, words of 16 bits, (n, k / 16).
    lanes
        The metadata in the order in which warpgroups read them, (n / 64, 2 k), words of 32 bits.
    """

    def __init__(self, kind: str, shape: tuple[int, int], kept: Array, metadata: Array, lanes: Array) -> None:
        self.kind, self.shape, self.kept, self.metadata, self.lanes = kind, shape, kept, metadata, lanes

    def multiply(
        self,
        a: ArrayT,
        *,
        out: Array | None = None,
        bias: Array | float | None = None,
        activation: Operations | None = None,
        output: str | None = None,
        stream: Stream | None = None,
    ) -> ArrayT:
        """``activation(a @ weight + bias)``, as ``ops.matmul`` computes it.

        Parameters
        ----------
        a
            Activations (rows, k), of the weight's type.
        out, bias, activation, output, stream
            As for ``ops.matmul``.

        Returns
        -------
        ArrayT
            ``out``, or a new array of a's library.

        Raises
        ------
        LaunchError
            If the arguments are invalid or do not fit each other.
        """
        result: ArrayT = self._multiplied(a, out, bias, activation, output, stream)
        return result

    def _multiplied(self, a: Any, out: Any, bias: Any, activation: Any, output: str | None, stream: Any) -> Any:
        k, n = self.shape
        if getattr(a, "ndim", 0) != 2 or a.shape[1] != k:
            shape = tuple(getattr(a, "shape", ()))
            raise LaunchError(f"matmul: a has shape {shape}, need (rows, {k}) beside a SparseWeight of shape {self.shape}")
        view = view_of(a, "a", None)
        layout = layout_of(view)
        if layout.type != self.kind:
            raise LaunchError(f"matmul: a has elements {layout.type}, need the SparseWeight's type, {self.kind}")
        widest = 16 // ELEMENTS[self.kind].bytes
        aligned = alignment_elements(widest, layout, True) if is_stored(layout, True) else 0
        least = widest if self.kind in WARPGROUP_KINDS else widest // 4
        if aligned < least:
            size = least * ELEMENTS[self.kind].bytes
            raise LaunchError(f"matmul: a has strides {layout.strides}, need rows side by side that begin at multiples of {size} bytes")
        if output is not None and output not in RESULTS:
            raise LaunchError(f"matmul: output is {output!r}, need one of {', '.join(RESULTS)} beside a SparseWeight")
        kind = RESULTS[output] if output is not None else {"s8": "s32", "e4m3": "bf16", "e5m2": "bf16"}.get(self.kind, self.kind)
        c = new_array(a, (a.shape[0], n), kind) if out is None else out
        result = layout_of(view_of(c, "out", None, written=True))
        if result.shape != (a.shape[0], n) or not is_stored(result, True):
            raise LaunchError(f"matmul: out has shape {result.shape} and strides {result.strides}, need {(a.shape[0], n)} in rows")
        if bias is not None and tuple(getattr(bias, "shape", ())) != (n,):
            raise LaunchError(f"matmul: bias has shape {tuple(getattr(bias, 'shape', ()))}, need {(n,)} beside a SparseWeight")
        if result.is_empty:
            return c
        device = host_device() if isinstance(view.device, str) else gpu_device(view.device[1])
        aligned_c = alignment_elements(8, result, True)
        warpgroups = device.architecture.supports("wgmma") and aligned == widest
        form = form_of(a.shape[0], n, self.kind, device.sm_count, warpgroups)
        call = Call(form, self.kind, aligned, aligned_c, result.type, bias is not None, activation, device.architecture, n % 8 == 0)
        plan, kernel = kernel_of(call)
        metadata = self.lanes if form.warpgroups else self.metadata
        arrays = {"A": self.kept, "B": a.T, "metadata": metadata, "C": c.T, **({} if bias is None else {"bias": bias})}
        kernel(**arrays, **slices_of(plan, form, a.shape[0], n, k, device.sm_count), stream=stream)
        return c


def compress_2_4(b: Array, *, prune: bool = False) -> SparseWeight:
    """Compresses a right factor that is 2:4 sparse along k, on the host, once for many products.

    Parameters
    ----------
    b
        Matrix (k, n), float16, bfloat16, int8, float8_e4m3fn or float8_e5m2, NumPy or torch: of a torch ``Linear``, ``linear.weight.T``.
        k is a multiple of 64. Products of 8-bit floats need a Hopper GPU.
    prune
        Keep the two largest magnitudes of every four neighbours along k, and drop the others. Without it, they have to be 0.

    Returns
    -------
    SparseWeight
        On the device of ``b``.

    Raises
    ------
    LaunchError
        For another type or shape, or a matrix that is not 2:4 sparse.
    """
    import numpy as np

    dense: Any = b
    word = str(getattr(dense, "dtype", type(dense).__name__)).removeprefix("torch.")
    if word not in KINDS or getattr(dense, "ndim", 0) != 2:
        shape = tuple(getattr(dense, "shape", ()))
        raise LaunchError(f"compress_2_4: b has elements {word} and shape {shape}, need float16, bfloat16, int8 or float8 and (k, n)")
    kind, (k, n) = KINDS[word], dense.shape
    if k % CHUNK_K or not k * n:
        raise LaunchError(f"compress_2_4: b has k = {k} and n = {n}, need a positive multiple of {CHUNK_K} and a positive n")
    host = dense.detach().cpu() if is_torch(dense) else dense
    held = ELEMENTS[kind].holder
    if is_torch(host) and kind not in ("f16", "s8"):
        host = host.view(sys.modules["torch"].int16 if kind == "bf16" else sys.modules["torch"].int8)
    rows = np.asarray(host).T.view(held)
    try:
        values, metadata = compress(rows, to_numbers(kind, rows), prune)
    except ValueError as error:
        raise LaunchError(f"compress_2_4: {error}, need zeros, or prune=True") from None
    if not is_torch(dense):
        values = values.view(dense.dtype)
    lanes = lane_words(metadata, ELEMENTS[kind].bytes)
    return SparseWeight(kind, (k, n), moved(values, kind, dense), moved(metadata, "u16", dense), moved(lanes, "u32", dense))


@dataclass(frozen=True)
class Form:
    """A mainloop, and whether k is divided."""

    tile: tuple[int, int, int]
    """Columns of the weight, rows of activations, and depth of a block."""
    warp: tuple[int, int] | None
    """The tile of a warp; None: warpgroups multiply."""
    stages: int
    sliced: bool = False
    consumers: int = 2
    """Groups that multiply, where these are warpgroups."""
    blocks: int = 0
    """Blocks that take tiles in turn; 0: as many as there are tiles."""
    band: int = 8
    """Tiles that consecutive blocks take across a band."""

    @property
    def warpgroups(self) -> bool:
        """True if warpgroups multiply (sm_90a)."""
        return self.warp is None


def form_of(rows: int, n: int, kind: str, sms: int, warpgroups: bool = False) -> Form:
    """The form for a product: small tiles and slices of k where there are few rows, larger ones the more tiles there are.
    ``warpgroups``: they can multiply, as they do where there are more than some rows."""
    depth = 64 * (2 // ELEMENTS[kind].bytes)
    if kind in WARPGROUP_KINDS and rows <= SOME_ROWS:
        return Form((64, 16 if rows <= FEW_ROWS else 64, depth), None, 8, sliced=True, consumers=1)
    if rows <= FEW_ROWS:
        return Form((64, 16, 128), (16, 16), 4, sliced=True)
    if rows <= SOME_ROWS:
        return Form((64, 64, 128), (32, 32), 3, sliced=True)
    if warpgroups:
        if ceil_div(n, 128) * ceil_div(rows, 256) < sms:
            return Form((128, 128, depth), None, 6, blocks=sms)
        # Seven of eight products took 1 to 4% longer on an H200 by pairs of blocks that share tiles, and one as long.
        tiles = TILES if kind == "s8" else TILES[:1]
        m, columns, _ = min(
            tiles, key=lambda tile: ceil_div(ceil_div(n, tile[0]) * ceil_div(rows, tile[1]), sms) * tile[0] * tile[1] * tile[2]
        )
        return Form((m, columns, depth), None, 4, blocks=sms, band=4 if m == 128 else 8)
    if ceil_div(n, 128) * ceil_div(rows, 128) < sms:
        return Form((64, 64, 128), (32, 32), 3)
    return Form((128, 128, 64), (64, 64), 3)


@dataclass(frozen=True)
class Call:
    """A kernel as far as a call decides about it."""

    form: Form
    kind: str
    aligned_b: int
    aligned_c: int
    result: str
    bias: bool
    activation: Operations | None
    architecture: Architecture
    whole_lines: bool = False
    """True if the weight's columns are a multiple of 8."""


def spec_of(call: Call) -> GemmSpec:
    """The checked spec of a kernel, which computes the transpose: weights are its left factor, and results of a row lie side by side.
    Raises ``LaunchError`` for an activation that is not known."""
    form = call.form
    mainloop: dict[str, object] = {"sparse": "a", "stages": form.stages}
    if form.warp is None:
        mainloop |= {
            "strategy": "wgmma",
            "tile": dict(zip("mnk", form.tile, strict=True)),
            "consumers": form.consumers,
            "persistent_blocks": form.blocks,
        }
    else:
        tile = {"threadblock": dict(zip("mnk", form.tile, strict=True)), "warp": dict(zip("mn", form.warp, strict=True))}
        mainloop |= {"strategy": "mma_sync", "tile": tile}
    boxes = form.warpgroups and not form.sliced and call.whole_lines and call.aligned_c * ELEMENTS[call.result].bytes >= 16
    epilogue = [{"op": "bias", "per": "row"}] if call.bias else []
    epilogue += [step.model_dump(mode="json") for step in activations("matmul", call.activation, ACTIVATIONS)]
    early = call.architecture.supports("programmatic_launch")
    return GemmSpec.model_validate(
        {
            "kind": "gemm",
            "label": "sparse",
            "architecture": "sm_90a" if form.warpgroups else "sm_90" if early else "sm_80",
            "order": "column_major",
            "transpose": "tn",
            "alpha": "one",
            "beta": "zero",
            "storage": {"a": call.kind, "b": call.kind, "c": call.result},
            "alignment": {"a": 16 // ELEMENTS[call.kind].bytes, "b": call.aligned_b, "c": call.aligned_c},
            "multiple_of": {"k": CHUNK_K, **({"m": 8} if boxes else {})},
            "store": "tma" if boxes else "direct",
            "rasterization": {"group": form.band},
            "mainloop": mainloop,
            "decomposition": {"scheme": "split_k_parallel", "slices": "launch"} if form.sliced else {"scheme": "data_parallel"},
            "epilogue": written_out(epilogue),
            "early_launch": early,
        }
    )


@lru_cache(maxsize=KERNELS)
def kernel_of(call: Call) -> tuple[GemmPlan, Kernel]:
    """The plan and the kernel, made once for all weights and calls that have them in common. Raises ``LaunchError`` for an architecture
    without such kernels, and as ``spec_of``."""
    least: Feature = "wgmma" if call.kind in WARPGROUP_KINDS else "cp_async"
    if not call.architecture.supports(least):
        needed = "sm_90a" if least == "wgmma" else "an architecture from sm_80 on"
        raise LaunchError(f"matmul: a SparseWeight of {call.kind} needs {needed}, this is {call.architecture.name}")
    plan = plan_gemm(spec_of(call), call.architecture)
    return plan, Kernel(plan.sequence, compile_plan(plan))


def slices_of(plan: GemmPlan, form: Form, rows: int, n: int, k: int, sms: int) -> dict[str, int]:
    """Slices of k that give every SM two blocks, where the launch says how many there are."""
    if not form.sliced:
        return {}
    tiles = ceil_div(n, plan.tile_m) * ceil_div(rows, plan.tile_n)
    return {"slices": max(1, min(ceil_div(2 * sms, tiles), k // MIN_DEPTH))}
