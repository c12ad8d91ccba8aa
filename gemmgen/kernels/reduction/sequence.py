"""The launches of a reduction, its arguments, and the memory where blocks meet."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gemmgen.core.elements import ELEMENTS, DataType
from gemmgen.core.formulas import Formula
from gemmgen.kernels.launch import Argument, ArrayArgument, Constraint, Dimension, KernelLaunch, LaunchSequence, ScalarArgument
from gemmgen.kernels.reduction.arithmetic import RESULTS, Arithmetic
from gemmgen.kernels.reduction.choice import BlockChoice, Choice, ColumnChoice, LaneChoice, WalkChoice
from gemmgen.kernels.reduction.spec import ReductionSpec
from gemmgen.kernels.reduction.tensor import TensorLayout

MAX_EXTENT = 2**31 - 1 - (1 << 20)
"""Largest extent: the coordinates of a block that reaches past the edge still fit into an int."""
FINISH_THREADS = 256
"""Threads of a block of the second kernel where each reduces a column's partial results."""
ROUND = 16


@dataclass(frozen=True)
class Workspace:
    """Places in which blocks leave partial results and the signs of their arrival, in bytes from the start of the workspace.

    The signs come first, because they have to be zero.
    """

    signs: Formula
    """Bytes of tickets, flags or results with flags."""
    partials: Formula
    """Bytes of partial results; 0 if they travel with the signs."""

    @property
    def used(self) -> bool:
        return self.total.text != "0"

    @property
    def partials_at(self) -> Formula:
        """Start of the partial results."""
        return self.signs if self.signs.text == "0" else Formula(f"round_up({self.signs}, {ROUND})")

    @property
    def total(self) -> Formula:
        if self.partials.text == "0":
            return self.signs
        return self.partials if self.signs.text == "0" else Formula(f"{self.partials_at} + {self.partials}")


def outputs_formula(spec: ReductionSpec) -> str:
    """Number of results."""
    return {"all": "1", "rows": "outer", "columns": "inner", "middle": "outer * inner", "strided": "outer * inner"}[spec.shape]


def plan_workspace(spec: ReductionSpec, arithmetic: Arithmetic, choice: Choice, finish: str | None, packed: bool) -> Workspace:
    """The memory that one way of meeting needs."""
    nothing = Workspace(Formula("0"), Formula("0"))
    if isinstance(choice, WalkChoice):
        return Workspace(*TensorLayout(choice, spec.alignment).work_bytes(arithmetic.state_bytes))
    if finish is None or finish == "atomic" or isinstance(choice, LaneChoice):
        return nothing
    if isinstance(choice, ColumnChoice):
        groups = tiles_formula(spec, choice)
        partials = f"{choice.splits * arithmetic.state_bytes} * {outputs_formula(spec)}"
    else:
        assert isinstance(choice, BlockChoice)
        groups = "1" if choice.blocks_per_row is None else "outer"
        blocks = _blocks_formula(choice)
        partials = f"{arithmetic.state_bytes} * {blocks}" if not blocks.isdecimal() else str(arithmetic.state_bytes * int(blocks))
    if finish == "two_pass":
        return Workspace(Formula("0"), Formula(partials))
    if finish == "last_block":
        return Workspace(Formula(f"4 * {groups}" if groups != "1" else "4"), Formula(partials))
    assert isinstance(choice, BlockChoice)
    blocks = _blocks_formula(choice)
    bytes_per_block = 8 if packed else 4
    signs = str(bytes_per_block * int(blocks)) if blocks.isdecimal() else f"{bytes_per_block} * {blocks}"
    return Workspace(Formula(signs), Formula("0" if packed else partials))


def _blocks_formula(choice: BlockChoice) -> str:
    """Number of blocks that may leave a partial result."""
    if choice.blocks_per_row is not None:
        return f"outer * {choice.blocks_per_row}"
    return str(choice.most_blocks) if choice.most_blocks is not None else f"({_grid_formula(choice)})"


def _grid_formula(choice: BlockChoice) -> str:
    blocks = f"max(ceil_div(reduced, {choice.threads * choice.items_per_thread}), 1)"
    return blocks if choice.most_blocks is None else f"min({blocks}, {choice.most_blocks})"


def tiles_formula(spec: ReductionSpec, choice: ColumnChoice) -> str:
    """Number of tiles of columns."""
    tiles = f"ceil_div(inner, {choice.lanes * choice.vector})"
    return tiles if spec.shape == "columns" else f"outer * {tiles}"


