"""The mainloop of narrow weights in numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, cast

from gemmgen.core.elements import ELEMENTS, DataType
from gemmgen.core.errors import Reason
from gemmgen.hardware.target import Architecture
from gemmgen.kernels.family import SharedRegion
from gemmgen.kernels.gemm.mma_sync.loop import WarpLoop, WarpOperand
from gemmgen.kernels.gemm.packed_weights import BYTES, HALF_TYPES, PANEL, UNIT_BYTES, Neighbours, unit_depth
from gemmgen.kernels.gemm.plan import Outline
from gemmgen.kernels.gemm.spec import GemmSpec, NarrowWeightsMainloop, SplitKParallel
from gemmgen.kernels.gemm.tensor_cores.plan import TensorLoop
from gemmgen.kernels.gemm.tensor_cores.reasons import BYTE_FLOATS
from gemmgen.kernels.gemm.wording import Lines
from gemmgen.kernels.tiles.resources import ResidentBlocks

BLOCK_ROWS = 16
WARP_THREADS = 32
MIN_COPIED_BYTES = 4
"""Bytes of the narrowest asynchronous copy."""
PROMOTED_K = 128
"""Values of k after which sums of 8-bit floats leave the tensor core."""
CODE_BITS = {"e2m1": 4, "e4m3": 8}
"""Bits of weights that are floats."""
SMALL_UNITS = {"f16": 2.0**-9, "bf16": 2.0**-6}
"""Values of the weight 1 in registers, by the type of activations, where codes become small numbers."""
NEGATIVE_UNITS = {"f16": "0x98009800u", "bf16": "0xbc80bc80u"}
NEGATIVE_ZEROS = {("f16", 4): "0xa400a400u", ("bf16", 4): "0xbe00be00u", ("bf16", 8): "0xc000c000u"}
"""Bits of two numbers, -1 and minus the code of zero in these units, the latter by the bits of a code as well."""
MAX_INTEGER_K = 2**20 - 1
"""The largest k of one sum in int32 of products of 8-bit integers and differences of two codes of 4 bits, at most 16."""
STORED = "two neighbours at a time, from sums in shared memory"
"""The way of results whose sums warps and blocks share."""


class WeightLoop(TensorLoop, Protocol):
    """Numbers of any mainloop of narrow weights."""

    @property
    def bits(self) -> int:
        """Bits of a weight."""

    @property
    def group(self) -> int:
        """Values of k that share a scale; 0: all."""

    @property
    def zeros(self) -> bool:
        """True if each group of a column has a zero point."""

    @property
    def scales_weights(self) -> bool:
        """True if weights are scaled and rounded before they are multiplied."""

    @property
    def floats(self) -> bool:
        """True if codes are floats of 4 or 8 bits."""

    @property
    def number_type(self) -> DataType:
        """Type of scales and zero points."""

    @property
    def neighbours(self) -> Neighbours:
        """The order of codes in a word."""

    @property
    def unit_of_codes(self) -> float:
        """Value in registers of the weight 1 without its scale."""

    @property
    def unit_k(self) -> int:
        """Values of k of a load of 16 bytes."""

    @property
    def instruction(self) -> str:
        """The instruction that multiplies."""

    @property
    def numbers_alignment(self) -> int:
        """Elements that rows of scales and zero points are aligned to."""

    @property
    def min_blocks_per_sm(self) -> int:
        """Blocks that must fit on a multiprocessor at once."""

    @property
    def cluster_k(self) -> int:
        """Blocks of a cluster that have a part of k each."""

    @property
    def rows_multiplied(self) -> int:
        """Rows of C that a weight in registers is multiplied for."""

    @property
    def row_bytes(self) -> int:
        """Bytes of A that a block copies for a step."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of packed weights that a block copies for a step."""

    @property
    def readings(self) -> int:
        """Times that a block reads those bytes of A from shared memory."""

    @property
    def costs(self) -> str:
        """The kind of kernel whose fitted costs stand for this one's."""

    @property
    def shown(self) -> MainloopShown:
        """The mainloop in words, and the division of a tile."""


