"""Operations in their order, with the types of the values between them and with their operands."""

from __future__ import annotations

import itertools
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeGuard

from gemmgen.core.elements import ELEMENTS, FLOATS, DataType
from gemmgen.core.errors import Reason
from gemmgen.kernels.epilogue.expression import FormulaError
from gemmgen.kernels.epilogue.functions import Approximation, Function
from gemmgen.kernels.epilogue.graph import Accuracy, Typed, Writer, accuracy_of, evaluate, strictest, typed_node
from gemmgen.kernels.epilogue.numbers import Tracked, extremum, stored_value, summed, to_type, tracked
from gemmgen.kernels.epilogue.operations import (
    DATA_TYPES,
    PRODUCT,
    SECOND,
    VALUE,
    Cast,
    Complaint,
    Formula,
    FormulaOutput,
    Operand,
    Operation,
)
from gemmgen.kernels.launch import Argument, ArrayArgument, Constraint, Dimension, ScalarArgument
from gemmgen.kernels.matrix import Matrix

if TYPE_CHECKING:
    import numpy.typing as npt

SUMS = ("sum", "sum_of_squares")
"""Reductions whose terms go to the workspace, from where further kernels add them up in a fixed order."""

EXTREMA = ("max", "min", "absmax")
"""Reductions whose result does not depend on the order: blocks raise or lower a number in memory."""

SECOND_VALUE = "second"
"""Parameter of the epilogue's function that holds the second product."""
Place = Literal["prologue", "epilogue", "operations", "activation"]
"""The field of a spec that the operations stand in."""


@dataclass(frozen=True)
class Access:
    """An operand as one kernel reads it."""

    operand: Operand
    argument: ScalarArgument | ArrayArgument | Matrix
    text: str
    """The CUDA expression for the value of it that belongs to an element."""
    stored: DataType
    """The type that it is stored as."""
    placed: bool = False
    """True if the statements read the array themselves, at the element's place: it has another type than the output."""

    @property
    def name(self) -> str:
        return self.argument.name

    def computed(self, kind: DataType) -> DataType:
        """The type that expressions beside values of type ``kind`` see: that of the values, but for integers of 64 bits."""
        return "s64" if self.stored == "s64" else kind


@dataclass(frozen=True)
class Store:
    """A further output of a formula as one kernel writes it."""

    name: str
    """Name in the formula."""
    argument: ArrayArgument | Matrix
    lines: tuple[str, ...]
    """The CUDA statements that store an element's value, or add it to the reduction."""
    output: FormulaOutput

    @property
    def type(self) -> DataType:
        return self.output.type

    @property
    def is_term(self) -> bool:
        """True if it keeps terms of a sum, which further kernels add up."""
        return self.output.reduce in SUMS


class OutputSpace:
    """The elements that a family's operations work on, and the places of their operands."""

    works_in_place: ClassVar[bool] = False
    """True if an operand may be the result's array."""

    @abstractmethod
    def access(self, operand: Operand, name: str, kind: DataType) -> Access | Complaint:
        """Access of a value of type ``kind`` to the operand under this name; or why there is no such operand."""

    def store(self, output: FormulaOutput, name: str, text: str, kind: DataType) -> Store | Complaint:
        """Store of a value of type ``kind``, the CUDA expression ``text``, to the output under this name; or why there is none."""
        return "an output beside the result", (
            "one output: only products on GPUs and elementwise kernels have more. An elementwise kernel behind this one "
            "(kind: elementwise, gemmgen.ops.elementwise) stores several functions of the result, and kind: reduction reduces it"
        )

    @property
    def coordinates(self) -> Mapping[str, str]:
        """CUDA expressions of the coordinates that formulas may name."""
        return {}

    @property
    def second_product(self) -> str:
        """The CUDA expression of the second product; empty where there is none."""
        return ""


