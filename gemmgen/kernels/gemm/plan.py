"""Plans of GEMMs: the parts common to all strategies, and the first and last steps of planning."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import TYPE_CHECKING, Any, Literal

from gemmgen.core.elements import ELEMENTS, DataType
from gemmgen.core.errors import PlanError, Reason
from gemmgen.core.formulas import Formula, round_up
from gemmgen.hardware.target import Architecture
from gemmgen.kernels.accuracy import UNIT_ROUNDOFF
from gemmgen.kernels.epilogue.graph import Accuracy, accuracy_of
from gemmgen.kernels.epilogue.products import plan_epilogue
from gemmgen.kernels.epilogue.steps import SECOND_VALUE, Access, Step, Store, convert
from gemmgen.kernels.epilogue.sums import BY_COLUMNS, BY_ROWS, SummingPlan, Terms, passed, stores_of
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.gemm.grouping import ENDS
from gemmgen.kernels.gemm.matrices import matrix_layouts, scale_layouts, second_factor
from gemmgen.kernels.gemm.reasons import (
    alignment_reasons,
    constant_reasons,
    double_reasons,
    dual_reasons,
    place_reasons,
    scalar_reasons,
    scale_reasons,
    triangle_reasons,
    ungrouped_reasons,
)
from gemmgen.kernels.gemm.scaling import ScaleArray
from gemmgen.kernels.gemm.sequence import REDUCTION_VECTOR, WORKSPACE_ALIGNMENT, reduction_groups
from gemmgen.kernels.gemm.spec import Arithmetic, DataParallel, GemmSpec, SplitKCluster, SplitKLast, StreamK
from gemmgen.kernels.launch import Argument, ArrayArgument, LaunchSequence, ScalarArgument, TensorMapArgument
from gemmgen.kernels.math.tensor_accuracy import factors
from gemmgen.kernels.matrix import Matrix
from gemmgen.kernels.naming import architecture_reasons, instance_name, launch_reasons, spec_digest

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

TYPICAL = {"m": 4096, "n": 4096, "k": 4096}

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

    access: Access
    offset: int
    """Bytes from the first of those of a group in shared memory, which holds those for columns as float32."""

    @property
    def name(self) -> str:
        return self.access.name

    @property
    def c_type(self) -> str:
        """Type of the values in memory."""
        return ELEMENTS[self.access.stored].c_type

    @property
    def converted(self) -> str:
        """The CUDA expression of loaded value `i` as a float."""
        return convert(f"{self.name}_loaded[i]", self.access.stored, "f32")


@dataclass(frozen=True)
class Passed:
    """A pointer or a number as the kernel passes it to the epilogue's function."""

    name: str
    """CUDA expression of the array, for the first product of a batch."""
    batch_stride: str
    """CUDA expression of the elements from one product's part to the next; empty if all share one."""