def launch_sequence(
    name: str, spec: ReductionSpec, arithmetic: Arithmetic, choice: Choice, finish: str | None, workspace: Workspace
) -> LaunchSequence:
    """Dimensions, arguments and launches of an instance."""
    if isinstance(choice, WalkChoice):
        return _tensor_sequence(name, arithmetic, TensorLayout(choice, spec.alignment), workspace)
    dimensions, constraints = _dimensions(spec, arithmetic)
    results = [argument.name for argument in _results(spec, arithmetic)]
    results += [argument.name for argument in arithmetic.result_arguments]
    strides = {dimension.name for dimension in dimensions if dimension.name.startswith("stride")}
    extents = {dimension.name for dimension in dimensions} - strides
    several = finish in ("last_block", "first_block")

    elements = {argument.name for argument in arithmetic.element_arguments}
    main = {"X", *strides, *extents, *results, *({"workspace"} if workspace.used else ())}
    if isinstance(choice, BlockChoice) and choice.blocks_per_row is not None and not several:
        main -= {"outer"}
    if isinstance(choice, ColumnChoice) and finish is None:
        main -= {"outer"}
    if finish == "two_pass":
        main -= set(results)
    main |= elements
    launches = {name: (_grid(spec, choice), choice.threads, main)}
    if finish == "two_pass":
        second = {*extents, *results, "workspace"}
        if spec.shape != "all" and not arithmetic.needs_count:
            second -= {"reduced"}
        launches[f"{name}_finish"] = (*_second_grid(spec, choice), second)
    if finish == "atomic":
        rows = spec.shape == "rows"
        grid = _one_dimension(f"ceil_div(outer, {FINISH_THREADS})" if rows else "1")
        launches = {f"{name}_start": (grid, FINISH_THREADS if rows else 1, {"outer", "Y"} & ({"Y"} | extents)), **launches}

    known = _arguments(spec, arithmetic, dimensions, workspace)
    used = set().union(*(names for _, _, names in launches.values()))
    return LaunchSequence(
        name=name,
        dimensions=dimensions,
        arguments=tuple(argument for argument in known if argument.name in used),
        launches=tuple(
            KernelLaunch(
                entry=entry,
                grid=grid,
                block=(threads, 1, 1),
                arguments=tuple(argument.name for argument in known if argument.name in names),
                programmatic=choice.early_launch,
            )
            for entry, (grid, threads, names) in launches.items()
        ),
        constraints=constraints,
        workspace_bytes=workspace.total,
        workspace_zero_bytes=workspace.signs,
    )


def _tensor_sequence(name: str, arithmetic: Arithmetic, layout: TensorLayout, workspace: Workspace) -> LaunchSequence:
    """One launch, whose blocks meet in the last of those that share a result."""
    counts = arithmetic.has_index or arithmetic.state == "moments"
    dimensions, constraints = layout.dimensions(arithmetic.rejects_nothing, counts)
    results = _named_results(arithmetic, layout.result_layout, "all elements" if not layout.kept else "each line")
    extra = [_shaped(argument, layout.result_layout) for argument in arithmetic.result_arguments]
    arguments = [*layout.scalars(dimensions), layout.source(arithmetic.stored), *results, *extra, *arithmetic.element_arguments]
    if workspace.used:
        arguments.append(_workspace_argument(workspace))
    arguments += layout.host_arguments()
    choice = layout.choice
    launch = KernelLaunch(
        entry=name,
        grid=(layout.grid, Formula("1"), Formula("1")),
        block=(choice.threads, 1, 1),
        arguments=tuple(argument.name for argument in arguments),
        programmatic=choice.early_launch,
    )
    return LaunchSequence(name, dimensions, tuple(arguments), (launch,), constraints, workspace.total, workspace.signs)


def _workspace_argument(workspace: Workspace) -> ArrayArgument:
    meaning = "where the blocks' results meet"
    return ArrayArgument("workspace", "u8", "workspace", (workspace.total,), (Formula("1"),), ROUND, meaning)


def _arguments(spec: ReductionSpec, arithmetic: Arithmetic, dimensions: tuple[Dimension, ...], workspace: Workspace) -> list[Argument]:
    """All possible arguments of a kernel of the sequence, in the order of its parameters."""
    known: list[Argument] = [ScalarArgument(d.name, "s32", d.meaning) for d in dimensions]
    known += [_source(spec, arithmetic), *_results(spec, arithmetic)]
    known += [_shaped(argument, result_layout(spec)) for argument in arithmetic.result_arguments]
    known += arithmetic.element_arguments
    return [*known, _workspace_argument(workspace)]


def _one_dimension(blocks: str) -> tuple[Formula, Formula, Formula]:
    return Formula(blocks), Formula("1"), Formula("1")


def _grid(spec: ReductionSpec, choice: Choice) -> tuple[Formula, Formula, Formula]:
    if isinstance(choice, LaneChoice):
        rows = "outer" if spec.shape == "rows" else "outer * inner"
        return _one_dimension(f"ceil_div({rows}, {max(1, choice.threads // choice.lanes) * choice.rows})")
    if isinstance(choice, ColumnChoice):
        return Formula(tiles_formula(spec, choice)), Formula(str(choice.splits)), Formula("1")
    assert isinstance(choice, BlockChoice)
    if choice.blocks_per_row is not None:
        return _one_dimension("outer" if choice.blocks_per_row == 1 else f"outer * {choice.blocks_per_row}")
    return _one_dimension(_grid_formula(choice))


def _second_grid(spec: ReductionSpec, choice: Choice) -> tuple[tuple[Formula, Formula, Formula], int]:
    if isinstance(choice, BlockChoice) and choice.blocks_per_row is None:
        return _one_dimension("1"), choice.threads
    return _one_dimension(f"ceil_div({outputs_formula(spec)}, {FINISH_THREADS})"), FINISH_THREADS


