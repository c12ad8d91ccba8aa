"""From a GEMM spec to every number that its kernel contains, or to all the reasons why there can be none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any, Literal

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import PlanError, Reason
from gemmgen.hardware.target import WARP_THREADS, Architecture
from gemmgen.kernels.epilogue.products import plan_epilogue
from gemmgen.kernels.epilogue.steps import Step
from gemmgen.kernels.family import KernelPlan, SharedRegion
from gemmgen.kernels.gemm.gemv.loop import STAGED_VECTOR, VectorLoop, vector_loop, vector_regions, vector_sequence
from gemmgen.kernels.gemm.matrices import matrix_layouts
from gemmgen.kernels.gemm.mma_sync.loop import WarpLoop, warp_mma_loop, warp_mma_regions
from gemmgen.kernels.gemm.mma_sync.sequence import warp_mma_sequence
from gemmgen.kernels.gemm.reasons import (
    alignment_reasons,
    combination_reasons,
    thread_reasons,
    tile_reasons,
)
from gemmgen.kernels.gemm.sequence import (
    MAXIMUM_REDUCTION_GROUPS,
    MOST_SLICES,
    WORKSPACE_ALIGNMENT,
    Geometry,
    flag_bytes,
    gemm_sequence,
    partials_bytes,
)
from gemmgen.kernels.gemm.simt.exchange import Exchange, plan_exchange
from gemmgen.kernels.gemm.simt.loop import NaiveLoop, TiledLoop, resource_reasons, shared_regions, tiled_loop
from gemmgen.kernels.gemm.spec import (
    Arithmetic,
    DataParallel,
    GemmSpec,
    MmaSyncMainloop,
    NaiveMainloop,
    SplitKCluster,
    SplitKLast,
    SplitKParallel,
    StreamK,
    TensorCoreMainloop,
    VectorMainloop,
)
from gemmgen.kernels.gemm.split_precision.planes import PlanesPlan, plane_scheme, planes_plan
from gemmgen.kernels.gemm.split_precision.sequence import keeping_sequence, planes_sequence
from gemmgen.kernels.gemm.tensor_cores.sequence import tensor_core_sequence
from gemmgen.kernels.gemm.wgmma.copied import CopyPlan, copy_plan
from gemmgen.kernels.gemm.wgmma.loop import vector_bytes, warpgroup_loop, warpgroup_regions
from gemmgen.kernels.launch import Argument, ArrayArgument, LaunchSequence, ScalarArgument, TensorMapArgument
from gemmgen.kernels.math.warpgroup import WarpgroupLoop
from gemmgen.kernels.matrix import Matrix
from gemmgen.kernels.naming import architecture_reasons, instance_name, launch_reasons, spec_digest
from gemmgen.kernels.tiles.resources import ResidentBlocks
from gemmgen.kernels.tiles.unrolling import unroll_pragma

REDUCTION_THREADS = 256
REDUCTION_VECTOR = 4
"""Elements of C that a thread of the kernel that sums up slices works on."""
REDUCTION_GROUPS_OF_ANY = 8
"""Groups where the launch says how many slices there are."""


STORES = {
    "data_parallel": "finished",
    "split_k_parallel": "partial",
    "split_k_serial": "in_turn",
    "stream_k": "streamed",
    "split_k_cluster": "finished",
    "split_k_last": "last",
}


@dataclass(frozen=True)
class Helper:
    """A device function: the template and the macro in it that write the function, and the macro's arguments."""

    template: str
    name: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class EpilogueVector:
    """Values for each row or column that the epilogue reads."""

    name: str
    c_type: str
    offset: int
    """Bytes from the first of those of a group in shared memory."""


