"""From a GEMM spec to every number that its kernel contains, or to all the reasons why there can be none."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Literal

from gemmgen.errors import PlanError, Reason
from gemmgen.families.base import KernelPlan, SharedRegion
from gemmgen.families.epilogue import EpilogueOperation, epilogue_arguments
from gemmgen.families.gemm.operand import Operand, SharedAccess, plan_operand, shared_accesses
from gemmgen.families.gemm.spec import GemmSpec, NaiveMainloop, TiledMainloop
from gemmgen.families.naming import architecture_reasons, instance_name, spec_digest
from gemmgen.formula import Formula
from gemmgen.launch import (
    Argument,
    ArrayArgument,
    Constraint,
    Dimension,
    KernelLaunch,
    LaunchSequence,
    ScalarArgument,
)
from gemmgen.target import WARP_THREADS, Architecture

FLOAT_BYTES = 4
MAXIMUM_EXTENT = 2**31 - 1 - 1024
"""Largest m, n and k: coordinates of a tile that reaches past the edge still fit into an int."""
OTHER_REGISTERS = 24
"""Registers for addresses, counters and predicates that an instance needs beside its fragments; an estimate."""


@dataclass(frozen=True)
class MatrixLayout:
    """How one of A, B and C is stored."""

    name: str
    rows: str
    columns: str
    leading_dimension: str
    row_major: bool
    alignment: int
    """Elements that the base pointer and the leading dimension are multiples of."""

    @property
    def contiguous(self) -> str:
        """The dimension along which neighbours are adjacent in memory."""
        return self.columns if self.row_major else self.rows


@dataclass(frozen=True)
class TiledLoop:
    """Numbers of a mainloop with tiles in shared memory."""

    a: Operand
    b: Operand
    tile_k: int
    stages: int
    row_major: bool
    """Whether C is stored row-major."""
    lanes_minor: int
    """Lanes of a warp along the contiguous dimension of C; lanes are counted along it first."""
    warps_minor: int
    """Warps of a block along the contiguous dimension of C; warps are counted along it first."""
    min_blocks_per_sm: int
    accesses: tuple[SharedAccess, ...]
    estimated_registers: int

    @property
    def major(self) -> Operand:
        """The operand whose extent runs along the slow dimension of C."""
        return self.a if self.row_major else self.b

    @property
    def minor(self) -> Operand:
        """The operand whose extent runs along the contiguous dimension of C."""
        return self.b if self.row_major else self.a


@dataclass(frozen=True)
class NaiveLoop:
    """Numbers of the kernel with one thread for each element of C."""

    tile_major: int
    tile_minor: int


@dataclass(frozen=True)
class GemmPlan(KernelPlan):
    """A GEMM instance. *Major* names what runs along the slow dimension of stored C, *minor* along its contiguous one."""

    matrix_a: MatrixLayout
    matrix_b: MatrixLayout
    matrix_c: MatrixLayout
    threads: int
    tile_m: int
    tile_n: int
    vector_c: int
    """Elements of C that one access reads or writes."""
    epilogue: tuple[tuple[EpilogueOperation, tuple[Argument, ...]], ...]
    loop: TiledLoop | NaiveLoop

    @property
    def epilogue_reads_arrays(self) -> bool:
        """Whether the epilogue looks something up for each element, which must then be one that exists."""
        return any(isinstance(argument, ArrayArgument) for _, arguments in self.epilogue for argument in arguments)

    @property
    def major(self) -> Literal["m", "n"]:
        """The dimension of C that is slow in memory."""
        return "m" if self.matrix_c.row_major else "n"

    @property
    def minor(self) -> Literal["m", "n"]:
        """The dimension of C that is contiguous in memory."""
        return "n" if self.matrix_c.row_major else "m"


def plan_gemm(spec: GemmSpec, architecture: Architecture) -> GemmPlan:
    """The plan of ``spec`` for ``architecture``; raises ``PlanError`` with every reason why there is none."""
    reasons = architecture_reasons(spec, architecture)
    matrices = _matrices(spec)
    mainloop = spec.mainloop
    loop: TiledLoop | NaiveLoop | None
    regions: tuple[SharedRegion, ...] = ()
    if isinstance(mainloop, NaiveMainloop):
        tile_m, tile_n = mainloop.threadblock.m, mainloop.threadblock.n
        threads = tile_m * tile_n
        reasons += _thread_reasons(threads, architecture, "mainloop.threadblock")
        row_major = spec.order == "row_major"
        loop = NaiveLoop(*((tile_m, tile_n) if row_major else (tile_n, tile_m)))
        vector_c = 1
        prefix, parts = "sgemm_naive", [f"{tile_m}x{tile_n}"]
        template = "gemm/naive.cu.j2"
    else:
        tile = mainloop.tile
        tile_m, tile_n = tile.threadblock.m, tile.threadblock.n
        tile_reasons = _tile_reasons(mainloop, architecture)
        reasons += tile_reasons
        loop, threads, vector_c = None, 0, 1
        if not tile_reasons:
            threads = WARP_THREADS * (tile_m // tile.warp.m) * (tile_n // tile.warp.n)
            loop = _tiled_loop(spec, mainloop, matrices, threads, reasons)
        if loop is not None:
            vector_c = gcd(spec.alignment.c, loop.minor.fragment.vector)
            regions = _shared_regions(loop)
            reasons += _resource_reasons(loop, threads, regions, architecture)
        prefix = "sgemm"
        parts = [
            f"{tile_m}x{tile_n}x{tile.threadblock.k}",
            f"w{tile.warp.m}x{tile.warp.n}",
            f"t{tile.thread.m}x{tile.thread.n}",
            f"s{mainloop.stages}",
        ]
        template = "gemm/tiled.cu.j2"
    if reasons:
        raise PlanError(f"no kernel for this spec on {architecture.name}:", reasons)
    assert loop is not None
    parts += [spec.transpose if spec.order == "row_major" else f"{spec.transpose}_col"]
    name = instance_name(prefix, parts, spec)
    extra = epilogue_arguments(spec.epilogue)
    plan_epilogue = tuple(zip(spec.epilogue, extra, strict=True))
    static = sum(region.bytes for region in regions) <= architecture.static_shared_bytes_per_block
    return GemmPlan(
        name=name,
        spec_digest=spec_digest(spec),
        architecture=architecture,
        sequence=_sequence(name, spec, matrices, (tile_m, tile_n), threads, extra, regions, static),
        template=template,
        shared_memory=regions,
        dynamic_shared_bytes=0 if static else sum(region.bytes for region in regions),
        spec=spec,
        matrix_a=matrices[0],
        matrix_b=matrices[1],
        matrix_c=matrices[2],
        threads=threads,
        tile_m=tile_m,
        tile_n=tile_n,
        vector_c=vector_c,
        epilogue=plan_epilogue,
        loop=loop,
    )


def _matrices(spec: GemmSpec) -> tuple[MatrixLayout, MatrixLayout, MatrixLayout]:
    row_major = spec.order == "row_major"
    return (
        MatrixLayout("A", "m", "k", "lda", row_major == (spec.transpose[0] == "n"), spec.alignment.a),
        MatrixLayout("B", "k", "n", "ldb", row_major == (spec.transpose[1] == "n"), spec.alignment.b),
        MatrixLayout("C", "m", "n", "ldc", row_major, spec.alignment.c),
    )


def _thread_reasons(threads: int, architecture: Architecture, field: str) -> list[Reason]:
    if threads <= architecture.threads_per_block:
        return []
    need = f"at most {architecture.threads_per_block} threads in a block"
    hint = "use a smaller threadblock tile or larger thread tiles"
    return [Reason("threads_per_block", field, f"{threads} threads", need, hint)]


def _tile_reasons(mainloop: TiledMainloop, architecture: Architecture) -> list[Reason]:
    reasons: list[Reason] = []
    tile = mainloop.tile
    lanes = {}
    for axis in ("m", "n"):
        block, warp, thread = (getattr(part, axis) for part in (tile.threadblock, tile.warp, tile.thread))
        if block % warp:
            got = f"{warp} for a threadblock tile of {block}"
            reasons.append(Reason("warp_tile", f"mainloop.tile.warp.{axis}", got, f"a divisor of {block}"))
        if warp % thread:
            got = f"{thread} for a warp tile of {warp}"
            reasons.append(Reason("thread_tile", f"mainloop.tile.thread.{axis}", got, f"a divisor of {warp}"))
        else:
            lanes[axis] = warp // thread
        if mainloop.fragment != "contiguous" and thread % 4:
            need, hint = "a multiple of 4 for fragments in quads", "or fragment: contiguous"
            reasons.append(Reason("quads", f"mainloop.tile.thread.{axis}", str(thread), need, hint))
    if len(lanes) == 2 and lanes["m"] * lanes["n"] != WARP_THREADS:
        got = f"{lanes['m']} x {lanes['n']} = {lanes['m'] * lanes['n']} thread tiles in a warp tile"
        hint = f"a warp tile has 32 times the {tile.thread.m}x{tile.thread.n} elements of a thread tile"
        reasons.append(Reason("lanes", "mainloop.tile.warp", got, f"{WARP_THREADS}, one for each lane", hint))
    if not reasons:
        threads = WARP_THREADS * (tile.threadblock.m // tile.warp.m) * (tile.threadblock.n // tile.warp.n)
        reasons += _thread_reasons(threads, architecture, "mainloop.tile.threadblock")
    return reasons


def _tiled_loop(
    spec: GemmSpec,
    mainloop: TiledMainloop,
    matrices: tuple[MatrixLayout, MatrixLayout, MatrixLayout],
    threads: int,
    reasons: list[Reason],
) -> TiledLoop | None:
    """The loop, or None with what is wrong added to ``reasons``."""
    tile = mainloop.tile
    row_major = spec.order == "row_major"
    lanes_minor = tile.warp.n // tile.thread.n if row_major else tile.warp.m // tile.thread.m
    warps_minor = tile.threadblock.n // tile.warp.n if row_major else tile.threadblock.m // tile.warp.m

    def operand(name: Literal["A", "B"], axis: Literal["m", "n"], matrix: MatrixLayout) -> Operand | None:
        return plan_operand(
            name,
            axis,
            contiguous_along_k=matrix.contiguous == "k",
            leading_dimension=matrix.leading_dimension,
            widest=matrix.alignment,
            mainloop=mainloop,
            threads=threads,
            lanes_per_step=1 if (name == "B") == row_major else lanes_minor,
            reasons=reasons,
        )

    a, b = operand("A", "m", matrices[0]), operand("B", "n", matrices[1])
    if a is None or b is None:
        return None
    accumulators = tile.thread.m * tile.thread.n
    staged = a.copy.passes * a.copy.vector + b.copy.passes * b.copy.vector
    return TiledLoop(
        a=a,
        b=b,
        tile_k=tile.threadblock.k,
        stages=mainloop.stages,
        row_major=row_major,
        lanes_minor=lanes_minor,
        warps_minor=warps_minor,
        min_blocks_per_sm=mainloop.min_blocks_per_sm,
        accesses=shared_accesses(a) + shared_accesses(b),
        estimated_registers=accumulators + tile.thread.m + tile.thread.n + staged + OTHER_REGISTERS,
    )


def _shared_regions(loop: TiledLoop) -> tuple[SharedRegion, ...]:
    regions: list[SharedRegion] = []
    offset = 0
    for operand in (loop.a, loop.b):
        shape = (loop.stages, *operand.shared_shape)
        size = shape[0] * shape[1] * shape[2] * FLOAT_BYTES
        order = f"[stage][k][{operand.axis}]" if operand.mn_major else f"[stage][{operand.axis}][k]"
        meaning = f"tiles of {operand.name}, {order}"
        regions.append(SharedRegion(f"shared_{operand.suffix}", "float", shape, offset, size, meaning))
        offset += -(-size // 16) * 16
    return tuple(regions)


def _resource_reasons(
    loop: TiledLoop, threads: int, regions: tuple[SharedRegion, ...], architecture: Architecture
) -> list[Reason]:
    reasons = []
    shared = max(region.offset + region.bytes for region in regions)
    if shared > architecture.shared_bytes_per_block:
        need = f"at most {architecture.shared_bytes_per_block} bytes in a block on {architecture.name}"
        got, hint = f"{shared} bytes of shared memory", "reduce k, m, n or stages"
        reasons.append(Reason("shared_memory", "mainloop.tile.threadblock", got, need, hint))
    blocks = loop.min_blocks_per_sm
    per_sm = architecture.shared_bytes_per_sm
    reserved = architecture.reserved_shared_bytes_per_block
    if blocks > 1 and (shared + reserved) * blocks > per_sm:
        got = f"{blocks} blocks of {shared} + {reserved} bytes of shared memory"
        need = f"at most {per_sm} bytes on an SM of {architecture.name}"
        reasons.append(Reason("blocks_per_sm", "mainloop.min_blocks_per_sm", got, need))
    if blocks * threads > architecture.threads_per_sm or blocks > architecture.blocks_per_sm:
        got = f"{blocks} blocks of {threads} threads"
        need = f"at most {architecture.blocks_per_sm} blocks and {architecture.threads_per_sm} threads on an SM of {architecture.name}"
        reasons.append(Reason("blocks_per_sm", "mainloop.min_blocks_per_sm", got, need))
    budget = min(architecture.registers_per_thread, architecture.registers_per_sm // max(1, blocks * threads))
    if loop.estimated_registers > budget:
        got = f"about {loop.estimated_registers} registers a thread"
        need = f"at most {budget} for {threads} threads and {blocks} blocks on an SM"
        reasons.append(Reason("registers", "mainloop.tile.thread", got, need, "use smaller thread tiles, fewer threads or fewer blocks"))
    return reasons


def _sequence(
    name: str,
    spec: GemmSpec,
    matrices: tuple[MatrixLayout, MatrixLayout, MatrixLayout],
    tile: tuple[int, int],
    threads: int,
    epilogue: tuple[tuple[Argument, ...], ...],
    regions: tuple[SharedRegion, ...],
    static: bool,
) -> LaunchSequence:
    extents = {"m": "rows of A and C", "n": "columns of B and C", "k": "columns of A and rows of B"}
    dimensions = [Dimension(dim, meaning, maximum=MAXIMUM_EXTENT) for dim, meaning in extents.items()]
    constraints: list[Constraint] = []
    arrays = {}
    for matrix in matrices:
        ld, contiguous = matrix.leading_dimension, matrix.contiguous
        slow = "row" if matrix.row_major else "column"
        default = Formula(f"round_up(max({contiguous}, 1), {matrix.alignment})")
        meaning = f"leading dimension of {matrix.name}: elements from one {slow} to the next"
        dimensions.append(Dimension(ld, meaning, minimum=1, default=default))
        text = f"{ld} is at least {contiguous}: the {slow}s of {matrix.name} do not overlap"
        constraints.append(Constraint(Formula(f"{ld} >= {contiguous}"), text))
        if matrix.alignment > 1:
            text = f"{ld} is a multiple of {matrix.alignment}, as the spec's alignment.{matrix.name.lower()} promises"
            constraints.append(Constraint(Formula(f"{ld} % {matrix.alignment} == 0"), text))
        strides = (ld, "1") if matrix.row_major else ("1", ld)
        writes = matrix.name == "C"
        arrays[matrix.name] = ArrayArgument(
            name=matrix.name,
            type="f32",
            role=("inout" if spec.beta == "argument" else "output") if writes else "input",
            shape=(Formula(matrix.rows), Formula(matrix.columns)),
            strides=(Formula(strides[0]), Formula(strides[1])),
            alignment=matrix.alignment * FLOAT_BYTES,
            meaning=f"{matrix.rows} x {matrix.columns}, stored {'row' if matrix.row_major else 'column'}-major",
            needed="beta" if writes and spec.beta == "argument" else None,
        )
    integer = [ScalarArgument(dim.name, "s32", dim.meaning) for dim in dimensions]
    m, n, k, lda, ldb, ldc = integer
    alpha = ScalarArgument("alpha", "f32", "factor of A B; with 0, A and B are not read", default=1.0)
    beta = ScalarArgument("beta", "f32", "factor of C; with 0, C is not read", default=0.0)
    arguments: list[Argument] = [m, n, k]
    arguments += [alpha] if spec.alpha == "argument" else []
    arguments += [arrays["A"], lda, arrays["B"], ldb]
    arguments += [beta] if spec.beta == "argument" else []
    arguments += [arrays["C"], ldc]
    arguments += [argument for group in epilogue for argument in group]
    launch = KernelLaunch(
        entry=name,
        grid=(Formula(f"ceil_div(m, {tile[0]}) * ceil_div(n, {tile[1]})"), Formula("1"), Formula("1")),
        block=(threads, 1, 1),
        arguments=tuple(argument.name for argument in arguments),
        dynamic_shared_bytes=Formula("0") if static else Formula(str(sum(region.bytes for region in regions))),
    )
    return LaunchSequence(name, tuple(dimensions), tuple(arguments), (launch,), tuple(constraints))
