"""Reasons against a GEMM spec that do not depend on the numbers of its mainloop."""

from __future__ import annotations

from collections.abc import Iterator

from gemmgen.core.errors import Reason
from gemmgen.hardware.target import Architecture
from gemmgen.kernels.epilogue.operations import COORDINATES, SECOND
from gemmgen.kernels.gemm import scaling
from gemmgen.kernels.gemm.grouping import Grouping
from gemmgen.kernels.gemm.spec import Arithmetic, GemmSpec, Multiples, Rasterization, SplitKCluster, SplitKLast, StreamK
from gemmgen.kernels.gemm.triangles import Triangles
from gemmgen.kernels.matrix import Matrix

WIDEST_ACCESS_BYTES = 16
CONSTANT_STRATEGIES = ("wgmma", "narrow_weights")
DOUBLE_STRATEGIES = ("mma_sync",)
PLACE_STRATEGIES = ("tiled", "mma_sync")
"""Strategies for matrices that lie anywhere."""
FACTOR_TRIANGLES = ("mma_sync", "wgmma")
"""Strategies that skip the zeros of triangular factors."""
RESULT_TRIANGLES = ("tiled", *FACTOR_TRIANGLES)
"""Strategies that compute a triangle of C."""
DUAL_STRATEGIES = ("naive", "mma_sync", "wgmma")
"""Strategies that multiply A by two matrices at once."""
FMA_TYPES = ("f32", "f16", "bf16")
"""Types that are read as float32, or converted to it."""


def vector_division_reasons(spec: GemmSpec) -> Iterator[Reason]:
    """A division of k that only GEMV has, or, for GEMV, one that it does not have."""
    if spec.decomposition.scheme != "data_parallel":
        need = "data_parallel or split_k_last for the vector strategy, and split_k_last for it, and narrow weights but by tiles, alone"
        yield Reason("decomposition", "decomposition.scheme", spec.decomposition.scheme, need)


def division_reasons(spec: GemmSpec) -> Iterator[Reason]:
    """Reasons of every strategy but GEMV against divisions of k."""
    if isinstance(spec.decomposition, SplitKLast):
        yield from vector_division_reasons(spec)


def launch_slices_reasons(spec: GemmSpec) -> Iterator[Reason]:
    """A number of slices that the launch chooses, in a strategy that has none."""
    if getattr(spec.decomposition, "slices", 1) == "launch":
        need = "a number of slices but for the tiled, the wgmma and the mma_sync strategy"
        yield Reason("decomposition", "decomposition.slices", "launch", need)


def invariance_reasons(spec: GemmSpec) -> Iterator[Reason]:
    """A promise that no result depends on the number of rows, which the division of k breaks."""
    decomposition = spec.decomposition
    varies = isinstance(decomposition, StreamK | SplitKLast) or getattr(decomposition, "slices", 1) == "launch"
    if spec.batch_invariant and varies:
        need = "a scheme that divides k in the same way for any number of rows, for batch_invariant: data_parallel, or a number of slices"
        yield Reason("batch_invariant", "decomposition.scheme", decomposition.scheme, need)


def constant_reasons(spec: GemmSpec) -> Iterator[Reason]:
    """Constant operands in a launch that waits for the work before it in any case, or in a strategy that does not copy them early."""
    if not spec.constant:
        return
    given = f"[{', '.join(spec.constant)}]"
    if not spec.early_launch:
        yield Reason("constant", "early_launch", "false", f"true with constant: {given}: else the launch starts after all earlier work")
    if spec.mainloop.strategy not in CONSTANT_STRATEGIES or getattr(spec.mainloop, "arithmetic", Arithmetic()).f32_by is not None:
        yield Reason("constant", "constant", given, "[] but for strategy wgmma without arithmetic.f32_by, or narrow_weights")


def multiply_add_reasons(spec: GemmSpec) -> Iterator[Reason]:
    """Fields that only strategies on tensor cores have."""
    hint = "or strategy: wgmma, or mma_sync"
    if isinstance(spec.decomposition, SplitKCluster):
        need = "another scheme for the strategies without clusters"
        yield Reason("decomposition", "decomposition.scheme", spec.decomposition.scheme, need, hint)
    if spec.store == "tma":
        yield Reason("store", "store", "tma", "direct or through_shared for the strategies without tensor maps", hint)
    if spec.amax != "none":
        yield Reason("amax", "amax", spec.amax, "none for the strategies without tensor cores", hint)
    if spec.batch == "grouped":
        yield Reason("batch", "batch", "grouped", "none or strided for the strategies without tensor cores", hint)
    for name in ("a", "b", "c"):
        element = getattr(spec.storage, name)
        if element not in FMA_TYPES:
            yield Reason("storage", f"storage.{name}", element, f"{', '.join(FMA_TYPES)} for float32 arithmetic", hint)


