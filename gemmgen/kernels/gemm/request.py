"""Products of matrices as requests: layouts, types and epilogues, free of instances."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

from gemmgen.core.formulas import ceil_div
from gemmgen.kernels.epilogue.operations import Axis, Operation
from gemmgen.kernels.gemm.grouping import Grouping
from gemmgen.kernels.gemm.packed_weights import Weights
from gemmgen.kernels.gemm.scaling import BlockScale
from gemmgen.kernels.gemm.triangles import Triangles
from gemmgen.kernels.requests import MAX_ALIGNMENT, Layout, Request, widest

TYPES = ("f32", "f16", "bf16")
"""Types of which A, B and C may be any."""
BYTE_TYPES = ("s8", "u8", "e4m3", "e5m2")
"""Types that only tensor cores multiply: A and B are both integers, or both floats."""
DOUBLE = "f64"
"""Type of A, B and C alike."""
FACTOR_TYPES = (*TYPES, *BYTE_TYPES, DOUBLE)
RESULT_TYPES = (*TYPES, DOUBLE, "s32", "s8", "u8", "e4m3", "e5m2")
Extent = Literal["none", "m", "n"]
_SWAPPED: dict[Extent, Extent] = {"none": "none", "m": "n", "n": "m"}
GATED_WORD = "swiglu"
"""A problem's word for two products, in the text of requests, whatever is made of both."""
ALIGNED_ELEMENTS = 4
"""Elements of an access from which on a request counts as aligned."""
Precision = Literal["f32", "ffma", "tf32"]
"""``f32``: multiply-adds, or a method whose error bound is no larger; ``ffma``: multiply-adds; ``tf32``: the fastest method, with factors
truncated to 11 bits."""
PRECISIONS: dict[str, Precision] = {"ffma": "ffma", "tf32": "tf32"}
"""Options that a problem's words may ask for beside the default."""
CONSTANT = "constant"
"""Word of a problem for a B that no work before the launch may still be writing."""
INVARIANT_ROWS = (1, 64, 512, 4096)
"""Sizes of batches that an instance is chosen for whose rows do not depend on the size of the batch."""


@dataclass(frozen=True)
class NamedOperand:
    """An operand or a further output of a formula in the epilogue."""

    name: str
    per: Axis
    layout: Layout | None
    """None: a number."""
    reduced: bool = False
    """True if it is a reduction of rows or columns, of each product of a batch."""

    @property
    def transposed(self) -> NamedOperand:
        """The request for the transposed result."""
        per: Axis = "column" if self.per == "row" else "row" if self.per == "column" else self.per
        layout = transposed(self.layout) if self.per == "result" and self.layout is not None else self.layout
        return NamedOperand(self.name, per, layout, self.reduced)


