"""The plan of float64 products by those of remainders, and its launch sequence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

from gemmgen.core.errors import PlanError, Reason
from gemmgen.core.formulas import Formula
from gemmgen.hardware.target import Architecture
from gemmgen.kernels.gemm.plan import Helper, Outline
from gemmgen.kernels.gemm.reasons import division_reasons, invariance_reasons
from gemmgen.kernels.gemm.remainders.scheme import (
    JOIN_THREADS,
    JOIN_TILE,
    MAX_K,
    PITCH_BYTES,
    SPLIT_THREADS,
    RemainderOperand,
    RemainderScheme,
    scheme_of,
    workspace_parts,
)
from gemmgen.kernels.gemm.sequence import gemm_problem, workspace_argument
from gemmgen.kernels.gemm.spec import Alignment, Arithmetic, GemmSpec, MmaSyncMainloop, Multiples, Storage, WgmmaMainloop
from gemmgen.kernels.gemm.tensor_cores.factors import WorkspacePart, offset_of, parts_bytes
from gemmgen.kernels.gemm.tensor_cores.grid import MAX_INT
from gemmgen.kernels.gemm.wgmma.plan import WgmmaPlan, name_parts
from gemmgen.kernels.gemm.wgmma.plan import plan as wgmma_plan
from gemmgen.kernels.launch import Argument, Constraint, KernelLaunch, LaunchSequence, TensorMapArgument, grid_in_turn

if TYPE_CHECKING:
    from gemmgen.kernels.gemm.plan import Array

TEMPLATE = "gemm/float64_by_int8.cu.j2"


@dataclass(frozen=True, kw_only=True)
class ProductsPlan(WgmmaPlan):
    """The plan of the products of all planes, whose epilogue stores remainders."""

    remainders: RemainderScheme

    @property
    def main_launch(self) -> int:
        return next(index for index, launch in enumerate(self.sequence.launches) if launch.entry == self.name)

    @property
    def result_type(self) -> str:
        return "unsigned"

    @property
    def helpers(self) -> tuple[Helper, ...]:
        return ()


@dataclass(frozen=True, kw_only=True)
class RemaindersPlan(WgmmaPlan):
    """The plan of a float64 GEMM by products of remainders."""

    scheme: RemainderScheme
    products: ProductsPlan
    operands: tuple[RemainderOperand, RemainderOperand]
    parts: tuple[WorkspacePart, ...]

    split_threads = SPLIT_THREADS
    join_threads = JOIN_THREADS
    join_tile = JOIN_TILE

    @property
    def main_launch(self) -> int:
        return len(self.sequence.launches) - 3

    @property
    def arithmetic_text(self) -> str:
        return f"on tensor cores, by {self.scheme.count} products of 8-bit integers"

    @property
    def measured(self) -> tuple[RemainderOperand, ...]:
        """Operands whose lines do not run along k in memory, so that a first kernel computes the lines' norms."""
        return tuple(operand for operand in self.operands if not operand.k_major)

    @property
    def split_launches(self) -> tuple[int, int]:
        """Indices in the launch sequence of the kernels that split A and B."""
        first = int(bool(self.measured))
        return first, first + 1

    @property
    def join_launch(self) -> int:
        """Index in the launch sequence of the kernel that joins the remainders."""
        return self.main_launch + 1

    @property
    def repair_launch(self) -> int:
        """Index in the launch sequence of the kernel that computes marked tiles in float64."""
        return self.main_launch + 2

    @property
    def largest_depth(self) -> int | None:
        return MAX_K

    def additions(self, k: int) -> tuple[str, int]:
        return f"remainders of {self.scheme.count} moduli", 0

    def product_bound(self, a: Array, b: Array, slices: int) -> Array:
        from gemmgen.kernels.gemm.mma_sync.doubles import double_product

        return double_product(a, b, exact=False)[1]