def direct_store_reasons(spec: GemmSpec) -> Iterator[Reason]:
    """A store through shared memory, in a strategy whose threads store side by side already."""
    if spec.store == "through_shared":
        need, hint = f"direct for the {spec.mainloop.strategy} strategy", "its threads store one element each, side by side already"
        yield Reason("store", "store", spec.store, need, hint)


def alignment_reasons(matrices: tuple[Matrix, ...]) -> list[Reason]:
    """Accesses that would be wider than the hardware has."""
    reasons = []
    for matrix in matrices:
        if matrix.alignment * matrix.element_bytes > WIDEST_ACCESS_BYTES:
            got = f"{matrix.alignment} elements of {matrix.element_bytes} bytes"
            need = f"at most {WIDEST_ACCESS_BYTES // matrix.element_bytes}: no access is wider than {WIDEST_ACCESS_BYTES} bytes"
            reasons.append(Reason("alignment", f"alignment.{matrix.name.lower()}", got, need))
    return reasons


def double_reasons(spec: GemmSpec) -> list[Reason]:
    """float64 in a strategy that has none, or beside other types."""
    types = (spec.storage.a, spec.storage.b, spec.storage.c)
    by_integers = getattr(spec.mainloop, "arithmetic", Arithmetic()).f64_by is not None
    if "f64" not in types or (types == ("f64",) * 3 and (by_integers or spec.mainloop.strategy in DOUBLE_STRATEGIES)):
        return []
    need = f"f64 for all of A, B and C with strategy: {', '.join(DOUBLE_STRATEGIES)}, or for none"
    got = f"{', '.join(types)} with {spec.mainloop.strategy}"
    return [Reason("storage", f"storage.{name}", got, need) for name, type in zip("abc", types, strict=True) if type == "f64"]


def scale_reasons(spec: GemmSpec) -> Iterator[Reason]:
    """Block scales in a strategy without them."""
    for name, block in spec.scales.given:
        if spec.mainloop.strategy not in scaling.STRATEGIES:
            need, got = f"none, or strategy: {' or '.join(scaling.STRATEGIES)}", f"scales for {block.lines} x {block.k} elements"
            yield Reason("scales", f"scales.{name}", f"{got} with {spec.mainloop.strategy}", need)


def dual_reasons(spec: GemmSpec) -> Iterator[Reason]:
    """Fields that exclude a second product."""
    uses = any(SECOND in assignment.node.names for operation in spec.epilogue for assignment in operation.assignments)
    if not spec.dual:
        return
    if not uses:
        need = f"a formula of the epilogue that uses {SECOND}, the second product"
        yield Reason("dual", "dual", "true", need, f"epilogue: {{outputs: {{C: silu(acc) * {SECOND}}}}}, or dual: false")
    strategy = spec.mainloop.strategy
    if strategy not in DUAL_STRATEGIES:
        yield Reason("dual", "mainloop.strategy", strategy, f"{', '.join(DUAL_STRATEGIES)} for dual: true")
    for field, wanted in (("alpha", "one"), ("beta", "zero")):
        if getattr(spec, field) != wanted:
            need = f"{wanted} for dual: true; a formula scales the combined result"
            yield Reason("dual", field, getattr(spec, field), need, f"{field}: {wanted}")
    if spec.decomposition.scheme != "data_parallel":
        need = "data_parallel for dual: true: a block has both products whole"
        yield Reason("dual", "decomposition.scheme", spec.decomposition.scheme, need)
    if spec.scales.given:
        yield Reason("dual", "scales", "block scales", "none for dual: true")
    if spec.grouping not in (Grouping.SORTED, Grouping(rows="masked")):
        yield Reason("dual", "grouping", ", ".join(spec.grouping.words), "sorted or masked rows for dual: true")
    if spec.storage.c == "s32":
        yield Reason("dual", "storage.c", "s32", "a type that float32 is converted to, for dual: true")
    if spec.store == "through_shared":
        need = "direct or tma for dual: true: a transposition would have to hold both products"
        yield Reason("dual", "store", spec.store, need)
    for field, plain in (
        ("copied", "none"),
        ("copies", ("cp_async", "registers", "tma")),
        ("fragment_buffers", 1),
        ("multiplied", "stored"),
    ):
        value = getattr(spec.mainloop, field, None)
        if value is not None and value not in (plain if isinstance(plain, tuple) else (plain,)):
            need = " or ".join(map(str, plain)) if isinstance(plain, tuple) else str(plain)
            yield Reason("dual", f"mainloop.{field}", str(value), f"{need} for dual: true")
    arithmetic = getattr(spec.mainloop, "arithmetic", None)
    if arithmetic is not None and arithmetic.f32_by is not None:
        yield Reason("dual", "mainloop.arithmetic.f32_by", arithmetic.f32_by, "none for dual: true")