@dataclass(frozen=True)
class MainloopShown:
    """The mainloop in words, and the warps' parts of a tile for pictures."""

    lines: Lines
    worker: str
    """The threads that have a part."""
    parts: tuple[tuple[int, int, int, int], ...]
    """Each part: its first row and column, rows and columns."""
    stored: str | None = None
    """The way of results to memory, unless they come from registers."""


@dataclass(frozen=True, kw_only=True)
class Codes:
    """Codes of weights, their groups along k, and the way in which they become numbers of the activations' type."""

    bits: int
    group: int
    """Values of k that share a scale; 0: all."""
    zeros: bool
    type_a: str
    scales_weights: bool = False
    """True if weights are scaled and rounded before they are multiplied; else sums are scaled."""
    floats: bool = False
    """True if codes are floats: e2m1 of 4 bits, e4m3 of 8 bits."""
    numbers: DataType | None = None
    """Type of scales and zero points; None: the usual one."""

    @property
    def by_bytes(self) -> bool:
        """True beside activations of 8 bits."""
        return self.type_a in BYTES

    @property
    def number_type(self) -> DataType:
        """Type of scales and zero points."""
        return self.numbers or ("f32" if self.by_bytes else cast("DataType", self.type_a))

    @property
    def number_c_type(self) -> str:
        return ELEMENTS[self.number_type].c_type

    @property
    def neighbours(self) -> Neighbours:
        """The order of codes in a word."""
        return "quads" if self.by_bytes else "pairs"

    @property
    def small(self) -> bool:
        """True if codes become small numbers: their bits are those of a number near 0, which is multiplied by a power of two."""
        return self.bits == 8 and self.type_a == "bf16" and not self.floats

    @property
    def unit_of_codes(self) -> float:
        """Value in registers of the weight 1 without its scale: a code's bits may be those of a small number, as of an e4m3."""
        if self.small:
            return SMALL_UNITS[self.type_a]
        return 1.0 if self.type_a not in BYTE_FLOATS else 2.0**-6 if self.floats else 2.0**-9

    @property
    def factor_of_codes(self) -> float:
        """Factor from such a value to the weight."""
        return 1 / self.unit_of_codes

    @property
    def nibbles(self) -> str:
        """Name of the device function that makes numbers of nibbles, without their type."""
        return "small_nibbles" if self.small else "nibbles"

    @property
    def conversion(self) -> str:
        """Name of the device function that makes a register of numbers of codes in a word."""
        if self.by_bytes:
            codes, result = ("nibbles_e2m1" if self.floats else "nibbles"), ("e4m3" if self.type_a in BYTE_FLOATS else self.type_a)
            return f"{codes}_to_{result}"
        if self.floats:
            return f"{'nibble' if self.bits == 4 else 'byte'}_floats_to_{self.type_a}"
        of_bytes = "small_bytes" if self.small else "bytes"
        return f"{self.nibbles if self.bits == 4 else of_bytes}_to_{self.type_a}"

    @property
    def words_have_parts(self) -> bool:
        """True if a word holds codes for two instructions along k."""
        return self.bits == 4 and not self.by_bytes

    @property
    def product_type(self) -> str:
        """Type of the sums that the instruction makes."""
        return "int" if self.type_a == "s8" else "float"

    @property
    def code_of_zero(self) -> int:
        """Code that stands for the number 0 where there are no zero points: the middle of the range."""
        return 1 << (self.bits - 1)

    @property
    def unit_k(self) -> int:
        """Values of k of a load of 16 bytes."""
        return unit_depth(self.bits)

    @property
    def instruction_k(self) -> int:
        return 32 if self.by_bytes else 16

    @property
    def numbers_alignment(self) -> int:
        """Elements that rows of scales and zero points are aligned to."""
        return 1

    @property
    def promote_steps(self) -> int:
        """A step holds whole groups; sums of all of k stay where there is one scale for a column, unless they are of 8-bit floats."""
        return 1 if (self.group and not self.scales_weights) or self.type_a in BYTE_FLOATS else 0

    @property
    def scale_type(self) -> str:
        """The C type of a scale: of two weights at a time, where these are scaled as pairs."""
        return "unsigned" if self.scales_weights else "float"

    def scale_of(self, number: str) -> str:
        """The scale of a number in memory."""
        return f"{number} * 0x10001u" if self.scale_type == "unsigned" else f"{self.type_a}_to_float({number})"

    @property
    def no_zero(self) -> str:
        """The offset where there are no zero points."""
        return NEGATIVE_ZEROS[self.type_a, self.bits] if self.small else self._offset(f"{self.code_of_zero}.0f")

    def offset_of(self, zero: str) -> str:
        """The offset for a zero point as it lies in memory."""
        if self.small:
            return f"multiply_{self.type_a}({zero} * 0x10001u, {NEGATIVE_UNITS[self.type_a]})"
        return self._offset(self.number(zero))

    def number(self, loaded: str) -> str:
        """A scale or zero point as float32."""
        return loaded if self.number_type == "f32" else f"{self.number_type}_to_float({loaded})"

    def _offset(self, zero: str) -> str:
        return f"zero_offset_bytes({zero})" if self.by_bytes else f"zero_offset_{self.type_a}({zero})"


