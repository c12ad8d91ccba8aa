"""The plan of an operation on rows: its formulas as passes over a row, its matrices, its launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gemmgen.core.elements import ELEMENTS, DataType
from gemmgen.core.errors import PlanError, Reason
from gemmgen.core.formulas import Formula
from gemmgen.hardware.target import WARP_THREADS, Architecture
from gemmgen.kernels.epilogue.graph import Accuracy, Typed, Writer, typed
from gemmgen.kernels.epilogue.steps import convert
from gemmgen.kernels.family import KernelPlan
from gemmgen.kernels.launch import Argument, ArrayArgument, Constraint, Dimension, KernelLaunch, LaunchSequence, ScalarArgument
from gemmgen.kernels.matrix import Matrix
from gemmgen.kernels.naming import architecture_reasons, instance_name, spec_digest
from gemmgen.kernels.rows.programs import GRADIENTS_OF_NORMS, NORMS, Assignment, Combination, Program, program
from gemmgen.kernels.rows.spec import RowsSpec

SHORT_ROWS_THREADS = 128
"""Threads of a block that has a row for each warp, or several."""
MAX_EXTENT = 2**31 - 1 - 2**21
"""Room for the rows and columns that blocks take beyond the last."""
SUMMING_LANES = 32
"""Columns, and slices of the partial sums, of a block that adds up the sums of blocks."""
MAX_SUMMED_ELEMENTS = 16
"""Elements of a thread that are summed over rows: each has an accumulator in a register for each sum."""
AHEAD_THREADS, RESIDENT_AHEAD, RESIDENT = 256, 768, 1024
"""Blocks of up to so many threads read a row ahead where rows are summed; threads of an SM then, and else."""
MAX_CONVERTED = 24
"""Halves of a thread that may stay in registers as floats from one pass to the next."""
MAX_SELECTED = 64
"""Elements of a row that topk finds, at most."""
TYPICAL_SELECTED = 32
"""The number of them where nothing says it."""
CANDIDATES = 256
"""Elements of a row that topk ranks beside each other; more of them are first reduced to those that it finds."""
COLUMNS = "columns"
"""Name of the length of a row in formulas."""
ACCURACY: Mapping[str, Accuracy] = {"f32": "full", "f16": "halves", "bf16": "bfloat16"}


@dataclass(frozen=True)
class Statement:
    """An assignment with its typed expression."""

    name: str
    combination: Combination
    tree: Typed
    by_element: bool
    """True if there is a value for each element; else it is one of the row."""

    @property
    def reduces(self) -> bool:
        """True if it combines the elements of a row to one value."""
        return self.combination in ("row_sum", "row_max")

    @property
    def names(self) -> frozenset[str]:
        """Names in its expression."""
        return frozenset(node.name for node in self.tree.walk() if node.name)


@dataclass(frozen=True)
class Pass:
    """One walk along a row."""

    statements: tuple[Statement, ...]
    """Combinations that it makes; outputs in the last pass."""
    matrices: tuple[str, ...]
    vectors: tuple[str, ...]
    lines: tuple[str, ...]
    """CUDA statements for an element, before its values are combined or stored."""
    values: tuple[tuple[str, str], ...]
    """Names of ``statements``, each with its CUDA expression for an element."""


@dataclass(frozen=True, kw_only=True)
class RowsPlan(KernelPlan[RowsSpec]):
    """All numbers and passes of an operation on rows."""

    program: Program
    statements: tuple[Statement, ...]
    matrices: tuple[Matrix, ...]
    """Matrices that are read."""
    outputs: tuple[Matrix, ...]

    @property
    def lanes(self) -> int:
        return int(self.spec.lanes)

    @property
    def vector(self) -> int:
        return int(self.spec.vector)

    @property
    def held(self) -> int:
        return int(self.spec.held)

    @property
    def threads(self) -> int:
        return block_threads(self.spec)

    @property
    def rows(self) -> int:
        """Rows of a block at a time."""
        return self.threads // self.lanes

    @property
    def warp_lanes(self) -> int:
        """Lanes of a warp that work on the same row."""
        return min(self.lanes, WARP_THREADS)

    @property
    def warps(self) -> int:
        """Warps that work on the same row."""
        return max(self.lanes // WARP_THREADS, 1)

    @property
    def shifted(self) -> bool:
        """True if a vector may begin before its row."""
        return not self.spec.aligned and self.vector > 1

    @property
    def most_columns(self) -> int:
        """Length of the longest row."""
        spare = 0 if self.spec.aligned else self.vector - 1
        return self.lanes * self.vector * self.held - spare if self.held else MAX_EXTENT

    @property
    def sums(self) -> tuple[str, ...]:
        """Outputs that are sums over rows."""
        return self.program.column_sums

    @property
    def combinations(self) -> frozenset[str]:
        """Functions that combine values of elements."""
        return frozenset(one.combination for one in self.statements)

    @property
    def prefix(self) -> Statement | None:
        """The statement that combines the elements up to each one."""
        return next((one for one in self.statements if one.combination.startswith("prefix")), None)

    @property
    def candidates(self) -> int:
        """Elements of a row that are ranked beside each other."""
        return CANDIDATES

    @property
    def type(self) -> DataType:
        return self.spec.input

    @property
    def weight_type(self) -> DataType:
        """Type of values for columns."""
        return self.spec.weight or self.spec.input

    @property
    def reductions(self) -> int:
        """Combinations of a row's elements."""
        return sum(one.reduces for one in self.statements)

    @property
    def has_floats(self) -> bool:
        """True if some arrays have elements of 32 bits."""
        return "f32" in (self.type, self.weight_type)

    @property
    def has_halves(self) -> bool:
        """True if some arrays have elements of 16 bits."""
        return self.type != "f32"

    @property
    def converts_again(self) -> bool:
        """True if a thread holds more halves than it has registers for as floats."""
        return self.has_halves and self.held * self.vector * len(self.matrices) > MAX_CONVERTED

    @property
    def summing_lanes(self) -> int:
        return SUMMING_LANES

    @property
    def summing_threads(self) -> int:
        return SUMMING_LANES * SUMMING_LANES

    def place(self, name: str) -> int:
        """Place of a combination's partial results in shared memory."""
        return [one.name for one in self.statements if one.reduces].index(name)

    def combination(self, name: str) -> str:
        """The function that combines the elements of a row to this value."""
        return next(one.combination for one in self.statements if one.name == name)

    @property
    def reducing_passes(self) -> int:
        """Passes that end with a combination of all lanes."""
        return sum(not isinstance(step, str) for step in self.body) - 1

    @property
    def resident_blocks(self) -> int:
        """Blocks of an SM whose rows are summed: all of a grid run at the same time."""
        return max(resident_threads(self.threads) // self.threads, 1)

    @property
    def ahead(self) -> bool:
        """True if a block reads its next row while it works on one."""
        return bool(self.sums) and self.threads <= AHEAD_THREADS

    @cached_property
    def body(self) -> tuple[Pass | str, ...]:
        """Passes along a row, and CUDA statements on its values between them, in order; the last pass writes the outputs."""
        parts: list[Pass | str] = []
        pending: list[Statement] = []

        def flush() -> None:
            if pending:
                parts.append(self._pass(tuple(pending)))
                pending.clear()

        for one in self.statements:
            if one.reduces:
                if self._needs(one) & {other.name for other in pending}:
                    flush()
                pending.append(one)
            elif not one.by_element and one.combination != "column_sum":
                flush()
                parts.append(f"const float {one.name} = {self._writer().text(one.tree)};")
        flush()
        prefix = self.prefix
        last = tuple(one for one in self.statements if one.name in (*self.program.outputs, *self.sums))
        parts.append(self._pass(last, apart=prefix))
        return tuple(parts)

    @property
    def prefix_pass(self) -> Pass:
        """The pass that makes the values that a prefix combines."""
        assert self.prefix is not None
        return self._pass((self.prefix,))

    @property
    def kept(self) -> str:
        """A value of elements that takes the place of the first matrix in registers; empty if there is none."""
        return self.program.kept if self.type == "f32" and self.held else ""

    def _with_kept(self, step: Pass) -> Pass:
        """A pass that needs the kept value: the one that reduces stores it, the last one reads it."""
        matrix = self.program.matrices[0]
        if step.statements[0].reduces:
            return replace(step, lines=(*step.lines, f"put({matrix}_held[held], i, {self.kept});"))
        others = tuple(line for line in step.lines if not line.startswith(f"const float {self.kept} "))
        return replace(step, lines=(f"const float {self.kept} = {matrix}_value;", *others))

    def depth(self, columns: int) -> int:
        """Additions, at most, that an element takes part in on its way into the combination of a row, or of those before it."""
        turns = self.held or -(-(columns + self.vector) // (self.lanes * self.vector))
        ends = self.warp_lanes.bit_length() + (self.warps.bit_length() + 1 if self.warps > 1 else 0)
        return turns * (self.vector if self.prefix is None else 1) + (self.vector if self.prefix is not None else 0) + ends + 3

    def _writer(self) -> Writer:
        texts = {one.name: self.variable(one.name) for one in self.statements}
        texts |= {name: self.variable(name) for name in (*self.program.matrices, *self.program.vectors)}
        return Writer(ACCURACY[self.type], texts | {COLUMNS: "static_cast<float>(n)"}, convert=convert)

    def variable(self, name: str) -> str:
        """The CUDA variable of a value: arrays have the names themselves."""
        arrays = (*self.program.matrices, *self.program.vectors, *self.program.outputs, *self.sums)
        return f"{name}_value" if name in arrays else name

    def _needs(self, statement: Statement) -> frozenset[str]:
        """Names that a statement needs for an element, through values of elements, which are computed again in each pass."""
        known = {one.name: one for one in self.statements}
        names: set[str] = set()
        waiting = set(statement.names)
        while waiting:
            name = waiting.pop()
            names.add(name)
            if name in known and known[name].by_element and not known[name].combination:
                waiting |= known[name].names - names
        return frozenset(names)

    def _pass(self, statements: tuple[Statement, ...], apart: Statement | None = None) -> Pass:
        """A pass for some statements; ``apart``: a prefix whose values are there."""
        needed: set[str] = set().union(*(self._needs(one) for one in statements))
        ends = {one.name for one in statements if not one.combination}
        writer = self._writer()
        for one in self.statements:
            if one.by_element and not one.combination and one.name in needed | ends:
                writer.assign(self.variable(one.name), one.tree, "const float ")
        made = [self.variable(one.name) if one.name in ends or one is apart else writer.text(one.tree) for one in statements]
        values = tuple((one.name, text) for one, text in zip(statements, made, strict=True))
        if self.kept in needed and self.held:
            return self._with_kept(Pass(statements, self.program.matrices, (), tuple(writer.lines), values))
        return Pass(
            statements,
            tuple(name for name in self.program.matrices if name in needed),
            tuple(name for name in self.program.vectors if name in needed),
            tuple(writer.lines),
            values,
        )


def block_threads(spec: RowsSpec) -> int:
    """Threads of a block."""
    return int(spec.lanes) if spec.lanes > WARP_THREADS else SHORT_ROWS_THREADS


def resident_threads(threads: int) -> int:
    """Threads of an SM whose rows are summed; those of small blocks have registers for a row more."""
    return RESIDENT_AHEAD if threads <= AHEAD_THREADS else RESIDENT


def typed_statements(assignments: Sequence[Assignment], given: Program) -> tuple[Statement, ...]:
    """Assignments with their types, and whether there is a value of each for every element."""
    elements = {*given.matrices, *given.vectors}
    kinds: dict[str, DataType] = dict.fromkeys((*given.matrices, *given.vectors, *given.numbers, COLUMNS), "f32")
    statements = []
    for one in assignments:
        tree = typed(one.text, kinds, "f32")
        reads = any(node.name in elements for node in tree.walk())
        by_element = reads and one.combination not in ("row_sum", "row_max", "column_sum")
        if by_element:
            elements.add(one.name)
        kinds[one.name] = "f32"
        statements.append(Statement(one.name, one.combination, tree, by_element))
    return tuple(statements)


def plan_rows(spec: RowsSpec, architecture: Architecture) -> RowsPlan:
    """The plan of ``spec`` for ``architecture``. Raises ``PlanError`` with every reason against it."""
    reasons = [*architecture_reasons(spec, architecture), *_reasons(spec)]
    if spec.operation == "topk" and architecture.compute_capability < (8, 0):
        need = "sm_80 or newer with topk: a warp combines values in one instruction"
        reasons.append(Reason("architecture", "architecture", architecture.name, need, "architecture: sm_80"))
    if reasons:
        raise PlanError(f"no kernel for this spec on {architecture.name}:", reasons)
    made = program(spec.operation, spec.input, spec.weight is not None, spec.bias, spec.residual)
    alignment = spec.vector if spec.aligned else 1
    matrices = tuple(Matrix(name, "m", "n", f"ld{name}", True, alignment, spec.input) for name in made.matrices)
    outputs = tuple(output_matrix(name, made, alignment, spec.input) for name in made.outputs)
    parts = [spec.input, f"{spec.lanes}x{spec.vector}" + (f"x{spec.held}" if spec.held else ""), *(() if spec.aligned else ("any",))]
    name = instance_name("bottomk" if spec.smallest else spec.operation, parts, spec)
    return RowsPlan(
        name=name,
        spec_digest=spec_digest(spec),
        architecture=architecture,
        sequence=_sequence(name, spec, made, matrices, outputs),
        template="rows/topk.cu.j2" if made.selects else "rows/rows.cu.j2",
        shared_memory=(),
        dynamic_shared_bytes=0,
        spec=spec,
        program=made,
        statements=typed_statements(made.assignments, made),
        matrices=matrices,
        outputs=outputs,
    )


def output_matrix(name: str, made: Program, alignment: int, kind: DataType) -> Matrix:
    """A result: as large as the operands, or k columns of elements or of their places."""
    if made.selects:
        return Matrix(name, "m", "k", f"ld{name}", True, 1, "s64" if name == "indices" else kind)
    return Matrix(name, "m", "n", f"ld{name}", True, alignment, kind)


def _reasons(spec: RowsSpec) -> list[Reason]:
    """Every reason against the fields of a spec."""
    reasons = []
    norm, gradient = spec.operation in NORMS, spec.operation in GRADIENTS_OF_NORMS
    widest = 16 // ELEMENTS[spec.input].bytes
    if spec.vector > widest:
        reasons.append(Reason("vector", "vector", f"{spec.vector} elements of {spec.input}", f"at most {widest}: one access of 16 bytes"))
    if spec.weight is not None and not (norm or gradient):
        reasons.append(Reason("operands", "weight", f"a weight of {spec.operation}", "rms_norm, layer_norm or their gradients"))
    if spec.weight not in (None, "f32", spec.input):
        reasons.append(Reason("operands", "weight", f"{spec.weight} beside {spec.input}", f"f32 or {spec.input}"))
    if spec.bias and not spec.operation.startswith("layer_norm"):
        reasons.append(Reason("operands", "bias", f"a bias of {spec.operation}", "layer_norm or its gradient"))
    if spec.residual and not norm:
        reasons.append(Reason("operands", "residual", f"a residual of {spec.operation}", "rms_norm or layer_norm"))
    selects = spec.operation == "topk"
    if spec.smallest and not selects:
        reasons.append(Reason("operands", "smallest", f"the smallest elements of {spec.operation}", "topk"))
    if selects and spec.lanes < WARP_THREADS:
        reasons.append(Reason("lanes", "lanes", str(spec.lanes), f"at least {WARP_THREADS} with topk: warps rank the elements of a row"))
    if selects and not spec.held and spec.lanes < 2 * MAX_SELECTED:
        need = f"at least {2 * MAX_SELECTED} with topk and held: 0: the first element of each thread bounds the others"
        reasons.append(Reason("lanes", "lanes", str(spec.lanes), need))
    summed = gradient and (spec.weight is not None or spec.bias)
    if summed and not (spec.aligned and 0 < spec.held * spec.vector <= MAX_SUMMED_ELEMENTS):
        got = f"{spec.held} vectors of {spec.vector} elements{'' if spec.aligned else ' at any address'}"
        need = f"from 1 to {MAX_SUMMED_ELEMENTS} elements of a thread, aligned: each is summed over rows in a register"
        reasons.append(Reason("accumulators", "held", got, need, "more lanes, or a gradient without weight and bias"))
    return reasons


def _sequence(name: str, spec: RowsSpec, made: Program, matrices: Sequence[Matrix], outputs: Sequence[Matrix]) -> LaunchSequence:
    every = (*matrices, *outputs)
    dimensions = (
        Dimension("m", "rows", maximum=MAX_EXTENT),
        Dimension("n", "columns", maximum=MAX_EXTENT),
        *((Dimension("k", "elements found in each row", 1, MAX_SELECTED, Formula(f"min(n, {TYPICAL_SELECTED})")),) if made.selects else ()),
        *(dimension for matrix in every for dimension in matrix.dimensions),
    )
    kind = spec.weight or spec.input
    alignment = (spec.vector if spec.aligned else 1) * ELEMENTS[kind].bytes
    one = Formula("1")

    def column_values(vector: str, role: str, meaning: str) -> ArrayArgument:
        aligned = min(alignment, 16) if role == "input" else ELEMENTS[kind].bytes
        return ArrayArgument(vector, kind, "output" if role == "output" else "input", (Formula("n"),), (one,), aligned, meaning)

    scalars = [ScalarArgument("m", "s32", "rows"), ScalarArgument("n", "s32", "columns")]
    if made.selects:
        scalars.append(ScalarArgument("k", "s32", "elements found in each row"))
    arguments: list[Argument] = [*scalars]
    for matrix in matrices:
        arguments += [matrix.argument("input"), *matrix.scalars]
    arguments += [column_values(vector, "input", "a value for each column") for vector in made.vectors]
    for matrix in outputs:
        arguments += [matrix.argument("output"), *matrix.scalars]
    arguments += [ScalarArgument(number, "f32", "added to the mean square") for number in made.numbers]
    sums = made.column_sums
    rows = block_threads(spec) // spec.lanes
    groups = f"ceil_div(m, {rows})" if rows > 1 else "m"
    blocks = f"min({groups}, {spec.blocks})" if sums else groups
    partial: list[Argument] = []
    summed = [column_values(one_sum, "output", "a sum over rows for each column") for one_sum in sums]
    workspace_bytes = Formula("0")
    if sums:
        parts = f"min(max({groups}, 1), {spec.blocks}) * {rows}"
        workspace_bytes = Formula(f"4 * {len(sums)} * {parts} * n")
        shape = (Formula(f"{len(sums)}"), Formula(parts), Formula("n"))
        strides = (Formula(f"{parts} * n"), Formula("n"), one)
        partial = [ArrayArgument("workspace", "f32", "workspace", shape, strides, 256, "sums of each block's rows")]
    launches = [
        KernelLaunch(
            entry=name,
            grid=(Formula(blocks), one, one),
            block=(block_threads(spec), 1, 1),
            arguments=tuple(argument.name for argument in (*arguments, *partial)),
        )
    ]
    if sums:
        launches.append(
            KernelLaunch(
                entry=f"{name}_sums",
                grid=(Formula(f"ceil_div(n, {SUMMING_LANES})"), Formula(str(len(sums))), one),
                block=(SUMMING_LANES, SUMMING_LANES, 1),
                arguments=("m", "n", *(argument.name for argument in (*summed, *partial))),
            )
        )
    constraints = [constraint for matrix in every for constraint in matrix.constraints]
    if spec.aligned and spec.vector > 1:
        constraints.append(Constraint(Formula(f"n % {spec.vector} == 0"), f"n must be a multiple of {spec.vector}: rows are whole vectors"))
    if spec.held:
        most = spec.lanes * spec.vector * spec.held - (0 if spec.aligned else spec.vector - 1)
        constraints.append(Constraint(Formula(f"n <= {most}"), f"n must be at most {most}: a row is held in registers"))
    if made.selects:
        constraints.append(Constraint(Formula("k <= n"), "k must be at most n: a row has no more elements"))
    return LaunchSequence(
        name=name,
        dimensions=dimensions,
        arguments=(*arguments, *summed, *partial),
        launches=tuple(launches),
        constraints=tuple(constraints),
        workspace_bytes=workspace_bytes,
    )


def packed_problem(plan: RowsPlan, sizes: Sequence[int]) -> dict[str, int]:
    """All dimensions of a problem without gaps."""
    return plan.sequence.completed(dict(zip(("m", "n"), sizes, strict=True)))


def moved_bytes(plan: RowsPlan, problem: Mapping[str, int]) -> int:
    """Bytes of all operands and results, each once."""
    matrices = sum(problem["m"] * problem[matrix.columns] * matrix.element_bytes for matrix in (*plan.matrices, *plan.outputs))
    vectors = (len(plan.program.vectors) + len(plan.sums)) * ELEMENTS[plan.weight_type].bytes
    return matrices + vectors * problem["n"]
