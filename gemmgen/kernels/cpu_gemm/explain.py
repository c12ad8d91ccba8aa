"""A CPU GEMM's plan in words."""

from __future__ import annotations

from gemmgen.kernels.cpu_gemm.plan import BlockedPlan, CpuGemmPlan
from gemmgen.kernels.family import Section
from gemmgen.kernels.matrix import Matrix
from gemmgen.kernels.tiles.unrolling import unrolling_text

Lines = tuple[tuple[str, str], ...]
KIB = 1024


def summary(plan: CpuGemmPlan) -> list[str]:
    """The instance's computation and the storage of its matrices."""
    product = "alpha A B" if plan.spec.alpha == "argument" else "A B"
    if plan.spec.beta == "argument":
        product += " + beta C"
    operations = ", then ".join(step.operation.describe() for step in plan.epilogue)
    lines = [f"C = {product} in float32 on {plan.architecture.name}" + (f", then {operations}." if operations else ".")]
    return [*lines, *(f"{matrix.name} is {_layout(matrix)}." for matrix in (plan.matrix_a, plan.matrix_b, plan.matrix_c))]


def _layout(matrix: Matrix) -> str:
    order = "row" if matrix.row_major else "column"
    return f"{matrix.rows} x {matrix.columns}, {order}-major with leading dimension {matrix.leading_dimension}"


def explain(plan: CpuGemmPlan) -> list[Section]:
    """The computation, the micro-kernel, the blocks and the caches that they fill, packing, and threads."""
    computes = Section("Computation", tuple(("", line) for line in summary(plan)))
    blocked = plan.blocked
    if blocked is None:
        order = "m, n, k: dot products" if plan.strategy == "naive" else "m, k, n: rows of B are added to rows of C"
        return [computes, Section("Loops", (("order", order), ("unrolled", f"the innermost, {unrolling_text(plan.spec.loops.unroll)}")))]
    return [
        computes,
        Section("Micro-kernel", _micro_kernel(plan, blocked)),
        Section("Blocks", _blocks(plan, blocked)),
        Section("Threads", _threads(blocked)),
    ]


def _micro_kernel(plan: CpuGemmPlan, blocked: BlockedPlan) -> Lines:
    rows, vectors = blocked.tile_rows, blocked.tile_vectors
    swapped = ", computed as the transpose C' = B' A' (swap-AB)" if plan.swapped else ""
    products, loads = rows * vectors, rows + vectors
    edges = "a function for every extent, and masks for lanes" if blocked.masks else "a function for every extent"
    if not blocked.masked:
        edges = "the whole tile on zeros, stored through a buffer"
    return (
        ("tile", f"{rows} x {blocked.tile_columns} elements: {rows} rows of {vectors} vectors of {blocked.lanes} lanes{swapped}"),
        ("registers", f"{blocked.vector_registers} of {plan.architecture.registers}: {products} sums, {vectors} vectors, one element"),
        ("a step along k", f"{products} fused multiply-adds for {loads} loads: {loads / products:.2f} loads each"),
        ("unrolled", f"{blocked.unroll} steps"),
        ("edges", edges),
    )


def _blocks(plan: CpuGemmPlan, blocked: BlockedPlan) -> Lines:
    def amount(elements: int) -> str:
        return f"{4 * elements / KIB:.0f} KiB"

    names = {"left": plan.left.name, "right": plan.right.name}
    packed = " and ".join(names[side] for side, _ in plan.packed_sides) or "nothing"
    depth = blocked.block_depth
    operations = 2 * blocked.tile_rows * blocked.tile_columns * depth
    traffic = 4 * (blocked.tile_rows * depth + 2 * blocked.tile_rows * blocked.tile_columns)
    return (
        ("slice of k", f"{depth}; {plan.rows} in blocks of {blocked.block_rows}, {plan.columns} in blocks of {blocked.block_columns}"),
        ("L1", f"{amount(blocked.tile_columns * depth)}: one panel of {plan.right.name}, used by every panel of {plan.left.name}"),
        ("L2", f"{amount(blocked.block_rows * depth)}: a block of {plan.left.name}"),
        ("L3", f"{amount(blocked.block_columns * depth)}: a block of {plan.right.name}"),
        ("from the L2", f"{traffic / operations:.4f} bytes for each operation of a tile: a panel of {plan.left.name}, and C twice"),
        ("packed", packed + (", fetched ahead of it" if blocked.fetches else "")),
    )


def _threads(blocked: BlockedPlan) -> Lines:
    if not blocked.threaded:
        return (("threads", "one"),)
    count = "as many as the process may run" if blocked.thread_count == "all" else str(blocked.thread_count)
    shares = {"grid": "both dimensions of C", "rows": "C's slow dimension", "columns": "C's contiguous dimension"}[blocked.divide]
    return (
        ("threads", f"{count}; t of them from t x t x {blocked.least_work} multiplications on"),
        (
            "distributed",
            f"{shares}, in whole tiles and {blocked.parts_per_thread} parts a thread at most; every thread packs the panels that it needs",
        ),
    )