@dataclass(frozen=True)
class Step:
    """One operation as a kernel does it: ``target`` is the variable that holds the value afterwards."""

    operation: Operation
    kind: DataType
    """Type of the value before it."""
    result: DataType
    """Type of the value after it."""
    source: str
    target: str
    accesses: tuple[Access, ...]
    assignments: tuple[tuple[str, Typed], ...]
    """Names and typed trees of their values, in order; names are those of the operation."""
    lines: tuple[str, ...]
    """The CUDA statements."""
    accuracies: Mapping[str, Accuracy] = field(default_factory=dict)
    """Accuracy of the functions in each assignment by its target; full where none is given."""
    stores: tuple[Store, ...] = ()

    @property
    def code(self) -> str:
        """The CUDA statements, line by line."""
        return "\n".join(self.lines)

    @property
    def calls(self) -> frozenset[str]:
        """Names of the functions that it computes."""
        return frozenset(node.function.name for node in self._nodes if node.function is not None)

    @property
    def approximate(self) -> bool:
        """True if it calls functions whose last bits differ between backends."""
        return any(isinstance(one, Approximation) or one.approximate for one in self._evaluated)

    @property
    def special(self) -> int:
        """Special functions that it takes at least."""
        return sum(function.special if form is None or form.special is None else form.special for function, form in self._forms)

    @property
    def instructions(self) -> float:
        """Instructions of its functions for an element."""
        return sum(one.cost for one in self._evaluated)

    @property
    def types(self) -> frozenset[str]:
        """Types of the values on the way, and those that values are rounded to; ``bool`` for truth values."""
        return frozenset(kind for node in self._nodes for kind in (node.kind, node.cast) if kind is not None)

    @property
    def _nodes(self) -> list[Typed]:
        return [node for _, tree in self.assignments for node in tree.walk()]

    @property
    def _evaluated(self) -> list[Function | Approximation]:
        """The functions, in the form in which each is computed."""
        return [form or function for function, form in self._forms]

    @property
    def _forms(self) -> list[tuple[Function, Approximation | None]]:
        """The functions, each with the form on approximate instructions in which it is computed, if any."""
        return [
            (node.function, node.approximation(self.accuracies.get(target, "full")))
            for target, tree in self.assignments
            for node in tree.walk()
            if node.function is not None
        ]

    @property
    def arguments(self) -> tuple[ScalarArgument | ArrayArgument, ...]:
        """Numbers and arrays that it reads or writes, but for matrices with a leading dimension."""
        operands = [access.argument for access in self.accesses] + [store.argument for store in self.stores]
        return tuple(argument for argument in operands if not isinstance(argument, Matrix))

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """Matrices whose elements the kernel reads beforehand."""
        return tuple(access.argument for access in self.accesses if isinstance(access.argument, Matrix) and not access.placed)

    @property
    def placed(self) -> tuple[Matrix, ...]:
        """Matrices that the statements themselves read or write at the element's place."""
        operands = [access.argument for access in self.accesses if access.placed] + [store.argument for store in self.stores]
        return tuple(argument for argument in operands if isinstance(argument, Matrix))

    @property
    def has_place(self) -> bool:
        """True if the statements need the element's place: its true row and column, and whether it exists."""
        words = set(re.findall(r"\w+", " ".join(self.lines)))
        return bool(self.stores or self.placed or words & {"at_row", "at_column"})

    @property
    def written(self) -> frozenset[str]:
        """Names of the arrays that it writes."""
        return frozenset(store.argument.name for store in self.stores)

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        return tuple(dimension for matrix in (*self.matrices, *self.placed) for dimension in matrix.dimensions)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        return tuple(constraint for matrix in (*self.matrices, *self.placed) for constraint in matrix.constraints)

    @property
    def parameters(self) -> tuple[Argument, ...]:
        """All that the operation adds to the kernel's parameters."""
        parameters: list[Argument] = list(self.arguments)
        for matrix in (*self.matrices, *self.placed):
            role: Literal["input", "output"] = "output" if matrix.name in self.written else "input"
            parameters += [matrix.argument(role), *matrix.scalars]
        return tuple(parameters)


