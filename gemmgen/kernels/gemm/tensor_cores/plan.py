"""Plans of GEMMs on tensor cores: fragments of results, and the pieces of work that blocks take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypedDict, cast

from gemmgen.core.formulas import ceil_div, round_up
from gemmgen.hardware.target import Architecture
from gemmgen.kernels.epilogue.steps import Step
from gemmgen.kernels.family import SharedRegion
from gemmgen.kernels.gemm.plan import GemmPlan, Helper, Outline
from gemmgen.kernels.gemm.spec import GemmSpec, StreamK
from gemmgen.kernels.gemm.tensor_cores.grid import Grid
from gemmgen.kernels.gemm.tensor_cores.sparse import METADATA_BITS
from gemmgen.kernels.math.tensor_accuracy import Mainloop, product_bound
from gemmgen.kernels.matrix import Matrix

if TYPE_CHECKING:
    from gemmgen.kernels.gemm.plan import Array


class TensorLoop(Mainloop, Protocol):
    """Numbers of a mainloop on tensor cores that do not depend on its instructions."""

    @property
    def accumulator(self) -> str:
        """The type of sums in registers."""

    @property
    def unit(self) -> str:
        """Peak of a device that the products run at."""

    @property
    def stages(self) -> int:
        """Tiles that are in shared memory at a time."""

    @property
    def threads(self) -> int:
        """Threads of a block."""

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""


@dataclass(frozen=True, kw_only=True)
class TensorPlan(GemmPlan):
    """A GEMM on tensor cores."""

    loop: TensorLoop
    grid: Grid

    @property
    def unit(self) -> str:
        return self.loop.unit

    @property
    def step_k(self) -> int:
        return self.loop.tile_k

    @property
    def stages(self) -> int:
        return self.loop.stages

    @property
    def arithmetic_text(self) -> str:
        return "on tensor cores, summed up in " + {"int": "int32", "double": "float64"}.get(self.loop.accumulator, "float32")

    @property
    def tiles_in_turn(self) -> dict[str, tuple[int, int, int]]:
        least_k = self.least_depth or self.loop.tile_k
        sizes = {"tiles of as many steps as stages": (2, 3, round_up(least_k, self.loop.tile_k * self.loop.stages))}
        if self.grid.dynamic:
            sizes["many tiles of one step"] = (4, 6, self.loop.tile_k)
        return sizes

    @property
    def metadata(self) -> Matrix | None:
        """The matrix that says which values of k of a sparse A are kept; None if A is not sparse."""
        return None

    @property
    def factor_scales(self) -> tuple[Matrix, ...]:
        return super().factor_scales if self.metadata is None else (self.metadata,)

    @property
    def row_bits(self) -> int:
        return super().row_bits if self.metadata is None else super().row_bits // 2 + METADATA_BITS

    def product_bound(self, a: Array, b: Array, slices: int) -> Array:
        """Largest error of A B. Where steps along k are distributed among blocks, the sums of all of them may make up a tile, or of as
        many as it has steps."""
        return product_bound(self.loop, max(slices, self.grid.cluster_k), a, b, self.joined_parts(a.shape[-1]))

    def joined_parts(self, k: int) -> int:
        """Sums of unequal parts of k that may make up a tile."""
        division = self.spec.decomposition
        return min(division.blocks, ceil_div(k, self.loop.tile_k)) if isinstance(division, StreamK) else 0

    @property
    def sum_type(self) -> str:
        return self.loop.accumulator

    @property
    def flag_bytes(self) -> int:
        """Bytes at the start of the workspace for the flags of stream-K."""
        return self.grid.flag_bytes(cast("StreamK", self.spec.decomposition))

    # Fragments of results.

    @property
    def staged_store(self) -> str:
        """A store of results by way of other threads or of shared memory; empty where lanes store their accumulators directly."""
        return ""

    @property
    def fragment_store(self) -> str:
        """Store of fragments of results: a macro of ``templates/gemm/fragments.cu.j2``."""
        if self.store == "partial":
            return "partial"
        return self.staged_store or ("pairs" if self.matrix_c.row_major and self.matrix_c.alignment > 1 else "elements")

    @property
    def residual_staged(self) -> bool:
        """True if a residual comes through shared memory, to where its results are collected."""
        return False

    @property
    def helpers(self) -> tuple[Helper, ...]:
        """Packing and guarded reads of pairs."""
        if self.fragment_store not in ("boxes", "pairs", "vectors"):
            return ()
        matrices = (() if self.residual_staged else self.residuals) + ((self.matrix_c,) if self.spec.beta == "argument" else ())
        needed = [Helper("half", "pack", (self.matrix_c.type,))] if self.matrix_c.is_half else []
        for half in sorted({matrix.is_half for matrix in matrices}):
            double = ("double",) if self.matrix_c.type == "f64" else ()
            needed.append(Helper("half" if half else "copy", "load_guarded", (2, *double)))
        for element in sorted({matrix.type for matrix in matrices if matrix.is_half}):
            needed.append(Helper("half", "load_converted", (2, element, True)))
        return tuple(needed)

    def finishing_takes(self, coordinate: Literal["row", "column"]) -> bool:
        """True if finishing a fragment's result takes a coordinate of it: to read a matrix, to look up a value, or to tell whether
        it counts."""
        if self.has_place:
            return True
        looks_up = coordinate in self.epilogue_coordinates and not (self.row_vectors if coordinate == "row" else self.column_vectors)
        reads = self.spec.beta == "argument" or bool(self.residuals and not self.residual_staged)
        return looks_up or reads or self.spec.amax != "none"

    # Pieces of work.

    @property
    def counts_across(self) -> bool:
        """True if pieces of work are found by the number of tiles across the direction that these are counted along."""
        divided = self.slices > 1 or self.cut_at_launch
        return self.spec.rasterization.group > 1 or bool(self.batched) or divided or self.spec.triangles.c != "all"

    @property
    def factors_with_zeros(self) -> tuple[str, ...]:
        """Parts of a tile's triangular factors, in words."""
        triangles = self.spec.triangles
        rows = ("all rows of A",) if triangles.a != "all" else ()
        return (*rows, "all columns of B") if triangles.b != "all" else rows

    @property
    def k_end(self) -> str:
        """The CUDA expression of the values of k that a tile's triangular factors end before."""
        end = "min(work.row + kTileM, k)" if self.spec.triangles.a == "lower" else "k"
        return f"min(work.column + kTileN, {end})" if self.spec.triangles.b == "upper" else end

    @property
    def k_begin(self) -> str:
        """The CUDA expression of a value of k before which they have zeros; empty if they begin with the first."""
        rows, columns = self.spec.triangles.a == "upper", self.spec.triangles.b == "lower"
        if rows and columns:
            return "max(work.row, work.column)"
        return "work.row" if rows else "work.column" if columns else ""

    @property
    def begins_within(self) -> bool:
        """True if a piece of work may begin with another step along k than the first."""
        return (
            getattr(self.spec.decomposition, "slices", 1) != 1
            or self.store in ("streamed", "last")
            or bool(self.k_begin)
            or self.depth_unit > 1
        )


