"""The preconditions of one launch as formulas: dimensions and constraints of its problem, its arrays, its grid and its block.

They come from the launch sequence, which the host checks before every launch: a proof holds for every problem that passes these checks.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import z3

from gemmgen.core.elements import ELEMENTS
from gemmgen.core.expressions import Walker
from gemmgen.core.formulas import GRAMMAR, Formula
from gemmgen.kernels.launch import GRID_LIMITS, ArrayArgument, ArrayRole, KernelLaunch, LaunchSequence
from gemmgen.proof.terms import node_of
from gemmgen.proof.values import Term, Value, as_term, constant, floor_divide

AXES = "xyz"
MAX_BLOCKS = 1 << 30
"""Blocks along an axis of a grid that proofs assume, half the hardware's limit: a kernel may add a grid to a block's index."""

EXAMPLE_STEPS = 2_000_000
SMALL = (4, 64, 1024)
"""Bounds of sizes under which a problem is looked for first."""
MAX_BEYOND = 64
"""A size of an example that cannot be had is exceeded by so much at most."""


class Inexpressible(Exception):
    """A formula of the launch that has no counterpart here."""


class _Terms(Walker):
    """A formula as a z3 term."""

    grammar: ClassVar = GRAMMAR

    def __init__(self, names: Mapping[str, Term]) -> None:
        self._names = names

    def term(self, node: ast.expr) -> Term:
        """The term of a node. Raises ``Inexpressible``."""
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=name) if name in self._names:
                return self._names[name]
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(op, self.term(left), self.term(right))
            case ast.Call(func=ast.Name(id=function), args=arguments):
                return self._call(function, arguments)
            case ast.Compare():
                return z3.If(self.condition(node), z3.IntVal(1), z3.IntVal(0))
        raise Inexpressible(ast.unparse(node))

    def condition(self, node: ast.expr) -> z3.BoolRef:
        """A comparison as a condition; any other node holds if it is not zero."""
        if isinstance(node, ast.Compare):
            a, b = as_term(self.term(node.left)), as_term(self.term(node.comparators[0]))
            match node.ops[0]:
                case ast.Lt():
                    return a < b
                case ast.LtE():
                    return a <= b
                case ast.Gt():
                    return a > b
                case ast.GtE():
                    return a >= b
                case ast.Eq():
                    return a == b
                case ast.NotEq():
                    return a != b
        return as_term(self.term(node)) != 0

    def _binary(self, op: ast.operator, a: Term, b: Term) -> Term:
        match op:
            case ast.Add():
                return a + b
            case ast.Sub():
                return a - b
            case ast.Mult():
                return a * b
            case ast.LShift() if isinstance(b, int):
                return a * (1 << b)
            case ast.FloorDiv() if isinstance(b, int) and b > 0:
                return a // b if isinstance(a, int) else floor_divide(Value(a), b).term
            case ast.Mod() if isinstance(b, int) and b > 0:
                return a % b
        raise Inexpressible(f"{type(op).__name__} by a number that is not known")

    def _call(self, function: str, arguments: list[ast.expr]) -> Term:
        if function == "select":
            condition, yes, no = arguments
            return z3.If(self.condition(condition), as_term(self.term(yes)), as_term(self.term(no)))
        terms = [self.term(argument) for argument in arguments]
        if function in ("min", "max"):
            a, b = (as_term(term) for term in terms)
            return z3.If(a <= b if function == "min" else a >= b, a, b)
        if function in ("ceil_div", "round_up") and isinstance(terms[1], int) and terms[1] > 0:
            a, divisor = terms[0], terms[1]
            quotient = -(-a // divisor) if isinstance(a, int) else floor_divide(Value(a + (divisor - 1)), divisor).term
            return quotient if function == "ceil_div" else quotient * divisor
        raise Inexpressible(f"{function} of numbers that are not known")


@dataclass(frozen=True)
class Array:
    """An array in global memory as the kernel may use it; an axis of contiguous elements comes last."""

    name: str
    type: str
    element_bytes: int
    shape: tuple[Term, ...]
    strides: tuple[Term, ...]
    """Elements from one index to the next."""
    alignment: int
    """Bytes that its address is a multiple of."""
    writable: bool
    workspace: bool
    role: ArrayRole
    axes: tuple[int, ...] = ()
    """The axes of the launch's description in this order."""
    assumed_apart: bool = False
    """True if it is assumed that different elements have different addresses."""