def plan_steps(
    operations: Sequence[Operation],
    kind: DataType,
    place: Place,
    reasons: list[Reason],
    space: OutputSpace,
    used: Mapping[str, int] | None = None,
    accuracy: Accuracy = "full",
    by_output: bool = False,
) -> tuple[tuple[Step, ...], DataType]:
    """The operations with the types of their values, and the type after them.

    ``used``: how many operations of a kind the kernel has before these, whose names they must not share. ``accuracy``: accuracy of
    functions; with ``by_output``, of those that the result alone depends on, while each further output asks for the accuracy that its own
    type can show.
    """
    steps: list[Step] = []
    seen = dict(used or {})
    variables = Variables(VALUE, kind)
    truncated_to, inexact = 0, False
    arguments: set[str] = set()
    matrices: dict[str, str] = {}
    named = [one.in_kernels() if isinstance(one, Formula) else one for one in operations]
    formulas = [one for one in named if isinstance(one, Formula)]
    outside = {word for one in formulas for word in (*one.inputs, *one.outputs)}
    variables.words = frozenset(outside.union(*(one.let for one in formulas)))
    variables.declared |= outside
    accuracies = _accuracies(named, accuracy, by_output)
    for index, operation in enumerate(named):
        where, kind = f"{place}.{index}", variables.kind
        truncation = _truncation_problem(operation, kind, truncated_to, inexact and place == "prologue")
        if truncation is not None:
            reasons.append(Reason("elementwise", where, f"{operation.op} of {truncation[0]}", truncation[1]))
        if becomes_integer(operation) and (truncated_to or kind in FLOATS):
            truncated_to = ELEMENTS[DATA_TYPES[operation.type]].bytes
        count = seen.get(operation.op, 0)
        seen[operation.op] = count + 1
        accesses = _accesses(operation, count, kind, space, where, reasons)
        if operation.floats_only and kind not in FLOATS:
            need = "a floating-point value: cast to float32 or float64 before it"
            reasons.append(Reason("elementwise", where, f"{operation.op} of an integer value", need))
            continue
        if len(accesses) < len(operation.operands()):  # the operand that is missing has its reason
            continue
        try:
            step = _step(operation, variables, accesses, accuracies[index], space)
        except FormulaError as error:
            got = error.got if error.got.startswith(operation.op) else f"{operation.op}: {error.got}"
            got += f" at {error.where}" if error.where and isinstance(operation, Formula) else ""
            reasons.append(Reason("elementwise", where, got, error.need.removeprefix("need ")))
            continue
        inexact |= "exp" in step.calls or step.approximate
        for argument in (*step.arguments, *step.matrices, *step.placed):
            if argument.name in arguments:
                reasons.append(Reason("elementwise", where, f"a second operand named {argument.name}", "names that differ"))
            arguments.add(argument.name)
        for matrix in (*step.matrices, *step.placed):
            # Leading dimensions and tensor maps have the matrix's name in small letters.
            namesake = matrices.setdefault(matrix.name.lower(), matrix.name)
            if namesake != matrix.name:
                both = " and ".join(name.removesuffix("_") for name in (namesake, matrix.name))
                got, need = f"operands named {both}", "names that differ by more than capital letters"
                reasons.append(Reason("elementwise", where, got, need))
        steps.append(step)
    return tuple(steps), variables.kind


@dataclass
class Variables:
    """The variable that holds the value so far."""

    name: str
    kind: DataType
    words: frozenset[str] = frozenset()
    """Names that formulas use."""
    count: int = 1
    declared: set[str] = field(default_factory=set)
    """Names of constants that the operations so far declare."""

    def declare(self, word: str) -> str:
        """The constant for an intermediate value: of its name, or a number behind it if an operation before has it."""
        numbers = itertools.count(2)
        own = word
        while own in self.declared or (own != word and own in self.words):
            own = f"{word}{next(numbers)}"
        self.declared.add(own)
        return own

    def next(self, kind: DataType) -> str:
        """The variable for a value of a type: the same, or a new one where the type changes."""
        if kind != self.kind:
            self.count += 1
            self.name, self.kind = f"{VALUE}{self.count}", kind
        return self.name