@dataclass(frozen=True)
class ScaledBy:
    """Block scales of an operand."""

    block: BlockScale
    """Form of the scales; ``layout`` is their layout in memory."""
    layout: Layout
    """(lines, k) of A, or (k, lines) of B, in blocks; with a first axis where the operand has one."""
    name: str
    """Name in the operation."""

    @property
    def transposed(self) -> ScaledBy:
        """The operand, transposed."""
        return replace(self, layout=transposed(self.layout))

    def stored(self, operand: str) -> BlockScale | None:
        """The block scale in the layout that the array has for operand ``a`` or ``b``; None if it has neither."""
        for layout, row_major in (("k_major", operand == "a"), ("mn_major", operand == "b")):
            if is_stored(self.layout, row_major):
                return self.block.model_copy(update={"layout": layout})
        return None

    def word(self, operand: str) -> str:
        """Word for the scales of an operand in the text of a problem."""
        stored = self.stored(operand) or self.block
        kind = "" if stored.type == "f32" else f"_{stored.type}"
        order = "_mn" if stored.layout == "mn_major" else ""
        return f"scales_{operand}={stored.lines}x{stored.k}{kind}{order}"


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
    """The operation's names for the operands of the epilogue's factors, in their order."""
    amax: Literal["none", "stored", "unscaled"] = "none"
    """Largest absolute value of the results, as in a spec."""
    second: Layout | None = None
    """The second matrix that A is multiplied by, stored as B is."""
    second_operand: str = "b2"
    """Name of that matrix in the operation."""
    offsets: Layout | None = None
    """Ends of the groups of rows of A and C, each of which is multiplied by a separate matrix: the first axis of B then counts them."""
    grouping: Grouping = Grouping.SORTED
    """Arrangement of the groups, as in a spec; ``offsets`` holds the counts of masked groups."""
    depths: Layout | None = None
    """Ends of the values of k of each product of a batch, if not all are used."""
    gather: Layout | None = None
    """The row of A that each row of the groups is."""
    scatter: Layout | None = None
    """The row of C that each row of the groups goes to."""
    planes: Layout | None = None
    """The planes of operand ``b`` in the order of ``PLANES``, where the caller keeps them."""
    named: tuple[NamedOperand, ...] = ()
    """Operands and further outputs of formulas in the epilogue."""
    scaled_a: ScaledBy | None = None
    """Block scales of A."""
    scaled_b: ScaledBy | None = None
    weights: Weights | None = None
    """Format of B where it holds packed weights."""
    constant: tuple[Literal["a", "b"], ...] = ()
    """Operands that no work before the launch may still be writing."""
    triangles: Triangles = Triangles.ALL
    """Triangular A, B and C, as in a spec."""
    invariant: Extent = "none"
    """The extent on which no element may depend: that of a batch, along the rows of C, or along its columns where C is transposed."""

    @property
    def m(self) -> int:
        return self.c.shape[-2] if self.scatter is None else self.scatter.shape[0]

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
        return self.residual is not None or any(operation.op == "formula" for operation in self.epilogue)

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
            ",".join(self.grouping.words),
            ",".join(self.triangles.words),
            "planes" if self.planes is not None else "",
            self.scaled_a.word("a") if self.scaled_a is not None else "",
            self.scaled_b.word("b") if self.scaled_b is not None else "",
            self.weights.word if self.weights is not None else "",
            GATED_WORD if self.second is not None else "",
        )

    @property
    def unpromised(self) -> GemmRequest:
        return replace(self, constant=()) if self.constant else self

    @property
    def text(self) -> str:
        plain = super().text
        return f"{plain},{CONSTANT}" if self.constant else plain

    @property
    def block_scales(self) -> tuple[tuple[Literal["a", "b"], ScaledBy], ...]:
        """Block scales by operand."""
        sides: tuple[tuple[Literal["a", "b"], ScaledBy | None], ...] = (("a", self.scaled_a), ("b", self.scaled_b))
        return tuple((operand, by) for operand, by in sides if by is not None)

    @property
    def companions(self) -> tuple[GemmRequest, ...]:
        """Batches from a single row to many, if a row's result must be the same in all of them."""
        if self.invariant == "none":
            return ()
        if self.invariant == "n":
            return tuple(companion.transposed for companion in self.transposed.companions)
        return tuple(self._with_rows(rows) for rows in INVARIANT_ROWS)

    def _with_rows(self, rows: int) -> GemmRequest:
        """The request with another number of rows, stored without gaps."""

        def layout(old: Layout) -> Layout:
            shape = (*old.shape[:-2], rows, old.shape[-1])
            if is_stored(old, True):
                return Layout.packed(shape, old.type)
            return transposed(Layout.packed((*shape[:-2], shape[-1], rows), old.type))

        residual = None if self.residual is None else layout(self.residual)
        scaled_a = self.scaled_a
        if scaled_a is not None:
            lines = ceil_div(rows, scaled_a.block.lines)
            scaled_a = replace(scaled_a, layout=Layout.packed((lines, scaled_a.layout.shape[-1]), scaled_a.layout.type))
        return replace(self, a=layout(self.a), c=layout(self.c), residual=residual, scaled_a=scaled_a)

    @property
    def transposed(self) -> GemmRequest:
        """The request as a product that gives the transpose of C: (A B)ᵀ = Bᵀ Aᵀ."""
        operations = tuple(operation.transposed() for operation in self.epilogue)
        return replace(
            self,
            a=transposed(self.b),
            b=transposed(self.a),
            c=transposed(self.c),
            epilogue=operations,
            residual=None if self.residual is None else transposed(self.residual),
            operands=self.operands[::-1],
            named=tuple(one.transposed for one in self.named),
            scaled_a=self.scaled_b and self.scaled_b.transposed,
            scaled_b=self.scaled_a and self.scaled_a.transposed,
            triangles=self.triangles.across,
            invariant=_SWAPPED[self.invariant],
            constant=tuple("b" if operand == "a" else "a" for operand in self.constant),
        )


def transposed(layout: Layout) -> Layout:
    """The array with its last two axes exchanged."""
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
    promise = min(promise, MAX_ALIGNMENT // layout.element_bytes)
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
    return result if result in (*TYPES, DOUBLE) else "f32"