def _dimensions(spec: ReductionSpec, arithmetic: Arithmetic) -> tuple[tuple[Dimension, ...], tuple[Constraint, ...]]:
    width = spec.alignment
    least = 1 if arithmetic.rejects_nothing else 0
    reduced = Dimension("reduced", "elements that make one result", minimum=least, maximum=MAX_EXTENT)
    outer = Dimension("outer", "extent before the reduced axis", maximum=MAX_EXTENT)
    inner = Dimension("inner", "extent after the reduced axis", maximum=MAX_EXTENT)

    def stride(axis: str, default: str) -> Dimension:
        meaning = f"elements of X from one index along {axis} to the next"
        return Dimension(f"stride_{axis}", meaning, default=Formula(default))

    dimensions: tuple[Dimension, ...] = {
        "all": (reduced,),
        "rows": (outer, reduced, stride("outer", f"round_up(max(reduced, 1), {width})")),
        "columns": (reduced, inner, stride("reduced", f"round_up(max(inner, 1), {width})")),
        "middle": (
            outer,
            reduced,
            inner,
            stride("outer", "max(reduced, 1) * stride_reduced"),
            stride("reduced", f"round_up(max(inner, 1), {width})"),
        ),
        "strided": (
            outer,
            reduced,
            inner,
            stride("outer", "max(reduced, 1) * stride_reduced"),
            stride("reduced", "max(inner, 1) * stride_inner"),
            stride("inner", "1"),
        ),
    }[spec.shape]
    constraints = []
    if arithmetic.places and arithmetic.lines == "matrices":
        text = f"outer * reduced must be at most {MAX_EXTENT}: the operations on elements count both as rows"
        constraints.append(Constraint(Formula(f"outer * reduced <= {MAX_EXTENT}"), text))
    for dimension in dimensions:
        promised = dimension.name.startswith("stride") or (dimension.name == "inner" and spec.shape in ("columns", "middle"))
        if promised and width > 1:
            text = f"{dimension.name} must be a multiple of {width}, as the spec's alignment promises"
            constraints.append(Constraint(Formula(f"{dimension.name} % {width} == 0"), text))
    return dimensions, tuple(constraints)


def _source(spec: ReductionSpec, arithmetic: Arithmetic) -> ArrayArgument:
    shape, strides = {
        "all": (("reduced",), ("1",)),
        "rows": (("outer", "reduced"), ("stride_outer", "1")),
        "columns": (("reduced", "inner"), ("stride_reduced", "1")),
        "middle": (("outer", "reduced", "inner"), ("stride_outer", "stride_reduced", "1")),
        "strided": (("outer", "reduced", "inner"), ("stride_outer", "stride_reduced", "stride_inner")),
    }[spec.shape]
    return ArrayArgument(
        name="X",
        type=arithmetic.stored,
        role="input",
        shape=tuple(map(Formula, shape)),
        strides=tuple(map(Formula, strides)),
        alignment=spec.alignment * ELEMENTS[arithmetic.stored].bytes,
        meaning="the elements to reduce",
    )


def result_layout(spec: ReductionSpec) -> tuple[tuple[Formula, ...], tuple[Formula, ...]]:
    """Shape and strides of the results, which are stored without gaps."""
    shape, strides = {
        "all": (("1",), ("1",)),
        "rows": (("outer",), ("1",)),
        "columns": (("inner",), ("1",)),
        "middle": (("outer", "inner"), ("inner", "1")),
        "strided": (("outer", "inner"), ("inner", "1")),
    }[spec.shape]
    return tuple(map(Formula, shape)), tuple(map(Formula, strides))


def _results(spec: ReductionSpec, arithmetic: Arithmetic) -> list[ArrayArgument]:
    return _named_results(arithmetic, result_layout(spec), "all elements" if spec.shape == "all" else "each line")


ResultLayout = tuple[tuple[Formula, ...], tuple[Formula, ...]]
"""Shape and strides."""


def _named_results(arithmetic: Arithmetic, layout: ResultLayout, line: str) -> list[ArrayArgument]:
    shape, strides = layout
    if arithmetic.parts:
        return [replace(_named_results(part, layout, line)[0], name=f"Y{place}") for place, part in enumerate(arithmetic.parts)]
    kind: DataType = arithmetic.output
    if arithmetic.state == "moments":
        names = {"mean": f"the mean of {line}", "variance": f"the variance of {line}"}
    else:
        names = {"Y": f"the {arithmetic.operation} of {line}"}
    return [ArrayArgument(name, kind, "output", shape, strides, ELEMENTS[kind].bytes, meaning) for name, meaning in names.items()]


def _shaped(argument: Argument, layout: ResultLayout) -> Argument:
    """An array with a value for each result, with the shape of the results; a number that all results share stays as it is."""
    if not isinstance(argument, ArrayArgument) or argument.shape != (RESULTS,):
        return argument
    shape, strides = layout
    return ArrayArgument(argument.name, argument.type, argument.role, shape, strides, ELEMENTS[argument.type].bytes, argument.meaning)