def _accuracies(operations: Sequence[Operation], result: Accuracy, by_output: bool) -> list[Mapping[str, Accuracy]]:
    """For each operation, the accuracy of each of its assignments: the strictest that an output asks for which depends on it.

    An operand of a further output that other outputs share is computed once, as accurately as the strictest of them needs.
    """
    accuracies: list[Mapping[str, Accuracy]] = []
    for operation in reversed(operations):
        needs: dict[str, Accuracy] = {VALUE: result}
        if by_output:
            needs |= {name: accuracy_of({one.type}, result == "in_turn") for name, one in operation.extra_outputs.items()}
        before: Accuracy = "in_turn"
        assigned: dict[str, Accuracy] = {}
        for assignment in reversed(operation.assignments):
            own = needs.get(assignment.target, result)
            assigned[assignment.target] = strictest(own, assigned.get(assignment.target, own))
            for name in assignment.node.names:
                if name in (VALUE, PRODUCT):
                    before = strictest(before, own)
                needs[name] = strictest(own, needs.get(name, own))
        accuracies.append(assigned)
        result = strictest(result, before) if by_output else result
    return accuracies[::-1]


def _step(
    operation: Operation, variables: Variables, accesses: tuple[Access, ...], accuracies: Mapping[str, Accuracy], space: OutputSpace
) -> Step:
    """One operation from the value that ``variables`` has to the next. Raises ``FormulaError``."""
    source, kind = variables.name, variables.kind
    kinds: dict[str, DataType] = {VALUE: kind} | {access.operand.name: access.computed(kind) for access in accesses}
    texts = {access.operand.name: access.text for access in accesses}
    if isinstance(operation, Formula):
        kinds[PRODUCT], texts[PRODUCT] = kind, source
        coordinates = space.coordinates
        kinds |= dict.fromkeys(coordinates, "s32")
        texts |= coordinates
        second = space.second_product
        if second:
            kinds[SECOND], texts[SECOND] = "f32", second
        elif any(SECOND in assignment.node.names for assignment in operation.assignments):
            raise FormulaError(f"{SECOND}, a second product", "need dual: true in the spec of a GEMM")
    writer = Writer(texts=texts | {VALUE: source}, taken=variables.declared, convert=convert)
    assignments: list[tuple[str, Typed]] = []
    stores: list[Store] = []
    for assignment in operation.assignments:
        tree = typed_node(assignment.node, assignment.text, kinds, kind)
        writer.accuracy = accuracies[assignment.target]
        if assignment.target == VALUE:
            if tree.kind == "bool":
                raise FormulaError("a truth value as the result", "need a number: select(condition, 1, 0) makes one")
            before = variables.kind
            target = variables.next(tree.kind)
            writer.assign(target, tree, f"{ELEMENTS[tree.kind].c_type} " if tree.kind != before else "")
            kinds[VALUE], writer.texts = tree.kind, texts | {VALUE: target}
        elif assignment.target in operation.extra_outputs:
            stores.append(_store(operation.extra_outputs[assignment.target], assignment.target, tree, writer, space))
            writer.lines += stores[-1].lines
        else:
            own = variables.declare(assignment.target)
            writer.assign(own, tree, f"const {ELEMENTS[tree.kind].c_type} ")
            kinds[assignment.target], texts[assignment.target] = tree.kind, own
            writer.texts = texts | {VALUE: source}
        assignments.append((assignment.target, tree))
    return Step(
        operation,
        kind,
        variables.kind,
        source,
        variables.name,
        accesses,
        tuple(assignments),
        tuple(writer.lines),
        accuracies,
        tuple(stores),
    )