@dataclass(frozen=True, kw_only=True)
class NarrowLoop(Codes, WarpLoop):
    """Numbers of a mainloop that makes B's fragments of packed weights."""

    @property
    def accumulator(self) -> str:
        return "float"

    @property
    def instruction(self) -> str:
        kinds = ("s32", "s8", "s8", "s32") if self.type_a == "s8" else ("f32", self.type_a, self.fragment_b, "f32")
        return f"mma.sync.aligned.m16n8k{self.instruction_k}.row.col.{'.'.join(kinds)}"

    @property
    def fragment_b(self) -> str:
        """Type of weights in registers."""
        return "e4m3" if self.type_a in BYTE_FLOATS else self.type_a

    @property
    def depth(self) -> int:
        """Values of k after which sums are scaled, or leave the tensor core."""
        return self.group or (min(self.tile_k, PROMOTED_K) if self.type_a in BYTE_FLOATS else self.tile_k)

    @property
    def apart(self) -> bool:
        """True if sums of a part of k are added to those of other parts in float32."""
        return bool(self.group) or self.type_a in BYTE_FLOATS

    @property
    def cluster_k(self) -> int:
        return 1

    @property
    def rows_multiplied(self) -> int:
        return self.warp_m

    @property
    def row_bytes(self) -> int:
        return self.a.tile_bytes

    @property
    def readings(self) -> int:
        return self.warps_n

    @property
    def costs(self) -> str:
        return "mma"

    @property
    def shown(self) -> MainloopShown:
        warps = range(self.warps_m * self.warps_n)
        return MainloopShown(
            (
                ("warps", f"{self.warps_m} x {self.warps_n}, {self.warp_m} x {self.warp_n} of C each"),
                ("stages", f"{self.stages}, filled by asynchronous copies while others are multiplied"),
            ),
            "warp",
            tuple((warp // self.warps_n * self.warp_m, warp % self.warps_n * self.warp_n, self.warp_m, self.warp_n) for warp in warps),
        )

    @property
    def weight_bytes(self) -> int:
        return self.tile_n // PANEL * (self.tile_k // self.unit_k) * UNIT_BYTES

    @property
    def groups(self) -> int:
        """Groups of a tile."""
        return self.tile_k // self.depth

    @property
    def sums_and_others(self) -> int:
        return super().sums_and_others + (self.sums if self.apart or self.product_type == "int" else 0) + self.warp_n // 4

    @property
    def shared_bytes(self) -> int:
        return self.stages * (self.a.tile_bytes + self.weight_bytes)


def narrow_loop(outline: Outline, mainloop: NarrowWeightsMainloop) -> NarrowLoop | None:
    """The loop, or None with the errors added to the outline's reasons."""
    spec, architecture, tile = outline.spec, outline.architecture, mainloop.tile
    reasons = [*common_reasons(spec, architecture, mainloop), *_reasons(spec, mainloop)]
    outline.reasons += reasons
    if reasons:
        return None
    warps = tile.threadblock.m // tile.warp.m * (tile.threadblock.n // tile.warp.n)
    element_bytes = ELEMENTS[spec.storage.a].bytes
    vector: int = spec.alignment.a
    while tile.threadblock.k % vector:
        vector //= 2

    def operand(name: str, axis: str, extent: int, own: int) -> WarpOperand:
        return WarpOperand(
            name="A" if name == "A" else "B",
            axis="m" if axis == "m" else "n",
            type=spec.storage.a,
            k_major=True,
            extent=extent,
            tile_k=tile.threadblock.k,
            element_bytes=element_bytes,
            vector=vector,
            is_async=True,
            threads=WARP_THREADS * warps,
            own_extent=own,
        )

    loop = NarrowLoop(
        a=operand("A", "m", tile.threadblock.m, tile.warp.m),
        b=operand("B", "n", tile.threadblock.n, tile.warp.n),
        tile_m=tile.threadblock.m,
        tile_n=tile.threadblock.n,
        tile_k=tile.threadblock.k,
        warp_m=tile.warp.m,
        warp_n=tile.warp.n,
        stages=mainloop.stages,
        type_a=spec.storage.a,
        type_b="e4m3" if spec.storage.a in BYTE_FLOATS else spec.storage.a,
        persistent_blocks=0,
        min_blocks_per_sm=mainloop.min_blocks_per_sm,
        bits=mainloop.bits,
        group=0 if mainloop.group == "column" else mainloop.group,
        zeros=mainloop.zeros,
        floats=mainloop.codes != "integers",
        numbers=mainloop.scale_type,
    )
    resident = ResidentBlocks(architecture, loop.min_blocks_per_sm, loop.threads)
    outline.reasons += resident.too_many_sums(
        loop.sums * (2 if loop.apart or loop.product_type == "int" else 1),
        resident.allocated_registers,
        "mainloop.tile",
        "a smaller warp tile",
    )
    outline.reasons += resident.too_much_per_block(loop.shared_bytes)
    return loop


def common_reasons(spec: GemmSpec, architecture: Architecture, mainloop: NarrowWeightsMainloop) -> Iterator[Reason]:
    """Types and fields that narrow weights do not have."""
    storage = spec.storage
    if not architecture.supports("cp_async"):
        yield Reason("cp_async", "mainloop.strategy", f"narrow_weights on {architecture.name}", "sm_80 or newer")
    if storage.a not in (*HALF_TYPES, *BYTES):
        yield Reason("storage", "storage.a", storage.a, f"{', '.join(HALF_TYPES)}, or {', '.join(BYTES)} beside narrow weights")
    yield from byte_reasons(spec, architecture, mainloop)
    if storage.b != "u8":
        yield Reason("storage", "storage.b", storage.b, "u8: packed weights are bytes, and mainloop.bits says how many bits each has")
    if storage.c not in ("f16", "bf16", "f32"):
        yield Reason("storage", "storage.c", storage.c, "f16, bf16 or f32")
    if spec.transpose.startswith("t") or spec.order != "row_major":
        yield Reason("order", "transpose", f"{spec.transpose}, {spec.order}", "A and C row-major for narrow weights")
    least = MIN_COPIED_BYTES // ELEMENTS[storage.a].bytes
    if spec.alignment.a < least:
        yield Reason(
            "alignment", "alignment.a", str(spec.alignment.a), f"{least} or more: asynchronous copies have {MIN_COPIED_BYTES} bytes"
        )
    if spec.batch != "none":
        yield Reason("batch", "batch", spec.batch, "none for narrow weights")
    if mainloop.method != "warpgroups" and mainloop.persistent_blocks:
        got = str(mainloop.persistent_blocks)
        yield Reason("persistent_blocks", "mainloop.persistent_blocks", got, "0 but for method: warpgroups")
    if spec.amax != "none" or spec.store != "direct":
        yield Reason("store", "store", f"{spec.store}, amax {spec.amax}", "store: direct and amax: none for narrow weights")
    if mainloop.group != "column" and spec.multiple_of.k % mainloop.group:
        need, hint = f"a multiple of {mainloop.group}: groups divide k", f"multiple_of: {{k: {mainloop.group}}}"
        yield Reason("multiple_of", "multiple_of.k", str(spec.multiple_of.k), need, hint)
    if mainloop.scaled == "weights" and (mainloop.method != "warpgroups" or mainloop.group == "column"):
        got = f"weights, by {mainloop.method} with a scale for each {mainloop.group}"
        yield Reason("scaled", "mainloop.scaled", got, "sums but for method: warpgroups with groups of k")


def byte_reasons(spec: GemmSpec, architecture: Architecture, mainloop: NarrowWeightsMainloop) -> Iterator[Reason]:
    """Fields that weights beside activations of 8 bits, or weights of 4-bit floats, do not have."""
    a, codes = spec.storage.a, mainloop.codes
    if codes != "integers":
        if a == "s8" or mainloop.bits != CODE_BITS[codes]:
            need = f"integers, or {CODE_BITS[codes]} bits and activations of floats for {codes}"
            yield Reason("codes", "mainloop.codes", f"{codes} of {mainloop.bits} bits beside {a}", need)
        if mainloop.zeros:
            yield Reason("codes", "mainloop.zeros", f"true with codes: {codes}", "false for floats")
    if a in HALF_TYPES and mainloop.scale_type not in (None, a):
        yield Reason("scale_type", "mainloop.scale_type", str(mainloop.scale_type), f"{a}, the type of activations of 16 bits")
    if a not in BYTES:
        return
    if mainloop.bits != 4:
        yield Reason(
            "bits", "mainloop.bits", str(mainloop.bits), f"4 beside activations of {a}; plain products multiply two factors of 8 bits"
        )
    if mainloop.method != "tiles":
        yield Reason("method", "mainloop.method", mainloop.method, f"tiles beside activations of {a}")
    if a in BYTE_FLOATS and not architecture.supports("fp8_mma"):
        yield Reason("fp8_mma", "storage.a", f"{a} on {architecture.name}", "sm_89 or newer")


def _reasons(spec: GemmSpec, mainloop: NarrowWeightsMainloop) -> Iterator[Reason]:
    """Tiles and fields that the method of tiles does not have."""
    block, warp = mainloop.tile.threadblock, mainloop.tile.warp
    if mainloop.k_warps > 1:
        yield Reason("k_warps", "mainloop.k_warps", str(mainloop.k_warps), "1 but for method: streams")
    if spec.decomposition.scheme != "data_parallel" and not isinstance(spec.decomposition, SplitKParallel):
        yield Reason("decomposition", "decomposition.scheme", spec.decomposition.scheme, "data_parallel or split_k_parallel")
    if block.m % warp.m or block.n % warp.n or warp.m % BLOCK_ROWS or warp.n % PANEL:
        got = f"{warp.m} x {warp.n} of {block.m} x {block.n}"
        need = f"a warp tile of multiples of {BLOCK_ROWS} x {PANEL}, the columns of a panel, that divides the threadblock's"
        yield Reason("warp_tile", "mainloop.tile.warp", got, need)
    if spec.constant:
        yield Reason("constant", "constant", ", ".join(spec.constant), "[] but for method: streams")
    depth = 64 if mainloop.group == "column" else max(64, mainloop.group)
    if block.k % depth or block.k > 256:
        need = f"a multiple of {depth} up to 256: whole groups, and rows of 128 bytes of A"
        yield Reason("tile_k", "mainloop.tile.threadblock.k", str(block.k), need)


def narrow_regions(loop: NarrowLoop) -> tuple[SharedRegion, ...]:
    """Shared memory of a block: the stages' tiles of A, then those of packed weights."""
    a, size = loop.a, loop.stages * loop.a.tile_bytes
    rows = a.tile_bytes // a.pitch
    units = loop.weight_bytes // UNIT_BYTES
    return (
        SharedRegion("tiles_a", a.c_type, (loop.stages, rows, a.pitch // a.element_bytes), 0, size, "tiles of A, [stage][m][k], swizzled"),
        SharedRegion(
            "weights",
            "uint4",
            (loop.stages, units, 32),
            size,
            loop.stages * loop.weight_bytes,
            "packed weights, [stage][panel, unit][lane]",
        ),
    )
