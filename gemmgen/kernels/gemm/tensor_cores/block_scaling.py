"""Block scales in instructions, which multiply each product by the scales of its row of A and its column of B (sm_100a, sm_120a).

Source: PTX ISA, "Block Scaling for mma.sync". A scale belongs to 32 or 16 values of k; a lane reads the four scales of a line that are
adjacent in memory as one word, and each instruction takes as many bytes of it as it has blocks along k.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gemmgen.core.errors import Reason
from gemmgen.core.formulas import ceil_div
from gemmgen.kernels.accuracy import SMALLEST, accumulated
from gemmgen.kernels.gemm.scaling import TILE_BLOCKS, TILE_LINES, from_tiles
from gemmgen.kernels.gemm.spec import GemmSpec, MmaSyncMainloop, TensorMemoryMainloop
from gemmgen.kernels.gemm.tensor_cores.reasons import BYTE_FLOATS
from gemmgen.kernels.math.tensor_accuracy import WIDE, magnitude

if TYPE_CHECKING:
    from gemmgen.kernels.gemm.plan import Array, GemmPlan

STEP_BYTES = 32
"""Bytes along k that one instruction multiplies."""
DEEP_STEP_BYTES = 48
"""Bytes along k that one instruction with k = 96 multiplies."""
DEEP = 96
"""Values of k of an instruction on 4-bit floats that only sm_103a has."""
BLOCK_FRACTION_BITS = 35
"""Bits that instructions on 4-bit floats keep below the largest exponent."""
EXACT_VALUES = 16
"""Values of k whose products such instructions add exactly."""
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The numbers of the codes 0 to 7 of a float of 4 bits; bit 3 is the sign."""


@dataclass(frozen=True)
class BlockScaling:
    """Types of an instruction with block scales."""

    type_a: str
    type_b: str
    scale_type: Literal["ue8m0", "ue4m3"]
    block_k: int
    """Values of k that share a scale."""
    deep: bool = False
    """True if an instruction multiplies 96 values of k (sm_103a)."""

    @property
    def packed(self) -> bool:
        """True if a byte holds two floats of 4 bits."""
        return self.type_a == "e2m1"

    @property
    def depth(self) -> int:
        """Values of k of an instruction."""
        return self.step_bytes * (2 if self.packed else 1)

    @property
    def step_bytes(self) -> int:
        """Bytes along k of an instruction."""
        return DEEP_STEP_BYTES if self.deep else STEP_BYTES

    @property
    def vector(self) -> str:
        """The modifier that says how many scales of each line an instruction of ``tcgen05`` takes."""
        return f"block{self.block_k}" if self.deep else f"scale_vec::{self.blocks}X"

    @property
    def blocks(self) -> int:
        """Scales along k that an instruction takes of each line."""
        return self.depth // self.block_k

    @property
    def parts(self) -> int:
        """Instructions along k whose scales are one word."""
        return TILE_BLOCKS // self.blocks

    @property
    def kind(self) -> str:
        """The kind of instruction."""
        return {"e4m3": "mxf8f6f4", "e5m2": "mxf8f6f4"}.get(self.type_a, "mxf4" if self.scale_type == "ue8m0" else "mxf4nvf4")

    @property
    def word_k(self) -> int:
        """Bytes along k whose scales are one word of each line, or a tile of 128 lines."""
        return self.block_k * TILE_BLOCKS // (2 if self.packed else 1)

    @property
    def instruction(self) -> str:
        """The instruction of a warp."""
        types = f"{self.type_a}.{self.type_b}.f32.{self.scale_type}"
        return f"mma.sync.aligned.kind::{self.kind}.block_scale.scale_vec::{self.blocks}X.m16n8k{self.depth}.row.col.f32.{types}"


def block_scaling(spec: GemmSpec, mainloop: MmaSyncMainloop | TensorMemoryMainloop) -> BlockScaling | None:
    """The instruction's scales; None if it has none."""
    block = spec.scales.a
    if block is None:
        return None
    a, b = ("e2m1", "e2m1") if mainloop.multiplied == "e2m1" else (spec.storage.a, spec.storage.b)
    deep = isinstance(mainloop, TensorMemoryMainloop) and mainloop.instruction_k == DEEP
    return BlockScaling(a, b, "ue8m0" if block.type == "ue8m0" else "ue4m3", block.k, deep)


def packed_reasons(spec: GemmSpec) -> Iterator[Reason]:
    """Storage that does not hold two floats a byte, and results that 4-bit floats do not have."""
    if (spec.storage.a, spec.storage.b) != ("u8", "u8"):
        yield Reason("storage", "storage", f"{spec.storage.a} and {spec.storage.b}", "u8 for both with multiplied: e2m1: two floats a byte")
    if spec.storage.c not in ("f32", "f16", "bf16"):
        yield Reason("storage", "storage.c", spec.storage.c, "f32, f16 or bf16 for products of 4-bit floats")
    if spec.transpose != ("nt" if spec.order == "row_major" else "tn"):
        need = "A and B along k, in which a byte has two neighbours: nt where row_major, tn where column_major"
        yield Reason("transpose", "transpose", spec.transpose, need)
    if spec.multiple_of.k % 2:
        yield Reason("multiple_of", "multiple_of.k", str(spec.multiple_of.k), "an even number: two are a byte", "multiple_of: {k: 32}")


