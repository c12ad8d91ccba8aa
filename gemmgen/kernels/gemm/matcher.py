"""Products of matrices as requests: layouts and operations, and how an instance does them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import lcm
from typing import Any, ClassVar, Literal

import pydantic

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import SpecError
from gemmgen.hardware.target import Architecture, Device, occupancy
from gemmgen.kernels.epilogue.operations import AnyOperation, Factor, Operation
from gemmgen.kernels.epilogue.steps import numbered
from gemmgen.kernels.family import KernelSpec
from gemmgen.kernels.gemm.cost_model import registers
from gemmgen.kernels.gemm.gemv.loop import VectorLoop
from gemmgen.kernels.gemm.mma_sync.loop import WarpLoop
from gemmgen.kernels.gemm.plan import GemmPlan
from gemmgen.kernels.gemm.sequence import MOST_SLICES
from gemmgen.kernels.gemm.simt.loop import TiledLoop
from gemmgen.kernels.gemm.spec import (
    Alignment,
    Arithmetic,
    Cluster,
    GemmSpec,
    MmaSyncMainloop,
    Multiples,
    Rasterization,
    Storage,
    TensorCoreMainloop,
    VectorMainloop,
)
from gemmgen.kernels.gemm.split_precision.planes import SCHEMES, PlaneOperand, all_bytes, memory_parts
from gemmgen.kernels.gemm.wgmma.loop import turning_reasons
from gemmgen.kernels.math.warpgroup import SPAN_BYTES, WarpgroupLoop
from gemmgen.kernels.matrix import Matrix
from gemmgen.kernels.problem_words import unknown_word
from gemmgen.kernels.requests import MOST_ALIGNMENT, Fit, Layout, Request, changed_fields, replaced, say_once, widest

TYPES = ("f32", "f16", "bf16")
"""Types of which A, B and C may be any."""
BYTE_TYPES = ("s8", "u8", "e4m3", "e5m2")
"""Types that only tensor cores multiply: A and B are both integers, or both floats."""
FACTOR_TYPES = (*TYPES, *BYTE_TYPES)
RESULT_TYPES = (*TYPES, "s32", "s8", "e4m3", "e5m2")
ACTIVATIONS = {
    "relu": {"op": "relu"},
    "leaky_relu": {"op": "leaky_relu"},
    "gelu": {"op": "gelu"},
    "gelu_tanh": {"op": "gelu", "form": "tanh"},
    "silu": {"op": "silu"},
    "sigmoid": {"op": "sigmoid"},
    "tanh": {"op": "tanh"},
}
"""Activations by name."""
Extent = Literal["none", "m", "n"]
_TURNED: dict[Extent, Extent] = {"none": "none", "m": "n", "n": "m"}
_OTHER = {"row": "column", "column": "row", "all": "all", "memory": "memory"}
SCALES = {"scale_row": "row", "scale_column": "column", "scale": "memory"}
"""Scales as a problem's words name them: one for each row or column, or one for all that lies in memory."""
FACTORS = ("alpha", "beta")
"""Numbers that a problem's words leave to the call; the product is not scaled, and C is not read, without them."""
ALIGNED_ELEMENTS = 4
"""Elements of an access from which on a request counts as aligned."""


FEWEST_STAGES = 2
SHALLOW = 256
"""Values of k up to which `mma.sync` stores unaligned rows of results through shared memory: 3246 x 3246 x 34 takes 23 us on an H200, 28
straight from registers. Beyond, the mainloop rules, which some instances run faster without it: 2500 cubed 141 us, 162 with it."""


Precision = Literal["f32", "ffma", "tf32"]
"""``f32``: multiply-adds, or what has an error bound that is no larger; ``ffma``: multiply-adds; ``tf32``: whatever is fastest, of factors
that are cut to 11 bits."""
PRECISIONS: dict[str, Precision] = {"ffma": "ffma", "tf32": "tf32"}
"""Options that a problem's words may ask for beside the default."""
MOST_COLUMNS = 32
"""Rows or columns up to which a product is one of few."""
MOST_COLUMNS_OF_ROWS = 64
"""The same where a thread has rows of its own."""
MOST_COLUMNS_OF_A_BLOCK = 16
LARGE_BLOCK = 128
"""Threads beyond which a block whose lanes lie along m ..."""
MOST_COLUMNS_OF_LARGE_BLOCKS = 8
"""... has no room for the sums of more columns of float32 than these, in registers and in shared memory."""
MOST_COLUMNS_OF_A_THREAD = 32
"""The same where a thread has rows of its own, whose results it stores in vectors, and B is float32: what it reads of that stays in
registers as it is."""
PLANES = "f16x3"
"""The scheme of planes that callers may keep."""
INVARIANT_ROWS = (1, 64, 512, 4096)
"""Sizes of batches that an instance is chosen for whose rows do not depend on the size of the batch."""
MARGIN_OF_TF32 = 1.1
"""Estimated time of an instance written for tf32, over that of one for smaller types with tiles of tf32, from which on this one is taken:
its times were measured for those types."""
MARGIN_OF_PLANES = 1.1
"""Estimated time of multiply-adds, over that of products by planes, from which on these are taken: where both take about as long, the
simpler kernel, without a workspace, is the better choice."""
SEVERAL_TILES = 64
"""Rows of a tile from which on products split in the mainloop may have several tiles of rows."""
LEAST_DEPTH_OF_PLANES = 128
"""k from which on products by planes are taken, whose bound is never larger than that of multiply-adds: they pay from here on only."""