def assumed_apart(sequence: LaunchSequence) -> tuple[str, ...]:
    """Results of three or more axes with a stride that no precondition bounds: matrices of a batch may follow each other, or lie among
    each other row by row. That their elements have different addresses is an assumption of the proofs."""
    bounded = {name for each in sequence.constraints if "%" not in str(each.condition) for name in each.condition.names}
    free = {dimension.name for dimension in sequence.dimensions} - bounded
    return tuple(
        array.name
        for array in sequence.arrays
        if array.writes and len(array.shape) > 2 and any(str(stride) in free for stride in array.strides)
    )


class Contract:
    """All facts that hold when one launch of a sequence runs. Raises ``Inexpressible``."""

    def __init__(self, sequence: LaunchSequence, launch: KernelLaunch, most_blocks: int = MAX_BLOCKS) -> None:
        self.launch = launch
        self._given = [name for each in sequence.launches for name in each.arguments]
        self.facts: list[z3.BoolRef] = []
        self._values: dict[str, Value] = {}
        self.symbols: dict[str, z3.ArithRef] = {}
        """The dimensions' symbols; a dimension that must be a multiple is that many times its symbol."""
        self._multiples = multiples = _multiples(sequence)
        for dimension in sequence.dimensions:
            if not re.fullmatch(r"[\w$]+", dimension.name):  # other symbols have a dot or other marks in their names
                raise Inexpressible(f"a size with the name {dimension.name}")
            symbol, step = z3.Int(dimension.name), multiples.get(dimension.name, 1)
            value = symbol * step if step > 1 else symbol
            self.facts += [value >= dimension.minimum, value <= dimension.maximum]
            zeros = (step & -step).bit_length() - 1
            self._values[dimension.name] = Value(value, dimension.minimum, dimension.maximum, zeros)
            self.symbols[dimension.name] = symbol
        terms = _Terms({name: value.term for name, value in self._values.items()})
        self._named = {name for constraint in sequence.constraints for name in constraint.condition.names}
        for constraint in sequence.constraints:
            self.facts.append(terms.condition(constraint.condition.tree))
        self._terms = terms
        self._zero_bytes = sequence.workspace_zero_bytes
        self._assumed_apart = assumed_apart(sequence)
        self.arrays = {array.name: self._array(array) for array in sequence.arrays}
        self.threads = launch.block
        self.grid = tuple(as_term(terms.term(formula.tree)) for formula in launch.grid)
        self.dynamic_shared = as_term(terms.term(launch.dynamic_shared_bytes.tree))
        self._without_blocks = list(self.facts)
        # A block exists, so that every factor of its grid is at least one, where none can be negative.
        factors_of = [tuple(as_term(terms.term(part)) for part in _factors(formula)) for formula in launch.grid]
        pairs = zip(factors_of, self.grid, strict=True)
        self.grid_factors = tuple(factors if self._never_negative(factors) else (grid,) for factors, grid in pairs)
        for factors, limit in zip(self.grid_factors, GRID_LIMITS, strict=True):
            self.facts += [factor >= 1 for factor in factors]
            self.facts += [factor >= 1 for formula in launch.grid for factor in self._in_minimum(formula)]
            product = factors[0]
            for factor in factors[1:]:
                product = product * factor
            self.facts.append(product <= min(limit, most_blocks))
        self._tighten()

    def _in_minimum(self, formula: Formula) -> list[z3.ArithRef]:
        """The factors of products of which a grid is the smallest, where none is negative: each is at least one if the grid is."""
        match formula.tree:
            case ast.Call(func=ast.Name(id="min"), args=arguments):
                factors = [as_term(self._terms.term(part)) for argument in arguments for part in _factors_of(argument)]
                return factors if self._never_negative(factors) else []
        return []

    def _never_negative(self, factors: Sequence[z3.ArithRef]) -> bool:
        solver = z3.Solver()
        solver.set("rlimit", 1_000_000)
        linear = [fact for fact in self._without_blocks if not node_of(fact).nonlinear]
        solver.add(*linear, z3.Not(z3.And(*[factor >= 0 for factor in factors])))
        return bool(solver.check() == z3.unsat)

    def _tighten(self) -> None:
        """Raises the lower bound of dimensions that no block exists without: of those that grids and preconditions name."""
        named = {name for formula in self.launch.grid for name in formula.names} | self._named
        solver = z3.Solver()
        solver.set("rlimit", 1_000_000)
        solver.add(*[fact for fact in self.facts if not node_of(fact).nonlinear])
        for name, value in self._values.items():
            if value.low or name not in named:
                continue
            solver.push()
            solver.add(value.z3 < 1)
            if solver.check() == z3.unsat:
                self._values[name] = Value(value.term, 1, value.high, value.zeros)
            solver.pop()

    def _array(self, argument: ArrayArgument) -> Array:
        def terms(formulas: tuple[Formula, ...]) -> tuple[Term, ...]:
            return tuple(self._terms.term(formula.tree) for formula in formulas)

        shape, strides = terms(argument.shape), terms(argument.strides)
        order = sorted(range(len(shape)), key=lambda axis: isinstance(strides[axis], int) and strides[axis] == 1)
        return Array(
            argument.name,
            argument.type,
            ELEMENTS[argument.type].bytes,
            tuple(shape[axis] for axis in order),
            tuple(strides[axis] for axis in order),
            argument.alignment,
            argument.writes,
            argument.role == "workspace",
            argument.role,
            tuple(order),
            argument.name in self._assumed_apart,
        )

    def has_blocks(self, array: Array) -> bool:
        """True if the grid has a block for every problem in which an array has elements."""
        for factor in (factor for factors in self.grid_factors for factor in factors):
            solver = z3.Solver()
            solver.set("rlimit", 10_000_000)
            solver.add(*self._without_blocks, *[as_term(extent) >= 1 for extent in array.shape], factor < 1)
            if solver.check() != z3.unsat:
                return False
        return True

    def used(self, array: str) -> bool:
        """True if this launch is given an array, or none is."""
        return array in self.launch.arguments or array not in self._given

    def term(self, formula: Formula) -> z3.ArithRef:
        """A formula of the launch's dimensions. Raises ``Inexpressible``."""
        return as_term(self._terms.term(formula.tree))

    @property
    def zero_bytes(self) -> z3.ArithRef:
        """Bytes at the start of the workspace that are 0 before a run, and after it. Raises ``Inexpressible``."""
        return self.term(self._zero_bytes)

    def in_workspace(self, address: Value | None) -> bool:
        """True if an address may point into the workspace, by any of the arguments that point to its beginning."""
        if address is None or address.base is None:
            return True
        return address.base in self.arrays and self.arrays[address.base].workspace

    def step_of(self, name: str) -> int:
        """The number that a dimension is a multiple of: it is so many times its symbol."""
        return self._multiples.get(name, 1)

    def has_problem(self) -> bool:
        """True if a problem with a block is known that the preconditions allow: a proof says nothing without one."""
        for limit in (*SMALL, None):
            solver = z3.Solver()
            solver.set("rlimit", EXAMPLE_STEPS)
            solver.add(*self.facts, *[symbol <= limit for symbol in self.symbols.values() if limit is not None])
            if solver.check() == z3.sat:
                return True
        return False

    def example(self, wanted: Mapping[str, int]) -> dict[str, int] | None:
        """A problem that the preconditions allow, with as many of the wanted sizes, or larger ones, as they allow in this order."""
        solver = z3.Solver()
        solver.set("rlimit", EXAMPLE_STEPS)
        solver.add(*self._without_blocks)
        for name, number in wanted.items():
            value = self._values[name].z3
            for sought in (value == -(-number // self.step_of(name)) * self.step_of(name), value <= number + MAX_BEYOND):
                solver.push()
                solver.add(sought)
                if solver.check() == z3.sat:
                    break
                solver.pop()
        return {name: self.value_of(name, solver.model()) for name in self._values} if solver.check() == z3.sat else None

    def value_of(self, name: str, model: z3.ModelRef) -> int:
        """A dimension's value in a model."""
        return int(model.eval(self._values[name].z3, model_completion=True).as_long())

    def parameter(self, index: int) -> Value | None:
        """The parameter of that place: an address, a dimension; None for numbers such as alpha, and for structures."""
        name = self.launch.arguments[index]
        return constant(0, name) if name in self.arrays else self._values.get(name)


def _multiples(sequence: LaunchSequence) -> dict[str, int]:
    """The dimensions that constraints promise to be multiples of a number."""
    multiples: dict[str, int] = {}
    for constraint in sequence.constraints:
        match constraint.condition.tree:
            case ast.Compare(
                left=ast.BinOp(left=ast.Name(id=name), op=ast.Mod(), right=ast.Constant(value=int(number))),
                ops=[ast.Eq()],
                comparators=[ast.Constant(value=0)],
            ):
                multiples[name] = max(multiples.get(name, 1), number)
    return multiples


def _factors(formula: Formula) -> list[ast.expr]:
    """The factors of a product, in order."""
    return _factors_of(formula.tree)


def _factors_of(tree: ast.expr) -> list[ast.expr]:
    pending, factors = [tree], []
    while pending:
        node = pending.pop()
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            pending += [node.right, node.left]
        else:
            factors.append(node)
    return factors