def scale_kind_reasons(spec: GemmSpec, packed: bool, strategy: str) -> Iterator[Reason]:
    """Scales and types that instructions do not take; ``packed``: elements are floats of 4 bits."""
    if not spec.scales.given:
        if packed:
            need = "block scales for A and B: instructions on 4-bit floats have them"
            yield Reason("scales", "scales", "none with multiplied: e2m1", need)
        return
    a, b = spec.scales.a, spec.scales.b
    if a is None or b is None or a != b:
        yield Reason("scales", "scales", "different scales of A and B", "scales of one kind for both: an instruction takes them so")
        return
    if not packed and not {spec.storage.a, spec.storage.b} <= set(BYTE_FLOATS):
        yield Reason("scales", "storage", f"{spec.storage.a} and {spec.storage.b}", "e4m3 or e5m2, or u8 with multiplied: e2m1")
    kinds = [(32, "ue8m0"), (16, "e4m3")] if packed else [(32, "ue8m0")]
    if (a.k, a.type) not in kinds:
        need = " or ".join(f"{k} values of k with {name}" for k, name in kinds)
        yield Reason("scales", "scales.a", f"{a.k} values of k with {a.type}", need)
    if a.lines != 1 or a.layout != "tiles_128x4":
        yield Reason("scales", "scales.a", f"lines: {a.lines}, layout: {a.layout}", f"lines: 1, layout: tiles_128x4 for {strategy}")
    if spec.batch != "none":
        yield Reason("scales", "batch", spec.batch, "none with block scales in tiles")


def scaled_product(plan: GemmPlan, scaling: BlockScaling, arrays: Mapping[str, Array], parts: int, exact: bool) -> tuple[Array, Array]:
    """The sum over k of s_A A s_B B, and its largest error, 0 if ``exact`` says that no sum rounds.

    An instruction cuts each term to so many bits below the largest exponent of its terms and the sum so far, and the sum to float32. Of
    8-bit floats a term is a product, and no exponent is larger than that of S, the sum of all magnitudes. Of 4-bit floats it is an exact
    sum of 16 products, which has the exponent of its scales, even if it is smaller: E is the largest product of scales.
    ``parts``: sums of parts of k that are added up in float32.
    """
    import numpy as np

    a, b = _numbers(scaling, arrays["A"]), _numbers(scaling, arrays["B"].T).T
    k = a.shape[-1]
    rows, columns = (_lines(plan, name, scaling, arrays, extent, k) for name, extent in (("a", a.shape[0]), ("b", b.shape[1])))
    scaled_a, scaled_b = a * rows, b * columns.T
    product = scaled_a @ scaled_b
    if exact:
        return product, np.zeros(product.shape)
    steps = ceil_div(k, scaling.depth) + 1
    if scaling.packed:
        size = np.abs(scaled_a) @ np.abs(scaled_b)
        terms = scaling.depth // EXACT_VALUES + 1
        largest = rows.max(axis=1, initial=0)[:, None] * columns.max(axis=1, initial=0)[None, :]
        # The exponent of a subnormal scale is that of the smallest normal one: up to 8 times as much each.
        cut = steps * terms * 2.0**-BLOCK_FRACTION_BITS * (64 * largest + size)
        lost = steps * 2.0**-WIDE.result_bits
    else:
        size = (magnitude(scaling.type_a, a) * rows) @ (magnitude(scaling.type_b, b) * columns.T)
        cut, lost = np.zeros(()), steps * ((scaling.depth + 1) * 2.0**-WIDE.fraction_bits + 2.0**-WIDE.result_bits)
    inside = lost / (1 - lost)
    outside = accumulated(parts) if parts > 1 else 0.0
    return product, (inside + outside * (1 + inside)) * size + (1 + outside) * (1 + inside) * cut + SMALLEST


def _numbers(scaling: BlockScaling, values: Array) -> Array:
    """Numbers of A, lines by k; of packed ones two for each byte."""
    import numpy as np

    if not scaling.packed:
        return values.astype(np.float64)
    codes = values.astype(np.uint8)
    both = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:-1], 2 * codes.shape[-1])
    numbers: Array = np.where(both & 8, -1.0, 1.0) * np.array(E2M1)[both & 7]
    return numbers


def _lines(plan: GemmPlan, operand: str, scaling: BlockScaling, arrays: Mapping[str, Array], lines: int, k: int) -> Array:
    """The scale of each value of k of each line."""
    import numpy as np

    scale = next(scale for scale in plan.scales if scale.operand == operand)
    tiles = arrays[scale.name].astype(np.float64)
    assert tiles.shape[-1] == TILE_LINES * TILE_BLOCKS
    blocks = from_tiles(tiles, lines, ceil_div(k, scaling.block_k))
    return np.repeat(blocks, scaling.block_k, axis=1)[:, :k]
