"""SGEMM for a CPU, as a user describes it."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gemmgen.kernels.epilogue.operations import Operations
from gemmgen.kernels.family import LATER, KernelSpec, SpecModel

Block = Annotated[int, Field(ge=1, le=1 << 20, strict=True)]
"""An extent of a cache block, in elements."""
Few = Literal["fastest", "invariant", "none"]
LoopUnroll = Literal["auto"] | Annotated[int, Field(ge=1, le=16, strict=True)]


class MicroKernel(SpecModel):
    """The tile of C whose sums stay in registers."""

    rows: Annotated[int, Field(ge=1, le=64, strict=True)]
    """Rows of the tile."""
    columns: Annotated[int, Field(ge=1, le=128, strict=True)]
    """Columns of the tile."""


class Blocks(SpecModel):
    """The cache blocks: a slice of k, rows of A and columns of B that are worked on together."""

    m: Block
    """Rows of C whose part of A, m x k elements, is meant to stay in the L2."""
    n: Block
    """Columns of C whose part of B, k x n elements, is meant to stay in the L3."""
    k: Block
    """Depth of a slice: A's rows and B's columns of one micro-kernel, over this depth, are meant to stay in the L1."""


class Prefetch(SpecModel):
    """Distances of software prefetches, 0 for none."""

    a: Annotated[int, Field(ge=0, le=256, strict=True)] = 0
    """Steps along k by which the micro-kernel fetches packed A ahead."""
    b: Annotated[int, Field(ge=0, le=256, strict=True)] = 0
    """Distance of prefetches of packed B."""
    c: bool = True
    """True if the tile of C is fetched before the sums begin."""
    packing: bool = False
    """True to prefetch the data that is packed next while the micro-kernel works. ``unroll`` has to divide 16."""


class Threads(SpecModel):
    """Threads that work on one product, and the share of each."""

    count: Literal["all"] | Annotated[int, Field(ge=1, le=1024, strict=True)] = 1
    """``all``: as many as the process may run at a time."""
    divide: Literal["rows", "columns", "grid"] = "grid"
    """Matrices that are distributed: rows of C, columns of C, or both, so that the parts are as square as the number of threads allows."""
    parts: Annotated[int, Field(ge=1, le=64, strict=True)] = 1
    """Parts of C for each thread. Threads take parts as they become free: with several, one that is kept from running holds up the
    others less, at the price of more packing."""
    least_work: Annotated[int, Field(ge=1, le=1 << 26, strict=True)] = 1 << 15
    """Multiplications that take as long as starting one more thread. The number of threads is the largest whose square, times this, is at
    most the work: the multiplications, and eight for each element of the three matrices."""


class NaiveLoops(SpecModel):
    """Three loops, the innermost along k: a dot product for every element of C."""

    strategy: Literal["naive"]
    unroll: Annotated[LoopUnroll, LATER] = "auto"
    """Unrolling of the innermost loop; ``auto`` leaves it to the compiler."""


class ReorderedLoops(SpecModel):
    """Three loops, the innermost along the contiguous dimension of C: rows of B are added to a row of C, which a compiler turns into
    vector instructions."""

    strategy: Literal["reordered"]
    unroll: Annotated[LoopUnroll, LATER] = "auto"
    """Unrolling of the innermost loop; ``auto`` leaves it to the compiler."""


class BlockedLoops(SpecModel):
    """Blocks for every level of the caches, and a micro-kernel for the registers."""

    strategy: Literal["blocked"]
    micro_kernel: MicroKernel
    blocks: Blocks
    instructions: Literal["scalar", "vector", "extension"] = "vector"
    """``scalar``: one element at a time, in plain C; ``vector``: intrinsics of the architecture; ``extension``: the same by vectors of the
    compiler's own, which is compiled in half the time, on x86_64_v3 with padded edges. Vectors run along the contiguous dimension of C."""
    pack: Literal["none", "a", "b", "both"] = "both"
    """Operands that are copied, block by block, into the order in which the micro-kernel reads them."""
    prefetch: Prefetch = Prefetch()
    unroll: Annotated[int, Field(ge=1, le=16, strict=True)] = 1
    """Steps along k that one pass of the innermost loop makes."""
    edges: Literal["masked", "padded", "fitted"] = "masked"
    """Treatment of tiles that reach beyond C. ``masked``: a smaller micro-kernel for every extent, and masks for lanes;
    ``padded``: the whole micro-kernel on zeros, its tile stored through a buffer; ``fitted``: masks, and tiles of as many rows and vectors
    as fit C best, narrow ones higher and low ones wider than the micro-kernel. ``fitted`` packs the operand that vectors are read from
    (``pack: b``, or ``a`` if C is stored by columns), and that only where its copy is read often enough."""
    few: Few = "fastest"
    """Separate functions for products of few rows or columns. ``fastest``: the order of additions may depend on the number of rows;
    ``invariant``: a row of C has the same bits for every number of rows; ``none``: tiles alone, which take half as long to compile."""
    dot_columns: Annotated[Annotated[int, Field(ge=4, le=8, strict=True)] | None, LATER] = None
    """Columns up to which long sums are dot products. By default 8 with AVX-512 and 4 otherwise; kernels with the same number have the same
    order of additions."""
    threads: Threads = Threads()


Loops = Annotated[NaiveLoops | ReorderedLoops | BlockedLoops, Field(discriminator="strategy")]


class CpuGemmSpec(KernelSpec):
    """C = epilogue(alpha * op(A) * op(B) + beta * C) in float32, on a CPU."""

    mainloop_field: ClassVar[str] = "loops"

    kind: Literal["cpu_gemm"]
    architecture: Literal["x86_64_v3", "x86_64_v4", "aarch64"] = "x86_64_v3"  # type: ignore[assignment]
    """The processors that the kernel is written for, and all that run their code."""
    order: Literal["row_major", "column_major"] = "row_major"
    """Storage order of C, and of A and B where they are not transposed."""
    transpose: Literal["nn", "nt", "tn", "tt"] = "nn"
    """One letter each for A and B: ``n`` as ``order`` says, ``t`` the other way."""
    alpha: Literal["argument", "one"] = "argument"
    """``one`` leaves the factor out of the kernel's arguments."""
    beta: Literal["argument", "zero"] = "argument"
    """``zero`` makes a kernel that never reads the previous contents of C."""
    loops: Loops
    """The loops over m, n and k, by strategy."""
    epilogue: Operations = ()
    """Operations on each element after the product is complete, in this order."""