@dataclass(frozen=True)
class GemmRequest(Request):
    """C = epilogue(alpha A B + beta C). Layouts have two axes, or three, of which the first counts the batch."""

    kind: ClassVar[str] = "gemm"
    a: Layout
    b: Layout
    c: Layout
    scaled: bool = False
    """True if alpha may be other than 1."""
    accumulates: bool = False
    """True if beta may be other than 0."""
    epilogue: tuple[Operation, ...] = ()
    residual: Layout | None = None
    operands: tuple[str, str] = ("a", "b")
    """Names of A and B in the operation."""
    precision: Precision = "f32"
    """Arithmetic of products of float32 factors."""
    scales: tuple[str, ...] = ()
    """Names in the operation of what the epilogue's factors read, in their order."""
    amax: Literal["none", "stored", "unscaled"] = "none"
    """As in a spec."""
    offsets: Layout | None = None
    """Where groups of rows of A and C end, each of which is multiplied by a matrix of its own: B then has a first axis that counts them."""
    planes: Layout | None = None
    """The planes of operand ``b`` in the order of ``PLANES``, where the caller keeps them."""
    invariant: Extent = "none"
    """The extent on which no element may depend: that of a batch, along the rows of C, or along its columns where C is transposed."""

    @property
    def m(self) -> int:
        return self.c.shape[-2]

    @property
    def n(self) -> int:
        return self.c.shape[-1]

    @property
    def k(self) -> int:
        return self.a.shape[-1]

    @property
    def batched(self) -> bool:
        return len(self.c.shape) == 3

    @property
    def groups(self) -> int | None:
        """Groups of rows, if there are any."""
        return None if self.offsets is None else self.offsets.shape[0]

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.m, self.n, self.k

    @property
    def is_empty(self) -> bool:
        return self.c.is_empty

    @property
    def adds(self) -> bool:
        return self.residual is not None

    @cached_property
    def traits(self) -> tuple[str, ...]:
        letters = "".join("n" if is_stored(layout, row_major=True) else "t" for layout in (self.a, self.b))
        types = (self.a.type, self.b.type, self.c.type)
        elements = min(
            max(alignment_elements(ALIGNED_ELEMENTS, layout, order) for order in (True, False) if is_stored(layout, order) or not order)
            for layout in (self.a, self.b, self.c)
        )
        return (
            "" if letters == "nn" else letters,
            "" if types == ("f32",) * 3 else types[0] if len(set(types)) == 1 else "_".join(types),
            "" if elements == ALIGNED_ELEMENTS else "unaligned",
            "" if self.precision == "f32" else self.precision,
            f"batch={self.c.shape[0]}" if self.batched else f"groups={self.groups}" if self.groups is not None else "",
            "planes" if self.planes is not None else "",
        )

    @property
    def companions(self) -> tuple[GemmRequest, ...]:
        """Batches from a single row to many, if a row's result must be the same in all of them."""
        if self.invariant == "none":
            return ()
        if self.invariant == "n":
            return tuple(companion.transposed for companion in self.transposed.companions)
        return tuple(self._with_rows(rows) for rows in INVARIANT_ROWS)

    def _with_rows(self, rows: int) -> GemmRequest:
        """The same with another number of rows, stored without gaps."""

        def layout(old: Layout) -> Layout:
            shape = (*old.shape[:-2], rows, old.shape[-1])
            if is_stored(old, True):
                return Layout.packed(shape, old.type)
            return transposed(Layout.packed((*shape[:-2], shape[-1], rows), old.type))

        residual = None if self.residual is None else layout(self.residual)
        return replace(self, a=layout(self.a), c=layout(self.c), residual=residual)

    @property
    def transposed(self) -> GemmRequest:
        """The same as a product that gives the transpose of C: (A B)ᵀ = Bᵀ Aᵀ."""
        turned = tuple(
            operation.model_copy(update={"per": _OTHER[operation.per]}) if hasattr(operation, "per") else operation
            for operation in self.epilogue
        )
        return replace(
            self,
            a=transposed(self.b),
            b=transposed(self.a),
            c=transposed(self.c),
            epilogue=turned,
            residual=None if self.residual is None else transposed(self.residual),
            operands=self.operands[::-1],
            invariant=_TURNED[self.invariant],
        )