def plan(spec: GemmSpec, mainloop: WgmmaMainloop | MmaSyncMainloop, architecture: Architecture) -> RemaindersPlan:
    """The plan of ``spec`` for ``architecture``. Raises ``PlanError`` with every reason why there is none."""
    if mainloop.strategy != "wgmma":
        need = Reason("remainders", "mainloop.strategy", mainloop.strategy, "wgmma where arithmetic.f64_by is given")
        raise PlanError(f"no kernel for this spec on {architecture.name}:", [need])
    outline = Outline(spec, architecture, [*division_reasons(spec), *invariance_reasons(spec), *remainder_reasons(spec, mainloop)])
    epilogue = outline.epilogue()
    name = outline.name("gemm", name_parts(spec, mainloop))
    scheme = scheme_of(mainloop.arithmetic)
    a, b, _ = outline.matrices
    operands = RemainderOperand(a), RemainderOperand(b)
    parts = workspace_parts(scheme, operands)
    inner = wgmma_plan(products_spec(spec, mainloop), mainloop.model_copy(update={"arithmetic": Arithmetic()}), architecture)
    sequence = _sequence(name, spec, outline, scheme, operands, parts, inner)
    given = {field.name: getattr(inner, field.name) for field in fields(inner)}
    given |= {"name": f"{name}_products", "sequence": sequence}
    products = ProductsPlan(**given, remainders=scheme)
    return RemaindersPlan(
        name=name,
        spec_digest=outline.digest,
        architecture=architecture,
        sequence=sequence,
        template=TEMPLATE,
        shared_memory=inner.shared_memory,
        dynamic_shared_bytes=inner.dynamic_shared_bytes,
        spec=spec,
        matrices=outline.matrices,
        threads=inner.threads,
        tile_m=inner.tile_m,
        tile_n=inner.tile_n,
        vector_c=min(2, spec.alignment.c),
        epilogue=epilogue,
        loop=inner.loop,
        grid=inner.grid,
        scheme=scheme,
        products=products,
        operands=operands,
        parts=parts,
    )


def products_spec(spec: GemmSpec, mainloop: WgmmaMainloop) -> GemmSpec:
    """The products of planes as a batch of 8-bit integers."""
    return spec.model_copy(
        update={
            "storage": Storage(a="s8", b="s8", c="u8"),
            "transpose": "nt",
            "batch": "strided",
            "alignment": Alignment(a=16, b=16, c=16),
            "multiple_of": Multiples(n=16),
            "store": "tma",
            "mainloop": mainloop.model_copy(update={"arithmetic": Arithmetic()}),
        }
    )


def remainder_reasons(spec: GemmSpec, mainloop: WgmmaMainloop) -> Iterator[Reason]:
    """Reasons why a spec cannot multiply by remainders, in addition to the reasons of the products of 8-bit integers."""
    types = (spec.storage.a, spec.storage.b, spec.storage.c)
    if types != ("f64",) * 3:
        yield Reason("storage", "storage", ", ".join(types), "f64 for A, B and C where arithmetic.f64_by is given")
    if mainloop.arithmetic.f32_by is not None:
        yield Reason("arithmetic", "mainloop.arithmetic.f32_by", str(mainloop.arithmetic.f32_by), "none beside f64_by")
    wanted: dict[str, tuple[object, object]] = {
        "order": (spec.order, "row_major"),
        "alpha": (spec.alpha, "one"),
        "beta": (spec.beta, "zero"),
        "batch": (spec.batch, "none"),
        "decomposition.scheme": (spec.decomposition.scheme, "data_parallel"),
        "store": (spec.store, "direct"),
        "dual": (spec.dual, False),
        "epilogue": (len(spec.epilogue), 0),
        "amax": (spec.amax, "none"),
        "early_launch": (spec.early_launch, False),
        "constant": (len(spec.constant), 0),
        "mainloop.tiles": (mainloop.tiles, "static"),
        "mainloop.a_from": (mainloop.a_from, "shared"),
        "mainloop.sparse": (mainloop.sparse, "none"),
        "mainloop.copied": (mainloop.copied, "none"),
    }
    for field, (got, need) in wanted.items():
        if got != need:
            yield Reason("remainders", field, str(got).lower(), f"{str(need).lower()} where arithmetic.f64_by is given")


