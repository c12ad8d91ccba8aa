"""Reasons against a GEMM on tensor cores, for all instructions."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import Reason
from gemmgen.kernels.epilogue.operations import Factor
from gemmgen.kernels.gemm.spec import GemmSpec, SplitKParallel

BYTE_FLOATS = ("e4m3", "e5m2")
BYTE_INTEGERS = ("s8", "u8")
COPY_ALIGNMENT = 16
"""Bytes that TMA wants addresses and strides to be multiples of."""


def computes_f32(spec: GemmSpec) -> bool:
    """True if products of float32 are made of those of smaller types."""
    arithmetic = getattr(spec.mainloop, "arithmetic", None)
    return arithmetic is not None and arithmetic.f32_by is not None


def type_reasons(spec: GemmSpec) -> Iterator[Reason]:
    """Types that tensor cores do not multiply, or results that they do not have."""
    a, b, c = spec.storage.a, spec.storage.b, spec.storage.c
    mixed = {a, b} <= set(BYTE_FLOATS) or {a, b} <= set(BYTE_INTEGERS)
    if a == "f32" or b == "f32":
        hint = "tf32: float32 in memory, of which tensor cores read the upper 19 bits"
        yield Reason("storage", "storage", f"{a} and {b}", "f16, bf16, tf32, s8, u8, e4m3 or e5m2 for tensor cores", hint)
    elif a != b and not mixed:
        yield Reason("storage", "storage", f"{a} and {b}", "the same type for A and B, or both 8-bit integers, or both 8-bit floats")
    integer = a in BYTE_INTEGERS
    if c == "s32" and not integer:
        yield Reason("storage", "storage.c", f"s32 for factors of {a}", "a floating-point type, s8 or u8")
    plain = spec.alpha == "one" and spec.beta == "zero" and not spec.epilogue
    if c == "s32" and integer and not plain:
        need, hint = "alpha: one, beta: zero and no epilogue for a C of s32", "int32 sums are stored as they are; f32, f16, bf16, s8 or u8"
        yield Reason("storage", "storage.c", "s32", need, hint)
    operands = [operand for operation in spec.epilogue for operand in operation.operands()]
    reads = spec.beta == "argument" or any(operand.like_output and operand.stored is None for operand in operands)
    if c in (*BYTE_INTEGERS, *BYTE_FLOATS) and reads:
        need = "f32, f16 or bf16 where C, or a matrix of its type such as a residual, is read"
        yield Reason("storage", "storage.c", c, need, "beta: zero, no residual and no multiply")


def turning_reasons(spec: GemmSpec) -> Iterator[Reason]:
    """Reasons against warps that transpose their results in shared memory."""
    if spec.order != "row_major":
        need = "row_major for store: through_shared"
        yield Reason("order", "order", spec.order, need, "store: direct, where lanes with neighbouring rows store side by side")
    if isinstance(spec.decomposition, SplitKParallel):
        yield Reason("store", "store", "through_shared with split_k_parallel", "direct: sums go to a workspace, a second kernel writes C")
    if computes_f32(spec):
        yield Reason("store", "store", "through_shared with float32 by planes", "direct: neighbours of float32 fill sectors of the memory")


def result_reasons(spec: GemmSpec, in_boxes: bool) -> Iterator[Reason]:
    """Reasons against a largest absolute value, and against groups of rows; ``in_boxes``: TMA brings the tiles."""
    decomposition, planes = spec.decomposition, computes_f32(spec)
    if planes and any(output.reduce for operation in spec.epilogue for output in operation.extra_outputs.values()):
        yield Reason("reduce", "epilogue", "a reduction with float32 by planes", "results that one kernel finishes")
    if spec.amax != "none":
        if isinstance(decomposition, SplitKParallel) or planes:
            got = decomposition.scheme if isinstance(decomposition, SplitKParallel) else "float32 by planes"
            yield Reason("amax", "amax", f"{spec.amax} with {got}", "results that one kernel finishes")
        if spec.storage.c == "s32":
            yield Reason("amax", "amax", f"{spec.amax} of s32", "none, or a C of another type: its results are computed in float32")
        last = spec.epilogue[-1] if spec.epilogue else None
        if spec.amax == "unscaled" and not (isinstance(last, Factor) and last.per in ("all", "memory")):
            need = "an epilogue that ends with a factor, per all or memory"
            yield Reason("amax", "amax", "unscaled", need, "stored")
    yield from grouping_reasons(spec)
    if spec.batch == "grouped":
        if decomposition.scheme != "data_parallel":
            need = "data_parallel for groups, whose tiles are counted on the device"
            yield Reason("decomposition", "decomposition.scheme", decomposition.scheme, need)
        if in_boxes and spec.transpose.startswith("t"):
            need = "nn or nt: a group begins at any row of A, and boxes of tensor maps at multiples of 16 bytes"
            yield Reason("transpose", "transpose", spec.transpose, need, "strategy: mma_sync takes A along m, too")
        if spec.order != "row_major":
            yield Reason("order", "order", spec.order, "row_major for groups, which are rows of C")


def box_store_reasons(spec: GemmSpec) -> Iterator[Reason]:
    """Alignments and extents of results that TMA does not store."""
    size = ELEMENTS[spec.storage.c].bytes
    if spec.alignment.c * size != COPY_ALIGNMENT:
        need = f"{COPY_ALIGNMENT // size} for store: tma: TMA requires multiples of {COPY_ALIGNMENT} bytes"
        yield Reason("alignment", "alignment.c", str(spec.alignment.c), need)
    unit, (axis, line) = COPY_ALIGNMENT // size, ("m", "column") if spec.order == "column_major" else ("n", "row")
    if (multiple := getattr(spec.multiple_of, axis)) % unit:
        beyond = f"TMA writes units of {COPY_ALIGNMENT} bytes, also beyond a {line}'s end"
        need = f"a multiple of {unit} for store: tma: {beyond}"
        yield Reason("multiple_of", f"multiple_of.{axis}", str(multiple), need, f"multiple_of: {{{axis}: {unit}}}, or store: direct")


def grouping_reasons(spec: GemmSpec) -> Iterator[Reason]:
    """Reasons against rows of groups that are any rows of A or C."""
    grouping = spec.grouping
    if grouping.gathered and (spec.transpose.startswith("t") or any(name == "a" for name, _ in spec.scales.given)):
        got = f"transpose {spec.transpose}, scales of {', '.join(name for name, _ in spec.scales.given) or 'none'}"
        yield Reason("gather", "grouping.gathered", got, "A row-major and without block scales for gathered rows")
    if grouping.scattered:
        if spec.beta != "zero" or any(operand.like_output for operation in spec.epilogue for operand in operation.operands()):
            need = "beta: zero, and no operand of C's shape in the epilogue"
            yield Reason("scatter", "grouping.scattered", "rows of C that are read", need)
        if any(operation.extra_outputs for operation in spec.epilogue):
            yield Reason("scatter", "grouping.scattered", "further outputs", "results alone for scattered rows")
        if spec.store == "through_shared" or spec.alignment.c < 2:
            got = f"store: {spec.store}, alignment.c: {spec.alignment.c}"
            need = "store: tma or direct, and alignment.c of 2 or more: rows are stored in pairs or vectors"
            yield Reason("scatter", "grouping.scattered", got, need)
