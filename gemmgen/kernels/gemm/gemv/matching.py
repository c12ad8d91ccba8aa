"""Fits of products of few columns."""

from __future__ import annotations

from gemmgen.core.elements import ELEMENTS
from gemmgen.kernels.gemm.fitting import VARIES, fitted
from gemmgen.kernels.gemm.request import TYPES, GemmRequest, alignment_elements, is_stored
from gemmgen.kernels.gemm.spec import Alignment, GemmSpec, GemvMainloop, Multiples, Storage
from gemmgen.kernels.requests import MAX_ALIGNMENT, Fit

MAX_COLUMNS = 32
"""Rows or columns up to which a product is one of few."""
MAX_COLUMNS_OF_ROWS = 64
"""The limit where each thread has separate rows."""
MAX_COLUMNS_OF_A_BLOCK = 16
LARGE_BLOCK = 128
"""Threads beyond which a block whose lanes lie along m ..."""
MAX_COLUMNS_OF_LARGE_BLOCKS = 8
"""... has no room for the sums of more columns of float32 than these, in registers and in shared memory."""
MAX_COLUMNS_OF_A_THREAD = 32
"""The limit where each thread has separate rows, stores their results in vectors, and B is float32, whose elements stay in registers
unconverted."""


def fit(spec: GemmSpec, mainloop: GemvMainloop, request: GemmRequest) -> Fit | str:
    """The instance's spec, changed as far as the request needs it, which takes few rows as the columns of the transpose; or why it cannot
    be."""
    if request.invariant != "none":
        return VARIES
    most = MAX_COLUMNS_OF_ROWS if mainloop.lanes == 1 else MAX_COLUMNS
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
        return "C, or the operand added to it, is stored neither row-major nor column-major"
    along_k = mainloop.along == "k"
    by_rows = is_stored(request.a, True) if along_k else not is_stored(request.a, False)
    if not by_rows and not is_stored(request.a, False):
        return "A is stored neither row-major nor column-major"
    if along_k and not by_rows and mainloop.lanes > 1 and request.m > MAX_COLUMNS_OF_A_BLOCK:
        return "its lanes lie along k, and would read A with gaps"
    if not along_k and by_rows:
        return "its lanes lie along m, and would read A with gaps"
    b_by_rows = not is_stored(request.b, False)
    if b_by_rows and not is_stored(request.b, True):
        return "B is stored neither row-major nor column-major"
    wide = mainloop.lanes == 1 and request.b.element_bytes == ELEMENTS["f32"].bytes
    most = MAX_COLUMNS_OF_A_THREAD if wide else MAX_COLUMNS_OF_A_BLOCK
    columns = max(1, -(-request.n // -(-request.n // most))) if request.n else 1
    rows: int = mainloop.rows
    while rows > 1 and rows // 2 >= request.m:
        rows //= 2
    alignment = {
        "a": alignment_elements(MAX_ALIGNMENT // request.a.element_bytes, request.a, by_rows),
        "b": alignment_elements(MAX_ALIGNMENT // request.b.element_bytes, request.b, b_by_rows),
        "c": min(alignment_elements(spec.alignment.c, layout, row_major) for layout in like_c),
    }
    held = rows if along_k else alignment["a"]
    if not along_k and columns == 1 < mainloop.columns:
        return "it is for several columns"
    many = columns > MAX_COLUMNS_OF_LARGE_BLOCKS and request.a.element_bytes == ELEMENTS["f32"].bytes
    if not along_k and many and mainloop.threads > LARGE_BLOCK:
        # 11144 x 12 x 3968 with A by columns takes 69 us on an H200 by 256 threads with two rows each, 53 by 128 with four.
        return "smaller blocks have more room for the sums of so many columns"
    lanes: int = mainloop.lanes
    if mainloop.vectors == "shifted":
        if alignment["a"] * request.a.element_bytes == MAX_ALIGNMENT:
            return "it is for rows that are not aligned"
        # 1 x 3435 x 4934 takes 31 to 33 us on an H100 by shifted vectors, 30 to 31 by narrow ones.
        if columns == 1 and request.a.element_bytes == ELEMENTS["f32"].bytes:
            return "one column of float32 is read faster by narrow vectors"
        # As many teams as a vector has elements.
        lanes = min(lanes, mainloop.threads * request.a.element_bytes // MAX_ALIGNMENT)
    elif not along_k:  # narrow reads of more lanes are as long a piece of a row
        lanes = min(lanes * MAX_ALIGNMENT // (alignment["a"] * request.a.element_bytes), mainloop.threads // 2)
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
    return fitted(spec, request, changes)


def may_launch_early(spec: GemmSpec) -> bool:
    """True if an instance leaves numbers to the launch, and comes early where the architecture allows it."""
    return True