@dataclass(frozen=True, kw_only=True)
class GemmPlan(SummingPlan, KernelPlan[GemmSpec]):
    """A GEMM instance. *Major* names quantities along the slow dimension of stored C, *minor* those along its contiguous one."""

    matrices: tuple[Matrix, Matrix, Matrix]
    """A, B and C."""
    threads: int
    tile_m: int
    tile_n: int
    vector_c: int
    """Elements of C that one access reads or writes."""
    epilogue: tuple[Step, ...]

    @property
    def matrix_a(self) -> Matrix:
        return self.matrices[0]

    @property
    def matrix_b(self) -> Matrix:
        return self.matrices[1]

    @property
    def matrix_c(self) -> Matrix:
        return self.matrices[2]

    @property
    def second_b(self) -> Matrix | None:
        """The second matrix that A is multiplied by, if there is one."""
        return second_factor(self.spec)

    @property
    def factors_b(self) -> tuple[Matrix, ...]:
        """The matrices that A is multiplied by."""
        return (self.matrix_b,) if self.second_b is None else (self.matrix_b, self.second_b)

    @property
    def weight_bits(self) -> int:
        """Bits of an element of B in memory."""
        return 8 * self.matrix_b.element_bytes

    @property
    def row_bits(self) -> int:
        """Bits of memory of each value of k of a row of A."""
        return 8 * self.matrix_a.element_bytes

    @property
    def packed_factors(self) -> bool:
        """True if each byte of A and B holds two numbers."""
        return False

    @property
    def scales(self) -> tuple[ScaleArray, ...]:
        """Block scales of A and B."""
        return scale_layouts(self.spec)

    @property
    def factor_scales(self) -> tuple[Matrix, ...]:
        """Matrices that define the values of the elements of A and B: scales and zero points."""
        return tuple(scale.matrix for scale in self.scales if scale.dimensions)

    def metadata_by_rows(self, arrays: Mapping[str, Array]) -> npt.NDArray[np.uint16]:
        """Metadata of a sparse A, (m, k / 16)."""
        raise NotImplementedError

    def scales_of(self, operand: Literal["a", "b"]) -> ScaleArray | None:
        """Scales of one operand."""
        return next((scale for scale in self.scales if scale.operand == operand), None)

    @property
    def major(self) -> Literal["m", "n"]:
        """The dimension of C that is slow in memory."""
        return "m" if self.matrix_c.row_major else "n"

    @property
    def minor(self) -> Literal["m", "n"]:
        """The dimension of C that is contiguous in memory."""
        return "n" if self.matrix_c.row_major else "m"

    def _is_whole(self, axis: Literal["m", "n"]) -> bool:
        tile = self.tile_m if axis == "m" else self.tile_n
        return bool(getattr(self.spec.multiple_of, axis) % tile == 0)

    @property
    def whole_major(self) -> bool:
        """True if the extent along the slow dimension of C is a multiple of the tile."""
        return self._is_whole(self.major)

    @property
    def whole_minor(self) -> bool:
        """True if the extent along the contiguous dimension of C is a multiple of the tile."""
        return self._is_whole(self.minor)

    # Properties of a strategy's mainloop; the defaults are those of an FFMA mainloop without resources.

    @property
    def unit(self) -> str:
        """Peak of a device that the arithmetic runs at."""
        return "fp32"

    @property
    def registers_per_thread(self) -> int:
        """Registers of a thread, an estimate within the spec's limit."""
        raise NotImplementedError

    @property
    def step_k(self) -> int:
        """Values of k after which the mainloop continues with its next stage."""
        raise NotImplementedError

    @property
    def slice_k(self) -> int:
        """The smallest slice of k that is worth a block."""
        return self.step_k

    @property
    def slices_of_a_turn(self) -> int:
        """Slices of k whose sums the last block of a tile reads at a time; 0 if no loop of a fixed number of them does."""
        return 0

    @property
    def padded_k(self) -> int:
        """Values of k of which a mainloop multiplies a multiple, zeros included."""
        return self.step_k

    @property
    def stages(self) -> int:
        """Tiles that are in shared memory at a time."""
        return 1

    @property
    def finishes_aside(self) -> bool:
        """True if a block finishes one result while it multiplies for the next."""
        return False

    @property
    def finishing_pace(self) -> float:
        """Time of the epilogue's instructions over that of an SM with enough warps to issue one every clock cycle."""
        return 1.0

    @property
    def least_depth(self) -> int:
        """k from which on products are made of those of smaller types; 0: none are."""
        return 0

    @property
    def largest_depth(self) -> int | None:
        """The deepest k that the instance takes, if its tile bounds it."""
        return None

    @property
    def tiles_in_turn(self) -> dict[str, tuple[int, int, int]]:
        """Problems for a block that takes several tiles: tiles along m and n, and k. Each tile ends with the last stage, or is over sooner
        than the next is handed out."""
        return {}

    @property
    def fetched_tile(self) -> tuple[int, int]:
        """Rows and columns of C that are computed from one fetch of A and B."""
        return self.tile_m, self.tile_n

    @property
    def row_parts(self) -> int:
        """Parts of a tile's rows that take no time where a group of rows has none in them."""
        return 1

    @property
    def arithmetic_text(self) -> str:
        """Place and precision of the sums, in words."""
        return "in float32"

    @property
    def typical(self) -> dict[str, int]:
        """A typical problem."""
        if self.grouped:
            return TYPICAL | {"groups": 16}
        return {"m": 512, "n": 512, "k": 512, "batch": 64} if self.batched else dict(TYPICAL)

    def additions(self, k: int) -> tuple[str, int]:
        """A name for the order in which products of depth ``k`` are added up within a slice, and the values of k after which sums leave the
        tensor core; 0: never. Instances with one name give the same bits."""
        raise NotImplementedError

    @property
    def mainloop_digest(self) -> str:
        """A name for the properties of the mainloop that may decide about that order."""
        fields = self.spec.mainloop.model_dump(mode="json")
        decisive = sorted(
            (name, str(value)) for name, value in fields.items() if name not in ("stages", "min_blocks_per_sm", "persistent_blocks")
        )
        layout = (self.matrix_a.row_major, self.matrix_b.row_major, self.matrix_a.alignment, self.spec.transpose, self.spec.order)
        return hashlib.sha256(repr((decisive, layout)).encode()).hexdigest()[:8]

    def product_bound(self, a: Array, b: Array, slices: int) -> Array:
        """Largest error of A B. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1: each of the k terms takes
        part in at most k roundings, for any order of the sum; fma rounds once a term."""
        k = a.shape[-1]
        bound: Array = k * UNIT_ROUNDOFF / (1 - k * UNIT_ROUNDOFF) * (abs(a) @ abs(b))
        return bound

    def product(self, arrays: Mapping[str, Array], slices: int, exact: bool) -> tuple[Array, Array]:
        """A B of numbers in the arrays, and its largest error, 0 if ``exact`` says that no sum of these numbers rounds."""
        import numpy as np

        a, b = factors(self.matrix_a.type, arrays["A"]), factors(self.matrix_b.type, arrays["B"])
        product = a @ b
        return product, np.zeros(product.shape) if exact else self.product_bound(a, b, slices)

    # The launch sequence.

    @property
    def main_launch(self) -> int:
        """The place in the sequence of the kernel that multiplies."""
        return 0

    @property
    def reduction_launch(self) -> int:
        """The place in the sequence of the kernel that adds up the slices of a parallel split of k."""
        return self.main_launch + 1

    @property
    def reduction_form(self) -> str:
        """Form of the kernel that adds up slices: a macro of ``templates/gemm/reduction.cu.j2``."""
        return "reduction_kernel"

    @property
    def reduction_groups(self) -> int:
        """Groups of threads among which a block that sums up slices of k shares them."""
        return reduction_groups(self.spec)

    def scaled_sum(self, value: str, column: str) -> str:
        """The CUDA expression of a sum of slices with the factor, if any, that it has in common; ``column``: where it stands in C."""
        return value

    @property
    def keeping(self) -> LaunchSequence | None:
        """The launch sequence that makes an operand which is kept for many products; None if the instance takes none."""
        return None

    @property
    def kept_factor(self) -> str | None:
        """The operand that is kept for many products, A or B; None if there is none."""
        return None

    def kept_array(self, factor: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
        """The argument ``planes_a`` or ``planes_b`` for values of that operand."""
        raise NotImplementedError

    def sequence_type(self, name: str) -> str:
        """The element type of the array argument ``name``."""
        return next(array.type for array in self.sequence.arrays if array.name == name)

    @property
    def tensor_maps(self) -> tuple[str, ...]:
        """Names of the tensor maps."""
        return tuple(argument.name for argument in self.sequence.arguments if isinstance(argument, TensorMapArgument))

    # Batches, and groups of rows.

    @property
    def batched(self) -> tuple[Matrix, ...]:
        """Matrices of which each product of a batch has its own."""
        return (self.matrix_a, *self.factors_b, self.matrix_c, *self.like_output) if self.spec.batch == "strided" else ()

    @property
    def grouped(self) -> bool:
        """True if the rows of A and C belong to groups."""
        return bool(self.spec.batch == "grouped")

    @property
    def gathered(self) -> bool:
        """True if rows of groups are any rows of A."""
        return bool(self.spec.grouping.gathered)

    @property
    def scattered(self) -> bool:
        """True if rows of groups go to any rows of C."""
        return bool(self.spec.grouping.scattered)

    @property
    def depths_differ(self) -> bool:
        """True if each product of a batch has its own values of k."""
        return bool(self.spec.grouping.depth != "all")

    @property
    def depth_unit(self) -> int:
        """Values of k that the ends of each product's are multiples of, if those differ."""
        return self.step_k if self.spec.grouping.depth == "steps" else 1

    @property
    def own_scalars(self) -> bool:
        """True if alpha and beta are those of each product of a batch."""
        return bool(self.spec.scalars == "products")

    @property
    def lie_anywhere(self) -> bool:
        """True if the matrices of a batch lie anywhere, and have sizes of their products."""
        return bool(self.spec.grouping.places == "addresses")

    @property
    def ends_of_groups(self) -> str:
        """The array that says how many rows groups have."""
        return ENDS[self.spec.grouping.rows]

    def batched_in(self, launch: int) -> tuple[Matrix | Passed, ...]:
        """Batched arrays that the kernel of a launch receives."""
        given = self.sequence.launches[launch].arguments
        arrays: list[Matrix | Passed] = [*self.batched, *self.batched_reductions]
        return tuple(array for array in arrays if array.name in given)

    @property
    def store(self) -> str:
        """Destination of a tile: ``finished``, or ``partial``, ``in_turn``, ``last`` or ``streamed`` with k divided among blocks."""
        return STORES[self.spec.decomposition.scheme]

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
    def partial_vector_elements(self) -> int:
        """Sums of a slice that the second kernel reads at a time."""
        return REDUCTION_VECTOR

    @property
    def workspace_alignment(self) -> int:
        """Bytes that the parts of the workspace are multiples of."""
        return WORKSPACE_ALIGNMENT

    # Results and the epilogue.

    @property
    def helpers(self) -> tuple[Helper, ...]:
        """The small device functions that the kernel needs."""
        return ()

    @property
    def sum_type(self) -> str:
        """The type of sums of products."""
        return "float"

    @property
    def result_type(self) -> str:
        """The type of a result before it is stored."""
        return {"s32": "int", "f64": "double"}.get(self.matrix_c.type, "float")

    @property
    def finished_type(self) -> str:
        """The type in which the epilogue computes."""
        return ELEMENTS[self._finished].c_type

    @property
    def _finished(self) -> DataType:
        return "f64" if self.matrix_c.type == "f64" else "f32"

    @property
    def inner_epilogue(self) -> tuple[Step, ...]:
        """Operations on results before their largest absolute value is looked for."""
        return self.epilogue[:-1] if self.spec.amax == "unscaled" else self.epilogue

    @property
    def has_place(self) -> bool:
        """True if the epilogue's function receives its element's position, and whether it exists: it reads or writes matrices itself."""
        return any(step.has_place for step in self.inner_epilogue)

    @property
    def epilogue_coordinates(self) -> tuple[str, ...]:
        """Coordinates of an element that the epilogue looks at."""
        used = {access.operand.per for step in self.epilogue for access in step.accesses}
        return tuple(coordinate for coordinate in ("row", "column") if coordinate in used)

    @property
    def epilogue_parameters(self) -> tuple[Argument, ...]:
        """Parameters of the epilogue's device function: the value, coordinates, arguments and elements of matrices."""
        parameters: list[Argument] = [ScalarArgument("value", self._finished, "the result so far")]
        parameters += [ScalarArgument(SECOND_VALUE, "f32", "the product by B2")] if self.spec.dual else []
        parameters += [ScalarArgument(name, "s32", f"its {name}") for name in self.epilogue_coordinates]
        if self.has_place:
            parameters += [ScalarArgument(f"at_{name}", "s32", f"its true {name}") for name in ("row", "column")]
            parameters.append(ScalarArgument("exists", "bool", "whether there is such an element"))
        if self.sum_kernels:
            parameters.append(ScalarArgument("place", "s64", "its number among all"))
        floats = {vector.name for vector in self.column_vectors}
        for step in self.inner_epilogue:
            parameters += [
                replace(one, type="f32") if one.name in floats and isinstance(one, ArrayArgument) else one for one in step.arguments
            ]
            parameters += [ScalarArgument(matrix.variable, self._finished, f"element of {matrix.name}") for matrix in step.matrices]
            for matrix in self.placed(step):
                parameters += [matrix.argument("output" if matrix.name in step.written else "input"), matrix.scalars[0]]
        return tuple(parameters)

    @property
    def collected_outputs(self) -> tuple[Store, ...]:
        """Further outputs that the epilogue's function returns to the kernel, which collects them in shared memory and stores vectors."""
        return ()

    @property
    def paired_outputs(self) -> tuple[Store, ...]:
        """Further float32 outputs that the epilogue's function returns to the kernel, which stores two neighbours at once."""
        return ()

    @property
    def paired_inputs(self) -> tuple[Access, ...]:
        """Operands of other types than C's that the kernel reads by two neighbours, ahead of the epilogue's function."""
        return ()

    @property
    def operand_in_stages(self) -> Access | None:
        """The operand of the epilogue that comes through the stages of the factors."""
        return None

    @property
    def last_operand(self) -> Access | None:
        """The operand of the epilogue that comes through the stages for a block's last tile alone."""
        return None

    @property
    def collects_pairs(self) -> bool:
        """True if a thread keeps the pairs of a chunk of columns, and stores them together."""
        return False

    @property
    def _given_elements(self) -> tuple[Access, ...]:
        """Operands of other types than C's whose elements the kernel gives to the epilogue's function."""
        staged = self.operand_in_stages
        return (*self.paired_inputs, *([staged] if staged is not None and staged.placed else []))

    @property
    def reads_next_chunk(self) -> bool:
        """True if these operands are read a chunk of columns ahead, those of a tile's first before the products are computed."""
        return False

    def placed(self, step: Step) -> tuple[Matrix, ...]:
        """Matrices that the epilogue's function reads or writes at an element's place."""
        collected = {store.argument.name for store in (*self.collected_outputs, *self.paired_outputs)}
        collected |= {access.name for access in self._given_elements}
        return tuple(matrix for matrix in step.placed if matrix.name not in collected)

    def epilogue_code(self, step: Step) -> str:
        """The CUDA statements of one step, line by line."""
        code = step.code
        for vector in self.column_vectors:
            code = code.replace(vector.access.text, f"{vector.name}[column]")
        for access in self._given_elements:
            code = code.replace(access.text, f"{access.name}_element")
        for store in (*self.collected_outputs, *self.paired_outputs):
            written = "\n".join(store.lines)
            code = code.replace(written, f"{store.argument.name}_element = {store.lines[-1].partition(' = ')[2]}")
        return code

    @property
    def finishing(self) -> tuple[Step, ...]:
        """The epilogue's steps."""
        return self.epilogue

    @property
    def terms(self) -> Terms:
        """The matrix that the terms of a sum form."""
        shape = BY_ROWS if self.major == "m" else BY_COLUMNS
        if self.grouped:
            return replace(shape, ends="counts" if self.spec.grouping.rows == "masked" else "offsets")
        return replace(shape, products="batch") if self.spec.batch == "strided" else shape

    @property
    def looks_up_along_minor(self) -> bool:
        """True if the epilogue looks something up along the contiguous dimension, for elements that must then exist."""
        return ("column" if self.minor == "n" else "row") in self.epilogue_coordinates

    @property
    def residuals(self) -> tuple[Matrix, ...]:
        """Matrices of C's shape that the epilogue reads."""
        return tuple(matrix for step in self.epilogue for matrix in step.matrices)

    @property
    def like_output(self) -> tuple[Matrix, ...]:
        """Matrices of C's shape that the epilogue reads or writes."""
        return tuple(matrix for step in self.epilogue for matrix in (*step.matrices, *step.placed))

    @property
    def column_vectors(self) -> tuple[EpilogueVector, ...]:
        """Values for each column that the epilogue reads, where they come through shared memory."""
        return ()

    @property
    def row_vectors(self) -> tuple[EpilogueVector, ...]:
        """Values for each row that the epilogue reads, where a thread reads those of its rows beforehand."""
        return ()

    @property
    def reads_rows_ahead(self) -> bool:
        """True if threads read these values before the products are computed."""
        return False

    def passed(self, argument: Argument) -> Passed:
        """An argument of the epilogue's function."""
        terms = [store.argument.name for store in stores_of(self.epilogue)]
        name = argument.name
        if name in terms:
            name = passed(name, terms.index(name), self.terms)
        elif self.grouped and isinstance(argument, ArrayArgument):
            if argument.shape == (Formula("groups"),):
                name = f"{name} + work.product"
            elif not self.column_vectors and len(argument.shape) == 2:
                name = f"{name} + static_cast<long long>(work.product) * n"
        return Passed(name, next((one.batch_stride for one in self.batched_reductions if one.name == argument.name), ""))

    @property
    def batched_reductions(self) -> tuple[Passed, ...]:
        """Arrays of the epilogue's reductions of which each product of a batch has its own part."""
        if self.spec.batch != "strided":
            return ()
        terms = stores_of(self.epilogue)
        stride = f"m * n * {len(terms)}" if len(terms) > 1 else "m * n"
        reductions = [Passed(store.argument.name, stride) for store in terms]
        extrema = [store for step in self.epilogue for store in step.stores if store.output.reduce is not None and not store.is_term]
        extents = {"row": "m", "column": "n"}
        return (*reductions, *(Passed(one.argument.name, extents[one.output.per]) for one in extrema if one.output.per in extents))

    @property
    def approximate(self) -> bool:
        """True if the epilogue calls functions whose last bits differ between backends."""
        return any(step.approximate for step in self.epilogue)

    def combined(self, product: str, previous: str) -> str:
        """CUDA expression of alpha times a product plus beta times the previous element of C, as far as the spec has them."""
        scaled, added = self.spec.alpha == "argument", self.spec.beta == "argument"
        if not added:
            return f"alpha * {product}" if scaled else product
        fma = "fma" if self.result_type == "double" else "fmaf"
        return f"{fma}(alpha, {product}, beta * {previous})" if scaled else f"{fma}(beta, {previous}, {product})"


def epilogue_accuracy(spec: GemmSpec) -> Accuracy:
    """Accuracy that C's functions are computed with: that of its type, unless the spec asks for more. Beside a group that multiplies,
    functions have the form with fewer multiply-adds: on an H200, the other took 0.5 to 4% more time in products in ping-pong, and 0.3 to
    3% less in those whose groups finish a tile together. Kernels that promise the same bits for any number of rows have one form."""
    if spec.accuracy != "result":
        return spec.accuracy
    in_turn = getattr(spec.mainloop, "schedule", "") == "ping_pong" and not spec.batch_invariant
    return accuracy_of({spec.storage.c}, in_turn)


class Outline:
    """The start of planning for every strategy: layouts, the epilogue, and the reasons against the spec so far."""

    def __init__(self, spec: GemmSpec, architecture: Architecture, combination: Iterable[Reason]) -> None:
        """``combination``: reasons against fields of the spec that exclude one another in the strategy."""
        self.spec = spec
        self.architecture = architecture
        self.matrices = matrix_layouts(spec)
        too_wide = alignment_reasons(self.matrices)
        doubles = double_reasons(spec)
        self.readable = not too_wide and not doubles
        """True if no access would be wider than the hardware has, and the strategy has its elements."""
        self.reasons = [
            *architecture_reasons(spec, architecture),
            *too_wide,
            *doubles,
            *combination,
            *launch_reasons(spec.early_launch, spec),
            *constant_reasons(spec),
            *scale_reasons(spec),
            *dual_reasons(spec),
            *ungrouped_reasons(spec),
            *place_reasons(spec),
            *scalar_reasons(spec),
            *triangle_reasons(spec),
        ]

    def epilogue(self) -> tuple[Step, ...]:
        """The epilogue's steps; raises ``PlanError`` with all reasons if there are any against the spec."""
        spec = self.spec
        by_planes = getattr(spec.mainloop, "arithmetic", Arithmetic()).f32_by is not None
        epilogue = plan_epilogue(
            spec.epilogue,
            self.matrices[2],
            self.reasons,
            spec.batch == "grouped",
            epilogue_accuracy(spec),
            not by_planes,
            spec.dual,
            by_output=spec.accuracy == "result",
        )
        if self.reasons:
            raise PlanError(f"no kernel for this spec on {self.architecture.name}:", self.reasons)
        return epilogue

    def name(self, prefix: str, parts: Sequence[str]) -> str:
        """The instance's name; ``parts``: those of its mainloop."""
        spec, division = self.spec, self.spec.decomposition
        scheme = division.scheme.replace("_", "")
        words = list(parts)
        if isinstance(division, SplitKLast) or getattr(division, "slices", 1) == "launch":
            words.append(scheme)
        elif not isinstance(division, DataParallel):
            words.append(f"{scheme}{division.blocks if isinstance(division, StreamK) else division.slices}")
        words += ["dual"] if spec.dual else []
        words += ["amax"] if spec.amax != "none" else []
        words += ["scaled"] if spec.scales.given else []
        words += {"none": [], "strided": ["batched"], "grouped": ["grouped"]}[spec.batch]
        words += spec.grouping.words
        words += spec.triangles.words
        types = [matrix.type for matrix in self.matrices]
        words += ["_".join(types)] if set(types) != {"f32"} else []
        words += [spec.transpose if spec.order == "row_major" else f"{spec.transpose}_col"]
        return instance_name(prefix, words, spec)

    @property
    def digest(self) -> str:
        """SHA-256 of the spec's identity."""
        return spec_digest(self.spec)


def packed(plan: GemmPlan, sizes: Sequence[int], batch: int = 1) -> dict[str, int]:
    """All dimensions of a problem of m, n, k without gaps between rows, columns or matrices."""
    problem = dict(zip(("m", "n", "k"), sizes, strict=True))
    if plan.spec.grouping.rows == "masked":
        problem["m"] = round_up(problem["m"], lcm(max(batch, 1), plan.spec.multiple_of.m))
    problem |= {dimension.name: batch for dimension in plan.sequence.dimensions if dimension.name in ("batch", "groups")}
    return plan.sequence.completed(problem)
