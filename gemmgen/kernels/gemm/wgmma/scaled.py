"""Block scales by warpgroups: sums of 8-bit floats leave the tensor core after every 128 of k, and are scaled on the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING, Any, Literal

from gemmgen.core.errors import Reason
from gemmgen.core.formulas import ceil_div, round_up
from gemmgen.kernels.gemm.matrices import scale_layouts
from gemmgen.kernels.gemm.scaling import ScaleArray, Scales, spread
from gemmgen.kernels.gemm.spec import GemmSpec, WgmmaMainloop
from gemmgen.kernels.gemm.tensor_cores.blocks import Blocks, product_of_blocks
from gemmgen.kernels.gemm.tensor_cores.reasons import BYTE_FLOATS
from gemmgen.kernels.gemm.wgmma.reasons import promoted_depth

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gemmgen.kernels.gemm.plan import Array
    from gemmgen.kernels.gemm.tensor_cores.plan import TensorPlan

    Column = NDArray[np.float64]

BLOCK_K = 128
"""Values of k that share a scale: those of one promotion."""
MAX_BLOCKS = 2
"""Blocks of k of a stage, at most."""

SCALE_TYPES = ("f32", "ue8m0")
SCALE_BYTES = 4
"""Bytes of a scale in shared memory, a float."""
SCALE_ALIGNMENT = 16
SCALE_WARPS = 3
"""Warps of the producer that bring scales: on three of an SM's four schedulers, each of which then loses few instructions to them."""
THREAD_SCALES = {1: 16, 2: 8, 3: 8}
"""Scales that a thread of the producer stores at a time, at most, by the number of groups that multiply; as many are under way."""
FEW_COLUMNS, FEW_COLUMNS_SCALES = 128 * 112, 12
"""Elements of a tile of two groups, up to which these leave registers to the producer, and its threads' scales then."""


@dataclass(frozen=True)
class StagedScales:
    """Scales of an operand that come to shared memory with its tile: those of neighbouring lines, or one for several lines."""

    array: ScaleArray
    name: Literal["A", "B"]
    unit: int
    """Lines of a tile for which there is one: all of them are in one block."""
    count: int
    first: int
    """Scales of a stage before them."""

    @property
    def lines(self) -> str:
        return "row" if self.name == "A" else "column"

    @property
    def extent(self) -> str:
        """Lines of the operand, in CUDA."""
        return "m" if self.name == "A" else "n"