def transposed(layout: Layout) -> Layout:
    """The same memory with its last two axes exchanged."""
    shape, strides = layout.shape, layout.strides
    return Layout((*shape[:-2], shape[-1], shape[-2]), (*strides[:-2], strides[-1], strides[-2]), layout.type, layout.alignment)


def is_stored(layout: Layout, row_major: bool) -> bool:
    """True if the matrix can be read as one stored row-major (or column-major), with a leading dimension."""
    if layout.is_empty:
        return True
    (rows, columns), (row_stride, column_stride) = layout.shape[-2:], layout.strides[-2:]
    if not row_major:
        rows, columns, row_stride, column_stride = columns, rows, column_stride, row_stride
    return (columns == 1 or column_stride == 1) and (rows == 1 or row_stride >= columns)


def alignment_elements(promise: int, layout: Layout, row_major: bool) -> int:
    """Elements, at most ``promise``, that address, leading dimension and batch stride are multiples of."""
    promise = min(promise, MOST_ALIGNMENT // layout.element_bytes)
    if layout.is_empty:
        return promise
    seen = [layout.alignment // layout.element_bytes]
    slow = -2 if row_major else -1
    if layout.shape[slow] > 1:
        seen.append(layout.strides[slow])
    if len(layout.shape) == 3 and layout.shape[0] > 1:
        seen.append(layout.strides[0])
    return widest(promise, tuple(seen))


def result_type(a: str, b: str, plain: bool = True) -> str:
    """The type of a result where the caller leaves it open; ``plain``: the product as it is."""
    if {a, b} <= {"s8", "u8"}:
        return "s32" if plain else "f32"
    if {a, b} <= {"e4m3", "e5m2"}:
        return "bf16"
    return a if a == b else "f32"


def vector_type(result: str) -> str:
    """The type of a bias of many values."""
    return result if result in TYPES else "f32"


def fit(spec: GemmSpec, request: GemmRequest) -> Fit | str:
    """The instance's spec, changed as far as the request needs it; or why it cannot be."""
    if request.invariant != "none" and _divides_by_size(spec):
        return "it divides k in another way for another number of rows"
    if isinstance(spec.mainloop, VectorMainloop):
        return vector_fit(spec, spec.mainloop, request)
    planes = arithmetic_of(spec).f32_by is not None
    if planes and request.precision == "ffma":
        return "it computes float32 by planes, and multiply-adds are asked for"
    if planes and request.invariant != "none":
        return "the way in which it repairs a row depends on the other rows of a tile"
    if planes and request.k < LEAST_DEPTH_OF_PLANES:
        return f"products by planes do not pay below k = {LEAST_DEPTH_OF_PLANES}"
    rows = min(SEVERAL_TILES, request.m, request.n)
    if isinstance(spec.mainloop, TensorCoreMainloop) and spec.mainloop.arithmetic.split == "mainloop" and spec.mainloop.tile.n < rows:
        # 43 x 11008 x 4096 takes 176 us on an H200 by three tiles of 16 rows, where cuBLAS takes 137.
        return "it would read and split the large matrix again for every tile of so few rows"
    if request.amax != "none" and not isinstance(spec.mainloop, TensorCoreMainloop | MmaSyncMainloop):
        return "it does not look for the largest absolute value"
    if request.groups is not None:
        if not isinstance(spec.mainloop, TensorCoreMainloop | MmaSyncMainloop) or planes or spec.order != "row_major":
            return "it has no groups of rows"
        if spec.decomposition.scheme != "data_parallel":
            return "it divides k, and groups of rows are counted on the device"
    # Instances of mma.sync serve all types alike, with tiles of as many elements.
    takes_tf32 = spec.storage.a == spec.storage.b == "tf32" or (isinstance(spec.mainloop, MmaSyncMainloop) and not planes)
    truncated = request.precision == "tf32" and takes_tf32
    row_major = spec.order == "row_major"
    # A kernel for column-major results takes C as its transpose wherever it can: few rows then fill the columns of its tiles.
    turned = isinstance(spec.mainloop, TensorCoreMainloop) and not row_major and is_stored(request.c, True)
    if turned or not is_stored(request.c, row_major):
        request = request.transposed
    if not is_stored(request.c, row_major):
        return "C is stored neither row-major nor column-major"
    if request.residual is not None and not is_stored(request.residual, row_major):
        return "the residual is not stored like the result"
    letters, orders = "", {}
    for name, layout, wanted in (("a", request.a, spec.transpose[0]), ("b", request.b, spec.transpose[1])):
        stored = (wanted == "n") == row_major
        if not is_stored(layout, stored):
            stored, wanted = not stored, "t" if wanted == "n" else "n"
        if not is_stored(layout, stored):
            return f"{name.upper()} is stored neither row-major nor column-major"
        letters += wanted
        orders[name] = stored
    like_c = [request.c] + ([] if request.residual is None else [request.residual])
    # What the copy engine stores is aligned as it wants, whatever the type.
    promised_c = MOST_ALIGNMENT // request.c.element_bytes if spec.store == "tma" else spec.alignment.c
    alignment = {
        "a": alignment_elements(spec.alignment.a, request.a, orders["a"]),
        "b": alignment_elements(spec.alignment.b, request.b, orders["b"]),
        "c": min(alignment_elements(promised_c, layout, row_major) for layout in like_c),
    }
    mainloop = spec.mainloop
    in_vectors = isinstance(mainloop, MmaSyncMainloop) and mainloop.fragment_reads == "vectors"
    if in_vectors and alignment["c"] * request.c.element_bytes < MOST_ALIGNMENT:
        # 3270 x 3270 x 14 takes 50 us on an H200 by such warps, 16 by warps that share a tile; 28 x 28 x 28 in a batch of 3174, 18 and 10.
        return "rows of results that are no multiples of 16 bytes are stored faster by other warps"
    if isinstance(mainloop, TensorCoreMainloop) and _may_copy(spec, mainloop):
        copied = _copied_factors(request, orders, alignment, mainloop)
        alignment |= dict.fromkeys(copied, 1)
        mainloop = mainloop.model_copy(update={"copied": "both" if len(copied) > 1 else copied[0] if copied else "none"})
    # The copy engine stores whole units of 16 bytes; warps store what is aligned or ends otherwise.
    whole_rows = request.n * request.c.element_bytes % MOST_ALIGNMENT == 0
    aligned_bytes = alignment["c"] * request.c.element_bytes
    unaligned = spec.store == "tma" and not (whole_rows and aligned_bytes == MOST_ALIGNMENT)
    shares_tiles = isinstance(mainloop, MmaSyncMainloop) and mainloop.copies != "none"
    shallow = shares_tiles and spec.store == "direct" and request.k <= SHALLOW
    scattered = unaligned or (shallow and aligned_bytes < MOST_ALIGNMENT)
    store = "through_shared" if scattered and not any(turning_reasons(spec)) else "direct" if unaligned else spec.store
    if shallow and isinstance(mainloop, MmaSyncMainloop):
        # Stages that k does not fill take shared memory from the L1: 4097 x 4097 x 31 takes 34 us by four on an H100, 26 by two.
        filled = -(-request.k // mainloop.tile.threadblock.k)
        mainloop = mainloop.model_copy(update={"stages": max(FEWEST_STAGES, min(mainloop.stages, filled))})
    extents = {"m": request.m, "n": request.n, "k": request.k}
    promised = {name: getattr(spec.multiple_of, name) for name in extents}
    if spec.store == "tma" and not unaligned:
        promised["n"] = lcm(promised["n"], MOST_ALIGNMENT // request.c.element_bytes)
    multiples = {name: promised[name] if extent % promised[name] == 0 else 1 for name, extent in extents.items()}
    changes = {
        "transpose": letters,
        "alpha": "argument" if request.scaled else spec.alpha,
        "beta": "argument" if request.accumulates else spec.beta,
        "storage": Storage.model_validate(
            {
                "a": "tf32" if truncated and request.a.type == "f32" else request.a.type,
                "b": "tf32" if truncated and request.b.type == "f32" else request.b.type,
                "c": request.c.type,
            }
        ),
        "batch": "strided" if request.batched else "grouped" if request.groups is not None else "none",
        "alignment": Alignment.model_validate(alignment),
        "multiple_of": Multiples(**multiples),
        "epilogue": request.epilogue,
        "store": store,
        "amax": request.amax,
        "mainloop": mainloop,
    }
    if request.groups is not None:
        # A group's tiles with the same columns come one after the other, while its B is in the L2; they end at different times.
        changes["rasterization"] = Rasterization(along="major")
        if isinstance(mainloop, TensorCoreMainloop) and mainloop.persistent_blocks:
            changes["mainloop"] = mainloop.model_copy(update={"tiles": "dynamic", "cluster": Cluster()})
    takes_planes = isinstance(mainloop, TensorCoreMainloop | MmaSyncMainloop) and mainloop.arithmetic.f32_by == PLANES
    if takes_planes and not request.batched and request.planes is not None:
        assert isinstance(mainloop, TensorCoreMainloop | MmaSyncMainloop)
        changes["mainloop"] = with_kept_planes(mainloop, "b" if request.operands[1] == "b" else "a")
    return _fitted(spec, request, changes)


def vector_fit(spec: GemmSpec, mainloop: VectorMainloop, request: GemmRequest) -> Fit | str:
    """The fit of a kernel for few columns, which takes few rows as the columns of the transpose."""
    most = MOST_COLUMNS_OF_ROWS if mainloop.lanes == 1 else MOST_COLUMNS
    if min(request.m, request.n) > most:
        return f"it is for products of at most {most} rows or columns"
    if request.amax != "none" or request.groups is not None:
        return "it has no groups of rows, and does not look for the largest absolute value"
    types = {layout.type for layout in (request.a, request.b, request.c)}
    if types - set(TYPES) or (request.a.type != request.b.type and "f32" not in (request.a.type, request.b.type)):
        return "it multiplies float32, float16 or bfloat16"
    if request.m < request.n:
        request = request.transposed
    row_major = is_stored(request.c, True)
    like_c = [request.c] + ([] if request.residual is None else [request.residual])
    if not all(is_stored(layout, row_major) for layout in like_c):
        return "C, or what is added to it, is stored neither row-major nor column-major"
    along_k = mainloop.along == "k"
    by_rows = is_stored(request.a, True) if along_k else not is_stored(request.a, False)
    if not by_rows and not is_stored(request.a, False):
        return "A is stored neither row-major nor column-major"
    if along_k and not by_rows and mainloop.lanes > 1 and request.m > MOST_COLUMNS_OF_A_BLOCK:
        return "its lanes lie along k, and would read A with gaps"
    if not along_k and by_rows:
        return "its lanes lie along m, and would read A with gaps"
    b_by_rows = not is_stored(request.b, False)
    if b_by_rows and not is_stored(request.b, True):
        return "B is stored neither row-major nor column-major"
    wide = mainloop.lanes == 1 and request.b.element_bytes == ELEMENTS["f32"].bytes
    most = MOST_COLUMNS_OF_A_THREAD if wide else MOST_COLUMNS_OF_A_BLOCK
    columns = max(1, -(-request.n // -(-request.n // most))) if request.n else 1
    rows: int = mainloop.rows
    while rows > 1 and rows // 2 >= request.m:
        rows //= 2
    alignment = {
        "a": alignment_elements(MOST_ALIGNMENT // request.a.element_bytes, request.a, by_rows),
        "b": alignment_elements(MOST_ALIGNMENT // request.b.element_bytes, request.b, b_by_rows),
        "c": min(alignment_elements(spec.alignment.c, layout, row_major) for layout in like_c),
    }
    held = rows if along_k else alignment["a"]
    if not along_k and columns == 1 < mainloop.columns:
        return "it is for several columns"
    many = columns > MOST_COLUMNS_OF_LARGE_BLOCKS and request.a.element_bytes == ELEMENTS["f32"].bytes
    if not along_k and many and mainloop.threads > LARGE_BLOCK:
        # 11144 x 12 x 3968 with A by columns takes 69 us on an H200 by 256 threads with two rows each, 53 by 128 with four.
        return "smaller blocks have more room for the sums of so many columns"
    lanes: int = mainloop.lanes
    if mainloop.vectors == "shifted":
        if alignment["a"] * request.a.element_bytes == MOST_ALIGNMENT:
            return "it is for rows that are not aligned"
        # 1 x 3435 x 4934 takes 31 to 33 us on an H100 by shifted vectors, 30 to 31 by narrow ones.
        if columns == 1 and request.a.element_bytes == ELEMENTS["f32"].bytes:
            return "one column of float32 is read faster by narrow vectors"
        # As many teams as a vector has elements.
        lanes = min(lanes, mainloop.threads * request.a.element_bytes // MOST_ALIGNMENT)
    elif not along_k:  # narrow reads of more lanes are as long a piece of a row
        lanes = min(lanes * MOST_ALIGNMENT // (alignment["a"] * request.a.element_bytes), mainloop.threads // 2)
    changes = {
        "order": "row_major" if row_major else "column_major",
        "transpose": ("n" if by_rows == row_major else "t") + ("n" if b_by_rows == row_major else "t"),
        "alpha": "argument" if request.scaled else spec.alpha,
        "beta": "argument" if request.accumulates else spec.beta,
        "storage": Storage.model_validate({"a": request.a.type, "b": request.b.type, "c": request.c.type}),
        "batch": "strided" if request.batched else "none",
        "alignment": Alignment.model_validate(alignment),
        "multiple_of": Multiples(m=held if not by_rows and request.m % held == 0 else 1, n=columns if request.n % columns == 0 else 1),
        "epilogue": request.epilogue,
        "mainloop": mainloop.model_copy(update={"rows": rows, "columns": columns, "lanes": lanes}),
    }
    return _fitted(spec, request, changes)


def adapted(spec: GemmSpec, architecture: Architecture) -> GemmSpec:
    """The spec with what the architecture has and what changes no result: kernels that leave numbers to the launch come early."""
    free = isinstance(spec.mainloop, VectorMainloop) or getattr(spec.decomposition, "slices", 1) == "launch"
    if not free or isinstance(spec.mainloop, TensorCoreMainloop) or spec.early_launch or not architecture.supports("programmatic_launch"):
        return spec
    return replaced(spec, {"early_launch": True, "architecture": "sm_90"})


def settings(plan: GemmPlan, problem: Mapping[str, int], device: Device) -> list[dict[str, int]]:
    """Values for what a launch may choose: numbers of slices of k that fill the device once, or a few times over."""
    loop = plan.loop
    if "slices" not in problem or not isinstance(loop, TiledLoop | VectorLoop | WarpLoop | WarpgroupLoop):
        return [{}]
    tiles = math.prod(plan.sequence.launches[plan.main_launch].grid_of({**problem, "slices": 1}))
    step = loop.step if isinstance(loop, VectorLoop) else loop.tile_k * getattr(loop, "k_groups", 1)
    most = max(1, min(MOST_SLICES, problem["k"] // step))
    fitting = max(1, occupancy(device.architecture, plan.threads, registers(plan, loop), plan.shared_bytes).blocks_per_sm)
    wanted = {1}
    for blocks in {1, 2, max(1, fitting // 2), fitting, 2 * fitting}:
        exact = device.sm_count * blocks / max(1, tiles)
        wanted |= {int(exact), math.ceil(exact)}
    return [{"slices": slices} for slices in sorted({min(most, max(1, slices)) for slices in wanted})]


def _fitted(spec: GemmSpec, request: GemmRequest, changes: Mapping[str, Any]) -> Fit:
    """The instance's spec with ``changes``, and the operands and numbers that its arguments are."""
    changed = replaced(spec, changes)
    arrays = {"A": (request.operands[0], request.a), "B": (request.operands[1], request.b), "C": ("out", request.c)}
    kept = arithmetic_of(changed).kept
    if request.planes is not None and kept != "none":
        arrays[f"planes_{kept}"] = ("planes", request.planes)
    scalars = {"alpha": "alpha", "beta": "beta"}
    factors = [operation for operation in request.epilogue if isinstance(operation, Factor)]
    for index, (factor, scale) in enumerate(zip(factors, request.scales, strict=True)):
        arrays[numbered("factor", index)] = (scale, _vector(request, factor.per, "f32"))
    if request.amax != "none":
        arrays["amax"] = ("amax", Layout.packed((1,), "f32", ELEMENTS["f32"].bytes))
    if request.offsets is not None:
        arrays["offsets"] = ("offsets", request.offsets)
    for operation in request.epilogue:
        if operation.op == "residual" and request.residual is not None:
            arrays["Z"] = ("residual", request.residual)
            scalars["gamma"] = "gamma"
        elif operation.op == "bias":
            per = operation.model_dump()["per"]
            if per == "all":
                scalars["bias"] = "bias"
            else:
                arrays["bias"] = ("bias", _vector(request, per, vector_type(request.c.type)))
    margin = MARGIN_OF_PLANES if arithmetic_of(changed).f32_by is not None else 1.0
    margin *= MARGIN_OF_TF32 if changed.storage.a == "tf32" != spec.storage.a else 1.0
    return Fit(changed, arrays, scalars, derived=changed_fields(spec, changed), margin=margin)


def _vector(request: GemmRequest, per: str, kind: str) -> Layout:
    """Values for each row or column, of each group if there are groups, or the only one."""
    shape: tuple[int, ...] = ({"row": request.m, "column": request.n}.get(per, 1),)
    if per == "column" and request.groups is not None:
        shape = (request.groups, *shape)
    return Layout.packed(shape, kind, ELEMENTS[kind].bytes)


def arithmetic_of(spec: KernelSpec) -> Arithmetic:
    """Composition of an instance's products."""
    assert isinstance(spec, GemmSpec)
    arithmetic: Arithmetic = getattr(spec.mainloop, "arithmetic", Arithmetic())
    return arithmetic


def with_kept_planes(mainloop: TensorCoreMainloop | MmaSyncMainloop, operand: Literal["a", "b"]) -> TensorCoreMainloop | MmaSyncMainloop:
    """The mainloop for an operand that comes with its planes."""
    return mainloop.model_copy(update={"arithmetic": mainloop.arithmetic.model_copy(update={"kept": operand})})


def planes_layout(b: Layout) -> Layout:
    """The array that keeps the planes of a matrix B, (k, n)."""
    row_major = is_stored(b, True)
    operand = PlaneOperand("B", Matrix("B", "k", "n", "ldb", row_major, 1), not row_major, 1, SCHEMES[PLANES], kept=True)
    return Layout.packed((all_bytes(memory_parts((operand,))).evaluate({"k": b.shape[0], "n": b.shape[1]}),), "u8")


def keeping_spec(spec: GemmSpec, b: Layout) -> GemmSpec:
    """An instance like ``spec`` whose kernels make the planes of a matrix B."""
    assert isinstance(spec.mainloop, TensorCoreMainloop | MmaSyncMainloop)
    row_major = is_stored(b, True)
    alignment = spec.alignment.model_copy(update={"b": alignment_elements(spec.alignment.b, b, row_major)})
    changes = {"transpose": "nn" if row_major else "nt", "alignment": alignment, "mainloop": with_kept_planes(spec.mainloop, "b")}
    return spec.model_copy(update=changes)


def _divides_by_size(spec: GemmSpec) -> bool:
    """True if the division of k depends on the sizes of a problem."""
    slices = getattr(spec.decomposition, "slices", 1)
    return isinstance(spec.mainloop, VectorMainloop) or spec.decomposition.scheme == "stream_k" or slices == "launch"


def _may_copy(spec: GemmSpec, mainloop: TensorCoreMainloop) -> bool:
    """True if the instance can copy factors first that it could not read as they lie."""
    if mainloop.arithmetic.f32_by is not None:
        return False
    return spec.batch != "grouped" and spec.decomposition.scheme != "split_k_parallel"


def _copied_factors(
    request: GemmRequest, row_major: Mapping[str, bool], alignment: Mapping[str, int], mainloop: TensorCoreMainloop
) -> list[str]:
    """The factors that neither the copy engine nor matrix instructions can read as they lie, of which the second kind is copied only where
    one tile holds it or no tile could."""
    found = []
    tile, cluster = mainloop.tile, mainloop.cluster
    sides = (
        ("a", request.a, row_major["a"], request.m, tile.m, cluster.n),
        ("b", request.b, not row_major["b"], request.n, tile.n, cluster.m),
    )
    for name, layout, along_k, extent, held, sharers in sides:
        unaligned = alignment[name] * layout.element_bytes < MOST_ALIGNMENT
        # Boxes of what is stored across k are as wide as a row of shared memory: 8 x 10072 x 1888, its few rows stored so.
        narrow = extent <= held and held * layout.element_bytes % (SPAN_BYTES * sharers) != 0
        if unaligned or (not along_k and (layout.element_bytes != 2 or narrow)):
            found.append(name)
    return found


def parse_request(sizes: Sequence[int], options: Sequence[str]) -> GemmRequest:
    """A request from m, n, k and words: ``nt``, ``f16``, ``unaligned``, ``batch=8`` or ``groups=8``, and of the epilogue ``bias``,
    ``residual``, scales and activations, in their order. Raises ``SpecError``."""
    m, n, k = sizes
    epilogue: list[Operation] = []
    letters, types, aligned, batch, groups = "nn", ["f32", "f32", "f32"], True, None, None
    precision: Precision = "f32"
    keeps = False
    said: dict[str, str] = {}
    for option in options:
        if option in ("nn", "nt", "tn", "tt"):
            say_once(said, "transposition", option)
            letters = option
        elif _are_types(parts := option.split("_")):
            say_once(said, "storage", option)
            types = parts if len(parts) == 3 else [option, option]
        elif option in ACTIVATIONS or option in ("bias", "residual"):
            fields = {"op": "bias", "per": "column"} if option == "bias" else ACTIVATIONS.get(option, {"op": option})
            epilogue.append(operation(fields))
        elif option in SCALES:
            epilogue.append(operation({"op": "factor", "per": SCALES[option]}))
        elif option in PRECISIONS:
            say_once(said, "precision", option)
            precision = PRECISIONS[option]
        elif option in FACTORS:
            say_once(said, option, option)
        elif option == "planes":
            keeps = True
        elif option in ("aligned", "unaligned"):
            say_once(said, "alignment", option)
            aligned = option == "aligned"
        elif option.startswith("batch=") and option[6:].isdecimal() and 0 < int(option[6:]) < 65536:
            say_once(said, "batch", option)
            batch = int(option[6:])
        elif option.startswith("groups=") and option[7:].isdecimal() and 0 < int(option[7:]) < 65536:
            say_once(said, "batch", option)
            groups = int(option[7:])
        else:
            need = f"nn, nt, tn, tt, {', '.join(FACTOR_TYPES)}, f16_f16_f32 (types of A, B and C), aligned, unaligned, batch=N, groups=N, "
            need += f"planes (of B are kept), alpha, beta, bias, residual, {', '.join((*SCALES, *ACTIVATIONS))}, {' or '.join(PRECISIONS)}"
            raise unknown_word("a GEMM problem", option, re.findall(r"\w+", need), need)

    def layout(rows: int, columns: int, letter: str, type: str, batch: int | None = batch) -> Layout:
        if letter == "t":
            return transposed(layout(columns, rows, "n", type, batch))
        plain = Layout.packed((rows, columns) if batch is None else (batch, rows, columns), type)
        return plain if aligned else Layout(plain.shape, plain.strides, type, plain.element_bytes)

    if len(types) == 2:
        types.append(result_type(types[0], types[1], plain=not epilogue))
    c = layout(m, n, "n", types[2])
    residual = c if any(step.op == "residual" for step in epilogue) else None
    a, b = layout(m, k, letters[0], types[0]), layout(k, n, letters[1], types[1], batch or groups)
    if keeps and (b.type != "f32" or len(b.shape) > 2):
        raise SpecError("a GEMM problem's option planes is for float32 without a batch")
    return GemmRequest(
        a,
        b,
        c,
        scaled="alpha" in said,
        accumulates="beta" in said,
        epilogue=tuple(epilogue),
        residual=residual,
        precision=precision,
        scales=tuple(step.op for step in epilogue if isinstance(step, Factor)),
        offsets=None if groups is None else Layout.packed((groups,), "s32"),
        planes=planes_layout(b) if keeps else None,
    )


def _are_types(words: Sequence[str]) -> bool:
    """True of the type of both factors, or of those of A, B and C."""
    return len(words) in (1, 3) and all(word in FACTOR_TYPES for word in words[:2]) and all(word in RESULT_TYPES for word in words[2:])


@cache
def _adapter() -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(AnyOperation)


def operation(fields: Mapping[str, Any]) -> Operation:
    """An operation of the epilogue from its fields. Raises ``pydantic.ValidationError``."""
    made: Operation = _adapter().validate_python(fields)
    return made


SQUARES = (128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
SKINNY = (1, 4, 16, 32, 64, 128, 256)
"""Rows of a product whose other extents are those of a layer of a network: batches, from inference to training."""
LAYERS = ((1024, 1024), (4096, 1024), (1024, 4096), (4096, 4096), (11008, 4096), (4096, 11008), (50257, 768))
"""(n, k) of such layers."""
DEEP = ((64, 64, 65536), (128, 128, 16384), (128, 128, 65536), (256, 256, 8192), (512, 512, 4096), (512, 512, 16384), (1024, 1024, 8192))
FLAT = ((4096, 4096, 16), (4096, 4096, 64), (4096, 4096, 256), (8192, 8192, 64), (2048, 2048, 128), (16384, 1024, 64))
TALL = ((8192, 128, 1024), (16384, 64, 512), (4096, 64, 4096), (65536, 64, 64), (50257, 1024, 768), (32768, 128, 128), (16384, 512, 256))
RECTANGLES = (
    (512, 2048, 1024),
    (1024, 4096, 512),
    (2048, 512, 2048),
    (768, 3072, 768),
    (3072, 768, 768),
    (1536, 384, 1536),
    (2048, 8192, 1024),
)
UNALIGNED = (
    (127, 127, 127),
    (255, 257, 129),
    (513, 511, 515),
    (1000, 1000, 1000),
    (1023, 1023, 1023),
    (2047, 2047, 2047),
    (4095, 4095, 4095),
    (17, 4095, 4095),
    (4095, 63, 4095),
    (50257, 1023, 767),
    (777, 3001, 333),
)
LAYOUTS = (
    (256, 256, 256),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (16, 4096, 4096),
    (128, 4096, 1024),
    (128, 128, 16384),
)
BATCHES = (
    (64, 64, 64, 256),
    (128, 128, 64, 96),
    (128, 64, 128, 96),
    (256, 256, 64, 64),
    (512, 512, 64, 48),
    (512, 64, 512, 48),
    (1024, 1024, 128, 16),
)
TENSOR_LAYERS = ((4096, 4096), (11008, 4096), (4096, 11008), (6144, 4096))
"""(n, k) of layers for tensor cores."""
TENSOR_ROWS = (1, 16, 64, 128, 512, 2048, 8192)
TENSOR_CUBES = (256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
TENSOR_SHAPES = ((8192, 8192, 64), (4096, 4096, 256), (128, 128, 65536), (50257, 1024, 768))
HALVES = ((256, 256, 256), (1024, 1024, 1024), (4096, 4096, 4096), (16, 4096, 4096), (4096, 4096, 64))


def problem_grid(fine: bool) -> list[str]:
    """Squares, layers with few and many rows, deep, flat and tall products, edges, layouts, batches and halves."""
    found = [_text(size, size, size) for size in SQUARES]
    found += [_text(m, n, k) for n, k in LAYERS for m in SKINNY if fine or m in (1, 16, 64, 128)]
    found += [_text(*size) for size in (*DEEP, *FLAT, *TALL, *RECTANGLES)]
    found += [_text(*size, "unaligned") for size in UNALIGNED]
    found += [_text(*size, letters) for letters in ("nt", "tn", "tt") for size in (LAYOUTS if fine else LAYOUTS[1::2])]
    found += [_text(*size[:3], f"batch={size[3]}") for size in BATCHES]
    found += [_text(*size, kind) for kind in ("f16", "bf16") for size in HALVES]
    cubes, rows = (TENSOR_CUBES, TENSOR_ROWS) if fine else (TENSOR_CUBES[3::4], TENSOR_ROWS[1::2])
    tensor = [(size, size, size) for size in cubes] + [(m, n, k) for n, k in TENSOR_LAYERS for m in rows] + list(TENSOR_SHAPES)
    found += [_text(*size, "nt", kind) for kind in ("bf16", "s8", "e4m3") for size in tensor]
    if fine:
        found += [_text(size, size, size, "nt") for size in SQUARES]
        found += [_text(size - 1, size - 1, size - 1, "unaligned") for size in SQUARES]
        found += [_text(m, n, k) for m in (192, 320, 640, 896, 1280) for n in (512, 1280, 2560) for k in (640, 2048)]
    return list(dict.fromkeys(found))


def _text(*parts: int | str) -> str:
    return ",".join(map(str, parts))


def operand_orders(plan: GemmPlan) -> Mapping[str, str]:
    """None: matrices are read as they lie."""
    return {}