def _store(output: FormulaOutput, name: str, tree: Typed, writer: Writer, space: OutputSpace) -> Store:
    """The store of a further output. Raises ``FormulaError``."""
    text = writer.text(tree)
    if tree.function is not None or tree.cast is not None:
        text = writer.variable(tree.kind, text)
    store = space.store(output, name, text, tree.kind)
    if isinstance(store, tuple):
        raise FormulaError(store[0], f"need {store[1]}", f"the output {name.removesuffix('_')!r}")
    return store


def becomes_integer(operation: Operation) -> TypeGuard[Cast]:
    """True if the value is an integer after the operation, regardless of its previous type."""
    return isinstance(operation, Cast) and DATA_TYPES[operation.type] not in FLOATS


def _accesses(
    operation: Operation, count: int, kind: DataType, space: OutputSpace, where: str, reasons: list[Reason]
) -> tuple[Access, ...]:
    operands = operation.operands()
    # A formula names its operands itself.
    names = {operand.name: operand.name if isinstance(operation, Formula) else numbered(operand.name, count) for operand in operands}
    accesses: list[Access] = []
    for operand in operands:
        access: Access | Complaint = "in_place", "an operand apart: products and convolutions on GPUs may have the result's array for one"
        if space.works_in_place or not operand.in_place:
            access = space.access(operand, names[operand.name], kind)
        if isinstance(access, tuple):
            reasons.append(Reason("elementwise", where, f"{operation.op} {access[0]}", access[1]))
        else:
            accesses.append(access)
    return tuple(accesses)


def number_argument(operand: Operand, name: str, kind: DataType, text: str | None = None) -> Access:
    """An operand that is a single number, of the value's own type ``kind``, to which float64 numbers are rounded; integers of 64 bits stay
    so beside any value."""
    if operand.stored == "f64":
        text = convert(text or name, "f64", kind)
    kind = operand.stored if operand.stored in ("f64", "s64") else kind
    index = name.removeprefix(operand.name)
    meaning = operand.meaning.format(Z=f"Z{index}")
    default = operand.default if kind in FLOATS or operand.default is None else int(operand.default)
    return Access(operand, ScalarArgument(name, kind, meaning, default=default), text or name, kind)


def numbered(name: str, index: int) -> str:
    """``name`` for the first of its kind, then ``name2``, ``name3`` ..."""
    return name if index == 0 else f"{name}{index + 1}"


def convert(expression: str, kind: DataType, to: DataType) -> str:
    """The CUDA expression of a value of one type as another. Halves and 8-bit floats are their bits; conversions to
    halves go by way of float32, to which a double is rounded so that the second rounding gives the nearest half."""
    halves = ("f16", "bf16")
    source, target = ELEMENTS[kind], ELEMENTS[to]
    if kind == to:
        return expression
    if kind in (*halves, "e4m3", "e5m2"):
        number = f"{kind}_to_float({expression})"
        return number if to == "f32" else f"static_cast<{target.c_type}>({number})"
    if to in halves:
        single = {"f32": expression, "f64": f"double_to_odd_float({expression})"}.get(kind, f"static_cast<float>({expression})")
        return f"float_to_{to}({single})"
    if source.is_float and to in ("s8", "s32", "s64"):
        function = f"__{'float' if kind == 'f32' else 'double'}2{'ll' if to == 's64' else 'int'}_rz"
        if to == "s8":
            return f"static_cast<signed char>({expression} == {expression} ? max(-128, min(127, {function}({expression}))) : 0)"
        return f"({expression} == {expression} ? {function}({expression}) : 0)"
    return f"static_cast<{target.c_type}>({expression})"


def stored_text(text: str, kind: DataType, to: DataType) -> str:
    """The CUDA expression of a value as an element of a further output: rounded to nearest, with saturation to integers."""
    if kind == "bool":
        return text if to in ("bool", "u8", "s8", "s32") else f"{text} ? {convert('1.0f', 'f32', to)} : {convert('0.0f', 'f32', to)}"
    if to == "bool":
        return f"{text} != {ELEMENTS[kind].literal(0)}"
    if kind == "f32" and to in ("s8", "u8", "e4m3", "e5m2"):
        return f"float_to_{to}({text})"
    if kind == "f32" and to == "s32":
        return f"__float2int_rn({text})"
    if to in ("e4m3", "e5m2"):
        return f"float_to_{to}({convert(text, kind, 'f32')})"
    return convert(text, kind, to)