def staged_scales(spec: GemmSpec, mainloop: WgmmaMainloop) -> tuple[StagedScales, ...]:
    """The scales of a stage."""
    scales: list[StagedScales] = []
    for array in scale_layouts(spec):
        extent = mainloop.tile.m if array.operand == "a" else mainloop.tile.n
        unit = gcd(array.block.lines, extent)
        first = scales[-1].first + scales[-1].count if scales else 0
        scales.append(StagedScales(array, "A" if array.operand == "a" else "B", unit, extent // unit, first))
    return tuple(scales)


def staged_bytes(scales: Scales, tile_m: Column, tile_n: Column) -> Column:
    """Shared memory of a stage's scales, for tiles of so many rows and columns."""
    import numpy as np

    extents = {"a": tile_m, "b": tile_n}
    counts = [extents[name] / np.gcd(extents[name].astype(int), block.lines) for name, block in scales.given]
    whole: Column = np.ceil(sum(counts, np.zeros_like(tile_m)) * SCALE_BYTES / SCALE_ALIGNMENT) * SCALE_ALIGNMENT
    return whole


def column_scales(scales: Scales, tile_n: Any, instruction_n: Any) -> Any:
    """Scales of columns that a thread holds, for numbers or columns of them: two of each 8 columns of an instruction, or one for as many as
    are always in one block."""
    import numpy as np

    if scales.b is None:
        return 0.0 * tile_n
    return instruction_n / 4 if scales.b.lines == 1 else tile_n / np.gcd(np.asarray(tile_n, int), scales.b.lines)


def scale_bytes(spec: GemmSpec, mainloop: WgmmaMainloop) -> int:
    """Shared memory of the scales of a stage's block of k."""
    return round_up(SCALE_BYTES * sum(scales.count for scales in staged_scales(spec, mainloop)), SCALE_ALIGNMENT)


def scale_blocks(spec: GemmSpec, mainloop: WgmmaMainloop) -> int:
    """Blocks of k of a stage; 1 without block scales."""
    return mainloop.tile.k // BLOCK_K if spec.scales.given else 1


def has_few_columns(mainloop: WgmmaMainloop) -> bool:
    """True if two groups have so few columns that they leave registers to the producer."""
    return mainloop.consumers == 2 and mainloop.min_blocks_per_sm == 1 and mainloop.tile.m * mainloop.tile.n <= FEW_COLUMNS


def scale_steps(spec: GemmSpec, mainloop: WgmmaMainloop) -> int:
    """Steps whose scales a thread of the producer reads at a time, adjacent ones by one access: four, two or one, as registers allow."""
    of_a_thread = sum(ceil_div(scales.count, 32 * SCALE_WARPS) for scales in staged_scales(spec, mainloop))
    most = FEW_COLUMNS_SCALES if has_few_columns(mainloop) else THREAD_SCALES[mainloop.consumers]
    return next(steps for steps in (4, 2, 1) if steps * of_a_thread <= most or steps == scale_blocks(spec, mainloop))


def scaled_reasons(spec: GemmSpec, mainloop: WgmmaMainloop) -> Iterator[Reason]:
    """Scales, types and tiles that do not go together."""
    for name, block in spec.scales.given:
        field = f"scales.{name}"
        if spec.storage.a not in BYTE_FLOATS:
            yield Reason("scales", field, f"scales with factors of {spec.storage.a}", "factors of e4m3 or e5m2")
        if block.k != BLOCK_K:
            need = f"{BLOCK_K}: tensor cores of sm_90a take no scales, and sums leave them after as many values of k"
            yield Reason("scales", f"{field}.k", str(block.k), need)
        if block.type not in SCALE_TYPES:
            yield Reason("scales", f"{field}.type", block.type, "f32 or ue8m0 for strategy: wgmma")
        if block.layout == "tiles_128x4":
            yield Reason("scales", f"{field}.layout", block.layout, "k_major or mn_major for strategy: wgmma")
    blocks, rest = divmod(mainloop.tile.k, BLOCK_K)
    if spec.scales.given and (rest or blocks > MAX_BLOCKS or promoted_depth(spec, mainloop) != mainloop.tile.k):
        got = f"tile.k: {mainloop.tile.k}, promote_every: {mainloop.promote_every}"
        yield Reason("scales", "mainloop", got, f"tile.k: {BLOCK_K} or {MAX_BLOCKS * BLOCK_K} and promote_every: auto with block scales")
    elif spec.scales.given and blocks > 1 and (mainloop.product_sets != blocks or spec.grouping.gathered or spec.grouping.depth == "steps"):
        got = f"{mainloop.tile.k} with product_sets: {mainloop.product_sets}"
        need = f"{BLOCK_K}, or product_sets: {blocks}, a set for each block of k, and neither gathered rows nor groups along k"
        yield Reason("scales", "mainloop.tile.k", got, need)
    halves = mainloop.instruction_n == mainloop.tile.n // 2 and blocks == 1
    if mainloop.product_sets > 1 and (not spec.scales.given or not (halves or mainloop.instruction_n in (None, mainloop.tile.n))):
        need = "1, or block scales and all of the tile's columns, or half of them, in an instruction"
        yield Reason("product_sets", "mainloop.product_sets", str(mainloop.product_sets), need)


def scaled_product(plan: TensorPlan, arrays: Mapping[str, Array], slices: int, exact: bool) -> tuple[Array, Array]:
    """The product of factors with block scales, and its largest error."""
    a, b = arrays["A"].astype(float), arrays["B"].astype(float)
    blocks = Blocks(BLOCK_K, _lines(plan, "a", arrays, a.shape[-2]), _lines(plan, "b", arrays, b.shape[-1]))
    return product_of_blocks(plan.loop, a, b, blocks, max(slices, plan.grid.cluster_k), plan.joined_parts(a.shape[-1]), exact)


def _lines(plan: TensorPlan, operand: str, arrays: Mapping[str, Array], lines: int) -> Array | None:
    """The scales of an operand as (..., lines, blocks of k); None if it has none."""
    scale = next((scale for scale in plan.scales if scale.operand == operand), None)
    if scale is None:
        return None
    numbers = arrays[scale.name] if operand == "a" else arrays[scale.name].swapaxes(-1, -2)
    return spread(numbers, scale.block, lines) if numbers.shape[-2] != lines else numbers.astype(float)