def _sequence(
    name: str,
    spec: GemmSpec,
    outline: Outline,
    scheme: RemainderScheme,
    operands: tuple[RemainderOperand, RemainderOperand],
    parts: tuple[WorkspacePart, ...],
    inner: WgmmaPlan,
) -> LaunchSequence:
    """Dimensions, arguments, constraints, workspace and launches of the instance ``name``."""
    problem = gemm_problem(spec, outline.matrices, (), MAX_K, MAX_INT)
    size = parts_bytes(parts)
    workspace = workspace_argument("u8", size, 1, "scales, then planes of remainders of A, of B and of their product")
    staging = inner.loop.staging
    assert staging is not None
    maps = [
        *(
            _map(parts, operand.suffix, f"planes_{operand.suffix}", "k", operand.extent, scheme, box)
            for operand, box in zip(operands, (inner.loop.a.box, inner.loop.b.box), strict=True)
        ),
        _map(parts, "c", "products", "n", "m", scheme, staging.box, "u8"),
    ]
    a: list[Argument] = [problem.a, *outline.matrices[0].scalars]
    b: list[Argument] = [problem.b, *outline.matrices[1].scalars]
    c: list[Argument] = [problem.c, *outline.matrices[2].scalars]
    factors: list[Argument] = [*problem.extents, *a, *b]
    multiplied: list[Argument] = [*problem.extents, *maps]

    def launch(entry: str, blocks: str, threads: int, arguments: list[Argument]) -> KernelLaunch:
        grid = Formula(f"select(min(m, n) > 0, {blocks}, 0)"), Formula("1"), Formula("1")
        return KernelLaunch(entry, grid, (threads, 1, 1), tuple(argument.name for argument in arguments))

    tiles = f"ceil_div(m, {JOIN_TILE}) * ceil_div(n, {JOIN_TILE})"
    measuring = [operand.measuring_blocks for operand in operands if not operand.k_major]
    launches = []
    if measuring:
        launches.append(launch(f"{name}_measure", " + ".join(measuring), SPLIT_THREADS, [*factors, workspace]))
    for operand, given in zip(operands, (a, b), strict=True):
        entry = f"{name}_split_{operand.suffix}"
        launches.append(launch(entry, operand.blocks, SPLIT_THREADS, [*problem.extents, *given, workspace]))
    grid, loop = inner.grid, inner.loop
    works = f"ceil_div(m, {grid.tile_m * grid.cluster_m}) * ceil_div(n, {grid.tile_n * grid.cluster_n}) * {scheme.planes}"
    blocks, of_device = grid_in_turn(works, loop.persistent_blocks, grid.cluster_blocks)
    launches.append(
        KernelLaunch(
            entry=f"{name}_products",
            grid=(blocks, Formula("1"), Formula("1")),
            block=(loop.threads, 1, 1),
            arguments=tuple(argument.name for argument in multiplied),
            dynamic_shared_bytes=Formula(str(loop.shared_bytes)),
            cluster=(grid.cluster_blocks, 1, 1),
            blocks_of_device=of_device,
        )
    )
    launches.append(launch(f"{name}_join", tiles, JOIN_THREADS, [*problem.extents, *c, workspace]))
    launches.append(launch(f"{name}_repair", tiles, JOIN_THREADS, [*factors, *c, workspace]))
    most = MAX_INT - 65536
    fits = Constraint(Formula(f"{works} < {most}"), f"{works} must be less than {most}; an int counts the tiles of all planes")
    return LaunchSequence(
        name=name,
        dimensions=problem.dimensions,
        arguments=(*factors, *c, *maps, workspace),
        launches=tuple(launches),
        constraints=(*problem.constraints, fits),
        workspace_bytes=size,
    )


def _map(
    parts: tuple[WorkspacePart, ...],
    suffix: str,
    part: str,
    columns: str,
    rows: str,
    scheme: RemainderScheme,
    box: tuple[int, int],
    element: Literal["u8"] = "u8",
) -> TensorMapArgument:
    """The tensor map of planes in the workspace, one after the other."""
    pitch = f"round_up({columns}, {PITCH_BYTES})"
    return TensorMapArgument(
        name=f"map_{suffix}",
        array="workspace",
        element=element,
        extents=(Formula(columns), Formula(rows), Formula(str(scheme.planes))),
        strides=(Formula(pitch), Formula(f"{rows} * {pitch}")),
        meaning=f"planes of remainders in boxes of {box[1]} rows of {box[0]} along {columns}",
        box=(*box, 1),
        offset_bytes=offset_of(parts, part),
        swizzle="128B",
        l2_promotion="128B",
    )
