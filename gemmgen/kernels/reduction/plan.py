"""From a reduction's spec to every number that its kernels contain, or to all the reasons why there can be none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.errors import PlanError, Reason
from gemmgen.core.formulas import Formula, ceil_div
from gemmgen.hardware.target import ARCHITECTURES, WARP_THREADS, Architecture
from gemmgen.kernels.family import KernelPlan, SharedRegion
from gemmgen.kernels.launch import Argument
from gemmgen.kernels.naming import architecture_reasons, instance_name, launch_reasons, spec_digest
from gemmgen.kernels.reduction.arithmetic import Arithmetic, plan_arithmetic
from gemmgen.kernels.reduction.choice import (
    VECTOR_BYTES,
    BlockChoice,
    Choice,
    ColumnChoice,
    LaneChoice,
    WalkChoice,
    choose,
    resident_blocks,
)
from gemmgen.kernels.reduction.sequence import MAX_EXTENT, ROUND, Workspace, launch_sequence, plan_workspace
from gemmgen.kernels.reduction.spec import SERIES, WALKS, ReductionSpec
from gemmgen.kernels.reduction.tensor import TensorLayout
from gemmgen.kernels.tiles.resources import ResidentBlocks

OTHER_REGISTERS = 12
"""Registers of a thread beside its states and loaded vectors; an estimate."""
MAX_AXES = 8
"""Axes of a tensor, kept and reduced."""
MAX_ROWS = 2**31 - 1 - MAX_EXTENT
"""Rows that the blocks of a tile of columns may take at a time."""


@dataclass(frozen=True)
class BlockLayout:
    """A block, or several, for everything or for a row."""

    tree: str
    """Combination of a block's results by its threads: the name of a strategy of the series."""
    loads: Literal["one", "pair", "stream"]
    """One element a thread, two, or as many as it takes."""
    part: str
    """The number of a block among those that share a result, as a C expression."""
    parts: str
    """Number of those."""
    most_blocks: int | None
    blocks_per_row: int | None
    items_per_thread: int


@dataclass(frozen=True)
class LaneLayout:
    """Several rows for a group of lanes."""

    lanes: int
    rows: int
    groups: int
    """Groups of lanes in a block."""

    @property
    def rows_per_block(self) -> int:
        return self.groups * self.rows


@dataclass(frozen=True)
class ColumnLayout:
    """A tile of columns for a block, or several."""

    lanes: int
    row_threads: int
    """Threads of a block that take different rows of the same columns."""
    splits: int
    tile_columns: int


Layout = BlockLayout | LaneLayout | ColumnLayout | TensorLayout