def extremum_text(output: FormulaOutput, array: str, index: str, text: str) -> str:
    """The CUDA statement that raises or lowers the number at an index of an array to a value."""
    value = f"fabsf({text})" if output.reduce == "absmax" else text
    return f"{'lower_to' if output.reduce == 'min' else 'raise_to'}({array}{f' + {index}' if index != '0' else ''}, {value});"


def apply_steps(
    steps: Sequence[Step],
    value: Tracked,
    read: Callable[[Access], npt.NDArray[Any]],
    coordinates: Mapping[str, npt.NDArray[Any]] | None = None,
    outputs: dict[str, Tracked] | None = None,
    second: Tracked | None = None,
) -> Tracked:
    """Value and error bound after all steps, for every element of ``value`` even where no step reads it; ``read`` gives the values of an
    access, shaped to broadcast against the value, and so are the ``coordinates``. Values of further outputs are added to ``outputs`` under
    their names. ``second``: the second product."""
    import numpy as np

    before = value.value.shape
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        for step in steps:
            given = {access.operand.name: _as_computed(access, read(access), access.computed(step.kind)) for access in step.accesses}
            names = {VALUE: value, PRODUCT: value} | given
            names |= {name: tracked(place, "s32") for name, place in (coordinates or {}).items()}
            if second is not None:
                names[SECOND] = second
            for target, tree in step.assignments:
                names[target] = evaluate(tree, names, step.accuracies.get(target, "full"))
            value = names[VALUE]
            if outputs is not None:
                outputs |= {store.name: names[store.name] for store in step.stores}
    shape = np.broadcast_shapes(before, value.value.shape)
    return Tracked(np.broadcast_to(value.value, shape), np.broadcast_to(value.bound, shape), value.kind)


def stored_output(
    store: Store, value: Tracked, before: npt.NDArray[Any], axes: Mapping[str, tuple[int, ...]] | None = None
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """A further output and its bound, from the value of each element and the array's old contents. ``axes``: those that a reduction per
    row, column ... runs along; by default those of a matrix, and for one number all."""
    output = store.output
    if output.reduce is None:
        return stored_value(value, store.type)
    every = tuple(range(value.value.ndim))
    along = (axes or {"row": (1,), "column": (0,)}).get(output.per or "all", every)
    if store.is_term:
        return summed(value, along, output.reduce == "sum_of_squares", before.shape)
    return extremum(output.reduce, value, along, before)


def _as_computed(access: Access, values: npt.NDArray[Any], kind: DataType) -> Tracked:
    """Value of an access, in the type that the operation computes in: a double beside a value that a cast has made a half
    is rounded to float32 first, as kernels do it."""
    import numpy as np

    values = np.asarray(values)
    held = ELEMENTS[access.stored].computed_in
    return tracked(values, kind) if held == kind else to_type(tracked(values, held), kind)


def _truncation_problem(operation: Operation, kind: DataType, truncated_to: int, inexact: bool) -> Complaint | None:
    """The complaint about later operations once floating point became an integer of ``truncated_to`` bytes (0: it did not).

    A result that errs by its last bit is then off by one, which later operations would make any number.
    """
    if truncated_to and kind not in FLOATS:
        if not isinstance(operation, Cast):
            return "a value that was floating point", "only casts after that: do it before the cast"
        if becomes_integer(operation) and ELEMENTS[DATA_TYPES[operation.type]].bytes < truncated_to:
            return "a value that was floating point", "no integer type smaller than the first: it would wrap around"
    if inexact and kind in FLOATS and becomes_integer(operation):
        return "an exponential", "a floating-point type: by its last bit elements would differ by one"
    return None