def ungrouped_reasons(spec: GemmSpec) -> Iterator[Reason]:
    """Rows of groups where there are none."""
    depth, strategy = spec.grouping.depth, spec.mainloop.strategy
    if spec.grouping.model_copy(update={"depth": "all", "places": "strided"}) != Grouping.SORTED and spec.batch != "grouped":
        yield Reason("grouping", "grouping", f"rows of groups with batch: {spec.batch}", "batch: grouped", "batch: grouped")
    needed = {"offsets": "mma_sync", "steps": "wgmma"}.get(depth, strategy)
    if depth != "all" and (spec.batch != "strided" or strategy != needed):
        got = f"{depth} with batch: {spec.batch}, strategy: {strategy}"
        yield Reason("depth", "grouping.depth", got, f"batch: strided and strategy: {needed} for {depth}")
    if depth == "steps":
        cluster = getattr(spec.mainloop, "cluster", None)
        arithmetic = getattr(spec.mainloop, "arithmetic", Arithmetic())
        shared = cluster is not None and cluster.m * cluster.n > 1
        sparse = getattr(spec.mainloop, "sparse", "none") != "none"
        if spec.decomposition.scheme != "data_parallel" or shared or sparse or arithmetic != Arithmetic() or spec.constant:
            need = "data_parallel, no cluster, and factors that are dense, multiplied as stored and not constant, for steps"
            yield Reason("depth", "grouping.depth", f"steps with {spec.decomposition.scheme}, or other mainloop fields", need)


def place_reasons(spec: GemmSpec) -> Iterator[Reason]:
    """Fields that exclude matrices which lie anywhere."""
    if spec.grouping.places == "strided":
        return
    loop, field = spec.mainloop, "grouping.places"
    if spec.batch != "strided" or loop.strategy not in PLACE_STRATEGIES:
        need = f"batch: strided and strategy: {' or '.join(PLACE_STRATEGIES)} for addresses; tensor maps need fixed ones"
        yield Reason("places", field, f"addresses with batch: {spec.batch}, strategy: {loop.strategy}", need)
    if getattr(loop, "copies", "cp_async") not in ("cp_async", "registers"):
        need = "cp_async or registers for addresses: tensor maps need fixed ones, and warps without a tile in shared memory have one batch"
        yield Reason("places", "mainloop.copies", str(getattr(loop, "copies", "")), need)
    arithmetic = getattr(loop, "arithmetic", Arithmetic())
    packed = getattr(loop, "sparse", "none") != "none" or getattr(loop, "multiplied", "stored") != "stored"
    if arithmetic != Arithmetic() or packed or spec.scales.given:
        yield Reason("places", "mainloop", "planes, sparse or packed factors, or block scales", "plain factors for addresses")
    if spec.decomposition.scheme != "data_parallel":
        yield Reason("places", "decomposition.scheme", spec.decomposition.scheme, "data_parallel for addresses")
    if spec.multiple_of != Multiples():
        yield Reason("places", "multiple_of", "promises", "none for addresses: sizes are those of each product, in the device's memory")
    if spec.grouping.depth != "all" or spec.dual or spec.amax != "none" or spec.store == "through_shared":
        got = f"depth: {spec.grouping.depth}, dual: {spec.dual}, amax: {spec.amax}, store: {spec.store}"
        yield Reason("places", field, got, "one product each, all of k, no largest value and direct stores for addresses")
    if any(operand.like_output for operation in spec.epilogue for operand in operation.operands()) or any(
        operation.extra_outputs for operation in spec.epilogue
    ):
        yield Reason("places", "epilogue", "matrices like C", "none for addresses; beta adds C")