class TensorNumbers(TypedDict):
    """Fields of a plan that all strategies on tensor cores fill alike."""

    name: str
    spec_digest: str
    architecture: Architecture
    spec: GemmSpec
    matrices: tuple[Matrix, Matrix, Matrix]
    epilogue: tuple[Step, ...]
    threads: int
    tile_m: int
    tile_n: int
    vector_c: int
    grid: Grid
    shared_memory: tuple[SharedRegion, ...]
    dynamic_shared_bytes: int


def tensor_numbers(
    outline: Outline, name: str, epilogue: tuple[Step, ...], threads: int, grid: Grid, regions: tuple[SharedRegion, ...]
) -> TensorNumbers:
    """These fields of the instance ``name``, whose blocks have tiles of the grid's and these regions of shared memory."""
    return TensorNumbers(
        name=name,
        spec_digest=outline.digest,
        architecture=outline.architecture,
        spec=outline.spec,
        matrices=outline.matrices,
        epilogue=epilogue,
        threads=threads,
        tile_m=grid.tile_m,
        tile_n=grid.tile_n,
        vector_c=min(2, outline.spec.alignment.c),
        grid=grid,
        shared_memory=regions,
        dynamic_shared_bytes=max((region.offset + region.bytes for region in regions), default=0),
    )