@dataclass(frozen=True)
class ReductionPlan(KernelPlan[ReductionSpec]):
    """A reduction instance."""

    arithmetic: Arithmetic
    threads: int
    vector: int
    """Elements that one load reads."""
    unroll: int
    """Loads that a thread has in flight at the same time."""
    accumulators: int
    """States that a thread combines elements into, independently of one another."""
    min_blocks_per_sm: int
    early_launch: bool
    finish: str | None
    """Combination of the results of several blocks; None if none do."""
    packed_partials: bool
    """True if a partial result and the sign that it is there fit into one word of 64 bits."""
    workspace: Workspace
    layout: Layout
    held_registers: int
    """Registers of the elements that a thread loads at a time, and of its states."""

    @property
    def warnings(self) -> tuple[Reason, ...]:
        """An estimate of registers that exceeds the limit per thread."""
        resident = ResidentBlocks(self.architecture, self.min_blocks_per_sm, self.threads)
        return resident.few_registers(self.held_registers + OTHER_REGISTERS, resident.allocated_registers, "strategy.unroll")

    @property
    def vector_words(self) -> int:
        """Registers of 4 bytes that a vector takes."""
        return self.vector_bytes // 4

    @property
    def vector_bytes(self) -> int:
        """Bytes that one load reads."""
        return self.vector * ELEMENTS[self.arithmetic.stored].bytes

    @property
    def joins_vectors(self) -> bool:
        """True if a thread adds the elements of whole vectors to its state at once."""
        rows = self.template in ("reduction/tensor_rows.cu.j2", "reduction/lanes.cu.j2", "reduction/blocks.cu.j2")
        return self.arithmetic.takes_vectors and rows and self.vector > 1 and not self.arithmetic.places

    @property
    def finds_late(self) -> bool:
        """True if a thread remembers which vector an extremum lies in, and looks for its place within the vector at the end."""
        layout = self.layout
        return isinstance(layout, TensorLayout) and _finds_late(self.arithmetic, layout)

    @property
    def joins_in_order(self) -> bool:
        """True if a thread adds whole vectors to its state in the order of their elements."""
        rows = self.template == "reduction/tensor_rows.cu.j2" and self.vector > 1
        return rows and (self.arithmetic.state == "logsumexp" or self.finds_late)

    @property
    def joins_loads(self) -> bool:
        """True if a thread adds the elements of several loads to its state at once: the steps after that then cost less for each."""
        layout = self.layout
        inside = isinstance(layout, TensorLayout) and layout.name == "tensor_rows" and not layout.outer_reduced
        return inside and self.joins_vectors and self.joined_loads > 1

    @property
    def joined_loads(self) -> int:
        """Loads whose elements are added to a state at once, no more than registers hold."""
        return max(1, min(self.unroll, 32 // self.vector))

    @property
    def has_nan_extrema(self) -> bool:
        """True if an instruction gives the smaller or the larger of two floats, or NaN if there is one."""
        return self.arithmetic.compute == "f32" and self.architecture.compute_capability >= (8, 0)

    @property
    def packs(self) -> bool:
        """True if vectors of short elements are held as whole words until their elements are added."""
        short = self.vector > 1 and ELEMENTS[self.arithmetic.stored].bytes < 4 and self.vector_bytes % 4 == 0
        return short and self.template == "reduction/tensor_rows.cu.j2" and not self.adds_words

    def extents(self, problem: Mapping[str, int]) -> tuple[int, int, int]:
        """X as (outer, reduced, inner), its axes in the order of its array."""
        if isinstance(self.layout, TensorLayout):
            return self.layout.extents(problem)
        return problem.get("outer", 1), problem["reduced"], problem.get("inner", 1)

    @property
    def block_elements(self) -> int:
        """Elements of a block, before there are as many as may be."""
        assert isinstance(self.layout, BlockLayout)
        return self.threads * self.layout.items_per_thread

    @property
    def last_distance(self) -> int:
        """Distance of states at which the last warp of a tree begins."""
        return min(32, self.threads // 2)

    @property
    def tile(self) -> int:
        """Elements that the loads of a block bring at a time."""
        return self.threads * self.vector * self.unroll

    @property
    def tiled_stream(self) -> bool:
        """True if a block loads tiles of several elements a thread."""
        return isinstance(self.layout, BlockLayout) and self.layout.loads == "stream" and self.vector * self.unroll > 1

    @property
    def adds_words(self) -> bool:
        """True if a thread adds up bytes by words."""
        return self.arithmetic.adds_bytes and self.vector % 4 == 0

    @property
    def ors_words(self) -> bool:
        """True if a thread looks for elements that are not 0 by the words that hold them."""
        layout = self.layout
        return isinstance(layout, TensorLayout) and _ors_words(self.arithmetic, layout)

    @property
    def compares_words(self) -> bool:
        """True if a thread compares signed bytes at the tops of words, without extending their signs."""
        layout, arithmetic = self.layout, self.arithmetic
        inside = isinstance(layout, TensorLayout) and layout.name == "tensor_rows" and not layout.outer_reduced
        plain = (
            arithmetic.combiner in ("minimum", "maximum") and arithmetic.state == "scalar" and not (arithmetic.parts or arithmetic.prologue)
        )
        return inside and plain and arithmetic.stored == "s8" and not arithmetic.is_float and self.packs and self.accumulators % 4 == 0

    @property
    def magnitude_bits(self) -> str:
        """All bits of a word but for the signs of floats, whose zeros may have one; empty for integers."""
        return {"f32": "0x7fffffffu", "f16": "0x7fff7fffu", "bf16": "0x7fff7fffu"}.get(self.arithmetic.stored, "")

    @property
    def store_bytes(self) -> int:
        """Bytes of the results that belong to one load, as far as one access stores them."""
        return min(VECTOR_BYTES, self.vector * ELEMENTS[self.arithmetic.output].bytes)

    @property
    def count_c(self) -> str:
        """C type of the number of elements that make a result."""
        return "long long" if isinstance(self.layout, TensorLayout) else "int"

    @property
    def block_distances(self) -> tuple[int, ...]:
        """Distances of a tree of halves, down to where one warp is left."""
        distances = [self.threads >> step for step in range(1, self.threads.bit_length())]
        return tuple(distance for distance in distances if distance > WARP_THREADS)

    @property
    def signs_c(self) -> str:
        """Start of the partial results in the workspace, as a C expression."""
        at = self.workspace.partials_at
        if not at.names:
            return str(at.evaluate({}))
        per_group, groups = self.workspace.signs.text.split(" * ", 1)
        count = Formula(groups).to_c()
        if isinstance(self.layout, ColumnLayout):
            width = self.layout.tile_columns
            count = count.replace(f" + {width} - 1) / {width})", " + kTileColumns - 1) / kTileColumns)")
        return f"({per_group}ll * {count} + kAlignment - 1) / kAlignment * kAlignment"

    @property
    def partials_follow(self) -> bool:
        """True if partial results come behind the blocks' signs in the workspace."""
        return bool(self.workspace.partials_at.names)

    @property
    def alignment_of_partials(self) -> int:
        """Bytes that the start of the partial results behind the signs is a multiple of."""
        return ROUND

    def parameters_of(self, launch: int) -> tuple[Argument, ...]:
        """The parameters of one kernel."""
        return tuple(self.sequence.argument(name) for name in self.sequence.launches[launch].arguments)

    @property
    def main_parameters(self) -> tuple[Argument, ...]:
        """The parameters of the kernel that reads X."""
        return self.parameters_of(1 if self.finish == "atomic" else 0)

    @property
    def has_outer(self) -> bool:
        return self.spec.shape in ("rows", "middle", "strided")

    @property
    def has_inner(self) -> bool:
        return self.spec.shape in ("columns", "middle", "strided")

    @property
    def strided(self) -> bool:
        """True if no axis is known to be contiguous."""
        return bool(self.spec.shape == "strided")


def packed_problem(plan: ReductionPlan, extents: Mapping[str, int]) -> dict[str, int]:
    """All dimensions of a problem without gaps, from extents of which the shape may have only some."""
    known = {dimension.name: extents[dimension.name] for dimension in plan.sequence.dimensions if dimension.default is None}
    return plan.sequence.completed(known)


def plan_reduction(spec: ReductionSpec, architecture: Architecture) -> ReductionPlan:
    """The plan of ``spec`` for ``architecture``. Raises ``PlanError`` with every reason against it."""
    reasons = architecture_reasons(spec, architecture)
    arithmetic = plan_arithmetic(spec, reasons)
    choice = choose(spec, ELEMENTS[arithmetic.stored].bytes, arithmetic.state_bytes)
    if arithmetic.places and isinstance(choice, WalkChoice) and (spec.strategy is None or spec.strategy.vector is None):
        choice = replace(choice, vector=1)
    reasons += _common_reasons(spec, arithmetic, choice, architecture)
    layout = _layout(spec, choice)
    reasons += _layout_reasons(spec, arithmetic, choice, layout)
    finish = _finish(choice)
    if isinstance(layout, BlockLayout) and layout.blocks_per_row == 1:
        finish = None
    if isinstance(layout, ColumnLayout) and layout.splits == 1:
        finish = None
    reasons += _finish_reasons(arithmetic, finish)
    accumulators = _accumulators(arithmetic, choice, layout)
    held = _held_registers(arithmetic, choice, accumulators)
    if held >= architecture.registers_per_thread:
        need = f"fewer than the {architecture.registers_per_thread} of a thread on {architecture.name}"
        got = f"{held} registers of loaded elements and states at the same time"
        reasons.append(Reason("registers", "strategy.unroll", got, need, "reduce unroll, vector or rows"))
    regions = _shared_memory(arithmetic, choice, layout, finish)
    shared = sum(region.bytes for region in regions)
    if shared > architecture.static_shared_bytes_per_block:
        need = f"at most {architecture.static_shared_bytes_per_block} bytes of static shared memory"
        reasons.append(Reason("shared_memory", "strategy.threads", f"{shared} bytes", need, "use fewer threads or narrower vectors"))
    if reasons:
        raise PlanError(f"no kernel for this spec on {architecture.name}:", reasons)
    packed = finish == "first_block" and arithmetic.state_bytes == 4
    workspace = plan_workspace(spec, arithmetic, choice, finish, packed)
    name = instance_name(f"{arithmetic.operation.replace('+', '_')}_{arithmetic.stored}", _name_parts(spec, choice), spec)
    return ReductionPlan(
        name=name,
        spec_digest=spec_digest(spec),
        architecture=architecture,
        sequence=launch_sequence(name, spec, arithmetic, choice, finish, workspace),
        template=f"reduction/{_template(layout)}.cu.j2",
        shared_memory=regions,
        dynamic_shared_bytes=0,
        spec=spec,
        arithmetic=arithmetic,
        threads=choice.threads,
        vector=choice.vector,
        unroll=choice.unroll,
        accumulators=accumulators,
        min_blocks_per_sm=_resident_blocks(spec, arithmetic, choice),
        early_launch=choice.early_launch,
        finish=finish,
        packed_partials=packed,
        workspace=workspace,
        layout=layout,
        held_registers=held,
    )


def _finish(choice: Choice) -> str | None:
    """The spec's way for blocks to meet; None where none share a result."""
    if isinstance(choice, LaneChoice):
        return None
    if isinstance(choice, WalkChoice):
        return "last_block" if choice.in_parts else None
    return choice.finish


def _resident_blocks(spec: ReductionSpec, arithmetic: Arithmetic, choice: Choice) -> int:
    """Blocks that have to fit on an SM at once, on the oldest architecture that the source is for."""
    if isinstance(choice, WalkChoice):
        bound = choice.name in ("tensor_rows", "flat_columns", "flat_tiles")
        return resident_blocks(choice.name, choice.threads, ELEMENTS[arithmetic.stored].bytes, arithmetic.state_bytes) if bound else 1
    if not isinstance(choice, BlockChoice):
        return 1
    return max(1, min(choice.blocks_per_sm, ARCHITECTURES[spec.architecture].threads_per_sm // choice.threads))


def _layout(spec: ReductionSpec, choice: Choice) -> Layout:
    if isinstance(choice, WalkChoice):
        return TensorLayout(choice, spec.alignment)
    if isinstance(choice, LaneChoice):
        return LaneLayout(choice.lanes, choice.rows, max(1, choice.threads // choice.lanes))
    if isinstance(choice, ColumnChoice):
        rows = max(1, choice.threads // choice.lanes)
        return ColumnLayout(choice.lanes, rows, choice.splits, choice.lanes * choice.vector)
    number = SERIES.index(choice.name) if choice.name in SERIES else 8
    loads: Literal["one", "pair", "stream"] = "one" if number < 3 else "pair" if number < 6 else "stream"
    tree = {3: "sequential", 6: "fully_unrolled", 8: "shuffle"}.get(number, choice.name)
    per_row = choice.blocks_per_row
    part, parts = ("blockIdx.x", "gridDim.x") if per_row is None else ("part", "kBlocksPerRow")
    return BlockLayout(tree, loads, part, parts, choice.most_blocks, per_row, choice.items_per_thread)


def _template(layout: Layout) -> str:
    if isinstance(layout, TensorLayout):
        return layout.name
    return {BlockLayout: "blocks", LaneLayout: "lanes", ColumnLayout: "columns"}[type(layout)]


def _accumulators(arithmetic: Arithmetic, choice: Choice, layout: Layout) -> int:
    """States of a thread: one for each element of a vector, so that they do not wait for one another, while they are small."""
    if isinstance(layout, ColumnLayout):
        return choice.vector
    if isinstance(layout, TensorLayout):
        return _tensor_accumulators(arithmetic, layout)
    if (isinstance(layout, BlockLayout) and layout.loads != "stream") or arithmetic.takes_vectors:
        return 1
    return min(choice.vector, max(1, 8 // arithmetic.state_registers))


def _tensor_accumulators(arithmetic: Arithmetic, layout: TensorLayout) -> int:
    vector = layout.choice.vector
    if layout.keeps_inner:
        return vector * layout.choice.columns
    if (
        layout.name == "flat_rows"
        or arithmetic.state == "logsumexp"
        or arithmetic.takes_vectors
        or _finds_late(arithmetic, layout)
        or _ors_words(arithmetic, layout)
    ):  # whole vectors are joined to a state at once
        return 1
    if arithmetic.state == "extremum":  # the place within the vector is then known when the kernel is compiled
        return vector
    return min(vector, max(1, 8 // arithmetic.state_registers))


def _finds_late(arithmetic: Arithmetic, layout: TensorLayout) -> bool:
    rows = layout.name == "tensor_rows" and not layout.outer_reduced
    return rows and arithmetic.state == "extremum" and layout.choice.vector > 1


def _ors_words(arithmetic: Arithmetic, layout: TensorLayout) -> bool:
    plain = arithmetic.combiner == "either" and not arithmetic.parts and not arithmetic.prologue and arithmetic.stored != "f64"
    bytes_of_load = layout.choice.vector * ELEMENTS[arithmetic.stored].bytes
    return plain and layout.name == "tensor_rows" and layout.choice.vector > 1 and bytes_of_load % 4 == 0


def _common_reasons(spec: ReductionSpec, arithmetic: Arithmetic, choice: Choice, architecture: Architecture) -> list[Reason]:
    reasons = []
    if isinstance(choice, WalkChoice) and choice.name.startswith("flat"):
        if choice.threads % WARP_THREADS:
            reasons.append(Reason("threads", "strategy.threads", str(choice.threads), f"a multiple of {WARP_THREADS}"))
    elif choice.threads & (choice.threads - 1):
        reasons.append(Reason("threads", "strategy.threads", str(choice.threads), "a power of two from 32 to 1024"))
    size = ELEMENTS[arithmetic.stored].bytes
    if choice.vector * size > VECTOR_BYTES:
        got = f"{choice.vector} x {size} bytes of {spec.input}"
        reasons.append(Reason("vector", "strategy.vector", got, f"at most {VECTOR_BYTES} bytes: {VECTOR_BYTES // size} elements"))
    anywhere = isinstance(choice, WalkChoice) and choice.name != "tensor_columns"
    if choice.vector > spec.alignment and not anywhere:
        hint = f"promise alignment: {choice.vector}, or load {spec.alignment} at a time"
        reasons.append(Reason("alignment", "strategy.vector", str(choice.vector), f"at most the alignment, {spec.alignment}", hint))
    return reasons + launch_reasons(choice.early_launch, spec, "strategy.early_launch")


def _layout_reasons(spec: ReductionSpec, arithmetic: Arithmetic, choice: Choice, layout: Layout) -> list[Reason]:
    reasons = []
    if arithmetic.parts and spec.shape != "tensor":
        reasons.append(Reason("operation", "operation", arithmetic.operation, "one operation, or shape: tensor for two"))
    if isinstance(layout, TensorLayout):
        return _tensor_reasons(spec, arithmetic, layout)
    if spec.shape == "tensor":
        named = str(spec.strategy.name) if spec.strategy is not None else "none"
        return [Reason("shape", "strategy.name", named, f"one of {', '.join(WALKS)} for tensors")]
    name = "row_lanes" if isinstance(layout, LaneLayout) else "column_tiles" if isinstance(layout, ColumnLayout) else None
    if name is None:
        name = "row_blocks" if isinstance(layout, BlockLayout) and layout.blocks_per_row else "the series and streaming"
    shapes = {
        "row_lanes": ("rows", "strided"),
        "row_blocks": ("rows",),
        "column_tiles": ("columns", "middle", "strided"),
        "the series and streaming": ("all",),
    }[name]
    if spec.shape not in shapes:
        need = f"shape: {' or '.join(shapes)} for {name}"
        reasons.append(Reason("shape", "strategy.name", f"shape: {spec.shape}", need, "leave the strategy out to have one chosen"))
    if spec.shape == "strided" and choice.vector > 1:
        reasons.append(Reason("vector", "strategy.vector", str(choice.vector), "1 where no axis is known to be contiguous"))
    if isinstance(layout, BlockLayout) and layout.loads != "stream":
        for field, value in (("vector", choice.vector), ("unroll", choice.unroll)):
            if value > 1:
                reasons.append(Reason("series", f"strategy.{field}", str(value), "1 for strategies before grid_stride"))
        fixed = 1 if layout.loads == "one" else 2
        if layout.items_per_thread != fixed:
            reasons.append(Reason("series", "strategy.items_per_thread", str(layout.items_per_thread), f"{fixed} for {spec.strategy.name}"))  # type: ignore[union-attr]
        for field in ("blocks_per_sm", "waves"):
            if getattr(spec.strategy, field, None) is not None:
                need = "nothing for strategies before grid_stride: their grid grows with the array"
                reasons.append(Reason("series", f"strategy.{field}", str(getattr(spec.strategy, field)), need))
    if isinstance(layout, ColumnLayout) and layout.lanes > choice.threads:
        reasons.append(Reason("lanes", "strategy.lanes", str(layout.lanes), f"at most the block's {choice.threads} threads"))
    if isinstance(layout, ColumnLayout) and layout.row_threads * layout.splits > MAX_ROWS:
        got = f"{layout.splits} splits of {layout.row_threads} rows at a time"
        need = f"at most {MAX_ROWS} rows at a time together, so that the rows past the last one still fit into an int"
        reasons.append(Reason("splits", "strategy.splits", got, need, "fewer splits or threads, or more lanes"))
    if isinstance(layout, BlockLayout) and choice.blocks_per_sm * choice.threads > 2048:  # type: ignore[union-attr]
        got = f"{choice.blocks_per_sm} blocks of {choice.threads} threads"  # type: ignore[union-attr]
        reasons.append(Reason("blocks_per_sm", "strategy.blocks_per_sm", got, "at most 2048 threads on an SM"))
    return reasons


def _tensor_reasons(spec: ReductionSpec, arithmetic: Arithmetic, layout: TensorLayout) -> list[Reason]:
    reasons = []
    choice = layout.choice
    if spec.shape != "tensor":
        need, hint = f"shape: tensor for {choice.name}", "leave the strategy out to have one chosen"
        reasons.append(Reason("shape", "strategy.name", f"shape: {spec.shape}", need, hint))
    if choice.kept + choice.reduced > MAX_AXES:
        need = f"at most {MAX_AXES} axes together"
        reasons.append(Reason("axes", "strategy.kept", f"{choice.kept} kept and {choice.reduced} reduced axes", need))
    if layout.keeps_inner and choice.kept == 0:
        reasons.append(Reason("axes", "strategy.kept", "0", f"at least 1 for {choice.name}: threads stand side by side along one"))
    if choice.repeated and (choice.kept < (2 if layout.keeps_inner else 1) or choice.name == "flat_rows"):
        need = f"another kept axis for {choice.name}, and not flat_rows"
        reasons.append(Reason("repeated", "strategy.repeated", f"true with {choice.kept} kept axes", need))
    if layout.flat and (choice.reduced != 1 or (choice.name == "flat_rows" and choice.kept != 1)):
        got = f"{choice.kept} kept and {choice.reduced} reduced axes"
        need = "one axis that is kept and one that is reduced" if choice.name == "flat_rows" else "one axis that is reduced"
        reasons.append(Reason("axes", "strategy.reduced", got, f"{need}: rows lie without gaps"))
    if choice.name == "flat_rows" and choice.wide:
        reasons.append(Reason("wide", "strategy.wide", "true", "false: rows are short, and blocks count them"))
    if any(part.places for part in arithmetic.parts):
        need = "one operation, where those on elements have operands, outputs or coordinates"
        reasons.append(Reason("elements", "operation", arithmetic.operation, need))
    if arithmetic.places and (choice.name != "tensor_rows" or choice.vector > 1 or choice.wide or choice.repeated):
        words = [word for word, said in (("wide", choice.wide), ("repeated", choice.repeated)) if said]
        got = ", ".join([choice.name, f"vector: {choice.vector}", *words])
        need = "tensor_rows with vector: 1, neither wide nor repeated, for operations that know an element's place"
        reasons.append(Reason("elements", "strategy", got, need))
    if choice.lanes > choice.threads:
        reasons.append(Reason("lanes", "strategy.lanes", str(choice.lanes), f"at most the block's {choice.threads} threads"))
    if choice.name == "flat_tiles" and choice.lanes <= choice.threads:
        reasons += _tile_reasons(choice)
    if choice.name == "flat_columns" and arithmetic.has_index:
        need = "an operation without an index: the elements of a thread's vectors lie in different rows"
        reasons.append(Reason("index", "operation", arithmetic.operation, need, "tensor_columns"))
    return reasons


def _tile_reasons(choice: WalkChoice) -> list[Reason]:
    """Against lanes of ``flat_tiles`` that leave groups whose rows begin at different places in a vector from turn to turn."""
    if choice.threads % choice.lanes or choice.threads // choice.lanes % choice.vector:
        got = f"{choice.lanes} lanes, {choice.vector} elements a vector, {choice.threads} threads"
        need = "lanes that divide the threads, a multiple of the vector's elements times"
        hint = f"for example {max(1, choice.threads // max(8, choice.vector))} lanes"
        return [Reason("lanes", "strategy.lanes", got, need, hint)]
    if choice.vector > 1 and choice.lanes == 1:
        return [Reason("lanes", "strategy.lanes", "1", "at least 2: a tile ends in a vector more than it is long")]
    return []


def _finish_reasons(arithmetic: Arithmetic, finish: str | None) -> list[Reason]:
    if finish != "atomic":
        return []
    reasons = []
    if not arithmetic.exact_in_any_order or arithmetic.combiner == "multiply":
        got = f"{arithmetic.operation} in {arithmetic.compute}"
        need = "an operation on integers that has an atomic form: sum, min, max, any, all"
        hint = "the order of atomic operations changes from run to run, and with it the roundings of a sum"
        reasons.append(Reason("atomic", "strategy.finish", got, need, hint))
    if arithmetic.finishes:
        need = f"results that are stored as they are combined: no epilogue, output: the accumulator's type ({arithmetic.compute})"
        reasons.append(Reason("atomic", "strategy.finish", f"{arithmetic.operation}, output {arithmetic.output}", need))
    return reasons


def _held_registers(arithmetic: Arithmetic, choice: Choice, accumulators: int) -> int:
    """32-bit registers of the elements that a thread loads at a time, and of its states."""
    rows = choice.rows if isinstance(choice, LaneChoice) else choice.columns if isinstance(choice, WalkChoice) else 1
    accumulators = accumulators // choice.columns if isinstance(choice, WalkChoice) else accumulators
    loaded = rows * choice.unroll * ceil_div(choice.vector * ELEMENTS[arithmetic.stored].bytes, 4)
    return loaded + rows * accumulators * arithmetic.state_registers


def _shared_memory(arithmetic: Arithmetic, choice: Choice, layout: Layout, finish: str | None) -> tuple[SharedRegion, ...]:
    size = arithmetic.state_bytes
    if isinstance(layout, LaneLayout):
        return ()
    if isinstance(layout, TensorLayout):
        return _tensor_shared_memory(arithmetic, layout)
    if isinstance(layout, ColumnLayout):
        if layout.row_threads == 1:
            return ()
        shape: tuple[int, ...] = (layout.row_threads // 2, layout.tile_columns)
        meaning = "states that pass to another thread"
        return (SharedRegion("exchange", arithmetic.state_c, shape, 0, shape[0] * shape[1] * size, meaning),)
    if layout.tree == "shuffle":
        warps = choice.threads // WARP_THREADS
        if warps == 1:
            return ()
        return (SharedRegion("warp_totals", arithmetic.state_c, (warps,), 0, warps * size, "a state for each warp"),)
    return (SharedRegion("states", arithmetic.state_c, (choice.threads,), 0, choice.threads * size, "a state for each thread"),)


def _tensor_shared_memory(arithmetic: Arithmetic, layout: TensorLayout) -> tuple[SharedRegion, ...]:
    size, choice = arithmetic.state_bytes, layout.choice
    if layout.name == "flat_rows":
        count = layout.staged_elements
        bytes_staged = count * ELEMENTS[arithmetic.stored].bytes
        return (SharedRegion("staged", ELEMENTS[arithmetic.stored].c_type, (count,), 0, bytes_staged, "the rows of the block"),)
    if layout.name in ("flat_columns", "flat_tiles"):
        count = choice.threads * choice.vector
        return (SharedRegion("states", arithmetic.state_c, (count,), 0, count * size, "a state for each element of a vector"),)
    if layout.name == "tensor_columns":
        if layout.groups == 1:
            return ()
        shape = (layout.groups // 2, layout.tile_columns)
        meaning = "states that pass to another thread"
        return (SharedRegion("exchange", arithmetic.state_c, shape, 0, shape[0] * shape[1] * size, meaning),)
    warps = choice.threads // WARP_THREADS
    if not layout.in_parts or warps == 1:
        return ()
    return (SharedRegion("warp_totals", arithmetic.state_c, (warps,), 0, warps * size, "a state for each warp"),)


def _name_parts(spec: ReductionSpec, choice: Choice) -> list[str]:
    if isinstance(choice, WalkChoice):
        lanes = "" if choice.lanes == choice.threads else f"_{choice.lanes}x{choice.columns}"
        axes = f"{choice.kept}k{choice.reduced}r{'_wide' if choice.wide else ''}{'_repeated' if choice.repeated else ''}"
        return [f"{choice.name}{lanes}", axes, f"{choice.threads}x{choice.vector}x{choice.unroll}"]
    if isinstance(choice, LaneChoice):
        return [spec.shape, f"lanes{choice.lanes}x{choice.rows}", f"{choice.threads}x{choice.vector}x{choice.unroll}"]
    if isinstance(choice, ColumnChoice):
        return [spec.shape, f"tiles{choice.lanes}x{choice.splits}", f"{choice.threads}x{choice.vector}x{choice.unroll}"]
    if choice.blocks_per_row is not None:
        return [spec.shape, f"blocks{choice.blocks_per_row}", f"{choice.threads}x{choice.vector}x{choice.unroll}"]
    return [choice.name, f"{choice.threads}x{choice.vector}x{choice.unroll}"]