def scalar_reasons(spec: GemmSpec) -> Iterator[Reason]:
    """Fields that exclude factors of each product."""
    if spec.scalars == "launch":
        return
    loop, arithmetic = spec.mainloop, getattr(spec.mainloop, "arithmetic", Arithmetic())
    if spec.batch != "strided" or loop.strategy not in PLACE_STRATEGIES or arithmetic != Arithmetic():
        got = f"products with batch: {spec.batch}, strategy: {loop.strategy}"
        need = f"batch: strided and strategy: {' or '.join(PLACE_STRATEGIES)} without planes for factors of each product"
        yield Reason("scalars", "scalars", got, need)
    if spec.alpha == "one" and spec.beta == "zero":
        yield Reason("scalars", "alpha", "one, with beta: zero", "alpha: argument or beta: argument for factors of each product")
    if spec.decomposition.scheme != "data_parallel" or spec.dual or getattr(loop, "copies", "cp_async") == "none":
        got = f"{spec.decomposition.scheme}, dual: {spec.dual}, copies: {getattr(loop, 'copies', 'registers')}"
        yield Reason("scalars", "scalars", got, "data_parallel, one product each and tiles in shared memory for factors of each product")


def triangle_reasons(spec: GemmSpec) -> Iterator[Reason]:
    """Fields that exclude triangular matrices."""
    if spec.triangles == Triangles.ALL:
        return
    loop, given = spec.mainloop, ", ".join(spec.triangles.words)
    needed = RESULT_TRIANGLES if spec.triangles.a == spec.triangles.b == "all" else FACTOR_TRIANGLES
    if loop.strategy not in needed or getattr(loop, "copies", "cp_async") == "none":
        got = f"{given} with strategy: {loop.strategy}, copies: {getattr(loop, 'copies', 'tma')}"
        need = f"strategy: {', '.join(needed)} with tiles in shared memory for triangular matrices"
        yield Reason("triangles", "mainloop.strategy", got, need)
    arithmetic = getattr(loop, "arithmetic", Arithmetic())
    packed = getattr(loop, "sparse", "none") != "none" or getattr(loop, "multiplied", "stored") != "stored"
    if arithmetic != Arithmetic() or packed or spec.scales.given:
        got = "planes, sparse or packed factors, or block scales"
        yield Reason("triangles", "mainloop", got, "plain factors for triangular matrices")
    if spec.decomposition.scheme != "data_parallel":
        yield Reason("triangles", "decomposition.scheme", spec.decomposition.scheme, "data_parallel for triangular matrices")
    if spec.batch == "grouped" or spec.grouping != Grouping.SORTED:
        got = f"batch: {spec.batch}" + (f", {', '.join(spec.grouping.words)}" if spec.grouping.words else "")
        yield Reason("triangles", "batch", got, "none or strided, with all of k and one size, for triangular matrices")
    cluster = getattr(loop, "cluster", None)
    if cluster is not None and cluster.m * cluster.n > 1:
        got = f"{cluster.m} x {cluster.n}"
        yield Reason("triangles", "mainloop.cluster", got, "1 x 1 for triangular matrices: blocks of a cluster would have other steps")
    if spec.triangles.c == "all":
        return
    if spec.order != "row_major" or spec.store == "tma" or spec.rasterization != Rasterization():
        got = f"order: {spec.order}, store: {spec.store}, rasterization: {spec.rasterization.along}, {spec.rasterization.group}"
        need = "row_major, direct or through_shared, and no rasterization for a triangle of C"
        yield Reason("triangles", "triangles.c", got, need, "column-major results are row-major ones of the transposed product")
    if spec.dual or spec.amax != "none" or any(operation.extra_outputs for operation in spec.epilogue):
        got = f"dual: {spec.dual}, amax: {spec.amax}, or further outputs"
        yield Reason("triangles", "triangles.c", got, "one product and one output for a triangle of C")
    placed = [operand.name for operation in spec.epilogue for operand in operation.operands() if operand.per not in ("all", "memory")]
    names = {name for operation in spec.epilogue for assignment in operation.assignments for name in assignment.node.names}
    placed += sorted(names & set(COORDINATES))
    if spec.triangles.c == "mirrored" and placed:
        need = "numbers alone for a mirrored C: an element and its mirror image have the same value"
        yield Reason("triangles", "epilogue", f"operands {', '.join(placed)}", need)


def thread_reasons(threads: int, architecture: Architecture, field: str) -> list[Reason]:
    """Too many threads in a block; ``field`` decides their number."""
    if threads <= architecture.threads_per_block:
        return []
    need = f"at most {architecture.threads_per_block} threads in a block"
    hint = "use a smaller threadblock tile or larger thread tiles"
    return [Reason("threads_per_block", field, f"{threads} threads", need, hint)]