@dataclass(frozen=True)
class GemmPlan(KernelPlan):
    """A GEMM instance. *Major* names what runs along the slow dimension of stored C, *minor* along its contiguous one."""

    matrix_a: Matrix
    matrix_b: Matrix
    matrix_c: Matrix
    threads: int
    tile_m: int
    tile_n: int
    vector_c: int
    """Elements of C that one access reads or writes."""
    whole_major: bool
    """True if the extent along the slow dimension of C is a multiple of the tile."""
    whole_minor: bool
    """True if the extent along the contiguous dimension of C is a multiple of the tile."""
    epilogue: tuple[Step, ...]
    loop: TiledLoop | NaiveLoop | VectorLoop | WarpgroupLoop | WarpLoop
    exchange: Exchange | None
    """Exchange of results through shared memory before they are stored to C, if there is one."""
    reduction_groups: int
    """Groups of threads among which a block that sums up slices of k shares them."""
    planes: PlanesPlan | None = None
    """Computation of float32 by planes of a smaller type, if there is one."""
    copied: CopyPlan | None = None
    """The kernel that copies factors first, if there is one."""

    @property
    def warnings(self) -> tuple[Reason, ...]:
        """An estimate of registers beyond what a thread may have."""
        loop = self.loop
        if isinstance(loop, (NaiveLoop, VectorLoop)):
            return ()
        resident = ResidentBlocks(self.architecture, loop.min_blocks_per_sm, self.threads)
        limit = loop.registers[1] if isinstance(loop, WarpgroupLoop) and loop.registers else resident.allocated_registers
        field = "mainloop.tile.thread" if isinstance(loop, TiledLoop) else "mainloop.tile"
        # What copies hold on their way, the compiler may bring in several turns.
        estimate = loop.sums_and_others if isinstance(loop, WarpLoop) else loop.estimated_registers
        return resident.few_registers(estimate, limit, field)

    @property
    def main_launch(self) -> int:
        """The place in the sequence of the kernel that multiplies."""
        return len(self.planes.kernels) if self.planes else int(self.copied is not None)

    @property
    def reduction_launch(self) -> int:
        """The place in the sequence of the kernel that adds up the slices of a parallel split of k."""
        return self.main_launch + 1

    @property
    def reduction_form(self) -> str:
        """That kernel: a macro of ``templates/gemm/reduction.cu.j2``."""
        return "reduction_by_planes" if self.planes is not None else "reduction_kernel"

    @property
    def even_k(self) -> bool:
        """True if the spec promises that k is even."""
        return bool(self.spec.multiple_of.k % 2 == 0)

    @property
    def batch_argument(self) -> str:
        """The number of products as one more argument of a call; empty without a batch."""
        return ", batch" if self.batched else ""

    @property
    def batch_arguments(self) -> str:
        """Arguments by which a call finds planes of a batch, after others; empty without a batch."""
        return ", batch, stride_a, stride_b" if self.batched else ""

    @property
    def inner_epilogue(self) -> tuple[Step, ...]:
        """Operations on results before their largest absolute value is looked for."""
        return self.epilogue[:-1] if self.spec.amax == "unscaled" else self.epilogue

    @property
    def keeping(self) -> LaunchSequence | None:
        """The launch sequence that makes planes to be kept; None if the instance takes none."""
        return keeping_sequence(self.planes) if self.planes is not None and self.planes.kept_operand is not None else None

    @property
    def epilogue_coordinates(self) -> tuple[str, ...]:
        """Coordinates of an element that the epilogue looks at."""
        used = {access.operand.per for step in self.epilogue for access in step.accesses}
        return tuple(coordinate for coordinate in ("row", "column") if coordinate in used)

    def finishing_takes(self, coordinate: Literal["row", "column"]) -> bool:
        """True if finishing a fragment's result takes a coordinate of it: to read a matrix, to look up a value, or to tell whether
        it counts."""
        looks_up = coordinate in self.epilogue_coordinates and not (self.row_vectors if coordinate == "row" else self.column_vectors)
        comes_staged = isinstance(self.loop, WarpgroupLoop) and self.loop.residual
        return looks_up or self.spec.beta == "argument" or bool(self.residuals and not comes_staged) or self.spec.amax != "none"

    @property
    def epilogue_parameters(self) -> tuple[Argument, ...]:
        """Parameters of the epilogue's device function: the value, coordinates, arguments and elements of matrices."""
        parameters: list[Argument] = [ScalarArgument("value", "f32", "the result so far")]
        parameters += [ScalarArgument(name, "s32", f"its {name}") for name in self.epilogue_coordinates]
        for step in self.inner_epilogue:
            parameters += step.arguments
            parameters += [ScalarArgument(matrix.variable, "f32", f"element of {matrix.name}") for matrix in step.matrices]
        return tuple(parameters)

    @property
    def looks_up_along_minor(self) -> bool:
        """True if the epilogue looks something up along the contiguous dimension, for elements that must then exist."""
        return ("column" if self.minor == "n" else "row") in self.epilogue_coordinates

    @property
    def residuals(self) -> tuple[Matrix, ...]:
        """Matrices of C's shape that the epilogue reads."""
        return tuple(matrix for step in self.epilogue for matrix in step.matrices)

    @property
    def column_vectors(self) -> tuple[EpilogueVector, ...]:
        """Values for each column that the epilogue reads, where they come through shared memory."""
        return self._vectors("column") if isinstance(self.loop, WarpgroupLoop) and self.loop.column_bytes else ()

    @property
    def row_vectors(self) -> tuple[EpilogueVector, ...]:
        """Values for each row that the epilogue reads, where a thread reads those of its rows beforehand."""
        return self._vectors("row") if isinstance(self.loop, WarpgroupLoop) and self.loop.staging else ()

    def _vectors(self, per: str) -> tuple[EpilogueVector, ...]:
        assert isinstance(self.loop, WarpgroupLoop)
        found: list[EpilogueVector] = []
        offset = 0
        for access in (access for step in self.epilogue for access in step.accesses if access.operand.per == per):
            element = ELEMENTS[access.stored]
            found.append(EpilogueVector(access.name, element.c_type, offset))
            offset += vector_bytes(self.loop.tile_n, element.bytes)
        return tuple(found)

    @property
    def batched(self) -> tuple[Matrix, ...]:
        """Matrices of which each product of a batch has its own."""
        matrices = (self.matrix_a, self.matrix_b, self.matrix_c, *self.residuals)
        return matrices if self.spec.batch == "strided" else ()

    @property
    def grouped(self) -> bool:
        """True if the rows of A and C belong to groups."""
        return bool(self.spec.batch == "grouped")

    def passed(self, argument: Argument) -> str:
        """The expression that the epilogue's function is passed for one of its arguments."""
        own = self.grouped and not self.column_vectors and isinstance(argument, ArrayArgument) and len(argument.shape) == 2
        return f"{argument.name} + static_cast<long long>(work.product) * n" if own else argument.name

    def batched_in(self, launch: int) -> tuple[Matrix, ...]:
        """Those of the batched matrices that the kernel of a launch is given."""
        given = self.sequence.launches[launch].arguments
        return tuple(matrix for matrix in self.batched if matrix.name in given)

    @property
    def approximate(self) -> bool:
        """True if the epilogue calls functions whose last bits differ between backends."""
        return any(step.operation.approximate for step in self.epilogue)

    @property
    def mainloop(self) -> str:
        """The kernel's mainloop in ``templates/gemm/mainloop.cu.j2``."""
        assert isinstance(self.loop, TiledLoop)
        if self.loop.fragment_buffers == 2:
            return f"{self.loop.copies}_read_ahead"
        if self.loop.stages == 1:
            return f"{self.loop.copies}_one_stage"
        return "cp_async_stages" if self.loop.copies == "cp_async" else "registers_two_stages"

    @property
    def partial_vector(self) -> int:
        """Elements of a partial product that one store to the workspace writes."""
        assert isinstance(self.loop, TiledLoop)
        return self.exchange.copy.vector if self.exchange else gcd(REDUCTION_VECTOR, self.loop.minor.fragment.vector)

    @property
    def partial_constant(self) -> str:
        """The constant that says how rows of the slices' sums are rounded up."""
        reader = "second kernel" if self.planes is None else "kernel below"
        return f"constexpr int kPartialVector = {REDUCTION_VECTOR};  // sums that the {reader} reads at a time: rows are whole vectors"

    @property
    def partial_vector_elements(self) -> int:
        """Sums of a slice that the second kernel reads at a time."""
        return REDUCTION_VECTOR

    @property
    def workspace_alignment(self) -> int:
        """Bytes that the parts of the workspace are multiples of."""
        return WORKSPACE_ALIGNMENT

    @property
    def flag_bytes(self) -> int:
        """Bytes at the start of the workspace for the flags of stream-K on tensor cores."""
        assert isinstance(self.spec.decomposition, StreamK) and isinstance(self.loop, WarpgroupLoop | WarpLoop)
        return flag_bytes(self.spec.decomposition.blocks, self.loop.consumers)

    @property
    def group_threads(self) -> int:
        """Threads of a block that work on the same tiles."""
        return self.threads // getattr(self.loop, "k_groups", 1)

    @property
    def slices(self) -> int:
        """Parts that k is divided into, those of a cluster's blocks aside; 1 where the launch says how many."""
        slices = getattr(self.spec.decomposition, "slices", 1)
        return 1 if isinstance(self.spec.decomposition, SplitKCluster) or slices == "launch" else int(slices)

    @property
    def cut_at_launch(self) -> bool:
        """True if the launch says into how many slices a parallel split cuts k."""
        return getattr(self.spec.decomposition, "slices", 1) == "launch"

    @property
    def slices_name(self) -> str:
        """Their number, as CUDA."""
        return "slices" if self.cut_at_launch else "kSlices"

    @property
    def partials(self) -> str:
        """Where the sums of slices begin, as CUDA."""
        if self.planes is None:
            return "workspace"
        return f"parts_of(workspace, m, n, k{self.batch_arguments}).partials"

    @property
    def store(self) -> str:
        """Where a tile goes: ``finished``, or ``partial``, ``in_turn``, ``last`` or ``streamed`` with k divided among blocks."""
        return STORES[self.spec.decomposition.scheme]

    @property
    def divides_k(self) -> bool:
        """True if a thread may have only a part of k."""
        return self.store != "finished" or self.group_threads < self.threads

    @property
    def shares_of_k(self) -> tuple[str, str]:
        """Number of the parts that a tile's k is divided into by slices and groups of threads, and the own one: CUDA expressions."""
        slices = "static_cast<int>(gridDim.z)" if self.cut_at_launch else "kSlices"
        if self.group_threads == self.threads:
            return slices, "static_cast<int>(blockIdx.z)"
        if self.slices == 1 and not self.cut_at_launch:
            return "kGroups", "group"
        return f"{slices} * kGroups", "(static_cast<int>(blockIdx.z) * kGroups + group)"

    def combined(self, product: str, previous: str) -> str:
        """CUDA expression of alpha times a product plus beta times the previous element of C, as far as the spec has them."""
        scaled, added = self.spec.alpha == "argument", self.spec.beta == "argument"
        if not added:
            return f"alpha * {product}" if scaled else product
        return f"fmaf(alpha, {product}, beta * {previous})" if scaled else f"fmaf(beta, {previous}, {product})"

    def box_position(self, operand: str, planes: int) -> str:
        """Third coordinate of a tile in an operand's tensor map; empty where the map has two axes."""
        if planes > 1:
            return "plane"
        matrix = self.matrix_a if operand == "A" else self.matrix_b
        return "product" if matrix.batch_stride else ""

    @property
    def helpers(self) -> tuple[Helper, ...]:
        """The small device functions that the kernel needs."""
        if isinstance(self.loop, WarpgroupLoop | WarpLoop):
            return fragment_helpers(self)
        if isinstance(self.loop, VectorLoop):
            return vector_helpers(self, self.loop)
        return () if isinstance(self.loop, NaiveLoop) else copy_helpers(self, self.loop)

    @property
    def unit(self) -> str:
        """Peak of a device that the arithmetic runs at."""
        if self.planes is not None:
            return f"f32_by_{self.planes.scheme.name}_{'mma' if isinstance(self.loop, WarpLoop) else 'wgmma'}"
        return self.loop.unit if isinstance(self.loop, WarpgroupLoop | WarpLoop) else "fp32"

    def sequence_type(self, name: str) -> str:
        """The element type of the array argument ``name``."""
        return next(array.type for array in self.sequence.arrays if array.name == name)

    @property
    def fragment_store(self) -> str:
        """Stores of fragments of results, in a kernel on tensor cores."""
        return fragment_store(self)

    @property
    def fragment_vectors_read(self) -> tuple[tuple[int, int, bool], ...]:
        """Pairs and elements of the vectors that lanes read of A and B, and whether all of a vector exists or nothing, each once."""
        assert isinstance(self.loop, WarpLoop) and self.loop.vectors is not None
        vectors = self.loop.vectors
        a = (vectors.words_along_k if self.loop.a.k_major else vectors.blocks_m, vectors.whole_a)
        b = (vectors.words_along_k if self.loop.b.k_major else vectors.blocks_n, vectors.whole_b)
        return tuple((pairs, 2 * pairs, whole) for pairs, whole in dict.fromkeys((a, b)))

    @property
    def sum_type(self) -> str:
        """The type of sums of products."""
        return self.loop.accumulator if isinstance(self.loop, WarpgroupLoop | WarpLoop) else "float"

    @property
    def result_type(self) -> str:
        """The type of a result before it is stored, in a kernel on tensor cores."""
        return "int" if self.matrix_c.type == "s32" else "float"

    @property
    def tensor_maps(self) -> tuple[str, ...]:
        """Names of the tensor maps."""
        return tuple(argument.name for argument in self.sequence.arguments if isinstance(argument, TensorMapArgument))

    @property
    def counts_across(self) -> bool:
        """True if pieces of work on tensor cores are found by the number of tiles across the direction that these are counted along."""
        return self.spec.rasterization.group > 1 or bool(self.batched) or self.slices > 1 or self.cut_at_launch

    @property
    def begins_within(self) -> bool:
        """True if a piece of work on tensor cores may begin with another step along k than the first."""
        return getattr(self.spec.decomposition, "slices", 1) != 1 or self.store == "streamed"

    @property
    def first_step(self) -> str:
        """The first step along k of a piece of work, as an expression."""
        return "work.first_step" if self.begins_within else "0"

    @property
    def first_step_member(self) -> str:
        """The declaration of ``first_step`` within a piece of work."""
        return "int first_step;" if self.begins_within else ""

    @property
    def first_step_reset(self) -> str:
        """The statement by which a piece of work begins with the first step of a tile."""
        return "work.first_step = 0;" if self.begins_within else ""

    @property
    def end_step(self) -> str:
        """The step along k behind the last of a piece of work, as an expression."""
        return "work.first_step + work.steps" if self.begins_within else "work.steps"

    def step_of_work(self, step: str) -> str:
        """A step along k, counted from the first of a piece of work, as an operand."""
        whole = f"work.first_step + {step}" if self.begins_within else step
        return f"({whole})" if " " in whole else whole

    def work_extents(self, of_problem: str = "", of_extent: str = "") -> str:
        """Arguments that a piece of work on tensor cores is found by, or, with the types before them, the parameters: the extents, each
        followed by a comma, or the problem in place of m."""
        along = self.minor if self.spec.rasterization.along == "minor" else self.major
        found = [f"{of_problem}problem,"] if self.grouped else [f"{of_extent}m,"] if self.counts_across or along == "m" else []
        return " ".join([*found, *([f"{of_extent}n,"] if self.counts_across or along == "n" else [])])

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
    matrices = matrix_layouts(spec)
    too_wide = alignment_reasons(matrices)
    reasons += too_wide + combination_reasons(spec) + launch_reasons(spec.early_launch, spec)
    mainloop = spec.mainloop
    loop: TiledLoop | NaiveLoop | VectorLoop | WarpgroupLoop | WarpLoop | None
    regions: tuple[SharedRegion, ...] = ()
    exchange: Exchange | None = None
    if isinstance(mainloop, NaiveMainloop):
        tile_m, tile_n = mainloop.threadblock.m, mainloop.threadblock.n
        threads = tile_m * tile_n
        reasons += thread_reasons(threads, architecture, "mainloop.threadblock")
        row_major = spec.order == "row_major"
        loop = NaiveLoop(*((tile_m, tile_n) if row_major else (tile_n, tile_m)), unroll_pragma(mainloop.unroll))
        vector_c = 1
        prefix, parts = "sgemm_naive", [f"{tile_m}x{tile_n}"]
        template = "gemm/naive.cu.j2"
    elif isinstance(mainloop, VectorMainloop):
        tile_m, tile_n, threads, vector_c = 1, mainloop.columns, mainloop.threads, 1
        loop = None if too_wide else vector_loop(spec, mainloop, matrices, architecture, reasons)
        if loop is not None:
            regions, tile_m, vector_c = vector_regions(loop), loop.tile_m, loop.width_c
        reasons += thread_reasons(threads, architecture, "mainloop.threads")
        prefix, parts = "gemm_vector", [f"{mainloop.lanes}{mainloop.along}", f"{mainloop.rows}x{mainloop.columns}"]
        template = "gemm/vector.cu.j2"
    elif isinstance(mainloop, TensorCoreMainloop):
        tile_m, tile_n, threads, vector_c = mainloop.tile.m, mainloop.tile.n, 0, min(2, spec.alignment.c)
        loop = warpgroup_loop(spec, mainloop, matrices, architecture, reasons)
        if loop is not None:
            regions, threads = warpgroup_regions(loop), loop.threads
        prefix, parts = "gemm", tensor_core_parts(spec, mainloop)
        template = "gemm/tensor_core.cu.j2"
    elif isinstance(mainloop, MmaSyncMainloop):
        block, warp = mainloop.tile.threadblock, mainloop.tile.warp
        direct = mainloop.copies == "none"
        tile_m, tile_n = (warp.m, warp.n) if direct else (block.m, block.n)
        threads, vector_c = 0, min(2, spec.alignment.c)
        loop = None if too_wide else warp_mma_loop(spec, mainloop, matrices, architecture, reasons)
        if loop is not None:
            regions, threads = warp_mma_regions(loop), loop.threads
        prefix, parts = "gemm_mma", [f"{block.m}x{block.n}x{block.k}", f"w{warp.m}x{warp.n}"]
        vectors = mainloop.fragment_reads == "vectors"
        parts += ["vectors"] if vectors else ["direct"] if direct else [f"s{mainloop.stages}"]
        parts += [mainloop.copies] if mainloop.copies not in ("cp_async", "none") else []
        parts += ["ahead"] if mainloop.fragment_buffers == 2 else []
        parts += arithmetic_parts(mainloop.arithmetic)
        template = f"gemm/warp_{'vectors' if vectors else 'direct' if direct else 'mma'}.cu.j2"
    else:
        tile = mainloop.tile
        tile_m, tile_n = tile.threadblock.m, tile.threadblock.n
        unfit = tile_reasons(mainloop, architecture)
        reasons += unfit
        loop, threads, vector_c = None, 0, 1
        if not unfit and not too_wide:
            threads = WARP_THREADS * (tile_m // tile.warp.m) * (tile_n // tile.warp.n)
            loop = tiled_loop(spec, mainloop, matrices, threads, architecture, reasons)
        if loop is not None:
            vector_c = gcd(spec.alignment.c, loop.minor.fragment.vector)
            regions = shared_regions(loop, threads)
            if spec.store == "through_shared":
                partial = isinstance(spec.decomposition, SplitKParallel)
                vector = REDUCTION_VECTOR if partial else spec.alignment.c
                exchange = plan_exchange(loop.major, loop.minor, threads // WARP_THREADS, vector, reasons)
            if exchange is not None:
                vector_c = exchange.copy.vector
                regions += (exchange.region(),)
            threads *= loop.k_groups
            reasons += resource_reasons(loop, threads, regions, architecture)
        prefix = "sgemm"
        parts = [
            f"{tile_m}x{tile_n}x{tile.threadblock.k}",
            f"w{tile.warp.m}x{tile.warp.n}",
            f"t{tile.thread.m}x{tile.thread.n}",
            f"s{mainloop.stages}",
        ]
        parts += [f"g{mainloop.k_groups}"] if mainloop.k_groups > 1 else []
        template = "gemm/tiled.cu.j2"
    if isinstance(spec.decomposition, SplitKLast) or getattr(spec.decomposition, "slices", 1) == "launch":
        parts.append(spec.decomposition.scheme.replace("_", ""))
    elif not isinstance(spec.decomposition, DataParallel):
        count = spec.decomposition.blocks if isinstance(spec.decomposition, StreamK) else spec.decomposition.slices
        parts.append(f"{spec.decomposition.scheme.replace('_', '')}{count}")
    epilogue = plan_epilogue(spec.epilogue, matrices[2], reasons, spec.batch == "grouped")
    if reasons:
        raise PlanError(f"no kernel for this spec on {architecture.name}:", reasons)
    assert loop is not None
    whole = {"m": spec.multiple_of.m % tile_m == 0, "n": spec.multiple_of.n % tile_n == 0}
    major, minor = ("m", "n") if spec.order == "row_major" else ("n", "m")
    parts += ["amax"] if spec.amax != "none" else []
    parts += {"none": [], "strided": ["batched"], "grouped": ["grouped"]}[spec.batch]
    types = [matrix.type for matrix in matrices]
    parts += ["_".join(types)] if set(types) != {"f32"} else []
    parts += [spec.transpose if spec.order == "row_major" else f"{spec.transpose}_col"]
    name = instance_name(prefix, parts, spec)
    shared_bytes = max((region.offset + region.bytes for region in regions), default=0)
    static = shared_bytes <= architecture.static_shared_bytes_per_block and not isinstance(loop, WarpgroupLoop | WarpLoop)
    reduction_elements = REDUCTION_THREADS // _reduction_groups(spec) * REDUCTION_VECTOR
    geometry = Geometry(
        tile_m=tile_m,
        tile_n=tile_n,
        tile_k=loop.tile_k if isinstance(loop, TiledLoop) else 1,
        threads=threads,
        regions=regions,
        static_shared=static,
        reduction_threads=REDUCTION_THREADS,
        reduction_elements=reduction_elements,
    )
    planes, copied = None, copy_plan(name, spec, matrices)
    if isinstance(loop, VectorLoop):
        sequence = vector_sequence(name, spec, matrices, loop, epilogue)
    elif isinstance(loop, WarpgroupLoop):
        assert isinstance(mainloop, TensorCoreMainloop)
        held = loop.tile_n // 8, loop.blocks_m
        parts_of_k = loop.cluster_k * loop.k_groups
        slices, partial_bytes = _partial_sums(spec, matrices)
        planes = planes_plan(
            name, mainloop.arithmetic, matrices, loop.tile_k, mainloop.promote_every, parts_of_k, held, slices, partial_bytes
        )
        if planes is not None:
            sequence = planes_sequence(name, spec, matrices, loop, epilogue, planes, (REDUCTION_THREADS, reduction_elements))
        else:
            sequence = tensor_core_sequence(name, spec, matrices, loop, epilogue, (REDUCTION_THREADS, reduction_elements), copied)
    elif isinstance(loop, WarpLoop):
        assert isinstance(mainloop, MmaSyncMainloop)
        held = loop.warp_n // 8, loop.warp_m // loop.block_rows
        planes = planes_plan(name, mainloop.arithmetic, matrices, loop.tile_k, matrices_held=held)
        if planes is not None:
            sequence = planes_sequence(name, spec, matrices, loop, epilogue, planes, (REDUCTION_THREADS, reduction_elements))
        else:
            sequence = warp_mma_sequence(name, spec, matrices, loop, epilogue, (REDUCTION_THREADS, reduction_elements), shared_bytes)
    else:
        sequence = gemm_sequence(name, spec, matrices, geometry, epilogue)
    return GemmPlan(
        name=name,
        spec_digest=spec_digest(spec),
        architecture=architecture,
        sequence=sequence,
        template=template,
        shared_memory=regions,
        dynamic_shared_bytes=0 if static else shared_bytes,
        spec=spec,
        matrix_a=matrices[0],
        matrix_b=matrices[1],
        matrix_c=matrices[2],
        threads=threads,
        tile_m=tile_m,
        tile_n=tile_n,
        vector_c=vector_c,
        whole_major=whole[major],
        whole_minor=whole[minor],
        epilogue=epilogue,
        loop=loop,
        exchange=exchange,
        reduction_groups=_reduction_groups(spec),
        planes=planes,
        copied=copied,
    )


def tensor_core_parts(spec: GemmSpec, mainloop: TensorCoreMainloop) -> list[str]:
    """Part of the name of an instance on tensor cores for its mainloop."""
    tile, cluster = mainloop.tile, mainloop.cluster
    parts = [
        f"{tile.m}x{tile.n}x{tile.k}",
        f"s{mainloop.stages}",
        f"{mainloop.schedule[0]}{mainloop.consumers}",
    ]
    parts += arithmetic_parts(mainloop.arithmetic)
    parts += [f"cluster{cluster.m}x{cluster.n}"] if cluster.m * cluster.n > 1 else []
    parts += ["tma"] if spec.store == "tma" else []
    parts += ["dynamic"] if mainloop.tiles == "dynamic" else []
    parts += ["aregs"] if mainloop.a_from == "registers" else []
    parts += [f"copied_{mainloop.copied}"] if mainloop.copied != "none" else []
    return parts


def arithmetic_parts(arithmetic: Arithmetic) -> list[str]:
    """Part of the name of an instance on tensor cores for what it makes float32 products of."""
    parts: list[str] = [arithmetic.f32_by] if arithmetic.f32_by else []
    parts += [f"kept_{arithmetic.kept}"] if arithmetic.kept != "none" else []
    return [*parts, *(["split_rows"] if arithmetic.split == "mainloop" else [])]


def _partial_sums(spec: GemmSpec, matrices: tuple[Matrix, Matrix, Matrix]) -> tuple[int, str]:
    """Slices of k, at most, whose sums a kernel adds up, and what these take of the workspace; 1 and nothing without such a kernel."""
    if not isinstance(spec.decomposition, SplitKParallel):
        return 1, ""
    slices = spec.decomposition.slices
    if slices == "launch":
        return MOST_SLICES, str(partials_bytes(spec, matrices, "slices"))
    return slices, str(partials_bytes(spec, matrices, slices))


def _reduction_groups(spec: GemmSpec) -> int:
    """Groups of threads among which a reducing block shares the slices: about eight slices each, a power of two of groups. Several where
    float32 is computed by planes."""
    slices = getattr(spec.decomposition, "slices", 1)
    if slices == "launch":
        return REDUCTION_GROUPS_OF_ANY
    if plane_scheme(getattr(spec.mainloop, "arithmetic", Arithmetic())) is not None:
        return min(REDUCTION_GROUPS_OF_ANY, 1 << (slices.bit_length() - 1))
    return int(min(MAXIMUM_REDUCTION_GROUPS, 1 << max(0, (slices - 1).bit_length() - 3)))


def packed(plan: GemmPlan, sizes: Sequence[int], batch: int = 1) -> dict[str, int]:
    """All dimensions of a problem of m, n, k without gaps between rows, columns or matrices."""
    problem = dict(zip(("m", "n", "k"), sizes, strict=True))
    for dimension in plan.sequence.dimensions:
        if dimension.name in ("batch", "groups"):
            problem[dimension.name] = batch
        elif dimension.default is not None:
            problem[dimension.name] = dimension.default.evaluate(problem)
    return problem


def fragment_store(plan: GemmPlan) -> str:
    """Store of fragments of results: a macro of ``templates/gemm/fragments.cu.j2``."""
    if plan.store == "partial":
        return "partial"
    if plan.planes is not None:
        return "scaled"
    if plan.spec.store == "tma":
        return "boxes"
    if isinstance(plan.loop, WarpLoop | WarpgroupLoop) and plan.loop.turned:
        return "rows" if isinstance(plan.loop, WarpLoop) else "turned"
    if isinstance(plan.loop, WarpLoop) and plan.loop.vectors is not None:
        return "vectors"
    if plan.matrix_c.row_major and plan.matrix_c.alignment > 1:
        return "pairs"
    return "elements"


def fragment_helpers(plan: GemmPlan) -> tuple[Helper, ...]:
    """Packing and guarded reads of pairs for a kernel on tensor cores, whose factors stay as they are."""
    if plan.fragment_store not in ("boxes", "pairs", "vectors"):
        return ()
    staged = isinstance(plan.loop, WarpgroupLoop) and plan.loop.residual
    matrices = (() if staged else plan.residuals) + ((plan.matrix_c,) if plan.spec.beta == "argument" else ())
    needed = [Helper("half", "pack", (plan.matrix_c.type,))] if plan.matrix_c.is_half else []
    for half in sorted({matrix.is_half for matrix in matrices}):
        needed.append(Helper("half" if half else "copy", "load_guarded", (2,)))
    for element in sorted({matrix.type for matrix in matrices if matrix.is_half}):
        needed.append(Helper("half", "load_converted", (2, element, True)))
    return tuple(needed)


def vector_helpers(plan: GemmPlan, loop: VectorLoop) -> tuple[Helper, ...]:
    """Loads of A and B in a kernel for few columns, whole and guarded; what others call before those."""
    if loop.along == "m":
        return stream_helpers(plan, loop)
    kinds = ("whole", "guarded")
    wanted = [(matrix, width, kind) for matrix, width in ((plan.matrix_a, loop.width_a), (plan.matrix_b, loop.width_b)) for kind in kinds]
    needed: dict[Helper, None] = {}
    if plan.store == "last":
        needed[Helper("copy", "load_guarded", (loop.sum_width,))] = None
    if loop.width_c > 1:
        element = plan.matrix_c.type
        needed |= {Helper("copy", kind, (loop.width_c,)): None for kind in ("load_whole", "store_whole")}
        if plan.matrix_c.is_half:
            needed |= {Helper("half", "pack", (element,)): None, Helper("half", "store_whole", (loop.width_c, element)): None}
    for matrix, width, kind in wanted:
        needed[Helper("half" if matrix.is_half else "copy", f"load_{kind}", (width,))] = None
    for matrix, width, kind in wanted:
        if matrix.is_half:
            needed[Helper("half", "load_converted", (width, matrix.type, kind == "guarded"))] = None
    return tuple(needed)


def stream_helpers(plan: GemmPlan, loop: VectorLoop) -> tuple[Helper, ...]:
    """Loads of A and B as they lie in memory, where lanes lie along m; what adds up slices."""
    needed = {Helper("copy", "load_guarded", (loop.sum_width,)): None} if plan.store == "last" else {}
    if loop.stages_b:
        needed[Helper("copy", "load_whole", (STAGED_VECTOR,))] = None
    for held in (loop.held_a,) if loop.stages_b else (loop.held_a, loop.held_b):
        kind = "load_words" if held.in_words else "load_whole"
        needed[Helper("copy" if held.element == "f32" else "half", kind, (held.width,))] = None
    return tuple(needed)


def copy_helpers(plan: GemmPlan, loop: TiledLoop) -> tuple[Helper, ...]:
    """Copies of vectors between memories and registers; wide ones first, and what others call before those."""
    needed: dict[Helper, None] = {}

    def load(kind: str, width: int, half: bool) -> None:
        needed[Helper("half" if half else "copy", f"load_{kind}", (width,))] = None

    for operand in sorted(loop.copied, key=lambda operand: -operand.copy.vector):
        if not operand.is_async:
            for copied in (operand.inside, operand) if loop.checks_tiles else (operand,):
                load("guarded" if copied.guarded else "whole", operand.copy.vector, operand.is_half)
        elif operand.converts_fragments and operand.load_width > 1:
            load("whole", operand.load_width, half=True)
    kind = "whole" if plan.whole_minor else "guarded"
    if plan.store == "partial":
        needed[Helper("copy", f"store_{kind}", (plan.partial_vector,))] = None
        return tuple(needed)
    width, element = plan.vector_c, plan.matrix_c.type
    half = plan.matrix_c.is_half
    if plan.spec.beta == "argument" or plan.residuals:
        load(kind, width, half)
        if half:
            needed[Helper("half", "load_converted", (width, element, kind == "guarded"))] = None
    if half and width > 1:
        needed[Helper("half", "pack", (element,))] = None
    streaming = (True,) if plan.spec.cache.streaming_stores else ()
    stored = (width, element, *streaming) if half else (width, *streaming)
    needed[Helper("half" if half else "copy", f"store_{kind}", stored)] = None
    return tuple(needed)
